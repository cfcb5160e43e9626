"""The server as a process of its own: what SIGTERM brings, what memory it takes, what a restart forgets.

Cases of size come in a short form here; ``scripts/soak`` runs them at their own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.end_to_end.rest_place import RawStream, Remote
from tests.support import scripted_agent
from tests.support.acp import AcpClient
from tests.support.acp_sockets import SocketDriver
from tests.support.processes import Process, running
from tests.support.scripted_agent import steps
from tests.support.serving import wait_until

pytestmark = pytest.mark.process

MIB = 2**20
SOAK = bool(os.environ.get("MOORLINE_SOAK"))
"""Full sizes instead of short forms: minutes instead of seconds (``scripts/soak``)."""


class Server(Remote):
    def __init__(self, process: Process) -> None:
        super().__init__(process.port)
        self.process = process

    @property
    def memory(self) -> int:
        """Resident bytes of the server without its children."""
        fields = Path(f"/proc/{self.process.process.pid}/statm").read_text().split()
        return int(fields[1]) * 4096

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.process.pid}/fd"))

    @property
    def children(self) -> list[str]:
        """Pids, also of those that are dead and were not waited for."""
        pid = self.process.process.pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@asynccontextmanager
async def server(workspace: Path, *flags: str, agent: Sequence[str] | None = None) -> AsyncIterator[Server]:
    line = scripted_agent.shell_line() if agent is None else " ".join(agent)
    command = ["server", "--port", "0", "--agent", line, "--workspace", str(workspace), *flags]
    async with running(command) as process:
        assert process.urls, process.output
        yield Server(process)


async def test_sigterm_with_open_streams_and_a_stalled_client(tmp_path: Path) -> None:
    """C-058, C-063, issue: 100 streams and one that does not read; each gets a last frame and its end, exit 0 in 5 s."""
    async with server(tmp_path, "--max-subscribers", "0") as place:
        session_id = await place.create()
        ends: list[str] = []
        behind = 100
        caught_up = trio.Event()

        async def follow(stream: RawStream) -> None:
            nonlocal behind
            last = ""
            with contextlib.suppress(EOFError):
                # Too slow for the flood, and this reader is evicted.
                while b"over 0" not in (frame := await stream.next()).raw:
                    last = frame.type
            behind -= 1
            if not behind:
                caught_up.set()
            rest = await stream.rest()
            ends.append(rest[-1].type if rest else last)

        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            await stack.enter_async_context(place.events(session_id, receive_buffer=4096))
            for _ in range(100):
                nursery.start_soon(follow, await stack.enter_async_context(place.events(session_id)))
            await place.submit(session_id, steps(["flood", 1000, 4096], ["say", "over {n}", 1], ["hold"]))
            waiting = await place.submit(session_id, "hold")
            with trio.fail_after(60):
                await caught_up.wait()
            begun = trio.current_time()
            place.process.terminate()
            code = await place.process.wait(8)
            took = trio.current_time() - begun
        assert waiting
        assert code == 0, place.process.output
        assert took < 5
        assert len(ends) == 100
        assert set(ends) <= {"session_closed", "stream_error", "client_evicted"}


async def test_each_accepted_prompt_ends_once_at_shutdown(tmp_path: Path) -> None:
    """C-058: at most one terminal event each, then the end of the stream."""
    async with server(tmp_path) as place:
        session_id = await place.create()
        async with place.events(session_id) as stream:
            ids = [await place.submit(session_id, "hold") for _ in range(3)]
            await stream.take(4)
            place.process.terminate()
            frames = await stream.rest()
        assert await place.process.wait(8) == 0
    ended = [each.data["promptId"] for each in frames if each.type in ("turn_complete", "turn_error")]
    assert len(ended) == len(set(ended))
    assert set(ended) <= set(ids)


async def test_many_sessions_leave_nothing(tmp_path: Path) -> None:
    """C-095: create, one turn, close, over and over on REST and on /acp: no session, child, descriptor or memory is left.

    15 rounds of each in short; 500 at length.
    """
    rounds, early = (500, 50) if SOAK else (15, 5)
    async with server(tmp_path) as place:
        driver: Any = SocketDriver(place.port)
        warm = 0
        await place.get("/health")
        before = place.descriptors
        for number in range(rounds):
            session_id = await place.create()
            assert (await place.run(session_id, "echo x"))["state"] == "completed"
            assert (await place.call("DELETE", f"/session/{session_id}")).status == 204
            client = await AcpClient.connect(driver)
            session_id = await client.new_session()
            async with client.listen(session_id) as feed:
                await client.prompt(session_id, "echo x")
                await feed.until_kind("turn_complete")
                assert await client.result("session/close", {"sessionId": session_id}) == {}
                await feed.rest()
            assert (await client.delete()).status == 202
            if number == early:
                warm = place.memory
        counts = await place.get("/health?deep=1")
        assert (counts["sessions"], counts["connectedClients"], counts["activePrompts"]) == (0, 0, 0)
        await wait_until(lambda: not place.children and place.descriptors <= before + 10, within=10)
        assert place.memory - warm < 20 * MIB


async def test_a_flood_with_nobody_listening(tmp_path: Path) -> None:
    """C-096: updates of 500 bytes as fast as the agent can; the ring holds 8000; the server answers all the time.

    30 000 of them in short; 3 000 000, more than a minute of full speed, at length.
    """
    async with server(tmp_path) as place:
        session_id = await place.create()
        await place.run(session_id, steps(["flood", 200, 500]))
        before = place.memory
        prompt_id = await place.submit(session_id, steps(["flood", 3_000_000 if SOAK else 30_000, 500]))
        while (await place.get(f"/session/{session_id}/prompts/{prompt_id}"))["state"] == "running":
            with trio.fail_after(1):
                await place.get("/capabilities")
            await trio.sleep(0.2)
        assert place.memory - before < 64 * MIB + 8000 * (500 + 400)
        frames = await place.replay(session_id)
    assert frames[0].type == "state_resync_required"
    assert len(frames) == 8002


async def test_the_ring_is_bounded_by_bytes(tmp_path: Path) -> None:
    """C-097: growing updates; the reader gets them or is told. 80 MiB and a ring of 8 MiB, or 2 GiB and one of 256 MiB."""
    ring, count, size = (256 * MIB, 3000, 500) if SOAK else (8 * MIB, 400, 1000)
    async with server(tmp_path, "--ring-bytes", str(ring)) as place:
        session_id = await place.create()
        await place.run(session_id, "echo warm")
        before = place.memory
        async with place.events(session_id) as stream:
            prompt_id = await place.submit(session_id, steps(["growing", count, size]))
            cursor, told = 0, False
            try:
                while True:
                    frame = await stream.next()
                    cursor = frame.id or cursor
                    told = told or frame.type in ("client_evicted", "state_resync_required")
                    if frame.type in ("turn_complete", "client_evicted"):
                        break
            except EOFError:
                told = True
        while (await place.get(f"/session/{session_id}/prompts/{prompt_id}"))["state"] == "running":  # noqa: ASYNC110  # it is in another process
            await trio.sleep(0.2)
        assert place.memory - before < ring + 64 * MIB
        frames = await place.replay(session_id, 1)
        assert frames[0].type == "state_resync_required"
        assert told or cursor >= count


async def test_a_reader_that_never_reads(tmp_path: Path) -> None:
    """C-025: the stuck reader is cut off, the other gets all, memory stays, and comes back.

    2500 events of 8 KiB in short; 50 000 of 1 KiB, about 2000 a second, at length.
    """
    count, size, pause = (50_000, 1024, 0.5) if SOAK else (2500, 8192, 1)
    async with server(tmp_path) as place:
        session_id = await place.create()
        await place.run(session_id, "echo warm")
        before = place.memory
        async with place.events(session_id, receive_buffer=4096) as stuck, place.events(session_id) as healthy:
            await place.submit(session_id, steps(["say", "x" * size, count, pause]))
            with trio.fail_after(600 if SOAK else 60):
                frames = await healthy.until("turn_complete", "client_evicted")
            # On a busy machine it may be told that it is slow; it misses nothing.
            ids = [each.id for each in frames if each.type != "slow_client_warning"]
            first = frames[0].id or 0
            assert (len(ids), ids == list(range(first, first + count + 2))) == (count + 2, True)
            # The ring has the events, in two forms; nobody has a copy.
            assert place.memory - before < (64 * MIB if SOAK else 2500 * 2 * 8600 + 24 * MIB)
            await stuck.connection.wait_end(8)


async def test_ids_of_two_runs_differ(tmp_path: Path) -> None:
    """C-074, C-007: nothing of one run is known to the next."""
    async with server(tmp_path, agent=["demo"]) as place:
        first = await place.create()
    async with server(tmp_path, agent=["demo"]) as place:
        second = await place.create()
        for path in ("events", "status"):
            assert (await place.call("GET", f"/session/{first}/{path}")).status == 404
    assert first != second


async def test_a_variable_with_a_typing_mistake_is_told(tmp_path: Path) -> None:
    """Nobody would look for a setting that has no effect."""
    command = ["server", "--port", "0", "--workspace", str(tmp_path)]
    async with running(command, {"MOORLINE_PROT": "1"}) as process:
        assert process.urls, process.output
    (line,) = [each for each in process.lines if "unknown_variables" in each]
    assert "'MOORLINE_PROT'" in line
