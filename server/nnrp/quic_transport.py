"""One QUIC connection as a transport of the driver."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import trio

from protocol.layout import Buffer
from protocol.nnrp.quic_engine import Address, QuicEngine, QuicFailed
from protocol.nnrp.quic_streams import QuicPackets
from server.nnrp.transport import PacketTransport

__all__ = ["QuicTransport"]

_HIGH: Final = 256 * 1024
"""Bytes queued in the library from which a send waits."""
_VIOLATION: Final = 1
"""Application error code of a close because the peer broke a rule."""
_TAKE: Final = 64 * 1024


class QuicTransport(PacketTransport):
    """Fed with UDP datagrams by `receive`; what it has to send goes to ``send_udp``, synchronously. `keep_time` is its timer
    and must run for as long as the connection lives."""

    def __init__(
        self,
        engine: QuicEngine,
        packets: QuicPackets,
        send_udp: Callable[[bytes, Address], None],
        handshake_timeout: float,
    ) -> None:
        self.packets = packets
        self._engine = engine
        self._send_udp = send_udp
        self._give_up = trio.current_time() + handshake_timeout
        self._timer = trio.CancelScope()
        self._progress = trio.Event()

    # For the listener

    def receive(self, data: bytes, address: Address) -> None:
        """Take a UDP datagram; `advance` acts on it."""
        try:
            self._engine.receive(data, address, trio.current_time())
        except QuicFailed:
            self._fail()

    def advance(self) -> None:
        """After every input: what it means, what is to be sent for it, and until when nothing need be done."""
        packets = self.packets
        try:
            packets.pump()
            if not self._engine.closed and not self._engine.failed:
                packets.release()
            for data, address in self._engine.transmit(trio.current_time()):
                self._send_udp(data, address)
        except QuicFailed:
            self._fail()
        self._timer.deadline = -math.inf if packets.over else self._deadline()
        self.wake()

    async def keep_time(self) -> None:
        """Until the connection is gone, with everything it has to say about its end."""
        while not self.packets.over:
            with trio.CancelScope(deadline=self._deadline()) as self._timer:
                await trio.sleep_forever()
            self._on_time(trio.current_time())

    async def wait_connected(self) -> bool:
        """Wait for the handshake. False when it has failed."""
        while not self.packets.connected:
            if self.packets.over or self._engine.failed:
                return False
            await self._progress.wait()
        return True

    def wake(self) -> None:
        """Let everybody who waits see what has become of the connection."""
        progress, self._progress = self._progress, trio.Event()
        progress.set()

    def abort(self) -> None:
        """End the connection at once. Synchronous and idempotent."""
        try:
            self._engine.close()
        except QuicFailed:
            self._fail()
        self.advance()

    # For the driver

    def trust(self) -> None:
        self.packets.trust()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()
        packets = self.packets
        while not packets.has_packets:
            if packets.failure is not None:
                raise packets.failure
            if packets.over or self._engine.failed:
                raise trio.BrokenResourceError(packets.reason or "the QUIC connection is gone")
            if packets.eof:
                return b""
            await self._progress.wait()
        return self._gather()

    async def send_all(self, data: Buffer) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check()
        try:
            self.packets.send(data)
        except QuicFailed as failure:
            raise trio.BrokenResourceError(str(failure)) from failure
        self.advance()
        while self.packets.queued > _HIGH:
            await self._progress.wait()
            self._check()

    async def part(self, *, violated: bool) -> None:
        while not self.packets.over and not self._engine.failed and (self.packets.queued or self._engine.in_flight):
            await self._progress.wait()
        try:
            self._engine.close(_VIOLATION if violated else 0)
        except QuicFailed:
            self._fail()
        self.advance()

    async def aclose(self) -> None:
        self.abort()
        await trio.lowlevel.checkpoint()

    # Inside

    def _gather(self) -> bytes:
        """What has come, joined while it is small: the driver acts on all of it before it writes."""
        packets = self.packets
        first = packets.take()
        assert first is not None
        if not packets.has_packets:
            return first
        gathered, size = [first], len(first)
        while size < _TAKE and (each := packets.take()) is not None:
            gathered.append(each)
            size += len(each)
        return b"".join(gathered)

    def _check(self) -> None:
        if self._engine.closed:
            raise trio.ClosedResourceError
        if self.packets.over or self._engine.failed:
            raise trio.BrokenResourceError(self.packets.reason or "the QUIC connection is gone")

    def _fail(self) -> None:
        self.packets.over = True

    def _deadline(self) -> float:
        when = self._engine.timer()
        deadline = math.inf if when is None else when
        return deadline if self.packets.connected else min(deadline, self._give_up)

    def _on_time(self, now: float) -> None:
        if self.packets.over:
            return
        if not self.packets.connected and now >= self._give_up:
            # Whoever does not finish its handshake is not told: there may be nobody.
            self._fail()
            return
        when = self._engine.timer()
        if when is not None and when <= now:
            try:
                self._engine.handle_timer(now)
            except QuicFailed:
                self._fail()
        self.advance()
