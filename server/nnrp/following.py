"""One engine session's events on their way to one NNRP session, each once, in the order of the ring."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from protocol.layout import Buffer
from protocol.nnrp.enums import CloseReason, SessionFlagsAck
from protocol.nnrp.machines.resume import Redelivery, RedeliveryPlan
from server.nnrp.journal import Entry
from server.nnrp.opening import tell_gap
from server.nnrp.others import Others, ids_of
from server.telemetry import log
from sessions.events import Event
from sessions.operation import CancelReason
from sessions.session import Session

if TYPE_CHECKING:
    from server.nnrp.session import ServedSession

__all__ = ["Follower", "OwnTurn"]

_FAIR: Final = 64
"""Events passed on before other tasks get their turn."""
_BACKGROUND: Final = int(SessionFlagsAck.BACKGROUND_RESULTS_ENABLED)

Spawn = Callable[[Callable[[], Awaitable[None]]], Any]


class OwnTurn(Protocol):
    """A prompt that this NNRP session has submitted."""

    async def pass_on(self, event: Event) -> None:
        """Make a result of the event; with the outcome, wait until its terminal message is on its way."""
        ...

    def give_up(self, why: str) -> None:
        """No outcome will come."""
        ...


class Follower:
    """A cursor in the ring and a task that moves it: it waits for room on the connection, takes the next event, and sends
    it. A slow reader so holds nothing but its position; when the ring has let go of what comes next, the client is told.

    Results of the session's own operations are in its journal too, because their terminal messages must not be lost. After a
    resume they are sent again between the events of others, at the place they had.
    """

    __slots__ = (
        "_after",
        "_always",
        "_begun",
        "_client_id",
        "_engine",
        "_kept",
        "_others",
        "_passed",
        "_running",
        "_scope",
        "_served",
        "_spawn",
        "_told",
        "_waiting",
        "turns",
    )

    def __init__(self, served: ServedSession, spawn: Spawn, *, always: bool = False) -> None:
        self.turns: dict[str, OwnTurn] = {}
        """By prompt id."""
        self._served = served
        self._spawn = spawn
        self._always = always
        self._engine: Session | None = None
        self._client_id = ""
        self._others: Others | None = None
        self._after = 0
        self._passed = 0
        self._told = 0
        self._begun = False
        self._kept: deque[tuple[int, tuple[Buffer, ...]]] = deque()
        self._running = False
        self._scope = trio.CancelScope()
        self._waiting = trio.CancelScope()

    @property
    def engine(self) -> Session | None:
        """The session that is followed, None before there is one."""
        return self._engine

    @property
    def attached(self) -> bool:
        """Whether it has ever been sent what happens."""
        return self._begun

    @property
    def oldest_event_id(self) -> int:
        """For `Resumable.oldest_event_id`."""
        waterline = 1 if self._engine is None else self._engine.ring.waterline
        return waterline if waterline > 1 else 0

    # What happens

    def hold(self, engine: Session, client_id: str) -> None:
        """This is the session. Events whose author is ``client_id`` are of its client's own operations."""
        self._engine, self._client_id = engine, client_id
        engine.clients.keep(client_id)
        self._others = Others(engine.ring)
        self._after = self._passed = self._told = engine.ring.head

    def begin(self) -> None:
        """Send what happens from here on."""
        self._begun = True
        if self._engine is not None:
            self._engine.followers.add(self)
        if not self._running and not self._served.over:
            self._running = True
            self._spawn(self._run)

    def resume(self, plan: RedeliveryPlan, again: list[Entry]) -> list[Entry]:
        """The client is back. Returns what of ``again`` it gets at once; the rest comes between the events of others."""
        if self._engine is None or self._others is None:
            return again
        ring = self._engine.ring
        if plan.redelivery is Redelivery.AFTER_EVENT:
            position = min(plan.position, ring.head)
            # What is no event of the ring stands behind all that the client has.
            self._served.last_event_id = max(self._served.last_event_id, position)
        else:
            position = self._told if self._begun else ring.head
        self._passed = max(self._passed, self._after)
        self._after = position
        self._others.rewind()
        later = [each for each in again if each.numbered and each.event_id > position]
        self._kept = deque((each.event_id, each.parts) for each in later)
        self._waiting.cancel()
        self.begin()
        return [each for each in again if not (each.numbered and each.event_id > position)]

    def keep_back(self, event_id: int, parts: list[Buffer]) -> bool:
        """Whether a result has to wait for its place, because events before it are being sent again."""
        if not event_id or not (self._kept or self._after < self._passed):
            return False
        self._kept.append((event_id, tuple(parts)))
        return True

    def cancel_other(self, frame_id: int, operation_id: int) -> bool:
        """Cancel somebody else's prompt. False when no such prompt waits or runs."""
        for each in () if self._engine is None else self._engine.prompts.pending:
            frame, operation = ids_of(str(each.id))
            if operation == operation_id or (not operation_id and frame == frame_id):
                return self._engine is not None and self._engine.cancel_operation(each, CancelReason.USER)
        return False

    def close(self) -> None:
        """The NNRP session is over."""
        if self._engine is not None:
            self._engine.followers.discard(self)
            self._engine.touch()
        self._scope.cancel()

    # The task

    async def _run(self) -> None:
        engine = self._engine
        assert engine is not None
        try:
            with self._scope:
                await self._follow(engine)
        except Exception:
            log.error("nnrp_follower_failed", session=self._served.machine.session_id, exc_info=True)
        finally:
            self._running = False
            for turn in list(self.turns.values()):
                turn.give_up("the session ended")
        self._end()

    async def _follow(self, engine: Session) -> None:
        ring, served = engine.ring, self._served
        while not served.over:
            await served.wait_room()
            batch = ring.read(self._after, _FAIR)
            if batch:
                await self._pass_on(batch)
                continue
            self._send_kept(ring.head)
            if ring.closed:
                return
            with trio.CancelScope() as self._waiting:
                await ring.wait_changed()

    async def _pass_on(self, batch: list[Event]) -> None:
        """Send these, as long as there is room. Between the look at the room and a packet's place in the queue nothing is
        awaited: order is the order of the ring."""
        served = self._served
        for event in batch:
            if event.id > self._after + 1:
                self._tell_gap(event.id)
            again = event.id <= self._passed
            self._after = event.id
            if served.link is not None:
                self._told = event.id
            if self._kept:
                self._send_kept(event.id)
            self._passed = max(self._passed, event.id)
            if event.originator != self._client_id or event.prompt_id is None:
                self._push(event)
            elif not again and (turn := self.turns.get(event.prompt_id)) is not None:
                await turn.pass_on(event)
            if self._after != event.id or served.over or not served.has_room():
                return
        await trio.lowlevel.checkpoint()

    def _push(self, event: Event) -> None:
        served = self._served
        link, machine = served.link, served.machine
        if link is None or link.machine.closed or not machine.open or self._others is None:
            return
        if not self._always and not machine.terms.flags & _BACKGROUND:
            return
        parts = self._others.parts(machine, event)
        if parts is not None:
            served.last_event_id = max(served.last_event_id, event.id)
            link.flush()
            link.writer.write(parts, result=True)

    def _send_kept(self, through: int) -> None:
        while self._kept and self._kept[0][0] <= through:
            _, parts = self._kept.popleft()
            if self._served.link is not None:
                self._served.link.writer.write(parts, result=True)

    def _tell_gap(self, first: int) -> None:
        link = self._served.link
        if self._others is not None:
            self._others.rewind()
        if link is not None and not link.machine.closed:
            tell_gap(link, self._served.machine.session_id, first)

    def _end(self) -> None:
        """The engine session is over: so is this one, where its client can be told. A detached one ends with its window."""
        served = self._served
        link = served.link
        if served.over or link is None or link.machine.closed or not served.machine.open:
            return
        link.close_session(served, CloseReason.NORMAL)
