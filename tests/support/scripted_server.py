"""A small HTTP/1.1 server for client tests, on any Trio stream, that can do what real servers do only by accident.

A test gives a handler that sees every request and writes every byte: it can cut the connection in the middle of a
frame, stay silent, or answer nonsense. In memory it works with the autojump clock; the same handler serves loopback.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import h11
import trio
import trio.testing

Handler = Callable[["Exchange"], Awaitable[None]]


class Cut(Exception):
    """Raised by a handler to drop the connection at once."""


@dataclass
class Exchange:
    """One request, and the means to answer it byte by byte."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    stream: trio.abc.Stream
    received: bytes = b""
    started: bool = False
    chunked: bool = False
    lock: trio.Lock = field(default_factory=trio.Lock)

    @property
    def route(self) -> str:
        return f"{self.method} {self.path.partition('?')[0]}"

    def json(self) -> Any:
        return json.loads(self.body) if self.body else None

    async def write(self, data: bytes) -> None:
        async with self.lock:
            await self.stream.send_all(data)

    async def answer(self, status: int, body: Any = None, headers: dict[str, str] | None = None) -> None:
        """A complete answer; ``body`` may be bytes, a string or JSON."""
        content = body if isinstance(body, bytes) else b""
        if isinstance(body, str):
            content = body.encode()
        elif body is not None and not isinstance(body, bytes):
            content = json.dumps(body).encode()
        lines = {"Content-Length": str(len(content)), "Content-Type": "application/json"} | (headers or {})
        self.started = True
        await self.write(head(status, lines) + content)

    async def open_sse(self, headers: dict[str, str] | None = None, first: bytes = b"retry: 3000\n\n") -> None:
        """Begin a chunked event stream."""
        lines = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"} | (headers or {})
        self.started = self.chunked = True
        await self.write(head(200, lines))
        if first:
            await self.send(first)

    async def send(self, data: bytes) -> None:
        """One chunk of the stream."""
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def finish(self) -> None:
        """End a chunked stream in good order."""
        await self.write(b"0\r\n\r\n")
        self.chunked = False

    async def wait_gone(self) -> None:
        """Return when the client has closed the connection."""
        while True:
            try:
                if not await self.stream.receive_some(65536):
                    return
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return


def head(status: int, headers: dict[str, str]) -> bytes:
    return (
        f"HTTP/1.1 {status} X\r\n".encode() + b"".join(f"{k}: {v}\r\n".encode() for k, v in headers.items()) + b"\r\n"
    )


async def serve_stream(stream: trio.abc.Stream, handler: Handler) -> None:
    """Serve requests on one connection until the client or the handler ends it."""
    connection = h11.Connection(h11.SERVER)
    try:
        while True:
            exchange = await read_request(connection, stream)
            if exchange is None:
                return
            await handler(exchange)
            if exchange.chunked or not exchange.started or "upgrade" in exchange.headers:
                return
            # The handler wrote the answer itself; tell the parser what it needs to go on.
            connection.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
            connection.send(h11.EndOfMessage())
            connection.start_next_cycle()
    except (Cut, trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
        # The last is a client that was cancelled in the middle of its request.
        return
    finally:
        await trio.aclose_forcefully(stream)


async def read_request(connection: h11.Connection, stream: trio.abc.Stream) -> Exchange | None:
    request: h11.Request | None = None
    body = b""
    raw = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            data = bytes(await stream.receive_some(65536))
            raw += data
            connection.receive_data(data)
        elif isinstance(event, h11.Request):
            request = event
            if (b"upgrade", b"websocket") in [(name, value.lower()) for name, value in event.headers]:
                return _exchange(request, b"", stream, raw)
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            return _exchange(request, body, stream, raw)
        else:
            return None


def _exchange(request: h11.Request, body: bytes, stream: trio.abc.Stream, raw: bytes) -> Exchange:
    headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
    return Exchange(request.method.decode(), request.target.decode(), headers, body, stream, raw)


class MemoryNetwork:
    """Hands out in-memory connections to one handler. ``connect`` is what a client takes."""

    def __init__(self, handler: Handler, nursery: trio.Nursery) -> None:
        self.handler = handler
        self.nursery = nursery
        self.refuse = False
        self.dialled = 0
        self.open: list[trio.abc.Stream] = []

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.dialled += 1
        if self.refuse:
            raise OSError("connection refused")
        near, far = trio.testing.memory_stream_pair()
        client = CountedStream(near, self.open)
        self.nursery.start_soon(serve_stream, far, self.handler)
        return client


class CountedStream(trio.abc.Stream):
    """A client's end, counted while it is open."""

    def __init__(self, stream: trio.abc.Stream, register: list[trio.abc.Stream]) -> None:
        self.stream = stream
        self.register = register
        register.append(self)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self.stream.receive_some(max_bytes))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        if self in self.register:
            self.register.remove(self)
        await self.stream.aclose()


@asynccontextmanager
async def memory_network(handler: Handler) -> AsyncIterator[MemoryNetwork]:
    """A network for one test; its connections are gone at the end."""
    async with trio.open_nursery() as nursery:
        yield MemoryNetwork(handler, nursery)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def loopback(handler: Handler) -> AsyncIterator[str]:
    """The same handler on a real socket; yields its base URL."""
    async with trio.open_nursery() as nursery:

        async def serve(stream: trio.SocketStream) -> None:
            await serve_stream(stream, handler)

        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()
