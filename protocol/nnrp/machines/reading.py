"""What the machines read out of a packet beside its fixed metadata."""

from __future__ import annotations

from protocol.nnrp.bodies import ControlBody, DataBody
from protocol.nnrp.descriptors import TypedPayloadDescriptor
from protocol.nnrp.enums import ExtType, OperationFeatures, OperationState, ResultClass, ResultFlags
from protocol.nnrp.extensions import NO_FEATURES, ExtensionValue, ObjectMetaEntry, find_extension
from protocol.nnrp.messages import ResultPush
from protocol.nnrp.packet import Packet
from protocol.nnrp.vendor import (
    CancelScope,
    ObjectExpect,
    OperationExtensions,
    OperationStateBlock,
    ResumeFrom,
    SubmitContext,
)

__all__ = [
    "cancel_scope",
    "drop_state",
    "expectations",
    "object_meta",
    "offered_features",
    "result_state",
    "resume_from",
    "submit_context",
]

_PARTIAL_FLAG = int(ResultFlags.PARTIAL)
_PARTIAL_CLASS = ResultClass.PARTIAL
_PARTIAL, _COMPLETED = OperationState.PARTIAL, OperationState.COMPLETED


def submit_context(packet: Packet) -> SubmitContext | None:
    """The submit_context extension frame, where it was granted."""
    content = packet.content
    if isinstance(content, DataBody):
        for frame in content.regions.extensions:
            if isinstance(frame.value, SubmitContext):
                return frame.value
    return None


def expectations(packet: Packet) -> tuple[ObjectExpect, ...]:
    """The object_expect entries of a submit, one for each reference; empty where it was not granted or not sent."""
    content = packet.content
    if isinstance(content, DataBody):
        for frame in content.regions.extensions:
            if isinstance(frame.value, tuple):
                return frame.value
    return ()


def result_state(packet: Packet) -> OperationState:
    """What a RESULT_PUSH makes of its operation: as it says itself, else by class, flag and descriptors (13.4)."""
    content, metadata = packet.content, packet.metadata
    assert isinstance(content, DataBody)
    assert isinstance(metadata, ResultPush)
    regions = content.regions
    for frame in regions.extensions:
        if isinstance(frame.value, OperationStateBlock):
            return frame.value.operation_state
    if metadata.result_class is _PARTIAL_CLASS or int(metadata.result_flags) & _PARTIAL_FLAG:
        return _PARTIAL
    partial = False
    for payload in regions.payloads:
        descriptor = payload.descriptor
        if isinstance(descriptor, TypedPayloadDescriptor):
            if descriptor.terminal:
                return _COMPLETED
            partial = partial or descriptor.partial
    return _PARTIAL if partial else _COMPLETED


def drop_state(packet: Packet) -> OperationState:
    """What a RESULT_DROP makes of an operation that was neither cancelled nor replaced: as it says itself, else failed.

    A state that is not final cannot be reported by a drop and counts as failed.
    """
    value = _extension(packet, ExtType.OPERATION_STATE)
    if isinstance(value, OperationStateBlock) and value.operation_state >= OperationState.SUPERSEDED:
        return value.operation_state
    return OperationState.FAILED


def cancel_scope(packet: Packet) -> CancelScope | None:
    value = _extension(packet, ExtType.CANCEL_SCOPE)
    return value if isinstance(value, CancelScope) else None


def object_meta(packet: Packet) -> ObjectMetaEntry | None:
    value = _extension(packet, ExtType.OBJECT_META)
    return value if isinstance(value, ObjectMetaEntry) else None


def offered_features(packet: Packet) -> OperationFeatures:
    """operation_extensions of a SESSION_OPEN (offer) or SESSION_OPEN_ACK (grant)."""
    value = _extension(packet, ExtType.OPERATION_EXTENSIONS)
    return value.features if isinstance(value, OperationExtensions) else NO_FEATURES


def resume_from(packet: Packet) -> ResumeFrom | None:
    value = _extension(packet, ExtType.RESUME_FROM)
    return value if isinstance(value, ResumeFrom) else None


def _extension(packet: Packet, kind: ExtType) -> ExtensionValue | None:
    content = packet.content
    if isinstance(content, ControlBody) and content.extensions:
        return find_extension(content.extensions, kind)
    return None
