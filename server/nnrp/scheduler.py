"""Who runs next: strict order of the priority classes, with ageing (nnrp-wire 13.5). Synchronous, and without a clock.

Within a class sessions take turns, and within a session the order of the submits holds. A class that has waited for
``ageing`` seconds *and* has been passed over ``patience`` times goes once out of order: so no class starves, and a long
backlog of background work still costs the others no more than every ``patience + 1``-th start. Background work never holds
all slots, because nothing that runs is taken off its slot again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from enum import IntEnum
from typing import Final

import attrs

from protocol.nnrp.enums import PriorityClass
from server.nnrp.pressure import PressureMarks

__all__ = ["Admission", "Scheduler", "SchedulerStatistics", "SchedulingPolicy", "Ticket", "TicketState"]

_CLASSES: Final = tuple(PriorityClass)
_BACKGROUND: Final = PriorityClass.BACKGROUND


@attrs.frozen(slots=True, kw_only=True)
class SchedulingPolicy:
    """Bounds of what is carried out at once, over all sessions of a service."""

    slots: int = 256
    """Operations carried out at once."""
    ageing: float = 2.0
    """Seconds a class waits, at least, before it may go out of order."""
    patience: int = 3
    """Starts of other classes a class lets pass, at least, before it may go out of order."""
    max_waiting: int = 4096
    """Operations that may wait; what comes then is refused."""
    soft_waiting: int | None = None
    """How many wait when clients are told to slow down; None: as many as there are slots, 32 at least."""
    hard_waiting: int | None = None
    """How many wait when clients are told to stop; None: four times as many."""

    @property
    def background_slots(self) -> int:
        """Three quarters of the slots, rounded down, but one at least."""
        return max(1, self.slots - max(1, self.slots // 4)) if self.slots > 1 else 1

    @property
    def marks(self) -> PressureMarks:
        soft = max(self.slots, 32) if self.soft_waiting is None else self.soft_waiting
        return PressureMarks(soft, 4 * soft if self.hard_waiting is None else self.hard_waiting)


class TicketState(IntEnum):
    WAITING = 0
    RUNNING = 1
    SUSPENDED = 2
    """It has its turn, but does not use it: the operation waits for a tool, or for its client to read."""
    OVER = 3


class Admission(IntEnum):
    STARTED = 0
    QUEUED = 1
    FULL = 2
    """Nothing was changed: too many wait."""


class Ticket:
    """One operation's place. ``owner`` is whose turn it takes; ``droppable``: it may be dropped to make room for another."""

    __slots__ = ("attachment", "droppable", "owner", "priority", "state")

    def __init__(self, owner: Hashable, priority: PriorityClass, *, droppable: bool = False) -> None:
        self.owner = owner
        self.priority = priority
        self.droppable = droppable
        self.state = TicketState.WAITING
        self.attachment: object = None
        """The driver's; never looked at here."""


@attrs.frozen(slots=True)
class SchedulerStatistics:
    running: int
    suspended: int
    waiting: tuple[int, int, int]
    """By class, the most urgent first."""
    started: tuple[int, int, int]
    aged: int
    """Starts out of order."""
    refused: int

    @property
    def waits(self) -> int:
        return sum(self.waiting)


class _Line:
    """What waits in one class."""

    __slots__ = ("count", "owners", "passed", "since", "started")

    def __init__(self) -> None:
        self.owners: OrderedDict[Hashable, deque[Ticket]] = OrderedDict()
        self.count = 0
        self.since = 0.0
        """When the class began to wait, or was served last."""
        self.passed = 0
        self.started = 0

    def add(self, ticket: Ticket, now: float) -> None:
        if not self.count:
            self.since, self.passed = now, 0
        self.owners.setdefault(ticket.owner, deque()).append(ticket)
        self.count += 1

    def remove(self, ticket: Ticket) -> None:
        tickets = self.owners[ticket.owner]
        tickets.remove(ticket)
        if not tickets:
            del self.owners[ticket.owner]
        self.count -= 1

    def pop(self) -> Ticket:
        owner, tickets = next(iter(self.owners.items()))
        ticket = tickets.popleft()
        if tickets:
            self.owners.move_to_end(owner)
        else:
            del self.owners[owner]
        self.count -= 1
        return ticket

    def newest_droppable(self) -> Ticket | None:
        for tickets in reversed(self.owners.values()):
            for ticket in reversed(tickets):
                if ticket.droppable:
                    return ticket
        return None


class Scheduler:
    """What has its turn, and what waits for one. Methods that free a slot return what starts by that, in order."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self._lines = tuple(_Line() for _ in _CLASSES)
        self._running = [0] * len(_CLASSES)
        self._suspended = 0
        self._aged = 0
        self._refused = 0

    @property
    def running(self) -> int:
        return sum(self._running)

    @property
    def waiting(self) -> int:
        return sum([line.count for line in self._lines])

    def enter(self, ticket: Ticket, now: float) -> Admission:
        """A new operation. It starts at once only where nobody else would start first."""
        line = self._lines[ticket.priority]
        if not self.waiting and self._has_slot(ticket.priority):
            self._start(ticket)
            return Admission.STARTED
        if self.waiting >= self.policy.max_waiting:
            self._refused += 1
            return Admission.FULL
        line.add(ticket, now)
        self._start_next(now)  # background work that waits for a slot of its own does not hold up the others
        return Admission.STARTED if ticket.state is TicketState.RUNNING else Admission.QUEUED

    def leave(self, ticket: Ticket, now: float) -> tuple[Ticket, ...]:
        """The operation is over, or gives up waiting. Idempotent."""
        if ticket.state is TicketState.OVER:
            return ()
        if ticket.state is TicketState.WAITING:
            self._lines[ticket.priority].remove(ticket)
        elif ticket.state is TicketState.RUNNING:
            self._running[ticket.priority] -= 1
        else:
            self._suspended -= 1
        ticket.state = TicketState.OVER
        return self._start_next(now)

    def suspend(self, ticket: Ticket, now: float) -> tuple[Ticket, ...]:
        """The operation does nothing for a while: its slot is free meanwhile. Idempotent."""
        if ticket.state is not TicketState.RUNNING:
            return ()
        ticket.state = TicketState.SUSPENDED
        self._running[ticket.priority] -= 1
        self._suspended += 1
        return self._start_next(now)

    def resume(self, ticket: Ticket) -> None:
        """It goes on, at once: what runs beyond the slots by that keeps others from starting. Idempotent."""
        if ticket.state is TicketState.SUSPENDED:
            ticket.state = TicketState.RUNNING
            self._suspended -= 1
            self._running[ticket.priority] += 1

    def droppable(self, priority: PriorityClass) -> Ticket | None:
        """A waiting operation that may be dropped in favour of one of ``priority``: of the least urgent class, its newest;
        never one that is more urgent."""
        for each in reversed(_CLASSES):
            if each < priority:
                return None
            found = self._lines[each].newest_droppable()
            if found is not None:
                return found
        return None

    def statistics(self) -> SchedulerStatistics:
        one, two, three = self._lines
        return SchedulerStatistics(
            self.running,
            self._suspended,
            (one.count, two.count, three.count),
            (one.started, two.started, three.started),
            self._aged,
            self._refused,
        )

    def _has_slot(self, priority: PriorityClass) -> bool:
        policy = self.policy
        if self.running >= policy.slots:
            return False
        return priority is not _BACKGROUND or self._running[_BACKGROUND] < policy.background_slots

    def _start_next(self, now: float) -> tuple[Ticket, ...]:
        started = []
        while (chosen := self._choose(now)) is not None:
            line = self._lines[chosen]
            ticket = line.pop()
            line.since, line.passed = now, 0
            for other in self._lines:
                if other is not line and other.count:
                    other.passed += 1
            self._start(ticket)
            started.append(ticket)
        return tuple(started)

    def _choose(self, now: float) -> PriorityClass | None:
        """The class that goes next, None when there is no slot for any."""
        waiting = [each for each in _CLASSES if self._lines[each].count and self._has_slot(each)]
        if not waiting:
            return None
        first = waiting[0]
        due = [each for each in waiting[1:] if self._is_due(self._lines[each], now)]
        if not due:
            return first
        self._aged += 1
        return min(due, key=lambda each: self._lines[each].since)

    def _is_due(self, line: _Line, now: float) -> bool:
        return line.passed >= self.policy.patience and now - line.since >= self.policy.ageing

    def _start(self, ticket: Ticket) -> None:
        ticket.state = TicketState.RUNNING
        self._running[ticket.priority] += 1
        self._lines[ticket.priority].started += 1
