"""Layer 1, control: handshake, sessions, flow control, resume, the connection as a container (nnrp-wire 7, 13)."""

from __future__ import annotations

from functools import partial

from protocol.nnrp.enums import (
    BackpressureLevel,
    CloseStatus,
    ConnectionState,
    ErrorCode,
    FlowFlags,
    FlowScope,
    InFlightPolicy,
    OperationState,
    PayloadKind,
    PriorityClass,
    SessionErrorCode,
    SessionFlags,
    SessionFlagsAck,
    SessionState,
    SessionStatus,
    UpdateReason,
)
from protocol.nnrp.errors import Outcome
from protocol.nnrp.machines.connection import Connection, Side
from protocol.nnrp.machines.credit import Applied, Hold
from protocol.nnrp.machines.events import FlowReceived, HelloAccepted, SessionOpened, SessionRefused
from protocol.nnrp.machines.hello import HelloPolicy, check_hello_ack, negotiate
from protocol.nnrp.machines.opening import OpenPolicy, check_answer
from protocol.nnrp.machines.resume import (
    Redelivery,
    Resumable,
    ResumeOutcome,
    ResumeRequest,
    classify_answer,
    decide_resume,
)
from protocol.nnrp.machines.schemas import ANCHOR, builtin_registry
from protocol.nnrp.messages import (
    ClientHello,
    Close,
    FlowUpdate,
    FrameSubmit,
    ResultPush,
    SessionClose,
    SessionCloseAck,
    SessionOpen,
    SessionOpenAck,
)
from protocol.nnrp.packet import decode_packet
from protocol.nnrp.vendor import SubmitContext
from server.conformance.case import Evidence, case, expect, expect_local_refusal, expect_refusal
from server.conformance.link import ALL_FEATURES, HELLO, OPEN, Link, raw_packet

__all__: list[str] = []

TOKEN_SUBMIT = FrameSubmit(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)
VALID = FlowFlags.CREDIT_VALID


@case("l1.handshake.basic")
def handshake(evidence: Evidence) -> None:
    link = Link(evidence)
    link.client.last(HelloAccepted)
    both = (link.client.machine.state, link.server.machine.state)
    expect(both == (ConnectionState.OPEN, ConnectionState.OPEN), "both ends are open after hello and answer")
    link.nothing_refused()


@case("l1.handshake.capability_window.validation")
def capability_window(evidence: Evidence) -> None:
    identity = raw_packet(HELLO)[:6]
    expect(identity == b"NNRP\x01\x00", "the code identity is NNRP 1, wire format 0, without a preview marker")
    for changes, outcome in (
        ({"min_version_major": 2, "max_version_major": 3}, ErrorCode.UNSUPPORTED_VERSION),
        ({"min_version_major": 2, "max_version_major": 1}, ErrorCode.MALFORMED_BODY),
        ({"supported_wire_format_bitmap": 2}, ErrorCode.UNSUPPORTED_VERSION),
        ({"supported_profile_bitmap": 0}, ErrorCode.UNSUPPORTED_CAPABILITY),
        ({"supported_payload_kind_bitmap": PayloadKind(0)}, ErrorCode.UNSUPPORTED_CAPABILITY),
    ):
        hello = HELLO.replace(**changes)
        error = expect_refusal(Outcome.BAD_COMBINATION, f"an offer with {changes}", ClientHello.parse, hello.pack())
        expect(error.code == outcome, f"an offer with {changes} is answered with {outcome.name}")
    answer = negotiate(HELLO.replace(supported_profile_bitmap=2), HelloPolicy(), session_id=0, extension_bytes=0)
    expect(answer.accepted_profile_bitmap == 2, "the answer is the intersection")
    for wrong in (
        answer.replace(accepted_profile_bitmap=3),
        answer.replace(selected_wire_format=1),
        answer.replace(selected_version_major=2),
    ):
        expect_refusal(
            Outcome.BAD_COMBINATION,
            "an answer outside the offer",
            check_hello_ack,
            HELLO.replace(supported_profile_bitmap=2),
            wrong,
            strict=True,
        )
    evidence.note(f"accepted: {answer}")


@case("l1.session.open_close")
def open_close(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, theirs = link.open()
    expect(mine.terms == theirs.terms, "both ends hold the same session")
    _, running = link.submit(mine, TOKEN_SUBMIT)
    link.finish(theirs, running, OperationState.COMPLETED, ResultPush())
    link.client.machine.close_session(mine, 0.0)
    link.pump()
    expect((mine.state, theirs.state) == (SessionState.CLOSED, SessionState.CLOSED), "the session is closed")
    expect(link.server.machine.state is ConnectionState.OPEN, "the connection stays")
    link.nothing_refused()


@case("l1.session.open.fixed_metadata.validation")
def open_metadata(evidence: Evidence) -> None:
    link = Link(evidence)
    request = OPEN.replace(requested_session_id=42, default_deadline_ms=500, client_session_tag=7)
    mine, theirs = link.open(request)
    terms = theirs.terms
    expect(mine.session_id == 42, "the requested id is used")
    expect((terms.schema_id, terms.schema_version) == ANCHOR.key, "the default schema is the one asked for")
    expect(terms.default_deadline_ms == 500, "the default deadline is the session's")
    _, running = link.submit(mine, TOKEN_SUBMIT)
    expect(running.deadline == 0.5, "an operation without a budget of its own gets it")
    body = b"token" + b"auth"
    good = SessionOpen(requested_session_id=1, session_flags=SessionFlags(1), resume_token_bytes=5, auth_bytes=4)
    content = decode_packet(raw_packet(good, body)).content
    evidence.note(str(content))
    blocks = (bytes(content.resume_token), bytes(content.auth))  # type: ignore[union-attr]  # a control body
    expect(blocks == (b"token", b"auth"), "token, then auth, as long as declared")
    expect_refusal(Outcome.LENGTH_MISMATCH, "more body than declared", decode_packet, raw_packet(good, body + b"!"))
    unknown = OPEN.replace(schema_version=99)
    link.client.machine.open_session(unknown)
    link.pump()
    code = link.client.last(SessionRefused).packet.metadata.session_error_code  # type: ignore[attr-defined]  # the ack
    expect(code == SessionErrorCode.SCHEMA_UNSUPPORTED, "an unknown default schema is refused with its code")


@case("l1.session.open_ack.fixed_metadata.validation")
def open_ack_metadata(evidence: Evidence) -> None:
    link = Link(evidence, policy=OpenPolicy(max_in_flight_operations=4, operation_credit=2, flags=4))
    mine, _ = link.open(OPEN.replace(max_in_flight_operations=100))
    expect(mine.terms.max_in_flight_operations == 4, "the allowed maximum is granted, not the request refused")
    expect(mine.window.limit == 2, "the granted credit is the window")
    expect(mine.terms.flags == SessionFlagsAck.CACHE_LEASES_ENABLED, "flags that are not granted are not acknowledged")
    request = OPEN.replace(requested_session_id=9, session_flags=SessionFlags(0))
    opened = SessionOpenAck(session_id=9)
    for answer, outcome in (
        (opened.replace(session_flags_ack=SessionFlagsAck(8)), Outcome.BAD_COMBINATION),
        (opened.replace(session_status=SessionStatus.RESUMED), Outcome.BAD_COMBINATION),
    ):
        expect_refusal(outcome, f"the answer {answer}", check_answer, request, answer, {})
    check_answer(request, opened.replace(session_flags_ack=SessionFlagsAck.PRIORITY_DOWNGRADED), {})
    for wrong in (
        SessionOpenAck(session_id=0),
        SessionOpenAck(session_id=1, session_flags_ack=SessionFlagsAck(1), resume_token_bytes=4),
        SessionOpenAck(session_id=1, session_flags_ack=SessionFlagsAck(1), resume_window_ms=4),
        SessionOpenAck(session_id=1, session_status=SessionStatus.REJECTED),
    ):
        expect_refusal(Outcome.BAD_COMBINATION, f"the answer {wrong}", SessionOpenAck.parse, wrong.pack())
    lower = Link(evidence, policy=OpenPolicy(highest_priority=PriorityClass.BACKGROUND))
    mine, _ = lower.open()
    expect(mine.terms.priority is PriorityClass.BACKGROUND, "a priority may be lowered")
    expect(mine.terms.flags & SessionFlagsAck.PRIORITY_DOWNGRADED, "and the answer says so")


@case("l1.session.close.state_machine.validation")
def close_states(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, theirs = link.open()
    _, running = link.submit(mine, TOKEN_SUBMIT)
    link.client.machine.close_session(mine, 0.0, drain_timeout_ms=1000)
    link.pump()
    expect((mine.state, theirs.state) == (SessionState.DRAINING, SessionState.DRAINING), "work in flight drains")
    link.to_server(TOKEN_SUBMIT, session_id=mine.session_id, frame_id=9)
    link.server.refused(Outcome.BAD_STATE, "a submit while draining is refused")
    link.finish(theirs, running, OperationState.COMPLETED, ResultPush())
    expect(mine.state is SessionState.CLOSED, "then the session is closed")
    link.to_server(SessionClose(), session_id=mine.session_id)
    link.server.refused(Outcome.BAD_STATE, "a second close is refused")
    link.to_server(SessionClose(), session_id=77)
    link.server.refused(Outcome.UNKNOWN_SESSION, "a close of an unknown session is refused")

    other, _ = link.open()
    link.client.machine.close_session(other, 0.0)
    link.client.machine.messages()
    for status, state in (
        (CloseStatus.ACKNOWLEDGED, SessionState.CLOSING),
        (CloseStatus.DRAINING, SessionState.DRAINING),
        (CloseStatus.REJECTED, SessionState.OPEN),
    ):
        link.to_client(SessionCloseAck(status), session_id=other.session_id)
        expect(other.state is state, f"{status.name.lower()} leads to {state.name.lower()}")
    link.client.machine.close_session(other, 0.0, policy=InFlightPolicy.ABORT)
    link.pump()
    expect(other.state is SessionState.CLOSED, "abort leads to closed")
    link.to_client(SessionCloseAck(CloseStatus.CLOSED), session_id=other.session_id)
    link.client.refused(Outcome.BAD_STATE, "an answer for a closed session is refused")


# Flow control


@case("l1.flow_update.connection.scope.validation")
def flow_connection(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, _ = link.open()
    before = mine.window.statistics()
    link.to_client(FlowUpdate(FlowScope.CONNECTION, connection_credit=1, credit_epoch=1, flow_flags=VALID))
    expect(link.client.machine.window.limit == 1, "the connection's window is the credit")
    expect(mine.window.statistics() == before, "nothing leaks into a session")
    link.submit(mine, TOKEN_SUBMIT)
    expect(mine.hold() is Hold.CREDIT, "it limits all sessions together")
    wrong = FlowUpdate(FlowScope.CONNECTION, connection_credit=9, credit_epoch=2, flow_flags=VALID)
    for update, session_id in ((wrong, 5), (wrong.replace(operation_id=9), 0), (wrong.replace(session_credit=1), 0)):
        data = raw_packet(update, session_id=session_id)
        expect_refusal(Outcome.BAD_COMBINATION, f"{update} for session {session_id}", decode_packet, data)


@case("l1.flow_update.session.scope.validation")
def flow_session(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, theirs = link.open()
    other, _ = link.open()
    link.server.machine.update_credit(0.0, session=theirs, credit=1, level=BackpressureLevel.HARD)
    link.pump()
    expect(mine.hold() is Hold.HARD, "hard stops new operations in that session")
    expect(other.hold() is None, "the effect stays in that session")
    link.server.machine.update_credit(0.0, session=theirs, credit=1)
    link.pump()
    expect(mine.hold() is None, "a later grant opens it again")
    wrong = FlowUpdate(FlowScope.SESSION, session_credit=9, credit_epoch=9, flow_flags=VALID)
    for update, session_id in (
        (wrong, 0),
        (wrong.replace(operation_id=9), 1),
        (wrong.replace(connection_credit=9), 1),
    ):
        data = raw_packet(update, session_id=session_id)
        expect_refusal(Outcome.BAD_COMBINATION, f"{update} for {session_id}", decode_packet, data)
    link.to_client(wrong, session_id=43)
    link.client.refused(Outcome.UNKNOWN_SESSION, "an update for an unknown session is refused")


@case("l1.flow_update.operation.scope.validation")
def flow_operation(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, _ = link.open(features=ALL_FEATURES)
    machine = link.client.machine
    for operation_id in (50, 60):
        machine.submit(mine, 0.0, context=SubmitContext(operation_id))
    update = FlowUpdate(
        FlowScope.OPERATION,
        UpdateReason.GRANT,
        operation_credit=1,
        operation_id=50,
        credit_epoch=1,
        flow_flags=VALID | FlowFlags.DRAIN_IN_FLIGHT_ONLY,
    )
    link.to_client(update, session_id=mine.session_id)
    expect(mine.hold(parent_id=50) is Hold.DRAIN_ONLY, "drain_in_flight_only holds work under that operation")
    expect(mine.hold(parent_id=60) is None and mine.hold() is None, "and nothing else")
    link.to_client(update.replace(credit_epoch=2, flow_flags=VALID), session_id=mine.session_id)
    machine.submit(mine, 0.0, context=SubmitContext(51, 50))
    expect(mine.hold(parent_id=50) is Hold.CREDIT, "operation_credit is what counts under it")
    for wrong, session_id in ((update.replace(operation_id=0), 1), (update, 0)):
        data = raw_packet(wrong, session_id=session_id)
        expect_refusal(Outcome.BAD_COMBINATION, f"{wrong} for {session_id}", decode_packet, data)


@case("l1.flow_update.credit_epoch.monotonicity.validation")
def flow_epochs(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, _ = link.open()
    other, _ = link.open()

    def update(session_id: int, epoch: int, credit: int, reason: UpdateReason = UpdateReason.GRANT) -> Applied:
        message = FlowUpdate(FlowScope.SESSION, reason, session_credit=credit, credit_epoch=epoch, flow_flags=VALID)
        link.to_client(message, session_id=session_id)
        return link.client.last(FlowReceived).applied

    expect(update(mine.session_id, 5, 4) is Applied.APPLIED, "the first epoch is free")
    expect(update(mine.session_id, 4, 0) is Applied.STALE and mine.window.limit == 4, "an older one is not applied")
    expect(update(mine.session_id, 5, 1) is Applied.DUPLICATE and mine.window.limit == 4, "nor an equal one")
    expect(update(other.session_id, 1, 2) is Applied.APPLIED, "epochs are counted per scope")
    update(mine.session_id, 6, 4, UpdateReason.PAUSE)
    expect(mine.hold() is Hold.PAUSED, "a pause holds")
    update(mine.session_id, 7, 2, UpdateReason.RESUME)
    expect(mine.hold() is None and mine.window.limit == 2, "a newer update replaces the backpressure completely")
    expect(not link.client.refusals, "a stale update is no error")


@case("l1.flow_update.preview3")
def flow_umbrella(evidence: Evidence) -> None:
    for part in (flow_connection, flow_session, flow_operation, flow_epochs):
        part(evidence)


# Resume


@case("l1.session.resume.from_operation.validation")
def resume_from_operation(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, theirs = link.open(OPEN.replace(requested_session_id=42))
    token = link.client.last(SessionOpened).resume_token
    expect(link.client.last(SessionOpened).outcome is ResumeOutcome.RESUME_ENABLED, "the answer enables resume")
    _, running = link.submit(mine, TOKEN_SUBMIT)
    link.server.machine.lose_transport()
    held = Resumable(42, token, 2, *ANCHOR.key, expires_at=120.0, oldest_event_id=1)
    request = ResumeRequest(42, token, 2, *ANCHOR.key, resume_from_operation_id=1)
    decision = decide_resume(request, held, 60.0, watermark_granted=True)
    expect(decision.plan is not None, "a valid token is accepted")
    plan = decision.plan
    expect(
        plan is not None and (plan.redelivery, plan.position) == (Redelivery.AFTER_OPERATION, 1),
        "recovery goes by operation watermark",
    )
    server = Connection(Side.SERVER, now=0.0, schemas=builtin_registry())
    body = token
    asked = OPEN.replace(requested_session_id=42, resume_token_bytes=len(token))
    server.receive(decode_packet(raw_packet(asked, body)), 0.0)
    opening = server.decide_open(OpenPolicy(), resume=lambda: decision)
    session = server.answer_open(opening, resume_token=b"next", carried=(running,))
    (answer,) = server.messages()
    evidence.note(f"answer: {answer.message}")
    expect(
        isinstance(answer.message, SessionOpenAck) and answer.message.session_status is SessionStatus.RESUMED,
        "the answer's status is resumed",
    )
    expect(session is not None and session.in_flight == 1, "what was in flight went on")
    expect(theirs.session_id == 42, "under the old session id")


@case("l1.session.resume.rejected.validation")
def resume_rejected(evidence: Evidence) -> None:
    held = Resumable(42, b"T" * 24, 2, *ANCHOR.key, principal="owner", expires_at=100.0)
    good = ResumeRequest(42, b"T" * 24, 2, *ANCHOR.key, principal="owner")
    attempts = {
        "invalid": (ResumeRequest(42, b"X" * 24, 2, *ANCHOR.key, principal="owner"), held, 50.0),
        "absent": (ResumeRequest(42, None, 2, *ANCHOR.key, principal="owner"), held, 50.0),
        "expired": (good, held, 100.0),
        "foreign": (ResumeRequest(42, b"T" * 24, 2, *ANCHOR.key, principal="other"), held, 50.0),
        "incompatible": (ResumeRequest(42, b"T" * 24, 1, *ANCHOR.key, principal="owner"), held, 50.0),
        "unknown": (good, None, 50.0),
    }
    for name, (request, resumable, now) in attempts.items():
        link = Link(evidence)
        link.server.receive(raw_packet(OPEN.replace(requested_session_id=42, resume_token_bytes=24), b"T" * 24))
        machine = link.server.machine
        if machine.opens_outstanding:
            decision = decide_resume(request, resumable, now)
            evidence.note(f"{name}: {decision.refusal}")
            opening = machine.decide_open(OpenPolicy(), resume=partial(decide_resume, request, resumable, now))
            machine.answer_open(opening)
        (outgoing,) = machine.messages()
        answer = outgoing.message
        expect(isinstance(answer, SessionOpenAck), f"{name}: answered by SESSION_OPEN_ACK")
        outcome = classify_answer(answer.session_status, 0, answer.session_error_code)  # type: ignore[attr-defined]
        expect(outcome is ResumeOutcome.RESUME_REJECTED, f"{name}: resume_rejected")
        expect(machine.sessions == {}, f"{name}: nothing is installed, no frame is recovered")
        expect(machine.state is ConnectionState.OPEN, f"{name}: the connection stays")
    expect(decide_resume(good, held, 50.0).plan is not None, "the owner can still resume")


# The container


@case("l1.connection.session_container.parallel_open.validation")
def parallel_open(evidence: Evidence) -> None:
    link = Link(evidence)
    for tag in (1, 2, 3):
        link.client.machine.open_session(OPEN.replace(client_session_tag=tag, max_in_flight_operations=tag))
    link.pump()
    opened = [each.session for each in link.client.events if isinstance(each, SessionOpened)]
    expect([each.terms.client_session_tag for each in opened] == [1, 2, 3], "answers match requests in order")
    expect(len({each.session_id for each in opened}) == 3, "each session has its own id")
    link.submit(opened[0], TOKEN_SUBMIT)
    expect(opened[0].hold() is Hold.CREDIT, "the first session has used its credit")
    expect(opened[1].hold() is None, "the others have not")
    expect([each.in_flight for each in opened] == [1, 0, 0], "sessions share no state")


@case("l1.session.close.sibling_survival.validation")
def sibling_survival(evidence: Evidence) -> None:
    link = Link(evidence)
    first, _ = link.open()
    second, theirs = link.open()
    _, running = link.submit(second, TOKEN_SUBMIT)
    link.client.machine.close_session(first, 0.0, policy=InFlightPolicy.ABORT)
    link.pump()
    expect(first.state is SessionState.CLOSED, "the one session is closed")
    expect(second.open and second.in_flight == 1, "its sibling is open and works on")
    link.finish(theirs, running, OperationState.COMPLETED, ResultPush())
    expect(link.client.machine.state is ConnectionState.OPEN, "the connection is open")
    link.nothing_refused()


@case("l1.connection.close.session_cascade.validation")
def session_cascade(evidence: Evidence) -> None:
    link = Link(evidence)
    first, _ = link.open()
    second, theirs = link.open()
    _, running = link.submit(second, TOKEN_SUBMIT)
    link.client.machine.close(0.0)
    link.pump()
    expect_local_refusal("no new work while the connection drains", link.client.machine.submit, first, 0.0)
    link.finish(theirs, running, OperationState.COMPLETED, ResultPush())
    expect((first.state, second.state) == (SessionState.CLOSED, SessionState.CLOSED), "every session is closed")
    traffic = ((OPEN, 0, 0), (TOKEN_SUBMIT, second.session_id, 7), (Close(), 0, 0))
    for message, session_id, frame_id in traffic:
        link.server.receive(raw_packet(message, session_id=session_id, frame_id=frame_id))
        link.server.refused(Outcome.BAD_STATE, f"{message.TYPE.name} after the close is refused")
