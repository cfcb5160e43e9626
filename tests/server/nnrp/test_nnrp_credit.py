"""Credit as the server enforces it, and peers that misbehave: other connections and the memory stay as they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from protocol.nnrp.enums import (
    BackpressureLevel,
    CancelScopeKind,
    ErrorCode,
    ExtType,
    FlowFlags,
    FlowScope,
    MessageType,
    OperationPriority,
    OperationState,
    UpdateReason,
)
from protocol.nnrp.extensions import ALL_FEATURES, ControlExtension, pack_extensions
from protocol.nnrp.header import Header
from protocol.nnrp.machines.connection import ConnectionLimits
from protocol.nnrp.machines.hello import HelloPolicy
from protocol.nnrp.machines.opening import OpenPolicy
from protocol.nnrp.machines.reading import drop_state, result_state
from protocol.nnrp.messages import Error, FlowUpdate, FrameCancel, FrameSubmit, Ping, SessionOpenAck
from protocol.nnrp.vendor import CancelScope, SubmitContext
from server.nnrp.policy import ServingPolicy
from tests.support.nnrp import OPEN, Peer, raw, serving_nnrp, submit_packet, text_of
from tests.support.nnrp_transports import EVERYWHERE, send_bytes, serving_on

LONG = b"sleep=60000;"
FOUR = ServingPolicy(opening=OpenPolicy(max_in_flight_operations=4, operation_credit=4))


async def test_the_granted_credit_is_at_most_what_is_configured() -> None:
    """nnrp-wire 13.2: a request above the limit is lowered, not refused."""
    async with serving_nnrp(FOUR) as served, served.peer() as peer:
        answer = (await peer.open(OPEN.replace(max_in_flight_operations=100))).metadata
        assert isinstance(answer, SessionOpenAck)
        assert (answer.granted_operation_credit, answer.max_in_flight_operations) == (4, 4)


@EVERYWHERE
async def test_a_peer_that_ignores_its_credit_is_stopped(tmp_path: Path, transport: str) -> None:
    """C-085: of 1,000 submits at once four run, the rest get an ERROR each; nobody else notices."""
    async with serving_on(transport, tmp_path, FOUR) as served, served.peer() as peer, served.peer() as other:
        await peer.open()
        await other.open()
        flood = b"".join(submit_packet(number, b"sleep=60000;") for number in range(1, 1001))
        await peer.stream.send_all(flood)
        await other.submit(1, b"fine")
        assert text_of(await other.receive(MessageType.RESULT_PUSH)) == b"fine"
        for number in range(5, 1001):
            error = (await peer.receive(MessageType.ERROR)).metadata
            assert isinstance(error, Error)
            assert (error.error_code, error.is_fatal) == (ErrorCode.LIMIT_EXCEEDED, 0)
            assert error.related_frame_id == number
        assert served.service.statistics().operations == 4
        for number in range(1, 5):
            await peer.send(FrameCancel(), session_id=1, frame_id=number)
        assert [(await peer.receive()).kind for _ in range(4)] == [MessageType.RESULT_DROP] * 4
        await peer.submit(1001, b"again")
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"again"


@EVERYWHERE
async def test_credit_comes_back_on_every_kind_of_ending(tmp_path: Path, transport: str) -> None:
    """C-078: 200 operations, four at a time, in five kinds of endings; then four still run at once, and not one more."""
    outcomes: Counter[OperationState] = Counter()
    first = 1

    async def end(count: int) -> None:
        for _ in range(count):
            packet = await peer.receive()
            push = packet.kind is MessageType.RESULT_PUSH
            outcomes[result_state(packet) if push else drop_state(packet)] += 1

    async with serving_on(transport, tmp_path, FOUR) as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        for first in range(1, 201, 4):
            four = range(first, first + 4)
            kind = first // 4 % 5
            if kind == 4:
                for number in four:
                    superseded = number - 2 if number >= first + 2 else 0
                    context = SubmitContext(number, supersedes_operation_id=superseded)
                    await peer.submit(number, b"x" if superseded else LONG, context=context)
            else:
                for number in four:
                    work = (b"sleep=1;", b"fail;", LONG, LONG)[kind]
                    await peer.submit(number, work, context=SubmitContext(number))
            if kind == 2:
                for number in four:
                    await cancel(peer, CancelScope(CancelScopeKind.OPERATION, operation_id=number), number)
            if kind == 3:
                await cancel(peer, CancelScope(CancelScopeKind.SESSION))
            await end(4)
        assert outcomes == {
            OperationState.COMPLETED: 60,
            OperationState.FAILED: 40,
            OperationState.CANCELLED: 80,
            OperationState.SUPERSEDED: 20,
        }
        (session,) = served.service.sessions
        assert (session.machine.window.in_flight, session.machine.window.limit) == (0, 4)
        assert served.service.statistics().operations == 0
        for number in range(201, 206):
            await peer.submit(number, LONG, context=SubmitContext(number))
        refused = (await peer.receive(MessageType.ERROR)).metadata
        assert isinstance(refused, Error)
        assert refused.error_code == ErrorCode.LIMIT_EXCEEDED
        assert served.service.statistics().operations == 4


async def cancel(peer: Peer, scope: CancelScope, frame_id: int = 0) -> None:
    body = pack_extensions([ControlExtension.of(ExtType.CANCEL_SCOPE, scope)])
    await peer.send(FrameCancel(), body, session_id=1, frame_id=frame_id)


@EVERYWHERE
async def test_connection_credit_is_enforced_over_its_sessions(tmp_path: Path, transport: str) -> None:
    """nnrp-wire 13.6, C-080 on the server's side: never more than the connection's four in flight in total."""
    policy = ServingPolicy(hello=HelloPolicy(max_concurrent_frames=4))
    async with serving_on(transport, tmp_path, policy) as served, served.peer() as peer:
        for number in (1, 2):
            await peer.open(OPEN.replace(requested_session_id=number))
        for number in range(1, 4):
            await peer.submit(number, LONG, session_id=1)
            await peer.submit(number, LONG, session_id=2)
        assert [(await peer.receive()).kind for _ in range(2)] == [MessageType.ERROR] * 2
        assert served.service.statistics().operations == 4
        await peer.send(FrameCancel(), session_id=1, frame_id=1)
        await peer.receive(MessageType.RESULT_DROP)
        await peer.submit(4, b"x", session_id=2)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"x"


async def test_a_stale_flow_update_is_dropped_and_a_paused_session_keeps_its_results() -> None:
    """C-079 where the server accepts updates: epoch 5 pauses results, an older grant changes nothing, epoch 6 lets go."""

    def flow(reason: UpdateReason, epoch: int) -> FlowUpdate:
        return FlowUpdate(
            scope_kind=FlowScope.SESSION,
            update_reason=reason,
            session_credit=4,
            credit_epoch=epoch,
            flow_flags=FlowFlags.CREDIT_VALID,
        )

    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        await peer.send(flow(UpdateReason.PAUSE, 5), session_id=1)
        await peer.send(flow(UpdateReason.GRANT, 4), session_id=1)
        await peer.submit(1, b"sleep=1;held")
        await peer.nothing_comes()
        await peer.send(flow(UpdateReason.RESUME, 6), session_id=1)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=1;held"


@pytest.mark.parametrize(
    ("held_back", "comes"),
    [
        ({"update_reason": UpdateReason.PAUSE}, set()),
        ({"update_reason": UpdateReason.CONGESTION, "backpressure_level": BackpressureLevel.HARD}, set()),
        ({"update_reason": UpdateReason.REDUCE, "flow_flags": FlowFlags.BACKGROUND_ONLY}, {b"background"}),
        (
            {"update_reason": UpdateReason.REDUCE, "flow_flags": FlowFlags.DRAIN_IN_FLIGHT_ONLY},
            {b"at once", b"sleep=1;soon", b"background"},
        ),
    ],
    ids=["pause", "hard", "background only", "drain only"],
)
@pytest.mark.parametrize("scope", [FlowScope.CONNECTION, FlowScope.SESSION])
async def test_a_client_holds_results_back(held_back: dict[str, Any], comes: set[bytes], scope: FlowScope) -> None:
    """13.6 in the other direction, both scopes: what may not come waits, however it is made, its operation in flight; what
    runs goes on, drops and answers come, and a resume with a higher epoch brings the rest. A second session is held back by
    the connection's scope only."""
    session_id = 0 if scope is FlowScope.CONNECTION else 1
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        await peer.open(OPEN.replace(requested_session_id=2), features=ALL_FEATURES)
        await peer.send(FlowUpdate(scope_kind=scope, credit_epoch=1, **held_back), session_id=session_id)
        await peer.submit(1, b"at once", context=SubmitContext(1))
        await peer.submit(2, b"sleep=1;soon", context=SubmitContext(2))
        background = OperationPriority.BACKGROUND
        await peer.submit(3, b"background", context=SubmitContext(3, priority_class=background))
        got = {text_of(await peer.receive(MessageType.RESULT_PUSH)) for _ in comes}
        assert got == comes
        await peer.nothing_comes()
        assert served.service.statistics().operations == 3 - len(comes)
        await peer.submit(4, b"sleep=60000;", context=SubmitContext(4))
        await cancel(peer, CancelScope(CancelScopeKind.OPERATION, operation_id=4), frame_id=4)
        assert (await peer.receive()).kind is MessageType.RESULT_DROP
        await peer.submit(1, b"other", session_id=2, context=SubmitContext(1))
        if scope is FlowScope.SESSION or b"at once" in comes:
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"other"
        else:
            await peer.nothing_comes()
        await peer.send(
            FlowUpdate(scope_kind=scope, update_reason=UpdateReason.RESUME, credit_epoch=2), session_id=session_id
        )
        rest = {b"at once", b"sleep=1;soon", b"background"} - comes
        if scope is FlowScope.CONNECTION and rest:
            rest |= {b"other"}
        assert {text_of(await peer.receive(MessageType.RESULT_PUSH)) for _ in rest} == rest
        await served.wait_until(lambda: served.service.statistics().operations == 0)


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 65), (60, 8), (64, 1), (0xFFFFFFF0, 0x20), (0xFFFFFFFF, 1)], ids=str
)
async def test_payload_descriptors_that_point_outside_the_region(offset: int, length: int) -> None:
    """C-056: refused with malformed_body or malformed_header's stable code, no operation starts, the session goes on."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        packet = bytearray(submit_packet(1, bytes(64)))
        at = packet.index((64).to_bytes(4, "little"), 40 + 72 + 32 + 16)
        packet[at - 4 : at + 4] = offset.to_bytes(4, "little") + length.to_bytes(4, "little")
        await peer.stream.send_all(packet)
        error = (await peer.receive(MessageType.ERROR)).metadata
        assert isinstance(error, Error)
        assert not error.is_fatal
        assert served.service.statistics().operations == 0
        await peer.submit(2, bytes(64))
        assert len(text_of(await peer.receive(MessageType.RESULT_PUSH))) == 64


@pytest.mark.parametrize(
    ("meta_len", "body_len"), [(0, 0xFFFFFFFF), (0xFFFFFFFF, 0), (0xFFFFFFFF, 0xFFFFFFFF)], ids=["body", "meta", "sum"]
)
@EVERYWHERE
async def test_a_declared_length_is_not_trusted(tmp_path: Path, transport: str, meta_len: int, body_len: int) -> None:
    """C-054: refused at once with an ERROR and a close; nothing is waited for; others go on."""
    async with serving_on(transport, tmp_path) as served, served.peer() as peer, served.peer() as other:
        header = Header(MessageType.PING, meta_len=meta_len, body_len=body_len)
        await send_bytes(peer.stream, header.pack())
        error = (await peer.receive(MessageType.ERROR)).metadata
        assert isinstance(error, Error)
        assert error.is_fatal
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await peer.receive()
        await other.send(Ping())
        await other.receive(MessageType.PONG)


async def test_a_silent_connection_is_closed_and_its_operations_end() -> None:
    """nnrp-wire 2.2, 13.8: the idle timeout counts received packets; half a header does not prolong it."""
    policy = ServingPolicy(limits=ConnectionLimits(idle_timeout=0.3))
    async with serving_nnrp(policy) as served, served.peer() as peer:
        await peer.open()
        await peer.submit(1, b"sleep=60000;")
        await peer.stream.send_all(raw(Ping())[:20])
        with pytest.raises(EOFError):
            await peer.receive(seconds=3)
        await served.wait_until(lambda: served.service.statistics().operations == 0)
        assert served.service.statistics().sessions == 0


async def test_a_peer_that_never_reads_is_dropped_and_holds_bounded_memory() -> None:
    """Issue 5, Bad input: what a deaf peer can make us hold is bounded, and it is given up after the send timeout."""
    policy = ServingPolicy(send_timeout=0.5)
    async with serving_nnrp(policy) as served, served.peer() as peer:
        await peer.open()
        (link,) = served.service.links
        highest = 0
        with trio.move_on_after(10):
            number = 0
            try:
                while not link.machine.closed:
                    number += 1
                    await peer.stream.send_all(submit_packet(number, bytes(100_000), metadata=FrameSubmit()))
                    highest = max(highest, link.writer.size)
            except trio.BrokenResourceError:
                pass
        assert link.machine.closed
        assert highest < 8 * 1024 * 1024
