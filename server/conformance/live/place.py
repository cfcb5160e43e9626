"""Where the server under test is: one of our own in this process, on loopback, or one that runs somewhere."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
import trio

from client.nnrp import NnrpConnection, NnrpOptions, open_nnrp
from server.conformance.case import Evidence
from server.conformance.live.certificate import make_certificate
from server.conformance.live.peer import Peer
from server.nnrp.listener import listen_tcp
from server.nnrp.policy import ServingPolicy
from server.nnrp.quic_listener import listen_quic
from server.nnrp.service import NnrpService, open_service
from server.nnrp.workers import EchoWorker

__all__ = ["Place", "Unavailable", "open_place"]

_DIAL: Final = 5.0


class Unavailable(Exception):
    """The case needs something that this server, or this installation, does not have. Says what."""


@attrs.define(slots=True, eq=False)
class Place:
    """A server whose runner is the echo (``--nnrp-runner echo``)."""

    url: str
    quic: str | None = None
    token: str | None = None
    service: NnrpService | None = None
    """The service itself, where it runs in this process: what a server may only do by itself can then be asked of it."""
    evidence: Evidence = attrs.field(factory=Evidence)
    ca_file: str | None = None
    no_quic: str = "no QUIC server was named (--quic-url)"

    @asynccontextmanager
    async def peer(self, *, hello: bool = True) -> AsyncIterator[Peer]:
        """A client by hand on a TCP connection of its own."""
        parts = urlsplit(self.url)
        with trio.fail_after(_DIAL):
            stream = await trio.open_tcp_stream(parts.hostname or "127.0.0.1", parts.port or 4171)
        async with stream:
            peer = Peer(stream, self.evidence, self.token)
            if hello:
                await peer.greet()
            yield peer

    @asynccontextmanager
    async def client(self, url: str | None = None) -> AsyncIterator[NnrpConnection]:
        """Our client on a connection of its own."""
        options = NnrpOptions(token=self.token, ca_file=self.ca_file)
        async with open_nnrp(url or self.url, options) as connection:
            yield connection


@asynccontextmanager
async def open_place(
    url: str | None = None, *, quic: str | None = None, token: str | None = None, ca_file: str | None = None
) -> AsyncIterator[Place]:
    """The server at ``url`` (and for QUIC at ``quic``), or without one a server of our own for the length of the block."""
    if url is not None:
        yield Place(url, quic, token, ca_file=ca_file)
        return
    with tempfile.TemporaryDirectory(prefix="moorline-conformance-") as directory:
        async with open_service(ServingPolicy(), lambda _: EchoWorker()) as service, trio.open_nursery() as nursery:
            ((host, port),) = await nursery.start(listen_tcp, service, "127.0.0.1", 0)
            place = Place(f"tcp://{host}:{port}", service=service)
            await _add_quic(place, nursery, service, Path(directory))
            yield place
            nursery.cancel_scope.cancel()


async def _add_quic(place: Place, nursery: trio.Nursery, service: NnrpService, directory: Path) -> None:
    """QUIC beside TCP, where this installation can; else the place says why not."""
    try:
        made = make_certificate(directory)
    except ModuleNotFoundError:
        place.no_quic = "QUIC needs a certificate, and the package `cryptography` to make one is not installed"
        return
    listen = partial(listen_quic, certificate=made.certificate, key=made.key)
    try:
        ((host, port),) = await nursery.start(listen, service, "127.0.0.1", 0)
    except RuntimeError as missing:
        place.no_quic = str(missing)
        return
    place.quic, place.ca_file = f"quic://{host}:{port}", made.authority
