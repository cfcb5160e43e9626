"""Events of one session between the shared socket and the session's reader."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final

import trio

from client.errors import DaemonConnectionError
from client.events import SYNTHETIC_TYPES, Event

__all__ = ["Inbox", "is_own_notice", "missed_events"]

OWN_REASON: Final = "client_"

BURST: Final = 256
"""Events that may wait for a reader before the socket is read no further. A reader never waits for its consumer, so
this is about bursts, not about slow callers."""
UNREAD: Final = 4096
"""Events kept while no reader has come. Beyond that they are dropped, and the reader is told that it missed some."""


class Inbox:
    """A queue with one reader at a time.

    With ``next_id`` the events are numbered: a moorline server resumes WebSockets by cursor but sends no ids, and ring
    ids are consecutive.
    """

    def __init__(self, next_id: int | None = None) -> None:
        self._events: deque[Event] = deque()
        self._changed = trio.Event()
        self._claimed = False
        self._closed: str | None = None
        self._next_id = next_id

    def claim(self) -> None:
        """A reader has come."""
        self._claimed = True

    def leave(self) -> None:
        """The reader has gone; what arrives now waits for the next one."""
        self._claimed = False
        self._notify()

    def close(self, reason: str) -> None:
        """The socket is gone. What has arrived can still be read."""
        self._closed = reason
        self._notify()

    def put(self, event: Event) -> None:
        """Never waits; the socket's reader calls :meth:`wait_room` afterwards."""
        self._events.append(self._numbered(event))
        if not self._claimed and len(self._events) > UNREAD:
            self._events.clear()
            self._events.append(missed_events("unread"))
        self._notify()

    async def wait_room(self) -> None:
        """Wait while a reader is behind. Before one has come nothing waits: a history must not block the socket."""
        while self._claimed and self._closed is None and len(self._events) >= BURST:
            await self._changed.wait()

    async def take(self) -> list[Event]:
        """Everything that has arrived, at least one event. Raises :class:`DaemonConnectionError` at the end."""
        await trio.lowlevel.checkpoint()
        while not self._events:
            if self._closed is not None:
                raise DaemonConnectionError(self._closed, maybe_sent=True)
            await self._changed.wait()
        events = list(self._events)
        self._events.clear()
        self._notify()
        return events

    def _numbered(self, event: Event) -> Event:
        if self._next_id is None:
            return event
        if event.type in SYNTHETIC_TYPES:
            self._correct_by(event)
            return event
        numbered = replace(event, id=self._next_id)
        self._next_id += 1
        return numbered

    def _correct_by(self, event: Event) -> None:
        data = event.data if isinstance(event.data, dict) else {}
        if event.type == "state_resync_required" and data.get("reason") != "replay_budget_exceeded":
            earliest = data.get("earliestAvailableId")
            self._next_id = earliest if isinstance(earliest, int) else None
        elif event.type == "replay_complete" and isinstance(data.get("lastReplayedEventId"), int):
            self._next_id = data["lastReplayedEventId"] + 1

    def _notify(self) -> None:
        old, self._changed = self._changed, trio.Event()
        old.set()


def missed_events(reason: str) -> Event:
    """Says what a server says with ``state_resync_required``, where the client knows it by itself."""
    return Event("state_resync_required", {"reason": OWN_REASON + reason})


def is_own_notice(event: Event) -> bool:
    """Whether the notice is this client's, not the server's: then there is no earlier id to go back to."""
    reason = event.data.get("reason") if isinstance(event.data, dict) else None
    return isinstance(reason, str) and reason.startswith(OWN_REASON)
