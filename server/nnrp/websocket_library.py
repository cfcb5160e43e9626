"""trio-websocket's connection with its holes mended: what has come of a message takes as much memory as it has bytes, in
however many pieces it comes; messages wait by their bytes, not their number; several go out in one write."""

from __future__ import annotations

import contextlib
import math
from typing import Any, Final, cast

import trio
import trio_websocket
from wsproto import ConnectionType, WSConnection
from wsproto.events import BytesMessage, CloseConnection, TextMessage

__all__ = ["GuardedConnection"]

_READ: Final = 65_536
_QUEUED: Final = 256 * 1024
"""Bytes of messages that wait to be taken, from which nothing more is read."""
_TOGETHER: Final = 64 * 1024
"""Bytes of messages that are taken at once."""
_TURNS: Final = 64
"""Frames between two turns for everybody else."""
_TOO_BIG: Final = 1009


class GuardedConnection(trio_websocket.WebSocketConnection):
    """The server's end of a connection. ``nursery`` runs its reader, from `get_request` on."""

    def __init__(self, stream: trio.abc.Stream, *, largest: int) -> None:
        super().__init__(
            # Typed for sockets, but it only ever uses the Stream interface.
            cast("trio.SocketStream", stream),
            WSConnection(ConnectionType.SERVER),
            message_queue_size=cast(int, math.inf),
            max_message_size=largest,
            receive_buffer_size=_READ,
        )
        self._pieces = bytearray()
        self._frames = 0
        self._queued = 0
        self._taken = trio.Event()

    async def get_request(self, nursery: trio.Nursery) -> trio_websocket.WebSocketRequest:
        """The request for the upgrade, when it has come."""
        nursery.start_soon(self._reader_task)
        return await self._get_request()

    async def get_messages(self) -> list[bytes | str]:
        """What has come, whole messages, at least one. Raises ``trio_websocket.ConnectionClosed``."""
        messages = [await self.get_message()]
        size = len(messages[0])
        while size < _TOGETHER:
            try:
                messages.append(self._recv_channel.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
                break
            size += len(messages[-1])
        self._queued -= size
        taken, self._taken = self._taken, trio.Event()
        taken.set()
        return messages

    async def send_packets(self, packets: list[bytes]) -> None:
        """Send binary messages in one write. Raises ``trio_websocket.ConnectionClosed``."""
        if self._close_reason:
            raise trio_websocket.ConnectionClosed(self._close_reason)
        data = b"".join([self._wsproto.send(BytesMessage(data=each)) for each in packets])
        async with self._stream_lock:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._stream.send_all(data)
                return
            await self._abort_web_socket()
            raise trio_websocket.ConnectionClosed(self._close_reason)

    async def _handle_message_event(self, event: Any) -> None:
        self._frames += 1
        if self._frames % _TURNS == 0:
            await trio.lowlevel.checkpoint()
        data, whole = event.data, event.message_finished
        if self._pieces or not whole:
            self._pieces += data.encode() if isinstance(data, str) else data
        if max(len(self._pieces), len(data)) > self._max_message_size:
            await self._refuse()
        elif whole:
            if self._pieces:
                data = self._pieces.decode() if isinstance(event, TextMessage) else bytes(self._pieces)
                self._pieces = bytearray()
            await self._deliver(data if isinstance(data, str) else bytes(data))

    async def _refuse(self) -> None:
        self._pieces = bytearray()
        reason = "the message is too big"
        self._close_reason = trio_websocket.CloseReason(_TOO_BIG, reason)
        await self._send(CloseConnection(code=_TOO_BIG, reason=reason))
        await self._recv_channel.aclose()
        self._reader_running = False

    async def _deliver(self, message: bytes | str) -> None:
        while self._queued and self._queued + len(message) > _QUEUED:
            await self._taken.wait()
        self._queued += len(message)
        try:
            self._send_channel.send_nowait(message)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return  # closed from here: nobody takes it any more
