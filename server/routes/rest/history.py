"""History for a client that loads a session: finished turns compacted, the open turn as it is (REST-031, REST-032)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import trio

from server.routes.rest.frames import HIDDEN, envelope
from sessions import Event, EventType, NoticeType, Session
from sessions.transcript import SESSION_ENDS, compact, split_live

__all__ = ["Replay", "compacted", "held_events", "raw", "replay_of"]

_SLICE: Final = 256
"""Events compacted between two checkpoints: a long history must not stop every other stream."""

_ENDS: Final = frozenset({EventType.TURN_COMPLETE, EventType.TURN_ERROR})

Replay = dict[str, Any]


async def replay_of(session: Session, max_bytes: int) -> Replay:
    """``compactedReplay``, ``liveJournal``, and the cursor that follows both without a gap.

    What is shown is what the ring held when this was called. At most ``max_bytes`` of event data, the newest; what is
    missing is said in a ``history_truncated`` event in front (no id: it is about the ring, not in it).
    """
    head, waterline = session.ring.head, session.ring.waterline
    events = [each for each in held_events(session) if each.type not in SESSION_ENDS]
    shown = _newest(events, max_bytes)
    finished, live = _split(session, shown)
    replay: list[Any] = [raw(each) for each in await compacted(finished)]
    lost = waterline - 1
    missing = len(events) - len(shown) + lost
    if missing:
        replay.insert(0, _truncated(missing, len(shown), max_bytes, session, complete=lost == 0))
    answer: Replay = {
        "compactedReplay": replay,
        "liveJournal": [raw(each) for each in live],
        "promptTerminals": [_terminal(each) for each in finished if each.type in _ENDS],
        "lastEventId": head,
        "eventEpoch": session.ring.epoch,
    }
    if missing:
        answer["historyHasMore"] = len(events) > len(shown)
        answer["partial"] = True
    return answer


def held_events(session: Session) -> list[Event]:
    """What the ring holds and REST shows, the oldest first."""
    ring = session.ring
    return [each for each in ring.read(0, ring.head) if each.type not in HIDDEN]


async def compacted(events: Sequence[Event]) -> list[Event]:
    """`sessions.transcript.compact` over any number of events without holding the loop."""
    result: list[Event] = []
    for start in range(0, len(events), _SLICE):
        # The last entry may go on in the next slice, so it is compacted again with it.
        tail = [result.pop()] if result else []
        result += compact([*tail, *events[start : start + _SLICE]])
        await trio.lowlevel.checkpoint()
    return result


def _newest(events: Sequence[Event], max_bytes: int) -> Sequence[Event]:
    size = 0
    for index in range(len(events) - 1, -1, -1):
        size += len(events[index].data)
        if size > max_bytes:
            return events[index + 1 :]
    return events


def _split(session: Session, events: Sequence[Event]) -> tuple[Sequence[Event], Sequence[Event]]:
    finished, live = split_live(events)
    if not finished and not session.prompts.count:
        # What an agent replayed from its storage has no turn boundaries, and nothing of it goes on.
        return events, ()
    return finished, live


def _terminal(event: Event) -> dict[str, Any]:
    """How one prompt of the history ended."""
    data = event.value()
    terminal: dict[str, Any] = {"v": 1, "promptId": data.get("promptId"), "at": event.timestamp}
    if event.type == EventType.TURN_ERROR:
        terminal["terminal"] = "error"
        if "code" in data:
            terminal["code"] = data["code"]
    elif data.get("stopReason") == "cancelled":
        terminal["terminal"] = "cancelled"
    else:
        terminal.update(terminal="completed", stopReason=data.get("stopReason"))
    return terminal


def raw(event: Event) -> msgspec.Raw:
    """An event for a JSON body, not decoded and encoded again."""
    return msgspec.Raw(envelope(event))


def _truncated(missing: int, retained: int, max_bytes: int, session: Session, *, complete: bool) -> dict[str, Any]:
    return {
        "v": 1,
        "type": NoticeType.HISTORY_TRUNCATED,
        "data": {
            "reason": "replay_window_exceeded",
            "truncatedEvents": missing,
            "retainedEvents": retained,
            "maxBytes": max_bytes,
            "fullTranscriptAvailable": complete,
            "sessionId": session.id,
        },
        "_meta": {"serverTimestamp": session.now_ms()},
    }
