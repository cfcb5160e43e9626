"""Everything the engine raises at a caller, one class per condition.

A wire maps the class, never the text. Each carries the fields the specifications put into the error body.
"""

from __future__ import annotations

__all__ = [
    "AgentStartError",
    "AgentStartTimeout",
    "HarbourDraining",
    "IdempotencyKeyReused",
    "InvalidOption",
    "PromptAborted",
    "PromptNotFound",
    "PromptQueueFull",
    "RestoreInProgress",
    "RunnerError",
    "RunnerLost",
    "SessionConflict",
    "SessionError",
    "SessionLimitExceeded",
    "SessionNotFound",
    "SessionRestoreTimeout",
    "SubscriberLimitExceeded",
    "UnknownClient",
    "UnknownOperation",
    "Unsupported",
    "VoteForbidden",
    "WorkspaceMismatch",
    "WrongPhase",
]


class SessionError(Exception):
    """Base of the engine's errors."""


class SessionNotFound(SessionError):
    """No live session has this id (and for load and resume: none can be restored)."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f'No session with id "{session_id}"')
        self.session_id = session_id


class SessionConflict(SessionError):
    """The id a caller asked for is taken (REST-023)."""

    def __init__(self, session_id: str, conflict: str) -> None:
        super().__init__(f'Session id "{session_id}" is already in use ({conflict})')
        self.session_id = session_id
        self.conflict = conflict


class SessionLimitExceeded(SessionError):
    """No place for another live session (REST-024). ``scope`` is ``workspace`` or ``total``."""

    def __init__(self, limit: int, scope: str) -> None:
        super().__init__(
            f"Session limit reached ({limit} per {scope})" if scope != "total" else f"Session limit reached ({limit})"
        )
        self.limit = limit
        self.scope = scope


class SessionRestoreTimeout(SessionError):
    """The agent did not restore the session in time (REST-033)."""

    def __init__(self, session_id: str, action: str, timeout: float) -> None:
        super().__init__(f'Restoring session "{session_id}" took longer than {timeout:g} s')
        self.session_id = session_id
        self.action = action
        self.timeout = timeout


class HarbourDraining(SessionError):
    """The process is shutting down and admits nothing new."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down")


class RestoreInProgress(SessionError):
    """Another caller is restoring this session right now (REST-033)."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f'Session "{session_id}" is being restored')
        self.session_id = session_id


class WorkspaceMismatch(SessionError):
    """The directory is not a registered workspace (REST-020)."""

    def __init__(self, bound: str, requested: str) -> None:
        super().__init__(f'Workspace mismatch: this server is bound to "{bound}", the request asked for "{requested}"')
        self.bound = bound
        self.requested = requested


class PromptQueueFull(SessionError):
    """Admission refused: as many prompts are accepted and unsettled as the session may hold (ACP-212, REST-065)."""

    def __init__(self, session_id: str, limit: int, pending: int) -> None:
        super().__init__(f'Prompt queue full for session "{session_id}" ({pending}/{limit} pending)')
        self.session_id = session_id
        self.limit = limit
        self.pending = pending


class PromptAborted(SessionError):
    """The caller's signal was already aborted: refused before the counter was touched (ACP-212)."""


class PromptNotFound(SessionError):
    """No prompt with this id is known (never accepted, or forgotten: only a bounded number is kept)."""

    def __init__(self, prompt_id: str) -> None:
        super().__init__(f'No prompt with id "{prompt_id}"')
        self.prompt_id = prompt_id


class IdempotencyKeyReused(SessionError):
    """The same idempotency key came with another body."""

    def __init__(self, key: str) -> None:
        super().__init__("Idempotency-Key was already used with another request body")
        self.key = key


class UnknownClient(SessionError):
    """A well-formed client id that is not registered for the session (REST-004)."""

    def __init__(self, session_id: str, client_id: str) -> None:
        super().__init__(f'Client id "{client_id}" is not registered for session {session_id}')
        self.session_id = session_id
        self.client_id = client_id


class SubscriberLimitExceeded(SessionError):
    """The ring has as many subscribers as it may have (ACP-017)."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"Too many subscribers for this session (limit {limit})")
        self.limit = limit


class UnknownOperation(SessionError):
    """The id names no operation of this session."""

    def __init__(self, operation_id: object) -> None:
        super().__init__(f"unknown operation {operation_id!r}")
        self.operation_id = operation_id


class WrongPhase(SessionError):
    """The transition is not in the table."""

    def __init__(self, phase: object, given: object) -> None:
        super().__init__(f"{given} is not legal in {phase}")
        self.phase = phase
        self.given = given


class InvalidOption(SessionError):
    """A vote names an option that was not offered; the request stays pending (REST-102, C-037)."""

    def __init__(self, request_id: str, option_id: str) -> None:
        super().__init__(f'Option "{option_id}" was not offered')
        self.request_id = request_id
        self.option_id = option_id


class VoteForbidden(SessionError):
    """The permission policy refuses this voter (REST-102). ``reason`` is ``designated_mismatch`` or ``remote_not_allowed``."""

    def __init__(self, request_id: str, session_id: str, reason: str) -> None:
        super().__init__(f"Vote refused by the permission policy ({reason})")
        self.request_id = request_id
        self.session_id = session_id
        self.reason = reason


class RunnerError(SessionError):
    """What stands behind the session answered with an error. ``code`` and ``data`` are the agent's own (REST-002)."""

    def __init__(
        self, message: str, code: int | str | None = None, data: object = None, error_kind: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.data = data
        self.error_kind = error_kind


class RunnerLost(RunnerError):
    """What stands behind the session is gone (crashed, killed, closed its pipe)."""


class Unsupported(RunnerError):
    """What stands behind the session does not offer this."""


class AgentStartError(RunnerError):
    """The agent could not be started, or refused its handshake."""


class AgentStartTimeout(AgentStartError):
    """The agent did not answer its handshake in time (REST-025)."""

    def __init__(self, timeout: float) -> None:
        super().__init__(f"Agent did not answer `initialize` within {timeout:g} s", error_kind="init_timeout")
        self.timeout = timeout
