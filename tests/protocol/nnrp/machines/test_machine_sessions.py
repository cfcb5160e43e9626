"""Sessions over a link: opening, work, cancel, close, resume, migration, cache (nnrp-wire 13.2 – 13.10)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import pytest

from protocol.nnrp.bodies import ControlBody
from protocol.nnrp.descriptors import BodyRegionPrelude, ObjectReference, SchemaDescriptor, TypedPayloadDescriptor
from protocol.nnrp.enums import (
    AckStatus,
    CacheAckStatus,
    CacheErrorCode,
    CancelReason,
    CancelScopeKind,
    CloseReason,
    CloseStatus,
    DependencyKind,
    DescriptorFlags,
    ErrorCode,
    ErrorScope,
    ExtensionKind,
    InFlightPolicy,
    InvalidateScope,
    LeaseOwnerScope,
    ObjectKind,
    ObjectRefMask,
    OperationFeatures,
    OperationState,
    PatchMask,
    PayloadKind,
    PriorityClass,
    ResultClass,
    SchemaErrorCode,
    SchemaFlags,
    SessionErrorCode,
    SessionFlags,
    SessionState,
    SubmitMode,
    TransportId,
    UpdateReason,
)
from protocol.nnrp.errors import NnrpError, NnrpLocalError, Outcome
from protocol.nnrp.extensions import ObjectMetaEntry
from protocol.nnrp.header import Header
from protocol.nnrp.machines.cache_records import CacheEntry, CacheKey
from protocol.nnrp.machines.closing import ANSWER_GRACE, OVERTAKEN, SETTLE_GRACE
from protocol.nnrp.machines.connection import Connection, Side
from protocol.nnrp.machines.credit import Window
from protocol.nnrp.machines.events import (
    CacheAnswered,
    CacheInvalidated,
    CachePutDone,
    CancelReceived,
    DropReceived,
    HintReceived,
    Ignored,
    IgnoredBecause,
    MigrateAnswered,
    MigrateReceived,
    PatchAnswered,
    PatchReceived,
    ResultReceived,
    SessionCloseProgress,
    SessionOpened,
    SessionRefused,
    SubmitReceived,
)
from protocol.nnrp.machines.migration import MigrationAnswer, MigrationEffect, MigrationRefusal, decide_migration
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.patching import PatchPolicy
from protocol.nnrp.machines.reading import cancel_scope
from protocol.nnrp.machines.resume import Resumable, ResumeOutcome, ResumeRequest, decide_resume
from protocol.nnrp.machines.schemas import builtin_registry
from protocol.nnrp.machines.session import Delivery, Ending, Session
from protocol.nnrp.machines.terms import SessionTerms
from protocol.nnrp.messages import (
    CacheAck,
    CacheInvalidate,
    CachePut,
    Error,
    FrameCancel,
    FrameSubmit,
    ResultDrop,
    ResultHint,
    ResultPush,
    SessionClose,
    SessionCloseAck,
    SessionMigrate,
    SessionOpen,
    SessionPatch,
)
from protocol.nnrp.regions import ExtensionFrame, Regions, TypedPayload
from protocol.nnrp.vendor import (
    CancelScope,
    Dependency,
    LeaseInfo,
    ObjectExpect,
    ObjectMeta,
    OperationStateBlock,
    SubmitContext,
)
from tests.protocol.nnrp.machines.duo import ALL_FEATURES, TOKEN_SUBMIT, Duo

S = OperationState
TOKEN = PayloadKind.TOKEN_CHUNK


@pytest.fixture
def duo() -> Duo:
    made = Duo()
    made.connect()
    return made


def served(theirs: Session, frame_id: int) -> Operation:
    found = theirs.operations.of_frame(frame_id)
    assert found is not None
    return found


def finish(duo: Duo, theirs: Session, operation: Operation, wanted: S) -> Ending:
    """What a server's driver does with an outcome: the terminal message first, then what the machine queued."""
    ending = duo.server.machine.finish(theirs, operation, wanted, duo.now)
    if ending is not Ending.SILENT:
        message = ResultPush() if ending is Ending.PUSH else ResultDrop()
        duo.to_client(message, session_id=theirs.session_id, frame_id=operation.frame_id)
    duo.pump()
    return ending


def submit_in_tree(duo: Duo, session: Session, context: SubmitContext) -> Operation:
    operation = duo.client.machine.submit(session, duo.now, context=context)
    frame = ExtensionFrame.of(ExtensionKind.SUBMIT_CONTEXT, context)
    body = Regions(extensions=(frame,))
    duo.to_server(TOKEN_SUBMIT, b"".join(body.build()), session_id=session.session_id, frame_id=operation.frame_id)
    return operation


# Opening


def test_many_sessions_without_shared_state(duo: Duo) -> None:
    """nnrp-wire 13.1 and l1.connection.session_container: answers match requests in order."""
    for tag in range(1, 4):
        duo.client.machine.open_session(SessionOpen(profile_id=2, client_session_tag=tag, max_in_flight_operations=tag))
    duo.pump()
    opened = [event.session for event in duo.client.events if isinstance(event, SessionOpened)]
    assert [each.terms.client_session_tag for each in opened] == [1, 2, 3]
    assert [each.session_id for each in opened] == [1, 2, 3]
    assert [each.window.limit for each in opened] == [1, 2, 3]
    duo.submit(opened[0])
    assert [each.in_flight for each in opened] == [1, 0, 0]


def test_a_refused_session_leaves_the_connection(duo: Duo) -> None:
    duo.client.machine.open_session(SessionOpen(profile_id=9))
    duo.pump()
    refused = duo.client.last(SessionRefused)
    assert refused.packet.metadata.session_error_code == SessionErrorCode.PROFILE_UNSUPPORTED  # type: ignore[attr-defined]
    assert refused.outcome is ResumeOutcome.NOT_INSTALLED
    assert duo.client.machine.sessions == duo.server.machine.sessions == {}
    assert duo.open()[0].session_id == 1


def test_an_id_in_use_is_refused(duo: Duo) -> None:
    duo.open(session_id=5)
    duo.client.machine.open_session(SessionOpen(requested_session_id=5, profile_id=2))
    duo.pump()
    code = duo.client.last(SessionRefused).packet.metadata.session_error_code  # type: ignore[attr-defined]  # the ack
    assert code == SessionErrorCode.SESSION_LIMIT_REACHED
    assert list(duo.server.machine.sessions) == [5]


def test_an_answer_without_a_request_is_bad_state(duo: Duo) -> None:
    from protocol.nnrp.messages import SessionOpenAck

    duo.to_client(SessionOpenAck(session_id=3), session_id=3)
    assert duo.client.errors[-1].outcome is Outcome.BAD_STATE


def test_an_acknowledged_flag_that_was_not_asked_for() -> None:
    """Vector reject.open_ack_unrequested_flag."""
    from protocol.nnrp.enums import SessionFlagsAck
    from protocol.nnrp.messages import SessionOpenAck

    duo = Duo(answer=False)
    duo.client.machine.open_session(SessionOpen(requested_session_id=42, session_flags=SessionFlags(1)))
    duo.pump()
    duo.to_client(SessionOpenAck(session_id=42, session_flags_ack=SessionFlagsAck(4)), session_id=42)
    assert duo.client.errors[-1].outcome is Outcome.BAD_COMBINATION
    assert duo.client.machine.sessions == {}


def test_a_token_goes_with_resume_enabled(duo: Duo) -> None:
    duo.answer = False
    duo.client.machine.open_session(SessionOpen(profile_id=2, session_flags=SessionFlags.ALLOW_RESUME))
    duo.pump()
    decision = duo.server.machine.decide_open(duo.policy)
    with pytest.raises(NnrpLocalError, match="token"):
        duo.server.machine.answer_open(decision)
    duo.server.machine.answer_open(decision, resume_token=b"secret")
    duo.pump()
    event = duo.client.last(SessionOpened)
    assert (event.resume_token, event.outcome) == (b"secret", ResumeOutcome.RESUME_ENABLED)


# Work


def test_partial_then_complete(duo: Duo) -> None:
    """nnrp-wire 13.4, l1.operation.lifecycle.progression: partial does not end it; it ends once."""
    mine, theirs = duo.open()
    operation = duo.submit(mine)
    carried_out = served(theirs, 1)
    machine = duo.server.machine
    assert machine.progress(theirs, carried_out, S.RUNNING)
    for _ in range(2):
        assert machine.progress(theirs, carried_out, S.PARTIAL)
        duo.to_client(ResultPush(result_class=ResultClass.PARTIAL), session_id=1, frame_id=1)
        event = duo.client.last(ResultReceived)
        assert (event.delivery, event.state) == (Delivery.PROGRESS, S.PARTIAL)
    assert finish(duo, theirs, carried_out, S.COMPLETED) is Ending.PUSH
    assert duo.client.last(ResultReceived).delivery is Delivery.FINAL
    assert operation.state is carried_out.state is S.COMPLETED
    assert mine.in_flight == theirs.in_flight == 0
    duo.to_client(ResultPush(), session_id=1, frame_id=1)
    assert duo.client.errors[-1].outcome is Outcome.BAD_TRANSITION, "an operation ends once"
    with pytest.raises(ValueError, match="settled twice"):
        machine.finish(theirs, carried_out, S.COMPLETED, 0.0)


def test_a_result_for_a_frame_that_was_never_submitted(duo: Duo) -> None:
    duo.open()
    duo.to_client(ResultPush(), session_id=1, frame_id=7)
    assert duo.client.errors[-1].outcome is Outcome.UNKNOWN_OPERATION


def test_results_may_overtake_each_other(duo: Duo) -> None:
    """nnrp-wire 13.4: out of submit order."""
    mine, theirs = duo.open()
    for _ in range(3):
        duo.submit(mine)
    for frame in (3, 1, 2):
        finish(duo, theirs, served(theirs, frame), S.COMPLETED)
    frames = [event.packet.header.frame_id for event in duo.client.events if isinstance(event, ResultReceived)]
    assert frames == [3, 1, 2]


def test_waiting_tool_is_public_state_under_the_extension(duo: Duo) -> None:
    """nnrp-wire 12.2, nnrp-extensions State, l1.operation.lifecycle.waiting_tool."""
    mine, theirs = duo.open(features=ALL_FEATURES)
    operation = duo.submit(mine)
    carried_out = served(theirs, 1)
    for state in (S.RUNNING, S.WAITING_TOOL, S.RUNNING):
        assert duo.server.machine.progress(theirs, carried_out, state)
        frame = ExtensionFrame.of(ExtensionKind.OPERATION_STATE, OperationStateBlock(1, state, 0, 9))
        push = ResultPush(result_class=ResultClass.PARTIAL, payload_kind_bitmap=TOKEN)
        duo.to_client(push, b"".join(Regions(extensions=(frame,)).build()), session_id=1, frame_id=1)
        assert operation.state is state
    with pytest.raises(NnrpError) as caught:
        duo.server.machine.progress(theirs, carried_out, S.ACCEPTED)
    assert caught.value.outcome is Outcome.BAD_TRANSITION
    finish(duo, theirs, carried_out, S.COMPLETED)


def test_waiting_tool_cannot_complete_directly(duo: Duo) -> None:
    """nnrp-wire 13.4: waiting_tool → completed is BadTransition."""
    mine, theirs = duo.open()
    duo.submit(mine)
    carried_out = served(theirs, 1)
    duo.server.machine.progress(theirs, carried_out, S.WAITING_TOOL)
    with pytest.raises(NnrpError) as caught:
        duo.server.machine.finish(theirs, carried_out, S.COMPLETED, 0.0)
    assert caught.value.outcome is Outcome.BAD_TRANSITION
    assert theirs.in_flight == 1


@pytest.mark.parametrize(
    ("descriptors", "state"),
    [
        ((DescriptorFlags.PARTIAL,), S.PARTIAL),
        ((DescriptorFlags.PARTIAL, DescriptorFlags.TERMINAL), S.COMPLETED),
        ((DescriptorFlags(0),), S.COMPLETED),
    ],
)
def test_descriptors_say_partial(duo: Duo, descriptors: tuple[DescriptorFlags, ...], state: S) -> None:
    """nnrp-wire 13.4 mapping: descriptor partial without terminal."""
    mine, _ = duo.open()
    duo.submit(mine)
    payloads = tuple(
        TypedPayload.of(b"x", profile_id=2, schema_id=0x1001, schema_version=3, flags=flags) for flags in descriptors
    )
    push = ResultPush(payload_kind_bitmap=TOKEN, payload_frame_count=len(payloads))
    duo.to_client(push, b"".join(Regions(payloads).build()), session_id=1, frame_id=1)
    assert duo.client.last(ResultReceived).state is state


@pytest.mark.parametrize(
    ("frame_budget", "context_ms", "deadline"),
    [(0, 0, 100.5), (200, 0, 100.2), (200, 50, 100.05), (0, 50, 100.05)],
)
def test_deadline_of_an_operation(frame_budget: int, context_ms: int, deadline: float) -> None:
    """nnrp-wire 13.4 and nnrp-extensions: submit_context, else the frame's budget, else the session's default."""
    duo = Duo()
    duo.connect()
    duo.client.machine.open_session(
        SessionOpen(profile_id=2, default_deadline_ms=500, max_in_flight_operations=4), features=ALL_FEATURES
    )
    duo.pump()
    session = duo.client.last(SessionOpened).session
    context = SubmitContext(7, deadline_ms=context_ms) if context_ms else None
    operation = duo.client.machine.submit(session, 100.0, latency_budget_ms=frame_budget, context=context)
    assert operation.deadline == pytest.approx(deadline)


def test_without_any_budget_there_is_no_deadline(duo: Duo) -> None:
    mine, theirs = duo.open()
    assert duo.submit(mine).deadline == math.inf
    assert served(theirs, 1).deadline == math.inf


def test_a_submit_superseding_another(duo: Duo) -> None:
    """nnrp-extensions Submit: the old one ends superseded, and gets its one terminal message."""
    mine, theirs = duo.open(features=ALL_FEATURES)
    old = submit_in_tree(duo, mine, SubmitContext(50))
    submit_in_tree(duo, mine, SubmitContext(51, supersedes_operation_id=50))
    event = duo.server.last(SubmitReceived)
    assert event.superseded is theirs.operations.get(50)
    assert event.superseded is not None
    assert old.state is event.superseded.state is S.SUPERSEDED
    assert finish(duo, theirs, event.superseded, S.COMPLETED) is Ending.DROP
    assert duo.client.last(DropReceived).operation is old
    assert old.state is S.SUPERSEDED
    submit_in_tree(duo, mine, SubmitContext(52, supersedes_operation_id=50))
    assert duo.server.last(SubmitReceived).superseded is None, "it had ended already: no error"


def test_priority_of_an_operation(duo: Duo) -> None:
    from protocol.nnrp.enums import OperationPriority

    mine, _ = duo.open(features=ALL_FEATURES)
    inherited = duo.client.machine.submit(mine, 0.0, context=SubmitContext(50))
    lower = duo.client.machine.submit(mine, 0.0, context=SubmitContext(51, priority_class=OperationPriority.BACKGROUND))
    assert (inherited.priority, lower.priority) == (PriorityClass.BALANCED, PriorityClass.BACKGROUND)


def test_submit_context_needs_its_grant(duo: Duo) -> None:
    mine, _ = duo.open()
    with pytest.raises(NnrpLocalError, match="not granted"):
        duo.client.machine.submit(mine, 0.0, context=SubmitContext(50))


def test_frame_ids_rise_on_the_submitting_side(duo: Duo) -> None:
    """nnrp-wire 3.2."""
    mine, _ = duo.open()
    duo.submit(mine, frame_id=5)
    with pytest.raises(NnrpLocalError, match="rise"):
        duo.client.machine.submit(mine, 0.0, frame_id=5)
    assert mine.next_frame_id == 6
    assert duo.submit(mine, frame_id=0xFFFF_FFFF).frame_id == 0xFFFF_FFFF
    with pytest.raises(NnrpLocalError, match="used up"):
        duo.client.machine.submit(mine, 0.0)


def test_hint(duo: Duo) -> None:
    mine, theirs = duo.open()
    duo.server.machine.send_hint(theirs, ResultHint())
    duo.pump()
    assert duo.client.last(HintReceived).session is mine


# Cancel


def test_cancel_and_the_late_result(duo: Duo) -> None:
    """nnrp-wire 13.4: cancelled at once, a late result is suppressed, exactly one terminal message."""
    mine, theirs = duo.open()
    operation = duo.submit(mine)
    carried_out = served(theirs, 1)
    assert duo.client.machine.cancel(mine, operation_id=1) == (operation,)
    duo.pump()
    assert duo.server.last(CancelReceived).operations == (carried_out,)
    assert carried_out.state is S.CANCELLED
    assert not duo.server.machine.progress(theirs, carried_out, S.PARTIAL), "nothing may be sent any more"
    assert mine.in_flight == theirs.in_flight == 1
    assert finish(duo, theirs, carried_out, S.COMPLETED) is Ending.DROP
    assert duo.client.last(DropReceived).operation is operation
    assert operation.state is S.CANCELLED
    assert mine.in_flight == theirs.in_flight == 0


def test_a_result_that_crossed_the_cancel_is_ignored_by_the_client(duo: Duo) -> None:
    mine, theirs = duo.open()
    operation = duo.submit(mine)
    duo.client.machine.cancel(mine, operation_id=1)
    assert finish(duo, theirs, served(theirs, 1), S.COMPLETED) is Ending.PUSH
    assert duo.client.last(ResultReceived).delivery is Delivery.LATE
    assert operation.state is S.CANCELLED
    assert mine.in_flight == 0
    duo.pump()
    assert duo.server.last(Ignored).because is IgnoredBecause.UNKNOWN_CANCEL_TARGET


def test_a_cancel_of_an_unknown_frame_is_ignored(duo: Duo) -> None:
    """nnrp-wire 13.4, 18 item 39."""
    duo.open()
    duo.to_server(FrameCancel(), session_id=1, frame_id=7)
    duo.server.last(Ignored)
    assert duo.server.machine.counters.ignored_cancels == 1
    assert not duo.server.errors


@pytest.mark.parametrize(
    ("scope", "arguments", "reached"),
    [
        (CancelScopeKind.OPERATION, {"operation_id": 2}, [2]),
        (CancelScopeKind.SUBTREE, {"operation_id": 2}, [2, 3]),
        (CancelScopeKind.GROUP, {"group_id": 9}, [4, 5]),
        (CancelScopeKind.SESSION, {}, [1, 2, 3, 4, 5]),
    ],
)
def test_the_four_scopes_over_the_wire(scope: CancelScopeKind, arguments: dict[str, int], reached: list[int]) -> None:
    """C-062: the sets, the untouched rest, the other session, one terminal each."""
    duo = Duo()
    duo.policy = duo.policy.__class__(max_in_flight_operations=8, operation_credit=8)
    duo.connect()
    x, their_x = duo.open(features=ALL_FEATURES)
    y, their_y = duo.open(features=ALL_FEATURES)
    for context in (
        SubmitContext(1),
        SubmitContext(2, 1),
        SubmitContext(3, 2),
        SubmitContext(4, 0, 9),
        SubmitContext(5, 0, 9),
    ):
        submit_in_tree(duo, x, context)
    submit_in_tree(duo, y, SubmitContext(1))
    duo.client.machine.cancel(x, scope, reason=CancelReason.USER, **arguments)
    duo.pump()
    event = duo.server.last(CancelReceived)
    assert [each.operation_id for each in event.operations] == reached
    assert event.reason is CancelReason.USER
    for operation in list(their_x.operations):
        finish(duo, their_x, operation, S.COMPLETED)
    finish(duo, their_y, served(their_y, 1), S.COMPLETED)
    drops = [each.operation.operation_id for each in duo.client.events if isinstance(each, DropReceived)]
    results = [each.operation.operation_id for each in duo.client.events if isinstance(each, ResultReceived)]
    assert drops == reached
    assert sorted(results) == sorted([*(set(range(1, 6)) - set(reached)), 1])
    assert not duo.client.errors
    assert not duo.server.errors


def test_wider_scopes_without_the_grant_are_carried_out_here(duo: Duo) -> None:
    """nnrp-wire 10 item 4: between endpoints that did not agree, one FRAME_CANCEL for each operation."""
    mine, theirs = duo.open()
    for _ in range(3):
        duo.submit(mine)
    duo.client.machine.cancel(mine, CancelScopeKind.SESSION)
    duo.pump()
    cancels = duo.sent("c2s", FrameCancel)
    assert [(each.header.frame_id, each.body) for each in cancels] == [(1, b""), (2, b""), (3, b"")]
    assert all(each.state is S.CANCELLED for each in theirs.operations)


def test_the_server_cancels_by_itself(duo: Duo) -> None:
    """Deadline, shutdown, policy: no message but the RESULT_DROP."""
    mine, theirs = duo.open()
    operation = duo.submit(mine)
    (cancelled,) = duo.server.machine.cancel_here(theirs, CancelScopeKind.OPERATION, 1)
    assert finish(duo, theirs, cancelled, S.CANCELLED) is Ending.DROP
    assert operation.state is S.FAILED, "without operation_state a drop nobody asked for means failed"


# Closing


def test_closing_an_idle_session(duo: Duo) -> None:
    """nnrp-wire 13.3; siblings stay."""
    mine, theirs = duo.open()
    sibling, _ = duo.open()
    duo.client.machine.close_session(mine, 0.0, reason=CloseReason.CLIENT_SHUTDOWN, tag=9)
    duo.pump()
    step = duo.client.last(SessionCloseProgress).step
    assert step.closed
    assert mine.state is theirs.state is SessionState.CLOSED
    assert list(duo.client.machine.sessions) == list(duo.server.machine.sessions) == [2]
    duo.submit(sibling)
    with pytest.raises(NnrpError) as caught:
        duo.client.machine.close_session(mine, 0.0)
    assert caught.value.outcome is Outcome.BAD_STATE


def test_drain_with_time(duo: Duo) -> None:
    """nnrp-wire 13.3: draining, results go on, then closed; new work is BadState meanwhile."""
    mine, theirs = duo.open()
    duo.submit(mine)
    duo.client.machine.close_session(mine, 0.0, drain_timeout_ms=1000)
    duo.pump()
    assert mine.state is theirs.state is SessionState.DRAINING
    duo.to_server(TOKEN_SUBMIT, session_id=1, frame_id=2)
    error = duo.server.errors.pop()
    assert (error.outcome, error.frame_id) == (Outcome.BAD_STATE, 2)
    assert finish(duo, theirs, served(theirs, 1), S.COMPLETED) is Ending.PUSH
    assert duo.client.last(ResultReceived).delivery is Delivery.FINAL
    assert mine.state is theirs.state is SessionState.CLOSED
    statuses = [each.metadata.close_status for each in duo.sent("s2c", SessionCloseAck)]  # type: ignore[attr-defined]
    assert statuses == [CloseStatus.DRAINING, CloseStatus.CLOSED]
    (closed_at,) = [
        i for i, (_, each) in enumerate(duo.wire) if getattr(each.metadata, "close_status", None) is CloseStatus.CLOSED
    ]
    (result_at,) = [i for i, (_, each) in enumerate(duo.wire) if isinstance(each.metadata, ResultPush)]
    assert result_at < closed_at


def test_leftovers_of_a_drain_are_cancelled(duo: Duo) -> None:
    """nnrp-wire 13.3: until empty or timeout; leftovers are cancelled."""
    mine, theirs = duo.open()
    duo.submit(mine)
    duo.client.machine.close_session(mine, 0.0, drain_timeout_ms=1000)
    duo.pump()
    server = duo.server.machine
    assert server.next_deadline() == 1.0
    assert server.handle_deadline(0.9) == []
    (event,) = server.handle_deadline(1.0)
    (cancelled,) = event.step.cancelled
    assert cancelled.state is S.CANCELLED
    assert finish(duo, theirs, cancelled, S.CANCELLED) is Ending.DROP
    assert mine.state is theirs.state is SessionState.CLOSED


def test_a_drain_ends_at_the_watermark(duo: Duo) -> None:
    """nnrp-wire 13.3: operations beyond last_operation_id are not waited for; what has settled by itself is no matter."""
    mine, theirs = duo.open()
    for _ in range(3):
        duo.submit(mine)
    server = duo.server.machine
    duo.to_server(SessionClose(drain_timeout_ms=1000, last_operation_id=2), session_id=1)
    finish(duo, theirs, served(theirs, 1), S.COMPLETED)
    assert server.next_deadline() == 1.0
    finish(duo, theirs, served(theirs, 2), S.COMPLETED)
    assert theirs.state is SessionState.DRAINING
    assert server.next_deadline() == 0.0
    (event,) = server.handle_deadline(0.0)
    assert [each.frame_id for each in event.step.cancelled] == [3]
    assert finish(duo, theirs, event.step.cancelled[0], S.CANCELLED) is Ending.DROP
    assert theirs.state is SessionState.CLOSED
    statuses = [each.metadata.close_status for each in duo.sent("s2c", SessionCloseAck)]  # type: ignore[attr-defined]
    assert statuses == [CloseStatus.DRAINING, CloseStatus.CLOSED]


@pytest.mark.parametrize(
    ("policy", "timeout"), [(InFlightPolicy.DRAIN, 0), (InFlightPolicy.ABORT, 0), (InFlightPolicy.ABORT, 5000)]
)
def test_apply_at_once(duo: Duo, policy: InFlightPolicy, timeout: int) -> None:
    """nnrp-wire 13.3: cancel all in flight, answer closed."""
    mine, theirs = duo.open()
    duo.submit(mine)
    duo.submit(mine)
    duo.client.machine.close_session(mine, 0.0, policy=policy, drain_timeout_ms=timeout)
    duo.pump()
    cancelled = duo.server.last(SessionCloseProgress).step.cancelled
    assert [each.frame_id for each in cancelled] == [1, 2]
    assert duo.sent("s2c", SessionCloseAck) == []
    for operation in cancelled:
        assert finish(duo, theirs, operation, S.COMPLETED) is Ending.DROP
    assert [each.metadata.close_status for each in duo.sent("s2c", SessionCloseAck)] == [  # type: ignore[attr-defined]
        CloseStatus.CLOSED
    ]
    assert mine.state is SessionState.CLOSED
    assert duo.client.machine.in_flight == duo.server.machine.in_flight == 0


def test_an_operation_that_does_not_settle_cannot_hold_the_close(duo: Duo) -> None:
    mine, theirs = duo.open()
    duo.submit(mine)
    duo.client.machine.close_session(mine, 0.0, policy=InFlightPolicy.ABORT)
    duo.pump()
    (stuck,) = duo.server.last(SessionCloseProgress).step.cancelled
    (event,) = duo.server.machine.handle_deadline(SETTLE_GRACE)
    assert event.step.closed
    assert event.step.abandoned == (stuck,)
    duo.pump()
    assert mine.state is SessionState.CLOSED
    assert duo.server.machine.in_flight == 0
    assert duo.server.machine.finish(theirs, stuck, S.COMPLETED, 9.0) is Ending.SILENT


def test_the_server_closes(duo: Duo) -> None:
    """Either end may ask (nnrp-wire 5); the client answers when its last result has come."""
    mine, theirs = duo.open()
    duo.submit(mine)
    duo.server.machine.close_session(theirs, 0.0, reason=CloseReason.SERVER_SHUTDOWN, drain_timeout_ms=500)
    duo.pump()
    assert mine.state is theirs.state is SessionState.DRAINING
    finish(duo, theirs, served(theirs, 1), S.COMPLETED)
    assert mine.state is theirs.state is SessionState.CLOSED
    assert not duo.client.errors
    assert not duo.server.errors


@pytest.mark.parametrize("lets_go", [True, False])
def test_the_server_aborts(duo: Duo, lets_go: bool) -> None:
    """nnrp-wire 13.3, 13.4: what is cut has its terminal message before SESSION_CLOSE, because a client that has read that
    waits for none; nothing new starts meanwhile."""
    mine, theirs = duo.open()
    operation = duo.submit(mine)
    machine = duo.server.machine
    step = machine.close_session(theirs, 0.0, policy=InFlightPolicy.ABORT)
    assert [each.frame_id for each in step.cancelled] == [1]
    assert machine.messages() == []
    duo.to_server(TOKEN_SUBMIT, session_id=1, frame_id=2)
    assert duo.server.errors.pop().outcome is Outcome.BAD_STATE
    duo.wire.clear()
    if lets_go:
        finish(duo, theirs, step.cancelled[0], S.CANCELLED)
    else:
        (event,) = machine.handle_deadline(SETTLE_GRACE)
        assert event.step.abandoned == step.cancelled
        duo.pump()
        assert machine.finish(theirs, step.cancelled[0], S.CANCELLED, 9.0) is Ending.SILENT
    kinds = [type(packet.metadata) for way, packet in duo.wire if way == "s2c"]
    assert kinds == [ResultDrop, SessionClose]
    assert operation.settled
    assert mine.state is theirs.state is SessionState.CLOSED


def test_the_server_cuts_its_own_drain(duo: Duo) -> None:
    """nnrp-wire 13.3: leftovers are cancelled at the timeout, whoever has asked."""
    mine, theirs = duo.open()
    operation = duo.submit(mine)
    duo.server.machine.close_session(theirs, 0.0, drain_timeout_ms=500)
    duo.pump()
    assert mine.state is SessionState.DRAINING
    (event,) = duo.server.machine.handle_deadline(0.5)
    (left,) = event.step.cancelled
    finish(duo, theirs, left, S.COMPLETED)
    assert operation.state is S.FAILED
    assert mine.state is theirs.state is SessionState.CLOSED
    assert not duo.client.errors
    assert not duo.server.errors


def results_late(duo: Duo, *frames: int) -> None:
    """The drops of these frames arrive behind what was sent after them."""
    for frame in frames:
        duo.to_client(ResultDrop(), session_id=1, frame_id=frame)


def test_an_answer_to_a_close_that_overtakes_results(duo: Duo) -> None:
    """nnrp-wire 2.4, 13.3: over QUIC the last SESSION_CLOSE_ACK may come before results that were sent before it; they are
    waited for, a while."""
    duo.client.machine.ordered = False
    mine, _ = duo.open()
    first, second = duo.submit(mine), duo.submit(mine)
    duo.client.machine.close_session(mine, 0.0)
    duo.client.machine.messages()
    duo.to_client(SessionCloseAck(CloseStatus.CLOSED), session_id=1)
    assert mine.state is SessionState.DRAINING
    results_late(duo, 1)
    assert first.settled
    assert mine.state is SessionState.DRAINING
    results_late(duo, 2)
    assert second.settled
    assert mine.state is SessionState.CLOSED
    assert 1 not in duo.client.machine.sessions


def test_results_that_never_come_hold_up_no_close(duo: Duo) -> None:
    duo.client.machine.ordered = False
    mine, _ = duo.open()
    operation = duo.submit(mine)
    duo.client.machine.close_session(mine, 0.0)
    duo.client.machine.messages()
    duo.to_client(SessionCloseAck(CloseStatus.CLOSED), session_id=1)
    (event,) = duo.client.machine.handle_deadline(OVERTAKEN)
    assert event.step.closed
    assert event.step.abandoned == (operation,)


def test_a_close_of_the_server_that_overtakes_results(duo: Duo) -> None:
    """nnrp-wire 2.4, 13.3: an abort is answered when what was sent before it has come."""
    duo.client.machine.ordered = False
    mine, _ = duo.open()
    operation = duo.submit(mine)
    duo.to_client(SessionClose(in_flight_policy=InFlightPolicy.ABORT), session_id=1)
    assert mine.state is SessionState.CLOSING
    results_late(duo, 1)
    assert operation.settled
    assert mine.state is SessionState.CLOSED


@pytest.mark.parametrize("scope", [CancelScopeKind.SUBTREE, CancelScopeKind.GROUP, CancelScopeKind.SESSION])
def test_a_wide_cancel_where_packets_overtake_each_other(duo: Duo, scope: CancelScopeKind) -> None:
    """nnrp-wire 2.4, 10.4: one FRAME_CANCEL for each operation it reaches here, with its reason; no scope at the peer."""
    duo.client.machine.ordered = False
    mine, _ = duo.open(features=ALL_FEATURES)
    submit_in_tree(duo, mine, SubmitContext(10, operation_group_id=9))
    submit_in_tree(duo, mine, SubmitContext(11, 10, operation_group_id=9))
    arguments = {
        CancelScopeKind.SUBTREE: {"operation_id": 10},
        CancelScopeKind.GROUP: {"group_id": 9},
        CancelScopeKind.SESSION: {},
    }[scope]
    duo.client.machine.cancel(mine, scope, reason=CancelReason.USER, **arguments)
    duo.pump()
    cancels = duo.sent("c2s", FrameCancel)
    assert [each.header.frame_id for each in cancels] == [1, 2]
    for each, operation_id in zip(cancels, (10, 11), strict=True):
        assert cancel_scope(each) == CancelScope(CancelScopeKind.OPERATION, CancelReason.USER, operation_id)


def test_closes_that_cross(duo: Duo) -> None:
    """Both ask at once: the carrying-out end answers, the other end waits for that answer."""
    mine, theirs = duo.open()
    duo.client.machine.close_session(mine, 0.0)
    duo.server.machine.close_session(theirs, 0.0)
    duo.pump()
    assert duo.client.last(Ignored).because is IgnoredBecause.CLOSE_CROSSED
    assert mine.state is theirs.state is SessionState.CLOSED
    assert not duo.client.errors
    assert not duo.server.errors


@pytest.mark.parametrize("state", [S.RUNNING, S.WAITING_TOOL])
def test_a_state_that_comes_again_after_a_resume(state: S) -> None:
    """nnrp-wire 13.4, 13.7: redelivery may repeat a state whose successor was lost with the connection; otherwise it does not
    follow itself."""
    for resumed in (True, False):
        session = Session(1, SessionTerms(max_in_flight_operations=4), Window(4), Window(4), resumed=resumed)
        operation = session.start(0.0)
        for wanted in (S.RUNNING, state)[state is S.RUNNING :]:
            session.receive_result(operation.frame_id, wanted)
        if resumed:
            assert session.receive_result(operation.frame_id, state) == (operation, Delivery.PROGRESS)
        else:
            with pytest.raises(NnrpError) as refused:
                session.receive_result(operation.frame_id, state)
            assert refused.value.outcome is Outcome.BAD_TRANSITION


def test_a_rejected_close_reopens(duo: Duo) -> None:
    """nnrp-wire 13.2."""
    mine, _ = duo.open()
    duo.answer = False
    duo.client.machine.close_session(mine, 0.0)
    duo.client.machine.messages()
    duo.to_client(SessionCloseAck(CloseStatus.REJECTED), session_id=1)
    assert mine.state is SessionState.OPEN
    assert duo.submit(mine).frame_id == 1


def test_acknowledged_then_draining_then_closed(duo: Duo) -> None:
    """nnrp-wire 13.3: several acks may follow one close; a higher watermark is taken."""
    mine, _ = duo.open()
    duo.client.machine.close_session(mine, 0.0)
    duo.client.machine.messages()
    for status, state in (
        (CloseStatus.ACKNOWLEDGED, SessionState.CLOSING),
        (CloseStatus.DRAINING, SessionState.DRAINING),
    ):
        duo.to_client(SessionCloseAck(status, 7), session_id=1)
        assert mine.state is state
        assert mine.closing is not None
        assert mine.closing.peer_watermark == 7
    duo.to_client(SessionCloseAck(CloseStatus.CLOSED, 7), session_id=1)
    assert mine.state is SessionState.CLOSED
    duo.to_client(SessionCloseAck(CloseStatus.CLOSED, 7), session_id=1)
    assert duo.client.errors[-1].outcome is Outcome.BAD_STATE


def test_a_close_that_is_never_answered(duo: Duo) -> None:
    mine, _ = duo.open()
    duo.client.machine.close_session(mine, 0.0, drain_timeout_ms=1000)
    duo.client.machine.messages()
    assert duo.client.machine.next_deadline() == 1.0 + ANSWER_GRACE
    (event,) = duo.client.machine.handle_deadline(1.0 + ANSWER_GRACE)
    assert event.step.closed
    assert mine.state is SessionState.CLOSED


def test_close_faults(duo: Duo) -> None:
    """nnrp-wire 13.2 and vectors reject.session_close_unknown_session, reject.session_close_twice."""
    duo.open(session_id=4)
    duo.to_server(SessionClose(), session_id=9)
    assert duo.server.errors.pop().outcome is Outcome.UNKNOWN_SESSION
    duo.to_server(SessionClose(), session_id=4)
    duo.to_server(SessionClose(), session_id=4)
    assert duo.server.errors.pop().outcome is Outcome.BAD_STATE
    assert not duo.server.machine.closed


def cancel_all(machine: Connection, session: Session) -> None:
    machine.cancel(session, CancelScopeKind.SESSION)


def put_with_meta(machine: Connection, session: Session) -> None:
    message = CachePut(cache_key_lo=1, object_kind=ObjectKind.PROMPT_SEGMENT, ttl_ms=1000)
    machine.put_object(session, message, b"x", ObjectMetaEntry(ObjectMeta(1, 1)))


@pytest.mark.parametrize("ask", [cancel_all, put_with_meta])
def test_what_crosses_a_close_is_late_and_not_malformed(duo: Duo, ask: Callable[[Connection, Session], None]) -> None:
    """nnrp-wire 13.2: BadState for a closed session. Extensions are still read as that session was granted them."""
    mine, theirs = duo.open(features=ALL_FEATURES)
    duo.submit(mine)
    duo.server.machine.detach(theirs.session_id)
    ask(duo.client.machine, mine)
    duo.pump()
    assert [each.outcome for each in duo.server.errors] == [Outcome.BAD_STATE]


def test_no_credit_for_a_closed_session(duo: Duo) -> None:
    """nnrp-wire 13.2: the peer would only answer BadState."""
    mine, _ = duo.open()
    duo.client.machine.detach(mine.session_id)
    with pytest.raises(NnrpError) as caught:
        duo.client.machine.update_credit(0.0, session=mine, reason=UpdateReason.PAUSE)
    assert caught.value.outcome is Outcome.BAD_STATE
    assert not duo.client.machine.has_messages()


def test_the_watermark_travels(duo: Duo) -> None:
    """nnrp-wire 10 item 7."""
    mine, theirs = duo.open()
    for _ in range(3):
        duo.submit(mine)
        finish(duo, theirs, next(iter(theirs.operations)), S.COMPLETED)
    duo.client.machine.close_session(mine, 0.0)
    duo.pump()
    (close,) = duo.sent("c2s", SessionClose)
    (ack,) = duo.sent("s2c", SessionCloseAck)
    assert close.metadata.last_operation_id == ack.metadata.last_operation_id == 3  # type: ignore[attr-defined]


def test_a_bare_peer_gets_exactly_one_answer() -> None:
    """nnrp-wire 2.6, 13.3: it accepts one CLOSE_ACK and nothing else after its close."""
    duo = Duo()
    duo.client.machine.open_session(SessionOpen(requested_session_id=1, profile_id=2, max_in_flight_operations=4))
    duo.pump()
    theirs = duo.server.machine.sessions[1]
    for frame in (1, 2):
        duo.to_server(TOKEN_SUBMIT, session_id=1, frame_id=frame)
    duo.server.feed(_bytes(SessionClose(drain_timeout_ms=500), 1), 0.0)
    abandoned = duo.server.last(SessionCloseProgress).step.abandoned
    assert [each.frame_id for each in abandoned] == [1, 2]
    answers = duo.server.machine.messages()
    assert [type(each.message) for each in answers] == [SessionCloseAck]
    assert answers[0].message.close_status is CloseStatus.CLOSED  # type: ignore[attr-defined]  # it is the ack
    for operation in abandoned:
        assert duo.server.machine.finish(theirs, operation, S.CANCELLED, 0.0) is Ending.SILENT
    assert duo.server.machine.in_flight == 0


def _bytes(message: SessionClose, session_id: int) -> bytes:
    from protocol.nnrp.packet import encode_packet

    return encode_packet(message, session_id=session_id)


# Resume


def test_resume_on_another_connection() -> None:
    """nnrp-wire 13.7: in-flight operations go on, the new connection counts them, their results go there."""
    old = Duo()
    old.connect()
    mine, theirs = old.open(session_id=7)
    old.submit(mine)
    going = served(theirs, 1)
    token = old.client.last(SessionOpened).resume_token
    old.server.machine.lose_transport()
    held = Resumable(7, token, 2, 0x1001, 3, expires_at=120.0)

    new = Duo(answer=False)
    new.client.machine.open_session(
        SessionOpen(
            requested_session_id=7,
            profile_id=2,
            session_flags=SessionFlags.ALLOW_RESUME,
            schema_id=0x1001,
            schema_version=3,
            max_in_flight_operations=4,
        ),
        resume_token=token,
    )
    new.pump()
    content = new.server.events[-1].packet.content  # type: ignore[union-attr]  # the SESSION_OPEN
    assert isinstance(content, ControlBody)
    presented = bytes(content.resume_token)
    decision = new.server.machine.decide_open(
        new.policy, resume=lambda: decide_resume(ResumeRequest(7, presented, 2, 0x1001, 3), held, 60.0)
    )
    moved = new.server.machine.answer_open(decision, resume_token=b"fresh token", carried=(going,))
    assert moved is not None
    new.pump()
    event = new.client.last(SessionOpened)
    assert (event.outcome, event.resume_token) == (ResumeOutcome.RESUMED, b"fresh token")
    assert (event.session.state, moved.state) == (SessionState.RESUMED, SessionState.RESUMED)
    assert new.server.machine.in_flight == moved.in_flight == 1
    event.session.adopt((Operation(1, 1),))
    assert new.server.machine.finish(moved, going, S.COMPLETED, 60.0) is Ending.PUSH
    new.to_client(ResultPush(), session_id=7, frame_id=1)
    assert new.client.last(ResultReceived).delivery is Delivery.FINAL
    new.to_server(TOKEN_SUBMIT, session_id=7, frame_id=1)
    assert not new.server.errors, "13.7 item 3: a frame id may come again once the old operation has ended"


def test_messages_from_the_old_connection_are_refused(duo: Duo) -> None:
    """C-088: the session is elsewhere; a cancel queued on the old path cancels nothing."""
    mine, theirs = duo.open()
    duo.submit(mine)
    going = served(theirs, 1)
    assert duo.server.machine.detach(1) is theirs
    assert duo.server.machine.in_flight == 0
    duo.to_server(FrameCancel(), session_id=1, frame_id=1)
    assert duo.server.errors.pop().outcome is Outcome.BAD_STATE
    assert going.state is S.ACCEPTED
    assert duo.server.machine.detach(1) is None


# Migration


def test_migration_on_the_present_connection(duo: Duo) -> None:
    """nnrp-wire 13.9 item 2, the shape of nnrp-rs."""
    mine, theirs = duo.open()
    duo.submit(mine)
    duo.client.machine.migrate_session(1, SessionMigrate(TransportId.TCP, TransportId.QUIC, 1))
    duo.pump()
    event = duo.server.last(MigrateReceived)
    assert event.session is theirs
    answer = decide_migration(1, highest_frame_id=theirs.operations.highest_frame, grace_window_ms=500)
    assert duo.server.machine.answer_migrate(event.packet, answer, 0.0) is MigrationEffect.REBIND
    duo.pump()
    assert duo.client.last(MigrateAnswered).effect is MigrationEffect.REBIND
    assert mine.next_frame_id == 2


def test_migration_as_first_packet() -> None:
    """nnrp-wire 2.6, 13.9 item 2, the shape of nnrp-py: no hello, the session is re-bound here."""
    old = Duo()
    old.connect()
    mine, theirs = old.open(session_id=7)
    old.submit(mine)
    new = Duo()
    new.client.machine.migrate_session(7, SessionMigrate(TransportId.TCP, TransportId.QUIC, 1))
    new.pump()
    event = new.server.last(MigrateReceived)
    assert event.session is None
    server = new.server.machine
    server.answer_migrate(event.packet, MigrationAnswer(0, 2, 500), 0.0)
    old.server.machine.detach(7)
    moved = server.install(7, theirs.terms, carried=(served(theirs, 1),))
    new.pump()
    assert new.client.last(MigrateAnswered).effect is MigrationEffect.REBIND
    assert server.finish(moved, served(moved, 1), S.COMPLETED, 0.0) is Ending.PUSH


def test_the_old_path_in_its_grace_window(duo: Duo) -> None:
    """nnrp-wire 13.9 item 3: in-flight results only, then nothing."""
    from protocol.nnrp.machines.migration import Migration

    mine, theirs = duo.open()
    duo.submit(mine)
    migration = Migration()
    migration.ask(0)
    migration.answer(MigrationAnswer(0, 2, 500), 0.0)
    duo.server.machine.leave_path(theirs, migration)
    duo.to_server(TOKEN_SUBMIT, session_id=1, frame_id=2)
    assert duo.server.errors.pop().outcome is Outcome.BAD_STATE
    assert finish(duo, theirs, served(theirs, 1), S.COMPLETED) is Ending.PUSH
    assert duo.server.machine.next_deadline() == 0.5
    duo.server.machine.handle_deadline(0.5)
    assert 1 not in duo.server.machine.sessions


def test_a_refused_migration(duo: Duo) -> None:
    duo.open()
    duo.client.machine.migrate_session(9, SessionMigrate(TransportId.TCP, TransportId.QUIC))
    duo.pump()
    event = duo.server.last(MigrateReceived)
    refusal = decide_migration(0, refusal=MigrationRefusal.UNKNOWN_SESSION, grace_window_ms=0)
    assert duo.server.machine.answer_migrate(event.packet, refusal, 0.0) is MigrationEffect.KEEP
    duo.pump()
    assert duo.client.last(MigrateAnswered).effect is MigrationEffect.KEEP


# Patch


def test_patch(duo: Duo) -> None:
    mine, theirs = duo.open()
    duo.client.machine.patch_session(mine, SessionPatch(patch_mask=PatchMask(0x42), quality_tier=3), b"P" * 16)
    duo.pump()
    event = duo.server.last(PatchReceived)
    ack = duo.server.machine.answer_patch(theirs, event.packet, PatchPolicy())
    duo.pump()
    duo.client.last(PatchAnswered)
    assert ack.ack_status is AckStatus.ACCEPTED
    assert mine.settings == theirs.settings
    assert mine.settings is not None
    assert (mine.settings.quality_tier, mine.settings.profile_patch) == (3, b"P" * 16)


def test_a_patch_answer_nobody_asked_for(duo: Duo) -> None:
    from protocol.nnrp.messages import SessionPatchAck

    duo.open()
    duo.to_client(SessionPatchAck(), session_id=1)
    assert duo.client.errors[-1].outcome is Outcome.BAD_STATE


# Schemas and objects


def token_submit(*flags_and_schema: tuple[int, int, int]) -> tuple[FrameSubmit, bytes]:
    payloads = tuple(
        TypedPayload.of(b"hi", profile_id=2, schema_id=schema_id, schema_version=version, flags=DescriptorFlags(flags))
        for schema_id, version, flags in flags_and_schema
    )
    metadata = FrameSubmit(payload_kind_bitmap=TOKEN, payload_frame_count=len(payloads))
    return metadata, b"".join(Regions(payloads).build())


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        ((0x31, 1, 4), SchemaErrorCode.SCHEMA_UNKNOWN),
        ((0x1001, 4, 4), SchemaErrorCode.SCHEMA_VERSION_UNKNOWN),
        ((0x1001, 3, 0), None),
        ((0, 0, 0), None),
    ],
)
def test_a_submit_with_an_unknown_schema_starts_nothing(
    duo: Duo, schema: tuple[int, int, int], code: SchemaErrorCode | None
) -> None:
    """C-093, nnrp-wire 11.4: the stable code at frame scope; the session stays usable."""
    mine, theirs = duo.open()
    duo.client.machine.submit(mine, 0.0)
    metadata, body = token_submit(schema)
    duo.to_server(metadata, body, session_id=1, frame_id=1)
    if code is None:
        assert theirs.in_flight == 1
        return
    assert duo.server.errors.pop().code == code
    assert theirs.in_flight == 0
    (report,) = duo.sent("s2c", Error)
    assert isinstance(report.metadata, Error)
    assert (report.metadata.error_code, report.metadata.error_scope) == (code, ErrorScope.FRAME)
    assert mine.in_flight == 0, "the client learns that nothing started"
    duo.submit(mine)
    assert theirs.in_flight == 1


@pytest.mark.parametrize(
    ("offset", "length", "good"),
    [
        (0, 65, False),
        (60, 8, False),
        (64, 1, False),
        (0xFFFF_FFF0, 0x20, False),
        (0xFFFF_FFFF, 1, False),
        (0, 64, True),
    ],
)
def test_descriptors_that_point_outside_the_region(duo: Duo, offset: int, length: int, good: bool) -> None:
    """C-056: a stable error, no operation starts, the session remains usable; (0, 64) is accepted."""
    mine, theirs = duo.open()
    duo.client.machine.submit(mine, 0.0)
    descriptor = TypedPayloadDescriptor(2, DescriptorFlags(0), 0x1001, 3, offset=offset, length=length)
    body = BodyRegionPrelude(0, 0, 24, 64).pack() + descriptor.pack() + bytes(64)
    metadata = FrameSubmit(payload_kind_bitmap=TOKEN, payload_frame_count=1)
    header = Header(metadata.TYPE, meta_len=metadata.SIZE, body_len=len(body), session_id=1, frame_id=1)
    duo.server.feed(header.pack() + metadata.pack() + body, 0.0)
    duo.pump()
    if good:
        assert theirs.in_flight == 1
        return
    assert duo.server.errors.pop().code == ErrorCode.MALFORMED_BODY
    assert theirs.in_flight == mine.in_flight == 0
    (report,) = duo.sent("s2c", Error)
    assert isinstance(report.metadata, Error)
    assert (report.metadata.error_scope, report.metadata.related_frame_id) == (ErrorScope.FRAME, 1)
    duo.submit(mine)
    assert theirs.in_flight == 1


def schema_put(version: int = 1, digest: int = 1, flags: int = 1, deps: int = 0) -> tuple[CachePut, bytes]:
    header = SchemaDescriptor(
        0x2001, version, 2, SchemaFlags(flags), body_bytes=4, dependency_count=deps, schema_hash=digest
    )
    message = CachePut(cache_key_hi=0x2001, cache_key_lo=version, object_kind=ObjectKind.TOOL_SCHEMA, ttl_ms=1000)
    return message, header.pack() + b"body"


def test_schemas_travel_as_objects(duo: Duo) -> None:
    """nnrp-wire 11.3 carriage; C-091 over the wire."""
    mine, theirs = duo.open()
    client = duo.client.machine

    def put(digest: int) -> CacheAck:
        message, content = schema_put(digest=digest)
        client.put_object(mine, message, content)
        duo.pump()
        ack = duo.client.last(CacheAnswered).packet.metadata
        assert isinstance(ack, CacheAck)
        return ack

    assert put(1).status is CacheAckStatus.ACCEPTED
    assert put(1).status is CacheAckStatus.ACCEPTED
    conflict = put(2)
    assert (conflict.status, conflict.detail_code) == (
        CacheAckStatus.REJECTED,
        SchemaErrorCode.SCHEMA_HASH_CONFLICT,
    )
    client.submit(mine, 0.0)
    metadata, body = token_submit((0x2001, 1, 4))
    duo.to_server(metadata, body, session_id=1, frame_id=1)
    assert theirs.in_flight == 1
    assert theirs.store is not None
    bound = theirs.store.schemas.get(0x2001, 1)
    assert bound is not None
    assert bound.schema_hash == 1


def test_a_cacheable_schema_goes_with_its_lease(duo: Duo) -> None:
    """nnrp-wire 11.2: cacheable means lease; without it it stays as long as the session and gets no TTL."""
    mine, theirs = duo.open()
    message, content = schema_put()
    duo.client.machine.put_object(mine, message, content)
    second, content = schema_put(version=2, flags=0)
    duo.client.machine.put_object(mine, second, content)
    duo.pump()
    ttls = [
        each.packet.metadata.accepted_ttl_ms  # type: ignore[attr-defined]  # the ack
        for each in duo.client.events
        if isinstance(each, CacheAnswered)
    ]
    assert ttls == [1000, 0]
    assert theirs.store is not None
    assert duo.server.machine.next_deadline() == 1.0
    duo.server.machine.handle_deadline(1.0)
    assert theirs.store.schemas.get(0x2001, 1) is None
    assert theirs.store.schemas.get(0x2001, 2) is not None


@pytest.mark.parametrize(
    ("content", "key", "code"),
    [
        (b"short", 1, 5),
        (schema_put()[1][:-1], 1, SchemaErrorCode.SCHEMA_INCOMPATIBLE),
        (schema_put()[1], 9, SchemaErrorCode.SCHEMA_INCOMPATIBLE),
        (schema_put(deps=1)[1], 1, SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING),
    ],
)
def test_bad_schema_objects(duo: Duo, content: bytes, key: int, code: int) -> None:
    mine, _ = duo.open()
    message = CachePut(cache_key_hi=0x2001, cache_key_lo=key, object_kind=ObjectKind.TOOL_SCHEMA)
    duo.client.machine.put_object(mine, message, content)
    duo.pump()
    answer = duo.server.last(CachePutDone).answer
    assert (answer.status, answer.detail_code) == (CacheAckStatus.REJECTED, code)


def test_a_schema_resolves_its_dependencies_from_object_meta(duo: Duo) -> None:
    """nnrp-extensions: that is where dependency_count of the header is resolved."""
    mine, _ = duo.open(features=ALL_FEATURES)
    message, content = schema_put(deps=1)
    entry = ObjectMetaEntry(ObjectMeta(1, 1), (Dependency(DependencyKind.SCHEMA, 0x1001, 3),))
    duo.client.machine.put_object(mine, message, content, entry)
    duo.pump()
    assert duo.server.last(CachePutDone).answer.stored


def test_invalidating_a_schema(duo: Duo) -> None:
    """nnrp-wire 11.3: absent is schema_version_unknown, when the message is about a schema."""
    mine, theirs = duo.open()
    message, content = schema_put()
    duo.client.machine.put_object(mine, message, content)
    duo.pump()
    about = CacheInvalidate(InvalidateScope.OBJECT_KEY, 0, 0x2001, 1, int(SchemaErrorCode.SCHEMA_UPDATE_REJECTED))
    duo.client.machine.invalidate_objects(mine, about)
    duo.pump()
    assert theirs.store is not None
    assert theirs.store.schemas.get(0x2001, 1) is None
    duo.client.machine.invalidate_objects(mine, about)
    duo.pump()
    assert duo.server.errors.pop().code == SchemaErrorCode.SCHEMA_VERSION_UNKNOWN


REFERENCE = ObjectReference(ObjectKind.PAYLOAD_LAYOUT_TEMPLATE, 0, 0, 1)


def reference_submit(expect: ObjectExpect | None = None) -> tuple[FrameSubmit, bytes]:
    frames = () if expect is None else (ExtensionFrame.of(ExtensionKind.OBJECT_EXPECT, (expect,)),)
    metadata = FrameSubmit(
        payload_kind_bitmap=TOKEN,
        submit_mode=SubmitMode.REFERENCE,
        object_ref_mask=ObjectRefMask.PAYLOAD_LAYOUT_TEMPLATE,
    )
    return metadata, b"".join(Regions(references=(REFERENCE,), extensions=frames).build())


def refer(duo: Duo, expect: ObjectExpect | None = None) -> int:
    """Submit with a reference; the error code of the refusal, 0 when it started."""
    session = duo.client.machine.sessions[1]
    operation = duo.client.machine.submit(session, duo.now)
    metadata, body = reference_submit(expect)
    duo.to_server(metadata, body, session_id=1, frame_id=operation.frame_id)
    return duo.server.errors.pop().code if duo.server.errors else 0


def put_template(duo: Duo, version: int = 0, ttl_ms: int = 1000) -> None:
    message = CachePut(0, 0, 1, ObjectKind.PAYLOAD_LAYOUT_TEMPLATE, ttl_ms)
    meta = ObjectMeta(1, version, lease_owner_scope=LeaseOwnerScope.SESSION)
    entry = ObjectMetaEntry(meta) if version else None
    duo.client.machine.put_object(duo.client.machine.sessions[1], message, b"layout", entry)
    duo.pump()
    assert duo.server.last(CachePutDone).answer.stored


def test_references_over_the_wire(duo: Duo) -> None:
    """C-092 and nnrp-wire 8.4: the stable codes at frame scope, and nothing starts."""
    _, theirs = duo.open(features=ALL_FEATURES)
    assert refer(duo) == CacheErrorCode.CACHE_MISS
    put_template(duo, version=3)
    duo.now = 0.5
    assert refer(duo) == 0
    assert refer(duo, ObjectExpect(1, 3)) == 0
    assert refer(duo, ObjectExpect(1, 2)) == CacheErrorCode.VERSION_MISMATCH
    assert refer(duo, ObjectExpect(2, 0)) == CacheErrorCode.VERSION_MISMATCH
    duo.now = 2.0
    assert refer(duo) == CacheErrorCode.LEASE_EXPIRED
    assert theirs.in_flight == 2


def test_lease_info_comes_with_the_grant(duo: Duo) -> None:
    mine, _ = duo.open(features=ALL_FEATURES)
    put_template(duo, version=3)
    content = duo.client.last(CacheAnswered).packet.content
    assert isinstance(content, ControlBody)
    assert content.extensions[0].value == LeaseInfo(3, 1, LeaseOwnerScope.SESSION)
    assert mine.terms.grants(OperationFeatures.CACHE_SEMANTICS)


def test_an_operation_that_owns_a_lease_takes_it_along(duo: Duo) -> None:
    mine, theirs = duo.open(features=ALL_FEATURES)
    submit_in_tree(duo, mine, SubmitContext(50))
    message = CachePut(0, 0, 1, ObjectKind.PROMPT_SEGMENT)
    meta = ObjectMeta(1, 1, lease_owner_scope=LeaseOwnerScope.OPERATION, owner_operation_id=50)
    duo.client.machine.put_object(mine, message, b"x", ObjectMetaEntry(meta))
    duo.pump()
    assert theirs.store is not None
    assert len(theirs.store.cache) == 1
    operation = theirs.operations.get(50)
    assert operation is not None
    finish(duo, theirs, operation, S.COMPLETED)
    assert len(theirs.store.cache) == 0


def test_caching_needs_its_flag(duo: Duo) -> None:
    mine, _ = duo.open(flags=SessionFlags(0))
    duo.client.machine.put_object(mine, CachePut(object_kind=ObjectKind.PROMPT_SEGMENT), b"x")
    duo.pump()
    answer = duo.server.last(CachePutDone).answer
    assert answer.detail_code == SessionErrorCode.LEASE_POLICY_REJECTED


def test_objects_of_the_connection_serve_every_session() -> None:
    """nnrp-wire 3.2: session 0 is the connection-wide cache, for tolerant ends; hello says whether there is one."""
    duo = Duo(strict=False)
    duo.connect()
    duo.open()
    message = CachePut(0, 0, 1, ObjectKind.PAYLOAD_LAYOUT_TEMPLATE, 1000)
    duo.client.machine.put_object(None, message, b"layout")
    duo.pump()
    assert duo.server.last(CachePutDone).answer.stored
    assert refer(duo) == 0
    duo.client.machine.invalidate_objects(None, CacheInvalidate())
    duo.pump()
    assert len(duo.server.last(CacheInvalidated).keys) == 1
    assert refer(duo) == CacheErrorCode.CACHE_MISS


def test_the_store_of_a_closed_session_is_let_go(duo: Duo) -> None:
    mine, theirs = duo.open()
    put_template(duo)
    assert theirs.store is not None
    key = CacheKey(0, 0, 1, ObjectKind.PAYLOAD_LAYOUT_TEMPLATE)
    assert isinstance(theirs.store.cache.lookup(key, 0.0), CacheEntry)
    duo.client.machine.close_session(mine, 0.0)
    duo.pump()
    assert duo.server.machine.next_deadline() == 120.0


def test_an_idle_session_is_small() -> None:
    """Issue 5: 6 KiB in all per idle session; the machine takes its share without tables, caches or registries."""
    connection = Connection(Side.SERVER, now=0.0, schemas=builtin_registry())
    session = connection.install(1, SessionTerms())
    assert session._operations is None
    assert session.store is None
    assert sum(map(sys.getsizeof, (session, session.window, session.terms))) < 800
