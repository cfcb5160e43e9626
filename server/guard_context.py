"""What the connections of one server share: the end of listening, told to each without a task of its own."""

from __future__ import annotations

from collections.abc import Callable

from hypercorn.trio.worker_context import EventWrapper, WorkerContext

__all__ = ["GuardedContext", "TellingEvent"]


class TellingEvent(EventWrapper):
    """An event that also calls its listeners, synchronously, when it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: set[Callable[[], None]] = set()

    async def set(self) -> None:
        await super().set()
        for tell in tuple(self.listeners):
            tell()


class GuardedContext(WorkerContext):
    """Stands in for the library's class (`server.guard.install`)."""

    terminated: TellingEvent

    def __init__(self, max_requests: int | None) -> None:
        super().__init__(max_requests)
        self.terminated = TellingEvent()
