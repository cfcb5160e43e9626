"""Reading an agent's stdout and stderr to their ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from server.backends.acp_stdio.diagnostics import Diagnostics
from server.backends.acp_stdio.lines import LineSplitter

__all__ = ["CHECKPOINT_EVERY", "StdoutReader", "read_stderr"]

CHECKPOINT_EVERY: Final = 16
"""Events published between two checkpoints (the port's contract)."""
_READ: Final = 65536


class StdoutReader:
    """Cuts stdout into lines and hands them on; ``receive`` returns how many events a line published."""

    def __init__(self, receive: Callable[[bytes], int], diagnostics: Diagnostics) -> None:
        self._receive = receive
        self._diagnostics = diagnostics
        self._published = 0

    async def run(self, stream: trio.abc.ReceiveStream) -> None:
        """Read to the end and close the stream."""
        splitter = LineSplitter()
        try:
            async with stream:
                while chunk := await stream.receive_some(_READ):
                    await self._take(splitter.feed(chunk))
                    if splitter.overlong > self._diagnostics.overlong_lines:
                        self._diagnostics.overlong_lines = splitter.overlong
                        self._diagnostics.complain("agent_line_too_long", count=splitter.overlong)
        except trio.BrokenResourceError as error:
            self._diagnostics.note("agent_stdout_broken", error=str(error))
        if rest := splitter.finish():
            # Complete but for its newline, it is as good as any other line (C-047); otherwise it is noise, and says so.
            await self._take([rest])

    async def _take(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            try:
                weight = self._receive(line)
            except Exception as error:  # the barrier of one message: a fault in passing it on must not end the agent
                self._diagnostics.complain("agent_message_failed", error=repr(error))
                weight = 1
            self._published += weight
            if self._published >= CHECKPOINT_EVERY:
                self._published = 0
                await trio.lowlevel.checkpoint()
                if weight >= CHECKPOINT_EVERY:
                    # One pass more, and a task started for this message has run up to its first wait.
                    await trio.lowlevel.checkpoint()


async def read_stderr(stream: trio.abc.ReceiveStream, diagnostics: Diagnostics) -> None:
    """Read to the end and close the stream: a pipe nobody reads stops the agent (C-098)."""
    async with stream:
        try:
            while chunk := await stream.receive_some(_READ):
                diagnostics.stderr(bytes(chunk))
        except trio.BrokenResourceError as error:
            diagnostics.note("agent_stderr_broken", error=str(error))
