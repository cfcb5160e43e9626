"""Shorthand for tests that put the scripted agent behind `AcpAgentRunner`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from server.backends.acp_stdio import AcpAgentRunner
from sessions.operation import Operation
from sessions.runner import RunnerSession
from tests.support import scripted_agent
from tests.support.fake_host import FakeHost, open_session, prompt, running

__all__ = ["Desk", "alive", "scripted_runner", "scripted_session", "until", "wait_gone"]


def scripted_runner(options: dict[str, Any] | None = None, **settings: Any) -> AcpAgentRunner:
    """A runner for the scripted agent; ``options`` are the agent's, the rest is the runner's."""
    return AcpAgentRunner(scripted_agent.command(**(options or {})), name="scripted", **settings)


class Desk:
    """A runner, one session on it, its host, and a nursery for turns in the background."""

    def __init__(self, runner: AcpAgentRunner, host: FakeHost, session: RunnerSession, nursery: trio.Nursery) -> None:
        self.runner = runner
        self.host = host
        self.session = session
        self.nursery = nursery
        self.ends: dict[str, Any] = {}

    def begin(self, text: str) -> Operation:
        """Run a prompt in the background; its result or exception lands in ``ends``."""
        operation = prompt(text)
        self.nursery.start_soon(self._run, operation)
        return operation

    async def _run(self, operation: Operation) -> None:
        try:
            with operation.scope:
                self.ends[str(operation.id)] = await self.session.run(operation)
        except Exception as error:
            self.ends[str(operation.id)] = error
        finally:
            self.ends.setdefault(str(operation.id), "cancelled")
            self.host._tell()

    async def end_of(self, operation: Operation, within: float = 10.0) -> Any:
        await self.host.wait_for(lambda: str(operation.id) in self.ends, within)
        return self.ends[str(operation.id)]


@asynccontextmanager
async def scripted_session(
    cwd: str | Path = "/", options: dict[str, Any] | None = None, *, host: FakeHost | None = None, **settings: Any
) -> AsyncIterator[Desk]:
    runner = scripted_runner(options, **settings)
    host = host if host is not None else FakeHost(str(cwd))
    async with running(runner), trio.open_nursery() as nursery:
        yield Desk(runner, host, await open_session(runner, host), nursery)
        nursery.cancel_scope.cancel()


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return text.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def zombies_of(parent: int) -> list[int]:
    """Dead children of a process that nobody has collected."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            state, ppid = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state == b"Z" and int(ppid) == parent:
            found.append(int(entry))
    return found


async def until(condition: Any, within: float = 5.0) -> None:
    """Look every 10 ms. For what happens outside this process and cannot be waited for."""
    with trio.fail_after(within):
        while not condition():  # noqa: ASYNC110 - another process's state has no event
            await trio.sleep(0.01)


async def wait_gone(*pids: int, within: float = 5.0) -> None:
    await until(lambda: not any(alive(pid) for pid in pids), within)
