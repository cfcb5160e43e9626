"""Every enumeration, bitmap and code family of NNRP/1 preview3 (nnrp-wire 2.7, 3.1, 5, 7, 9, 11, 12).

Members compare equal to the integers on the wire. A bitmap lists only the bits that may be set.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

__all__ = [
    "AckStatus",
    "BackpressureLevel",
    "BudgetPolicy",
    "CacheAckStatus",
    "CacheErrorCode",
    "CachePutFlags",
    "CancelReason",
    "CancelScopeKind",
    "CloseReason",
    "CloseStatus",
    "CongestionState",
    "ConnectionState",
    "DegradePolicy",
    "DependencyKind",
    "DescriptorFlags",
    "DtypeId",
    "ErrorCode",
    "ErrorScope",
    "ExpiryPolicy",
    "ExtFlags",
    "ExtType",
    "ExtensionFlags",
    "ExtensionKind",
    "FlowFlags",
    "FlowScope",
    "FrameClass",
    "HeaderFlags",
    "InFlightPolicy",
    "InputProfile",
    "InvalidateScope",
    "LayoutId",
    "LeaseOwnerScope",
    "LossTolerance",
    "MessageType",
    "ObjectKind",
    "ObjectRefMask",
    "OperationFeatures",
    "OperationPriority",
    "OperationState",
    "PatchMask",
    "PatchRejectReason",
    "PayloadKind",
    "PolicyHints",
    "PriorityClass",
    "ProfileId",
    "ResultBudgetPolicy",
    "ResultClass",
    "ResultFlags",
    "ResultHintReason",
    "ScalePolicy",
    "SchemaErrorCode",
    "SchemaFlags",
    "SectionFlags",
    "ServerFlags",
    "SessionErrorCode",
    "SessionFlags",
    "SessionFlagsAck",
    "SessionState",
    "SessionStatus",
    "StopReason",
    "StreamSemantics",
    "SubmitMode",
    "TileIndexMode",
    "TokenChannel",
    "TokenUnit",
    "TransportId",
    "TransportPolicyKind",
    "UpdateReason",
]


class MessageType(IntEnum):
    """msg_type:u8 (nnrp-wire 5). All other values are reserved and rejected."""

    CLIENT_HELLO = 0x01
    SERVER_HELLO_ACK = 0x02
    SESSION_PATCH = 0x03
    SESSION_PATCH_ACK = 0x04
    CLOSE = 0x05
    ERROR = 0x06
    SESSION_OPEN = 0x07
    SESSION_OPEN_ACK = 0x08
    SESSION_CLOSE = 0x09
    SESSION_CLOSE_ACK = 0x0A
    FRAME_SUBMIT = 0x10
    FRAME_CANCEL = 0x11
    RESULT_PUSH = 0x12
    RESULT_DROP = 0x13
    CACHE_PUT = 0x14
    CACHE_ACK = 0x15
    CACHE_INVALIDATE = 0x16
    FLOW_UPDATE = 0x17
    RESULT_HINT = 0x18
    TRANSPORT_PROBE = 0x19
    TRANSPORT_PROBE_ACK = 0x1A
    SESSION_MIGRATE = 0x1B
    SESSION_MIGRATE_ACK = 0x1C
    PING = 0x20
    PONG = 0x21


class HeaderFlags(IntFlag):
    """flags:u32 of the common header (nnrp-wire 3.1)."""

    ACK_REQUIRED = 1
    CAN_DROP = 2
    STALE = 4
    EOS = 8
    RETRANSMIT = 16
    KEYFRAME = 32


class TransportId(IntEnum):
    UNSPECIFIED = 0
    QUIC = 1
    TCP = 2


class TransportPolicyKind(IntEnum):
    """transport_policy:u8 (nnrp-wire 2.7)."""

    AUTO = 0
    PREFER_QUIC = 1
    PREFER_TCP = 2
    FORCE_QUIC = 3
    FORCE_TCP = 4


class ExtFlags(IntFlag):
    """ext_flags:u16 of a control extension (nnrp-wire 6)."""

    CRITICAL = 1


class ExtType(IntEnum):
    """The control extension types this implementation knows (nnrp-wire 6, nnrp-extensions)."""

    TRANSPORT_POLICY = 0x0101
    TRANSPORT_POLICY_ACK = 0x0102
    LOSS_TOLERANCE = 0x0103
    LOSS_TOLERANCE_ACK = 0x0104
    PAYLOAD_CAPABILITIES = 0x0105
    PAYLOAD_CAPABILITIES_ACK = 0x0106
    OPERATION_EXTENSIONS = 0x8101
    RESUME_FROM = 0x8102
    CANCEL_SCOPE = 0x8103
    OPERATION_STATE = 0x8105
    OBJECT_META = 0x8106
    LEASE_INFO = 0x8107


class ExtensionKind(IntEnum):
    """The extension frame kinds this implementation knows (nnrp-extensions)."""

    SUBMIT_CONTEXT = 0x8104
    OPERATION_STATE = 0x8105
    OBJECT_EXPECT = 0x8108


class DegradePolicy(IntEnum):
    """degrade_policy values with a name (nnrp-wire 7.1). The range is not checked on the wire."""

    SERVER_DEFAULT = 0
    PREFER_QUALITY = 1
    PREFER_LATENCY = 2
    ALLOW_AGGRESSIVE_FALLBACK = 3


class ServerFlags(IntFlag):
    CACHE_ENABLED = 1


class PatchMask(IntFlag):
    """patch_mask:u32 (nnrp-wire 7.3)."""

    TARGET_CADENCE = 1
    QUALITY_TIER = 2
    DEGRADE_POLICY = 4
    ACTIVE_LANE_MASK = 8
    PREFERRED_CODEC = 16
    PREFERRED_COMPRESSION = 32
    PROFILE_PATCH = 64


class AckStatus(IntEnum):
    """ack_status:u16 of SESSION_PATCH_ACK."""

    ACCEPTED = 0
    PARTIALLY_APPLIED = 1
    REJECTED = 2


class PatchRejectReason(IntEnum):
    NONE = 0
    UNSUPPORTED_FIELD = 1
    INVALID_RANGE = 2
    UNSUPPORTED_STRATEGY = 3
    INVALID_LANE_MASK = 4
    RATE_LIMITED = 5


class ErrorScope(IntEnum):
    CONNECTION = 0
    SESSION = 1
    FRAME = 2


class PriorityClass(IntEnum):
    """session_priority_class:u8 (nnrp-wire 12.1)."""

    INTERACTIVE = 0
    BALANCED = 1
    BACKGROUND = 2


class OperationPriority(IntEnum):
    """priority_class:u8 of a submit_context (nnrp-extensions, Submit)."""

    INTERACTIVE = 0
    BALANCED = 1
    BACKGROUND = 2
    INHERIT = 0xFF


class SessionFlags(IntFlag):
    """session_flags:u8 of SESSION_OPEN (nnrp-wire 7.7)."""

    ALLOW_RESUME = 1
    ALLOW_BACKGROUND_RESULTS = 2
    ALLOW_CACHE_LEASES = 4
    ALLOW_SCHEMA_OVERRIDE = 8


class SessionFlagsAck(IntFlag):
    """session_flags_ack:u32 of SESSION_OPEN_ACK (nnrp-wire 7.8)."""

    RESUME_ENABLED = 1
    BACKGROUND_RESULTS_ENABLED = 2
    CACHE_LEASES_ENABLED = 4
    SCHEMA_OVERRIDE_ENABLED = 8
    PRIORITY_DOWNGRADED = 16


class SessionStatus(IntEnum):
    OPENED = 0
    REJECTED = 1
    RETRY_LATER = 2
    RESUMED = 3


class CloseReason(IntEnum):
    NORMAL = 0
    CLIENT_SHUTDOWN = 1
    SERVER_SHUTDOWN = 2
    IDLE_TIMEOUT = 3
    PROTOCOL_ERROR = 4
    AUTH_REVOKED = 5


class InFlightPolicy(IntEnum):
    DRAIN = 0
    ABORT = 1


class CloseStatus(IntEnum):
    ACKNOWLEDGED = 0
    DRAINING = 1
    CLOSED = 2
    REJECTED = 3


class FrameClass(IntEnum):
    """frame_class values with a name (nnrp-wire 7.11). The range is not checked on the wire."""

    KEYFRAME = 0
    DELTA = 1
    RETRANSMIT = 2
    DISCARDABLE = 3


class InputProfile(IntEnum):
    UNSPECIFIED = 0
    CHANGED_TILES_LUMA = 1
    DENSE_LUMA_FRAME = 2


class TileIndexMode(IntEnum):
    DENSE_RANGE = 0
    RAW_U16 = 1
    DELTA_U16 = 2
    BITSET = 3


class SubmitMode(IntEnum):
    INLINE = 0
    REFERENCE = 1
    MIXED = 2


class BudgetPolicy(IntFlag):
    """budget_policy:u8 (nnrp-wire 12.5)."""

    ALLOW_PARTIAL = 1
    ALLOW_STALE_REUSE = 2
    ALLOW_DEGRADED = 4
    ALLOW_DROP = 8


class LossTolerance(IntEnum):
    """loss_tolerance:u8; INHERIT only at frame level (nnrp-wire 12.5)."""

    STRICT = 0
    BEST_EFFORT = 1
    LOW_LATENCY = 2
    FIRE_AND_FORGET = 3
    INHERIT = 0xFF


class ObjectRefMask(IntFlag):
    """object_ref_mask:u32, one bit for each submit slot, in slot order (nnrp-wire 7.11)."""

    CAMERA_BLOCK = 1
    TILE_INDEX_BLOCK = 2
    TENSOR_SECTION_TABLE = 4
    PAYLOAD_LAYOUT_TEMPLATE = 8


class PayloadKind(IntFlag):
    """payload_kind_bitmap:u32 (nnrp-wire 12.4)."""

    TENSOR = 1
    TOKEN_CHUNK = 2
    AUDIO_CHUNK = 4
    VIDEO_CHUNK = 8
    STRUCTURED_EVENT = 16
    TOOL_DELTA = 32
    OPAQUE_BYTES = 64


class ResultFlags(IntFlag):
    STALE = 1
    FALLBACK = 2
    PARTIAL = 4


class ResultClass(IntEnum):
    COMPLETE = 0
    PARTIAL = 1
    STALE_REUSE = 2
    DEGRADED = 3


class CachePutFlags(IntFlag):
    PINNED = 1
    REUSABLE = 2


class ObjectKind(IntEnum):
    """object_kind (nnrp-wire 12.7)."""

    CAMERA_BLOCK = 1
    TILE_INDEX_BLOCK = 2
    TENSOR_SECTION_TABLE = 3
    CODEC_TABLE = 4
    REUSABLE_RESULT_OBJECT = 5
    PAYLOAD_LAYOUT_TEMPLATE = 6
    PROMPT_SEGMENT = 7
    TOOL_SCHEMA = 8
    STRUCTURED_EVENT_SCHEMA = 9


class CacheAckStatus(IntEnum):
    ACCEPTED = 0
    REJECTED = 1
    REPLACED = 2


class InvalidateScope(IntEnum):
    WHOLE_SESSION = 0
    NAMESPACE = 1
    OBJECT_KIND = 2
    OBJECT_KEY = 3


class FlowScope(IntEnum):
    """scope_kind:u8 of FLOW_UPDATE."""

    CONNECTION = 0
    SESSION = 1
    OPERATION = 2


class UpdateReason(IntEnum):
    GRANT = 0
    REDUCE = 1
    PAUSE = 2
    RESUME = 3
    CONGESTION = 4


class BackpressureLevel(IntEnum):
    NONE = 0
    SOFT = 1
    HARD = 2


class FlowFlags(IntFlag):
    CREDIT_VALID = 1
    RETRY_AFTER_VALID = 2
    BACKGROUND_ONLY = 4
    DRAIN_IN_FLIGHT_ONLY = 8


class ResultBudgetPolicy(IntEnum):
    """applied_budget_policy:u32 of RESULT_HINT, not to be mixed with the bitmap of RESULT_PUSH."""

    NONE = 0
    FULL = 1
    PARTIAL = 2
    STALE_REUSE = 3
    DROP = 4


class CongestionState(IntEnum):
    NONE = 0
    STEADY = 1
    ELEVATED = 2
    SATURATED = 3


class ResultHintReason(IntEnum):
    NONE = 0
    QUEUE_FULL = 1
    SERVER_BUSY = 2
    BUDGET_EXCEEDED = 3
    SUPERSEDED = 4


class DescriptorFlags(IntFlag):
    """descriptor_flags:u16 of a typed payload (nnrp-wire 8.5)."""

    TERMINAL = 1
    PARTIAL = 2
    SCHEMA_OVERRIDE = 4
    PROFILE_HINT_PRESENT = 8


class StreamSemantics(IntEnum):
    """stream_semantics:u16 (nnrp-wire 12.8)."""

    DEFAULT = 0
    SNAPSHOT = 1
    APPEND = 2
    REPLACE = 3
    EVENT = 4
    TOOL_UPDATE = 5


class ExtensionFlags(IntFlag):
    """extension_flags:u16 of an extension frame (nnrp-wire 8.7)."""

    CRITICAL = 1


class DtypeId(IntEnum):
    FP16 = 0
    FP32 = 1
    FP8_E4M3 = 2
    FP8_E5M2 = 3
    INT8 = 4
    UINT8 = 5
    INT16 = 6
    UINT16 = 7


class LayoutId(IntEnum):
    NHWC = 0
    NCHW = 1


class ScalePolicy(IntEnum):
    NONE = 0
    LINEAR = 1
    ZERO_POINT = 2


class SectionFlags(IntFlag):
    MIXED_CODEC = 1
    FIXED_STRIDE = 2


class ProfileId(IntEnum):
    """The registered profiles (nnrp-wire 11.1). Other ids are legal bytes and refused by the schema registry."""

    UNSPECIFIED = 0
    TENSOR = 1
    TOKEN = 2


class SchemaFlags(IntFlag):
    """schema_flags:u16 (nnrp-wire 11.2)."""

    CACHEABLE = 1
    CRITICAL = 2
    DEFAULT_BINDABLE = 4
    HASH_STABLE = 8


class OperationState(IntEnum):
    """operation_state:u8 (nnrp-wire 12.2)."""

    ACCEPTED = 0
    RUNNING = 1
    PARTIAL = 2
    WAITING_TOOL = 3
    SUPERSEDED = 4
    CANCELLED = 5
    FAILED = 6
    COMPLETED = 7


class CancelScopeKind(IntEnum):
    """cancel_scope:u8 (nnrp-wire 12.3)."""

    OPERATION = 0
    SUBTREE = 1
    GROUP = 2
    SESSION = 3


class CancelReason(IntEnum):
    """reason:u16 of the cancel_scope extension (nnrp-extensions, Cancel)."""

    UNSPECIFIED = 0
    USER = 1
    SUPERSEDED = 2
    DEADLINE = 3
    RESOURCE = 4
    SHUTDOWN = 5


class OperationFeatures(IntFlag):
    """features:u16 of operation_extensions (nnrp-extensions, Negotiation)."""

    SUBMIT_CONTEXT = 1
    CANCEL_SCOPE = 2
    OPERATION_STATE = 4
    RESUME_WATERMARK = 8
    CACHE_SEMANTICS = 16


class TokenUnit(IntEnum):
    UNSPECIFIED = 0
    UTF8_BYTE = 1
    UNICODE_SCALAR = 2
    BPE = 3
    SENTENCEPIECE = 4


class StopReason(IntEnum):
    NONE = 0
    EOS = 1
    TOOL_CALL = 2
    MAX_TOKENS = 3
    CANCELLED = 4
    REFUSAL = 5
    ERROR = 6


class TokenChannel(IntEnum):
    MESSAGE = 0
    THOUGHT = 1
    TOOL = 2


class LeaseOwnerScope(IntEnum):
    """lease_owner_scope:u8 (nnrp-wire 12.7)."""

    CONNECTION = 0
    SESSION = 1
    OPERATION = 2


class ExpiryPolicy(IntEnum):
    DROP_AT_EXPIRY = 0
    RENEW_ON_USE = 1


class PolicyHints(IntFlag):
    PREFETCH = 1
    TOUCH = 2
    RENEW = 4
    EVICT_HINT = 8
    REUSE_PREFERENCE = 16


class DependencyKind(IntEnum):
    OBJECT = 0
    SCHEMA = 1


class ErrorCode(IntEnum):
    """ERROR.error_code, the low codes (nnrp-wire 12.9). CACHE_MISS_OLD is accepted, never sent."""

    NONE = 0x0000
    UNSUPPORTED_VERSION = 0x0001
    AUTH_FAILED = 0x0002
    INVALID_STATE = 0x0003
    MALFORMED_HEADER = 0x0004
    MALFORMED_BODY = 0x0005
    UNSUPPORTED_CAPABILITY = 0x0006
    LIMIT_EXCEEDED = 0x0007
    FRAME_EXPIRED = 0x0008
    FRAME_CANCELLED = 0x0009
    CACHE_MISS_OLD = 0x000A
    SERVER_BUSY = 0x000B
    INTERNAL_ERROR = 0x000C


class SessionErrorCode(IntEnum):
    """session_error_code:u32, family 0x0001 (nnrp-wire 12.6)."""

    NONE = 0x00000000
    AUTH_FAILED = 0x00010001
    PROFILE_UNSUPPORTED = 0x00010002
    SCHEMA_UNSUPPORTED = 0x00010003
    PRIORITY_REJECTED = 0x00010004
    LEASE_POLICY_REJECTED = 0x00010005
    RESUME_REJECTED = 0x00010006
    SESSION_LIMIT_REACHED = 0x00010007


class CacheErrorCode(IntEnum):
    """cache_error_code:u32, family 0x0003 (nnrp-wire 12.7)."""

    NONE = 0x00030000
    CACHE_MISS = 0x00030001
    LEASE_EXPIRED = 0x00030002
    VERSION_MISMATCH = 0x00030003
    DEPENDENCY_INVALID = 0x00030004
    SCHEMA_MISMATCH = 0x00030005


class SchemaErrorCode(IntEnum):
    """schema_error_code:u32, family 0x0004 (nnrp-wire 12.7)."""

    NONE = 0x00040000
    SCHEMA_UNKNOWN = 0x00040001
    SCHEMA_VERSION_UNKNOWN = 0x00040002
    SCHEMA_HASH_CONFLICT = 0x00040003
    SCHEMA_INCOMPATIBLE = 0x00040004
    SCHEMA_DEPENDENCY_MISSING = 0x00040005
    SCHEMA_UPDATE_REJECTED = 0x00040006


class ConnectionState(IntEnum):
    """The states of nnrp-wire 13.1. Not a wire value."""

    INIT = 0
    NEGOTIATING = 1
    OPEN = 2
    DRAINING = 3
    CLOSED = 4


class SessionState(IntEnum):
    """The states of nnrp-wire 13.2. Not a wire value."""

    OPEN = 0
    RESUMED = 1
    CLOSING = 2
    DRAINING = 3
    CLOSED = 4
