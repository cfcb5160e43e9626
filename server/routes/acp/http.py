"""``/acp`` over HTTP: the checks in their order, and the two kinds of stream (acp-http 2, 3)."""

from __future__ import annotations

from typing import Any, Final

from quart import Blueprint, Response, request

from protocol.acp import (
    CONNECTION_ID_HEADER,
    EPOCH_HEADER,
    REPLIES_ROLE,
    SESSION_ID_HEADER,
    STREAM_ROLE_HEADER,
    RpcCode,
)
from protocol.jsonrpc import Id, Invalid, Notification, Problem, Request, encode_error, encode_result, parse_message
from protocol.jsonrpc import Response as RpcResponse
from protocol.sse import comment_frame, retry_frame
from server.config import is_loopback
from server.connection import connection_of, on_request_end
from server.ground import Ground
from server.routes.acp.connection import AcpConnection, ConnectionEnd
from server.routes.acp.dispatch import Dispatcher
from server.routes.acp.errors import RpcError
from server.routes.acp.lead import Lead
from server.routes.acp.offer import initialize_result
from server.routes.acp.params import params_of
from server.routes.acp.registry import Registry, TooManyConnections
from server.routes.acp.streams import Carrier, OutStream
from server.routes.acp.translate import SSE
from server.routes.body import json_response
from server.routes.cursor import read_cursor, sole
from server.sse import event_stream

__all__ = ["affinity", "is_local", "register"]

RETRY: Final = 3000
"""Milliseconds told to clients that reconnect by themselves (ACP-091)."""
_BEAT: Final = comment_frame("hb")
_JSON: Final = "application/json; charset=utf-8"
_OTHER_VERBS: Final = ("PUT", "PATCH", "OPTIONS", "TRACE", "CONNECT")

_NOT_JSON: Final = {"error": "Invalid JSON in request body"}
_BATCH: Final = {"error": "Batch JSON-RPC requests are not supported"}
_WRONG_TYPE: Final = {"error": "Content-Type must be application/json"}
_WRONG_ACCEPT: Final = {"error": "Accept header must include text/event-stream"}
_MISSING: Final = "Missing Acp-Connection-Id"
_UNKNOWN: Final = "Unknown Acp-Connection-Id"
_FOREIGN: Final = {"error": "Session not owned by this connection"}


def is_local(scope: Any) -> bool:
    """Whether the peer is on this machine (ACP-064)."""
    client = scope.get("client")
    return bool(client) and is_loopback(str(client[0]))


def affinity(ground: Ground, connection_id: str, scope: Any) -> str | None:
    """The cookie that keeps a load balancer's choice for the life of a connection, when one is configured."""
    name = ground.config.affinity_cookie
    if name is None:
        return None
    secure = "; Secure" if scope.get("scheme") in ("https", "wss") else ""
    return f"{name}={connection_id}; Path=/; HttpOnly; SameSite=Lax{secure}"


def register(routes: Blueprint, ground: Ground, registry: Registry, dispatcher: Dispatcher) -> None:
    post = _Post(ground, registry, dispatcher)
    get = _Get(ground, registry)

    @routes.post("/acp", provide_automatic_options=False)
    async def receive() -> Response:
        return await post.answer()

    @routes.route("/acp", methods=["GET"], provide_automatic_options=False)
    async def stream() -> Response:  # noqa: ASYNC124  # Quart runs a plain function in a thread
        if request.method == "HEAD":
            # The framework lets it in wherever GET goes; here it would take the place of the client's stream.
            return json_response({"error": "Not found"}, 404)
        return get.answer()

    @routes.delete("/acp", provide_automatic_options=False)
    async def delete() -> Response:  # noqa: ASYNC124  # as above
        """ACP-080, ACP-081."""
        connection_id = sole(request.headers, CONNECTION_ID_HEADER)
        if not connection_id:
            return json_response({"error": _MISSING}, 400)
        connection = _find(registry, connection_id)
        if connection is not None:
            connection.destroy(ConnectionEnd.DELETED)
        return _accepted()

    @routes.route("/acp", methods=[*_OTHER_VERBS], provide_automatic_options=False)
    async def other() -> Response:  # noqa: ASYNC124  # as above
        return json_response({"error": "Not found"}, 404)


def _find(registry: Registry, connection_id: str) -> AcpConnection | None:
    """An HTTP connection; a WebSocket's id names nothing here."""
    connection = registry.find(connection_id)
    if connection is None or connection.over_socket:
        return None
    connection.touch()
    return connection


def _accepted() -> Response:
    response = Response(b"", status=202)
    del response.headers["Content-Type"]
    return response


def _rpc_error(status: int, id: Id | None, code: int, message: str) -> Response:
    return Response(encode_error(id, code, message), status=status, content_type=_JSON)


class _Post:
    """POST: ACP-040 to ACP-049, then the message is carried out once its 202 is out (ACP-054)."""

    def __init__(self, ground: Ground, registry: Registry, dispatcher: Dispatcher) -> None:
        self._ground = ground
        self._registry = registry
        self._dispatcher = dispatcher

    async def answer(self) -> Response:
        if not (request.content_type or "").strip().lower().startswith("application/json"):
            return json_response(_WRONG_TYPE, 415)
        message = parse_message(await request.get_data(cache=False))
        match message:
            case Invalid(problem=Problem.NOT_JSON):
                return json_response(_NOT_JSON, 400)
            case Invalid(problem=Problem.BATCH):
                return json_response(_BATCH, 501)
            case Invalid():
                return _rpc_error(400, None, RpcCode.INVALID_REQUEST, "Malformed JSON-RPC message")
            case Request(method="initialize"):
                return self._initialize(message)
        return self._accept(message)

    def _accept(self, message: Request | Notification | RpcResponse) -> Response:
        about = message.id if isinstance(message, Request) else None
        connection_id = sole(request.headers, CONNECTION_ID_HEADER)
        if not connection_id:
            return _rpc_error(400, about, RpcCode.INVALID_REQUEST, _MISSING)
        connection = _find(self._registry, connection_id)
        if connection is None:
            return _rpc_error(404, about, RpcCode.INVALID_REQUEST, _UNKNOWN)
        self._dispatch_after_answer(connection, message)
        return _accepted()

    def _dispatch_after_answer(self, connection: AcpConnection, message: Request | Notification | RpcResponse) -> None:
        header_session = sole(request.headers, SESSION_ID_HEADER)
        sends = connection_of(request.scope)
        done = False

        def dispatch() -> None:
            nonlocal done
            # A client that has gone before its 202 does not know whether it was heard: then it was not.
            if done or not sends.answered:
                return
            done = True
            if connection.lead is None:
                carry_out()
            else:
                connection.lead.add(carry_out)

        def carry_out() -> None:
            self._dispatcher.dispatch(connection, message, header_session)

        scope: Any = request.scope
        on_request_end(scope, dispatch)

    def _initialize(self, message: Request) -> Response:
        try:
            params = params_of(message)
        except RpcError as problem:
            return _rpc_error(200, message.id, problem.code, problem.message)
        try:
            connection = self._registry.open(local=is_local(request.scope))
        except TooManyConnections:
            text = "Too many ACP connections; retry later"
            response = _rpc_error(503, message.id, RpcCode.INTERNAL_ERROR, text)
            response.headers["Retry-After"] = "5"
            return response
        if Lead.is_needed(params):
            connection.lead = Lead(connection)
        result = initialize_result(
            connection,
            params,
            workspace=self._registry.harbour.workspaces[0],
            vendor_methods=self._dispatcher.vendor_methods,
        )
        response = Response(encode_result(message.id, result), status=200, content_type=_JSON)
        response.headers[CONNECTION_ID_HEADER] = connection.id
        cookie = affinity(self._ground, connection.id, request.scope)
        if cookie is not None:
            response.headers["Set-Cookie"] = cookie
        return response


class _Get:
    """GET: ACP-070 to ACP-075."""

    def __init__(self, ground: Ground, registry: Registry) -> None:
        self._ground = ground
        self._registry = registry

    def answer(self) -> Response:
        if "text/event-stream" not in request.headers.get("Accept", "").lower():
            return json_response(_WRONG_ACCEPT, 406)
        connection_id = sole(request.headers, CONNECTION_ID_HEADER)
        if not connection_id:
            return json_response({"error": _MISSING}, 400)
        connection = _find(self._registry, connection_id)
        if connection is None:
            return json_response({"error": _UNKNOWN}, 404)
        session_id = sole(request.headers, SESSION_ID_HEADER)
        if not session_id:
            return self._stream(connection.open_stream(self._carrier()), {})
        binding = connection.owned(session_id)
        if binding is None:
            # Before the cursor is looked at, so that a lost ownership shows as what it is (ACP-075).
            return json_response(_FOREIGN, 403)
        cursor, epoch = read_cursor(request.headers)
        consumer = request.headers.get(STREAM_ROLE_HEADER, "").strip().lower() != REPLIES_ROLE
        stream = binding.open_stream(self._carrier(), cursor, epoch, consumer=consumer)
        return self._stream(stream, {EPOCH_HEADER: binding.session.ring.epoch})

    def _carrier(self) -> Carrier:
        transport = connection_of(request.scope)
        return Carrier(SSE, transport.hurry, was_cut=lambda: transport.cut, is_over=lambda: transport.over)

    def _stream(self, stream: OutStream, headers: dict[str, str]) -> Response:
        async def read() -> bytes | None:
            frames = await stream.take()
            return None if frames is None else b"".join(frames)

        return event_stream(
            read,
            drain=self._ground.drain,
            heartbeat=self._ground.config.heartbeat,
            beat=_BEAT,
            opening=retry_frame(RETRY),
            last=lambda: b"".join(stream.take_nowait()),
            closed=stream.close,
            headers=headers,
        )
