"""One NNRP service on every transport at once, over loopback, and peers by hand on any of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import attrs
import trio

from client.nnrp import NnrpOptions
from client.nnrp.dialling import dial
from protocol.nnrp.enums import MessageType
from server.nnrp.listener import listen_tcp, tls_context
from server.nnrp.policy import ServingPolicy
from server.nnrp.quic_listener import listen_quic
from server.nnrp.service import NnrpService, open_service
from server.nnrp.submit import WorkerMaker
from server.nnrp.websocket_listener import listen_websocket
from server.nnrp.workers.echo import EchoWorker
from server.security import Policy
from tests.support.certificates import Certificate, make_signed_certificate
from tests.support.nnrp import HELLO, Peer

__all__ = ["TRANSPORTS", "Place", "in_asyncio", "serving_everywhere"]

T = TypeVar("T")

TRANSPORTS: Final = ("tcp", "tls", "ws", "wss", "quic")


@attrs.frozen
class Place:
    """The service, where it listens, and whom to trust there."""

    service: NnrpService
    urls: dict[str, str]
    certificate: Certificate

    @property
    def options(self) -> NnrpOptions:
        return NnrpOptions(ca_file=str(self.certificate.authority))

    def host_and_port(self, transport: str) -> tuple[str, int]:
        parts = urlsplit(self.urls[transport])
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    @asynccontextmanager
    async def stream(self, transport: str, options: NnrpOptions | None = None) -> AsyncIterator[trio.abc.Stream]:
        """A connection on which nothing has been said."""
        async with trio.open_nursery() as nursery:
            stream = await dial(self.urls[transport], options or self.options, nursery)
            try:
                yield stream
            finally:
                await trio.aclose_forcefully(stream)
                nursery.cancel_scope.deadline = trio.current_time() + 2

    @asynccontextmanager
    async def peer(self, transport: str, *, hello: bool = True) -> AsyncIterator[Peer]:
        async with self.stream(transport) as stream:
            peer = Peer(stream)
            if hello:
                await peer.send(HELLO)
                await peer.receive(MessageType.SERVER_HELLO_ACK)
            yield peer

    async def wait_until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        with trio.fail_after(seconds):
            while not condition():  # noqa: ASYNC110  # what is waited for has no event
                await trio.sleep(0.005)


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
) -> AsyncIterator[Place]:
    """The service on free loopback ports, for the length of the block. ``library``: the QUIC library of the server."""
    made = make_signed_certificate(directory)
    cert, key = str(made.cert), str(made.key)
    tls, web = tls_context(cert, key), tls_context(cert, key, ["http/1.1"])
    listeners = {
        "tcp": listen_tcp,
        "tls": partial(listen_tcp, tls=tls),
        "ws": partial(listen_websocket, security=Policy()),
        "wss": partial(listen_websocket, security=Policy(), tls=web),
        "quic": partial(listen_quic, certificate=cert, key=key, library=library),
    }
    async with open_service(policy or ServingPolicy(), make_worker) as service, trio.open_nursery() as nursery:
        urls = {}
        for name, listen in listeners.items():
            ((host, port),) = await nursery.start(listen, service, "127.0.0.1", 0)
            urls[name] = f"{name}://{host}:{port}"
        yield Place(service, urls, made)
        nursery.cancel_scope.cancel()
