"""One WebSocket of the HTTP server, with the library's holes mended and two things added.

* A message over the limit is refused once with 1009, and what still comes of it is thrown away; the library goes on
  collecting it in memory for as long as the peer likes to send.
* What has come of a message takes as much memory as it has bytes, in however many pieces it comes; and a read that is full of
  small frames lets others have their turn in between.
* Text that is not UTF-8 and broken framing are answered with their close code instead of a bare end.
* Data behind the closing handshake is ignored instead of being an error.
* No compression: one frame of it can be made to unpack to a thousand times its size.
* Pings, with the answer noticed; and several messages in one write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import trio
from hypercorn.protocol.events import Body, Data, Request, StreamClosed
from hypercorn.protocol.ws_stream import ASGIWebsocketState, WSStream
from hypercorn.typing import ConnectionState
from wsproto.connection import ConnectionState as Framing
from wsproto.events import BytesMessage, CloseConnection, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError

from server.telemetry import log

__all__ = ["WEBSOCKET", "GuardedWebSocket"]

WEBSOCKET: Final = "moorline.websocket"
"""Key in ``scope["state"]`` under which a WebSocket route finds its `GuardedWebSocket`."""

_PARTING: Final = 1.0
"""Seconds a peer gets to answer our close, while what it sends is thrown away: a socket closed on unread bytes is reset,
and the reset can overtake the close."""

_TURNS: Final = 64
"""Frames of one read between two turns for everybody else."""


class GuardedWebSocket(WSStream):
    """Stands in for the library's class (`server.guard.install`)."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.answered = True
        """Something has come from the peer since the last `ping`."""
        self.peer_close_code: int | None = None
        """What the peer closed with; None while it has not, or when it is just gone."""
        self.largest = self.config.websocket_max_message_size
        """Bytes of one message. A route whose protocol allows others says so before it accepts."""
        self.on_text: Callable[[str], Awaitable[None]] | None = None
        """Where text goes instead of ``receive``: a route may set it once it has received `forwarded` messages."""
        self.forwarded = 0
        """Messages handed to the application so far."""
        self._pieces = bytearray()
        """What has come of a message that is not complete, text in UTF-8."""
        self._deaf = False
        self._accepted = False
        self._peer_over = trio.Event()

    # What a route may do

    async def ping(self) -> None:
        """Ask for a sign of life; `answered` tells whether it came."""
        self.answered = False
        await self._send_wsproto_event(Ping())

    async def send_texts(self, texts: Iterable[bytes]) -> None:
        """Send messages, each UTF-8 text, in one write. Nothing happens once the socket is closing."""
        await self._send_together(TextMessage(data=text.decode()) for text in texts)

    async def send_packets(self, packets: Iterable[bytes]) -> None:
        """Send binary messages in one write. Nothing happens once the socket is closing."""
        await self._send_together(BytesMessage(data=each) for each in packets)

    async def _send_together(self, messages: Iterable[Message[Any]]) -> None:
        if self.closed or self.state is not ASGIWebsocketState.CONNECTED:
            return
        try:
            frames = [self.connection.send(each) for each in messages]
        except LocalProtocolError:
            # The closing handshake has begun: the peer takes no messages any more.
            return
        await self.send(Data(stream_id=self.stream_id, data=b"".join(frames)))

    # What the server library calls

    async def handle(self, event: Any) -> None:
        if isinstance(event, Request):
            event = dataclasses.replace(event, state=ConnectionState({**event.state, WEBSOCKET: self}))
        elif isinstance(event, (Body, Data)):
            self.answered = True
            if self.handshake.accepted and self.connection.state is Framing.CLOSED:
                return
        elif isinstance(event, StreamClosed):
            self._peer_over.set()
        await super().handle(event)

    async def app_send(self, message: Any) -> None:
        if message is None and self._deaf and not self.closed:
            with trio.move_on_after(_PARTING):
                await self._peer_over.wait()
        elif message is not None and message["type"] == "websocket.close" and self._accepted:
            # Close codes travel behind everything sent before; nothing that still arrives has a reader.
            self._deaf = True
        await super().app_send(message)

    async def _accept(self, message: Any) -> None:
        self.handshake.extensions = None
        self._accepted = True
        await super()._accept(message)

    async def _handle_events(self) -> None:
        for count, event in enumerate(self.connection.events(), 1):
            if count % _TURNS == 0:
                await trio.lowlevel.checkpoint()
            if isinstance(event, Message):
                await self._take(event)
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                await self._take_close(event)

    async def _take(self, event: Message[Any]) -> None:
        if self._deaf:
            return
        data = event.data
        if self._pieces or not event.message_finished:
            self._pieces += data.encode() if isinstance(data, str) else data
            size = len(self._pieces)
        else:
            size = len(data) if isinstance(data, bytes | bytearray) or data.isascii() else len(data.encode())
        if size > self.largest:
            await self._refuse()
            return
        if event.message_finished:
            text, whole = self._told_apart(data)
            self._pieces = bytearray()
            if text is not None and self.on_text is not None:
                await self.on_text(text)
                return
            self.forwarded += 1
            assert self.app_put is not None
            await self.app_put({"type": "websocket.receive", "bytes": whole, "text": text})

    async def _refuse(self) -> None:
        log.warning("websocket_message_too_large", peer=self.client, limit=self.largest)
        self._deaf = True
        self._pieces = bytearray()
        await self._send_wsproto_event(CloseConnection(code=CloseReason.MESSAGE_TOO_BIG))
        assert self.app_put is not None
        await self.app_put({"type": "websocket.disconnect", "code": int(CloseReason.MESSAGE_TOO_BIG)})

    def _told_apart(self, last: str | bytes | bytearray) -> tuple[str | None, bytes | None]:
        """The whole message that ends with ``last``: as text, or as bytes."""
        if isinstance(last, str):
            return self._pieces.decode() if self._pieces else last, None
        return None, bytes(self._pieces or last)

    async def _take_close(self, event: CloseConnection) -> None:
        if self.connection.state is Framing.REMOTE_CLOSING:
            self.peer_close_code = int(event.code)
            await self._send_wsproto_event(event.response())
        elif self.connection.state is Framing.OPEN:
            # No close of the peer's: the library tells what is wrong with its bytes.
            await self._send_wsproto_event(CloseConnection(code=event.code))
        self._peer_over.set()
        await self.send(StreamClosed(stream_id=self.stream_id))
