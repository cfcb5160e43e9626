"""Reads the NNRP vectors and captures, and builds the bytes of a vector from its fields (nnrp-wire 20)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protocol.nnrp import descriptors
from protocol.nnrp.descriptors import ObjectReference, TypedPayloadDescriptor
from protocol.nnrp.enums import (
    DtypeId,
    ExtensionFlags,
    ExtFlags,
    MessageType,
    ObjectKind,
    PayloadKind,
    TileIndexMode,
)
from protocol.nnrp.extensions import ControlExtension, pack_extensions
from protocol.nnrp.header import Header
from protocol.nnrp.messages import MESSAGES, TensorProfilePatchBlock
from protocol.nnrp.record import Record
from protocol.nnrp.regions import ExtensionFrame, InlineObject, Regions, TypedPayload
from protocol.nnrp.tensor import TensorBody, TensorSection, pack_flat_tensor, pack_tile_index

VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "nnrp"
FILE: dict[str, Any] = json.loads((VECTORS / "nnrp-preview3.json").read_text())
POSITIVE: list[dict[str, Any]] = FILE["positive"]
NEGATIVE: list[dict[str, Any]] = FILE["negative"]

BLOCKS: dict[str, type[Record]] = {
    "BODY_REGION_PRELUDE": descriptors.BodyRegionPrelude,
    "OBJECT_REFERENCE": ObjectReference,
    "TYPED_PAYLOAD_DESCRIPTOR": TypedPayloadDescriptor,
    "TYPED_PAYLOAD_DESCRIPTOR_V2": descriptors.TypedPayloadDescriptorV2,
    "SCHEMA_DESCRIPTOR": descriptors.SchemaDescriptor,
    "EXTENSION_FRAME_DESCRIPTOR": descriptors.ExtensionFrameDescriptor,
    "TENSOR_SECTION_DESC": descriptors.TensorSectionDesc,
    "TENSOR_PROFILE_PATCH_BLOCK": TensorProfilePatchBlock,
}


def attributes(made: type[Record], fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` without those that are reserved under a name of their own (ref_flags, …): they are 0 and no attribute."""
    kept = {name: value for name, value in fields.items() if name in made.__struct_fields__}
    assert all(value == 0 for name, value in fields.items() if name not in kept)
    return kept


def structure(message: str) -> type[Record]:
    """The layout class a vector of kind metadata or body is about."""
    if message == "HEADER":
        return Header
    return BLOCKS.get(message) or MESSAGES[MessageType[message]]


def captures() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Every recorded packet: file, index, entry."""
    for path in sorted((VECTORS / "captures").glob("*.json")):
        recorded = json.loads(path.read_text())
        if isinstance(recorded, dict):
            for index, entry in enumerate(recorded.get("packets", ())):
                if "hex" in entry:
                    yield path.stem, index, entry


def extensions_from(fields: list[dict[str, Any]]) -> bytes:
    return pack_extensions(
        ControlExtension(each["ext_type"], bytes.fromhex(each["payload_hex"]), ExtFlags(each["ext_flags"]))
        for each in fields
    )


def block_from(message: str, fields: dict[str, Any]) -> bytes:
    """The bytes of a body vector, made from its fields."""
    if message == "CODE_LIST":
        return b"".join(value.to_bytes(4, "little") for value in fields["values"])
    if message == "CONTROL_EXTENSION_BLOCK":
        return extensions_from(fields["control_extensions"])
    if message == "INLINE_OBJECT_BLOCK":
        kind, payload = ObjectKind(fields["object_kind"]), bytes.fromhex(fields["payload_hex"])
        return InlineObject(kind, payload, fields["profile_id"]).pack()
    if message == "TILE_INDEX_BLOCK":
        return pack_tile_index(fields["tile_ids"], mode=TileIndexMode(fields["mode"]))
    made = structure(message)
    return made(**attributes(made, fields)).pack()


def packet_from(fields: dict[str, Any]) -> bytes:
    """The bytes of a packet vector, made from its fields."""
    kind = MessageType(fields["header"]["msg_type"])
    metadata = MESSAGES[kind](**fields["metadata"])
    body = body_from(kind, fields)
    return Header(**fields["header"]).pack() + metadata.pack() + body


def body_from(kind: MessageType, fields: dict[str, Any]) -> bytes:
    body = fields.get("body", {})
    if "form" in body:
        return _data_body(fields["metadata"], body)
    blocks = [bytes.fromhex(body.get(name, "")) for name in ("raw_hex", "object_hex", "diagnostic_hex")]
    if "tensor_profile_patch" in body:
        blocks.append(TensorProfilePatchBlock(**body["tensor_profile_patch"]).pack())
    blocks.append(bytes.fromhex(body.get("probe_payload_hex", "")))
    extensions = extensions_from(body.get("control_extensions", []))
    auth, token = (bytes.fromhex(body.get(name, "")) for name in ("auth_hex", "resume_token_hex"))
    if kind is MessageType.CLIENT_HELLO:
        return b"".join([*blocks, extensions, auth])
    return b"".join([*blocks, token, auth, extensions])


def _data_body(metadata: dict[str, Any], body: dict[str, Any]) -> bytes:
    if body["form"] == "empty":
        return b""
    if body["form"] == "flat_tensor":
        default = TileIndexMode.RAW_U16 if metadata["tile_index_bytes"] else TileIndexMode.DENSE_RANGE
        mode = TileIndexMode(metadata.get("tile_index_mode", default))
        sections = tuple(_section(each) for each in body["sections"])
        camera = bytes.fromhex(body.get("camera_hex", ""))
        return pack_flat_tensor(TensorBody(body["tile_ids"], sections, camera), mode=mode)
    return b"".join(_regions(body).build())


def _section(fields: dict[str, Any]) -> TensorSection:
    return TensorSection.of(
        fields["role_id"],
        [bytes.fromhex(each) for each in fields["tile_payloads_hex"]],
        dtype_id=DtypeId(fields["dtype_id"]),
        codec_id=fields["codec_id"],
        element_count_per_tile=fields["element_count_per_tile"],
        stride=fields["payload_stride_bytes"],
    )


def _regions(body: dict[str, Any]) -> Regions:
    inline = tuple(
        InlineObject(ObjectKind(each["object_kind"]), bytes.fromhex(each["payload_hex"]), each.get("profile_id", 0))
        for each in body["inline_objects"]
    )
    references = tuple(ObjectReference(**attributes(ObjectReference, each)) for each in body["object_references"])
    extensions = tuple(
        ExtensionFrame(
            each["extension_kind"], bytes.fromhex(each["payload_hex"]), ExtensionFlags(each["extension_flags"])
        )
        for each in body.get("extensions", [])
    )
    return Regions(tuple(_payload(each) for each in body["typed_payloads"]), inline, references, extensions)


def _payload(fields: dict[str, Any]) -> TypedPayload:
    data = bytes.fromhex(fields["payload_hex"])
    if "payload_kind" in fields:
        return TypedPayload.legacy(data, PayloadKind(fields["payload_kind"]), profile_id=fields.get("profile_id", 0))
    values = {name: value for name, value in fields.items() if name != "payload_hex"}
    return TypedPayload(TypedPayloadDescriptor(**values), data)
