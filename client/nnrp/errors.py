"""What can go wrong, one class per way the caller may want to react."""

from __future__ import annotations

from typing import Final

from protocol.nnrp.enums import CacheErrorCode, ErrorCode, OperationState, SchemaErrorCode, SessionErrorCode
from protocol.nnrp.errors import NnrpLocalError, Outcome
from protocol.nnrp.messages import SessionPatchAck

__all__ = [
    "NnrpCacheRefused",
    "NnrpClientError",
    "NnrpConnectionLost",
    "NnrpOperationEnded",
    "NnrpPatchRefused",
    "NnrpRefused",
    "NnrpResultsLost",
    "NnrpSessionOver",
    "too_large",
]

_FAMILIES: Final = (ErrorCode, SessionErrorCode, CacheErrorCode, SchemaErrorCode)
_NAMES: Final = {int(each): each.name.lower() for family in _FAMILIES for each in family}


def too_large(subject: str) -> NnrpLocalError:
    """For a body beyond the server's max_body_bytes."""
    return NnrpLocalError(Outcome.LIMIT_EXCEEDED, "the server accepts no body of this size", subject=subject)


class NnrpClientError(Exception):
    """Base of everything this package raises."""


class NnrpConnectionLost(NnrpClientError):
    """The connection cannot be made, or was lost and will not come back. What was submitted may have been carried out."""


class NnrpRefused(NnrpClientError):
    """The server refused the hello or the session. ``code`` is its error code; with ``retry_later`` it may agree later, and not
    before ``retry_after`` seconds where it has said so (else 0)."""

    def __init__(self, message: str, code: int = 0, *, retry_later: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.retry_later = retry_later
        self.retry_after = retry_after


class NnrpSessionOver(NnrpClientError):
    """The session was closed, or cannot be resumed; a fresh one must be opened."""


class NnrpResultsLost(NnrpClientError):
    """Results of this operation are gone: the server held them no longer, or nobody took them here in time. Or it had to be sent
    again, and could not be."""


class NnrpCacheRefused(NnrpClientError):
    """The server did not store the object, or install the schema. ``code`` is its stable code (nnrp-wire 12.6, 12.7, 12.9)."""

    def __init__(self, code: int) -> None:
        super().__init__(f"refused: {_NAMES.get(code, 'unknown code')} ({code:#010x})")
        self.code = code


class NnrpPatchRefused(NnrpClientError):
    """The server has changed nothing. ``answer`` says why (nnrp-wire 7.4); with a ``retry_after_ms`` it may do so later."""

    def __init__(self, answer: SessionPatchAck) -> None:
        super().__init__(f"SESSION_PATCH was refused: {answer.reject_reason.name.lower()}")
        self.answer = answer


class NnrpOperationEnded(NnrpClientError):
    """The operation ended without a result: cancelled, superseded or failed. ``code`` says why, where the server did, and
    ``retry_after`` in how many seconds it may be tried again (else 0)."""

    def __init__(self, state: OperationState, code: int = 0, message: str = "", *, retry_after: float = 0.0) -> None:
        ending = "failed" if state is OperationState.FAILED else f"was {state.name.lower()}"
        why = f": {_NAMES.get(code, 'unknown code')} ({code:#06x})" if code else ""
        super().__init__(message or f"the operation {ending}{why}")
        self.state = state
        self.code = code
        self.retry_after = retry_after
