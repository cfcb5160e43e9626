"""The end of a process and of everything it started in its group (C-066, C-067)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import trio

__all__ = ["KILL_WAIT", "end_bound", "end_group", "group_alive", "signal_group", "signal_name"]

_POLL: Final = 0.02
KILL_WAIT: Final = 1.0
"""Seconds a killed group gets to be gone. SIGKILL cannot be ignored; only a process stuck in the kernel takes longer."""


def signal_name(returncode: int | None) -> str | None:
    """``SIGKILL`` for -9; None when the process left by itself."""
    if returncode is None or returncode >= 0:
        return None
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"SIG{-returncode}"


def signal_group(group: int, number: signal.Signals) -> bool:
    """Signal every process of the group. False when there is none."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Members that changed their user cannot be signalled by us; macOS also says this of zombies.
        return False
    return True


def group_alive(group: int) -> bool:
    """Whether a process of the group still runs.

    A zombie does not run, but answers signals for as long as its parent does not collect it, and an orphan's new parent
    may take its time. Where there is a /proc, its word counts.
    """
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    if not os.path.isdir("/proc/self"):
        return True
    return any(_runs_in(entry, group) for entry in os.listdir("/proc") if entry.isdigit())


def _runs_in(pid: str, group: int) -> bool:
    try:
        text = Path("/proc", pid, "stat").read_bytes()
    except OSError:
        return False
    # The name, in parentheses, may hold anything; state, parent and group follow its last parenthesis.
    state, _, found = text.rpartition(b")")[2].split()[:3]
    return int(found) == group and state not in (b"Z", b"X")


async def end_group(process: trio.Process, grace: float, *, patience: float = 0.0) -> None:
    """SIGTERM to the process's group, SIGKILL ``grace`` seconds from now, and the process collected.

    ``patience``: seconds of the grace in which the process may leave by itself, for instance because its stdin has ended;
    then it can put away what it wants to keep. The process must lead its group (``start_new_session``). To be called under a
    shield with a deadline `end_bound` seconds away, for it must happen also when everything else has been cancelled.
    """
    with trio.move_on_after(grace) as in_time:
        with trio.move_on_after(patience):
            await process.wait()
        signal_group(process.pid, signal.SIGTERM)
        await process.wait()
        while group_alive(process.pid):  # noqa: ASYNC110 - the kernel tells nobody that a group has ended
            await trio.sleep(_POLL)
    if in_time.cancelled_caught:
        signal_group(process.pid, signal.SIGKILL)
        await process.wait()


def end_bound(grace: float) -> float:
    """The seconds `end_group` takes at most."""
    return grace + KILL_WAIT
