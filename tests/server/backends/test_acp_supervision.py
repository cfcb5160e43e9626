"""Agent processes: their start, their crashes, their end, and what one of them cannot do to the others."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio
import trio.testing

from server.backends.acp_stdio import AcpAgentRunner, RestartPolicy
from server.backends.acp_stdio.restart import Backoff
from sessions.errors import AgentStartError, AgentStartTimeout, RunnerError, RunnerLost
from tests.support import scripted_agent
from tests.support.agents import alive, scripted_runner, scripted_session, until, wait_gone, zombies_of
from tests.support.fake_host import FakeHost, open_session, prompt, run_prompt, running, texts
from tests.support.scripted_agent import steps

pytestmark = pytest.mark.process


def pids_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


# Start (C-069)

BAD_STARTS: dict[str, tuple[list[str], str, str]] = {
    "missing file": (["/no/such/agent"], "missing_binary", "No such file"),
    "not executable": (["/etc/passwd"], "missing_binary", "ermission"),
    "exits at once": (
        scripted_agent.command(initialize="exit", start=[["stderr", "no API key"]]),
        "protocol_error",
        "no API key",
    ),
    "error": (scripted_agent.command(initialize="error"), "protocol_error", "scripted initialize error"),
    "never answers": (scripted_agent.command(initialize="never"), "init_timeout", "initialize"),
    "never answers, ignores SIGTERM": (
        scripted_agent.command(initialize="never", ignore_sigterm=True),
        "init_timeout",
        "initialize",
    ),
    "garbage": (scripted_agent.command(initialize="garbage"), "init_timeout", "initialize"),
    "not an agent": (["/bin/echo", "hello"], "protocol_error", "exit code 0"),
}


@pytest.mark.parametrize("what", BAD_STARTS)
async def test_c_069_a_start_that_cannot_work(what: str) -> None:
    """C-069: a reason within the bound, and no process left."""
    command, kind, words = BAD_STARTS[what]
    runner = AcpAgentRunner(command, start_timeout=0.7, kill_grace=0.3)
    async with running(runner):
        begun = trio.current_time()
        with pytest.raises(AgentStartError) as caught:
            await open_session(runner, FakeHost())
        assert trio.current_time() - begun < 2.5
        assert (caught.value.error_kind, words in caught.value.message) == (kind, True)
        assert isinstance(caught.value, AgentStartTimeout) == (kind == "init_timeout")
        assert runner.statistics().processes == 0
    assert zombies_of(os.getpid()) == []


async def test_c_069_a_good_agent_after_a_bad_one(tmp_path: Path) -> None:
    """C-069: the next attempt starts afresh; back-off delays it, no more."""
    link = tmp_path / "agent"
    link.symlink_to("/bin/false")
    runner = AcpAgentRunner([str(link)], restart=RestartPolicy(initial=0.05), cwd="/")
    async with running(runner):
        for _ in range(2):
            with pytest.raises(AgentStartError):
                await runner.capabilities()
        link.unlink()
        script = tmp_path / "script"
        script.write_text(f"#!/bin/sh\nexec {scripted_agent.shell_line()}\n")
        script.chmod(0o755)
        link.symlink_to(script)
        assert (await runner.capabilities()).load_session is False
        assert (await run_prompt(await open_session(runner, FakeHost()), "hi")).stop_reason == "end_turn"


async def test_a_slow_start_is_shared_by_all_who_wait() -> None:
    runner = scripted_runner({"start_delay_ms": 200})
    async with running(runner), trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(open_session, runner, FakeHost())
    assert runner.statistics().starts == 1


async def test_a_cancelled_waiter_does_not_stop_the_start() -> None:
    """REST-026: the client is gone; the next one finds the agent up."""
    runner = scripted_runner({"start_delay_ms": 200})
    async with running(runner):
        with trio.move_on_after(0.05) as scope:
            await open_session(runner, FakeHost())
        assert scope.cancelled_caught
        await open_session(runner, FakeHost())
        assert (runner.statistics().starts, runner.statistics().sessions) == (1, 1)


async def test_c_098_stderr_before_the_handshake_and_in_a_turn(caplog: pytest.LogCaptureFixture) -> None:
    """C-098: 10 MiB before initialize and 100 MiB in a turn, and the server's memory does not move."""
    async with scripted_session(options={"start": [["stderr", 10 * 2**20]]}) as desk:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await run_prompt(desk.session, steps(["stderr", 100 * 2**20], ["say", "done"]))
        assert texts(desk.host) == ["done"]
        await until(lambda: desk.runner.statistics().agents[0].stderr_bytes == 110 * 2**20)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024
    assert 0 < sum(map(len, caplog.messages)) < 100_000


async def test_the_servers_secrets_stay_with_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An agent runs a model's commands; the bearer token is not among its variables."""
    for secret in ("MOORLINE_TOKEN", "QWEN_SERVER_TOKEN", "MOORLINE_UPSTREAM_KEY"):
        monkeypatch.setenv(secret, "hush-hush")
    seen = tmp_path / "environment"
    runner = AcpAgentRunner(["/bin/sh", "-c", f"env > {seen}"], env={"ADDED": "yes"})
    async with running(runner):
        with pytest.raises(AgentStartError):
            await runner.capabilities()
    assert "hush-hush" not in seen.read_text()
    assert "ADDED=yes" in seen.read_text()


# Crashes


@pytest.mark.parametrize(
    ("ending", "death"),
    [
        (["crash"], [("agent_killed", None, "SIGKILL")]),
        (["exit", 3], [("agent_exited", 3, None)]),
        (["exit", 0], [("agent_exited", 0, None)]),
        # It ends by itself then, with a code, unless it is killed first.
        (["close_stdout"], [("agent_closed_stdout", None, None), ("agent_closed_stdout", 0, None)]),
    ],
    ids=lambda value: str(value[0]),
)
async def test_c_064_c_065_the_agent_goes_in_mid_turn(ending: list[Any], death: list[tuple[Any, ...]]) -> None:
    """C-064, C-065 (a): error and death within a second, everything said before it delivered, no zombie."""
    async with scripted_session() as desk:
        other = FakeHost()
        await open_session(desk.runner, other)
        begun = trio.current_time()
        with pytest.raises(RunnerLost):
            await run_prompt(desk.session, steps(["say", "last words"], ending, ["hold"]))
        assert trio.current_time() - begun < 1
        assert texts(desk.host) == ["last words"]
        assert desk.host.deaths == other.deaths
        assert desk.host.deaths in [[each] for each in death]
        with pytest.raises(RunnerLost):
            await run_prompt(desk.session, "again")
        with trio.fail_after(1):
            await desk.session.aclose()
        # A new session works at once, on a new process.
        fresh = await open_session(desk.runner, FakeHost())
        assert (await run_prompt(fresh, "hi")).stop_reason == "end_turn"
        assert desk.runner.statistics().failures_in_a_row == 1
        await until(lambda: zombies_of(os.getpid()) == [])


async def test_c_064_killed_from_outside_with_prompts_under_way(tmp_path: Path) -> None:
    """C-064: every prompt under way ends with an error."""
    async with scripted_session(options={"pidfile": str(tmp_path / "pids")}) as desk:
        turns = [desk.begin("hold") for _ in range(3)]
        await desk.host.wait_for(lambda: len(desk.host.updates) == 12)
        os.kill(pids_in(tmp_path / "pids")[0], signal.SIGKILL)
        for turn in turns:
            assert isinstance(await desk.end_of(turn, 2), RunnerLost)
        assert len(desk.host.deaths) == 1


async def test_c_065_exit_between_turns(tmp_path: Path) -> None:
    """C-065 (b): told within 2 s, and the next prompt gets a definite answer."""
    async with scripted_session(options={"pidfile": str(tmp_path / "pids")}) as desk:
        await run_prompt(desk.session, "hi")
        os.kill(pids_in(tmp_path / "pids")[0], signal.SIGTERM)
        await desk.host.wait_for(lambda: desk.host.deaths, 2)
        with pytest.raises(RunnerLost):
            await run_prompt(desk.session, "hi", within=2)


async def test_a_crash_while_a_session_starts() -> None:
    runner = scripted_runner({"turns": [[["crash"]]], "start_delay_ms": 0})
    async with running(runner):
        session = await open_session(runner, FakeHost())
        with pytest.raises(RunnerLost):
            await run_prompt(session, "x")
        script = ["/bin/sh", "-c", 'read line; echo \'{"id":1,"result":{"protocolVersion":1}}\'; read line; exit 4']
        second = AcpAgentRunner(script)
        async with running(second):
            with pytest.raises(RunnerLost, match="exit code 4"):
                await open_session(second, FakeHost())
            assert second.statistics().sessions == 0


async def test_a_crash_in_a_cancelled_turn_is_still_a_cancel() -> None:
    async with scripted_session() as desk:
        turn = desk.begin(steps(["after_cancel", [["crash"]]], ["say", "on"], ["hold"]))
        await desk.host.wait_for(lambda: desk.host.updates)
        turn.scope.cancel()
        assert await desk.end_of(turn) == "cancelled"
        assert [death[0] for death in desk.host.deaths] == ["agent_killed"]


async def test_back_off_grows_and_is_forgotten() -> None:
    """Issue 2: restart with back-off. Crashes in a row wait longer and longer; a good end resets that."""
    runner = scripted_runner({}, restart=RestartPolicy(initial=0.05, factor=4, maximum=0.4))
    async with running(runner):
        waits = []
        session = await open_session(runner, FakeHost())
        for failures in range(1, 4):
            # From before the crash: how long we take to notice it is part of the wait.
            begun = trio.current_time()
            with pytest.raises(RunnerLost):
                await run_prompt(session, "crash")
            with trio.fail_after(5):
                # The turn fails with the pipe, the failure counts when the process is reaped.
                while runner.statistics().failures_in_a_row < failures:  # noqa: ASYNC110  # nothing tells
                    await trio.sleep(0.005)
            session = await open_session(runner, FakeHost())
            waits.append(trio.current_time() - begun)
        assert waits[0] >= 0.05
        assert waits[1] >= 0.2
        assert waits[2] >= 0.4
        assert runner.statistics().failures_in_a_row == 3
        await session.aclose()
        assert runner.statistics().failures_in_a_row == 0


def test_back_off_never_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that cannot start, asked for again and again for hours, costs its maximum each time and nothing else."""
    monkeypatch.setattr(trio, "current_time", lambda: 0.0)
    backoff = Backoff(RestartPolicy())
    for _ in range(5000):
        backoff.failed(0.0)
    assert (backoff.failures, backoff.not_before) == (5000, 5.0)
    backoff.failed(60.0)
    assert (backoff.failures, backoff.not_before) == (1, 0.1)


async def test_a_fault_in_a_start_is_that_starts_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """C-069: whatever goes wrong while an agent is started, the engine lives on and the next start is a new one."""
    runner = scripted_runner({})
    async with running(runner):
        with monkeypatch.context() as patched:
            patched.setattr(runner, "_start", _fault)
            for _ in range(2):
                with pytest.raises(AgentStartError):
                    await open_session(runner, FakeHost())
        session = await open_session(runner, FakeHost())
        assert (await run_prompt(session, "hi")).stop_reason == "end_turn"


async def _fault(*_: object) -> NoReturn:
    await trio.lowlevel.checkpoint()
    raise RecursionError("scripted fault")


# Pipes


async def test_c_028_an_agent_that_stops_reading() -> None:
    """C-028: its own prompts wait; another agent, and close, do not."""
    runner = scripted_runner(agent_per_session=True, kill_grace=0.5)
    async with running(runner), trio.open_nursery() as nursery:
        deaf, free = await open_session(runner, FakeHost()), await open_session(runner, FakeHost())
        await run_prompt(deaf, steps(["stop_reading"], ["say", "x"]))
        stuck = prompt("x" * 2**20)

        async def run_stuck() -> None:
            with stuck.scope:
                await deaf.run(stuck)

        nursery.start_soon(run_stuck)
        await trio.testing.wait_all_tasks_blocked(0.05)
        begun = trio.current_time()
        for _ in range(20):
            await run_prompt(free, "hi")
        await runner.capabilities()
        assert trio.current_time() - begun < 1
        stuck.scope.cancel()
        with trio.fail_after(3):
            await deaf.aclose()
        assert runner.statistics().processes == 1


async def test_the_write_queue_is_bounded() -> None:
    """C-028: prompts beyond the bound wait for room instead of piling up, and can be cancelled there."""
    async with scripted_session(kill_grace=0.5, cancel_grace=0.2) as desk:
        await run_prompt(desk.session, steps(["stop_reading"], ["say", "x"]))
        turns = [desk.begin("y" * 2**20) for _ in range(40)]
        await trio.testing.wait_all_tasks_blocked(0.05)
        (child,) = desk.runner._children
        assert child._writer.queued_bytes < 18 * 2**20
        for turn in turns:
            turn.scope.cancel()
        for turn in turns:
            assert await desk.end_of(turn) == "cancelled"


async def test_c_096_a_flood_leaves_the_others_their_turn() -> None:
    """C-096: 400,000 updates at full speed; a second agent's round trips stay short."""
    runner = scripted_runner(agent_per_session=True)
    async with running(runner), trio.open_nursery() as nursery:
        host = FakeHost()
        host.keep = False
        loud, quiet = await open_session(runner, host), await open_session(runner, FakeHost())
        flood = prompt(steps(["flood", 400_000, 500]))

        async def run_flood() -> None:
            with flood.scope:
                await loud.run(flood)

        nursery.start_soon(run_flood)
        await host.wait_for(lambda: host.count > 1000)
        worst = 0.0
        for _ in range(20):
            begun = trio.current_time()
            await run_prompt(quiet, "hi")
            worst = max(worst, trio.current_time() - begun)
        assert worst < 1
        flood.scope.cancel()
        with trio.fail_after(5):
            await loud.aclose()


# The end


async def test_c_066_the_whole_tree_goes_when_the_last_session_closes(tmp_path: Path) -> None:
    """C-066: shell wrapper, agent and its ``sleep 1000``."""
    pids = tmp_path / "pids"
    line = f"echo $$ >> {pids}; {scripted_agent.shell_line(pidfile=str(pids))}; true"
    runner = AcpAgentRunner(["/bin/sh", "-c", line])
    async with running(runner):
        first, second = await open_session(runner, FakeHost()), await open_session(runner, FakeHost())
        await run_prompt(first, "spawn")
        tree = pids_in(pids)
        assert (len(tree), all(map(alive, tree))) == (3, True)
        await first.aclose()
        assert all(map(alive, tree))
        await second.aclose()
        assert not any(map(alive, tree))
        assert runner.statistics().processes == 0


async def test_c_066_the_whole_tree_goes_with_the_runner(tmp_path: Path) -> None:
    """C-066: at shutdown nothing stays, sessions closed or not."""
    pids = tmp_path / "pids"
    async with scripted_session(options={"pidfile": str(pids)}) as desk:
        await run_prompt(desk.session, "spawn")
        tree = pids_in(pids)
        assert len(tree) == 2
    assert not any(map(alive, tree))
    assert zombies_of(os.getpid()) == []


async def test_c_066_the_tree_goes_after_a_crash(tmp_path: Path) -> None:
    """An agent killed with -9 leaves its tools behind; we do not."""
    pids = tmp_path / "pids"
    async with scripted_session(options={"pidfile": str(pids)}) as desk:
        with pytest.raises(RunnerLost):
            await run_prompt(desk.session, steps(["spawn"], ["crash"]))
        await wait_gone(*pids_in(pids))


async def test_c_067_sigterm_and_eof_ignored(tmp_path: Path) -> None:
    """C-067: SIGKILL after the grace, and close is over then."""
    pids = tmp_path / "pids"
    options = {"pidfile": str(pids), "ignore_sigterm": True, "ignore_eof": True}
    async with scripted_session(options=options, kill_grace=0.4) as desk:
        begun = trio.current_time()
        await desk.session.aclose()
        assert 0.3 < trio.current_time() - begun < 2
        assert not alive(pids_in(pids)[0])


async def test_c_068_late_news_of_a_replaced_agent() -> None:
    """C-068: the old process takes its time to go; the new session does not notice."""
    async with scripted_session(options={"exit_delay_ms": 700}, kill_grace=3) as desk:
        desk.nursery.start_soon(desk.session.aclose)
        await trio.testing.wait_all_tasks_blocked(0.01)
        host = FakeHost()
        fresh = await open_session(desk.runner, host)
        assert desk.runner.statistics().processes == 2
        await run_prompt(fresh, "slow=100 long=12")
        assert desk.runner.statistics().processes == 1
        assert (len(texts(host)), host.deaths, desk.host.deaths) == (12, [], [])


async def test_an_idle_agent_lingers_as_long_as_told() -> None:
    async with scripted_session(idle_timeout=0.3) as desk:
        await desk.session.aclose()
        await trio.sleep(0.05)
        assert desk.runner.statistics().processes == 1
        again = await open_session(desk.runner, FakeHost())
        await trio.sleep(0.4)
        assert (await run_prompt(again, "hi")).stop_reason == "end_turn"
        assert desk.runner.statistics().starts == 1
        await again.aclose()
        await until(lambda: desk.runner.statistics().processes == 0, 2)


async def test_one_agent_per_session(tmp_path: Path) -> None:
    """``--agent-per-session``: a crash of one is nothing to the others; the one started to know its abilities is used."""
    runner = scripted_runner(agent_per_session=True)
    async with running(runner):
        await runner.capabilities()
        hosts = [FakeHost(), FakeHost()]
        first, second = [await open_session(runner, host) for host in hosts]
        assert (runner.statistics().processes, runner.statistics().starts) == (2, 2)
        with pytest.raises(RunnerLost):
            await run_prompt(first, "crash")
        assert (await run_prompt(second, "hi")).stop_reason == "end_turn"
        assert [len(host.deaths) for host in hosts] == [1, 0]
        await second.aclose()
        assert runner.statistics().processes == 0


async def test_an_agent_that_never_starts_a_session() -> None:
    """REST-025: session/new has its bound as well."""
    silent = ["/bin/sh", "-c", 'read line; echo \'{"id":1,"result":{"protocolVersion":1}}\'; sleep 1000']
    runner = AcpAgentRunner(silent, session_timeout=0.3, kill_grace=0.3)
    async with running(runner):
        with pytest.raises(RunnerError) as caught:
            await open_session(runner, FakeHost())
        assert caught.value.error_kind == "init_timeout"
        await until(lambda: runner.statistics().processes == 0, 2)


async def test_a_runner_that_does_not_run() -> None:
    with pytest.raises(AgentStartError):
        await scripted_runner().capabilities()


def test_a_command_is_a_list() -> None:
    with pytest.raises(ValueError, match="command"):
        AcpAgentRunner("agent --acp")
    with pytest.raises(ValueError, match="command"):
        AcpAgentRunner([])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors through /proc")
async def test_nothing_is_left_open() -> None:
    """Descriptors after fifty sessions are those before."""
    runner = scripted_runner()
    async with running(runner):
        await (await open_session(runner, FakeHost())).aclose()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            session = await open_session(runner, FakeHost())
            await run_prompt(session, "hi")
            await session.aclose()
        assert len(os.listdir("/proc/self/fd")) <= before
