"""The writer of one connection: everything queued goes out in one send."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

import trio

from protocol.layout import Buffer
from protocol.nnrp.chunks import chunks

__all__ = ["Writer"]

_HIGH: Final = 1024 * 1024
_DIRECT: Final = 64 * 1024
"""Up to here what is queued may be sent in the step that queued it."""
_PIECE: Final = 2048
"""From here on it is, without waiting for the end of the step: the server begins on it while we go on."""


class Writer:
    """``write`` queues, ``wait_room`` waits for room, ``run`` sends until ``end``. ``run`` raises ``trio.TooSlowError`` for a
    peer that takes nothing for ``timeout`` seconds, and what the stream raises."""

    def __init__(self, stream: trio.abc.SendStream, timeout: float) -> None:
        self._stream = stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._busy = False
        self._held = False
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
        if self._socket is not None and self.size >= _PIECE:
            self._send_nowait(self._socket)
        if not self._held:
            self._more.set()

    def hold(self) -> None:
        """Let what is written add up until `release`."""
        self._held = True

    def release(self) -> None:
        """Send what has been written since `hold`: in this step if it is little, the stream a plain socket, and nothing being
        sent, so that it costs no task switch. Otherwise, and where the socket does not take it all, `run` does it."""
        self._held = False
        if self._socket is not None:
            self._send_nowait(self._socket)
        if self._queue:
            self._more.set()

    @property
    def full(self) -> bool:
        """Whether more is queued than should be."""
        return self.size >= _HIGH and not self._ended

    async def wait_room(self) -> None:
        """Wait while `full`. Not a checkpoint when there is room."""
        while self.full:
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
            self._busy = True
            for chunk in chunks(batch):
                await self._send(chunk)
            self._busy = False

    def _send_nowait(self, socket: trio.socket.SocketType) -> None:
        """What goes to the socket without waiting. When it does not take everything, `run` sends the rest, and all that comes
        until then."""
        if self._busy or not 0 < self.size <= _DIRECT:
            return
        data = self._queue[0] if len(self._queue) == 1 else b"".join(self._queue)
        try:
            sent = os.write(socket.fileno(), data)
        except OSError:
            sent = 0  # full, or broken: `run` meets the same, and waits or says so
        self.size -= sent
        self._busy = self.size > 0
        self._queue = [memoryview(data)[sent:]] if self._busy else []

    async def _send(self, data: Buffer) -> None:
        with trio.fail_after(self._timeout):
            await self._stream.send_all(data)
        self.size -= len(data)
        if self.size < _HIGH:
            room, self._room = self._room, trio.Event()
            room.set()
