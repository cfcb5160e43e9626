"""One TCP connection of the HTTP server, made safe: a peer can end its own connection and nothing else.

hypercorn's own class lets an error of one connection end the process (a WebSocket upgrade with a byte behind it, HTTP/2
DATA after the response), waits for ever for a peer that stops reading, and leaves idle sockets open. `install` puts
`GuardedTCPServer` in its place, for every way of starting (design: three starts, one guard).
"""

from __future__ import annotations

import math
import os
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

from server.guard_arrival import everything_arrived
from server.guard_context import GuardedContext, TellingEvent
from server.guard_policy import GuardPolicy
from server.guard_protocol import GuardedProtocol
from server.guard_stream import GuardedHttpStream
from server.guard_websocket import GuardedWebSocket
from server.telemetry import EndReason, log

__all__ = ["TRANSPORT", "GuardedTCPServer", "install"]

TRANSPORT: Final = "moorline.transport"
"""Key in ``scope["state"]`` under which a request finds its `GuardedTCPServer`."""

_MAX_RECV: Final = 2**16
_PIECE: Final = 2**16
"""A send is timed per piece, so that a slow but living peer gets a long replay and a dead one does not get long."""
_CLOSE_TIMEOUT: Final = 1.0
"""Seconds for saying goodbye (TLS close_notify); after that the socket is closed without."""
_TURNS: Final = 16
"""Sends that succeed at once, between two turns for everybody else."""
_POSIX: Final = os.name == "posix"
"""Where a socket is a file descriptor that can be written to."""
_USER_TIMEOUT: Final[int | None] = getattr(trio.socket, "TCP_USER_TIMEOUT", None)
"""Linux' bound for unacknowledged data (RFC 5482), in ms."""
_UNACKNOWLEDGED: Final = 2
"""Send deadlines: more than one, so that a peer that is there and does not read is still told from one that is gone."""
_AFTERLIFE: Final = 5.0
"""Seconds a request may go on cleaning up after its connection is gone."""
_BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\n"
    b"Content-Type: application/json; charset=utf-8\r\nContent-Length: 32\r\n\r\n"
    b'{"error":"Too many connections"}'
)


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
        self._send_timeout = self._policy.send_timeout
        self._patience = trio.CancelScope()
        """Around the reader. Its deadline moves with what the connection does; it is cancelled with the socket, because the
        reader may wait for something else, such as the end of a request before the next."""
        self._peer: tuple[str, int] | None = None
        self._plain = _POSIX and isinstance(stream, trio.SocketStream)
        self._turns = 0

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
                self._policy.connections.add(self)
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
            self._policy.connections.discard(self)
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
        self._expect_acknowledgement()
        async with TaskGroup() as tasks:
            self._task_group = tasks
            nursery = tasks._nursery
            assert nursery is not None
            protocol = self._conversation = GuardedProtocol(
                self.app, self.config, self.context, tasks, self.state, tls, self._peer, own, self.protocol_send, alpn
            )
            self._patience.deadline = trio.current_time() + self._policy.head_timeout
            await protocol.initiate()
            with self._hearing_of_the_end():
                await self._read_data()
            self._explain_end()
            await protocol.handle(Closed())
            nursery.cancel_scope.deadline = trio.current_time() + _AFTERLIFE

    def _expect_acknowledgement(self) -> None:
        """A peer that vanished without a word is found by what it does not acknowledge. Our send buffer swallows heartbeats for
        as long as TCP goes on trying, a quarter of an hour, and no send ever waits."""
        transport = self.stream.transport_stream if isinstance(self.stream, trio.SSLStream) else self.stream
        if _USER_TIMEOUT is None or not isinstance(transport, trio.SocketStream):
            return
        if transport.socket.family in (trio.socket.AF_INET, trio.socket.AF_INET6):
            bound = self._send_timeout * _UNACKNOWLEDGED
            transport.setsockopt(trio.socket.IPPROTO_TCP, _USER_TIMEOUT, math.ceil(bound * 1000))

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
        with self._patience:
            while True:
                try:
                    data = await self.stream.receive_some(_MAX_RECV)
                except (trio.ClosedResourceError, trio.BrokenResourceError):
                    self._note_end(EndReason.PEER_LOST)
                    break
                if data:
                    self._note_data()
                else:
                    arrived = everything_arrived(self._socket)
                    self._note_end(EndReason.PEER_CLOSED if arrived else EndReason.PEER_LOST)
                await self._conversation.handle(RawData(bytes(data)))
                self._note_idleness()
                if not data:
                    break

    def _explain_end(self) -> None:
        if self._patience.cancelled_caught:
            idle = EndReason.SLOW_REQUEST if self._head_begun else EndReason.IDLE
            self._note_end(EndReason.DRAINED if self.context.terminated.is_set() else idle)

    # What the protocol asks for

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            if event.data and not await self._send(event.data):
                await self._tell_closed()
        elif isinstance(event, Closed):
            self._note_end(EndReason.COMPLETED)
            await self._close()
            await self._tell_closed()
        elif isinstance(event, Updated):
            self._set_idle(event.idle)

    async def _tell_closed(self) -> None:
        """Shielded: closing the socket cancels the reader, and it may be the reader that is here."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_TIMEOUT):
            await self._conversation.handle(Closed())

    async def _send(self, data: bytes) -> bool:
        try:
            # Nearly always free: waiting for a lock costs a scheduler pass even then.
            self.send_lock.acquire_nowait()
        except trio.WouldBlock:
            await self.send_lock.acquire()
        try:
            taken = await self._send_at_once(data) if self._plain else 0
            if taken == len(data):
                return True
            view = memoryview(data)
            for start in range(taken, len(view), _PIECE):
                if not await self._send_piece(view[start : start + _PIECE]):
                    return False
            return True
        finally:
            self.send_lock.release()

    async def _send_at_once(self, data: bytes) -> int:
        """Give the kernel what it takes without waiting, past the machinery of a send that may wait. Returns how much.

        Every few times the other tasks get their turn all the same.
        """
        try:
            taken = os.write(self._socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError:
            # Told here, because the system tells a reset only once: whoever asks next sees an end in good order.
            self._note_end(EndReason.PEER_LOST)
            return 0
        self._turns += 1
        if self._turns % _TURNS == 0:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return taken

    async def _send_piece(self, data: bytes | memoryview) -> bool:
        """Shielded, because half a message would spoil the connection; with a deadline, because the peer may never read."""
        timeout = self._policy.drain_send if self._policy.drain.begun else self._send_timeout
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

    @contextmanager
    def _hearing_of_the_end(self) -> Iterator[None]:
        """No task waits for the end of listening: there are as many connections as peers like."""
        terminated = self.context.terminated
        assert isinstance(terminated, TellingEvent)
        terminated.listeners.add(self.stop_listening)
        if terminated.is_set():
            self.stop_listening()
        try:
            yield
        finally:
            terminated.listeners.discard(self.stop_listening)

    def stop_listening(self) -> None:
        """The server accepts no more. What is idle ends now, what is not when its request does."""
        self._policy.drain.begin()
        self.hurry(self._policy.drain_send)
        if self._idle:
            self._patience.cancel()

    def hurry(self, seconds: float) -> None:
        """Give the send in progress, if any, at most ``seconds`` more."""
        if self._sending is not None:
            self._sending.deadline = min(self._sending.deadline, trio.current_time() + seconds)

    def bear_with(self, seconds: float | None) -> None:
        """How long the peer may accept nothing from here on; None: as the policy says."""
        self._send_timeout = self._policy.send_timeout if seconds is None else seconds

    @property
    def over(self) -> bool:
        """It has ended, or is about to: nothing that is sent from here on will be read."""
        return self._end is not None

    @property
    def cut(self) -> bool:
        """It ended without a goodbye of the peer, or with one that crossed what was on its way."""
        return self._end in (EndReason.PEER_LOST, EndReason.SLOW_READER)

    def drop(self) -> None:
        """Close the socket now, without a word. Whoever waits on it is woken."""
        self._socket.close()
        self._patience.cancel()

    async def _close(self) -> None:
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            await super()._close()
        self._patience.cancel()

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
    setattr(hypercorn.trio.run, "WorkerContext", GuardedContext)  # noqa: B010  # as above
    setattr(hypercorn.protocol.h11, "HTTPStream", GuardedHttpStream)  # noqa: B010  # as above
    setattr(hypercorn.protocol.h2, "HTTPStream", GuardedHttpStream)  # noqa: B010  # as above
    setattr(hypercorn.protocol.h11, "WSStream", GuardedWebSocket)  # noqa: B010  # as above
    setattr(hypercorn.protocol.h2, "WSStream", GuardedWebSocket)  # noqa: B010  # as above
