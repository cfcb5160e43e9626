"""The process ``moorline serve`` is: signals, the line that says it is ready, and exit codes."""

from __future__ import annotations

import signal
import sys
from functools import partial
from types import FrameType

import trio
from hypercorn.utils import LifespanFailureError

from server.application import Application
from server.config import NNRP_PORT, Config
from server.memory import give_back_large_blocks
from server.serve import serve
from server.telemetry import log, set_up_logging

__all__ = ["run"]


def run(config: Config) -> int:
    """Serve until SIGINT or SIGTERM. 0: ended as asked; 1: could not start, or the engine failed (said on standard error)."""
    set_up_logging(config.log_level, config.log_format)
    give_back_large_blocks()
    # A second signal that comes when Trio has already let go of them must not spoil the exit code.
    signal.signal(signal.SIGTERM, _die_quietly)
    application = Application(config, nnrp_port=NNRP_PORT)
    failures: list[str] = []
    try:
        trio.run(_serve, config, application)
    except* LifespanFailureError:
        failures.append(application.failure or "could not start")
    except* OSError as errors:
        failures += [f"cannot listen on {config.hostname}:{config.port}: {text}" for text in _texts(errors)]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for failure in failures:
        sys.stderr.write(f"moorline: {failure}\n")
    return 1 if failures else 0


def _die_quietly(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)


async def _serve(config: Config, application: Application) -> None:
    stop = trio.Event()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
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
