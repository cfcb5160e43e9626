"""Waking one or all."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from sessions.signal import Signal


async def test_set_wakes_all_who_wait_and_nobody_later() -> None:
    signal = Signal()
    woken: list[str] = []

    async def waiter(name: str) -> None:
        await signal.wait()
        woken.append(name)

    async with trio.open_nursery() as nursery:
        signal.set()
        for name in "abc":
            nursery.start_soon(waiter, name)
        await wait_all_tasks_blocked()
        assert woken == []
        signal.set()
        await wait_all_tasks_blocked()
        assert sorted(woken) == ["a", "b", "c"]
        nursery.start_soon(waiter, "d")
        await wait_all_tasks_blocked()
        assert len(woken) == 3
        signal.set()


async def test_one_is_woken_alone_and_once() -> None:
    signal = Signal()
    tasks: dict[str, trio.lowlevel.Task] = {}
    woken: list[str] = []

    async def waiter(name: str) -> None:
        tasks[name] = trio.lowlevel.current_task()
        await signal.wait()
        woken.append(name)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for name in "ab":
            nursery.start_soon(waiter, name)
        await wait_all_tasks_blocked()
        signal.wake(tasks["a"])
        # It is on its way, and waits here no longer.
        signal.wake(tasks["a"])
        await wait_all_tasks_blocked()
        assert woken == ["a"]
        signal.wake(tasks["a"])
        signal.set()
        await wait_all_tasks_blocked()
        assert woken == ["a", "b"]
        nursery.cancel_scope.cancel()


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    signal = Signal()
    with trio.move_on_after(0):
        await signal.wait()
    signal.wake(trio.lowlevel.current_task())
    signal.set()
