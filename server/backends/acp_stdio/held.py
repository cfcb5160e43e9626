"""Updates an agent sends for a session before it has told us that session's id."""

from __future__ import annotations

from typing import Final

from msgspec import Raw

__all__ = ["HELD_BYTES", "HELD_UPDATES", "HeldUpdates"]

HELD_UPDATES: Final = 1024
HELD_BYTES: Final = 16 * 2**20
"""Bounds of what is held for all sessions being opened together; what is over is dropped and counted."""


class HeldUpdates:
    """Params of early updates by session id (as JSON text), in order."""

    def __init__(self, max_updates: int = HELD_UPDATES, max_bytes: int = HELD_BYTES) -> None:
        self._max_updates = max_updates
        self._max_bytes = max_bytes
        self._held: dict[bytes, list[dict[str, Raw]]] = {}
        self._count = 0
        self._bytes = 0

    def add(self, key: bytes, params: dict[str, Raw]) -> bool:
        """Hold one update. False when there is no room."""
        size = sum(len(bytes(value)) for value in params.values())
        if self._count >= self._max_updates or self._bytes + size > self._max_bytes:
            return False
        self._held.setdefault(key, []).append(params)
        self._count += 1
        self._bytes += size
        return True

    def take(self, key: bytes) -> list[dict[str, Raw]]:
        """What was held for this session; the room stays used until `clear`."""
        return self._held.pop(key, [])

    def clear(self) -> None:
        self._held.clear()
        self._count = 0
        self._bytes = 0
