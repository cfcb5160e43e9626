"""The calls NNRP makes on a QUIC library, the same for qh3 and aioquic. Neither is imported here: both keep sockets and
clocks outside, and offer nearly the same class; what differs is settled in this file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from protocol.layout import Buffer

__all__ = ["Address", "QuicEngine", "QuicFailed"]

Address: TypeAlias = tuple[str, int]
_DATAGRAMS_QUEUED: Final = 64
"""Bytes of streams queued from which datagrams of ours are dropped: they may be, and the libraries do not bound them."""

_STALE: Final = "reserved stream is missing"
_STALE_FRAMES: Final = 1024
"""Frames of streams that are over which are passed over in one turn."""


class QuicFailed(Exception):
    """The connection is over, or the library found a defect; nothing more can be sent on it."""


class QuicEngine:
    """One connection of a QUIC library. Times are those of the caller's clock, in seconds."""

    __slots__ = ("_connection", "closed")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
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
        for _ in range(_STALE_FRAMES):
            try:
                made: list[tuple[bytes, Address]] = self._connection.datagrams_to_send(now=now)
            except ValueError as problem:
                # qh3 2.1, where acknowledgements come late: a frame to be sent again is of a stream that was acknowledged
                # meanwhile. It is off the queue by then; datagrams made before it count as lost, and are sent again.
                if _STALE not in str(problem):
                    raise QuicFailed(f"{type(problem).__name__}: {problem}") from problem
            except Exception as error:
                raise QuicFailed(f"{type(error).__name__}: {error}") from error
            else:
                return made
        raise QuicFailed("the library has nothing but stale frames to send")

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
        self._call(self._connection.send_stream_data, stream_id, data, end)

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
            return size
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
            self._call(self._connection.close, code, None, reason)

    def _call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Exception as error:
            # The libraries raise classes of their own, and assertions; for us they all mean this.
            raise QuicFailed(f"{type(error).__name__}: {error}") from error


class _Nothing:
    bytes_in_flight = 0


_NOTHING: Final = _Nothing()
