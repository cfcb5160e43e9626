"""A very small HTTP/1.1 client on a Trio stream: bytes out, head and body in, nothing hidden.

For tests that need to be rude: half a request, a byte too many, a reader that stops reading.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import trio

__all__ = ["Head", "RawConnection", "Reply", "ask", "open_raw", "port_of"]


@attrs.frozen
class Head:
    """Status and headers; names in lower case, values of repeated names joined by a comma."""

    status: int
    headers: dict[str, str]


@attrs.frozen
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


def port_of(url: str) -> int:
    return int(url.rstrip("/").rpartition(":")[2])


@asynccontextmanager
async def open_raw(
    port: int, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, receive_buffer: int | None = None
) -> AsyncIterator[RawConnection]:
    """A connection for the length of the block. ``receive_buffer`` (bytes) small: a peer that soon takes nothing more."""
    sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        await sock.connect((host, port))
    except BaseException:
        sock.close()
        raise
    stream: trio.abc.Stream = trio.SocketStream(sock)
    if tls is not None:
        stream = trio.SSLStream(stream, tls, server_hostname="localhost", https_compatible=True)
    connection = RawConnection(stream, port)
    try:
        yield connection
    finally:
        await trio.aclose_forcefully(stream)


async def ask(
    port: int, method: str, path: str, body: bytes = b"", *, host: str | None = None, **headers: str
) -> Reply:
    """One request on its own connection. Header names are given with underscores."""
    async with open_raw(port) as connection:
        await connection.request(method, path, body, host=host, Connection="close", **headers)
        return await connection.reply(head_only=method == "HEAD")


class RawConnection:
    """Read and write what you like; the helpers only keep the place in the incoming bytes."""

    def __init__(self, stream: trio.abc.Stream, port: int) -> None:
        self.stream = stream
        self.port = port
        self.buffer = bytearray()
        self.local_port = 0
        if isinstance(stream, trio.SocketStream):
            self.local_port = stream.socket.getsockname()[1]

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def request(
        self, method: str, path: str, body: bytes = b"", *, host: str | None = None, **headers: str
    ) -> None:
        is_sized = (body or method == "POST") and "Transfer_Encoding" not in headers
        await self.send(self.head(method, path, len(body) if is_sized else None, host, **headers) + body)

    def head(self, method: str, path: str, length: int | None = None, host: str | None = None, **headers: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host if host is not None else f'127.0.0.1:{self.port}'}"]
        if length is not None:
            lines.append(f"Content-Length: {length}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def more(self) -> bool:
        """Receive once. False at the end: in good order or by a reset."""
        try:
            data = await self.stream.receive_some(65536)
        except trio.BrokenResourceError:
            return False
        self.buffer += data
        return bool(data)

    async def read_head(self) -> Head:
        while b"\r\n\r\n" not in self.buffer:
            if not await self.more():
                raise EOFError(bytes(self.buffer))
        raw, _, rest = bytes(self.buffer).partition(b"\r\n\r\n")
        self.buffer[:] = rest
        first, *lines = raw.decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            key = name.lower()
            headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
        return Head(int(first.split(" ")[1]), headers)

    async def reply(self, *, head_only: bool = False) -> Reply:
        head = await self.read_head()
        if head_only or head.status in (101, 204, 304):
            return Reply(head.status, head.headers, b"")
        if head.headers.get("transfer-encoding") == "chunked":
            body = b"".join([chunk async for chunk in self.chunks()])
        else:
            body = await self.exactly(int(head.headers.get("content-length", 0)))
        return Reply(head.status, head.headers, body)

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body; empty for the last. Raises ``EOFError`` when the end is missing."""
        size = int((await self.line()).split(b";")[0], 16)
        data = await self.exactly(size)
        await self.line()
        return data

    async def chunks(self) -> AsyncIterator[bytes]:
        while data := await self.chunk():
            yield data

    async def line(self) -> bytes:
        while b"\r\n" not in self.buffer:
            if not await self.more():
                raise EOFError(bytes(self.buffer))
        raw, _, rest = bytes(self.buffer).partition(b"\r\n")
        self.buffer[:] = rest
        return raw

    async def exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            if not await self.more():
                raise EOFError(bytes(self.buffer))
        raw = bytes(self.buffer[:size])
        del self.buffer[:size]
        return raw

    async def until(self, needle: bytes) -> bytes:
        """Everything up to and with ``needle``, raw."""
        while needle not in self.buffer:
            if not await self.more():
                raise EOFError(bytes(self.buffer))
        end = self.buffer.index(needle) + len(needle)
        raw = bytes(self.buffer[:end])
        del self.buffer[:end]
        return raw

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The blocks of a chunked event stream, comments included, without their blank line; ends with the stream."""
        pending = b""
        while data := await self.chunk():
            *blocks, pending = (pending + data).split(b"\n\n")
            for block in blocks:
                yield block

    async def wait_end(self, within: float) -> bytes:
        """Everything until the peer closes; raises ``trio.TooSlowError`` when it does not within ``within`` seconds."""
        with trio.fail_after(within):
            while await self.more():
                pass
        rest = bytes(self.buffer)
        self.buffer.clear()
        return rest
