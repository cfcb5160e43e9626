"""Which transport to a server is best, by measuring them (nnrp-wire 2.7, 7.18)."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Final

import attrs
import trio

from client.nnrp.dialling import dial, why
from client.nnrp.errors import NnrpConnectionLost, NnrpRefused
from client.nnrp.link import Link
from client.nnrp.observing import logged
from client.nnrp.options import NnrpOptions
from protocol.nnrp.machines.connection import ConnectionLimits
from protocol.nnrp.machines.connection_table import Dialect
from protocol.nnrp.machines.events import Event, ProbeAnswered

__all__ = ["Candidate", "probe_transports"]

logger = logging.getLogger("moorline.client")

PROBE_BYTES: Final = 32_768
_PADDING: Final = b"P" * PROBE_BYTES


@attrs.frozen(slots=True)
class Candidate:
    """What was measured of one URL. ``round_trips``, in seconds, of the probes that were answered."""

    url: str
    round_trips: tuple[float, ...] = ()
    failure: str = ""
    """Why the last probe that failed did."""

    @property
    def round_trip(self) -> float:
        """Median, in seconds; infinite where nothing was answered."""
        return statistics.median(self.round_trips) if self.round_trips else float("inf")

    @property
    def throughput(self) -> float:
        """Median, in bytes per second."""
        return statistics.median(PROBE_BYTES / each for each in self.round_trips) if self.round_trips else 0.0

    @property
    def rank(self) -> tuple[float, float, float]:
        """The lowest is the best: more answers, then higher throughput, then the shorter round trip."""
        return (-len(self.round_trips), -self.throughput, self.round_trip)


async def probe_transports(
    urls: Sequence[str], options: NnrpOptions | None = None, *, samples: int = 3, warm_up: bool = True
) -> list[Candidate]:
    """Measure every URL, all at once, each sample of ``samples`` on a connection of its own, after one that does not count.

    The best comes first; open it with `open_nnrp`, and the others as its ``alternatives``. Raises `NnrpConnectionLost` when
    none of them answers. Takes at most ``open_timeout`` per sample.
    """
    chosen = options or NnrpOptions()
    found: list[Candidate] = []
    async with trio.open_nursery() as nursery:
        for url in urls:
            nursery.start_soon(_measure, url, chosen, samples, warm_up, found)
    # Of equals, the one named first.
    found.sort(key=lambda each: (each.rank, list(urls).index(each.url)))
    if not found or not found[0].round_trips:
        raise NnrpConnectionLost("no transport answers: " + "; ".join(f"{each.url}: {each.failure}" for each in found))
    return found


async def _measure(url: str, options: NnrpOptions, samples: int, warm_up: bool, found: list[Candidate]) -> None:
    taken: list[float] = []
    failure = ""
    for number in range(samples + warm_up):
        round_trip = None
        try:
            with trio.fail_after(options.open_timeout):
                round_trip = await _probe(url, options, number + 1)
        except* (OSError, trio.BrokenResourceError, trio.TooSlowError, ValueError, RuntimeError, NnrpRefused) as errors:
            failure = why(_first(errors))
        if round_trip is not None and number >= warm_up:
            taken.append(round_trip)
    found.append(Candidate(url, tuple(taken), failure))


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _probe(url: str, options: NnrpOptions, probe_id: int) -> float:
    """One probe on a fresh connection: the time from sending to the answer."""
    answer = _Answer()
    async with trio.open_nursery() as nursery:
        stream = await dial(url, options, nursery)
        link = Link(
            stream,
            logged(answer.take),
            dialect=Dialect.UNKNOWN,
            strict=options.strict,
            limits=ConnectionLimits(handshake_timeout=options.open_timeout, idle_timeout=options.idle_timeout),
            send_timeout=options.send_timeout,
        )
        nursery.start_soon(partial(_tell_end, link, answer))
        began = trio.current_time()
        sent_us = int(began * 1_000_000)
        logger.debug("nnrp_transport_probe url=%s probe_id=%d client_send_ts_us=%d", url, probe_id, sent_us)
        link.machine.send_probe(probe_id, _PADDING, client_send_ts_us=sent_us)
        link.flush()
        await answer.came.wait()
        ended = trio.current_time()
        link.lose()
        await link.done.wait()
        nursery.cancel_scope.cancel()
    if not answer.matched:
        raise trio.BrokenResourceError("the probe was not answered")
    return max(ended - began, 1e-6)


@attrs.define(slots=True)
class _Answer:
    came: trio.Event = attrs.field(factory=trio.Event)
    matched: bool = False

    def take(self, event: Event) -> None:
        if isinstance(event, ProbeAnswered):
            self.matched = event.matched
            self.came.set()


async def _tell_end(link: Link, answer: _Answer) -> None:
    await link.run()
    answer.came.set()
