"""Capability negotiation: the answer to a CLIENT_HELLO, and the reading of that answer (nnrp-wire 7.1, 7.2)."""

from __future__ import annotations

import attrs

from protocol.errors import Reach
from protocol.nnrp.enums import ErrorCode, ServerFlags
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.messages import ClientHello, ServerHelloAck

__all__ = ["HelloPolicy", "check_hello_ack", "negotiate"]

#: Field of the answer, field of the offer it must stay within.
_WINDOWS = (
    ("accepted_profile_bitmap", "supported_profile_bitmap"),
    ("accepted_payload_kind_bitmap", "supported_payload_kind_bitmap"),
    ("accepted_codec_bitmap", "supported_codec_bitmap"),
    ("accepted_compression_bitmap", "supported_compression_bitmap"),
    ("accepted_dtype_bitmap", "supported_dtype_bitmap"),
    ("accepted_layout_bitmap", "supported_layout_bitmap"),
    ("cache_digest_bitmap", "cache_digest_bitmap"),
    ("cache_object_bitmap", "cache_object_bitmap"),
)
_VITAL = ("accepted_profile_bitmap", "accepted_payload_kind_bitmap")


@attrs.frozen(slots=True)
class HelloPolicy:
    """What a server supports. The answer is the intersection with the offer."""

    profile_bitmap: int = 0x3
    payload_kind_bitmap: int = 0x7F
    codec_bitmap: int = 0xFFFF_FFFF
    compression_bitmap: int = 0xFFFF_FFFF
    dtype_bitmap: int = 0xFF
    layout_bitmap: int = 0x3
    digest_bitmap: int = 0xFFFF
    object_bitmap: int = 0x1FF
    max_cache_entries: int = 256
    max_cache_bytes: int = 8 * 1024 * 1024
    max_lane_count: int = 64
    max_concurrent_frames: int = 1024
    max_body_bytes: int = 33_554_432
    token_ttl_ms: int = 0
    cache_enabled: bool = True


def negotiate(offer: ClientHello, policy: HelloPolicy, *, session_id: int, extension_bytes: int) -> ServerHelloAck:
    """The answer that accepts ``offer``. Raises NnrpError unsupported_capability when nothing vital is in common.

    Preferences (cadence, budget, tier, degrade policy) are confirmed as asked: sessions are where they take effect.
    """
    answer = ServerHelloAck(
        session_id=session_id,
        accepted_profile_bitmap=offer.supported_profile_bitmap & policy.profile_bitmap,
        accepted_payload_kind_bitmap=int(offer.supported_payload_kind_bitmap) & policy.payload_kind_bitmap,
        accepted_codec_bitmap=offer.supported_codec_bitmap & policy.codec_bitmap,
        accepted_compression_bitmap=offer.supported_compression_bitmap & policy.compression_bitmap,
        accepted_dtype_bitmap=offer.supported_dtype_bitmap & policy.dtype_bitmap,
        accepted_layout_bitmap=offer.supported_layout_bitmap & policy.layout_bitmap,
        cache_digest_bitmap=offer.cache_digest_bitmap & policy.digest_bitmap,
        cache_object_bitmap=offer.cache_object_bitmap & policy.object_bitmap,
        max_cache_entries=min(offer.max_cache_entries, policy.max_cache_entries),
        max_cache_bytes=min(offer.max_cache_bytes, policy.max_cache_bytes),
        max_lane_count=min(offer.max_lane_count, policy.max_lane_count),
        max_concurrent_frames=policy.max_concurrent_frames,
        target_cadence_x100=offer.target_cadence_x100,
        latency_budget_ms=offer.latency_budget_ms,
        quality_tier=offer.quality_tier,
        degrade_policy=offer.degrade_policy,
        max_body_bytes=policy.max_body_bytes,
        token_ttl_ms=policy.token_ttl_ms,
        control_extension_bytes=extension_bytes,
        server_flags=ServerFlags.CACHE_ENABLED if policy.cache_enabled else ServerFlags(0),
    )
    for field in _VITAL:
        if not getattr(answer, field):
            raise _fault(field, f"no common value of {field}", ErrorCode.UNSUPPORTED_CAPABILITY, "CLIENT_HELLO")
    return answer


def check_hello_ack(offer: ClientHello, answer: ServerHelloAck, *, strict: bool) -> ServerHelloAck:
    """The answer as the client may use it. Strict: anything outside the offer raises NnrpError BadCombination.
    Tolerant: bitmaps are clamped to the offer, because one existing server answers with fixed ones."""
    if not offer.min_version_major <= answer.selected_version_major <= offer.max_version_major:
        raise _fault("selected_version_major", "not inside the offered window", ErrorCode.UNSUPPORTED_VERSION)
    chosen = answer.selected_wire_format
    if chosen > 15 or not offer.supported_wire_format_bitmap >> chosen & 1:
        raise _fault("selected_wire_format", "not offered", ErrorCode.UNSUPPORTED_VERSION)
    clamped: dict[str, int] = {}
    for field, offered in _WINDOWS:
        allowed = int(getattr(offer, offered))
        value = int(getattr(answer, field))
        if value & ~allowed:
            if strict:
                raise _fault(field, "accepts what was not offered", ErrorCode.UNSUPPORTED_CAPABILITY)
            clamped[field] = value & allowed
    return answer.replace(**clamped) if clamped else answer


def _fault(field: str, rule: str, code: ErrorCode, subject: str = "SERVER_HELLO_ACK") -> NnrpError:
    return NnrpError(
        Outcome.BAD_COMBINATION, rule, subject=subject, field=field, code=code, reach=Reach.CONNECTION, fatal=True
    )
