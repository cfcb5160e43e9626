"""The writer of one connection: everything queued goes out in one send."""

from __future__ import annotations

import os

import trio

from protocol.layout import Buffer
from protocol.nnrp.send_queue import Offer, SendQueue

__all__ = ["Writer"]


class Writer(SendQueue):
    """``write`` queues, ``wait_room`` waits for room, ``run`` sends until ``end``. ``run`` raises ``trio.TooSlowError`` for a
    peer that takes nothing for ``timeout`` seconds, and what the stream raises. Called again after it was cancelled it sends
    the rest; nothing, where part of a packet may have gone out."""

    def __init__(self, stream: trio.abc.SendStream, timeout: float) -> None:
        super().__init__(_offer_of(stream))
        self._stream = stream
        self._timeout = timeout
        self._torn = False
        self._more = trio.Event()
        self._room = trio.Event()

    async def wait_room(self) -> None:
        """Wait while `is_full`. Not a checkpoint when there is room."""
        while self.is_full():
            await self._room.wait()

    def end(self) -> None:
        """Send what is queued, then stop."""
        self._ended = True
        self._more.set()
        self._room.set()

    async def run(self) -> None:
        while not self._torn and (self._queue or not self._ended):
            if not self._queue:
                self._more = trio.Event()
                await self._more.wait()
                continue
            for chunk in self._take():
                await self._send(chunk)
            self._idle()

    def _wake(self) -> None:
        self._more.set()

    async def _send(self, data: Buffer) -> None:
        self._torn = True
        with trio.fail_after(self._timeout):
            await self._stream.send_all(data)
        self._torn = False
        self._sent(data)
        if not self.is_full():
            room, self._room = self._room, trio.Event()
            room.set()


def _offer_of(stream: trio.abc.SendStream) -> Offer | None:
    """Only a plain socket takes bytes without waiting."""
    if not isinstance(stream, trio.SocketStream):
        return None
    fileno = stream.socket.fileno
    return lambda data: os.write(fileno(), data)
