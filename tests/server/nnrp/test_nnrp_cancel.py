"""Cancel scopes, deadlines, supersede and closing, over every transport where that could make a difference."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from protocol.nnrp.enums import (
    CancelScopeKind,
    CloseStatus,
    ErrorCode,
    ExtType,
    InFlightPolicy,
    MessageType,
    OperationState,
    PayloadKind,
)
from protocol.nnrp.extensions import ALL_FEATURES, ControlExtension, find_extension, pack_extensions
from protocol.nnrp.machines.reading import drop_state
from protocol.nnrp.messages import Error, FrameCancel, FrameSubmit, Ping, SessionClose, SessionCloseAck
from protocol.nnrp.packet import Packet
from protocol.nnrp.vendor import CancelScope, OperationStateBlock, SubmitContext
from server.nnrp.submit import Answer, Emit, Submit, text_payload
from server.nnrp.workers.echo import EchoWorker
from tests.support.nnrp import OPEN, Peer, functions, serving_nnrp, submit_packet, text_of
from tests.support.nnrp_transports import EVERYWHERE, on_a_line, serving_on

LONG = b"sleep=60000;"


async def cancel(peer: Peer, scope: CancelScope, session_id: int = 1, frame_id: int = 0) -> None:
    body = pack_extensions([ControlExtension.of(ExtType.CANCEL_SCOPE, scope)])
    await peer.send(FrameCancel(), body, session_id=session_id, frame_id=frame_id)


async def drops(peer: Peer, count: int) -> dict[int, OperationState]:
    """The next packets, all of them drops: frame id → state."""
    found = {}
    for _ in range(count):
        packet = await peer.receive(MessageType.RESULT_DROP)
        assert packet.header.frame_id not in found
        found[packet.header.frame_id] = drop_state(packet)
    return found


@pytest.mark.parametrize(
    ("scope", "cancelled"),
    [
        (CancelScope(CancelScopeKind.OPERATION, operation_id=2), {2}),
        (CancelScope(CancelScopeKind.SUBTREE, operation_id=2), {2, 3}),
        (CancelScope(CancelScopeKind.GROUP, operation_group_id=9), {4, 5}),
        (CancelScope(CancelScopeKind.SESSION), {1, 2, 3, 4, 5}),
    ],
    ids=["operation", "subtree", "group", "session"],
)
@EVERYWHERE
async def test_the_four_cancel_scopes(tmp_path: Path, transport: str, scope: CancelScope, cancelled: set[int]) -> None:
    """C-062: exactly the named set is cancelled, one terminal each; the rest, and the sibling session, complete."""
    gate = trio.Event()

    async def work(submit: Submit, emit: Emit) -> Answer:
        await gate.wait()
        return await EchoWorker().run(submit, emit)

    async with serving_on(transport, tmp_path, make_worker=functions(work)) as served, served.peer() as peer:
        await peer.open(OPEN.replace(requested_session_id=1), features=ALL_FEATURES)
        await peer.open(OPEN.replace(requested_session_id=2), features=ALL_FEATURES)
        tree = {1: (0, 0), 2: (1, 0), 3: (2, 0), 4: (0, 9), 5: (0, 9)}
        for number, (parent, group) in tree.items():
            await peer.submit(number, context=SubmitContext(number, parent, group))
        await peer.submit(1, session_id=2, context=SubmitContext(1))
        await cancel(peer, scope, frame_id=scope.operation_id)
        assert await drops(peer, len(cancelled)) == dict.fromkeys(cancelled, OperationState.CANCELLED)
        assert served.service.statistics().operations == 6 - len(cancelled)
        gate.set()
        completed = set()
        for _ in range(6 - len(cancelled)):
            packet = await peer.receive(MessageType.RESULT_PUSH)
            completed.add((packet.header.session_id, packet.header.frame_id))
        assert completed == {(2, 1)} | {(1, number) for number in tree if number not in cancelled}
        await peer.nothing_comes(0.02)


async def test_a_plain_cancel_names_its_frame() -> None:
    """nnrp-wire 10.4: without extensions a FRAME_CANCEL means scope operation; an unknown frame is ignored (13.4)."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        await peer.submit(1, LONG)
        await peer.submit(2, b"sleep=50;")
        await peer.send(FrameCancel(), session_id=1, frame_id=77)
        await peer.send(FrameCancel(), session_id=1, frame_id=1)
        assert await drops(peer, 1) == {1: OperationState.FAILED}  # bare: no state is told, the client knows
        assert (await peer.receive(MessageType.RESULT_PUSH)).header.frame_id == 2


async def test_a_deadline_ends_an_operation_with_frame_expired() -> None:
    """nnrp-wire 13.4: latency_budget_ms, else default_deadline_ms, counted from receipt; past it a RESULT_DROP."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(OPEN.replace(default_deadline_ms=5000), features=ALL_FEATURES)
        began = trio.current_time()
        await peer.stream.send_all(submit_packet(1, LONG, metadata=FrameSubmit(latency_budget_ms=80)))
        packet = await peer.receive(MessageType.RESULT_DROP)
        assert 0.07 <= trio.current_time() - began < 4
        assert state_block(packet).error_code == ErrorCode.FRAME_EXPIRED
        assert drop_state(packet) is OperationState.FAILED


def state_block(packet: Packet) -> OperationStateBlock:
    value = find_extension(packet.content.extensions, ExtType.OPERATION_STATE)  # type: ignore[union-attr]  # a drop's body
    assert isinstance(value, OperationStateBlock)
    return value


async def test_a_superseded_operation_ends_when_its_successor_is_accepted() -> None:
    """nnrp-extensions, Submit: supersedes_operation_id; the old one ends superseded, the new one completes."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        await peer.submit(1, LONG, context=SubmitContext(11))
        await peer.submit(2, b"sleep=100;new", context=SubmitContext(12, supersedes_operation_id=11))
        assert await drops(peer, 1) == {1: OperationState.SUPERSEDED}
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=100;new"


@pytest.mark.parametrize(
    ("policy", "drain_ms", "work", "first"),
    [
        (InFlightPolicy.DRAIN, 60_000, b"gated", MessageType.RESULT_PUSH),
        (InFlightPolicy.DRAIN, 150, LONG, MessageType.RESULT_DROP),
        (InFlightPolicy.ABORT, 0, LONG, MessageType.RESULT_DROP),
    ],
    ids=["drained", "cut", "aborted"],
)
@EVERYWHERE
async def test_closing_one_session(
    tmp_path: Path, transport: str, policy: InFlightPolicy, drain_ms: int, work: bytes, first: MessageType
) -> None:
    """C-070: drain lets the operation end, or cuts it in time; abort cuts at once; new submits are refused meanwhile;
    the sibling is untouched."""
    gates = {b"gated": trio.Event(), b"sibling": trio.Event()}

    async def handler(submit: Submit, emit: Emit) -> Answer:
        gate = gates.get(bytes(submit.data()[0]))
        if gate is not None:
            await gate.wait()
        return await EchoWorker().run(submit, emit)

    async with serving_on(transport, tmp_path, make_worker=functions(handler)) as served, served.peer() as peer:
        await peer.open(OPEN.replace(requested_session_id=1))
        await peer.open(OPEN.replace(requested_session_id=2))
        await peer.submit(1, work, session_id=1)
        await peer.submit(1, b"sibling", session_id=2)
        await served.wait_until(lambda: served.service.statistics().operations == 2)
        began = trio.current_time()
        await peer.send(SessionClose(in_flight_policy=policy, drain_timeout_ms=drain_ms), session_id=1)
        if policy is InFlightPolicy.DRAIN:
            assert await close_status(peer) is CloseStatus.DRAINING
        await peer.submit(2, session_id=1)
        ended: list[Packet] = []
        refused: list[Packet] = []
        while len(ended) < 2 or not refused:
            packet = await peer.receive()
            if packet.kind is MessageType.ERROR:
                refused.append(packet)
                gates[b"gated"].set()
            else:
                ended.append(packet)
        assert trio.current_time() - began >= (0.15 if drain_ms == 150 else 0)
        if "quic" in transport:
            # A result has a stream of its own there, and streams overtake each other.
            ended.sort(key=lambda each: each.kind is MessageType.SESSION_CLOSE_ACK)
        (error,) = [each.metadata for each in refused]
        assert isinstance(error, Error)
        assert (error.error_code, error.related_frame_id) == (ErrorCode.INVALID_STATE, 2)
        assert [(each.kind, each.header.session_id) for each in ended] == [
            (first, 1),
            (MessageType.SESSION_CLOSE_ACK, 1),
        ]
        assert ended[0].header.frame_id == 1
        assert isinstance(ended[1].metadata, SessionCloseAck)
        assert ended[1].metadata.close_status is CloseStatus.CLOSED
        gates[b"sibling"].set()
        sibling = await peer.receive(MessageType.RESULT_PUSH)
        assert (sibling.header.session_id, text_of(sibling)) == (2, b"sibling")
        assert len(served.service.sessions) == 1


async def close_status(peer: Peer) -> CloseStatus:
    ack = (await peer.receive(MessageType.SESSION_CLOSE_ACK)).metadata
    assert isinstance(ack, SessionCloseAck)
    return ack.close_status


@EVERYWHERE
async def test_cancel_works_while_the_peer_does_not_read(tmp_path: Path, transport: str) -> None:
    """C-084: with results stuck, a cancel of the session stops the work, before the peer reads again; what was not complete
    by then is cancelled, and there is one end for each."""
    size = (1 if transport in ("quic", "aioquic") else 4) * 1024 * 1024
    gate = trio.Event()

    async def handler(submit: Submit, emit: Emit) -> Answer:
        await gate.wait()
        payload = text_payload(bytes(size), terminal=True, schema=(0x1001, 3))
        return Answer(payloads=(payload,), kinds=PayloadKind.TOKEN_CHUNK, profile_id=2)

    async with (
        serving_on(transport, tmp_path, make_worker=functions(handler)) as served,
        on_a_line(served) as (far, line),
        far.peer() as peer,
    ):
        await peer.open(features=ALL_FEATURES)
        for number in range(1, 5):
            await peer.submit(number, context=SubmitContext(number))
        await served.wait_until(lambda: served.service.statistics().operations == 4)
        line.deafen()
        gate.set()
        (link,) = served.service.links
        await served.wait_until(lambda: served.service.turns.scheduler.statistics().suspended > 0)
        assert link.writer.size < 32 * 1024 * 1024
        await cancel(peer, CancelScope(CancelScopeKind.SESSION))
        await peer.send(Ping())
        await served.wait_until(lambda: served.service.statistics().operations == 0)
        line.let_through()
        seen = [await peer.receive(seconds=20) for _ in range(5)]
        assert sorted(each.header.frame_id for each in seen) == [0, 1, 2, 3, 4]
        ends = [each for each in seen if each.kind is not MessageType.PONG]
        cancelled = [each for each in ends if each.kind is MessageType.RESULT_DROP]
        assert cancelled
        assert {drop_state(each) for each in cancelled} == {OperationState.CANCELLED}
        assert all(len(text_of(each)) == size for each in ends if each not in cancelled)
        await peer.nothing_comes()
