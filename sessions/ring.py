"""The event ring of one session: append-only, bounded by count and by bytes, read by cursor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec
import trio

from sessions.errors import SubscriberLimitExceeded
from sessions.events import EVENT_OVERHEAD, Event, encode
from sessions.limits import Limits
from sessions.recovery import RingState, plan_resume
from sessions.signal import Signal
from sessions.subscription import Subscription

if TYPE_CHECKING:
    from sessions.log import LogWriter

__all__ = ["Ring", "RingStatistics"]

NEVER: Final = 2**63
COMPACT_AT: Final = 1024


@attrs.frozen(slots=True)
class RingStatistics:
    """A look at a ring: ids, counts, bytes."""

    head: int
    waterline: int
    events: int
    bytes: int
    subscribers: int
    evicted: int
    unserialisable: int


_DROPPED = Event(0, "", b"", 0, None, None, 0)


class Ring:
    """Events with ids 1, 2, 3…; the oldest go when ``limits`` are exceeded, but the newest always stays.

    Subscribers pull: the ring holds none of their state but a set of them, and publishing wakes all by replacing one
    `trio.Event`. `publish` never blocks. Single-threaded: call from the Trio thread only.
    """

    __slots__ = (
        "_bytes",
        "_changed",
        "_closed",
        "_events",
        "_evicted",
        "_lag_check_at",
        "_limits",
        "_log",
        "_now_ms",
        "_start",
        "_subscribers",
        "_total",
        "_unserialisable",
        "epoch",
        "head",
        "on_evicted",
        "on_unserialisable",
    )

    def __init__(
        self,
        limits: Limits,
        epoch: str,
        now_ms: Callable[[], int],
        *,
        log: LogWriter | None = None,
        on_unserialisable: Callable[[str, Exception], None] | None = None,
        on_evicted: Callable[[int], None] | None = None,
    ) -> None:
        self.epoch = epoch
        """Token of this numbering; another token means other ids (ACP-014)."""
        self.head = 0
        """Id of the newest event; 0 before the first."""
        self.on_unserialisable = on_unserialisable
        self.on_evicted = on_evicted
        """Called with the cursor of a reader whose eviction was decided."""
        self._limits = limits
        self._now_ms = now_ms
        self._log = log
        # A list with a moving start: appending, dropping and slicing anywhere all stay cheap however large the ring is
        # (a deque walks to the middle).
        self._events: list[Event] = []
        self._start = 0
        self._bytes = 0
        self._total = 0
        self._changed = Signal()
        self._closed = False
        self._subscribers: set[Subscription] = set()
        self._evicted = 0
        self._unserialisable = 0
        self._lag_check_at = NEVER

    # What is there

    @property
    def waterline(self) -> int:
        """Lowest id still held; ``head + 1`` when nothing is."""
        return self.head + 1 - self._held

    @property
    def _held(self) -> int:
        return len(self._events) - self._start

    @property
    def closed(self) -> bool:
        """True when nothing more will be published (until `reopen`)."""
        return self._closed

    @property
    def total(self) -> int:
        """Bytes of event data ever published."""
        return self._total

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    def consumers(self) -> int:
        """Subscribers that show events to somebody (ACP-178)."""
        return sum(1 for each in self._subscribers if each.consumer)

    def statistics(self) -> RingStatistics:
        return RingStatistics(
            self.head,
            self.waterline,
            self._held,
            self._bytes,
            len(self._subscribers),
            self._evicted,
            self._unserialisable,
        )

    def read(self, after: int, limit: int) -> list[Event]:
        """Held events with ``id > after``, oldest first, at most ``limit``."""
        first = self._start + max(0, after + 1 - self.waterline)
        return self._events[first : first + limit]

    def state(self) -> RingState:
        return RingState(self.epoch, self.head, self.waterline)

    # What happens

    def publish(
        self,
        type: str,
        data: Mapping[str, Any] | msgspec.Raw,
        *,
        prompt_id: str | None = None,
        originator: str | None = None,
    ) -> Event | None:
        """Append one event and wake every subscriber.

        `msgspec.Raw` data must be JSON on one line. Returns None, consuming no id, when ``data`` cannot be serialised
        (ACP-010). Raises ``RuntimeError`` on a closed ring.
        """
        if self._closed:
            raise RuntimeError("publish on a closed ring")
        if isinstance(data, msgspec.Raw):
            text = bytes(data)
        else:
            try:
                text = encode(data)
            except (TypeError, ValueError, RecursionError, OverflowError) as problem:
                self._unserialisable += 1
                if self.on_unserialisable is not None:
                    self.on_unserialisable(type, problem)
                return None
        self.head += 1
        self._total += len(text)
        event = Event(self.head, type, text, self._now_ms(), prompt_id, originator, self._total)
        self._events.append(event)
        self._bytes += len(text) + EVENT_OVERHEAD
        if self._held > self._limits.event_ring_size or self._bytes > self._limits.ring_bytes:
            self._trim()
        if self._log is not None:
            self._log.append(event)
        if self.head >= self._lag_check_at:
            self._check_lag()
        self._changed.set()
        return event

    def form(self, event: Event, key: object, make: Callable[[Event], bytes]) -> bytes:
        """The wire form ``key`` of ``event``, made at most once while the ring holds the event."""
        forms = event.forms
        if forms is None:
            forms = event.forms = {}
        else:
            found = forms.get(key)
            if found is not None:
                return found
        made = make(event)
        if event.id >= self.waterline:
            forms[key] = made
            self._bytes += len(made)
            if self._bytes > self._limits.ring_bytes:
                self._trim()
        return made

    def shrink(self, max_bytes: int) -> int:
        """Drop encoded forms, then the oldest events, until at most ``max_bytes`` are held. Returns the bytes held."""
        for event in self._events[self._start :]:
            if event.forms:
                self._bytes -= sum(map(len, event.forms.values()))
                event.forms = None
        while self._held and self._bytes > max_bytes:
            self._drop_oldest()
        return self._bytes

    def subscribe(
        self,
        cursor: int | None = None,
        *,
        epoch: str | None = None,
        max_queued: int | None = None,
        consumer: bool = True,
    ) -> Subscription:
        """Register a reader; atomic with the decision what it is shown (ACP-012, ACP-013).

        ``cursor`` None: live events only. ``consumer`` False: a reader that shows events to nobody (ACP-178).
        Raises `SubscriberLimitExceeded`.
        """
        limit = self._limits.max_subscribers
        if limit and len(self._subscribers) >= limit:
            raise SubscriberLimitExceeded(limit)
        plan = None if cursor is None else plan_resume(self.state(), cursor, epoch)
        subscription = Subscription(
            self,
            plan,
            max_events=max_queued or self._limits.max_queued_events,
            max_bytes=self._limits.max_queued_bytes,
            replay_bytes=self._limits.replay_bytes,
            consumer=consumer,
        )
        self._subscribers.add(subscription)
        self._plan_lag_check()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Forget a reader; idempotent."""
        self._subscribers.discard(subscription)
        self._plan_lag_check()

    def note_evicted(self, subscription: Subscription) -> None:
        """A reader's eviction was decided; called by the subscription, once."""
        self._evicted += 1
        if self.on_evicted is not None:
            self.on_evicted(subscription.cursor)

    def close(self) -> None:
        """Nothing more will be published: readers get what is left, then the end. Idempotent."""
        self._closed = True
        self._changed.set()

    def reopen(self) -> None:
        """Publish again with the next id: a closed session was loaded."""
        self._closed = False

    async def wait_changed(self) -> None:
        """Wait until something is published after this call, or the ring is closed. Cancellation loses nothing.

        May return without either (`wake`).
        """
        if self._closed:
            await trio.lowlevel.checkpoint()
        else:
            await self._changed.wait()

    def wake(self, task: trio.lowlevel.Task) -> None:
        """Let this task return from `wait_changed`, if it is there: for something else it has to look at."""
        self._changed.wake(task)

    # Inside

    def _trim(self) -> None:
        while self._held > 1 and (self._held > self._limits.event_ring_size or self._bytes > self._limits.ring_bytes):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        event = self._events[self._start]
        # The list is compacted now and then; what was dropped must not live until then (C-097: events may be large).
        self._events[self._start] = _DROPPED
        self._start += 1
        if self._start >= COMPACT_AT and self._start * 2 >= len(self._events):
            del self._events[: self._start]
            self._start = 0
        self._bytes -= len(event.data) + EVENT_OVERHEAD
        if event.forms:
            self._bytes -= sum(map(len, event.forms.values()))

    def _plan_lag_check(self) -> None:
        # Looking at every reader at every event would cost O(readers) an event. A reader can exceed its bound only after
        # that many events, so a look every quarter of the smallest bound finds it in time.
        if self._subscribers:
            step = max(1, min(each.max_events for each in self._subscribers) // 4)
            self._lag_check_at = min(self._lag_check_at, self.head + step)
        else:
            self._lag_check_at = NEVER

    def _check_lag(self) -> None:
        self._lag_check_at = NEVER
        for each in list(self._subscribers):
            each.note_lag()
        self._plan_lag_check()
