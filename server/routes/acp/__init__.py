"""The ``/acp`` endpoint: Agent Client Protocol over Streamable HTTP and WebSocket, on the engine."""

from __future__ import annotations

from quart import Blueprint

from server.ground import Ground
from server.routes.acp import http, websocket
from server.routes.acp.dispatch import Dispatcher
from server.routes.acp.methods import method_table
from server.routes.acp.registry import Registry

__all__ = ["blueprint"]


def blueprint(ground: Ground) -> Blueprint:
    """The routes of ``/acp``, with a registry of connections of their own."""
    config = ground.config
    registry = Registry(
        ground.engine,
        max_connections=config.max_acp_connections,
        session_grace=config.session_grace_ms / 1000,
        connection_grace=config.connection_grace_ms / 1000,
        socket_grace=config.ws_grace_ms / 1000,
    )
    dispatcher = Dispatcher(method_table(registry))
    routes = Blueprint("acp", __name__)
    http.register(routes, ground, registry, dispatcher)
    websocket.register(routes, ground, registry, dispatcher)
    return routes
