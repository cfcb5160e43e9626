"""Region bodies of FRAME_SUBMIT and RESULT_PUSH: objects, references, typed payloads, extension frames (nnrp-wire 8)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from protocol.errors import Reach
from protocol.layout import Buffer
from protocol.nnrp.descriptors import (
    BodyRegionPrelude,
    ExtensionFrameDescriptor,
    InlineObjectHeader,
    ObjectReference,
    TypedPayloadDescriptor,
    TypedPayloadDescriptorV2,
)
from protocol.nnrp.enums import (
    DescriptorFlags,
    ExtensionFlags,
    ExtensionKind,
    MessageType,
    ObjectKind,
    OperationFeatures,
    PayloadKind,
    ProfileId,
    StreamSemantics,
)
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.extensions import NO_FEATURES
from protocol.nnrp.vendor import ObjectExpect, OperationStateBlock, SubmitContext

__all__ = ["ExtensionFrame", "InlineObject", "Regions", "TypedPayload", "parse_regions"]

Descriptor: TypeAlias = TypedPayloadDescriptor | TypedPayloadDescriptorV2
FrameValue: TypeAlias = SubmitContext | OperationStateBlock | tuple[ObjectExpect, ...]

_PRELUDE = BodyRegionPrelude.SIZE
_LENGTHS = struct.Struct("<6I")
"""The leading fields of the prelude, all of them lengths: their sum is checked before anything else (nnrp-wire 4.9)."""
_D24 = TypedPayloadDescriptor.SIZE
_D16 = TypedPayloadDescriptorV2.SIZE
_U32_MAX = 0xFFFF_FFFF
_TENSOR = int(PayloadKind.TENSOR)
_NO_FLAGS = DescriptorFlags(0)
_SINGLE_KINDS = {int(kind): kind for kind in PayloadKind if kind is not PayloadKind.TENSOR}


def _fault(outcome: Outcome, rule: str, subject: str, field: str | None, offset: int) -> NnrpError:
    return NnrpError(outcome, rule, subject=subject, field=field, offset=offset, reach=Reach.OPERATION)


def _bad(rule: str, subject: str, field: str | None, offset: int) -> NnrpError:
    return _fault(Outcome.BAD_COMBINATION, rule, subject, field, offset)


class InlineObject(msgspec.Struct, frozen=True):
    """An object carried in the body."""

    object_kind: ObjectKind
    payload: Buffer
    profile_id: int = 0

    def pack(self) -> bytes:
        size = len(self.payload)
        header = InlineObjectHeader(self.object_kind, self.profile_id, size)
        return b"".join((header.pack(), self.payload, bytes(-size % 8)))


class TypedPayload(msgspec.Struct, frozen=True):
    """One typed payload. ``kind`` is None where only the schema decides it (nnrp-wire 8.5)."""

    descriptor: Descriptor
    data: Buffer
    kind: PayloadKind | None = None

    @classmethod
    def of(
        cls,
        data: Buffer,
        *,
        profile_id: int = 0,
        schema_id: int = 0,
        schema_version: int = 0,
        stream_semantics: StreamSemantics = StreamSemantics.DEFAULT,
        flags: DescriptorFlags = _NO_FLAGS,
    ) -> TypedPayload:
        """A payload to send; offset and length are filled in when the body is built."""
        descriptor = TypedPayloadDescriptor(profile_id, flags, schema_id, schema_version, stream_semantics)
        return cls(descriptor, data)

    @classmethod
    def legacy(cls, data: Buffer, kind: PayloadKind, *, profile_id: int = 0) -> TypedPayload:
        """A payload with the 16-byte descriptor, only for a session whose peer uses that dialect (nnrp-wire 8.6)."""
        return cls(TypedPayloadDescriptorV2(kind, profile_id), data, kind)


class ExtensionFrame(msgspec.Struct, frozen=True):
    """One extension frame. ``value`` is the decoded payload of a known and granted kind, else None: it is skipped."""

    extension_kind: int
    payload: Buffer = b""
    extension_flags: ExtensionFlags = ExtensionFlags(0)
    profile_id: int = 0
    value: FrameValue | None = None

    @classmethod
    def of(cls, kind: ExtensionKind, value: FrameValue) -> ExtensionFrame:
        parts = value if isinstance(value, tuple) else (value,)
        return cls(kind, b"".join(part.pack() for part in parts), value=value)


class Regions(msgspec.Struct, frozen=True):
    """The contents of a region body, as parsed or to be built."""

    payloads: tuple[TypedPayload, ...] = ()
    inline_objects: tuple[InlineObject, ...] = ()
    references: tuple[ObjectReference, ...] = ()
    extensions: tuple[ExtensionFrame, ...] = ()

    @property
    def descriptor_bytes(self) -> int:
        """Size of one typed payload descriptor: 24, or 16 in the legacy dialect."""
        return self.payloads[0].descriptor.SIZE if self.payloads else _D24

    def build(self) -> list[Buffer]:
        """The body as buffers to be written one after the other; typed payloads are referenced, not copied.

        Offsets and lengths of the descriptors are written as counted.
        """
        head = [b""]
        inline = _extend(head, (each.pack() for each in self.inline_objects))
        references = _extend(head, (each.pack() for each in self.references))
        descriptors, frame_bytes = _place_payloads(self.payloads)
        head += descriptors
        ext_head, ext_payload = _place_extensions(self.extensions)
        head[0] = BodyRegionPrelude(
            inline,
            references,
            sum(map(len, descriptors)),
            frame_bytes,
            len(ext_head),
            len(ext_payload),
        ).pack()
        parts: list[Buffer] = [b"".join(head), *(each.data for each in self.payloads)]
        if ext_head:
            parts.append(ext_head + ext_payload)
        return parts


def _extend(head: list[bytes], pieces: Iterator[bytes]) -> int:
    before = len(head)
    head.extend(pieces)
    return sum(map(len, head[before:]))


def _place_payloads(payloads: Sequence[TypedPayload]) -> tuple[list[bytes], int]:
    packed, offset = [], 0
    for each in payloads:
        size, plan = len(each.data), each.descriptor
        if isinstance(plan, TypedPayloadDescriptor):
            made: Descriptor = TypedPayloadDescriptor(
                plan.profile_id,
                plan.descriptor_flags,
                plan.schema_id,
                plan.schema_version,
                plan.stream_semantics,
                offset,
                size,
            )
        else:
            made = TypedPayloadDescriptorV2(plan.payload_kind, plan.profile_id, offset, size)
        packed.append(made.pack())
        offset += size
    return packed, offset


def _place_extensions(frames: Sequence[ExtensionFrame]) -> tuple[bytes, bytes]:
    head, offset = [], 0
    for each in frames:
        size = len(each.payload)
        made = ExtensionFrameDescriptor(each.extension_kind, each.extension_flags, each.profile_id, offset, size)
        head.append(made.pack())
        offset += size
    return b"".join(head), b"".join(each.payload for each in frames)


def parse_regions(
    data: Buffer,
    *,
    message: MessageType,
    payload_frame_count: int,
    payload_kind_bitmap: int,
    granted: OperationFeatures = NO_FEATURES,
    strict: bool = True,
    at: int = 0,
) -> Regions:
    """Parse and check a region body on its own terms; what the submit's objects must be: `objects`.

    A tolerant receiver also takes 16-byte descriptors and gaps between payloads.
    """
    prelude = _parse_prelude(data, payload_frame_count, strict, at)
    references = _PRELUDE + prelude.inline_object_bytes
    descriptors = references + prelude.object_reference_bytes
    frames = descriptors + prelude.typed_payload_descriptor_bytes
    extensions = frames + prelude.typed_payload_frame_bytes
    objects = _parse_objects(data, _PRELUDE, references, strict, at) if prelude.inline_object_bytes else ()
    named: tuple[ObjectReference, ...] = ()
    if prelude.object_reference_bytes:
        starts = range(references, descriptors, ObjectReference.SIZE)
        named = tuple(ObjectReference.decode(data, start, strict, at + start) for start in starts)
    payloads: tuple[TypedPayload, ...] = ()
    if payload_frame_count:
        size = prelude.typed_payload_descriptor_bytes // payload_frame_count
        if size == _D24:
            payloads = _parse_payloads(data, descriptors, frames, extensions, payload_kind_bitmap, strict, at)
        else:
            payloads = _parse_legacy(data, descriptors, frames, extensions, payload_kind_bitmap, strict, at)
    extra: tuple[ExtensionFrame, ...] = ()
    if prelude.extension_descriptor_bytes or prelude.extension_payload_bytes:
        split = extensions + prelude.extension_descriptor_bytes
        extra = tuple(_parse_frames(data, extensions, split, message, granted, len(named), strict, at))
    return Regions(payloads, objects, named, extra)


def _parse_prelude(data: Buffer, count: int, strict: bool, at: int) -> BodyRegionPrelude:
    name = "BODY_REGION_PRELUDE"
    if len(data) < _PRELUDE:
        raise _fault(Outcome.TOO_SHORT, f"a region body starts with {_PRELUDE} bytes", name, None, at)
    total = sum(_LENGTHS.unpack_from(data))
    if total + _PRELUDE != len(data):
        if total > _U32_MAX:
            raise _fault(Outcome.LENGTH_OVERFLOW, "the region lengths must sum to a u32", name, None, at)
        rule = f"the regions sum to {total} bytes, the body holds {len(data) - _PRELUDE}"
        raise _fault(Outcome.LENGTH_MISMATCH, rule, name, None, at)
    prelude = BodyRegionPrelude.decode(data, 0, strict, at)
    wanted = prelude.typed_payload_descriptor_bytes
    if wanted != _D24 * count and (strict or wanted != _D16 * count):
        rule = f"{count} descriptors of {_D24} bytes"
        raise _bad(rule, name, "typed_payload_descriptor_bytes", at + 8)
    if prelude.typed_payload_frame_bytes and not count:
        raise _bad("0 when payload_frame_count is 0", name, "typed_payload_frame_bytes", at + 12)
    return prelude


def _parse_objects(data: Buffer, offset: int, end: int, strict: bool, at: int) -> tuple[InlineObject, ...]:
    name, objects = "INLINE_OBJECT_BLOCK", []
    while offset < end:
        if end - offset < InlineObjectHeader.SIZE:
            raise _fault(Outcome.TOO_SHORT, "object header past the region end", name, None, at + offset)
        header = InlineObjectHeader.decode(data, offset, strict, at + offset)
        start = offset + InlineObjectHeader.SIZE
        stop = start + header.object_bytes
        following = stop + -header.object_bytes % 8
        if following > end:
            rule = "object payload or padding past the region end"
            raise _fault(Outcome.TOO_SHORT, rule, name, "object_bytes", at + offset + 8)
        if any(data[stop:following]):
            raise _fault(Outcome.RESERVED_NON_ZERO, "padding must be zero", name, "padding", at + stop)
        objects.append(InlineObject(header.object_kind, data[start:stop], header.profile_id))
        offset = following
    return tuple(objects)


def _parse_payloads(
    data: Buffer, offset: int, frames: int, end: int, bitmap: int, strict: bool, at: int
) -> tuple[TypedPayload, ...]:
    """The 24-byte descriptors from ``offset`` to ``frames`` and their payloads up to ``end`` (nnrp-wire 8.5)."""
    decode = TypedPayloadDescriptor.decode
    others = bitmap & ~_TENSOR
    single = _SINGLE_KINDS.get(others)
    payloads, start = [], frames
    for place in range(offset, frames, _D24):
        descriptor = decode(data, place, strict, at + place)
        begin = frames + descriptor.offset
        stop = begin + descriptor.length
        if begin != start or stop > end:
            _check_range(descriptor.offset, descriptor.length, start - frames, end - frames, strict, at + place + 16)
        profile = descriptor.profile_id
        if others and (profile == 1 or (bitmap == 2 and profile != 2)):
            _check_profile(profile, at + place)
        kind = single or (PayloadKind.TOKEN_CHUNK if profile == ProfileId.TOKEN else None)
        payloads.append(TypedPayload(descriptor, data[begin:stop], kind))
        start = stop
    if start != end and strict:
        rule = "the payloads must cover the frame region exactly"
        raise _bad(rule, "BODY_REGION_PRELUDE", "typed_payload_frame_bytes", at + 12)
    return tuple(payloads)


def _check_range(begin: int, length: int, previous: int, size: int, strict: bool, at: int) -> None:
    name = "TYPED_PAYLOAD_DESCRIPTOR"
    if begin < previous or (strict and begin != previous):
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
    data: Buffer, offset: int, frames: int, end: int, bitmap: int, strict: bool, at: int
) -> tuple[TypedPayload, ...]:
    """The 16-byte descriptors of nnrp-py (nnrp-wire 8.6): ascending, gaps allowed."""
    name = "TYPED_PAYLOAD_DESCRIPTOR_V2"
    payloads, previous = [], 0
    for place in range(offset, frames, _D16):
        descriptor = TypedPayloadDescriptorV2.decode(data, place, strict, at + place)
        kind = descriptor.payload_kind
        if kind == PayloadKind.TENSOR or not bitmap & kind:
            raise _bad("the kind must be in payload_kind_bitmap and not tensor", name, "payload_kind", at + place)
        stop = descriptor.payload_offset + descriptor.payload_length
        if descriptor.payload_offset < previous or frames + stop > end:
            raise _bad("offsets ascend within the frame region", name, "payload_offset", at + place + 4)
        begin = frames + descriptor.payload_offset
        payloads.append(TypedPayload(descriptor, data[begin : frames + stop], kind))
        previous = stop
    return tuple(payloads)


def _parse_frames(
    data: Buffer,
    offset: int,
    region: int,
    message: MessageType,
    granted: OperationFeatures,
    references: int,
    strict: bool,
    at: int,
) -> Iterator[ExtensionFrame]:
    name, previous = "EXTENSION_FRAME_DESCRIPTOR", 0
    for place in range(offset, region, ExtensionFrameDescriptor.SIZE):
        made = ExtensionFrameDescriptor.decode(data, place, strict, at + place)
        begin = region + made.payload_offset
        stop = begin + made.payload_length
        if made.payload_offset < previous or stop > len(data):
            raise _bad("payloads ascend within the extension region", name, "payload_offset", at + place + 8)
        payload = data[begin:stop]
        previous = made.payload_offset + made.payload_length
        known = _KNOWN_FRAMES.get((message, made.extension_kind))
        value = None
        if known is not None and not known & ~granted:
            value = _frame_value(made.extension_kind, payload, references, strict, at + begin)
        elif made.extension_flags & ExtensionFlags.CRITICAL:
            rule = f"unknown critical extension frame {made.extension_kind:#06x}"
            raise _fault(Outcome.UNKNOWN_CRITICAL, rule, name, "extension_kind", at + place)
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
