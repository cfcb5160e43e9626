"""``session/list``: live, closed and stored sessions of one workspace, newest first, in pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.routes.acp.errors import invalid_params
from server.routes.acp.params import meta, workspace_path
from server.routes.catalogue import DEFAULT_SIZE, LARGEST_SIZE, Page, Place, list_page, parse_place
from server.routes.rest.summaries import entry_summary
from sessions import Harbour, Session, StoredSession

__all__ = ["list_sessions"]


async def list_sessions(harbour: Harbour, params: Mapping[str, Any]) -> dict[str, Any]:
    """ACP 13 #17: the filter is called ``workspaceCwd`` or ``cwd``."""
    given = workspace_path(params, "workspaceCwd") or workspace_path(params)
    workspace = harbour.check_workspace(given)
    size, before = _size(params), _cursor(params)
    page = Page([], None)
    if params.get("archiveState") != "archived":
        page = await list_page(harbour, workspace, size, before)
    result: dict[str, Any] = {"sessions": [_body(each) for each in page.entries]}
    if page.next_cursor is not None:
        result["nextCursor"] = page.next_cursor
    return result


def _body(entry: Session | StoredSession) -> dict[str, Any]:
    """What both dialects want: the schema's ``cwd`` and ``title``, the daemon's ``workspaceCwd`` and ``displayName``."""
    body = entry_summary(entry)
    body["cwd"] = body["workspaceCwd"]
    if "displayName" in body:
        body["title"] = body["displayName"]
    return body


def _size(params: Mapping[str, Any]) -> int:
    value = meta(params).get("size")
    if value is None:
        return DEFAULT_SIZE
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise invalid_params("`_meta.size` must be a positive integer when provided")
    return min(value, LARGEST_SIZE)


def _cursor(params: Mapping[str, Any]) -> Place | None:
    value = params.get("cursor")
    if value is None or value == "":
        return None
    try:
        return parse_place(value if isinstance(value, str) else "")
    except ValueError as problem:
        raise invalid_params(str(problem)) from None
