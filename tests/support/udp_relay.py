"""A UDP path that loses, doubles and reorders what goes over it, in both directions, as its seed says."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import attrs
import trio

__all__ = ["Relay", "Weather", "relaying"]

Address: TypeAlias = tuple[str, int]
_READ = 65_535


@attrs.frozen
class Weather:
    """Chances for each datagram. One that is ``late`` waits up to ``delay`` seconds, so that others overtake it."""

    lost: float = 0.05
    twice: float = 0.05
    late: float = 0.15
    delay: float = 0.03


class Relay:
    """Where it listens, and what has become of the datagrams. ``weather``, on the way to the target, and ``weather_back`` may be
    changed at any time."""

    def __init__(self, target: Address, seed: int, weather: Weather, nursery: trio.Nursery) -> None:
        self.weather = self.weather_back = weather
        self.fates: Counter[str] = Counter()
        self.host, self.port = "", 0
        self._target = target
        self._random = random.Random(seed)
        self._nursery = nursery
        self._front = trio.socket.socket(type=trio.socket.SOCK_DGRAM)
        self._backs: dict[Address, trio.socket.SocketType] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self._front:
            await self._front.bind(("127.0.0.1", 0))
            self.host, self.port = self._front.getsockname()
            task_status.started()
            while True:
                data, client = await self._front.recvfrom(_READ)
                back = self._backs.get(client)
                if back is None:
                    back = self._backs[client] = trio.socket.socket(type=trio.socket.SOCK_DGRAM)
                    await back.connect(self._target)
                    self._nursery.start_soon(self._return, back, client)
                self._pass_on(back, data, self._target, self.weather)

    async def _return(self, back: trio.socket.SocketType, client: Address) -> None:
        with back:
            while True:
                try:
                    data = await back.recv(_READ)
                except OSError:
                    continue  # nobody listens there any more
                self._pass_on(self._front, data, client, self.weather_back)

    def _pass_on(self, socket: trio.socket.SocketType, data: bytes, to: Address, weather: Weather) -> None:
        chance = self._random.random
        for _ in range(2 if chance() < weather.twice else 1):
            if chance() < weather.lost:
                self.fates["lost"] += 1
                continue
            wait = chance() * weather.delay if chance() < weather.late else 0.0
            self.fates["late" if wait else "passed"] += 1
            self._nursery.start_soon(self._send, socket, data, to, wait)

    async def _send(self, socket: trio.socket.SocketType, data: bytes, to: Address, wait: float) -> None:
        await trio.sleep(wait)
        try:
            await socket.sendto(data, to)
        except OSError:
            self.fates["refused"] += 1


@asynccontextmanager
async def relaying(target: Address, seed: int, weather: Weather | None = None) -> AsyncIterator[Relay]:
    """A relay to ``target`` on a free loopback port, for the length of the block."""
    async with trio.open_nursery() as nursery:
        relay = Relay(target, seed, weather or Weather(), nursery)
        await nursery.start(relay.run)
        yield relay
        nursery.cancel_scope.cancel()
