"""RESULT_PUSH, RESULT_DROP and RESULT_HINT (nnrp-wire 7.13, 7.14, 7.17)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from protocol.layout import Check, Reserved, u8, u16, u32, u64, zero_unless
from protocol.layout_codec import layout
from protocol.nnrp.enums import (
    BudgetPolicy,
    CongestionState,
    MessageType,
    PayloadKind,
    ResultBudgetPolicy,
    ResultClass,
    ResultFlags,
    ResultHintReason,
)
from protocol.nnrp.record import Message

__all__ = ["ResultDrop", "ResultHint", "ResultPush"]

_TENSOR_FIELDS = (
    "section_count",
    "tile_count",
    "tile_base_id",
    "tile_index_bytes",
    "covered_tile_count",
    "dropped_tile_count",
)
_NO_TENSOR = "not payload_kind_bitmap & 1"


@layout("RESULT_PUSH", "7.13", "[rs3=py3]")
class ResultPush(Message, frozen=True, gc=False):
    """A result, or a part of one. A partial result names its class or sets the flag; both are accepted alone."""

    TYPE: ClassVar[MessageType] = MessageType.RESULT_PUSH
    CHECKS: ClassVar[tuple[Check, ...]] = (
        *zero_unless("payload_kind_bitmap & 1", _TENSOR_FIELDS, "tensor field, must be 0 without the tensor bit"),
        Check(
            "covered_tile_count",
            f"{_NO_TENSOR} or covered_tile_count + dropped_tile_count == tile_count",
            "covered_tile_count + dropped_tile_count = tile_count",
        ),
        Check(
            "dropped_tile_count",
            f"{_NO_TENSOR} or dropped_tile_count or not (result_class == 1 or result_flags & 4)",
            "a partial tensor result has dropped tiles",
        ),
    )

    status_code: Annotated[int, u16, "0 or 200 = success; else application status"] = 0
    result_flags: Annotated[ResultFlags, u16] = ResultFlags(0)
    section_count: Annotated[int, u16, "T"] = 0
    tile_count: Annotated[int, u16, "T"] = 0
    active_profile_id: Annotated[int, u16, "profile that produced the result"] = 0
    reserved0: ClassVar[Reserved] = Reserved(u16)
    inference_ms: Annotated[int, u16, "compute time"] = 0
    queue_ms: Annotated[int, u16, "queue time"] = 0
    server_total_ms: Annotated[int, u16, "total server time"] = 0
    reserved1: ClassVar[Reserved] = Reserved(u16)
    tile_base_id: Annotated[int, u32, "T"] = 0
    tile_index_bytes: Annotated[int, u32, "T"] = 0
    reserved2: ClassVar[Reserved] = Reserved(u64)
    reserved3: ClassVar[Reserved] = Reserved(u64)
    result_class: Annotated[ResultClass, u8] = ResultClass.COMPLETE
    applied_budget_policy: Annotated[BudgetPolicy, u8, "subset of the submit's budget_policy"] = BudgetPolicy(0)
    reserved4: ClassVar[Reserved] = Reserved(u16)
    reused_frame_id: Annotated[int, u32, "source frame when reused"] = 0
    covered_tile_count: Annotated[int, u16, "T"] = 0
    dropped_tile_count: Annotated[int, u16, "T"] = 0
    payload_kind_bitmap: Annotated[PayloadKind, u32] = PayloadKind(0)
    payload_frame_count: Annotated[int, u16] = 0
    reserved5: ClassVar[Reserved] = Reserved(u16)


@layout("RESULT_DROP", "7.14", "[rs3][seed]")
class ResultDrop(Message, frozen=True, gc=False):
    """The result was dropped, has expired or was superseded; distinct from a degraded result."""

    TYPE: ClassVar[MessageType] = MessageType.RESULT_DROP


@layout("RESULT_HINT", "7.17", "[rs3=py3]")
class ResultHint(Message, frozen=True, gc=False):
    """How the server is faring with a frame, or with the whole session when frame_id is 0."""

    TYPE: ClassVar[MessageType] = MessageType.RESULT_HINT

    applied_budget_policy: Annotated[ResultBudgetPolicy, u32] = ResultBudgetPolicy.NONE
    congestion_state: Annotated[CongestionState, u32] = CongestionState.NONE
    reason: Annotated[ResultHintReason, u32] = ResultHintReason.NONE
    retry_after_ms: Annotated[int, u32, "0 = no wait window"] = 0
