"""``session/list``: live, closed and stored sessions of one workspace, newest first, in pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import trio

from server.routes.acp.errors import invalid_params
from server.routes.acp.params import meta, workspace_path
from server.routes.rest.summaries import stored_summary, summary, updated_ms
from server.telemetry import log
from sessions import Harbour, Session, SessionError, StoredSession

__all__ = ["list_sessions"]

DEFAULT_SIZE: Final = 20
LARGEST_SIZE: Final = 1000
AGENT_PATIENCE: Final = 5.0
"""Seconds the agent may take to list what it has stored; a list must not hang on it."""
_CURSOR: Final = re.compile(r"([0-9]{1,16})\.(.{1,128})")


@attrs.frozen(slots=True)
class _Entry:
    key: tuple[int, str]
    source: Session | StoredSession

    def body(self) -> dict[str, Any]:
        """What both dialects want: the schema's ``cwd`` and ``title``, the daemon's ``workspaceCwd`` and ``displayName``."""
        body = summary(self.source) if isinstance(self.source, Session) else stored_summary(self.source)
        body["cwd"] = body["workspaceCwd"]
        if "displayName" in body:
            body["title"] = body["displayName"]
        return body


async def list_sessions(harbour: Harbour, params: Mapping[str, Any]) -> dict[str, Any]:
    """ACP 13 #17: the filter is called ``workspaceCwd`` or ``cwd``."""
    given = workspace_path(params, "workspaceCwd") or workspace_path(params)
    workspace = harbour.check_workspace(given)
    size, before = _size(params), _cursor(params)
    entries = [] if params.get("archiveState") == "archived" else await _entries(harbour, workspace)
    entries = [each for each in entries if before is None or each.key < before]
    entries.sort(key=lambda each: each.key, reverse=True)
    page, rest = entries[:size], entries[size:]
    result: dict[str, Any] = {"sessions": [each.body() for each in page]}
    if rest:
        updated, session_id = page[-1].key
        result["nextCursor"] = f"{updated}.{session_id}"
    return result


async def _entries(harbour: Harbour, workspace: str) -> list[_Entry]:
    stored = await _stored(harbour, workspace)
    ours = [*harbour.sessions, *harbour.archived]
    known = {each.id for each in ours} | {each.agent_session_id for each in ours}
    entries = [_Entry((each.updated_at, each.id), each) for each in ours if each.cwd == workspace]
    return entries + [
        _Entry((updated_ms(each), each.agent_session_id), each)
        for each in stored
        if each.agent_session_id not in known and each.cwd == workspace
    ]


async def _stored(harbour: Harbour, workspace: str) -> Iterable[StoredSession]:
    try:
        with trio.fail_after(AGENT_PATIENCE):
            return await harbour.runner.list_sessions(workspace)
    except (SessionError, trio.TooSlowError) as problem:
        log.warning("stored_sessions_unavailable", problem=repr(problem))
        return []


def _size(params: Mapping[str, Any]) -> int:
    value = meta(params).get("size")
    if value is None:
        return DEFAULT_SIZE
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise invalid_params("`_meta.size` must be a positive integer when provided")
    return min(value, LARGEST_SIZE)


def _cursor(params: Mapping[str, Any]) -> tuple[int, str] | None:
    value = params.get("cursor")
    if value is None or value == "":
        return None
    match = _CURSOR.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise invalid_params("`cursor` is not one this server gave out")
    return int(match[1]), match[2]
