"""``GET /workspace/:cwd/sessions``: live, closed and stored sessions in one list (rest.md 4.3)."""

from __future__ import annotations

from typing import Any, Final

from quart import Blueprint, Response, request

from server.ground import Ground
from server.routes.body import json_response
from server.routes.catalogue import DEFAULT_SIZE, LARGEST_SIZE, Page, Place, list_page, parse_place
from server.routes.rest.asking import client_header, whole_argument
from server.routes.rest.errors import INVALID_CURSOR, Refused
from server.routes.rest.summaries import entry_summary

__all__ = ["register"]

_FILTERS: Final = ("sourceType", "sourceId", "parentSessionId")


def register(routes: Blueprint, ground: Ground) -> None:
    @routes.get("/workspace/<workspace:cwd>/sessions")
    async def sessions(cwd: str) -> Response:
        """Live, closed and stored sessions of a workspace, newest first, in pages (REST-040, REST-041)."""
        client_header()
        workspace: str = ground.engine.check_workspace(cwd)
        size = whole_argument("size", DEFAULT_SIZE, 1, LARGEST_SIZE)
        before = _cursor()
        page = Page([], None)
        if request.args.get("archiveState") != "archived":
            page = await list_page(ground.engine, workspace, size, before, _wanted())
        body: dict[str, Any] = {"sessions": [entry_summary(each) for each in page.entries]}
        if page.next_cursor is not None:
            body["nextCursor"] = page.next_cursor
        return json_response(body)


def _wanted() -> dict[str, str]:
    """No session of ours has a parent: a filter for one finds none."""
    return {name: request.args[name] for name in _FILTERS if name in request.args}


def _cursor() -> Place | None:
    text = request.args.get("cursor")
    try:
        return parse_place(text) if text else None
    except ValueError as problem:
        raise Refused(INVALID_CURSOR, str(problem)) from None
