"""What one stream sends next, whatever carries it: replies, replay, live events, in the one right order.

A stream is pulled. The transport calls `take`, sends what it got as one write, and calls `take` again, which is how the
stream learns that the former frames are out. Waiting is one cancellable wait in the transport's own task.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import attrs
import trio

from server.routes.acp.deferred import Replies, Reply
from server.routes.acp.history import History
from server.routes.acp.translate import Wire, permission_message, stream_error
from server.telemetry import log
from sessions import Event, EventType, Notice, NoticeType, Subscription
from sessions.signal import Signal
from sessions.subscription import PROBATION, Item

if TYPE_CHECKING:
    from server.routes.acp.binding import Binding
    from server.routes.acp.connection import AcpConnection

__all__ = ["REMEMBERED", "Carrier", "ConnectionStream", "SessionStream", "StreamEnd"]

HISTORY_PIECE: Final = 512 * 1024
"""Bytes of history sent in one write."""
REMEMBERED: Final = 64
"""Replies a stream remembers having sent, in case its peer turns out to have been cut off before they arrived."""
DOUBT: Final = 120.0
"""Seconds for which the connection stream, which has no cursor, remembers one: longer than a client takes to notice that
nothing arrives any more (45 s without a heartbeat) and to come back."""
LONGEST_GOODBYE: Final = 1.0
"""Seconds the end of a session stream waits for the reply to ``session/close`` to be out."""
GOODBYE_LEAD: Final = 0.05
"""Seconds that reply gets to reach the peer, over another socket, before the stream ends."""


class StreamEnd(enum.Enum):
    """Why a session stream ended: it decides what becomes of the binding (ACP-141, ACP-144)."""

    LOST = "lost"
    CLOSED = "closed"
    EVICTED = "evicted"
    FAILED = "failed"
    """The session has as many readers as it may have."""
    BROKEN = "broken"
    """A defect of ours."""


@attrs.frozen(slots=True)
class Carrier:
    """The transport as a stream sees it."""

    wire: Wire
    hurry: Callable[[float], object]
    """Give a send in progress so many seconds more."""
    was_cut: Callable[[], bool] = lambda: False
    """Whether the peer went without a goodbye: then what the transport took last may never have arrived."""
    is_over: Callable[[], bool] = lambda: False
    """Whether the peer has left: a transport goes on taking frames for a moment, and drops them."""
    shared: bool = False
    """All streams of the connection are one socket: what one of them is writing arrives before what the next one does."""


class OutStream(ABC):
    """Replies of one queue, and whatever a subclass has besides. One task takes; everything else is synchronous."""

    def __init__(self, replies: Replies, carrier: Carrier, touch: Callable[[], object]) -> None:
        self._replies = replies
        self._carrier = carrier
        self._touch = touch
        self._unconfirmed: list[Reply] = []
        self._waiting: trio.lowlevel.Task | None = None
        self._stopped = False
        self._released = False
        self._superseded = False

    async def take(self) -> list[bytes] | None:
        """The frames to be sent now, at least one; None at the end. Cancelling it loses nothing."""
        self._confirm()
        self._touch()
        while True:
            frames = self.take_nowait()
            if frames or self._stopped:
                return frames or None
            if self._finished():
                await self._before_end()
                return None
            self._waiting = trio.lowlevel.current_task()
            try:
                await self._wait()
            finally:
                self._waiting = None

    def take_nowait(self) -> list[bytes]:
        """What can be sent at once, perhaps nothing."""
        return [] if self._stopped or self._carrier.is_over() else self._collect()

    def wake(self) -> None:
        """There may be something to send."""
        if self._waiting is not None:
            self._wake(self._waiting)

    def stop(self) -> None:
        """Nothing more is to be sent here: `take` returns the end. What was not confirmed goes back into the queue."""
        self._stopped = True
        self._release()
        self.wake()

    def supersede(self) -> None:
        """Another stream has taken this one's place; its socket may be half dead, so it gets little time (C-012).

        A client that opens another stream has given this one up, with whatever was still on its way.
        """
        if self._carrier.shared:
            self._confirm()
            self.stop()
        else:
            self._superseded = True
            self.stop()
            self._carrier.hurry(PROBATION)

    def close(self) -> None:
        """The transport is done with this stream. Idempotent."""
        self.stop()

    # For subclasses

    @abstractmethod
    def _collect(self) -> list[bytes]: ...

    @abstractmethod
    async def _wait(self) -> None:
        """Wait until `_collect` may have something, or until `_wake`."""

    @abstractmethod
    def _wake(self, task: trio.lowlevel.Task) -> None:
        """End the wait of this task."""

    def _finished(self) -> bool:
        return False

    async def _before_end(self) -> None:
        await trio.lowlevel.checkpoint()

    @property
    def _in_doubt(self) -> bool:
        """What the transport has taken may never have reached the peer."""
        return self._carrier.was_cut() or self._superseded

    def _write(self, replies: Iterable[Reply]) -> list[bytes]:
        taken = list(replies)
        self._unconfirmed += taken
        return [self._carrier.wire.plain(reply.message) for reply in taken]

    def _confirm(self) -> None:
        written, self._unconfirmed = self._unconfirmed, []
        self._replies.confirm(written)

    def _release(self) -> None:
        if not self._released:
            self._released = True
            unwritten, self._unconfirmed = self._unconfirmed, []
            self._replies.put_back(unwritten)


class ConnectionStream(OutStream):
    """The connection-scoped stream: replies only (acp-http 3.1).

    No cursor tells which of them have arrived. After a cut the latest are sent again, those that did arrive included: a
    client ignores the answer to an id that waits for nothing any more, but waits for ever for one that never comes.
    """

    def __init__(self, connection: AcpConnection, ticket: int, carrier: Carrier) -> None:
        super().__init__(connection.replies, carrier, connection.touch)
        self._connection = connection
        self._written: deque[tuple[float, Reply]] = deque(maxlen=REMEMBERED)
        self._signal = Signal()
        self.ticket = ticket

    def _collect(self) -> list[bytes]:
        return self._write(self._replies.release(0))

    async def _wait(self) -> None:
        await self._signal.wait()

    def _wake(self, task: trio.lowlevel.Task) -> None:
        self._signal.wake(task)

    def _confirm(self) -> None:
        now = trio.current_time()
        self._written.extend((now, reply) for reply in self._unconfirmed)
        while self._written and self._written[0][0] < now - DOUBT:
            self._written.popleft()
        super()._confirm()

    def _release(self) -> None:
        since = trio.current_time() - DOUBT
        doubtful = [reply for at, reply in self._written if at >= since]
        first = not self._released
        super()._release()
        if first and self._in_doubt:
            self._replies.send_again(doubtful)

    def close(self) -> None:
        super().close()
        self._connection.stream_over(self)


class SessionStream(OutStream):
    """The stream of one binding: a history, if one is due, then the ring, with the replies where they belong.

    The rule for replies (ACP-134 to ACP-136): none while a replay is pending; then each as soon as every event through
    its watermark has been sent, in the order in which they were made. Within a batch of events they are put between them.
    """

    def __init__(
        self,
        binding: Binding,
        subscription: Subscription | None,
        ticket: int,
        carrier: Carrier,
        *,
        first: Reply | None = None,
        history: History | None = None,
        error: str | None = None,
    ) -> None:
        """``first`` is sent before everything else. Without a subscription the stream only says ``error`` and ends."""
        super().__init__(binding.replies, carrier, binding.connection.touch)
        self._binding = binding
        self._session = binding.session
        self._subscription = subscription
        self._history = history
        self._error = error
        self._replay_end = binding.session.ring.head
        self._delivered = self._replay_end if subscription is None else subscription.cursor
        self._over_at: float | None = None
        self._written: deque[Reply] = deque(maxlen=REMEMBERED)
        self.ticket = ticket
        self.end = StreamEnd.LOST
        self._first = first
        if subscription is not None:
            subscription.on_overdue = lambda: carrier.hurry(PROBATION)

    # Taking

    def _collect(self) -> list[bytes]:
        frames: list[bytes] = []
        if self._first is not None:
            first, self._first = self._first, None
            frames += self._write([self._replies.admit(first)])
        if self._history:
            return frames + self._take_history()
        if self._subscription is None:
            return frames + self._take_error()
        if self._finished():
            return frames
        try:
            return frames + self._take_events(self._subscription)
        except Exception:
            # The barrier of a stream: the peer is told, and what is known to be lost is given up (ACP-183).
            log.exception("acp_stream_failed", session_id=self._session.id)
            self.end = StreamEnd.BROKEN
            return [*frames, self._carrier.wire.notice(stream_error("Internal error"), self._session.id)]

    def _take_events(self, subscription: Subscription) -> list[bytes]:
        replaying = subscription.replaying
        if subscription.idle:
            return self._replies_through(self._delivered)
        try:
            items = subscription.take_nowait()
        except trio.WouldBlock:
            return [] if replaying else self._replies_through(self._delivered)
        frames = self._order(items, replaying)
        if subscription.ended:
            self.end = StreamEnd.EVICTED if subscription.evicted else StreamEnd.CLOSED
        if not subscription.replaying and self.end is not StreamEnd.EVICTED:
            self._delivered = max(self._delivered, subscription.cursor)
            frames += self._replies_through(self._delivered)
        return frames

    def _order(self, items: list[Item], replaying: bool) -> list[bytes]:
        frames: list[bytes] = []
        for item in items:
            if isinstance(item, Notice):
                frames.append(self._carrier.wire.notice(item, self._session.id))
                if item.type is NoticeType.REPLAY_COMPLETE:
                    replaying = False
                    # A replay that was cut by a resync has still come to its end (ACP-136).
                    self._delivered = max(self._delivered, self._replay_end)
                    frames += self._replies_through(self._delivered)
                continue
            if not replaying:
                frames += self._replies_through(item.id - 1)
            frame = self._frame(item)
            if frame is not None:
                frames.append(frame)
            self._delivered = item.id
        return frames

    def _replies_through(self, delivered: int) -> list[bytes]:
        if not len(self._replies):
            return []
        ready = self._replies.release(delivered)
        for reply in ready:
            reply.position = self._delivered
        return self._write(ready)

    def _frame(self, event: Event) -> bytes | None:
        if event.type == EventType.PERMISSION_REQUEST:
            return self._question(event)
        return self._carrier.wire.event(self._session.ring, event)

    def _question(self, event: Event) -> bytes:
        data = event.value()
        outbound = self._binding.connection.questions.outbound_id(self._session.id, data["requestId"])
        return self._carrier.wire.numbered(permission_message(data, outbound), event.id)

    def _take_history(self) -> list[bytes]:
        frames: list[bytes] = []
        size = 0
        while self._history and size < HISTORY_PIECE:
            for item in self._history.take():
                frame = self._past(item)
                if frame is not None:
                    frames.append(frame)
                    size += len(frame)
        return frames

    def _past(self, item: Item) -> bytes | None:
        if isinstance(item, Notice):
            return self._carrier.wire.notice(item, self._session.id)
        if item.type == EventType.PERMISSION_REQUEST:
            return self._question(item)
        # Merged events are not the ring's, so their forms must not be put to its account.
        return self._carrier.wire.unshared(item)

    def _take_error(self) -> list[bytes]:
        if self._error is None:
            return []
        error, self._error = self._error, None
        self.end = StreamEnd.FAILED
        return [self._carrier.wire.notice(stream_error(error), self._session.id)]

    # Waiting and ending

    def _finished(self) -> bool:
        return self.end is not StreamEnd.LOST

    async def _wait(self) -> None:
        await self._session.ring.wait_changed()

    def _wake(self, task: trio.lowlevel.Task) -> None:
        self._session.ring.wake(task)

    async def _before_end(self) -> None:
        """The reply to ``session/close`` is out before the stream ends: clients give up their pending requests of a
        session whose stream has ended, that one included."""
        answered = self._binding.close_answered
        if answered is None:
            await trio.lowlevel.checkpoint()
            return
        if self._over_at is None:
            self._over_at = trio.current_time() + LONGEST_GOODBYE
        with trio.CancelScope(deadline=self._over_at):
            await answered.wait()
            await trio.sleep(GOODBYE_LEAD)

    def _confirm(self) -> None:
        self._written.extend(reply for reply in self._unconfirmed if reply.position is not None)
        super()._confirm()

    def _release(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
        if not self._released and self._in_doubt:
            self._binding.doubt(self._written)
        super()._release()
        first, self._first = self._first, None
        if first is not None:
            self._replies.put_back([self._replies.admit(first)])

    def close(self) -> None:
        super().close()
        self._binding.stream_over(self)
