"""What can be wrong with NNRP bytes, and the ERROR each fault is answered with (nnrp-wire 15)."""

from __future__ import annotations

from enum import Enum

from protocol.errors import LocalProtocolError, Reach, RemoteProtocolError
from protocol.nnrp.enums import ErrorCode, ErrorScope, MessageType, SchemaErrorCode

__all__ = ["ERROR_SCOPES", "MESSAGE_REACH", "WIRE_CODES", "NnrpError", "NnrpLocalError", "Outcome", "wire_code"]


class Outcome(Enum):
    """Names of the local validation outcomes (``E:Name`` in the specification)."""

    TOO_SHORT = "TooShort"
    BAD_MAGIC = "BadMagic"
    BAD_HEADER_LEN = "BadHeaderLen"
    BAD_VERSION = "BadVersion"
    BAD_WIRE_FORMAT = "BadWireFormat"
    UNKNOWN_MSG_TYPE = "UnknownMsgType"
    UNKNOWN_ENUM = "UnknownEnum"
    RESERVED_BITS = "ReservedBits"
    RESERVED_NON_ZERO = "ReservedNonZero"
    LENGTH_MISMATCH = "LengthMismatch"
    LENGTH_OVERFLOW = "LengthOverflow"
    BAD_COMBINATION = "BadCombination"
    BAD_STATE = "BadState"
    UNKNOWN_SESSION = "UnknownSession"
    SESSION_EXISTS = "SessionExists"
    UNKNOWN_OPERATION = "UnknownOperation"
    OPERATION_EXISTS = "OperationExists"
    BAD_TRANSITION = "BadTransition"
    LIMIT_EXCEEDED = "LimitExceeded"
    # Beyond the list at the top of the specification (nnrp-wire 20).
    STALE_EPOCH = "StaleEpoch"
    UNKNOWN_CRITICAL = "UnknownCritical"
    SCHEMA_HASH_CONFLICT = "SchemaHashConflict"
    SCHEMA_UPDATE_REJECTED = "SchemaUpdateRejected"
    SCHEMA_INCOMPATIBLE = "SchemaIncompatible"
    SCHEMA_UNKNOWN = "SchemaUnknown"
    SCHEMA_VERSION_UNKNOWN = "SchemaVersionUnknown"
    SCHEMA_DEPENDENCY_MISSING = "SchemaDependencyMissing"


WIRE_CODES: dict[Outcome, int] = {
    Outcome.TOO_SHORT: ErrorCode.MALFORMED_BODY,
    Outcome.BAD_MAGIC: ErrorCode.MALFORMED_HEADER,
    Outcome.BAD_HEADER_LEN: ErrorCode.MALFORMED_HEADER,
    Outcome.BAD_VERSION: ErrorCode.UNSUPPORTED_VERSION,
    Outcome.BAD_WIRE_FORMAT: ErrorCode.UNSUPPORTED_VERSION,
    Outcome.UNKNOWN_MSG_TYPE: ErrorCode.MALFORMED_HEADER,
    Outcome.UNKNOWN_ENUM: ErrorCode.MALFORMED_BODY,
    Outcome.RESERVED_BITS: ErrorCode.MALFORMED_BODY,
    Outcome.RESERVED_NON_ZERO: ErrorCode.MALFORMED_BODY,
    Outcome.LENGTH_MISMATCH: ErrorCode.MALFORMED_BODY,
    Outcome.LENGTH_OVERFLOW: ErrorCode.MALFORMED_HEADER,
    Outcome.BAD_COMBINATION: ErrorCode.MALFORMED_BODY,
    Outcome.BAD_STATE: ErrorCode.INVALID_STATE,
    Outcome.UNKNOWN_SESSION: ErrorCode.INVALID_STATE,
    Outcome.SESSION_EXISTS: ErrorCode.INVALID_STATE,
    Outcome.UNKNOWN_OPERATION: ErrorCode.INVALID_STATE,
    Outcome.OPERATION_EXISTS: ErrorCode.INVALID_STATE,
    Outcome.BAD_TRANSITION: ErrorCode.INVALID_STATE,
    Outcome.LIMIT_EXCEEDED: ErrorCode.LIMIT_EXCEEDED,
    Outcome.STALE_EPOCH: ErrorCode.NONE,
    Outcome.UNKNOWN_CRITICAL: ErrorCode.UNSUPPORTED_CAPABILITY,
    Outcome.SCHEMA_HASH_CONFLICT: SchemaErrorCode.SCHEMA_HASH_CONFLICT,
    Outcome.SCHEMA_UPDATE_REJECTED: SchemaErrorCode.SCHEMA_UPDATE_REJECTED,
    Outcome.SCHEMA_INCOMPATIBLE: SchemaErrorCode.SCHEMA_INCOMPATIBLE,
    Outcome.SCHEMA_UNKNOWN: SchemaErrorCode.SCHEMA_UNKNOWN,
    Outcome.SCHEMA_VERSION_UNKNOWN: SchemaErrorCode.SCHEMA_VERSION_UNKNOWN,
    Outcome.SCHEMA_DEPENDENCY_MISSING: SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING,
}
"""The code an ERROR carries for each outcome, where the check that failed names no other (nnrp-wire 15)."""

_CONNECTION = {
    MessageType.CLIENT_HELLO,
    MessageType.SERVER_HELLO_ACK,
    MessageType.CLOSE,
    MessageType.TRANSPORT_PROBE,
    MessageType.TRANSPORT_PROBE_ACK,
    MessageType.PING,
    MessageType.PONG,
}
_OPERATION = {
    MessageType.FRAME_SUBMIT,
    MessageType.FRAME_CANCEL,
    MessageType.RESULT_PUSH,
    MessageType.RESULT_DROP,
}
MESSAGE_REACH: dict[MessageType, Reach] = {
    kind: Reach.CONNECTION if kind in _CONNECTION else Reach.OPERATION if kind in _OPERATION else Reach.SESSION
    for kind in MessageType
}
"""What a malformed message of this type takes down with it: "the message's scope" of nnrp-wire 15."""

ERROR_SCOPES: dict[Reach, ErrorScope] = {
    Reach.CONNECTION: ErrorScope.CONNECTION,
    Reach.SESSION: ErrorScope.SESSION,
    Reach.OPERATION: ErrorScope.FRAME,
    Reach.PACKET: ErrorScope.FRAME,
}


def wire_code(outcome: Outcome) -> int:
    """The ERROR.error_code for ``outcome``; 0 means: drop silently, send no ERROR."""
    return WIRE_CODES[outcome]


def _sentence(outcome: Outcome, rule: str, subject: str, field: str | None, offset: int | None) -> str:
    where = ".".join(part for part in (subject, field) if part) or "packet"
    at = "" if offset is None else f" at offset {offset}"
    return f"{where}{at}: {outcome.value}: {rule}"


class NnrpError(RemoteProtocolError):
    """The peer's bytes, or their order, are illegal.

    ``outcome`` names the fault, ``subject`` the message or block, ``field`` and ``offset`` (bytes from the start of
    the packet, or of the block when it was decoded on its own) the place, ``rule`` the sentence of the specification.
    ``code`` is what an ERROR carries (0: drop, send none), ``reach`` how far the damage goes, ``fatal`` whether the
    connection must close. ``session_id`` and ``frame_id`` name what the ERROR is about, 0 when nothing.
    """

    def __init__(
        self,
        outcome: Outcome,
        rule: str,
        *,
        subject: str = "",
        field: str | None = None,
        offset: int | None = None,
        code: int | None = None,
        reach: Reach = Reach.CONNECTION,
        fatal: bool | None = None,
        session_id: int = 0,
        frame_id: int = 0,
    ) -> None:
        super().__init__(_sentence(outcome, rule, subject, field, offset))
        self.outcome = outcome
        self.rule = rule
        self.subject = subject
        self.field = field
        self.offset = offset
        self.code = wire_code(outcome) if code is None else code
        self.reach = reach
        self.fatal = reach is Reach.CONNECTION if fatal is None else fatal
        self.session_id = session_id
        self.frame_id = frame_id

    @property
    def scope(self) -> ErrorScope:
        """error_scope of the ERROR that reports this fault."""
        return ERROR_SCOPES[self.reach]


class NnrpLocalError(LocalProtocolError):
    """This side tried to build or send an illegal packet; same attributes as `NnrpError`, nothing was sent."""

    def __init__(
        self,
        outcome: Outcome,
        rule: str,
        *,
        subject: str = "",
        field: str | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(_sentence(outcome, rule, subject, field, offset))
        self.outcome = outcome
        self.rule = rule
        self.subject = subject
        self.field = field
        self.offset = offset
