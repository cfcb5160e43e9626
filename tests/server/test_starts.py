"""The ways to start (design: three starts), as processes: all serve the same, and all end with code 0."""

from __future__ import annotations

import json
import signal
import socket
import sys
from pathlib import Path

import pytest
import trio

from tests.support.http import RawConnection, ask, open_raw
from tests.support.processes import ROOT, Process, running
from tests.support.scripted_agent import shell_line, steps
from tests.support.serving import UPGRADE

pytestmark = pytest.mark.process

MODULE = ["server", "--port", "0"]
STARTS = {
    "command": ["server.cli", "serve", "--port", "0"],
    "trio worker": ["hypercorn", "-k", "trio", "-b", "127.0.0.1:0", "server.app"],
    "default worker": ["hypercorn", "-b", "127.0.0.1:0", "server.app"],
}


async def assert_serving(server: Process) -> None:
    assert server.urls, server.output
    health = await ask(server.port, "GET", "/health")
    assert (health.status, health.body) == (200, b'{"status":"ok"}')
    capabilities = (await ask(server.port, "GET", "/capabilities")).json()
    assert capabilities["protocolVersions"]["current"] == "v1"
    # From the file every start was given.
    assert capabilities["limits"]["maxPendingPromptsPerSession"] == 7
    nothing = await ask(server.port, "GET", "/nowhere")
    assert (nothing.status, nothing.json()) == (404, {"error": "Not found"})
    foreign = await ask(server.port, "GET", "/health", host="evil.example")
    assert foreign.status == 403


async def open_stream(raw: RawConnection) -> str:
    """A session and its event stream, first bytes read."""
    created = await ask(raw.port, "POST", "/session", b"{}")
    session = created.json()["sessionId"]
    await raw.request("GET", f"/session/{session}/events")
    assert (await raw.read_head()).status == 200
    await raw.until(b"retry: 3000\n\n")
    return str(session)


async def can_connect(server: Process) -> bool:
    if not server.urls:
        return False
    try:
        async with open_raw(server.port):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("start", STARTS)
async def test_every_start_serves_and_ends(start: str, tmp_path: Path) -> None:
    """One start, one server: the settings, the routes, the checks, the guard, a stream that is told, exit code 0."""
    file = tmp_path / "moorline.toml"
    file.write_text("max-pending-prompts-per-session = 7\n")
    async with running(STARTS[start], {"MOORLINE_CONFIG": str(file)}) as server:
        await assert_serving(server)
        # The guard is there too.
        async with open_raw(server.port) as raw:
            await raw.send(raw.head("GET", "/acp", **UPGRADE) + b"x")
            await raw.wait_end(within=3)
        await assert_serving(server)
        async with open_raw(server.port) as raw, open_raw(server.port) as idle:
            await open_stream(raw)
            await idle.request("GET", "/health")
            await idle.reply()
            server.terminate()
            await trio.sleep(0.05)
            # A second one changes nothing (C-063).
            server.terminate()
            rest = await raw.wait_end(within=5)
            assert rest.endswith(b"0\r\n\r\n")
            assert await server.wait(within=5) == 0
        assert "Traceback" not in server.output
        assert "Exception" not in server.output


async def test_a_signal_ends_an_idle_server_at_once() -> None:
    """``python -m server``, and Ctrl-C."""
    async with running(MODULE) as server:
        server.process.send_signal(signal.SIGINT)
        assert await server.wait(within=5) == 0
        assert "Traceback" not in server.output


async def test_hundred_streams_and_a_stalled_client_end_within_the_bound() -> None:
    """Bad input and faults: exit within 5 s, every stream gets its end."""
    async with running([*MODULE, "--max-subscribers", "0"]) as server, trio.open_nursery() as nursery:
        async with open_raw(server.port) as first:
            session = await open_stream(first)
            ends = 0

            async def follow(ready: trio.Event) -> None:
                nonlocal ends
                async with open_raw(server.port) as raw:
                    await raw.request("GET", f"/session/{session}/events")
                    await raw.read_head()
                    ready.set()
                    rest = await raw.wait_end(within=30)
                    ends += rest.endswith(b"0\r\n\r\n")

            for _ in range(99):
                ready = trio.Event()
                nursery.start_soon(follow, ready)
                await ready.wait()
            async with open_raw(server.port, receive_buffer=4096) as stalled:
                # The server reads no more of it once its own sends are stuck: how much fits is the kernel's affair.
                with trio.move_on_after(0.5):
                    await stalled.send(b"".join([stalled.head("GET", "/capabilities")] * 4000))
                    await trio.sleep_forever()
                server.terminate()
                started = trio.current_time()
                assert await server.wait(within=5) == 0
                assert trio.current_time() - started < 5
        nursery.cancel_scope.deadline = trio.current_time() + 2
    assert ends == 99


@pytest.mark.parametrize("stubborn", [False, True])
async def test_sigterm_with_everything_open(stubborn: bool, tmp_path: Path) -> None:
    """C-063: running turns, streams, an idle connection; nothing of it is left, not even what the agent started.

    Also with an agent that ignores cancel, the end of its input and SIGTERM.
    """
    pids = tmp_path / "pids"
    options = {"ignore_sigterm": True, "ignore_eof": True} if stubborn else {}
    agent = shell_line(pidfile=str(pids), **options)
    turn = [["spawn"], ["deaf"], ["hold"]] if stubborn else [["spawn"], ["hold"]]
    async with (
        running([*MODULE, "--agent", agent]) as server,
        open_raw(server.port) as one,
        open_raw(server.port) as two,
    ):
        for raw in (one, two):
            created = await ask(server.port, "POST", "/session", b'{"sessionScope":"thread"}')
            session = created.json()["sessionId"]
            await raw.request("GET", f"/session/{session}/events")
            await raw.read_head()
            body = json.dumps({"prompt": [{"type": "text", "text": steps(*turn)}]}).encode()
            assert (await ask(server.port, "POST", f"/session/{session}/prompt", body)).status == 202
            await raw.until(b"pid ")
        async with open_raw(server.port) as idle:
            await idle.request("GET", "/health")
            await idle.reply()
            server.terminate()
            started = trio.current_time()
            rests = [await raw.wait_end(within=5) for raw in (one, two)]
            await idle.wait_end(within=5)
            assert await server.wait(within=5) == 0
            took = trio.current_time() - started
            assert took < 5
        for rest in rests:
            assert rest.endswith(b"0\r\n\r\n")
            assert b"session_closed" in rest or (stubborn and b"daemon_draining" in rest)
        left = [pid for pid in pids.read_text().split() if alive(int(pid))]
        assert left == []


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
async def test_a_signal_between_the_end_of_serving_and_that_of_the_loop(name: str, tmp_path: Path) -> None:
    """Trio winds up its system tasks when the receiver of signals is gone: an exception there would leave it waiting for
    ever for a task of its own."""
    (tmp_path / "late.py").write_text(f"""
import signal, sys
import trio
import server.process
from server.config import load

serve = server.process.serve

async def signal_at_the_end():
    try:
        await trio.sleep_forever()
    finally:
        signal.raise_signal(signal.{name})

async def and_signal_again(*args, **more):
    trio.lowlevel.spawn_system_task(signal_at_the_end)
    await serve(*args, **more)

server.process.serve = and_signal_again
sys.exit(server.process.run(load({{"port": "0"}})))
""")
    async with running(["late"], {"PYTHONPATH": f"{ROOT}:{tmp_path}"}) as server:
        await assert_listening(server)
        server.terminate()
        assert await server.wait(within=5) == 0, server.output
        assert "Traceback" not in server.output


async def test_a_signal_before_trio_listens_for_it(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text("""
import signal, sys
import server.process
from server.config import load

server.process.give_back_large_blocks = lambda: signal.raise_signal(signal.SIGTERM)
sys.exit(server.process.run(load({"port": "0"})))
""")
    async with running(["early"], {"PYTHONPATH": f"{ROOT}:{tmp_path}"}) as server:
        assert await server.wait(within=10) == 0, server.output
        assert "Traceback" not in server.output


async def test_signals_without_end_while_it_ends() -> None:
    async with running(MODULE) as server, trio.open_nursery() as nursery:
        await assert_listening(server)

        async def insist() -> None:
            while server.process.poll() is None:
                server.terminate()
                await trio.sleep(0.001)

        nursery.start_soon(insist)
        assert await server.wait(within=5) == 0, server.output
        assert "Traceback" not in server.output


async def assert_listening(server: Process) -> None:
    assert (await ask(server.port, "GET", "/health")).status == 200


def alive(pid: int) -> bool:
    """A zombie is not: whose duty it is to bury an orphan is a matter of the container."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_bad_configuration_under_hypercorn_is_said() -> None:
    async with running(STARTS["default worker"], {"MOORLINE_EVENT_RING_SIZE": "none"}) as server:
        # The exit code is hypercorn's, and 0 (#269): the reason to restart always.
        await server.wait(within=10)
        assert "MOORLINE_EVENT_RING_SIZE: must be a whole number" in server.output
        assert not await can_connect(server)


async def test_hypercorn_on_every_interface_makes_a_token() -> None:
    """ACP-250 under the hypercorn command, which we have to ask where it listens."""
    async with running(["hypercorn", "-k", "trio", "-b", "0.0.0.0:0", "server.app"]) as server:
        await trio.sleep(0.1)
        assert (await ask(server.port, "GET", "/health")).status == 401
        (line,) = [line for line in server.lines if "made a token" in line]
        token = line.rpartition(" ")[2]
        assert (await ask(server.port, "GET", "/health", Authorization=f"Bearer {token}")).status == 200


async def test_a_port_in_use_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with running(["server", "--port", str(port)]) as server:
            assert await server.wait(within=5) == 1
            # NNRP may have said before where it listens.
            (line,) = [line for line in server.lines if "nnrp_listening" not in line and line]
            assert line.startswith(f"moorline: cannot listen on 127.0.0.1:{port}: ")


async def test_hypercorn_without_trio_on_another_server_says_so() -> None:
    """An ASGI server we know nothing of: no handing over, the sentence instead."""
    code = (
        "import asyncio\n"
        "from server.app import app\n"
        "async def main():\n"
        "    async def receive(): return {'type': 'lifespan.startup'}\n"
        "    async def send(message): print(message['type'], message['message'])\n"
        "    await app({'type': 'lifespan'}, receive, send)\n"
        "asyncio.run(main())\n"
    )
    done = await trio.run_process(
        [sys.executable, "-c", code], capture_stdout=True, capture_stderr=True, cwd=ROOT, check=False
    )
    assert b"lifespan.startup.failed moorline runs on Trio: run `hypercorn -k trio server.app`" in done.stdout
