"""Requests of an agent to us: permission goes to the session's host, files and terminals to its workspace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from server.backends.acp_stdio.client_methods import CLIENT_METHODS
from server.backends.acp_stdio.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    decode_json,
    error_line,
    result_line,
)
from server.backends.acp_stdio.workspace import MethodError

if TYPE_CHECKING:
    from server.backends.acp_stdio.child import Child
    from server.backends.acp_stdio.session import AcpAgentSession

__all__ = ["MAX_REQUESTS", "InboundRequests"]

MAX_REQUESTS: Final = 256
"""Requests of one agent in progress at once; the next is answered with an error."""
_PERMISSION: Final = "session/request_permission"
_PERMISSION_WEIGHT: Final = 16
"""A permission question counts as a full batch of events: the reader then pauses, and the question is published before
the updates behind it."""


class InboundRequests:
    """Serves each request in a task of its own, in the agent's nursery."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._running = 0

    def serve(self, number: Raw, method: str, params: Mapping[str, Raw]) -> int:
        if self._running >= MAX_REQUESTS:
            self._child.diagnostics.complain("agent_request_refused", method=method[:80])
            self._child.refuse(error_line(number, INTERNAL_ERROR, f"too many requests (limit {MAX_REQUESTS})"))
            return 0
        self._running += 1
        self._child.nursery.start_soon(self._serve, number, method, params)
        return _PERMISSION_WEIGHT if method == _PERMISSION else 0

    async def _serve(self, number: Raw, method: str, params: Mapping[str, Raw]) -> None:
        try:
            line = result_line(number, await self._result(method, params))
        except MethodError as error:
            line = error_line(number, error.code, error.message, error.data)
        except Exception as error:  # the barrier of one request: a fault in serving it must not end the agent
            self._child.diagnostics.complain("agent_request_failed", method=method[:80], error=repr(error))
            line = error_line(number, INTERNAL_ERROR, "Internal error")
        finally:
            self._running -= 1
        await self._child.peer.reply(line)

    async def _result(self, method: str, params: Mapping[str, Raw]) -> dict[str, Any]:
        session = self._child.session_for(params)
        if method == _PERMISSION:
            return await self._permission(session, params)
        serve = CLIENT_METHODS.get(method)
        if serve is None or not self._child.offers(method):
            # Also for extensions: an agent must get an answer, or its turn stalls.
            raise MethodError(METHOD_NOT_FOUND, f"Method not found: {method}", {"method": method})
        if session is None:
            raise MethodError(INVALID_PARAMS, "unknown sessionId")
        return await serve(session.client_methods, params)

    async def _permission(self, session: AcpAgentSession | None, params: Mapping[str, Raw]) -> dict[str, Any]:
        if session is None:
            return {"outcome": {"outcome": "cancelled"}}
        tool_call = params.get("toolCall", Raw(b"{}"))
        meta = _decoded(params, "_meta", dict)
        outcome = await session.host.ask_permission(tool_call, _options(params), meta=meta)
        result: dict[str, Any] = {"outcome": outcome.as_json()}
        if outcome.answers is not None:
            result["answers"] = outcome.answers
        if outcome.meta is not None:
            result["_meta"] = outcome.meta
        return result


def _options(params: Mapping[str, Raw]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] | None = _decoded(params, "options", list)
    if listed is None or not all(isinstance(item, dict) and isinstance(item.get("optionId"), str) for item in listed):
        raise MethodError(INVALID_PARAMS, "`options` must be a list of objects with an optionId")
    return listed


def _decoded(params: Mapping[str, Raw], name: str, kind: type) -> Any:
    raw = params.get(name)
    try:
        value = decode_json(raw) if raw is not None else None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MethodError(INVALID_PARAMS, f"`{name}`: {error}") from error
    return value if isinstance(value, kind) else None
