"""What stands in the body of each message type, and the rules for it (nnrp-wire 5, 8)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, TypeAlias

import msgspec

from protocol.layout import Buffer
from protocol.nnrp.enums import (
    CancelScopeKind,
    ExtType,
    MessageType,
    OperationFeatures,
    PayloadKind,
    SubmitMode,
    TileIndexMode,
)
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.extensions import ControlExtension, find_extension, parse_extensions
from protocol.nnrp.messages import (
    CachePut,
    ClientHello,
    Error,
    FrameSubmit,
    Message,
    ResultPush,
    ServerHelloAck,
    SessionOpen,
    SessionOpenAck,
    SessionPatch,
    SessionPatchAck,
    TransportProbe,
)
from protocol.nnrp.objects import bind_result_objects, bind_submit_objects
from protocol.nnrp.regions import Regions, TypedPayload, parse_regions
from protocol.nnrp.tensor import TensorBody, parse_flat_tensor
from protocol.nnrp.vendor import CancelScope

__all__ = ["Body", "BodyForm", "ControlBody", "DataBody", "parse_body"]


class ControlBody(msgspec.Struct, frozen=True):
    """The blocks of a control message's body; each message has the ones the specification gives it."""

    extensions: tuple[ControlExtension, ...] = ()
    resume_token: Buffer = b""
    auth: Buffer = b""
    diagnostic: Buffer = b""
    """Text for humans, UTF-8 by rule; decode with errors="replace"."""
    object: Buffer = b""
    """The object of a CACHE_PUT."""
    opaque: Buffer = b""
    """A profile patch, probe padding, a migration body, a close reason: whatever has no form of its own."""
    declared_absent: bool = False
    """The metadata declares blocks, the body is empty: a tolerated peer (nnrp-wire 5). Nothing is available."""


class BodyForm(Enum):
    """How the body of a FRAME_SUBMIT or RESULT_PUSH is laid out (nnrp-wire 8.1)."""

    FLAT_TENSOR = "flat_tensor"
    EMPTY = "empty"
    REGION = "region"
    RAW = "raw"
    """Tolerant only: the whole body is one payload of the one declared kind."""


class DataBody(msgspec.Struct, frozen=True):
    """The decoded body of a FRAME_SUBMIT or RESULT_PUSH."""

    form: BodyForm
    regions: Regions = Regions()
    tensor: TensorBody = TensorBody()
    raw: Buffer = b""
    raw_kind: PayloadKind | None = None

    @property
    def payloads(self) -> tuple[TypedPayload, ...]:
        return self.regions.payloads


Body: TypeAlias = ControlBody | DataBody


class Context(NamedTuple):
    """How to read a body."""

    strict: bool
    granted: OperationFeatures
    at: int


_EMPTY = ControlBody()


def _fault(outcome: Outcome, rule: str, message: Message, field: str | None, at: int) -> NnrpError:
    subject = message.LAYOUT.name
    return NnrpError(outcome, rule, subject=subject, field=field, offset=at, reach=message.REACH)


def _require(body: Buffer, wanted: int, rule: str, message: Message, at: int) -> None:
    if len(body) != wanted:
        text = f"{rule}: {wanted} expected, {len(body)} present"
        raise _fault(Outcome.LENGTH_MISMATCH, text, message, "body", at)


def _extensions(data: Buffer, message: Message, how: Context, start: int = 0) -> tuple[ControlExtension, ...]:
    if not data:
        return ()
    return parse_extensions(data, message=message.TYPE, granted=how.granted, strict=how.strict, at=how.at + start)


def _opaque(message: Message, body: Buffer, how: Context) -> ControlBody:
    return ControlBody(opaque=body) if body else _EMPTY


def _nothing(message: Message, body: Buffer, how: Context) -> ControlBody:
    if body:
        raise _fault(Outcome.BAD_COMBINATION, "must have no body", message, "body", how.at)
    return _EMPTY


def _only_extensions(message: Message, body: Buffer, how: Context) -> ControlBody:
    return ControlBody(_extensions(body, message, how)) if body else _EMPTY


def _empty_or_extensions(message: Message, body: Buffer, how: Context) -> ControlBody:
    """Sent empty; a well-formed extension block is accepted, anything else is BadCombination (nnrp-wire 5)."""
    try:
        return _only_extensions(message, body, how)
    except NnrpError as error:
        if error.outcome is Outcome.UNKNOWN_CRITICAL or error.subject != "CONTROL_EXTENSION_BLOCK":
            raise
        rule = "the body must be empty or a control extension block"
        raise _fault(Outcome.BAD_COMBINATION, f"{rule} ({error.rule})", message, "body", how.at) from error


def _client_hello(message: ClientHello, body: Buffer, how: Context) -> ControlBody:
    split = message.control_extension_bytes
    _require(body, split + message.auth_bytes, "control_extension_bytes + auth_bytes", message, how.at)
    try:
        return ControlBody(_extensions(body[:split], message, how), auth=body[split:])
    except NnrpError:
        # An older text puts auth first (nnrp-wire 18 item 5): tried when the leading bytes are no extension block.
        if how.strict or not split or not message.auth_bytes:
            raise
        try:
            trailing = _extensions(body[message.auth_bytes :], message, how, message.auth_bytes)
        except NnrpError:
            trailing = None
        if trailing is None:
            raise
        return ControlBody(trailing, auth=body[: message.auth_bytes])


def _server_hello_ack(message: ServerHelloAck, body: Buffer, how: Context) -> ControlBody:
    split = message.control_extension_bytes
    if how.strict or len(body) < split:
        _require(body, split, "control_extension_bytes", message, how.at)
    return ControlBody(_extensions(body[:split], message, how), opaque=body[split:])


def _declared_absent(wanted: int, body: Buffer, how: Context) -> bool:
    return bool(wanted) and not body and not how.strict


def _session_patch(message: SessionPatch, body: Buffer, how: Context) -> ControlBody:
    return _patch_block(message, message.profile_patch_bytes, body, how)


def _session_patch_ack(message: SessionPatchAck, body: Buffer, how: Context) -> ControlBody:
    return _patch_block(message, message.profile_patch_ack_bytes, body, how)


def _patch_block(message: Message, wanted: int, body: Buffer, how: Context) -> ControlBody:
    if _declared_absent(wanted, body, how):
        return ControlBody(declared_absent=True)
    _require(body, wanted, "the declared block length", message, how.at)
    return _opaque(message, body, how)


def _session_open(message: SessionOpen, body: Buffer, how: Context) -> ControlBody:
    token = message.resume_token_bytes
    auth = token + message.auth_bytes
    wanted = auth + message.session_extension_bytes
    if _declared_absent(wanted, body, how):
        return ControlBody(declared_absent=True)
    _require(body, wanted, "resume_token_bytes + auth_bytes + session_extension_bytes", message, how.at)
    extensions = _extensions(body[auth:], message, how, auth)
    if not token and find_extension(extensions, ExtType.RESUME_FROM) is not None:
        rule = "resume_from goes with a resume token"
        raise _fault(Outcome.BAD_COMBINATION, rule, message, "session_extension", how.at + auth)
    return ControlBody(extensions, body[:token], body[token:auth])


def _session_open_ack(message: SessionOpenAck, body: Buffer, how: Context) -> ControlBody:
    token = message.resume_token_bytes
    wanted = token + message.session_extension_bytes
    if _declared_absent(wanted, body, how):
        return ControlBody(declared_absent=True)
    _require(body, wanted, "resume_token_bytes + session_extension_bytes", message, how.at)
    return ControlBody(_extensions(body[token:], message, how, token), body[:token])


def _error(message: Error, body: Buffer, how: Context) -> ControlBody:
    split = message.diagnostic_bytes
    if len(body) < split:
        rule = f"diagnostic_bytes {split}, body {len(body)}"
        raise _fault(Outcome.LENGTH_MISMATCH, rule, message, "body", how.at)
    return ControlBody(_extensions(body[split:], message, how, split), diagnostic=body[:split])


def _cache_put(message: CachePut, body: Buffer, how: Context) -> ControlBody:
    split = message.object_bytes
    if len(body) < split or not how.granted & OperationFeatures.CACHE_SEMANTICS:
        _require(body, split, "object_bytes", message, how.at)
    return ControlBody(_extensions(body[split:], message, how, split), object=body[:split])


def _probe(message: TransportProbe, body: Buffer, how: Context) -> ControlBody:
    _require(body, message.probe_payload_bytes, "probe_payload_bytes", message, how.at)
    return _opaque(message, body, how)


def _frame_submit(message: FrameSubmit, body: Buffer, how: Context) -> DataBody:
    bitmap = int(message.payload_kind_bitmap)
    count = message.payload_frame_count
    flat = bitmap == 1 and not count and message.submit_mode == SubmitMode.INLINE
    if not body and not bitmap & 1 and not count:
        return _submit_without_body(message, how)
    return _data_body(message, body, bitmap, count, flat, how)


def _submit_without_body(message: FrameSubmit, how: Context) -> DataBody:
    if message.object_ref_mask:
        bind_submit_objects(message, Regions(), strict=how.strict, at=how.at)
    return DataBody(BodyForm.EMPTY)


def _result_push(message: ResultPush, body: Buffer, how: Context) -> DataBody:
    bitmap = int(message.payload_kind_bitmap)
    count = message.payload_frame_count
    if not body and not bitmap & 1 and not count:
        return DataBody(BodyForm.EMPTY)
    return _data_body(message, body, bitmap, count, bitmap == 1 and not count, how)


def _data_body(
    message: FrameSubmit | ResultPush, body: Buffer, bitmap: int, count: int, flat: bool, how: Context
) -> DataBody:
    """The form follows from the metadata alone; a tolerant receiver has two fallbacks (nnrp-wire 8.1)."""
    if not flat:
        try:
            return _region_body(message, body, bitmap, count, how)
        except NnrpError as error:
            raw = None if how.strict else _raw_body(error, body, bitmap)
            if raw is None:
                raise
            return raw
    try:
        return _flat_body(message, body, how)
    except NnrpError as error:
        region = None if how.strict else _region_instead(message, body, bitmap, count, how)
        if region is None:
            raise error
        return region


def _region_body(message: FrameSubmit | ResultPush, body: Buffer, bitmap: int, count: int, how: Context) -> DataBody:
    regions = parse_regions(
        body,
        message=message.TYPE,
        payload_frame_count=count,
        payload_kind_bitmap=bitmap,
        granted=how.granted,
        strict=how.strict,
        at=how.at,
    )
    if not (bitmap & 1 or regions.inline_objects or regions.references):
        if isinstance(message, FrameSubmit) and message.object_ref_mask:
            bind_submit_objects(message, regions, strict=how.strict, at=how.at)
        return DataBody(BodyForm.REGION, regions)
    if isinstance(message, FrameSubmit):
        tensor = bind_submit_objects(message, regions, strict=how.strict, at=how.at)
    else:
        tensor = bind_result_objects(message, regions, strict=how.strict, at=how.at)
    return DataBody(BodyForm.REGION, regions, tensor)


def _flat_body(message: FrameSubmit | ResultPush, body: Buffer, how: Context) -> DataBody:
    if isinstance(message, FrameSubmit):
        camera, mode = message.camera_bytes, message.tile_index_mode
    else:
        camera, mode = 0, TileIndexMode.RAW_U16 if message.tile_index_bytes else TileIndexMode.DENSE_RANGE
    tensor = parse_flat_tensor(
        body,
        camera_bytes=camera,
        tile_index_bytes=message.tile_index_bytes,
        mode=mode,
        tile_count=message.tile_count,
        tile_base_id=message.tile_base_id,
        section_count=message.section_count,
        strict=how.strict,
        at=how.at,
    )
    return DataBody(BodyForm.FLAT_TENSOR, tensor=tensor)


def _raw_body(error: NnrpError, body: Buffer, bitmap: int) -> DataBody | None:
    """The bare payload some peers send, when the body cannot be a region body and one kind is declared."""
    unframed = error.subject == "BODY_REGION_PRELUDE" and error.outcome in (
        Outcome.TOO_SHORT,
        Outcome.LENGTH_MISMATCH,
        Outcome.LENGTH_OVERFLOW,
    )
    kinds = [kind for kind in PayloadKind if bitmap & kind]
    if not unframed or len(kinds) != 1 or kinds[0] is PayloadKind.TENSOR:
        return None
    return DataBody(BodyForm.RAW, raw=body, raw_kind=kinds[0])


def _region_instead(
    message: FrameSubmit | ResultPush, body: Buffer, bitmap: int, count: int, how: Context
) -> DataBody | None:
    try:
        return _region_body(message, body, bitmap, count, how)
    except NnrpError:
        return None


def _frame_cancel(message: Message, body: Buffer, how: Context) -> ControlBody:
    return _empty_or_extensions(message, body, how)


def cancels_more_than_one(body: Body) -> bool:
    """Whether a FRAME_CANCEL body widens the scope to group or session, so that frame_id may be 0."""
    if not isinstance(body, ControlBody):
        return False
    scope = find_extension(body.extensions, ExtType.CANCEL_SCOPE)
    return isinstance(scope, CancelScope) and scope.cancel_scope in (CancelScopeKind.GROUP, CancelScopeKind.SESSION)


Parser: TypeAlias = Callable[..., Body]

_PARSERS: dict[MessageType, Parser] = {
    MessageType.CLIENT_HELLO: _client_hello,
    MessageType.SERVER_HELLO_ACK: _server_hello_ack,
    MessageType.SESSION_PATCH: _session_patch,
    MessageType.SESSION_PATCH_ACK: _session_patch_ack,
    MessageType.CLOSE: _opaque,
    MessageType.ERROR: _error,
    MessageType.SESSION_OPEN: _session_open,
    MessageType.SESSION_OPEN_ACK: _session_open_ack,
    MessageType.SESSION_CLOSE: _only_extensions,
    MessageType.SESSION_CLOSE_ACK: _only_extensions,
    MessageType.FRAME_SUBMIT: _frame_submit,
    MessageType.FRAME_CANCEL: _frame_cancel,
    MessageType.RESULT_PUSH: _result_push,
    MessageType.RESULT_DROP: _empty_or_extensions,
    MessageType.CACHE_PUT: _cache_put,
    MessageType.CACHE_ACK: _only_extensions,
    MessageType.CACHE_INVALIDATE: _only_extensions,
    MessageType.FLOW_UPDATE: _nothing,
    MessageType.RESULT_HINT: _empty_or_extensions,
    MessageType.TRANSPORT_PROBE: _probe,
    MessageType.TRANSPORT_PROBE_ACK: _opaque,
    MessageType.SESSION_MIGRATE: _opaque,
    MessageType.SESSION_MIGRATE_ACK: _opaque,
    MessageType.PING: _nothing,
    MessageType.PONG: _nothing,
}


def parse_body(message: Message, body: Buffer, *, strict: bool, granted: OperationFeatures, at: int) -> Body:
    """The decoded body of ``message``; raises `NnrpError` for the first rule it breaks."""
    return _PARSERS[message.TYPE](message, body, Context(strict, granted, at))
