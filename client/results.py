"""Answers of a daemon, one shape for all transports (CLI-039)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from client.errors import DaemonProtocolError

__all__ = [
    "DEFAULT_PROMPT_LIMIT",
    "Capabilities",
    "Heartbeat",
    "PromptOutcome",
    "PromptReceipt",
    "PromptResult",
    "SessionInfo",
    "SessionPage",
    "SessionSummary",
]

DEFAULT_PROMPT_LIMIT: Final = 5
"""Pending prompts per session when nothing else is known, on both sides (ACP-210, CLI-010)."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """``GET /capabilities``. ``raw`` holds everything, unknown keys included."""

    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def features(self) -> frozenset[str]:
        """Feature tags the daemon serves."""
        return frozenset(item for item in _list(self.raw.get("features")) if isinstance(item, str))

    @property
    def transports(self) -> tuple[str, ...]:
        """Transports the daemon wants clients to choose from; empty if it does not say."""
        return tuple(item for item in _list(self.raw.get("transports")) if isinstance(item, str))

    @property
    def workspace_cwd(self) -> str | None:
        """The primary workspace."""
        return _text(self.raw.get("workspaceCwd"))

    @property
    def max_pending_prompts_per_session(self) -> int | None:
        """The daemon's limit: ``None`` is unlimited. Fit to be passed to a client unchanged (CLI-042)."""
        limits = _object(self.raw.get("limits"))
        if "maxPendingPromptsPerSession" not in limits:
            return DEFAULT_PROMPT_LIMIT
        limit = limits["maxPendingPromptsPerSession"]
        return limit if isinstance(limit, int) else None

    @property
    def session_restore_timeout(self) -> float | None:
        """How long the daemon itself may take to restore a session, in seconds."""
        milliseconds = _object(self.raw.get("limits")).get("sessionRestoreTimeoutMs")
        return milliseconds / 1000 if isinstance(milliseconds, int) and milliseconds > 0 else None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as create, attach, load or resume answered it.

    Over ``/acp`` a daemon may know less: then the optional fields are ``None``. ``history`` is what REST ``load``
    returned (finished turns, then the running one), else ``None``: on ``/acp`` history comes as events.
    """

    session_id: str
    workspace_cwd: str | None = None
    attached: bool = False
    client_id: str | None = None
    created_at: str | None = None
    last_event_id: int | None = None
    epoch: str | None = None
    has_active_prompt: bool | None = None
    history: tuple[dict[str, Any], ...] | None = None
    raw: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class PromptReceipt:
    """A prompt was accepted. ``prompt_id`` is ``None`` on ``/acp``, where a prompt's answer is its outcome."""

    prompt_id: str | None
    last_event_id: int | None = None
    epoch: str | None = None


@dataclass(frozen=True, slots=True)
class PromptResult:
    """How a turn ended: ``end_turn``, ``cancelled``, ``refusal``... and whatever the agent added."""

    stop_reason: str
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PromptOutcome:
    """The polled state of a prompt: ``queued``, ``running``, ``completed``, ``failed`` or ``cancelled``."""

    prompt_id: str
    state: str
    stop_reason: str | None = None
    error: Any = None

    @property
    def settled(self) -> bool:
        """True once it can no longer change."""
        return self.state in {"completed", "failed", "cancelled"}


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One line of a session list."""

    session_id: str
    workspace_cwd: str | None = None
    display_name: str | None = None
    updated_at: str | None = None
    has_active_prompt: bool = False
    client_count: int = 0
    raw: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Part of a session list; pass ``next_cursor`` to get the next part."""

    sessions: tuple[SessionSummary, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """``last_seen_at`` is the daemon's clock in milliseconds."""

    session_id: str
    client_id: str | None
    last_seen_at: int


def session_info(body: object, *, session_id: str | None = None) -> SessionInfo:
    """Raises :class:`DaemonProtocolError` if no session id is in sight."""
    fields = _object(body)
    found = _text(fields.get("sessionId")) or session_id
    if found is None:
        raise DaemonProtocolError("the answer names no session")
    history = None
    if isinstance(fields.get("compactedReplay"), list) or isinstance(fields.get("liveJournal"), list):
        history = tuple(_objects(fields.get("compactedReplay")) + _objects(fields.get("liveJournal")))
    return SessionInfo(
        session_id=found,
        workspace_cwd=_text(fields.get("workspaceCwd")),
        attached=fields.get("attached") is True,
        client_id=_text(fields.get("clientId")),
        created_at=_text(fields.get("createdAt")),
        last_event_id=_cursor(fields.get("lastEventId")),
        epoch=_text(fields.get("eventEpoch")),
        has_active_prompt=fields["hasActivePrompt"] if isinstance(fields.get("hasActivePrompt"), bool) else None,
        history=history,
        raw=fields,
    )


def prompt_receipt(body: object) -> PromptReceipt:
    """Raises :class:`DaemonProtocolError` if there is no prompt id."""
    fields = _object(body)
    prompt_id = _text(fields.get("promptId"))
    if prompt_id is None:
        raise DaemonProtocolError("a prompt was accepted without a prompt id")
    return PromptReceipt(prompt_id, _cursor(fields.get("lastEventId")), _text(fields.get("eventEpoch")))


def prompt_result(body: object) -> PromptResult:
    """The result of a turn from a blocking answer, a JSON-RPC result or ``turn_complete`` data (CLI-039)."""
    fields = _object(body)
    meta = dict(_object(fields.get("_meta")))
    if "branchPoint" in fields:
        meta.setdefault("qwen.branchPoint", fields["branchPoint"])
    return PromptResult(_text(fields.get("stopReason")) or "end_turn", meta)


def prompt_outcome(body: object) -> PromptOutcome:
    """Raises :class:`DaemonProtocolError` if the state is missing."""
    fields = _object(body)
    prompt_id, state = _text(fields.get("promptId")), _text(fields.get("state"))
    if prompt_id is None or state is None:
        raise DaemonProtocolError("not a prompt outcome")
    return PromptOutcome(prompt_id, state, _text(fields.get("stopReason")), fields.get("error"))


def session_page(body: object) -> SessionPage:
    """A list with whatever entries have an id."""
    fields = _object(body)
    sessions = tuple(_summary(entry) for entry in _objects(fields.get("sessions")) if _text(entry.get("sessionId")))
    return SessionPage(sessions, _text(fields.get("nextCursor")))


def heartbeat(body: object, session_id: str) -> Heartbeat:
    """Tolerant: a daemon may leave out what the caller knows."""
    fields = _object(body)
    seen = fields.get("lastSeenAt")
    return Heartbeat(session_id, _text(fields.get("clientId")), seen if isinstance(seen, int) else 0)


def _summary(entry: dict[str, Any]) -> SessionSummary:
    count = entry.get("clientCount")
    return SessionSummary(
        session_id=entry["sessionId"],
        workspace_cwd=_text(entry.get("workspaceCwd")) or _text(entry.get("cwd")),
        display_name=_text(entry.get("displayName")) or _text(entry.get("title")),
        updated_at=_text(entry.get("updatedAt")),
        has_active_prompt=entry.get("hasActivePrompt") is True,
        client_count=count if isinstance(count, int) else 0,
        raw=entry,
    )


def _cursor(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]
