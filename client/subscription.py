"""The queue between a session's reader and the one consumer of its events (CLI-032)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs
import trio

from client.events import Event
from client.ws_inbox import missed_events

__all__ = ["DEFAULT_MAX_BYTES", "DEFAULT_MAX_EVENTS", "EventQueue"]

DEFAULT_MAX_EVENTS: Final = 1024
DEFAULT_MAX_BYTES: Final = 8 * 1024 * 1024
CHECKPOINT_EVERY: Final = 64
"""Events handed out between two chances for other tasks to run."""


@attrs.define(eq=False)
class EventQueue:
    """Events read and not yet consumed. Bounded by number and bytes, without ever making the reader wait.

    When it is full, events are dropped until the consumer has taken everything; then ``on_drained`` is called with the
    cursor after the last event kept, to fetch the rest again. If that is impossible (``replayable`` says no), the
    consumer gets a ``state_resync_required`` of our own instead: a gap is never silent.
    """

    on_drained: Callable[[int | None], None]
    replayable: Callable[[], bool]
    max_events: int = DEFAULT_MAX_EVENTS
    max_bytes: int = DEFAULT_MAX_BYTES
    cursor: int | None = None
    """The last event consumed."""

    overflows: int = attrs.field(init=False, default=0)
    _events: deque[Event] = attrs.field(init=False, factory=deque)
    _bytes: int = attrs.field(init=False, default=0)
    _overflowed: bool = attrs.field(init=False, default=False)
    _finished: bool = attrs.field(init=False, default=False)
    _failure: Exception | None = attrs.field(init=False, default=None)
    _changed: trio.Event = attrs.field(init=False, factory=trio.Event)
    _handed_out: int = attrs.field(init=False, default=0)

    def offer(self, event: Event) -> None:
        """Keep the event if there is room. Notices of lost events are always kept: there is one per gap."""
        if self._finished:
            return
        is_notice = event.type == "state_resync_required" or event.moves_cursor_to is not None
        if not is_notice and (self._overflowed or self._is_full_for(event)):
            if not self._overflowed:
                self.overflows += 1
            self._overflowed = True
            return
        self._events.append(event)
        self._bytes += event.size
        self._notify()

    def finish(self, failure: Exception | None) -> None:
        """Nothing more comes. What is queued can still be taken; then the consumer gets ``failure`` or the end."""
        self._finished = True
        self._failure = failure
        self._notify()

    async def take(self) -> Event:
        """The next event, which counts as consumed. Raises ``trio.EndOfChannel`` at the end, or the failure.

        Cancellation consumes nothing.
        """
        await self._let_others_run()
        while not self._events:
            if self._overflowed:
                self._refill()
                continue
            if self._finished:
                raise self._failure if self._failure is not None else trio.EndOfChannel
            await self._changed.wait()
        event = self._events.popleft()
        self._bytes -= event.size
        self._move_cursor(event)
        return event

    def _refill(self) -> None:
        self._overflowed = False
        if self.replayable() and not self._finished:
            self.on_drained(self.cursor)
        else:
            self._events.append(missed_events("overflow"))

    def _is_full_for(self, event: Event) -> bool:
        # One event is always admitted to an empty queue, however large.
        return bool(self._events) and (
            len(self._events) >= self.max_events or self._bytes + event.size > self.max_bytes
        )

    def _move_cursor(self, event: Event) -> None:
        if event.moves_cursor_to is not None:
            self.cursor = event.moves_cursor_to
        elif event.id is not None:
            self.cursor = event.id if self.cursor is None else max(self.cursor, event.id)

    async def _let_others_run(self) -> None:
        self._handed_out += 1
        if self._handed_out % CHECKPOINT_EVERY == 0:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    def _notify(self) -> None:
        old, self._changed = self._changed, trio.Event()
        old.set()
