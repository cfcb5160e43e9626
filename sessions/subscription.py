"""One reader of a ring: a cursor, and the rules for one that is late."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from sessions.events import Event, Notice, NoticeType

if TYPE_CHECKING:
    from sessions.recovery import Resume
    from sessions.ring import Ring

__all__ = ["PROBATION", "Item", "Subscription"]

Item = Event | Notice

WARN_AT: Final = 0.75
REARM_AT: Final = 0.375
"""ACP-018."""
BATCH_EVENTS: Final = 512
BATCH_BYTES: Final = 512 * 1024
"""What one `take` returns at most: large enough to make system calls rare, small enough to be sent at one go."""
PROBATION: Final = 2.0
"""Seconds an overdue reader has to come back for its last batch before its connection is given up."""


class Subscription:
    """A cursor into a ring (made by `Ring.subscribe`).

    `take` and `take_nowait` return what is to be sent next, in order: an announced resync, the replay, ``replay_complete``,
    then live events. A reader that falls further behind than its bound is warned, then evicted: it gets what it may still
    have, ``client_evicted``, and the end (ACP-018, ACP-019). Replayed events do not count against the bound (ACP-017).

    Eviction may be decided while the reader's socket is stuck and it takes nothing. Then `on_overdue` is called, once and
    synchronously; whoever drives the socket gives it up if it is not `ended` `PROBATION` seconds later (C-026).

    One task takes. `close` when done; it is synchronous and idempotent, so it may stand in a ``finally``.
    """

    __slots__ = (
        "_after",
        "_delivered",
        "_ended",
        "_evict_at",
        "_evicted",
        "_gap_told",
        "_replay_bytes",
        "_replay_end",
        "_replayed",
        "_resync",
        "_ring",
        "_taken_total",
        "_warned",
        "consumer",
        "max_bytes",
        "max_events",
        "on_overdue",
    )

    def __init__(
        self,
        ring: Ring,
        plan: Resume | None,
        *,
        max_events: int,
        max_bytes: int,
        replay_bytes: int,
        consumer: bool,
    ) -> None:
        self._ring = ring
        self.max_events = max_events
        self.max_bytes = max_bytes
        self.consumer = consumer
        self._replay_bytes = replay_bytes
        self._ended = False
        self._evicted = False
        self._evict_at: tuple[int, str] | None = None
        self._warned = False
        self.on_overdue: Callable[[], object] | None = None
        self._resync = None if plan is None else plan.resync
        self._gap_told = self._resync is not None
        self._delivered = 0
        self._replayed = 0
        self._replay_end: int | None = None
        self._after = ring.head
        if plan is not None:
            self._after = plan.after
            self._replay_end = ring.head
        self._taken_total = ring.total

    # What is there

    @property
    def cursor(self) -> int:
        """Id of the last event taken; before the first, the id the reader came with."""
        return self._after

    @property
    def replaying(self) -> bool:
        """True until ``replay_complete`` was taken; always False without a cursor."""
        return self._replay_end is not None

    @property
    def idle(self) -> bool:
        """True when `take_nowait` would certainly raise `trio.WouldBlock`; cheaper than to find out."""
        ring = self._ring
        return self._after == ring.head and self._replay_end is None and not ring.closed and self._evict_at is None

    @property
    def evicted(self) -> bool:
        return self._evicted

    @property
    def ended(self) -> bool:
        """True once `take` has returned, or will return, the end."""
        return self._ended

    # What happens

    def take_nowait(self) -> list[Item]:
        """Everything that can be sent now, at most a batch; raises `trio.WouldBlock` when there is nothing.

        Returns an empty list at the end of the stream, and from then on.
        """
        items: list[Item] = []
        if self._ended:
            return items
        if self._resync is not None:
            # What is still there is said as of now: the ring may have moved on since the registration.
            earliest = max(self._resync["earliestAvailableId"], self._ring.waterline)
            items.append(Notice(NoticeType.STATE_RESYNC_REQUIRED, {**self._resync, "earliestAvailableId": earliest}))
            self._resync = None
        if self._replay_end is not None:
            self._take_replay(items)
        if self._replay_end is None:
            self._take_live(items)
        if not items and not self._ended:
            raise trio.WouldBlock
        return items

    async def take(self) -> list[Item]:
        """Like `take_nowait`, but waits. Cancellation loses nothing."""
        while True:
            if not self.idle or self._ended:
                try:
                    return self.take_nowait()
                except trio.WouldBlock:
                    pass
            await self._ring.wait_changed()

    def end(self) -> None:
        """Nothing more; the reader sees the end at its next `take`."""
        self._ended = True
        self._ring.unsubscribe(self)

    def close(self) -> None:
        """The reader leaves."""
        self.end()

    def note_lag(self) -> None:
        """Decide on eviction, once. Called by the ring now and then, and before live events are taken."""
        if self._evict_at is not None or self._ended:
            return
        events, size = self._live_lag()
        if events <= self.max_events and (size <= self.max_bytes or events <= 1):
            return
        self._evict_at = (self._ring.head, "queue_overflow" if events > self.max_events else "queue_bytes_overflow")
        self._ring.note_evicted(self)
        if self.on_overdue is not None:
            self.on_overdue()

    # Inside

    def _live_lag(self) -> tuple[int, int]:
        if self._replay_end is not None:
            return self._ring.head - self._replay_end, self._ring.total - self._taken_total
        return self._ring.head - self._after, self._ring.total - self._taken_total

    def _take_replay(self, items: list[Item]) -> None:
        end = self._replay_end
        assert end is not None
        budget = BATCH_BYTES
        cut: Event | None = None
        for event in self._ring.read(self._after, min(BATCH_EVENTS, max(end - self._after, 0))):
            if event.id > end or budget <= 0:
                break
            if self._replayed and self._delivered + len(event.data) > self._replay_bytes:
                cut = event
                break
            if event.id > self._after + 1 and not self._gap_told:
                # The ring moved on during the replay: say so at the place of the gap.
                items.append(self._lost(event.id))
            self._gap_told = False
            self._append(items, event)
            self._replayed += 1
            self._delivered += len(event.data)
            budget -= len(event.data)
        if cut is not None:
            items.append(
                Notice(
                    NoticeType.STATE_RESYNC_REQUIRED,
                    {
                        "reason": "replay_budget_exceeded",
                        "lastDeliveredId": self._after,
                        "earliestAvailableId": cut.id,
                    },
                )
            )
        elif self._after < end and self._ring.waterline <= end:
            return
        elif self._after < end:
            if not self._gap_told:
                items.append(self._lost(self._ring.waterline))
            end = max(end, self._ring.waterline - 1)
        done: dict[str, Any] = {"replayedCount": self._replayed}
        if self._replayed:
            done["lastReplayedEventId"] = done["lastEventId"] = self._after
        items.append(Notice(NoticeType.REPLAY_COMPLETE, done))
        self._after = max(self._after, end)
        self._replay_end = None

    def _take_live(self, items: list[Item]) -> None:
        self.note_lag()
        if self._evict_at is not None:
            self._evict(items)
            return
        events, size = self._live_lag()
        self._warn(items, events, size)
        budget = BATCH_BYTES
        for event in self._ring.read(self._after, BATCH_EVENTS):
            if event.id != self._after + 1:
                items.append(self._lost(event.id))
            self._append(items, event)
            budget -= len(event.data)
            if budget <= 0:
                break
        else:
            if self._ring.closed and self._after >= self._ring.head:
                self.end()
        if self._warned:
            events, size = self._live_lag()
            self._warned = events > self.max_events * REARM_AT or size > self.max_bytes * REARM_AT

    def _evict(self, items: list[Item]) -> None:
        assert self._evict_at is not None
        through, reason = self._evict_at
        events, size = self._live_lag()
        self._warn(items, min(events, self.max_events), min(size, self.max_bytes))
        allowed = self._ring.read(self._after, self.max_events)
        last_size = 0
        sent = 0
        for event in allowed:
            if event.id > through or (sent and sent + len(event.data) > self.max_bytes):
                last_size = len(event.data)
                break
            if event.id != self._after + 1:
                items.append(self._lost(event.id))
            self._append(items, event)
            sent += len(event.data)
        data: dict[str, Any] = {
            "reason": reason,
            "droppedAfter": self._after,
            "queueSize": min(events, self.max_events),
            "maxQueued": self.max_events,
            "queuedBytes": min(size, self.max_bytes),
            "maxQueuedBytes": self.max_bytes,
        }
        if reason == "queue_bytes_overflow" and last_size:
            data["eventBytes"] = last_size
        items.append(Notice(NoticeType.CLIENT_EVICTED, data))
        self._evicted = True
        self.end()

    def _warn(self, items: list[Item], events: int, size: int) -> None:
        frames = events >= self.max_events * WARN_AT
        volume = size >= self.max_bytes * WARN_AT
        if self._warned or not (frames or volume):
            return
        self._warned = True
        threshold = "frames_and_bytes" if frames and volume else "frames" if frames else "bytes"
        items.append(
            Notice(
                NoticeType.SLOW_CLIENT_WARNING,
                {
                    "queueSize": events,
                    "maxQueued": self.max_events,
                    "lastEventId": self._after,
                    "queuedBytes": size,
                    "maxQueuedBytes": self.max_bytes,
                    "threshold": threshold,
                },
            )
        )

    def _lost(self, available: int) -> Notice:
        return Notice(
            NoticeType.STATE_RESYNC_REQUIRED,
            {"reason": "ring_evicted", "lastDeliveredId": self._after, "earliestAvailableId": available},
        )

    def _append(self, items: list[Item], event: Event) -> None:
        items.append(event)
        self._after = event.id
        if self._replay_end is None:
            self._taken_total = event.total
