"""``/acp`` over real loopback sockets, with the same client as in memory: one connection per request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from server.config import Config
from sessions import Harbour, Session, open_harbour
from tests.support.acp import ACP_ROUTES, AcpClient
from tests.support.fake_runner import FakeRunner
from tests.support.http import Head, RawConnection, Reply, open_raw
from tests.support.serving import Served, serving

__all__ = ["ServedPlace", "SocketDriver", "SocketStream", "acp_sockets"]


class SocketStream:
    """A response being read; the raw connection stays at hand for rudeness."""

    def __init__(self, raw: RawConnection) -> None:
        self.raw = raw
        self._chunked = True

    async def head(self) -> Head:
        head = await self.raw.read_head()
        self._chunked = head.headers.get("transfer-encoding") == "chunked"
        return head

    async def read(self) -> bytes:
        """The next part of the body; empty at its end, also when the connection breaks."""
        try:
            size = int(await self.raw.line(), 16)
            data = await self.raw.exactly(size)
            await self.raw.line()
        except (EOFError, ValueError):
            return b""
        return data

    async def rest(self) -> bytes:
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)


class SocketDriver:
    """As `tests.support.asgi.Driver`, for what `AcpClient` asks of it."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def request(
        self, method: str, path: str, *, body: bytes = b"", headers: Iterable[tuple[str, str]] = ()
    ) -> Reply:
        async with open_raw(self.port) as raw:
            await self._send(raw, method, path, body, headers, close=True)
            return await raw.reply(head_only=method == "HEAD")

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        window: int = 0,
    ) -> AsyncIterator[SocketStream]:
        """``window``: bytes of receive buffer, 0 for the system's."""
        async with open_raw(self.port, receive_buffer=window if window > 1000 else None) as raw:
            await self._send(raw, method, path, body, headers, close=False)
            yield SocketStream(raw)

    async def _send(
        self,
        raw: RawConnection,
        method: str,
        path: str,
        body: bytes,
        headers: Iterable[tuple[str, str]],
        *,
        close: bool,
    ) -> None:
        given = {name.replace("-", "_"): value for name, value in headers}
        if close:
            given["Connection"] = "close"
        await raw.request(method, path, body, **given)


@attrs.define
class ServedPlace:
    """A server on a port, its harbour, and what stands behind it."""

    served: Served
    harbour: Harbour
    runner: FakeRunner

    @property
    def port(self) -> int:
        return self.served.port

    @property
    def driver(self) -> Any:
        return SocketDriver(self.port)

    async def connect(self, **params: Any) -> AcpClient:
        return await AcpClient.connect(self.driver, **params)

    def session(self, session_id: str) -> Session:
        return self.harbour.find(session_id)


@asynccontextmanager
async def acp_sockets(runner: FakeRunner | None = None, **settings: Any) -> AsyncIterator[ServedPlace]:
    """moorline on a loopback port with ``/acp`` and REST, for at most half a minute."""
    runner = runner or FakeRunner()
    harbours: list[Harbour] = []

    @asynccontextmanager
    async def opener(config: Config, observer: Any) -> AsyncIterator[Harbour]:
        async with open_harbour(
            runner, workspaces=config.workspaces, limits=config.limits, observer=observer
        ) as harbour:
            harbours.append(harbour)
            yield harbour

    config = Config(**{"port": 0, "workspace": ("/tmp",), **settings})
    with trio.fail_after(30):
        async with serving(config, open_engine=opener, packages=ACP_ROUTES, routes=[]) as served:
            yield ServedPlace(served, harbours[0], runner)
