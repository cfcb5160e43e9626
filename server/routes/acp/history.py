"""What a client that loads a session is shown of the time before (ACP-193)."""

from __future__ import annotations

from collections import deque
from typing import Final

from sessions import Event, Notice, NoticeType, Session
from sessions.transcript import SESSION_ENDS, compact, split_live

__all__ = ["History"]

PIECE: Final = 256
"""Events looked at in one go: a long history must not hold up every other stream."""


class History:
    """Events up to ``through``, in pieces: finished turns with their text merged, the open turn as it is.

    Begins with a notice when the ring has lost the beginning.
    """

    def __init__(self, session: Session, through: int) -> None:
        ring = session.ring
        held = ring.read(0, max(0, through - ring.waterline + 1))
        events = [each for each in held if each.type not in SESSION_ENDS]
        finished, live = split_live(events)
        if not finished and not session.prompts.count:
            # What an agent replayed from its storage has no turn boundaries, and nothing of it goes on.
            finished, live = events, []
        self._finished = deque(finished)
        self._live = deque(live)
        self._tail: list[Event] = []
        self._notice = _truncated(ring.waterline - 1, len(events)) if ring.waterline > 1 else None

    def __bool__(self) -> bool:
        return bool(self._notice or self._finished or self._tail or self._live)

    def take(self) -> list[Event | Notice]:
        """The next piece; may be empty before the end."""
        if self._notice is not None:
            notice, self._notice = self._notice, None
            return [notice]
        if self._finished or self._tail:
            return self._take_finished()
        return [self._live.popleft() for _ in range(min(PIECE, len(self._live)))]

    def _take_finished(self) -> list[Event | Notice]:
        piece = [self._finished.popleft() for _ in range(min(PIECE, len(self._finished)))]
        merged = compact([*self._tail, *piece])
        # The last one may go on in the next piece.
        self._tail = [merged.pop()] if self._finished and merged else []
        return list(merged)


def _truncated(lost: int, retained: int) -> Notice:
    return Notice(
        NoticeType.HISTORY_TRUNCATED,
        {
            "reason": "replay_window_exceeded",
            "truncatedEvents": lost,
            "retainedEvents": retained,
            "fullTranscriptAvailable": False,
        },
    )
