"""How an in-process handler speaks: one method per kind of session update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio

from server.backends.settings import Settings
from sessions.runner import PermissionOutcome, SessionHost

__all__ = ["ALLOW_OR_REJECT", "Emitter"]

_CHECKPOINT_EVERY: Final = 16
"""Events between two checkpoints: the port's contract, so that one busy handler does not starve the process."""
ALLOW_OR_REJECT: Final[Sequence[Mapping[str, str]]] = (
    {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
)


class Emitter:
    """Given to the handler with each operation.

    Every method is ``async`` and passes a checkpoint at least every 16 calls: a handler that only emits can still be
    cancelled, and leaves the others their turn.
    """

    def __init__(self, host: SessionHost, settings: Settings) -> None:
        self._host = host
        self._settings = settings
        self._since_checkpoint = 0

    @property
    def session_id(self) -> str:
        return self._host.session_id

    @property
    def cwd(self) -> str:
        """Absolute path of the workspace."""
        return self._host.cwd

    @property
    def mode(self) -> str | None:
        """The session's mode now; it may change while the handler runs."""
        return self._settings.mode

    @property
    def model(self) -> str | None:
        return self._settings.model

    async def update(self, update: Mapping[str, Any]) -> None:
        """Any session update, ``sessionUpdate`` included, as it is."""
        self._host.update(update)
        self._since_checkpoint += 1
        if self._since_checkpoint >= _CHECKPOINT_EVERY:
            await self.checkpoint()

    async def message(self, text: str, **fields: Any) -> None:
        """A piece of the answer. ``fields`` (``_meta`` for one) go into the update beside it."""
        await self._chunk("agent_message_chunk", text, fields)

    async def thought(self, text: str, **fields: Any) -> None:
        """A piece of reasoning."""
        await self._chunk("agent_thought_chunk", text, fields)

    async def plan(self, entries: Sequence[str | Mapping[str, Any]]) -> None:
        """The whole plan, each time. A plain string is an entry of medium priority, still to be done."""
        complete = [
            {"content": entry, "priority": "medium", "status": "pending"} if isinstance(entry, str) else entry
            for entry in entries
        ]
        await self.update({"sessionUpdate": "plan", "entries": complete})

    async def tool_call(
        self, tool_call_id: str, title: str, *, kind: str = "other", status: str = "pending", **fields: Any
    ) -> dict[str, Any]:
        """Announce a tool call; returns it as `ask_permission` wants it."""
        call = {"toolCallId": tool_call_id, "title": title, "kind": kind, "status": status, **fields}
        await self.update({"sessionUpdate": "tool_call", **call})
        return call

    async def tool_update(self, tool_call_id: str, status: str | None = None, **fields: Any) -> None:
        """News of a tool call: ``status`` is ``pending``, ``in_progress``, ``completed`` or ``failed``."""
        update = {"sessionUpdate": "tool_call_update", "toolCallId": tool_call_id, **fields}
        if status is not None:
            update["status"] = status
        await self.update(update)

    async def usage(self, used: int, size: int, **fields: Any) -> None:
        """Tokens in the context now, and how many fit."""
        await self.update({"sessionUpdate": "usage_update", "used": used, "size": size, **fields})

    async def ask_permission(
        self,
        tool_call: Mapping[str, Any],
        options: Sequence[Mapping[str, Any]] = ALLOW_OR_REJECT,
        *,
        meta: Mapping[str, Any] | None = None,
    ) -> PermissionOutcome:
        """Ask whoever is there and wait for the answer; nobody there, or a cancel, is the outcome ``cancelled``."""
        return await self._host.ask_permission(tool_call, options, meta=meta)

    async def checkpoint(self) -> None:
        """Let others run, and be cancelled if that is due."""
        self._since_checkpoint = 0
        await trio.lowlevel.checkpoint()

    async def _chunk(self, kind: str, text: str, fields: Mapping[str, Any]) -> None:
        await self.update({"sessionUpdate": kind, "content": {"type": "text", "text": text}, **fields})
