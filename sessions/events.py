"""What a session's ring holds: numbered events, and the unnumbered notices a subscriber gets in between."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

__all__ = ["EVENT_OVERHEAD", "Event", "EventType", "Notice", "NoticeType", "decode", "encode"]

EVENT_OVERHEAD = 320
"""Bytes of bookkeeping an event is charged with beside its data (measured: object, slots, list place, head of the bytes)."""

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


class EventType(enum.StrEnum):
    """Types of published events (rest.md 6.1). A runner or an embedder may publish others."""

    SESSION_UPDATE = "session_update"
    PERMISSION_REQUEST = "permission_request"
    PERMISSION_RESOLVED = "permission_resolved"
    PERMISSION_ALREADY_RESOLVED = "permission_already_resolved"
    PERMISSION_PARTIAL_VOTE = "permission_partial_vote"
    PERMISSION_FORBIDDEN = "permission_forbidden"
    TURN_COMPLETE = "turn_complete"
    TURN_ERROR = "turn_error"
    PROMPT_CANCELLED = "prompt_cancelled"
    PENDING_PROMPT_ADDED = "pending_prompt_added"
    PENDING_PROMPT_STARTED = "pending_prompt_started"
    PENDING_PROMPT_COMPLETED = "pending_prompt_completed"
    SESSION_CLOSED = "session_closed"
    SESSION_DIED = "session_died"
    MODEL_SWITCHED = "model_switched"
    MODEL_SWITCH_FAILED = "model_switch_failed"
    APPROVAL_MODE_CHANGED = "approval_mode_changed"
    SESSION_METADATA_UPDATED = "session_metadata_updated"
    SESSION_BRANCHED = "session_branched"
    SESSION_RECORDING_DEGRADED = "session_recording_degraded"
    OPERATION_STATE = "operation_state"
    """Ours: the life of an operation that is not a prompt turn (NNRP); not sent on REST or /acp."""


class NoticeType(enum.StrEnum):
    """Synthetic frames: no id, and none consumed (ACP-020)."""

    REPLAY_COMPLETE = "replay_complete"
    STATE_RESYNC_REQUIRED = "state_resync_required"
    CLIENT_EVICTED = "client_evicted"
    SLOW_CLIENT_WARNING = "slow_client_warning"
    STREAM_ERROR = "stream_error"
    SESSION_SNAPSHOT = "session_snapshot"
    HISTORY_TRUNCATED = "history_truncated"


@attrs.define(slots=True, eq=False)
class Event:
    """One entry of a ring. Only `sessions.ring.Ring` makes them; treat as immutable."""

    id: int
    """Position in the ring, from 1, without gaps (ACP-010)."""
    type: str
    data: bytes
    """The data as compact one-line JSON, encoded when it was published."""
    timestamp: int
    """Wall clock at publication, milliseconds since 1970."""
    prompt_id: str | None
    originator: str | None
    """The client id of the prompt's author, or of the voter (REST-091)."""
    total: int
    """Bytes of data published through this event; differences tell how far a reader is behind."""
    forms: dict[object, bytes] | None = None
    """Encoded wire forms by key. Fill through `Ring.form` only: the ring accounts for their bytes."""

    def value(self) -> Any:
        """The data, decoded anew at each call.

        Raises ``ValueError`` for what the decoder refuses. How deep nesting may be depends on who calls from how deep: a
        reader further down the stack than the one that took the event in can find it too deep.
        """
        try:
            return decode(self.data)
        except RecursionError as problem:
            raise ValueError(str(problem)) from problem


@attrs.frozen(slots=True)
class Notice:
    """A synthetic frame for one subscriber."""

    type: NoticeType
    data: Mapping[str, Any]
