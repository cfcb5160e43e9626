"""What a session is, whatever the wire: the engine. Trio, no sockets, no HTTP."""

from sessions.attachment import Attachment, AttachmentPhase
from sessions.errors import SessionError
from sessions.events import Event, EventType, Notice, NoticeType
from sessions.harbour import Harbour, HarbourStatistics, Opened, open_harbour
from sessions.limits import Limits
from sessions.observer import EndReason, Note, NullObserver, Observer
from sessions.operation import (
    CancelReason,
    Operation,
    OperationState,
    Outcome,
    Priority,
    PromptRequest,
)
from sessions.operations import CancelScopeKind, OperationExists
from sessions.permissions import PermissionPolicy, Voter, VoteResult
from sessions.phase import SessionPhase
from sessions.ring import Ring
from sessions.runner import (
    Capabilities,
    PermissionOutcome,
    Runner,
    RunnerSession,
    SessionHost,
    SessionSpec,
    StoredSession,
    TurnResult,
)
from sessions.session import Session
from sessions.subscription import Subscription

__all__ = [
    "Attachment",
    "AttachmentPhase",
    "CancelReason",
    "CancelScopeKind",
    "Capabilities",
    "EndReason",
    "Event",
    "EventType",
    "Harbour",
    "HarbourStatistics",
    "Limits",
    "Note",
    "Notice",
    "NoticeType",
    "NullObserver",
    "Observer",
    "Opened",
    "Operation",
    "OperationExists",
    "OperationState",
    "Outcome",
    "PermissionOutcome",
    "PermissionPolicy",
    "Priority",
    "PromptRequest",
    "Ring",
    "Runner",
    "RunnerSession",
    "Session",
    "SessionError",
    "SessionHost",
    "SessionPhase",
    "SessionSpec",
    "StoredSession",
    "Subscription",
    "TurnResult",
    "VoteResult",
    "Voter",
    "open_harbour",
]
