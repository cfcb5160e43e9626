"""What the engine tells about itself. The engine writes no logs: ``server.telemetry`` turns notes into logs and metrics."""

from __future__ import annotations

import enum
from typing import Any, Protocol

__all__ = ["EndReason", "Note", "NullObserver", "Observer"]


class Note(enum.StrEnum):
    """Every note, with its fields."""

    SESSION_STARTED = "session_started"
    """session_id, cwd, start (new/load/resume/fork)"""
    SESSION_ENDED = "session_ended"
    """session_id, reason (`EndReason`)"""
    PROMPT_ACCEPTED = "prompt_accepted"
    """session_id, prompt_id, pending"""
    PROMPT_REFUSED = "prompt_refused"
    """session_id, pending, limit"""
    OPERATION_SETTLED = "operation_settled"
    """session_id, operation_id, state, reason, seconds (since its acceptance, by Trio's clock)"""
    SUBSCRIBER_EVICTED = "subscriber_evicted"
    """session_id, cursor"""
    EVENT_DROPPED = "event_dropped"
    """session_id, type, problem: data that could not be serialised"""
    RUNNER_FAILED = "runner_failed"
    """session_id, problem: an exception that was not a RunnerError"""
    LOG_FAILED = "log_failed"
    """session_id, problem"""


class EndReason(enum.StrEnum):
    """Why a session ended; the same word in logs, metrics and ``session_closed``."""

    CLIENT_CLOSE = "client_close"
    IDLE = "idle"
    DIED = "agent_died"
    START_FAILED = "start_failed"
    ABANDONED = "abandoned"
    SHUTDOWN = "shutdown"


class Observer(Protocol):
    def note(self, note: Note, /, **fields: Any) -> None:
        """Called synchronously; must not raise or block."""
        ...


class NullObserver:
    """Listens to nothing."""

    def note(self, note: Note, /, **fields: Any) -> None:
        pass
