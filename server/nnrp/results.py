"""RESULT_PUSH and RESULT_DROP as bytes, as the peer's session reads them (nnrp-wire 7.13, 7.14, 8; nnrp-extensions, State)."""

from __future__ import annotations

from typing import Final

import attrs

from protocol.layout import Buffer
from protocol.nnrp.descriptors import TypedPayloadDescriptor, TypedPayloadDescriptorV2
from protocol.nnrp.enums import (
    BudgetPolicy,
    ExtensionKind,
    ExtType,
    HeaderFlags,
    ObjectKind,
    OperationFeatures,
    OperationState,
    PayloadKind,
    ResultClass,
    ResultFlags,
    TileIndexMode,
)
from protocol.nnrp.extensions import ControlExtension, pack_extensions
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.session import Session
from protocol.nnrp.messages import ResultDrop, ResultPush
from protocol.nnrp.packet import encode_parts
from protocol.nnrp.regions import ExtensionFrame, InlineObject, Regions, TypedPayload
from protocol.nnrp.template import Template
from protocol.nnrp.tensor import TensorBody, pack_flat_tensor, pack_sections, pack_tile_index
from protocol.nnrp.vendor import OperationStateBlock
from server.nnrp.submit import Answer

__all__ = ["NO_TIMES", "PlainResults", "Times", "drop_parts", "push_parts", "state_parts"]

_U16: Final = 0xFFFF
_TELLS_STATE: Final = int(OperationFeatures.OPERATION_STATE)
_PARTIAL = ResultFlags.PARTIAL
_COMPLETE: Final = ResultClass.COMPLETE
_CLASS_FLAGS: Final = {
    ResultClass.COMPLETE: ResultFlags(0),
    ResultClass.PARTIAL: ResultFlags.PARTIAL,
    ResultClass.STALE_REUSE: ResultFlags.STALE,
    ResultClass.DEGRADED: ResultFlags(0),
}
_NO_HEADER, _CAN_DROP = HeaderFlags(0), HeaderFlags.CAN_DROP
_LAST_HEADERS: Final = {
    ResultClass.COMPLETE: _NO_HEADER,
    ResultClass.PARTIAL: HeaderFlags.EOS,
    ResultClass.STALE_REUSE: HeaderFlags.STALE,
    ResultClass.DEGRADED: _NO_HEADER,
}
_NO_KIND, _TENSOR = PayloadKind(0), PayloadKind.TENSOR
_NO_BUDGET = BudgetPolicy(0)


@attrs.frozen(slots=True)
class Times:
    """Where the time went, in ms: waiting, computing, and everything from receipt to result (nnrp-wire 14)."""

    queue_ms: int = 0
    compute_ms: int = 0
    total_ms: int = 0

    @classmethod
    def between(cls, received: float, started: float, now: float) -> Times:
        return cls(_ms(started - received), _ms(now - started), _ms(now - received))


NO_TIMES: Final = Times()


def push_parts(
    session: Session,
    operation: Operation,
    answer: Answer,
    *,
    partial: bool = False,
    times: Times = NO_TIMES,
    event_id: int = 0,
    applied: BudgetPolicy = _NO_BUDGET,
    reused_frame_id: int = 0,
) -> list[Buffer]:
    """The RESULT_PUSH for ``answer``. ``partial``: more follows. A partial answer that is the last one says so in its
    operation_state."""
    payloads, kinds = answer.payloads, answer.kinds
    result_class = ResultClass.PARTIAL if partial else answer.result_class
    fields: dict[str, int] = {}
    body: Regions | bytes
    if answer.tensor is not None:
        kinds |= _TENSOR
        fields = _tensor_fields(answer.tensor, answer.dropped_tiles, result_class is ResultClass.PARTIAL)
    if session.legacy_descriptors:
        payloads = tuple(_as_legacy(each, answer.kinds) for each in payloads)
    message = ResultPush(
        result_flags=_CLASS_FLAGS[result_class],
        active_profile_id=answer.profile_id or session.terms.profile_id,
        inference_ms=times.compute_ms,
        queue_ms=times.queue_ms,
        server_total_ms=times.total_ms,
        result_class=result_class,
        applied_budget_policy=applied,
        reused_frame_id=reused_frame_id,
        payload_kind_bitmap=kinds,
        payload_frame_count=len(payloads),
        **fields,
    )
    if answer.tensor is not None and not payloads:
        # The form follows from the metadata alone (8.1): a flat body has no place for an extension.
        # Results have no camera (9.1).
        tensor = TensorBody(answer.tensor.tile_ids, answer.tensor.sections)
        body = pack_flat_tensor(tensor, mode=_mode(tensor))
    else:
        body = Regions(
            payloads,
            inline_objects=() if answer.tensor is None else _objects(answer.tensor),
            extensions=_state_frames(session, operation, event_id),
        )
        if not payloads and not body.extensions:
            body = b""
    return encode_parts(
        message,
        body,
        session_id=session.session_id,
        frame_id=operation.frame_id,
        view_id=operation.view_id,
        route_id=operation.route_id,
        trace_id=operation.trace_id,
        flags=(_NO_HEADER if partial else _LAST_HEADERS[result_class])
        | (_CAN_DROP if operation.sent_once else _NO_HEADER),
        strict=not session.legacy_descriptors,
    )


class PlainResults:
    """The results of one session that have one payload and say nothing beside it. Those that are alike, but for the payload,
    are made from one template."""

    __slots__ = ("_template",)

    def __init__(self) -> None:
        self._template: Template[ResultPush] | None = None

    def parts(self, session: Session, operation: Operation, answer: Answer) -> list[Buffer] | None:
        """What `push_parts` makes of a final ``answer`` without times, None where that has to say. Raises as that does."""
        payloads = answer.payloads
        if len(payloads) != 1 or answer.tensor is not None or answer.result_class is not _COMPLETE:
            return None
        payload = payloads[0]
        descriptor = payload.descriptor
        if (
            session.legacy_descriptors
            or operation.sent_once
            or session.terms.features & _TELLS_STATE
            or type(descriptor) is not TypedPayloadDescriptor
        ):
            return None
        profile_id = answer.profile_id or session.terms.profile_id
        template = self._template
        if (
            template is None
            or template.message.payload_kind_bitmap is not answer.kinds
            or template.message.active_profile_id != profile_id
            or not template.describes(descriptor)
        ):
            message = ResultPush(active_profile_id=profile_id, payload_kind_bitmap=answer.kinds, payload_frame_count=1)
            template = self._template = Template(message, descriptor)
        return template.encode_parts(
            payload.data,
            session.session_id,
            operation.frame_id,
            operation.view_id,
            operation.route_id,
            operation.trace_id,
        )


def state_parts(session: Session, operation: Operation, event_id: int) -> list[Buffer] | None:
    """A change of state without payload, where the peer was granted to hear of it; else None."""
    frames = _state_frames(session, operation, event_id)
    if not frames:
        return None
    message = ResultPush(
        result_flags=_PARTIAL, result_class=ResultClass.PARTIAL, active_profile_id=session.terms.profile_id
    )
    return encode_parts(
        message,
        Regions(extensions=frames),
        session_id=session.session_id,
        frame_id=operation.frame_id,
        view_id=operation.view_id,
        route_id=operation.route_id,
        trace_id=operation.trace_id,
    )


def drop_parts(
    session: Session,
    operation: Operation,
    *,
    state: OperationState | None = None,
    error_code: int = 0,
    event_id: int = 0,
) -> list[Buffer]:
    """The RESULT_DROP of an operation that has ended without a result; why is told where the peer reads it."""
    body = b""
    if session.terms.features & _TELLS_STATE:
        block = OperationStateBlock(
            operation.operation_id, operation.state if state is None else state, error_code, event_id
        )
        body = pack_extensions([ControlExtension.of(ExtType.OPERATION_STATE, block)])
    return encode_parts(
        ResultDrop(),
        body,
        session_id=session.session_id,
        frame_id=operation.frame_id,
        view_id=operation.view_id,
        route_id=operation.route_id,
        trace_id=operation.trace_id,
    )


def _state_frames(session: Session, operation: Operation, event_id: int) -> tuple[ExtensionFrame, ...]:
    if not session.terms.features & _TELLS_STATE:
        return ()
    state = operation.state
    if state is OperationState.ACCEPTED:
        state = OperationState.RUNNING
    block = OperationStateBlock(operation.operation_id, state, 0, event_id)
    return (ExtensionFrame.of(ExtensionKind.OPERATION_STATE, block),)


def _as_legacy(payload: TypedPayload, kinds: PayloadKind) -> TypedPayload:
    """The 16-byte descriptor of a peer that reads no other (8.6)."""
    if isinstance(payload.descriptor, TypedPayloadDescriptorV2):
        return payload
    lowest = int(kinds) & -int(kinds)
    return TypedPayload.legacy(
        payload.data, payload.kind or PayloadKind(lowest), profile_id=payload.descriptor.profile_id
    )


def _mode(tensor: TensorBody) -> TileIndexMode:
    return TileIndexMode.DENSE_RANGE if isinstance(tensor.tile_ids, range) else TileIndexMode.RAW_U16


def _tensor_fields(tensor: TensorBody, dropped: int, partial: bool) -> dict[str, int]:
    ids = tensor.tile_ids
    dense = isinstance(ids, range)
    if partial and len(ids):
        dropped = max(dropped, 1)  # what is partial lacks something (7.13)
    dropped = min(dropped, len(ids))
    return {
        "section_count": len(tensor.sections),
        "tile_count": len(ids),
        "tile_base_id": ids[0] if dense and len(ids) else 0,
        "tile_index_bytes": 0 if dense else 2 * len(ids),
        "covered_tile_count": len(ids) - dropped,
        "dropped_tile_count": dropped,
    }


def _objects(tensor: TensorBody) -> tuple[InlineObject, ...]:
    objects = []
    if not isinstance(tensor.tile_ids, range):
        index = pack_tile_index(tensor.tile_ids, mode=TileIndexMode.RAW_U16)
        objects.append(InlineObject(ObjectKind.TILE_INDEX_BLOCK, index))
    if tensor.sections:
        objects.append(InlineObject(ObjectKind.TENSOR_SECTION_TABLE, pack_sections(tensor.sections)))
    return tuple(objects)


def _ms(seconds: float) -> int:
    return min(max(round(seconds * 1000), 0), _U16)
