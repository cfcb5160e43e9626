"""The process ``moorline serve`` is: signals, the line that says it is ready, and exit codes."""

from __future__ import annotations

import signal
import sys
from functools import partial
from types import FrameType
from typing import Final

import trio
from hypercorn.utils import LifespanFailureError

from server.application import Application
from server.config import NNRP_PORT, Config
from server.memory import give_back_large_blocks
from server.serve import serve
from server.telemetry import log

__all__ = ["run"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def run(config: Config) -> int:
    """Serve until SIGINT or SIGTERM. 0: ended as asked; 1: could not start, or the engine failed (said on standard error)."""
    outside = _Outside()
    for number in _SIGNALS:
        signal.signal(number, outside)
    give_back_large_blocks()
    application = Application(config, nnrp_port=NNRP_PORT, set_up_logs=True)
    failures: list[str] = []
    try:
        trio.run(_serve, config, application, outside)
    except* LifespanFailureError:
        failures.append(application.failure or "could not start")
    except* OSError as errors:
        failures += [f"cannot listen on {config.hostname}:{config.port}: {text}" for text in _texts(errors)]
    for number in _SIGNALS:
        # The interpreter puts its own handlers back while it ends, but for this one.
        signal.signal(number, signal.SIG_IGN)
    for failure in failures:
        sys.stderr.write(f"moorline: {failure}\n")
    return 1 if failures else 0


class _Outside:
    """Takes the signals that come when Trio has no receiver for them: before, they ask for the end like any other; after,
    the end is under way. It must not raise: an exception that comes between two steps of Trio's own leaves `trio.run`
    waiting for a task that is no more."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, _: int, __: FrameType | None) -> None:
        self.asked = True


async def _serve(config: Config, application: Application, outside: _Outside) -> None:
    stop = trio.Event()
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        if outside.asked:
            stop.set()
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                async for number in signals:
                    # The first asks for the end. Others change nothing: the end is bounded in time anyway.
                    log.info("shutdown_asked", signal=signal.Signals(number).name)
                    stop.set()

            nursery.start_soon(listen)
            async with trio.open_nursery() as server:
                for url in await server.start(partial(serve, config, application=application, shutdown=stop.wait)):
                    sys.stdout.write(f"moorline listening on {url}\n")
                sys.stdout.flush()
            nursery.cancel_scope.cancel()


def _texts(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for each in error.exceptions for text in _texts(each)]
    return [str(error)]
