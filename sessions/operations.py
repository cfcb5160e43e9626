"""All operations of one session: the tree, the groups, and which of them a cancel reaches."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterator

from sessions.errors import SessionError, UnknownOperation
from sessions.operation import CancelReason, Operation, OperationId

__all__ = ["CancelScopeKind", "OperationExists", "Operations"]


class CancelScopeKind(enum.IntEnum):
    """The protocol's four cancel scopes (nnrp-extensions.md, Cancel)."""

    OPERATION = 0
    SUBTREE = 1
    GROUP = 2
    SESSION = 3


class OperationExists(SessionError):
    """The operation id was used in this session before."""

    def __init__(self, operation_id: OperationId) -> None:
        super().__init__(f"operation {operation_id!r} exists")
        self.operation_id = operation_id


class Operations:
    """Live operations and a bounded memory of settled ones, by id.

    `targets` computes the set a cancel reaches without awaiting; `cancel` records the reason on each and cancels its
    scope. A settled operation stays a node of the tree for as long as it is remembered, so that a subtree is still found
    through a finished parent.
    """

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._live: dict[OperationId, Operation] = {}
        self._settled: OrderedDict[OperationId, Operation] = OrderedDict()
        self._children: dict[OperationId, list[OperationId]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Operation]:
        """The live ones, in the order they were accepted."""
        return iter(list(self._live.values()))

    def get(self, operation_id: OperationId) -> Operation | None:
        """Live or remembered."""
        return self._live.get(operation_id) or self._settled.get(operation_id)

    def add(self, operation: Operation) -> None:
        """Register an accepted operation. Raises `OperationExists`, and `UnknownOperation` for its parent."""
        if operation.id in self._live or operation.id in self._settled:
            raise OperationExists(operation.id)
        parent = operation.parent_id
        if parent is not None:
            if parent == operation.id or self.get(parent) is None:
                raise UnknownOperation(parent)
            self._children.setdefault(parent, []).append(operation.id)
        self._live[operation.id] = operation

    def note_settled(self, operation: Operation) -> None:
        """Move a settled operation to the memory; the oldest is forgotten when that is full."""
        if self._live.pop(operation.id, None) is None:
            return
        self._settled[operation.id] = operation
        while len(self._settled) > self._remembered:
            forgotten, _ = self._settled.popitem(last=False)
            self._children.pop(forgotten, None)

    def targets(
        self,
        kind: CancelScopeKind,
        operation_id: OperationId | None = None,
        group_id: OperationId | None = None,
    ) -> list[Operation]:
        """The live operations a cancel of this scope reaches, in ascending order of id (nnrp-wire.md 13.4).

        Raises `UnknownOperation` when ``operation`` or ``subtree`` names an operation that was never seen.
        """
        if kind is CancelScopeKind.SESSION:
            found = list(self._live.values())
        elif kind is CancelScopeKind.GROUP:
            found = [each for each in self._live.values() if group_id is not None and each.group_id == group_id]
        else:
            if operation_id is None or self.get(operation_id) is None:
                raise UnknownOperation(operation_id)
            ids = [operation_id] if kind is CancelScopeKind.OPERATION else self._subtree(operation_id)
            found = [self._live[each] for each in ids if each in self._live]
        return sorted(found, key=lambda each: (isinstance(each.id, str), each.id))

    def cancel(
        self,
        kind: CancelScopeKind,
        operation_id: OperationId | None = None,
        group_id: OperationId | None = None,
        *,
        reason: CancelReason = CancelReason.USER,
    ) -> list[Operation]:
        """Cancel what `targets` names; returns those that were not being cancelled already."""
        return [each for each in self.targets(kind, operation_id, group_id) if each.cancel(reason)]

    def _subtree(self, root: OperationId) -> list[OperationId]:
        found, todo = [], [root]
        while todo:
            each = todo.pop()
            found.append(each)
            todo.extend(self._children.get(each, ()))
        return found
