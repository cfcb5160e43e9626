"""What ``session.events()`` returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import trio

from client.events import Event
from client.link import SessionLink
from client.subscription import EventQueue

__all__ = ["EventStream"]


class EventStream(AsyncIterator[Event]):
    """Events of one session, each once and in order. Not reusable: call ``events()`` again to go on.

    Iteration ends when the session is closed and raises when the stream is given up. Cancelling an iteration loses
    nothing.
    """

    def __init__(
        self,
        link: SessionLink,
        consumed: Callable[[int | None], None],
        cursor: int | None,
        max_events: int,
        max_bytes: int,
    ) -> None:
        self._link = link
        self._consumed = consumed
        self._cursor = cursor
        self._limits = (max_events, max_bytes)
        self._queue: EventQueue | None = None
        self._closed = False

    async def __aenter__(self) -> EventStream:
        self._subscribe()
        try:
            await self._link.wait_open()
        except trio.Cancelled:
            # The block is never left, because it was not entered.
            self._close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        if self._closed:
            raise StopAsyncIteration
        queue = self._subscribe()
        try:
            event = await queue.take()
        except trio.EndOfChannel:
            self._close()
            raise StopAsyncIteration from None
        except Exception:
            self._close()
            raise
        self._consumed(queue.cursor)
        self._link.desk.show(event)
        return event

    async def aclose(self) -> None:
        """Close the stream. More than once is fine."""
        self._close()
        await trio.lowlevel.checkpoint()

    def _subscribe(self) -> EventQueue:
        if self._queue is None:
            self._queue = self._link.subscribe(self._cursor, *self._limits)
        return self._queue

    def _close(self) -> None:
        self._closed = True
        if self._queue is not None:
            self._link.unsubscribe(self._queue)

    def __del__(self) -> None:
        # A loop left by ``break`` without ``async with``: nobody can iterate any more, so stop reading (C-100).
        if not self._closed and trio.lowlevel.in_trio_run():
            self._close()
