"""Cancel scopes, deadlines, supersede and closing, over TCP."""

from __future__ import annotations

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
)
from protocol.nnrp.extensions import ALL_FEATURES, ControlExtension, find_extension, pack_extensions
from protocol.nnrp.machines.reading import drop_state
from protocol.nnrp.messages import Error, FrameCancel, FrameSubmit, Ping, SessionClose, SessionCloseAck
from protocol.nnrp.packet import Packet
from protocol.nnrp.vendor import CancelScope, OperationStateBlock, SubmitContext
from tests.support.nnrp import OPEN, Peer, serving_nnrp, submit_packet, text_of

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
async def test_the_four_cancel_scopes(scope: CancelScope, cancelled: set[int]) -> None:
    """C-062: exactly the named set is cancelled, one terminal each; the rest, and the sibling session, complete."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(OPEN.replace(requested_session_id=1), features=ALL_FEATURES)
        await peer.open(OPEN.replace(requested_session_id=2), features=ALL_FEATURES)
        tree = {1: (0, 0), 2: (1, 0), 3: (2, 0), 4: (0, 9), 5: (0, 9)}
        work = b"sleep=250;"
        for number, (parent, group) in tree.items():
            await peer.submit(number, work, context=SubmitContext(number, parent, group))
        await peer.submit(1, work, session_id=2, context=SubmitContext(1))
        await cancel(peer, scope, frame_id=scope.operation_id)
        assert await drops(peer, len(cancelled)) == dict.fromkeys(cancelled, OperationState.CANCELLED)
        completed = set()
        for _ in range(6 - len(cancelled)):
            packet = await peer.receive(MessageType.RESULT_PUSH)
            completed.add((packet.header.session_id, packet.header.frame_id))
        assert completed == {(2, 1)} | {(1, number) for number in tree if number not in cancelled}


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
        (InFlightPolicy.DRAIN, 2000, b"sleep=150;", MessageType.RESULT_PUSH),
        (InFlightPolicy.DRAIN, 150, LONG, MessageType.RESULT_DROP),
        (InFlightPolicy.ABORT, 0, LONG, MessageType.RESULT_DROP),
    ],
    ids=["drained", "cut", "aborted"],
)
async def test_closing_one_session(policy: InFlightPolicy, drain_ms: int, work: bytes, first: MessageType) -> None:
    """C-070: drain lets the operation end, or cuts it in time; abort cuts at once; new submits are refused meanwhile;
    the sibling is untouched."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(OPEN.replace(requested_session_id=1))
        await peer.open(OPEN.replace(requested_session_id=2))
        await peer.submit(1, work, session_id=1)
        await peer.submit(1, LONG, session_id=2)
        await peer.send(SessionClose(in_flight_policy=policy, drain_timeout_ms=drain_ms), session_id=1)
        if policy is InFlightPolicy.DRAIN:
            assert await close_status(peer) is CloseStatus.DRAINING
            await peer.submit(2, session_id=1)
            error = (await peer.receive(MessageType.ERROR)).metadata
            assert isinstance(error, Error)
            assert error.error_code == ErrorCode.INVALID_STATE
        began = trio.current_time()
        ended = await peer.receive(first)
        assert (ended.header.session_id, ended.header.frame_id) == (1, 1)
        assert trio.current_time() - began < 10
        assert await close_status(peer) is CloseStatus.CLOSED
        await peer.send(FrameCancel(), session_id=2, frame_id=1)
        sibling = await peer.receive(MessageType.RESULT_DROP)
        assert sibling.header.session_id == 2
        assert len(served.service.sessions) == 1


async def close_status(peer: Peer) -> CloseStatus:
    ack = (await peer.receive(MessageType.SESSION_CLOSE_ACK)).metadata
    assert isinstance(ack, SessionCloseAck)
    return ack.close_status


async def test_cancel_works_while_the_peer_does_not_read() -> None:
    """C-084: with results stuck, a cancel stops the work at once; the rest is delivered when the peer reads again."""
    size = 4 * 1024 * 1024
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        for number in range(1, 5):
            await peer.submit(number, b"sleep=50;" + bytes(size))
        (link,) = served.service.links
        await served.wait_until(lambda: link.writer.full)
        await trio.sleep(0.2)
        assert link.writer.size < 32 * 1024 * 1024
        await peer.send(FrameCancel(), session_id=1, frame_id=1)
        for number in range(1, 5):
            await peer.send(FrameCancel(), session_id=1, frame_id=number)
        await peer.send(Ping())
        await served.wait_until(lambda: served.service.statistics().operations == 0, 1.0)
        seen = [await peer.receive() for _ in range(5)]
        assert sorted(each.header.frame_id for each in seen) == [0, 1, 2, 3, 4]
        assert sum(each.kind is MessageType.RESULT_DROP for each in seen) >= 2
        await peer.nothing_comes()
