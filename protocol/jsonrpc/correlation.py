"""Responses find their waiting call by id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from protocol.jsonrpc.envelope import Id

__all__ = ["PendingCalls"]

T = TypeVar("T")


class PendingCalls(Generic[T]):
    """Calls that were sent and not answered, each with whatever its caller keeps waiting on.

    Ids are numbers counted from 1, or strings with a prefix where the peer would take a number for one of its own.
    """

    def __init__(self, *, prefix: str | None = None) -> None:
        self._prefix = prefix
        self._count = 0
        self._waiting: dict[Id, T] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Id]:
        return iter(tuple(self._waiting))

    def register(self, waiter: T) -> Id:
        """Reserve an id for a call about to be sent. Register before sending: the answer may overtake the send."""
        self._count += 1
        id: Id = self._count if self._prefix is None else f"{self._prefix}{self._count}"
        self._waiting[id] = waiter
        return id

    def settle(self, id: Id | None) -> T | None:
        """Take the waiter of an answered call; ``None`` for an id nobody waits for (late, foreign, settled twice)."""
        if id is None or isinstance(id, bool):
            return None
        return self._waiting.pop(id, None)

    def forget(self, id: Id) -> None:
        """The caller gave up; a late answer is then ignored. Forgetting twice is fine."""
        self._waiting.pop(id, None)

    def restore(self, id: Id, waiter: T) -> None:
        """Put a settled call back: its answer may come on another connection."""
        self._waiting[id] = waiter

    def drain(self) -> list[T]:
        """Take every waiter, oldest first: the connection is gone and each must be told."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting
