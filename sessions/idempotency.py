"""Idempotency keys of one session: the same key gives the same prompt, and never runs it twice."""

from __future__ import annotations

from collections import OrderedDict

from sessions.errors import IdempotencyKeyReused
from sessions.operation import Operation

__all__ = ["IdempotencyKeys"]


class IdempotencyKeys:
    """A bounded memory of what was accepted under a key. Refused prompts are never stored.

    The answer is remembered whole: the operation, which may be forgotten elsewhere earlier, and the ring's head before it,
    so that a repeated request gets a cursor its terminal event lies behind (REST-062).
    """

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._known: OrderedDict[str, tuple[bytes, Operation, int]] = OrderedDict()

    def find(self, key: str, digest: bytes) -> tuple[Operation, int] | None:
        """The prompt accepted under this key, and the head before it. Raises `IdempotencyKeyReused` when it came with
        another body."""
        known = self._known.get(key)
        if known is None:
            return None
        known_digest, operation, head = known
        if known_digest != digest:
            raise IdempotencyKeyReused(key)
        return operation, head

    def store(self, key: str, digest: bytes, operation: Operation, head: int) -> None:
        self._known[key] = (digest, operation, head)
        while len(self._known) > self._remembered:
            self._known.popitem(last=False)
