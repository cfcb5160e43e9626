"""A packet as a list of annotated fields: for people who look at bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntFlag

from protocol.layout import Buffer, Field, Layout, Structure
from protocol.nnrp import descriptors, vendor
from protocol.nnrp.bodies import BodyForm, ControlBody, DataBody
from protocol.nnrp.descriptors import (
    BodyRegionPrelude,
    ControlExtensionHeader,
    ExtensionFrameDescriptor,
    TypedPayloadDescriptor,
)
from protocol.nnrp.enums import ExtType, MessageType
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.extensions import ControlExtension, ObjectMetaEntry
from protocol.nnrp.header import HEADER_BYTES, Header
from protocol.nnrp.messages import MESSAGES, TensorProfilePatchBlock
from protocol.nnrp.packet import Packet
from protocol.nnrp.regions import Regions

__all__ = ["LAYOUTS", "Line", "annotate", "explain_error", "section_name", "summarise"]

LAYOUTS: dict[str, type[Structure]] = {
    made.LAYOUT.name: made
    for made in (
        Header,
        *MESSAGES.values(),
        TensorProfilePatchBlock,
        *(getattr(module, name) for module in (descriptors, vendor) for name in module.__all__),
    )
}
"""Every declared layout by its name in the specification."""

_TENSOR_MARK = re.compile(r"^T\b")
"""How the declarations mark the fields that must be 0 without tensors."""

_PREVIEW = 24
"""Bytes of an opaque block that are shown."""


@dataclass(frozen=True, slots=True)
class Line:
    """One annotated piece of a packet. ``offset`` counts from the start of the packet."""

    offset: int
    size: int
    name: str
    value: str
    note: str = ""
    depth: int = 0


def _value(field: Field, value: int | bytes) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    if field.enum is None:
        return str(value) if value < 1 << 16 else f"{value} ({value:#x})"
    if issubclass(field.enum, IntFlag):
        names = [str(member.name).lower() for member in field.enum if value & member]
        return f"{value:#x} {'|'.join(names)}".rstrip()
    known = {int(member): str(member.name).lower() for member in field.enum}
    return f"{value} {known.get(value, '?')}"


def _structure(made: type[Structure], data: Buffer, at: int, depth: int) -> Iterator[Line]:
    layout = made.LAYOUT
    values = layout.unpacker.unpack_from(data)
    for field, value in zip(layout.fields, values, strict=True):
        note = "reserved" if field.kind == "reserved" else _TENSOR_MARK.sub("tensor only", field.rule)
        yield Line(at + field.offset, field.scalar.size, field.name, _value(field, value), note, depth)


def _opaque(name: str, data: Buffer, at: int, depth: int = 1) -> Iterator[Line]:
    if len(data):
        shown = bytes(data[:_PREVIEW])
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in shown)
        more = "…" if len(data) > _PREVIEW else ""
        yield Line(at, len(data), name, f"{shown.hex()}{more}", f"{text}{more}", depth)


def _extensions(entries: tuple[ControlExtension, ...], at: int) -> Iterator[Line]:
    for entry in entries:
        size = len(entry.payload)
        header = ControlExtensionHeader(entry.ext_type, entry.ext_flags, size)
        known = entry.ext_type in set(ExtType)
        name = ExtType(entry.ext_type).name.lower() if known else "unknown"
        skipped = "" if entry.value is not None else "skipped"
        yield Line(at, 8 + size + -size % 8, "control_extension", name, skipped, 1)
        yield from _structure(ControlExtensionHeader, header.pack(), at, 2)
        at += 8
        if isinstance(entry.value, ObjectMetaEntry):
            yield from _structure(type(entry.value.meta), entry.payload, at, 2)
        elif entry.value is not None:
            yield from _structure(type(entry.value), entry.payload, at, 2)
        else:
            yield from _opaque("payload", entry.payload, at, 2)
        at += size + -size % 8


def _control(kind: MessageType, body: ControlBody, at: int) -> Iterator[Line]:
    if body.declared_absent:
        yield Line(at, 0, "body", "declared but absent", "tolerated, nnrp-wire 5", 1)
    auth_last = kind is MessageType.CLIENT_HELLO
    leading = [("diagnostic", body.diagnostic), ("object", body.object), ("resume_token", body.resume_token)]
    for name, block in [*leading, *([] if auth_last else [("auth", body.auth)])]:
        yield from _opaque(name, block, at)
        at += len(block)
    yield from _extensions(body.extensions, at)
    at += sum(8 + len(each.payload) + -len(each.payload) % 8 for each in body.extensions)
    if auth_last:
        yield from _opaque("auth", body.auth, at)
    yield from _opaque("opaque", body.opaque, at)


def _regions(body: Buffer, regions: Regions, at: int) -> Iterator[Line]:
    yield Line(at, BodyRegionPrelude.SIZE, "body_region_prelude", "", "", 1)
    yield from _structure(BodyRegionPrelude, body, at, 2)
    prelude = BodyRegionPrelude.decode(body)
    place = BodyRegionPrelude.SIZE
    for each in regions.inline_objects:
        size = len(each.payload)
        yield Line(at + place, 16 + size + -size % 8, "inline_object", each.object_kind.name.lower(), "", 1)
        yield from _structure(descriptors.InlineObjectHeader, body[place:], at + place, 2)
        yield from _opaque("payload", each.payload, at + place + 16, 2)
        place += 16 + size + -size % 8
    for reference in regions.references:
        yield Line(at + place, 16, "object_reference", reference.object_kind.name.lower(), "", 1)
        yield from _structure(type(reference), body[place:], at + place, 2)
        place += 16
    frames = place + prelude.typed_payload_descriptor_bytes
    for payload in regions.payloads:
        made = type(payload.descriptor)
        kind = "" if payload.kind is None else str(payload.kind.name).lower()
        yield Line(at + place, made.SIZE, "typed_payload_descriptor", kind, "", 1)
        yield from _structure(made, body[place:], at + place, 2)
        described = payload.descriptor
        start = described.offset if isinstance(described, TypedPayloadDescriptor) else described.payload_offset
        yield from _opaque("payload", payload.data, at + frames + start, 2)
        place += made.SIZE
    place = frames + prelude.typed_payload_frame_bytes
    region = place + prelude.extension_descriptor_bytes
    for frame in regions.extensions:
        yield Line(at + place, 16, "extension_frame", f"{frame.extension_kind:#06x}", "", 1)
        yield from _structure(ExtensionFrameDescriptor, body[place:], at + place, 2)
        begin = region + ExtensionFrameDescriptor.decode(body, place).payload_offset
        if frame.value is None:
            yield from _opaque("payload", frame.payload, at + begin, 2)
        for index, value in enumerate(frame.value if isinstance(frame.value, tuple) else (frame.value,)):
            if value is not None:
                start = begin + index * value.SIZE
                yield from _structure(type(value), body[start:], at + start, 2)
        place += 16


def _data(packet: Packet, body: DataBody, at: int) -> Iterator[Line]:
    yield Line(at, len(packet.body), "body", body.form.value, "form, nnrp-wire 8.1", 1)
    if body.form is BodyForm.REGION:
        yield from _regions(packet.body, body.regions, at)
    elif body.form is BodyForm.RAW:
        yield from _opaque("raw", body.raw, at)
    tensor = body.tensor
    if body.form is BodyForm.FLAT_TENSOR:
        yield from _opaque("camera", tensor.camera, at)
    if tensor.tile_ids:
        shown = ", ".join(str(each) for each in list(tensor.tile_ids[:8]))
        yield Line(
            at, 0, "tile_ids", f"{len(tensor.tile_ids)}: {shown}{' …' if len(tensor.tile_ids) > 8 else ''}", "", 1
        )
    for section in tensor.sections:
        described = section.descriptor
        text = f"role {described.role_id}, {described.dtype_id.name.lower()}, {len(section.lengths)} tiles"
        yield Line(at, 0, "tensor_section", f"{text}, {described.payload_bytes} bytes", "", 1)


def annotate(packet: Packet) -> Iterator[Line]:
    """Header, metadata and body, field by field, in wire order."""
    header, meta = packet.header, packet.metadata
    yield Line(0, HEADER_BYTES, "header", "", "nnrp-wire 3")
    yield from _structure(Header, header.pack(), 0, 1)
    yield Line(HEADER_BYTES, meta.SIZE, "metadata", meta.LAYOUT.name, section_name(meta.LAYOUT))
    yield from _structure(type(meta), meta.pack(), HEADER_BYTES, 1)
    at = HEADER_BYTES + meta.SIZE
    if not (packet.body or isinstance(packet.content, DataBody) or packet.content.declared_absent):
        return
    yield Line(at, len(packet.body), "body", "")
    if isinstance(packet.content, DataBody):
        yield from _data(packet, packet.content, at)
    else:
        yield from _control(packet.kind, packet.content, at)


def summarise(packet: Packet) -> str:
    """One line: type, ids, sizes, and the metadata that is not zero."""
    header, meta = packet.header, packet.metadata
    parts = [packet.kind.name, f"session={header.session_id}", f"frame={header.frame_id}"]
    for name in ("view_id", "route_id", "trace_id"):
        if getattr(header, name):
            parts.append(f"{name.removesuffix('_id')}={getattr(header, name)}")
    if header.flags:
        parts.append(f"flags={_value(Header.LAYOUT.field('flags'), int(header.flags)).split()[-1]}")
    parts.append(f"meta={header.meta_len} body={header.body_len}")
    for field in meta.LAYOUT.fields:
        value = getattr(meta, field.name) if field.is_attribute else 0
        if value or field.kind == "enum":
            shown = _value(field, int(value)).split()[-1].strip("()")
            parts.append(f"{field.name}={shown}")
    if isinstance(packet.content, DataBody):
        parts.append(f"form={packet.content.form.value}")
    return " ".join(parts)


def section_name(layout: Layout) -> str:
    """Where the rules of ``layout`` stand."""
    part = layout.section.removeprefix("ext: ")
    return f"nnrp-wire {part}" if part == layout.section else f"nnrp-extensions, {part}"


def explain_error(error: NnrpError) -> str:
    """The message of ``error`` and the section of the specification the structure is defined in."""
    made = LAYOUTS.get(error.subject)
    return str(error) if made is None else f"{error} ({section_name(made.LAYOUT)})"
