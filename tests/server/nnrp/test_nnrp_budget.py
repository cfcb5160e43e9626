"""Budget policies: what an operation ends with when its time is over, and that it ends once."""

from __future__ import annotations

from itertools import product

import pytest
import trio
from msgspec.structs import replace

from protocol.nnrp.bodies import DataBody
from protocol.nnrp.enums import (
    BudgetPolicy,
    CongestionState,
    DtypeId,
    ErrorCode,
    ExtType,
    HeaderFlags,
    MessageType,
    OperationState,
    PayloadKind,
    ResultBudgetPolicy,
    ResultClass,
    ResultFlags,
    ResultHintReason,
    TileIndexMode,
)
from protocol.nnrp.extensions import ALL_FEATURES, NO_FEATURES, find_extension
from protocol.nnrp.machines.reading import drop_state, result_state
from protocol.nnrp.messages import FrameSubmit, ResultHint, ResultPush, SessionClose
from protocol.nnrp.packet import Packet, encode_packet
from protocol.nnrp.tensor import TensorBody, TensorSection, pack_flat_tensor
from protocol.nnrp.vendor import OperationStateBlock, SubmitContext
from server.nnrp.budget import Stock, settle_budget
from server.nnrp.policy import ServingPolicy
from server.nnrp.scheduler import SchedulingPolicy
from server.nnrp.submit import Answer, Emit, Submit, text_payload
from tests.support.nnrp import OPEN, Peer, functions, serving_nnrp, submit_packet, text_of

PARTIAL, STALE = BudgetPolicy.ALLOW_PARTIAL, BudgetPolicy.ALLOW_STALE_REUSE
DEGRADED, DROP = BudgetPolicy.ALLOW_DEGRADED, BudgetPolicy.ALLOW_DROP
NOTHING = BudgetPolicy(0)


def said(text: bytes, *, result_class: ResultClass = ResultClass.COMPLETE) -> Answer:
    payload = text_payload(text, terminal=True, schema=(0x1001, 3))
    return Answer(payloads=(payload,), kinds=PayloadKind.TOKEN_CHUNK, profile_id=2, result_class=result_class)


@pytest.mark.parametrize("allowed", range(16))
def test_every_policy_with_every_stock(allowed: int) -> None:
    """nnrp-wire 12.5, 13.4: only what the submit allows is applied, only from what is there, and there is always exactly one
    end; partial is the last message only where the peer can tell."""
    whole, worse = said(b"half"), said(b"rough", result_class=ResultClass.DEGRADED)
    for parts, kept, previous, ends_partial in product(
        (0, 2), (None, whole, worse), (None, said(b"old")), (False, True)
    ):
        ending = settle_budget(allowed, Stock(parts, kept, previous, 7, ends_partial))
        assert int(ending.applied) & ~allowed == 0
        assert (ending.final is None) or (ending.before is None)
        made = None if ending.final is None else ending.final.result_class
        if made is ResultClass.STALE_REUSE:
            assert (ending.applied, ending.reused_frame_id, ending.hint) == (STALE, 7, ResultBudgetPolicy.STALE_REUSE)
            assert previous is not None
        elif made is ResultClass.PARTIAL:
            assert ending.applied is PARTIAL
            assert ends_partial
            assert kept is whole or parts
        elif made is ResultClass.DEGRADED:
            assert ending.applied is DEGRADED
            assert kept is not None or parts
        elif ending.before is not None:
            assert (ending.applied, ending.before) == (PARTIAL, whole)
        else:
            assert made is None
            assert ending.applied == (DROP if allowed & 8 else NOTHING)
            usable = (allowed & 1 and (kept is whole or (parts and ends_partial))) or (allowed & 2 and previous)
            assert not usable
        if made is None:
            assert ending.reused_frame_id == 0


async def keeper(submit: Submit, emit: Emit) -> Answer:
    """As the text says: quick, or never done, with something in hand or in parts."""
    text = bytes(submit.data()[0]) if submit.data() else b"keep"
    if text == b"quick":
        return said(b"whole")
    if text == b"keep":
        emit.keep(said(b"none yet"))
        emit.keep(said(b"half"))
    elif text == b"rough":
        emit.keep(said(b"rough", result_class=ResultClass.DEGRADED))
    elif text == b"parts":
        await emit.partial(said(b"one "))
        await emit.partial(said(b"two "))
    await trio.sleep_forever()
    raise AssertionError


def budgeted(frame_id: int, text: bytes, policy: BudgetPolicy, budget_ms: int = 0) -> bytes:
    """What is quick gets all the time it may need, everything else runs out of it soon."""
    budget_ms = budget_ms or (60_000 if text == b"quick" else 60)
    return submit_packet(frame_id, text, metadata=FrameSubmit(latency_budget_ms=budget_ms, budget_policy=policy))


async def hint_then(peer: Peer, kind: MessageType) -> tuple[ResultHint, Packet]:
    hint = await peer.receive(MessageType.RESULT_HINT)
    assert isinstance(hint.metadata, ResultHint)
    packet = await peer.receive(kind)
    assert hint.header.frame_id == packet.header.frame_id
    return hint.metadata, packet


def push_of(packet: Packet) -> ResultPush:
    assert isinstance(packet.metadata, ResultPush)
    return packet.metadata


@pytest.mark.parametrize(
    ("text", "policy", "made", "applied", "content"),
    [
        (b"keep", PARTIAL, ResultClass.PARTIAL, PARTIAL, b"half"),
        (b"keep", PARTIAL | DEGRADED | STALE | DROP, ResultClass.PARTIAL, PARTIAL, b"half"),
        (b"keep", DEGRADED, ResultClass.DEGRADED, DEGRADED, b"half"),
        (b"rough", PARTIAL | DEGRADED, ResultClass.DEGRADED, DEGRADED, b"rough"),
        (b"parts", PARTIAL, ResultClass.PARTIAL, PARTIAL, b""),
        (b"parts", DEGRADED, ResultClass.DEGRADED, DEGRADED, b""),
    ],
)
async def test_what_is_there_is_the_result(
    text: bytes, policy: BudgetPolicy, made: ResultClass, applied: BudgetPolicy, content: bytes
) -> None:
    """12.5, 13.4, 7.13: past the budget a RESULT_PUSH with what there is ends the operation, says by which policy, and is
    announced by a hint; nothing comes after it."""
    async with serving_nnrp(make_worker=functions(keeper)) as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        await peer.stream.send_all(budgeted(1, text, policy))
        if text == b"parts":
            for part in (b"one ", b"two "):
                assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == part
        hint, packet = await hint_then(peer, MessageType.RESULT_PUSH)
        assert hint.reason is ResultHintReason.BUDGET_EXCEEDED
        push = push_of(packet)
        assert (push.result_class, push.applied_budget_policy) == (made, applied)
        assert bool(push.result_flags & ResultFlags.PARTIAL) is (made is ResultClass.PARTIAL)
        assert result_state(packet) is OperationState.COMPLETED
        assert text_of(packet) == content
        await peer.nothing_comes()
        assert served.service.statistics().operations == 0


@pytest.mark.parametrize("policy", [NOTHING, DROP, STALE | DROP], ids=["strict", "drop", "nothing to reuse"])
async def test_without_anything_to_send_it_is_dropped(policy: BudgetPolicy) -> None:
    """12.5: the budget outranks everything: over it even strict ends in RESULT_DROP, frame_expired."""
    async with serving_nnrp(make_worker=functions(keeper)) as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        await peer.stream.send_all(budgeted(1, b"slow", policy))
        hint, packet = await hint_then(peer, MessageType.RESULT_DROP)
        assert (hint.reason, hint.applied_budget_policy) == (
            ResultHintReason.BUDGET_EXCEEDED,
            ResultBudgetPolicy.DROP,
        )
        assert drop_state(packet) is OperationState.FAILED
        await peer.nothing_comes()


async def test_a_peer_that_cannot_be_told_gets_the_part_and_then_the_drop() -> None:
    """13.4, nnrp-extensions State: without operation_state a partial result is never the last message, so a drop ends it."""
    async with serving_nnrp(make_worker=functions(keeper)) as served, served.peer() as peer:
        await peer.open(features=NO_FEATURES)
        await peer.stream.send_all(budgeted(1, b"keep", PARTIAL))
        packet = await peer.receive(MessageType.RESULT_PUSH)
        assert (push_of(packet).result_class, text_of(packet)) == (ResultClass.PARTIAL, b"half")
        await peer.receive(MessageType.RESULT_DROP)
        await peer.nothing_comes()


async def test_an_earlier_result_is_used_again() -> None:
    """7.13: class stale_reuse, flag stale in metadata and header, the frame it came from; per lane; a later whole result
    takes its place."""
    async with serving_nnrp(make_worker=functions(keeper)) as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        await peer.stream.send_all(budgeted(1, b"quick", STALE))
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"whole"
        await peer.stream.send_all(budgeted(2, b"slow", STALE | DROP))
        hint, packet = await hint_then(peer, MessageType.RESULT_PUSH)
        assert hint.applied_budget_policy is ResultBudgetPolicy.STALE_REUSE
        push = push_of(packet)
        assert (push.result_class, push.reused_frame_id) == (ResultClass.STALE_REUSE, 1)
        assert push.result_flags & ResultFlags.STALE
        assert packet.header.flags & HeaderFlags.STALE
        assert push.applied_budget_policy == STALE
        assert text_of(packet) == b"whole"
        await peer.stream.send_all(budgeted(3, b"slow", DROP))
        await peer.receive(MessageType.RESULT_DROP)


async def test_a_tensor_that_is_partial_says_what_is_missing() -> None:
    """7.13, tensor coverage: covered + dropped = tile_count, dropped > 0; then the drop, for a flat body has no place for a
    state (8.1)."""
    section = TensorSection.of(1, [b"\1\2", b"\3\4", b"\0\0"], dtype_id=DtypeId.UINT8, element_count_per_tile=2)

    async def half(submit: Submit, emit: Emit) -> Answer:
        emit.keep(Answer(tensor=submit.content.tensor, dropped_tiles=2, profile_id=1))
        await trio.sleep_forever()
        raise AssertionError

    async with serving_nnrp(make_worker=functions(half)) as served, served.peer() as peer:
        await peer.open(OPEN.replace(profile_id=1, schema_id=0, schema_version=0), features=ALL_FEATURES)
        message = FrameSubmit(
            tile_count=3,
            section_count=1,
            latency_budget_ms=50,
            budget_policy=PARTIAL,
            payload_kind_bitmap=PayloadKind.TENSOR,
        )
        body = pack_flat_tensor(TensorBody(range(3), (section,)), mode=TileIndexMode.DENSE_RANGE)
        await peer.stream.send_all(encode_packet(message, body, session_id=1, frame_id=1))
        packet = await peer.receive(MessageType.RESULT_PUSH)
        push = push_of(packet)
        assert (push.covered_tile_count, push.dropped_tile_count, push.tile_count) == (1, 2, 3)
        assert isinstance(packet.content, DataBody)
        await peer.receive(MessageType.RESULT_DROP)


async def test_one_that_waits_for_its_turn_runs_out_of_its_budget_too() -> None:
    """13.4: the deadline is counted from receipt; an operation that never began is dropped, or answered from an earlier
    result, with its time in the queue."""
    policy = ServingPolicy(scheduling=SchedulingPolicy(slots=1))
    async with serving_nnrp(policy, functions(keeper)) as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        await peer.stream.send_all(budgeted(1, b"quick", STALE))
        await peer.receive(MessageType.RESULT_PUSH)
        await peer.submit(2, b"slow")
        await peer.stream.send_all(budgeted(3, b"quick", STALE, 60) + budgeted(4, b"quick", DROP, 60))
        ends = {each.header.frame_id: each for each in [await peer.receive() for _ in range(2)]}
        reused = ends[3]
        assert push_of(reused).result_class is ResultClass.STALE_REUSE
        assert push_of(reused).queue_ms >= 50
        assert push_of(reused).inference_ms == 0
        assert ends[4].kind is MessageType.RESULT_DROP


async def test_when_too_many_wait_the_one_that_may_be_dropped_goes() -> None:
    """12.5 allow_drop, 7.17 queue_full: the waiting one that allows it makes room; without such a one the new one is
    refused, server_busy; each has its hint and its one drop."""
    policy = ServingPolicy(scheduling=SchedulingPolicy(slots=1, max_waiting=2))
    async with serving_nnrp(policy, functions(keeper)) as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        await peer.submit(1, b"slow")
        await peer.stream.send_all(budgeted(2, b"slow", DROP, budget_ms=60_000))
        await peer.submit(3, b"slow")
        await peer.submit(4, b"slow")
        hint, packet = await hint_then(peer, MessageType.RESULT_DROP)
        assert packet.header.frame_id == 2
        assert (hint.reason, hint.applied_budget_policy) == (ResultHintReason.QUEUE_FULL, ResultBudgetPolicy.DROP)
        assert hint.retry_after_ms > 0
        await peer.submit(5, b"slow")
        hint, packet = await hint_then(peer, MessageType.RESULT_DROP)
        assert packet.header.frame_id == 5
        assert hint.congestion_state is not CongestionState.NONE
        assert drop_state(packet) is OperationState.FAILED
        assert error_code(packet) == ErrorCode.SERVER_BUSY
        assert served.service.statistics().operations == 3


def error_code(packet: Packet) -> int:
    value = find_extension(packet.content.extensions, ExtType.OPERATION_STATE)  # type: ignore[union-attr]  # a drop's body
    assert isinstance(value, OperationStateBlock)
    return value.error_code


async def test_superseding_one_that_waits() -> None:
    """nnrp-extensions Submit: the replaced one ends superseded, once, whether it ran or waited, with a hint that says so;
    the successor takes its turn."""
    policy = ServingPolicy(scheduling=SchedulingPolicy(slots=1))
    async with serving_nnrp(policy) as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        await peer.submit(1, b"sleep=60000;", context=SubmitContext(1))
        await peer.submit(2, b"sleep=60000;", context=SubmitContext(2))
        await peer.submit(3, b"sleep=1;new", context=SubmitContext(3, supersedes_operation_id=2))
        for frame in (2, 1):
            if frame == 1:
                await peer.submit(4, b"sleep=1;last", context=SubmitContext(4, supersedes_operation_id=1))
            hint, packet = await hint_then(peer, MessageType.RESULT_DROP)
            assert hint.reason is ResultHintReason.SUPERSEDED
            assert (packet.header.frame_id, drop_state(packet)) == (frame, OperationState.SUPERSEDED)
        ends = [await peer.receive(MessageType.RESULT_PUSH) for _ in range(2)]
        assert [text_of(each) for each in ends] == [b"sleep=1;new", b"sleep=1;last"]
        await peer.nothing_comes()


async def test_operations_overtake_each_other_and_each_keeps_its_order() -> None:
    """13.4: results may complete out of submit order; within one operation the parts come in theirs."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        await peer.submit(1, b"sleep=120;partial=3;abcdefghi")
        await peer.submit(2, b"sleep=1;partial=4;abcdefghijkl")
        order, parts = [], {1: b"", 2: b""}
        while sorted(order) != [1, 2]:
            packet = await peer.receive(MessageType.RESULT_PUSH)
            frame = packet.header.frame_id
            parts[frame] += text_of(packet)
            if result_state(packet) is OperationState.COMPLETED:
                order.append(frame)
        assert order == [2, 1]
        assert parts == {1: b"sleep=120;partial=3;abcdefghi", 2: b"sleep=1;partial=4;abcdefghijkl"}


def test_answers_know_their_size() -> None:
    """What decides whether a result is kept for reuse is the bytes of its payloads."""
    assert said(b"12345").size == 5
    assert replace(said(b"12345"), payloads=()).size == 0


async def test_results_kept_for_reuse_are_bounded() -> None:
    """Issue 5, bounded memory: over all sessions together; what does not fit is not kept, and a session's end frees its own."""
    async with serving_nnrp(make_worker=functions(keeper)) as served, served.peer() as peer:
        pool = served.service._reuse_pool
        pool.max_bytes = 8
        for number in (1, 2):
            await peer.open(OPEN.replace(requested_session_id=number), features=ALL_FEATURES)
            packet = submit_packet(1, b"quick", session_id=number, metadata=FrameSubmit(budget_policy=STALE))
            await peer.stream.send_all(packet)
            await peer.receive(MessageType.RESULT_PUSH)
            assert pool.bytes == len(b"whole")
        for number in (1, 2):
            slow = FrameSubmit(latency_budget_ms=40, budget_policy=STALE)
            await peer.stream.send_all(submit_packet(2, b"slow", session_id=number, metadata=slow))
            packet = await peer.receive()
            assert packet.kind is (MessageType.RESULT_PUSH if number == 1 else MessageType.RESULT_DROP)
        await peer.send(SessionClose(), session_id=1)
        await peer.receive(MessageType.SESSION_CLOSE_ACK)
        assert pool.bytes == 0
