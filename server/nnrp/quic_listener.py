"""NNRP over QUIC: many connections on one UDP socket (nnrp-wire 2.4).

Nothing is kept for a client that has not proved its address: it is sent a retry, with a token that only whoever receives
there can return.
"""

from __future__ import annotations

import secrets
import socket
from typing import Any, Final

import trio

from protocol.nnrp.quic_engine import Address, QuicEngine
from protocol.nnrp.quic_streams import QuicPackets
from server.nnrp.quic_library import CONNECTION_ID_BYTES, QuicLibrary, load_library
from server.nnrp.quic_packets import Head, RetryTokens, parse_head
from server.nnrp.quic_transport import QuicTransport
from server.nnrp.service import NnrpService
from server.nnrp.transport import STRANGER_BYTES
from server.telemetry import log

__all__ = ["listen_quic"]

_READ: Final = 65_535
_BUFFER: Final = 4 * 1024 * 1024
"""Bytes the kernel is asked to hold of what has come and was not read yet; it may give less."""
_AT_ONCE: Final = 64
"""Datagrams read between two turns for everybody else."""
_SMALLEST_INITIAL: Final = 1200


async def listen_quic(  # noqa: ASYNC114  # the lint's list of startable functions is its own
    service: NnrpService,
    host: str,
    port: int,
    *,
    certificate: str,
    key: str,
    alpn: str | None = "nnrp/1",
    library: str | None = None,
    task_status: trio.TaskStatus[list[tuple[str, int]]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve NNRP over QUIC on a UDP port, until cancelled or until the service has begun to drain and its connections have
    ended.

    Reports the addresses it listens on (port 0 is resolved). ``library``: "qh3" or "aioquic", by default what is installed.
    Raises ``RuntimeError`` when none is, ``OSError`` when the addresses cannot be bound or the certificate cannot be read.
    """
    chosen = load_library(library)
    idle = service.policy.limits.idle_timeout
    configuration = chosen.server_configuration(certificate, key, alpn=alpn, idle_timeout=idle)
    sockets = await _bind(host, port)
    addresses = [each.getsockname()[:2] for each in sockets]
    async with trio.open_nursery() as nursery:
        endpoints = [_Endpoint(service, each, chosen, configuration, nursery) for each in sockets]
        for endpoint in endpoints:
            nursery.start_soon(endpoint.run)
        for host_name, number in addresses:
            log.info("nnrp_listening", transport="quic", host=host_name, port=number, library=chosen.name)
        task_status.started(addresses)
        await service.wait_draining()
        for endpoint in endpoints:
            await endpoint.wait_empty()
        nursery.cancel_scope.cancel()


async def _bind(host: str, port: int) -> list[socket.socket]:
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in found:
            made = socket.socket(family, kind, protocol)
            sockets.append(made)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            made.bind(address)
            made.setblocking(False)
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return sockets


class _Endpoint:
    """One UDP socket and the connections on it, found by the ids their packets carry."""

    def __init__(
        self,
        service: NnrpService,
        plain: socket.socket,
        library: QuicLibrary,
        configuration: Any,
        nursery: trio.Nursery,
    ) -> None:
        self._service = service
        self._plain = plain
        self._library = library
        self._configuration = configuration
        self._nursery = nursery
        self._tokens = RetryTokens()
        self._routes: dict[bytes, QuicTransport] = {}
        self._ids: dict[QuicTransport, set[bytes]] = {}
        self._empty = trio.Event()
        self.unsent = 0
        """Datagrams the kernel had no room for; QUIC takes them for lost, and sends again."""

    async def run(self) -> None:
        with self._plain:
            while True:
                await trio.lowlevel.wait_readable(self._plain)
                self._read()

    def _read(self) -> None:
        """Take what has come, up to a bound, and only then let the connections act on it: one answer to many packets."""
        touched: dict[QuicTransport, None] = {}
        for _ in range(_AT_ONCE):
            try:
                data, address = self._plain.recvfrom(_READ)
            except BlockingIOError:
                break
            except OSError as error:
                # Some systems report here that an earlier datagram could not be delivered.
                log.debug("nnrp_udp_failed", reason=str(error))
                continue
            transport = self._take(data, address[:2])
            if transport is not None:
                touched[transport] = None
        for each in touched:
            each.advance()
            self._follow(each)

    async def wait_empty(self) -> None:
        while self._ids:
            await self._empty.wait()

    def _take(self, data: bytes, address: Address) -> QuicTransport | None:
        """Give a datagram to its connection, and return that."""
        head = parse_head(data, CONNECTION_ID_BYTES)
        if head is None:
            return None
        transport = self._routes.get(head.destination)
        if transport is None:
            transport = self._admit(head, len(data), address)
            if transport is None:
                return None
        transport.receive(data, address)
        return transport

    def _admit(self, head: Head, size: int, address: Address) -> QuicTransport | None:
        """A new connection, for an Initial with a token of ours. Anything else costs an answer at most."""
        if head.version is None or size < _SMALLEST_INITIAL:
            return None
        if head.version not in self._configuration.supported_versions:
            if head.version:
                self._send(
                    self._library.encode_version_negotiation(
                        source_cid=head.destination,
                        destination_cid=head.source,
                        supported_versions=self._configuration.supported_versions,
                    ),
                    address,
                )
            return None
        if not head.is_initial:
            return None
        service = self._service
        if service.draining or not service.policy.admits(len(self._ids)):
            service.refused_connections += 1
            return None
        if not head.token:
            self._retry(head, address)
            return None
        proved = self._tokens.check(address, head.token, trio.current_time())
        return None if proved is None else self._open(head, *proved)

    def _retry(self, head: Head, address: Address) -> None:
        source = secrets.token_bytes(CONNECTION_ID_BYTES)
        self._send(
            self._library.encode_retry(
                version=head.version,
                source_cid=source,
                destination_cid=head.source,
                original_destination_cid=head.destination,
                retry_token=self._tokens.make(address, head.destination, source, trio.current_time()),
            ),
            address,
        )

    def _open(self, head: Head, original: bytes, source: bytes) -> QuicTransport:
        connection = self._library.make_connection(
            configuration=self._configuration,
            original_destination_connection_id=original,
            retry_source_connection_id=source,
        )
        policy = self._service.policy
        engine = QuicEngine(connection)
        packets = QuicPackets(
            engine, client=False, max_body_bytes=policy.hello.max_body_bytes, stranger_bytes=STRANGER_BYTES
        )
        transport = QuicTransport(engine, packets, self._send, policy.limits.handshake_timeout)
        self._ids[transport] = set()
        for each in (head.destination, connection.host_cid):
            self._route(each, transport)
        self._nursery.start_soon(self._live, transport)
        return transport

    async def _live(self, transport: QuicTransport) -> None:
        """One connection, from its first packet until nothing more is to be said about its end."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve, transport)
                await transport.keep_time()
                transport.wake()
        except Exception:
            # A defect of ours costs this connection, not the listener.
            log.error("nnrp_connection_failed", transport="quic", exc_info=True)
        finally:
            for each in self._ids.pop(transport):
                self._routes.pop(each, None)
            if not self._ids:
                empty, self._empty = self._empty, trio.Event()
                empty.set()

    async def _serve(self, transport: QuicTransport) -> None:
        if await transport.wait_connected():
            await self._service.serve_stream(transport, "quic")

    def _follow(self, transport: QuicTransport) -> None:
        """Route by the ids the connection has issued."""
        packets = transport.packets
        if packets.issued:
            for each in packets.issued:
                self._route(each, transport)
            packets.issued = []
        if packets.retired:
            for each in packets.retired:
                self._routes.pop(each, None)
                self._ids.get(transport, set()).discard(each)
            packets.retired = []

    def _route(self, connection_id: bytes, transport: QuicTransport) -> None:
        if transport in self._ids:
            self._routes[connection_id] = transport
            self._ids[transport].add(connection_id)

    def _send(self, data: bytes, address: Address) -> None:
        try:
            self._plain.sendto(data, address)
        except OSError:
            self.unsent += 1
