"""What every route reads from a request, with the checks that come before the engine is asked."""

from __future__ import annotations

import datetime
import re
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from quart import request

from protocol.acp import CLIENT_ID_HEADER
from server.ground import Ground
from server.routes.cursor import sole
from server.routes.rest.errors import BAD_FIELD, INVALID_CLIENT_ID, INVALID_REQUEST, Refused
from sessions import Session

__all__ = [
    "canonical_id",
    "check_url",
    "client_header",
    "known_session",
    "optional_text",
    "session_of",
    "timestamp",
    "whole_argument",
]

_CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_DECIMAL: Final = re.compile(r"[0-9]{1,9}")


def check_url() -> None:
    """Refuse a path whose percent-encoding is broken or not UTF-8, before its pieces are taken for ids."""
    # Quart's type for the scope is a TypedDict without the optional raw path.
    raw: Any = request.scope.get("raw_path") or b""
    try:
        unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise Refused(INVALID_REQUEST, "The URL is not valid UTF-8") from None
    if _BAD_ESCAPE.search(raw):
        raise Refused(INVALID_REQUEST, "The URL has an incomplete percent-encoding")


def canonical_id(session_id: str) -> str:
    """UUIDs compare case-insensitively (REST-003); anything else is taken as it is."""
    return session_id.lower() if _UUID.fullmatch(session_id) else session_id


def client_header() -> str | None:
    """The caller's client id; None without the header. Raises `Refused` for a malformed one (REST-004)."""
    if CLIENT_ID_HEADER not in request.headers:
        return None
    given = sole(request.headers, CLIENT_ID_HEADER)
    if _CLIENT_ID.fullmatch(given) is None:
        raise Refused(INVALID_CLIENT_ID, f"`{CLIENT_ID_HEADER}` must be a non-empty token of 128 characters or fewer")
    return given


def session_of(ground: Ground, session_id: str, client_id: str | None) -> Session:
    """The live session, with the caller's client id checked against it. Raises `SessionNotFound`, `UnknownClient`."""
    session: Session = ground.engine.find(canonical_id(session_id))
    session.check_client(client_id)
    return session


def known_session(ground: Ground, session_id: str, client_id: str | None) -> Session:
    """Like `session_of`, and also a closed session that is still kept."""
    wanted = canonical_id(session_id)
    for each in ground.engine.archived:
        if each.id == wanted:
            return each  # type: ignore[no-any-return]  # the ground knows its engine as Any
    return session_of(ground, session_id, client_id)


def optional_text(body: dict[str, Any], field: str, longest: int = 256) -> str | None:
    """A text field that may be missing or null."""
    value = body.get(field)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise Refused(BAD_FIELD, f"`{field}` must be a non-empty string of at most {longest} characters when provided")
    return value


def whole_argument(name: str, default: int, low: int, high: int) -> int:
    """A decimal query parameter; above ``high`` counts as ``high``."""
    text = request.args.get(name)
    if text is None:
        return default
    if _DECIMAL.fullmatch(text) is None or int(text) < low:
        raise Refused(INVALID_REQUEST, f"`{name}` must be an integer in [{low}, {high}]")
    return min(int(text), high)


def timestamp(milliseconds: int) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
