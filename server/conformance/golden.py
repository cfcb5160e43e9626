"""The golden bytes of the suite's layer 0, with the fields they must decode to."""

from __future__ import annotations

from typing import Any

import attrs

from protocol.nnrp.descriptors import SchemaDescriptor, TypedPayloadDescriptor
from protocol.nnrp.header import Header
from protocol.nnrp.messages import FlowUpdate, SessionClose, SessionCloseAck, SessionOpen, SessionOpenAck
from protocol.nnrp.record import Record

__all__ = ["BLOCKS", "CACHE_CODES", "HEADER", "PACKETS", "SCHEMA_CODES", "Golden"]


@attrs.frozen(slots=True)
class Golden:
    """``data`` is one structure of ``layout``, or a whole packet whose metadata it is. ``strict`` false: only the layout
    is asserted, a rule about its meaning objects."""

    layout: type[Record]
    data: bytes
    fields: dict[str, Any]
    header: dict[str, int] = attrs.field(factory=dict)
    strict: bool = True


_OPEN = {
    "requested_session_id": 42,
    "profile_id": 2,
    "priority_class": 1,
    "session_flags": 5,
    "schema_id": 4097,
    "schema_version": 3,
    "default_deadline_ms": 500,
    "max_in_flight_operations": 4,
    "lease_ttl_hint_ms": 30000,
    "resume_token_bytes": 16,
    "auth_bytes": 32,
    "session_extension_bytes": 8,
    "client_session_tag": 0x0123456789ABCDEF,
}
_ACK = {
    "session_id": 42,
    "accepted_profile_id": 2,
    "accepted_priority_class": 1,
    "session_status": 0,
    "schema_id": 4097,
    "schema_version": 3,
    "granted_operation_credit": 2,
    "max_in_flight_operations": 4,
    "lease_ttl_ms": 30000,
    "resume_window_ms": 120000,
    "resume_token_bytes": 16,
    "session_extension_bytes": 8,
    "server_session_tag": 0x0FEDCBA987654321,
    "route_scope_id": 7,
    "session_error_code": 0,
    "session_flags_ack": 5,
}

HEADER = Golden(
    Header,
    bytes.fromhex("4e4e525001001028210000003000000000100000070000000b0000000200000015cd5b0700000000"),
    {
        "msg_type": 0x10,
        "flags": 33,
        "meta_len": 48,
        "body_len": 4096,
        "session_id": 7,
        "frame_id": 11,
        "view_id": 2,
        "route_id": 0,
        "trace_id": 123456789,
    },
)

BLOCKS: dict[str, Golden] = {
    "l0.session_open.metadata.golden": Golden(
        SessionOpen,
        bytes.fromhex(
            "2a000000020001050110000003000000f40100000400000030750000100000002000000008000000efcdab8967452301"
        ),
        _OPEN,
    ),
    "l0.session_open_ack.metadata.golden": Golden(
        SessionOpenAck,
        bytes.fromhex(
            "2a0000000200010001100000030000000200040030750000c0d4010010000000"
            "0800000021436587a9cbed0f070000000000000005000000"
        ),
        _ACK,
    ),
    "l0.session_close.metadata.golden": Golden(
        SessionClose,
        bytes.fromhex("01000000e803000063000000000000000000000044332211"),
        {
            "close_reason": 1,
            "in_flight_policy": 0,
            "drain_timeout_ms": 1000,
            "last_operation_id": 99,
            "session_error_code": 0,
            "session_close_tag": 0x11223344,
        },
    ),
    "l0.session_close_ack.metadata.golden": Golden(
        SessionCloseAck,
        bytes.fromhex("01000000630000000000000000000000"),
        {"close_status": 1, "last_operation_id": 99, "session_error_code": 0},
    ),
    "l0.session_resume.metadata.golden": Golden(
        SessionOpen,
        bytes.fromhex(
            "2a000000020000010110000003000000c800000002000000983a0000180000000000000000000000efcdab8967452301"
        ),
        _OPEN
        | {
            "priority_class": 0,
            "session_flags": 1,
            "default_deadline_ms": 200,
            "max_in_flight_operations": 2,
            "lease_ttl_hint_ms": 15000,
            "resume_token_bytes": 24,
            "auth_bytes": 0,
            "session_extension_bytes": 0,
        },
    ),
    "l0.session_resume_ack.resumed.golden": Golden(
        SessionOpenAck,
        bytes.fromhex(
            "2a00000002000003011000000300000001000200983a000060ea000018000000"
            "000000008877665544332211070000000000000001000000"
        ),
        _ACK
        | {
            "accepted_priority_class": 0,
            "session_status": 3,
            "granted_operation_credit": 1,
            "max_in_flight_operations": 2,
            "lease_ttl_ms": 15000,
            "resume_window_ms": 60000,
            "resume_token_bytes": 24,
            "session_extension_bytes": 0,
            "server_session_tag": 0x1122334455667788,
            "session_flags_ack": 1,
        },
    ),
    "l0.session_resume_ack.rejected.golden": Golden(
        SessionOpenAck,
        bytes.fromhex(
            "2a00000002000001011000000300000000000000983a00000000000018000000"
            "000000008877665544332211000000000600010000000000"
        ),
        _ACK
        | {
            "accepted_priority_class": 0,
            "session_status": 1,
            "granted_operation_credit": 0,
            "max_in_flight_operations": 0,
            "lease_ttl_ms": 15000,
            "resume_window_ms": 0,
            "resume_token_bytes": 24,
            "session_extension_bytes": 0,
            "server_session_tag": 0x1122334455667788,
            "route_scope_id": 0,
            "session_error_code": 0x00010006,
            "session_flags_ack": 0,
        },
        strict=False,
    ),
    "l0.schema.descriptor.header.golden": Golden(
        SchemaDescriptor,
        bytes.fromhex("011000000300000002000f000101000040000000020002008877665544332211"),
        {
            "schema_id": 4097,
            "schema_version": 3,
            "profile_id": 2,
            "schema_flags": 15,
            "min_version_major": 1,
            "max_version_major": 1,
            "body_bytes": 64,
            "dependency_count": 2,
            "default_stream_semantics": 2,
            "schema_hash": 0x1122334455667788,
        },
    ),
    "l0.typed_payload.descriptor.golden": Golden(
        TypedPayloadDescriptor,
        bytes.fromhex("020002000110000003000000020000000000000018000000"),
        {
            "profile_id": 2,
            "descriptor_flags": 2,
            "schema_id": 4097,
            "schema_version": 3,
            "stream_semantics": 2,
            "offset": 0,
            "length": 24,
        },
    ),
}

_FLOW = {
    "scope_kind": 1,
    "update_reason": 4,
    "backpressure_level": 2,
    "connection_credit": 0,
    "session_credit": 2,
    "operation_credit": 0,
    "operation_id": 0,
    "retry_after_ms": 120,
    "credit_epoch": 7,
    "flow_flags": 3,
}
PACKETS: dict[str, Golden] = {
    "l0.flow_update.packet.golden": Golden(
        FlowUpdate,
        bytes.fromhex(
            "4e4e5250010017280000000020000000000000002a0000000000000000000900887766554433221101040200"
            "00000200000000000000000000000000780000000700000003000000"
        ),
        _FLOW,
        {"session_id": 42, "route_id": 9, "trace_id": 0x1122334455667788},
    ),
    "l0.flow_update.connection.packet.golden": Golden(
        FlowUpdate,
        bytes.fromhex(
            "4e4e5250010017280000000020000000000000000000000000000000000003000807060504030201"
            "0000010006000000000000000000000000000000000000000b00000001000000"
        ),
        _FLOW
        | {
            "scope_kind": 0,
            "update_reason": 0,
            "backpressure_level": 1,
            "connection_credit": 6,
            "session_credit": 0,
            "retry_after_ms": 0,
            "credit_epoch": 11,
            "flow_flags": 1,
        },
        {"session_id": 0, "route_id": 3, "trace_id": 0x0102030405060708},
    ),
    "l0.flow_update.operation.packet.golden": Golden(
        FlowUpdate,
        bytes.fromhex(
            "4e4e5250010017280000000020000000000000002a00000000000000000009001122334455667788"
            "02020200000000000100000034120000"
            "00000000fa0000000c0000000b000000"
        ),
        _FLOW
        | {
            "scope_kind": 2,
            "update_reason": 2,
            "session_credit": 0,
            "operation_credit": 1,
            "operation_id": 0x1234,
            "retry_after_ms": 250,
            "credit_epoch": 12,
            "flow_flags": 11,
        },
        {"session_id": 42, "route_id": 9, "trace_id": 0x8877665544332211},
    ),
}

CACHE_CODES = {
    "cache_miss": 0x00030001,
    "lease_expired": 0x00030002,
    "version_mismatch": 0x00030003,
    "dependency_invalid": 0x00030004,
    "schema_mismatch": 0x00030005,
}
SCHEMA_CODES = {
    "schema_unknown": 0x00040001,
    "schema_version_unknown": 0x00040002,
    "schema_hash_conflict": 0x00040003,
    "schema_incompatible": 0x00040004,
    "schema_dependency_missing": 0x00040005,
    "schema_update_rejected": 0x00040006,
}
