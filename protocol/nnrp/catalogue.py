"""The message registry of NNRP/1 preview3 and the rules for the ids in the header (nnrp-wire 3.2, 5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from protocol.nnrp.enums import ErrorScope, FlowScope, MessageType, SessionStatus
from protocol.nnrp.errors import MESSAGE_REACH, NnrpError, Outcome
from protocol.nnrp.header import Header
from protocol.nnrp.messages import MESSAGES, Message
from protocol.registry import Direction, Entry, Registry

__all__ = ["CATALOGUE", "ID_RULES", "IdRule"]

_C, _S, _B = Direction.TO_SERVER, Direction.TO_CLIENT, Direction.BOTH
_EXTENSIONS = "empty or a control extension block"

_ROWS: tuple[tuple[MessageType, Direction, str, str, str], ...] = (
    (
        MessageType.CLIENT_HELLO,
        _C,
        "control extensions, auth block",
        "body_len = control_extension_bytes + auth_bytes",
        "session 0, frame 0",
    ),
    (
        MessageType.SERVER_HELLO_ACK,
        _S,
        "control extensions",
        "body_len = control_extension_bytes; tolerant ≥",
        "session 0 or metadata.session_id, tolerant any; frame 0",
    ),
    (MessageType.SESSION_PATCH, _C, "profile patch block", "body_len = profile_patch_bytes", "session ≠ 0, frame 0"),
    (
        MessageType.SESSION_PATCH_ACK,
        _S,
        "profile patch ack block",
        "body_len = profile_patch_ack_bytes",
        "session ≠ 0, frame 0",
    ),
    (MessageType.CLOSE, _B, "reason text or control extensions", "any", "session 0, tolerant any; frame 0"),
    (
        MessageType.ERROR,
        _B,
        "diagnostic text, control extensions",
        "body_len ≥ diagnostic_bytes",
        "session 0 in scope connection; frame 0 or related_frame_id; tolerant any",
    ),
    (
        MessageType.SESSION_OPEN,
        _C,
        "resume token, auth, session extension",
        "body_len = resume_token_bytes + auth_bytes + session_extension_bytes",
        "session 0, tolerant = requested_session_id; frame 0",
    ),
    (
        MessageType.SESSION_OPEN_ACK,
        _S,
        "resume token, session extension",
        "body_len = resume_token_bytes + session_extension_bytes",
        "session = metadata.session_id, frame 0",
    ),
    (MessageType.SESSION_CLOSE, _B, _EXTENSIONS, "", "session ≠ 0, frame 0"),
    (MessageType.SESSION_CLOSE_ACK, _B, _EXTENSIONS, "", "session ≠ 0, frame 0"),
    (MessageType.FRAME_SUBMIT, _C, "submit body (section 8)", "", "session ≠ 0, frame ≠ 0"),
    (
        MessageType.FRAME_CANCEL,
        _C,
        "empty; extension block accepted",
        "else BadCombination",
        "session ≠ 0; frame ≠ 0, or 0 with a granted cancel_scope of group or session",
    ),
    (MessageType.RESULT_PUSH, _S, "result body (section 8)", "", "session ≠ 0, frame ≠ 0"),
    (
        MessageType.RESULT_DROP,
        _S,
        "empty; extension block accepted",
        "else BadCombination",
        "session ≠ 0, frame ≠ 0",
    ),
    (
        MessageType.CACHE_PUT,
        _B,
        "object bytes",
        "body_len = object_bytes; plus extensions with cache_semantics granted",
        "session ≠ 0, tolerant 0; frame 0",
    ),
    (MessageType.CACHE_ACK, _B, _EXTENSIONS, "", "session ≠ 0, tolerant 0; frame 0"),
    (MessageType.CACHE_INVALIDATE, _B, _EXTENSIONS, "", "session ≠ 0, tolerant 0; frame 0"),
    (
        MessageType.FLOW_UPDATE,
        _B,
        "empty",
        "body_len = 0, else BadCombination",
        "session 0 in scope connection, else ≠ 0; frame 0",
    ),
    (
        MessageType.RESULT_HINT,
        _S,
        "empty; extension block accepted",
        "else BadCombination",
        "session ≠ 0, tolerant 0; any frame",
    ),
    (MessageType.TRANSPORT_PROBE, _C, "padding", "body_len = probe_payload_bytes", "session 0, frame 0; tolerant any"),
    (MessageType.TRANSPORT_PROBE_ACK, _S, "sent empty", "any", "session 0, frame 0; tolerant any"),
    (MessageType.SESSION_MIGRATE, _C, "opaque", "any", "session ≠ 0, frame 0"),
    (MessageType.SESSION_MIGRATE_ACK, _S, "opaque", "any", "session ≠ 0, frame 0"),
    (MessageType.PING, _B, "empty", "body_len = 0, else BadCombination", "any session, echoed; frame 0"),
    (MessageType.PONG, _B, "empty", "body_len = 0, else BadCombination", "any session; frame 0"),
)
_MAY_DROP = (MessageType.FRAME_CANCEL, MessageType.PING, MessageType.PONG)

CATALOGUE: Registry[Message] = Registry(
    tuple(
        Entry(
            int(kind),
            kind.name,
            MESSAGES[kind],
            direction,
            MESSAGE_REACH[kind],
            body,
            body_rule,
            ids,
            kind in _MAY_DROP,
        )
        for kind, direction, body, body_rule, ids in _ROWS
    )
)
"""Every message type of preview3."""


IdRule: TypeAlias = Callable[[int, int, Any, bool], None]
"""session_id and frame_id of the header, the metadata, strict or not; raises when they do not fit the message."""


def _refuse(message: Message, field: str, rule: str) -> NnrpError:
    offset = Header.LAYOUT.field(field).offset
    subject, outcome = message.LAYOUT.name, Outcome.BAD_COMBINATION
    return NnrpError(outcome, rule, subject=subject, field=field, offset=offset, reach=message.REACH)


def _frame_zero(frame_id: int, metadata: Any) -> None:
    if frame_id:
        raise _refuse(metadata, "frame_id", "frame_id must be 0 in a message that is about no frame")


def _connection(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    if session_id:
        raise _refuse(metadata, "session_id", "a connection message carries session_id 0")
    _frame_zero(frame_id, metadata)


def _connection_or_any(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    if strict:
        _connection(session_id, frame_id, metadata, strict)


def _close(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    if strict and session_id:
        raise _refuse(metadata, "session_id", "CLOSE ends the connection and carries session_id 0")
    _frame_zero(frame_id, metadata)


def _hello_ack(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    if strict and session_id not in (0, metadata.session_id):
        raise _refuse(metadata, "session_id", "session_id must be 0 or the granted one")
    _frame_zero(frame_id, metadata)


def _session(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    if not session_id:
        raise _refuse(metadata, "session_id", "a session message names its session")
    _frame_zero(frame_id, metadata)


def _session_open(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    allowed = (0,) if strict else (0, metadata.requested_session_id)
    if session_id not in allowed:
        raise _refuse(metadata, "session_id", "SESSION_OPEN carries session_id 0")
    _frame_zero(frame_id, metadata)


def _session_open_ack(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    installed = metadata.session_status in (SessionStatus.OPENED, SessionStatus.RESUMED)
    if session_id != metadata.session_id and (strict or installed):
        raise _refuse(metadata, "session_id", "header and metadata name the same session")
    _frame_zero(frame_id, metadata)


def _frame(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    if not (session_id and frame_id):
        field = "frame_id" if session_id else "session_id"
        raise _refuse(metadata, field, "a frame message names its session and frame")


def _cancel(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    if not session_id:
        raise _refuse(metadata, "session_id", "a frame message names its session")


def _cache(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    if strict and not session_id:
        raise _refuse(metadata, "session_id", "a cache message names its session")
    _frame_zero(frame_id, metadata)


def _hint(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    if strict and not session_id:
        raise _refuse(metadata, "session_id", "a result hint names its session")


def _flow(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    if (metadata.scope_kind == FlowScope.CONNECTION) != (session_id == 0):
        raise _refuse(metadata, "session_id", "session_id is 0 in scope connection and names the session in the others")
    _frame_zero(frame_id, metadata)


def _error(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    if not strict:
        return
    if metadata.error_scope == ErrorScope.CONNECTION and session_id:
        raise _refuse(metadata, "session_id", "an error of scope connection carries session_id 0")
    if frame_id not in (0, metadata.related_frame_id):
        raise _refuse(metadata, "frame_id", "frame_id is 0 or the related frame")


def _ping(session_id: int, frame_id: int, metadata: Any, strict: bool) -> None:
    _frame_zero(frame_id, metadata)


ID_RULES: dict[MessageType, IdRule] = {
    MessageType.CLIENT_HELLO: _connection,
    MessageType.SERVER_HELLO_ACK: _hello_ack,
    MessageType.SESSION_PATCH: _session,
    MessageType.SESSION_PATCH_ACK: _session,
    MessageType.CLOSE: _close,
    MessageType.ERROR: _error,
    MessageType.SESSION_OPEN: _session_open,
    MessageType.SESSION_OPEN_ACK: _session_open_ack,
    MessageType.SESSION_CLOSE: _session,
    MessageType.SESSION_CLOSE_ACK: _session,
    MessageType.FRAME_SUBMIT: _frame,
    MessageType.FRAME_CANCEL: _cancel,
    MessageType.RESULT_PUSH: _frame,
    MessageType.RESULT_DROP: _frame,
    MessageType.CACHE_PUT: _cache,
    MessageType.CACHE_ACK: _cache,
    MessageType.CACHE_INVALIDATE: _cache,
    MessageType.FLOW_UPDATE: _flow,
    MessageType.RESULT_HINT: _hint,
    MessageType.TRANSPORT_PROBE: _connection_or_any,
    MessageType.TRANSPORT_PROBE_ACK: _connection_or_any,
    MessageType.SESSION_MIGRATE: _session,
    MessageType.SESSION_MIGRATE_ACK: _session,
    MessageType.PING: _ping,
    MessageType.PONG: _ping,
}
"""Each refuses ids in the header that do not fit the message (nnrp-wire 3.2).

A FRAME_CANCEL with frame_id 0 passes here: only its body tells whether that is allowed.
"""
