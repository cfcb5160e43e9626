"""The calls NNRP makes on a QUIC library, the same for qh3 and aioquic. Neither is imported here: both keep sockets and
clocks outside, and offer nearly the same class; what differs is settled in this file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from protocol.layout import Buffer

__all__ = ["Address", "QuicEngine", "QuicFailed"]

Address: TypeAlias = tuple[str, int]
_DATAGRAMS_QUEUED: Final = 64
"""Bytes of streams queued from which datagrams of ours are dropped: they may be, and the libraries do not bound them."""

_UNIDIRECTIONAL: Final = 2
_TURN: Final = 64 * 1024
"""Bytes of one stream that go to qh3 before it is another's turn."""
_DATAGRAM: Final = 1472
"""Bytes of the window that are left: qh3 sends only where a whole datagram fits, and keeps the frames it has begun with."""
_NOTHING_DUE: Final = "idle"
"""What qh3 calls its timer where it waits for nothing but the peer."""

_STALE: Final = "reserved stream is missing"
_INTERNAL_ERROR: Final = 1
"""Of RFC 9000, 20.1."""


class QuicFailed(Exception):
    """The connection is over, or the library found a defect; nothing more can be sent on it."""


class QuicEngine:
    """One connection of a QUIC library. Times are those of the caller's clock, in seconds.

    qh3 2.1 withholds acknowledgements while its congestion window is full and it has more to send (RFC 9002, 7 exempts them from
    the window). Two such ends then wait for each other until a probe timeout, which doubles every time. So it is given no more
    than it may send, and the rest waits here.
    """

    __slots__ = ("_connection", "_ending", "_turn", "_waiting", "closed")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._waiting: dict[int, bytearray] = {}
        """What qh3 has no room for, by stream, those first whose turn it is."""
        self._ending: set[int] = set()
        """Streams that end with what waits."""
        self._turn = _TURN
        """Bytes that are left to the first of them."""
        self.closed = False
        """`close` was called."""

    # In and out, on the caller's socket

    def connect(self, address: Address, now: float) -> None:
        self._connection.connect(address, now=now)

    def receive(self, data: bytes, address: Address, now: float) -> None:
        """Take a UDP datagram. What is wrong with it concerns nobody but its sender."""
        self._call(self._connection.receive_datagram, data, address, now=now)

    def transmit(self, now: float) -> list[tuple[bytes, Address]]:
        """The UDP datagrams to send now."""
        made = self._make(now)
        while self._waiting and not self.failed and self._feed():
            made += self._make(now)
        return made

    def timer(self) -> float | None:
        when: float | None = self._connection.get_timer()
        return when

    def handle_timer(self, now: float) -> None:
        self._call(self._connection.handle_timer, now=now)

    def events(self) -> Iterator[Any]:
        """What has happened since the last call; the classes differ per library, their names and fields do not."""
        while (event := self._connection.next_event()) is not None:
            yield event

    @property
    def failed(self) -> bool:
        """The end is certain, though its event may come only when the connection has drained."""
        return getattr(self._connection, "_close_event", None) is not None

    @property
    def reason(self) -> str:
        """Why it has `failed`, in the words of the end that closed it; empty where it gave none."""
        event = getattr(self._connection, "_close_event", None)
        return "" if event is None else str(event.reason_phrase)

    # Streams

    @property
    def admits_uni(self) -> bool:
        """Whether the peer lets us open a unidirectional stream now."""
        index: int = self._connection.get_next_available_stream_id(is_unidirectional=True) >> 2
        return index < self.uni_limit

    @property
    def uni_limit(self) -> int:
        """Unidirectional streams the peer has admitted, over the life of the connection."""
        connection = self._connection
        limit: int = (
            connection.max_concurrent_uni_streams
            if hasattr(connection, "max_concurrent_uni_streams")
            else connection._remote_max_streams_uni
        )
        return limit

    def open(self, *, uni: bool) -> int:
        """The id of a new stream; it must be sent on before the next is opened."""
        stream_id: int = self._connection.get_next_available_stream_id(is_unidirectional=uni)
        return stream_id

    def send(self, stream_id: int, data: Buffer, *, end: bool = False) -> None:
        """Queue for a stream. Raises `QuicFailed`."""
        if not self._waiting and len(data) <= self._room():
            self._call(self._connection.send_stream_data, stream_id, data, end)
            return
        if stream_id not in self._waiting:
            # So that the library takes the stream for open.
            self._call(self._connection.send_stream_data, stream_id, b"", False)
            if stream_id & _UNIDIRECTIONAL:
                self._waiting[stream_id] = bytearray()
            else:
                # Control does not wait for results.
                self._waiting = {stream_id: bytearray(), **self._waiting}
                self._turn = _TURN
        self._waiting[stream_id] += data
        if end:
            self._ending.add(stream_id)

    def forget(self, stream_id: int) -> None:
        """Drop what waits to be sent on a stream that the peer has stopped."""
        self._waiting.pop(stream_id, None)
        self._ending.discard(stream_id)

    def send_datagram(self, data: bytes) -> None:
        """Send, or drop while there is a queue."""
        if self.queued < _DATAGRAMS_QUEUED:
            self._call(self._connection.send_datagram_frame, data)

    @property
    def queued(self) -> int:
        """Bytes of streams that wait for their first transmission, or (aioquic) for their acknowledgement."""
        connection = self._connection
        if hasattr(connection, "get_send_buffer_size"):
            size: int = self._call(connection.get_send_buffer_size)
            return size + sum(map(len, self._waiting.values()))
        return sum(len(each.sender._buffer) for each in connection._streams.values())

    @property
    def in_flight(self) -> int:
        """Bytes sent and not acknowledged."""
        connection = self._connection
        core = getattr(connection, "_core", None)
        size: int = core.bytes_in_flight if core is not None else getattr(connection, "_loss", _NOTHING).bytes_in_flight
        return size

    def close(self, code: int = 0, reason: str = "") -> None:
        """End the connection; what was not acknowledged may not arrive. Idempotent."""
        if not self.closed:
            self.closed = True
            self._waiting.clear()
            self._call(self._connection.close, code, None, reason)

    def _make(self, now: float) -> list[tuple[bytes, Address]]:
        make = self._connection.datagrams_to_send
        try:
            made: list[tuple[bytes, Address]] = make(now=now)
        except ValueError as problem:
            if _STALE not in str(problem):
                raise QuicFailed(f"{type(problem).__name__}: {problem}") from problem
            # qh3 2.1, where datagrams overtake each other: a frame to be sent again is of a stream that was acknowledged
            # meanwhile. It gives up the datagram that it was in, other streams' data included, which is never sent again.
            self._call(self._connection.close, _INTERNAL_ERROR, None, "data of a stream is lost")
            made = self._call(make, now=now)
        except Exception as error:
            raise QuicFailed(f"{type(error).__name__}: {error}") from error
        return made

    def _room(self) -> float:
        """Bytes the library will send beside what it has."""
        core = getattr(self._connection, "_core", None)
        if core is None:
            return math.inf
        held: int = self._call(self._connection.get_send_buffer_size)
        return float(core.congestion_window - core.bytes_in_flight - held - _DATAGRAM)

    def _feed(self) -> bool:
        """Give the library what it has room for, the streams in turn. Whether that was anything."""
        room = self._room()
        fed = room > 0
        while self._waiting and room > 0:
            stream_id = next(iter(self._waiting))
            room -= self._give(stream_id, min(self._turn, int(room)))
        timer = self._connection._core.get_timer()
        if not fed and timer is not None and timer[0] == _NOTHING_DUE:
            # What it has waits for credit of the peer. That is a matter of those streams.
            for stream_id in list(self._waiting):
                if not self._call(self._connection.get_send_buffer_size, stream_id):
                    fed = True
                    self._give(stream_id, _TURN)
        return fed

    def _give(self, stream_id: int, most: int) -> int:
        waiting = self._waiting[stream_id]
        piece = bytes(waiting[:most])
        del waiting[:most]
        end = not waiting and stream_id in self._ending
        self._turn -= len(piece)
        if not waiting or self._turn <= 0:
            self._turn = _TURN
            del self._waiting[stream_id]
            if waiting:
                self._waiting[stream_id] = waiting
        if end:
            self._ending.discard(stream_id)
        self._call(self._connection.send_stream_data, stream_id, piece, end)
        return len(piece)

    def _call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Exception as error:
            # The libraries raise classes of their own, and assertions; for us they all mean this.
            raise QuicFailed(f"{type(error).__name__}: {error}") from error


class _Nothing:
    bytes_in_flight = 0


_NOTHING: Final = _Nothing()
