"""FLOW_UPDATE (nnrp-wire 7.16)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from protocol.layout import Check, Reserved, u8, u16, u32, u64
from protocol.layout_codec import layout
from protocol.nnrp.enums import BackpressureLevel, FlowFlags, FlowScope, MessageType, UpdateReason
from protocol.nnrp.record import Message

__all__ = ["FlowUpdate"]


@layout("FLOW_UPDATE", "7.16", "[seed][rs3=py3]")
class FlowUpdate(Message, frozen=True, gc=False):
    """Credit and backpressure for one scope; credits are absolute windows, not increments (13.6)."""

    TYPE: ClassVar[MessageType] = MessageType.FLOW_UPDATE
    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            "connection_credit",
            "scope_kind != 1 or connection_credit == 0",
            "connection_credit must be 0 in session scope",
        ),
        Check(
            "connection_credit",
            "scope_kind != 2 or connection_credit == 0",
            "connection_credit must be 0 in operation scope",
            strict_only=True,
        ),
        Check(
            "session_credit",
            "scope_kind != 0 or session_credit == 0",
            "session_credit must be 0 in connection scope",
        ),
        Check(
            "session_credit",
            "scope_kind != 2 or session_credit == 0",
            "session_credit must be 0 in operation scope",
            strict_only=True,
        ),
        Check(
            "operation_credit",
            "scope_kind == 2 or operation_credit == 0",
            "operation_credit must be 0 outside operation scope",
        ),
        Check(
            "operation_id",
            "(scope_kind == 2) == (operation_id != 0)",
            "operation_id is non-zero in operation scope and 0 in the others",
        ),
        Check(
            "retry_after_ms",
            "retry_after_ms == 0 or flow_flags & 2",
            "retry_after_ms needs the flag retry_after_valid",
        ),
    )

    scope_kind: Annotated[FlowScope, u8] = FlowScope.CONNECTION
    update_reason: Annotated[UpdateReason, u8] = UpdateReason.GRANT
    backpressure_level: Annotated[BackpressureLevel, u8] = BackpressureLevel.NONE
    reserved0: ClassVar[Reserved] = Reserved(u8)
    connection_credit: Annotated[int, u16] = 0
    session_credit: Annotated[int, u16] = 0
    operation_credit: Annotated[int, u16] = 0
    reserved1: ClassVar[Reserved] = Reserved(u16)
    operation_id: Annotated[int, u64] = 0
    retry_after_ms: Annotated[int, u32, "non-zero needs flag bit 1"] = 0
    credit_epoch: Annotated[int, u32, "13.6"] = 0
    flow_flags: Annotated[FlowFlags, u32] = FlowFlags(0)
