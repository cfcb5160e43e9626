"""Properties of the codec: round trips, one truth on both paths, and no way to make it fail otherwise than by NnrpError."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.layout import Structure
from protocol.layout_codec import explain
from protocol.nnrp.enums import OperationFeatures
from protocol.nnrp.errors import NnrpError, NnrpLocalError
from protocol.nnrp.extensions import NO_FEATURES, parse_extensions
from protocol.nnrp.packet import Packet, decode_packet, encode_packet
from tests.protocol.nnrp.strategies import STRUCTURES, examples, raw_bytes, records
from tests.protocol.nnrp.vectors import NEGATIVE, POSITIVE, captures

PACKETS = [bytes.fromhex(each["hex"]) for each in (*POSITIVE, *NEGATIVE) if each["kind"] == "packet" and each["hex"]]
PACKETS += [bytes.fromhex(entry["hex"]) for _, _, entry in captures()]

EACH = pytest.mark.parametrize("made", STRUCTURES, ids=lambda made: made.LAYOUT.name)


def outcome(function: Any, *arguments: Any) -> tuple[object, ...]:
    """What a decoder gives, comparable: the record, or everything the error says."""
    try:
        return ("record", function(*arguments))
    except NnrpError as error:
        return ("error", error.outcome, error.field, error.offset, error.rule, error.code)


@EACH
@examples(12)
@given(data=st.data())
def test_round_trip(made: type[Structure], data: st.DataObject) -> None:
    """nnrp-wire 4.1 – 4.3: what is packed decodes to the same record, and checking changes no byte."""
    record = data.draw(records(made))
    packed = record.pack()
    assert len(packed) == made.SIZE
    assert made.parse(packed) == record
    assert record.pack_checked() == packed
    values = [getattr(record, each.name) for each in made.LAYOUT.fields if each.is_attribute]
    assert made.pack_values(*values) == packed


@EACH
@examples(20)
@given(data=st.data())
def test_fast_path_and_rules_agree(made: type[Structure], data: st.DataObject) -> None:
    """The compiled decoder accepts exactly what the walk over the declaration accepts, and with the same result."""
    raw = data.draw(raw_bytes(made))
    for strict in (True, False):
        slow = outcome(explain, made, raw, 0, strict, 5)
        assert outcome(made.decode, raw, 0, strict, 5) == slow
        view = memoryview(b"\xff\xff" + raw)
        assert outcome(made.decode, view, 2, strict, 5) == slow


@examples(150)
@given(st.binary(max_size=200), st.booleans(), st.integers(0, 31))
def test_any_bytes(data: bytes, strict: bool, granted: int) -> None:
    """Issue 4: arbitrary bytes give a packet or a remote protocol error, nothing else."""
    check(data, strict, granted)


@examples(400)
@given(
    seed=st.sampled_from(PACKETS),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    cut=st.one_of(st.none(), st.integers(0, 400)),
    strict=st.booleans(),
    granted=st.integers(0, 31),
)
def test_damaged_packets(
    seed: bytes, changes: list[tuple[int, int]], cut: int | None, strict: bool, granted: int
) -> None:
    """As `test_any_bytes`, near the legal packets; lengths are repaired so that bodies are reached."""
    data = bytearray(seed)
    for place, value in changes:
        if data:
            data[place % len(data)] = value
    if cut is not None:
        del data[cut:]
    if len(data) >= 40:
        meta_len = int.from_bytes(data[12:16], "little")
        data[16:20] = max(len(data) - 40 - meta_len, 0).to_bytes(4, "little")
    check(bytes(data), strict, granted)


def check(data: bytes, strict: bool, granted: int) -> None:
    packet, error = None, None
    try:
        packet = decode_packet(data, strict=strict, granted=OperationFeatures(granted))
    except NnrpError as caught:
        error = caught
    if error is not None:
        assert error.outcome.value in str(error)
        assert error.offset is None or 0 <= error.offset <= len(data)
        return
    assert isinstance(packet, Packet)
    if strict:
        assert packet.pack() == data
        assert decode_packet(data, strict=False, granted=OperationFeatures(granted)).pack() == data


@examples(150)
@given(seed=st.sampled_from(PACKETS))
def test_what_is_accepted_can_be_sent(seed: bytes) -> None:
    """One truth for both directions: a packet a strict receiver takes, encode_packet builds to the same bytes."""
    try:
        packet = decode_packet(seed)
    except NnrpError:
        return
    header = packet.header
    ids = {name: getattr(header, name) for name in ("session_id", "frame_id", "view_id", "route_id", "trace_id")}
    assert encode_packet(packet.metadata, packet.body, flags=header.flags, **ids) == seed


@examples(150)
@given(seed=st.sampled_from(PACKETS), session_id=st.integers(-1, 2**32), frame_id=st.integers(0, 3))
def test_nothing_illegal_is_built(seed: bytes, session_id: int, frame_id: int) -> None:
    """Whatever encode_packet returns, a strict receiver accepts; the rest is a local error."""
    try:
        packet = decode_packet(seed, strict=False)
    except NnrpError:
        return
    try:
        made = encode_packet(packet.metadata, packet.body, session_id=session_id, frame_id=frame_id)
    except NnrpLocalError:
        return
    decode_packet(made, granted=OperationFeatures(31))


@examples(150)
@given(st.binary(max_size=64), st.booleans())
def test_any_extension_block(data: bytes, strict: bool) -> None:
    """nnrp-wire 6: a block is entries or an error, and the entries are within it."""
    try:
        entries = parse_extensions(data, granted=NO_FEATURES, strict=strict)
    except NnrpError:
        return
    assert sum(8 + len(each.payload) + -len(each.payload) % 8 for each in entries) == len(data)
