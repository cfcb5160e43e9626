"""Hello, probing, PING, ERROR and CLOSE: what concerns the connection as such (nnrp-wire 2.6, 7.1, 7.5, 7.6, 13.1)."""

from __future__ import annotations

from protocol.errors import Reach
from protocol.nnrp.enums import (
    ConnectionState,
    ErrorCode,
    ErrorScope,
    HeaderFlags,
    MessageType,
    OperationState,
    ServerFlags,
)
from protocol.nnrp.errors import NnrpError, NnrpLocalError, Outcome
from protocol.nnrp.machines.connection_table import ConnectionInput, Dialect, DialectInput
from protocol.nnrp.machines.credit import UNLIMITED, Window
from protocol.nnrp.machines.events import (
    ConnectionClosing,
    EndCause,
    ErrorReceived,
    HelloAccepted,
    HelloReceived,
    HelloRefused,
    PingReceived,
    PongReceived,
    ProbeAnswered,
    ProbeReceived,
    RetryDue,
)
from protocol.nnrp.machines.hello import HelloPolicy, check_hello_ack, negotiate
from protocol.nnrp.machines.layers.core import ConnectionCore, Side
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.outgoing import Outgoing, to_wire_error
from protocol.nnrp.machines.session import Session
from protocol.nnrp.machines.terms import SessionTerms
from protocol.nnrp.messages import (
    ClientHello,
    Close,
    Error,
    Ping,
    Pong,
    ServerHelloAck,
    TransportProbe,
    TransportProbeAck,
)
from protocol.nnrp.packet import Packet

__all__ = ["Handshake"]

#: Operations an implicit session may have in flight when the hello's answer names no limit.
IMPLICIT_IN_FLIGHT = 64


#: Seconds past the drain that a client waits for the terminal messages of what the server has cut at its end.
LAST_WORDS = 2.0


class Handshake(ConnectionCore):
    __slots__ = ("_probes", "_put_offs", "answer", "offer", "reserved_session_id")

    offer: ClientHello | None
    """The hello of this connection, sent or received."""
    answer: ServerHelloAck | None
    """Its answer, clamped to the offer where we are the tolerant client."""
    reserved_session_id: int
    """The implicit session that the hello reserved and nothing has opened yet; 0 when there is none."""

    def _prepare(self) -> None:
        super()._prepare()
        self.offer = None
        self.answer = None
        self.reserved_session_id = 0
        self._probes: set[int] = set()
        self._put_offs: dict[Window, Session | None] = {}

    # Things the application wants

    def send_hello(self, offer: ClientHello, body: bytes = b"") -> None:
        """Open as a client. ``body`` is the control extension block, then the auth block, as long as declared."""
        self._step_ours(ConnectionInput.HELLO, MessageType.CLIENT_HELLO)
        self.offer = offer
        self._queue(Outgoing(offer, flags=HeaderFlags.ACK_REQUIRED, body=body))

    def accept_hello(self, policy: HelloPolicy, *, extensions: bytes = b"", implicit_session: bool = True) -> None:
        """Answer the hello. A requested session id is reserved as the implicit session, if that is allowed (13.2).

        Raises NnrpError, already reported and fatal, when nothing vital is in common.
        """
        offer = self._pending_offer()
        wanted = offer.requested_session_id if implicit_session else 0
        try:
            answer = negotiate(offer, policy, session_id=wanted, extension_bytes=len(extensions))
        except NnrpError as error:
            self._refuse(error, None)
            raise
        self._step_ours(ConnectionInput.HELLO_ACK, MessageType.SERVER_HELLO_ACK)
        self.reserved_session_id = wanted
        self._take_answer(answer)
        self._queue(Outgoing(answer, session_id=wanted, flags=HeaderFlags.ACK_REQUIRED, body=extensions))

    def refuse_hello(self, code: ErrorCode = ErrorCode.AUTH_FAILED, rule: str = "authentication failed") -> None:
        """Answer the hello with a fatal ERROR; the connection is over."""
        self._pending_offer()
        refusal = NnrpError(
            Outcome.BAD_STATE, rule, subject="CLIENT_HELLO", code=int(code), reach=Reach.CONNECTION, fatal=True
        )
        outgoing = to_wire_error(refusal)
        if outgoing is not None:
            self._queue(outgoing)
        self._step_ours(ConnectionInput.HELLO_REFUSED, MessageType.ERROR)
        self._end(EndCause.REFUSED)

    def send_ping(self, now: float, *, trace_id: int = 0, session_id: int = 0) -> None:
        """Ask whether the peer is there, and measure the ``round_trip``."""
        self._step_ours(ConnectionInput.PING, MessageType.PING)
        self._queue(Outgoing(Ping(), session_id=session_id, trace_id=trace_id))
        self._note_ping(now)

    def send_probe(self, probe_id: int, payload: bytes, *, client_send_ts_us: int) -> None:
        """Measure this transport. The answer comes as ProbeAnswered."""
        self._step_ours(ConnectionInput.PROBE, MessageType.TRANSPORT_PROBE)
        self._probes.add(probe_id)
        self._queue(Outgoing(TransportProbe(probe_id, len(payload), client_send_ts_us), body=payload))

    def close(self, now: float, reason: str = "") -> None:
        """Close in good order: what is in flight may still end, for ``drain_timeout`` at most. A second call raises
        NnrpLocalError. A peer of the bare dialect does not read CLOSE: for it the end of the stream has to do."""
        if self.close_sent:
            raise NnrpLocalError(Outcome.BAD_STATE, "CLOSE was sent before", subject="CLOSE")
        if self.state is not ConnectionState.DRAINING:
            self._step_ours(ConnectionInput.CLOSE, MessageType.CLOSE)
        if self.may_send(MessageType.CLOSE):
            self._outbox.append(Outgoing(Close(), body=reason.encode("utf-8")))
        self.close_sent = True
        self._begin_drain(now, EndCause.WE_CLOSED)

    # Things that happened

    def _on_hello(self, packet: Packet, now: float) -> HelloReceived:
        self._step(packet.header)
        self._learn(DialectInput.HELLO)
        assert isinstance(packet.metadata, ClientHello)
        self.offer = packet.metadata
        return HelloReceived(packet)

    def _on_hello_ack(self, packet: Packet, now: float) -> HelloAccepted | HelloRefused:
        answer = packet.metadata
        assert isinstance(answer, ServerHelloAck)
        if self.offer is None:
            raise self._bad_state(packet.header, "no hello was sent")
        if answer.auth_status:
            self._step(packet.header, ConnectionInput.HELLO_REFUSED)
            self._end(EndCause.REFUSED)
            return HelloRefused(packet)
        if self.state is ConnectionState.NEGOTIATING:
            answer = check_hello_ack(self.offer, answer, strict=self.strict)
        self._step(packet.header)
        self._take_answer(answer)
        self.reserved_session_id = answer.session_id
        implicit = self._open_implicit() if answer.session_id and self.dialect is Dialect.IMPLICIT else None
        return HelloAccepted(packet, implicit)

    def _on_probe(self, packet: Packet, now: float) -> ProbeReceived:
        self._step(packet.header)
        self._learn(DialectInput.PROBE)
        probe = packet.metadata
        assert isinstance(probe, TransportProbe)
        self._reply(packet, TransportProbeAck(probe.probe_id, int(now * 1_000_000)), session_id=0)
        return ProbeReceived(packet)

    def _on_probe_ack(self, packet: Packet, now: float) -> ProbeAnswered:
        self._step(packet.header)
        answer = packet.metadata
        assert isinstance(answer, TransportProbeAck)
        matched = answer.probe_id in self._probes
        self._probes.discard(answer.probe_id)
        return ProbeAnswered(packet, matched)

    def _on_ping(self, packet: Packet, now: float) -> PingReceived:
        self._step(packet.header)
        self._learn(DialectInput.PING)
        self._reply(packet, Pong())
        return PingReceived(packet)

    def _on_pong(self, packet: Packet, now: float) -> PongReceived:
        self._step(packet.header)
        if self.pongs < self.pings:
            self.pongs += 1
            if self.pongs == self.pings:
                self.round_trip = now - self._pinged_at
        return PongReceived(packet)

    def _on_close(self, packet: Packet, now: float) -> ConnectionClosing:
        if self.close_received or self.state is not ConnectionState.DRAINING:
            self._step(packet.header)
        self.close_received = True
        self._begin_drain(now, EndCause.PEER_CLOSED)
        return ConnectionClosing(packet, EndCause.PEER_CLOSED)

    def _on_error(self, packet: Packet, now: float) -> ErrorReceived | ConnectionClosing:
        error = packet.metadata
        assert isinstance(error, Error)
        self.counters.errors_received += 1
        if error.is_fatal and error.error_scope is ErrorScope.CONNECTION:
            self._step(packet.header, ConnectionInput.FATAL)
            self._begin_drain(now, EndCause.PEER_ERROR)
            return ConnectionClosing(packet, EndCause.PEER_ERROR)
        self._step(packet.header)
        session = self.sessions.get(error.related_session_id or packet.header.session_id)
        operation: Operation | None = None
        put_back: Operation | None = None
        waits = self.side is Side.CLIENT  # the end that carries out still owes its one terminal message
        if waits and session is not None and error.error_scope is not ErrorScope.CONNECTION:
            # A code that is of the session by default (12.9), server_busy for one, may stand for one frame's result.
            frame_id = error.related_frame_id or packet.header.frame_id
            operation = session.operations.of_frame(frame_id) if session.in_flight else None
            if operation is not None and error.error_code == ErrorCode.LIMIT_EXCEEDED:
                put_back = self._put_back(session, operation)
            if put_back is not None:
                operation = None
            elif operation is not None:
                session.receive_drop(frame_id, OperationState.FAILED)
                self._after_settle(session, self._last_received)
        if waits and error.retry_after_ms and error.error_scope is not ErrorScope.FRAME:
            whole = error.error_scope is ErrorScope.CONNECTION
            if whole or session is not None:
                self._put_off(None if whole else session, now + error.retry_after_ms / 1000)
        return ErrorReceived(packet, session, operation, put_back)

    # Inside

    def _note_ping(self, now: float) -> None:
        self.pings += 1
        self._pinged_at = now

    def _pending_offer(self) -> ClientHello:
        if self.offer is None or self.state is not ConnectionState.NEGOTIATING:
            raise NnrpLocalError(Outcome.BAD_STATE, "no hello is waiting for an answer", subject="SERVER_HELLO_ACK")
        return self.offer

    def _take_answer(self, answer: ServerHelloAck) -> None:
        self.answer = answer
        self.window.limit = answer.max_concurrent_frames or UNLIMITED

    def _open_implicit(self) -> Session:
        """Turn the reserved id into an open session with the terms of the hello (13.2)."""
        limit = self.answer.max_concurrent_frames if self.answer is not None else 0
        terms = SessionTerms(
            max_in_flight_operations=limit or IMPLICIT_IN_FLIGHT,
            granted_operation_credit=0,
            implicit=True,
        )
        session = Session(self.reserved_session_id, terms, self.window, self.reverse)
        self.sessions[session.session_id] = session
        self.reserved_session_id = 0
        self._learn(DialectInput.IMPLICIT_SUBMIT)
        return session

    @property
    def _cache_enabled(self) -> bool:
        """Whether the hello enabled caching, for what has no session flag to say so."""
        return self.answer is not None and bool(int(self.answer.server_flags) & int(ServerFlags.CACHE_ENABLED))

    def _put_off(self, session: Session | None, until: float, window: Window | None = None) -> None:
        """Nothing new is submitted in this scope before ``until``: in ``window``, else in the session's or the connection's."""
        window = window or (self.window if session is None else session.window)
        if window.put_off(until):
            self._put_offs[window] = session

    def _retries_due(self, now: float) -> list[RetryDue]:
        # A window that its session has let go of waits for nothing.
        due = [each for each in self._put_offs.items() if (each[0].retry_at or 0.0) <= now]
        for window, _ in due:
            del self._put_offs[window]
        return [RetryDue(session) for window, session in due if window.handle_deadline(now)]

    def _put_back(self, session: Session, operation: Operation) -> Operation | None:
        """``operation``, to be sent once more, where it may be for want of credit that it was refused: it was sent again, and of
        the others that were in flight when the connection was lost it cannot be known how many the peer counts. Their ends may
        have overtaken the refusal, so that it is for good only the second time that nothing else is in flight."""
        if not operation.sent_again or operation.ended:
            return None
        alone = session.hold_again(operation, session.in_flight, self.window.in_flight) is None and all(
            each is operation or each.unsent
            for served in self.sessions.values()
            if served.in_flight
            for each in served.operations
        )
        if alone and operation.refused:
            return None
        operation.refused = operation.refused or alone
        operation.unsent = True
        return operation

    def _begin_drain(self, now: float, cause: EndCause) -> None:
        if self.end_cause is None:
            self.end_cause = cause
        if self.state is ConnectionState.DRAINING:
            patience = self.limits.drain_timeout
            if patience and self.side is Side.CLIENT:
                patience += LAST_WORDS
            self._drain_deadline = min(self._drain_deadline, now + patience)
            self._end_if_drained()

    def _end_if_drained(self) -> None:
        if self.state is ConnectionState.DRAINING and self.window.in_flight == 0:
            self._finish_drain()

    def _finish_drain(self) -> None:
        self._end(self.end_cause or EndCause.WE_CLOSED)

    def _after_settle(self, session: Session, now: float) -> None:
        """An operation of ``session`` was settled. The layer above completes a close that waited for it."""
        self._end_if_drained()
