"""``/acp`` over a WebSocket: the same messages, one socket for everything (acp-http 10).

Tasks of one socket: one always receives, one carries out, one per stream sends, one looks after the peer. A message is
carried out after the one before it; what it causes is sent whenever it is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import attrs
import trio
from quart import Blueprint, Websocket, websocket

from protocol.acp import CONNECTION_ID_HEADER, RpcCode
from protocol.jsonrpc import Id, Invalid, Message, Problem, Request, encode_error, encode_result, parse_message
from server.connection import CONNECTION, RequestSends
from server.ground import Ground
from server.guard import TRANSPORT
from server.guard_websocket import WEBSOCKET, GuardedWebSocket
from server.routes.acp.connection import AcpConnection, ConnectionEnd
from server.routes.acp.deferred import Reply
from server.routes.acp.dispatch import Dispatcher
from server.routes.acp.errors import RpcError
from server.routes.acp.http import affinity, is_local
from server.routes.acp.offer import asks_to_resume, initialize_result
from server.routes.acp.params import params_of
from server.routes.acp.registry import Registry, TooManyConnections
from server.routes.acp.streams import Carrier, OutStream
from server.routes.acp.translate import socket_wire
from server.shutdown import Drain
from server.telemetry import log

__all__ = ["register"]

INITIALIZE_TIMEOUT: Final = 30.0
"""Seconds (ACP-232)."""
MOST_WAITING: Final = 1024
MOST_WAITING_BYTES: Final = 64 * 2**20
"""Messages of a peer that sends faster than they are carried out."""
CLOSE_TIMEOUT: Final = 1.0
NORMAL: Final = 1000

_PROTOCOL_ERROR: Final = (1002, "Protocol error")
_INITIALIZE_LATE: Final = (1002, "Initialize timeout")
_CAP: Final = (1013, "Connection cap")
_RESOURCES: Final = (1013, "Resource limit")
_STATE_LOST: Final = (1011, "Connection state lost")
_SHUTDOWN: Final = (1012, "Server shutting down")
_BATCH: Final = b'{"error":"Batch JSON-RPC not supported"}'

Close = tuple[int, str]


def register(routes: Blueprint, ground: Ground, registry: Registry, dispatcher: Dispatcher) -> None:
    @routes.websocket("/acp")
    async def converse() -> None:
        # Quart's proxy is bound to this task; the tasks of the conversation need the object behind it.
        socket = _Socket(websocket._get_current_object(), ground.config.send_timeout_ms / 1000)  # type: ignore[attr-defined]
        await _Greeting(ground, registry, dispatcher, socket).run()


class _PeerGone(Exception):
    """The peer takes nothing any more."""


@attrs.define(eq=False)
class _Batch:
    """What goes out in one write."""

    messages: list[bytes] = attrs.field(factory=list)
    sent: bool = False


class _Socket:
    """The sending side: one write at a time, each with a deadline."""

    def __init__(self, quart: Websocket, send_timeout: float) -> None:
        self.scope = cast(Any, quart.scope)
        self._quart = quart
        self._timeout = send_timeout
        self._lock = trio.Lock()
        self._batch = _Batch()
        self._received = 0
        self._sends: RequestSends = self.scope[CONNECTION]
        state = self.scope.get("state") or {}
        self._guarded: GuardedWebSocket | None = state.get(WEBSOCKET)
        self._transport = state.get(TRANSPORT)

    @property
    def was_closed_by_peer(self) -> bool:
        """In good order: whoever closes like that does not come back."""
        return self._guarded is not None and self._guarded.peer_close_code == NORMAL

    async def accept(self, headers: dict[str, str]) -> None:
        """ACP-240: bearer carriers are not among what is offered here."""
        offered = self._quart.requested_subprotocols
        await self._quart.accept(headers=headers, subprotocol=offered[0] if offered else None)

    async def receive(self) -> str | None:
        """The next message; None for one that is not text (ACP-237)."""
        message = await self._quart.receive()
        self._received += 1
        return message if isinstance(message, str) else None

    def hand_over(self, take: Callable[[str], Awaitable[None]]) -> None:
        """Let text come straight to ``take`` if nothing is on its way to `receive`, which then only tells the end."""
        if self._guarded is not None and self._guarded.forwarded == self._received:
            self._guarded.on_text = take

    async def send(self, messages: list[bytes]) -> None:
        """Send after everything given before. What comes while a write is going on goes out together, in the next one.
        Raises `_PeerGone`."""
        batch = self._batch
        batch.messages += messages
        try:
            # Waiting for a free lock would cost a scheduler pass.
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()
        try:
            if batch is self._batch:
                self._batch = _Batch()
                await self._write(batch.messages)
                batch.sent = True
        finally:
            self._lock.release()
        if not batch.sent:
            raise _PeerGone

    async def _write(self, messages: list[bytes]) -> None:
        with self._sends.begin(self._timeout) as sending:
            if self._guarded is not None:
                await self._guarded.send_texts(messages)
            else:
                for message in messages:
                    await self._quart.send(message.decode())
        self._sends.end()
        if sending.cancelled_caught:
            self.drop()
            raise _PeerGone

    async def ping(self) -> bool:
        """Ask for a sign of life; False when the last question got none."""
        if self._guarded is None:
            await trio.lowlevel.checkpoint()
            return True
        if not self._guarded.answered:
            return False
        await self._guarded.ping()
        return True

    async def close(self, close: Close) -> None:
        with trio.move_on_after(CLOSE_TIMEOUT):
            await self._quart.close(*close)

    def hurry(self, seconds: float) -> None:
        self._sends.hurry(seconds)

    def drop(self) -> None:
        """No goodbye: nobody would hear it. Over HTTP/2 the other streams live on."""
        if self._transport is not None and self.scope["http_version"].startswith("1"):
            self._transport.drop()


class _Greeting:
    """Until ``initialize``: the first message, or the end (ACP-232)."""

    def __init__(self, ground: Ground, registry: Registry, dispatcher: Dispatcher, socket: _Socket) -> None:
        self._ground = ground
        self._registry = registry
        self._dispatcher = dispatcher
        self._socket = socket
        self._connection_id = registry.new_id()

    async def run(self) -> None:
        headers = {CONNECTION_ID_HEADER: self._connection_id}
        cookie = affinity(self._ground, self._connection_id, self._socket.scope)
        if cookie is not None:
            headers["Set-Cookie"] = cookie
        await self._socket.accept(headers)
        message = await self._first_message()
        if message is None:
            close = _SHUTDOWN if self._ground.drain.is_cut else _INITIALIZE_LATE
            await self._socket.close(close)
        elif not isinstance(message, Request) or message.method != "initialize":
            about = message.id if isinstance(message, Request) else None
            await self._refuse(about, RpcCode.INVALID_REQUEST, "First message must be initialize", _PROTOCOL_ERROR)
        else:
            await self._initialize(message)

    async def _first_message(self) -> Message | None:
        with trio.CancelScope(deadline=trio.current_time() + INITIALIZE_TIMEOUT) as patience:
            self._ground.drain.watch(patience)
            try:
                while (text := await self._socket.receive()) is None:
                    pass
            finally:
                self._ground.drain.unwatch(patience)
            return parse_message(text)
        return None

    async def _initialize(self, message: Request) -> None:
        try:
            params = params_of(message)
        except RpcError as problem:
            await self._refuse(message.id, problem.code, problem.message, _PROTOCOL_ERROR)
            return
        resumable = asks_to_resume(params) and self._registry.socket_grace > 0
        try:
            connection = self._registry.open(
                local=is_local(self._socket.scope), connection_id=self._connection_id, resumable=resumable
            )
        except TooManyConnections:
            await self._refuse(message.id, RpcCode.INTERNAL_ERROR, "Too many connections", _CAP)
            return
        result = initialize_result(
            connection,
            params,
            workspace=self._registry.harbour.workspaces[0],
            vendor_methods=self._dispatcher.vendor_methods,
            socket_grace=self._registry.socket_grace if resumable else None,
        )
        connection.send(Reply(encode_result(message.id, result)))
        conversation = _Conversation(connection, self._dispatcher, self._socket, self._ground)
        await conversation.run()

    async def _refuse(self, about: Id | None, code: int, text: str, close: Close) -> None:
        try:
            await self._socket.send([encode_error(about, code, text)])
        except _PeerGone:
            return
        await self._socket.close(close)


class _Conversation:
    """A connection and its socket, until one of them ends."""

    def __init__(self, connection: AcpConnection, dispatcher: Dispatcher, socket: _Socket, ground: Ground) -> None:
        self._connection = connection
        self._dispatcher = dispatcher
        self._socket = socket
        self._heartbeat = ground.config.heartbeat
        self._drain: Drain = ground.drain
        self._inbox: deque[str] = deque()
        self._inbox_size = 0
        self._arrived = trio.Event()
        self._close: Close | None = None
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        connection = self._connection
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                carrier = Carrier(
                    socket_wire(connection.resumable),
                    self._socket.hurry,
                    was_cut=lambda: not self._socket.was_closed_by_peer,
                    shared=True,
                )
                connection.carrier = carrier
                connection.on_stream = self._start_pump
                connection.on_destroyed = self._on_destroyed
                self._start_pump(connection.open_stream(carrier))
                nursery.start_soon(self._receive)
                nursery.start_soon(self._carry_out)
                nursery.start_soon(self._look_after_peer)
                nursery.start_soon(self._watch_drain)
        finally:
            # The socket is gone, or is about to go: synchronously, because we may have been cancelled (ACP-239).
            self._nursery = None
            connection.on_stream = connection.on_destroyed = None
            if connection.resumable and self._close is None and not self._socket.was_closed_by_peer:
                connection.lose_socket()
            else:
                connection.destroy(ConnectionEnd.DRAINED if self._drain.is_cut else ConnectionEnd.SOCKET_CLOSED)
        if self._close is not None:
            await self._socket.close(self._close)

    # The tasks

    async def _receive(self) -> None:
        while True:
            self._socket.hand_over(self._take)
            text = await self._socket.receive()
            if text is not None:
                await self._take(text)

    async def _take(self, text: str) -> None:
        if self._close is not None:
            return
        self._inbox.append(text)
        self._inbox_size += len(text)
        if len(self._inbox) > MOST_WAITING or self._inbox_size > MOST_WAITING_BYTES:
            self._end(_RESOURCES)
        self._arrived.set()
        if len(self._inbox) > 1:
            # Many at once: each gets its turn before the next is taken.
            await trio.lowlevel.checkpoint()

    async def _carry_out(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            while self._inbox:
                text = self._inbox.popleft()
                self._inbox_size -= len(text)
                await self._handle(text)
                # Most messages are carried out without waiting; a flood of them must not stop everybody else.
                await trio.lowlevel.checkpoint()

    async def _handle(self, text: str) -> None:
        self._connection.touch()
        message = parse_message(text)
        if isinstance(message, Invalid):
            self._connection.send(Reply(_complaint(message)))
            return
        begun = self._dispatcher.begin(self._connection, message)
        if begun is None:
            return
        method, work = begun
        if method.waits_for_prompts:
            self._connection.spawn(work)
        else:
            await work()

    async def _look_after_peer(self) -> None:
        """ACP-237: asked at every tick, and dropped at the tick that finds the former question unanswered."""
        while True:
            await trio.sleep(self._heartbeat)
            self._connection.touch()
            if not await self._socket.ping():
                log.info("acp_socket_silent", connection_id=self._connection.id)
                self._socket.drop()
                self._end(None)
                return

    async def _watch_drain(self) -> None:
        await self._drain.wait_cut()
        self._end(_SHUTDOWN)

    def _start_pump(self, stream: OutStream) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._pump, stream)

    async def _pump(self, stream: OutStream) -> None:
        try:
            while (messages := await stream.take()) is not None:
                await self._socket.send(messages)
        except _PeerGone:
            self._end(None)
        finally:
            stream.close()

    # The end

    def _on_destroyed(self, reason: ConnectionEnd) -> None:
        self._end(_RESOURCES if reason is ConnectionEnd.RESOURCE_LIMIT else _STATE_LOST)

    def _end(self, close: Close | None) -> None:
        self._close = self._close or close
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()


def _complaint(message: Invalid) -> bytes:
    """ACP-236."""
    if message.problem is Problem.BATCH:
        return _BATCH
    if message.problem is Problem.NOT_JSON:
        return encode_error(None, RpcCode.PARSE_ERROR, "Parse error")
    return encode_error(None, RpcCode.INVALID_REQUEST, "Malformed JSON-RPC message")
