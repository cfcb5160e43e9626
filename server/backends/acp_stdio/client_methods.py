"""What an agent may ask its client for: files and terminals of the workspace, served here and never by a wire (ACP-198)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
import trio
from msgspec import Raw

from server.backends.acp_stdio.messages import INVALID_PARAMS
from server.backends.acp_stdio.terminals import Terminals
from server.backends.acp_stdio.workspace import MethodError, Workspace

__all__ = ["CLIENT_METHODS", "ClientMethods"]

_Value = TypeVar("_Value")
_FILE_THREADS: Final = trio.CapacityLimiter(8)
"""Threads that read and write files for all agents: a slow disk must not take every thread of the process."""


def _take(params: Mapping[str, Raw], name: str, kind: type[_Value]) -> _Value:
    value = _take_optional(params, name, kind)
    if value is None:
        raise MethodError(INVALID_PARAMS, f"`{name}` is required")
    return value


def _take_optional(params: Mapping[str, Raw], name: str, kind: type[_Value]) -> _Value | None:
    raw = params.get(name)
    if raw is None or bytes(raw) == b"null":
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise MethodError(INVALID_PARAMS, f"`{name}`: {error}") from error


class _Variable(msgspec.Struct):
    name: str
    value: str


class ClientMethods:
    """The client side of one session. Each method takes the request's params and returns its result."""

    def __init__(self, cwd: str, nursery: trio.Nursery) -> None:
        self._workspace = Workspace(cwd)
        self.terminals = Terminals(self._workspace.root, nursery)

    async def read_text_file(self, params: Mapping[str, Raw]) -> dict[str, Any]:
        path = _take(params, "path", str)
        line, limit = _take_optional(params, "line", int), _take_optional(params, "limit", int)
        text = await trio.to_thread.run_sync(self._workspace.read_text, path, line, limit, limiter=_FILE_THREADS)
        return {"content": text}

    async def write_text_file(self, params: Mapping[str, Raw]) -> dict[str, Any]:
        path, content = _take(params, "path", str), _take(params, "content", str)
        await trio.to_thread.run_sync(self._workspace.write_text, path, content, limiter=_FILE_THREADS)
        return {}

    async def create_terminal(self, params: Mapping[str, Raw]) -> dict[str, Any]:
        cwd = _take_optional(params, "cwd", str)
        if cwd is not None:
            cwd = f"{self._workspace.root}/{self._workspace.resolve(cwd)}"
        terminal_id = await self.terminals.create(
            _take(params, "command", str),
            _take_optional(params, "args", list[str]) or (),
            {item.name: item.value for item in _take_optional(params, "env", list[_Variable]) or ()},
            cwd,
            _take_optional(params, "outputByteLimit", int),
        )
        return {"terminalId": terminal_id}

    async def terminal_output(self, params: Mapping[str, Raw]) -> dict[str, Any]:
        return self.terminals.get(_take(params, "terminalId", str)).output()

    async def wait_for_exit(self, params: Mapping[str, Raw]) -> dict[str, Any]:
        terminal = self.terminals.get(_take(params, "terminalId", str))
        await terminal.ended.wait()
        return terminal.exit_status()

    async def kill_terminal(self, params: Mapping[str, Raw]) -> dict[str, Any]:
        self.terminals.get(_take(params, "terminalId", str)).kill()
        return {}

    async def release_terminal(self, params: Mapping[str, Raw]) -> dict[str, Any]:
        self.terminals.release(_take(params, "terminalId", str))
        return {}


CLIENT_METHODS: Final[dict[str, Callable[[ClientMethods, Mapping[str, Raw]], Awaitable[dict[str, Any]]]]] = {
    "fs/read_text_file": ClientMethods.read_text_file,
    "fs/write_text_file": ClientMethods.write_text_file,
    "terminal/create": ClientMethods.create_terminal,
    "terminal/output": ClientMethods.terminal_output,
    "terminal/wait_for_exit": ClientMethods.wait_for_exit,
    "terminal/kill": ClientMethods.kill_terminal,
    "terminal/release": ClientMethods.release_terminal,
}
