"""NNRP over QUIC: one connection on a UDP socket of its own (nnrp-wire 2.4). Needs qh3, which the extra ``quic`` names, or
aioquic."""

from __future__ import annotations

import importlib
import math
import socket
import ssl
from typing import Any, Final, Protocol

import trio

from client.nnrp.transport import PacketTransport
from protocol.layout import Buffer
from protocol.nnrp.quic_engine import QuicEngine, QuicFailed
from protocol.nnrp.quic_streams import QuicPackets

__all__ = ["QuicOptions", "QuicTransport", "dial_quic"]

_LIBRARIES: Final = ("qh3", "aioquic")
_ALPN: Final = "nnrp/1"
_DATAGRAM_BYTES: Final = 65_536
_READ: Final = 65_535
_BUFFER: Final = 4 * 1024 * 1024
_AT_ONCE: Final = 64
"""Datagrams read between two turns for everybody else."""
_IDLE: Final = 120.0
_HIGH: Final = 256 * 1024
"""Bytes queued in the library from which a send waits."""
_TAKE: Final = 64 * 1024


class QuicOptions(Protocol):
    """What a QUIC connection needs to know (`client.nnrp.connection.NnrpOptions`)."""

    @property
    def ca_file(self) -> str | None: ...
    @property
    def one_stream(self) -> bool: ...
    @property
    def datagrams(self) -> bool: ...


async def dial_quic(
    host: str, port: int, options: QuicOptions, nursery: trio.Nursery, library: str | None = None
) -> QuicTransport:
    """Connect. ``nursery`` runs the reader and the timer, until the connection is gone.

    Raises ``RuntimeError`` where no library is installed, ``OSError`` where there is no way to the host,
    ``trio.BrokenResourceError`` when the handshake fails, with the reason. Time is bounded by the caller.
    """
    connection = _make_connection(host, options, library)
    family, _, _, _, address = (await trio.socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM))[0]
    plain = socket.socket(family, socket.SOCK_DGRAM)
    try:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        plain.setblocking(False)
        plain.connect(address)
    except BaseException:
        plain.close()
        raise
    engine = QuicEngine(connection)
    packets = QuicPackets(engine, client=True, one_stream=options.one_stream, datagrams=options.datagrams)
    transport = QuicTransport(engine, packets, plain)
    nursery.start_soon(transport.run)
    try:
        engine.connect((str(address[0]), port), trio.current_time())
        await transport.wait_connected()
    except QuicFailed as failure:
        transport.abort()
        raise trio.BrokenResourceError(str(failure)) from failure
    except BaseException:
        transport.abort()
        raise
    return transport


def _make_connection(host: str, options: QuicOptions, library: str | None) -> Any:
    for name in _LIBRARIES if library is None else (library,):
        try:
            connection = importlib.import_module(f"{name}.quic.connection")
            configuration = importlib.import_module(f"{name}.quic.configuration")
        except ModuleNotFoundError:
            continue
        made = configuration.QuicConfiguration(
            is_client=True,
            alpn_protocols=[_ALPN],
            server_name=host,
            idle_timeout=_IDLE,
            max_datagram_frame_size=_DATAGRAM_BYTES,
            supported_versions=[1],
        )
        # The library knows no certificates of its own where the system keeps them elsewhere.
        made.load_verify_locations(cafile=options.ca_file or ssl.get_default_verify_paths().cafile)
        return connection.QuicConnection(configuration=made)
    raise RuntimeError("NNRP over QUIC needs the extra `quic`: pip install 'moorline[quic]'")


class QuicTransport(PacketTransport):
    """Made by `dial_quic`."""

    def __init__(self, engine: QuicEngine, packets: QuicPackets, plain: socket.socket) -> None:
        self._engine = engine
        self._packets = packets
        self._plain = plain
        self._address = plain.getpeername()[:2]
        self._timer = trio.CancelScope()
        self._running = trio.CancelScope(shield=True)
        self._reading = trio.CancelScope()
        self._progress = trio.Event()

    @property
    def ordered(self) -> bool:
        return self._packets.one_stream

    async def run(self) -> None:
        """Read and keep time until the connection is gone. Cancellation waits for `abort`, so that last words can be sent."""
        try:
            with self._running:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_time)
                    with self._reading:
                        await self._read()
        finally:
            self._fail()
            self._wake()

    async def wait_connected(self) -> None:
        """Raises ``trio.BrokenResourceError`` when the handshake fails."""
        self._advance()
        while not self._packets.connected:
            self._check()
            await self._progress.wait()

    def abort(self) -> None:
        """End the connection at once. Synchronous and idempotent."""
        self._running.shield = False
        try:
            self._engine.close()
        except QuicFailed:
            self._fail()
        self._advance()
        if not self._packets.connected:
            # There is nobody to say more to.
            self._fail()
            self._timer.deadline = -math.inf

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()
        packets = self._packets
        while not packets.has_packets:
            if packets.failure is not None:
                raise packets.failure
            if packets.eof:
                return b""
            self._check()
            await self._progress.wait()
        gathered: list[bytes] = []
        size = 0
        while size < _TAKE and (each := packets.take()) is not None:
            gathered.append(each)
            size += len(each)
        return gathered[0] if len(gathered) == 1 else b"".join(gathered)

    async def send_all(self, data: Buffer) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        try:
            self._packets.send(data)
        except QuicFailed as failure:
            raise trio.BrokenResourceError(str(failure)) from failure
        self._advance()
        while self._packets.queued > _HIGH:
            await self._progress.wait()
            self._check()

    async def part(self) -> None:
        """Wait until the server has everything, then say goodbye."""
        while not self._over and (self._packets.queued or self._engine.in_flight):
            await self._progress.wait()
        self.abort()

    async def aclose(self) -> None:
        self.abort()
        await trio.lowlevel.checkpoint()

    # Inside

    @property
    def _over(self) -> bool:
        return self._packets.over or self._engine.failed

    async def _read(self) -> None:
        with self._plain:
            while not self._packets.over:
                await trio.lowlevel.wait_readable(self._plain)
                self._take_in()

    def _take_in(self) -> None:
        """Take what has come, up to a bound, and only then act on it: one answer to many packets."""
        now = trio.current_time()
        try:
            for _ in range(_AT_ONCE):
                self._engine.receive(self._plain.recv(_READ), self._address, now)
        except BlockingIOError:
            pass
        except OSError as error:
            # The host says that nobody listens there.
            self._packets.reason = str(error)
            self._fail()
        except QuicFailed:
            self._fail()
        self._advance()

    async def _keep_time(self) -> None:
        while not self._packets.over:
            with trio.CancelScope(deadline=self._deadline()) as self._timer:
                await trio.sleep_forever()
            now = trio.current_time()
            when = self._engine.timer()
            if not self._packets.over and when is not None and when <= now:
                try:
                    self._engine.handle_timer(now)
                except QuicFailed:
                    self._fail()
                self._advance()
        self._reading.cancel()

    def _advance(self) -> None:
        """After every input: what it means, what is to be sent for it, and until when nothing need be done."""
        packets = self._packets
        try:
            packets.pump()
            if not self._engine.closed and not self._engine.failed:
                packets.release()
            for data, _ in self._engine.transmit(trio.current_time()):
                self._send(data)
        except QuicFailed:
            self._fail()
        self._timer.deadline = -math.inf if packets.over else self._deadline()
        self._wake()

    def _send(self, data: bytes) -> None:
        try:
            self._plain.send(data)
        except BlockingIOError:
            # Taken for lost, and sent again.
            return
        except OSError as error:
            self._packets.reason = str(error)
            self._fail()

    def _wake(self) -> None:
        progress, self._progress = self._progress, trio.Event()
        progress.set()

    def _check(self) -> None:
        if self._engine.closed:
            raise trio.ClosedResourceError
        if self._over:
            raise trio.BrokenResourceError(self._packets.reason or self._engine.reason or "the QUIC connection is gone")

    def _deadline(self) -> float:
        when = self._engine.timer()
        return math.inf if when is None else when

    def _fail(self) -> None:
        self._packets.over = True
