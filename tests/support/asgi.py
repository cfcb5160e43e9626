"""An in-memory ASGI server for one application: no sockets, so the autojump clock works.

async with drive(application) as driver:
    reply = await driver.request("POST", "/session", body=b"{}")
    async with driver.stream("GET", "/session/…/events") as stream:
        head = await stream.head()
        chunk = await stream.read()
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from server.application import Application
from tests.support.http import Head, Reply

__all__ = ["Driver", "Stream", "WebSocket", "drive"]

Message = MutableMapping[str, Any]
App = Callable[..., Any]


@asynccontextmanager
async def drive(application: Application, *, port: int = 4170, client: str = "127.0.0.1") -> AsyncIterator[Driver]:
    """The application running, and a driver for it. Requests still open at the end are disconnected."""
    async with application.running() as ground, trio.open_nursery() as nursery:
        driver = Driver(application, nursery, port, client)
        driver.ground = ground
        yield driver
        await driver.disconnect_all()


class Driver:
    """Sends requests straight into an ASGI callable."""

    ground: Any = None

    def __init__(self, app: App, nursery: trio.Nursery, port: int = 4170, client: str = "127.0.0.1") -> None:
        self._app = app
        self._nursery = nursery
        self._port = port
        self._client = client
        self._open: set[_Exchange] = set()

    async def request(
        self, method: str, path: str, *, body: bytes = b"", headers: Iterable[tuple[str, str]] = (), **more: str
    ) -> Reply:
        """One request, its whole response. Header names as keywords have underscores."""
        async with self.stream(method, path, body=body, headers=headers, **more) as stream:
            head = await stream.head()
            return Reply(head.status, head.headers, await stream.rest())

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        window: int = 16,
        **more: str,
    ) -> AsyncIterator[Stream]:
        """A request whose response is read bit by bit; the end of the block is a disconnect.

        ``window``: messages the application may send ahead of the reader; then its send blocks.
        """
        scope = self._scope("http", path, headers, more, {"method": method, "scheme": "http"})
        stream = Stream(window)
        stream.push({"type": "http.request", "body": body, "more_body": False})
        async with self._running(scope, stream):
            yield stream

    @asynccontextmanager
    async def websocket(
        self, path: str, *, headers: Iterable[tuple[str, str]] = (), subprotocols: Iterable[str] = (), **more: str
    ) -> AsyncIterator[WebSocket]:
        """A WebSocket; the end of the block is a lost connection (1006) unless it was closed before."""
        offered = list(subprotocols)
        extra = {"scheme": "ws", "subprotocols": offered, "extensions": {"websocket.http.response": {}}}
        scope = self._scope("websocket", path, headers, more, extra)
        socket = WebSocket(16)
        socket.push({"type": "websocket.connect"})
        async with self._running(scope, socket):
            yield socket

    async def disconnect_all(self) -> None:
        for exchange in list(self._open):
            exchange.disconnect()
        for exchange in list(self._open):
            await exchange.over.wait()

    @asynccontextmanager
    async def _running(self, scope: dict[str, Any], exchange: _Exchange) -> AsyncIterator[None]:
        self._open.add(exchange)
        self._nursery.start_soon(self._call, scope, exchange)
        try:
            yield
        finally:
            exchange.disconnect()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                await exchange.over.wait()

    async def _call(self, scope: dict[str, Any], exchange: _Exchange) -> None:
        # As the real server does: an application may ask to be called when the peer leaves.
        scope["state"] = {"moorline.stream": exchange} if scope["type"] == "http" else {}
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            self._open.discard(exchange)
            exchange.finish()

    def _scope(
        self, kind: str, path: str, headers: Iterable[tuple[str, str]], more: dict[str, str], extra: dict[str, Any]
    ) -> dict[str, Any]:
        raw, _, query = path.partition("?")
        given = {name.replace("_", "-"): value for name, value in more.items()}
        pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in [*headers, *given.items()]]
        if not any(name == b"host" for name, _ in pairs):
            pairs.insert(0, (b"host", b"127.0.0.1:%d" % self._port))
        return {
            "type": kind,
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "path": _unquote(raw),
            "raw_path": raw.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": pairs,
            "client": (self._client, 50000),
            "server": ("127.0.0.1", self._port),
            "extensions": {},
            **extra,
        }


def _unquote(path: str) -> str:
    from urllib.parse import unquote

    return unquote(path)


class _Exchange:
    def __init__(self, window: int) -> None:
        self._in_send, self._in_receive = trio.open_memory_channel[Message](math.inf)
        self._window = window
        self._out: deque[Message] = deque()
        self._changed = trio.Event()
        self.over = trio.Event()
        """Set when the application has returned."""
        self._disconnected = False
        self._on_gone: Callable[[], None] | None = None

    @property
    def closed(self) -> bool:
        """As `server.guard_stream.GuardedHttpStream.closed`."""
        return self._disconnected

    def on_gone(self, call: Callable[[], None] | None) -> None:
        """As `server.guard_stream.GuardedHttpStream.on_gone`."""
        self._on_gone = call
        if call is not None and self._disconnected:
            call()

    def push(self, message: Message) -> None:
        self._in_send.send_nowait(message)

    def disconnect(self) -> None:
        """The peer is gone: the application is told, and what it sends goes nowhere."""
        if not self._disconnected and not self.over.is_set():
            self._disconnected = True
            self._change()
            self.push(self._goodbye())
            if self._on_gone is not None:
                self._on_gone()

    def _goodbye(self) -> Message:
        return {"type": "http.disconnect"}

    async def receive(self) -> Message:
        return await self._in_receive.receive()

    async def send(self, message: Message) -> None:
        """Like the server's: the message is taken first; then the sender waits while the peer is too far behind."""
        if self._disconnected:
            # Sending to a peer that has gone is not an error for the application: servers drop it silently.
            await trio.lowlevel.checkpoint()
            return
        self._out.append(message)
        self._change()
        # As in the server, where sends are shielded: what was taken is not reported as cancelled.
        await trio.lowlevel.cancel_shielded_checkpoint()
        while len(self._out) > self._window and not self._disconnected:
            await self._changed.wait()

    def finish(self) -> None:
        self.over.set()
        self._change()
        self._in_send.close()
        self._in_receive.close()

    async def next_message(self) -> Message:
        await trio.lowlevel.checkpoint()
        while not self._out:
            if self.over.is_set() or self._disconnected:
                raise EOFError
            await self._changed.wait()
        message = self._out.popleft()
        self._change()
        return message

    def _change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()


class Stream(_Exchange):
    """One response."""

    async def head(self) -> Head:
        message = await self.next_message()
        assert message["type"] == "http.response.start", message
        return Head(message["status"], _join(message["headers"]))

    async def read(self) -> bytes:
        """The next non-empty part of the body; empty at its end."""
        while True:
            try:
                message = await self.next_message()
            except EOFError:
                return b""
            if message.get("body"):
                return bytes(message["body"])
            if not message.get("more_body", False):
                return b""

    async def rest(self) -> bytes:
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    async def frames(self) -> AsyncIterator[bytes]:
        """The blocks of an event stream, comments included, without their blank line."""
        pending = b""
        while part := await self.read():
            *blocks, pending = (pending + part).split(b"\n\n")
            for block in blocks:
                yield block


class WebSocket(_Exchange):
    """One WebSocket, or its refusal."""

    async def answer(self) -> Head:
        """101 with the headers (subprotocol included) when accepted, else the status of the refusal."""
        message = await self.next_message()
        if message["type"] == "websocket.accept":
            headers = _join(message.get("headers", []))
            if message.get("subprotocol"):
                headers["sec-websocket-protocol"] = message["subprotocol"]
            return Head(101, headers)
        if message["type"] == "websocket.http.response.start":
            return Head(message["status"], _join(message["headers"]))
        return Head(403, {})

    def send_text(self, text: str) -> None:
        self.push({"type": "websocket.receive", "text": text, "bytes": None})

    def send_bytes(self, data: bytes) -> None:
        self.push({"type": "websocket.receive", "text": None, "bytes": data})

    async def receive_text(self) -> str:
        """The next text message. Raises ``EOFError`` with the close code when it was closed."""
        message = await self.next_message()
        if message["type"] == "websocket.close":
            raise EOFError(message.get("code", 1000), message.get("reason"))
        return str(message["text"])

    async def receive_bytes(self) -> bytes:
        message = await self.next_message()
        if message["type"] == "websocket.close":
            raise EOFError(message.get("code", 1000), message.get("reason"))
        return bytes(message["bytes"])

    def close(self, code: int = 1000) -> None:
        """The peer closes in good order."""
        if not self._disconnected and not self.over.is_set():
            self._disconnected = True
            self.push({"type": "websocket.disconnect", "code": code})

    def _goodbye(self) -> Message:
        return {"type": "websocket.disconnect", "code": 1006}


def _join(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in pairs:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers
