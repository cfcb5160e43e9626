"""What the hypercorn command told the worker that is loading us, and the way from its asyncio worker to its Trio worker."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final, NoReturn

import attrs

from server.config import is_loopback

__all__ = ["Worker", "find_worker", "hand_over", "reaches_only_this_machine"]

_FOREIGN: Final = frozenset({"asyncio_worker", "uvloop_worker"})
_WORKERS: Final = {
    "hypercorn.asyncio.run": _FOREIGN,
    "hypercorn.trio.run": frozenset({"trio_worker"}),
}


@attrs.frozen(slots=True)
class Worker:
    """A hypercorn worker function that is on the stack right now."""

    config: Any
    sockets: Any
    shutdown_event: Any
    foreign: bool
    """On another loop than Trio's."""

    @property
    def workers(self) -> int:
        return max(1, int(self.config.workers))

    @property
    def loopback(self) -> bool:
        return reaches_only_this_machine([*self.config.bind, *self.config.insecure_bind, *self.config.quic_bind])


def reaches_only_this_machine(binds: list[str]) -> bool:
    """Whether every ``host:port`` is a loopback address. A Unix socket or a descriptor is none: what comes through it may
    come from anywhere."""
    return all(not bind.startswith(("unix:", "fd://")) and is_loopback(_host(bind)) for bind in binds)


def _host(bind: str) -> str:
    host, colon, _ = bind.rpartition(":")
    return host if colon else bind


def find_worker() -> Worker | None:
    """The worker that is importing the application; None when something else is, or when hypercorn looks unfamiliar."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        if name in _WORKERS.get(frame.f_globals.get("__name__", ""), ()):
            # From 3.13 on this is a proxy whose keys() is a list.
            known = dict(frame.f_locals)
            if {"config", "sockets", "shutdown_event"} <= known.keys() and hasattr(known["config"], "bind"):
                return Worker(known["config"], known["sockets"], known["shutdown_event"], name in _FOREIGN)
            return None
        frame = frame.f_back
    return None


def hand_over(worker: Worker) -> NoReturn:
    """Run the Trio worker in place of the one that is loading us, then end the process."""
    from hypercorn.trio.run import trio_worker

    worker.config.worker_class = "trio"
    trio_worker(worker.config, worker.sockets, worker.shutdown_event)
    raise SystemExit(0)
