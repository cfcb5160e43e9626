"""Closed sessions that can still be loaded: bounded by number and by the bytes of their history."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sessions.session import Session

__all__ = ["Archive"]


class Archive:
    """The most recently closed sessions, by id. The oldest are forgotten when a bound is exceeded."""

    def __init__(self, max_sessions: int, max_bytes: int) -> None:
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._sessions: OrderedDict[str, tuple[Session, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter([session for session, _ in self._sessions.values()])

    @property
    def bytes(self) -> int:
        return self._bytes

    def get(self, session_id: str) -> Session | None:
        found = self._sessions.get(session_id)
        return None if found is None else found[0]

    def add(self, session: Session) -> None:
        """Keep a closed session; its history is cut to what may be kept at all."""
        if not self._max_sessions:
            return
        self.remove(session.id)
        size = session.ring.shrink(self._max_bytes // 4 or self._max_bytes)
        self._sessions[session.id] = (session, size)
        self._bytes += size
        while len(self._sessions) > self._max_sessions or (self._bytes > self._max_bytes and len(self._sessions) > 1):
            self._bytes -= self._sessions.popitem(last=False)[1][1]

    def remove(self, session_id: str) -> Session | None:
        """Forget one; None if it is not kept."""
        found = self._sessions.pop(session_id, None)
        if found is None:
            return None
        self._bytes -= found[1]
        return found[0]
