"""The log port and its writer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

from sessions import Event, EventType, Limits, NullObserver, OperationState, Ring, open_harbour
from sessions.log import BACKLOG, LogEntry, LogWriter, MemoryLog
from sessions.observer import Note
from tests.support.engine import submit
from tests.support.fake_runner import FakeRunner


def event(number: int) -> Event:
    return Event(number, "t", b"{}", 0, None, None, 0)


async def test_a_rings_events_reach_the_log_in_order() -> None:
    log = MemoryLog()
    writer = LogWriter(log, "epoch")
    ring = Ring(Limits(event_ring_size=5), "epoch", itertools.count().__next__, log=writer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run, "s")
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
    old = LogWriter(log, "old", told.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(old.run, "s")
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
    writer = LogWriter(MemoryLog(), "e", told.append)
    for number in range(1, BACKLOG + 10):
        writer.append(event(number))
    assert writer.failed
    assert len(told) == 1


async def test_closing_writes_what_waits() -> None:
    log = MemoryLog()
    writer = LogWriter(log, "e")
    writer.append(event(1))
    writer.close()
    await writer.run("s")
    assert [entry.seq for entry in await log.read("s", 0, 9)] == [1]


class BrokenLog(MemoryLog):
    """Fails from the third event on, and cannot forget."""

    async def append(self, session_id: str, epoch: str, batch: Sequence[LogEntry]) -> None:
        if batch[-1].seq >= 3:
            raise OSError("disk full")
        await super().append(session_id, epoch, batch)

    async def forget(self, session_id: str) -> None:
        await trio.lowlevel.checkpoint()
        raise OSError("disk gone")


async def test_a_harbour_records_its_sessions(runner: FakeRunner) -> None:
    """architecture.md 2: the log port stands behind the ring, across a close and a load, under the session's final id."""
    log = MemoryLog()
    async with open_harbour(runner, workspaces=["/project"], log=log) as harbour:
        session = (await harbour.create()).session
        await submit(session, "echo one").wait_settled()
        await session.close()
        assert (await harbour.restore(session.id, "load")).session is session
        await submit(session, "echo two").wait_settled()
    stored = await log.read(session.id, 0, 1000)
    assert [entry.seq for entry in stored] == list(range(1, session.ring.head + 1))
    assert [(entry.type, entry.data) for entry in stored] == [
        (each.type, each.data) for each in session.ring.read(0, 1000)
    ]
    assert await log.epoch(session.id) == session.ring.epoch


async def test_removing_a_session_forgets_its_log(runner: FakeRunner) -> None:
    log = MemoryLog()
    async with open_harbour(runner, workspaces=["/project"], log=log) as harbour:
        session = (await harbour.create()).session
        await submit(session, "echo one").wait_settled()
        assert await harbour.remove(session.id)
        assert await log.epoch(session.id) is None


async def test_a_failing_log_ends_the_recording_not_the_session(runner: FakeRunner) -> None:
    """rest.md 6: ``session_recording_degraded``, once; the session goes on, and can be removed."""
    noted: list[Note] = []

    class Noting(NullObserver):
        def note(self, note: Note, /, **fields: Any) -> None:
            noted.append(note)

    async with open_harbour(runner, workspaces=["/project"], log=BrokenLog(), observer=Noting()) as harbour:
        session = (await harbour.create()).session
        for _ in range(3):
            assert (await submit(session, "echo one").wait_settled()).state is OperationState.COMPLETED
            await trio.testing.wait_all_tasks_blocked()
        degraded = [each for each in session.ring.read(0, 1000) if each.type == EventType.SESSION_RECORDING_DEGRADED]
        assert [each.value() for each in degraded] == [{"sessionId": session.id, "reason": "log_failed"}]
        assert noted.count(Note.LOG_FAILED) == 1
        assert await harbour.remove(session.id)
        assert noted.count(Note.LOG_FAILED) == 2
