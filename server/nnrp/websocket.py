"""NNRP over WebSocket: every binary message is exactly one packet (nnrp-extensions, WebSocket).

The same transport for the HTTP port, where a message comes through ASGI, and for a port of its own.
"""

from __future__ import annotations

from typing import Final, Protocol, cast

import trio
import trio_websocket

from protocol.layout import Buffer
from protocol.nnrp.cutting import PacketCutter, check_message
from protocol.nnrp.errors import NnrpError
from server.connection import CONNECTION, RequestSends
from server.guard import TRANSPORT
from server.guard_websocket import WEBSOCKET, GuardedWebSocket
from server.middleware.asgi import Receive, Scope, Send
from server.middleware.exchange import PeerTooSlow
from server.nnrp.transport import PacketTransport
from server.nnrp.websocket_library import GuardedConnection
from server.telemetry import log

__all__ = ["AsgiSocket", "LibrarySocket", "MessageSocket", "WebSocketTransport"]

_NORMAL: Final = 1000
_PROTOCOL_ERROR: Final = 1002
_NOT_BINARY: Final = 1003


class MessageSocket(Protocol):
    """An accepted WebSocket."""

    async def receive(self) -> list[bytes | str]:
        """The next messages; none when the peer has closed or is gone."""
        ...

    async def send(self, messages: list[bytes]) -> None:
        """Send binary messages. Raises ``trio.BrokenResourceError``."""
        ...

    async def close(self, code: int) -> None:
        """The closing handshake, as far as it goes."""
        ...

    async def drop(self) -> None:
        """No goodbye: nobody would hear it."""
        ...


class WebSocketTransport(PacketTransport):
    """A WebSocket to the driver."""

    def __init__(self, socket: MessageSocket) -> None:
        self._socket = socket
        self._cutter = PacketCutter()
        self._code = _NORMAL
        self._parted = False
        self._waiting: list[bytes | str] = []
        """Messages behind what was given out, the first of them one that ends the connection."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        messages = self._waiting or await self._socket.receive()
        self._waiting = []
        for at, message in enumerate(messages):
            fault = _fault_of(message)
            if fault is None:
                continue
            if at:
                self._waiting = messages[at:]
                return b"".join(cast("list[bytes]", messages[:at]))
            self._code, problem = fault
            if problem is None:
                log.info("nnrp_text_message")
                return b""
            raise problem
        return cast(bytes, messages[0]) if len(messages) == 1 else b"".join(cast("list[bytes]", messages))

    async def send_all(self, data: Buffer) -> None:
        packets = self._cutter.cut(data)
        if packets:
            await self._socket.send(packets)

    async def part(self, *, violated: bool) -> None:
        self._parted = True
        await self._socket.close(_PROTOCOL_ERROR if violated else self._code)

    async def aclose(self) -> None:
        if self._parted:
            await trio.lowlevel.checkpoint()
        else:
            await self._socket.drop()


def _fault_of(message: bytes | str) -> tuple[int, NnrpError | None] | None:
    """The code a message ends the connection with, and what is wrong with it; text gets no ERROR, just the code that says
    so. None for a message that is one packet."""
    if isinstance(message, str):
        return _NOT_BINARY, None
    try:
        check_message(message)
    except NnrpError as problem:
        return _PROTOCOL_ERROR, problem
    return None


class AsgiSocket:
    """A WebSocket of the HTTP server. Several messages go out in one write where the guard serves it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, send_timeout: float) -> None:
        state = scope.get("state") or {}
        self._receive = receive
        self._send = send
        self._sends: RequestSends = scope[CONNECTION]
        self._timeout = send_timeout
        self._guarded: GuardedWebSocket | None = state.get(WEBSOCKET)
        self._transport = state.get(TRANSPORT) if scope.get("http_version", "1.1").startswith("1") else None
        self._over = False

    def accept_messages_up_to(self, size: int) -> None:
        """Bytes; the listener's own limit is that of another protocol."""
        if self._guarded is not None:
            self._guarded.largest = size

    async def receive(self) -> list[bytes | str]:
        if self._over:
            return []
        message = await self._receive()
        if message["type"] != "websocket.receive":
            self._over = True
            return []
        data: bytes | None = message.get("bytes")
        return [message["text"] if data is None else data]

    async def send(self, messages: list[bytes]) -> None:
        if self._over:
            raise trio.BrokenResourceError
        try:
            with self._sends.begin(self._timeout) as sending:
                if self._guarded is not None:
                    await self._guarded.send_packets(messages)
                else:
                    for each in messages:
                        await self._send({"type": "websocket.send", "bytes": each})
            self._sends.end()
        except PeerTooSlow:
            raise trio.BrokenResourceError from None
        if sending.cancelled_caught:
            raise trio.BrokenResourceError

    async def close(self, code: int) -> None:
        if not self._over:
            self._over = True
            await self._send({"type": "websocket.close", "code": code})

    async def drop(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._transport is not None and not self._over:
            self._transport.drop()
        self._over = True


class LibrarySocket:
    """A WebSocket of trio-websocket, for a port of its own."""

    def __init__(self, connection: GuardedConnection, stream: trio.abc.Stream) -> None:
        self._connection = connection
        self._stream = stream

    async def receive(self) -> list[bytes | str]:
        try:
            return await self._connection.get_messages()
        except trio_websocket.ConnectionClosed:
            return []

    async def send(self, messages: list[bytes]) -> None:
        try:
            await self._connection.send_packets(messages)
        except trio_websocket.ConnectionClosed:
            raise trio.BrokenResourceError from None

    async def close(self, code: int) -> None:
        await self._connection.aclose(code=code)

    async def drop(self) -> None:
        await trio.aclose_forcefully(self._stream)
