"""History for a client that loads a session: finished turns with their text merged, and the open turn as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sessions.events import Event, EventType, encode

__all__ = ["SESSION_ENDS", "compact", "split_live"]

CHUNKS: Final = frozenset({"agent_message_chunk", "agent_thought_chunk"})
_PLAIN_BRACKETS: Final = 100
"""Opening brackets a plain chunk has at most besides those in its text."""
BOUNDARIES: Final = frozenset({EventType.TURN_COMPLETE, EventType.TURN_ERROR})
SESSION_ENDS: Final = frozenset({EventType.SESSION_CLOSED, EventType.SESSION_DIED})
"""In the history of a session that is live again they end nothing, and a client that takes them at their word gives it up."""


def split_live(events: Sequence[Event]) -> tuple[Sequence[Event], Sequence[Event]]:
    """``(finished, live)``: everything through the last turn boundary, and what came after it (REST-031)."""
    for index in range(len(events) - 1, -1, -1):
        if events[index].type in BOUNDARIES:
            return events[: index + 1], events[index + 1 :]
    return [], events


def compact(events: Iterable[Event]) -> list[Event]:
    """Merge neighbouring text chunks of one kind and one prompt; the merged event keeps the last id (REST-031)."""
    result: list[Event] = []
    run: list[tuple[Event, dict[str, Any]]] = []
    for event in events:
        value = _text_chunk(event)
        if value is not None and run and not _joins(run[-1], event, value):
            result.append(_merge(run))
            run = []
        if value is None:
            if run:
                result.append(_merge(run))
                run = []
            result.append(event)
        else:
            run.append((event, value))
    if run:
        result.append(_merge(run))
    return result


def _text_chunk(event: Event) -> dict[str, Any] | None:
    """The decoded data, if the event is a plain text chunk of the agent."""
    if event.type != EventType.SESSION_UPDATE or not any(kind.encode() in event.data for kind in CHUNKS):
        return None
    try:
        value = event.value()
    except ValueError:
        return None
    update = value.get("update")
    if not isinstance(update, dict) or update.get("sessionUpdate") not in CHUNKS:
        return None
    content = update.get("content")
    if not isinstance(content, dict) or content.get("type") != "text" or not isinstance(content.get("text"), str):
        return None
    if _brackets(event.data) - _brackets(content["text"].encode()) > _PLAIN_BRACKETS:
        # What comes with the text may be nested too deep to be encoded again from here.
        return None
    return value if isinstance(value, dict) else None


def _brackets(data: bytes) -> int:
    return data.count(b"{") + data.count(b"[")


def _joins(last: tuple[Event, dict[str, Any]], event: Event, value: dict[str, Any]) -> bool:
    before, known = last
    return before.prompt_id == event.prompt_id and known["update"]["sessionUpdate"] == value["update"]["sessionUpdate"]


def _merge(run: Sequence[tuple[Event, dict[str, Any]]]) -> Event:
    last, value = run[-1]
    if len(run) == 1:
        return last
    text = "".join(each["update"]["content"]["text"] for _, each in run)
    merged = {
        **value,
        "update": {**value["update"], "content": {**value["update"]["content"], "text": text}},
    }
    return Event(last.id, last.type, encode(merged), last.timestamp, last.prompt_id, last.originator, last.total)
