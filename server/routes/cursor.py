"""The cursor of a reconnecting reader: one reading of the two headers for REST and /acp, with one log line (ACP-110)."""

from __future__ import annotations

from typing import Protocol

from protocol.acp import EPOCH_HEADER, LAST_EVENT_ID_HEADER
from protocol.sse import parse_epoch, parse_last_event_id, sanitise_for_log
from server.telemetry import log

__all__ = ["read_cursor", "sole"]


class Headers(Protocol):
    """Request headers by name, whatever the case."""

    def getlist(self, key: str, /) -> list[str]: ...


def sole(headers: Headers, name: str) -> str:
    """The value of a header that may occur once; empty when it is absent.

    One that occurs again has all its values in one text (RFC 9110, 5.3), which is none that we gave out: whoever stands in
    front may have looked at another of them.
    """
    return ", ".join(headers.getlist(name))


def read_cursor(headers: Headers) -> tuple[int | None, str | None]:
    """``(cursor, epoch)``; the epoch only together with a cursor (ACP-114).

    What is not acceptable counts as absent and is logged, unless it is empty (ACP-112).
    """
    given = sole(headers, LAST_EVENT_ID_HEADER)
    cursor = parse_last_event_id(given)
    if cursor is None and given:
        log.warning("last_event_id_ignored", value=sanitise_for_log(given))
    token = sole(headers, EPOCH_HEADER)
    epoch = parse_epoch(token)
    if epoch is None and token:
        log.warning("event_epoch_ignored", value=sanitise_for_log(token))
    return cursor, epoch if cursor is not None else None
