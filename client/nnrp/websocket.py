"""NNRP over WebSocket: every binary message is one packet (nnrp-extensions, WebSocket).

The library's state machine on a stream, without a task of its own: what is to be sent is joined and sent at once, and a
packet that comes in pieces goes out in pieces.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from client.nnrp.errors import NnrpRefused
from client.nnrp.transport import PacketTransport
from protocol.layout import Buffer
from protocol.nnrp.cutting import PacketCutter, check_message, largest_packet
from protocol.nnrp.errors import NnrpError

__all__ = ["WebSocketTransport", "upgrade"]

_READ: Final = 65_536
_NORMAL: Final = 1000
_NOT_BINARY: Final = 1003
_TOO_BIG: Final = 1009


async def upgrade(stream: trio.abc.Stream, host: str, target: str, token: str | None) -> WebSocketTransport:
    """Turn a stream to an HTTP server into a WebSocket. ``host`` is the Host header, ``token`` the bearer token.

    Raises `NnrpRefused` with the HTTP status as its code, and what the stream raises.
    """
    made = WebSocketTransport(stream)
    headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode("latin-1"))]
    await made.begin(Request(host=host, target=target, extra_headers=headers))
    return made


class WebSocketTransport(PacketTransport):
    """Made by `upgrade`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._ws = WSConnection(ConnectionType.CLIENT)
        self._cutter = PacketCutter()
        self._sending = trio.Lock()
        self._message = bytearray()
        self._ready: deque[bytes] = deque()
        self._accepted = False
        self._over = False

    async def begin(self, request: Request) -> None:
        await self._stream.send_all(self._ws.send(request))
        while not self._accepted:
            if not await self._read():
                raise trio.BrokenResourceError("the server hung up during the upgrade")

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while not self._ready:
            if self._over or not await self._read():
                return b""
        ready = self._ready
        check_message(ready[0])
        if len(ready) == 1:
            return ready.popleft()
        gathered = [ready.popleft()]
        while ready:
            # One that is no packet is for the next call to complain about.
            try:
                check_message(ready[0])
            except NnrpError:
                break
            gathered.append(ready.popleft())
        return b"".join(gathered)

    async def send_all(self, data: Buffer) -> None:
        packets = self._cutter.cut(data)
        if packets:
            await self._send([BytesMessage(data=each) for each in packets])

    async def part(self) -> None:
        await self._close(_NORMAL)
        while not self._over and await self._read():
            self._ready.clear()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _send(self, events: list[Event]) -> None:
        """Everything in one write. Raises ``trio.BrokenResourceError`` when the socket is closing."""
        async with self._sending:
            try:
                data = b"".join([self._ws.send(each) for each in events])
            except LocalProtocolError:
                raise trio.BrokenResourceError("the WebSocket is closing") from None
            await self._stream.send_all(data)

    async def _close(self, code: int) -> None:
        try:
            await self._send([CloseConnection(code=code)])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._over = True

    async def _read(self) -> bool:
        """Take in one read. False at the end of the stream."""
        data = await self._stream.receive_some(_READ)
        try:
            self._ws.receive_data(bytes(data) or None)
            for event in self._ws.events():
                await self._take(event)
        except RemoteProtocolError as fault:
            raise trio.BrokenResourceError(f"the server broke a rule of WebSocket: {fault}") from fault
        return bool(data)

    async def _take(self, event: Event) -> None:
        if isinstance(event, BytesMessage):
            self._message += event.data
            if len(self._message) > largest_packet():
                self._over = True
                await self._close(_TOO_BIG)
            elif event.message_finished:
                self._ready.append(bytes(self._message))
                self._message = bytearray()
        elif isinstance(event, TextMessage):
            self._over = True
            await self._close(_NOT_BINARY)
        elif isinstance(event, Ping):
            await self._send([event.response()])
        elif isinstance(event, CloseConnection):
            self._over = True
            if self._ws.state.name == "REMOTE_CLOSING":
                await self._send([event.response()])
        elif isinstance(event, AcceptConnection):
            self._accepted = True
        elif isinstance(event, RejectConnection):
            raise NnrpRefused(f"the server refused the WebSocket: HTTP {event.status_code}", event.status_code)
