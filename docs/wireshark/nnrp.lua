-- NNRP/1 preview3 for Wireshark and tshark.
-- Generated from the declarations in protocol/nnrp by `python -m scripts.generate`; do not edit.
-- How to load it: docs/nnrp-wireshark.md.

local nnrp = Proto("nnrp", "Neural Network Runtime Protocol NNRP/1")

-- Filled below: name of a structure -> list of fields {offset, size, ProtoField, kind, mask, name}.
local layouts = {}
local sizes = {}
local fields = {}
local experts = {
  reserved = ProtoExpert.new("nnrp.expert.reserved", "Reserved field is not zero", expert.group.PROTOCOL, expert.severity.WARN),
  bits = ProtoExpert.new("nnrp.expert.bits", "Unknown bits are set", expert.group.PROTOCOL, expert.severity.WARN),
  value = ProtoExpert.new("nnrp.expert.value", "Unknown enumeration value", expert.group.PROTOCOL, expert.severity.WARN),
  length = ProtoExpert.new("nnrp.expert.length", "Lengths disagree", expert.group.MALFORMED, expert.severity.ERROR),
}
nnrp.experts = { experts.reserved, experts.bits, experts.value, experts.length }

local function add(structure, offset, size, field, kind, mask, name, values)
  local entry = { offset = offset, size = size, field = field, kind = kind, mask = mask, name = name, values = values }
  layouts[structure] = layouts[structure] or {}
  table.insert(layouts[structure], entry)
  table.insert(fields, field)
end

local message_types = { [1] = "CLIENT_HELLO", [2] = "SERVER_HELLO_ACK", [3] = "SESSION_PATCH", [4] = "SESSION_PATCH_ACK", [5] = "CLOSE", [6] = "ERROR", [7] = "SESSION_OPEN", [8] = "SESSION_OPEN_ACK", [9] = "SESSION_CLOSE", [10] = "SESSION_CLOSE_ACK", [16] = "FRAME_SUBMIT", [17] = "FRAME_CANCEL", [18] = "RESULT_PUSH", [19] = "RESULT_DROP", [20] = "CACHE_PUT", [21] = "CACHE_ACK", [22] = "CACHE_INVALIDATE", [23] = "FLOW_UPDATE", [24] = "RESULT_HINT", [25] = "TRANSPORT_PROBE", [26] = "TRANSPORT_PROBE_ACK", [27] = "SESSION_MIGRATE", [28] = "SESSION_MIGRATE_ACK", [32] = "PING", [33] = "PONG" }
local extension_types = { [257] = "transport_policy", [258] = "transport_policy_ack", [259] = "loss_tolerance", [260] = "loss_tolerance_ack", [261] = "payload_capabilities", [262] = "payload_capabilities_ack", [33025] = "operation_extensions", [33026] = "resume_from", [33027] = "cancel_scope", [33029] = "operation_state", [33030] = "object_meta", [33031] = "lease_info" }
local extension_layouts = { [257] = "TRANSPORT_POLICY", [258] = "TRANSPORT_POLICY_ACK", [259] = "LOSS_TOLERANCE", [260] = "LOSS_TOLERANCE", [261] = "PAYLOAD_CAPABILITIES", [262] = "PAYLOAD_CAPABILITIES", [33025] = "OPERATION_EXTENSIONS", [33026] = "RESUME_FROM", [33027] = "CANCEL_SCOPE", [33029] = "OPERATION_STATE", [33030] = "OBJECT_META", [33031] = "LEASE_INFO" }
local frame_layouts = { [33028] = "SUBMIT_CONTEXT", [33029] = "OPERATION_STATE", [33032] = "OBJECT_EXPECT" }
local opaque_bodies = { SESSION_PATCH = true, SESSION_PATCH_ACK = true, CLOSE = true, TRANSPORT_PROBE = true, TRANSPORT_PROBE_ACK = true, SESSION_MIGRATE = true, SESSION_MIGRATE_ACK = true, PING = true, PONG = true, FLOW_UPDATE = true }

local values_AckStatus = { [0] = "accepted", [1] = "partially_applied", [2] = "rejected" }
local values_BackpressureLevel = { [0] = "none", [1] = "soft", [2] = "hard" }
local values_BudgetPolicy = { [1] = "allow_partial", [2] = "allow_stale_reuse", [4] = "allow_degraded", [8] = "allow_drop" }
local values_CacheAckStatus = { [0] = "accepted", [1] = "rejected", [2] = "replaced" }
local values_CachePutFlags = { [1] = "pinned", [2] = "reusable" }
local values_CancelReason = { [0] = "unspecified", [1] = "user", [2] = "superseded", [3] = "deadline", [4] = "resource", [5] = "shutdown" }
local values_CancelScopeKind = { [0] = "operation", [1] = "subtree", [2] = "group", [3] = "session" }
local values_CloseReason = { [0] = "normal", [1] = "client_shutdown", [2] = "server_shutdown", [3] = "idle_timeout", [4] = "protocol_error", [5] = "auth_revoked" }
local values_CloseStatus = { [0] = "acknowledged", [1] = "draining", [2] = "closed", [3] = "rejected" }
local values_CongestionState = { [0] = "none", [1] = "steady", [2] = "elevated", [3] = "saturated" }
local values_DependencyKind = { [0] = "object", [1] = "schema" }
local values_DescriptorFlags = { [1] = "terminal", [2] = "partial", [4] = "schema_override", [8] = "profile_hint_present" }
local values_DtypeId = { [0] = "fp16", [1] = "fp32", [2] = "fp8_e4m3", [3] = "fp8_e5m2", [4] = "int8", [5] = "uint8", [6] = "int16", [7] = "uint16" }
local values_ErrorScope = { [0] = "connection", [1] = "session", [2] = "frame" }
local values_ExpiryPolicy = { [0] = "drop_at_expiry", [1] = "renew_on_use" }
local values_ExtFlags = { [1] = "critical" }
local values_ExtensionFlags = { [1] = "critical" }
local values_FlowFlags = { [1] = "credit_valid", [2] = "retry_after_valid", [4] = "background_only", [8] = "drain_in_flight_only" }
local values_FlowScope = { [0] = "connection", [1] = "session", [2] = "operation" }
local values_HeaderFlags = { [1] = "ack_required", [2] = "can_drop", [4] = "stale", [8] = "eos", [16] = "retransmit", [32] = "keyframe" }
local values_InFlightPolicy = { [0] = "drain", [1] = "abort" }
local values_InputProfile = { [0] = "unspecified", [1] = "changed_tiles_luma", [2] = "dense_luma_frame" }
local values_InvalidateScope = { [0] = "whole_session", [1] = "namespace", [2] = "object_kind", [3] = "object_key" }
local values_LayoutId = { [0] = "nhwc", [1] = "nchw" }
local values_LeaseOwnerScope = { [0] = "connection", [1] = "session", [2] = "operation" }
local values_LossTolerance = { [0] = "strict", [1] = "best_effort", [2] = "low_latency", [3] = "fire_and_forget", [255] = "inherit" }
local values_MessageType = { [1] = "client_hello", [2] = "server_hello_ack", [3] = "session_patch", [4] = "session_patch_ack", [5] = "close", [6] = "error", [7] = "session_open", [8] = "session_open_ack", [9] = "session_close", [10] = "session_close_ack", [16] = "frame_submit", [17] = "frame_cancel", [18] = "result_push", [19] = "result_drop", [20] = "cache_put", [21] = "cache_ack", [22] = "cache_invalidate", [23] = "flow_update", [24] = "result_hint", [25] = "transport_probe", [26] = "transport_probe_ack", [27] = "session_migrate", [28] = "session_migrate_ack", [32] = "ping", [33] = "pong" }
local values_ObjectKind = { [1] = "camera_block", [2] = "tile_index_block", [3] = "tensor_section_table", [4] = "codec_table", [5] = "reusable_result_object", [6] = "payload_layout_template", [7] = "prompt_segment", [8] = "tool_schema", [9] = "structured_event_schema" }
local values_ObjectRefMask = { [1] = "camera_block", [2] = "tile_index_block", [4] = "tensor_section_table", [8] = "payload_layout_template" }
local values_OperationFeatures = { [1] = "submit_context", [2] = "cancel_scope", [4] = "operation_state", [8] = "resume_watermark", [16] = "cache_semantics" }
local values_OperationPriority = { [0] = "interactive", [1] = "balanced", [2] = "background", [255] = "inherit" }
local values_OperationState = { [0] = "accepted", [1] = "running", [2] = "partial", [3] = "waiting_tool", [4] = "superseded", [5] = "cancelled", [6] = "failed", [7] = "completed" }
local values_PatchMask = { [1] = "target_cadence", [2] = "quality_tier", [4] = "degrade_policy", [8] = "active_lane_mask", [16] = "preferred_codec", [32] = "preferred_compression", [64] = "profile_patch" }
local values_PatchRejectReason = { [0] = "none", [1] = "unsupported_field", [2] = "invalid_range", [3] = "unsupported_strategy", [4] = "invalid_lane_mask", [5] = "rate_limited" }
local values_PayloadKind = { [1] = "tensor", [2] = "token_chunk", [4] = "audio_chunk", [8] = "video_chunk", [16] = "structured_event", [32] = "tool_delta", [64] = "opaque_bytes" }
local values_PolicyHints = { [1] = "prefetch", [2] = "touch", [4] = "renew", [8] = "evict_hint", [16] = "reuse_preference" }
local values_PriorityClass = { [0] = "interactive", [1] = "balanced", [2] = "background" }
local values_ResultBudgetPolicy = { [0] = "none", [1] = "full", [2] = "partial", [3] = "stale_reuse", [4] = "drop" }
local values_ResultClass = { [0] = "complete", [1] = "partial", [2] = "stale_reuse", [3] = "degraded" }
local values_ResultFlags = { [1] = "stale", [2] = "fallback", [4] = "partial" }
local values_ResultHintReason = { [0] = "none", [1] = "queue_full", [2] = "server_busy", [3] = "budget_exceeded", [4] = "superseded" }
local values_ScalePolicy = { [0] = "none", [1] = "linear", [2] = "zero_point" }
local values_SchemaFlags = { [1] = "cacheable", [2] = "critical", [4] = "default_bindable", [8] = "hash_stable" }
local values_SectionFlags = { [1] = "mixed_codec", [2] = "fixed_stride" }
local values_ServerFlags = { [1] = "cache_enabled" }
local values_SessionFlags = { [1] = "allow_resume", [2] = "allow_background_results", [4] = "allow_cache_leases", [8] = "allow_schema_override" }
local values_SessionFlagsAck = { [1] = "resume_enabled", [2] = "background_results_enabled", [4] = "cache_leases_enabled", [8] = "schema_override_enabled", [16] = "priority_downgraded" }
local values_SessionStatus = { [0] = "opened", [1] = "rejected", [2] = "retry_later", [3] = "resumed" }
local values_StopReason = { [0] = "none", [1] = "eos", [2] = "tool_call", [3] = "max_tokens", [4] = "cancelled", [5] = "refusal", [6] = "error" }
local values_StreamSemantics = { [0] = "default", [1] = "snapshot", [2] = "append", [3] = "replace", [4] = "event", [5] = "tool_update" }
local values_SubmitMode = { [0] = "inline", [1] = "reference", [2] = "mixed" }
local values_TileIndexMode = { [0] = "dense_range", [1] = "raw_u16", [2] = "delta_u16", [3] = "bitset" }
local values_TokenChannel = { [0] = "message", [1] = "thought", [2] = "tool" }
local values_TokenUnit = { [0] = "unspecified", [1] = "utf8_byte", [2] = "unicode_scalar", [3] = "bpe", [4] = "sentencepiece" }
local values_TransportId = { [0] = "unspecified", [1] = "quic", [2] = "tcp" }
local values_TransportPolicyKind = { [0] = "auto", [1] = "prefer_quic", [2] = "prefer_tcp", [3] = "force_quic", [4] = "force_tcp" }
local values_UpdateReason = { [0] = "grant", [1] = "reduce", [2] = "pause", [3] = "resume", [4] = "congestion" }

sizes.HEADER = 40
add("HEADER", 0, 4, ProtoField.string("nnrp.header.magic", "magic"), "text", 0, "magic")
add("HEADER", 4, 1, ProtoField.uint8("nnrp.header.version_major", "version_major", base.DEC), "plain", 0, "version_major", nil)
add("HEADER", 5, 1, ProtoField.uint8("nnrp.header.wire_format", "wire_format", base.DEC), "plain", 0, "wire_format", nil)
add("HEADER", 6, 1, ProtoField.uint8("nnrp.header.msg_type", "msg_type", base.DEC, values_MessageType), "enum", 0, "msg_type", values_MessageType)
add("HEADER", 7, 1, ProtoField.uint8("nnrp.header.header_len", "header_len", base.DEC), "plain", 0, "header_len", nil)
add("HEADER", 8, 4, ProtoField.uint32("nnrp.header.flags", "flags", base.HEX), "bitmap", 63, "flags", values_HeaderFlags)
add("HEADER", 12, 4, ProtoField.uint32("nnrp.header.meta_len", "meta_len", base.DEC), "plain", 0, "meta_len", nil)
add("HEADER", 16, 4, ProtoField.uint32("nnrp.header.body_len", "body_len", base.DEC), "plain", 0, "body_len", nil)
add("HEADER", 20, 4, ProtoField.uint32("nnrp.header.session_id", "session_id", base.DEC), "plain", 0, "session_id", nil)
add("HEADER", 24, 4, ProtoField.uint32("nnrp.header.frame_id", "frame_id", base.DEC), "plain", 0, "frame_id", nil)
add("HEADER", 28, 2, ProtoField.uint16("nnrp.header.view_id", "view_id", base.DEC), "plain", 0, "view_id", nil)
add("HEADER", 30, 2, ProtoField.uint16("nnrp.header.route_id", "route_id", base.DEC), "plain", 0, "route_id", nil)
add("HEADER", 32, 8, ProtoField.uint64("nnrp.header.trace_id", "trace_id", base.DEC), "plain", 0, "trace_id", nil)
sizes.CLIENT_HELLO = 64
add("CLIENT_HELLO", 0, 1, ProtoField.uint8("nnrp.client_hello.min_version_major", "min_version_major", base.DEC), "plain", 0, "min_version_major", nil)
add("CLIENT_HELLO", 1, 1, ProtoField.uint8("nnrp.client_hello.max_version_major", "max_version_major", base.DEC), "plain", 0, "max_version_major", nil)
add("CLIENT_HELLO", 2, 2, ProtoField.uint16("nnrp.client_hello.supported_wire_format_bitmap", "supported_wire_format_bitmap", base.HEX), "plain", 0, "supported_wire_format_bitmap", nil)
add("CLIENT_HELLO", 4, 4, ProtoField.uint32("nnrp.client_hello.supported_profile_bitmap", "supported_profile_bitmap", base.HEX), "plain", 0, "supported_profile_bitmap", nil)
add("CLIENT_HELLO", 8, 4, ProtoField.uint32("nnrp.client_hello.supported_payload_kind_bitmap", "supported_payload_kind_bitmap", base.HEX), "bitmap", 127, "supported_payload_kind_bitmap", values_PayloadKind)
add("CLIENT_HELLO", 12, 4, ProtoField.uint32("nnrp.client_hello.supported_codec_bitmap", "supported_codec_bitmap", base.HEX), "plain", 0, "supported_codec_bitmap", nil)
add("CLIENT_HELLO", 16, 4, ProtoField.uint32("nnrp.client_hello.supported_compression_bitmap", "supported_compression_bitmap", base.HEX), "plain", 0, "supported_compression_bitmap", nil)
add("CLIENT_HELLO", 20, 4, ProtoField.uint32("nnrp.client_hello.supported_dtype_bitmap", "supported_dtype_bitmap", base.HEX), "plain", 0, "supported_dtype_bitmap", nil)
add("CLIENT_HELLO", 24, 4, ProtoField.uint32("nnrp.client_hello.supported_layout_bitmap", "supported_layout_bitmap", base.HEX), "plain", 0, "supported_layout_bitmap", nil)
add("CLIENT_HELLO", 28, 2, ProtoField.uint16("nnrp.client_hello.cache_digest_bitmap", "cache_digest_bitmap", base.HEX), "plain", 0, "cache_digest_bitmap", nil)
add("CLIENT_HELLO", 30, 2, ProtoField.uint16("nnrp.client_hello.cache_object_bitmap", "cache_object_bitmap", base.HEX), "plain", 0, "cache_object_bitmap", nil)
add("CLIENT_HELLO", 32, 2, ProtoField.uint16("nnrp.client_hello.cache_namespace_count", "cache_namespace_count", base.DEC), "plain", 0, "cache_namespace_count", nil)
add("CLIENT_HELLO", 34, 2, ProtoField.uint16("nnrp.client_hello.max_lane_count", "max_lane_count", base.DEC), "plain", 0, "max_lane_count", nil)
add("CLIENT_HELLO", 36, 4, ProtoField.uint32("nnrp.client_hello.max_cache_entries", "max_cache_entries", base.DEC), "plain", 0, "max_cache_entries", nil)
add("CLIENT_HELLO", 40, 4, ProtoField.uint32("nnrp.client_hello.max_cache_bytes", "max_cache_bytes", base.DEC), "plain", 0, "max_cache_bytes", nil)
add("CLIENT_HELLO", 44, 2, ProtoField.uint16("nnrp.client_hello.target_cadence_x100", "target_cadence_x100", base.DEC), "plain", 0, "target_cadence_x100", nil)
add("CLIENT_HELLO", 46, 2, ProtoField.uint16("nnrp.client_hello.latency_budget_ms", "latency_budget_ms", base.DEC), "plain", 0, "latency_budget_ms", nil)
add("CLIENT_HELLO", 48, 2, ProtoField.uint16("nnrp.client_hello.quality_tier", "quality_tier", base.DEC), "plain", 0, "quality_tier", nil)
add("CLIENT_HELLO", 50, 2, ProtoField.uint16("nnrp.client_hello.degrade_policy", "degrade_policy", base.DEC), "plain", 0, "degrade_policy", nil)
add("CLIENT_HELLO", 52, 4, ProtoField.uint32("nnrp.client_hello.requested_session_id", "requested_session_id", base.DEC), "plain", 0, "requested_session_id", nil)
add("CLIENT_HELLO", 56, 4, ProtoField.uint32("nnrp.client_hello.auth_bytes", "auth_bytes", base.DEC), "plain", 0, "auth_bytes", nil)
add("CLIENT_HELLO", 60, 4, ProtoField.uint32("nnrp.client_hello.control_extension_bytes", "control_extension_bytes", base.DEC), "plain", 0, "control_extension_bytes", nil)
sizes.SERVER_HELLO_ACK = 80
add("SERVER_HELLO_ACK", 0, 1, ProtoField.uint8("nnrp.server_hello_ack.selected_version_major", "selected_version_major", base.DEC), "plain", 0, "selected_version_major", nil)
add("SERVER_HELLO_ACK", 1, 1, ProtoField.uint8("nnrp.server_hello_ack.selected_wire_format", "selected_wire_format", base.DEC), "plain", 0, "selected_wire_format", nil)
add("SERVER_HELLO_ACK", 2, 1, ProtoField.uint8("nnrp.server_hello_ack.auth_status", "auth_status", base.DEC), "plain", 0, "auth_status", nil)
add("SERVER_HELLO_ACK", 3, 1, ProtoField.uint8("nnrp.server_hello_ack.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("SERVER_HELLO_ACK", 4, 4, ProtoField.uint32("nnrp.server_hello_ack.session_id", "session_id", base.DEC), "plain", 0, "session_id", nil)
add("SERVER_HELLO_ACK", 8, 4, ProtoField.uint32("nnrp.server_hello_ack.accepted_profile_bitmap", "accepted_profile_bitmap", base.HEX), "plain", 0, "accepted_profile_bitmap", nil)
add("SERVER_HELLO_ACK", 12, 4, ProtoField.uint32("nnrp.server_hello_ack.accepted_payload_kind_bitmap", "accepted_payload_kind_bitmap", base.HEX), "plain", 0, "accepted_payload_kind_bitmap", nil)
add("SERVER_HELLO_ACK", 16, 4, ProtoField.uint32("nnrp.server_hello_ack.accepted_codec_bitmap", "accepted_codec_bitmap", base.HEX), "plain", 0, "accepted_codec_bitmap", nil)
add("SERVER_HELLO_ACK", 20, 4, ProtoField.uint32("nnrp.server_hello_ack.accepted_compression_bitmap", "accepted_compression_bitmap", base.HEX), "plain", 0, "accepted_compression_bitmap", nil)
add("SERVER_HELLO_ACK", 24, 4, ProtoField.uint32("nnrp.server_hello_ack.accepted_dtype_bitmap", "accepted_dtype_bitmap", base.HEX), "plain", 0, "accepted_dtype_bitmap", nil)
add("SERVER_HELLO_ACK", 28, 4, ProtoField.uint32("nnrp.server_hello_ack.accepted_layout_bitmap", "accepted_layout_bitmap", base.HEX), "plain", 0, "accepted_layout_bitmap", nil)
add("SERVER_HELLO_ACK", 32, 4, ProtoField.uint32("nnrp.server_hello_ack.cache_digest_bitmap", "cache_digest_bitmap", base.HEX), "plain", 0, "cache_digest_bitmap", nil)
add("SERVER_HELLO_ACK", 36, 4, ProtoField.uint32("nnrp.server_hello_ack.cache_object_bitmap", "cache_object_bitmap", base.HEX), "plain", 0, "cache_object_bitmap", nil)
add("SERVER_HELLO_ACK", 40, 4, ProtoField.uint32("nnrp.server_hello_ack.max_cache_entries", "max_cache_entries", base.DEC), "plain", 0, "max_cache_entries", nil)
add("SERVER_HELLO_ACK", 44, 4, ProtoField.uint32("nnrp.server_hello_ack.max_cache_bytes", "max_cache_bytes", base.DEC), "plain", 0, "max_cache_bytes", nil)
add("SERVER_HELLO_ACK", 48, 2, ProtoField.uint16("nnrp.server_hello_ack.max_lane_count", "max_lane_count", base.DEC), "plain", 0, "max_lane_count", nil)
add("SERVER_HELLO_ACK", 50, 2, ProtoField.uint16("nnrp.server_hello_ack.max_concurrent_frames", "max_concurrent_frames", base.DEC), "plain", 0, "max_concurrent_frames", nil)
add("SERVER_HELLO_ACK", 52, 2, ProtoField.uint16("nnrp.server_hello_ack.target_cadence_x100", "target_cadence_x100", base.DEC), "plain", 0, "target_cadence_x100", nil)
add("SERVER_HELLO_ACK", 54, 2, ProtoField.uint16("nnrp.server_hello_ack.latency_budget_ms", "latency_budget_ms", base.DEC), "plain", 0, "latency_budget_ms", nil)
add("SERVER_HELLO_ACK", 56, 2, ProtoField.uint16("nnrp.server_hello_ack.quality_tier", "quality_tier", base.DEC), "plain", 0, "quality_tier", nil)
add("SERVER_HELLO_ACK", 58, 2, ProtoField.uint16("nnrp.server_hello_ack.degrade_policy", "degrade_policy", base.DEC), "plain", 0, "degrade_policy", nil)
add("SERVER_HELLO_ACK", 60, 4, ProtoField.uint32("nnrp.server_hello_ack.max_body_bytes", "max_body_bytes", base.DEC), "plain", 0, "max_body_bytes", nil)
add("SERVER_HELLO_ACK", 64, 4, ProtoField.uint32("nnrp.server_hello_ack.token_ttl_ms", "token_ttl_ms", base.DEC), "plain", 0, "token_ttl_ms", nil)
add("SERVER_HELLO_ACK", 68, 4, ProtoField.uint32("nnrp.server_hello_ack.retry_after_ms", "retry_after_ms", base.DEC), "plain", 0, "retry_after_ms", nil)
add("SERVER_HELLO_ACK", 72, 4, ProtoField.uint32("nnrp.server_hello_ack.control_extension_bytes", "control_extension_bytes", base.DEC), "plain", 0, "control_extension_bytes", nil)
add("SERVER_HELLO_ACK", 76, 4, ProtoField.uint32("nnrp.server_hello_ack.server_flags", "server_flags", base.HEX), "bitmap", 1, "server_flags", values_ServerFlags)
sizes.SESSION_PATCH = 36
add("SESSION_PATCH", 0, 2, ProtoField.uint16("nnrp.session_patch.profile_id", "profile_id", base.DEC), "plain", 0, "profile_id", nil)
add("SESSION_PATCH", 2, 2, ProtoField.uint16("nnrp.session_patch.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("SESSION_PATCH", 4, 4, ProtoField.uint32("nnrp.session_patch.patch_mask", "patch_mask", base.HEX), "bitmap", 127, "patch_mask", values_PatchMask)
add("SESSION_PATCH", 8, 4, ProtoField.uint32("nnrp.session_patch.target_cadence_x100", "target_cadence_x100", base.DEC), "plain", 0, "target_cadence_x100", nil)
add("SESSION_PATCH", 12, 2, ProtoField.uint16("nnrp.session_patch.quality_tier", "quality_tier", base.DEC), "plain", 0, "quality_tier", nil)
add("SESSION_PATCH", 14, 2, ProtoField.uint16("nnrp.session_patch.degrade_policy", "degrade_policy", base.DEC), "plain", 0, "degrade_policy", nil)
add("SESSION_PATCH", 16, 8, ProtoField.uint64("nnrp.session_patch.active_lane_mask", "active_lane_mask", base.HEX), "plain", 0, "active_lane_mask", nil)
add("SESSION_PATCH", 24, 4, ProtoField.uint32("nnrp.session_patch.preferred_codec_bitmap", "preferred_codec_bitmap", base.HEX), "plain", 0, "preferred_codec_bitmap", nil)
add("SESSION_PATCH", 28, 4, ProtoField.uint32("nnrp.session_patch.preferred_compression_bitmap", "preferred_compression_bitmap", base.HEX), "plain", 0, "preferred_compression_bitmap", nil)
add("SESSION_PATCH", 32, 4, ProtoField.uint32("nnrp.session_patch.profile_patch_bytes", "profile_patch_bytes", base.DEC), "plain", 0, "profile_patch_bytes", nil)
sizes.SESSION_PATCH_ACK = 48
add("SESSION_PATCH_ACK", 0, 2, ProtoField.uint16("nnrp.session_patch_ack.ack_status", "ack_status", base.DEC, values_AckStatus), "enum", 0, "ack_status", values_AckStatus)
add("SESSION_PATCH_ACK", 2, 2, ProtoField.uint16("nnrp.session_patch_ack.reject_reason", "reject_reason", base.DEC, values_PatchRejectReason), "enum", 0, "reject_reason", values_PatchRejectReason)
add("SESSION_PATCH_ACK", 4, 4, ProtoField.uint32("nnrp.session_patch_ack.applied_patch_mask", "applied_patch_mask", base.HEX), "bitmap", 127, "applied_patch_mask", values_PatchMask)
add("SESSION_PATCH_ACK", 8, 4, ProtoField.uint32("nnrp.session_patch_ack.rejected_patch_mask", "rejected_patch_mask", base.HEX), "bitmap", 127, "rejected_patch_mask", values_PatchMask)
add("SESSION_PATCH_ACK", 12, 4, ProtoField.uint32("nnrp.session_patch_ack.retry_after_ms", "retry_after_ms", base.DEC), "plain", 0, "retry_after_ms", nil)
add("SESSION_PATCH_ACK", 16, 2, ProtoField.uint16("nnrp.session_patch_ack.effective_profile_id", "effective_profile_id", base.DEC), "plain", 0, "effective_profile_id", nil)
add("SESSION_PATCH_ACK", 18, 2, ProtoField.uint16("nnrp.session_patch_ack.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("SESSION_PATCH_ACK", 20, 4, ProtoField.uint32("nnrp.session_patch_ack.effective_target_cadence_x100", "effective_target_cadence_x100", base.DEC), "plain", 0, "effective_target_cadence_x100", nil)
add("SESSION_PATCH_ACK", 24, 2, ProtoField.uint16("nnrp.session_patch_ack.effective_quality_tier", "effective_quality_tier", base.DEC), "plain", 0, "effective_quality_tier", nil)
add("SESSION_PATCH_ACK", 26, 2, ProtoField.uint16("nnrp.session_patch_ack.effective_degrade_policy", "effective_degrade_policy", base.DEC), "plain", 0, "effective_degrade_policy", nil)
add("SESSION_PATCH_ACK", 28, 8, ProtoField.uint64("nnrp.session_patch_ack.effective_lane_mask", "effective_lane_mask", base.HEX), "plain", 0, "effective_lane_mask", nil)
add("SESSION_PATCH_ACK", 36, 4, ProtoField.uint32("nnrp.session_patch_ack.effective_codec_bitmap", "effective_codec_bitmap", base.HEX), "plain", 0, "effective_codec_bitmap", nil)
add("SESSION_PATCH_ACK", 40, 4, ProtoField.uint32("nnrp.session_patch_ack.effective_compression_bitmap", "effective_compression_bitmap", base.HEX), "plain", 0, "effective_compression_bitmap", nil)
add("SESSION_PATCH_ACK", 44, 4, ProtoField.uint32("nnrp.session_patch_ack.profile_patch_ack_bytes", "profile_patch_ack_bytes", base.DEC), "plain", 0, "profile_patch_ack_bytes", nil)
sizes.CLOSE = 0
sizes.ERROR = 32
add("ERROR", 0, 4, ProtoField.uint32("nnrp.error.error_code", "error_code", base.HEX), "plain", 0, "error_code", nil)
add("ERROR", 4, 4, ProtoField.uint32("nnrp.error.error_scope", "error_scope", base.DEC, values_ErrorScope), "enum", 0, "error_scope", values_ErrorScope)
add("ERROR", 8, 4, ProtoField.uint32("nnrp.error.is_fatal", "is_fatal", base.DEC), "plain", 0, "is_fatal", nil)
add("ERROR", 12, 4, ProtoField.uint32("nnrp.error.retry_after_ms", "retry_after_ms", base.DEC), "plain", 0, "retry_after_ms", nil)
add("ERROR", 16, 4, ProtoField.uint32("nnrp.error.related_session_id", "related_session_id", base.DEC), "plain", 0, "related_session_id", nil)
add("ERROR", 20, 4, ProtoField.uint32("nnrp.error.related_frame_id", "related_frame_id", base.DEC), "plain", 0, "related_frame_id", nil)
add("ERROR", 24, 4, ProtoField.uint32("nnrp.error.related_view_id", "related_view_id", base.DEC), "plain", 0, "related_view_id", nil)
add("ERROR", 28, 4, ProtoField.uint32("nnrp.error.diagnostic_bytes", "diagnostic_bytes", base.DEC), "plain", 0, "diagnostic_bytes", nil)
sizes.SESSION_OPEN = 48
add("SESSION_OPEN", 0, 4, ProtoField.uint32("nnrp.session_open.requested_session_id", "requested_session_id", base.DEC), "plain", 0, "requested_session_id", nil)
add("SESSION_OPEN", 4, 2, ProtoField.uint16("nnrp.session_open.profile_id", "profile_id", base.DEC), "plain", 0, "profile_id", nil)
add("SESSION_OPEN", 6, 1, ProtoField.uint8("nnrp.session_open.priority_class", "priority_class", base.DEC, values_PriorityClass), "enum", 0, "priority_class", values_PriorityClass)
add("SESSION_OPEN", 7, 1, ProtoField.uint8("nnrp.session_open.session_flags", "session_flags", base.HEX), "bitmap", 15, "session_flags", values_SessionFlags)
add("SESSION_OPEN", 8, 4, ProtoField.uint32("nnrp.session_open.schema_id", "schema_id", base.DEC), "plain", 0, "schema_id", nil)
add("SESSION_OPEN", 12, 4, ProtoField.uint32("nnrp.session_open.schema_version", "schema_version", base.DEC), "plain", 0, "schema_version", nil)
add("SESSION_OPEN", 16, 4, ProtoField.uint32("nnrp.session_open.default_deadline_ms", "default_deadline_ms", base.DEC), "plain", 0, "default_deadline_ms", nil)
add("SESSION_OPEN", 20, 2, ProtoField.uint16("nnrp.session_open.max_in_flight_operations", "max_in_flight_operations", base.DEC), "plain", 0, "max_in_flight_operations", nil)
add("SESSION_OPEN", 22, 2, ProtoField.uint16("nnrp.session_open.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("SESSION_OPEN", 24, 4, ProtoField.uint32("nnrp.session_open.lease_ttl_hint_ms", "lease_ttl_hint_ms", base.DEC), "plain", 0, "lease_ttl_hint_ms", nil)
add("SESSION_OPEN", 28, 4, ProtoField.uint32("nnrp.session_open.resume_token_bytes", "resume_token_bytes", base.DEC), "plain", 0, "resume_token_bytes", nil)
add("SESSION_OPEN", 32, 4, ProtoField.uint32("nnrp.session_open.auth_bytes", "auth_bytes", base.DEC), "plain", 0, "auth_bytes", nil)
add("SESSION_OPEN", 36, 4, ProtoField.uint32("nnrp.session_open.session_extension_bytes", "session_extension_bytes", base.DEC), "plain", 0, "session_extension_bytes", nil)
add("SESSION_OPEN", 40, 8, ProtoField.uint64("nnrp.session_open.client_session_tag", "client_session_tag", base.DEC), "plain", 0, "client_session_tag", nil)
sizes.SESSION_OPEN_ACK = 56
add("SESSION_OPEN_ACK", 0, 4, ProtoField.uint32("nnrp.session_open_ack.session_id", "session_id", base.DEC), "plain", 0, "session_id", nil)
add("SESSION_OPEN_ACK", 4, 2, ProtoField.uint16("nnrp.session_open_ack.accepted_profile_id", "accepted_profile_id", base.DEC), "plain", 0, "accepted_profile_id", nil)
add("SESSION_OPEN_ACK", 6, 1, ProtoField.uint8("nnrp.session_open_ack.accepted_priority_class", "accepted_priority_class", base.DEC, values_PriorityClass), "enum", 0, "accepted_priority_class", values_PriorityClass)
add("SESSION_OPEN_ACK", 7, 1, ProtoField.uint8("nnrp.session_open_ack.session_status", "session_status", base.DEC, values_SessionStatus), "enum", 0, "session_status", values_SessionStatus)
add("SESSION_OPEN_ACK", 8, 4, ProtoField.uint32("nnrp.session_open_ack.schema_id", "schema_id", base.DEC), "plain", 0, "schema_id", nil)
add("SESSION_OPEN_ACK", 12, 4, ProtoField.uint32("nnrp.session_open_ack.schema_version", "schema_version", base.DEC), "plain", 0, "schema_version", nil)
add("SESSION_OPEN_ACK", 16, 2, ProtoField.uint16("nnrp.session_open_ack.granted_operation_credit", "granted_operation_credit", base.DEC), "plain", 0, "granted_operation_credit", nil)
add("SESSION_OPEN_ACK", 18, 2, ProtoField.uint16("nnrp.session_open_ack.max_in_flight_operations", "max_in_flight_operations", base.DEC), "plain", 0, "max_in_flight_operations", nil)
add("SESSION_OPEN_ACK", 20, 4, ProtoField.uint32("nnrp.session_open_ack.lease_ttl_ms", "lease_ttl_ms", base.DEC), "plain", 0, "lease_ttl_ms", nil)
add("SESSION_OPEN_ACK", 24, 4, ProtoField.uint32("nnrp.session_open_ack.resume_window_ms", "resume_window_ms", base.DEC), "plain", 0, "resume_window_ms", nil)
add("SESSION_OPEN_ACK", 28, 4, ProtoField.uint32("nnrp.session_open_ack.resume_token_bytes", "resume_token_bytes", base.DEC), "plain", 0, "resume_token_bytes", nil)
add("SESSION_OPEN_ACK", 32, 4, ProtoField.uint32("nnrp.session_open_ack.session_extension_bytes", "session_extension_bytes", base.DEC), "plain", 0, "session_extension_bytes", nil)
add("SESSION_OPEN_ACK", 36, 8, ProtoField.uint64("nnrp.session_open_ack.server_session_tag", "server_session_tag", base.DEC), "plain", 0, "server_session_tag", nil)
add("SESSION_OPEN_ACK", 44, 4, ProtoField.uint32("nnrp.session_open_ack.route_scope_id", "route_scope_id", base.DEC), "plain", 0, "route_scope_id", nil)
add("SESSION_OPEN_ACK", 48, 4, ProtoField.uint32("nnrp.session_open_ack.session_error_code", "session_error_code", base.HEX), "plain", 0, "session_error_code", nil)
add("SESSION_OPEN_ACK", 52, 4, ProtoField.uint32("nnrp.session_open_ack.session_flags_ack", "session_flags_ack", base.HEX), "bitmap", 31, "session_flags_ack", values_SessionFlagsAck)
sizes.SESSION_CLOSE = 24
add("SESSION_CLOSE", 0, 2, ProtoField.uint16("nnrp.session_close.close_reason", "close_reason", base.DEC, values_CloseReason), "enum", 0, "close_reason", values_CloseReason)
add("SESSION_CLOSE", 2, 1, ProtoField.uint8("nnrp.session_close.in_flight_policy", "in_flight_policy", base.DEC, values_InFlightPolicy), "enum", 0, "in_flight_policy", values_InFlightPolicy)
add("SESSION_CLOSE", 3, 1, ProtoField.uint8("nnrp.session_close.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("SESSION_CLOSE", 4, 4, ProtoField.uint32("nnrp.session_close.drain_timeout_ms", "drain_timeout_ms", base.DEC), "plain", 0, "drain_timeout_ms", nil)
add("SESSION_CLOSE", 8, 8, ProtoField.uint64("nnrp.session_close.last_operation_id", "last_operation_id", base.DEC), "plain", 0, "last_operation_id", nil)
add("SESSION_CLOSE", 16, 4, ProtoField.uint32("nnrp.session_close.session_error_code", "session_error_code", base.HEX), "plain", 0, "session_error_code", nil)
add("SESSION_CLOSE", 20, 4, ProtoField.uint32("nnrp.session_close.session_close_tag", "session_close_tag", base.DEC), "plain", 0, "session_close_tag", nil)
sizes.SESSION_CLOSE_ACK = 16
add("SESSION_CLOSE_ACK", 0, 1, ProtoField.uint8("nnrp.session_close_ack.close_status", "close_status", base.DEC, values_CloseStatus), "enum", 0, "close_status", values_CloseStatus)
add("SESSION_CLOSE_ACK", 1, 1, ProtoField.uint8("nnrp.session_close_ack.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("SESSION_CLOSE_ACK", 2, 2, ProtoField.uint16("nnrp.session_close_ack.reserved1", "reserved1", base.DEC), "reserved", 0, "reserved1", nil)
add("SESSION_CLOSE_ACK", 4, 8, ProtoField.uint64("nnrp.session_close_ack.last_operation_id", "last_operation_id", base.DEC), "plain", 0, "last_operation_id", nil)
add("SESSION_CLOSE_ACK", 12, 4, ProtoField.uint32("nnrp.session_close_ack.session_error_code", "session_error_code", base.HEX), "plain", 0, "session_error_code", nil)
sizes.FRAME_SUBMIT = 72
add("FRAME_SUBMIT", 0, 2, ProtoField.uint16("nnrp.frame_submit.src_width", "src_width", base.DEC), "plain", 0, "src_width", nil)
add("FRAME_SUBMIT", 2, 2, ProtoField.uint16("nnrp.frame_submit.src_height", "src_height", base.DEC), "plain", 0, "src_height", nil)
add("FRAME_SUBMIT", 4, 2, ProtoField.uint16("nnrp.frame_submit.tile_width", "tile_width", base.DEC), "plain", 0, "tile_width", nil)
add("FRAME_SUBMIT", 6, 2, ProtoField.uint16("nnrp.frame_submit.tile_height", "tile_height", base.DEC), "plain", 0, "tile_height", nil)
add("FRAME_SUBMIT", 8, 2, ProtoField.uint16("nnrp.frame_submit.tile_count", "tile_count", base.DEC), "plain", 0, "tile_count", nil)
add("FRAME_SUBMIT", 10, 2, ProtoField.uint16("nnrp.frame_submit.section_count", "section_count", base.DEC), "plain", 0, "section_count", nil)
add("FRAME_SUBMIT", 12, 1, ProtoField.uint8("nnrp.frame_submit.frame_class", "frame_class", base.DEC), "plain", 0, "frame_class", nil)
add("FRAME_SUBMIT", 13, 1, ProtoField.uint8("nnrp.frame_submit.input_profile", "input_profile", base.DEC, values_InputProfile), "enum", 0, "input_profile", values_InputProfile)
add("FRAME_SUBMIT", 14, 1, ProtoField.uint8("nnrp.frame_submit.tile_index_mode", "tile_index_mode", base.DEC, values_TileIndexMode), "enum", 0, "tile_index_mode", values_TileIndexMode)
add("FRAME_SUBMIT", 15, 1, ProtoField.uint8("nnrp.frame_submit.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("FRAME_SUBMIT", 16, 2, ProtoField.uint16("nnrp.frame_submit.latency_budget_ms", "latency_budget_ms", base.DEC), "plain", 0, "latency_budget_ms", nil)
add("FRAME_SUBMIT", 18, 2, ProtoField.uint16("nnrp.frame_submit.target_fps_x100", "target_fps_x100", base.DEC), "plain", 0, "target_fps_x100", nil)
add("FRAME_SUBMIT", 20, 4, ProtoField.uint32("nnrp.frame_submit.retry_of_frame", "retry_of_frame", base.DEC), "plain", 0, "retry_of_frame", nil)
add("FRAME_SUBMIT", 24, 4, ProtoField.uint32("nnrp.frame_submit.tile_base_id", "tile_base_id", base.DEC), "plain", 0, "tile_base_id", nil)
add("FRAME_SUBMIT", 28, 4, ProtoField.uint32("nnrp.frame_submit.camera_bytes", "camera_bytes", base.DEC), "plain", 0, "camera_bytes", nil)
add("FRAME_SUBMIT", 32, 4, ProtoField.uint32("nnrp.frame_submit.tile_index_bytes", "tile_index_bytes", base.DEC), "plain", 0, "tile_index_bytes", nil)
add("FRAME_SUBMIT", 36, 8, ProtoField.uint64("nnrp.frame_submit.reserved1", "reserved1", base.DEC), "reserved", 0, "reserved1", nil)
add("FRAME_SUBMIT", 44, 8, ProtoField.uint64("nnrp.frame_submit.reserved2", "reserved2", base.DEC), "reserved", 0, "reserved2", nil)
add("FRAME_SUBMIT", 52, 1, ProtoField.uint8("nnrp.frame_submit.submit_mode", "submit_mode", base.DEC, values_SubmitMode), "enum", 0, "submit_mode", values_SubmitMode)
add("FRAME_SUBMIT", 53, 1, ProtoField.uint8("nnrp.frame_submit.budget_policy", "budget_policy", base.HEX), "bitmap", 15, "budget_policy", values_BudgetPolicy)
add("FRAME_SUBMIT", 54, 1, ProtoField.uint8("nnrp.frame_submit.loss_tolerance_policy", "loss_tolerance_policy", base.DEC, values_LossTolerance), "enum", 0, "loss_tolerance_policy", values_LossTolerance)
add("FRAME_SUBMIT", 55, 1, ProtoField.uint8("nnrp.frame_submit.reserved3", "reserved3", base.DEC), "reserved", 0, "reserved3", nil)
add("FRAME_SUBMIT", 56, 4, ProtoField.uint32("nnrp.frame_submit.object_ref_mask", "object_ref_mask", base.HEX), "bitmap", 15, "object_ref_mask", values_ObjectRefMask)
add("FRAME_SUBMIT", 60, 4, ProtoField.uint32("nnrp.frame_submit.dependency_frame_id", "dependency_frame_id", base.DEC), "plain", 0, "dependency_frame_id", nil)
add("FRAME_SUBMIT", 64, 4, ProtoField.uint32("nnrp.frame_submit.payload_kind_bitmap", "payload_kind_bitmap", base.HEX), "bitmap", 127, "payload_kind_bitmap", values_PayloadKind)
add("FRAME_SUBMIT", 68, 2, ProtoField.uint16("nnrp.frame_submit.payload_frame_count", "payload_frame_count", base.DEC), "plain", 0, "payload_frame_count", nil)
add("FRAME_SUBMIT", 70, 2, ProtoField.uint16("nnrp.frame_submit.reserved4", "reserved4", base.DEC), "reserved", 0, "reserved4", nil)
sizes.FRAME_CANCEL = 0
sizes.RESULT_PUSH = 64
add("RESULT_PUSH", 0, 2, ProtoField.uint16("nnrp.result_push.status_code", "status_code", base.HEX), "plain", 0, "status_code", nil)
add("RESULT_PUSH", 2, 2, ProtoField.uint16("nnrp.result_push.result_flags", "result_flags", base.HEX), "bitmap", 7, "result_flags", values_ResultFlags)
add("RESULT_PUSH", 4, 2, ProtoField.uint16("nnrp.result_push.section_count", "section_count", base.DEC), "plain", 0, "section_count", nil)
add("RESULT_PUSH", 6, 2, ProtoField.uint16("nnrp.result_push.tile_count", "tile_count", base.DEC), "plain", 0, "tile_count", nil)
add("RESULT_PUSH", 8, 2, ProtoField.uint16("nnrp.result_push.active_profile_id", "active_profile_id", base.DEC), "plain", 0, "active_profile_id", nil)
add("RESULT_PUSH", 10, 2, ProtoField.uint16("nnrp.result_push.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("RESULT_PUSH", 12, 2, ProtoField.uint16("nnrp.result_push.inference_ms", "inference_ms", base.DEC), "plain", 0, "inference_ms", nil)
add("RESULT_PUSH", 14, 2, ProtoField.uint16("nnrp.result_push.queue_ms", "queue_ms", base.DEC), "plain", 0, "queue_ms", nil)
add("RESULT_PUSH", 16, 2, ProtoField.uint16("nnrp.result_push.server_total_ms", "server_total_ms", base.DEC), "plain", 0, "server_total_ms", nil)
add("RESULT_PUSH", 18, 2, ProtoField.uint16("nnrp.result_push.reserved1", "reserved1", base.DEC), "reserved", 0, "reserved1", nil)
add("RESULT_PUSH", 20, 4, ProtoField.uint32("nnrp.result_push.tile_base_id", "tile_base_id", base.DEC), "plain", 0, "tile_base_id", nil)
add("RESULT_PUSH", 24, 4, ProtoField.uint32("nnrp.result_push.tile_index_bytes", "tile_index_bytes", base.DEC), "plain", 0, "tile_index_bytes", nil)
add("RESULT_PUSH", 28, 8, ProtoField.uint64("nnrp.result_push.reserved2", "reserved2", base.DEC), "reserved", 0, "reserved2", nil)
add("RESULT_PUSH", 36, 8, ProtoField.uint64("nnrp.result_push.reserved3", "reserved3", base.DEC), "reserved", 0, "reserved3", nil)
add("RESULT_PUSH", 44, 1, ProtoField.uint8("nnrp.result_push.result_class", "result_class", base.DEC, values_ResultClass), "enum", 0, "result_class", values_ResultClass)
add("RESULT_PUSH", 45, 1, ProtoField.uint8("nnrp.result_push.applied_budget_policy", "applied_budget_policy", base.HEX), "bitmap", 15, "applied_budget_policy", values_BudgetPolicy)
add("RESULT_PUSH", 46, 2, ProtoField.uint16("nnrp.result_push.reserved4", "reserved4", base.DEC), "reserved", 0, "reserved4", nil)
add("RESULT_PUSH", 48, 4, ProtoField.uint32("nnrp.result_push.reused_frame_id", "reused_frame_id", base.DEC), "plain", 0, "reused_frame_id", nil)
add("RESULT_PUSH", 52, 2, ProtoField.uint16("nnrp.result_push.covered_tile_count", "covered_tile_count", base.DEC), "plain", 0, "covered_tile_count", nil)
add("RESULT_PUSH", 54, 2, ProtoField.uint16("nnrp.result_push.dropped_tile_count", "dropped_tile_count", base.DEC), "plain", 0, "dropped_tile_count", nil)
add("RESULT_PUSH", 56, 4, ProtoField.uint32("nnrp.result_push.payload_kind_bitmap", "payload_kind_bitmap", base.HEX), "bitmap", 127, "payload_kind_bitmap", values_PayloadKind)
add("RESULT_PUSH", 60, 2, ProtoField.uint16("nnrp.result_push.payload_frame_count", "payload_frame_count", base.DEC), "plain", 0, "payload_frame_count", nil)
add("RESULT_PUSH", 62, 2, ProtoField.uint16("nnrp.result_push.reserved5", "reserved5", base.DEC), "reserved", 0, "reserved5", nil)
sizes.RESULT_DROP = 0
sizes.CACHE_PUT = 32
add("CACHE_PUT", 0, 4, ProtoField.uint32("nnrp.cache_put.cache_namespace", "cache_namespace", base.DEC), "plain", 0, "cache_namespace", nil)
add("CACHE_PUT", 4, 4, ProtoField.uint32("nnrp.cache_put.cache_key_hi", "cache_key_hi", base.DEC), "plain", 0, "cache_key_hi", nil)
add("CACHE_PUT", 8, 4, ProtoField.uint32("nnrp.cache_put.cache_key_lo", "cache_key_lo", base.DEC), "plain", 0, "cache_key_lo", nil)
add("CACHE_PUT", 12, 4, ProtoField.uint32("nnrp.cache_put.object_kind", "object_kind", base.DEC, values_ObjectKind), "enum", 0, "object_kind", values_ObjectKind)
add("CACHE_PUT", 16, 4, ProtoField.uint32("nnrp.cache_put.ttl_ms", "ttl_ms", base.DEC), "plain", 0, "ttl_ms", nil)
add("CACHE_PUT", 20, 4, ProtoField.uint32("nnrp.cache_put.object_bytes", "object_bytes", base.DEC), "plain", 0, "object_bytes", nil)
add("CACHE_PUT", 24, 4, ProtoField.uint32("nnrp.cache_put.codec_bitmap", "codec_bitmap", base.HEX), "plain", 0, "codec_bitmap", nil)
add("CACHE_PUT", 28, 4, ProtoField.uint32("nnrp.cache_put.flags", "flags", base.HEX), "bitmap", 3, "flags", values_CachePutFlags)
sizes.CACHE_ACK = 28
add("CACHE_ACK", 0, 4, ProtoField.uint32("nnrp.cache_ack.cache_namespace", "cache_namespace", base.DEC), "plain", 0, "cache_namespace", nil)
add("CACHE_ACK", 4, 4, ProtoField.uint32("nnrp.cache_ack.cache_key_hi", "cache_key_hi", base.DEC), "plain", 0, "cache_key_hi", nil)
add("CACHE_ACK", 8, 4, ProtoField.uint32("nnrp.cache_ack.cache_key_lo", "cache_key_lo", base.DEC), "plain", 0, "cache_key_lo", nil)
add("CACHE_ACK", 12, 4, ProtoField.uint32("nnrp.cache_ack.status", "status", base.DEC, values_CacheAckStatus), "enum", 0, "status", values_CacheAckStatus)
add("CACHE_ACK", 16, 4, ProtoField.uint32("nnrp.cache_ack.accepted_ttl_ms", "accepted_ttl_ms", base.DEC), "plain", 0, "accepted_ttl_ms", nil)
add("CACHE_ACK", 20, 4, ProtoField.uint32("nnrp.cache_ack.max_object_bytes", "max_object_bytes", base.DEC), "plain", 0, "max_object_bytes", nil)
add("CACHE_ACK", 24, 4, ProtoField.uint32("nnrp.cache_ack.detail_code", "detail_code", base.HEX), "plain", 0, "detail_code", nil)
sizes.CACHE_INVALIDATE = 20
add("CACHE_INVALIDATE", 0, 4, ProtoField.uint32("nnrp.cache_invalidate.invalidate_scope", "invalidate_scope", base.DEC, values_InvalidateScope), "enum", 0, "invalidate_scope", values_InvalidateScope)
add("CACHE_INVALIDATE", 4, 4, ProtoField.uint32("nnrp.cache_invalidate.cache_namespace", "cache_namespace", base.DEC), "plain", 0, "cache_namespace", nil)
add("CACHE_INVALIDATE", 8, 4, ProtoField.uint32("nnrp.cache_invalidate.cache_key_hi", "cache_key_hi", base.DEC), "plain", 0, "cache_key_hi", nil)
add("CACHE_INVALIDATE", 12, 4, ProtoField.uint32("nnrp.cache_invalidate.cache_key_lo", "cache_key_lo", base.DEC), "plain", 0, "cache_key_lo", nil)
add("CACHE_INVALIDATE", 16, 4, ProtoField.uint32("nnrp.cache_invalidate.reason_code", "reason_code", base.HEX), "plain", 0, "reason_code", nil)
sizes.FLOW_UPDATE = 32
add("FLOW_UPDATE", 0, 1, ProtoField.uint8("nnrp.flow_update.scope_kind", "scope_kind", base.DEC, values_FlowScope), "enum", 0, "scope_kind", values_FlowScope)
add("FLOW_UPDATE", 1, 1, ProtoField.uint8("nnrp.flow_update.update_reason", "update_reason", base.DEC, values_UpdateReason), "enum", 0, "update_reason", values_UpdateReason)
add("FLOW_UPDATE", 2, 1, ProtoField.uint8("nnrp.flow_update.backpressure_level", "backpressure_level", base.DEC, values_BackpressureLevel), "enum", 0, "backpressure_level", values_BackpressureLevel)
add("FLOW_UPDATE", 3, 1, ProtoField.uint8("nnrp.flow_update.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("FLOW_UPDATE", 4, 2, ProtoField.uint16("nnrp.flow_update.connection_credit", "connection_credit", base.DEC), "plain", 0, "connection_credit", nil)
add("FLOW_UPDATE", 6, 2, ProtoField.uint16("nnrp.flow_update.session_credit", "session_credit", base.DEC), "plain", 0, "session_credit", nil)
add("FLOW_UPDATE", 8, 2, ProtoField.uint16("nnrp.flow_update.operation_credit", "operation_credit", base.DEC), "plain", 0, "operation_credit", nil)
add("FLOW_UPDATE", 10, 2, ProtoField.uint16("nnrp.flow_update.reserved1", "reserved1", base.DEC), "reserved", 0, "reserved1", nil)
add("FLOW_UPDATE", 12, 8, ProtoField.uint64("nnrp.flow_update.operation_id", "operation_id", base.DEC), "plain", 0, "operation_id", nil)
add("FLOW_UPDATE", 20, 4, ProtoField.uint32("nnrp.flow_update.retry_after_ms", "retry_after_ms", base.DEC), "plain", 0, "retry_after_ms", nil)
add("FLOW_UPDATE", 24, 4, ProtoField.uint32("nnrp.flow_update.credit_epoch", "credit_epoch", base.DEC), "plain", 0, "credit_epoch", nil)
add("FLOW_UPDATE", 28, 4, ProtoField.uint32("nnrp.flow_update.flow_flags", "flow_flags", base.HEX), "bitmap", 15, "flow_flags", values_FlowFlags)
sizes.RESULT_HINT = 16
add("RESULT_HINT", 0, 4, ProtoField.uint32("nnrp.result_hint.applied_budget_policy", "applied_budget_policy", base.DEC, values_ResultBudgetPolicy), "enum", 0, "applied_budget_policy", values_ResultBudgetPolicy)
add("RESULT_HINT", 4, 4, ProtoField.uint32("nnrp.result_hint.congestion_state", "congestion_state", base.DEC, values_CongestionState), "enum", 0, "congestion_state", values_CongestionState)
add("RESULT_HINT", 8, 4, ProtoField.uint32("nnrp.result_hint.reason", "reason", base.DEC, values_ResultHintReason), "enum", 0, "reason", values_ResultHintReason)
add("RESULT_HINT", 12, 4, ProtoField.uint32("nnrp.result_hint.retry_after_ms", "retry_after_ms", base.DEC), "plain", 0, "retry_after_ms", nil)
sizes.TRANSPORT_PROBE = 16
add("TRANSPORT_PROBE", 0, 4, ProtoField.uint32("nnrp.transport_probe.probe_id", "probe_id", base.DEC), "plain", 0, "probe_id", nil)
add("TRANSPORT_PROBE", 4, 4, ProtoField.uint32("nnrp.transport_probe.probe_payload_bytes", "probe_payload_bytes", base.DEC), "plain", 0, "probe_payload_bytes", nil)
add("TRANSPORT_PROBE", 8, 8, ProtoField.uint64("nnrp.transport_probe.client_send_ts_us", "client_send_ts_us", base.DEC), "plain", 0, "client_send_ts_us", nil)
sizes.TRANSPORT_PROBE_ACK = 16
add("TRANSPORT_PROBE_ACK", 0, 4, ProtoField.uint32("nnrp.transport_probe_ack.probe_id", "probe_id", base.DEC), "plain", 0, "probe_id", nil)
add("TRANSPORT_PROBE_ACK", 4, 4, ProtoField.uint32("nnrp.transport_probe_ack.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("TRANSPORT_PROBE_ACK", 8, 8, ProtoField.uint64("nnrp.transport_probe_ack.server_recv_ts_us", "server_recv_ts_us", base.DEC), "plain", 0, "server_recv_ts_us", nil)
sizes.SESSION_MIGRATE = 24
add("SESSION_MIGRATE", 0, 4, ProtoField.uint32("nnrp.session_migrate.old_transport_id", "old_transport_id", base.DEC, values_TransportId), "enum", 0, "old_transport_id", values_TransportId)
add("SESSION_MIGRATE", 4, 4, ProtoField.uint32("nnrp.session_migrate.new_transport_id", "new_transport_id", base.DEC, values_TransportId), "enum", 0, "new_transport_id", values_TransportId)
add("SESSION_MIGRATE", 8, 8, ProtoField.uint64("nnrp.session_migrate.last_result_frame_id", "last_result_frame_id", base.DEC), "plain", 0, "last_result_frame_id", nil)
add("SESSION_MIGRATE", 16, 8, ProtoField.uint64("nnrp.session_migrate.client_migrate_ts_us", "client_migrate_ts_us", base.DEC), "plain", 0, "client_migrate_ts_us", nil)
sizes.SESSION_MIGRATE_ACK = 24
add("SESSION_MIGRATE_ACK", 0, 4, ProtoField.uint32("nnrp.session_migrate_ack.accept_code", "accept_code", base.HEX), "plain", 0, "accept_code", nil)
add("SESSION_MIGRATE_ACK", 4, 8, ProtoField.uint64("nnrp.session_migrate_ack.resume_from_frame_id", "resume_from_frame_id", base.DEC), "plain", 0, "resume_from_frame_id", nil)
add("SESSION_MIGRATE_ACK", 12, 4, ProtoField.uint32("nnrp.session_migrate_ack.grace_window_ms", "grace_window_ms", base.DEC), "plain", 0, "grace_window_ms", nil)
add("SESSION_MIGRATE_ACK", 16, 8, ProtoField.uint64("nnrp.session_migrate_ack.server_migrate_ts_us", "server_migrate_ts_us", base.DEC), "plain", 0, "server_migrate_ts_us", nil)
sizes.PING = 0
sizes.PONG = 0
sizes.TENSOR_PROFILE_PATCH_BLOCK = 16
add("TENSOR_PROFILE_PATCH_BLOCK", 0, 4, ProtoField.uint32("nnrp.tensor_profile_patch_block.min_width", "min_width", base.DEC), "plain", 0, "min_width", nil)
add("TENSOR_PROFILE_PATCH_BLOCK", 4, 4, ProtoField.uint32("nnrp.tensor_profile_patch_block.min_height", "min_height", base.DEC), "plain", 0, "min_height", nil)
add("TENSOR_PROFILE_PATCH_BLOCK", 8, 4, ProtoField.uint32("nnrp.tensor_profile_patch_block.max_width", "max_width", base.DEC), "plain", 0, "max_width", nil)
add("TENSOR_PROFILE_PATCH_BLOCK", 12, 4, ProtoField.uint32("nnrp.tensor_profile_patch_block.max_height", "max_height", base.DEC), "plain", 0, "max_height", nil)
sizes.BODY_REGION_PRELUDE = 32
add("BODY_REGION_PRELUDE", 0, 4, ProtoField.uint32("nnrp.body_region_prelude.inline_object_bytes", "inline_object_bytes", base.DEC), "plain", 0, "inline_object_bytes", nil)
add("BODY_REGION_PRELUDE", 4, 4, ProtoField.uint32("nnrp.body_region_prelude.object_reference_bytes", "object_reference_bytes", base.DEC), "plain", 0, "object_reference_bytes", nil)
add("BODY_REGION_PRELUDE", 8, 4, ProtoField.uint32("nnrp.body_region_prelude.typed_payload_descriptor_bytes", "typed_payload_descriptor_bytes", base.DEC), "plain", 0, "typed_payload_descriptor_bytes", nil)
add("BODY_REGION_PRELUDE", 12, 4, ProtoField.uint32("nnrp.body_region_prelude.typed_payload_frame_bytes", "typed_payload_frame_bytes", base.DEC), "plain", 0, "typed_payload_frame_bytes", nil)
add("BODY_REGION_PRELUDE", 16, 4, ProtoField.uint32("nnrp.body_region_prelude.extension_descriptor_bytes", "extension_descriptor_bytes", base.DEC), "plain", 0, "extension_descriptor_bytes", nil)
add("BODY_REGION_PRELUDE", 20, 4, ProtoField.uint32("nnrp.body_region_prelude.extension_payload_bytes", "extension_payload_bytes", base.DEC), "plain", 0, "extension_payload_bytes", nil)
add("BODY_REGION_PRELUDE", 24, 4, ProtoField.uint32("nnrp.body_region_prelude.body_flags", "body_flags", base.DEC), "reserved", 0, "body_flags", nil)
add("BODY_REGION_PRELUDE", 28, 4, ProtoField.uint32("nnrp.body_region_prelude.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
sizes.CONTROL_EXTENSION_HEADER = 8
add("CONTROL_EXTENSION_HEADER", 0, 2, ProtoField.uint16("nnrp.control_extension_header.ext_type", "ext_type", base.DEC), "plain", 0, "ext_type", nil)
add("CONTROL_EXTENSION_HEADER", 2, 2, ProtoField.uint16("nnrp.control_extension_header.ext_flags", "ext_flags", base.HEX), "bitmap", 1, "ext_flags", values_ExtFlags)
add("CONTROL_EXTENSION_HEADER", 4, 4, ProtoField.uint32("nnrp.control_extension_header.ext_len", "ext_len", base.DEC), "plain", 0, "ext_len", nil)
sizes.EXTENSION_FRAME_DESCRIPTOR = 16
add("EXTENSION_FRAME_DESCRIPTOR", 0, 2, ProtoField.uint16("nnrp.extension_frame_descriptor.extension_kind", "extension_kind", base.DEC), "plain", 0, "extension_kind", nil)
add("EXTENSION_FRAME_DESCRIPTOR", 2, 2, ProtoField.uint16("nnrp.extension_frame_descriptor.extension_flags", "extension_flags", base.HEX), "bitmap", 1, "extension_flags", values_ExtensionFlags)
add("EXTENSION_FRAME_DESCRIPTOR", 4, 2, ProtoField.uint16("nnrp.extension_frame_descriptor.profile_id", "profile_id", base.DEC), "plain", 0, "profile_id", nil)
add("EXTENSION_FRAME_DESCRIPTOR", 6, 2, ProtoField.uint16("nnrp.extension_frame_descriptor.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("EXTENSION_FRAME_DESCRIPTOR", 8, 4, ProtoField.uint32("nnrp.extension_frame_descriptor.payload_offset", "payload_offset", base.DEC), "plain", 0, "payload_offset", nil)
add("EXTENSION_FRAME_DESCRIPTOR", 12, 4, ProtoField.uint32("nnrp.extension_frame_descriptor.payload_length", "payload_length", base.DEC), "plain", 0, "payload_length", nil)
sizes.INLINE_OBJECT_HEADER = 16
add("INLINE_OBJECT_HEADER", 0, 2, ProtoField.uint16("nnrp.inline_object_header.object_kind", "object_kind", base.DEC, values_ObjectKind), "enum", 0, "object_kind", values_ObjectKind)
add("INLINE_OBJECT_HEADER", 2, 2, ProtoField.uint16("nnrp.inline_object_header.object_flags", "object_flags", base.DEC), "reserved", 0, "object_flags", nil)
add("INLINE_OBJECT_HEADER", 4, 2, ProtoField.uint16("nnrp.inline_object_header.profile_id", "profile_id", base.DEC), "plain", 0, "profile_id", nil)
add("INLINE_OBJECT_HEADER", 6, 2, ProtoField.uint16("nnrp.inline_object_header.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("INLINE_OBJECT_HEADER", 8, 4, ProtoField.uint32("nnrp.inline_object_header.object_bytes", "object_bytes", base.DEC), "plain", 0, "object_bytes", nil)
add("INLINE_OBJECT_HEADER", 12, 4, ProtoField.uint32("nnrp.inline_object_header.reserved1", "reserved1", base.DEC), "reserved", 0, "reserved1", nil)
sizes.LOSS_TOLERANCE = 8
add("LOSS_TOLERANCE", 0, 1, ProtoField.uint8("nnrp.loss_tolerance.loss_tolerance", "loss_tolerance", base.DEC, values_LossTolerance), "enum", 0, "loss_tolerance", values_LossTolerance)
add("LOSS_TOLERANCE", 1, 1, ProtoField.uint8("nnrp.loss_tolerance.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("LOSS_TOLERANCE", 2, 2, ProtoField.uint16("nnrp.loss_tolerance.reserved1", "reserved1", base.DEC), "reserved", 0, "reserved1", nil)
add("LOSS_TOLERANCE", 4, 4, ProtoField.uint32("nnrp.loss_tolerance.reserved2", "reserved2", base.DEC), "reserved", 0, "reserved2", nil)
sizes.OBJECT_REFERENCE = 16
add("OBJECT_REFERENCE", 0, 2, ProtoField.uint16("nnrp.object_reference.object_kind", "object_kind", base.DEC, values_ObjectKind), "enum", 0, "object_kind", values_ObjectKind)
add("OBJECT_REFERENCE", 2, 2, ProtoField.uint16("nnrp.object_reference.ref_flags", "ref_flags", base.DEC), "reserved", 0, "ref_flags", nil)
add("OBJECT_REFERENCE", 4, 4, ProtoField.uint32("nnrp.object_reference.cache_namespace", "cache_namespace", base.DEC), "plain", 0, "cache_namespace", nil)
add("OBJECT_REFERENCE", 8, 4, ProtoField.uint32("nnrp.object_reference.cache_key_hi", "cache_key_hi", base.DEC), "plain", 0, "cache_key_hi", nil)
add("OBJECT_REFERENCE", 12, 4, ProtoField.uint32("nnrp.object_reference.cache_key_lo", "cache_key_lo", base.DEC), "plain", 0, "cache_key_lo", nil)
sizes.PAYLOAD_CAPABILITIES = 8
add("PAYLOAD_CAPABILITIES", 0, 4, ProtoField.uint32("nnrp.payload_capabilities.payload_kind_bitmap", "payload_kind_bitmap", base.HEX), "bitmap", 127, "payload_kind_bitmap", values_PayloadKind)
add("PAYLOAD_CAPABILITIES", 4, 4, ProtoField.uint32("nnrp.payload_capabilities.critical_extension_frame_bitmap", "critical_extension_frame_bitmap", base.HEX), "plain", 0, "critical_extension_frame_bitmap", nil)
sizes.SCHEMA_DESCRIPTOR = 32
add("SCHEMA_DESCRIPTOR", 0, 4, ProtoField.uint32("nnrp.schema_descriptor.schema_id", "schema_id", base.DEC), "plain", 0, "schema_id", nil)
add("SCHEMA_DESCRIPTOR", 4, 4, ProtoField.uint32("nnrp.schema_descriptor.schema_version", "schema_version", base.DEC), "plain", 0, "schema_version", nil)
add("SCHEMA_DESCRIPTOR", 8, 2, ProtoField.uint16("nnrp.schema_descriptor.profile_id", "profile_id", base.DEC), "plain", 0, "profile_id", nil)
add("SCHEMA_DESCRIPTOR", 10, 2, ProtoField.uint16("nnrp.schema_descriptor.schema_flags", "schema_flags", base.HEX), "bitmap", 15, "schema_flags", values_SchemaFlags)
add("SCHEMA_DESCRIPTOR", 12, 1, ProtoField.uint8("nnrp.schema_descriptor.min_version_major", "min_version_major", base.DEC), "plain", 0, "min_version_major", nil)
add("SCHEMA_DESCRIPTOR", 13, 1, ProtoField.uint8("nnrp.schema_descriptor.max_version_major", "max_version_major", base.DEC), "plain", 0, "max_version_major", nil)
add("SCHEMA_DESCRIPTOR", 14, 2, ProtoField.uint16("nnrp.schema_descriptor.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("SCHEMA_DESCRIPTOR", 16, 4, ProtoField.uint32("nnrp.schema_descriptor.body_bytes", "body_bytes", base.DEC), "plain", 0, "body_bytes", nil)
add("SCHEMA_DESCRIPTOR", 20, 2, ProtoField.uint16("nnrp.schema_descriptor.dependency_count", "dependency_count", base.DEC), "plain", 0, "dependency_count", nil)
add("SCHEMA_DESCRIPTOR", 22, 2, ProtoField.uint16("nnrp.schema_descriptor.default_stream_semantics", "default_stream_semantics", base.DEC, values_StreamSemantics), "enum", 0, "default_stream_semantics", values_StreamSemantics)
add("SCHEMA_DESCRIPTOR", 24, 8, ProtoField.uint64("nnrp.schema_descriptor.schema_hash", "schema_hash", base.DEC), "plain", 0, "schema_hash", nil)
sizes.TENSOR_SECTION_DESC = 32
add("TENSOR_SECTION_DESC", 0, 2, ProtoField.uint16("nnrp.tensor_section_desc.role_id", "role_id", base.DEC), "plain", 0, "role_id", nil)
add("TENSOR_SECTION_DESC", 2, 1, ProtoField.uint8("nnrp.tensor_section_desc.codec_id", "codec_id", base.DEC), "plain", 0, "codec_id", nil)
add("TENSOR_SECTION_DESC", 3, 1, ProtoField.uint8("nnrp.tensor_section_desc.dtype_id", "dtype_id", base.DEC, values_DtypeId), "enum", 0, "dtype_id", values_DtypeId)
add("TENSOR_SECTION_DESC", 4, 1, ProtoField.uint8("nnrp.tensor_section_desc.layout_id", "layout_id", base.DEC, values_LayoutId), "enum", 0, "layout_id", values_LayoutId)
add("TENSOR_SECTION_DESC", 5, 1, ProtoField.uint8("nnrp.tensor_section_desc.scale_policy", "scale_policy", base.DEC, values_ScalePolicy), "enum", 0, "scale_policy", values_ScalePolicy)
add("TENSOR_SECTION_DESC", 6, 2, ProtoField.uint16("nnrp.tensor_section_desc.flags", "flags", base.HEX), "bitmap", 3, "flags", values_SectionFlags)
add("TENSOR_SECTION_DESC", 8, 4, ProtoField.uint32("nnrp.tensor_section_desc.element_count_per_tile", "element_count_per_tile", base.DEC), "plain", 0, "element_count_per_tile", nil)
add("TENSOR_SECTION_DESC", 12, 4, ProtoField.uint32("nnrp.tensor_section_desc.codec_table_bytes", "codec_table_bytes", base.DEC), "plain", 0, "codec_table_bytes", nil)
add("TENSOR_SECTION_DESC", 16, 4, ProtoField.uint32("nnrp.tensor_section_desc.length_table_bytes", "length_table_bytes", base.DEC), "plain", 0, "length_table_bytes", nil)
add("TENSOR_SECTION_DESC", 20, 4, ProtoField.uint32("nnrp.tensor_section_desc.payload_bytes", "payload_bytes", base.DEC), "plain", 0, "payload_bytes", nil)
add("TENSOR_SECTION_DESC", 24, 4, ProtoField.uint32("nnrp.tensor_section_desc.payload_stride_bytes", "payload_stride_bytes", base.DEC), "plain", 0, "payload_stride_bytes", nil)
add("TENSOR_SECTION_DESC", 28, 4, ProtoField.uint32("nnrp.tensor_section_desc.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
sizes.TRANSPORT_POLICY = 8
add("TRANSPORT_POLICY", 0, 1, ProtoField.uint8("nnrp.transport_policy.transport_policy", "transport_policy", base.DEC, values_TransportPolicyKind), "enum", 0, "transport_policy", values_TransportPolicyKind)
add("TRANSPORT_POLICY", 1, 1, ProtoField.uint8("nnrp.transport_policy.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("TRANSPORT_POLICY", 2, 2, ProtoField.uint16("nnrp.transport_policy.reserved1", "reserved1", base.DEC), "reserved", 0, "reserved1", nil)
add("TRANSPORT_POLICY", 4, 4, ProtoField.uint32("nnrp.transport_policy.preferred_transport_id", "preferred_transport_id", base.DEC, values_TransportId), "enum", 0, "preferred_transport_id", values_TransportId)
sizes.TRANSPORT_POLICY_ACK = 8
add("TRANSPORT_POLICY_ACK", 0, 1, ProtoField.uint8("nnrp.transport_policy_ack.transport_policy", "transport_policy", base.DEC, values_TransportPolicyKind), "enum", 0, "transport_policy", values_TransportPolicyKind)
add("TRANSPORT_POLICY_ACK", 1, 1, ProtoField.uint8("nnrp.transport_policy_ack.accepted_transport_policy", "accepted_transport_policy", base.DEC, values_TransportPolicyKind), "enum", 0, "accepted_transport_policy", values_TransportPolicyKind)
add("TRANSPORT_POLICY_ACK", 2, 2, ProtoField.uint16("nnrp.transport_policy_ack.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("TRANSPORT_POLICY_ACK", 4, 4, ProtoField.uint32("nnrp.transport_policy_ack.active_transport_id", "active_transport_id", base.DEC, values_TransportId), "enum", 0, "active_transport_id", values_TransportId)
sizes.TYPED_PAYLOAD_DESCRIPTOR = 24
add("TYPED_PAYLOAD_DESCRIPTOR", 0, 2, ProtoField.uint16("nnrp.typed_payload_descriptor.profile_id", "profile_id", base.DEC), "plain", 0, "profile_id", nil)
add("TYPED_PAYLOAD_DESCRIPTOR", 2, 2, ProtoField.uint16("nnrp.typed_payload_descriptor.descriptor_flags", "descriptor_flags", base.HEX), "bitmap", 15, "descriptor_flags", values_DescriptorFlags)
add("TYPED_PAYLOAD_DESCRIPTOR", 4, 4, ProtoField.uint32("nnrp.typed_payload_descriptor.schema_id", "schema_id", base.DEC), "plain", 0, "schema_id", nil)
add("TYPED_PAYLOAD_DESCRIPTOR", 8, 4, ProtoField.uint32("nnrp.typed_payload_descriptor.schema_version", "schema_version", base.DEC), "plain", 0, "schema_version", nil)
add("TYPED_PAYLOAD_DESCRIPTOR", 12, 2, ProtoField.uint16("nnrp.typed_payload_descriptor.stream_semantics", "stream_semantics", base.DEC, values_StreamSemantics), "enum", 0, "stream_semantics", values_StreamSemantics)
add("TYPED_PAYLOAD_DESCRIPTOR", 14, 2, ProtoField.uint16("nnrp.typed_payload_descriptor.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("TYPED_PAYLOAD_DESCRIPTOR", 16, 4, ProtoField.uint32("nnrp.typed_payload_descriptor.offset", "offset", base.DEC), "plain", 0, "offset", nil)
add("TYPED_PAYLOAD_DESCRIPTOR", 20, 4, ProtoField.uint32("nnrp.typed_payload_descriptor.length", "length", base.DEC), "plain", 0, "length", nil)
sizes.TYPED_PAYLOAD_DESCRIPTOR_V2 = 16
add("TYPED_PAYLOAD_DESCRIPTOR_V2", 0, 1, ProtoField.uint8("nnrp.typed_payload_descriptor_v2.payload_kind", "payload_kind", base.HEX), "bitmap", 127, "payload_kind", values_PayloadKind)
add("TYPED_PAYLOAD_DESCRIPTOR_V2", 1, 1, ProtoField.uint8("nnrp.typed_payload_descriptor_v2.descriptor_flags", "descriptor_flags", base.DEC), "reserved", 0, "descriptor_flags", nil)
add("TYPED_PAYLOAD_DESCRIPTOR_V2", 2, 2, ProtoField.uint16("nnrp.typed_payload_descriptor_v2.profile_id", "profile_id", base.DEC), "plain", 0, "profile_id", nil)
add("TYPED_PAYLOAD_DESCRIPTOR_V2", 4, 4, ProtoField.uint32("nnrp.typed_payload_descriptor_v2.payload_offset", "payload_offset", base.DEC), "plain", 0, "payload_offset", nil)
add("TYPED_PAYLOAD_DESCRIPTOR_V2", 8, 4, ProtoField.uint32("nnrp.typed_payload_descriptor_v2.payload_length", "payload_length", base.DEC), "plain", 0, "payload_length", nil)
add("TYPED_PAYLOAD_DESCRIPTOR_V2", 12, 4, ProtoField.uint32("nnrp.typed_payload_descriptor_v2.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
sizes.CANCEL_SCOPE = 24
add("CANCEL_SCOPE", 0, 1, ProtoField.uint8("nnrp.cancel_scope.cancel_scope", "cancel_scope", base.DEC, values_CancelScopeKind), "enum", 0, "cancel_scope", values_CancelScopeKind)
add("CANCEL_SCOPE", 1, 1, ProtoField.uint8("nnrp.cancel_scope.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("CANCEL_SCOPE", 2, 2, ProtoField.uint16("nnrp.cancel_scope.reason", "reason", base.DEC, values_CancelReason), "enum", 0, "reason", values_CancelReason)
add("CANCEL_SCOPE", 4, 4, ProtoField.uint32("nnrp.cancel_scope.reserved1", "reserved1", base.DEC), "reserved", 0, "reserved1", nil)
add("CANCEL_SCOPE", 8, 8, ProtoField.uint64("nnrp.cancel_scope.operation_id", "operation_id", base.DEC), "plain", 0, "operation_id", nil)
add("CANCEL_SCOPE", 16, 8, ProtoField.uint64("nnrp.cancel_scope.operation_group_id", "operation_group_id", base.DEC), "plain", 0, "operation_group_id", nil)
sizes.DEPENDENCY = 24
add("DEPENDENCY", 0, 1, ProtoField.uint8("nnrp.dependency.kind", "kind", base.DEC, values_DependencyKind), "enum", 0, "kind", values_DependencyKind)
add("DEPENDENCY", 1, 1, ProtoField.uint8("nnrp.dependency.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("DEPENDENCY", 2, 2, ProtoField.uint16("nnrp.dependency.reserved1", "reserved1", base.DEC), "reserved", 0, "reserved1", nil)
add("DEPENDENCY", 4, 4, ProtoField.uint32("nnrp.dependency.reserved2", "reserved2", base.DEC), "reserved", 0, "reserved2", nil)
add("DEPENDENCY", 8, 8, ProtoField.uint64("nnrp.dependency.id", "id", base.DEC), "plain", 0, "id", nil)
add("DEPENDENCY", 16, 8, ProtoField.uint64("nnrp.dependency.version", "version", base.DEC), "plain", 0, "version", nil)
sizes.LEASE_INFO = 24
add("LEASE_INFO", 0, 8, ProtoField.uint64("nnrp.lease_info.object_version", "object_version", base.DEC), "plain", 0, "object_version", nil)
add("LEASE_INFO", 8, 8, ProtoField.uint64("nnrp.lease_info.lease_id", "lease_id", base.DEC), "plain", 0, "lease_id", nil)
add("LEASE_INFO", 16, 1, ProtoField.uint8("nnrp.lease_info.lease_owner_scope", "lease_owner_scope", base.DEC, values_LeaseOwnerScope), "enum", 0, "lease_owner_scope", values_LeaseOwnerScope)
add("LEASE_INFO", 17, 1, ProtoField.uint8("nnrp.lease_info.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("LEASE_INFO", 18, 2, ProtoField.uint16("nnrp.lease_info.reserved1", "reserved1", base.DEC), "reserved", 0, "reserved1", nil)
add("LEASE_INFO", 20, 4, ProtoField.uint32("nnrp.lease_info.reserved2", "reserved2", base.DEC), "reserved", 0, "reserved2", nil)
sizes.OBJECT_EXPECT = 16
add("OBJECT_EXPECT", 0, 8, ProtoField.uint64("nnrp.object_expect.object_id", "object_id", base.DEC), "plain", 0, "object_id", nil)
add("OBJECT_EXPECT", 8, 8, ProtoField.uint64("nnrp.object_expect.object_version", "object_version", base.DEC), "plain", 0, "object_version", nil)
sizes.OBJECT_META = 40
add("OBJECT_META", 0, 8, ProtoField.uint64("nnrp.object_meta.object_id", "object_id", base.DEC), "plain", 0, "object_id", nil)
add("OBJECT_META", 8, 8, ProtoField.uint64("nnrp.object_meta.object_version", "object_version", base.DEC), "plain", 0, "object_version", nil)
add("OBJECT_META", 16, 8, ProtoField.uint64("nnrp.object_meta.lease_id", "lease_id", base.DEC), "plain", 0, "lease_id", nil)
add("OBJECT_META", 24, 1, ProtoField.uint8("nnrp.object_meta.lease_owner_scope", "lease_owner_scope", base.DEC, values_LeaseOwnerScope), "enum", 0, "lease_owner_scope", values_LeaseOwnerScope)
add("OBJECT_META", 25, 1, ProtoField.uint8("nnrp.object_meta.expiry_policy", "expiry_policy", base.DEC, values_ExpiryPolicy), "enum", 0, "expiry_policy", values_ExpiryPolicy)
add("OBJECT_META", 26, 2, ProtoField.uint16("nnrp.object_meta.policy_hints", "policy_hints", base.HEX), "bitmap", 31, "policy_hints", values_PolicyHints)
add("OBJECT_META", 28, 2, ProtoField.uint16("nnrp.object_meta.dependency_count", "dependency_count", base.DEC), "plain", 0, "dependency_count", nil)
add("OBJECT_META", 30, 2, ProtoField.uint16("nnrp.object_meta.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("OBJECT_META", 32, 8, ProtoField.uint64("nnrp.object_meta.owner_operation_id", "owner_operation_id", base.DEC), "plain", 0, "owner_operation_id", nil)
sizes.OPERATION_EXTENSIONS = 8
add("OPERATION_EXTENSIONS", 0, 2, ProtoField.uint16("nnrp.operation_extensions.version", "version", base.DEC), "plain", 0, "version", nil)
add("OPERATION_EXTENSIONS", 2, 2, ProtoField.uint16("nnrp.operation_extensions.features", "features", base.HEX), "bitmap", 31, "features", values_OperationFeatures)
add("OPERATION_EXTENSIONS", 4, 4, ProtoField.uint32("nnrp.operation_extensions.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
sizes.OPERATION_STATE = 24
add("OPERATION_STATE", 0, 8, ProtoField.uint64("nnrp.operation_state.operation_id", "operation_id", base.DEC), "plain", 0, "operation_id", nil)
add("OPERATION_STATE", 8, 1, ProtoField.uint8("nnrp.operation_state.operation_state", "operation_state", base.DEC, values_OperationState), "enum", 0, "operation_state", values_OperationState)
add("OPERATION_STATE", 9, 1, ProtoField.uint8("nnrp.operation_state.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("OPERATION_STATE", 10, 2, ProtoField.uint16("nnrp.operation_state.reserved1", "reserved1", base.DEC), "reserved", 0, "reserved1", nil)
add("OPERATION_STATE", 12, 4, ProtoField.uint32("nnrp.operation_state.error_code", "error_code", base.HEX), "plain", 0, "error_code", nil)
add("OPERATION_STATE", 16, 8, ProtoField.uint64("nnrp.operation_state.event_id", "event_id", base.DEC), "plain", 0, "event_id", nil)
sizes.RESUME_FROM = 16
add("RESUME_FROM", 0, 8, ProtoField.uint64("nnrp.resume_from.resume_from_operation_id", "resume_from_operation_id", base.DEC), "plain", 0, "resume_from_operation_id", nil)
add("RESUME_FROM", 8, 8, ProtoField.uint64("nnrp.resume_from.last_event_id", "last_event_id", base.DEC), "plain", 0, "last_event_id", nil)
sizes.SUBMIT_CONTEXT = 40
add("SUBMIT_CONTEXT", 0, 8, ProtoField.uint64("nnrp.submit_context.operation_id", "operation_id", base.DEC), "plain", 0, "operation_id", nil)
add("SUBMIT_CONTEXT", 8, 8, ProtoField.uint64("nnrp.submit_context.parent_operation_id", "parent_operation_id", base.DEC), "plain", 0, "parent_operation_id", nil)
add("SUBMIT_CONTEXT", 16, 8, ProtoField.uint64("nnrp.submit_context.operation_group_id", "operation_group_id", base.DEC), "plain", 0, "operation_group_id", nil)
add("SUBMIT_CONTEXT", 24, 1, ProtoField.uint8("nnrp.submit_context.priority_class", "priority_class", base.DEC, values_OperationPriority), "enum", 0, "priority_class", values_OperationPriority)
add("SUBMIT_CONTEXT", 25, 1, ProtoField.uint8("nnrp.submit_context.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("SUBMIT_CONTEXT", 26, 2, ProtoField.uint16("nnrp.submit_context.reserved1", "reserved1", base.DEC), "reserved", 0, "reserved1", nil)
add("SUBMIT_CONTEXT", 28, 4, ProtoField.uint32("nnrp.submit_context.deadline_ms", "deadline_ms", base.DEC), "plain", 0, "deadline_ms", nil)
add("SUBMIT_CONTEXT", 32, 8, ProtoField.uint64("nnrp.submit_context.supersedes_operation_id", "supersedes_operation_id", base.DEC), "plain", 0, "supersedes_operation_id", nil)
sizes.TOKEN_HINT = 16
add("TOKEN_HINT", 0, 1, ProtoField.uint8("nnrp.token_hint.token_unit", "token_unit", base.DEC, values_TokenUnit), "enum", 0, "token_unit", values_TokenUnit)
add("TOKEN_HINT", 1, 1, ProtoField.uint8("nnrp.token_hint.stop_reason", "stop_reason", base.DEC, values_StopReason), "enum", 0, "stop_reason", values_StopReason)
add("TOKEN_HINT", 2, 1, ProtoField.uint8("nnrp.token_hint.channel", "channel", base.DEC, values_TokenChannel), "enum", 0, "channel", values_TokenChannel)
add("TOKEN_HINT", 3, 1, ProtoField.uint8("nnrp.token_hint.reserved0", "reserved0", base.DEC), "reserved", 0, "reserved0", nil)
add("TOKEN_HINT", 4, 4, ProtoField.uint32("nnrp.token_hint.sequence_start", "sequence_start", base.DEC), "plain", 0, "sequence_start", nil)
add("TOKEN_HINT", 8, 4, ProtoField.uint32("nnrp.token_hint.sequence_end", "sequence_end", base.DEC), "plain", 0, "sequence_end", nil)
add("TOKEN_HINT", 12, 4, ProtoField.uint32("nnrp.token_hint.reserved1", "reserved1", base.DEC), "reserved", 0, "reserved1", nil)

local payload_field = ProtoField.bytes("nnrp.payload", "payload")
local text_field = ProtoField.string("nnrp.text", "text")
local body_field = ProtoField.bytes("nnrp.body", "body")
table.insert(fields, payload_field)
table.insert(fields, text_field)
table.insert(fields, body_field)
nnrp.fields = fields
nnrp.prefs.port = Pref.uint("TCP port", 4171, "Port on which NNRP is expected; other ports are recognised by content")

-- Adds one structure to the tree and returns its values by name.
local function structure(name, tvb, tree, label)
  local branch = tree:add(nnrp, tvb(0, sizes[name]), label or name)
  local values = {}
  for _, entry in ipairs(layouts[name]) do
    local range = tvb(entry.offset, entry.size)
    local item = branch:add_le(entry.field, range)
    if entry.kind ~= "text" and entry.size <= 4 then
      local value = range:le_uint()
      values[entry.name] = value
      if entry.kind == "reserved" and value ~= 0 then item:add_proto_expert_info(experts.reserved) end
      if entry.kind == "enum" and entry.values[value] == nil then item:add_proto_expert_info(experts.value) end
      if entry.kind == "bitmap" then
        if bit.band(value, bit.bnot(entry.mask)) ~= 0 then item:add_proto_expert_info(experts.bits) end
        local names = {}
        for flag, flag_name in pairs(entry.values) do
          if bit.band(value, flag) ~= 0 then table.insert(names, flag_name) end
        end
        table.sort(names)
        if #names > 0 then item:append_text(" (" .. table.concat(names, ", ") .. ")") end
      end
    elseif entry.kind == "reserved" and range:le_uint64() ~= UInt64(0, 0) then
      item:add_proto_expert_info(experts.reserved)
    end
  end
  return values, branch
end

local function padded(size) return size + (-size) % 8 end

local function bytes(tvb, offset, size, tree, label)
  if size > 0 and offset + size <= tvb:len() then
    tree:add(payload_field, tvb(offset, size)):prepend_text(label .. ", ")
  end
end

-- Control extension entries from offset to the end.
local function extensions(tvb, offset, tree)
  while offset < tvb:len() do
    if tvb:len() - offset < 8 then
      tree:add_proto_expert_info(experts.length)
      return
    end
    local kind = tvb(offset, 2):le_uint()
    local size = tvb(offset + 4, 4):le_uint()
    if size > tvb:len() - offset - 8 then
      tree:add_proto_expert_info(experts.length)
      return
    end
    local name = extension_types[kind] or string.format("extension 0x%04x", kind)
    local _, branch = structure("CONTROL_EXTENSION_HEADER", tvb(offset), tree, name)
    local layout = extension_layouts[kind]
    if layout and size >= sizes[layout] then
      structure(layout, tvb(offset + 8), branch)
    else
      bytes(tvb, offset + 8, size, branch, "payload")
    end
    offset = offset + 8 + padded(size)
  end
end

local function regions(tvb, tree, count)
  if tvb:len() < 32 then
    bytes(tvb, 0, tvb:len(), tree, "bare payload")
    return
  end
  local prelude = structure("BODY_REGION_PRELUDE", tvb, tree)
  local sum = 32 + prelude.inline_object_bytes + prelude.object_reference_bytes + prelude.typed_payload_descriptor_bytes
    + prelude.typed_payload_frame_bytes + prelude.extension_descriptor_bytes + prelude.extension_payload_bytes
  if sum ~= tvb:len() then
    tree:add_proto_expert_info(experts.length)
    return
  end
  local offset = 32
  local stop = offset + prelude.inline_object_bytes
  while offset + 16 <= stop do
    local object, branch = structure("INLINE_OBJECT_HEADER", tvb(offset), tree)
    if object.object_bytes > stop - offset - 16 then
      branch:add_proto_expert_info(experts.length)
      return
    end
    bytes(tvb, offset + 16, object.object_bytes, branch, "object")
    offset = offset + 16 + padded(object.object_bytes)
  end
  offset = stop
  stop = offset + prelude.object_reference_bytes
  while offset + 16 <= stop do
    structure("OBJECT_REFERENCE", tvb(offset), tree)
    offset = offset + 16
  end
  offset = stop
  stop = offset + prelude.typed_payload_descriptor_bytes
  local frames = stop
  local legacy = count > 0 and prelude.typed_payload_descriptor_bytes == count * 16
  local name = legacy and "TYPED_PAYLOAD_DESCRIPTOR_V2" or "TYPED_PAYLOAD_DESCRIPTOR"
  while offset + sizes[name] <= stop do
    local described, branch = structure(name, tvb(offset), tree)
    local start = frames + (described.offset or described.payload_offset)
    bytes(tvb, start, described.length or described.payload_length, branch, "payload")
    offset = offset + sizes[name]
  end
  offset = frames + prelude.typed_payload_frame_bytes
  stop = offset + prelude.extension_descriptor_bytes
  while offset + 16 <= stop do
    local frame, branch = structure("EXTENSION_FRAME_DESCRIPTOR", tvb(offset), tree)
    local layout = frame_layouts[frame.extension_kind]
    local start = stop + frame.payload_offset
    if layout and frame.payload_length >= sizes[layout] and start + frame.payload_length <= tvb:len() then
      structure(layout, tvb(start), branch)
    else
      bytes(tvb, start, frame.payload_length, branch, "payload")
    end
    offset = offset + 16
  end
end

local function data_body(tvb, tree, meta)
  local flat = meta.payload_kind_bitmap == 1 and meta.payload_frame_count == 0
    and (meta.submit_mode or 0) == 0 and (meta.object_ref_mask or 0) == 0
  if flat then
    bytes(tvb, 0, tvb:len(), tree, "flat tensor")
  else
    regions(tvb, tree, meta.payload_frame_count)
  end
end

local function control_body(name, tvb, tree, meta)
  local offset = 0
  local function block(label, size)
    size = math.min(size or 0, tvb:len() - offset)
    bytes(tvb, offset, size, tree, label)
    offset = offset + size
  end
  if name == "CLIENT_HELLO" then
    local split = math.min(meta.control_extension_bytes, tvb:len())
    if split > 0 then extensions(tvb(0, split):tvb(), 0, tree) end
    offset = split
    block("auth", meta.auth_bytes)
    return
  end
  if name == "ERROR" then
    local size = math.min(meta.diagnostic_bytes, tvb:len())
    if size > 0 then tree:add(text_field, tvb(0, size)) end
    offset = size
  elseif name == "CACHE_PUT" then
    block("object", meta.object_bytes)
  elseif name == "SESSION_OPEN" or name == "SESSION_OPEN_ACK" then
    block("resume token", meta.resume_token_bytes)
    block("auth", meta.auth_bytes)
  elseif opaque_bodies[name] then
    block("body", tvb:len())
  end
  if offset < tvb:len() then extensions(tvb(offset):tvb(), 0, tree) end
end

local function packet(tvb, pinfo, root)
  pinfo.cols.protocol = "NNRP"
  local tree = root:add(nnrp, tvb(), "NNRP")
  local header = structure("HEADER", tvb, tree, "Header")
  local name = message_types[header.msg_type] or "unknown"
  tree:append_text(string.format(" %s, session %u, frame %u", name, header.session_id, header.frame_id))
  pinfo.cols.info:append(pinfo.private.nnrp_more and ", " .. name or name)
  pinfo.private.nnrp_more = "1"
  local meta = {}
  if layouts[name] and header.meta_len == sizes[name] and header.meta_len > 0 then
    meta = structure(name, tvb(40), tree, "Metadata " .. name)
  elseif header.meta_len ~= (sizes[name] or 0) then
    tree:add_proto_expert_info(experts.length)
    return tvb:len()
  end
  if header.body_len > 0 then
    local range = tvb(40 + header.meta_len, header.body_len)
    local branch = tree:add(body_field, range)
    if name == "FRAME_SUBMIT" or name == "RESULT_PUSH" then
      data_body(range:tvb(), branch, meta)
    else
      control_body(name, range:tvb(), branch, meta)
    end
  end
  return tvb:len()
end

local function length(tvb, pinfo, offset)
  return 40 + tvb(offset + 12, 4):le_uint() + tvb(offset + 16, 4):le_uint()
end

function nnrp.dissector(tvb, pinfo, root)
  pinfo.cols.info:clear()
  pinfo.private.nnrp_more = nil
  dissect_tcp_pdus(tvb, root, 40, length, packet)
  return tvb:len()
end

local function looks_like_nnrp(tvb, pinfo, root)
  if tvb:len() < 8 or tvb(0, 4):string() ~= "NNRP" or tvb(4, 1):uint() ~= 1 or tvb(7, 1):uint() ~= 40 then
    return false
  end
  pinfo.conversation = nnrp
  nnrp.dissector(tvb, pinfo, root)
  return true
end

nnrp:register_heuristic("tcp", looks_like_nnrp)
DissectorTable.get("tcp.port"):add(nnrp.prefs.port, nnrp)
