"""The operation extensions, moorline to moorline (nnrp-extensions): layouts of the vendor numbers 0x8101 – 0x8108."""

from __future__ import annotations

from typing import Annotated, ClassVar

from protocol.layout import Check, Reserved, u8, u16, u32, u64
from protocol.layout_codec import layout
from protocol.nnrp.enums import (
    CancelReason,
    CancelScopeKind,
    DependencyKind,
    ExpiryPolicy,
    LeaseOwnerScope,
    OperationFeatures,
    OperationPriority,
    OperationState,
    PolicyHints,
    StopReason,
    TokenChannel,
    TokenUnit,
)
from protocol.nnrp.record import Block

__all__ = [
    "CancelScope",
    "Dependency",
    "LeaseInfo",
    "ObjectExpect",
    "ObjectMeta",
    "OperationExtensions",
    "OperationStateBlock",
    "ResumeFrom",
    "SubmitContext",
    "TokenHint",
]

_SOURCE = "[moorline]"


@layout("OPERATION_EXTENSIONS", "ext: Negotiation", _SOURCE)
class OperationExtensions(Block, frozen=True, gc=False):
    """TLV 0x8101 in SESSION_OPEN (offer) and SESSION_OPEN_ACK (grant)."""

    CHECKS: ClassVar[tuple[Check, ...]] = (Check("version", "version == 1", "version must be 1"),)

    version: Annotated[int, u16, "1"] = 1
    features: Annotated[OperationFeatures, u16] = OperationFeatures(0)
    reserved0: ClassVar[Reserved] = Reserved(u32)


@layout("RESUME_FROM", "ext: Resume watermark", _SOURCE)
class ResumeFrom(Block, frozen=True, gc=False):
    """TLV 0x8102 in SESSION_OPEN, only with a resume token."""

    resume_from_operation_id: Annotated[int, u64, "0 = all unfinished or unacknowledged"] = 0
    last_event_id: Annotated[int, u64, "0 none; else the cursor in the session's ring"] = 0


@layout("CANCEL_SCOPE", "ext: Cancel", _SOURCE)
class CancelScope(Block, frozen=True, gc=False):
    """TLV 0x8103 in the FRAME_CANCEL body."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            "operation_id",
            "(cancel_scope < 2) == (operation_id != 0)",
            "scopes operation and subtree name their target, the others carry 0",
        ),
        Check(
            "operation_group_id",
            "(cancel_scope == 2) == (operation_group_id != 0)",
            "scope group names the group, the others carry 0",
        ),
    )

    cancel_scope: Annotated[CancelScopeKind, u8] = CancelScopeKind.OPERATION
    reserved0: ClassVar[Reserved] = Reserved(u8)
    reason: Annotated[CancelReason, u16] = CancelReason.UNSPECIFIED
    reserved1: ClassVar[Reserved] = Reserved(u32)
    operation_id: Annotated[int, u64, "scope operation, subtree: the target; else 0"] = 0
    operation_group_id: Annotated[int, u64, "scope group: non-zero; else 0"] = 0


@layout("SUBMIT_CONTEXT", "ext: Submit", _SOURCE)
class SubmitContext(Block, frozen=True, gc=False):
    """Extension frame 0x8104 on FRAME_SUBMIT: makes operation_id independent of frame_id."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check("operation_id", "operation_id != 0", "operation_id must be non-zero"),
        Check(
            "parent_operation_id",
            "parent_operation_id != operation_id",
            "an operation is not its own parent",
        ),
    )

    operation_id: Annotated[int, u64, "non-zero, unused in this session"] = 0
    parent_operation_id: Annotated[int, u64, "0 none; else a known operation of this session, not itself"] = 0
    operation_group_id: Annotated[int, u64, "0 none"] = 0
    priority_class: Annotated[OperationPriority, u8] = OperationPriority.INHERIT
    reserved0: ClassVar[Reserved] = Reserved(u8)
    reserved1: ClassVar[Reserved] = Reserved(u16)
    deadline_ms: Annotated[int, u32, "0 inherit"] = 0
    supersedes_operation_id: Annotated[int, u64, "0 none; else that operation ends superseded"] = 0


@layout("OPERATION_STATE", "ext: State", _SOURCE)
class OperationStateBlock(Block, frozen=True, gc=False):
    """Extension frame 0x8105 on RESULT_PUSH, TLV 0x8105 in the RESULT_DROP body."""

    operation_id: Annotated[int, u64] = 0
    operation_state: Annotated[OperationState, u8] = OperationState.ACCEPTED
    reserved0: ClassVar[Reserved] = Reserved(u8)
    reserved1: ClassVar[Reserved] = Reserved(u16)
    error_code: Annotated[int, u32, "0, or the code an ERROR would carry"] = 0
    event_id: Annotated[int, u64, "the session ring's id of this event"] = 0


@layout("TOKEN_HINT", "ext: Token chunks", _SOURCE)
class TokenHint(Block, frozen=True, gc=False):
    """Precedes the text of a token chunk whose descriptor sets profile_hint_present."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check("sequence_end", "sequence_end >= sequence_start", "sequence_end ≥ sequence_start"),
    )

    token_unit: Annotated[TokenUnit, u8] = TokenUnit.UNSPECIFIED
    stop_reason: Annotated[StopReason, u8, "non-zero requires the descriptor flag terminal"] = StopReason.NONE
    channel: Annotated[TokenChannel, u8] = TokenChannel.MESSAGE
    reserved0: ClassVar[Reserved] = Reserved(u8)
    sequence_start: Annotated[int, u32, "first position covered, in token_unit"] = 0
    sequence_end: Annotated[int, u32, "one past the last position covered"] = 0
    reserved1: ClassVar[Reserved] = Reserved(u32)


@layout("OBJECT_META", "ext: Cache objects", _SOURCE)
class ObjectMeta(Block, frozen=True, gc=False):
    """TLV 0x8106 behind the object of a CACHE_PUT; dependency_count entries follow it."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check("object_id", "object_id != 0", "object_id must be non-zero"),
        Check("object_version", "object_version != 0", "object_version must be non-zero"),
        Check(
            "owner_operation_id",
            "(lease_owner_scope == 2) == (owner_operation_id != 0)",
            "scope operation names its operation, the others carry 0",
        ),
    )

    object_id: Annotated[int, u64, "non-zero; the logical identity"] = 0
    object_version: Annotated[int, u64, "non-zero"] = 0
    lease_id: Annotated[int, u64, "0 = grant a new lease; else renew that one"] = 0
    lease_owner_scope: Annotated[LeaseOwnerScope, u8] = LeaseOwnerScope.CONNECTION
    expiry_policy: Annotated[ExpiryPolicy, u8] = ExpiryPolicy.DROP_AT_EXPIRY
    policy_hints: Annotated[PolicyHints, u16, "hints only"] = PolicyHints(0)
    dependency_count: Annotated[int, u16] = 0
    reserved0: ClassVar[Reserved] = Reserved(u16)
    owner_operation_id: Annotated[int, u64, "scope operation: a live operation; else 0"] = 0


@layout("DEPENDENCY", "ext: Cache objects", _SOURCE)
class Dependency(Block, frozen=True, gc=False):
    """One dependency entry behind an OBJECT_META."""

    kind: Annotated[DependencyKind, u8] = DependencyKind.OBJECT
    reserved0: ClassVar[Reserved] = Reserved(u8)
    reserved1: ClassVar[Reserved] = Reserved(u16)
    reserved2: ClassVar[Reserved] = Reserved(u32)
    id: Annotated[int, u64] = 0
    version: Annotated[int, u64] = 0


@layout("LEASE_INFO", "ext: Cache objects", _SOURCE)
class LeaseInfo(Block, frozen=True, gc=False):
    """TLV 0x8107 in CACHE_ACK."""

    object_version: Annotated[int, u64] = 0
    lease_id: Annotated[int, u64, "kept by a renewal, never reused by a new grant"] = 0
    lease_owner_scope: Annotated[LeaseOwnerScope, u8] = LeaseOwnerScope.CONNECTION
    reserved0: ClassVar[Reserved] = Reserved(u8)
    reserved1: ClassVar[Reserved] = Reserved(u16)
    reserved2: ClassVar[Reserved] = Reserved(u32)


@layout("OBJECT_EXPECT", "ext: Cache objects", _SOURCE)
class ObjectExpect(Block, frozen=True, gc=False):
    """One entry of extension frame 0x8108 on FRAME_SUBMIT: one for each object reference, in their order."""

    object_id: Annotated[int, u64] = 0
    object_version: Annotated[int, u64, "0 = any"] = 0
