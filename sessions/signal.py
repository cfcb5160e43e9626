"""Waking those who wait for news, without making something new each time."""

from __future__ import annotations

from typing import Any

import trio

__all__ = ["Signal"]


class Signal:
    """Wakes everybody who waits, over and over; and one of them alone, by task.

    A `trio.Event` that is swapped at each use does the first; the second would need a cancel scope round every wait, which
    costs more than the wait. A waiter looks again at what it waits for: being woken promises nothing. Cancelling a wait
    loses nothing.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        # In the order of arrival, so that a simulation does the same things in the same order every time.
        self._waiting: dict[trio.lowlevel.Task, None] = {}

    def set(self) -> None:
        """Wake all who wait now; nobody who waits later."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for task in waiting:
                trio.lowlevel.reschedule(task)

    def wake(self, task: trio.lowlevel.Task) -> None:
        """Wake one, if it waits here."""
        if task in self._waiting:
            del self._waiting[task]
            trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        task = trio.lowlevel.current_task()
        self._waiting[task] = None

        def abort(_: Any) -> trio.lowlevel.Abort:
            del self._waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
