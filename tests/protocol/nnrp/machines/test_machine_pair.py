"""Pairs of machines over a link that cuts anywhere, driven at random; and machines fed with anything at all."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.nnrp.enums import (
    CancelScopeKind,
    ConnectionState,
    InFlightPolicy,
    MessageType,
    OperationState,
    ResultClass,
    SessionState,
)
from protocol.nnrp.errors import NnrpError, NnrpLocalError
from protocol.nnrp.machines.connection import Connection, ConnectionLimits, Side
from protocol.nnrp.machines.events import DropReceived, ResultReceived
from protocol.nnrp.machines.opening import OpenPolicy
from protocol.nnrp.machines.schemas import builtin_registry
from protocol.nnrp.machines.session import Delivery, Ending, Session
from protocol.nnrp.messages import ResultDrop, ResultPush
from protocol.nnrp.packet import RawPacket
from protocol.nnrp.vendor import SubmitContext
from tests.protocol.nnrp.machines.duo import ALL_FEATURES, Duo, End
from tests.protocol.nnrp.machines.test_machine_connection import SAMPLES
from tests.protocol.nnrp.machines.test_machine_sessions import submit_in_tree

S = OperationState


class PairModel(RuleBasedStateMachine):
    """A client and a server with several sessions: every operation ends once, both count the same, credit balances."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = 1
        self.duo = Duo(cut=self._cut, limits=ConnectionLimits(reduction_tolerance=0.0, idle_timeout=1e9))
        self.duo.connect()
        self.pairs: list[tuple[Session, Session]] = []
        self.ended: Counter[tuple[int, int]] = Counter()
        self.started: set[tuple[int, int]] = set()
        self.seen = 0
        self.next_id = 1

    def _cut(self, data: bytes) -> Iterable[bytes]:
        step = max(1, self.pieces)
        return [data[start : start + step] for start in range(0, len(data), step)]

    @initialize(pieces=st.sampled_from([1, 7, 39, 41, 10_000]))
    def choose_pieces(self, pieces: int) -> None:
        self.pieces = pieces

    @precondition(lambda self: len(self.pairs) < 4)
    @rule(tree=st.booleans())
    def open_session(self, tree: bool) -> None:
        self.pairs.append(self.duo.open(features=ALL_FEATURES if tree else None, max_in_flight=4))

    @precondition(lambda self: self.pairs)
    @rule(which=st.integers(0, 3), below=st.booleans(), group=st.integers(0, 2))
    def submit(self, which: int, below: bool, group: int) -> None:
        mine, _ = self.pairs[which % len(self.pairs)]
        if not mine.open or mine.hold() is not None:
            return
        if mine.terms.tree:
            self.next_id += 1
            parent = next(iter(mine.operations), None) if below else None
            context = SubmitContext(1000 + self.next_id, 0 if parent is None else parent.operation_id, group)
            operation = submit_in_tree(self.duo, mine, context)
        else:
            operation = self.duo.submit(mine)
        self.started.add((mine.session_id, operation.frame_id))

    @precondition(lambda self: self.pairs)
    @rule(which=st.integers(0, 3), number=st.integers(0, 5), kind=st.sampled_from("pfcx"))
    def carry_out(self, which: int, number: int, kind: str) -> None:
        _, theirs = self.pairs[which % len(self.pairs)]
        if not theirs.in_flight or theirs.state is SessionState.CLOSED:
            return
        operation = list(theirs.operations)[number % theirs.in_flight]
        machine = self.duo.server.machine
        if kind == "p":
            if machine.progress(theirs, operation, S.PARTIAL):
                partial = ResultPush(result_class=ResultClass.PARTIAL)
                self.duo.to_client(partial, session_id=theirs.session_id, frame_id=operation.frame_id)
            return
        wanted = {"f": S.FAILED, "c": S.COMPLETED, "x": S.CANCELLED}[kind]
        ending = machine.finish(theirs, operation, wanted, self.duo.now)
        assert ending is Ending.SILENT or (ending is Ending.PUSH) == (operation.state is S.COMPLETED)
        if ending is not Ending.SILENT:
            message = ResultPush() if ending is Ending.PUSH else ResultDrop()
            self.duo.to_client(message, session_id=theirs.session_id, frame_id=operation.frame_id)
        self.duo.pump()

    @precondition(lambda self: self.pairs)
    @rule(which=st.integers(0, 3), scope=st.sampled_from(CancelScopeKind), number=st.integers(0, 5))
    def cancel(self, which: int, scope: CancelScopeKind, number: int) -> None:
        mine, _ = self.pairs[which % len(self.pairs)]
        if not mine.in_flight or mine.state is SessionState.CLOSED:
            return
        target = list(mine.operations)[number % mine.in_flight]
        arguments = {
            CancelScopeKind.OPERATION: {"operation_id": target.operation_id},
            CancelScopeKind.SUBTREE: {"operation_id": target.operation_id},
            CancelScopeKind.GROUP: {"group_id": 1},
            CancelScopeKind.SESSION: {},
        }[scope]
        self.duo.client.machine.cancel(mine, scope, **arguments)
        self.duo.pump()

    @precondition(lambda self: self.pairs)
    @rule(which=st.integers(0, 3), credit=st.integers(0, 5), connection=st.booleans())
    def grant(self, which: int, credit: int, connection: bool) -> None:
        _, theirs = self.pairs[which % len(self.pairs)]
        if connection:
            self.duo.server.machine.update_credit(self.duo.now, credit=4 + credit)
        elif theirs.state is not SessionState.CLOSED:
            self.duo.server.machine.update_credit(self.duo.now, session=theirs, credit=credit)
        self.duo.pump()

    @precondition(lambda self: self.pairs)
    @rule(which=st.integers(0, 3), policy=st.sampled_from(InFlightPolicy), timeout=st.sampled_from([0, 1000]))
    def close(self, which: int, policy: InFlightPolicy, timeout: int) -> None:
        mine, _ = self.pairs[which % len(self.pairs)]
        if mine.open:
            self.duo.client.machine.close_session(mine, self.duo.now, policy=policy, drain_timeout_ms=timeout)
            self.duo.pump()

    @rule(seconds=st.sampled_from([0.4, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.duo.now += seconds
        for end in (self.duo.server, self.duo.client):
            end.machine.handle_deadline(self.duo.now)
        self.duo.pump()

    @invariant()
    def nobody_broke_a_rule(self) -> None:
        assert not self.duo.client.errors
        assert not self.duo.server.errors

    @invariant()
    def both_ends_agree(self) -> None:
        client, server = self.duo.client.machine, self.duo.server.machine
        assert set(client.sessions) == set(server.sessions)
        for mine, theirs in self.pairs:
            if mine.state is SessionState.CLOSED:
                assert mine.in_flight == theirs.in_flight == 0
                continue
            assert mine.in_flight == theirs.in_flight
            assert mine.window.in_flight == theirs.window.in_flight == mine.in_flight
            assert mine.window.limit == theirs.window.limit
            assert mine.watermark == theirs.watermark
        assert client.in_flight == server.in_flight == sum(mine.in_flight for mine, _ in self.pairs)

    @invariant()
    def every_operation_ends_once(self) -> None:
        events = self.duo.client.events
        for event in events[self.seen :]:
            if isinstance(event, DropReceived) or (
                isinstance(event, ResultReceived)
                and event.delivery is not Delivery.PROGRESS
                and event.operation.settled
            ):
                self.ended[event.session.session_id, event.operation.frame_id] += 1
        self.seen = len(events)
        assert all(count == 1 for count in self.ended.values())
        assert set(self.ended) <= self.started

    def teardown(self) -> None:
        if self.duo.client.machine.state is ConnectionState.OPEN:
            self.duo.client.machine.close(self.duo.now)
            self.duo.pump()
            for seconds in (5.0, 1.0):
                self.duo.now += seconds
                for end in (self.duo.server, self.duo.client):
                    end.machine.handle_deadline(self.duo.now)
                    self.duo.pump()
            assert self.duo.server.machine.closed
            assert self.duo.client.machine.closed
            self.every_operation_ends_once()
            assert set(self.ended) == self.started
        super().teardown()


TestPair = PairModel.TestCase
TestPair.settings = settings(max_examples=25, stateful_step_count=35, deadline=None)


RAW = {kind: outgoing.encode() for kind, outgoing in SAMPLES.items()}


@settings(max_examples=80, deadline=None)
@given(
    side=st.sampled_from(Side),
    strict=st.booleans(),
    kinds=st.lists(st.sampled_from(MessageType), max_size=25),
    damage=st.lists(st.tuples(st.integers(0, 24), st.integers(8, 90), st.integers(0, 255)), max_size=4),
)
def test_any_sequence_of_packets_is_an_event_or_an_nnrp_error(
    side: Side, strict: bool, kinds: list[MessageType], damage: list[tuple[int, int, int]]
) -> None:
    """Every message type in any order, some with damaged bytes: nothing but events and remote errors, and a machine
    that is closed stays closed."""
    end = End(Connection(side, now=0.0, schemas=builtin_registry(), strict=strict))
    for index, kind in enumerate(kinds):
        data = bytearray(RAW[kind])
        for which, offset, value in damage:
            if which == index and offset < len(data) and not 12 <= offset < 20:  # lengths: the splitter's business
                data[offset] = value
        was_closed = end.machine.closed
        end.feed(bytes(data), float(index))
        if was_closed:
            assert end.machine.closed
            assert end.machine.messages() == []
        for outgoing in end.machine.messages():
            outgoing.encode(strict=False)
    assert all(isinstance(error, NnrpError) for error in end.errors)


@settings(max_examples=100, deadline=None)
@given(side=st.sampled_from(Side), data=st.binary(max_size=400), cut=st.integers(1, 100))
def test_any_bytes_are_survived(side: Side, data: bytes, cut: int) -> None:
    end = End(Connection(side, now=0.0, schemas=builtin_registry()))
    for start in range(0, len(data), cut):
        end.feed(data[start : start + cut], 0.0)
    assert not end.events or end.machine.state in ConnectionState
    assert len(end.machine.messages()) <= len(end.events) + len(end.errors)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(MessageType), max_size=12), st.sampled_from(Side))
def test_what_we_may_not_do_changes_nothing(kinds: list[MessageType], side: Side) -> None:
    """A local error is raised before anything has happened: state, sessions, credit and outbox are as they were."""
    machine = Connection(side, now=0.0, schemas=builtin_registry())
    for kind in kinds:
        with contextlib.suppress(NnrpError):
            machine.receive_raw(RawPacket(RAW[kind]), 0.0)
        machine.messages()
        before = (machine.state, set(machine.sessions), machine.in_flight, machine.opens_outstanding)
        if machine.state is not ConnectionState.NEGOTIATING or side is Side.CLIENT:
            with pytest.raises(NnrpLocalError):
                machine.refuse_hello()
        if side is Side.CLIENT or not machine.opens_outstanding:
            with pytest.raises(NnrpLocalError):
                machine.decide_open(OpenPolicy())
        for session in machine.sessions.values():
            with pytest.raises(NnrpLocalError):
                machine.submit(session, 0.0, frame_id=1 << 32)
        assert (machine.state, set(machine.sessions), machine.in_flight, machine.opens_outstanding) == before
        assert machine.messages() == []
