"""Opening, patching and closing a session (nnrp-wire 7.3, 7.4, 7.7 – 7.10)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from protocol.layout import Check, Reserved, u8, u16, u32, u64
from protocol.layout_codec import layout
from protocol.nnrp.enums import (
    AckStatus,
    CloseReason,
    CloseStatus,
    InFlightPolicy,
    MessageType,
    PatchMask,
    PatchRejectReason,
    PriorityClass,
    SessionErrorCode,
    SessionFlags,
    SessionFlagsAck,
    SessionStatus,
)
from protocol.nnrp.record import Block, Message

__all__ = [
    "SessionClose",
    "SessionCloseAck",
    "SessionOpen",
    "SessionOpenAck",
    "SessionPatch",
    "SessionPatchAck",
    "TensorProfilePatchBlock",
]


@layout("SESSION_PATCH", "7.3", "[rs3=py3]")
class SessionPatch(Message, frozen=True, gc=False):
    """Asks for low-frequency changes. Fields whose patch_mask bit is clear are ignored."""

    TYPE: ClassVar[MessageType] = MessageType.SESSION_PATCH

    profile_id: Annotated[int, u16, "0 = current profile"] = 0
    reserved0: ClassVar[Reserved] = Reserved(u16)
    patch_mask: Annotated[PatchMask, u32] = PatchMask(0)
    target_cadence_x100: Annotated[int, u32, "used if bit 0"] = 0
    quality_tier: Annotated[int, u16, "used if bit 1"] = 0
    degrade_policy: Annotated[int, u16, "used if bit 2"] = 0
    active_lane_mask: Annotated[int, u64, "used if bit 3"] = 0
    preferred_codec_bitmap: Annotated[int, u32, "used if bit 4"] = 0
    preferred_compression_bitmap: Annotated[int, u32, "used if bit 5"] = 0
    profile_patch_bytes: Annotated[int, u32, "body length; used if bit 6"] = 0


@layout("SESSION_PATCH_ACK", "7.4", "[rs3=py3]")
class SessionPatchAck(Message, frozen=True, gc=False):
    """Says which bits of the patch were applied and what is now in force."""

    TYPE: ClassVar[MessageType] = MessageType.SESSION_PATCH_ACK

    ack_status: Annotated[AckStatus, u16] = AckStatus.ACCEPTED
    reject_reason: Annotated[PatchRejectReason, u16] = PatchRejectReason.NONE
    applied_patch_mask: Annotated[PatchMask, u32] = PatchMask(0)
    rejected_patch_mask: Annotated[PatchMask, u32] = PatchMask(0)
    retry_after_ms: Annotated[int, u32] = 0
    effective_profile_id: Annotated[int, u16] = 0
    reserved0: ClassVar[Reserved] = Reserved(u16)
    effective_target_cadence_x100: Annotated[int, u32] = 0
    effective_quality_tier: Annotated[int, u16] = 0
    effective_degrade_policy: Annotated[int, u16] = 0
    effective_lane_mask: Annotated[int, u64] = 0
    effective_codec_bitmap: Annotated[int, u32] = 0
    effective_compression_bitmap: Annotated[int, u32] = 0
    profile_patch_ack_bytes: Annotated[int, u32, "body length"] = 0


@layout("TENSOR_PROFILE_PATCH_BLOCK", "7.3", "[p1-doc][py3]")
class TensorProfilePatchBlock(Block, frozen=True, gc=False):
    """Body of SESSION_PATCH and SESSION_PATCH_ACK for the tensor profile. Other profiles' blocks are opaque."""

    min_width: Annotated[int, u32] = 0
    min_height: Annotated[int, u32] = 0
    max_width: Annotated[int, u32] = 0
    max_height: Annotated[int, u32] = 0


_RESUME_REJECTED = SessionErrorCode.RESUME_REJECTED


@layout("SESSION_OPEN", "7.7", "[seed]")
class SessionOpen(Message, frozen=True, gc=False):
    """Sets up a session's defaults. Body: resume token, auth, session extensions (control extension block)."""

    TYPE: ClassVar[MessageType] = MessageType.SESSION_OPEN
    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            "requested_session_id",
            "requested_session_id != 0 or resume_token_bytes == 0",
            "a resume token needs the session id it belongs to",
            code=_RESUME_REJECTED,
        ),
        Check(
            "resume_token_bytes",
            "session_flags & 1 or resume_token_bytes == 0",
            "a resume token needs the flag allow_resume",
            code=_RESUME_REJECTED,
        ),
    )

    requested_session_id: Annotated[int, u32, "0 = server assigns"] = 0
    profile_id: Annotated[int, u16, "registry 11.1"] = 0
    priority_class: Annotated[PriorityClass, u8] = PriorityClass.BALANCED
    session_flags: Annotated[SessionFlags, u8] = SessionFlags(0)
    schema_id: Annotated[int, u32, "default schema, 0 none"] = 0
    schema_version: Annotated[int, u32, "default schema version, 0 none"] = 0
    default_deadline_ms: Annotated[int, u32, "default operation deadline"] = 0
    max_in_flight_operations: Annotated[int, u16, "wanted maximum of parallel operations"] = 0
    reserved0: ClassVar[Reserved] = Reserved(u16)
    lease_ttl_hint_ms: Annotated[int, u32, "wanted default lease TTL, 0 unspecified"] = 0
    resume_token_bytes: Annotated[int, u32, "block length"] = 0
    auth_bytes: Annotated[int, u32, "block length"] = 0
    session_extension_bytes: Annotated[int, u32, "block length"] = 0
    client_session_tag: Annotated[int, u64, "client-local tag for logs"] = 0


# session_status 0 opened and 3 resumed install a session; 1 rejected and 2 retry_later do not.
_INSTALLED = "session_status in (0, 3)"


@layout("SESSION_OPEN_ACK", "7.8", "[seed]")
class SessionOpenAck(Message, frozen=True, gc=False):
    """The server's decision. Rules that need the request (flags ⊆ requested) belong to the connection machine."""

    TYPE: ClassVar[MessageType] = MessageType.SESSION_OPEN_ACK
    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            "session_id",
            f"session_id != 0 or not {_INSTALLED}",
            "opened and resumed need a session_id",
        ),
        Check(
            "session_status",
            f"session_id == 0 or {_INSTALLED}",
            "rejected and retry_later carry session_id 0",
            strict_only=True,
        ),
        Check(
            "resume_window_ms",
            "not session_flags_ack & 1 or resume_window_ms != 0",
            "resume_enabled needs a resume_window_ms",
        ),
        Check(
            "resume_token_bytes",
            "not session_flags_ack & 1 or resume_token_bytes != 0",
            "resume_enabled needs a resume token",
        ),
        Check(
            "session_flags_ack",
            "session_status != 3 or session_flags_ack & 1",
            "resumed needs resume_enabled",
        ),
    )

    session_id: Annotated[int, u32, "non-zero iff opened or resumed"] = 0
    accepted_profile_id: Annotated[int, u16] = 0
    accepted_priority_class: Annotated[PriorityClass, u8] = PriorityClass.INTERACTIVE
    session_status: Annotated[SessionStatus, u8] = SessionStatus.OPENED
    schema_id: Annotated[int, u32, "confirmed default"] = 0
    schema_version: Annotated[int, u32, "confirmed default"] = 0
    granted_operation_credit: Annotated[int, u16, "initial operation credit"] = 0
    max_in_flight_operations: Annotated[int, u16, "allowed maximum"] = 0
    lease_ttl_ms: Annotated[int, u32, "accepted default lease TTL"] = 0
    resume_window_ms: Annotated[int, u32, "0 = no resume"] = 0
    resume_token_bytes: Annotated[int, u32, "block length"] = 0
    session_extension_bytes: Annotated[int, u32, "block length"] = 0
    server_session_tag: Annotated[int, u64, "server-local tag"] = 0
    route_scope_id: Annotated[int, u32, "smallest routing scope confirmed by the server"] = 0
    session_error_code: Annotated[int, u32, "12.6"] = 0
    session_flags_ack: Annotated[SessionFlagsAck, u32] = SessionFlagsAck(0)


@layout("SESSION_CLOSE", "7.9", "[seed]")
class SessionClose(Message, frozen=True, gc=False):
    """Ends one session, never the connection or a sibling."""

    TYPE: ClassVar[MessageType] = MessageType.SESSION_CLOSE

    close_reason: Annotated[CloseReason, u16] = CloseReason.NORMAL
    in_flight_policy: Annotated[InFlightPolicy, u8] = InFlightPolicy.DRAIN
    reserved0: ClassVar[Reserved] = Reserved(u8)
    drain_timeout_ms: Annotated[int, u32, "0 = apply the policy at once"] = 0
    last_operation_id: Annotated[int, u64, "last operation acknowledged by the sender, 0 none"] = 0
    session_error_code: Annotated[int, u32, "0 unless closing for an error"] = 0
    session_close_tag: Annotated[int, u32, "local correlation tag"] = 0


@layout("SESSION_CLOSE_ACK", "7.10", "[seed]")
class SessionCloseAck(Message, frozen=True, gc=False):
    """How far the close has come; several may follow one close."""

    TYPE: ClassVar[MessageType] = MessageType.SESSION_CLOSE_ACK

    close_status: Annotated[CloseStatus, u8] = CloseStatus.ACKNOWLEDGED
    reserved0: ClassVar[Reserved] = Reserved(u8)
    reserved1: ClassVar[Reserved] = Reserved(u16)
    last_operation_id: Annotated[int, u64, "server-confirmed operation watermark"] = 0
    session_error_code: Annotated[int, u32] = 0
