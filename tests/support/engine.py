"""Short words for engine tests."""

from __future__ import annotations

from typing import Any

import trio

from sessions import Event, Operation, PromptRequest, Session

TERMINAL_TYPES = {"turn_complete", "turn_error"}


def text(words: str) -> PromptRequest:
    return PromptRequest([{"type": "text", "text": words}])


def submit(session: Session, words: str, **options: Any) -> Operation:
    return session.submit_prompt(text(words), **options)[0]


def events(session: Session, *types: str) -> list[Event]:
    """Everything retained, or only the given types."""
    held = session.ring.read(0, 1_000_000)
    return [event for event in held if not types or event.type in types]


def types(session: Session) -> list[str]:
    """Event types; updates by their own kind."""
    return [
        event.value()["update"]["sessionUpdate"] if event.type == "session_update" else event.type
        for event in events(session)
    ]


def said(session: Session) -> list[str]:
    """Texts of the agent's message chunks."""
    found = []
    for event in events(session, "session_update"):
        update = event.value()["update"]
        if update["sessionUpdate"] == "agent_message_chunk":
            found.append(update["content"]["text"])
    return found


def terminals(session: Session) -> dict[str, list[str]]:
    """Terminal events per prompt id."""
    found: dict[str, list[str]] = {}
    for event in events(session, *TERMINAL_TYPES):
        value = event.value()
        found.setdefault(value["promptId"], []).append(value.get("stopReason") or event.type)
    return found


async def quiet() -> None:
    """Let everything run that can."""
    await trio.testing.wait_all_tasks_blocked()
