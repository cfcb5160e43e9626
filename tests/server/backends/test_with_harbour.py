"""The runners under the real engine: what a subscriber of the session sees."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from server.backends import DemoRunner
from sessions import Limits, OperationState, Session, open_harbour
from sessions.errors import AgentStartError, SessionNotFound
from tests.support.agents import alive, scripted_runner
from tests.support.engine import events, said, submit, terminals, types
from tests.support.scripted_agent import steps


async def settled(session: Session, words: str, within: float = 10.0) -> OperationState:
    with trio.fail_after(within):
        return (await submit(session, words).wait_settled()).state


@pytest.mark.process
async def test_a_turn_on_the_ring() -> None:
    """REST-070: echo, what the agent says, the terminal event; every event carries our session id."""
    async with open_harbour(scripted_runner(), workspaces=["/"]) as harbour:
        session = (await harbour.create()).session
        assert await settled(session, "hi") is OperationState.COMPLETED
        assert types(session) == ["user_message_chunk", *["agent_message_chunk"] * 4, "turn_complete"]
        assert {event.value()["sessionId"] for event in events(session)} == {session.id}


@pytest.mark.process
async def test_c_064_three_prompts_and_a_kill(tmp_path: Path) -> None:
    """C-064: -9 in mid-turn with two queued: an error for each, session_died last, a new session at once."""
    pids = tmp_path / "pids"
    async with open_harbour(scripted_runner({"pidfile": str(pids)}), workspaces=["/"]) as harbour:
        session = (await harbour.create()).session
        prompts = [submit(session, "hold") for _ in range(3)]
        with trio.fail_after(5):
            while not said(session):  # noqa: ASYNC110 - the agent is another process
                await trio.sleep(0.01)
        os.kill(int(pids.read_text()), signal.SIGKILL)
        with trio.fail_after(1):
            for operation in prompts:
                assert (await operation.wait_settled()).state is OperationState.FAILED
            await session.wait_closed()
        assert {kinds[0] for kinds in terminals(session).values()} == {"turn_error"}
        assert [len(kinds) for kinds in terminals(session).values()] == [1, 1, 1]
        died = events(session)[-1]
        assert died.type == "session_died"
        assert died.value()["signalCode"] == "SIGKILL"
        with pytest.raises(SessionNotFound):
            submit(session, "again")
        fresh = (await harbour.create()).session
        assert await settled(fresh, "hi") is OperationState.COMPLETED


@pytest.mark.process
async def test_c_061_cancel_on_the_ring() -> None:
    """C-061: three updates after the cancel, then one terminal event, ``cancelled``."""
    async with open_harbour(scripted_runner(), workspaces=["/"]) as harbour:
        session = (await harbour.create()).session
        operation = submit(session, "hold after=3")
        with trio.fail_after(5):
            while len(said(session)) < 4:  # noqa: ASYNC110 - the agent is another process
                await trio.sleep(0.01)
        session.cancel_prompt()
        with trio.fail_after(2):
            await operation.wait_settled()
        assert said(session)[4:] == ["after 0", "after 1", "after 2"]
        assert events(session)[-1].type == "turn_complete"
        assert list(terminals(session).values()) == [["cancelled"]]


@pytest.mark.process
async def test_c_059_a_deaf_agent_and_close(tmp_path: Path) -> None:
    """C-059, C-067: cancel returns at once, close ends the process within its bound, one terminal event, a new session."""
    pids = tmp_path / "pids"
    options = {"pidfile": str(pids), "ignore_sigterm": True}
    limits = Limits(close_grace=0.5)
    async with open_harbour(scripted_runner(options, kill_grace=0.5), workspaces=["/"], limits=limits) as harbour:
        session = (await harbour.create()).session
        submit(session, "deaf slow=20 long=5000")
        with trio.fail_after(5):
            while not said(session):  # noqa: ASYNC110 - the agent is another process
                await trio.sleep(0.01)
        begun = trio.current_time()
        session.cancel_prompt()
        assert trio.current_time() - begun < 0.1
        with trio.fail_after(3):
            await session.close()
        assert [len(kinds) for kinds in terminals(session).values()] == [1]
        fresh = (await harbour.create()).session
        assert await settled(fresh, "hi") is OperationState.COMPLETED
        first = int(pids.read_text().split()[0])
        with trio.fail_after(3):
            while alive(first):  # noqa: ASYNC110 - the end of a process that may not be ours to collect
                await trio.sleep(0.01)


@pytest.mark.process
async def test_c_096_c_097_a_flood_stays_within_the_rings_bounds() -> None:
    """C-096, C-097: a flood by count, then by size; memory within ring bytes plus 64 MiB."""
    limits = Limits(ring_bytes=16 * 2**20)
    async with open_harbour(scripted_runner(), workspaces=["/"], limits=limits) as harbour:
        session = (await harbour.create()).session
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert await settled(session, steps(["flood", 30_000, 500]), 30) is OperationState.COMPLETED
        assert session.ring.head > 30_000
        assert await settled(session, steps(["growing", 120, 5000]), 30) is OperationState.COMPLETED
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < (16 + 64) * 1024


@pytest.mark.process
async def test_c_069_nothing_stays_of_a_session_that_cannot_start() -> None:
    """C-069: the count of sessions is unchanged."""
    async with open_harbour(scripted_runner({"initialize": "error"}), workspaces=["/"]) as harbour:
        with pytest.raises(AgentStartError):
            await harbour.create()
        assert harbour.statistics().sessions == 0


@pytest.mark.process
async def test_closed_sessions_load_from_the_agent(tmp_path: Path) -> None:
    """REST-030: in the process from memory, after a restart from the agent; unknown is not found."""
    options = {"state": str(tmp_path / "state")}
    wanted = "2b63d6a8-1108-49ed-9960-61df5b6dd882"
    async with open_harbour(scripted_runner(options), workspaces=["/"]) as harbour:
        session = (await harbour.create(session_id=wanted)).session
        await settled(session, "echo kept")
        await session.close()
        again = (await harbour.restore(wanted, "load")).session
        assert said(again) == ["kept"]
        assert await settled(again, "hi") is OperationState.COMPLETED
    async with open_harbour(scripted_runner(options), workspaces=["/"]) as harbour:
        restored = (await harbour.restore(wanted, "load")).session
        assert (restored.id, said(restored)[0]) == (wanted, "kept")
        with pytest.raises(SessionNotFound):
            await harbour.restore("00000000-0000-4000-8000-000000000000", "load")


async def test_the_demo_agent_asks_nobody() -> None:
    """ACP-178: no consumer at all, so the question is answered cancelled and the turn goes on."""
    async with open_harbour(DemoRunner(), workspaces=["/"]) as harbour:
        session = (await harbour.create()).session
        assert await settled(session, "permission") is OperationState.COMPLETED
        assert said(session)[0] == "Permission: cancelled. "


async def test_the_demo_agent_is_loaded_and_forked() -> None:
    async with open_harbour(DemoRunner(), workspaces=["/"]) as harbour:
        session = (await harbour.create()).session
        await session.set_mode("plan")
        await session.close()
        again = (await harbour.restore(session.id, "load")).session
        state: dict[str, Any] = again.state()
        assert state["modes"]["currentModeId"] == "plan"
        with pytest.raises(SessionNotFound):
            await harbour.restore("00000000-0000-4000-8000-000000000000", "load")
