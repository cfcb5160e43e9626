"""The agent's stdin: a bounded queue, one writer, and a short way past both while the pipe takes everything."""

from __future__ import annotations

import os
from collections import deque
from typing import Final

import trio

__all__ = ["WRITE_LIMIT", "PipeWriter"]

WRITE_LIMIT: Final = 16 * 2**20
"""Bytes waiting for an agent that does not read, beyond which senders wait. One message may exceed it."""
_BATCH: Final = 2**18


class PipeWriter:
    """Writes whole messages to a pipe in order. Nothing here ever blocks a sender that does not ask to wait (C-028)."""

    def __init__(self, stream: trio.lowlevel.FdStream, limit: int = WRITE_LIMIT) -> None:
        self._stream = stream
        self._fd = stream.fileno()
        self._limit = limit
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._sending = False
        self._work = trio.Event()
        self._room = trio.Event()
        self.broken = trio.Event()
        """Set when the agent has closed its end."""

    @property
    def queued_bytes(self) -> int:
        return self._size

    @property
    def has_room(self) -> bool:
        return self._size < self._limit

    async def wait_room(self) -> None:
        """Wait until less than the limit is queued. A checkpoint only if it must wait."""
        while self._size >= self._limit and not self.broken.is_set():
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()

    def write_nowait(self, data: bytes) -> None:
        """Write or queue one message; on a broken pipe it is dropped, for nobody will read it."""
        if self.broken.is_set():
            return
        if not self._queue and not self._sending:
            # One system call here saves a pass through the scheduler: half the cost of a round trip.
            try:
                written = os.write(self._fd, data)
            except BlockingIOError:
                written = 0
            except OSError:
                self._break()
                return
            if written == len(data):
                return
            data = data[written:]
        self._queue.append(data)
        self._size += len(data)
        self._work.set()

    def close(self) -> None:
        """Close the pipe: the agent reads its end. What is queued is dropped. Idempotent."""
        self._break()
        self._stream.close()

    async def run(self) -> None:
        """Write what is queued until the pipe breaks."""
        try:
            while True:
                await self._work.wait()
                self._work = trio.Event()
                while self._queue:
                    await self._send_batch()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._break()

    async def _send_batch(self) -> None:
        batch = [self._queue.popleft()]
        size = len(batch[0])
        while self._queue and size < _BATCH:
            batch.append(self._queue.popleft())
            size += len(batch[-1])
        self._sending = True
        try:
            await self._stream.send_all(batch[0] if len(batch) == 1 else b"".join(batch))
        finally:
            self._sending = False
        self._size -= size
        if self._size < self._limit:
            self._room.set()

    def _break(self) -> None:
        self._queue.clear()
        self._size = 0
        self.broken.set()
        self._room.set()
