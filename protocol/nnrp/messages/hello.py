"""CLIENT_HELLO and SERVER_HELLO_ACK (nnrp-wire 7.1, 7.2)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from protocol.layout import Check, Loose, Reserved, u8, u16, u32
from protocol.layout_codec import layout
from protocol.nnrp.enums import ErrorCode, MessageType, PayloadKind, ServerFlags
from protocol.nnrp.record import Message

__all__ = ["ClientHello", "ServerHelloAck"]


@layout("CLIENT_HELLO", "7.1", "[rs3=py3]")
class ClientHello(Message, frozen=True, gc=False):
    """Opens a connection: what the client can do. Body: control extensions, then the auth block."""

    TYPE: ClassVar[MessageType] = MessageType.CLIENT_HELLO
    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check("min_version_major", "min_version_major <= max_version_major", "min_version_major ≤ max_version_major"),
        Check(
            "max_version_major",
            "min_version_major <= 1 <= max_version_major",
            "the version window must contain 1",
            code=ErrorCode.UNSUPPORTED_VERSION,
        ),
        Check(
            "supported_wire_format_bitmap",
            "supported_wire_format_bitmap & 1",
            "wire format 0 (bit 0) is required",
            code=ErrorCode.UNSUPPORTED_VERSION,
        ),
        Check(
            "supported_profile_bitmap",
            "supported_profile_bitmap != 0",
            "at least one profile must be offered",
            code=ErrorCode.UNSUPPORTED_CAPABILITY,
        ),
        Check(
            "supported_payload_kind_bitmap",
            "supported_payload_kind_bitmap != 0",
            "at least one payload kind must be offered",
            code=ErrorCode.UNSUPPORTED_CAPABILITY,
        ),
    )

    min_version_major: Annotated[int, u8, "≤ max_version_major"] = 1
    max_version_major: Annotated[int, u8, "the window must contain 1"] = 1
    supported_wire_format_bitmap: Annotated[int, u16, "bit n = wire_format n; bit 0 required"] = 1
    supported_profile_bitmap: Annotated[int, u32, "bit (profile_id − 1); non-zero"] = 0
    supported_payload_kind_bitmap: Annotated[
        PayloadKind, u32, "section 12.4; non-zero", Loose("unknown bits are dropped")
    ] = PayloadKind(0)
    supported_codec_bitmap: Annotated[int, u32, "bit = codec id; none registered"] = 0
    supported_compression_bitmap: Annotated[int, u32, "bit = compression id; none registered"] = 0
    supported_dtype_bitmap: Annotated[int, u32, "bit = dtype_id (9.3)"] = 0
    supported_layout_bitmap: Annotated[int, u32, "bit = layout_id (9.3)"] = 0
    cache_digest_bitmap: Annotated[int, u16, "digest algorithms; none registered"] = 0
    cache_object_bitmap: Annotated[int, u16, "bit (object_kind − 1)"] = 0
    cache_namespace_count: Annotated[int, u16] = 0
    max_lane_count: Annotated[int, u16, "1 = single lane"] = 0
    max_cache_entries: Annotated[int, u32] = 0
    max_cache_bytes: Annotated[int, u32] = 0
    target_cadence_x100: Annotated[int, u16, "cadence × 100"] = 0
    latency_budget_ms: Annotated[int, u16] = 0
    quality_tier: Annotated[int, u16, "preference only"] = 0
    degrade_policy: Annotated[int, u16, "`DegradePolicy`; range not checked"] = 0
    requested_session_id: Annotated[int, u32, "0 = none/assign; see 13.2"] = 0
    auth_bytes: Annotated[int, u32, "body block length"] = 0
    control_extension_bytes: Annotated[int, u32, "body block length, padding included"] = 0


@layout("SERVER_HELLO_ACK", "7.2", "[rs3=py3]")
class ServerHelloAck(Message, frozen=True, gc=False):
    """Answers a hello. That it stays within the offer is checked where the offer is known (the connection machine)."""

    TYPE: ClassVar[MessageType] = MessageType.SERVER_HELLO_ACK

    selected_version_major: Annotated[int, u8, "inside the client window"] = 1
    selected_wire_format: Annotated[int, u8, "bit set in the client bitmap"] = 0
    auth_status: Annotated[int, u8, "0 = accepted or not required; non-zero = rejected"] = 0
    reserved0: ClassVar[Reserved] = Reserved(u8)
    session_id: Annotated[int, u32, "0 = no implicit session; else 13.2"] = 0
    accepted_profile_bitmap: Annotated[int, u32, "⊆ offered"] = 0
    accepted_payload_kind_bitmap: Annotated[int, u32, "⊆ offered"] = 0
    accepted_codec_bitmap: Annotated[int, u32, "⊆ offered"] = 0
    accepted_compression_bitmap: Annotated[int, u32, "⊆ offered"] = 0
    accepted_dtype_bitmap: Annotated[int, u32, "⊆ offered"] = 0
    accepted_layout_bitmap: Annotated[int, u32, "⊆ offered"] = 0
    cache_digest_bitmap: Annotated[int, u32, "⊆ offered (zero-extended)"] = 0
    cache_object_bitmap: Annotated[int, u32, "⊆ offered (zero-extended)"] = 0
    max_cache_entries: Annotated[int, u32] = 0
    max_cache_bytes: Annotated[int, u32] = 0
    max_lane_count: Annotated[int, u16] = 0
    max_concurrent_frames: Annotated[int, u16, "connection-level in-flight limit; 0 = unspecified"] = 0
    target_cadence_x100: Annotated[int, u16] = 0
    latency_budget_ms: Annotated[int, u16] = 0
    quality_tier: Annotated[int, u16] = 0
    degrade_policy: Annotated[int, u16] = 0
    max_body_bytes: Annotated[int, u32, "largest body the server accepts; 0 = unspecified"] = 0
    token_ttl_ms: Annotated[int, u32, "auth lifetime; 0 = none"] = 0
    retry_after_ms: Annotated[int, u32, "when refusing for now"] = 0
    control_extension_bytes: Annotated[int, u32, "= body_len"] = 0
    server_flags: Annotated[
        ServerFlags, u32, "older text names bits 1 and 2: never sent", Loose("unknown bits are dropped")
    ] = ServerFlags(0)
