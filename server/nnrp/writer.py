"""The one writer of a connection: what everybody has queued goes out in one send (stack.md 4)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

import trio

from protocol.layout import Buffer
from protocol.nnrp.chunks import chunks

__all__ = ["ANSWER_BYTES", "DIRECT_BYTES", "HIGH_BYTES", "Writer"]

HIGH_BYTES: Final = 1024 * 1024
"""Queued bytes from which results wait; their operations keep their credit meanwhile."""
ANSWER_BYTES: Final = 1024 * 1024
"""Bytes of answers queued behind what is being sent, from which nothing more is read: they do not wait for room as results
do, and must be bounded too. Results do not count, so that cancels are read while results are stuck (C-084); but for those
that could not wait though the queue was full: drops, what was sent before an ending, what is sent again."""

DIRECT_BYTES: Final = 64 * 1024
"""Up to here what is queued may be sent in the step that queued it."""
_PIECE: Final = 2048
"""From here on it is, without waiting for the end of the step: the peer begins on it while we go on."""


class Writer:
    """Queue without waiting (``write``), wait for room (``wait_room``), send in order (``run``, one task).

    ``run`` returns after ``end`` when everything is out. It raises ``trio.TooSlowError`` for a peer that accepts nothing for
    ``timeout`` seconds, and what the stream raises when it breaks; nothing is sent after that.
    """

    def __init__(self, stream: trio.abc.SendStream, *, timeout: float, high: int = HIGH_BYTES) -> None:
        self._stream = stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._busy = False
        self._held = False
        self._timeout = timeout
        self._high = high
        self._queue: list[Buffer] = []
        self._more = trio.Event()
        self._room = trio.Event()
        self._ended = False
        self._answers = 0
        self.size = 0
        """Bytes queued and not yet taken by the transport."""

    @property
    def flooded(self) -> bool:
        """Whether reading should stop until the peer has taken in what it was answered."""
        return self._answers >= ANSWER_BYTES and not self._ended

    @property
    def full(self) -> bool:
        """Whether a result should wait. Never after the end: what is written then is dropped."""
        return self.size >= self._high and not self._ended

    def write(self, parts: Iterable[Buffer], *, result: bool = False) -> None:
        """Queue one packet, or several, given as buffers. They must not change until they are sent."""
        if self._ended:
            return
        size = 0
        for part in parts:
            self._queue.append(part)
            size += len(part)
        self.size += size
        if not result or self.size - size >= self._high:
            self._answers += size
        if self._socket is not None and self.size >= _PIECE:
            self._send_nowait(self._socket)
        if not self._held:
            self._more.set()

    def hold(self) -> None:
        """Let what is written add up until `release`."""
        self._held = True

    def release(self) -> None:
        """Send what has been written since `hold`: in this step if it is little, the stream a plain socket, and nothing being
        sent, so that answers cost no task switch. Otherwise, and where the socket does not take it all, `run` does it."""
        self._held = False
        if self._socket is not None:
            self._send_nowait(self._socket)
        if self._queue:
            self._more.set()

    async def wait_room(self) -> None:
        """Wait until results may be queued again, or the writer has ended."""
        while self.full:
            await self._room.wait()

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
            batch, self._queue = self._queue, []
            if self.flooded:
                self._tell_room()
            self._answers = 0
            self._busy = True
            for chunk in chunks(batch):
                with trio.fail_after(self._timeout):
                    await self._stream.send_all(chunk)
                self.size -= len(chunk)
                if self.size < self._high:
                    self._tell_room()
            self._busy = False

    def _send_nowait(self, socket: trio.socket.SocketType) -> None:
        """What goes to the socket without waiting. When it does not take everything, `run` sends the rest, and all that comes
        until then."""
        if self._busy or not 0 < self.size <= DIRECT_BYTES:
            return
        data = self._queue[0] if len(self._queue) == 1 else b"".join(self._queue)
        try:
            sent = os.write(socket.fileno(), data)
        except OSError:
            sent = 0  # full, or broken: `run` meets the same, and waits or says so
        self.size -= sent
        self._busy = self.size > 0
        self._queue = [memoryview(data)[sent:]] if self._busy else []
        if not self._busy:
            self._answers = 0

    def _tell_room(self) -> None:
        room, self._room = self._room, trio.Event()
        room.set()
