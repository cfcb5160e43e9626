"""A nursery that is opened by its first task: what is idle has no task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

__all__ = ["LazyNursery"]


class LazyNursery:
    """Tasks of something that mostly has none. Synchronous; the nursery is a task that ``host`` starts."""

    def __init__(self, host: Callable[..., object]) -> None:
        """``host`` starts an async function as a task, as `trio.Nursery.start_soon` does."""
        self._host = host
        self._nursery: trio.Nursery | None = None
        self._backlog: list[tuple[Callable[..., Awaitable[None]], tuple[Any, ...]]] = []
        self._stop = trio.Event()

    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Start a task; the first one opens the nursery."""
        if self._nursery is not None:
            self._nursery.start_soon(function, *args)
            return
        self._backlog.append((function, args))
        if len(self._backlog) == 1:
            self._host(self._run)

    def stop(self) -> None:
        """Cancel every task; later ones are cancelled at once, until `reopen`."""
        self._stop.set()

    def reopen(self) -> None:
        self._stop = trio.Event()

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            backlog, self._backlog = self._backlog, []
            for function, args in backlog:
                nursery.start_soon(function, *args)
            try:
                await self._stop.wait()
            finally:
                self._nursery = None
            nursery.cancel_scope.cancel()
