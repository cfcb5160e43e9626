"""Operations, their tree, and the four cancel scopes on the engine's own API."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from sessions import (
    CancelReason,
    CancelScopeKind,
    Harbour,
    Operation,
    OperationExists,
    OperationState,
    Outcome,
    Session,
)
from sessions import open_harbour as open_harbour_
from sessions.errors import UnknownOperation
from sessions.operations import Operations
from sessions.runner import TurnResult
from tests.support.fake_runner import FakeRunner

DONE = Outcome(OperationState.COMPLETED, stop_reason="end_turn")


def ids(operations: list[Operation]) -> set[object]:
    return {each.id for each in operations}


def tree() -> Operations:
    """C-062: 1 root, 2 under 1, 3 under 2, and 4 and 5 in group 9."""
    operations = Operations(remembered=100)
    for each in (
        Operation(1, None),
        Operation(2, None, parent_id=1),
        Operation(3, None, parent_id=2),
        Operation(4, None, group_id=9),
        Operation(5, None, group_id=9),
    ):
        operations.add(each)
    return operations


@pytest.mark.parametrize(
    ("kind", "operation_id", "group_id", "expected"),
    [
        (CancelScopeKind.OPERATION, 2, None, {2}),
        (CancelScopeKind.SUBTREE, 2, None, {2, 3}),
        (CancelScopeKind.SUBTREE, 1, None, {1, 2, 3}),
        (CancelScopeKind.GROUP, None, 9, {4, 5}),
        (CancelScopeKind.GROUP, None, 8, set()),
        (CancelScopeKind.SESSION, None, None, {1, 2, 3, 4, 5}),
    ],
)
def test_targets(kind: CancelScopeKind, operation_id: int | None, group_id: int | None, expected: set[int]) -> None:
    """C-062, nnrp-wire 13.4: the set, in ascending order."""
    found = tree().targets(kind, operation_id, group_id)
    assert [each.id for each in found] == sorted(expected)


def finish(operations: Operations, operation_id: int) -> None:
    operation = operations.get(operation_id)
    assert operation is not None
    operation.state = OperationState.RUNNING
    operation.settle(DONE)
    operations.note_settled(operation)


def test_subtree_is_found_through_a_finished_parent() -> None:
    operations = tree()
    finish(operations, 2)
    assert ids(operations.targets(CancelScopeKind.SUBTREE, 1)) == {1, 3}
    assert ids(operations.targets(CancelScopeKind.SUBTREE, 2)) == {3}
    assert operations.targets(CancelScopeKind.OPERATION, 2) == [], "an all-terminal set is not an error"


def test_unknown_targets_and_parents() -> None:
    operations = tree()
    for kind in (CancelScopeKind.OPERATION, CancelScopeKind.SUBTREE):
        with pytest.raises(UnknownOperation):
            operations.targets(kind, 77)
    with pytest.raises(UnknownOperation):
        operations.add(Operation(6, None, parent_id=77))
    with pytest.raises(UnknownOperation):
        operations.add(Operation(7, None, parent_id=7))
    assert operations.get(6) is None


def test_an_id_is_used_once() -> None:
    """nnrp-wire 10.3: also after the first has ended."""
    operations = tree()
    with pytest.raises(OperationExists):
        operations.add(Operation(1, None))
    finish(operations, 1)
    with pytest.raises(OperationExists):
        operations.add(Operation(1, None))


def test_the_memory_is_bounded() -> None:
    operations = Operations(remembered=3)
    for number in range(1, 11):
        operations.add(Operation(number, None))
        finish(operations, number)
    assert [number for number in range(1, 11) if operations.get(number)] == [8, 9, 10]


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=30), st.integers(1, 30))
def test_subtree_equals_reachability(parents: list[tuple[int, bool]], root: int) -> None:
    operations = Operations(remembered=100)
    known: dict[int, int | None] = {}
    for number, (parent, settled) in enumerate(parents, start=1):
        parent_id = parent if parent in known else None
        known[number] = parent_id
        operations.add(Operation(number, None, parent_id=parent_id))
        if settled:
            finish(operations, number)
    if root not in known:
        return

    def under(number: int | None) -> bool:
        while number is not None:
            if number == root:
                return True
            number = known[number]
        return False

    expected = {number for number in known if under(number) and not parents[number - 1][1]}
    assert ids(operations.targets(CancelScopeKind.SUBTREE, root)) == expected


def test_settled_once() -> None:
    """The first to settle wins; only that call may publish."""
    operation = Operation(1, None)
    seen: list[object] = []
    operation.when_settled(lambda each: seen.append(each.outcome))
    cancelled = Outcome(OperationState.CANCELLED)
    assert operation.settle(cancelled)
    assert not operation.settle(DONE)
    operation.when_settled(lambda each: seen.append("late"))
    assert seen == [cancelled, "late"]
    assert not operation.cancel(CancelReason.USER)


@pytest.fixture
async def harbour() -> AsyncIterator[Harbour]:
    async with open_harbour_(FakeRunner(), workspaces=["/project"], random=random.Random(1)) as each:
        yield each


async def start_tree(session: Session, log: list[tuple[object, str]]) -> None:
    async def work(operation: Operation) -> TurnResult:
        log.append((operation.id, "start"))
        try:
            await trio.sleep(1000)
        finally:
            log.append((operation.id, "end"))
        return TurnResult()

    for number, parent, group in ((1, None, None), (2, 1, None), (3, 2, None), (4, None, 9), (5, None, 9)):
        session.start_operation(number, None, parent_id=parent, group_id=group, work=work)
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize(
    ("kind", "operation_id", "group_id", "expected"),
    [
        (CancelScopeKind.OPERATION, 2, None, {2}),
        (CancelScopeKind.SUBTREE, 2, None, {2, 3}),
        (CancelScopeKind.GROUP, None, 9, {4, 5}),
        (CancelScopeKind.SESSION, None, None, {1, 2, 3, 4, 5}),
    ],
)
async def test_the_four_scopes_are_trio_scopes(
    harbour: Harbour,
    autojump_clock: trio.testing.MockClock,
    kind: CancelScopeKind,
    operation_id: int | None,
    group_id: int | None,
    expected: set[int],
) -> None:
    """C-062: what is named ends at once as cancelled, everything else completes; one terminal state each."""
    session = (await harbour.create()).session
    other = (await harbour.create()).session
    log: list[tuple[object, str]] = []
    await start_tree(session, log)
    stranger = other.start_operation(1, None, work=lambda _: _sleep(1000))
    began = trio.current_time()
    all_operations = {each.id: each for each in session.operations}
    cancelled = session.operations.cancel(kind, operation_id, group_id)
    assert ids(cancelled) == expected
    for each in cancelled:
        await each.wait_settled()
    assert trio.current_time() == began
    outcomes = {number: (await each.wait_settled()).state for number, each in all_operations.items()}
    assert {n for n, state in outcomes.items() if state is OperationState.CANCELLED} == expected
    assert {n for n, state in outcomes.items() if state is OperationState.COMPLETED} == {1, 2, 3, 4, 5} - expected
    assert (await stranger.wait_settled()).state is OperationState.COMPLETED
    terminal = [event.value()["operationId"] for event in session.ring.read(0, 99) if event.type == "operation_state"]
    assert sorted(terminal) == [1, 2, 3, 4, 5]


async def _sleep(seconds: float) -> TurnResult:
    await trio.sleep(seconds)
    return TurnResult()


@pytest.mark.parametrize("seed", range(30))
async def test_cancel_races_completion(harbour: Harbour, autojump_clock: trio.testing.MockClock, seed: int) -> None:
    """Whichever comes first, each operation has one outcome and one terminal event; a cancel that lost is refused."""
    rng = random.Random(seed)
    session = (await harbour.create()).session
    operations = [
        session.start_operation(number, None, group_id=number % 2, work=lambda op: _sleep(1)) for number in range(1, 9)
    ]
    await trio.sleep(1 - 1e-9 if rng.random() < 0.5 else 1)
    for _ in range(rng.randrange(4)):
        await trio.lowlevel.checkpoint()
    kind = rng.choice(list(CancelScopeKind))
    before = {each.id: each.settled for each in operations}
    cancelled = session.operations.cancel(
        kind,
        rng.randrange(1, 9) if kind < CancelScopeKind.GROUP else None,
        1 if kind is CancelScopeKind.GROUP else None,
    )
    assert all(not before[each.id] for each in cancelled)
    for each in operations:
        outcome = await each.wait_settled()
        assert outcome.state in (OperationState.COMPLETED, OperationState.CANCELLED)
        if each not in cancelled:
            assert outcome.state is OperationState.COMPLETED
    terminal = [event.value()["operationId"] for event in session.ring.read(0, 99) if event.type == "operation_state"]
    assert sorted(terminal) == list(range(1, 9))
    assert len(session.operations) == 0


async def test_cancel_before_the_task_ran(harbour: Harbour) -> None:
    """The scope is there when start_operation returns, so a cancel in the same step is not lost."""
    session = (await harbour.create()).session
    ran: list[int] = []

    async def work(operation: Operation) -> TurnResult:
        await trio.lowlevel.checkpoint()
        ran.append(1)
        return TurnResult()

    operation = session.start_operation(1, None, work=work)
    assert session.cancel_operation(operation, CancelReason.USER)
    assert (await operation.wait_settled()).state is OperationState.CANCELLED
    await trio.testing.wait_all_tasks_blocked()
    assert ran == []


async def test_a_crash_is_that_operations_outcome(harbour: Harbour) -> None:
    session = (await harbour.create()).session

    async def crash(operation: Operation) -> TurnResult:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError

    async def crash_when_cancelled(operation: Operation) -> TurnResult:
        try:
            await trio.sleep_forever()
        finally:
            raise ZeroDivisionError

    first = session.start_operation(1, None, work=crash)
    second = session.start_operation(2, None, work=crash_when_cancelled)
    third = session.start_operation(3, None, work=lambda op: _sleep(0.01))
    await trio.testing.wait_all_tasks_blocked()
    second.cancel(CancelReason.USER)
    assert (await first.wait_settled()).state is OperationState.FAILED
    assert (await second.wait_settled()).state is OperationState.CANCELLED
    assert (await third.wait_settled()).state is OperationState.COMPLETED


async def test_superseded_and_deadline(harbour: Harbour, autojump_clock: trio.testing.MockClock) -> None:
    session = (await harbour.create()).session
    old = session.start_operation(1, None, work=lambda op: _sleep(100))
    late = session.start_operation(2, None, deadline=5, work=lambda op: _sleep(100))
    await trio.testing.wait_all_tasks_blocked()
    session.cancel_operation(old, CancelReason.SUPERSEDED)
    assert (await old.wait_settled()).state is OperationState.SUPERSEDED
    outcome = await late.wait_settled()
    assert outcome.state is OperationState.FAILED
    assert outcome.reason is CancelReason.DEADLINE
    assert trio.current_time() == pytest.approx(5, abs=0.1)
