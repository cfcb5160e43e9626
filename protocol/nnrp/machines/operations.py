"""The operations of one session: registration, the tree, cancel targets, settling (nnrp-wire 10 and 13.4).

In flight means registered and not settled. A final state (a cancel, for example) does not end that by itself: settling
does, once, together with the operation's one terminal message.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from protocol.errors import Reach
from protocol.nnrp.enums import CancelScopeKind, OperationState, PriorityClass
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.machines.history import RecentIds, RisingIds
from protocol.nnrp.machines.operation import Operation

__all__ = ["MAX_DEPTH", "RETAINED", "OperationTable"]

#: Longest chain of parents. Cancelling a subtree and counting under an operation walk it; nothing in the protocol bounds it.
MAX_DEPTH = 256

#: Settled operations without live descendants that a session with an operation tree still knows, as parents and as
#: targets of a cancel that comes too late.
RETAINED = 1024


class OperationTable:
    """All operations a session knows.

    Without ``tree`` an operation's id is its frame id, and an ended operation is forgotten at once: the plain rule of
    preview3. With it (submit_context was granted) the ids are two spaces, and ended operations stay known for a while,
    because later ones may name them as parents.
    """

    __slots__ = ("_by_frame", "_by_id", "_carried", "_done", "_live", "_used_frames", "_used_ids", "session_id")

    def __init__(self, session_id: int, *, tree: bool = False) -> None:
        self.session_id = session_id
        self._live: dict[int, Operation] = {}
        self._by_frame: dict[int, Operation] = {} if tree else self._live
        self._by_id: dict[int, Operation] = {} if tree else self._live
        self._used_frames = RisingIds()
        self._used_ids: RisingIds | RecentIds = RecentIds() if tree else self._used_frames
        self._done: deque[int] | None = deque() if tree else None
        self._carried = 0

    def __len__(self) -> int:
        """Operations in flight."""
        return len(self._live)

    def __iter__(self) -> Iterator[Operation]:
        """Operations in flight, in the order of their submits."""
        return iter(self._live.values())

    @property
    def watermark(self) -> int:
        """The highest operation id seen, 0 before the first (nnrp-wire 10 item 7)."""
        return max(self._used_ids.highest, self._carried)

    def raise_watermark(self, operation_id: int) -> None:
        """Operations up to this one were seen on another connection."""
        self._carried = max(self._carried, operation_id)

    @property
    def highest_frame(self) -> int:
        """The highest frame id received, 0 before the first. What a migration goes on after (13.9)."""
        return max(self._used_frames.highest, max(self._by_frame, default=0))

    def get(self, operation_id: int) -> Operation | None:
        """The operation, in flight or still remembered; None when unknown."""
        return self._by_id.get(operation_id)

    def of_frame(self, frame_id: int) -> Operation | None:
        """The operation in flight that was submitted as ``frame_id``; None when there is none (any more)."""
        return self._by_frame.get(frame_id)

    def used_frame(self, frame_id: int) -> bool:
        return frame_id in self._used_frames

    def used(self, operation_id: int) -> bool:
        return operation_id in self._used_ids

    def register(
        self,
        frame_id: int,
        view_id: int = 0,
        priority: PriorityClass = PriorityClass.BALANCED,
        deadline: float = math.inf,
        *,
        operation_id: int = 0,
        parent_id: int = 0,
        group_id: int = 0,
    ) -> Operation:
        """Start one operation, state accepted. ``operation_id`` 0 means: the frame id is the operation id.

        Raises NnrpError (BadCombination, OperationExists, UnknownOperation, LimitExceeded) and registers nothing then.
        """
        wanted = operation_id or frame_id
        if frame_id == 0:
            raise self._refuse(Outcome.BAD_COMBINATION, "a submit needs a frame id", frame_id)
        if frame_id in self._used_frames or frame_id in self._by_frame:
            raise self._refuse(Outcome.OPERATION_EXISTS, "the frame id was used in this session before", frame_id)
        if self._done is not None:
            if wanted in self._used_ids or wanted in self._live:
                raise self._refuse(Outcome.OPERATION_EXISTS, "the operation id was used in this session", frame_id)
        elif wanted != frame_id or parent_id or group_id:
            raise self._refuse(Outcome.BAD_COMBINATION, "submit_context was not granted in this session", frame_id)
        depth = self._depth_under(parent_id, wanted, frame_id) if parent_id else 0
        operation = Operation(wanted, frame_id, view_id, parent_id, group_id, priority, deadline, depth)
        self._used_frames.add(frame_id)
        if self._done is not None:
            self._used_ids.add(wanted)
        self._enter(operation)
        return operation

    def adopt(self, operation: Operation) -> None:
        """Take over an operation that went on while its session was detached. Its ids are taken while it is in flight,
        and free after that: a peer that counts from 1 again after a resume is served (nnrp-wire 13.7 item 3)."""
        if self._done is None and operation.operation_id != operation.frame_id:
            raise ValueError("an operation with an id of its own needs a table with a tree")
        self.raise_watermark(operation.operation_id)
        operation.children = None
        operation.live_below = 0
        operation.refused = False
        if operation.parent_id and operation.parent_id not in self._by_id:
            operation.parent_id = 0
        self._enter(operation)

    def settle(self, operation: Operation) -> None:
        """The operation has had its terminal message: it is no longer in flight. Raises ValueError the second time."""
        if operation.settled:
            raise ValueError(f"operation {operation.operation_id} settled twice")
        operation.settled = True
        del self._live[operation.operation_id]
        if self._done is not None:
            del self._by_frame[operation.frame_id]
            self._below(operation, -1)
            if operation.live_below == 0:
                self._retire(operation)

    def targets(self, scope: CancelScopeKind, operation_id: int = 0, group_id: int = 0) -> tuple[Operation, ...]:
        """The operations in flight and not yet ended that a cancel of this scope reaches, by ascending id.

        Raises NnrpError UnknownOperation when operation scope or subtree names none, BadCombination when group scope
        comes without a group. An empty answer is no error: everything had ended already.
        """
        if scope is CancelScopeKind.SESSION:
            found: list[Operation] = list(self._live.values())
        elif scope is CancelScopeKind.GROUP:
            if group_id == 0:
                raise self._refuse(Outcome.BAD_COMBINATION, "group scope needs a group id", 0)
            found = [each for each in self._live.values() if each.group_id == group_id]
        else:
            target = self._by_id.get(operation_id)
            if target is None:
                raise self._refuse(Outcome.UNKNOWN_OPERATION, "the operation to cancel is not known", 0)
            found = [target] if scope is CancelScopeKind.OPERATION else list(self._subtree(target))
        return tuple(sorted((each for each in found if not each.ended), key=_by_id))

    def cancel(self, scope: CancelScopeKind, operation_id: int = 0, group_id: int = 0) -> tuple[Operation, ...]:
        """Make every target cancelled, in ascending id order, and return them. Each still needs settling."""
        reached = self.targets(scope, operation_id, group_id)
        for each in reached:
            each.advance(OperationState.CANCELLED)
        return reached

    def ancestors(self, operation_id: int) -> Iterator[Operation]:
        """The operation and its chain of parents, as far as they are known, from the bottom up."""
        current = self._by_id.get(operation_id)
        while current is not None:
            yield current
            current = self._by_id.get(current.parent_id) if current.parent_id else None

    def overdue(self, now: float) -> tuple[Operation, ...]:
        """Operations in flight whose deadline has come, by ascending id."""
        return tuple(sorted((each for each in self._live.values() if each.deadline <= now), key=_by_id))

    def next_deadline(self) -> float:
        return min((each.deadline for each in self._live.values() if not each.ended), default=math.inf)

    def _enter(self, operation: Operation) -> None:
        self._live[operation.operation_id] = operation
        if self._done is None:
            return
        self._by_id[operation.operation_id] = operation
        self._by_frame[operation.frame_id] = operation
        parent = self._by_id.get(operation.parent_id)
        if parent is not None:
            if parent.children is None:
                parent.children = set()
            parent.children.add(operation.operation_id)
        self._below(operation, 1)

    def _depth_under(self, parent_id: int, operation_id: int, frame_id: int) -> int:
        if parent_id == operation_id:
            raise self._refuse(Outcome.BAD_COMBINATION, "an operation cannot be its own parent", frame_id)
        parent = self._by_id.get(parent_id)
        if parent is None:
            raise self._refuse(Outcome.UNKNOWN_OPERATION, "the parent operation is not known", frame_id)
        if parent.depth + 1 >= MAX_DEPTH:
            raise self._refuse(Outcome.LIMIT_EXCEEDED, f"the operation tree is {MAX_DEPTH} deep at most", frame_id)
        return parent.depth + 1

    def _subtree(self, root: Operation) -> Iterator[Operation]:
        pending = [root]
        while pending:
            current = pending.pop()
            yield current
            for child in current.children or ():
                pending.append(self._by_id[child])

    def _below(self, operation: Operation, change: int) -> None:
        above = self._by_id.get(operation.parent_id)
        while above is not None:
            above.live_below += change
            if above.live_below == 0 and above.settled:
                self._retire(above)
            above = self._by_id.get(above.parent_id)

    def _retire(self, operation: Operation) -> None:
        """Remember a settled operation without live descendants, and forget the oldest such one beyond the bound."""
        assert self._done is not None  # only tables with two id spaces retire
        self._done.append(operation.operation_id)
        while len(self._done) > RETAINED:
            self._forget(self._done.popleft())

    def _forget(self, operation_id: int) -> None:
        operation = self._by_id.get(operation_id)
        if operation is None or operation.live_below or not operation.settled:
            return  # it got a live child after it was queued; it is queued again when that one ends
        del self._by_id[operation_id]
        parent = self._by_id.get(operation.parent_id)
        if parent is not None and parent.children is not None:
            parent.children.discard(operation_id)
        for child in operation.children or ():
            orphan = self._by_id.get(child)
            if orphan is not None:
                orphan.parent_id = 0

    def _refuse(self, outcome: Outcome, rule: str, frame_id: int) -> NnrpError:
        return NnrpError(
            outcome,
            rule,
            subject="operation",
            reach=Reach.OPERATION,
            session_id=self.session_id,
            frame_id=frame_id,
        )


def _by_id(operation: Operation) -> int:
    return operation.operation_id
