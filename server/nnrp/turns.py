"""Operations wait for their turn: the scheduler with Trio and its clock around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import trio

from protocol.nnrp.enums import ResultBudgetPolicy
from server.nnrp.pressure import Pressure
from server.nnrp.scheduler import Admission, Scheduler, SchedulingPolicy, Ticket

__all__ = ["Turns"]


class Turns:
    """``changed`` is called, synchronously, whenever the level of backpressure has changed."""

    def __init__(self, policy: SchedulingPolicy, changed: Callable[[], None]) -> None:
        self.scheduler = Scheduler(policy)
        self.pressure = Pressure(policy.marks)
        self.budgets: Counter[ResultBudgetPolicy] = Counter()
        """How operations ended whose budget was spent."""
        self.shed = 0
        self._changed = changed
        self._events: dict[Ticket, trio.Event] = {}

    def enter(self, ticket: Ticket) -> Admission:
        """Get into line. FULL: the ticket is not in it."""
        admission = self.scheduler.enter(ticket, trio.current_time())
        if admission is Admission.QUEUED:
            self._events[ticket] = trio.Event()
            self._note()
        return admission

    async def wait(self, ticket: Ticket) -> None:
        """Wait for the ticket's turn. Not a checkpoint when it has it. Cancelled meanwhile, it stays in line: ``leave``."""
        event = self._events.get(ticket)
        if event is not None:
            await event.wait()

    def make_room(self, ticket: Ticket) -> Ticket | None:
        """Take one that may be dropped out of the line for ``ticket``. It is for the caller to end it."""
        victim = self.scheduler.droppable(ticket.priority)
        if victim is not None:
            self.shed += 1
            self.leave(victim)
        return victim

    def leave(self, ticket: Ticket) -> None:
        self._events.pop(ticket, None)
        self._start(self.scheduler.leave(ticket, trio.current_time()))

    def suspend(self, ticket: Ticket) -> None:
        self._start(self.scheduler.suspend(ticket, trio.current_time()))

    def resume(self, ticket: Ticket) -> None:
        self.scheduler.resume(ticket)

    def _start(self, tickets: tuple[Ticket, ...]) -> None:
        for ticket in tickets:
            event = self._events.pop(ticket, None)
            if event is not None:
                event.set()
        self._note()

    def _note(self) -> None:
        if self.pressure.update(self.scheduler.waiting):
            self._changed()
