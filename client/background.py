"""Tasks of one object in somebody else's nursery (CLI-001)."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import trio

__all__ = ["Background"]

CLOSE_TIMEOUT = 5.0
"""Seconds that ``aclose`` waits for cancelled tasks, which may be saying goodbye to a peer."""


class Background:
    """Starts tasks in a nursery and can end all of its own without touching the others there.

    The nursery is the caller's, who sees in the signature that tasks are started. So an object that owns one of these
    can be closed in any order and from any task, unlike one that holds a nursery open itself.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._scopes: set[trio.CancelScope] = set()
        self._closed = False
        self._idle = trio.Event()

    def __len__(self) -> int:
        return len(self._scopes)

    def spawn(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Run ``function(*args)``. It must not raise. After ``aclose`` nothing is started any more."""
        if not self._closed:
            self._nursery.start_soon(self._run, function, args)

    async def start(self, function: Callable[..., Awaitable[object]], *args: Any) -> Any:
        """Like ``nursery.start``. What ``function`` raises before it reports is raised here."""
        return await self._nursery.start(self._run_started, function, args)

    async def aclose(self) -> None:
        """Cancel every task and wait until they are gone, at most a few seconds. More than once is fine."""
        self._closed = True
        for scope in list(self._scopes):
            scope.cancel()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT):
            while self._scopes:
                await self._idle.wait()

    async def _run(self, function: Callable[..., Awaitable[object]], args: tuple[Any, ...]) -> None:
        with self._tracked():
            await function(*args)

    async def _run_started(  # noqa: ASYNC128 - the function reports
        self,
        function: Callable[..., Awaitable[object]],
        args: tuple[Any, ...],
        *,
        task_status: trio.TaskStatus[Any],
    ) -> None:
        with self._tracked():
            await function(*args, task_status=task_status)

    @contextlib.contextmanager
    def _tracked(self) -> Iterator[None]:
        scope = trio.CancelScope()
        if self._closed:
            scope.cancel()
        self._scopes.add(scope)
        try:
            with scope:
                yield
        finally:
            self._scopes.discard(scope)
            if not self._scopes:
                old, self._idle = self._idle, trio.Event()
                old.set()
