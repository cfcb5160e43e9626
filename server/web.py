"""The Quart application behind the wrappers: routes, and one shape for every error."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import trio
from quart import Blueprint, Response
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing.exceptions import RoutingException

from server.ground import Ground
from server.middleware.asgi import App
from server.routes.body import InvalidJson, json_response
from server.telemetry import log
from server.web_request import HttpConnection

__all__ = ["ROUTE_PACKAGES", "RoutesMaker", "create_web"]

ROUTE_PACKAGES: Final = ("server.routes.ops", "server.routes.rest", "server.routes.acp")
"""Packages with ``blueprint(ground)``. One that is not part of this installation is left out."""

RoutesMaker = Callable[[Ground], Blueprint]


@asynccontextmanager
async def create_web(
    ground: Ground, packages: Sequence[str] = ROUTE_PACKAGES, more: Sequence[RoutesMaker] = ()
) -> AsyncIterator[App]:
    """Quart with every route mounted, started, and shut down at the end. ``more``: further makers of blueprints."""
    web = _build(ground, packages, more)
    async with trio.open_nursery() as nursery:
        web.nursery = nursery
        await web.startup()
        try:
            yield cast(App, web)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await web.shutdown()


def _build(ground: Ground, packages: Sequence[str], more: Sequence[RoutesMaker]) -> QuartTrio:
    web = QuartTrio("moorline", static_folder=None)
    web.asgi_http_class = HttpConnection
    # The wrappers bound bodies and sends, by progress rather than by total time (stack: SSE rules).
    web.config.update(MAX_CONTENT_LENGTH=None, BODY_TIMEOUT=None, RESPONSE_TIMEOUT=None)
    # Nothing runs in the background of Quart: its nursery is ended at once.
    web.config["BACKGROUND_TASK_SHUTDOWN_TIMEOUT"] = None
    web.url_map.strict_slashes = False
    web.url_map.merge_slashes = False
    for name in packages:
        if importlib.util.find_spec(name) is not None:
            web.register_blueprint(importlib.import_module(name).blueprint(ground))
    for make in more:
        web.register_blueprint(make(ground))
    web.register_error_handler(InvalidJson, _on_invalid_json)
    web.register_error_handler(HTTPException, _on_http_error)
    web.register_error_handler(Exception, _on_error)
    return web


async def _on_invalid_json(_: Exception) -> Response:
    return json_response({"error": "Invalid JSON in request body"}, 400)


async def _on_http_error(error: Any) -> Any:
    if isinstance(error, RoutingException):
        return error
    if error.code == 404:
        return json_response({"error": "Not found"}, 404)
    response = json_response({"error": error.name}, error.code or 500)
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return response


async def _on_error(error: Exception) -> Response:
    """A defect of ours: the peer learns that, the log learns which."""
    log.error("request_failed", exc_info=error)
    return json_response({"error": "Internal error"}, 500)
