"""JSON-RPC errors of ``/acp``: one table from the engine's conditions to code, message and data (acp-http section 9).

What is not in the table is ``-32603 Internal error`` and says nothing of itself to the peer; the log has it (ACP-220).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from protocol.acp import RpcCode
from server.telemetry import log
from sessions import errors as engine

__all__ = ["ENGINE_ERRORS", "RpcError", "agent_error", "invalid_params", "not_owned", "rpc_error_of", "unknown_method"]


class RpcError(Exception):
    """An answer that is an error: ``code``, ``message``, and ``data`` or None."""

    def __init__(self, code: int, message: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = int(code)
        self.message = message
        self.data = data


def invalid_params(message: str, **data: Any) -> RpcError:
    return RpcError(RpcCode.INVALID_PARAMS, message, data or None)


def unknown_method(method: str) -> RpcError:
    """ACP-053."""
    return RpcError(RpcCode.METHOD_NOT_FOUND, f"Unknown method: {method}")


def not_owned(session_id: str) -> RpcError:
    """ACP-121: the same words for a foreign session and for one that does not exist (C-073)."""
    return RpcError(RpcCode.INVALID_PARAMS, f"Session {session_id} is not owned by this connection")


def agent_error(error: engine.RunnerError) -> RpcError:
    """An error of the agent: its own text stays in ``data.details``, never in the message (ACP-220)."""
    data: dict[str, Any] = {"errorKind": error.error_kind or "internal"}
    if isinstance(error.data, Mapping) and isinstance(error.data.get("details"), str):
        data["details"] = error.data["details"]
    return RpcError(RpcCode.INTERNAL_ERROR, "Internal error", data)


Make = Callable[[Any], RpcError]


def _internal(error: Exception, **data: Any) -> RpcError:
    return RpcError(RpcCode.INTERNAL_ERROR, str(error), data)


def _retryable(kind: str, status: int, **more: Any) -> Make:
    return lambda error: _internal(error, errorKind=kind, httpStatus=status, retryable=True, **more)


def _restore_timeout(error: engine.SessionRestoreTimeout) -> RpcError:
    return _internal(
        error,
        code="session_restore_timeout",
        errorKind="restore_timeout",
        httpStatus=504,
        retryable=True,
        retryAfterSeconds=5,
        sessionId=error.session_id,
        action=error.action,
        timeoutMs=round(error.timeout * 1000),
    )


def _start_timeout(error: engine.AgentStartTimeout) -> RpcError:
    return _internal(
        error,
        code="init_timeout",
        errorKind="init_timeout",
        httpStatus=504,
        retryable=True,
        retryAfterSeconds=5,
        timeoutMs=round(error.timeout * 1000),
    )


def _queue_full(error: engine.PromptQueueFull) -> RpcError:
    return _internal(
        error,
        errorKind="prompt_queue_full",
        sessionId=error.session_id,
        limit=error.limit,
        pendingCount=error.pending,
    )


def _unavailable(error: engine.RunnerError) -> RpcError:
    data: dict[str, Any] = {"errorKind": "acp_channel_unavailable", "httpStatus": 503, "retryable": True}
    if isinstance(error.data, Mapping) and isinstance(error.data.get("details"), str):
        data["details"] = error.data["details"]
    return RpcError(RpcCode.INTERNAL_ERROR, "The agent is not available", data)


ENGINE_ERRORS: Final[Mapping[type[object], Make]] = {
    engine.SessionNotFound: lambda error: invalid_params(str(error)),
    engine.WorkspaceMismatch: lambda error: invalid_params(str(error)),
    engine.UnknownClient: lambda error: invalid_params(str(error)),
    engine.SessionConflict: lambda error: invalid_params(
        str(error),
        httpStatus=409,
        errorKind="session_id_conflict",
        sessionId=error.session_id,
        conflict=error.conflict,
    ),
    engine.PromptQueueFull: _queue_full,
    engine.SessionLimitExceeded: lambda error: _internal(
        error, errorKind="session_limit_exceeded", limit=error.limit, scope=error.scope, retryable=True
    ),
    engine.SessionRestoreTimeout: _restore_timeout,
    engine.AgentStartTimeout: _start_timeout,
    engine.RestoreInProgress: _retryable("restore_in_progress", 409, retryAfterSeconds=5),
    engine.AgentStartError: _unavailable,
    engine.RunnerLost: _unavailable,
    engine.Unsupported: lambda error: _internal(error, errorKind="unsupported", httpStatus=501),
    engine.HarbourDraining: lambda error: _internal(error, errorKind="daemon_draining"),
    engine.RunnerError: agent_error,
}
"""Looked up along the class's ancestors, so the nearest entry counts."""


def _maker(kind: type[object]) -> Make | None:
    return ENGINE_ERRORS.get(kind)


def rpc_error_of(error: Exception) -> RpcError:
    """The answer to a call that ended with ``error``. Logs what has no entry."""
    if isinstance(error, RpcError):
        return error
    for each in type(error).__mro__:
        make = _maker(each)
        if make is not None:
            return make(error)
    log.error("acp_call_failed", exc_info=error)
    return RpcError(RpcCode.INTERNAL_ERROR, "Internal error", {"errorKind": "internal"})
