"""Who runs next: priority classes, ageing, turns, and the level of backpressure that follows. Time is a number here."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.nnrp.enums import BackpressureLevel, CongestionState, PriorityClass
from server.nnrp.pressure import Pressure, PressureMarks
from server.nnrp.scheduler import Admission, Scheduler, SchedulingPolicy, Ticket, TicketState

INTERACTIVE, BALANCED, BACKGROUND = PriorityClass
ONE = SchedulingPolicy(slots=1, ageing=10.0, patience=3)


def enter(scheduler: Scheduler, priority: PriorityClass, owner: object = "", now: float = 0.0) -> Ticket:
    ticket = Ticket(owner, priority)
    scheduler.enter(ticket, now)
    return ticket


def served(scheduler: Scheduler, running: Ticket, *, step: float = 1.0, now: float = 0.0) -> list[Ticket]:
    """One slot, each operation taking ``step``: who runs after ``running``, until nobody waits."""
    order = []
    while started := scheduler.leave(running, now := now + step):
        (running,) = started
        order.append(running)
    return order


def test_what_finds_a_slot_starts_at_once() -> None:
    """nnrp-wire 13.5: scheduling begins where there are more operations than slots."""
    scheduler = Scheduler(SchedulingPolicy(slots=2))
    first, second, third = (Ticket("", BALANCED) for _ in range(3))
    assert [scheduler.enter(each, 0.0) for each in (first, second, third)] == [
        Admission.STARTED,
        Admission.STARTED,
        Admission.QUEUED,
    ]
    assert scheduler.leave(second, 1.0) == (third,)
    assert scheduler.leave(second, 2.0) == (), "a second time changes nothing"
    assert (scheduler.running, scheduler.waiting) == (2, 0)


def test_classes_go_in_strict_order_and_within_one_in_the_order_of_the_submits() -> None:
    """nnrp-wire 13.5: strict class order; order within one session and class."""
    scheduler = Scheduler(ONE)
    running = enter(scheduler, BALANCED)
    wanted = [enter(scheduler, each, now=0.1) for each in (INTERACTIVE, INTERACTIVE, BALANCED, BALANCED, BACKGROUND)]
    assert served(scheduler, running) == wanted


@pytest.mark.parametrize("first", PriorityClass)
@pytest.mark.parametrize("second", PriorityClass)
def test_every_pair_of_classes(first: PriorityClass, second: PriorityClass) -> None:
    """nnrp-wire 13.5: the more urgent goes first whichever came first; equals keep their order."""
    scheduler = Scheduler(ONE)
    running = enter(scheduler, BALANCED)
    one, two = enter(scheduler, first), enter(scheduler, second)
    assert served(scheduler, running) == ([one, two] if first <= second else [two, one])


def test_sessions_of_one_class_take_turns() -> None:
    """13.6, C-080 where the server schedules: a session with a hundred waiting operations delays another by one."""
    scheduler = Scheduler(ONE)
    running = enter(scheduler, BALANCED, "busy")
    crowd = [enter(scheduler, BALANCED, "busy") for _ in range(100)]
    single = enter(scheduler, BALANCED, "quiet")
    order = served(scheduler, running)
    assert order.index(single) == 1
    assert [each for each in order if each is not single] == crowd


def test_background_is_served_under_a_load_that_never_ends() -> None:
    """nnrp-wire 13.5: ageing. With the interactive class never empty every background operation still has its turn, and
    costs the interactive ones no more than one start in patience + 1."""
    scheduler = Scheduler(SchedulingPolicy(slots=1, ageing=4.0, patience=3))
    running = enter(scheduler, INTERACTIVE, "front")
    back = [enter(scheduler, BACKGROUND, "back") for _ in range(5)]
    starts, now = [], 0.0
    for _ in range(40):
        enter(scheduler, INTERACTIVE, "front", now)
        now += 1.0
        (running,) = scheduler.leave(running, now)
        starts.append(running.priority)
    assert all(each.state is not TicketState.WAITING for each in back)
    assert starts.count(BACKGROUND) == 5
    assert all(BACKGROUND not in starts[at + 1 : at + 4] for at, each in enumerate(starts) if each is BACKGROUND)
    assert scheduler.statistics().aged == 5


def test_an_old_backlog_of_background_does_not_take_over() -> None:
    """nnrp-wire 12.1, 13.5: interactive keeps its responsiveness. A thousand operations that have waited for an hour still
    go one at a time, behind ``patience`` others."""
    scheduler = Scheduler(SchedulingPolicy(slots=1, ageing=2.0, patience=3))
    running = enter(scheduler, BALANCED)
    for _ in range(15):
        enter(scheduler, BACKGROUND, "back")
    now, longest = 3600.0, 0
    for _ in range(12):
        wanted = enter(scheduler, INTERACTIVE, "front", now)
        ahead = 0
        while wanted.state is TicketState.WAITING:
            (running,) = scheduler.leave(running, now)
            now += 0.5
            ahead += running is not wanted
        longest = max(longest, ahead)
    assert longest <= 1


def test_both_conditions_of_ageing_are_needed() -> None:
    """nnrp-wire 13.5: passed over often enough but not for long, and long but not often: no exception either way."""
    for ageing, patience, step in ((100.0, 1, 1.0), (1.0, 100, 1.0)):
        scheduler = Scheduler(SchedulingPolicy(slots=1, ageing=ageing, patience=patience))
        running = enter(scheduler, INTERACTIVE)
        back = enter(scheduler, BACKGROUND)
        front = [enter(scheduler, INTERACTIVE) for _ in range(10)]
        assert served(scheduler, running, step=step) == [*front, back]


def test_background_never_holds_every_slot() -> None:
    """nnrp-wire 13.5: what runs is not taken off its slot, so some slots are kept from what may be long and can wait."""
    scheduler = Scheduler(SchedulingPolicy(slots=4))
    back = [enter(scheduler, BACKGROUND) for _ in range(4)]
    assert [each.state for each in back] == [TicketState.RUNNING] * 3 + [TicketState.WAITING]
    assert enter(scheduler, INTERACTIVE).state is TicketState.RUNNING, "a waiting background one is not in the way"
    assert scheduler.leave(back[0], 1.0) == (back[3],)


@pytest.mark.parametrize(("slots", "background"), [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (256, 192)])
def test_slots_for_background(slots: int, background: int) -> None:
    """13.5: never none, never all but where there is only one."""
    assert SchedulingPolicy(slots=slots).background_slots == background


def test_one_that_waits_for_something_else_gives_its_slot_away() -> None:
    """13.4 waiting_tool, and C-084: an operation that waits for a tool or for a reader keeps nobody from running; it goes on
    at once, and until one has ended nobody else starts."""
    scheduler = Scheduler(ONE)
    first, second, third = (enter(scheduler, BALANCED) for _ in range(3))
    assert scheduler.suspend(first, 1.0) == (second,)
    assert scheduler.suspend(first, 1.0) == ()
    scheduler.resume(first)
    scheduler.resume(first)
    assert scheduler.running == 2
    assert scheduler.leave(second, 2.0) == ()
    assert scheduler.leave(first, 3.0) == (third,)
    scheduler.suspend(third, 4.0)
    assert scheduler.statistics().suspended == 1
    scheduler.leave(third, 5.0)
    assert scheduler.statistics().suspended == 0


def test_one_that_gives_up_waiting_leaves_no_hole() -> None:
    """13.4: a cancel, or the end of the budget, reaches what waits too."""
    scheduler = Scheduler(ONE)
    running, gone, stays = (enter(scheduler, BALANCED) for _ in range(3))
    assert scheduler.leave(gone, 0.5) == ()
    assert served(scheduler, running) == [stays]


def test_the_queue_is_bounded_and_says_who_may_be_dropped_for_another() -> None:
    """12.5 allow_drop; 7.17 queue_full: of the least urgent class the newest that allows it, never a more urgent one."""
    scheduler = Scheduler(SchedulingPolicy(slots=1, max_waiting=3))
    enter(scheduler, BALANCED)
    kept = Ticket("", BACKGROUND)
    older, newer = Ticket("", BACKGROUND, droppable=True), Ticket("", BACKGROUND, droppable=True)
    for each in (older, newer, kept):
        assert scheduler.enter(each, 0.0) is Admission.QUEUED
    late = Ticket("", INTERACTIVE, droppable=True)
    assert scheduler.enter(late, 0.0) is Admission.FULL
    assert scheduler.waiting == 3
    assert scheduler.droppable(INTERACTIVE) is newer
    scheduler.leave(newer, 0.0)
    assert scheduler.enter(late, 0.0) is Admission.QUEUED
    assert scheduler.droppable(BACKGROUND) is older
    scheduler.leave(older, 0.0)
    assert scheduler.droppable(BACKGROUND) is None, "an interactive one is not dropped for background work"
    assert scheduler.droppable(INTERACTIVE) is late
    assert scheduler.statistics().refused == 1


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), slots=st.integers(1, 5), steps=st.integers(1, 150))
def test_any_history_keeps_the_books_balanced_and_serves_everybody(seed: int, slots: int, steps: int) -> None:
    """13.5: never a free slot while somebody waits who may have it, never more than the slots unless resumed; at the end
    everybody had a turn, each session in its own order within a class."""
    chance, clock = random.Random(seed), count()
    scheduler = Scheduler(SchedulingPolicy(slots=slots, ageing=3.0, patience=2, max_waiting=100))
    live: list[Ticket] = []
    entered: dict[tuple[object, PriorityClass], list[Ticket]] = {}
    begun: list[Ticket] = []
    for _ in range(steps):
        now = float(next(clock))
        if chance.random() < 0.6 or not live:
            ticket = Ticket(chance.choice("abc"), chance.choice(list(PriorityClass)))
            live.append(ticket)
            entered.setdefault((ticket.owner, ticket.priority), []).append(ticket)
            if scheduler.enter(ticket, now) is Admission.STARTED:
                begun.append(ticket)
        else:
            ticket = chance.choice(live)
            if ticket.state is TicketState.RUNNING and chance.random() < 0.3:
                begun += scheduler.suspend(ticket, now)
            elif ticket.state is TicketState.SUSPENDED and chance.random() < 0.5:
                scheduler.resume(ticket)
            elif ticket.state is not TicketState.WAITING:
                live.remove(ticket)
                begun += scheduler.leave(ticket, now)
        states = [each.state for each in live]
        assert scheduler.running == states.count(TicketState.RUNNING)
        assert scheduler.waiting == states.count(TicketState.WAITING)
        foreground = any(e.state is TicketState.WAITING and e.priority is not BACKGROUND for e in live)
        assert scheduler.running >= slots or not foreground
    for ticket in live:
        scheduler.resume(ticket)
    while running := [each for each in live if each.state is TicketState.RUNNING]:
        live.remove(running[0])
        begun += scheduler.leave(running[0], float(next(clock)))
    assert not live
    for key, tickets in entered.items():
        assert [each for each in begun if (each.owner, each.priority) == key] == tickets


def test_where_the_levels_begin() -> None:
    """13.6: as many waiting as there are slots, 32 at least; four times that; or as the policy says."""
    assert SchedulingPolicy(slots=256).marks == PressureMarks(256, 1024)
    assert SchedulingPolicy(slots=1).marks == PressureMarks(32, 128)
    assert SchedulingPolicy(soft_waiting=3, hard_waiting=5).marks == PressureMarks(3, 5)


def test_the_level_of_backpressure_does_not_flutter() -> None:
    """13.6: none, soft, hard by the length of the queue; a level ends well below where it began."""
    pressure = Pressure(PressureMarks(10, 40))
    steps = [(9, 0), (10, 1), (6, 1), (5, 1), (4, 0), (40, 2), (39, 2), (10, 2), (9, 1), (4, 0), (0, 0)]
    levels = []
    for waiting, _ in steps:
        before = pressure.level
        assert pressure.update(waiting) is (pressure.level is not before)
        levels.append((waiting, int(pressure.level)))
    assert levels == steps


def test_congestion_in_the_words_of_a_hint() -> None:
    """7.17: none while nobody waits, steady, elevated, saturated."""
    pressure = Pressure(PressureMarks(10, 40))
    found = []
    for waiting in (0, 1, 10, 40):
        pressure.update(waiting)
        found.append(pressure.congestion(waiting))
    assert found == list(CongestionState)
    assert pressure.level is BackpressureLevel.HARD
