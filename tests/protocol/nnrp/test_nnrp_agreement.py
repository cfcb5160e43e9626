"""Byte for byte agreement with the packers of the installed nnrp-py, wherever the two overlap."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from nnrp import schema as their_schema
from nnrp.core import packet as theirs
from nnrp.core.enums import HeaderFlags as TheirFlags
from nnrp.core.enums import MessageType as TheirType
from nnrp.core.enums import WireFormat
from nnrp.core.header import NnrpHeader
from nnrp.core.messages import control, data

from protocol.layout import Structure
from protocol.nnrp import descriptors, messages
from protocol.nnrp.descriptors import ObjectReference
from protocol.nnrp.enums import (
    BackpressureLevel,
    DtypeId,
    ExtFlags,
    FlowFlags,
    FlowScope,
    HeaderFlags,
    MessageType,
    ObjectKind,
    ObjectRefMask,
    PayloadKind,
    ResultClass,
    ResultFlags,
    SubmitMode,
    TileIndexMode,
    UpdateReason,
)
from protocol.nnrp.extensions import ControlExtension, pack_extensions, parse_extensions
from protocol.nnrp.header import Header
from protocol.nnrp.packet import encode_packet
from protocol.nnrp.regions import ExtensionFrame, InlineObject, Regions, TypedPayload
from protocol.nnrp.tensor import (
    TensorBody,
    TensorSection,
    pack_flat_tensor,
    pack_sections,
    pack_tile_index,
    parse_tile_index,
)
from tests.protocol.nnrp.strategies import examples, records

PAIRS: list[tuple[type[Structure], Any]] = [
    (messages.ClientHello, control.ClientHelloMetadata),
    (messages.ServerHelloAck, control.ServerHelloAckMetadata),
    (messages.SessionPatch, control.SessionPatchMetadata),
    (messages.SessionPatchAck, control.SessionPatchAckMetadata),
    (messages.TensorProfilePatchBlock, control.TensorProfilePatchBlock),
    (messages.TensorProfilePatchBlock, control.TensorProfilePatchAckBlock),
    (messages.Error, control.ErrorMetadata),
    (messages.CachePut, control.CachePutMetadata),
    (messages.CacheAck, control.CacheAckMetadata),
    (messages.CacheInvalidate, control.CacheInvalidateMetadata),
    (messages.FlowUpdate, control.FlowUpdateMetadata),
    (messages.ResultHint, control.ResultHintMetadata),
    (messages.TransportProbe, control.TransportProbeMetadata),
    (messages.TransportProbeAck, control.TransportProbeAckMetadata),
    (messages.SessionMigrate, control.SessionMigrateMetadata),
    (messages.SessionMigrateAck, control.SessionMigrateAckMetadata),
    (messages.FrameSubmit, data.FrameSubmitMetadata),
    (messages.ResultPush, data.ResultPushMetadata),
    (descriptors.BodyRegionPrelude, data.BodyRegionPrelude),
    (descriptors.InlineObjectHeader, data.InlineObjectBlockHeader),
    (descriptors.ObjectReference, data.ObjectReferenceBlock),
    (descriptors.TypedPayloadDescriptorV2, data.TypedPayloadDescriptor),
    (descriptors.ExtensionFrameDescriptor, data.ExtensionFrameDescriptor),
    (descriptors.TensorSectionDesc, data.TensorSectionDesc),
    (descriptors.TransportPolicy, control.ClientHelloTransportPolicyExtension),
    (descriptors.TransportPolicyAck, control.ServerHelloAckTransportPolicyExtension),
    (descriptors.LossToleranceBlock, control.ClientHelloLossToleranceExtension),
    (descriptors.LossToleranceBlock, control.ServerHelloAckLossToleranceExtension),
    (descriptors.PayloadCapabilities, control.ClientHelloPayloadCapabilitiesExtension),
    (descriptors.PayloadCapabilities, control.ServerHelloAckPayloadCapabilitiesExtension),
    (descriptors.SchemaDescriptor, their_schema.SchemaDescriptorHeader),
    (descriptors.TypedPayloadDescriptor, their_schema.Preview3TypedPayloadDescriptor),
]


@pytest.mark.parametrize(("ours", "their"), PAIRS, ids=lambda made: made.__name__)
@examples(15)
@given(drawn=st.data())
def test_fixed_structures(ours: type[Structure], their: Any, drawn: st.DataObject) -> None:
    """What we pack they unpack to the same values, and pack to the same bytes."""
    record: Any = drawn.draw(records(ours))
    if ours is messages.SessionPatch:
        record = record.replace(profile_patch_bytes=16 * (record.profile_patch_bytes & 1))  # they know 0 and 16
    if ours is messages.SessionPatchAck:
        record = record.replace(profile_patch_ack_bytes=16 * (record.profile_patch_ack_bytes & 1))
    if ours is descriptors.BodyRegionPrelude:
        size = record.typed_payload_descriptor_bytes
        record = record.replace(typed_payload_descriptor_bytes=size - size % 16)  # they know only the 16-byte form
    if ours is descriptors.SchemaDescriptor:
        assume(record.min_version_major <= record.max_version_major)  # they check what the registry checks
    packed = record.pack()
    decoded = their.unpack(packed)
    assert decoded.pack() == packed
    for name in type(record).__struct_fields__:
        if hasattr(decoded, name):
            assert int(getattr(decoded, name)) == getattr(record, name), name


@examples(60)
@given(records(Header))
def test_header(header: Any) -> None:
    assume(header.msg_type not in range(0x07, 0x0B))  # session messages, unknown to them
    their = NnrpHeader.unpack(header.pack())
    assert their.pack() == header.pack()
    assert (their.msg_type, their.flags, their.trace_id) == (header.msg_type, header.flags, header.trace_id)


@pytest.mark.parametrize("kind", ["ping", "pong", "frame_cancel", "result_drop"])
def test_header_only_packets(kind: str) -> None:
    ids = {"session_id": 7, "route_id": 3, "trace_id": 9}
    if kind in ("frame_cancel", "result_drop"):
        ids |= {"frame_id": 11, "view_id": 2}
    built = getattr(theirs, f"build_{kind}_packet")(**ids).pack()
    assert encode_packet(messages.MESSAGES[MessageType[kind.upper()]](), **ids) == built


def test_control_packets() -> None:
    ours = messages.FlowUpdate(
        FlowScope.SESSION,
        UpdateReason.CONGESTION,
        BackpressureLevel.HARD,
        session_credit=2,
        retry_after_ms=120,
        credit_epoch=7,
        flow_flags=FlowFlags.CREDIT_VALID | FlowFlags.RETRY_AFTER_VALID,
    )
    flow = control.FlowUpdateMetadata.unpack(ours.pack())
    assert encode_packet(ours, session_id=4) == theirs.build_flow_update_packet(metadata=flow, session_id=4).pack()
    probe = control.TransportProbeMetadata(probe_id=5, probe_payload_bytes=3, client_send_ts_us=8)
    built = theirs.build_transport_probe_packet(metadata=probe, body=b"PPP").pack()
    assert encode_packet(messages.TransportProbe.parse(probe.pack()), b"PPP") == built
    migrate = control.SessionMigrateMetadata(
        old_transport_id=control.TransportId.TCP,
        new_transport_id=control.TransportId.QUIC,
        last_result_frame_id=4,
        client_migrate_ts_us=5,
    )
    built = theirs.build_session_migrate_packet(metadata=migrate, session_id=3, body=b"token").pack()
    assert encode_packet(messages.SessionMigrate.parse(migrate.pack()), b"token", session_id=3) == built


@examples(60)
@given(st.lists(st.tuples(st.integers(1, 0xFFFF), st.integers(0, 1), st.binary(max_size=20)), max_size=4))
def test_control_extension_blocks(entries: list[tuple[int, int, bytes]]) -> None:
    """nnrp-wire 6: headers, payloads and padding."""
    built = control.pack_control_extension_block(
        control.ControlExtensionEntry(ext_type=kind, ext_flags=control.ControlExtensionFlags(flags), payload=payload)
        for kind, flags, payload in entries
    )
    ours = [ControlExtension(kind, payload, ExtFlags(flags)) for kind, flags, payload in entries]
    assert pack_extensions(ours) == built
    optional = [each for each in ours if not each.ext_flags]
    unknown = [each for each in optional if each.ext_type < 0x0100 or each.ext_type > 0x8108]
    found = parse_extensions(pack_extensions(unknown))
    assert [(each.ext_type, each.payload) for each in found] == [(each.ext_type, each.payload) for each in unknown]


MODES = st.sampled_from(list(TileIndexMode))


@examples(100)
@given(ids=st.lists(st.integers(0, 0xFFFF), unique=True, max_size=30), mode=MODES, base=st.integers(0, 0xFFF0))
def test_tile_indexes(ids: list[int], mode: TileIndexMode, base: int) -> None:
    """nnrp-wire 9.4, all four modes."""
    if mode is TileIndexMode.DENSE_RANGE:
        ids = list(range(base, base + min(len(ids), 16)))
    if mode in (TileIndexMode.DELTA_U16, TileIndexMode.BITSET):
        ids.sort()
    built = theirs.pack_tile_index_block(ids, mode=data.TileIndexMode(mode), tile_base_id=base)
    assert pack_tile_index(ids, mode=mode) == built
    assert list(parse_tile_index(built, mode=mode, tile_count=len(ids), tile_base_id=base)) == ids


def sections(tiles: int) -> st.SearchStrategy[list[tuple[int, int, bytes, int, list[bytes]]]]:
    """role, stride, codec ids, dtype, tile payloads."""
    payloads = st.lists(st.binary(max_size=12), min_size=tiles, max_size=tiles)
    codecs = st.one_of(st.just(b""), st.binary(min_size=tiles, max_size=tiles))
    section = st.tuples(st.integers(1, 0xFFFF), st.sampled_from([0, 12]), codecs, st.integers(0, 7), payloads)
    return st.lists(section, max_size=3, unique_by=lambda each: each[0]).map(sorted)


def build_sections(plan: list[tuple[int, int, bytes, int, list[bytes]]]) -> tuple[list[TensorSection], list[Any]]:
    ours, their = [], []
    for role, stride, codec_ids, dtype, payloads in plan:
        codecs = b"" if all(each == 0 for each in codec_ids) else codec_ids  # they leave out a table of defaults
        ours.append(TensorSection.of(role, payloads, dtype_id=DtypeId(dtype), codec_ids=codecs, stride=stride))
        their.append(
            theirs.TensorSectionData(
                role_id=role,
                default_codec_id=0,
                dtype_id=data.TensorDType(dtype),
                tile_payloads=tuple(payloads),
                codec_ids=tuple(codec_ids),
                payload_stride_bytes=stride,
            )
        )
    return ours, their


@examples(60)
@given(drawn=st.data(), tiles=st.integers(1, 4), camera=st.binary(max_size=20), mode=MODES)
def test_flat_submits(drawn: st.DataObject, tiles: int, camera: bytes, mode: TileIndexMode) -> None:
    """nnrp-wire 9.1: camera, tile index and sections with their padding."""
    ours, their = build_sections(drawn.draw(sections(tiles)))
    ids = list(range(5, 5 + tiles))
    packet = theirs.build_frame_submit_packet(
        session_id=7,
        frame_id=101,
        src_width=640,
        src_height=360,
        tile_width=32,
        tile_height=32,
        tile_ids=ids,
        sections=their,
        camera_block=camera,
        tile_index_mode=data.TileIndexMode(mode),
        tile_base_id=5,
        latency_budget_ms=50,
    )
    body = pack_flat_tensor(TensorBody(ids, tuple(ours), camera), mode=mode)
    metadata = messages.FrameSubmit(
        640,
        360,
        32,
        32,
        tiles,
        len(ours),
        tile_index_mode=mode,
        latency_budget_ms=50,
        tile_base_id=5,
        camera_bytes=len(camera),
        tile_index_bytes=len(pack_tile_index(ids, mode=mode)),
        payload_kind_bitmap=PayloadKind.TENSOR,
    )
    assert encode_packet(metadata, body, session_id=7, frame_id=101) == packet.pack()


@examples(40)
@given(drawn=st.data(), tiles=st.integers(1, 4), dense=st.booleans())
def test_flat_results(drawn: st.DataObject, tiles: int, dense: bool) -> None:
    ours, their = build_sections(drawn.draw(sections(tiles)))
    ids = list(range(2, 2 + tiles))
    mode = TileIndexMode.DENSE_RANGE if dense else TileIndexMode.RAW_U16
    packet = theirs.build_partial_result_push_packet(
        session_id=7,
        frame_id=102,
        tile_ids=ids,
        sections=their,
        tile_index_mode=data.TileIndexMode(mode),
        tile_base_id=2,
        covered_tile_count=tiles - 1,
        dropped_tile_count=1,
    )
    metadata = messages.ResultPush(
        result_flags=ResultFlags.PARTIAL,
        section_count=len(ours),
        tile_count=tiles,
        tile_base_id=2,
        tile_index_bytes=0 if dense else 2 * tiles,
        result_class=ResultClass.PARTIAL,
        covered_tile_count=tiles - 1,
        dropped_tile_count=1,
        payload_kind_bitmap=PayloadKind.TENSOR,
    )
    their_metadata = messages.ResultPush.parse(packet.metadata)
    metadata = metadata.replace(applied_budget_policy=their_metadata.applied_budget_policy)
    body = pack_flat_tensor(TensorBody(ids, tuple(ours)), mode=mode)
    assert encode_packet(metadata, body, session_id=7, frame_id=102) == packet.pack()


@examples(40)
@given(drawn=st.data(), tiles=st.integers(1, 3))
def test_submits_by_reference(drawn: st.DataObject, tiles: int) -> None:
    """nnrp-wire 8.3, 8.4: an inline section table beside references to camera and tile index."""
    ours, their = build_sections(drawn.draw(sections(tiles)))
    assume(ours)
    keys = {"cache_namespace": 7, "cache_key_hi": 1, "cache_key_lo": 2}
    packet = theirs.build_frame_submit_packet(
        session_id=42,
        frame_id=4,
        src_width=64,
        src_height=32,
        tile_width=32,
        tile_height=32,
        tile_ids=list(range(tiles)),
        sections=their,
        submit_mode=data.SubmitMode.MIXED,
        object_ref_mask=3,
        camera_reference=theirs.build_camera_reference_block(**keys),
        tile_index_reference=theirs.build_tile_index_reference_block(**keys),
    )
    regions = Regions(
        inline_objects=(InlineObject(ObjectKind.TENSOR_SECTION_TABLE, pack_sections(ours)),),
        references=(
            ObjectReference(ObjectKind.CAMERA_BLOCK, **keys),
            ObjectReference(ObjectKind.TILE_INDEX_BLOCK, **keys),
        ),
    )
    metadata = messages.FrameSubmit(
        64,
        32,
        32,
        32,
        tiles,
        len(ours),
        tile_index_mode=TileIndexMode.RAW_U16,
        submit_mode=SubmitMode.MIXED,
        object_ref_mask=ObjectRefMask(3),
        payload_kind_bitmap=PayloadKind.TENSOR,
    )
    assert encode_packet(metadata, regions, session_id=42, frame_id=4) == packet.pack()


LEGACY_KINDS = st.sampled_from([kind for kind in PayloadKind if kind is not PayloadKind.TENSOR])


@examples(60)
@given(st.lists(st.tuples(LEGACY_KINDS, st.binary(max_size=30), st.integers(0, 3)), min_size=1, max_size=4))
def test_legacy_typed_packets(frames: list[tuple[PayloadKind, bytes, int]]) -> None:
    """nnrp-wire 8.6: the 16-byte dialect, built for a peer that uses it."""
    built = theirs.build_frame_submit_typed_payload_packet(
        session_id=1,
        frame_id=7,
        frames=[
            theirs.build_typed_payload_frame(data.PayloadKind(kind), payload, profile_id=profile)
            for kind, payload, profile in frames
        ],
    )
    bitmap = PayloadKind(0)
    for kind, _, _ in frames:
        bitmap |= kind
    metadata = messages.FrameSubmit(
        tile_index_mode=TileIndexMode.RAW_U16, payload_kind_bitmap=bitmap, payload_frame_count=len(frames)
    )
    regions = Regions(
        tuple(TypedPayload.legacy(payload, kind, profile_id=profile) for kind, payload, profile in frames)
    )
    assert encode_packet(metadata, regions, session_id=1, frame_id=7, strict=False) == built.pack()


def test_extension_frames() -> None:
    """nnrp-wire 8.7: the two regions of the extension frames."""
    head, payload = theirs.pack_extension_frames(
        [
            theirs.build_extension_frame(0x8001, b"xx", profile_id=1),
            theirs.build_extension_frame(0x9001, b"", profile_id=0),
        ]
    )
    ours = Regions(extensions=(ExtensionFrame(0x8001, b"xx", profile_id=1), ExtensionFrame(0x9001)))
    body = b"".join(ours.build())
    assert body == theirs.pack_body(extension_descriptor_region=head, extension_payload_region=payload)


def test_full_packets_by_their_builder() -> None:
    """The generic builder of nnrp-py and ours, header flags included."""
    packet = theirs.NnrpPacket.build(
        version_major=1,
        wire_format=WireFormat.CURRENT,
        msg_type=TheirType.CLOSE,
        flags=TheirFlags.ACK_REQUIRED,
        trace_id=2**64 - 1,
        body=b"bye",
    )
    flags = HeaderFlags.ACK_REQUIRED
    assert encode_packet(messages.Close(), b"bye", trace_id=2**64 - 1, flags=flags) == packet.pack()
