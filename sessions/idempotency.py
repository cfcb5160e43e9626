"""Idempotency keys of one session: the same key gives the same prompt, and never runs it twice."""

from __future__ import annotations

from collections import OrderedDict

from sessions.errors import IdempotencyKeyReused

__all__ = ["IdempotencyKeys"]


class IdempotencyKeys:
    """A bounded memory of key to (body digest, prompt id). Refused prompts are never stored."""

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._known: OrderedDict[str, tuple[bytes, str]] = OrderedDict()

    def find(self, key: str, digest: bytes) -> str | None:
        """The prompt accepted under this key. Raises `IdempotencyKeyReused` when it came with another body."""
        known = self._known.get(key)
        if known is None:
            return None
        if known[0] != digest:
            raise IdempotencyKeyReused(key)
        return known[1]

    def store(self, key: str, digest: bytes, prompt_id: str) -> None:
        self._known[key] = (digest, prompt_id)
        while len(self._known) > self._remembered:
            self._known.popitem(last=False)
