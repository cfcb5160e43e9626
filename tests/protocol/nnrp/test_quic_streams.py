"""Which stream a packet goes on, and what is made of packets that overtake each other (nnrp-wire 2.4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.nnrp.enums import CloseStatus, HeaderFlags, MessageType, ResultClass, SessionStatus
from protocol.nnrp.errors import Outcome
from protocol.nnrp.extensions import ControlExtension, pack_extensions
from protocol.nnrp.header import Header
from protocol.nnrp.messages import (
    Close,
    Error,
    FrameCancel,
    FrameSubmit,
    Message,
    Ping,
    Pong,
    ResultDrop,
    ResultPush,
    SessionCloseAck,
    SessionOpen,
    SessionOpenAck,
)
from protocol.nnrp.quic_engine import QuicEngine, QuicFailed
from protocol.nnrp.quic_streams import QuicPackets


class FakeEngine:
    """An engine whose peer admits ``admitted`` unidirectional streams, and that keeps what is sent."""

    def __init__(self, *, client: bool, admitted: int = 100) -> None:
        self.uni_limit = admitted
        self.sent: list[tuple[int, bytes, bool]] = []
        self.datagrams: list[bytes] = []
        self.queued = 0
        self._client = client
        self._opened = {False: 0, True: 0}
        self._events: list[Any] = []

    @property
    def admits_uni(self) -> bool:
        return self._opened[True] < self.uni_limit

    def open(self, *, uni: bool) -> int:
        assert not uni or self.admits_uni
        number = self._opened[uni] * 4 + (0 if self._client else 1) + (2 if uni else 0)
        self._opened[uni] += 1
        return number

    def send(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        self.sent.append((stream_id, data, end))

    def forget(self, stream_id: int) -> None:
        self.sent = [each for each in self.sent if each[0] != stream_id]

    def send_datagram(self, data: bytes) -> None:
        self.datagrams.append(data)

    def events(self) -> list[Any]:
        events, self._events = self._events, []
        return events

    def happened(self, name: str, **fields: Any) -> None:
        self._events.append(type(name, (SimpleNamespace,), {})(**fields))

    def data(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        self.happened("StreamDataReceived", stream_id=stream_id, data=data, end_stream=end)


def pair(**options: Any) -> tuple[FakeEngine, QuicPackets]:
    client = options.pop("client", False)
    engine = FakeEngine(client=client, admitted=options.pop("admitted", 100))
    packets = QuicPackets(cast(QuicEngine, engine), client=client, **options)
    if not client:
        engine.data(0, packet(Ping()))
        packets.pump()
        assert packets.take() is not None
    return engine, packets


def packet(message: Message, body: bytes = b"", session_id: int = 0, frame_id: int = 0) -> bytes:
    header = Header(message.TYPE, meta_len=message.SIZE, body_len=len(body), session_id=session_id, frame_id=frame_id)
    return header.pack() + message.pack() + body


def result(frame_id: int, *, partial: bool = False, session_id: int = 1) -> bytes:
    kind = ResultClass.PARTIAL if partial else ResultClass.COMPLETE
    return packet(ResultPush(result_class=kind), session_id=session_id, frame_id=frame_id)


def test_an_answer_has_one_stream_from_its_first_part_to_its_end() -> None:
    """Streams overtake each other; the parts of one answer must not (nnrp-wire 13.4)."""
    engine, packets = pair()
    packets.send(result(1, partial=True) + result(2) + result(1, partial=True) + result(3, partial=True))
    packets.send(packet(ResultDrop(), session_id=1, frame_id=1) + result(3) + packet(Pong()))
    assert [(stream, end) for stream, _, end in engine.sent] == [
        (3, False),
        (7, True),
        (3, False),
        (11, False),
        (3, True),
        (11, True),
        (0, False),
    ]


def test_a_part_that_is_the_last_ends_its_stream() -> None:
    """nnrp-wire 12.5: a budget may end an operation with what there is, class partial; EOS says that no more comes."""
    engine, packets = pair()
    last = bytearray(result(1, partial=True))
    last[8] = HeaderFlags.EOS
    packets.send(result(1, partial=True) + bytes(last))
    assert [(stream, end) for stream, _, end in engine.sent] == [(3, False), (3, True)]
    assert not packets._answers


def test_a_cancel_is_not_remembered_for_its_size() -> None:
    """Issue 5, Bad input: what is kept of each is bounded; it is still carried out where it stands."""
    engine, packets = pair()
    skipped = pack_extensions([ControlExtension(0x4001, bytes(4096))])
    engine.data(0, packet(FrameCancel(), skipped, session_id=1, frame_id=1))
    packets.pump()
    assert packets.take() is not None
    assert not packets._cancels


class StaleFrames:
    """A library that fails over a frame of a stream that is over, and can still say goodbye."""

    def __init__(self, problem: str) -> None:
        self._problem = problem
        self._close_event: object = None

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, tuple[str, int]]]:
        if self._close_event is None:
            raise ValueError(self._problem)
        return [(b"goodbye", ("127.0.0.1", 1))]

    def close(self, code: int, frame_type: int | None, reason: str) -> None:
        self._close_event = (code, reason)


def test_a_connection_that_has_lost_data_of_a_stream_ends() -> None:
    """qh3 2.1 gives up a datagram with everything in it, under reordering: the peer is told at once, for it would wait for ever.
    Anything else the library raises is the end too."""
    engine = QuicEngine(StaleFrames("reserved stream is missing"))
    assert engine.transmit(0.0) == [(b"goodbye", ("127.0.0.1", 1))]
    assert engine.failed
    with pytest.raises(QuicFailed):
        QuicEngine(StaleFrames("something else")).transmit(0.0)


def test_an_answer_that_will_not_go_on_leaves_no_open_stream() -> None:
    """A session closed with its operations abandoned, or a frame that failed with an ERROR, ends its streams."""
    engine, packets = pair()
    for number in (1, 2, 3):
        packets.send(result(number, partial=True))
    packets.send(result(9, partial=True, session_id=2))
    packets.send(packet(Error(), session_id=1, frame_id=2))
    packets.send(packet(SessionCloseAck(close_status=CloseStatus.CLOSED), session_id=1))
    ended = [stream for stream, data, end in engine.sent if end and not data]
    assert ended == [7, 3, 11]
    packets.send(result(9, session_id=2))
    assert engine.sent[-1][0::2] == (15, True)


def test_what_the_peer_does_not_admit_waits_in_order() -> None:
    """The peer's limit on streams holds answers back, and nothing else; it counts as queued."""
    engine, packets = pair(admitted=1)
    packets.send(result(1) + result(2, partial=True) + packet(Pong()) + result(2) + result(3))
    assert [each[0] for each in engine.sent] == [3, 0]
    assert packets.queued == 3 * len(result(2))
    engine.uni_limit = 2
    packets.release()
    assert [(stream, end) for stream, _, end in engine.sent[2:]] == [(7, False)]
    engine.uni_limit = 4
    packets.release()
    assert [(stream, end) for stream, _, end in engine.sent[3:]] == [(7, True), (11, True)]
    assert packets.queued == 0


def test_many_answers_in_parts_share_a_stream() -> None:
    """Streams that stay open must not use up what the peer admits: answers beyond 48 share one, in order."""
    engine, packets = pair()
    for number in range(1, 61):
        packets.send(result(number, partial=True))
    packets.send(result(60, partial=True) + result(60) + result(1))
    streams = [stream for stream, _, _ in engine.sent]
    assert len(set(streams[:48])) == 48
    shared = set(streams[48:60])
    assert len(shared) == 1
    assert streams[60:62] == [*shared, *shared]
    assert [end for _, _, end in engine.sent[60:]] == [False, False, True]


def test_a_result_that_overtakes_its_session() -> None:
    """An answer on a stream of its own may come before the SESSION_OPEN_ACK on the control stream: it waits for it."""
    engine, packets = pair(client=True)
    packets.send(packet(SessionOpen()))
    assert engine.sent[0][0] == 0
    engine.data(3, result(1), end=True)
    packets.pump()
    assert packets.take() is None
    assert packets.buffered_bytes == len(result(1))
    engine.data(0, packet(SessionOpenAck(session_id=1, session_status=SessionStatus.RESUMED)))
    packets.pump()
    kinds = [data[6] for data in (packets.take(), packets.take()) if data is not None]
    assert kinds == [MessageType.SESSION_OPEN_ACK, MessageType.RESULT_PUSH]
    assert packets.buffered_bytes == 0


def kinds_of(packets: QuicPackets) -> list[int]:
    found = []
    while (each := packets.take()) is not None:
        found.append(each[6])
    return found


def test_a_cancel_that_overtakes_its_submit() -> None:
    """It counts again behind the submit; once its operation has ended, or for another frame, it does not."""
    engine, packets = pair()
    cancel = packet(FrameCancel(), session_id=1, frame_id=5)
    submit = packet(FrameSubmit(), session_id=1, frame_id=5)
    engine.data(0, cancel)
    engine.data(2, packet(FrameSubmit(), session_id=1, frame_id=4), end=True)
    engine.data(6, submit, end=True)
    packets.pump()
    kind = MessageType
    assert kinds_of(packets) == [kind.FRAME_CANCEL, kind.FRAME_SUBMIT, kind.FRAME_SUBMIT, kind.FRAME_CANCEL]
    engine.data(0, cancel)
    packets.pump()
    packets.send(result(5))
    engine.data(10, submit, end=True)
    packets.pump()
    assert kinds_of(packets) == [kind.FRAME_CANCEL, kind.FRAME_SUBMIT]
    for number in range(1, 2000):
        engine.data(0, packet(FrameCancel(), session_id=1, frame_id=number))
        packets.pump()
    assert len(packets._cancels) <= 1024


def test_the_client_submits_on_streams_of_their_own() -> None:
    """nnrp-wire 2.4: one per submit, FIN behind it; everything else on the control stream, which comes first."""
    engine, packets = pair(client=True)
    submit = packet(FrameSubmit(), session_id=1, frame_id=1)
    packets.send(packet(Ping()) + submit + submit)
    assert [(stream, end) for stream, _, end in engine.sent] == [(0, False), (2, True), (6, True)]
    engine, packets = pair(client=True, one_stream=True)
    packets.send(packet(Ping()) + submit)
    assert [(stream, end) for stream, _, end in engine.sent] == [(0, False), (0, False)]


def test_a_server_that_admits_no_streams() -> None:
    """nnrp-rs admits none: then the client uses its one stream."""
    engine, packets = pair(client=True, admitted=0)
    engine.happened("HandshakeCompleted", alpn_protocol=None)
    packets.pump()
    assert packets.connected
    packets.send(packet(FrameSubmit(), session_id=1, frame_id=1))
    assert engine.sent[0][0::2] == (0, False)


def test_datagrams_of_the_client() -> None:
    """Only where asked for, and only what may be lost."""
    engine, packets = pair(client=True, datagrams=True)
    packets.send(packet(Ping()) + packet(FrameCancel(), session_id=1, frame_id=1) + packet(Close()))
    assert [each[6] for each in engine.datagrams] == [MessageType.PING, MessageType.FRAME_CANCEL]
    assert [each[0] for each in engine.sent] == [0]


@pytest.mark.parametrize("at", [1, 39, 40, 60])
def test_a_stream_must_end_between_packets(at: int) -> None:
    """nnrp-wire 2.4, receiver rules; 2.1: elsewhere it is TooShort."""
    engine, packets = pair()
    data = packet(FrameSubmit(), b"x" * 20, session_id=1, frame_id=1)
    engine.data(2, data[:at], end=True)
    packets.pump()
    assert packets.failure is not None
    assert packets.failure.outcome is Outcome.TOO_SHORT


def test_a_stream_that_is_reset_is_forgotten() -> None:
    """Half of a packet that will not come is no fault, and holds no memory."""
    engine, packets = pair()
    engine.data(2, packet(FrameSubmit(), b"x" * 500)[:300])
    packets.pump()
    assert packets.buffered_bytes == 300
    engine.happened("StreamReset", stream_id=2, error_code=0)
    packets.pump()
    assert packets.buffered_bytes == 0
    assert packets.failure is None
    assert not packets.over
    engine.happened("StreamReset", stream_id=0, error_code=0)
    packets.pump()
    assert packets.over


def test_memory_is_bounded_over_all_streams() -> None:
    """Issue 5, Bad input: many streams with a large packet begun on each are too much."""
    engine, packets = pair(max_body_bytes=1 << 20)
    big = packet(FrameSubmit(), bytes(1 << 20))[:-1]
    for number in range(12):
        engine.data(2 + 4 * number, big)
        packets.pump()
        if packets.failure is not None:
            break
    assert packets.failure is not None
    assert packets.failure.outcome is Outcome.LIMIT_EXCEEDED
    assert packets.buffered_bytes <= 12 << 20


def test_a_declared_length_is_not_waited_for() -> None:
    """C-054 on any stream."""
    engine, packets = pair(max_body_bytes=1 << 20)
    header = Header(MessageType.FRAME_SUBMIT, meta_len=72, body_len=(1 << 20) + 1)
    engine.data(2, header.pack())
    packets.pump()
    assert packets.failure is not None
    assert packets.failure.outcome is Outcome.LIMIT_EXCEEDED
