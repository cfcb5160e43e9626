"""The sessions of a workspace in one order: live ones, closed ones still kept, and those only the agent has stored.

Both wires list them in pages, newest first. A page ends with the place of its last entry, so that what changes in between
moves to the front and is seen there again, and nothing is passed over.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from typing import Final

import attrs
import trio

from server.telemetry import log
from sessions import Harbour, Session, SessionError, StoredSession

__all__ = ["DEFAULT_SIZE", "LARGEST_SIZE", "Page", "Place", "list_page", "parse_place"]

DEFAULT_SIZE: Final = 20
LARGEST_SIZE: Final = 1000
AGENT_PATIENCE: Final = 5.0
"""Seconds an agent may take to list what it has stored; a list must not hang on it."""
_PLACE = re.compile(r"([0-9]{1,16})\.(.{1,128})")

Place = tuple[int, str]
"""When an entry was last changed (ms), and its session id."""


@attrs.frozen(slots=True)
class Page:
    entries: list[Session | StoredSession]
    next_cursor: str | None
    """None on the last page."""


def parse_place(cursor: str) -> Place:
    """The place a page ended at. Raises ``ValueError`` for a cursor this server did not give out."""
    match = _PLACE.fullmatch(cursor)
    if match is None:
        raise ValueError("`cursor` is not one this server gave out")
    return int(match[1]), match[2]


async def list_page(
    harbour: Harbour,
    workspace: str,
    size: int,
    before: Place | None = None,
    source: Mapping[str, str] | None = None,
) -> Page:
    """At most ``size`` entries behind ``before``. ``source``: only sessions with these attributions; the agent's stored ones
    have none."""
    wanted = source or {}
    placed = [(_place(each), each) for each in _ours(harbour, workspace, wanted)]
    if not wanted:
        placed += [(_place(each), each) for each in await _stored(harbour, workspace)]
    placed = [each for each in placed if before is None or each[0] < before]
    placed.sort(key=lambda each: each[0], reverse=True)
    shown = placed[:size]
    more = f"{shown[-1][0][0]}.{shown[-1][0][1]}" if len(placed) > size else None
    return Page([each for _, each in shown], more)


def _ours(harbour: Harbour, workspace: str, wanted: Mapping[str, str]) -> Iterable[Session | StoredSession]:
    for each in (*harbour.sessions, *harbour.archived):
        if each.cwd == workspace and all(each.source.get(name) == value for name, value in wanted.items()):
            yield each


async def _stored(harbour: Harbour, workspace: str) -> list[StoredSession]:
    """What the agent has stored and we do not have. An agent that cannot tell takes nothing from the list of what we have."""
    try:
        with trio.fail_after(AGENT_PATIENCE):
            stored = await harbour.runner.list_sessions(workspace)
    except (SessionError, trio.TooSlowError) as problem:
        log.warning("stored_sessions_unavailable", problem=repr(problem))
        return []
    ours = (*harbour.sessions, *harbour.archived)
    known = {each.id for each in ours} | {each.agent_session_id for each in ours}
    return [each for each in stored if each.agent_session_id not in known and each.cwd == workspace]


def _place(entry: Session | StoredSession) -> Place:
    if isinstance(entry, Session):
        return entry.updated_at, entry.id
    return _updated_ms(entry), entry.agent_session_id


def _updated_ms(stored: StoredSession) -> int:
    """The agent's time as a number, 0 when it gives none or one that is not ISO 8601."""
    try:
        moment = datetime.datetime.fromisoformat(stored.updated_at or "")
    except ValueError:
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)
