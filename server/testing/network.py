"""A network in memory between real clients and the real server, with weather."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable

import trio

from server.testing.faults import PERFECT, TIMEOUTS, Cut, FaultPlan, LinkFaults
from server.testing.link import Link, LinkStream

__all__ = ["Network"]

Serve = Callable[[LinkStream], Awaitable[None]]


class Network:
    """Connects dials to ``serve``, one task per connection in ``nursery``. Without a plan every connection is perfect.

    `connect` has the shape of `client.Connect`. ``cuts`` counts connections that were cut; `digest` is a hash over every
    byte sent, in order: two runs of one seed have the same.
    """

    def __init__(
        self, nursery: trio.Nursery, serve: Serve, *, rng: random.Random, plan: FaultPlan | None = None
    ) -> None:
        self._nursery = nursery
        self._serve = serve
        self._rng = rng
        self.plan = plan
        self.links: list[Link] = []
        self._calm: set[Link] = set()
        self.dialled = 0
        self._opened = 0
        self.cuts = 0
        self.recorder: Callable[[int, str, bytes], object] | None = None
        """Called with every piece of bytes that is sent: connection number, ``up`` or ``down``, data."""
        self._hash = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Dial. Raises ``OSError`` when the weather refuses it."""
        faults = self.plan.draw(trio.current_time()) if self.plan is not None else None
        self.dialled += 1
        if faults is not None:
            await trio.sleep(faults.dial)
            if faults.refuse:
                raise ConnectionRefusedError("connection refused by the simulation")
        link = self._open(faults)
        if faults is not None and faults.duplicate:
            self._nursery.start_soon(self._shadow, self._open(None))
        if faults is not None and faults.cut_at < float("inf"):
            self._nursery.start_soon(self._cut_later, link, faults.cut_at)
        await trio.lowlevel.checkpoint()
        return link.client

    async def connect_in_calm(self, host: str, port: int) -> trio.abc.Stream:
        """Dial out of reach of the weather, and of `cut_all`."""
        self.dialled += 1
        link = self._open(None)
        self._calm.add(link)
        await trio.lowlevel.checkpoint()
        return link.client

    def cut_all(self) -> None:
        """Cut everything that is open, now."""
        for link in self.links:
            if link not in self._calm:
                link.cut()

    def _open(self, faults: LinkFaults | None) -> Link:
        # Not the number of dials: two that wait at the same time would get the same one.
        self._opened += 1
        link = Link(
            self._opened,
            faults or PERFECT,
            rng=self._rng,
            on_cut=self._note_cut,
            trace=self._note_bytes,
        )
        self.links.append(link)
        self._nursery.start_soon(self._run_server, link)
        return link

    async def _run_server(self, link: Link) -> None:
        try:
            await self._serve(link.server)
        finally:
            link.server.close()
            self.links.remove(link)
            self._calm.discard(link)

    async def _cut_later(self, link: Link, seconds: float) -> None:
        await trio.sleep(seconds)
        if link.alive:
            link.cut()

    async def _shadow(self, link: Link) -> None:
        """A connection that opens, says nothing more than a fragment, and goes."""
        try:
            await link.client.send_all(b"POST /session HTTP/1.1\r\nHost: 127")
            await trio.sleep(1)
        except trio.BrokenResourceError:
            return
        finally:
            link.client.close()

    async def _give_up(self, link: Link, patience: float) -> None:
        await trio.sleep(patience)
        link.reset()

    def _note_cut(self, link: Link) -> None:
        if (patience := TIMEOUTS.get(link.faults.cut or Cut.RESET)) is not None:
            self._nursery.start_soon(self._give_up, link, patience)
        self.cuts += 1
        if self.plan is not None:
            self.plan.done += 1

    def _note_bytes(self, number: int, direction: str, data: bytes) -> None:
        if self.recorder is not None:
            self.recorder(number, direction, data)
        self._hash.update(b"%d %s %d " % (number, direction.encode(), len(data)))
        self._hash.update(data)
