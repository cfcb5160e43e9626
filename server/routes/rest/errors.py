"""Every refusal of the REST surface in one place: the engine's error classes and our own, with status, code and fields.

Clients branch on the status and on ``code``, never on the text (REST-002).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
from quart import Response

from server.routes.body import json_response
from sessions import errors as engine
from sessions.operations import OperationExists

__all__ = ["ENGINE_ERRORS", "REFUSALS", "Kind", "Refused", "answer"]


@attrs.frozen(slots=True, kw_only=True)
class Kind:
    """One way a request is refused. The documentation's table is made of these."""

    status: int
    code: str | None
    doc: str
    details: tuple[str, ...] = ()
    """Further fields of the body."""
    retry_after: int | None = None
    """Seconds told in ``Retry-After``."""
    rule: str = ""


class Refused(Exception):
    """Raised by a route; answered as ``{"error": text, "code"?: …, **details}``."""

    def __init__(self, kind: Kind, error: str, **details: Any) -> None:
        super().__init__(error)
        self.kind = kind
        self.error = error
        self.details = details


# What a route finds wrong by itself, before the engine is asked.

INVALID_CLIENT_ID: Final = Kind(
    status=400, code="invalid_client_id", doc="`X-Qwen-Client-Id` is malformed", rule="REST-004"
)
INVALID_SESSION_ID: Final = Kind(
    status=400, code="invalid_session_id", doc="`sessionId` is not a UUID (version 1 to 5)", rule="REST-023"
)
INVALID_SESSION_SCOPE: Final = Kind(
    status=400, code="invalid_session_scope", doc="`sessionScope` is neither `single` nor `thread`", rule="REST-021"
)
INVALID_DEADLINE: Final = Kind(
    status=400, code="invalid_deadline_ms", doc="`deadlineMs` is not a positive integer", rule="REST-060"
)
INVALID_MAX_QUEUED: Final = Kind(
    status=400, code="invalid_max_queued", doc="`maxQueued` is not a decimal number in [16, 2048]", rule="REST-080"
)
INVALID_APPROVAL_MODE: Final = Kind(
    status=400,
    code="invalid_approval_mode",
    doc="The session has no such approval mode",
    details=("allowed",),
    rule="REST-121",
)
INVALID_METADATA: Final = Kind(
    status=400, code="invalid_metadata", doc="A metadata field is malformed", details=("field",), rule="REST-122"
)
INVALID_IDEMPOTENCY_KEY: Final = Kind(
    status=400, code="invalid_idempotency_key", doc="`Idempotency-Key` is not 1 to 128 printable ASCII characters"
)
INVALID_CURSOR: Final = Kind(status=400, code="invalid_cursor", doc="A page cursor this server did not give out")
INVALID_REQUEST: Final = Kind(
    status=400, code="invalid_request", doc="The URL is badly encoded, or a query parameter is out of range"
)
BAD_FIELD: Final = Kind(status=400, code=None, doc="A field of the body is missing or has the wrong type")
PERMISSION_NOT_PENDING: Final = Kind(
    status=404,
    code=None,
    doc="Nothing is pending under this request id: unknown, of another session, or resolved (then with its `outcome`)",
    details=("requestId", "sessionId", "outcome"),
    rule="REST-101",
)
NOT_SUPPORTED: Final = Kind(
    status=404, code="not_supported", doc="A route of the daemon that this server does not have (rest.md section 10)"
)

REFUSALS: Final = (
    INVALID_CLIENT_ID,
    INVALID_SESSION_ID,
    INVALID_SESSION_SCOPE,
    INVALID_DEADLINE,
    INVALID_MAX_QUEUED,
    INVALID_APPROVAL_MODE,
    INVALID_METADATA,
    INVALID_IDEMPOTENCY_KEY,
    INVALID_CURSOR,
    INVALID_REQUEST,
    BAD_FIELD,
    PERMISSION_NOT_PENDING,
    NOT_SUPPORTED,
)

Fields = Callable[[Any], Mapping[str, Any]]


def _agent_error(error: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if error.code is not None:
        fields["code"] = error.code
    if error.data is not None:
        fields["data"] = error.data
    if error.error_kind is not None:
        fields["errorKind"] = error.error_kind
    return fields


def _lost(error: Any) -> dict[str, Any]:
    # The agent's own number would hide the code clients look for.
    return {key: value for key, value in _agent_error(error).items() if key != "code"}


ENGINE_ERRORS: Final[Mapping[type[Exception], tuple[Kind, Fields]]] = {
    engine.SessionNotFound: (
        Kind(
            status=404,
            code="session_not_found",
            doc="No live session has this id; for load and resume: none can be brought back",
            details=("sessionId",),
            rule="REST-033, REST-050",
        ),
        lambda error: {"sessionId": error.session_id},
    ),
    engine.UnknownClient: (
        Kind(
            status=400,
            code="invalid_client_id",
            doc="`X-Qwen-Client-Id` is well-formed and not registered for the session",
            details=("sessionId", "clientId"),
            rule="REST-004",
        ),
        lambda error: {"sessionId": error.session_id, "clientId": error.client_id},
    ),
    engine.PromptQueueFull: (
        Kind(
            status=503,
            code="prompt_queue_full",
            doc="As many prompts are accepted and unsettled as the session may hold",
            details=("sessionId", "limit", "pendingCount"),
            retry_after=5,
            rule="REST-065",
        ),
        lambda error: {"sessionId": error.session_id, "limit": error.limit, "pendingCount": error.pending},
    ),
    engine.PromptNotFound: (
        Kind(
            status=404,
            code="prompt_not_found",
            doc="The session has accepted no prompt with this id, or has forgotten it",
            details=("promptId",),
        ),
        lambda error: {"promptId": error.prompt_id},
    ),
    engine.IdempotencyKeyReused: (
        Kind(status=409, code="idempotency_key_reused", doc="The `Idempotency-Key` came before with another body"),
        lambda error: {},
    ),
    engine.WorkspaceMismatch: (
        Kind(
            status=400,
            code="workspace_mismatch",
            doc="The directory is not a workspace of this server",
            details=("boundWorkspace", "requestedWorkspace"),
            rule="REST-020",
        ),
        lambda error: {"boundWorkspace": error.bound, "requestedWorkspace": error.requested},
    ),
    engine.SessionConflict: (
        Kind(
            status=409,
            code="session_id_conflict",
            doc="The session id is in use",
            details=("sessionId", "conflict"),
            rule="REST-023",
        ),
        lambda error: {"sessionId": error.session_id, "conflict": error.conflict},
    ),
    engine.SessionLimitExceeded: (
        Kind(
            status=503,
            code="session_limit_exceeded",
            doc="No place for another live session",
            details=("limit", "scope"),
            retry_after=5,
            rule="REST-024",
        ),
        lambda error: {"limit": error.limit, "scope": error.scope},
    ),
    engine.RestoreInProgress: (
        Kind(
            status=409,
            code="restore_in_progress",
            doc="Another caller is bringing this session back right now",
            details=("sessionId",),
            retry_after=5,
            rule="REST-033",
        ),
        lambda error: {"sessionId": error.session_id},
    ),
    engine.SessionRestoreTimeout: (
        Kind(
            status=504,
            code="session_restore_timeout",
            doc="The agent did not bring the session back in time",
            details=("errorKind", "retryable", "sessionId", "action", "timeoutMs"),
            retry_after=5,
            rule="REST-033",
        ),
        lambda error: {
            "errorKind": "restore_timeout",
            "retryable": True,
            "sessionId": error.session_id,
            "action": error.action,
            "timeoutMs": round(error.timeout * 1000),
        },
    ),
    engine.AgentStartTimeout: (
        Kind(
            status=504,
            code="init_timeout",
            doc="The agent did not start in time; nothing was changed",
            details=("errorKind", "retryable", "timeoutMs"),
            retry_after=5,
            rule="REST-025",
        ),
        lambda error: {
            "errorKind": "init_timeout",
            "retryable": True,
            "timeoutMs": round(error.timeout * 1000),
        },
    ),
    engine.AgentStartError: (
        Kind(
            status=503,
            code="acp_channel_unavailable",
            doc="The agent could not be started",
            details=("errorKind", "data"),
            retry_after=5,
        ),
        _lost,
    ),
    engine.RunnerLost: (
        Kind(
            status=503,
            code="acp_channel_unavailable",
            doc="The agent is gone",
            details=("errorKind", "data"),
            retry_after=5,
        ),
        _lost,
    ),
    engine.Unsupported: (
        Kind(status=501, code="not_supported", doc="The agent behind the session cannot do this"),
        lambda error: {},
    ),
    engine.RunnerError: (
        Kind(
            status=500,
            code=None,
            doc="The agent answered with an error: `code` is its JSON-RPC number",
            details=("code", "data", "errorKind"),
            rule="REST-002",
        ),
        _agent_error,
    ),
    engine.HarbourDraining: (
        Kind(status=503, code="daemon_draining", doc="The server is shutting down", retry_after=5),
        lambda error: {},
    ),
    engine.SubscriberLimitExceeded: (
        Kind(
            status=429,
            code="subscriber_limit_exceeded",
            doc="The session has as many readers as it may have",
            details=("limit",),
            retry_after=5,
            rule="REST-082",
        ),
        lambda error: {"limit": error.limit},
    ),
    engine.InvalidOption: (
        Kind(
            status=400,
            code="invalid_option_id",
            doc="The vote names an option that was not offered; the request stays open",
            details=("requestId", "optionId"),
            rule="REST-102",
        ),
        lambda error: {"requestId": error.request_id, "optionId": error.option_id},
    ),
    engine.VoteForbidden: (
        Kind(
            status=403,
            code="permission_forbidden",
            doc="The permission policy refuses this voter",
            details=("requestId", "sessionId", "reason"),
            rule="REST-102",
        ),
        lambda error: {"requestId": error.request_id, "sessionId": error.session_id, "reason": error.reason},
    ),
    OperationExists: (
        Kind(status=409, code="session_conflict", doc="An operation with this id exists"),
        lambda error: {},
    ),
    engine.SessionError: (
        Kind(status=409, code="session_busy", doc="The session is in a phase in which this cannot be done"),
        lambda error: {},
    ),
}
"""Looked up along the class's bases, the most special first. A test asserts that every error of the engine is found."""


def answer(error: Exception) -> Response:
    """The response for a `Refused` or an error of the engine. Raises ``LookupError`` for anything else."""
    if isinstance(error, Refused):
        return _response(error.kind, error.error, error.details)
    for each in type(error).__mro__:
        found: tuple[Kind, Fields] | None = ENGINE_ERRORS.get(each)
        if found is not None:
            return _response(found[0], str(error), found[1](error))
    raise LookupError(type(error).__name__)


def _response(kind: Kind, text: str, details: Mapping[str, Any]) -> Response:
    body: dict[str, Any] = {"error": text}
    if kind.code is not None:
        body["code"] = kind.code
    body.update(details)
    headers = {} if kind.retry_after is None else {"Retry_After": str(kind.retry_after)}
    return json_response(body, kind.status, **headers)
