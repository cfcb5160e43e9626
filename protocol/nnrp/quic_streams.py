"""NNRP packets on the streams and datagrams of a QUIC connection, both shapes of nnrp-wire 2.4, for both sides.

Control goes on the first bidirectional stream. In the default shape a submit has a unidirectional stream of its own, and so
has an operation's answer: its parts and its end share a stream, because streams may overtake each other and the parts of an
answer may not. An answer that is one packet is one stream, as existing peers send it. In the other shape (nnrp-rs)
everything goes on the control stream.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, Final

from protocol.errors import Reach
from protocol.layout import Buffer
from protocol.nnrp.cutting import PacketCutter, check_message, size_at
from protocol.nnrp.enums import CloseStatus, HeaderFlags, MessageType, ResultClass
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.header import HEADER_BYTES, Header
from protocol.nnrp.packet import DEFAULT_MAX_BODY_BYTES, parse_header
from protocol.nnrp.quic_engine import QuicEngine
from protocol.nnrp.splitter import Splitter

__all__ = ["QuicPackets"]

_KIND: Final = Header.LAYOUT.field("msg_type").offset
_SESSION: Final = Header.LAYOUT.field("session_id").offset
_FLAGS: Final = Header.LAYOUT.field("flags").offset
_EOS: Final = int(HeaderFlags.EOS)
"""Our mark on a part that is the last there is (nnrp-wire 3.1, 12.5)."""
_IDS: Final = slice(_SESSION, _SESSION + 8)
_RESULT_CLASS: Final = HEADER_BYTES + 44
_UNIDIRECTIONAL: Final = 2

_HELLO, _SUBMIT, _CANCEL = MessageType.CLIENT_HELLO, MessageType.FRAME_SUBMIT, MessageType.FRAME_CANCEL
_PUSH, _DROP, _PING, _PONG = MessageType.RESULT_PUSH, MessageType.RESULT_DROP, MessageType.PING, MessageType.PONG
_ASK_SESSION: Final = (MessageType.SESSION_OPEN, MessageType.SESSION_MIGRATE)
_GET_SESSION: Final = (MessageType.SESSION_OPEN_ACK, MessageType.SESSION_MIGRATE_ACK)
_BY_DATAGRAM: Final = (_CANCEL, _PING, _PONG)

_DATAGRAM_BYTES: Final = 1000
"""Largest packet we send as a datagram: what fits any path."""
_OPEN_ANSWERS: Final = 48
"""Answers in parts that have a stream of their own at a time; others share one, so that the peer's limit is not reached by
streams that stay open."""
_PINGS: Final = 1024
_CANCELS: Final = 1024
"""Cancels remembered while their submits may still be on the way."""
_BUFFERED: Final = 8 * 1024 * 1024
"""Bytes beside one packet of the largest size that may be buffered of what has come: more is a peer that floods."""


class QuicPackets:
    """Feed it by `pump` after every input to the engine; take whole packets by `take`, send by `send`.

    ``failure``, once set, is what is wrong with the peer's framing; ``eof`` says that its control stream has ended on a
    packet boundary; ``over`` that the connection is gone. ``stranger_bytes`` bounds what is buffered of the peer until `trust`. ``issued`` and ``retired`` are connection ids for whoever routes.
    """

    def __init__(
        self,
        engine: QuicEngine,
        *,
        client: bool,
        one_stream: bool = False,
        datagrams: bool = False,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        stranger_bytes: int | None = None,
    ) -> None:
        self._engine = engine
        self._client = client
        self.one_stream = one_stream
        self._datagrams = datagrams
        self._max_body = max_body_bytes
        self._most = 2 * max_body_bytes + _BUFFERED if stranger_bytes is None else stranger_bytes
        self._cutter = PacketCutter()
        self._incoming: dict[int, Splitter] = {}
        self._control: int | None = None
        self._shared: int | None = None
        self._answers: dict[bytes, int] = {}
        self._held: deque[bytes] = deque()
        self._held_keys: Counter[bytes] = Counter()
        self._held_bytes = 0
        self._ready: deque[bytes] = deque()
        self._early: list[bytes] = []
        self._cancels: dict[bytes, bytes] = {}
        self._opening = 0
        self._partial = 0
        self._ready_bytes = 0
        self._pings: deque[bool] = deque(maxlen=_PINGS)
        self._greeted = False
        self.connected = False
        self.eof = False
        self.over = False
        self.reason = ""
        self.failure: NnrpError | None = None
        self.issued: list[bytes] = []
        self.retired: list[bytes] = []

    # What has come

    def pump(self) -> None:
        """Take what the engine has to tell."""
        for event in self._engine.events():
            act = _ACTS.get(type(event).__name__)
            if act is not None:
                act(self, event)

    def take(self) -> bytes | None:
        """The next packet, None when there is none."""
        if not self._ready:
            return None
        packet = self._ready.popleft()
        self._ready_bytes -= len(packet)
        return packet

    @property
    def has_packets(self) -> bool:
        return bool(self._ready)

    @property
    def buffered_bytes(self) -> int:
        """Of what has come and was not taken, incomplete packets included."""
        return self._partial + self._ready_bytes

    def trust(self) -> None:
        """The peer has shown who it is: from now on its packets may be as large as their own limit."""
        self._most = 2 * self._max_body + _BUFFERED

    # What is to go

    def send(self, data: Buffer) -> None:
        """Queue packets, cut anywhere. Raises ``QuicFailed``."""
        for packet in self._cutter.cut(data):
            self._place(packet)

    def release(self) -> None:
        """Send answers that waited for the peer to admit another stream. Raises ``QuicFailed``."""
        while self._held and self._engine.admits_uni:
            packet = self._held.popleft()
            key = packet[_IDS]
            self._held_bytes -= len(packet)
            self._held_keys[key] -= 1
            if not self._held_keys[key]:
                del self._held_keys[key]
            self._send_answer(packet, key)

    @property
    def queued(self) -> int:
        """Bytes that wait to be sent."""
        return self._engine.queued + self._held_bytes

    # Inside: what has come

    def _on_connected(self, event: Any) -> None:
        self.connected = True
        if not self._client:
            return
        if self._engine.uni_limit == 0:
            self.one_stream = True

    def _on_terminated(self, event: Any) -> None:
        self.over = True
        self.reason = str(event.reason_phrase)

    def _on_issued(self, event: Any) -> None:
        self.issued.append(event.connection_id)

    def _on_retired(self, event: Any) -> None:
        self.retired.append(event.connection_id)

    def _on_data(self, event: Any) -> None:
        stream_id, data = event.stream_id, event.data
        if self._control is None and not stream_id & _UNIDIRECTIONAL:
            self._control = stream_id
        if self.failure is not None:
            return
        splitter = self._incoming.get(stream_id)
        if splitter is None:
            if not data and event.end_stream:
                self._end_stream(stream_id)
                return
            splitter = self._incoming[stream_id] = Splitter(max_body_bytes=self._max_body)
        before = splitter.buffered_bytes
        try:
            splitter.receive_data(data)
            for raw in splitter.packets():
                start = raw.start
                self._arrive(bytes(raw.buffer[start : start + size_at(raw.buffer, start)]), stream_id)
            self._partial += splitter.buffered_bytes - before
            if event.end_stream:
                splitter.receive_eof()
                for _ in splitter.packets():
                    raise AssertionError("everything was taken above")
                self._end_stream(stream_id)
            self._check_memory()
        except NnrpError as fault:
            self.failure = fault

    def _on_reset(self, event: Any) -> None:
        """What the stream carried is given up; without the control stream there is no connection."""
        splitter = self._incoming.pop(event.stream_id, None)
        if splitter is not None:
            self._partial -= splitter.buffered_bytes
        if event.stream_id == self._control:
            self.over = True

    def _on_stopped(self, event: Any) -> None:
        stream_id = event.stream_id
        self._engine.forget(stream_id)
        if stream_id == self._control:
            self.over = True
        if stream_id == self._shared:
            self._shared = None
        for key in [key for key, answer in self._answers.items() if answer == stream_id]:
            del self._answers[key]

    def _on_datagram(self, event: Any) -> None:
        """Malformed, or of a type that may not come this way: dropped (nnrp-wire 2.4)."""
        data = bytes(event.data)
        try:
            header = parse_header(data)
            check_message(data)
        except NnrpError:
            return
        if header.msg_type in _BY_DATAGRAM and not header.meta_len:
            self._arrive(data, None)

    def _end_stream(self, stream_id: int) -> None:
        self._incoming.pop(stream_id, None)
        if stream_id == self._control:
            self.eof = True

    def _arrive(self, packet: bytes, stream_id: int | None) -> None:
        kind = packet[_KIND]
        if self._client:
            if kind in _GET_SESSION and self._opening:
                self._opening -= 1
            elif self._opening and kind in (_PUSH, _DROP) and stream_id != self._control:
                # It may belong to the session whose ACK it has overtaken.
                self._early.append(packet)
                self._ready_bytes += len(packet)
                return
        else:
            self._learn(kind, stream_id)
            if kind == _CANCEL and not self.one_stream:
                self._remember(packet)
        self._ready.append(packet)
        self._ready_bytes += len(packet)
        if self._early and not self._opening:
            self._ready.extend(self._early)
            self._early = []
        if self._cancels and kind == _SUBMIT and (cancel := self._cancels.pop(packet[_IDS], None)):
            self._ready.append(cancel)
            self._ready_bytes += len(cancel)

    def _remember(self, packet: bytes) -> None:
        """A cancel may overtake the submit it means, and would then mean nothing: it counts once more behind the submit. One
        that is larger than it need be is not kept."""
        key = packet[_IDS]
        if any(key[4:]) and len(packet) <= _DATAGRAM_BYTES:
            self._cancels[key] = packet
            if len(self._cancels) > _CANCELS:
                del self._cancels[next(iter(self._cancels))]

    def _learn(self, kind: int, stream_id: int | None) -> None:
        """What the client does says which shape it reads (nnrp-wire 2.4, sender rules)."""
        if kind == _PING:
            self._pings.append(stream_id is None)
        elif kind == _HELLO:
            self._greeted = True
        elif kind == _SUBMIT:
            self.one_stream = self.one_stream or stream_id == self._control
        elif kind == MessageType.SESSION_OPEN and not self._greeted:
            self.one_stream = True

    def _check_memory(self) -> None:
        if self.buffered_bytes > self._most:
            raise NnrpError(
                Outcome.LIMIT_EXCEEDED,
                "too much is buffered of what this connection has sent",
                subject="PACKET",
                reach=Reach.CONNECTION,
            )

    # Inside: what is to go

    def _place(self, packet: bytes) -> None:
        kind = packet[_KIND]
        if self._goes_by_datagram(kind, len(packet)):
            self._engine.send_datagram(packet)
        elif self._client:
            if kind in _ASK_SESSION:
                self._opening += 1
            if kind == _SUBMIT and not self.one_stream:
                self._answer(packet)
            else:
                self._on_control(packet)
        elif kind in (_PUSH, _DROP) and not self.one_stream:
            self._answer(packet)
        else:
            self._on_control(packet)
            if kind == MessageType.ERROR or (
                kind == MessageType.SESSION_CLOSE_ACK and packet[HEADER_BYTES] == CloseStatus.CLOSED
            ):
                self._finish(packet)

    def _goes_by_datagram(self, kind: int, size: int) -> bool:
        if kind == _PONG and not self._client:
            return bool(self._pings) and self._pings.popleft()
        return self._datagrams and kind in (_PING, _CANCEL) and size <= _DATAGRAM_BYTES

    def _on_control(self, packet: bytes) -> None:
        if self._control is None:
            if not self._client:
                # The client has opened no stream that could carry this.
                self._on_shared(packet)
                return
            self._control = self._engine.open(uni=False)
        self._engine.send(self._control, packet)

    def _on_shared(self, packet: bytes) -> None:
        if self._shared is None:
            if not self._engine.admits_uni:
                return
            self._shared = self._engine.open(uni=True)
        self._engine.send(self._shared, packet)

    def _answer(self, packet: bytes) -> None:
        """Send what has a stream of its own: a submit, or the parts and the end of an answer."""
        key = packet[_IDS]
        if key not in self._answers and (key in self._held_keys or not self._engine.admits_uni):
            self._held.append(packet)
            self._held_keys[key] += 1
            self._held_bytes += len(packet)
        else:
            self._send_answer(packet, key)

    def _send_answer(self, packet: bytes, key: bytes) -> None:
        ends = packet[_KIND] != _PUSH or packet[_RESULT_CLASS] != ResultClass.PARTIAL or packet[_FLAGS] & _EOS
        stream_id = self._answers.get(key)
        if stream_id is None:
            if not ends and len(self._answers) >= _OPEN_ANSWERS:
                if self._shared is None:
                    self._shared = self._engine.open(uni=True)
                stream_id = self._shared
            else:
                stream_id = self._engine.open(uni=True)
            if not ends:
                self._answers[key] = stream_id
        elif ends:
            del self._answers[key]
        if ends:
            self._cancels.pop(key, None)
        self._engine.send(stream_id, packet, end=bool(ends) and stream_id != self._shared)

    def _finish(self, packet: bytes) -> None:
        """Answers that will not go on, because their operation or session is over, leave no open stream behind."""
        session, frame = packet[_IDS][:4], packet[_IDS][4:]
        whole = packet[_KIND] == MessageType.SESSION_CLOSE_ACK
        for key in [key for key in self._answers if key[:4] == session and (whole or key[4:] == frame)]:
            stream_id = self._answers.pop(key)
            if stream_id != self._shared:
                self._engine.send(stream_id, b"", end=True)


_ACTS: Final = {
    "HandshakeCompleted": QuicPackets._on_connected,
    "ConnectionTerminated": QuicPackets._on_terminated,
    "ConnectionIdIssued": QuicPackets._on_issued,
    "ConnectionIdRetired": QuicPackets._on_retired,
    "StreamDataReceived": QuicPackets._on_data,
    "StreamReset": QuicPackets._on_reset,
    "StopSendingReceived": QuicPackets._on_stopped,
    "DatagramFrameReceived": QuicPackets._on_datagram,
}
