"""One connection in memory: two Trio streams, and a fate."""

from __future__ import annotations

import random
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from server.testing.faults import PERFECT, Cut, LinkFaults

__all__ = ["Link", "LinkStream"]

WINDOW: Final = 256 * 1024
"""Bytes one direction holds before its sender waits: about what two kernels hold for a TCP connection."""

DRIP: Final = 2048
"""Bytes of a direction that come in small pieces, if its fate says so: heads and first frames, not megabytes."""


class _Address:
    """Stands where a socket would be asked for its addresses, and told its options."""

    family = socket.AF_INET

    def __init__(self, own: tuple[str, int], peer: tuple[str, int]) -> None:
        self._own = own
        self._peer = peer

    def getsockname(self) -> tuple[str, int]:
        return self._own

    def getpeername(self) -> tuple[str, int]:
        return self._peer

    def setsockopt(self, *_: object) -> None:
        """There is no kernel to heed them: a peer that vanishes is given up by the plan."""


class _Direction:
    """Bytes under way in one direction, in order, each piece with the instant of its arrival."""

    def __init__(self, link: Link, faults: LinkFaults, limit: float, corrupt: float, name: str) -> None:
        self._link = link
        self._faults = faults
        self._limit = limit
        self._corrupt = corrupt
        self._name = name
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._held = 0
        self.sent = 0
        self.received = 0
        self._changed = trio.Event()
        self._last_arrival = 0.0
        self.ended = False
        """No more will be sent (the sender said so, or a close cut it)."""
        self.broken = False
        self.stalled = False
        self.deserted = False
        """Nobody is there any more to receive, and the sender has not been told."""

    def change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def break_off(self, *, keep: bool) -> None:
        """The connection is gone; with ``keep`` what is under way still arrives."""
        if keep:
            self.ended = True
        else:
            self.broken = True
            self._pieces.clear()
            self._held = 0
        self.change()

    def desert(self) -> None:
        """The receiver is gone; what is sent to it goes nowhere."""
        self.deserted = True
        self._pieces.clear()
        self._held = 0
        self.change()

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while len(view):
            if self.broken or self.ended:
                raise trio.BrokenResourceError("the connection is cut")
            if self.stalled or self._held >= WINDOW:
                await self._changed.wait()
                continue
            room = min(len(view), WINDOW - self._held)
            left = self._limit - self.sent
            if left <= room and not self.deserted:
                self._push(bytes(view[: int(left)]))
                view = view[int(left) :]
                self._link.cut()
                continue
            self._push(bytes(view[:room]))
            view = view[room:]
        await trio.lowlevel.checkpoint()

    def _push(self, data: bytes) -> None:
        if not data:
            return
        if self.sent <= self._corrupt < self.sent + len(data):
            at = int(self._corrupt) - self.sent
            data = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        self.sent += len(data)
        self._link.trace(self._name, data)
        delay = self._faults.latency + self._link.random() * self._faults.jitter
        self._last_arrival = max(self._last_arrival, trio.current_time() + delay)
        self._pieces.append((self._last_arrival, data))
        self._held += len(data)
        self.change()

    async def receive(self, most: int) -> bytes:
        if self.received < DRIP:
            most = min(most, self._faults.piece)
        while True:
            if self.broken or self.deserted:
                raise trio.BrokenResourceError("the connection is cut")
            if self.stalled:
                await self._changed.wait()
                continue
            if not self._pieces:
                if self.ended:
                    await trio.lowlevel.checkpoint()
                    return b""
                await self._changed.wait()
                continue
            arrival, _data = self._pieces[0]
            if arrival > trio.current_time():
                with trio.move_on_at(arrival):
                    await self._changed.wait()
                continue
            await trio.lowlevel.checkpoint()
            if self.broken or self.stalled or not self._pieces:
                continue
            return self._take(most)

    def _take(self, most: int) -> bytes:
        arrival, data = self._pieces.popleft()
        if len(data) > most:
            self._pieces.appendleft((arrival, data[most:]))
            data = data[:most]
        self._held -= len(data)
        self.received += len(data)
        self.change()
        return data

    def readable(self) -> bool:
        """Whether `receive` would return at once, also with the end or an error."""
        return self.broken or self.ended or (bool(self._pieces) and self._pieces[0][0] <= trio.current_time())


class LinkStream(trio.abc.HalfCloseableStream):
    """One end of a `Link`. Behaves as `trio.SocketStream` does; ``socket`` answers for its addresses only."""

    def __init__(self, link: Link, sending: _Direction, receiving: _Direction, address: _Address) -> None:
        self._link = link
        self._sending = sending
        self._receiving = receiving
        self._closed = False
        self._eof = False
        self.socket = address

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed or self._eof:
            raise trio.ClosedResourceError
        await self._sending.send(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._closed:
            raise trio.ClosedResourceError
        data = await self._receiving.receive(max_bytes or 65536)
        if self._closed:
            raise trio.ClosedResourceError
        return data

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        self._eof = True
        self._sending.ended = True
        self._sending.change()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # What was sent still arrives; what the peer sends from now on meets nobody.
        self._sending.break_off(keep=True)
        if not self._receiving.deserted:
            self._receiving.broken = True
            self._receiving.change()
        self._link.note_closed()

    def is_readable(self) -> bool:
        return self._receiving.readable()


class Link:
    """A connection between ``client`` and ``server``, made by `Network`."""

    def __init__(
        self,
        number: int,
        faults: LinkFaults = PERFECT,
        *,
        rng: random.Random | None = None,
        server_address: tuple[str, int] = ("127.0.0.1", 4170),
        on_cut: Callable[[Link], object] | None = None,
        trace: Callable[[int, str, bytes], object] | None = None,
    ) -> None:
        self.number = number
        self.faults = faults
        self.was_cut = False
        self.random = (rng or random.Random(number)).random
        self._on_cut = on_cut
        self._trace = trace
        self._ends = 2
        peer = ("127.0.0.1", 32768 + number % 28000)
        self.up = _Direction(self, faults, faults.cut_up, faults.corrupt_up, "up")
        self.down = _Direction(self, faults, faults.cut_down, faults.corrupt_down, "down")
        self.client = LinkStream(self, self.up, self.down, _Address(peer, server_address))
        self.server = LinkStream(self, self.down, self.up, _Address(server_address, peer))

    def trace(self, direction: str, data: bytes) -> None:
        if self._trace is not None:
            self._trace(self.number, direction, data)

    def cut(self) -> None:
        """Let the planned cut happen now; without a plan it is a reset. Idempotent."""
        if self.was_cut:
            return
        self.was_cut = True
        kind = self.faults.cut or Cut.RESET
        if kind is Cut.STALL:
            for each in (self.up, self.down):
                each.stalled = True
                each.change()
        elif kind is Cut.VANISH:
            self.up.stalled = self.up.ended = True
            self.up.change()
            self.down.desert()
        elif kind is Cut.HALF_CLOSE:
            self.down.break_off(keep=True)
        elif kind is Cut.CLOSE:
            for each in (self.up, self.down):
                each.break_off(keep=True)
        else:
            self.reset()
        if self._on_cut is not None:
            self._on_cut(self)

    def reset(self) -> None:
        """Both sides get an error, now."""
        for each in (self.up, self.down):
            each.break_off(keep=False)

    def note_closed(self) -> None:
        self._ends -= 1

    @property
    def alive(self) -> bool:
        """Some end is still open."""
        return self._ends > 0
