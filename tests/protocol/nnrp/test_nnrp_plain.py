"""The fast path of plain data packets and the general codec agree on every byte, and on every refusal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.nnrp.descriptors import BodyRegionPrelude, TypedPayloadDescriptor
from protocol.nnrp.enums import OperationFeatures, PayloadKind
from protocol.nnrp.errors import NnrpError, NnrpLocalError
from protocol.nnrp.header import HEADER_BYTES
from protocol.nnrp.messages import FrameSubmit, ResultPush
from protocol.nnrp.packet import RawPacket, decode_packet, encode_packet, encode_parts
from protocol.nnrp.plain import BODY_BYTES, PLAIN, PlainPackets
from protocol.nnrp.regions import Regions, TypedPayload
from protocol.nnrp.splitter import Splitter
from protocol.nnrp.template import Template
from tests.protocol.nnrp.strategies import examples, records
from tests.protocol.nnrp.vectors import POSITIVE, captures

TEXT = PayloadKind.TOKEN_CHUNK
MESSAGES = (FrameSubmit, ResultPush)
IDS = st.sampled_from([0, 1, 7, 0xFFFF, 2**32 - 1])
PAYLOADS = st.one_of(st.binary(max_size=80), st.sampled_from([bytes(4039), bytes(4040), bytes(9000)]))
SEEDS = [bytes.fromhex(each["hex"]) for each in POSITIVE if each["kind"] == "packet" and each["hex"]]
SEEDS += [bytes.fromhex(entry["hex"]) for _, _, entry in captures()]
PLAIN_PACKETS = [
    encode_packet(message, Regions((TypedPayload.of(data, profile_id=2),)), session_id=3, frame_id=9)
    for message in (
        FrameSubmit(payload_kind_bitmap=TEXT, payload_frame_count=1),
        ResultPush(payload_kind_bitmap=TEXT, payload_frame_count=1, active_profile_id=2),
    )
    for data in (b"", b"some text")
]


def outcome(function: Any, *arguments: Any, **options: Any) -> tuple[object, ...]:
    try:
        return ("packet", function(*arguments, **options))
    except NnrpError as error:
        return ("error", error.outcome, error.subject, error.field, error.offset, error.rule, error.code, error.reach)


def agree(packet: bytes, strict: bool, granted: int = 0) -> None:
    """However often a packet was seen, and wherever in a read it stands, it is what the general decoder says."""
    features = OperationFeatures(granted)
    expected = outcome(decode_packet, packet, strict=strict, granted=features)
    for before, behind in ((b"", b""), (b"", packet), (b"\xff" * 5, b"\x00" * 200)):
        raw = RawPacket(before + packet + behind, len(before))
        assert outcome(raw.decode, strict=strict, granted=features) == expected


@pytest.mark.parametrize("made", MESSAGES)
@examples(150)
@given(data=st.data(), strict=st.booleans())
def test_reading_agrees(made: type[FrameSubmit | ResultPush], data: st.DataObject, strict: bool) -> None:
    """nnrp-wire 4.9, 8: any metadata, descriptor, ids and payload, seen for the first time or again."""
    message: Any = data.draw(records(made)).replace(payload_frame_count=1)
    descriptor: Any = data.draw(records(TypedPayloadDescriptor))
    body = b"".join(Regions((TypedPayload(descriptor, data.draw(PAYLOADS)),)).build())
    ids = {name: data.draw(IDS) for name in ("session_id", "frame_id", "trace_id")}
    try:
        packet = encode_packet(message, body, strict=False, **ids)
    except NnrpLocalError:
        return
    agree(packet, strict)


@examples(400)
@given(
    seed=st.sampled_from(PLAIN_PACKETS + SEEDS),
    changes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=3),
    strict=st.booleans(),
    granted=st.integers(0, 31),
)
def test_reading_agrees_near_what_was_learnt(
    seed: bytes, changes: list[tuple[int, int]], strict: bool, granted: int
) -> None:
    """Damage anywhere but in the framing, which is the splitter's."""
    agree(seed, strict, granted)
    data = bytearray(seed)
    for place, value in changes:
        if not 12 <= place % len(data) < 20:
            data[place % len(data)] = value
    agree(bytes(data), strict, granted)


@pytest.mark.parametrize("packet", PLAIN_PACKETS)
def test_every_byte_counts(packet: bytes) -> None:
    """Every byte changed but those of the framing, each time right after the packet itself was learnt: what was changed before
    may have been learnt too, and have pushed it out."""
    for place in [*range(12), *range(20, len(packet))]:
        for bit in range(8):
            assert RawPacket(packet).decode() == decode_packet(packet)
            agree(packet[:place] + bytes([packet[place] ^ 1 << bit]) + packet[place + 1 :], True)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("packet", PLAIN_PACKETS)
def test_lengths_must_fit_each_other(packet: bytes, strict: bool) -> None:
    """nnrp-wire 8.2, 8.5: the payload's length stands in the header, the prelude and the descriptor, its offset is 0 or a gap
    that only a tolerant receiver takes; and a body from 4096 bytes on is a view."""
    prelude = HEADER_BYTES + (FrameSubmit.SIZE if packet[6] == FrameSubmit.TYPE else ResultPush.SIZE)
    framed, offset, length = prelude + 12, prelude + 48, prelude + 52
    for size in (0, 1, 9, 30, 4039, 4040, 5000):
        for change in (
            {},
            {framed: 1},
            {length: 1},
            {length: -1},
            {framed: 8, offset: 8},
            {offset: 1},
            {framed: 1, length: 1},
        ):
            made = bytearray(packet[: prelude + 56] + bytes(size))
            made[16:20] = (56 + size).to_bytes(4, "little")
            for place in (framed, length):
                made[place : place + 4] = size.to_bytes(4, "little")
            for place, more in change.items():
                value = max(int.from_bytes(made[place : place + 4], "little") + more, 0)
                made[place : place + 4] = value.to_bytes(4, "little")
            RawPacket(packet).decode(strict=strict)
            agree(bytes(made), strict)
            found = outcome(RawPacket(bytes(made)).decode, strict=strict)[1]
            expected = outcome(decode_packet, bytes(made), strict=strict)[1]
            assert type(getattr(found, "body", None)) is type(getattr(expected, "body", None))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("packet", PLAIN_PACKETS)
def test_a_frame_message_names_session_and_frame(packet: bytes, strict: bool) -> None:
    """nnrp-wire 3.2."""
    for place in (20, 24):
        RawPacket(packet).decode(strict=strict)
        agree(packet[:place] + bytes(4) + packet[place + 4 :], strict)


def test_a_gap_that_was_tolerated_is_not_taken_for_none() -> None:
    """nnrp-wire 8.5: one payload behind a gap of eight bytes, then one that would begin behind its end."""
    message = FrameSubmit(payload_kind_bitmap=TEXT, payload_frame_count=1)

    def made(framed: int, data: bytes) -> bytes:
        prelude = BodyRegionPrelude(typed_payload_descriptor_bytes=24, typed_payload_frame_bytes=framed)
        descriptor = TypedPayloadDescriptor(profile_id=2, offset=8, length=4)
        body = prelude.pack() + descriptor.pack() + data
        return encode_packet(message, body, session_id=1, frame_id=1, strict=False)

    agree(made(12, bytes(12)), strict=False)
    damaged = bytearray(made(12, bytes(12)))
    del damaged[-8:]
    damaged[16:20] = (60).to_bytes(4, "little")
    framed = HEADER_BYTES + FrameSubmit.SIZE + 12
    damaged[framed : framed + 4] = (4).to_bytes(4, "little")
    agree(bytes(damaged), strict=False)


@pytest.mark.parametrize("packet", PLAIN_PACKETS)
def test_the_fast_path_is_taken(packet: bytes) -> None:
    known = PLAIN[packet[:16]]
    RawPacket(packet).decode()
    found = known.read(packet, 0, True)
    assert found is not None
    assert found[1:] == (lambda made: (made.metadata, made.body, made.content))(decode_packet(packet))
    longer = known.read(*split(packet, b"another payload"), True)
    assert longer is not None
    assert longer[3].payloads[0].data == b"another payload"


def split(packet: bytes, payload: bytes) -> tuple[bytes, int]:
    """The same packet with another payload, as a splitter finds it."""
    made = decode_packet(packet)
    payloads = (TypedPayload(made.content.payloads[0].descriptor, payload),)  # type: ignore[union-attr]  # a data packet
    splitter = Splitter()
    splitter.receive_data(encode_packet(made.metadata, Regions(payloads), session_id=3, frame_id=9))
    (raw,) = splitter.packets()
    assert isinstance(raw.buffer, bytes)
    return raw.buffer, raw.start


def test_what_is_remembered_is_bounded() -> None:
    """Issue 5, Bad input: a peer chooses the fixed bytes, so it must not choose how many are kept."""
    learner = PlainPackets(FrameSubmit)
    for number in range(1000):
        message = FrameSubmit(payload_kind_bitmap=TEXT, payload_frame_count=1, dependency_frame_id=number)
        packet = encode_packet(message, Regions((TypedPayload.of(b"x", profile_id=2),)), session_id=1, frame_id=1)
        made = decode_packet(packet)
        learner.learn(packet, 0, True, made.metadata, made.content)
        assert learner.read(packet, 0, True) is not None
        assert sum(map(len, learner._known)) <= 64


def test_a_result_with_times_is_not_remembered() -> None:
    """Its times do not come again."""
    learner = PlainPackets(ResultPush)
    message = ResultPush(payload_kind_bitmap=TEXT, payload_frame_count=1, inference_ms=12)
    packet = encode_packet(message, Regions((TypedPayload.of(b"x", profile_id=2),)), session_id=1, frame_id=1)
    made = decode_packet(packet)
    learner.learn(packet, 0, True, made.metadata, made.content)
    assert learner.read(packet, 0, True) is None


@pytest.mark.parametrize("made", MESSAGES)
@examples(150)
@given(data=st.data())
def test_writing_agrees(made: type[FrameSubmit | ResultPush], data: st.DataObject) -> None:
    """A template gives the bytes of `encode_parts`, copies what it copies, and refuses what it refuses."""
    message: Any = data.draw(records(made)).replace(payload_frame_count=data.draw(st.sampled_from([1, 1, 1, 2])))
    descriptor: Any = data.draw(records(TypedPayloadDescriptor))
    payload = data.draw(PAYLOADS)
    ids = [data.draw(st.one_of(IDS, st.sampled_from([-1, 2**32]))) for _ in range(5)]
    names = ("session_id", "frame_id", "view_id", "route_id", "trace_id")
    body = Regions((TypedPayload(descriptor, payload),))
    expected = sending(lambda: encode_parts(message, body, **dict(zip(names, ids, strict=True))))
    if any(isinstance(part, str) for part in sending(lambda: Template(message, descriptor).encode_parts(b"", 1, 1))):
        assert isinstance(expected[0], str), "refused when the template is made"
        return
    template = Template(message, descriptor)
    for data_given in (payload, memoryview(payload), bytearray(payload)):
        assert sending(lambda given=data_given: template.encode_parts(given, *ids)) == expected


def sending(make: Any) -> list[object]:
    try:
        return [bytes(part) for part in make()]
    except NnrpLocalError as error:
        return [str(error)]


def test_a_template_is_for_its_own_packets() -> None:
    message = FrameSubmit(payload_kind_bitmap=TEXT, payload_frame_count=1)
    descriptor = TypedPayload.of(b"", profile_id=2).descriptor
    assert isinstance(descriptor, TypedPayloadDescriptor)
    template = Template(message, descriptor)
    one, other = TypedPayload(descriptor, b"x"), TypedPayload(descriptor.replace(), b"x")
    assert template.payload_of(message, Regions((one,))) == b"x"
    assert template.payload_of(message.replace(), Regions((one,))) is None
    assert template.payload_of(message, Regions((other,))) is None
    assert template.payload_of(message, Regions((one, one))) is None
    assert template.payload_of(message, b"x") is None
    assert template.describes(descriptor.replace(offset=4, length=8))
    assert not template.describes(descriptor.replace(schema_id=1))


def test_a_plain_body_is_what_the_layouts_say() -> None:
    (payload,) = PLAIN_PACKETS[:1]
    assert len(payload) == HEADER_BYTES + FrameSubmit.SIZE + BODY_BYTES
