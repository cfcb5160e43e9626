"""What can go wrong with a connection, as a plan drawn from a seed."""

from __future__ import annotations

import enum
import math
import random
from typing import Final

import attrs

__all__ = ["PERFECT", "STALL_TIMEOUT", "TIMEOUTS", "VANISH_TIMEOUT", "FaultPlan", "LinkFaults", "Weather"]


STALL_TIMEOUT: Final = 120.0
VANISH_TIMEOUT: Final = 20.0


class Cut(enum.StrEnum):
    """How a connection ends."""

    RESET = "reset"
    """Both sides get an error; what was under way is lost (RST)."""
    CLOSE = "close"
    """What was under way arrives, then the end (FIN in both directions)."""
    HALF_CLOSE = "half_close"
    """The downward direction ends in good order, the upward one stays open until the client notices."""
    VANISH = "vanish"
    """The client gets an error, the server hears nothing until its kernel gives up, after `VANISH_TIMEOUT` seconds (another
    network under a telephone): the client is back before the loss is known."""
    STALL = "stall"
    """Nothing moves any more, in neither direction, and nobody is told (a dropped route) until the kernels give up, after
    `STALL_TIMEOUT` seconds: then it is a reset."""


TIMEOUTS: Final = {Cut.STALL: STALL_TIMEOUT, Cut.VANISH: VANISH_TIMEOUT}
"""Seconds until the kernels give up a connection that nobody is told the end of."""


@attrs.frozen(slots=True)
class LinkFaults:
    """The fate of one connection. Bytes are counted per direction, from the client (``up``) and to it (``down``)."""

    cut: Cut | None = None
    cut_up: float = math.inf
    """The connection is cut when this many bytes have been sent upwards…"""
    cut_down: float = math.inf
    """…or this many downwards."""
    cut_at: float = math.inf
    """…or this many seconds after it was opened."""
    latency: float = 0.0
    """Seconds between sending and arriving."""
    jitter: float = 0.0
    """Up to this much more, per piece; order within one direction is kept."""
    dial: float = 0.0
    """Seconds until the connection stands; draws that differ reorder whole connections."""
    piece: int = 65536
    """Most bytes that arrive at once: 1 drips."""
    corrupt_up: float = math.inf
    corrupt_down: float = math.inf
    """The byte at this position of the direction arrives flipped."""
    refuse: bool = False
    """The dial fails."""
    duplicate: bool = False
    """A second connection is opened beside it, says the same first bytes, and goes away (a retrying middlebox)."""


PERFECT = LinkFaults()


@attrs.frozen(slots=True, kw_only=True)
class Weather:
    """How likely each kind of fault is, per connection: probabilities from 0 to 1, and the size of things."""

    cut: float = 0.95
    mean_bytes: float = 500.0
    """Mean of the (exponentially drawn) position of a cut in bytes: some fall into the head of a request, some far on."""
    mean_seconds: float = 1.0
    stall: float = 0.05
    vanish: float = 0.0
    refuse: float = 0.05
    drip: float = 0.05
    corrupt: float = 0.0
    """In each direction. A byte that arrives flipped is rare behind TCP's checksum, and may change what was said unnoticed."""
    duplicate: float = 0.0
    latency: float = 0.02


@attrs.define
class FaultPlan:
    """Draws the fate of connection after connection. The same seed gives the same fates.

    After ``cuts`` connections were cut, or at ``until`` seconds, the weather clears: a run always comes to its end.
    """

    rng: random.Random
    weather: Weather = Weather()
    cuts: int = 10
    until: float = 1800.0
    drawn: int = 0
    done: int = 0
    """Connections cut so far; counted by the network."""

    def clear(self, now: float) -> bool:
        return self.done >= self.cuts or now >= self.until

    def draw(self, now: float) -> LinkFaults:
        """The fate of the next connection."""
        self.drawn += 1
        rng, weather = self.rng, self.weather
        latency = rng.random() * weather.latency
        if self.clear(now):
            return LinkFaults(latency=latency)
        piece = rng.choice((1, 2, 7, 64)) if rng.random() < weather.drip else rng.choice((65536, 4096, 500))
        calm = LinkFaults(
            latency=latency,
            jitter=latency * rng.random(),
            dial=rng.random() * weather.latency * 3,
            piece=piece,
            refuse=rng.random() < weather.refuse,
            duplicate=rng.random() < weather.duplicate,
        )
        if rng.random() < weather.corrupt:
            calm = attrs.evolve(calm, corrupt_down=self._bytes())
        if weather.corrupt and rng.random() < weather.corrupt:
            calm = attrs.evolve(calm, corrupt_up=self._bytes())
        if rng.random() >= weather.cut:
            # Spared for now: nothing lasts in a storm, or one lucky connection would end it.
            return attrs.evolve(calm, cut=Cut.RESET, cut_at=rng.expovariate(1 / (20 * weather.mean_seconds)))
        if rng.random() < weather.stall:
            return attrs.evolve(calm, cut=Cut.STALL, cut_at=rng.expovariate(1 / weather.mean_seconds))
        cut = rng.choice((Cut.RESET, Cut.RESET, Cut.CLOSE, Cut.HALF_CLOSE))
        if weather.vanish and rng.random() < weather.vanish:
            cut = Cut.VANISH
        where = rng.random()
        if where < 0.2:
            return attrs.evolve(calm, cut=rng.choice((Cut.RESET, Cut.CLOSE)), cut_up=self._bytes() / 4)
        if where < 0.8:
            return attrs.evolve(calm, cut=cut, cut_down=self._bytes())
        return attrs.evolve(calm, cut=cut, cut_at=rng.expovariate(1 / weather.mean_seconds))

    def _bytes(self) -> float:
        return math.floor(self.rng.expovariate(1 / self.weather.mean_bytes))
