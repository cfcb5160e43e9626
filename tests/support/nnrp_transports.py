"""One NNRP service on every transport at once, over loopback, and peers by hand on any of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import attrs
import pytest
import trio
from wsproto.events import BytesMessage

from client.nnrp import NnrpOptions
from client.nnrp.quic import QuicTransport
from client.nnrp.websocket import WebSocketTransport
from protocol.layout import Buffer
from server.application import Application
from server.config import Config
from server.middleware.asgi import App
from server.nnrp.listener import listen_tcp, tls_context
from server.nnrp.policy import ServingPolicy
from server.nnrp.quic_listener import listen_quic
from server.nnrp.service import NnrpService, open_service
from server.nnrp.serving import NnrpServing
from server.nnrp.submit import WorkerMaker
from server.nnrp.websocket_listener import listen_websocket
from server.nnrp.workers.echo import EchoWorker
from server.security import Policy
from server.serve import serve
from tests.support.certificates import Certificate, make_signed_certificate
from tests.support.http import port_of
from tests.support.nnrp import Peer, Served
from tests.support.serving import fake_engine
from tests.support.udp_relay import Relay, Weather, relaying

__all__ = [
    "EVERY",
    "EVERYWHERE",
    "TRANSPORTS",
    "Line",
    "Place",
    "in_asyncio",
    "on_a_line",
    "send_bytes",
    "serving_everywhere",
    "serving_on",
]

T = TypeVar("T")

TRANSPORTS: Final = ("tcp", "tls", "ws", "wss", "quic")
EVERY: Final = ("tcp", "tls", "ws", "http", "quic", "aioquic")
"""Every way to be served: "ws" has a port of its own, "http" is a WebSocket on the HTTP port, "aioquic" is QUIC where the
server is on that library and the client is not."""
EVERYWHERE: Final = pytest.mark.parametrize("transport", EVERY)
_CLEAR: Final = Weather(0.0, 0.0, 0.0, 0.0)
_DOWN: Final = Weather(1.0, 0.0, 0.0, 0.0)


@attrs.frozen
class Place:
    """The service, where it listens, and whom to trust there."""

    service: NnrpService
    urls: dict[str, str]
    certificate: Certificate

    @property
    def options(self) -> NnrpOptions:
        return NnrpOptions(ca_file=str(self.certificate.authority))

    def on(self, transport: str) -> Served:
        """The same, as who comes by one of its transports sees it."""
        return Served(self.service, self.urls[transport], self.options)

    def host_and_port(self, transport: str) -> tuple[str, int]:
        served = self.on(transport)
        return served.host, served.port

    def stream(self, transport: str) -> AbstractAsyncContextManager[trio.abc.Stream]:
        """A connection on which nothing has been said."""
        return self.on(transport).stream()

    def peer(self, transport: str, *, hello: bool = True) -> AbstractAsyncContextManager[Peer]:
        return self.on(transport).peer(hello=hello)

    async def wait_until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        await self.on("tcp").wait_until(condition, seconds)


async def in_asyncio(function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    """Run a coroutine of a peer that is asyncio's, in a thread of its own."""
    return await trio.to_thread.run_sync(lambda: asyncio.run(function(*arguments)))


@asynccontextmanager
async def serving_everywhere(
    directory: Path,
    policy: ServingPolicy | None = None,
    make_worker: WorkerMaker = lambda _: EchoWorker(),
    *,
    library: str | None = None,
    only: Iterable[str] = TRANSPORTS,
) -> AsyncIterator[Place]:
    """The service on free loopback ports, for the length of the block. ``library``: the QUIC library of the server."""
    made = make_signed_certificate(directory)
    cert, key = str(made.cert), str(made.key)
    tls, web = tls_context(cert, key), tls_context(cert, key, ["http/1.1"])
    listeners: dict[str, Callable[..., Awaitable[None]]] = {
        "tcp": listen_tcp,
        "tls": partial(listen_tcp, tls=tls),
        "ws": partial(listen_websocket, security=Policy()),
        "wss": partial(listen_websocket, security=Policy(), tls=web),
        "http": _listen_http,
        "quic": partial(listen_quic, certificate=cert, key=key, library=library),
        "aioquic": partial(listen_quic, certificate=cert, key=key, library="aioquic"),
    }
    async with open_service(policy or ServingPolicy(), make_worker) as service, trio.open_nursery() as nursery:
        urls = {}
        for name in only:
            ((host, port),) = await nursery.start(listeners[name], service, "127.0.0.1", 0)
            urls[name] = f"{_SCHEMES.get(name, name)}://{host}:{port}"
        yield Place(service, urls, made)
        nursery.cancel_scope.cancel()


_SCHEMES: Final = {"http": "ws", "aioquic": "quic"}


@asynccontextmanager
async def serving_on(
    transport: str,
    directory: Path,
    policy: ServingPolicy | None = None,
    make_worker: WorkerMaker = lambda _: EchoWorker(),
) -> AsyncIterator[Served]:
    """The service on one of `EVERYWHERE`, for the length of the block."""
    async with serving_everywhere(directory, policy, make_worker, only=[transport]) as place:
        yield place.on(transport)


class _HttpPort(Application):
    """Nothing behind the HTTP port but a service that others have opened."""

    def __init__(self, config: Config, service: NnrpService) -> None:
        super().__init__(config, open_engine=fake_engine, packages=())
        self._service = service

    def _wrap(self, web: App, config: Config) -> App:
        self.nnrp = NnrpServing(self._service)
        return super()._wrap(web, config)


async def _listen_http(
    service: NnrpService, host: str, port: int, *, task_status: trio.TaskStatus[list[tuple[str, int]]]
) -> None:
    config = Config(hostname=host, port=port, nnrp_off=True, send_timeout_ms=round(service.policy.send_timeout * 1000))
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(partial(serve, config, application=_HttpPort(config, service)))
        task_status.started([(host, port_of(url))])


class Line:
    """The way of one connection to the server, whose packets may be dropped for a while. What is sent again by itself, as
    TCP and QUIC do, comes when they are let through."""

    def __init__(self, relay: Relay | None = None) -> None:
        self._relay = relay
        self._up = trio.Event()
        self._up.set()

    def drop(self) -> None:
        self._up = trio.Event()
        if self._relay is not None:
            self._relay.weather = self._relay.weather_back = _DOWN

    def deafen(self) -> None:
        """Drop only what the server sends; with a peer that does not read, a stream does that by itself."""
        if self._relay is not None:
            self._relay.weather_back = _DOWN

    def let_through(self) -> None:
        self._up.set()
        if self._relay is not None:
            self._relay.weather = self._relay.weather_back = _CLEAR

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """For `client.nnrp.NnrpOptions`."""
        return _Droppable(self, await trio.open_tcp_stream(host, port))

    async def wait_up(self) -> None:
        while not self._up.is_set():
            await self._up.wait()


@attrs.define(eq=False)
class _Droppable(trio.abc.Stream):
    _line: Line
    _stream: trio.abc.Stream

    async def send_all(self, data: Buffer) -> None:
        await self._line.wait_up()
        await self._stream.send_all(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        await self._line.wait_up()
        data = await self._stream.receive_some(max_bytes)
        await self._line.wait_up()
        return data

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def on_a_line(served: Served) -> AsyncIterator[tuple[Served, Line]]:
    """The same service, over a line of its own."""
    if urlsplit(served.url).scheme != "quic":
        line = Line()
        yield attrs.evolve(served, options=attrs.evolve(served.options, connect=line.connect)), line
        return
    async with relaying((served.host, served.port), 0, _CLEAR) as relay:
        yield attrs.evolve(served, url=f"quic://127.0.0.1:{relay.port}"), Line(relay)


async def send_bytes(stream: trio.abc.Stream, data: bytes, *, end: bool = True) -> None:
    """Send what may be no packet. Not ``end``: more is to follow of what the transport takes for one message."""
    if isinstance(stream, WebSocketTransport):
        await stream._stream.send_all(stream._ws.send(BytesMessage(data=data, message_finished=end)))
    elif isinstance(stream, QuicTransport):
        stream._engine.send(0, data)
        stream._advance()
    else:
        await stream.send_all(data)
