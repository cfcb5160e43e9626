"""``GET /workspace/:cwd/sessions``: live, closed and stored sessions in one list (rest.md 4.3)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import attrs
import trio
from quart import Blueprint, Response, request

from server.ground import Ground
from server.routes.body import json_response
from server.routes.rest.asking import client_header, whole_argument
from server.routes.rest.errors import INVALID_CURSOR, Refused
from server.routes.rest.summaries import stored_summary, summary, updated_ms
from server.telemetry import log
from sessions import Session, SessionError, StoredSession

__all__ = ["register"]

DEFAULT_SIZE: Final = 20
LARGEST_SIZE: Final = 1000
_AGENT_PATIENCE: Final = 5.0
"""Seconds an agent may take to list what it has stored; a list must not hang on it."""
_CURSOR = re.compile(r"([0-9]{1,16})\.(.{1,128})")
_FILTERS: Final = ("sourceType", "sourceId", "parentSessionId")


@attrs.frozen(slots=True)
class _Entry:
    updated: int
    session_id: str
    source: Session | StoredSession

    def body(self) -> dict[str, Any]:
        """Made only for what the page shows."""
        return summary(self.source) if isinstance(self.source, Session) else stored_summary(self.source)

    @property
    def key(self) -> tuple[int, str]:
        return (self.updated, self.session_id)


def register(routes: Blueprint, ground: Ground) -> None:
    @routes.get("/workspace/<workspace:cwd>/sessions")
    async def sessions(cwd: str) -> Response:
        """Live, closed and stored sessions of a workspace, newest first, in pages (REST-040, REST-041).

        A page ends with a cursor made of its last entry's place, so that what changes in between
        moves to the front and is seen there again, and nothing is passed over."""
        client_header()
        workspace: str = ground.engine.check_workspace(cwd)
        size = whole_argument("size", DEFAULT_SIZE, 1, LARGEST_SIZE)
        before = _cursor()
        entries = [] if request.args.get("archiveState") == "archived" else await _entries(ground, workspace)
        entries = [each for each in entries if before is None or each.key < before]
        entries.sort(key=lambda each: each.key, reverse=True)
        page, rest = entries[:size], entries[size:]
        body: dict[str, Any] = {"sessions": [each.body() for each in page]}
        if rest:
            body["nextCursor"] = f"{page[-1].updated}.{page[-1].session_id}"
        return json_response(body)


async def _entries(ground: Ground, workspace: str) -> list[_Entry]:
    wanted = {name: request.args[name] for name in _FILTERS if name in request.args}
    stored = await _stored(ground, workspace) if not wanted else []
    ours: list[Session] = [*ground.engine.sessions, *ground.engine.archived]
    known = {each.id for each in ours} | {each.agent_session_id for each in ours}
    entries = [
        _Entry(each.updated_at, each.id, each)
        for each in ours
        if each.cwd == workspace and all(each.source.get(name) == value for name, value in wanted.items())
    ]
    return entries + list(_unknown(stored, known, workspace))


def _unknown(stored: Iterable[StoredSession], known: set[str | None], workspace: str) -> Iterable[_Entry]:
    for each in stored:
        if each.agent_session_id not in known and each.cwd == workspace:
            known.add(each.agent_session_id)
            yield _Entry(updated_ms(each), each.agent_session_id, each)


async def _stored(ground: Ground, workspace: str) -> Iterable[StoredSession]:
    """What the agent has stored. An agent that cannot tell takes nothing from the list of what we have."""
    try:
        with trio.fail_after(_AGENT_PATIENCE):
            stored: Iterable[StoredSession] = await ground.engine.runner.list_sessions(workspace)
    except (SessionError, trio.TooSlowError) as problem:
        log.warning("stored_sessions_unavailable", problem=repr(problem))
        return []
    return stored


def _cursor() -> tuple[int, str] | None:
    text = request.args.get("cursor")
    if not text:
        return None
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise Refused(INVALID_CURSOR, "`cursor` is not one this server gave out")
    return int(match[1]), match[2]
