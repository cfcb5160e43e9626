"""The phases of a session, and what leads from one to the next."""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["TRANSITIONS", "SessionInput", "SessionPhase"]


class SessionPhase(enum.StrEnum):
    STARTING = "starting"
    LIVE = "live"
    CLOSING = "closing"
    CLOSED = "closed"
    """Over, and kept with its history: it can be loaded again."""


class SessionInput(enum.StrEnum):
    STARTED = "started"
    START_FAILED = "start_failed"
    CLOSE_ASKED = "close_asked"
    DIED = "died"
    LAST_DONE = "last_done"
    LOADED = "loaded"


def _table() -> dict[tuple[SessionPhase, SessionInput], SessionPhase]:
    p, i = SessionPhase, SessionInput
    return {
        (p.STARTING, i.STARTED): p.LIVE,
        (p.STARTING, i.START_FAILED): p.CLOSED,
        (p.STARTING, i.CLOSE_ASKED): p.CLOSING,
        (p.STARTING, i.DIED): p.CLOSED,
        (p.LIVE, i.CLOSE_ASKED): p.CLOSING,
        (p.LIVE, i.DIED): p.CLOSED,
        (p.CLOSING, i.LAST_DONE): p.CLOSED,
        (p.CLOSING, i.DIED): p.CLOSED,
        (p.CLOSED, i.LOADED): p.STARTING,
    }


TRANSITIONS: Final = _table()
