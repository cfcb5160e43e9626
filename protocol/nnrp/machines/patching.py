"""What SESSION_PATCH may change, and the decision on one (nnrp-wire 7.3, 7.4)."""

from __future__ import annotations

from typing import Any

import attrs

from protocol.nnrp.enums import AckStatus, PatchMask, PatchRejectReason, ProfileId
from protocol.nnrp.messages import ServerHelloAck, SessionPatch, SessionPatchAck, TensorProfilePatchBlock

__all__ = ["PatchPolicy", "SessionSettings", "apply_answer", "decide_patch"]

_M = PatchMask
#: (bit, field of SESSION_PATCH, field of the settings and of SESSION_PATCH_ACK behind ``effective_``)
_FIELDS = (
    (_M.TARGET_CADENCE, "target_cadence_x100", "target_cadence_x100"),
    (_M.QUALITY_TIER, "quality_tier", "quality_tier"),
    (_M.DEGRADE_POLICY, "degrade_policy", "degrade_policy"),
    (_M.ACTIVE_LANE_MASK, "active_lane_mask", "lane_mask"),
    (_M.PREFERRED_CODEC, "preferred_codec_bitmap", "codec_bitmap"),
    (_M.PREFERRED_COMPRESSION, "preferred_compression_bitmap", "compression_bitmap"),
)


@attrs.frozen(slots=True)
class SessionSettings:
    """The patchable part of a session, as it is in force."""

    target_cadence_x100: int = 0
    quality_tier: int = 0
    degrade_policy: int = 0
    lane_mask: int = 1
    codec_bitmap: int = 0
    compression_bitmap: int = 0
    profile_patch: bytes = b""


@attrs.frozen(slots=True)
class PatchPolicy:
    """What a server lets a patch do. A bitmap of None accepts any choice."""

    mask: int = 0x7F
    max_lane_count: int = 1
    codec_bitmap: int | None = None
    compression_bitmap: int | None = None
    highest_degrade_policy: int = 3
    retry_after_ms: int = 0
    """Non-zero refuses every patch for now: rate_limited."""

    def within(self, agreed: ServerHelloAck) -> PatchPolicy:
        """The same, but no lane, codec or compression that the hello has not agreed on."""
        return attrs.evolve(
            self,
            max_lane_count=max(agreed.max_lane_count, 1),
            codec_bitmap=_narrow(self.codec_bitmap, agreed.accepted_codec_bitmap),
            compression_bitmap=_narrow(self.compression_bitmap, agreed.accepted_compression_bitmap),
        )


def decide_patch(
    request: SessionPatch, body: bytes, current: SessionSettings, policy: PatchPolicy, *, profile_id: int
) -> tuple[SessionPatchAck, bytes, SessionSettings]:
    """The answer, its body and the settings in force after it. Bits are applied one by one; the first refusal gives the
    reason. A patch for another profile changes nothing: the primary profile is not patchable."""
    asked = int(request.patch_mask)
    if policy.retry_after_ms:
        return _answer(request, 0, PatchRejectReason.RATE_LIMITED, current, profile_id, policy.retry_after_ms)
    if request.profile_id not in (0, profile_id):
        return _answer(request, 0, PatchRejectReason.UNSUPPORTED_FIELD, current, profile_id)
    applied, reason = 0, PatchRejectReason.NONE
    changes: dict[str, Any] = {}
    for bit, source, target in _FIELDS:
        if asked & int(bit):
            value = getattr(request, source)
            refusal = _refuse(bit, value, policy)
            if refusal is PatchRejectReason.NONE:
                applied |= int(bit)
                changes[target] = value
            elif reason is PatchRejectReason.NONE:
                reason = refusal
    if asked & int(_M.PROFILE_PATCH):
        if profile_id == ProfileId.TENSOR and len(body) not in (0, TensorProfilePatchBlock.SIZE):
            reason = reason or PatchRejectReason.INVALID_RANGE
        elif policy.mask & int(_M.PROFILE_PATCH) and body:
            applied |= int(_M.PROFILE_PATCH)
            changes["profile_patch"] = body
        elif reason is PatchRejectReason.NONE:
            reason = PatchRejectReason.UNSUPPORTED_FIELD
    return _answer(request, applied, reason, attrs.evolve(current, **changes), profile_id)


def apply_answer(answer: SessionPatchAck, body: bytes, current: SessionSettings) -> SessionSettings:
    """What a client takes from SESSION_PATCH_ACK: everything in force is in it, except a profile block it did not send."""
    return SessionSettings(
        answer.effective_target_cadence_x100,
        answer.effective_quality_tier,
        answer.effective_degrade_policy,
        answer.effective_lane_mask,
        answer.effective_codec_bitmap,
        answer.effective_compression_bitmap,
        body or current.profile_patch,
    )


def _narrow(bitmap: int | None, agreed: int) -> int:
    return agreed if bitmap is None else bitmap & agreed


def _refuse(bit: PatchMask, value: int, policy: PatchPolicy) -> PatchRejectReason:
    if not policy.mask & int(bit):
        return PatchRejectReason.UNSUPPORTED_FIELD
    if bit is _M.DEGRADE_POLICY and value > policy.highest_degrade_policy:
        return PatchRejectReason.UNSUPPORTED_STRATEGY
    if bit is _M.ACTIVE_LANE_MASK and (value == 0 or value >> policy.max_lane_count):
        return PatchRejectReason.INVALID_LANE_MASK
    allowed = {_M.PREFERRED_CODEC: policy.codec_bitmap, _M.PREFERRED_COMPRESSION: policy.compression_bitmap}.get(bit)
    if allowed is not None and value & ~allowed:
        return PatchRejectReason.INVALID_RANGE
    return PatchRejectReason.NONE


def _answer(
    request: SessionPatch,
    applied: int,
    reason: PatchRejectReason,
    settings: SessionSettings,
    profile_id: int,
    retry_after_ms: int = 0,
) -> tuple[SessionPatchAck, bytes, SessionSettings]:
    asked = int(request.patch_mask)
    rejected = asked & ~applied
    status = AckStatus.ACCEPTED
    if rejected or reason is not PatchRejectReason.NONE:
        status = AckStatus.PARTIALLY_APPLIED if applied else AckStatus.REJECTED
    body = settings.profile_patch if applied & int(_M.PROFILE_PATCH) else b""
    ack = SessionPatchAck(
        ack_status=status,
        reject_reason=reason,
        applied_patch_mask=PatchMask(applied),
        rejected_patch_mask=PatchMask(rejected),
        retry_after_ms=retry_after_ms,
        effective_profile_id=profile_id,
        effective_target_cadence_x100=settings.target_cadence_x100,
        effective_quality_tier=settings.quality_tier,
        effective_degrade_policy=settings.degrade_policy,
        effective_lane_mask=settings.lane_mask,
        effective_codec_bitmap=settings.codec_bitmap,
        effective_compression_bitmap=settings.compression_bitmap,
        profile_patch_ack_bytes=len(body),
    )
    return ack, body, settings
