"""Connections: dialects, handshake, close, errors at their scope, every message in every state (nnrp-wire 2.6, 13.1, 15)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from protocol.nnrp.catalogue import CATALOGUE
from protocol.nnrp.enums import (
    ConnectionState,
    ErrorCode,
    ErrorScope,
    MessageType,
    ObjectKind,
    OperationFeatures,
    OperationState,
    SessionErrorCode,
    SessionStatus,
    TransportId,
)
from protocol.nnrp.errors import NnrpError, NnrpLocalError, Outcome
from protocol.nnrp.machines.closing import SETTLE_GRACE
from protocol.nnrp.machines.connection import Connection, ConnectionLimits, Side
from protocol.nnrp.machines.connection_table import Dialect
from protocol.nnrp.machines.events import (
    ConnectionClosing,
    EndCause,
    ErrorReceived,
    HelloAccepted,
    HelloRefused,
    PongReceived,
    ProbeAnswered,
    ProbeReceived,
    ResultReceived,
    SubmitReceived,
)
from protocol.nnrp.machines.hello import HelloPolicy
from protocol.nnrp.machines.outgoing import Outgoing
from protocol.nnrp.machines.reading import drop_state
from protocol.nnrp.machines.schemas import builtin_registry
from protocol.nnrp.machines.session import Ending
from protocol.nnrp.messages import (
    MESSAGES,
    CacheAck,
    CacheInvalidate,
    CachePut,
    Close,
    Error,
    FlowUpdate,
    FrameCancel,
    Message,
    Ping,
    Pong,
    ResultDrop,
    ResultHint,
    ResultPush,
    ServerHelloAck,
    SessionClose,
    SessionCloseAck,
    SessionMigrate,
    SessionMigrateAck,
    SessionOpen,
    SessionOpenAck,
    SessionPatch,
    SessionPatchAck,
    TransportProbe,
    TransportProbeAck,
)
from protocol.nnrp.packet import Packet, decode_packet
from protocol.registry import Direction
from tests.protocol.nnrp.machines.duo import HELLO, TOKEN_SUBMIT, Duo, bytewise

INIT, NEGOTIATING, OPEN, DRAINING, CLOSED = ConnectionState

#: One legal packet of every type, for session 1 and frame 1 where it needs them.
SAMPLES: dict[MessageType, Outgoing] = {
    each.message.TYPE: each
    for each in (
        Outgoing(HELLO),
        Outgoing(ServerHelloAck()),
        Outgoing(SessionPatch(), 1),
        Outgoing(SessionPatchAck(), 1),
        Outgoing(Close()),
        Outgoing(Error(error_code=12, error_scope=ErrorScope.SESSION), 1),
        Outgoing(SessionOpen(requested_session_id=2, profile_id=2)),
        Outgoing(SessionOpenAck(session_id=2), 2),
        Outgoing(SessionClose(), 1),
        Outgoing(SessionCloseAck(), 1),
        Outgoing(TOKEN_SUBMIT, 1, 1),
        Outgoing(FrameCancel(), 1, 1),
        Outgoing(ResultPush(), 1, 1),
        Outgoing(ResultDrop(), 1, 1),
        Outgoing(CachePut(object_kind=ObjectKind.PROMPT_SEGMENT), 1),
        Outgoing(CacheAck(), 1),
        Outgoing(CacheInvalidate(), 1),
        Outgoing(FlowUpdate()),
        Outgoing(ResultHint(), 1),
        Outgoing(TransportProbe(1)),
        Outgoing(TransportProbeAck(1)),
        Outgoing(SessionMigrate(TransportId.TCP, TransportId.QUIC), 1),
        Outgoing(SessionMigrateAck(), 1),
        Outgoing(Ping()),
        Outgoing(Pong()),
    )
}


def packet(outgoing: Outgoing) -> Packet:
    return decode_packet(outgoing.encode())


def machine(state: ConnectionState, side: Side, **options: Any) -> Connection:
    """A machine of one side in the wanted state, brought there by messages, with session 1 open where it can be."""
    duo = Duo(answer=state is not NEGOTIATING, **options)
    end = duo.server if side is Side.SERVER else duo.client
    if state is INIT:
        return end.machine
    duo.connect()
    if state is NEGOTIATING:
        return end.machine
    mine, _ = duo.open(session_id=1)
    if state is DRAINING:
        duo.submit(mine)
    if state in (DRAINING, CLOSED):
        duo.client.machine.close(0.0)
        duo.pump()
    assert end.machine.state is state
    end.machine.messages()
    return end.machine


def test_there_is_a_sample_of_everything() -> None:
    assert set(SAMPLES) == set(MESSAGES)


# What a server accepts in each state (nnrp-wire 2.6, 13.1). Legal there, whatever the session thinks of it.
_M = MessageType
_BOTH_QUIET = {_M.PING, _M.PONG, _M.TRANSPORT_PROBE}
SERVER_ACCEPTS: dict[ConnectionState, set[MessageType]] = {
    INIT: {_M.CLIENT_HELLO, _M.SESSION_OPEN, _M.SESSION_MIGRATE, *_BOTH_QUIET},
    NEGOTIATING: {_M.CLOSE, _M.ERROR, *_BOTH_QUIET},
    OPEN: {kind for kind in _M if CATALOGUE[kind].direction is not Direction.TO_CLIENT} - {_M.CLIENT_HELLO},
    DRAINING: {kind for kind in _M if CATALOGUE[kind].direction is not Direction.TO_CLIENT}
    - {_M.CLIENT_HELLO, _M.SESSION_OPEN, _M.FRAME_SUBMIT, _M.SESSION_PATCH, _M.SESSION_MIGRATE, _M.CLOSE},
    CLOSED: set(),
}
#: Refused for a reason of their own: an answer to a question nobody asked.
NEEDS_A_QUESTION = {_M.SESSION_CLOSE_ACK}


@pytest.mark.parametrize("state", ConnectionState, ids=lambda each: each.name)
@pytest.mark.parametrize("kind", MessageType, ids=lambda each: each.name)
def test_every_message_in_every_state_of_a_server(state: ConnectionState, kind: MessageType) -> None:
    """nnrp-wire 13.1, 2.6: accepted, or BadState; a wrong first packet is fatal, nothing else of this is."""
    server = machine(state, Side.SERVER)
    before = server.state
    if kind in SERVER_ACCEPTS[state]:
        server.receive(packet(SAMPLES[kind]), 0.0)
        return
    with pytest.raises(NnrpError) as caught:
        server.receive(packet(SAMPLES[kind]), 0.0)
    assert caught.value.outcome is Outcome.BAD_STATE
    assert caught.value.code == ErrorCode.INVALID_STATE
    assert caught.value.fatal == (state is INIT)
    assert server.state is (CLOSED if state is INIT else before)
    reports = server.messages()
    if state is CLOSED:
        assert reports == [], "nobody is left to tell"
    elif kind is not _M.ERROR:
        error = reports[0].message
        assert isinstance(error, Error)
        assert (error.error_code, error.is_fatal) == (ErrorCode.INVALID_STATE, int(state is INIT))


@pytest.mark.parametrize("state", ConnectionState, ids=lambda each: each.name)
@pytest.mark.parametrize("kind", MessageType, ids=lambda each: each.name)
def test_every_message_in_every_state_of_a_client(state: ConnectionState, kind: MessageType) -> None:
    """The other side of the same rules: an event or an NnrpError, never another exception, never a third way."""
    client = machine(state, Side.CLIENT)
    before = client.state
    refusal = None
    try:
        client.receive(packet(SAMPLES[kind]), 0.0)
    except NnrpError as error:
        refusal = error
    if state is CLOSED or CATALOGUE[kind].direction is Direction.TO_SERVER:
        assert refusal is not None, "a client takes nothing that only clients send, and nothing once closed"
        assert refusal.outcome is Outcome.BAD_STATE
    if refusal is not None:
        assert refusal.outcome in (
            Outcome.BAD_STATE,
            Outcome.UNKNOWN_OPERATION,
            Outcome.BAD_COMBINATION,
            Outcome.UNKNOWN_SESSION,
        )
        assert client.state is (CLOSED if refusal.fatal else before)


# Handshake


def test_native_handshake() -> None:
    """nnrp-wire 16: hello, ack with session 0, sessions."""
    duo = Duo(cut=bytewise)
    duo.connect()
    assert duo.client.machine.state is duo.server.machine.state is OPEN
    assert duo.client.last(HelloAccepted).implicit is None
    (ack,) = duo.sent("s2c", ServerHelloAck)
    assert (ack.header.session_id, ack.metadata.session_id) == (0, 0)  # type: ignore[attr-defined]  # it is the ack
    assert duo.client.machine.window.limit == 1024
    assert duo.server.machine.dialect is Dialect.NATIVE


def test_a_second_hello_is_bad_state() -> None:
    duo = Duo()
    duo.connect()
    duo.to_server(HELLO)
    assert duo.server.errors[-1].outcome is Outcome.BAD_STATE
    assert duo.server.machine.state is OPEN
    with pytest.raises(NnrpLocalError):
        duo.client.machine.send_hello(HELLO)


def test_refused_authentication_by_error() -> None:
    """nnrp-extensions Authentication: ERROR auth_failed (0x0002), fatal, close."""
    duo = Duo(answer=False)
    duo.connect()
    duo.server.machine.refuse_hello()
    assert duo.server.machine.closed
    duo.pump()
    error = duo.client.last(ConnectionClosing).packet
    assert error is not None
    assert error.metadata.error_code == ErrorCode.AUTH_FAILED  # type: ignore[attr-defined]  # it is an Error
    assert duo.client.machine.state is CLOSED


def test_refused_authentication_by_ack() -> None:
    """nnrp-wire 7.2: auth_status non-zero."""
    duo = Duo(answer=False)
    duo.connect()
    duo.to_client(ServerHelloAck(auth_status=1))
    duo.client.last(HelloRefused)
    assert (duo.client.machine.state, duo.client.machine.end_cause) == (CLOSED, EndCause.REFUSED)


def test_nothing_in_common_ends_the_connection() -> None:
    duo = Duo(hello=HelloPolicy(profile_bitmap=8))
    duo.connect()
    assert duo.server.machine.closed
    assert duo.client.machine.closed
    (error,) = duo.sent("s2c", Error)
    assert error.metadata.error_code == ErrorCode.UNSUPPORTED_CAPABILITY  # type: ignore[attr-defined]  # an Error


def test_an_answer_that_was_not_asked_for() -> None:
    client = machine(INIT, Side.CLIENT)
    with pytest.raises(NnrpError) as caught:
        client.receive(packet(Outgoing(ServerHelloAck())), 0.0)
    assert caught.value.outcome is Outcome.BAD_STATE


# First packets


def test_first_packet_session_open_is_the_bare_dialect() -> None:
    """nnrp-wire 2.6: no hello, unlimited connection credit, no ERROR, PING, RESULT_HINT or CACHE_* unasked."""
    duo = Duo()
    duo.client.machine.open_session(SessionOpen(requested_session_id=1, profile_id=2, max_in_flight_operations=1))
    duo.pump()
    server = duo.server.machine
    assert (server.dialect, server.state) == (Dialect.BARE, OPEN)
    for kind in (_M.PING, _M.ERROR, _M.RESULT_HINT, _M.CACHE_PUT, _M.CACHE_INVALIDATE):
        assert not server.may_send(kind)
    for kind in (_M.RESULT_PUSH, _M.RESULT_DROP, _M.FLOW_UPDATE, _M.SESSION_OPEN_ACK, _M.PONG):
        assert server.may_send(kind)
    with pytest.raises(NnrpLocalError, match="bare dialect"):
        server.send_ping(duo.now)
    assert not server.may_send(_M.SESSION_CLOSE)
    assert duo.client.machine.may_send(_M.SESSION_CLOSE)
    step = server.close_session(server.sessions[1], 0.0)
    assert step.closed
    server.close(0.0)
    assert server.messages() == [], "it reads neither SESSION_CLOSE nor CLOSE unasked"
    assert server.closed


def test_the_bare_dialect_is_not_sent_errors() -> None:
    """nnrp-wire 15, 2.6: a refused submit is dropped, other faults are just counted, a fatal one closes."""
    duo = Duo()
    duo.client.machine.open_session(SessionOpen(requested_session_id=1, profile_id=2, max_in_flight_operations=1))
    duo.pump()
    server = duo.server.machine
    for frame in (1, 2, 1):
        duo.server.feed(Outgoing(TOKEN_SUBMIT, 1, frame).encode(), 0.0)
    assert [each.outcome for each in duo.server.errors] == [Outcome.LIMIT_EXCEEDED] * 2
    assert [(type(each.message), each.frame_id) for each in server.messages()] == [(ResultDrop, 2)]
    duo.server.feed(Outgoing(SessionClose(), 7).encode(), 0.0)
    duo.server.feed(b"NNRX" + bytes(40), 0.0)
    assert server.closed
    assert server.messages() == []
    assert server.counters.errors_withheld == 3


def test_a_reused_frame_does_not_end_the_operation_that_has_it() -> None:
    duo = Duo()
    duo.open(session_id=1)
    duo.to_server(TOKEN_SUBMIT, session_id=1, frame_id=1)
    duo.to_server(TOKEN_SUBMIT, session_id=1, frame_id=1)
    assert duo.server.errors[-1].outcome is Outcome.OPERATION_EXISTS
    assert duo.sent("s2c", ResultDrop) == []


def test_a_bare_peer_that_sends_a_ping_may_be_pinged() -> None:
    duo = Duo()
    duo.open()
    duo.client.machine.send_ping(duo.now)
    duo.pump()
    assert duo.server.machine.may_send(_M.PING)


def test_only_a_pong_whose_ping_is_known_is_a_round_trip() -> None:
    """nnrp-wire 12.5: low_latency drops results where the way is long. A PONG says only that some PING has arrived."""
    duo = Duo()
    duo.connect()
    server = duo.server.machine
    duo.to_server(Pong())
    server.send_ping(0.0)
    server.send_ping(10.0)
    pings = server.messages()
    duo.now = 10.25
    duo.to_server(Pong())
    assert (len(pings), server.round_trip) == (2, None)
    duo.now = 10.5
    duo.to_server(Pong())
    assert server.round_trip == 0.5
    duo.now = 60.0
    duo.to_server(Pong())
    assert (server.round_trip, server.pings, server.pongs) == (0.5, 2, 2)


def test_ping_and_probe_leave_the_connection_where_it_is() -> None:
    """nnrp-wire 2.6, 7.18, 7.20: probe, ping, then a hello."""
    duo = Duo()
    duo.now = 2.5
    duo.client.machine.send_probe(7, b"P" * 64, client_send_ts_us=1)
    duo.client.machine.send_ping(duo.now, trace_id=99, session_id=5)
    duo.pump()
    assert duo.server.machine.state is INIT
    duo.server.last(ProbeReceived)
    answer = duo.client.last(ProbeAnswered).packet.metadata
    assert answer == TransportProbeAck(7, 2_500_000)
    pong = duo.client.last(PongReceived).packet.header
    assert (pong.trace_id, pong.session_id) == (99, 5)
    duo.connect()
    assert duo.server.machine.state is OPEN


def test_a_probe_answer_with_another_id_is_no_sample() -> None:
    duo = Duo()
    duo.client.machine.send_probe(7, b"", client_send_ts_us=1)
    duo.pump()
    duo.to_client(TransportProbeAck(8))
    assert not duo.client.last(ProbeAnswered).matched
    assert not duo.client.errors


@pytest.mark.parametrize("outgoing", [Outgoing(TOKEN_SUBMIT, 1, 1), Outgoing(ResultPush(), 1, 1)])
def test_a_wrong_first_packet(outgoing: Outgoing) -> None:
    """Vectors reject.submit_before_any_open and reject.result_as_first_packet: BadState, close."""
    duo = Duo()
    duo.server.feed(outgoing.encode(), 0.0)
    error = duo.server.errors.pop()
    assert (error.outcome, error.code, error.fatal) == (Outcome.BAD_STATE, ErrorCode.INVALID_STATE, True)
    assert duo.server.machine.end_cause is EndCause.PROTOCOL_ERROR


# Implicit sessions


def implicit(**options: Any) -> Duo:
    duo = Duo(client_dialect=Dialect.IMPLICIT, **options)
    duo.client.machine.send_hello(HELLO.replace(requested_session_id=9))
    duo.pump()
    return duo


def test_the_first_submit_opens_the_implicit_session() -> None:
    """nnrp-wire 13.2: profile 0, schema 0/0, balanced, limits from the hello's answer."""
    duo = implicit()
    session = duo.client.last(HelloAccepted).implicit
    assert session is not None
    assert session.session_id == 9
    assert duo.server.machine.reserved_session_id == 9
    assert duo.server.machine.sessions == {}
    duo.submit(session)
    event = duo.server.last(SubmitReceived)
    assert event.opened
    terms = event.session.terms
    assert (terms.profile_id, terms.schema_id, terms.implicit, terms.resume_enabled) == (0, 0, True, False)
    assert terms.max_in_flight_operations == 1024
    assert duo.server.machine.dialect is Dialect.IMPLICIT
    duo.submit(session)
    assert not duo.server.last(SubmitReceived).opened


def test_a_session_open_converts_the_reservation() -> None:
    """nnrp-wire 13.2: instead of colliding."""
    duo = Duo()
    duo.client.machine.send_hello(HELLO.replace(requested_session_id=9))
    duo.pump()
    mine, theirs = duo.open(session_id=9)
    assert mine.session_id == 9
    assert not theirs.terms.implicit
    assert duo.server.machine.reserved_session_id == 0


def test_an_assigned_id_is_not_the_reserved_one() -> None:
    duo = Duo()
    duo.client.machine.send_hello(HELLO.replace(requested_session_id=1))
    duo.pump()
    mine, _ = duo.open()
    assert mine.session_id == 2


def test_the_implicit_dialect_knows_no_session_messages() -> None:
    """nnrp-wire 2.6: 0x07 – 0x0A fail such a peer."""
    duo = implicit()
    session = duo.client.last(HelloAccepted).implicit
    assert session is not None
    duo.submit(session)
    with pytest.raises(NnrpLocalError, match="implicit session"):
        duo.client.machine.open_session(SessionOpen())
    theirs = duo.server.machine.sessions[9]
    step = duo.server.machine.close_session(theirs, 0.0)
    assert step.closed
    assert [each.frame_id for each in step.abandoned] == [1]
    (left,) = duo.server.machine.messages()
    assert (left.message, left.session_id, left.frame_id) == (ResultDrop(), 9, 1), "what it does know it is told"


@pytest.mark.parametrize("strict", [True, False])
def test_other_traffic_opens_it_for_a_tolerant_server_only(strict: bool) -> None:
    duo = implicit(strict=strict)
    duo.to_server(SessionPatch(), session_id=9)
    assert (9 in duo.server.machine.sessions) == (not strict)


# Close


def test_close_with_work_in_flight_drains() -> None:
    """nnrp-wire 13.1: results in flight are delivered, nothing new starts, then it is closed."""
    duo = Duo()
    duo.connect()
    mine, theirs = duo.open()
    first = duo.submit(mine)
    duo.client.machine.close(0.0, "bye")
    duo.pump()
    assert duo.server.last(ConnectionClosing).cause is EndCause.PEER_CLOSED
    assert duo.client.machine.state is duo.server.machine.state is DRAINING
    with pytest.raises(NnrpLocalError):
        duo.client.machine.submit(mine, 0.0)
    with pytest.raises(NnrpLocalError):
        duo.client.machine.close(0.0)
    duo.to_server(TOKEN_SUBMIT, session_id=mine.session_id, frame_id=2)
    assert duo.server.errors.pop().outcome is Outcome.BAD_STATE
    duo.to_server(Close())
    assert duo.server.errors.pop().outcome is Outcome.BAD_STATE, "a second close is an error"
    operation = theirs.operations.of_frame(first.frame_id)
    assert operation is not None
    duo.server.machine.finish(theirs, operation, OperationState.COMPLETED, 0.0)
    duo.to_client(ResultPush(), session_id=mine.session_id, frame_id=first.frame_id)
    assert duo.server.machine.end_cause is EndCause.PEER_CLOSED
    assert duo.client.machine.end_cause is EndCause.WE_CLOSED
    assert mine.state.name == theirs.state.name == "CLOSED", "the cascade reaches every session"


def test_crossing_closes_are_no_error() -> None:
    duo = Duo()
    duo.connect()
    mine, _ = duo.open()
    duo.submit(mine)
    duo.client.machine.close(0.0)
    duo.server.machine.close(0.0)
    duo.pump()
    assert not duo.client.errors
    assert not duo.server.errors
    assert duo.server.machine.state is DRAINING


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(
    ("goodbye", "cause"), [(Close(), EndCause.PEER_CLOSED), (Error(error_code=12, is_fatal=1), EndCause.PEER_ERROR)]
)
def test_a_goodbye_that_is_cut_short_is_no_loss(goodbye: Message, cause: EndCause, lost: bool) -> None:
    """nnrp-wire 13.1: from DRAINING the end of the transport closes the connection, and the goodbye stays the reason."""
    duo = Duo()
    duo.connect()
    duo.submit(duo.open()[0])
    duo.to_server(goodbye)
    machine = duo.server.machine
    assert machine.state is DRAINING
    if lost:
        machine.lose_transport()
    else:
        machine.receive_eof()
    assert (machine.state, machine.end_cause) == (CLOSED, cause)


def test_an_idle_connection_closes_at_once() -> None:
    duo = Duo()
    duo.connect()
    duo.open()
    duo.client.machine.close(0.0)
    duo.pump()
    assert duo.client.machine.closed
    assert duo.server.machine.closed
    with pytest.raises(NnrpError) as caught:
        duo.server.machine.receive(packet(SAMPLES[_M.SESSION_OPEN]), 0.0)
    assert caught.value.outcome is Outcome.BAD_STATE


@pytest.mark.parametrize("lets_go", [True, False])
def test_the_drain_ends_with_its_timeout(lets_go: bool) -> None:
    """nnrp-wire 13.1, suggested 5 s, and 13.4: what is left is cancelled and has its terminal message before the end, by
    whoever carries it out or, where that does not let go, without. The client waits for it."""
    duo = Duo()
    duo.connect()
    mine, theirs = duo.open(features=OperationFeatures.OPERATION_STATE)
    operation = duo.submit(mine)
    duo.client.machine.close(1.0)
    duo.now = 1.0
    duo.pump()
    server = duo.server.machine
    assert server.next_deadline() == 6.0
    server.handle_deadline(5.9)
    assert server.state is DRAINING
    (cut,) = server.handle_deadline(6.0)
    (left,) = cut.step.cancelled
    assert (server.state, left.state) == (DRAINING, OperationState.CANCELLED)
    duo.now = 6.0 + SETTLE_GRACE
    duo.client.machine.handle_deadline(duo.now)
    assert duo.client.machine.state is DRAINING
    if lets_go:
        assert server.finish(theirs, left, OperationState.COMPLETED, duo.now) is Ending.DROP
        duo.to_client(ResultDrop(), session_id=mine.session_id, frame_id=operation.frame_id)
    else:
        (gone,) = server.handle_deadline(duo.now)
        assert gone.step.abandoned == (left,)
    assert server.closed
    duo.pump()
    assert duo.client.machine.closed
    assert operation.settled
    (drop,) = duo.sent("s2c", ResultDrop)
    if not lets_go:
        assert drop_state(drop) is OperationState.CANCELLED
        assert server.finish(theirs, left, OperationState.COMPLETED, duo.now) is Ending.SILENT


def test_a_fatal_error_from_the_peer_drains() -> None:
    duo = Duo()
    duo.connect()
    mine, _ = duo.open()
    duo.submit(mine)
    duo.to_server(Error(error_code=12, is_fatal=1))
    assert duo.server.machine.state is DRAINING
    duo.server.machine.receive_eof()
    assert duo.server.machine.closed


@pytest.mark.parametrize(("inside", "cause"), [(False, EndCause.END_OF_STREAM), (True, EndCause.TRANSPORT_LOST)])
def test_end_of_stream(inside: bool, cause: EndCause) -> None:
    """nnrp-wire 2.1 item 4."""
    duo = Duo()
    duo.connect()
    mine, theirs = duo.open()
    duo.submit(mine)
    duo.server.machine.receive_eof(inside_packet=inside)
    assert duo.server.machine.end_cause is cause
    assert duo.server.machine.messages() == []
    assert theirs.in_flight == 1, "the operations go on in the engine, for a resume"
    duo.server.machine.lose_transport()
    assert duo.server.machine.end_cause is cause, "the first cause stays"


# Time


def test_handshake_timeout() -> None:
    connection = Connection(Side.SERVER, now=100.0, schemas=builtin_registry())
    assert connection.next_deadline() == 110.0
    connection.receive(packet(Outgoing(Ping())), 109.0)
    assert connection.next_deadline() == 110.0, "pings do not buy time"
    connection.handle_deadline(109.9)
    assert not connection.closed
    connection.handle_deadline(110.0)
    assert connection.end_cause is EndCause.HANDSHAKE_TIMEOUT
    assert connection.next_deadline() == math.inf


def test_idle_timeout() -> None:
    """nnrp-wire 2.2: 120 s without received bytes."""
    duo = Duo()
    duo.connect()
    server = duo.server.machine
    assert server.next_deadline() == 120.0
    duo.now = 50.0
    duo.client.machine.send_ping(duo.now)
    duo.pump()
    assert server.next_deadline() == 170.0
    server.handle_deadline(120.0)
    assert not server.closed
    server.handle_deadline(170.0)
    assert server.end_cause is EndCause.IDLE_TIMEOUT


def test_keepalive_goes_where_it_is_answered() -> None:
    """nnrp-wire 13.8: PING below the idle timeout, not towards the bare dialect."""
    limits = ConnectionLimits(keepalive_interval=30.0)
    duo = Duo(limits=limits)
    duo.connect()
    assert duo.client.machine.next_deadline() == 30.0
    duo.client.machine.handle_deadline(30.0)
    duo.pump()
    duo.client.last(PongReceived)
    duo.client.machine.note_sent(45.0)
    assert duo.client.machine.next_deadline() == 75.0
    bare = Duo(limits=limits)
    bare.open()
    assert bare.server.machine.next_deadline() == 120.0


def test_submits_and_results_bring_no_deadline_nearer() -> None:
    """While both ends are steady a driver need not ask for it again: 13.8 times silence only."""
    duo = Duo(limits=ConnectionLimits(keepalive_interval=40.0))
    client, server = duo.client.machine, duo.server.machine
    assert not client.is_steady()
    assert not server.is_steady()
    duo.connect()
    mine, theirs = duo.open()
    for duo.now in (5.0, 17.0):
        before = (client.next_deadline(), server.next_deadline())
        operation = duo.submit(mine)
        server.finish(theirs, duo.server.last(SubmitReceived).operation, OperationState.COMPLETED, duo.now)
        result = ResultPush(active_profile_id=2)
        duo.to_client(result, session_id=mine.session_id, frame_id=operation.frame_id)
        assert duo.client.last(ResultReceived).operation is operation
        assert client.is_steady()
        assert server.is_steady()
        assert client.next_deadline() >= before[0]
        assert server.next_deadline() >= before[1]
    client.close_session(mine, duo.now)
    assert not client.is_steady(), "the answer to a close is waited for until then"
    duo.pump()
    client.close(duo.now)
    assert not client.is_steady()


def test_an_end_that_keeps_objects_is_not_steady() -> None:
    """A submit may end a lease, whose object is then let go."""
    duo = Duo()
    duo.connect()
    mine, _ = duo.open()
    message = CachePut(0, 0, 1, ObjectKind.PAYLOAD_LAYOUT_TEMPLATE, 1000)
    duo.client.machine.put_object(mine, message, b"layout")
    duo.pump()
    assert not duo.server.machine.is_steady()


def test_a_server_asks_a_silent_client_that_answers() -> None:
    """Issue 5: keepalive where the peer allows. PONG keeps the connection; what merely said hello may be nnrp-py, which reads
    no PING while it waits for something else (2.6)."""
    duo = Duo(limits=ConnectionLimits(keepalive_interval=40.0))
    duo.connect()
    server = duo.server.machine
    assert server.next_deadline() == 120.0
    duo.client.machine.limits = ConnectionLimits()
    duo.open()
    for round_ in range(1, 10):
        assert server.next_deadline() == 40.0 * round_
        duo.now = 40.0 * round_
        server.handle_deadline(duo.now)
        duo.pump()
        duo.server.last(PongReceived)
        assert not server.closed
    server.handle_deadline(400.0)
    server.handle_deadline(480.0)
    assert server.end_cause is EndCause.IDLE_TIMEOUT, "a PING that nobody answers saves nobody"


@pytest.mark.parametrize("dialect", [Dialect.BARE, Dialect.IMPLICIT])
def test_who_cannot_be_asked_may_wait_for_a_result(dialect: Dialect) -> None:
    """nnrp-wire 2.6, 13.8: these peers are silent while they wait and answer no PING; an operation that takes longer than the
    idle timeout must not cost them its result."""
    duo = implicit() if dialect is Dialect.IMPLICIT else Duo(client_dialect=Dialect.BARE)
    session = duo.client.last(HelloAccepted).implicit if dialect is Dialect.IMPLICIT else duo.open(session_id=9)[0]
    assert session is not None
    operation = duo.submit(session)
    server = duo.server.machine
    assert server.dialect is dialect
    theirs = server.sessions[9]
    server.handle_deadline(120.0)
    server.handle_deadline(240.0)
    assert not server.closed
    assert server.next_deadline() == 360.0
    served = theirs.operations.of_frame(operation.frame_id)
    assert served is not None
    server.finish(theirs, served, OperationState.COMPLETED, 300.0)
    server.handle_deadline(360.0)
    assert server.end_cause is EndCause.IDLE_TIMEOUT


# Errors at their scope


def wrong_field(offset: int, value: int, outgoing: Outgoing) -> bytes:
    raw = bytearray(outgoing.encode())
    raw[offset] = value
    return bytes(raw)


@pytest.mark.parametrize(
    ("data", "code", "scope", "fatal"),
    [
        (wrong_field(0, 0x6E, SAMPLES[_M.PING]), ErrorCode.MALFORMED_HEADER, ErrorScope.CONNECTION, True),
        (wrong_field(4, 2, SAMPLES[_M.PING]), ErrorCode.UNSUPPORTED_VERSION, ErrorScope.CONNECTION, True),
        (wrong_field(5, 1, SAMPLES[_M.PING]), ErrorCode.UNSUPPORTED_VERSION, ErrorScope.CONNECTION, True),
        (wrong_field(6, 0x0B, SAMPLES[_M.PING]), ErrorCode.MALFORMED_HEADER, ErrorScope.CONNECTION, True),
        (wrong_field(8, 0x40, SAMPLES[_M.PING]), ErrorCode.MALFORMED_HEADER, ErrorScope.CONNECTION, True),
        (wrong_field(40 + 15, 1, SAMPLES[_M.FRAME_SUBMIT]), ErrorCode.MALFORMED_BODY, ErrorScope.FRAME, False),
        (wrong_field(40 + 2, 9, SAMPLES[_M.SESSION_CLOSE]), ErrorCode.MALFORMED_BODY, ErrorScope.SESSION, False),
        (wrong_field(24, 1, SAMPLES[_M.PING]), ErrorCode.MALFORMED_BODY, ErrorScope.CONNECTION, True),
    ],
)
def test_faults_are_reported_at_their_scope(data: bytes, code: ErrorCode, scope: ErrorScope, fatal: bool) -> None:
    """nnrp-wire 15."""
    server = machine(OPEN, Side.SERVER)
    duo_end = Duo().server
    duo_end.machine = server
    duo_end.feed(data, 0.0)
    (report,) = server.messages()
    error = report.message
    assert isinstance(error, Error)
    assert (error.error_code, error.error_scope, error.is_fatal) == (code, scope, int(fatal))
    assert server.closed == fatal
    assert report.session_id == (0 if scope is ErrorScope.CONNECTION else 1)
    assert error.related_frame_id == (1 if scope is ErrorScope.FRAME else 0)
    assert report.body.decode() == str(duo_end.errors[0])[:512]
    decode_packet(report.encode())


def test_a_bad_frame_does_not_disturb_others() -> None:
    """nnrp-wire 15, last sentence of its paragraph."""
    duo = Duo()
    duo.connect()
    mine, theirs = duo.open()
    duo.submit(mine)
    bad = wrong_field(40 + 15, 1, Outgoing(TOKEN_SUBMIT, mine.session_id, 2))
    duo.server.feed(bad, 0.0)
    duo.pump()
    event = duo.client.last(ErrorReceived)
    assert (event.session, event.operation) == (mine, None)
    assert mine.in_flight == theirs.in_flight == 1
    duo.submit(mine, frame_id=2)
    assert theirs.in_flight == 2


def test_a_frame_error_ends_its_operation_at_the_client() -> None:
    """nnrp-wire 13.4 mapping: ERROR frame scope → failed; the credit comes back."""
    duo = Duo()
    duo.connect()
    mine, _ = duo.open()
    operation = duo.submit(mine)
    duo.to_client(
        Error(error_code=12, error_scope=ErrorScope.FRAME, related_session_id=1, related_frame_id=1),
        session_id=1,
        frame_id=1,
    )
    assert duo.client.last(ErrorReceived).operation is operation
    assert operation.state is OperationState.FAILED
    assert mine.in_flight == 0


def test_a_frame_error_of_the_client_ends_nothing_at_the_server() -> None:
    """nnrp-wire 13.4: it could not read a result. The operation goes on, and has its one terminal message."""
    duo = Duo()
    duo.connect()
    _, theirs = duo.open()
    duo.submit(duo.client.machine.sessions[1])
    (operation,) = theirs.operations
    duo.to_server(
        Error(error_code=5, error_scope=ErrorScope.FRAME, related_session_id=1, related_frame_id=1),
        session_id=1,
        frame_id=1,
    )
    assert duo.server.last(ErrorReceived).operation is None
    assert theirs.in_flight == 1
    assert duo.server.machine.finish(theirs, operation, OperationState.COMPLETED, 0.0) is Ending.PUSH


def test_an_error_about_an_error_is_not_sent() -> None:
    """Two peers that misread each other's errors would never stop."""
    duo = Duo()
    duo.connect()
    duo.open()
    raw = bytearray(Outgoing(Error(error_scope=ErrorScope.SESSION), 1).encode())
    raw[40 + 8] = 7
    duo.server.feed(bytes(raw), 0.0)
    assert duo.server.errors[-1].outcome is Outcome.BAD_COMBINATION
    assert duo.server.machine.messages() == []
    assert duo.server.machine.counters.errors_withheld == 1


def test_a_resume_without_its_flag_is_answered_by_a_refusal() -> None:
    """nnrp-wire 7.7 and vector reject.session_open_token_without_allow_resume: session family goes into the ACK."""
    from protocol.nnrp.header import Header

    duo = Duo()
    duo.connect()
    request = SessionOpen(requested_session_id=1, profile_id=2, resume_token_bytes=4)
    duo.server.feed(Header(request.TYPE, meta_len=48, body_len=4).pack() + request.pack() + b"tokn", 0.0)
    duo.pump()
    (ack,) = duo.sent("s2c", SessionOpenAck)
    assert isinstance(ack.metadata, SessionOpenAck)
    assert ack.metadata.session_status is SessionStatus.REJECTED
    assert ack.metadata.session_error_code == SessionErrorCode.RESUME_REJECTED
    assert duo.server.machine.state is OPEN


def test_an_oversize_body_is_refused_before_it_comes() -> None:
    """C-054: the declared length is checked, nothing waits for the bytes."""
    from protocol.nnrp.header import Header

    for meta_len, body_len, code in (
        (0, 0xFFFF_FFFF, ErrorCode.LIMIT_EXCEEDED),
        (0xFFFF_FFFF, 0, ErrorCode.LIMIT_EXCEEDED),
        (0xFFFF_FFFF, 0xFFFF_FFFF, ErrorCode.MALFORMED_HEADER),
    ):
        duo = Duo()
        duo.connect()
        header = Header(MessageType.ERROR, meta_len=meta_len, body_len=body_len)
        duo.server.feed(header.pack(), 0.0)
        assert duo.server.machine.closed
        (report,) = duo.server.machine.messages()
        assert isinstance(report.message, Error)
        assert (report.message.error_code, report.message.is_fatal) == (code, 1)
        assert duo.server.splitter.statistics().buffered_bytes == 0


@pytest.mark.parametrize("size", [1, 20, 39, 40, 41, 64])
def test_packets_in_any_pieces(size: int) -> None:
    """C-055: single bytes, halves, one and a half: each is answered, in order."""
    duo = Duo()
    duo.connect()
    data = b"".join(
        outgoing.encode()
        for outgoing in (
            Outgoing(Ping(), trace_id=1),
            Outgoing(SessionOpen(requested_session_id=5, profile_id=2)),
            Outgoing(Ping(), trace_id=2),
            Outgoing(Ping(), trace_id=3),
        )
    )
    for start in range(0, len(data), size):
        duo.server.feed(data[start : start + size], 0.0)
    answers = duo.server.machine.messages()
    assert [each.trace_id for each in answers] == [1, 2, 3]
    assert duo.server.machine.opens_outstanding == 1


def test_replies_echo_route_and_trace() -> None:
    """nnrp-wire 3: route_id and trace_id come back on replies."""
    duo = Duo()
    duo.connect()
    duo.to_server(SessionOpen(requested_session_id=5, profile_id=2), route_id=7, trace_id=1 << 63)
    (ack,) = duo.sent("s2c", SessionOpenAck)
    assert (ack.header.route_id, ack.header.trace_id, ack.header.session_id) == (7, 1 << 63, 5)


def test_nothing_is_queued_on_a_closed_connection() -> None:
    duo = Duo()
    duo.connect()
    duo.client.machine.lose_transport()
    for call in (lambda: duo.client.machine.send_ping(0.0), lambda: duo.client.machine.close(0.0)):
        with pytest.raises(NnrpLocalError):
            call()
