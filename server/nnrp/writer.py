"""The one writer of a connection: what everybody has queued goes out in one send (stack.md 4)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

import trio

from protocol.layout import Buffer
from protocol.nnrp.send_queue import HIGH_BYTES, Offer, SendQueue

__all__ = ["ANSWER_BYTES", "HIGH_BYTES", "Writer"]

ANSWER_BYTES: Final = 1024 * 1024
"""Bytes of answers queued behind what is being sent, from which nothing more is read: they do not wait for room as results
do, and must be bounded too. Results do not count, so that cancels are read while results are stuck (C-084); but for those
that could not wait though the queue was full: drops, what was sent before an ending, what is sent again."""


class Writer(SendQueue):
    """Queue without waiting (``write``), wait for room (``wait_news``, while ``is_full``), send in order (``run``, one task).

    ``run`` returns after ``end`` when everything is out. It raises ``trio.TooSlowError`` for a peer that accepts nothing for
    ``timeout`` seconds, and what the stream raises when it breaks; nothing is sent after that.
    """

    def __init__(self, stream: trio.abc.SendStream, *, timeout: float, high: int = HIGH_BYTES) -> None:
        super().__init__(_offer_of(stream), high=high)
        self._stream = stream
        self._timeout = timeout
        self._more = trio.Event()
        self._room = trio.Event()
        self._answers = 0

    @property
    def flooded(self) -> bool:
        """Whether reading should stop until the peer has taken in what it was answered."""
        return self._answers >= ANSWER_BYTES and not self._ended

    def write(self, parts: Iterable[Buffer], *, at_once: bool = False, result: bool = False) -> int:
        """As `SendQueue.write`. A ``result`` is bounded by whoever waited for room before."""
        added = super().write(parts, at_once=at_once)
        if self._queue and (not result or self.size - added >= self._high):
            self._answers += added
        return added

    async def wait_taken(self) -> None:
        """Wait until what was queued as answers is being sent, or the writer has ended."""
        while self.flooded:
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
            if self.flooded:
                self._tell_room()
            self._answers = 0
            for chunk in self._take():
                with trio.fail_after(self._timeout):
                    await self._stream.send_all(chunk)
                self._sent(chunk)
                if not self.is_full():
                    self._tell_room()
            self._idle()

    def _wake(self) -> None:
        self._more.set()

    def _emptied(self) -> None:
        self._answers = 0

    async def wait_news(self) -> None:
        """Wait until there may be room again, the writer has ended, or ``look_again`` was called."""
        await self._room.wait()

    def look_again(self) -> None:
        """Wake everybody who waits: there may be a reason not to."""
        self._tell_room()

    def _tell_room(self) -> None:
        room, self._room = self._room, trio.Event()
        room.set()


def _offer_of(stream: trio.abc.SendStream) -> Offer | None:
    """Only a plain socket takes bytes without waiting."""
    if not isinstance(stream, trio.SocketStream):
        return None
    fileno = stream.socket.fileno
    return lambda data: os.write(fileno(), data)
