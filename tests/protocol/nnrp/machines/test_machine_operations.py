"""Operation tables: ids, the tree, cancel scopes, settling (nnrp-wire 10, 13.4; nnrp-extensions Submit, Cancel)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.nnrp.enums import CancelScopeKind, OperationState
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.machines.history import OPEN_HOLES, REMEMBERED_IDS, RecentIds, RisingIds
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.operations import MAX_DEPTH, RETAINED, OperationTable

S = CancelScopeKind


def refused(outcome: Outcome, call: object, *args: object, **kwargs: object) -> NnrpError:
    with pytest.raises(NnrpError) as caught:
        call(*args, **kwargs)  # type: ignore[operator]  # any of the table's methods
    assert caught.value.outcome is outcome
    assert not caught.value.fatal
    return caught.value


def family() -> OperationTable:
    """The session of C-062: 1 is the root, 2 below it, 3 below 2; 4 and 5 are in group 9."""
    table = OperationTable(11, tree=True)
    table.register(101, operation_id=1)
    table.register(102, operation_id=2, parent_id=1)
    table.register(103, operation_id=3, parent_id=2)
    table.register(104, operation_id=4, group_id=9)
    table.register(105, operation_id=5, group_id=9)
    return table


@pytest.mark.parametrize(
    ("scope", "operation_id", "group_id", "reached"),
    [
        (S.OPERATION, 2, 0, [2]),
        (S.SUBTREE, 2, 0, [2, 3]),
        (S.SUBTREE, 1, 0, [1, 2, 3]),
        (S.GROUP, 0, 9, [4, 5]),
        (S.SESSION, 0, 0, [1, 2, 3, 4, 5]),
    ],
)
def test_cancel_sets(scope: CancelScopeKind, operation_id: int, group_id: int, reached: list[int]) -> None:
    """C-062 and nnrp-wire 13.4: the set, in ascending order; everything else goes on; each settles once."""
    table = family()
    other = OperationTable(12, tree=True)
    bystander = other.register(101, operation_id=1)
    cancelled = table.cancel(scope, operation_id, group_id)
    assert [each.operation_id for each in cancelled] == reached
    assert all(each.state is OperationState.CANCELLED for each in cancelled)
    going = [each.operation_id for each in table if not each.ended]
    assert going == [number for number in range(1, 6) if number not in reached]
    assert bystander.state is OperationState.ACCEPTED
    assert len(table) == 5, "cancelled operations are in flight until they settle"
    for each in cancelled:
        table.settle(each)
        with pytest.raises(ValueError, match="settled twice"):
            table.settle(each)
    assert len(table) == 5 - len(reached)


def test_a_group_reaches_across_the_tree() -> None:
    """nnrp-extensions Cancel: every member wherever it is in the tree."""
    table = family()
    table.register(106, operation_id=6, parent_id=3, group_id=9)
    assert [each.operation_id for each in table.targets(S.GROUP, group_id=9)] == [4, 5, 6]


def test_a_cancel_leaves_what_has_ended_untouched() -> None:
    """nnrp-wire 13.4: an all-terminal set is no error."""
    table = family()
    done = table.get(3)
    assert done is not None
    done.advance(OperationState.RUNNING)
    done.advance(OperationState.COMPLETED)
    assert [each.operation_id for each in table.cancel(S.SUBTREE, 2)] == [2]
    assert done.state is OperationState.COMPLETED
    assert table.cancel(S.SUBTREE, 2) == ()


def test_a_subtree_is_reached_through_an_ended_and_settled_parent() -> None:
    table = family()
    middle = table.get(2)
    assert middle is not None
    middle.advance(OperationState.FAILED)
    table.settle(middle)
    assert [each.operation_id for each in table.cancel(S.SUBTREE, 2)] == [3]


def test_cancel_names_nothing() -> None:
    """nnrp-wire 13.4: the target must exist, group scope needs a group."""
    table = family()
    refused(Outcome.UNKNOWN_OPERATION, table.cancel, S.OPERATION, 77)
    refused(Outcome.UNKNOWN_OPERATION, table.cancel, S.SUBTREE, 77)
    refused(Outcome.BAD_COMBINATION, table.cancel, S.GROUP)
    assert table.cancel(S.GROUP, group_id=8) == ()


def test_registration_faults() -> None:
    """nnrp-wire 10: zero ids, self-parent, unknown parent, reuse. Nothing is registered."""
    table = family()
    refused(Outcome.BAD_COMBINATION, table.register, 0, operation_id=9)
    refused(Outcome.BAD_COMBINATION, table.register, 106, operation_id=6, parent_id=6)
    refused(Outcome.UNKNOWN_OPERATION, table.register, 106, operation_id=6, parent_id=60)
    error = refused(Outcome.OPERATION_EXISTS, table.register, 101, operation_id=6)
    assert (error.session_id, error.frame_id) == (11, 101)
    refused(Outcome.OPERATION_EXISTS, table.register, 106, operation_id=1)
    assert len(table) == 5
    assert table.register(106, operation_id=6).operation_id == 6


def test_without_submit_context_the_frame_is_the_operation() -> None:
    """nnrp-wire 10 item 3."""
    table = OperationTable(11)
    assert table.register(4).operation_id == 4
    assert table.watermark == table.highest_frame == 4
    refused(Outcome.OPERATION_EXISTS, table.register, 4)
    refused(Outcome.BAD_COMBINATION, table.register, 5, operation_id=9)
    refused(Outcome.BAD_COMBINATION, table.register, 5, parent_id=4)


def test_a_frame_id_stays_used_after_its_operation() -> None:
    table = OperationTable(11)
    first = table.register(1)
    table.settle(first)
    assert table.of_frame(1) is None
    assert table.used_frame(1)
    refused(Outcome.OPERATION_EXISTS, table.register, 1)


def test_late_frames_of_a_reordering_transport_are_accepted() -> None:
    """nnrp-wire 2.4: one stream per submit, so order is not given."""
    table = OperationTable(11)
    for frame in (3, 1, 2, 5, 4):
        table.register(frame)
    assert len(table) == 5
    assert table.highest_frame == 5


def test_after_a_resume_ids_start_afresh() -> None:
    """nnrp-wire 13.7 item 3: a reused frame id is accepted once the old operation is terminal, not before."""
    table = OperationTable(11)
    carried = Operation(2, 2)
    table.adopt(carried)
    refused(Outcome.OPERATION_EXISTS, table.register, 2)
    assert table.register(1).frame_id == 1
    assert [each.operation_id for each in table] == [2, 1]


def test_adopting_needs_a_tree_for_own_ids() -> None:
    with pytest.raises(ValueError, match="tree"):
        OperationTable(11).adopt(Operation(900, 2))
    table = OperationTable(11, tree=True)
    table.adopt(Operation(900, 2, parent_id=5))
    adopted = table.get(900)
    assert adopted is not None
    assert adopted.parent_id == 0, "a parent that did not come along is none"


def test_deadlines() -> None:
    table = OperationTable(11)
    table.register(1, deadline=5.0)
    table.register(2, deadline=3.0)
    table.register(3)
    assert table.next_deadline() == 3.0
    assert [each.frame_id for each in table.overdue(3.0)] == [2]
    assert [each.frame_id for each in table.overdue(9.0)] == [1, 2]
    assert OperationTable(12).next_deadline() == math.inf


def test_the_tree_is_bounded_in_depth() -> None:
    table = OperationTable(11, tree=True)
    table.register(1)
    for number in range(2, MAX_DEPTH + 1):
        table.register(number, parent_id=number - 1)
    refused(Outcome.LIMIT_EXCEEDED, table.register, MAX_DEPTH + 1, parent_id=MAX_DEPTH)


def test_ended_operations_are_forgotten_in_the_end() -> None:
    """Bounded memory: parents stay known for a while, but not for ever; one with a live child always."""
    table = OperationTable(11, tree=True)
    root = table.register(1)
    child = table.register(2, parent_id=1)
    root.advance(OperationState.FAILED)
    table.settle(root)
    for number in range(3, RETAINED + 100):
        each = table.register(number)
        each.advance(OperationState.FAILED)
        table.settle(each)
    assert table.get(3) is None
    assert table.get(RETAINED + 50) is not None
    assert table.get(1) is root
    assert [each.operation_id for each in table.cancel(S.SUBTREE, 1)] == [2]
    table.settle(child)
    for number in range(5000, 5000 + RETAINED + 2):
        each = table.register(number)
        each.advance(OperationState.FAILED)
        table.settle(each)
    assert table.get(1) is None
    assert table.get(2) is None


@given(st.lists(st.integers(1, 40), max_size=60))
def test_rising_ids_remember_exactly(numbers: list[int]) -> None:
    used = RisingIds()
    seen: set[int] = set()
    for number in numbers:
        assert (number in used) == (number in seen)
        used.add(number)
        seen.add(number)
        assert used.highest == max(seen)
    assert all((number in used) == (number in seen) for number in range(1, 45))


def test_rising_ids_give_up_the_lowest_hole() -> None:
    """A peer that leaves holes on purpose costs bounded memory; the holes then count as used."""
    used = RisingIds()
    for number in range(2, 2 * (OPEN_HOLES + 10), 2):
        used.add(number)
    assert 1 in used
    assert 2 * (OPEN_HOLES + 10) - 3 not in used
    used.add(4_000_000_000)
    assert used.highest == 4_000_000_000


def test_recent_ids_are_bounded() -> None:
    used = RecentIds()
    for number in range(1, REMEMBERED_IDS + 3):
        used.add(number)
    assert 1 not in used
    assert REMEMBERED_IDS + 2 in used
    used.add(5)
    assert used.highest == REMEMBERED_IDS + 2


@settings(max_examples=60)
@given(st.data())
def test_the_tree_agrees_with_a_naive_model(data: st.DataObject) -> None:
    """Any history of registering, ending and settling: subtree sets and live counts equal those of a plain search."""
    table = OperationTable(1, tree=True)
    parents: dict[int, int] = {}
    live: dict[int, Operation] = {}
    for number in range(1, data.draw(st.integers(1, 25)) + 1):
        parent = data.draw(st.sampled_from([0, *parents]))
        live[number] = table.register(number, operation_id=number, parent_id=parent)
        parents[number] = parent
        if live and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(live)))
            live[gone].advance(OperationState.FAILED)
            table.settle(live.pop(gone))

    def below(root: int) -> set[int]:
        return {root} | {each for child, up in parents.items() if up == root for each in below(child)}

    for root in parents:
        reached = below(root)
        assert [each.operation_id for each in table.targets(S.SUBTREE, root)] == sorted(reached & set(live))
        known = table.get(root)
        assert known is not None
        assert known.live_below == len((reached - {root}) & set(live))
