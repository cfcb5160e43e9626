"""The cursor of a reconnecting reader: one reading of the two headers for REST and /acp, with one log line (ACP-110)."""

from __future__ import annotations

from typing import Protocol

from protocol.acp import EPOCH_HEADER, LAST_EVENT_ID_HEADER
from protocol.sse import parse_epoch, parse_last_event_id, sanitise_for_log
from server.telemetry import log

__all__ = ["read_cursor"]


class Headers(Protocol):
    """Request headers by name, whatever the case."""

    def get(self, name: str, /) -> str | None: ...


def read_cursor(headers: Headers) -> tuple[int | None, str | None]:
    """``(cursor, epoch)``; the epoch only together with a cursor (ACP-114).

    What is not acceptable counts as absent and is logged, unless it is empty (ACP-112).
    """
    given = headers.get(LAST_EVENT_ID_HEADER)
    cursor = parse_last_event_id(given)
    if cursor is None and given:
        log.warning("last_event_id_ignored", value=sanitise_for_log(given))
    token = headers.get(EPOCH_HEADER)
    epoch = parse_epoch(token)
    if epoch is None and token:
        log.warning("event_epoch_ignored", value=sanitise_for_log(token))
    return cursor, epoch if cursor is not None else None
