"""Region bodies: bytes to `Regions`, rule by rule (nnrp-wire 8.2 – 8.7)."""

from __future__ import annotations

from collections.abc import Iterator

from protocol.errors import Reach
from protocol.layout import Buffer
from protocol.nnrp.bodies import Context
from protocol.nnrp.descriptors import (
    BodyRegionPrelude,
    ExtensionFrameDescriptor,
    InlineObjectHeader,
    ObjectReference,
    TypedPayloadDescriptor,
    TypedPayloadDescriptorV2,
)
from protocol.nnrp.enums import ExtensionFlags, ExtensionKind, MessageType, OperationFeatures, PayloadKind, ProfileId
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.extensions import MAX_ENTRIES
from protocol.nnrp.regions import ExtensionFrame, FrameValue, InlineObject, Regions, TypedPayload
from protocol.nnrp.vendor import ObjectExpect, OperationStateBlock, SubmitContext

__all__ = ["pack_payload_regions", "parse_regions"]

_PRELUDE = BodyRegionPrelude.SIZE
_PACK_PRELUDE = BodyRegionPrelude.LAYOUT.packer.pack
_UNPACK_PRELUDE = BodyRegionPrelude.LAYOUT.unpacker.unpack_from
_D24 = TypedPayloadDescriptor.SIZE
_D16 = TypedPayloadDescriptorV2.SIZE
_U32_MAX = 0xFFFF_FFFF
_TENSOR = int(PayloadKind.TENSOR)
_SINGLE_KINDS = {int(kind): kind for kind in PayloadKind if kind is not PayloadKind.TENSOR}


def _fault(outcome: Outcome, rule: str, subject: str, field: str | None, offset: int) -> NnrpError:
    return NnrpError(outcome, rule, subject=subject, field=field, offset=offset, reach=Reach.OPERATION)


def _bad(rule: str, subject: str, field: str | None, offset: int) -> NnrpError:
    return _fault(Outcome.BAD_COMBINATION, rule, subject, field, offset)


def parse_regions(message: MessageType, data: Buffer, count: int, bitmap: int, how: Context) -> Regions:
    """Parse and check a region body on its own terms; how its objects bind to the metadata: `objects`.

    ``count`` and ``bitmap`` are payload_frame_count and payload_kind_bitmap. A tolerant receiver also takes 16-byte
    descriptors and gaps between payloads.
    """
    if len(data) < _PRELUDE:
        _refuse_prelude(data, count, how)
    inline, named, described, framed, ext_heads, ext_bytes, flags, reserved = _UNPACK_PRELUDE(data)
    if (
        _PRELUDE + inline + named + described + framed + ext_heads + ext_bytes != len(data)
        or flags
        or reserved
        or (named | ext_heads) & 15
        or described != _D24 * count
        or (framed and not count)
    ):
        _refuse_prelude(data, count, how)
    descriptors = _PRELUDE + inline + named
    frames = descriptors + described
    extensions = frames + framed
    objects: tuple[InlineObject, ...] = ()
    references: tuple[ObjectReference, ...] = ()
    if descriptors != _PRELUDE:
        objects = _parse_objects(data, _PRELUDE, _PRELUDE + inline, how)
        references = _parse_references(data, _PRELUDE + inline, descriptors, how)
    parse = _parse_payloads if described == _D24 * count else _parse_legacy
    payloads = parse(data, descriptors, frames, extensions, bitmap, how)
    if extensions == len(data):
        return Regions(payloads, objects, references)
    split = extensions + ext_heads
    extra = tuple(_parse_frames(data, extensions, split, message, len(references), how))
    return Regions(payloads, objects, references, extra)


def pack_payload_regions(payloads: tuple[TypedPayload, ...], bitmap: int) -> tuple[list[Buffer], int]:
    """Prelude, descriptors and data of a body of 24-byte payloads and nothing else, and the size of it all.

    The rules of nnrp-wire 8.5 are applied; what contiguous counting cannot break is not looked at again.
    """
    pack, others = TypedPayloadDescriptor.pack_values, bitmap & ~_TENSOR
    parts: list[Buffer] = [b""]
    offset = 0
    for each in payloads:
        plan, size = each.descriptor, len(each.data)
        if type(plan) is not TypedPayloadDescriptor:
            raise _bad("one body has one kind of descriptor", "TYPED_PAYLOAD_DESCRIPTOR", None, 0)
        profile = plan.profile_id
        if others and (profile == 1 or (bitmap == 2 and profile != 2)):
            _check_profile(profile, _PRELUDE + _D24 * (len(parts) - 1))
        flags, semantics = plan.descriptor_flags, plan.stream_semantics
        parts.append(pack(profile, flags, plan.schema_id, plan.schema_version, semantics, offset, size))
        offset += size
    described = _D24 * len(payloads)
    parts[0] = _PACK_PRELUDE(0, 0, described, offset, 0, 0)
    for each in payloads:
        parts.append(each.data)
    return parts, _PRELUDE + described + offset


def _refuse_prelude(data: Buffer, count: int, how: Context) -> None:
    """Raise for the first rule the prelude breaks; return if it is only the legacy descriptor size, tolerated."""
    at, name = how.at, "BODY_REGION_PRELUDE"
    if len(data) < _PRELUDE:
        raise _fault(Outcome.TOO_SHORT, f"a region body starts with {_PRELUDE} bytes", name, None, at)
    total = sum(_UNPACK_PRELUDE(data)[:6])
    if total > _U32_MAX:
        raise _fault(Outcome.LENGTH_OVERFLOW, "the region lengths must sum to a u32", name, None, at)
    if total + _PRELUDE != len(data):
        rule = f"the regions sum to {total} bytes, the body holds {len(data) - _PRELUDE}"
        raise _fault(Outcome.LENGTH_MISMATCH, rule, name, None, at)
    prelude = BodyRegionPrelude.decode(data, 0, how.strict, at)
    described = prelude.typed_payload_descriptor_bytes
    if described != _D24 * count and (how.strict or described != _D16 * count):
        raise _bad(f"{count} descriptors of {_D24} bytes", name, "typed_payload_descriptor_bytes", at + 8)
    if prelude.typed_payload_frame_bytes and not count:
        raise _bad("0 when payload_frame_count is 0", name, "typed_payload_frame_bytes", at + 12)


def _parse_references(data: Buffer, offset: int, end: int, how: Context) -> tuple[ObjectReference, ...]:
    places = range(offset, end, ObjectReference.SIZE)
    if len(places) > MAX_ENTRIES:
        rule = f"more than {MAX_ENTRIES} references"
        raise _fault(Outcome.LIMIT_EXCEEDED, rule, "OBJECT_REFERENCE", None, how.at + offset)
    return tuple(ObjectReference.decode(data, place, how.strict, how.at + place) for place in places)


def _parse_objects(data: Buffer, offset: int, end: int, how: Context) -> tuple[InlineObject, ...]:
    name, objects = "INLINE_OBJECT_BLOCK", []
    while offset < end:
        if end - offset < InlineObjectHeader.SIZE:
            raise _fault(Outcome.TOO_SHORT, "object header past the region end", name, None, how.at + offset)
        header = InlineObjectHeader.decode(data, offset, how.strict, how.at + offset)
        start = offset + InlineObjectHeader.SIZE
        stop = start + header.object_bytes
        following = stop + -header.object_bytes % 8
        if following > end:
            rule = "object payload or padding past the region end"
            raise _fault(Outcome.TOO_SHORT, rule, name, "object_bytes", how.at + offset + 8)
        if any(data[stop:following]):
            raise _fault(Outcome.RESERVED_NON_ZERO, "padding must be zero", name, "padding", how.at + stop)
        objects.append(InlineObject(header.object_kind, data[start:stop], header.profile_id))
        if len(objects) > MAX_ENTRIES:
            raise _fault(Outcome.LIMIT_EXCEEDED, f"more than {MAX_ENTRIES} objects", name, None, how.at + offset)
        offset = following
    return tuple(objects)


def _parse_payloads(
    data: Buffer, offset: int, frames: int, end: int, bitmap: int, how: Context
) -> tuple[TypedPayload, ...]:
    """The 24-byte descriptors from ``offset`` to ``frames`` and their payloads up to ``end`` (nnrp-wire 8.5)."""
    strict, at, decode = how.strict, how.at, TypedPayloadDescriptor.decode
    others = bitmap & ~_TENSOR
    single = _SINGLE_KINDS.get(others)
    payloads, start = [], frames
    for place in range(offset, frames, _D24):
        descriptor = decode(data, place, strict, at + place)
        begin = frames + descriptor.offset
        stop = begin + descriptor.length
        if begin != start or stop > end:
            _check_range(descriptor, start - frames, end - frames, how, place)
        profile = descriptor.profile_id
        if others and (profile == 1 or (bitmap == 2 and profile != 2)):
            _check_profile(profile, at + place)
        kind = single or (PayloadKind.TOKEN_CHUNK if profile == 2 else None)
        payloads.append(TypedPayload(descriptor, data[begin:stop], kind))
        start = stop
    if start != end and strict:
        rule = "the payloads must cover the frame region exactly"
        raise _bad(rule, "BODY_REGION_PRELUDE", "typed_payload_frame_bytes", at + 12)
    return tuple(payloads)


def _check_range(descriptor: TypedPayloadDescriptor, previous: int, size: int, how: Context, place: int) -> None:
    name, at = "TYPED_PAYLOAD_DESCRIPTOR", how.at + place + 16
    begin, length = descriptor.offset, descriptor.length
    if begin < previous or (how.strict and begin != previous):
        raise _bad(f"payloads follow each other: offset {previous} expected", name, "offset", at)
    if begin + length > _U32_MAX:
        raise _fault(Outcome.LENGTH_OVERFLOW, "offset + length must fit in u32", name, "offset", at)
    if begin + length > size:
        raise _bad(f"payload past the frame region of {size} bytes", name, "length", at + 4)


def _check_profile(profile: int, at: int) -> None:
    if profile == ProfileId.TENSOR:
        rule = "no tensor descriptor beside a non-tensor payload kind"
    else:
        rule = "a token_chunk body has descriptors of profile token"
    raise _bad(rule, "TYPED_PAYLOAD_DESCRIPTOR", "profile_id", at)


def _parse_legacy(
    data: Buffer, offset: int, frames: int, end: int, bitmap: int, how: Context
) -> tuple[TypedPayload, ...]:
    """The 16-byte descriptors of nnrp-py (nnrp-wire 8.6): ascending, gaps allowed."""
    name = "TYPED_PAYLOAD_DESCRIPTOR_V2"
    payloads, previous = [], 0
    for place in range(offset, frames, _D16):
        descriptor = TypedPayloadDescriptorV2.decode(data, place, how.strict, how.at + place)
        kind = descriptor.payload_kind
        if kind == PayloadKind.TENSOR or not bitmap & kind:
            raise _bad("the kind must be in payload_kind_bitmap and not tensor", name, "payload_kind", how.at + place)
        stop = descriptor.payload_offset + descriptor.payload_length
        if descriptor.payload_offset < previous or frames + stop > end:
            raise _bad("offsets ascend within the frame region", name, "payload_offset", how.at + place + 4)
        begin = frames + descriptor.payload_offset
        payloads.append(TypedPayload(descriptor, data[begin : frames + stop], kind))
        previous = stop
    return tuple(payloads)


def _parse_frames(
    data: Buffer, offset: int, region: int, message: MessageType, references: int, how: Context
) -> Iterator[ExtensionFrame]:
    name, previous = "EXTENSION_FRAME_DESCRIPTOR", 0
    places = range(offset, region, ExtensionFrameDescriptor.SIZE)
    if len(places) > MAX_ENTRIES:
        raise _fault(Outcome.LIMIT_EXCEEDED, f"more than {MAX_ENTRIES} frames", name, None, how.at + offset)
    for place in places:
        made = ExtensionFrameDescriptor.decode(data, place, how.strict, how.at + place)
        begin = region + made.payload_offset
        stop = begin + made.payload_length
        if made.payload_offset < previous or stop > len(data):
            raise _bad("payloads ascend within the extension region", name, "payload_offset", how.at + place + 8)
        payload = data[begin:stop]
        previous = made.payload_offset + made.payload_length
        known = _KNOWN_FRAMES.get((message, made.extension_kind))
        value = None
        if known is not None and not int(known) & ~int(how.granted):
            value = _frame_value(made.extension_kind, payload, references, how.strict, how.at + begin)
        elif made.extension_flags & ExtensionFlags.CRITICAL:
            rule = f"unknown critical extension frame {made.extension_kind:#06x}"
            raise _fault(Outcome.UNKNOWN_CRITICAL, rule, name, "extension_kind", how.at + place)
        yield ExtensionFrame(made.extension_kind, payload, made.extension_flags, made.profile_id, value)


_KNOWN_FRAMES: dict[tuple[MessageType, int], OperationFeatures] = {
    (MessageType.FRAME_SUBMIT, ExtensionKind.SUBMIT_CONTEXT): OperationFeatures.SUBMIT_CONTEXT,
    (MessageType.FRAME_SUBMIT, ExtensionKind.OBJECT_EXPECT): OperationFeatures.CACHE_SEMANTICS,
    (MessageType.RESULT_PUSH, ExtensionKind.OPERATION_STATE): OperationFeatures.OPERATION_STATE,
}
"""Where a known extension frame means something, and the feature that must have been granted (nnrp-extensions)."""


def _frame_value(kind: int, payload: Buffer, references: int, strict: bool, at: int) -> FrameValue:
    if kind == ExtensionKind.OBJECT_EXPECT:
        wanted = ObjectExpect.SIZE * references
        _require_length("OBJECT_EXPECT", payload, wanted, at)
        starts = range(0, wanted, ObjectExpect.SIZE)
        return tuple(ObjectExpect.decode(payload, start, strict, at + start) for start in starts)
    if kind == ExtensionKind.SUBMIT_CONTEXT:
        _require_length("SUBMIT_CONTEXT", payload, SubmitContext.SIZE, at)
        return SubmitContext.decode(payload, 0, strict, at)
    _require_length("OPERATION_STATE", payload, OperationStateBlock.SIZE, at)
    return OperationStateBlock.decode(payload, 0, strict, at)


def _require_length(name: str, payload: Buffer, wanted: int, at: int) -> None:
    if len(payload) != wanted:
        rule = f"the payload must have {wanted} bytes, got {len(payload)}"
        raise _fault(Outcome.LENGTH_MISMATCH, rule, name, None, at)
