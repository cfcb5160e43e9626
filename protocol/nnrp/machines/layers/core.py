"""The ground of a connection machine: state, dialect, sessions, outbox, errors and time (nnrp-wire 2.6, 13.1, 15)."""

from __future__ import annotations

import math
from enum import IntEnum

import attrs

from protocol.errors import Reach
from protocol.nnrp.enums import ConnectionState, LossTolerance, MessageType, OperationFeatures
from protocol.nnrp.errors import MESSAGE_REACH, NnrpError, NnrpLocalError, Outcome
from protocol.nnrp.header import Header
from protocol.nnrp.machines.cache_records import CacheLimits, CachePool
from protocol.nnrp.machines.connection_table import (
    CONNECTION,
    DIALECT,
    INPUTS,
    ConnectionEffect,
    ConnectionInput,
    Dialect,
    DialectInput,
)
from protocol.nnrp.machines.credit import UNLIMITED, Window
from protocol.nnrp.machines.events import EndCause
from protocol.nnrp.machines.outgoing import Outgoing, to_wire_error
from protocol.nnrp.machines.schemas import SchemaRegistry
from protocol.nnrp.machines.session import Session
from protocol.nnrp.machines.session_table import SessionInput
from protocol.nnrp.machines.store import ObjectStore
from protocol.nnrp.messages import Message, ResultDrop
from protocol.nnrp.packet import Packet

__all__ = ["ConnectionCore", "ConnectionLimits", "Side"]

#: Closed sessions that are remembered with what they were granted, so that what crosses a close is read as it was meant,
#: and is BadState, not UnknownSession.
CLOSED_IDS = 4096

_BY_NUMBER = {int(kind): given for kind, given in INPUTS.items()}
#: The same by number; a number without a message type never comes this far, the header is checked before.
_INPUTS = tuple(_BY_NUMBER.get(number, ConnectionInput.TRAFFIC) for number in range(max(_BY_NUMBER) + 1))
_FEATURES = tuple(OperationFeatures(bits) for bits in range(32))

_CLOSED = ConnectionState.CLOSED
_BARE, _IMPLICIT = Dialect.BARE, Dialect.IMPLICIT

#: How a connection ends that nobody has ended.
_LOSSES = (EndCause.END_OF_STREAM, EndCause.TRANSPORT_LOST)

_CACHE_KINDS = (MessageType.CACHE_PUT, MessageType.CACHE_ACK, MessageType.CACHE_INVALIDATE)
_CACHE_BITS = sum(1 << kind for kind in _CACHE_KINDS)
#: What a peer of the bare dialect reads only if it has sent the like itself (nnrp-wire 2.6): bits of those types.
_BARE_SILENT: dict[MessageType, int] = {
    MessageType.CLOSE: 1 << MessageType.CLOSE,
    MessageType.PING: 1 << MessageType.PING,
    MessageType.ERROR: 1 << MessageType.ERROR,
    MessageType.RESULT_HINT: 1 << MessageType.RESULT_HINT,
} | dict.fromkeys(_CACHE_KINDS, _CACHE_BITS)
#: What the packet layer of the implicit dialect does not know at all. A peer that sends one of them does know them.
_IMPLICIT_UNKNOWN = frozenset(
    {
        MessageType.SESSION_OPEN,
        MessageType.SESSION_OPEN_ACK,
        MessageType.SESSION_CLOSE,
        MessageType.SESSION_CLOSE_ACK,
    }
)
_IMPLICIT_BITS = sum(1 << kind for kind in _IMPLICIT_UNKNOWN)


class Side(IntEnum):
    """Which directions are ours. The rules are the same for both sides."""

    CLIENT = 0
    SERVER = 1


@attrs.frozen(slots=True)
class ConnectionLimits:
    """Times in seconds; ``math.inf`` turns a timer off."""

    handshake_timeout: float = 10.0
    idle_timeout: float = 120.0
    keepalive_interval: float = math.inf
    """Send a PING after this much silence of our own, where the peer answers one. Below the peer's idle timeout."""
    drain_timeout: float = 5.0
    reduction_tolerance: float = 1.0
    """How long a submit may still rely on credit that was taken back: it may have been under way."""
    cache: CacheLimits = attrs.field(factory=CacheLimits)
    cache_pool: CachePool = attrs.field(factory=CachePool)
    """Shared by all connections with these limits. Whoever ends a session or a connection clears its store."""


@attrs.define(slots=True)
class ConnectionCounters:
    """What was survived, for metrics and logs."""

    violations: int = 0
    errors_sent: int = 0
    errors_withheld: int = 0
    errors_received: int = 0
    stale_updates: int = 0
    late_results: int = 0
    ignored_cancels: int = 0


class ConnectionCore:
    """See `Connection`. Time is a monotonic ``now`` in seconds, given by the caller."""

    __slots__ = (
        "_closed_ids",
        "_closing",
        "_created_at",
        "_drain_deadline",
        "_extended",
        "_last_received",
        "_last_sent",
        "_outbox",
        "_peer_sent",
        "_pinged_at",
        "attachment",
        "close_received",
        "close_sent",
        "counters",
        "dialect",
        "end_cause",
        "limits",
        "loss_tolerance",
        "ordered",
        "pings",
        "pongs",
        "reverse",
        "round_trip",
        "schemas",
        "sessions",
        "side",
        "state",
        "store",
        "strict",
        "window",
    )

    def __init__(
        self,
        side: Side,
        *,
        now: float,
        schemas: SchemaRegistry,
        limits: ConnectionLimits | None = None,
        strict: bool = True,
        dialect: Dialect = Dialect.UNKNOWN,
    ) -> None:
        self.side = side
        self.strict = strict
        self.limits = limits or ConnectionLimits()
        self.state = ConnectionState.INIT
        self.dialect = dialect
        self.sessions: dict[int, Session] = {}
        self.schemas = schemas
        self.store: ObjectStore | None = None
        self.window = Window(UNLIMITED)
        self.reverse = Window(UNLIMITED)
        """Credit that the submitting end grants the other way; see `Session.may_push`."""
        self.counters = ConnectionCounters()
        self.close_sent = False
        self.close_received = False
        self.end_cause: EndCause | None = None
        self.attachment: object = None
        self.pings = 0
        """PINGs sent."""
        self.pongs = 0
        """PONGs received: answers to that many PINGs, the oldest ones. One that nobody has asked for does not count."""
        self.round_trip: float | None = None
        """Seconds from a PING to its PONG, when last no other was under way; None before the first."""
        self.loss_tolerance = LossTolerance.BEST_EFFORT
        """What the hello has declared; submits may say otherwise (nnrp-wire 12.5). The driver's to say."""
        self.ordered = True
        """Whether the peer receives packets in the order they are sent: not so over QUIC, where submits have streams of their
        own. The driver's to say."""
        self._outbox: list[Outgoing] = []
        self._closed_ids: dict[int, int] = {}
        self._closing: dict[int, Session] = {}
        self._peer_sent = 0
        self._pinged_at = -math.inf
        self._created_at = now
        self._last_received = now
        self._last_sent = now
        self._drain_deadline = math.inf
        self._extended = False
        self._prepare()

    def _prepare(self) -> None:
        """Each layer gives its attributes their first values here."""

    # Getters

    @property
    def closed(self) -> bool:
        """Whether it is over. What ``messages()`` still holds is to be sent, then the transport is to be closed."""
        return self.state is _CLOSED

    @property
    def in_flight(self) -> int:
        return self.window.in_flight

    def granted(self, session_id: int) -> OperationFeatures:
        """The operation extensions of a session: what ``RawPacket.decode`` needs to read a body of it, also behind its close."""
        session = self.sessions.get(session_id)
        return _FEATURES[self._closed_ids.get(session_id, 0) if session is None else session.terms.features]

    def may_send(self, kind: MessageType) -> bool:
        """Whether the peer's dialect reads this message at all."""
        if self.dialect is _BARE:
            needed = _BARE_SILENT.get(kind)
            if kind is MessageType.SESSION_CLOSE and self.side is Side.SERVER:
                return False  # its client waits for no such thing
            return needed is None or bool(self._peer_sent & needed)
        if self.dialect is _IMPLICIT and kind in _IMPLICIT_UNKNOWN:
            return bool(self._peer_sent & _IMPLICIT_BITS)
        return True

    # Things to collect

    def messages(self) -> list[Outgoing]:
        """What is to be sent, in order; collecting it empties the outbox. Send results of your own before them."""
        collected, self._outbox = self._outbox, []
        return collected

    def has_messages(self) -> bool:
        return bool(self._outbox)

    # Things that happened

    def receive_violation(self, error: NnrpError, header: Header | None = None) -> None:
        """Bytes could not be framed (``header`` None), or a framed packet could not be decoded. Answers, and ends the
        connection when the error is fatal."""
        if header is None:
            error.fatal = True
        self._refuse(error, header)

    def receive_eof(self, *, inside_packet: bool = False) -> None:
        """The peer has ended its stream. Inside a packet that is a failure, on a boundary a normal end."""
        self._end(EndCause.TRANSPORT_LOST if inside_packet else EndCause.END_OF_STREAM)

    def lose_transport(self) -> None:
        """The transport broke. Sessions with resume_enabled go on in the engine; here everything is over."""
        self._end(EndCause.TRANSPORT_LOST)

    # Inside

    def _queue(self, outgoing: Outgoing) -> None:
        """Queue what the application wants. Raises NnrpLocalError when the connection is over or the dialect lacks it."""
        kind = outgoing.message.TYPE
        if self.state is _CLOSED:
            raise NnrpLocalError(Outcome.BAD_STATE, "the connection is closed", subject=kind.name)
        if not self.may_send(kind):
            raise NnrpLocalError(
                Outcome.BAD_STATE,
                f"a peer of the {self.dialect.name.lower()} dialect does not read this",
                subject=kind.name,
            )
        self._outbox.append(outgoing)

    def _checked(self, outgoing: Outgoing) -> Outgoing:
        """What the application has filled in. Raises NnrpLocalError where it cannot be said, before anything waits for its answer."""
        outgoing.encode()
        return outgoing

    def _reply(
        self,
        packet: Packet,
        message: Message,
        *,
        body: bytes = b"",
        session_id: int | None = None,
        built: bool = False,
    ) -> None:
        """Answer a packet: its route and trace come back, and its session id where there is none of our own to say."""
        header = packet.header
        self._queue(
            Outgoing(
                message,
                session_id=header.session_id if session_id is None else session_id,
                route_id=header.route_id,
                trace_id=header.trace_id,
                body=body,
                strict=self.strict or header.session_id != 0,
                built=built,
            )
        )

    def _step(self, header: Header, given: ConnectionInput | None = None) -> ConnectionEffect:
        """One step of the connection's table: what the message is by its type, or ``given`` where its content decides.

        Raises NnrpError BadState, fatal where the first packet is wrong.
        """
        row = CONNECTION.grid[self.state][_INPUTS[header.msg_type] if given is None else given]
        if row is None:
            raise self._bad_state(header)
        self.state, effect = row
        return effect

    def _step_ours(self, given: ConnectionInput, kind: MessageType) -> ConnectionEffect:
        """The same for what we are about to send. Raises NnrpLocalError."""
        row = CONNECTION.grid[self.state][given]
        if row is None:
            rule = f"not allowed while the connection is {self.state.name.lower()}"
            raise NnrpLocalError(Outcome.BAD_STATE, rule, subject=kind.name)
        self.state, effect = row
        return effect

    def _bad_state(self, header: Header, rule: str | None = None) -> NnrpError:
        kind = header.msg_type
        first = self.state is ConnectionState.INIT
        return NnrpError(
            Outcome.BAD_STATE,
            rule or f"not allowed while the connection is {self.state.name.lower()}",
            subject=kind.name,
            field="msg_type",
            reach=Reach.CONNECTION if first else MESSAGE_REACH[kind],
            fatal=first,
            session_id=header.session_id,
            frame_id=header.frame_id,
        )

    def _learn(self, given: DialectInput) -> None:
        if DIALECT.allows(self.dialect, given):
            self.dialect, _ = DIALECT.step(self.dialect, given)

    def _find(self, packet: Packet) -> Session:
        """The session a packet names. Raises NnrpError: BadState when it is closed, else UnknownSession."""
        header = packet.header
        session = self.sessions.get(header.session_id)
        if session is not None:
            return session
        closed = header.session_id in self._closed_ids
        raise NnrpError(
            Outcome.BAD_STATE if closed else Outcome.UNKNOWN_SESSION,
            "the session is closed" if closed else "no such session on this connection",
            subject=header.msg_type.name,
            field="session_id",
            reach=MESSAGE_REACH[header.msg_type],
            session_id=header.session_id,
            frame_id=header.frame_id,
        )

    def _forget(self, session: Session) -> None:
        """The session is closed: its id may be opened again, and until then counts as closed."""
        self.sessions.pop(session.session_id, None)
        self._closing.pop(session.session_id, None)
        self._closed_ids[session.session_id] = session.terms.features
        if len(self._closed_ids) > CLOSED_IDS:
            del self._closed_ids[next(iter(self._closed_ids))]

    def _refuse(self, error: NnrpError, header: Header | None) -> None:
        """Report a fault at its scope, as the peer's dialect allows, and end the connection when it is fatal."""
        self.counters.violations += 1
        if self.state is _CLOSED:
            return
        outgoing = self._report(error, header)
        if outgoing is not None:
            self._outbox.append(outgoing)
            self.counters.errors_sent += 1
        else:
            self.counters.errors_withheld += 1
        if error.fatal:
            self._end(EndCause.PROTOCOL_ERROR)

    def _report(self, error: NnrpError, header: Header | None) -> Outgoing | None:
        kind = None if header is None else header.msg_type
        if kind is MessageType.ERROR and not error.fatal:
            return None  # two peers that misread each other's errors would never stop
        if self.may_send(MessageType.ERROR):
            outgoing = to_wire_error(error, header)
            return outgoing if outgoing is None or self.may_send(outgoing.message.TYPE) else None
        if kind is MessageType.SESSION_OPEN and error.code >> 16:
            return to_wire_error(error, header)
        if header is None or kind is not MessageType.FRAME_SUBMIT or error.fatal or not header.frame_id:
            return None
        session = self.sessions.get(header.session_id)
        if session is None or session.operations.of_frame(header.frame_id) is not None:
            return None  # a drop would end the operation that has this frame id
        return Outgoing(ResultDrop(), header.session_id, header.frame_id, header.view_id)

    def _end(self, cause: EndCause) -> None:
        """The connection is over, and with it every session on it. The first cause stays; so what cuts a goodbye short does
        not make it a loss, after which sessions could be resumed."""
        if self.state is _CLOSED and self.end_cause is not None:
            return
        self.state = _CLOSED
        if self.end_cause is None or cause not in _LOSSES:
            self.end_cause = cause
        for session in self.sessions.values():
            session.step(SessionInput.CONNECTION_CLOSED, "CLOSE")
        self._closing.clear()
