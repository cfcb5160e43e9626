"""One ``/acp`` connection: what it owns, what waits for it, and when it is over (acp-http 5.4).

Over HTTP a connection is not a socket: it outlives its streams by their grace, and has no task while nothing runs.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from server.routes.acp.binding import Binding
from server.routes.acp.buffers import Bounds, Meter
from server.routes.acp.deferred import Replies, Reply
from server.routes.acp.permissions import Questions
from server.routes.acp.streams import Carrier, ConnectionStream, SessionStream
from server.telemetry import log
from sessions import Attachment, Session

if TYPE_CHECKING:
    from server.routes.acp.lead import Lead
    from server.routes.acp.registry import Registry

__all__ = ["AcpConnection", "ConnectionEnd"]

_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


class ConnectionEnd(enum.StrEnum):
    """Why a connection was destroyed: the same word in logs and metrics."""

    DELETED = "deleted"
    GRACE_OVER = "grace_over"
    IDLE = "idle"
    RESOURCE_LIMIT = "resource_limit"
    SOCKET_CLOSED = "socket_closed"
    HANDED_OVER = "handed_over"
    DRAINED = "drained"


_FOR_GOOD: Final = frozenset({ConnectionEnd.DELETED, ConnectionEnd.GRACE_OVER, ConnectionEnd.IDLE})
"""Ends after which the client does not come back for its sessions: it said so, or had its time."""


class AcpConnection:
    """Made by `Registry.open`. Everything but the work it spawns is synchronous; times are seconds."""

    def __init__(
        self,
        registry: Registry,
        connection_id: str,
        *,
        local: bool,
        bounds: Bounds,
        meter: Meter,
        session_grace: float,
        connection_grace: float,
    ) -> None:
        """``local``: the peer is on this machine, by its socket (ACP-064). ``meter``: the whole process'."""
        self.id = connection_id
        self.local = local
        self.bindings: dict[str, Binding] = {}
        """Sessions this connection owns (ACP-121)."""
        self.questions = Questions(connection_id)
        self.dead: ConnectionEnd | None = None
        self.last_active = trio.current_time()
        self.on_destroyed: Callable[[ConnectionEnd], object] | None = None
        """Called once; a WebSocket closes its socket here."""
        self.carrier: Carrier | None = None
        """The socket, for a connection that is one: its session streams are started here, not by requests."""
        self.on_stream: Callable[[SessionStream], object] | None = None
        """Sends what a session stream that was started here has to say."""
        self.resumable = False
        """Over a WebSocket: the client asked to be able to resume, so its sessions survive the socket for a while."""
        self.may_hand_over = False
        """A resumable WebSocket that is gone: its sessions can be attached from another socket."""
        self._registry = registry
        self._bounds = bounds
        self._session_grace = session_grace
        self._connection_grace = connection_grace
        self._meter = Meter(bounds.connection_frames, bounds.connection_bytes, meter)
        self._process_meter = meter
        self.replies = Replies(self._meter)
        self.lead: Lead | None = None
        """Over HTTP, for a client that must have read a 202 before its message's reply comes."""
        self.stream: ConnectionStream | None = None
        self._life = Attachment(connection_grace, self._on_life_over)
        self._timing: Attachment | None = None
        self._overdue = False
        # In order of arrival: a simulation must do the same things in the same order every time.
        self._leaving: dict[Binding, None] = {}
        self._work: dict[trio.CancelScope, None] = {}

    # What is there

    @property
    def in_grace(self) -> bool:
        """Its stream, or its socket, is gone."""
        return self._overdue or self._life.in_grace

    @property
    def gone_for_good(self) -> bool:
        """Destroyed, and not because of something its client may not know of yet."""
        return self.dead in _FOR_GOOD

    @property
    def waiting(self) -> Meter:
        """What waits to be sent on all its streams."""
        return self._meter

    @staticmethod
    def canonical(session_id: str) -> str:
        """UUIDs compare case-insensitively (ACP-031)."""
        return session_id.lower() if _UUID.fullmatch(session_id) else session_id

    def owned(self, session_id: str) -> Binding | None:
        return self.bindings.get(self.canonical(session_id))

    @property
    def over_socket(self) -> bool:
        return self.carrier is not None

    # Sessions

    def bind(self, session: Session, client_id: str | None, *, fresh: bool = False, history: bool = False) -> Binding:
        """Own a session. The connection must be alive and must not own it yet."""
        binding = self.bindings[session.id] = Binding(
            self,
            session,
            client_id,
            grace=self._session_grace,
            meter=Meter(self._bounds.stream_frames, None, self._meter),
            fresh=fresh,
            history=history,
        )
        return binding

    def unbind(self, binding: Binding) -> None:
        """The session is not owned any more; the binding may still have something to tell."""
        if self.bindings.get(binding.session.id) is binding:
            del self.bindings[binding.session.id]
        if not binding.over:
            self._leaving[binding] = None

    def binding_over(self, binding: Binding, expired: bool) -> None:
        """A binding has come to its end: perhaps it was all that kept the connection (ACP-150)."""
        self._leaving.pop(binding, None)
        if expired:
            log.info("acp_binding_expired", connection_id=self.id, session_id=binding.session.id)
        self._reconsider()

    # Streams

    def open_stream(self, carrier: Carrier) -> ConnectionStream:
        """A new connection stream, in place of any other (ACP-124)."""
        if not self._life.live:
            self._life = Attachment(self._connection_grace, self._on_life_over)
        ticket = self._life.attach()
        self._overdue = False
        former, self.stream = self.stream, None
        if former is not None:
            former.supersede()
        self.stream = ConnectionStream(self, ticket, carrier)
        return self.stream

    def start_events(
        self,
        binding: Binding,
        cursor: int | None = None,
        epoch: str | None = None,
        *,
        first: Reply | None = None,
    ) -> None:
        """Over a WebSocket: let the session's events flow, if they do not (ACP-234); with ``first``, start them anew."""
        if self.carrier is None or self.on_stream is None or self.dead is not None:
            return
        if first is not None or not binding.attached:
            self.on_stream(binding.open_stream(self.carrier, cursor, epoch, first=first))

    def stream_over(self, stream: ConnectionStream) -> None:
        if stream is self.stream and self.dead is None:
            self.stream = None
            self._detach(stream.ticket)

    def lose_socket(self) -> None:
        """A resumable WebSocket is gone: connection and sessions wait for their client together."""
        self.may_hand_over = True
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.stop()
            self._detach(stream.ticket)
        for binding in list(self.bindings.values()):
            binding.lose_stream()
        self._reconsider()

    def send(self, reply: Reply) -> None:
        """Send on the connection stream, now or when there is one."""
        if self.dead is not None:
            return
        self.replies.push(reply)
        self.check_bounds()
        if self.stream is not None:
            self.stream.wake()

    def check_bounds(self) -> None:
        """More waits than may: the connection goes (ACP-131)."""
        if self.dead is None and (self._meter.exceeded or self._process_meter.exceeded):
            self.destroy(ConnectionEnd.RESOURCE_LIMIT)

    # Life

    def touch(self) -> None:
        """Something happened on this connection (ACP-151)."""
        self.last_active = trio.current_time()

    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Work of this connection: cancelled when the connection is destroyed."""
        self._registry.spawn(self._run, function, args)

    async def _run(self, function: Callable[..., Awaitable[None]], args: tuple[Any, ...]) -> None:
        if self.dead is not None:
            await trio.lowlevel.checkpoint()
            return
        with trio.CancelScope() as scope:
            self._work[scope] = None
            try:
                await function(*args)
            except Exception:
                # The barrier of a connection: a defect here must not take the other connections with it.
                log.exception("acp_work_failed", connection_id=self.id)
            finally:
                self._work.pop(scope, None)

    def destroy(self, reason: ConnectionEnd) -> None:
        """End at once: streams, sessions owned, prompts in flight, everything that waits (ACP-081). Idempotent."""
        if self.dead is not None:
            return
        self.dead = reason
        self._registry.forget(self)
        log.info("acp_connection_ended", connection_id=self.id, reason=reason)
        for scope in self._work:
            scope.cancel()
        if self.stream is not None:
            self.stream.stop()
        for binding in [*self.bindings.values(), *self._leaving]:
            binding.end()
            if binding.fresh and not binding.announced:
                # Nobody knows of it (ACP-120).
                self._registry.remove_session(binding.session.id)
        self.replies.drain()
        self._life.end()
        call, self.on_destroyed = self.on_destroyed, None
        if call is not None:
            call(reason)

    def _detach(self, ticket: int) -> None:
        if self._life.detach(ticket) and self._timing is not self._life:
            self._timing = self._life
            self.spawn(self._life.run)

    def _on_life_over(self, expired: bool) -> None:
        if expired:
            self._overdue = True
            self._reconsider()

    def _reconsider(self) -> None:
        """Past its grace a connection lives on for as long as one of its sessions is attached or in grace (ACP-150)."""
        if (
            self._overdue
            and self.dead is None
            and not any(each.attached or each.in_grace for each in [*self.bindings.values(), *self._leaving])
        ):
            self.destroy(ConnectionEnd.GRACE_OVER)
