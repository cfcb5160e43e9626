"""The log port and its writer."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from sessions import Event, Limits, Ring
from sessions.log import BACKLOG, LogEntry, LogWriter, MemoryLog


def event(number: int) -> Event:
    return Event(number, "t", b"{}", 0, None, None, 0)


async def test_a_rings_events_reach_the_log_in_order() -> None:
    log = MemoryLog()
    writer = LogWriter(log, "s", "epoch")
    ring = Ring(Limits(event_ring_size=5), "epoch", itertools.count().__next__, log=writer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        for _ in range(1500):
            ring.publish("t", {"x": 1})
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert writer.written == 1500
    assert [entry.seq for entry in await log.read("s", 1490, 5)] == [1491, 1492, 1493, 1494, 1495]
    assert await log.epoch("s") == "epoch"
    await log.trim("s", 1400)
    assert (await log.read("s", 0, 1))[0].seq == 1401, "a trimmed start shows"
    await log.forget("s")
    assert await log.epoch("s") is None


async def test_an_older_epoch_is_fenced_off() -> None:
    log = MemoryLog()
    told: list[Exception] = []
    old = LogWriter(log, "s", "old", told.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(old.run)
        await trio.testing.wait_all_tasks_blocked()
        await log.begin("s", "new")
        old.append(event(1))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert old.failed
    assert isinstance(told[0], PermissionError)
    old.append(event(2))
    assert len(told) == 1
    assert await log.read("s", 0, 9) == []


async def test_a_repeat_is_refused() -> None:
    log = MemoryLog()
    await log.begin("s", "e")
    entry = LogEntry(1, "t", b"{}", 0, None, None)
    await log.append("s", "e", [entry])
    with pytest.raises(OSError, match="seq 1"):
        await log.append("s", "e", [entry])


async def test_a_log_that_does_not_keep_up_is_given_up() -> None:
    """The ring never waits, and memory stays bounded."""
    told: list[Exception] = []
    writer = LogWriter(MemoryLog(), "s", "e", told.append)
    for number in range(1, BACKLOG + 10):
        writer.append(event(number))
    assert writer.failed
    assert len(told) == 1


async def test_flush_writes_what_waits() -> None:
    log = MemoryLog()
    await log.begin("s", "e")
    writer = LogWriter(log, "s", "e")
    writer.append(event(1))
    await writer.flush()
    assert writer.written == 1
