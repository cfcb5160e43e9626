"""Events as REST sees them: the envelope, and the bytes of a frame, made once per event (REST-084, REST-085)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from protocol.sse import rest_frame
from server.envelope import envelope, names_of
from sessions import Event, EventType, Notice, NoticeType, Session
from sessions.events import encode
from sessions.ring import Ring
from sessions.subscription import Item

__all__ = ["HIDDEN", "chunk", "envelope", "frame", "notice_frame", "snapshot_frame"]

HIDDEN: Final = frozenset({EventType.OPERATION_STATE})
"""Events of another wire's operations: they have ids in the common ring and no form here."""
_FORM: Final = "rest"


def frame(event: Event) -> bytes:
    """The frame of a published event; empty for one that REST does not show.

    What `protocol.sse.rest_frame` makes, without its looking for line ends in what has none.
    """
    if event.type in HIDDEN:
        return b""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.id, names_of(event.type)[0], envelope(event))


def notice_frame(type: str, data: Mapping[str, Any], now_ms: int) -> bytes:
    """A synthetic frame: no id, neither as a line nor in the envelope (ACP-020)."""
    body = {"v": 1, "type": type, "data": data, "_meta": {"serverTimestamp": now_ms}}
    return rest_frame(encode(body), type)


def snapshot_frame(session: Session) -> bytes:
    """``session_snapshot`` of this moment (REST-086)."""
    state = session.state()
    data = {
        "sessionId": session.id,
        "currentModelId": (state.get("models") or {}).get("currentModelId"),
        "currentApprovalMode": (state.get("modes") or {}).get("currentModeId"),
        "recordingDegraded": False,
    }
    return notice_frame("session_snapshot", data, session.now_ms())


def chunk(
    ring: Ring, items: Sequence[Item], now_ms: Callable[[], int], after_replay: Callable[[], bytes] | None = None
) -> bytes:
    """Everything a reader is to get now, as one piece of bytes. ``after_replay`` makes what follows ``replay_complete``."""
    form = ring.form
    parts = []
    for item in items:
        if isinstance(item, Notice):
            parts.append(notice_frame(item.type, item.data, now_ms()))
            if after_replay is not None and item.type is NoticeType.REPLAY_COMPLETE:
                parts.append(after_replay())
        else:
            forms = item.forms
            made = None if forms is None else forms.get(_FORM)
            parts.append(form(item, _FORM, frame) if made is None else made)
    return b"".join(parts)
