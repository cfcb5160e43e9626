"""Numbers of a session for a user interface, from what its agent reported; nothing is estimated here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from sessions import Event, EventType, Session

__all__ = ["context_usage", "session_stats"]

_NOTHING = {
    "systemPrompt": 0,
    "builtinTools": 0,
    "mcpTools": 0,
    "memoryFiles": 0,
    "skills": 0,
    "messages": 0,
    "freeSpace": 0,
    "autocompactBuffer": 0,
}


def context_usage(session: Session) -> dict[str, Any]:
    """From the last ``usage_update`` the ring holds; zeros when the agent sends none."""
    update = next(_updates(session, "usage_update", newest_first=True), {})
    used, size = _number(update.get("used")), _number(update.get("size"))
    model = (session.state().get("models") or {}).get("currentModelId") or "unknown"
    breakdown = {**_NOTHING, "messages": used, "freeSpace": max(0, size - used)}
    return {
        "usage": {
            "modelName": model,
            "totalTokens": used,
            "contextWindowSize": size,
            "breakdown": breakdown,
            "builtinTools": [],
            "mcpTools": [],
            "memoryFiles": [],
            "skills": [],
            "isEstimated": True,
        },
        "formattedText": f"{used} of {size} tokens" if size else f"{used} tokens",
    }


def session_stats(session: Session) -> dict[str, Any]:
    """Counts over what the ring holds."""
    started: dict[str, str] = {}
    ended: Counter[str] = Counter()
    for update in _updates(session, "tool_call"):
        call = str(update.get("toolCallId"))
        name = str(update.get("kind") or update.get("title") or "tool")
        if update.get("sessionUpdate") == "tool_call":
            started[call] = name
        if update.get("status") in ("completed", "failed"):
            ended[f"{update['status']} {call}"] = 1
    done = sum(1 for key in ended if key.startswith("completed "))
    return {
        "sessionStartTimeMs": session.created_at,
        "durationMs": max(0, session.now_ms() - session.created_at),
        "promptCount": _prompts(session),
        "models": {},
        "tools": {
            "totalCalls": len(started),
            "totalSuccess": done,
            "totalFail": len(ended) - done,
            "totalDurationMs": 0,
            "byName": _by_name(started, ended),
        },
        "files": {"totalLinesAdded": 0, "totalLinesRemoved": 0},
    }


def _by_name(started: Mapping[str, str], ended: Mapping[str, int]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for call, name in started.items():
        entry = names.setdefault(
            name,
            {
                "count": 0,
                "success": 0,
                "fail": 0,
                "durationMs": 0,
                "decisions": {"accept": 0, "reject": 0, "modify": 0, "auto_accept": 0},
            },
        )
        entry["count"] += 1
        entry["success"] += f"completed {call}" in ended
        entry["fail"] += f"failed {call}" in ended
    return names


def _prompts(session: Session) -> int:
    ends = (EventType.TURN_COMPLETE, EventType.TURN_ERROR)
    return session.prompts.count + sum(1 for each in _events(session) if each.type in ends)


def _updates(session: Session, kind: str, *, newest_first: bool = False) -> Iterator[dict[str, Any]]:
    """The update objects whose kind starts with ``kind``; only events that name it are decoded."""
    mark = f'"{kind}'.encode()
    events = _events(session)
    for event in reversed(events) if newest_first else events:
        if event.type != EventType.SESSION_UPDATE or mark not in event.data:
            continue
        update = _update_of(event)
        if str(update.get("sessionUpdate", "")).startswith(kind):
            yield update


def _update_of(event: Event) -> dict[str, Any]:
    try:
        update = event.value().get("update")
    except ValueError:
        # An agent's text the decoder refuses (a lone surrogate) counts for nothing.
        return {}
    return update if isinstance(update, dict) else {}


def _events(session: Session) -> list[Event]:
    return session.ring.read(0, session.ring.head)


def _number(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
