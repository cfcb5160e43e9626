"""How a session is asked for, and what the answer says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from server.backends.acp_stdio.messages import decode_json
from sessions.errors import RunnerError
from sessions.runner import SessionSpec

__all__ = ["opening_request", "opening_result", "session_id_in"]


def opening_request(spec: SessionSpec) -> tuple[str, dict[str, Any]]:
    """Method and params of session/new, load, resume or fork."""
    params: dict[str, Any] = {"cwd": spec.cwd, "mcpServers": list(spec.mcp_servers)}
    meta = dict(spec.meta or {})
    if spec.start == "new":
        if spec.agent_session_id is not None:
            # The reference agent takes the caller's id from here; others ignore it.
            meta["qwen-code/sessionId"] = spec.agent_session_id
    else:
        params["sessionId"] = spec.agent_session_id
    if meta:
        params["_meta"] = meta
    return f"session/{spec.start}", params


def opening_result(raw: Raw) -> dict[str, Raw]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Raw])
    except msgspec.MsgspecError as error:
        raise RunnerError(f"The agent's answer is malformed: {error}", error_kind="protocol_error") from error


def session_id_in(result: Mapping[str, Raw]) -> str:
    found = decode_json(result["sessionId"]) if "sessionId" in result else None
    if not isinstance(found, str) or not found:
        raise RunnerError("The agent answered without a sessionId", error_kind="protocol_error")
    return found
