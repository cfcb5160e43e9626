"""What can go wrong, one class per way the caller may want to react (CLI-003)."""

from __future__ import annotations

from typing import Any

from protocol.acp import http_status_of
from protocol.sse import SseFramingError

__all__ = [
    "DaemonConnectionError",
    "DaemonError",
    "DaemonHttpError",
    "DaemonPendingPromptLimitError",
    "DaemonPromptQueueFullError",
    "DaemonProtocolError",
    "DaemonStreamEndedError",
    "DaemonTimeoutError",
    "DaemonTransportClosedError",
    "DaemonTurnError",
    "JsonRpcError",
    "PromptMayBeAcceptedError",
    "SseFramingError",
]


class DaemonError(Exception):
    """Base of everything this room raises about a daemon, except :class:`SseFramingError`."""


class DaemonHttpError(DaemonError):
    """The daemon refused a request. ``body`` is the decoded answer, ``retry_after`` its hint in seconds."""

    def __init__(self, status: int, body: Any, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.message = message
        self.retry_after = retry_after

    @property
    def code(self) -> str | None:
        """The daemon's own name for the condition (``session_not_found``...), if it gave one."""
        details = self.body if isinstance(self.body, dict) else {}
        for name in ("code", "errorKind"):
            value = details.get(name)
            if isinstance(value, str):
                return value
        return None


class DaemonPromptQueueFullError(DaemonHttpError):
    """The *daemon* refused a prompt because its queue is full; nothing ran. Repeating it is the caller's choice."""

    @property
    def session_id(self) -> str:
        """The session whose queue is full."""
        return str(self.body.get("sessionId", ""))

    @property
    def limit(self) -> int:
        """The limit the daemon enforces."""
        return _number(self.body.get("limit"))

    @property
    def pending_count(self) -> int:
        """Prompts accepted and not settled at that moment."""
        return _number(self.body.get("pendingCount"))


class DaemonTurnError(DaemonHttpError):
    """An accepted prompt failed: its turn ended with ``turn_error``. Status 500, ``body`` is the code."""

    def __init__(self, data: dict[str, Any]) -> None:
        code = data.get("code")
        super().__init__(500, code if isinstance(code, str) else "turn_error", str(data.get("message", "turn failed")))
        self.data = data
        self.prompt_id = data.get("promptId")

    @property
    def code(self) -> str | None:
        """The daemon's code, or ``turn_error``."""
        return str(self.body)


class JsonRpcError(DaemonHttpError):
    """A JSON-RPC error. ``status`` and ``body`` say the same as the REST surface would."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        details = data if isinstance(data, dict) else {}
        super().__init__(
            http_status_of(code, data),
            {"error": message} | details,
            message,
            retry_after=_seconds(details.get("retryAfterSeconds")),
        )
        self.rpc_code = code
        self.data = data


class DaemonPendingPromptLimitError(DaemonError):
    """The local limit was reached. The request was *not* sent (CLI-011)."""

    def __init__(self, session_id: str, limit: int, pending_count: int) -> None:
        super().__init__(f"{pending_count} prompts of session {session_id} are pending, the local limit is {limit}")
        self.session_id = session_id
        self.limit = limit
        self.pending_count = pending_count


class DaemonTransportClosedError(DaemonError):
    """The transport was closed, or its peer is gone for good. The call had no effect and may be repeated on another."""


class DaemonConnectionError(DaemonError):
    """The connection failed. ``maybe_sent`` tells whether the daemon may have received the request all the same."""

    def __init__(self, message: str, *, maybe_sent: bool) -> None:
        super().__init__(message)
        self.maybe_sent = maybe_sent


class DaemonTimeoutError(DaemonConnectionError):
    """The daemon did not answer in time. It may have received the request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, maybe_sent=True)


class PromptMayBeAcceptedError(DaemonConnectionError):
    """The answer to a prompt was lost: it may run, and was not sent again (C-108)."""

    def __init__(self, message: str, *, idempotency_key: str) -> None:
        super().__init__(message, maybe_sent=True)
        self.idempotency_key = idempotency_key


class DaemonStreamEndedError(DaemonError):
    """The event stream ended for good before the prompt's outcome was seen."""


class DaemonProtocolError(DaemonError):
    """The daemon answered something that cannot be understood."""


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else None
