"""What clients are told when there is more to do than can be done, and what becomes of their submits meanwhile."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from client.nnrp import open_nnrp
from client.nnrp.session import SubmitOptions
from protocol.nnrp.enums import (
    BackpressureLevel,
    ErrorCode,
    FlowFlags,
    FlowScope,
    MessageType,
    OperationPriority,
    PriorityClass,
    ResultHintReason,
    SessionFlags,
    SessionFlagsAck,
    UpdateReason,
)
from protocol.nnrp.extensions import ALL_FEATURES
from protocol.nnrp.machines.connection import ConnectionLimits
from protocol.nnrp.messages import Error, FlowUpdate, ResultHint, ResultPush, SessionOpenAck
from protocol.nnrp.vendor import SubmitContext
from server.nnrp.backpressure import DRAIN_ONLY, GO_ON, ONLY_BACKGROUND, PAUSE, FlowOrder
from server.nnrp.policy import ServingPolicy
from server.nnrp.scheduler import SchedulingPolicy
from server.nnrp.submit import Answer, Emit, Submit, text_payload
from sessions.operation import CancelReason
from tests.support.nnrp import OPEN, Peer, functions, serving_nnrp, text_of, token_of

INTERACTIVE, BALANCED, BACKGROUND = PriorityClass
NARROW = ServingPolicy(scheduling=SchedulingPolicy(slots=1, soft_waiting=2, hard_waiting=4))


class Gate:
    """Work that is done when it is told to be: one operation at a time, in the order they begin."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self._let_go: dict[bytes, trio.Event] = {}

    async def __call__(self, submit: Submit, emit: Emit) -> Answer:
        name = bytes(submit.data()[0])
        self.begun.append(name)
        self._let_go[name] = trio.Event()
        await self._let_go[name].wait()
        payload = text_payload(name, terminal=True, schema=(0x1001, 3))
        return Answer(payloads=(payload,), kinds=submit.metadata.payload_kind_bitmap, profile_id=2)

    def let_go(self, name: bytes) -> None:
        self._let_go[name].set()

    def is_running(self, name: bytes) -> bool:
        return name in self._let_go and not self._let_go[name].is_set()


async def flow(peer: Peer) -> FlowUpdate:
    message = (await peer.receive(MessageType.FLOW_UPDATE)).metadata
    assert isinstance(message, FlowUpdate)
    return message


async def test_a_session_is_lowered_and_told_so() -> None:
    """nnrp-wire 13.5, 7.8 priority_downgraded: beyond the interactive sessions allowed the answer says balanced, with its
    bit; when one has ended the next is interactive again."""
    async with serving_nnrp(ServingPolicy(max_interactive=1)) as served, served.peer() as peer:
        wanted = OPEN.replace(priority_class=INTERACTIVE)
        answers = []
        for number in (1, 2, 3):
            if number == 3:
                first = next(each for each in served.service.sessions if each.machine.session_id == 1)
                served.service.end_session(first, CancelReason.SESSION_CLOSED)
            answer = (await peer.open(wanted.replace(requested_session_id=number))).metadata
            assert isinstance(answer, SessionOpenAck)
            answers.append((answer.accepted_priority_class, bool(answer.session_flags_ack & _LOWERED)))
        assert answers == [(INTERACTIVE, False), (BALANCED, True), (INTERACTIVE, False)]


_LOWERED = SessionFlagsAck.PRIORITY_DOWNGRADED


async def test_a_class_survives_a_resume() -> None:
    """13.5, 13.7: an interactive session that comes back does not count against itself, and a lowered one does not rise."""
    async with serving_nnrp(ServingPolicy(max_interactive=1)) as served:
        request = OPEN.replace(priority_class=INTERACTIVE, session_flags=SessionFlags.ALLOW_RESUME)
        async with served.peer() as peer:
            answers = [await peer.open(request.replace(requested_session_id=number)) for number in (1, 2)]
        await served.wait_until(lambda: served.service.statistics().detached == 2)
        classes = []
        async with served.peer() as peer:
            for number, answer in enumerate(answers, 1):
                again = await peer.open(request.replace(requested_session_id=number), token=token_of(answer))
                assert isinstance(again.metadata, SessionOpenAck)
                ack = again.metadata
                classes.append((ack.accepted_priority_class, bool(ack.session_flags_ack & _LOWERED)))
            assert classes == [(INTERACTIVE, False), (BALANCED, True)]
            assert served.service.interactive == 1
        await served.wait_until(lambda: served.service.statistics().detached == 2)
        for session in list(served.service.sessions):
            served.service.end_session(session, CancelReason.SESSION_CLOSED)
        assert served.service.interactive == 0


async def test_operations_of_a_lowered_session_are_not_above_it() -> None:
    """13.5: what was lowered cannot be had back by naming a class with each submit."""
    gate = Gate()
    policy = ServingPolicy(max_interactive=1, scheduling=SchedulingPolicy(slots=1))
    async with serving_nnrp(policy, functions(gate)) as served, served.peer() as peer:
        for number in (1, 2):
            request = OPEN.replace(priority_class=INTERACTIVE, requested_session_id=number)
            await peer.open(request, features=ALL_FEATURES)
        urgent = OperationPriority.INTERACTIVE
        await peer.submit(1, b"first", session_id=1)
        await peer.submit(1, b"lowered", session_id=2, context=SubmitContext(1, priority_class=urgent))
        await peer.submit(2, b"second", session_id=1)
        for name in (b"first", b"second", b"lowered"):
            await served.wait_until(partial(gate.is_running, name))
            gate.let_go(name)
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == name


async def test_classes_have_their_turn_in_order_over_real_sockets() -> None:
    """13.5: three connections, one slot: interactive before balanced before background, whoever submitted first."""
    gate = Gate()
    policy = ServingPolicy(scheduling=SchedulingPolicy(slots=1))
    async with serving_nnrp(policy, functions(gate)) as served, served.peer() as one, served.peer() as two:
        for peer, priority in ((one, BACKGROUND), (two, INTERACTIVE)):
            await peer.open(OPEN.replace(priority_class=priority), features=ALL_FEATURES)
        await one.submit(1, b"running")
        await served.wait_until(lambda: gate.is_running(b"running"))
        await one.submit(2, b"back")
        balanced = SubmitContext(3, priority_class=OperationPriority.BALANCED)
        await one.submit(3, b"balanced", context=balanced)
        await served.wait_until(lambda: served.service.turns.scheduler.waiting == 2)
        await two.submit(1, b"front")
        await served.wait_until(lambda: served.service.turns.scheduler.waiting == 3)
        for name in (b"running", b"front", b"balanced", b"back"):
            await served.wait_until(partial(gate.is_running, name))
            gate.let_go(name)
        assert gate.begun == [b"running", b"front", b"balanced", b"back"]


async def test_levels_are_announced_and_taken_back() -> None:
    """13.6: soft when more wait than should, hard with a time to retry when far too many do, and a resume when it is over;
    each newer update replaces the one before, epochs rise."""
    gate = Gate()
    async with serving_nnrp(NARROW, functions(gate)) as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        names = [b"%d" % number for number in range(1, 6)]
        for number, name in enumerate(names, 1):
            await peer.submit(number, name)
        soft, hard = await flow(peer), await flow(peer)
        assert (soft.scope_kind, soft.update_reason) == (FlowScope.CONNECTION, UpdateReason.CONGESTION)
        assert (soft.backpressure_level, hard.backpressure_level) == (BackpressureLevel.SOFT, BackpressureLevel.HARD)
        assert hard.flow_flags & FlowFlags.RETRY_AFTER_VALID
        assert hard.retry_after_ms > 0
        levels = []
        for name in names:
            await served.wait_until(partial(gate.is_running, name))
            gate.let_go(name)
        got = [await peer.receive() for _ in range(7)]
        updates = [each.metadata for each in got if each.kind is MessageType.FLOW_UPDATE]
        levels = [each.backpressure_level for each in updates if isinstance(each, FlowUpdate)]
        assert levels == [BackpressureLevel.SOFT, BackpressureLevel.NONE]
        epochs = [each.credit_epoch for each in (soft, hard, *updates) if isinstance(each, FlowUpdate)]
        assert epochs == sorted(set(epochs))
        assert [text_of(each) for each in got if each.kind is MessageType.RESULT_PUSH] == names


async def test_who_waits_under_pressure_is_told_by_a_hint() -> None:
    """7.17: server_busy with how congested it is, for the frame that was put into the line; the times of its result are true."""
    gate = Gate()
    async with serving_nnrp(NARROW, functions(gate)) as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        submitted = trio.current_time()
        for number in range(1, 4):
            await peer.submit(number, b"%d" % number)
        await flow(peer)
        hint = await peer.receive(MessageType.RESULT_HINT)
        assert hint.header.frame_id == 3
        assert isinstance(hint.metadata, ResultHint)
        assert hint.metadata.reason is ResultHintReason.SERVER_BUSY
        assert hint.metadata.congestion_state > 1
        queued = trio.current_time()
        await trio.sleep(0.06)
        turns = []
        for number in range(1, 4):
            name = b"%d" % number
            await served.wait_until(partial(gate.is_running, name))
            turns.append(trio.current_time())
            gate.let_go(name)
        ends = [each for each in [await peer.receive() for _ in range(4)] if each.kind is MessageType.RESULT_PUSH]
        times = [each.metadata for each in ends]
        for message, turn in zip(times, turns, strict=True):
            assert isinstance(message, ResultPush)
            assert message.queue_ms <= min(message.server_total_ms, (turn - submitted) * 1000 + 1)
        assert isinstance(times[2], ResultPush)
        assert times[2].queue_ms >= (turns[1] - queued) * 1000 - 1 >= 50, "it was its turn after the second was let go"


async def test_our_client_waits_while_it_is_held_back_and_loses_nothing() -> None:
    """13.6 with both ends real: hard stops new submits, nothing is refused, and everything is answered in the end."""
    gate = Gate()
    async with serving_nnrp(NARROW, functions(gate)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        done: list[bytes] = []

        async def one(number: int) -> None:
            done.append((await session.request(b"%d" % number)).data)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(one, number)
            await served.wait_until(lambda: session.machine.hold() is not None)
            for _ in range(20):
                before = len(done)
                await served.wait_until(lambda: any(map(gate.is_running, gate.begun)))
                gate.let_go(gate.begun[-1])
                await served.wait_until(lambda at=before: len(done) > at)  # type: ignore[misc]  # bound at once
        assert sorted(done) == sorted(b"%d" % number for number in range(20))
        assert served.service.violations == 0
        assert served.service.turns.scheduler.statistics().refused == 0


async def test_background_sessions_are_narrowed_and_widened_again() -> None:
    """13.5: preemption of background work is announced: a credit of one while others wait, the old one afterwards."""
    gate = Gate()
    async with serving_nnrp(NARROW, functions(gate)) as served, served.peer() as one, served.peer() as two:
        await one.open(features=ALL_FEATURES)
        await two.open(OPEN.replace(priority_class=BACKGROUND), features=ALL_FEATURES)
        for number in range(1, 4):
            await one.submit(number, b"%d" % number)
        whole, narrow = await flow(two), await flow(two)
        assert whole.scope_kind is FlowScope.CONNECTION
        assert (narrow.scope_kind, narrow.session_credit, narrow.update_reason) == (
            FlowScope.SESSION,
            1,
            UpdateReason.REDUCE,
        )
        for number in range(1, 4):
            await served.wait_until(partial(gate.is_running, b"%d" % number))
            gate.let_go(b"%d" % number)
        assert (await flow(two)).scope_kind is FlowScope.CONNECTION
        wide = await flow(two)
        assert (wide.session_credit, wide.update_reason) == (8, UpdateReason.RESUME)


@pytest.mark.parametrize(
    ("wanted", "foreground", "background"),
    [
        (PAUSE, False, False),
        (FlowOrder(reason=UpdateReason.CONGESTION, level=BackpressureLevel.HARD, retry_after_ms=100), False, False),
        (DRAIN_ONLY, False, False),
        (ONLY_BACKGROUND, False, True),
        (FlowOrder(reason=UpdateReason.REDUCE, level=BackpressureLevel.SOFT), True, True),
        (FlowOrder(reason=UpdateReason.REDUCE, credit=0), False, False),
        (GO_ON, True, True),
    ],
    ids=["pause", "hard", "drain only", "background only", "soft", "no credit", "resume"],
)
@pytest.mark.parametrize("whole", [True, False], ids=["connection", "session"])
async def test_every_kind_of_order_is_obeyed_and_enforced(
    wanted: FlowOrder, foreground: bool, background: bool, whole: bool
) -> None:
    """7.16, 13.6: what runs goes on; new work of the classes concerned is refused with an ERROR where the peer does not obey,
    and nothing else is hurt."""
    policy = ServingPolicy(limits=ConnectionLimits(reduction_tolerance=0.0))
    async with serving_nnrp(policy) as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        await peer.submit(1, b"sleep=60;runs", context=SubmitContext(1))
        await served.wait_until(lambda: served.service.statistics().operations == 1)
        (session,) = served.service.sessions
        assert served.service.order_flow(wanted, None if whole else session)
        update = await flow(peer)
        assert update.scope_kind is (FlowScope.CONNECTION if whole else FlowScope.SESSION)
        assert (update.update_reason, update.backpressure_level) == (wanted.reason, wanted.level)
        for frame, priority, allowed in ((2, BALANCED, foreground), (3, BACKGROUND, background)):
            await peer.submit(frame, b"new", context=SubmitContext(frame, priority_class=OperationPriority(priority)))
            packet = await peer.receive()
            if allowed:
                assert (packet.kind, packet.header.frame_id) == (MessageType.RESULT_PUSH, frame)
            else:
                assert isinstance(packet.metadata, Error)
                assert packet.metadata.error_code == ErrorCode.LIMIT_EXCEEDED
                assert packet.metadata.related_frame_id == frame
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=60;runs"


async def test_a_standing_order_reaches_those_that_come_later_and_is_released() -> None:
    """13.5: never inferred: a connection opened under an order hears of it, and everybody hears of its end."""
    async with serving_nnrp() as served, served.peer() as early, served.peer() as late:
        await early.open()
        assert served.service.order_flow(PAUSE)
        assert (await flow(early)).update_reason is UpdateReason.PAUSE
        assert (await flow(late)).update_reason is UpdateReason.PAUSE
        async with served.peer() as last:
            await last.open()
            assert (await flow(last)).update_reason is UpdateReason.PAUSE
            served.service.release_flow()
            for peer in (early, late, last):
                assert (await flow(peer)).update_reason is UpdateReason.RESUME
            await last.submit(1, b"now")
            assert text_of(await last.receive(MessageType.RESULT_PUSH)) == b"now"


async def test_a_deaf_client_does_not_keep_others_from_their_turn() -> None:
    """C-084, 13.5: an operation whose client does not read gives its slot away."""

    async def flood(submit: Submit, emit: Emit) -> Answer:
        text = bytes(submit.data()[0])
        if text == b"flood":
            payload = text_payload(bytes(1 << 20), terminal=False, schema=(0x1001, 3))
            while await emit.partial(Answer(payloads=(payload,), kinds=submit.metadata.payload_kind_bitmap)):
                await trio.lowlevel.checkpoint()
        payload = text_payload(text, terminal=True, schema=(0x1001, 3))
        return Answer(payloads=(payload,), kinds=submit.metadata.payload_kind_bitmap)

    policy = ServingPolicy(scheduling=SchedulingPolicy(slots=1))
    async with serving_nnrp(policy, functions(flood)) as served, served.peer() as deaf, served.peer() as other:
        await deaf.open()
        await other.open()
        await deaf.submit(1, b"flood")
        await served.wait_until(lambda: served.service.turns.scheduler.statistics().suspended == 1)
        await other.submit(1, b"quick")
        assert text_of(await other.receive(MessageType.RESULT_PUSH)) == b"quick"


async def test_a_tool_that_is_waited_for_takes_no_slot() -> None:
    """13.4 waiting_tool: a child may run on the only slot while its parent waits for it."""
    release = trio.Event()

    async def family(submit: Submit, emit: Emit) -> Answer:
        text = bytes(submit.data()[0])
        if text == b"parent":
            await emit.waiting_tool(True)
            await release.wait()
            await emit.waiting_tool(False)
        else:
            release.set()
        payload = text_payload(text, terminal=True, schema=(0x1001, 3))
        return Answer(payloads=(payload,), kinds=submit.metadata.payload_kind_bitmap)

    policy = ServingPolicy(scheduling=SchedulingPolicy(slots=1))
    async with serving_nnrp(policy, functions(family)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        parent = await session.submit(b"parent")
        child = await session.submit(b"child", options=SubmitOptions(parent_id=parent.operation_id))
        assert (await child.result()).data == b"child"
        assert (await parent.result()).data == b"parent"
        statistics = served.service.turns.scheduler.statistics()
        assert (statistics.running, statistics.suspended, statistics.waits) == (0, 0, 0)
