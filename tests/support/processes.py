"""Real server processes: started, read from, ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

__all__ = ["ROOT", "Process", "running"]

ROOT = Path(__file__).resolve().parents[2]
_URL = re.compile(r"(?:moorline listening on|Running on) (https?://\S+)")


@attrs.define
class Process:
    process: trio.Process
    lines: list[str] = attrs.field(factory=list)
    """Both outputs, as they come."""
    urls: list[str] = attrs.field(factory=list)
    listening: trio.Event = attrs.field(factory=trio.Event)
    silent: trio.Event = attrs.field(factory=trio.Event)
    """Set when all writers of its output have gone."""

    @property
    def port(self) -> int:
        return int(self.urls[0].rpartition(":")[2])

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def wait(self, within: float) -> int:
        """The exit code; with its children gone too, as far as they hold its output."""
        with trio.fail_after(within):
            code = await self.process.wait()
            await self.silent.wait()
        return code

    async def read(self) -> None:
        assert self.process.stdout is not None
        pending = b""
        async for data in self.process.stdout:
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                self._note(line.decode(errors="replace").rstrip())
        self._note(pending.decode(errors="replace"))
        self.silent.set()
        # Whoever waits for the address is to see that there will be none.
        self.listening.set()

    def _note(self, line: str) -> None:
        self.lines.append(line)
        found = _URL.search(line)
        if found:
            self.urls.append(found[1])
            self.listening.set()


@asynccontextmanager
async def running(
    command: Sequence[str], environ: Mapping[str, str] | None = None, *, cwd: Path = ROOT, start: float = 20.0
) -> AsyncIterator[Process]:
    """``python -m <command>`` until it listens or ends; killed with its process group at the end of the block."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MOORLINE_", "QWEN_"))}
    # Never a fixed port: another server of the suite, or of somebody else, may have it.
    env |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "MOORLINE_NNRP_PORT": "0", **(environ or {})}
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=env,
        start_new_session=True,
    )
    server = Process(process)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.read)
        try:
            with trio.fail_after(start):
                await server.listening.wait()
            yield server
        finally:
            if process.poll() is None or not server.silent.is_set():
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    server.silent.set()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await process.wait()
            nursery.cancel_scope.cancel()
