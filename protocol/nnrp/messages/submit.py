"""FRAME_SUBMIT and FRAME_CANCEL (nnrp-wire 7.11, 7.12)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from protocol.layout import Check, Loose, Reserved, u8, u16, u32, u64, zero_unless
from protocol.layout_codec import layout
from protocol.nnrp.enums import (
    BudgetPolicy,
    InputProfile,
    LossTolerance,
    MessageType,
    ObjectRefMask,
    PayloadKind,
    SubmitMode,
    TileIndexMode,
)
from protocol.nnrp.record import Message

__all__ = ["FrameCancel", "FrameSubmit"]

# tile_index_mode is exempt: a peer sends 1 on submits without tensors.
_TENSOR_FIELDS = (
    "src_width",
    "src_height",
    "tile_width",
    "tile_height",
    "tile_count",
    "section_count",
    "input_profile",
    "tile_base_id",
    "camera_bytes",
    "tile_index_bytes",
)


@layout("FRAME_SUBMIT", "7.11", "[rs3=py3]")
class FrameSubmit(Message, frozen=True, gc=False):
    """Submits one operation; its id is the frame id unless a submit_context says otherwise (nnrp-wire 10)."""

    TYPE: ClassVar[MessageType] = MessageType.FRAME_SUBMIT
    CHECKS: ClassVar[tuple[Check, ...]] = (
        *zero_unless("payload_kind_bitmap & 1", _TENSOR_FIELDS, "tensor field, must be 0 without the tensor bit"),
        Check(
            "object_ref_mask",
            "(submit_mode == 0) == (object_ref_mask == 0)",
            "submit_mode inline needs mask 0, reference and mixed a non-zero one",
        ),
    )

    src_width: Annotated[int, u16, "T"] = 0
    src_height: Annotated[int, u16, "T"] = 0
    tile_width: Annotated[int, u16, "T"] = 0
    tile_height: Annotated[int, u16, "T"] = 0
    tile_count: Annotated[int, u16, "T"] = 0
    section_count: Annotated[int, u16, "T"] = 0
    frame_class: Annotated[int, u8, "`FrameClass`; range not checked"] = 0
    input_profile: Annotated[InputProfile, u8, "T"] = InputProfile.UNSPECIFIED
    tile_index_mode: Annotated[TileIndexMode, u8] = TileIndexMode.DENSE_RANGE
    reserved0: ClassVar[Reserved] = Reserved(u8)
    latency_budget_ms: Annotated[int, u16, "this frame's budget"] = 0
    target_fps_x100: Annotated[int, u16] = 0
    retry_of_frame: Annotated[int, u32, "earlier frame id or 0"] = 0
    tile_base_id: Annotated[int, u32, "T; first id in dense_range"] = 0
    camera_bytes: Annotated[int, u32, "T; inline camera block length"] = 0
    tile_index_bytes: Annotated[int, u32, "T; inline tile index length; 0 towards nnrp-rs"] = 0
    reserved1: ClassVar[Reserved] = Reserved(u64)
    reserved2: ClassVar[Reserved] = Reserved(u64)
    submit_mode: Annotated[SubmitMode, u8] = SubmitMode.INLINE
    budget_policy: Annotated[BudgetPolicy, u8] = BudgetPolicy(0)
    loss_tolerance_policy: Annotated[
        LossTolerance, u8, Loose("any other value is read as inherit", LossTolerance.INHERIT)
    ] = LossTolerance.INHERIT
    reserved3: ClassVar[Reserved] = Reserved(u8)
    object_ref_mask: Annotated[ObjectRefMask, u32] = ObjectRefMask(0)
    dependency_frame_id: Annotated[int, u32, "frame this one depends on, or 0"] = 0
    payload_kind_bitmap: Annotated[PayloadKind, u32] = PayloadKind(0)
    payload_frame_count: Annotated[int, u16, "number of typed payload descriptors"] = 0
    reserved4: ClassVar[Reserved] = Reserved(u16)


@layout("FRAME_CANCEL", "7.12", "[rs3][seed]")
class FrameCancel(Message, frozen=True, gc=False):
    """Cancels the operation of header.frame_id; a cancel_scope extension in the body may widen the scope."""

    TYPE: ClassVar[MessageType] = MessageType.FRAME_CANCEL
