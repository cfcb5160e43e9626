"""Typed payloads and token streams at a running server, and our client's two ways to be driven (nnrp-wire 8.5, 11.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocol.nnrp.descriptors import TypedPayloadDescriptor
from protocol.nnrp.enums import (
    DescriptorFlags,
    ErrorCode,
    MessageType,
    ObjectKind,
    OperationState,
    PayloadKind,
    StopReason,
    StreamSemantics,
    TokenUnit,
)
from protocol.nnrp.extensions import ALL_FEATURES
from protocol.nnrp.machines.schemas import ANCHOR
from protocol.nnrp.messages import FrameSubmit
from protocol.nnrp.packet import Packet
from protocol.nnrp.regions import InlineObject, Regions, TypedPayload
from protocol.nnrp.vendor import TokenHint
from server.conformance.case import Evidence, expect
from server.conformance.l1_data import token_body, with_descriptors
from server.conformance.link import OPEN
from server.conformance.live.judge import live_case
from server.conformance.live.peer import state_of, text_of
from server.conformance.live.place import Place

if TYPE_CHECKING:
    from client.nnrp import Result, Submission

__all__: list[str] = []

_TOKEN: Final = PayloadKind.TOKEN_CHUNK
_PARTIAL, _TERMINAL = DescriptorFlags.PARTIAL, DescriptorFlags.TERMINAL


@live_case("l1.typed_payload.descriptor.validation")
async def typed_payload(place: Place, evidence: Evidence) -> None:
    plan = TypedPayloadDescriptor(2, DescriptorFlags(0), *ANCHOR.key, StreamSemantics.APPEND)
    message = FrameSubmit(payload_kind_bitmap=_TOKEN, payload_frame_count=1)
    async with place.peer() as peer:
        session_id = await peer.opened(OPEN.replace(requested_session_id=1))
        expect(session_id == 1, "the session has the id that was asked for")
        for offset, length in ((0, 65), (60, 8), (64, 1), (0xFFFF_FFF0, 0x20), (0xFFFF_FFFF, 1)):
            await peer.send_raw(with_descriptors(message, [plan.replace(offset=offset, length=length)], bytes(64)))
            packet = await peer.receive()
            expect(
                packet is not None and packet.kind is MessageType.ERROR,
                f"the range ({offset}, {length}) of a region of 64 bytes is refused",
            )
        wrong = bytearray(with_descriptors(message, [plan.replace(length=64)], bytes(64)))
        wrong[40 + 72 + 32 + 2] |= 0x10
        await peer.send_raw(bytes(wrong))
        await peer.refused(int(ErrorCode.MALFORMED_BODY), "descriptor flag bit 4")
        await peer.send_raw(with_descriptors(message, [plan.replace(length=64)], bytes(64)))
        (answer,) = await peer.finals(1)
        expect(text_of(answer) == bytes(64), "the good one comes back")


@live_case("l1.token_profile.partial.validation")
async def token_partial(place: Place, evidence: Evidence) -> None:
    """A sequence in two chunks: the first is usable and not the end, the second ends it with its reason."""
    async with place.peer() as peer:
        session_id = await peer.opened(OPEN, ALL_FEATURES)
        await peer.submit(session_id, 1, b"partial=2;sequence")
        first, second = [await peer.take(MessageType.RESULT_PUSH) for _ in range(2)]
        marks = [_mark(each) for each in (first, second)]
        expect(marks[0] == _PARTIAL, "partial: the chunk is usable, the sequence unfinished")
        expect(marks[1] == _TERMINAL, "terminal: it is finished")
        expect(text_of(first) + text_of(second) == b"partial=2;sequence", "in order, and complete")
        hint = TokenHint(TokenUnit.UTF8_BYTE, StopReason.EOS, sequence_start=0, sequence_end=3)
        body = token_body((hint.pack() + b"end", _TERMINAL | DescriptorFlags.PROFILE_HINT_PRESENT))
        message = FrameSubmit(payload_kind_bitmap=_TOKEN, payload_frame_count=1)
        await peer.send(message, body, session_id=session_id, frame_id=2)
        (answer,) = await peer.finals(2)
        expect(TokenHint.decode(text_of(answer)) == hint, "the stop reason and the range survive the way")
        expect(state_of(answer) is OperationState.COMPLETED, "the terminal chunk completes the operation")


@live_case("l2.payload.typed.buffer_ownership.relative_region.validation")
async def relative_region(place: Place, evidence: Evidence) -> None:
    """Objects before the payloads do not shift them: offsets count from the frame region, there and back."""
    async with place.client() as connection, await connection.open_session() as session:
        payloads = token_body((b"a" * 5000, _PARTIAL), (b"b" * 3, _TERMINAL)).payloads
        body = Regions(payloads, (InlineObject(ObjectKind.PROMPT_SEGMENT, b"before the payloads"),))
        submission = await session.submit_frame(FrameSubmit(payload_kind_bitmap=_TOKEN, payload_frame_count=2), body)
        result = await submission.result()
        places = [(each.descriptor.offset, each.descriptor.length) for each in result.payloads]  # type: ignore[union-attr]
        evidence.note(f"descriptors of the result: {places}")
        expect(places == [(0, 5000), (5000, 3)], "offset and length are relative to the frame region")
        expect([bytes(each.data) for each in result.payloads] == [b"a" * 5000, b"bbb"], "each payload is its range")
        for each in result.payloads:
            view = each.data
            expect(isinstance(view, bytes) or (isinstance(view, memoryview) and view.readonly), "nobody can change it")


@live_case("l2.result_push.basic.event_pump.single_terminal.validation")
async def single_terminal(place: Place, evidence: Evidence) -> None:
    """Three at once, ending in another order than they began: each in order, each with one end."""
    async with place.client() as connection, await connection.open_session() as session:
        delays = (160, 10, 80)
        submissions = [await session.submit(b"partial=3;sleep=%d;x" % each) for each in delays]
        for each in submissions:
            finals = [result.final async for result in each]
            expect(finals == [False, False, True], "parts in order, then one end")
            expect(await anext(each, None) is None, "and nothing after it")


def _mark(packet: Packet) -> int:
    """The flags partial and terminal of a result's payload."""
    descriptor = packet.content.payloads[0].descriptor  # type: ignore[union-attr]  # a result's body
    assert isinstance(descriptor, TypedPayloadDescriptor)
    return int(descriptor.descriptor_flags) & int(_PARTIAL | _TERMINAL)


async def _iterated(submission: Submission) -> list[Result]:
    return [each async for each in submission]


async def _polled(submission: Submission) -> list[Result]:
    """Driven without waiting in the iteration: ask, and where there is nothing wait for what may have come."""
    found: list[Result] = []
    while True:
        try:
            result = submission.receive_nowait()
        except StopAsyncIteration:
            return found
        if result is None:
            await submission.wait_more()
        else:
            found.append(result)


@live_case(
    "l2.payload.typed.callback_polling.descriptor_consistency.validation",
    "l2.profile.token.partial.callback_polling.validation",
)
async def drive_modes(place: Place, evidence: Evidence) -> None:
    """The same submit, taken by iteration and by polling: descriptors, order, ends and stop reasons are the same."""
    async with place.client() as connection, await connection.open_session() as session:
        seen = []
        for take in (_iterated, _polled):
            hint = TokenHint(TokenUnit.UTF8_BYTE, StopReason.EOS, sequence_start=3, sequence_end=6)
            payloads = [
                *token_body((b"partial=2;first", _PARTIAL)).payloads,
                *token_body((hint.pack() + b"two", _TERMINAL | DescriptorFlags.PROFILE_HINT_PRESENT)).payloads,
            ]
            results = await take(await session.submit(payloads))
            seen.append(
                [
                    (each.final, each.state, [(payload.descriptor, bytes(payload.data)) for payload in each.payloads])
                    for each in results
                ]
            )
        evidence.note(str(seen[0]))
        expect(len(seen[0]) == 2 and seen[0][-1][0], "two results, the last one final")
        expect(seen[0] == seen[1], "both modes show the same fields, in the same order")
        whole = [await take(await session.submit(_hinted())) for take in (_iterated, _polled)]
        reasons = [[each.hint and each.hint.stop_reason for each in results] for results in whole]
        expect(reasons == [[StopReason.EOS]] * 2, "the stop reason survives both")


def _hinted() -> list[TypedPayload]:
    hint = TokenHint(TokenUnit.UTF8_BYTE, StopReason.EOS, sequence_start=0, sequence_end=3)
    return list(token_body((hint.pack() + b"end", _TERMINAL | DescriptorFlags.PROFILE_HINT_PRESENT)).payloads)
