"""One TCP connection of the HTTP server, made safe: a peer can end its own connection and nothing else.

hypercorn's own class lets an error of one connection end the process (a WebSocket upgrade with a byte behind it, HTTP/2
DATA after the response), waits for ever for a peer that stops reading, and leaves idle sockets open. `install` puts
`GuardedTCPServer` in its place, for every way of starting (design: three starts, one guard).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import hypercorn.protocol.h2
import hypercorn.protocol.h11
import hypercorn.trio.run
import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from server.guard_protocol import GuardedProtocol
from server.guard_websocket import GuardedWebSocket
from server.shutdown import Drain
from server.telemetry import EndReason, log

__all__ = ["TRANSPORT", "GuardPolicy", "GuardedTCPServer", "install"]

TRANSPORT: Final = "moorline.transport"
"""Key in ``scope["state"]`` under which a request finds its `GuardedTCPServer`."""

_MAX_RECV: Final = 2**16
_PIECE: Final = 2**16
"""A send is timed per piece, so that a slow but living peer gets a long replay and a dead one does not get long."""
_CLOSE_TIMEOUT: Final = 1.0
"""Seconds for saying goodbye (TLS close_notify); after that the socket is closed without."""
_AFTERLIFE: Final = 5.0
"""Seconds a request may go on cleaning up after its connection is gone."""
_BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\n"
    b"Content-Type: application/json; charset=utf-8\r\nContent-Length: 32\r\n\r\n"
    b'{"error":"Too many connections"}'
)


class GuardPolicy:
    """Bounds of all connections of one application, and the connections themselves. Times are seconds; 0 connections: no cap."""

    def __init__(
        self,
        drain: Drain | None = None,
        *,
        max_connections: int = 0,
        send_timeout: float = 30.0,
        head_timeout: float = 10.0,
        keep_alive: float = 65.0,
        drain_send: float = 1.0,
        tls_timeout: float = 10.0,
    ) -> None:
        self.drain = drain if drain is not None else Drain()
        self.max_connections = max_connections
        self.send_timeout = send_timeout
        self.head_timeout = head_timeout
        self.keep_alive = keep_alive
        self.drain_send = drain_send
        """What a send that is stuck when the drain begins still gets."""
        self.tls_timeout = tls_timeout
        self.connections: set[GuardedTCPServer] = set()
        self.refused = 0
        self.ended: Counter[str] = Counter()
        """Ended connections by `EndReason`."""

    @property
    def full(self) -> bool:
        return 0 < self.max_connections <= len(self.connections)

    @contextmanager
    def holding(self, connection: GuardedTCPServer) -> Iterator[None]:
        self.connections.add(connection)
        try:
            yield
        finally:
            self.connections.discard(connection)


_default_policy = GuardPolicy()
"""For applications that are not ours and run in the same process."""


class GuardedTCPServer(TCPServer):
    """One connection. Its end always has a reason, which is logged; no error leaves it."""

    stream: Any

    def __init__(self, app: Any, config: Any, context: Any, state: ConnectionState, stream: Any) -> None:
        super().__init__(app, config, context, ConnectionState({**state, TRANSPORT: self}), stream)
        self._policy: GuardPolicy = getattr(getattr(app, "app", None), "guard_policy", _default_policy)
        self._conversation: GuardedProtocol
        self._end: EndReason | None = None
        self._idle = True
        self._head_begun = False
        self._sending: trio.CancelScope | None = None
        self._patience = trio.CancelScope()
        self._reading = trio.CancelScope()
        """Ended with the socket: the reader may wait for something else, such as the end of a request before the next."""
        self._peer: tuple[str, int] | None = None

    @property
    def _socket(self) -> trio.socket.SocketType:
        stream = self.stream
        transport = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        socket: trio.socket.SocketType = transport.socket
        return socket

    # The life of the connection

    async def run(self) -> None:
        try:
            if self._policy.full:
                await self._refuse()
            else:
                with self._policy.holding(self):
                    await self._converse()
        except* OSError:
            # The peer was gone before we could ask for its address, or between two calls.
            self._note_end(EndReason.PEER_LOST)
        except* Exception as errors:
            # The fault barrier of a connection. What got here is a defect of ours or of the server library, provoked by
            # this peer; everybody else goes on.
            self._note_end(EndReason.ERROR)
            log.error("connection_failed", peer=self._peer, exc_info=errors)
        finally:
            with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
                await self._close()
            reason = self._end or EndReason.COMPLETED
            self._policy.ended[reason] += 1
            log.debug("connection_closed", peer=self._peer, reason=reason)

    async def _converse(self) -> None:
        tls = isinstance(self.stream, trio.SSLStream)
        if tls and not await self._shake_hands():
            return
        alpn = self.stream.selected_alpn_protocol() if tls else "http/1.1"
        socket = self._socket
        self._peer = parse_socket_addr(socket.family, socket.getpeername())
        own = parse_socket_addr(socket.family, socket.getsockname())
        async with TaskGroup() as tasks:
            self._task_group = tasks
            nursery = tasks._nursery
            assert nursery is not None
            protocol = self._conversation = GuardedProtocol(
                self.app, self.config, self.context, tasks, self.state, tls, self._peer, own, self.protocol_send, alpn
            )
            self._patience.deadline = trio.current_time() + self._policy.head_timeout
            await protocol.initiate()
            nursery.start_soon(self._watch)
            with self._reading:
                await self._read_data()
            await protocol.handle(Closed())
            self._patience.cancel()
            nursery.cancel_scope.deadline = trio.current_time() + _AFTERLIFE

    async def _shake_hands(self) -> bool:
        try:
            with trio.fail_after(self._policy.tls_timeout):
                await self.stream.do_handshake()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            self._note_end(EndReason.HANDSHAKE_FAILED)
            return False
        return True

    async def _refuse(self) -> None:
        """Say that there are too many connections, where that needs no handshake, and be gone."""
        self._policy.refused += 1
        self._note_end(EndReason.TOO_MANY_CONNECTIONS)
        if not isinstance(self.stream, trio.SSLStream):
            with trio.move_on_after(_CLOSE_TIMEOUT):
                try:
                    await self.stream.send_all(_BUSY)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    # It did not wait for the answer.
                    return

    async def _read_data(self) -> None:
        while True:
            try:
                data = await self.stream.receive_some(_MAX_RECV)
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                self._note_end(EndReason.PEER_LOST)
                break
            if data:
                self._note_data()
            else:
                self._note_end(EndReason.PEER_CLOSED)
            await self._conversation.handle(RawData(bytes(data)))
            self._note_idleness()
            if not data:
                break

    async def _watch(self) -> None:
        """End the connection when it idles too long, or when it idles and the server stops."""
        with self._patience:
            await self.context.terminated.wait()
            self._policy.drain.begin()
            self.hurry(self._policy.drain_send)
            if not self._idle:
                # The end of the request cancels this, and so does the end of the connection.
                await trio.sleep_forever()
        if self.context.terminated.is_set():
            self._note_end(EndReason.DRAINED)
        elif self._idle:
            self._note_end(EndReason.SLOW_REQUEST if self._head_begun else EndReason.IDLE)
        await self._conversation.handle(Closed())
        await self._close()

    # What the protocol asks for

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            if event.data and not await self._send(event.data):
                await self._conversation.handle(Closed())
        elif isinstance(event, Closed):
            self._note_end(EndReason.COMPLETED)
            await self._close()
            await self._conversation.handle(Closed())
        elif isinstance(event, Updated):
            self._set_idle(event.idle)

    async def _send(self, data: bytes) -> bool:
        try:
            # Nearly always free: waiting for a lock costs a scheduler pass even then.
            self.send_lock.acquire_nowait()
        except trio.WouldBlock:
            await self.send_lock.acquire()
        try:
            if len(data) <= _PIECE:
                return await self._send_piece(data)
            view = memoryview(data)
            for start in range(0, len(view), _PIECE):
                if not await self._send_piece(view[start : start + _PIECE]):
                    return False
            return True
        finally:
            self.send_lock.release()

    async def _send_piece(self, data: bytes | memoryview) -> bool:
        """Shielded, because half a message would spoil the connection; with a deadline, because the peer may never read."""
        timeout = self._policy.drain_send if self._policy.drain.begun else self._policy.send_timeout
        with trio.CancelScope(shield=True, deadline=trio.current_time() + timeout) as sending:
            self._sending = sending
            try:
                await self.stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
                # Busy: the closing of the stream, which asks nobody, is under way in another task.
                self._note_end(EndReason.PEER_LOST)
                return False
            finally:
                self._sending = None
        if sending.cancelled_caught:
            self._note_end(EndReason.SLOW_READER)
            self.drop()
            return False
        return True

    # What others may do to it

    def hurry(self, seconds: float) -> None:
        """Give the send in progress, if any, at most ``seconds`` more."""
        if self._sending is not None:
            self._sending.deadline = min(self._sending.deadline, trio.current_time() + seconds)

    def drop(self) -> None:
        """Close the socket now, without a word. Whoever waits on it is woken."""
        self._socket.close()
        self._reading.cancel()

    async def _close(self) -> None:
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            await super()._close()
        self._reading.cancel()

    # Idleness

    def _set_idle(self, idle: bool) -> None:
        self._idle = idle
        self._head_begun = False
        if not idle:
            self._patience.deadline = math.inf
        elif self.context.terminated.is_set():
            self._patience.cancel()
        else:
            self._patience.deadline = trio.current_time() + self._policy.keep_alive

    def _note_data(self) -> None:
        """The first bytes of a request head start its own, shorter clock; the bytes after them do not restart it."""
        if self._idle and not self._head_begun and not self._conversation.multiplexed:
            self._head_begun = True
            self._patience.deadline = trio.current_time() + self._policy.head_timeout

    def _note_idleness(self) -> None:
        """hypercorn says nothing when the last HTTP/2 stream is reset by the peer."""
        if self._conversation.multiplexed and self._conversation.idle and not self._idle:
            self._set_idle(True)

    def _note_end(self, reason: EndReason) -> None:
        if self._end is None:
            self._end = reason


def install() -> None:
    """Put the guard under every hypercorn server of this process that runs on Trio. Idempotent."""
    setattr(hypercorn.trio.run, "TCPServer", GuardedTCPServer)  # noqa: B010  # the name is not part of its public face
    setattr(hypercorn.protocol.h11, "WSStream", GuardedWebSocket)  # noqa: B010  # as above
    setattr(hypercorn.protocol.h2, "WSStream", GuardedWebSocket)  # noqa: B010  # as above
