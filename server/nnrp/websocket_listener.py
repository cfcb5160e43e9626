"""NNRP over WebSocket on a port of its own, and on the HTTP port (nnrp-extensions, WebSocket)."""

from __future__ import annotations

import ssl
from functools import partial
from typing import Final

import attrs
import trio
import trio_websocket

from protocol.nnrp.cutting import largest_packet
from server.middleware.asgi import App, Message, Receive, Scope, Send
from server.nnrp.listener import serve_port
from server.nnrp.service import NnrpService
from server.nnrp.websocket import AsgiSocket, LibrarySocket, WebSocketTransport
from server.nnrp.websocket_library import GuardedConnection
from server.security import Policy, Security
from server.telemetry import log

__all__ = ["PATH", "NnrpGate", "listen_websocket"]

PATH: Final = "/nnrp"
_CLOSING: Final = 2.0
"""Seconds for what is left of a connection that has ended."""


class NnrpGate:
    """ASGI wrapper that takes the upgrades at `PATH` for itself. It stands behind `server.security.Security`, whose Host,
    Origin and token rules hold here as they do for /acp (ACP-240 to ACP-242, ACP-252, ACP-253)."""

    def __init__(self, app: App, service: NnrpService) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and scope["path"] == PATH:
            await self._serve(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            return
        policy = self._service.policy
        socket = AsgiSocket(scope, receive, send, send_timeout=policy.send_timeout)
        socket.accept_messages_up_to(largest_packet(policy.hello.max_body_bytes))
        offered = scope.get("subprotocols") or []
        await send({"type": "websocket.accept", "subprotocol": offered[0] if offered else None})
        await self._service.serve_stream(WebSocketTransport(socket), "websocket")


async def listen_websocket(  # noqa: ASYNC114, ASYNC128  # serve_port calls started
    service: NnrpService,
    host: str,
    port: int,
    *,
    security: Policy,
    path: str = PATH,
    tls: ssl.SSLContext | None = None,
    task_status: trio.TaskStatus[list[tuple[str, int]]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve NNRP over WebSocket on a port of its own, for programs that embed NNRP without the HTTP server.

    ``security`` answers who may connect, as on the HTTP port. Runs and reports like `server.nnrp.listener.listen_tcp`.
    """
    handle = partial(_converse, service, security, path, tls is not None)
    await serve_port(service, host, port, "websocket", handle, tls, task_status)


@attrs.define(slots=True)
class _Refused:
    """What `Security` has said to an upgrade; 0: it may pass."""

    status: int = 0

    async def pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        await trio.lowlevel.checkpoint()

    async def receive(self) -> Message:
        await trio.lowlevel.checkpoint()
        return {"type": "websocket.connect"}

    async def send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        self.status = message.get("status", self.status)


async def _converse(service: NnrpService, security: Policy, path: str, tls: bool, stream: trio.abc.Stream) -> None:
    policy = service.policy
    try:
        async with trio.open_nursery() as nursery:
            connection = GuardedConnection(
                _Ending(stream, nursery), largest=largest_packet(policy.hello.max_body_bytes)
            )
            request = None
            with trio.move_on_after(policy.limits.handshake_timeout):
                request = await connection.get_request(nursery)
            if request is not None:
                await _answer(service, security, path, tls, request, connection, stream)
            nursery.cancel_scope.deadline = trio.current_time() + _CLOSING
    except* (trio_websocket.HandshakeError, trio.BrokenResourceError, trio.ClosedResourceError) as failures:
        log.info("nnrp_upgrade_failed", reason=type(failures.exceptions[0]).__name__)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await trio.aclose_forcefully(stream)


async def _answer(
    service: NnrpService,
    security: Policy,
    path: str,
    tls: bool,
    request: trio_websocket.WebSocketRequest,
    connection: GuardedConnection,
    stream: trio.abc.Stream,
) -> None:
    status, offered = await _look(security, tls, request, stream)
    if not status and request.path.partition("?")[0] != path:
        status = 404
    if status:
        log.info("nnrp_upgrade_refused", status=status)
        await request.reject(status)
        return
    await request.accept(subprotocol=offered[0] if offered else None)
    await service.serve_stream(WebSocketTransport(LibrarySocket(connection, stream)), "websocket")


async def _look(
    security: Policy, tls: bool, request: trio_websocket.WebSocketRequest, stream: trio.abc.Stream
) -> tuple[int, list[str]]:
    """The three questions of `Security`, put to an upgrade that did not come through ASGI. The status of the refusal, 0 when
    there is none, and the subprotocols that carry no token."""
    # The library takes Host out of the headers and gives it to nobody.
    host: str = request._event.host
    scope: Scope = {
        "type": "websocket",
        "scheme": "wss" if tls else "ws",
        "server": ("", _port_of(stream)),
        "headers": [(b"host", host.encode("latin-1")), *request.headers],
        "subprotocols": list(request.proposed_subprotocols),
        "extensions": {"websocket.http.response": {}},
    }
    refused = _Refused()
    await Security(refused.pass_on, security)(scope, refused.receive, refused.send)
    return refused.status, scope["subprotocols"]


def _port_of(stream: trio.abc.Stream) -> int:
    plain = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    assert isinstance(plain, trio.SocketStream)
    number: int = plain.socket.getsockname()[1]
    return number


class _Ending(trio.abc.Stream):
    """The library waits for ever for a request from a peer that has gone: the end of the stream ends its nursery."""

    def __init__(self, stream: trio.abc.Stream, nursery: trio.Nursery) -> None:
        self._stream = stream
        self._nursery = nursery

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        if not data:
            self._end()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        self._end()
        await self._stream.aclose()

    def _end(self) -> None:
        self._nursery.cancel_scope.deadline = min(self._nursery.cancel_scope.deadline, trio.current_time() + _CLOSING)
