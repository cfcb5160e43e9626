"""The protocol of one connection: HTTP/1.1 or HTTP/2, with the library's holes mended.

* HTTP/2 DATA for a stream that has been answered already is refused for that stream, instead of failing the connection.
* An HTTP/2 response that ends before its body is complete resets its stream: the peer would wait for the rest for ever.
* A writer waits while an HTTP/2 peer keeps its window closed; the library lets it go on, into memory.
* A WebSocket upgrade that was refused ends the connection and the application's task; the library forgets both.
* Bytes behind an upgrade that has not been answered end the connection, and nothing else.
* The bound of a request head also holds for one that comes in a single read.
* A request whose length is told in two ways is refused: whoever stands in front may have believed the other (RFC 9112, 6.3).
* An HTTP/2 peer that sends frames which cost more to answer than to send, and little else, is told to calm down and left.
* HTTP/2 priorities, which RFC 9113 has given up, are not kept: a peer could fill their table.
* CONNECT without a protocol, which nothing here serves, resets its stream instead of failing the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import h2.errors
import h2.events
import h2.exceptions
import h11
import trio
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Body, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, BUFFER_LOW_WATER, BufferCompleteError, H2Protocol, StreamBuffer
from hypercorn.protocol.h11 import H2CProtocolRequiredError, H2ProtocolAssumedError, H11Protocol
from hypercorn.protocol.ws_stream import WSStream

__all__ = ["Calm", "GuardedProtocol"]

_CALM_BURST: Final = 4000
_CALM_RATE: Final = 1000
_CALM_BYTES: Final = 1024
"""Cheap HTTP/2 frames a peer may send at once, per second from then on, and bytes sent to it that allow it one more: a reader
with small windows opens two of them for every 4 KiB."""
_ANSWER_BYTES: Final = 13
"""What an answer takes on the wire: RST_STREAM as much, PING more, SETTINGS less."""
_COSTS: Final[dict[type[h2.events.Event], int]] = {
    h2.events.PingReceived: 1,
    h2.events.PriorityUpdated: 1,
    h2.events.RemoteSettingsChanged: 1,
    h2.events.SettingsAcknowledged: 1,
    h2.events.StreamReset: 10,
    h2.events.UnknownFrameReceived: 1,
    h2.events.WindowUpdated: 1,
}
"""What counts as cheap, and for how much: a request was begun before its reset came."""


class GuardedProtocol:
    """Starts as what ALPN says and changes to HTTP/2 when the peer asks for it in the clear."""

    def __init__(
        self,
        app: Any,
        config: Any,
        context: Any,
        tasks: Any,
        state: Any,
        tls: bool,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        send: Callable[[Event], Awaitable[None]],
        alpn: str | None,
    ) -> None:
        self._send = send
        self._parts = (app, config, context, tasks, state, tls, client, server, send)
        self._protocol: _Http11 | _Http2
        self._protocol = _Http2(*self._parts) if alpn == "h2" else _Http11(*self._parts)

    @property
    def multiplexed(self) -> bool:
        return isinstance(self._protocol, _Http2)

    @property
    def idle(self) -> bool:
        """Only meaningful when `multiplexed`."""
        return isinstance(self._protocol, _Http2) and self._protocol.idle

    async def initiate(self) -> None:
        await self._protocol.initiate()

    async def handle(self, event: Event) -> None:
        try:
            data = await self._handle(event)
            if data:
                await self._protocol.handle(RawData(data))
        except _Over:
            await self._send(Closed())

    async def _handle(self, event: Event) -> bytes:
        """What is left for the other protocol to read, if the peer has changed to that.

        It is read outside this: the library says what to read by an exception, which would be the context of whatever goes
        wrong then, and with it all that the peer has sent would be logged.
        """
        try:
            await self._protocol.handle(event)
            await self._end_refused_upgrade()
        except H2ProtocolAssumedError as change:
            protocol = self._protocol = _Http2(*self._parts)
            await protocol.initiate()
            return change.data
        except H2CProtocolRequiredError as change:
            protocol = self._protocol = _Http2(*self._parts)
            await protocol.initiate(change.headers, change.settings)
            return change.data
        return b""

    async def _end_refused_upgrade(self) -> None:
        stream = self._protocol.stream if isinstance(self._protocol, _Http11) else None
        if isinstance(stream, WSStream) and stream.closed and not stream.handshake.accepted:
            # Open again for one message: the application is to hear of the end.
            stream.closed = False
            await self._send(Closed())


class _Over(Exception):
    """Nothing more is to be read from this peer: it has sent WebSocket bytes before it was told that this is a WebSocket, or
    has just been refused for good."""


class _Http11(H11Protocol):
    async def handle(self, event: Event) -> None:
        stream = self.stream
        if isinstance(event, RawData) and event.data and isinstance(stream, WSStream) and not stream.handshake.accepted:
            raise _Over
        await super().handle(event)

    async def _create_stream(self, request: h11.Request) -> None:
        if _is_upgrade(request) and self.connection.trailing_data[0]:
            await self._send_error_response(400)
            raise _Over
        if _has_two_lengths(request):
            await self._send_error_response(400)
            raise _Over
        if _head_size(request) > self.config.h11_max_incomplete_size:
            await self._send_error_response(431)
            raise _Over
        await super()._create_stream(request)


def _head_size(request: h11.Request) -> int:
    """About as many bytes as it came in. The library looks at heads that come in pieces only: one that arrives in a single
    read may have any size."""
    return len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)


def _has_two_lengths(request: h11.Request) -> bool:
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}


def _is_upgrade(request: h11.Request) -> bool:
    return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in request.headers)


class _Http2(H2Protocol):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.streams = _Streams(self)
        self.stream_buffers = _Buffers(self.context.event_class)
        self._calm = Calm(trio.current_time())

    async def handle(self, event: Event) -> None:
        await super().handle(event)
        if isinstance(event, Closed):
            # Whoever waits for the peer to take something is released: it never will.
            for buffer in self.stream_buffers.values():
                await buffer.close()

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        # The library has answered some frames by itself: settings, pings, data for streams that are gone.
        answers = self.connection.data_to_send()
        is_calm = self._calm.allows(events, len(answers), trio.current_time())
        if not is_calm:
            self.connection.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            answers += self.connection.data_to_send()
        if answers:
            await self.send(RawData(answers))
        if not is_calm:
            raise _Over
        await super()._handle_events(events)

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        if not any(name == b":path" for name, _ in request.headers):
            self.reset(request.stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
            return
        await super()._create_stream(request)

    async def _priority_updated(self, event: h2.events.PriorityUpdated) -> None:
        await trio.lowlevel.checkpoint()

    async def _flush(self) -> None:
        data = self.connection.data_to_send()
        if data:
            self._calm.earn(len(data))
            await self.send(RawData(data))

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, StreamClosed):
            await self._reset_unfinished(event.stream_id)
        await super().stream_send(event)

    def reset(self, stream_id: int, code: h2.errors.ErrorCodes) -> None:
        try:
            self.connection.reset_stream(stream_id, error_code=code)
        except h2.exceptions.ProtocolError:
            # Already closed by the other side: then there is nothing to tell it.
            return

    async def _reset_unfinished(self, stream_id: int) -> None:
        buffer = self.stream_buffers.get(stream_id)
        if buffer is None or buffer.complete:
            return
        self.reset(stream_id, h2.errors.ErrorCodes.INTERNAL_ERROR)
        await buffer.close()
        await self._flush()


class Calm:
    """How much of what costs a peer next to nothing it may send: resets of its own requests, pings, settings, windows,
    empty data. A peer that works with the answers uses little of it; one that floods has used it up within one read.
    """

    def __init__(self, now: float) -> None:
        self._left = float(_CALM_BURST)
        self._since = now

    def earn(self, sent: int) -> None:
        """So many bytes went to the peer."""
        self._left += sent / _CALM_BYTES

    def allows(self, events: Sequence[h2.events.Event], answered: int, now: float) -> bool:
        """Whether it may go on after these events and so many bytes of answers that came of themselves."""
        self._left = min(_CALM_BURST, self._left + (now - self._since) * _CALM_RATE)
        self._since = now
        self._left -= sum(map(_cost, events)) + answered // _ANSWER_BYTES
        return self._left >= 0


def _cost(event: h2.events.Event) -> int:
    if isinstance(event, h2.events.DataReceived):
        return int(not event.data and event.stream_ended is None)
    return _COSTS.get(type(event), 0)


class _Buffers(dict[int, StreamBuffer]):
    """Outgoing bytes per stream; what is put in is replaced by a buffer that makes its writer wait."""

    def __init__(self, event_class: Any) -> None:
        super().__init__()
        self._event_class = event_class

    def __setitem__(self, stream_id: int, _: StreamBuffer) -> None:
        super().__setitem__(stream_id, _Buffer(self._event_class))


class _Buffer(StreamBuffer):
    async def push(self, data: bytes) -> None:
        if self._complete:
            raise BufferCompleteError
        self.buffer.extend(data)
        await self._is_empty.clear()
        if len(self.buffer) >= BUFFER_HIGH_WATER:
            await self._paused.clear()
            await self._paused.wait()

    async def pop(self, max_length: int) -> bytes:
        data = bytes(self.buffer[:max_length])
        del self.buffer[: len(data)]
        if len(self.buffer) < BUFFER_LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data


class _Streams(dict[int, Any]):
    """The live streams; looking up one that is gone gives something that declines."""

    def __init__(self, protocol: _Http2) -> None:
        super().__init__()
        self._gone = _Gone(protocol)

    def __missing__(self, stream_id: int) -> _Gone:
        return self._gone


class _Gone:
    """Stands for every stream that has had its answer."""

    idle = True

    def __init__(self, protocol: _Http2) -> None:
        self._protocol = protocol

    async def handle(self, event: StreamEvent) -> None:
        if isinstance(event, Body):
            # RFC 9113, 8.1: the complete response counts, the rest of the request is not wanted.
            self._protocol.reset(event.stream_id, h2.errors.ErrorCodes.NO_ERROR)
