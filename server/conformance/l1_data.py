"""Layer 1, data: submits, results, operations, cancel scopes, payloads (nnrp-wire 7.11 – 7.14, 8, 9, 10, 13.4)."""

from __future__ import annotations

from itertools import pairwise

from protocol.nnrp.bodies import DataBody
from protocol.nnrp.descriptors import BodyRegionPrelude, TypedPayloadDescriptor
from protocol.nnrp.enums import (
    CancelScopeKind,
    DescriptorFlags,
    DtypeId,
    ExtensionKind,
    FrameClass,
    OperationState,
    PayloadKind,
    ResultClass,
    StopReason,
    StreamSemantics,
    TileIndexMode,
    TokenUnit,
)
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.machines.events import CancelReceived, DropReceived, ResultReceived, SubmitReceived
from protocol.nnrp.machines.operation import OPERATION, TERMINAL_STATES, Operation
from protocol.nnrp.machines.schemas import ANCHOR
from protocol.nnrp.machines.session import Delivery, Ending, Session
from protocol.nnrp.messages import FrameSubmit, Message, ResultPush
from protocol.nnrp.packet import decode_packet
from protocol.nnrp.regions import ExtensionFrame, Regions, TypedPayload
from protocol.nnrp.tensor import TensorBody, TensorSection, pack_flat_tensor
from protocol.nnrp.vendor import OperationStateBlock, SubmitContext, TokenHint
from protocol.transitions import IllegalTransition
from server.conformance.case import Evidence, case, expect, expect_refusal
from server.conformance.link import ALL_FEATURES, Link, raw_packet

__all__: list[str] = []

S = OperationState
TOKEN = PayloadKind.TOKEN_CHUNK
TOKEN_SUBMIT = FrameSubmit(payload_kind_bitmap=TOKEN)
PARTIAL = ResultPush(result_class=ResultClass.PARTIAL)


def tensor_submit() -> tuple[FrameSubmit, bytes]:
    """A minimal inline tensor submit: two tiles, one section."""
    section = TensorSection.of(1, [b"\x01\x02", b"\x03\x04"], dtype_id=DtypeId.UINT8, element_count_per_tile=2)
    body = pack_flat_tensor(TensorBody((0, 1), (section,)), mode=TileIndexMode.DENSE_RANGE)
    metadata = FrameSubmit(
        src_width=16,
        src_height=8,
        tile_width=8,
        tile_height=8,
        tile_count=2,
        section_count=1,
        frame_class=FrameClass.KEYFRAME,
        payload_kind_bitmap=PayloadKind.TENSOR,
    )
    return metadata, body


@case("l1.frame_submit.tensor.inline")
def tensor_inline(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, theirs = link.open()
    metadata, body = tensor_submit()
    _, running = link.submit(mine, metadata, body)
    content = link.server.last(SubmitReceived).packet.content
    expect(isinstance(content, DataBody) and len(content.tensor.sections) == 1, "the section arrives")
    answer = ResultPush(
        active_profile_id=1,
        section_count=1,
        tile_count=2,
        covered_tile_count=2,
        payload_kind_bitmap=PayloadKind.TENSOR,
    )
    expect(link.server.machine.finish(theirs, running, S.COMPLETED, 0.0) is Ending.PUSH, "it may be answered")
    link.to_client(answer, body, session_id=mine.session_id, frame_id=running.frame_id)
    event = link.client.last(ResultReceived)
    expect(event.delivery is Delivery.FINAL and event.operation.state is S.COMPLETED, "the result completes it")
    link.nothing_refused()


@case("l1.frame_submit.tensor.inline.routing.validation")
def tensor_routing(evidence: Evidence) -> None:
    metadata, body = tensor_submit()
    for ids in ({"session_id": 0, "frame_id": 1}, {"session_id": 1, "frame_id": 0}):
        data = raw_packet(metadata, body, **ids)
        expect_refusal(Outcome.BAD_COMBINATION, f"a submit with {ids}", decode_packet, data)
    link = Link(evidence)
    mine, theirs = link.open()
    _, running = link.submit(mine, metadata, body)
    expect(running.operation_id == running.frame_id, "the operation is named by the frame, not by the metadata")
    expect(link.server.last(SubmitReceived).session is theirs, "the header routes it to its session")
    link.to_server(metadata, body, session_id=mine.session_id + 1, frame_id=1)
    link.server.refused(Outcome.UNKNOWN_SESSION, "a submit for another session")
    link.to_server(metadata, body, session_id=mine.session_id, frame_id=running.frame_id)
    link.server.refused(Outcome.OPERATION_EXISTS, "a frame id used again")
    for offset in (15, 36, 44, 55, 70):
        wrong = bytearray(raw_packet(metadata, body, session_id=1, frame_id=1))
        wrong[40 + offset] = 1
        expect_refusal(Outcome.RESERVED_NON_ZERO, f"reserved byte {offset}", decode_packet, bytes(wrong))


@case("l1.result_push.basic.terminal.validation")
def result_terminal(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, theirs = link.open()
    operation, running = link.submit(mine, TOKEN_SUBMIT)
    expect(link.server.machine.progress(theirs, running, S.PARTIAL), "a partial result may be sent")
    link.to_client(PARTIAL, session_id=1, frame_id=1)
    expect(link.client.last(ResultReceived).delivery is Delivery.PROGRESS, "partial does not end the operation")
    expect(not operation.ended and mine.in_flight == 1, "it is in flight")
    link.finish(theirs, running, S.COMPLETED, ResultPush())
    expect(link.client.last(ResultReceived).delivery is Delivery.FINAL, "complete ends it")
    link.to_client(ResultPush(), session_id=1, frame_id=1)
    link.client.refused(Outcome.BAD_TRANSITION, "a second terminal result")


@case("l1.operation.lifecycle.progression.validation")
def progression(evidence: Evidence) -> None:
    operation = Operation(1, 1)
    for state in (S.RUNNING, S.PARTIAL, S.PARTIAL, S.COMPLETED):
        operation.advance(state)
        expect(operation.ended == (state is S.COMPLETED), f"{state.name.lower()} is terminal only when completed")
        evidence.note(repr(operation))
    expect_refusal(Outcome.BAD_TRANSITION, "accepted → partial", Operation(1, 1).advance, S.PARTIAL)
    expect_refusal(Outcome.BAD_TRANSITION, "completed → running", operation.advance, S.RUNNING)
    link = Link(evidence)
    mine, theirs = link.open()
    waiting, running = link.submit(mine, TOKEN_SUBMIT)
    expect(running.state is S.ACCEPTED, "a submit is accepted first")
    link.server.machine.progress(theirs, running, S.RUNNING)
    link.server.machine.progress(theirs, running, S.PARTIAL)
    link.to_client(PARTIAL, session_id=1, frame_id=1)
    expect((running.state, waiting.state) == (S.PARTIAL, S.PARTIAL), "both ends see it partial")
    link.finish(theirs, running, S.COMPLETED, ResultPush())
    expect((running.state, waiting.state) == (S.COMPLETED, S.COMPLETED), "both ends see it completed")


@case("l1.operation.lifecycle.waiting_tool.validation")
def waiting_tool(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, theirs = link.open(features=ALL_FEATURES)
    waiting, running = link.submit(mine, TOKEN_SUBMIT)
    for state in (S.RUNNING, S.WAITING_TOOL, S.RUNNING):
        link.server.machine.progress(theirs, running, state)
        frame = ExtensionFrame.of(ExtensionKind.OPERATION_STATE, OperationStateBlock(1, state))
        push = PARTIAL.replace(payload_kind_bitmap=TOKEN)
        link.to_client(push, Regions(extensions=(frame,)), session_id=1, frame_id=1)
        expect(waiting.state is state, f"the other end sees {state.name.lower()}")
    direct = Operation(2, 2)
    direct.advance(S.RUNNING)
    direct.advance(S.WAITING_TOOL)
    for wanted in (S.COMPLETED, S.PARTIAL, S.ACCEPTED):
        expect_refusal(Outcome.BAD_TRANSITION, f"waiting_tool → {wanted.name.lower()}", direct.advance, wanted)
    payload = TypedPayload.of(b'{"tool":"x"}', profile_id=0)
    submit = FrameSubmit(payload_kind_bitmap=PayloadKind.TOOL_DELTA, payload_frame_count=1)
    link.submit(mine, submit, Regions((payload,)))
    content = link.server.last(SubmitReceived).packet.content
    expect(
        isinstance(content, DataBody) and bytes(content.payloads[0].data) == b'{"tool":"x"}',
        "tool data stays in the payload",
    )


@case("l1.operation.lifecycle.terminal_resolution.validation")
def terminal_resolution(evidence: Evidence) -> None:
    for end in TERMINAL_STATES:
        operation = Operation(1, 1)
        operation.advance(S.RUNNING)
        operation.advance(end)
        for wanted in S:
            expect_refusal(
                Outcome.BAD_TRANSITION, f"{end.name.lower()} → {wanted.name.lower()}", operation.advance, wanted
            )
    ends = {state for (_, _), (state, _) in OPERATION.rows.items() if state in TERMINAL_STATES}
    expect(ends == {S.SUPERSEDED, S.CANCELLED, S.FAILED, S.COMPLETED}, "four distinct ends")
    try:
        OPERATION.step(S.WAITING_TOOL, S.COMPLETED)
    except IllegalTransition as refused:
        evidence.note(str(refused))
    link = Link(evidence)
    mine, theirs = link.open(features=ALL_FEATURES)
    outcomes = {}
    for frame, wanted in enumerate((S.COMPLETED, S.FAILED, S.CANCELLED), start=1):
        waiting, running = link.submit(mine, TOKEN_SUBMIT)
        if wanted is S.CANCELLED:
            link.client.machine.cancel(mine, operation_id=frame)
            link.pump()
        link.finish(theirs, running, wanted, ResultPush())
        outcomes[wanted] = (waiting.state, running.state)
    old = submit_in_tree(link, mine, SubmitContext(50))
    submit_in_tree(link, mine, SubmitContext(51, supersedes_operation_id=50))
    replaced = link.server.last(SubmitReceived).superseded
    expect(replaced is not None, "the replaced operation is named")
    if replaced is not None:
        link.finish(theirs, replaced, S.COMPLETED, ResultPush())
        outcomes[S.SUPERSEDED] = (old.state, replaced.state)
    evidence.note(str(outcomes))
    expect(all(pair == (wanted, wanted) for wanted, pair in outcomes.items()), "each end arrives as what it is")
    expect(len(outcomes) == 4, "all four ends were tried")


def submit_in_tree(link: Link, session: Session, context: SubmitContext) -> Operation:
    operation = link.client.machine.submit(session, 0.0, context=context)
    body = Regions(extensions=(ExtensionFrame.of(ExtensionKind.SUBMIT_CONTEXT, context),))
    link.to_server(TOKEN_SUBMIT, body, session_id=session.session_id, frame_id=operation.frame_id)
    return operation


@case("l1.operation.cancel_scope.validation")
def cancel_scopes(evidence: Evidence) -> None:
    contexts = (
        SubmitContext(1),
        SubmitContext(2, 1),
        SubmitContext(3, 2),
        SubmitContext(4, 0, 9),
    )
    for scope, target, group, reached in (
        (CancelScopeKind.OPERATION, 2, 0, [2]),
        (CancelScopeKind.SUBTREE, 2, 0, [2, 3]),
        (CancelScopeKind.GROUP, 0, 9, [4]),
        (CancelScopeKind.SESSION, 0, 0, [1, 2, 3, 4]),
    ):
        link = Link(evidence)
        mine, theirs = link.open(features=ALL_FEATURES)
        other, their_other = link.open(features=ALL_FEATURES)
        for context in contexts:
            submit_in_tree(link, mine, context)
        submit_in_tree(link, other, SubmitContext(1))
        link.client.machine.cancel(mine, scope, operation_id=target, group_id=group)
        link.pump()
        affected = [each.operation_id for each in link.server.last(CancelReceived).operations]
        evidence.note(f"{scope.name.lower()} {target or group}: {affected}")
        expect(affected == reached, f"scope {scope.name.lower()} reaches {reached}")
        expect(not any(each.ended for each in their_other.operations), "another session is not touched")
        for operation in list(theirs.operations):
            link.finish(theirs, operation, S.COMPLETED, ResultPush())
        dropped = [each.operation.operation_id for each in link.client.events if isinstance(each, DropReceived)]
        expect(dropped == reached, "each cancelled operation ends once, the others complete")
        expect(mine.in_flight == 0, "and all credit comes back")


# Payloads


def token_body(*pieces: tuple[bytes, DescriptorFlags]) -> Regions:
    return Regions(
        tuple(
            TypedPayload.of(
                data,
                profile_id=ANCHOR.profile_id,
                schema_id=ANCHOR.schema_id,
                schema_version=ANCHOR.schema_version,
                stream_semantics=StreamSemantics.APPEND,
                flags=flags,
            )
            for data, flags in pieces
        )
    )


def with_descriptors(message: Message, descriptors: list[TypedPayloadDescriptor], frames: bytes) -> bytes:
    """A region body whose descriptors are exactly these, right or wrong."""
    head = b"".join(each.pack() for each in descriptors)
    body = BodyRegionPrelude(0, 0, len(head), len(frames)).pack() + head + frames
    return raw_packet(message, body, session_id=1, frame_id=1)


@case("l1.typed_payload.descriptor.validation")
def typed_payload(evidence: Evidence) -> None:
    none = DescriptorFlags(0)
    message = FrameSubmit(payload_kind_bitmap=TOKEN, payload_frame_count=1)
    plan = TypedPayloadDescriptor(2, none, *ANCHOR.key, StreamSemantics.APPEND)
    decode_packet(with_descriptors(message, [plan.replace(length=64)], bytes(64)))
    for offset, length in ((0, 65), (60, 8), (64, 1), (0xFFFF_FFF0, 0x20), (0xFFFF_FFFF, 1), (0, 63), (1, 63)):
        data = with_descriptors(message, [plan.replace(offset=offset, length=length)], bytes(64))
        try:
            decode_packet(data)
        except NnrpError as refused:
            evidence.note(f"({offset}, {length}): {refused}")
            expect(refused.outcome in (Outcome.BAD_COMBINATION, Outcome.LENGTH_OVERFLOW), str(refused))
        else:
            expect(False, f"the range ({offset}, {length}) of a region of 64 bytes is refused")
    link = Link(evidence)
    mine, _ = link.open()
    two = message.replace(payload_frame_count=2)
    link.submit(mine, two, token_body((b"one", DescriptorFlags.PARTIAL), (b"two!", DescriptorFlags.TERMINAL)))
    content = link.server.last(SubmitReceived).packet.content
    expect(isinstance(content, DataBody), "the body is decoded")
    if isinstance(content, DataBody):
        places = [(each.descriptor.offset, each.descriptor.length) for each in content.payloads]  # type: ignore[union-attr]
        expect(places == [(0, 3), (3, 4)], "offsets are relative to the frame region")
        expect([bytes(each.data) for each in content.payloads] == [b"one", b"two!"], "each payload is its range")
    both = plan.replace(descriptor_flags=DescriptorFlags(3))
    expect_refusal(Outcome.BAD_COMBINATION, "terminal and partial at once", TypedPayloadDescriptor.parse, both.pack())
    wrong = bytearray(plan.pack())
    wrong[2] |= 0x10
    expect_refusal(Outcome.RESERVED_BITS, "flag bit 4", TypedPayloadDescriptor.parse, bytes(wrong))


@case("l1.token_profile.partial.validation")
def token_partial(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, theirs = link.open()
    waiting, running = link.submit(mine, TOKEN_SUBMIT)
    hints = (
        (
            TokenHint(TokenUnit.UTF8_BYTE, StopReason.NONE, sequence_start=0, sequence_end=3),
            b"one",
            DescriptorFlags.PARTIAL,
        ),
        (
            TokenHint(TokenUnit.UTF8_BYTE, StopReason.EOS, sequence_start=3, sequence_end=6),
            b"two",
            DescriptorFlags.TERMINAL,
        ),
    )
    seen = []
    for hint, text, mark in hints:
        last = mark is DescriptorFlags.TERMINAL
        if last:
            link.server.machine.finish(theirs, running, S.COMPLETED, 0.0)
        else:
            link.server.machine.progress(theirs, running, S.PARTIAL)
        push = (ResultPush() if last else PARTIAL).replace(payload_kind_bitmap=TOKEN, payload_frame_count=1)
        body = token_body((hint.pack() + text, mark | DescriptorFlags.PROFILE_HINT_PRESENT))
        link.to_client(push, body, session_id=1, frame_id=1)
        event = link.client.last(ResultReceived)
        expect((event.delivery is Delivery.FINAL) == last, "partial: the chunk is usable, the sequence unfinished")
        content = event.packet.content
        if isinstance(content, DataBody):
            seen.append(TokenHint.decode(bytes(content.payloads[0].data)))
    evidence.note(str(seen))
    expect(
        [each.stop_reason for each in seen] == [StopReason.NONE, StopReason.EOS], "the stop reason ends the sequence"
    )
    expect(all(a.sequence_end == b.sequence_start for a, b in pairwise(seen)), "chunks are contiguous")
    expect(waiting.state is S.COMPLETED, "the terminal chunk completes the operation")
