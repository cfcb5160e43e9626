"""History for load: rest.md REST-031."""

from __future__ import annotations

from typing import Any

import pytest

from sessions import Event
from sessions.events import encode
from sessions.transcript import compact, split_live


def chunk(id: int, words: str, kind: str = "agent_message_chunk", prompt: str = "p") -> Event:
    data = {"sessionId": "s", "update": {"sessionUpdate": kind, "content": {"type": "text", "text": words}}}
    return Event(id, "session_update", encode(data), id, prompt, None, 0)


def other(id: int, type: str = "turn_complete", data: Any = None) -> Event:
    return Event(id, type, encode(data or {}), id, "p", None, 0)


def test_adjacent_chunks_are_merged_and_keep_the_last_id() -> None:
    """REST-031."""
    history = [
        chunk(1, "He"),
        chunk(2, "llo"),
        chunk(3, "hmm", "agent_thought_chunk"),
        chunk(4, " wor"),
        chunk(5, "ld"),
        other(6),
        chunk(7, "x", prompt="q"),
        chunk(8, "y", prompt="r"),
    ]
    found = compact(history)
    assert [event.id for event in found] == [2, 3, 5, 6, 7, 8]
    texts = [event.value()["update"]["content"]["text"] for event in found if event.type == "session_update"]
    assert texts == ["Hello", "hmm", " world", "x", "y"]


def test_what_is_no_plain_text_is_left_alone() -> None:
    image = other(
        1, "session_update", {"update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "image"}}}
    )
    broken = Event(2, "session_update", b'{"agent_message_chunk":"\\ud83d"', 0, None, None, 0)
    user = chunk(3, "hi", "user_message_chunk")
    assert compact([image, broken, user]) == [image, broken, user]


@pytest.mark.parametrize("depth", [50, 200, 900, 990, 200_000])
def test_deep_nesting_costs_the_merging_and_nothing_else(depth: int) -> None:
    """REST-031: an update that was taken in is shown, though it cannot be taken apart from where it is read."""
    head = b'{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"x"'
    deep = Event(2, "session_update", head + b',"d":' + b"[" * depth + b"]" * depth + b"}}}", 2, "p", None, 0)
    found = compact([chunk(1, "a {[" * 100), deep, chunk(3, "b"), chunk(4, "c")])
    assert [event.id for event in found] == ([4] if depth < 100 else [1, 2, 4])
    if depth > 100:
        assert found[1] is deep
    if depth > 1000:
        with pytest.raises(ValueError, match="recursion"):
            deep.value()


def test_split_at_the_last_turn_boundary() -> None:
    history = [chunk(1, "a"), other(2), chunk(3, "b"), other(4, "turn_error"), chunk(5, "c")]
    finished, live = split_live(history)
    assert [event.id for event in finished] == [1, 2, 3, 4]
    assert [event.id for event in live] == [5]
    assert split_live([chunk(1, "a")]) == ([], [chunk(1, "a")]) or split_live([]) == ([], [])
