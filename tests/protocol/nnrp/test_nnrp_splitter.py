"""The splitter: nnrp-wire 2.1, bounds before buffering, linear work, ownership of the bytes."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

import protocol.nnrp.splitter as module
from protocol.nnrp.enums import HeaderFlags, MessageType, PayloadKind
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.header import Header
from protocol.nnrp.messages import Close, FrameSubmit, Ping, SessionClose
from protocol.nnrp.packet import VIEW_BYTES, encode_packet
from protocol.nnrp.regions import Regions, TypedPayload
from protocol.nnrp.splitter import Splitter
from tests.protocol.nnrp.strategies import examples

PING = encode_packet(Ping(), trace_id=7)
CLOSE = encode_packet(SessionClose(), session_id=1)


def submit(size: int, frame_id: int = 1) -> bytes:
    metadata = FrameSubmit(payload_kind_bitmap=PayloadKind.OPAQUE_BYTES, payload_frame_count=1)
    return encode_packet(metadata, Regions((TypedPayload.of(bytes(size)),)), session_id=1, frame_id=frame_id)


def header(meta_len: int, body_len: int, kind: MessageType = MessageType.CLOSE) -> bytes:
    return Header(kind, HeaderFlags(0), meta_len, body_len).pack()


def take(splitter: Splitter) -> list[bytes]:
    return [raw.data for raw in splitter.packets()]


@examples(80)
@given(
    packets=st.lists(st.sampled_from([PING, CLOSE, submit(0), submit(100), submit(5000)]), max_size=6),
    cuts=st.lists(st.integers(1, 6000), max_size=12),
)
def test_cuts_do_not_matter(packets: list[bytes], cuts: list[int]) -> None:
    """nnrp-wire 2.1 items 1, 2: the packets are the same however the stream arrives."""
    stream, found, splitter = b"".join(packets), [], Splitter()
    for cut in [*cuts, len(stream)]:
        splitter.receive_data(stream[:cut])
        stream = stream[cut:]
        found += take(splitter)
    splitter.receive_eof()
    assert found + take(splitter) == packets
    assert splitter.statistics().packets == len(packets)


def test_every_packet_whole_in_halves_and_byte_by_byte() -> None:
    for packet in (PING, CLOSE, submit(0), submit(64), submit(VIEW_BYTES)):
        for step in (1, 2, 39, 40, 41, max(len(packet) // 2, 1), len(packet)):
            splitter = Splitter()
            for start in range(0, len(packet), step):
                splitter.receive_data(packet[start : start + step])
            assert take(splitter) == [packet]


def test_one_byte_input_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 4: bytes that drip in are appended, never parsed again: one header parse for the whole packet."""
    parsed = 0
    real = module.parse_header

    def counting(*arguments: object) -> Header:
        nonlocal parsed
        parsed += 1
        return real(*arguments)  # type: ignore[arg-type]  # whatever the splitter passes

    monkeypatch.setattr(module, "parse_header", counting)
    packet, splitter = submit(50_000), Splitter()
    for place in range(len(packet)):
        splitter.receive_data(packet[place : place + 1])
    assert parsed == 1
    assert take(splitter) == [packet]


@pytest.mark.parametrize(
    ("meta_len", "body_len", "outcome"),
    [
        (0, 0xFFFF_FFFF, Outcome.LIMIT_EXCEEDED),
        (0xFFFF_FFFF, 0, Outcome.LIMIT_EXCEEDED),
        (0xFFFF_FFFF, 0xFFFF_FFFF, Outcome.LENGTH_OVERFLOW),
        (4097, 0, Outcome.LIMIT_EXCEEDED),
        (0, 33_554_433, Outcome.LIMIT_EXCEEDED),
    ],
)
@pytest.mark.parametrize("step", [1, 40])
def test_declared_lengths_allocate_nothing(meta_len: int, body_len: int, outcome: Outcome, step: int) -> None:
    """nnrp-wire 2.1 item 6, 3.3: refused from the header alone, before a byte of it is waited for."""
    splitter, data = Splitter(), header(meta_len, body_len)
    tracemalloc.start()
    try:
        for start in range(0, len(data), step):
            splitter.receive_data(data[start : start + step])
        with pytest.raises(NnrpError) as caught:
            take(splitter)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.outcome is outcome
    assert caught.value.fatal
    assert peak < 64 * 1024
    assert splitter.statistics().buffered_bytes == 0


def test_an_admitted_length_is_not_allocated_ahead() -> None:
    """A peer that declares the largest body and sends nothing costs nothing."""
    splitter = Splitter()
    tracemalloc.start()
    try:
        splitter.receive_data(header(0, 33_554_432))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024
    assert splitter.statistics().wanted_bytes == 33_554_472


def test_negotiated_limit() -> None:
    splitter = Splitter(max_body_bytes=10)
    splitter.receive_data(encode_packet(Close(), b"0123456789"))
    assert len(take(splitter)) == 1
    splitter.set_max_body_bytes(9)
    splitter.receive_data(encode_packet(Close(), b"0123456789"))
    with pytest.raises(NnrpError, match=r"body_len 10 is above 9"):
        take(splitter)


def test_a_framing_fault_comes_after_the_packets_before_it_and_is_terminal() -> None:
    """nnrp-wire 2.1 item 5: framing cannot be found again."""
    splitter = Splitter()
    splitter.receive_data(PING + CLOSE + b"garbage" * 10 + PING)
    packets = splitter.packets()
    assert [next(packets).data, next(packets).data] == [PING, CLOSE]
    with pytest.raises(NnrpError) as caught:
        next(packets)
    assert caught.value.outcome is Outcome.BAD_MAGIC
    splitter.receive_data(PING)
    with pytest.raises(NnrpError):
        take(splitter)
    assert splitter.statistics().failed


def test_a_bad_metadata_length_is_not_a_framing_fault() -> None:
    """nnrp-wire 2.1 item 5: the packet is cut off properly, only its decoding fails, and the next one is fine."""
    splitter = Splitter()
    splitter.receive_data(header(4, 2, MessageType.PING) + b"abcdef" + PING)
    first, second = splitter.packets()
    with pytest.raises(NnrpError) as caught:
        first.decode()
    assert caught.value.outcome is Outcome.BAD_COMBINATION
    assert second.decode().pack() == PING


@pytest.mark.parametrize("present", [1, 39, 40, 50])
def test_eof_inside_a_packet(present: int) -> None:
    """nnrp-wire 2.1 item 4."""
    splitter = Splitter()
    splitter.receive_data(submit(10)[:present])
    splitter.receive_eof()
    with pytest.raises(NnrpError) as caught:
        take(splitter)
    assert caught.value.outcome is Outcome.TOO_SHORT
    assert caught.value.code == 4
    assert caught.value.fatal


def test_eof_on_a_boundary() -> None:
    splitter = Splitter()
    splitter.receive_data(PING)
    splitter.receive_eof()
    assert take(splitter) == [PING]


def test_large_bodies_are_views_of_the_read() -> None:
    """Issue 4: no payload byte is copied between socket buffer and message from 4 KiB on."""
    read = PING + submit(VIEW_BYTES) + submit(100)
    splitter = Splitter()
    splitter.receive_data(read)
    _, large, small = (raw.decode() for raw in splitter.packets())
    assert isinstance(large.body, memoryview)
    assert large.body.obj is read
    assert large.body.readonly
    (payload,) = large.content.payloads  # type: ignore[union-attr]  # a submit
    assert isinstance(payload.data, memoryview)
    assert payload.data.obj is read
    assert isinstance(small.body, bytes)


def test_a_packet_over_several_reads_owns_its_bytes() -> None:
    """What is handed out does not change when more data arrives."""
    packet, splitter = submit(3 * VIEW_BYTES), Splitter()
    splitter.receive_data(packet[:5000])
    splitter.receive_data(packet[5000:] + PING[:10])
    (raw,) = splitter.packets()
    body = raw.decode().body
    before = bytes(body)
    splitter.receive_data(PING[10:] + packet)
    assert bytes(body) == before
    assert isinstance(body, memoryview)
    assert body.readonly


def test_bytearray_input_may_be_reused_by_the_caller() -> None:
    splitter, read = Splitter(), bytearray(submit(VIEW_BYTES))
    wanted = bytes(read)
    splitter.receive_data(read)
    read[:] = bytes(len(read))
    assert take(splitter) == [wanted]
