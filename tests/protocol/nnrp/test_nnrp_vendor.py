"""The operation extensions (nnrp-extensions): where they stand, when they count, what they must hold."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.layout import Structure
from protocol.nnrp.bodies import ControlBody, DataBody
from protocol.nnrp.descriptors import ObjectReference
from protocol.nnrp.enums import (
    CancelReason,
    CancelScopeKind,
    DependencyKind,
    ExtensionKind,
    ExtType,
    LeaseOwnerScope,
    MessageType,
    ObjectKind,
    ObjectRefMask,
    OperationFeatures,
    OperationState,
    PayloadKind,
    SessionFlags,
    StopReason,
    SubmitMode,
)
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.extensions import NO_FEATURES, ControlExtension, ObjectMetaEntry, find_extension, pack_extensions
from protocol.nnrp.messages import (
    CacheAck,
    CachePut,
    FrameCancel,
    FrameSubmit,
    ResultDrop,
    ResultPush,
    SessionOpen,
    SessionOpenAck,
)
from protocol.nnrp.packet import Packet, decode_packet, encode_packet
from protocol.nnrp.regions import ExtensionFrame, Regions, TypedPayload
from protocol.nnrp.vendor import (
    CancelScope,
    Dependency,
    LeaseInfo,
    ObjectExpect,
    ObjectMeta,
    OperationExtensions,
    OperationStateBlock,
    ResumeFrom,
    SubmitContext,
    TokenHint,
)

ALL = OperationFeatures(31)


def control(packet: Packet) -> ControlBody:
    assert isinstance(packet.content, ControlBody)
    return packet.content


def data(packet: Packet) -> DataBody:
    assert isinstance(packet.content, DataBody)
    return packet.content


@pytest.mark.parametrize(
    ("made", "size"),
    [
        (OperationExtensions, 8),
        (SubmitContext, 40),
        (CancelScope, 24),
        (OperationStateBlock, 24),
        (ResumeFrom, 16),
        (TokenHint, 16),
        (ObjectMeta, 40),
        (Dependency, 24),
        (LeaseInfo, 24),
        (ObjectExpect, 16),
    ],
)
def test_sizes(made: type[Structure], size: int) -> None:
    assert size == made.SIZE


BROKEN: list[tuple[Structure, Outcome]] = [
    (OperationExtensions(2), Outcome.BAD_COMBINATION),
    (SubmitContext(), Outcome.BAD_COMBINATION),
    (SubmitContext(3, 3), Outcome.BAD_COMBINATION),
    (CancelScope(), Outcome.BAD_COMBINATION),
    (CancelScope(CancelScopeKind.SUBTREE), Outcome.BAD_COMBINATION),
    (CancelScope(CancelScopeKind.GROUP), Outcome.BAD_COMBINATION),
    (CancelScope(CancelScopeKind.GROUP, operation_id=1, operation_group_id=1), Outcome.BAD_COMBINATION),
    (CancelScope(CancelScopeKind.SESSION, operation_id=1), Outcome.BAD_COMBINATION),
    (TokenHint(sequence_start=2, sequence_end=1), Outcome.BAD_COMBINATION),
    (ObjectMeta(0, 1), Outcome.BAD_COMBINATION),
    (ObjectMeta(1, 0), Outcome.BAD_COMBINATION),
    (ObjectMeta(1, 1, lease_owner_scope=LeaseOwnerScope.OPERATION), Outcome.BAD_COMBINATION),
    (ObjectMeta(1, 1, owner_operation_id=1), Outcome.BAD_COMBINATION),
]


@pytest.mark.parametrize(("record", "outcome"), BROKEN, ids=lambda each: getattr(each, "value", type(each).__name__))
def test_rules_over_several_fields(record: Structure, outcome: Outcome) -> None:
    for attempt in (lambda: record.parse(record.pack()), record.pack_checked):
        with pytest.raises(NnrpError) as caught:
            attempt()
        assert caught.value.outcome is outcome


@pytest.mark.parametrize(
    ("made", "field", "value", "outcome"),
    [
        (OperationExtensions, "features", 32, Outcome.RESERVED_BITS),
        (OperationExtensions, "reserved0", 1, Outcome.RESERVED_NON_ZERO),
        (SubmitContext, "priority_class", 3, Outcome.UNKNOWN_ENUM),
        (CancelScope, "cancel_scope", 4, Outcome.UNKNOWN_ENUM),
        (CancelScope, "reason", 6, Outcome.UNKNOWN_ENUM),
        (OperationStateBlock, "operation_state", 8, Outcome.UNKNOWN_ENUM),
        (TokenHint, "token_unit", 5, Outcome.UNKNOWN_ENUM),
        (TokenHint, "stop_reason", 7, Outcome.UNKNOWN_ENUM),
        (TokenHint, "channel", 3, Outcome.UNKNOWN_ENUM),
        (ObjectMeta, "policy_hints", 32, Outcome.RESERVED_BITS),
        (ObjectMeta, "expiry_policy", 2, Outcome.UNKNOWN_ENUM),
        (Dependency, "kind", 2, Outcome.UNKNOWN_ENUM),
    ],
)
def test_ranges(made: type[Structure], field: str, value: int, outcome: Outcome) -> None:
    place = made.LAYOUT.field(field)
    packed = bytearray(made.SIZE)
    packed[place.offset : place.offset + place.scalar.size] = value.to_bytes(place.scalar.size, "little")
    with pytest.raises(NnrpError) as caught:
        made.parse(bytes(packed))
    assert (caught.value.outcome, caught.value.field) == (outcome, field)


def test_offer_grant_and_cursor() -> None:
    """Negotiation and resume_from: known in SESSION_OPEN and its ACK without any grant."""
    offer = ControlExtension.of(ExtType.OPERATION_EXTENSIONS, OperationExtensions(features=ALL))
    cursor = ControlExtension.of(ExtType.RESUME_FROM, ResumeFrom(4, 17))
    block = pack_extensions([offer, cursor])
    message = SessionOpen(
        requested_session_id=7,
        session_flags=SessionFlags.ALLOW_RESUME,
        resume_token_bytes=3,
        session_extension_bytes=len(block),
    )
    body = control(decode_packet(encode_packet(message, b"tok" + block)))
    assert find_extension(body.extensions, ExtType.RESUME_FROM) == ResumeFrom(4, 17)
    assert find_extension(body.extensions, ExtType.OPERATION_EXTENSIONS) == OperationExtensions(features=ALL)
    ack = SessionOpenAck(session_id=7, session_extension_bytes=16)
    packet = decode_packet(encode_packet(ack, pack_extensions([offer]), session_id=7))
    assert control(packet).extensions == (offer,)


def test_resume_from_goes_with_a_token() -> None:
    block = pack_extensions([ControlExtension.of(ExtType.RESUME_FROM, ResumeFrom())])
    raw = SessionOpen(session_extension_bytes=len(block))
    with pytest.raises(Exception, match="resume_from goes with a resume token"):
        encode_packet(raw, block)


def cancel(scope: CancelScope, frame_id: int) -> bytes:
    block = pack_extensions([ControlExtension.of(ExtType.CANCEL_SCOPE, scope)])
    return encode_packet(FrameCancel(), block, session_id=1, frame_id=frame_id)


@pytest.mark.parametrize("scope", list(CancelScopeKind))
def test_cancel_scope(scope: CancelScopeKind) -> None:
    """nnrp-wire 3.2: frame_id 0 only with a granted cancel_scope of group or session."""
    target = 9 if scope < CancelScopeKind.GROUP else 0
    group = 5 if scope is CancelScopeKind.GROUP else 0
    made = CancelScope(scope, CancelReason.USER, target, group)
    packet = decode_packet(cancel(made, 3), granted=ALL)
    assert find_extension(control(packet).extensions, ExtType.CANCEL_SCOPE) == made
    wide = scope in (CancelScopeKind.GROUP, CancelScopeKind.SESSION)
    if not wide:
        with pytest.raises(Exception, match="frame_id 0"):
            cancel(made, 0)
        return
    decode_packet(cancel(made, 0), granted=ALL)
    with pytest.raises(NnrpError) as caught:
        decode_packet(cancel(made, 0))
    assert caught.value.field == "frame_id"


def test_without_a_grant_extensions_are_unknown() -> None:
    """A peer that was granted nothing is read by preview3's plain rules: even a broken entry is only skipped."""
    entry = ControlExtension(ExtType.CANCEL_SCOPE, b"anything")
    raw = decode_packet(encode_packet(FrameCancel(), session_id=1, frame_id=1)).header.replace(body_len=16)
    packet = raw.pack() + pack_extensions([entry])
    assert control(decode_packet(packet)).extensions == (entry,)
    with pytest.raises(NnrpError) as caught:
        decode_packet(packet, granted=OperationFeatures.CANCEL_SCOPE)
    assert caught.value.outcome is Outcome.LENGTH_MISMATCH


def submit(*frames: ExtensionFrame, **fields: Any) -> bytes:
    metadata = FrameSubmit(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK, payload_frame_count=1, **fields)
    regions = Regions((TypedPayload.of(b"x", profile_id=2),), extensions=frames)
    return encode_packet(metadata, regions, session_id=1, frame_id=1)


def test_submit_context() -> None:
    context = SubmitContext(1 << 40, 2, 3, deadline_ms=9, supersedes_operation_id=4)
    packet = submit(ExtensionFrame.of(ExtensionKind.SUBMIT_CONTEXT, context))
    (frame,) = data(decode_packet(packet, granted=ALL)).regions.extensions
    assert frame.value == context
    (frame,) = data(decode_packet(packet)).regions.extensions
    assert frame.value is None
    short = submit(ExtensionFrame(0x9000, bytes(39)))
    renamed = short.replace(b"\x00\x90\x00\x00", b"\x04\x81\x00\x00")
    with pytest.raises(NnrpError) as caught:
        decode_packet(renamed, granted=ALL)
    assert (caught.value.outcome, caught.value.subject) == (Outcome.LENGTH_MISMATCH, "SUBMIT_CONTEXT")


def test_object_expectations_follow_the_references() -> None:
    """nnrp-extensions, Cache objects: one entry of 16 bytes for each reference, in their order."""
    expected = (ObjectExpect(1, 2), ObjectExpect(3, 0))
    frame = ExtensionFrame.of(ExtensionKind.OBJECT_EXPECT, expected)
    references = (ObjectReference(ObjectKind.CAMERA_BLOCK), ObjectReference(ObjectKind.PROMPT_SEGMENT))
    metadata = FrameSubmit(
        submit_mode=SubmitMode.REFERENCE,
        object_ref_mask=ObjectRefMask.CAMERA_BLOCK,
        payload_kind_bitmap=PayloadKind.TOKEN_CHUNK,
    )
    regions = Regions(references=references, extensions=(frame,))
    packet = encode_packet(metadata, regions, session_id=1, frame_id=1)
    assert data(decode_packet(packet, granted=ALL)).regions.extensions == (frame,)
    with pytest.raises(Exception, match="must have 16 bytes"):
        encode_packet(metadata, Regions(references=references[:1], extensions=(frame,)), session_id=1, frame_id=1)


def test_operation_state() -> None:
    """Extension frame on RESULT_PUSH, TLV on RESULT_DROP."""
    state = OperationStateBlock(7, OperationState.RUNNING, event_id=40)
    frame = ExtensionFrame.of(ExtensionKind.OPERATION_STATE, state)
    running = ResultPush(result_class=1, payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)
    packet = encode_packet(running, Regions(extensions=(frame,)), session_id=1, frame_id=1)
    assert data(decode_packet(packet, granted=ALL)).regions.extensions == (frame,)
    entry = ControlExtension.of(ExtType.OPERATION_STATE, state)
    packet = encode_packet(ResultDrop(), pack_extensions([entry]), session_id=1, frame_id=1)
    assert control(decode_packet(packet, granted=ALL)).extensions == (entry,)


def test_token_hint_precedes_the_text() -> None:
    hint = TokenHint(stop_reason=StopReason.EOS, sequence_start=3, sequence_end=8)
    chunk = hint.pack() + "naïve".encode()
    assert TokenHint.decode(chunk) == hint
    assert chunk[TokenHint.SIZE :].decode() == "naïve"


def test_object_meta_and_lease_info() -> None:
    """CACHE_PUT: body_len = object_bytes + TLV block, but only with cache_semantics granted."""
    value = ObjectMetaEntry(
        ObjectMeta(1, 2, dependency_count=2),
        (Dependency(DependencyKind.OBJECT, 5, 6), Dependency(DependencyKind.SCHEMA)),
    )
    entry = ControlExtension.of(ExtType.OBJECT_META, value)
    packet = encode_packet(CachePut(object_bytes=3), b"obj" + pack_extensions([entry]), session_id=1)
    body = control(decode_packet(packet, granted=ALL))
    assert (body.object, body.extensions) == (b"obj", (entry,))
    with pytest.raises(NnrpError) as caught:
        decode_packet(packet)
    assert caught.value.outcome is Outcome.LENGTH_MISMATCH
    lease = ControlExtension.of(ExtType.LEASE_INFO, LeaseInfo(2, 77))
    packet = encode_packet(CacheAck(), pack_extensions([lease]), session_id=1)
    assert control(decode_packet(packet, granted=OperationFeatures.CACHE_SEMANTICS)).extensions == (lease,)


@pytest.mark.parametrize("size", [39, 41, 63, 65, 88])
def test_object_meta_length(size: int) -> None:
    """40 bytes and 24 per dependency."""
    good = ObjectMetaEntry(ObjectMeta(1, 1), (Dependency(),)).pack()
    with pytest.raises(NnrpError) as caught:
        ObjectMetaEntry.parse((good + bytes(99))[:size])
    assert caught.value.outcome is Outcome.LENGTH_MISMATCH


def test_vendor_numbers() -> None:
    """nnrp-extensions: 0x8101 – 0x8108, each used once for each place."""
    tlvs = {int(each) for each in ExtType if each >= 0x8000}
    frames = {int(each) for each in ExtensionKind}
    assert tlvs | frames == set(range(0x8101, 0x8109))
    assert tlvs & frames == {0x8105}
    assert NO_FEATURES == 0
    assert MessageType.FRAME_SUBMIT in MessageType
