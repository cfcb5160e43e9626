"""Sessions: create, load, resume, close, detach, delete, branch (rest.md section 4)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import Any, Final, Literal

from quart import Blueprint, Response

from server.ground import Ground
from server.routes.body import json_response, no_content, read_json_object
from server.routes.rest.asking import canonical_id, client_header, optional_text, session_of
from server.routes.rest.errors import (
    BAD_FIELD,
    INVALID_APPROVAL_MODE,
    INVALID_SESSION_ID,
    INVALID_SESSION_SCOPE,
    Refused,
)
from server.routes.rest.history import replay_of
from server.routes.rest.settings import allowed_modes
from server.routes.rest.summaries import opened_body
from sessions import EndReason, Opened
from sessions.errors import RunnerError, SessionNotFound

__all__ = ["register"]

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_STORABLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
MOST_DELETED: Final = 100


def register(routes: Blueprint, ground: Ground) -> None:
    _register_openers(routes, ground)
    _register_endings(routes, ground)

    @routes.post("/session/<session_id>/heartbeat")
    async def heartbeat(session_id: str) -> Response:
        """Say that the caller is still there (REST-053)."""
        await read_json_object()
        client_id = client_header()
        session = session_of(ground, session_id, client_id)
        seen = session.heartbeat(client_id)
        body: dict[str, Any] = {"sessionId": session.id, "lastSeenAt": seen}
        if client_id is not None:
            body["clientId"] = client_id
        return json_response(body)


def _register_openers(routes: Blueprint, ground: Ground) -> None:
    @routes.post("/session")
    async def create() -> Response:
        """A new session, or the workspace's shared one (REST-020 to REST-026)."""
        body = await read_json_object()
        client_id = client_header()
        session_id = _caller_id(body)
        shared = _scope(body) == "single" and session_id is None
        mode, model = _approval_mode(body), optional_text(body, "modelServiceId")
        opened: Opened = await ground.engine.create(
            _cwd(body), shared=shared, session_id=session_id, source=_source(body)
        )
        async with _undone_on_failure(opened):
            await _apply_mode(opened, mode)
            model_applied = await _apply_model(opened, model)
        answer = opened_body(opened.session, attached=opened.attached, client_id=_keep_client(opened, client_id))
        if model_applied is not None:
            answer["modelApplied"] = model_applied
        return json_response(answer)

    @routes.post("/session/<session_id>/load")
    async def load(session_id: str) -> Response:
        """Attach to a session, or bring it back, with its history (REST-030 to REST-033)."""
        return await _restore(ground, session_id, "load")

    @routes.post("/session/<session_id>/resume")
    async def resume(session_id: str) -> Response:
        """The same without history (REST-030 to REST-033)."""
        return await _restore(ground, session_id, "resume")

    @routes.post("/session/<session_id>/branch")
    async def branch(session_id: str) -> Response:
        """A new session that goes on from this one; waits its turn and takes no slot (REST-123)."""
        body = await read_json_object()
        client_id = client_header()
        name = optional_text(body, "name")
        session = session_of(ground, session_id, client_id)
        opened: Opened = await ground.engine.fork(session, display_name=name)
        answer = opened_body(opened.session, attached=False, client_id=opened.client_id)
        answer["displayName"] = opened.session.display_name
        answer["sourceSessionId"] = session.id
        return json_response(answer)


def _register_endings(routes: Blueprint, ground: Ground) -> None:
    @routes.delete("/session/<session_id>")
    async def close(session_id: str) -> Response:
        """Close the session for everybody (REST-050)."""
        client_id = client_header()
        session = session_of(ground, session_id, client_id)
        await session.close(EndReason.CLIENT_CLOSE, client_id)
        return no_content()

    @routes.post("/session/<session_id>/detach")
    async def detach(session_id: str) -> Response:
        """Forget the caller's client id (REST-051)."""
        await read_json_object()
        client_id = client_header()
        session_of(ground, session_id, client_id).drop_client(client_id)
        return no_content()

    @routes.post("/sessions/delete")
    async def delete() -> Response:
        """Close sessions and forget what is kept of them (REST-052).

        What only the agent has stored is not ours to delete.
        """
        body = await read_json_object()
        client_header()
        ids = body.get("sessionIds")
        if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
            raise Refused(BAD_FIELD, "`sessionIds` must be an array of strings")
        if not 1 <= len(ids) <= MOST_DELETED:
            raise Refused(BAD_FIELD, f"`sessionIds` must have 1 to {MOST_DELETED} entries")
        removed: list[str] = []
        missing: list[str] = []
        for each in dict.fromkeys(canonical_id(each) for each in ids):
            (removed if await ground.engine.remove(each) else missing).append(each)
        return json_response({"removed": removed, "notFound": missing, "errors": []})


async def _restore(ground: Ground, session_id: str, action: Literal["load", "resume"]) -> Response:
    """REST-030 to REST-033."""
    body = await read_json_object()
    client_id = client_header()
    cwd = _cwd(body)
    mode = _approval_mode(body)
    wanted = canonical_id(session_id)
    if _STORABLE_ID.fullmatch(wanted) is None:
        # It goes to an agent that may make a file name of it.
        raise SessionNotFound(wanted)
    opened: Opened = await ground.engine.restore(wanted, action, cwd, mode)
    session = opened.session
    answer: dict[str, Any] = {}
    if action == "load":
        async with _undone_on_failure(opened):
            answer.update(await replay_of(session, ground.config.replay_bytes))
    else:
        answer.update(lastEventId=session.ring.head, eventEpoch=session.ring.epoch)
    answer["state"] = session.state()
    answer.update(opened_body(session, attached=opened.attached, client_id=_keep_client(opened, client_id)))
    answer["hasActivePrompt"] = session.prompts.count > 0
    answer["hasRunningBackgroundTasks"] = False
    return json_response(answer)


@asynccontextmanager
async def _undone_on_failure(opened: Opened) -> AsyncIterator[None]:
    """Whatever ends this block early, the caller's going away included, leaves no session nobody knows of (REST-026)."""
    try:
        yield
    except BaseException:
        if opened.attached:
            opened.session.drop_client(opened.client_id)
        else:
            opened.session.close_soon(EndReason.ABANDONED)
        raise


def _keep_client(opened: Opened, client_id: str | None) -> str:
    """A client that comes back under an id this session knows keeps it; any other gets a new one."""
    if client_id is None or client_id not in opened.session.clients:
        return opened.client_id
    opened.session.drop_client(opened.client_id)
    opened.session.heartbeat(client_id)
    return client_id


async def _apply_mode(opened: Opened, mode: str | None) -> None:
    """The mode a new session is to start in. One that others share keeps what it has."""
    if mode is None or opened.attached:
        return
    allowed = allowed_modes(opened.session)
    if mode not in allowed:
        raise Refused(INVALID_APPROVAL_MODE, f"`approvalMode` must be one of {', '.join(allowed)}", allowed=allowed)
    await opened.session.set_mode(mode, opened.client_id)


async def _apply_model(opened: Opened, model: str | None) -> bool | None:
    """Whether the model was switched; None when none was asked for. A model that cannot be had is told, not fatal."""
    if model is None:
        return None
    try:
        await opened.session.set_model(model, opened.client_id)
    except RunnerError:
        return False
    return True


def _cwd(body: dict[str, Any]) -> str | None:
    cwd = body.get("cwd")
    if cwd is None:
        return None
    if not isinstance(cwd, str) or "\0" in cwd or not PurePath(cwd).is_absolute():
        raise Refused(BAD_FIELD, "`cwd` must be an absolute path when provided")
    return cwd


def _scope(body: dict[str, Any]) -> str:
    scope = body.get("sessionScope")
    if scope is None:
        return "single"
    if scope not in ("single", "thread"):
        raise Refused(INVALID_SESSION_SCOPE, '`sessionScope` must be "single" or "thread" when provided')
    return str(scope)


def _caller_id(body: dict[str, Any]) -> str | None:
    given = body.get("sessionId")
    if given is None:
        return None
    if not isinstance(given, str) or _UUID.fullmatch(given.lower()) is None:
        raise Refused(
            INVALID_SESSION_ID,
            '`sessionId` must be an RFC UUID v1-v5 (e.g. "550e8400-e29b-41d4-a716-446655440000")',
        )
    return given.lower()


def _source(body: dict[str, Any]) -> dict[str, str]:
    given = {field: optional_text(body, field) for field in ("sourceType", "sourceId")}
    return {field: text for field, text in given.items() if text is not None}


def _approval_mode(body: dict[str, Any]) -> str | None:
    mode = body.get("approvalMode")
    if mode is None:
        return None
    if not isinstance(mode, str) or not mode:
        raise Refused(INVALID_APPROVAL_MODE, "`approvalMode` must be a non-empty string when provided")
    return mode
