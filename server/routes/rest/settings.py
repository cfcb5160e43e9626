"""Model, approval mode, metadata (rest.md section 9)."""

from __future__ import annotations

from typing import Any, Final

from quart import Blueprint, Response

from server.ground import Ground
from server.routes.body import json_response, read_json_object
from server.routes.rest.asking import client_header, session_of
from server.routes.rest.errors import BAD_FIELD, INVALID_APPROVAL_MODE, INVALID_METADATA, Refused
from sessions import Session

__all__ = ["allowed_modes", "register"]

LONGEST_NAME: Final = 256
_MODES: Final = ("plan", "default", "auto-edit", "auto", "yolo")
"""ACP-192, for an agent that does not say which modes it has."""


def register(routes: Blueprint, ground: Ground) -> None:
    @routes.post("/session/<session_id>/model")
    async def model(session_id: str) -> Response:
        """Switch the model (REST-120)."""
        body = await read_json_object()
        client_id = client_header()
        model_id = body.get("modelId")
        if not isinstance(model_id, str) or not model_id.strip():
            raise Refused(BAD_FIELD, "`modelId` is required and must be a non-empty string")
        session = session_of(ground, session_id, client_id)
        result = await session.set_model(model_id, client_id)
        return json_response({"sessionId": session.id, "modelId": model_id, **(result or {})})

    @routes.post("/session/<session_id>/approval-mode")
    async def approval_mode(session_id: str) -> Response:
        """Switch the approval mode (REST-121)."""
        body = await read_json_object()
        client_id = client_header()
        session = session_of(ground, session_id, client_id)
        mode = body.get("mode")
        allowed = allowed_modes(session)
        if not isinstance(mode, str) or mode not in allowed:
            raise Refused(INVALID_APPROVAL_MODE, f"`mode` must be one of {', '.join(allowed)}", allowed=allowed)
        return json_response(await session.set_mode(mode, client_id))

    @routes.patch("/session/<session_id>/metadata")
    async def metadata(session_id: str) -> Response:
        """Name the session (REST-122)."""
        body = await read_json_object()
        client_id = client_header()
        name = _display_name(body)
        session = session_of(ground, session_id, client_id)
        answer: dict[str, Any] = {"sessionId": session.id}
        if name is not None:
            answer = session.rename(name, client_id)
        elif session.display_name is not None:
            answer["displayName"] = session.display_name
        return json_response(answer)


def allowed_modes(session: Session) -> list[str]:
    """The ids of the modes the agent offers in this session."""
    offered = (session.state().get("modes") or {}).get("availableModes")
    ids = [each.get("id") for each in offered or () if isinstance(each, dict)]
    return [each for each in ids if isinstance(each, str)] or list(_MODES)


def _display_name(body: dict[str, Any]) -> str | None:
    name = body.get("displayName")
    if name is None:
        return None
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not name.isprintable():
        raise Refused(
            INVALID_METADATA,
            f"`displayName` must be a string of at most {LONGEST_NAME} printable characters",
            field="displayName",
        )
    return name
