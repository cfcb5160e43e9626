"""The writer of one connection: everything queued goes out in one send."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from protocol.layout import Buffer
from protocol.nnrp.chunks import chunks

__all__ = ["Writer"]

_HIGH: Final = 1024 * 1024


class Writer:
    """``write`` queues, ``wait_room`` waits for room, ``run`` sends until ``end``. ``run`` raises ``trio.TooSlowError`` for a
    peer that takes nothing for ``timeout`` seconds, and what the stream raises."""

    def __init__(self, stream: trio.abc.SendStream, timeout: float) -> None:
        self._stream = stream
        self._timeout = timeout
        self._queue: list[Buffer] = []
        self._more = trio.Event()
        self._room = trio.Event()
        self._ended = False
        self.size = 0

    def write(self, parts: Iterable[Buffer]) -> None:
        if self._ended:
            return
        for part in parts:
            self._queue.append(part)
            self.size += len(part)
        self._more.set()

    async def wait_room(self) -> None:
        """Wait while more is queued than should be. Not a checkpoint when there is room."""
        while self.size >= _HIGH and not self._ended:
            await self._room.wait()

    def end(self) -> None:
        """Send what is queued, then stop."""
        self._ended = True
        self._more.set()
        self._room.set()

    async def run(self) -> None:
        while self._queue or not self._ended:
            if not self._queue:
                self._more = trio.Event()
                await self._more.wait()
                continue
            batch, self._queue = self._queue, []
            for chunk in chunks(batch):
                await self._send(chunk)

    async def _send(self, data: Buffer) -> None:
        with trio.fail_after(self._timeout):
            await self._stream.send_all(data)
        self.size -= len(data)
        if self.size < _HIGH:
            room, self._room = self._room, trio.Event()
            room.set()
