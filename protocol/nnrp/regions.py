"""The contents of a region body, and how one is built (nnrp-wire 8.2 – 8.7). Parsing: `region_parser`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

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
    ObjectKind,
    PayloadKind,
    StreamSemantics,
)
from protocol.nnrp.errors import NnrpLocalError, Outcome
from protocol.nnrp.vendor import ObjectExpect, OperationStateBlock, SubmitContext

__all__ = ["Descriptor", "ExtensionFrame", "FrameValue", "InlineObject", "Regions", "TypedPayload"]

Descriptor: TypeAlias = TypedPayloadDescriptor | TypedPayloadDescriptorV2
FrameValue: TypeAlias = SubmitContext | OperationStateBlock | tuple[ObjectExpect, ...]

_NO_FLAGS = DescriptorFlags(0)
_PACK_PRELUDE = BodyRegionPrelude.LAYOUT.packer.pack
_PACK_24 = TypedPayloadDescriptor.LAYOUT.packer.pack
_PACK_16 = TypedPayloadDescriptorV2.LAYOUT.packer.pack


class InlineObject(msgspec.Struct, frozen=True, gc=False):
    """An object carried in the body."""

    object_kind: ObjectKind
    payload: Buffer
    profile_id: int = 0

    def pack(self) -> bytes:
        size = len(self.payload)
        header = InlineObjectHeader(self.object_kind, self.profile_id, size)
        return b"".join((header.pack(), self.payload, bytes(-size % 8)))


class TypedPayload(msgspec.Struct, frozen=True, gc=False):
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
        return cls(TypedPayloadDescriptor(profile_id, flags, schema_id, schema_version, stream_semantics), data)

    @classmethod
    def legacy(cls, data: Buffer, kind: PayloadKind, *, profile_id: int = 0) -> TypedPayload:
        """A payload with the 16-byte descriptor, only for a session whose peer uses that dialect (nnrp-wire 8.6)."""
        return cls(TypedPayloadDescriptorV2(kind, profile_id), data, kind)


class ExtensionFrame(msgspec.Struct, frozen=True, gc=False):
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


class Regions(msgspec.Struct, frozen=True, gc=False):
    """The contents of a region body, as parsed or to be built."""

    payloads: tuple[TypedPayload, ...] = ()
    inline_objects: tuple[InlineObject, ...] = ()
    references: tuple[ObjectReference, ...] = ()
    extensions: tuple[ExtensionFrame, ...] = ()

    @property
    def only_payloads(self) -> bool:
        """Whether there is at least one payload, with a 24-byte descriptor, and nothing else."""
        if not self.payloads or self.inline_objects or self.references or self.extensions:
            return False
        return type(self.payloads[0].descriptor) is TypedPayloadDescriptor

    @property
    def descriptor_bytes(self) -> int:
        """Size of one typed payload descriptor: 24, or 16 in the legacy dialect."""
        return self.payloads[0].descriptor.SIZE if self.payloads else TypedPayloadDescriptor.SIZE

    def build(self) -> list[Buffer]:
        """The body as buffers to be written one after the other; typed payloads are referenced, not copied.

        Offsets and lengths of the descriptors are written as counted.
        """
        descriptors, frame_bytes = _place_payloads(self.payloads)
        described = len(descriptors) * self.descriptor_bytes
        datas = [each.data for each in self.payloads]
        if not (self.inline_objects or self.references or self.extensions):
            return [b"".join([_PACK_PRELUDE(0, 0, described, frame_bytes, 0, 0), *descriptors]), *datas]
        objects = b"".join([each.pack() for each in self.inline_objects])
        references = b"".join([each.pack() for each in self.references])
        frames, frame_payload = _place_extensions(self.extensions)
        prelude = _PACK_PRELUDE(len(objects), len(references), described, frame_bytes, len(frames), len(frame_payload))
        return [b"".join([prelude, objects, references, *descriptors]), *datas, frames + frame_payload]


def _place_payloads(payloads: Sequence[TypedPayload]) -> tuple[list[bytes], int]:
    packed, offset = [], 0
    for each in payloads:
        size, plan = len(each.data), each.descriptor
        if type(plan) is not type(payloads[0].descriptor):
            rule = "one body has one kind of descriptor"
            raise NnrpLocalError(Outcome.BAD_COMBINATION, rule, subject=plan.LAYOUT.name)
        if isinstance(plan, TypedPayloadDescriptor):
            made = _PACK_24(
                plan.profile_id,
                plan.descriptor_flags,
                plan.schema_id,
                plan.schema_version,
                plan.stream_semantics,
                offset,
                size,
            )
        else:
            made = _PACK_16(plan.payload_kind, plan.profile_id, offset, size)
        packed.append(made)
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
