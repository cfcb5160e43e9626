"""The daemon's own methods that this server has (ACP-199): everything here is listed in ``initialize``."""

from __future__ import annotations

from typing import Any, Final

from server.routes.acp.dispatch import Call, Method
from server.routes.acp.errors import invalid_params
from server.routes.rest.usage import context_usage
from sessions import Session

__all__ = ["METHODS"]

LONGEST_NAME: Final = 256


def heartbeat(call: Call) -> dict[str, Any]:
    binding = call.binding
    seen = binding.session.heartbeat(binding.client_id)
    return {"sessionId": binding.session.id, "clientId": binding.client_id, "lastSeenAt": seen}


def detach(call: Call) -> dict[str, Any]:
    """The client leaves the session. What it still has running goes on for the length of the grace, for somebody to take
    over; without that there is nothing to keep."""
    binding = call.binding
    binding.session.drop_client(binding.client_id)
    binding.client_id = None
    if binding.prompts:
        binding.lose_stream()
    else:
        binding.end()
    return {"ok": True}


def context(call: Call) -> dict[str, Any]:
    session = call.binding.session
    return {
        **_head(session),
        "recovery": {"kind": "clean", "canContinue": False},
        "state": session.state(),
    }


def supported_commands(call: Call) -> dict[str, Any]:
    session = call.binding.session
    return {**_head(session), "availableCommands": session.available_commands or [], "availableSkills": []}


def usage(call: Call) -> dict[str, Any]:
    session = call.binding.session
    return {**_head(session), **context_usage(session)}


def update_metadata(call: Call) -> dict[str, Any]:
    binding = call.binding
    name = call.params.get("displayName")
    if name is None:
        shown = binding.session.display_name
        return {"sessionId": binding.session.id, **({} if shown is None else {"displayName": shown})}
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not name.isprintable():
        raise invalid_params(f"`displayName` must be a string of at most {LONGEST_NAME} printable characters")
    return binding.session.rename(name, binding.client_id)


def _head(session: Session) -> dict[str, Any]:
    return {"v": 1, "sessionId": session.id, "workspaceCwd": session.cwd}


METHODS: Final = {
    "_qwen/session/heartbeat": Method(handler=heartbeat),
    "_qwen/session/detach": Method(handler=detach, starts_events=False),
    "_qwen/session/context": Method(handler=context),
    "_qwen/session/supported_commands": Method(handler=supported_commands),
    "_qwen/session/context_usage": Method(handler=usage),
    "_qwen/session/update_metadata": Method(handler=update_metadata),
}
