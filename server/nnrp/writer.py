"""The one writer of a connection: what everybody has queued goes out in one send (stack.md 4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import trio

from protocol.layout import Buffer

__all__ = ["HARD_BYTES", "HIGH_BYTES", "Writer"]

HIGH_BYTES: Final = 1024 * 1024
"""Queued bytes from which results wait; their operations keep their credit meanwhile."""
HARD_BYTES: Final = 2 * 1024 * 1024
"""Queued bytes from which nothing more is read: answers to control messages do not wait for room, and must be bounded too."""
_JOIN: Final = 64 * 1024
_SLICE: Final = 256 * 1024
"""A peer has the send timeout for each slice, so a large result to a slow peer is not taken for a dead peer."""


class Writer:
    """Queue without waiting (``write``), wait for room (``wait_room``), send in order (``run``, one task).

    ``run`` returns after ``end`` when everything is out. It raises ``trio.TooSlowError`` for a peer that accepts nothing for
    ``timeout`` seconds, and what the stream raises when it breaks; nothing is sent after that.
    """

    def __init__(self, stream: trio.abc.SendStream, *, timeout: float, high: int = HIGH_BYTES) -> None:
        self._stream = stream
        self._timeout = timeout
        self._high = high
        self._queue: list[Buffer] = []
        self._more = trio.Event()
        self._room = trio.Event()
        self._ended = False
        self.size = 0
        """Bytes queued and not yet taken by the transport."""

    @property
    def full(self) -> bool:
        """Whether a result should wait. Never after the end: what is written then is dropped."""
        return self.size >= self._high and not self._ended

    def write(self, parts: Iterable[Buffer]) -> None:
        """Queue one packet, or several, given as buffers. They must not change until they are sent."""
        if self._ended:
            return
        for part in parts:
            self._queue.append(part)
            self.size += len(part)
        self._more.set()

    async def wait_room(self, limit: int | None = None) -> None:
        """Wait until fewer than ``limit`` bytes (the mark for results) are queued, or the writer has ended."""
        mark = self._high if limit is None else limit
        while self.size >= mark and not self._ended:
            await self._room.wait()

    def end(self) -> None:
        """Send what is queued, then stop. Later writes are dropped."""
        self._ended = True
        self._more.set()
        self._tell_room()

    def abandon(self) -> None:
        """Nothing more can be sent: let go of everybody who waits and of everything queued."""
        self._queue.clear()
        self.size = 0
        self.end()

    async def run(self) -> None:
        while self._queue or not self._ended:
            if not self._queue:
                self._more = trio.Event()
                await self._more.wait()
                continue
            batch, self._queue = self._queue, []
            for chunk in _chunks(batch):
                with trio.fail_after(self._timeout):
                    await self._stream.send_all(chunk)
                self.size -= len(chunk)
                if self.size < self._high:
                    self._tell_room()

    def _tell_room(self) -> None:
        room, self._room = self._room, trio.Event()
        room.set()


def _chunks(batch: list[Buffer]) -> Iterator[Buffer]:
    """What is handed to the transport at once: neighbours joined while they are small, large buffers in slices."""
    small: list[Buffer] = []
    held = 0
    for part in batch:
        if len(part) < _JOIN:
            small.append(part)
            held += len(part)
            if held < _SLICE:
                continue
        if small:
            yield small[0] if len(small) == 1 else b"".join(small)
            small, held = [], 0
        if len(part) >= _JOIN:
            view = memoryview(part)
            for start in range(0, len(view), _SLICE):
                yield view[start : start + _SLICE]
    if small:
        yield small[0] if len(small) == 1 else b"".join(small)
