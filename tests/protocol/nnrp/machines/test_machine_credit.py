"""Credit windows (nnrp-wire 13.6; C-079, C-082, C-083): absolute, one epoch per scope, never more than granted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.nnrp.enums import (
    BackpressureLevel,
    FlowFlags,
    FlowScope,
    OperationPriority,
    SessionFlags,
    UpdateReason,
)
from protocol.nnrp.errors import NnrpLocalError, Outcome
from protocol.nnrp.machines.connection import ConnectionLimits
from protocol.nnrp.machines.credit import UNLIMITED, Applied, CreditUpdate, Hold, Window, session_limit
from protocol.nnrp.machines.events import FlowReceived, RetryDue, SubmitReceived
from protocol.nnrp.messages import FlowUpdate, ResultDrop
from protocol.nnrp.vendor import SubmitContext
from tests.protocol.nnrp.machines.duo import ALL_FEATURES, Duo

GRANT, REDUCE, PAUSE, RESUME, CONGESTION = UpdateReason
NONE, SOFT, HARD = BackpressureLevel
VALID = FlowFlags.CREDIT_VALID
STRICT_LIMITS = ConnectionLimits(reduction_tolerance=0.0)


def test_old_news_is_ignored_and_counted() -> None:
    """C-079: 5, then 4, then 6."""
    window = Window(8)
    assert window.apply(CreditUpdate(5, 4), 0.0) is Applied.APPLIED
    assert window.apply(CreditUpdate(4, 0), 0.0) is Applied.STALE
    assert window.limit == 4
    assert window.apply(CreditUpdate(5, 1), 0.0) is Applied.DUPLICATE
    assert window.limit == 4
    assert window.apply(CreditUpdate(6, 2), 0.0) is Applied.APPLIED
    statistics = window.statistics()
    assert (statistics.limit, statistics.stale, statistics.duplicate, statistics.applied) == (2, 1, 1, 2)


def test_the_first_epoch_is_free() -> None:
    """nnrp-wire 13.6: first value is free, 0 included; no wraparound."""
    window = Window(8)
    assert window.apply(CreditUpdate(0, 1), 0.0) is Applied.APPLIED
    assert window.apply(CreditUpdate(0xFFFF_FFFF, 2), 0.0) is Applied.APPLIED
    assert window.apply(CreditUpdate(0, 3), 0.0) is Applied.STALE


@pytest.mark.parametrize(
    ("update", "hold"),
    [
        (CreditUpdate(1, 4), None),
        (CreditUpdate(1, 0), Hold.CREDIT),
        (CreditUpdate(1, 4, PAUSE), Hold.PAUSED),
        (CreditUpdate(1, 4, CONGESTION, HARD), Hold.HARD),
        (CreditUpdate(1, 4, CONGESTION, SOFT), None),
        (CreditUpdate(1, 4, flags=VALID | FlowFlags.DRAIN_IN_FLIGHT_ONLY), Hold.DRAIN_ONLY),
        (CreditUpdate(1, 4, flags=VALID | FlowFlags.BACKGROUND_ONLY), Hold.BACKGROUND_ONLY),
    ],
)
def test_what_an_update_does(update: CreditUpdate, hold: Hold | None) -> None:
    """nnrp-wire 13.6, table of effects."""
    window = Window(2)
    window.apply(update, 0.0)
    assert window.hold() is hold
    assert window.level is update.level


def test_background_only_lets_background_through() -> None:
    window = Window(2)
    window.apply(CreditUpdate(1, 4, flags=VALID | FlowFlags.BACKGROUND_ONLY), 0.0)
    assert window.hold(background=True) is None


def test_without_credit_valid_the_number_does_not_count() -> None:
    """nnrp-wire 13.6: ignore the credit field, apply the rest."""
    window = Window(7)
    window.apply(CreditUpdate(1, 99, CONGESTION, HARD, FlowFlags.RETRY_AFTER_VALID, 250), 10.0)
    assert window.limit == 7
    assert window.hold() is Hold.HARD
    assert window.retry_at == 10.25


def test_a_newer_update_replaces_the_backpressure_completely() -> None:
    """nnrp-wire 13.6 [conf]."""
    window = Window(7)
    window.apply(CreditUpdate(1, 7, PAUSE, HARD, VALID | FlowFlags.RETRY_AFTER_VALID, 100), 0.0)
    window.apply(CreditUpdate(2, 0, RESUME, NONE, FlowFlags(0)), 1.0)
    assert window.hold() is None
    assert window.retry_at is None
    assert window.level is NONE


@pytest.mark.parametrize(("granted", "maximum", "limit"), [(2, 4, 2), (0, 4, 4), (9, 4, 4)])
def test_session_window_before_the_first_update(granted: int, maximum: int, limit: int) -> None:
    """nnrp-wire 13.6 [decision]."""
    assert session_limit(granted, maximum) == limit


def test_a_submit_under_way_when_credit_was_taken_back_is_tolerated() -> None:
    """FLOW_UPDATE has no acknowledgement: the granting end counts the old width for a moment."""
    window = Window(3)
    window.take()
    window.apply(CreditUpdate(1, 1), 10.0, tolerance=1.0)
    assert window.overrun(10.5) is None
    window.take()
    window.take()
    assert window.overrun(10.5) is Hold.CREDIT, "never beyond what was ever granted"
    window.release()
    assert window.overrun(11.0) is Hold.CREDIT


def test_a_pause_is_tolerated_the_same_way_and_a_widening_ends_it() -> None:
    window = Window(3)
    window.apply(CreditUpdate(1, 3, PAUSE), 10.0, tolerance=1.0)
    assert window.overrun(10.5) is None
    assert window.overrun(11.0) is Hold.PAUSED
    window.apply(CreditUpdate(2, 5), 11.0, tolerance=1.0)
    assert window.overrun(11.0) is None


def test_releasing_what_was_not_taken_is_a_bug() -> None:
    with pytest.raises(ValueError, match="released twice"):
        Window(1).release()


class WindowModel(RuleBasedStateMachine):
    """Never more in flight than granted, whatever is granted, taken, released and replayed."""

    def __init__(self) -> None:
        super().__init__()
        self.window = Window(2)
        self.limit = 2
        self.epoch = -1
        self.in_flight = 0
        self.stale = 0
        self.duplicate = 0
        self.closed = False

    @rule(epoch=st.integers(0, 12), credit=st.integers(0, 6), pause=st.booleans(), valid=st.booleans())
    def update(self, epoch: int, credit: int, pause: bool, valid: bool) -> None:
        flags = VALID if valid else FlowFlags(0)
        outcome = self.window.apply(CreditUpdate(epoch, credit, PAUSE if pause else GRANT, flags=flags), 0.0)
        if epoch > self.epoch:
            assert outcome is Applied.APPLIED
            self.epoch, self.closed = epoch, pause
            self.limit = credit if valid else self.limit
        elif epoch == self.epoch:
            assert outcome is Applied.DUPLICATE
            self.duplicate += 1
        else:
            assert outcome is Applied.STALE
            self.stale += 1

    @rule()
    def submit_if_allowed(self) -> None:
        allowed = not self.closed and self.in_flight < self.limit
        assert (self.window.hold() is None) == allowed
        assert (self.window.overrun(0.0) is None) == allowed
        if allowed:
            self.window.take()
            self.in_flight += 1
            assert self.window.in_flight <= self.window.limit

    @precondition(lambda self: self.in_flight)
    @rule()
    def settle(self) -> None:
        self.window.release()
        self.in_flight -= 1

    @invariant()
    def counters_agree(self) -> None:
        statistics = self.window.statistics()
        assert statistics.in_flight == self.in_flight
        assert (statistics.epoch, statistics.stale, statistics.duplicate) == (self.epoch, self.stale, self.duplicate)
        assert statistics.limit == self.limit


TestWindowModel = WindowModel.TestCase
TestWindowModel.settings = settings(max_examples=60, stateful_step_count=30)


def test_epochs_are_counted_per_scope() -> None:
    """C-082: session X 10, connection 3, session Y 1, operation 7 1: all four apply."""
    duo = Duo()
    duo.connect()
    x, _ = duo.open()
    y, _ = duo.open()
    updates = [
        (x.session_id, FlowUpdate(FlowScope.SESSION, credit_epoch=10, session_credit=3, flow_flags=VALID)),
        (0, FlowUpdate(FlowScope.CONNECTION, credit_epoch=3, connection_credit=8, flow_flags=VALID)),
        (y.session_id, FlowUpdate(FlowScope.SESSION, credit_epoch=1, session_credit=2, flow_flags=VALID)),
        (
            x.session_id,
            FlowUpdate(FlowScope.OPERATION, credit_epoch=1, operation_credit=1, operation_id=7, flow_flags=VALID),
        ),
    ]
    for session_id, update in updates:
        duo.to_client(update, session_id=session_id)
        assert duo.client.last(FlowReceived).applied is Applied.APPLIED
    window = x.operation_window(7)
    assert window is not None
    assert (x.window.limit, duo.client.machine.window.limit, y.window.limit, window.limit) == (3, 8, 2, 1)
    assert not duo.client.errors


def test_a_stale_update_does_not_end_anything() -> None:
    """C-079 over a connection, and vector reject.flow_epoch_regression_connection (StaleEpoch: no ERROR)."""
    duo = Duo()
    duo.connect()
    session, _ = duo.open()
    for epoch, credit in ((5, 4), (4, 0), (6, 2)):
        duo.to_client(
            FlowUpdate(FlowScope.SESSION, credit_epoch=epoch, session_credit=credit, flow_flags=VALID),
            session_id=session.session_id,
        )
    assert session.window.limit == 2
    assert duo.client.machine.counters.stale_updates == 1
    assert not duo.client.errors
    assert not duo.server.errors
    assert duo.submit(session).frame_id == 1


MALFORMED = [
    (5, FlowUpdate(FlowScope.CONNECTION, connection_credit=1, credit_epoch=9, flow_flags=VALID)),
    (1, FlowUpdate(FlowScope.SESSION, session_credit=1, operation_id=9, credit_epoch=9, flow_flags=VALID)),
    (1, FlowUpdate(FlowScope.OPERATION, operation_credit=1, credit_epoch=9, flow_flags=VALID)),
    (0, FlowUpdate(FlowScope.SESSION, session_credit=1, credit_epoch=9, flow_flags=VALID)),
    (1, FlowUpdate(FlowScope.SESSION, session_credit=1, connection_credit=1, credit_epoch=9, flow_flags=VALID)),
    (1, FlowUpdate(FlowScope.SESSION, session_credit=1, retry_after_ms=9, credit_epoch=9, flow_flags=VALID)),
]


@pytest.mark.parametrize(("session_id", "update"), MALFORMED, ids=lambda each: getattr(each, "scope_kind", each))
def test_malformed_updates_change_nothing(session_id: int, update: FlowUpdate) -> None:
    """C-083 and nnrp-wire 7.16: credit is as before, and the next valid update works."""
    duo = Duo()
    duo.connect()
    session, _ = duo.open()
    assert session.session_id == 1
    before = (session.window.statistics(), duo.client.machine.window.statistics())
    raw = bytearray(_packet(session_id, update))
    duo.client.feed(bytes(raw), 0.0)
    assert duo.client.errors.pop().outcome is Outcome.BAD_COMBINATION
    assert (session.window.statistics(), duo.client.machine.window.statistics()) == before
    if not duo.client.machine.closed:
        duo.to_client(
            FlowUpdate(FlowScope.SESSION, credit_epoch=1, session_credit=1, flow_flags=VALID),
            session_id=session.session_id,
        )
        assert session.window.limit == 1


@pytest.mark.parametrize(
    ("offset", "value", "outcome"),
    [(40, 7, Outcome.UNKNOWN_ENUM), (68, 0x11, Outcome.RESERVED_BITS), (43, 1, Outcome.RESERVED_NON_ZERO)],
)
def test_malformed_fields_change_nothing(offset: int, value: int, outcome: Outcome) -> None:
    """C-083: scope_kind 7, flow_flags bit 4, a reserved byte."""
    duo = Duo()
    duo.connect()
    session, _ = duo.open()
    update = FlowUpdate(FlowScope.SESSION, session_credit=1, credit_epoch=9, flow_flags=VALID)
    raw = bytearray(_packet(session.session_id, update))
    raw[offset] = value
    duo.client.feed(bytes(raw), 0.0)
    assert [each.outcome for each in duo.client.errors] == [outcome]
    assert session.window.limit == 4
    assert not duo.client.machine.closed


def _packet(session_id: int, update: FlowUpdate) -> bytes:
    """The bytes of an update that our own encoder would refuse to send."""
    from protocol.nnrp.header import Header

    return Header(update.TYPE, meta_len=update.SIZE, session_id=session_id).pack() + update.pack()


def test_flow_update_for_an_unknown_session() -> None:
    """nnrp-wire 7.16: E:UnknownSession, scope session, not fatal."""
    duo = Duo()
    duo.connect()
    duo.open()
    duo.to_client(FlowUpdate(FlowScope.SESSION, credit_epoch=1, session_credit=1, flow_flags=VALID), session_id=43)
    assert duo.client.errors[-1].outcome is Outcome.UNKNOWN_SESSION
    assert not duo.client.machine.closed


def test_the_server_grants_and_holds_to_it() -> None:
    """nnrp-wire 13.6: a violating submit gets its error, and others are not hurt."""
    duo = Duo(limits=STRICT_LIMITS)
    duo.connect()
    mine, theirs = duo.open()
    other, _ = duo.open()
    duo.server.machine.update_credit(0.0, session=theirs, credit=1)
    duo.pump()
    assert mine.window.limit == theirs.window.limit == 1
    duo.submit(mine)
    assert mine.hold() is Hold.CREDIT
    with pytest.raises(NnrpLocalError, match="held back: credit"):
        duo.client.machine.submit(mine, 0.0)
    from tests.protocol.nnrp.machines.duo import TOKEN_SUBMIT

    duo.to_server(TOKEN_SUBMIT, session_id=mine.session_id, frame_id=2)
    error = duo.server.errors.pop()
    assert (error.outcome, error.frame_id, error.fatal) == (Outcome.LIMIT_EXCEEDED, 2, False)
    assert theirs.in_flight == 1
    assert duo.submit(other).frame_id == 1
    assert duo.server.last(SubmitReceived).session.session_id == other.session_id


def test_pause_stops_new_work_not_old_work() -> None:
    """C-081, as far as the machine decides it."""
    duo = Duo()
    duo.connect()
    mine, theirs = duo.open()
    duo.submit(mine)
    duo.server.machine.update_credit(0.0, session=theirs, reason=PAUSE, level=HARD, retry_after_ms=500)
    duo.pump()
    assert mine.hold() is Hold.PAUSED
    assert mine.window.retry_at == 0.5
    assert mine.in_flight == 1
    duo.server.machine.update_credit(0.0, session=theirs, reason=RESUME)
    duo.pump()
    assert mine.hold() is None


def test_work_under_an_operation_is_put_off_for_no_longer_than_it_lives() -> None:
    """nnrp-wire 13.6: retry_after is at most 49 days. An operation that is not there puts nothing off, and one that ends waits for
    nothing any more: neither may be kept."""
    duo = Duo(limits=ConnectionLimits(idle_timeout=60.0))
    duo.connect()
    mine, theirs = duo.open(features=ALL_FEATURES)
    client = duo.client.machine
    operation = duo.submit(mine, context=SubmitContext(7))
    for operation_id in (7, 9, 10):
        duo.server.machine.update_credit(0.0, session=theirs, operation_id=operation_id, retry_after_ms=5000)
    duo.pump()
    assert client.next_deadline() == 5.0
    assert mine.hold(7) is Hold.RETRY_LATER
    duo.to_client(ResultDrop(), session_id=mine.session_id, frame_id=operation.frame_id)
    assert client.handle_deadline(0.0) == []
    assert client.next_deadline() == 60.0
    assert client.is_steady()


def test_work_under_an_operation_that_lives_is_let_go_in_time() -> None:
    """nnrp-wire 13.6."""
    duo = Duo(limits=ConnectionLimits(idle_timeout=60.0))
    duo.connect()
    mine, theirs = duo.open(features=ALL_FEATURES)
    duo.submit(mine, context=SubmitContext(7))
    duo.server.machine.update_credit(0.0, session=theirs, operation_id=7, retry_after_ms=5000)
    duo.pump()
    assert duo.client.machine.handle_deadline(5.0) == [RetryDue(mine)]
    assert mine.hold(7) is None


def test_connection_credit_is_shared() -> None:
    """C-080: in flight over all sessions never exceeds the connection's window."""
    duo = Duo()
    duo.connect()
    a, _ = duo.open()
    b, _ = duo.open()
    duo.server.machine.update_credit(0.0, credit=3)
    duo.pump()
    for _ in range(2):
        duo.submit(a)
    duo.submit(b)
    assert a.hold() is b.hold() is Hold.CREDIT
    assert duo.client.machine.in_flight == duo.server.machine.in_flight == 3


def test_an_operation_window_counts_what_runs_below_it() -> None:
    """Scope operation: operations concurrently in flight under that operation; it is bound to that operation."""
    duo = Duo()
    duo.connect()
    mine, _ = duo.open(features=ALL_FEATURES)
    duo.client.machine.submit(mine, 0.0, context=SubmitContext(50))
    duo.client.machine.submit(mine, 0.0, context=SubmitContext(60))
    update = FlowUpdate(FlowScope.OPERATION, operation_credit=1, operation_id=50, credit_epoch=1, flow_flags=VALID)
    duo.to_client(update, session_id=mine.session_id)
    duo.client.machine.submit(mine, 0.0, context=SubmitContext(51, parent_operation_id=50))
    assert mine.hold(parent_id=50) is Hold.CREDIT
    assert mine.hold(parent_id=51) is Hold.CREDIT, "the grandchild runs below 50 as well"
    assert mine.hold(parent_id=60) is None
    assert mine.hold() is None


def test_credit_the_other_way_is_kept_apart() -> None:
    """FLOW_UPDATE goes both ways (recorded of nnrp-py): a client's pause is about results, not about its submits."""
    duo = Duo()
    duo.connect()
    mine, theirs = duo.open()
    duo.client.machine.update_credit(0.0, session=mine, reason=PAUSE)
    duo.client.machine.update_credit(0.0, credit=2)
    duo.pump()
    assert not theirs.may_push()
    assert theirs.hold() is None
    assert mine.window.epoch == theirs.window.epoch == -1
    duo.client.machine.update_credit(0.0, session=mine, reason=RESUME)
    duo.pump()
    assert theirs.may_push()
    duo.client.machine.update_credit(0.0, session=mine, operation_id=7, reason=PAUSE)
    duo.pump()
    first, second = (theirs.accept(0.0, frame) for frame in (7, 8))
    assert not theirs.may_push(first)
    assert theirs.may_push(second)
    window = theirs.operation_window(7, reverse=True)
    assert window is not None
    assert window.epoch == 1, "epochs are counted per scope in this direction too"
    assert theirs.operation_window(7) is None


@pytest.mark.parametrize(
    ("order", "balanced", "background"),
    [
        ({"reason": PAUSE}, False, False),
        ({"reason": CONGESTION, "level": HARD}, False, False),
        ({"reason": CONGESTION, "level": SOFT}, True, True),
        ({"reason": REDUCE, "drain_only": True}, True, True),
        ({"reason": REDUCE, "background_only": True}, False, True),
        ({"reason": REDUCE, "credit": 0}, True, True),
    ],
    ids=["pause", "hard", "soft", "drain only", "background only", "no credit"],
)
@pytest.mark.parametrize("scope", ["connection", "session", "operation"])
def test_what_a_client_holds_back(order: dict[str, Any], balanced: bool, background: bool, scope: str) -> None:
    """13.6 in the other direction, each scope: the newest update holds results back or lets them flow, by the class of their
    operation where it says background_only."""
    duo = Duo()
    duo.connect()
    mine, theirs = duo.open(features=ALL_FEATURES)
    context = SubmitContext(2, priority_class=OperationPriority.BACKGROUND)
    operations = (theirs.accept(0.0, 1, context=SubmitContext(1)), theirs.accept(0.0, 2, context=context))

    def tell(**wanted: Any) -> None:
        session = None if scope == "connection" else mine
        for each in (1, 2) if scope == "operation" else (0,):
            duo.client.machine.update_credit(0.0, session=session, operation_id=each, **wanted)
        duo.pump()

    tell(**order)
    assert [theirs.may_push(each) for each in operations] == [balanced, background]
    assert theirs.hold() is None, "its own submits are another matter"
    if scope == "connection":
        assert duo.open()[1].may_push() == balanced, "a session that is opened later is held back as well"
    tell(reason=RESUME)
    assert all(theirs.may_push(each) for each in operations)


def test_unlimited_until_told_otherwise() -> None:
    """nnrp-wire 2.6: without a hello the connection's credit is unlimited."""
    duo = Duo()
    duo.open(flags=SessionFlags(0))
    assert duo.client.machine.window.limit == duo.server.machine.window.limit == UNLIMITED


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("sgfr"), st.integers(0, 5)), max_size=40))
def test_both_ends_agree_and_credit_balances(steps: list[tuple[str, int]]) -> None:
    """Any interleaving of submits, grants, finishes and refusals: both ends count the same, and all comes back."""
    from protocol.nnrp.enums import OperationState
    from protocol.nnrp.messages import ResultDrop, ResultPush

    duo = Duo(limits=STRICT_LIMITS)
    duo.connect()
    mine, theirs = duo.open()
    for kind, number in steps:
        if kind == "s" and mine.hold() is None:
            duo.submit(mine)
        elif kind == "g":
            duo.server.machine.update_credit(0.0, session=theirs, credit=number)
            duo.pump()
        elif kind in "fr" and theirs.in_flight:
            operation = list(theirs.operations)[number % theirs.in_flight]
            wanted = OperationState.COMPLETED if kind == "f" else OperationState.FAILED
            ending = duo.server.machine.finish(theirs, operation, wanted, 0.0)
            message = ResultPush() if ending.name == "PUSH" else ResultDrop()
            duo.to_client(message, session_id=mine.session_id, frame_id=operation.frame_id)
        assert mine.in_flight == theirs.in_flight == duo.client.machine.in_flight == duo.server.machine.in_flight
        assert mine.window.limit == theirs.window.limit
    assert not duo.server.errors
    assert not duo.client.errors
