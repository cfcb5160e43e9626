"""A WebSocket client that may be rude, on a raw connection: wsproto for the framing, nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Message, Ping, Pong, TextMessage

from tests.support.http import Head, RawConnection, open_raw
from tests.support.serving import UPGRADE

__all__ = ["RawSocket", "open_socket"]


class RawSocket:
    """An upgraded connection. Pings are answered unless ``answers`` is false."""

    def __init__(self, raw: RawConnection, head: Head, answers: bool) -> None:
        self.raw = raw
        self.head = head
        self.answers = answers
        self.pings = 0
        self.closed: tuple[int, str | None] | None = None
        """What the server closed with."""
        self._framing = Connection(ConnectionType.CLIENT)
        self._framing.receive_data(bytes(raw.buffer))
        self._texts: deque[str] = deque()
        self._partial = ""
        self.last_id = 0
        self._writing = trio.Lock()

    async def send(self, event: Any) -> None:
        async with self._writing:
            await self.raw.send(self._framing.send(event))

    async def say(self, message: Any) -> None:
        text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
        await self.send(TextMessage(data=text))

    async def call(self, method: str, params: Any = None, *, id: Any = None) -> Any:
        if id is None:
            self.last_id += 1
            id = self.last_id
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        await self.say(message if params is None else {**message, "params": params})
        return id

    async def next(self) -> dict[str, Any]:
        """The next message. Raises ``EOFError`` at the end; `closed` then has the code, if there was one."""
        while not self._texts:
            if not await self.pump():
                raise EOFError(self.closed)
        value: dict[str, Any] = msgspec.json.decode(self._texts.popleft())
        return value

    async def pump(self) -> bool:
        """Receive once and look at what came. False at the end."""
        try:
            data = await self.raw.stream.receive_some(65536)
        except trio.BrokenResourceError:
            return False
        if not data:
            return False
        self._framing.receive_data(data)
        for event in self._framing.events():
            await self._look(event)
        return True

    async def _look(self, event: Any) -> None:
        if isinstance(event, Ping):
            self.pings += 1
            if self.answers:
                await self.send(event.response())
        elif isinstance(event, CloseConnection):
            self.closed = (int(event.code), event.reason)
            if self.answers and self._framing.state is ConnectionState.REMOTE_CLOSING:
                await self._say_goodbye(event)
        elif isinstance(event, TextMessage):
            self._partial += event.data
            if event.message_finished:
                self._texts.append(self._partial)
                self._partial = ""
        else:
            assert isinstance(event, (Pong, BytesMessage, Message)), event

    async def _say_goodbye(self, event: CloseConnection) -> None:
        try:
            await self.send(event.response())
        except trio.BrokenResourceError:
            # The server has not waited for it.
            return

    async def until(self, wanted: str) -> list[dict[str, Any]]:
        """Messages up to the first whose kind is ``wanted``: a reply's ``reply:ID``, else what it tells."""
        from tests.support.acp import Frame

        found = []
        while True:
            found.append(await self.next())
            if Frame(None, found[-1]).kind == wanted:
                return found

    async def result(self, method: str, params: Any = None) -> Any:
        id = await self.call(method, params)
        return (await self.until(f"reply:{id}"))[-1]["result"]

    async def end(self, within: float = 5.0) -> tuple[int, str | None] | None:
        """Read to the end of the connection; what the server closed with."""
        with trio.fail_after(within):
            while await self.pump():
                pass
        return self.closed


@asynccontextmanager
async def open_socket(
    port: int, *, path: str = "/acp", initialize: Any = None, answers: bool = True, **headers: str
) -> AsyncIterator[RawSocket]:
    """A WebSocket for the length of the block; ``initialize``: parameters to begin with. The end is an abrupt one."""
    async with open_raw(port) as raw:
        await raw.request("GET", path, **{**UPGRADE, **headers})
        head = await raw.read_head()
        assert head.status == 101, head
        socket = RawSocket(raw, head, answers)
        if initialize is not None:
            await socket.call("initialize", initialize, id=0)
            await socket.until("reply:0")
        yield socket
