"""Serving: one function for the command line and for programs that embed moorline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import hypercorn.config
import hypercorn.trio
import trio

from server.application import Application
from server.config import Config
from server.guard import install
from server.telemetry import HypercornLogger

__all__ = ["serve", "server_settings"]


async def serve(  # noqa: ASYNC128  # hypercorn calls started, through _Readiness
    config: Config,
    *,
    application: Application | None = None,
    shutdown: Callable[[], Awaitable[None]] | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``shutdown`` returns, or until cancelled. Reports the URLs it listens on (port 0 is resolved).

    Ends in order: nothing new is accepted, streams get their last frame, what is left after ``drain_ms`` is cut, the
    engine closes. Handles no signals: that is the caller's. Raises ``OSError`` when the address cannot be bound.
    """
    install()
    application = application if application is not None else Application(config)
    ending = shutdown if shutdown is not None else trio.sleep_forever

    async def end() -> None:
        try:
            await ending()
        finally:
            application.drain.begin()

    await hypercorn.trio.serve(
        application,  # type: ignore[arg-type]  # hypercorn types scopes as TypedDicts, ASGI calls them mappings
        server_settings(config),
        shutdown_trigger=end,
        task_status=cast("trio.TaskStatus[list[str]]", _Readiness(application, task_status)),
        mode="asgi",
    )


class _Readiness:
    """hypercorn reports that it listens even when the application has just failed to start."""

    def __init__(self, application: Application, task_status: trio.TaskStatus[list[str]]) -> None:
        self._application = application
        self._task_status = task_status

    def started(self, urls: list[str]) -> None:
        if self._application.is_running:
            self._task_status.started(urls)


def server_settings(config: Config) -> hypercorn.config.Config:
    """hypercorn's configuration from ours. What the guard does better is switched off here."""
    settings = hypercorn.config.Config()
    host = f"[{config.hostname}]" if ":" in config.hostname and not config.hostname.startswith("[") else config.hostname
    settings.bind = [f"{host}:{config.port}"]
    settings.certfile = config.tls_cert
    settings.keyfile = config.tls_key
    settings.graceful_timeout = config.drain_ms / 1000
    settings.h11_max_incomplete_size = config.max_header_bytes
    settings.h2_max_header_list_size = config.max_header_bytes
    settings.websocket_max_message_size = config.max_body_bytes
    settings.websocket_ping_interval = None
    settings.keep_alive_max_requests = 2**31
    settings.include_server_header = False
    settings.accesslog = None
    settings.errorlog = None
    settings.logger_class = HypercornLogger  # type: ignore[assignment]  # the same methods, no common base
    settings.backlog = 512
    return settings
