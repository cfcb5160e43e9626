"""REST while the agent behind it misbehaves: killed, gone, silent, flooding."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.end_to_end.rest_place import rest_server
from tests.server.rest.api import Frame
from tests.support.acp import AcpClient
from tests.support.acp_sockets import SocketDriver
from tests.support.http import open_raw
from tests.support.scripted_agent import steps
from tests.support.serving import wait_until

TERMINAL = ("turn_complete", "turn_error")


def pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


def alive(pid: int) -> bool:
    """Zombies are not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def endings(frames: list[Frame]) -> dict[str, list[str]]:
    """Terminal events by prompt."""
    found: dict[str, list[str]] = {}
    for each in frames:
        if each.type in TERMINAL:
            found.setdefault(each.data["promptId"], []).append(each.type)
    return found


async def test_agent_killed_in_mid_turn(tmp_path: Path) -> None:
    """C-064, C-058, issue: kill -9 with three prompts, two readers; within 2 s everybody knows; another session goes on."""
    pidfile = tmp_path / "pids"
    async with rest_server({"pidfile": str(pidfile)}, agent_per_session=True) as served:
        session_id = await served.create()
        (pid,) = pids(pidfile)
        other = await served.create()
        async with served.events(session_id) as one, served.events(session_id) as two:
            ids = [await served.submit(session_id, "hold") for _ in range(3)]
            await one.take(3)
            os.kill(pid, signal.SIGKILL)
            with trio.fail_after(2):
                first, second = await one.rest(), await two.rest()
        for frames in (first, second):
            assert endings(frames) == {each: ["turn_error"] for each in ids}
            assert frames[-1].type == "session_died"
            assert frames[-1].data["signalCode"] == "SIGKILL"
        reply = await served.prompt(session_id, "more")
        assert (reply.status, reply.json()["code"]) == (404, "session_not_found")
        for each in ids:
            assert (await served.outcome(session_id, each))["state"] == "failed"
        assert (await served.run(other, "echo still here"))["state"] == "completed"
        assert not alive(pid)


@pytest.mark.parametrize("turn", [steps(["say", "a"], ["exit", 0]), "exit=0"])
async def test_agent_exits_in_mid_turn(turn: str) -> None:
    """C-065 (a): as for a crash."""
    async with rest_server() as served:
        session_id = await served.create()
        async with served.events(session_id) as stream:
            prompt_id = await served.submit(session_id, turn)
            with trio.fail_after(3):
                frames = await stream.rest()
        assert endings(frames) == {prompt_id: ["turn_error"]}
        assert (frames[-1].type, frames[-1].data["exitCode"]) == ("session_died", 0)


async def test_agent_exits_between_turns(tmp_path: Path) -> None:
    """C-065 (b): readers are told; the next prompt gets a definite answer; the session can be loaded again."""
    pidfile = tmp_path / "pids"
    async with rest_server({"pidfile": str(pidfile)}) as served:
        session_id = await served.create()
        await served.run(session_id, "echo one")
        async with served.events(session_id) as stream:
            os.kill(pids(pidfile)[0], signal.SIGTERM)
            with trio.fail_after(2):
                frames = await stream.rest()
        assert frames[-1].type == "session_died"
        with trio.fail_after(2):
            assert (await served.prompt(session_id, "two")).status == 404
        reply = await served.post(f"/session/{session_id}/load")
        assert reply.status == 200
        assert (await served.run(session_id, "echo two"))["state"] == "completed"


@pytest.mark.parametrize("initialize", ["exit", "error", "never", "garbage"])
async def test_creation_that_cannot_work(initialize: str, tmp_path: Path) -> None:
    """C-069, REST-025: a reason in bounded time; no process, no session."""
    pidfile = tmp_path / "pids"
    options = {"initialize": initialize, "pidfile": str(pidfile)}
    async with rest_server(options, agent_start_timeout_ms=700) as served:
        with trio.fail_after(5):
            reply = await served.post("/session", {})
        assert reply.status in (500, 503, 504)
        assert reply.json()["error"]
        if initialize in ("never", "garbage"):
            assert (reply.status, reply.json()["code"], reply.json()["timeoutMs"]) == (504, "init_timeout", 700)
        assert served.harbour.sessions == []
        await wait_until(lambda: not any(alive(pid) for pid in pids(pidfile)))


async def test_creation_with_no_agent_at_all() -> None:
    """C-069: a missing file."""
    async with rest_server("/nonexistent/agent") as served:
        reply = await served.post("/session", {})
        assert (reply.status, reply.json()["code"]) == (503, "acp_channel_unavailable")
        assert reply.json()["errorKind"] == "missing_binary"
        assert (await served.get("/health"))["status"] == "ok"


async def test_client_gone_while_the_agent_starts(tmp_path: Path) -> None:
    """REST-026 with a real process."""
    options = {"initialize": "late", "start_delay_ms": 600, "pidfile": str(tmp_path / "pids")}
    async with rest_server(options) as served:
        async with open_raw(served.port) as connection:
            await connection.request("POST", "/session", b"{}")
            await trio.sleep(0.2)
        await trio.sleep(1.2)
        assert served.harbour.sessions == []
        assert (await served.post("/session", {})).status == 200


async def test_close_takes_the_whole_tree_away(tmp_path: Path) -> None:
    """C-066, C-067 through REST: an agent that ignores SIGTERM and stdin's end, with a child of its own."""
    pidfile = tmp_path / "pids"
    options = {"pidfile": str(pidfile), "ignore_sigterm": True, "ignore_eof": True}
    async with rest_server(options, agent_per_session=True) as served:
        session_id = await served.create()
        await served.run(session_id, "spawn")
        everyone = pids(pidfile)
        assert len(everyone) == 2
        with trio.fail_after(10):
            assert (await served.call("DELETE", f"/session/{session_id}")).status == 204
        await wait_until(lambda: not any(alive(pid) for pid in everyone), within=5)


@pytest.mark.parametrize("how", ["goodbye", "grace"])
async def test_an_owner_that_leaves_takes_the_whole_tree_away(how: str, tmp_path: Path) -> None:
    """C-066 on /acp: DELETE of the connection, or a grace that runs out."""
    pidfile = tmp_path / "pids"
    async with rest_server({"pidfile": str(pidfile)}, session_grace_ms=200) as served:
        driver: Any = SocketDriver(served.port)
        client = await AcpClient.connect(driver)
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            await client.prompt(session_id, steps(["spawn"], ["hold"]), id=1)
            await wait_until(lambda: len(pids(pidfile)) == 2)
            if how == "goodbye":
                assert (await client.delete()).status == 202
                await feed.rest()
        everyone = pids(pidfile)
        await wait_until(lambda: not any(alive(pid) for pid in everyone) and not served.harbour.sessions, within=5)


async def test_an_agent_that_ignores_cancel(tmp_path: Path) -> None:
    """C-059: the cancel returns at once; the close ends it; one terminal event; a new session works."""
    async with rest_server(agent_per_session=True) as served:
        session_id = await served.create()
        prompt_id = await served.submit(session_id, steps(["deaf"], ["say", "w", 600, 100]))
        async with served.events(session_id, 0) as stream:
            await stream.take(3)
            with trio.fail_after(1):
                assert (await served.post(f"/session/{session_id}/cancel")).status == 204
            with trio.fail_after(8):
                assert (await served.call("DELETE", f"/session/{session_id}")).status == 204
                frames = await stream.rest()
        assert endings(frames) == {prompt_id: ["turn_complete"]}
        assert (await served.run(await served.create(), "echo new"))["state"] == "completed"


async def test_an_agent_that_stops_reading() -> None:
    """C-028: its own session is stuck, nobody else's; closing it works."""
    async with rest_server(agent_per_session=True) as served:
        stuck, fine = await served.create(), await served.create()
        await served.submit(stuck, steps(["stop_reading"], ["pause", 50]))
        assert (await served.prompt(stuck, "echo " + "x" * 2**20)).status == 202
        with trio.fail_after(1):
            await served.get("/capabilities")
        with trio.fail_after(3):
            assert (await served.run(fine, "echo fine"))["state"] == "completed"
        with trio.fail_after(8):
            assert (await served.call("DELETE", f"/session/{stuck}")).status == 204


async def test_noise_and_framing() -> None:
    """C-045, C-047 through REST: nothing of it reaches the reader, everything valid does, once and in order."""
    async with rest_server() as served:
        session_id = await served.create()
        await served.run(session_id, "noise")
        frames = await served.replay(session_id)
        assert frames[-2].type == "turn_complete"
        kinds = [each.data["update"]["sessionUpdate"] for each in frames if each.type == "session_update"]
        assert set(kinds) <= {"user_message_chunk", "agent_message_chunk"}


async def test_stored_sessions_of_the_agent(tmp_path: Path) -> None:
    """REST-030, REST-041, C-007: after a restart the agent's sessions are listed and loadable; an old cursor is called out."""
    options = {"state": str(tmp_path / "state.json"), "uuids": True}
    async with rest_server(options, workspace=tmp_path) as served:
        session_id = await served.create()
        await served.run(session_id, steps(["say", "{n} ", 40]))
        epoch = served.harbour.find(session_id).ring.epoch
    async with rest_server(options, workspace=tmp_path) as served:
        assert (await served.prompt(session_id, "x")).status == 404
        listed = await served.get("/workspace/" + str(tmp_path).replace("/", "%2F") + "/sessions")
        assert [each["sessionId"] for each in listed["sessions"]] == [session_id]
        reply = await served.post(f"/session/{session_id}/load")
        assert reply.status == 200, reply
        assert reply.json()["compactedReplay"]
        await served.run(session_id, steps(["say", "{n} ", 60]))
        async with served.events(session_id, 20, X_Qwen_Event_Epoch=epoch) as stream:
            frames = await stream.until("replay_complete")
        assert frames[0].type == "state_resync_required"
        assert frames[0].data["reason"] == "epoch_reset"
        assert frames[1].id == 1
