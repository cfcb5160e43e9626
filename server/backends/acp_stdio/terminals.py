"""Terminals an agent asks for: commands run in the workspace, their output kept up to a bound, all gone with the session."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio

from server.backends.acp_stdio.messages import INTERNAL_ERROR, INVALID_PARAMS, RESOURCE_NOT_FOUND
from server.backends.acp_stdio.process_group import end_bound, end_group, signal_name
from server.backends.acp_stdio.spawn import inherited_environment
from server.backends.acp_stdio.workspace import MethodError

__all__ = ["MAX_TERMINALS", "OUTPUT_LIMIT", "Terminal", "Terminals"]

MAX_TERMINALS: Final = 32
"""Terminals of one session that exist at once; a released one does not count."""
OUTPUT_LIMIT: Final = 2**20
"""Bytes of output a terminal keeps, and the most an agent may ask for."""
_KILL_GRACE: Final = 1.0
_OUTPUT_WAIT: Final = 0.25
"""Seconds the output of an ended command may still come: a grandchild can hold the pipe for ever."""


class Terminal:
    """One command. ``ended`` is set when its exit status is known and its output read."""

    def __init__(self, process: trio.Process, limit: int) -> None:
        self.process = process
        self.ended = trio.Event()
        self._kill = trio.Event()
        self._limit = limit
        self._output = bytearray()
        self._truncated = False

    def output(self) -> dict[str, Any]:
        """``{output, truncated, exitStatus?}``. The oldest output goes first, at a character boundary."""
        start = max(0, len(self._output) - self._limit)
        while start < len(self._output) and start > 0 and self._output[start] & 0xC0 == 0x80:
            start += 1
        result: dict[str, Any] = {
            "output": self._output[start:].decode("utf-8", "replace"),
            "truncated": self._truncated or start > 0,
        }
        if self.ended.is_set():
            result["exitStatus"] = self.exit_status()
        return result

    def exit_status(self) -> dict[str, Any]:
        code = self.process.returncode
        return {"exitCode": code if code is not None and code >= 0 else None, "signal": signal_name(code)}

    def kill(self) -> None:
        self._kill.set()

    async def run(self) -> None:
        """Read the output until the command ends or is killed; leaves no process of its group."""
        try:
            async with trio.open_nursery() as nursery:
                output_read = trio.Event()
                nursery.start_soon(self._read, output_read)
                nursery.start_soon(self._stop_when_killed, nursery.cancel_scope)
                await self.process.wait()
                with trio.move_on_after(_OUTPUT_WAIT):
                    await output_read.wait()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + end_bound(_KILL_GRACE)):
                await end_group(self.process, _KILL_GRACE)
            self.ended.set()

    async def _stop_when_killed(self, scope: trio.CancelScope) -> None:
        await self._kill.wait()
        scope.cancel()

    async def _read(self, done: trio.Event) -> None:
        stream = self.process.stdout
        assert stream is not None
        async with stream:
            while chunk := await stream.receive_some(65536):
                self._output += chunk
                if len(self._output) > 2 * self._limit:
                    del self._output[: len(self._output) - self._limit]
                    self._truncated = True
        done.set()


class Terminals:
    """The terminals of one session. They run in the nursery given, which is the agent process's own."""

    def __init__(self, cwd: str, nursery: trio.Nursery) -> None:
        self._cwd = cwd
        self._nursery = nursery
        self._terminals: dict[str, Terminal] = {}
        self._closed = trio.Event()

    async def create(
        self, command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None, limit: int | None
    ) -> str:
        """Start a command, return the terminal's id. Without arguments the command is a shell line unless it names a program."""
        if self._closed.is_set() or len(self._terminals) >= MAX_TERMINALS:
            raise MethodError(INTERNAL_ERROR, f"too many terminals (limit {MAX_TERMINALS})")
        terminal_id = f"term-{uuid.uuid4()}"
        argv = [command, *args] if args or shutil.which(command) else ["/bin/sh", "-c", command]
        try:
            process = await trio.lowlevel.open_process(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=cwd or self._cwd,
                env=inherited_environment() | dict(env),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise MethodError(INVALID_PARAMS, f"cannot start {command!r}: {error}") from error
        bounded = OUTPUT_LIMIT if limit is None else min(limit, OUTPUT_LIMIT)
        terminal = self._terminals[terminal_id] = Terminal(process, bounded)
        self._nursery.start_soon(terminal.run)
        if self._closed.is_set():
            # The session ended while the process started.
            terminal.kill()
        return terminal_id

    def get(self, terminal_id: str) -> Terminal:
        try:
            return self._terminals[terminal_id]
        except KeyError:
            raise MethodError(RESOURCE_NOT_FOUND, f"no terminal {terminal_id}") from None

    def release(self, terminal_id: str) -> None:
        """Kill what runs and forget the terminal."""
        self.get(terminal_id).kill()
        del self._terminals[terminal_id]

    def close(self) -> None:
        """Kill all; nothing new starts."""
        self._closed.set()
        for terminal in self._terminals.values():
            terminal.kill()
        self._terminals.clear()
