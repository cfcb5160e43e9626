"""What REST tells about a session: the answer of create and load, and the summary of lists and status."""

from __future__ import annotations

from typing import Any

from server.routes.rest.asking import timestamp
from sessions import Session, StoredSession
from sessions.events import decode
from sessions.permissions import PendingPermission

__all__ = ["entry_summary", "opened_body", "summary"]


def opened_body(session: Session, *, attached: bool, client_id: str) -> dict[str, Any]:
    """REST-022; ``hasActivePrompt`` is told where the session may have one."""
    body: dict[str, Any] = {
        "sessionId": session.id,
        "workspaceCwd": session.cwd,
        "attached": attached,
        "clientId": client_id,
        "createdAt": timestamp(session.created_at),
        "eventEpoch": session.ring.epoch,
        **session.source,
    }
    if attached:
        body["hasActivePrompt"] = session.prompts.count > 0
        body["hasRunningBackgroundTasks"] = False
    return body


def summary(session: Session) -> dict[str, Any]:
    """REST-041. A closed session has no live fields."""
    body: dict[str, Any] = {
        "sessionId": session.id,
        "workspaceCwd": session.cwd,
        "createdAt": timestamp(session.created_at),
        "updatedAt": timestamp(session.updated_at),
        "clientCount": len(session.clients),
        "hasActivePrompt": session.prompts.count > 0,
        "isArchived": False,
        **session.source,
    }
    if session.display_name is not None:
        body["displayName"] = session.display_name
    if session.title_source is not None:
        body["titleSource"] = session.title_source
    if session.live:
        body.update(_live_fields(session))
    return body


def entry_summary(entry: Session | StoredSession) -> dict[str, Any]:
    """One entry of a list, whoever has it."""
    return summary(entry) if isinstance(entry, Session) else _stored_summary(entry)


def _stored_summary(stored: StoredSession) -> dict[str, Any]:
    """A session only the agent has."""
    body: dict[str, Any] = {
        "sessionId": stored.agent_session_id,
        "workspaceCwd": stored.cwd,
        "clientCount": 0,
        "hasActivePrompt": False,
        "isArchived": False,
    }
    if stored.title is not None:
        body["displayName"] = stored.title
    if stored.updated_at is not None:
        # The agent tells no more than the last change; creation cannot have been later.
        body["createdAt"] = body["updatedAt"] = stored.updated_at
    return body


def _live_fields(session: Session) -> dict[str, Any]:
    pending = session.permissions.pending
    fields: dict[str, Any] = {
        "activeWorkState": "active" if session.prompts.count else "idle",
        "hasRunningBackgroundTasks": False,
        "isWaitingForPermission": bool(pending),
        "isWaitingForUserQuestion": False,
        "pendingInteractionCount": len(pending),
        "hasTurnError": session.turn_error is not None,
        "pendingInteractions": [_interaction(each) for each in pending],
    }
    if session.turn_error is not None:
        fields["turnError"] = {key: value for key, value in session.turn_error.items() if key != "sessionId"}
    return fields


def _interaction(pending: PendingPermission) -> dict[str, Any]:
    asked = _asked(pending)
    call = asked.get("toolCall")
    call = call if isinstance(call, dict) else {}
    action = {
        "type": call.get("kind"),
        "title": call.get("title"),
        "content": call.get("content"),
        "locations": call.get("locations"),
        "input": call.get("rawInput"),
    }
    body: dict[str, Any] = {
        "requestId": pending.request_id,
        "kind": "permission",
        "action": {key: value for key, value in action.items() if value is not None},
        "options": [_option(each) for each in asked.get("options") or () if isinstance(each, dict)],
    }
    if pending.event is not None:
        body["createdAt"] = timestamp(pending.event.timestamp)
    return body


def _asked(pending: PendingPermission) -> dict[str, Any]:
    try:
        value = decode(pending.event.data) if pending.event is not None else {}
    except ValueError:
        # An agent's text the decoder refuses (a lone surrogate): the list does without it.
        return {}
    return value if isinstance(value, dict) else {}


def _option(option: dict[str, Any]) -> dict[str, Any]:
    return {"optionId": option.get("optionId"), "label": option.get("name"), "kind": option.get("kind")}
