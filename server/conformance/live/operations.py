"""Operations at a running server: submits, results, states, cancel (nnrp-wire 7.11 – 7.14, 10, 13.4)."""

from __future__ import annotations

from typing import Final

from protocol.nnrp.bodies import DataBody
from protocol.nnrp.enums import (
    CancelScopeKind,
    ErrorCode,
    ErrorScope,
    ExtType,
    MessageType,
    OperationState,
    ProfileId,
    ResultClass,
)
from protocol.nnrp.extensions import ALL_FEATURES, ControlExtension, pack_extensions
from protocol.nnrp.messages import FrameCancel, ResultPush
from protocol.nnrp.packet import Packet
from protocol.nnrp.vendor import CancelScope, SubmitContext
from server.conformance.case import Evidence, expect
from server.conformance.l1_data import tensor_submit
from server.conformance.link import OPEN, raw_packet
from server.conformance.live.judge import live_case
from server.conformance.live.peer import Peer, metadata, state_of
from server.conformance.live.place import Place

__all__: list[str] = []

S = OperationState
_TENSOR: Final = OPEN.replace(profile_id=ProfileId.TENSOR, schema_id=0, schema_version=0)
_INVALID_STATE: Final = int(ErrorCode.INVALID_STATE)
_LONG: Final = b"sleep=60000;never"


@live_case("l1.frame_submit.tensor.inline")
async def tensor_inline(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        session_id = await peer.opened(_TENSOR)
        message, body = tensor_submit()
        await peer.send(message, body, session_id=session_id, frame_id=1)
        (answer,) = await peer.finals(1)
        push = metadata(answer, ResultPush)
        expect((push.section_count, push.tile_count) == (1, 2), "the result has the section and the tiles")
        expect(push.covered_tile_count == 2 and push.dropped_tile_count == 0, "all of them")
        content = answer.content
        expect(isinstance(content, DataBody) and len(content.tensor.sections) == 1, "its section can be read")


@live_case("l1.frame_submit.tensor.inline.routing.validation")
async def tensor_routing(place: Place, evidence: Evidence) -> None:
    message, body = tensor_submit()
    for ids in ({"session_id": 0, "frame_id": 1}, {"session_id": 1, "frame_id": 0}):
        async with place.peer() as peer:
            await peer.opened(_TENSOR.replace(requested_session_id=1))
            await peer.send_raw(raw_packet(message, body, **ids))
            packet = await peer.receive()
            expect(packet is not None and packet.kind is MessageType.ERROR, f"a submit with {ids} is refused")
    async with place.peer() as peer:
        session_id = await peer.opened(_TENSOR)
        await peer.send(message, body, session_id=session_id, frame_id=1)
        (answer,) = await peer.finals(1)
        expect(answer.header.session_id == session_id, "the header routes it to its session")
        await peer.send(message, body, session_id=session_id + 1, frame_id=1)
        await peer.refused(_INVALID_STATE, "a submit for another session")
        await peer.send(message, body, session_id=session_id, frame_id=1)
        await peer.refused(_INVALID_STATE, "a frame id used again")
        for offset in (15, 36, 44, 55, 70):
            wrong = bytearray(raw_packet(message, body, session_id=session_id, frame_id=2))
            wrong[40 + offset] = 1
            await peer.send_raw(bytes(wrong))
            await peer.refused(int(ErrorCode.MALFORMED_BODY), f"reserved byte {offset}", scope=ErrorScope.FRAME)
        await peer.send(message, body, session_id=session_id, frame_id=3)
        await peer.finals(3)


@live_case("l1.result_push.basic.terminal.validation", "l1.operation.lifecycle.progression.validation")
async def terminal(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        session_id = await peer.opened(OPEN, ALL_FEATURES)
        await peer.submit(session_id, 1, b"partial=3;abcdef")
        states: list[OperationState | None] = []
        while not states or states[-1] is not S.COMPLETED:
            packet = await peer.take(MessageType.RESULT_PUSH)
            push = metadata(packet, ResultPush)
            states.append(state_of(packet))
            last = states[-1] is S.COMPLETED
            expect((push.result_class is ResultClass.COMPLETE) == last, "partial and complete are told apart")
        expect(states == [S.PARTIAL, S.PARTIAL, S.COMPLETED], "parts, then one end")
        await peer.quiet("an operation ends once")
        evidence.note(str(states))


@live_case("l1.operation.lifecycle.waiting_tool.validation")
async def waiting_tool(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        session_id = await peer.opened(OPEN, ALL_FEATURES)
        await peer.submit(session_id, 1, b'tool;sleep=50;{"tool":"x"}')
        packets = [await peer.take(MessageType.RESULT_PUSH) for _ in range(3)]
        states = [state_of(each) for each in packets]
        expect(states == [S.WAITING_TOOL, S.RUNNING, S.COMPLETED], "waiting_tool is told, and what follows it")
        for each in packets[:2]:
            expect(metadata(each, ResultPush).payload_frame_count == 0, "a state alone has no payload")
        evidence.note(f"{states}; tool data stays in the payload")


async def _cancelled(peer: Peer, session_id: int, frame_id: int) -> None:
    await peer.send(FrameCancel(), session_id=session_id, frame_id=frame_id)


@live_case("l1.operation.lifecycle.terminal_resolution.validation")
async def terminal_resolution(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        session_id = await peer.opened(OPEN, ALL_FEATURES)
        found: dict[OperationState | None, MessageType] = {}

        async def end(frame: int) -> None:
            (packet,) = await peer.finals(frame)
            found[state_of(packet)] = packet.kind

        await peer.submit(session_id, 1, b"complete")
        await end(1)
        await peer.submit(session_id, 2, b"fail;")
        await end(2)
        await peer.submit(session_id, 3, _LONG)
        await _cancelled(peer, session_id, 3)
        await end(3)
        await peer.submit(session_id, 4, _LONG, context=SubmitContext(50))
        await peer.submit(session_id, 5, b"new", context=SubmitContext(51, supersedes_operation_id=50))
        for packet in await peer.finals(4, 5):
            if packet.header.frame_id == 4:
                found[state_of(packet)] = packet.kind
        drop = MessageType.RESULT_DROP
        evidence.note(str(found))
        expect(
            found == {S.COMPLETED: MessageType.RESULT_PUSH, S.FAILED: drop, S.CANCELLED: drop, S.SUPERSEDED: drop},
            "four ends, each told as what it is",
        )


@live_case("l1.operation.cancel_scope.validation")
async def cancel_scopes(place: Place, evidence: Evidence) -> None:
    contexts = (SubmitContext(1), SubmitContext(2, 1), SubmitContext(3, 2), SubmitContext(4, 0, 9))
    for scope, target, group, reached in (
        (CancelScopeKind.OPERATION, 2, 0, {2}),
        (CancelScopeKind.SUBTREE, 2, 0, {2, 3}),
        (CancelScopeKind.GROUP, 0, 9, {4}),
        (CancelScopeKind.SESSION, 0, 0, {1, 2, 3, 4}),
    ):
        async with place.peer() as peer:
            session_id = await peer.opened(OPEN, ALL_FEATURES)
            other = await peer.opened(OPEN, ALL_FEATURES)
            for context in contexts:
                await peer.submit(session_id, context.operation_id, b"sleep=600;lives", context=context)
            await peer.submit(other, 1, b"sleep=600;lives", context=SubmitContext(1))
            value = CancelScope(scope, operation_id=target, operation_group_id=group)
            body = pack_extensions([ControlExtension.of(ExtType.CANCEL_SCOPE, value)])
            await peer.send(FrameCancel(), body, session_id=session_id, frame_id=target)
            ends: dict[tuple[int, int], Packet] = {}
            while len(ends) < 5:
                packet = await peer.receive()
                expect(packet is not None, "every operation ends")
                if packet is not None:
                    key = (packet.header.session_id, packet.header.frame_id)
                    expect(key not in ends, "once")
                    ends[key] = packet
            dropped = {frame for (at, frame), each in ends.items() if each.kind is MessageType.RESULT_DROP}
            evidence.note(f"{scope.name.lower()} {target or group}: {sorted(dropped)}")
            expect(dropped == reached, f"scope {scope.name.lower()} reaches {sorted(reached)}")
            expect(ends[other, 1].kind is MessageType.RESULT_PUSH, "another session is not touched")
