"""Logs, metrics, and a name for every way anything ends.

Where lines go is the program's choice, not ours: through structlog once the program has configured that, as our own starts do
with `set_up_logging`; else to the standard library's loggers ``moorline`` and below, which are silent until somebody listens.
"""

from __future__ import annotations

import enum
import logging
import re
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Final, TextIO, cast

import structlog

__all__ = ["EndReason", "HypercornLogger", "log", "logger_of", "printable", "set_up_logging"]

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_LONGEST: Final = 512


class EndReason(enum.StrEnum):
    """Why a connection or stream ended: the same words in logs and metrics."""

    COMPLETED = "completed"
    """In good order: the last response, or a WebSocket closed by both."""
    PEER_CLOSED = "peer_closed"
    PEER_LOST = "peer_lost"
    IDLE = "idle"
    SLOW_REQUEST = "slow_request"
    SLOW_READER = "slow_reader"
    DRAINED = "drained"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    HANDSHAKE_FAILED = "handshake_failed"
    ERROR = "error"


def printable(value: object) -> str:
    """A value from outside as it may appear in a log: without control, bidi and zero-width characters, bounded (ACP-257)."""
    text = _UNPRINTABLE.sub("", str(value))
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _clean(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if key == "exc_info" or isinstance(value, (bool, int, float)) or value is None:
            continue
        if isinstance(value, (list, tuple)):
            event[key] = [printable(item) for item in value]
        else:
            event[key] = printable(value)
    return event


def _for_standard_library(_: object, __: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    problem = event.pop("exc_info", None)
    words = [str(event.pop("event")), *(f"{name}={value!r}" for name, value in event.items())]
    return (" ".join(words),), {"exc_info": problem}


_STANDARD_LIBRARY: Final = (
    structlog.stdlib.filter_by_level,
    structlog.contextvars.merge_contextvars,
    _clean,
    _for_standard_library,
)


def logger_of(part: str = "") -> Any:
    """The logger of a part of moorline. Events are names with fields, never sentences with values in them."""
    name = f"moorline.{part}" if part else "moorline"

    def bound(logger: Any, processors: Any, context: Any) -> Any:
        if structlog.is_configured():
            wrap: Callable[..., Any] = structlog.get_config()["wrapper_class"]
            return wrap(logger, processors=processors, context=context)
        return structlog.stdlib.BoundLogger(logging.getLogger(name), _STANDARD_LIBRARY, context)

    # Asked at every binding, so that it does not matter which comes first, this logger or the program's choice.
    return structlog.wrap_logger(None, wrapper_class=cast(Any, bound), logger_factory_args=(name,))


logging.getLogger("moorline").addHandler(logging.NullHandler())

log: Any = logger_of()
"""The logger of the outside."""


def set_up_logging(level: str = "info", form: str = "text", stream: TextIO | None = None) -> None:
    """Send the log to ``stream`` (standard error) as lines of text or of JSON. Called once by a start, never by a library user."""
    target = sys.stderr if stream is None else stream
    renderer: Any
    if form == "json":
        renderer = [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    else:
        renderer = [
            structlog.dev.ConsoleRenderer(colors=target.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _clean,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )


class HypercornLogger:
    """hypercorn's logger in our words. Its start-up line is ours to print; requests are not logged one by one."""

    def __init__(self, _: Any) -> None:
        self._log = log.bind(source="hypercorn")

    async def access(self, *_: Any) -> None:
        return

    async def critical(self, message: str, *args: Any, **more: Any) -> None:
        self._log.critical("server_message", message=message % args if args else message, **more)

    async def error(self, message: str, *args: Any, **more: Any) -> None:
        self._log.error("server_message", message=message % args if args else message, **more)

    async def warning(self, message: str, *args: Any, **more: Any) -> None:
        self._log.warning("server_message", message=message % args if args else message, **more)

    async def info(self, message: str, *args: Any, **more: Any) -> None:
        self._log.debug("server_message", message=message % args if args else message, **more)

    async def debug(self, message: str, *args: Any, **more: Any) -> None:
        self._log.debug("server_message", message=message % args if args else message, **more)

    async def exception(self, message: str, *args: Any, **more: Any) -> None:
        self._log.exception("server_message", message=message % args if args else message, **more)

    async def log(self, level: int, message: str, *args: Any, **more: Any) -> None:
        self._log.log(level, "server_message", message=message % args if args else message, **more)
