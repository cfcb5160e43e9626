"""The REST + SSE surface (rest.md): one module per concern, all standing on one harbour.

A route reads and checks the request, calls the engine once, and translates what comes back. It keeps no state.
"""

from __future__ import annotations

from quart import Blueprint, Response, has_request_context, request
from quart.blueprints import BlueprintSetupState
from werkzeug.exceptions import NotFound
from werkzeug.routing import BaseConverter

from server.ground import Ground
from server.routes.body import json_response
from server.routes.rest import (
    capabilities,
    daemon,
    events,
    lists,
    nnrp,
    permissions,
    prompts,
    sessions,
    settings,
    views,
)
from server.routes.rest.asking import check_url
from server.routes.rest.errors import NOT_SUPPORTED, Refused, answer
from server.routes.rest.private import is_private
from sessions import SessionError

__all__ = ["blueprint"]


class WorkspacePath(BaseConverter):
    """A path in one piece of the URL. ``%2F`` comes decoded, so it may hold slashes, also in front (REST-040)."""

    regex = ".+?"
    weight = 300
    part_isolating = False


def blueprint(ground: Ground) -> Blueprint:
    routes = Blueprint("rest", __name__)
    routes.record_once(_add_converter)
    routes.before_request(_check_url)
    for module in (capabilities, sessions, prompts, events, permissions, settings, lists, views, daemon, nnrp):
        module.register(routes, ground)
    routes.app_errorhandler(NotFound)(_on_not_found)
    routes.register_error_handler(Refused, _on_error)
    routes.register_error_handler(SessionError, _on_error)
    return routes


def _add_converter(state: BlueprintSetupState) -> None:
    state.app.url_map.converters["workspace"] = WorkspacePath


async def _check_url() -> None:
    # Quart would run a plain function in a thread.
    check_url()


async def _on_error(error: Exception) -> Response:
    return answer(error)


async def _on_not_found(_: NotFound) -> Response:
    """REST-006; of what the daemon has and we do not, the answer says so."""
    # A WebSocket on a path that has none comes here too, without a request.
    if has_request_context() and is_private(request.path):
        return answer(Refused(NOT_SUPPORTED, "This server does not have this feature of the daemon"))
    return json_response({"error": "Not found"}, 404)
