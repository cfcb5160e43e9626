"""An event stream as a response body: what REST and /acp streams have in common.

A stream is driven by one function the route supplies, ``read``: it waits until something is to be sent and returns all of
it as ready bytes, or returns None at the end. Nothing else is a task, a channel or a generator, so there is nothing that
a disconnect could leave behind: the request is cancelled where it waits, and ``closed`` is called.

Rules kept here: headers and first bytes at once (ACP-090, ACP-091), heartbeat (ACP-092), everything pending in one chunk,
no response timeout, a last frame when the process drains, clean-up that is synchronous.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final, cast

import trio
from quart import Response, request
from quart.wrappers.response import ResponseBody

from server.connection import connection_of, on_request_end
from server.shutdown import Drain

__all__ = ["SSE_HEADERS", "SseBody", "bear_with_current", "event_stream", "hurry_current"]

SSE_HEADERS: Final[Mapping[str, str]] = {
    "Content-Type": "text/event-stream",
    # no-transform keeps compressing proxies away; the second header switches off nginx' buffering (ACP-090, C-031).
    "Cache-Control": "no-cache, no-transform",
    "Connection": "keep-alive",
    "X-Accel-Buffering": "no",
}

_LARGE: Final = 32 * 1024
"""Bytes of a chunk after which everybody else gets a turn. A send may not wait, and a replay has many such chunks: without it
nobody would hear meanwhile that its reader has gone, either."""

Read = Callable[[], Awaitable[bytes | None]]


class SseBody(ResponseBody):
    """The body of one stream. Times are seconds.

    ``read`` returns the bytes of everything pending (empty: nothing after all), None at the end of the stream. It is
    cancelled at every heartbeat, so cancelling it must lose nothing. ``last`` makes the frame sent when the process ends.
    """

    def __init__(
        self,
        read: Read,
        *,
        drain: Drain,
        heartbeat: float,
        beat: bytes,
        opening: bytes,
        last: Callable[[], bytes] | None = None,
        closed: Callable[[], object] | None = None,
    ) -> None:
        self._read = read
        self._drain = drain
        self._heartbeat = heartbeat
        self._beat = beat
        self._opening = opening
        self._last = last
        self._closed = closed
        self._ended = False
        self._next_beat = trio.current_time() + heartbeat

    async def __aenter__(self) -> SseBody:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._opening:
            chunk, self._opening = self._opening, b""
            return chunk
        while not self._ended:
            chunk = await self._next_chunk()
            if chunk:
                return chunk
            # An empty chunk would end a chunked response; and a source that says "nothing" in a loop must not starve us.
            await trio.lowlevel.checkpoint()
        raise StopAsyncIteration

    async def _next_chunk(self) -> bytes:
        now = trio.current_time()
        if now >= self._next_beat:
            return self._heart(now)
        with trio.CancelScope(deadline=self._next_beat) as waiting:
            self._drain.watch(waiting)
            try:
                chunk = await self._read()
                self._ended = chunk is None
                return chunk or b""
            finally:
                self._drain.unwatch(waiting)
        return self._finish() if self._drain.is_cut else self._heart(trio.current_time())

    async def pump(self, send: Callable[[bytes], Awaitable[object]]) -> None:
        """The whole stream, for a transport whose sends cannot be cancelled and have a deadline of their own (HTTP/1.1).

        One scope per heartbeat instead of one per chunk: an event costs a third less.
        """
        if self._opening:
            await send(self._opening)
            self._opening = b""
        while not self._ended:
            with trio.CancelScope(deadline=self._next_beat) as period:
                self._drain.watch(period)
                try:
                    await self._relay(send)
                finally:
                    self._drain.unwatch(period)
            if period.cancelled_caught:
                frame = self._finish() if self._drain.is_cut else self._heart(trio.current_time())
                if frame:
                    await send(frame)

    async def _relay(self, send: Callable[[bytes], Awaitable[object]]) -> None:
        while not self._ended:
            chunk = await self._read()
            self._ended = chunk is None
            if chunk:
                await send(chunk)
            if not chunk or len(chunk) >= _LARGE:
                await trio.lowlevel.checkpoint()

    def _heart(self, now: float) -> bytes:
        # Late beats do not shift the later ones.
        self._next_beat = now + self._heartbeat - (now - self._next_beat) % self._heartbeat
        return self._beat

    def _finish(self) -> bytes:
        self._ended = True
        return self._last() if self._last is not None else b""

    def close(self) -> None:
        """Release what stands behind the stream. Synchronous; only the first call counts."""
        self._ended = True
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()


def event_stream(
    read: Read,
    *,
    drain: Drain,
    heartbeat: float,
    beat: bytes,
    opening: bytes,
    last: Callable[[], bytes] | None = None,
    closed: Callable[[], object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The response of a stream route; arguments as `SseBody`, plus extra response headers.

    ``closed`` is called exactly once, also when the response is never sent because the client has gone.
    Must be called inside a request.
    """
    body = SseBody(read, drain=drain, heartbeat=heartbeat, beat=beat, opening=opening, last=last, closed=closed)
    on_request_end(_scope(), body.close)
    if request.method == "HEAD":
        # Quart answers HEAD on every GET route; a stream nobody can see would stay open for ever.
        body.close()
        response = Response(b"", status=200)
        del response.headers["Content-Length"]
    else:
        response = Response(body, status=200)
    response.timeout = None
    response.headers.update(SSE_HEADERS)
    if headers is not None:
        response.headers.update(headers)
    return response


def hurry_current(seconds: float) -> Callable[[], None]:
    """A synchronous function that gives the current request's connection ``seconds`` to finish the send in progress.

    For `sessions.subscription.Subscription.on_overdue`: a reader whose socket is stuck is dropped although nobody can ask
    it anything (C-026). Without a send in progress nothing happens: the stream's own task is about to look by itself.
    """
    connection = connection_of(_scope())
    return lambda: connection.hurry(seconds)


def bear_with_current(seconds: float) -> None:
    """The current request's peer may accept nothing for this long, whatever holds elsewhere; then its connection is closed."""
    connection = connection_of(_scope())
    connection.bear_with(seconds)
    on_request_end(_scope(), lambda: connection.bear_with(None))


def _scope() -> MutableMapping[str, Any]:
    # Quart types the scope as TypedDicts, which have no room for what a wrapper puts in.
    return cast("MutableMapping[str, Any]", request.scope)
