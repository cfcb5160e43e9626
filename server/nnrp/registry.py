"""Which sessions can be resumed, by what token, and until when (nnrp-wire 13.7)."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable
from typing import Final

import trio

from server.nnrp.session import Doubt, ServedSession

__all__ = ["TOKEN_BYTES", "Registry"]

TOKEN_BYTES: Final = 24
"""What existing peers issue and expect; 192 random bits."""


class Registry:
    """Tokens are found by their digest, so that the time of a look-up says nothing about how close a guess was.

    ``expire`` is called, synchronously, for every session whose window has passed.
    """

    def __init__(self, window: float, max_detached: int, expire: Callable[[ServedSession], None]) -> None:
        self._window = window
        self._max_detached = max_detached
        self._expire = expire
        self._by_digest: dict[bytes, ServedSession] = {}
        self._detached: dict[ServedSession, None] = {}
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self._by_digest)

    @property
    def detached(self) -> int:
        return len(self._detached)

    @property
    def waiting(self) -> list[ServedSession]:
        """The detached sessions, the one that expires first in front."""
        return list(self._detached)

    def new_token(self) -> bytes:
        return secrets.token_bytes(TOKEN_BYTES)

    def enter(self, session: ServedSession, token: bytes) -> None:
        """The session can be resumed with ``token`` and with no other any more."""
        self.forget(session)
        session.token = token
        session.expires_at = math.inf
        self._by_digest[_digest(token)] = session

    def keep_former(self, session: ServedSession, doubt: Doubt) -> None:
        """The session was resumed: until its client is known to have the new token, the one it came with may be good again."""
        session.doubt = doubt
        self._by_digest.update(dict.fromkeys(map(_digest, doubt.tokens), session))

    def settle_doubt(self, session: ServedSession) -> None:
        """The client has its new token; the former ones are used up."""
        if session.doubt is not None:
            for token in session.doubt.tokens:
                self._by_digest.pop(_digest(token), None)
            session.doubt = None

    def find(self, token: bytes | None) -> ServedSession | None:
        session = self._by_digest.get(_digest(token)) if token else None
        if session is None or session.token == token or session.in_doubt:
            return session
        return None

    def forget(self, session: ServedSession) -> None:
        """The session's token is used up, or the session is over."""
        self.settle_doubt(session)
        if session.token is not None:
            self._by_digest.pop(_digest(session.token), None)
            session.token = None
        self._detached.pop(session, None)

    def attach(self, session: ServedSession) -> None:
        """The session has a transport again, and its token is good as before."""
        self._detached.pop(session, None)
        session.expires_at = math.inf

    def detach(self, session: ServedSession) -> None:
        """The transport is lost: the window begins."""
        session.expires_at = trio.current_time() + self._window
        self._detached[session] = None
        if len(self._detached) > self._max_detached:
            self._end(next(iter(self._detached)))
        self._changed.set()

    async def reap(self) -> None:
        """Expire sessions when their time has come. Every window is as long, so the oldest is the first."""
        while True:
            first = next(iter(self._detached), None)
            if first is None:
                self._changed = trio.Event()
                await self._changed.wait()
            elif first.expires_at > trio.current_time():
                await trio.sleep_until(first.expires_at)
            else:
                self._end(first)

    def _end(self, session: ServedSession) -> None:
        self.forget(session)
        self._expire(session)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
