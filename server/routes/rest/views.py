"""What can be looked at: status, context, commands, usage, transcript, providers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from quart import Blueprint, Response, request

from server.ground import Ground
from server.routes.body import json_response
from server.routes.rest.asking import client_header, known_session, session_of, whole_argument
from server.routes.rest.errors import INVALID_CURSOR, Refused
from server.routes.rest.history import compacted, held_events, raw
from server.routes.rest.summaries import summary
from server.routes.rest.usage import context_usage, session_stats
from sessions import Event, Session

__all__ = ["register"]

DEFAULT_PAGE: Final = 200
LARGEST_PAGE: Final = 1000
_EVENT_ID = re.compile(r"[0-9]{1,16}")


def register(routes: Blueprint, ground: Ground) -> None:
    _register_session_views(routes, ground)

    @routes.get("/session/<session_id>/transcript")
    async def transcript(session_id: str) -> Response:
        """The retained history in pages, text merged as for load; also of a closed session.

        ``cursor`` is an event id: pages go on after it, with ``direction=backward`` before it.
        """
        session = known_session(ground, session_id, client_header())
        limit = whole_argument("limit", DEFAULT_PAGE, 1, LARGEST_PAGE)
        cursor = _page_cursor()
        events = await compacted(held_events(session))
        backward = request.args.get("direction") == "backward"
        return json_response(_page(session, events, cursor, limit, backward=backward))

    @routes.get("/workspace/providers")
    async def providers() -> Response:
        """The models the sessions' agent offers, as far as a live session has told."""
        client_header()
        sessions: list[Session] = ground.engine.sessions
        models = next((each.state().get("models") for each in sessions if each.live), None)
        return json_response(_providers(ground, models if isinstance(models, Mapping) else {}))


def _register_session_views(routes: Blueprint, ground: Ground) -> None:
    @routes.get("/session/<session_id>/status")
    async def status(session_id: str) -> Response:
        """The session's summary (REST-041)."""
        return json_response(summary(session_of(ground, session_id, client_header())))

    @routes.get("/session/<session_id>/context")
    async def context(session_id: str) -> Response:
        """Models, modes and options as the agent has them."""
        session = session_of(ground, session_id, client_header())
        return json_response(
            {**_head(session), "recovery": {"kind": "clean", "canContinue": False}, "state": session.state()}
        )

    @routes.get("/session/<session_id>/supported-commands")
    async def commands(session_id: str) -> Response:
        """The commands the agent announced last."""
        session = session_of(ground, session_id, client_header())
        return json_response(
            {**_head(session), "availableCommands": session.available_commands or [], "availableSkills": []}
        )

    @routes.get("/session/<session_id>/context-usage")
    async def usage(session_id: str) -> Response:
        """Context window and tokens as the agent reported them last."""
        session = session_of(ground, session_id, client_header())
        return json_response({**_head(session), **context_usage(session)})

    @routes.get("/session/<session_id>/stats")
    async def stats(session_id: str) -> Response:
        """Counts of prompts and tool calls."""
        session = session_of(ground, session_id, client_header())
        return json_response({**_head(session), **session_stats(session)})


def _head(session: Session) -> dict[str, Any]:
    return {"v": 1, "sessionId": session.id, "workspaceCwd": session.cwd}


def _page_cursor() -> int | None:
    text = request.args.get("cursor")
    if not text:
        return None
    if _EVENT_ID.fullmatch(text) is None:
        raise Refused(INVALID_CURSOR, "`cursor` is not one this server gave out")
    return int(text)


def _page(
    session: Session, events: Sequence[Event], cursor: int | None, limit: int, *, backward: bool
) -> dict[str, Any]:
    body: dict[str, Any] = {"v": 1, "sessionId": session.id}
    if backward:
        before = [each for each in events if cursor is None or each.id < cursor]
        shown, more = before[-limit:], len(before) > limit
        edge = shown[0].id if shown else None
        body["hasOlder"] = more
    else:
        after = [each for each in events if cursor is None or each.id > cursor]
        shown, more = after[:limit], len(after) > limit
        edge = shown[-1].id if shown else None
    body.update(events=[raw(each) for each in shown], hasMore=more)
    if more and edge is not None:
        body["nextCursor"] = str(edge)
    if session.ring.waterline > 1:
        # What fell out of the ring is in no page.
        body["partial"] = True
    return body


def _providers(ground: Ground, models: Mapping[str, Any]) -> dict[str, Any]:
    current = models.get("currentModelId")
    offered = [each for each in models.get("availableModels") or () if isinstance(each, Mapping)]
    name = ground.engine.runner.name
    body: dict[str, Any] = {
        "v": 1,
        "workspaceCwd": ground.config.workspaces[0],
        "initialized": True,
        "acpChannelLive": bool(ground.engine.sessions),
        "providers": [
            {
                "kind": "model_provider",
                "status": "ok" if offered else "unknown",
                "authType": name,
                "current": True,
                "models": [_model(each, current) for each in offered],
            }
        ],
    }
    if current is not None:
        body["current"] = {"authType": name, "modelId": current}
    return body


def _model(model: Mapping[str, Any], current: object) -> dict[str, Any]:
    model_id = model.get("modelId") or model.get("id")
    return {
        "modelId": model_id,
        "baseModelId": model_id,
        "name": model.get("name") or model_id,
        "description": model.get("description"),
        "isCurrent": model_id == current,
        "isRuntime": False,
    }
