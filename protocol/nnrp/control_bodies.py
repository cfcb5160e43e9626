"""The bodies of control messages and the rules for them (nnrp-wire 5, 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from protocol.layout import Buffer
from protocol.nnrp.bodies import Context, ControlBody
from protocol.nnrp.enums import CancelScopeKind, ExtType, MessageType, OperationFeatures
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.extensions import ControlExtension, find_extension, parse_extensions
from protocol.nnrp.messages import (
    CachePut,
    ClientHello,
    Error,
    Message,
    ServerHelloAck,
    SessionOpen,
    SessionOpenAck,
    SessionPatch,
    SessionPatchAck,
    TransportProbe,
)
from protocol.nnrp.vendor import CancelScope

__all__ = ["CONTROL_BODIES", "ControlParser", "widens_cancel"]

ControlParser: TypeAlias = Callable[[Any, Buffer, Context], ControlBody]

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
        if error.outcome is Outcome.UNKNOWN_CRITICAL or not error.subject.startswith("CONTROL_EXTENSION"):
            raise  # the block is well-formed, what an entry says is not
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


def widens_cancel(body: object) -> bool:
    """Whether a FRAME_CANCEL body widens the scope to group or session, so that frame_id may be 0."""
    if not isinstance(body, ControlBody):
        return False
    scope = find_extension(body.extensions, ExtType.CANCEL_SCOPE)
    return isinstance(scope, CancelScope) and scope.cancel_scope in (CancelScopeKind.GROUP, CancelScopeKind.SESSION)


CONTROL_BODIES: dict[MessageType, ControlParser] = {
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
    MessageType.FRAME_CANCEL: _empty_or_extensions,
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
