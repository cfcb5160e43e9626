"""The resume decision as a pure function, and how a client reads the answer (nnrp-wire 13.7)."""

from __future__ import annotations

import hmac
import math
from enum import IntEnum

import attrs

from protocol.nnrp.enums import SessionErrorCode, SessionFlagsAck, SessionStatus

__all__ = [
    "Redelivery",
    "RedeliveryPlan",
    "Resumable",
    "ResumeDecision",
    "ResumeOutcome",
    "ResumeRefusal",
    "ResumeRequest",
    "classify_answer",
    "decide_resume",
]


class ResumeRefusal(IntEnum):
    """Why a resume was refused. For our own logs only: the peer gets resume_rejected for all of them, so that a token
    cannot be probed."""

    NO_TOKEN = 1
    UNKNOWN_SESSION = 2
    NOT_RESUMABLE = 3
    WRONG_TOKEN = 4
    EXPIRED = 5
    OTHER_PRINCIPAL = 6
    OTHER_CONTRACT = 7


class Redelivery(IntEnum):
    """From where events are sent again."""

    AFTER_EVENT = 0
    """Exactly the ring events after the cursor."""
    AFTER_OPERATION = 1
    """Lifecycle events of the operations after the watermark."""
    UNFINISHED = 2
    """Everything unfinished or unacknowledged."""


@attrs.frozen(slots=True)
class ResumeRequest:
    """What a SESSION_OPEN with a resume token asks for. ``token`` None: declared, but its bytes did not come."""

    session_id: int
    token: bytes | None
    profile_id: int
    schema_id: int
    schema_version: int
    principal: object = None
    resume_from_operation_id: int = 0
    last_event_id: int = 0


@attrs.frozen(slots=True)
class Resumable:
    """What the engine holds about the session that the request names.

    ``token`` None: used up, or never given. ``expires_at`` is a monotonic instant, ``math.inf`` while a connection is
    attached. ``oldest_event_id`` is the first the ring still has, 0 when the ring is empty and never lost anything.
    ``lost_operation_id`` is the highest operation of which it has lost something, 0 for none.
    """

    session_id: int
    token: bytes | None
    profile_id: int
    schema_id: int
    schema_version: int
    principal: object = None
    resume_enabled: bool = True
    expires_at: float = math.inf
    oldest_event_id: int = 0
    lost_operation_id: int = 0


@attrs.frozen(slots=True)
class RedeliveryPlan:
    """``position`` is the cursor or the watermark. ``first_available`` is set when the ring lost events that they ask for: an ERROR of scope session then names it, and the client rebuilds its state (nnrp-extensions, Resume watermark)."""

    redelivery: Redelivery
    position: int = 0
    first_available: int | None = None


@attrs.frozen(slots=True)
class ResumeDecision:
    """Exactly one of plan and refusal is set. The schema is the default that the session has, to be confirmed."""

    plan: RedeliveryPlan | None = None
    refusal: ResumeRefusal | None = None
    schema_id: int = 0
    schema_version: int = 0


def decide_resume(
    request: ResumeRequest, held: Resumable | None, now: float, *, watermark_granted: bool = False
) -> ResumeDecision:
    """Whether the session may be taken over, and what to send again.

    ``watermark_granted`` says that resume_watermark is in the granted operation extensions; without it the request's
    two positions do not count.
    """
    refusal = _refusal(request, held, now)
    if refusal is not None:
        return ResumeDecision(refusal=refusal)
    assert held is not None  # _refusal answers UNKNOWN_SESSION for it
    return ResumeDecision(
        plan=_plan(request, held, watermark_granted),
        schema_id=held.schema_id,
        schema_version=held.schema_version,
    )


def _refusal(request: ResumeRequest, held: Resumable | None, now: float) -> ResumeRefusal | None:
    if not request.token:
        return ResumeRefusal.NO_TOKEN
    if held is None or held.session_id != request.session_id:
        return ResumeRefusal.UNKNOWN_SESSION
    if not held.resume_enabled or held.token is None:
        return ResumeRefusal.NOT_RESUMABLE
    if not hmac.compare_digest(held.token, request.token):
        return ResumeRefusal.WRONG_TOKEN
    if now >= held.expires_at:
        return ResumeRefusal.EXPIRED
    if held.principal != request.principal:
        return ResumeRefusal.OTHER_PRINCIPAL
    asked = (request.schema_id, request.schema_version)
    if request.profile_id != held.profile_id or asked not in ((0, 0), (held.schema_id, held.schema_version)):
        return ResumeRefusal.OTHER_CONTRACT
    return None


def _plan(request: ResumeRequest, held: Resumable, watermark_granted: bool) -> RedeliveryPlan:
    if watermark_granted and request.last_event_id:
        cursor = request.last_event_id
        if cursor + 1 < held.oldest_event_id:
            return RedeliveryPlan(Redelivery.AFTER_EVENT, held.oldest_event_id - 1, held.oldest_event_id)
        return RedeliveryPlan(Redelivery.AFTER_EVENT, cursor)
    if not watermark_granted:
        # A client that can name no position may have had what was lost.
        return RedeliveryPlan(Redelivery.UNFINISHED)
    watermark = request.resume_from_operation_id
    gap = held.oldest_event_id if held.lost_operation_id > watermark else None
    return RedeliveryPlan(Redelivery.AFTER_OPERATION if watermark else Redelivery.UNFINISHED, watermark, gap)


class ResumeOutcome(IntEnum):
    """How a client reads a SESSION_OPEN_ACK with respect to resume."""

    RESUME_ENABLED = 0
    FRESH = 1
    RESUMED = 2
    RESUME_REJECTED = 3
    NOT_INSTALLED = 4


def classify_answer(session_status: int, session_flags_ack: int, session_error_code: int) -> ResumeOutcome:
    """The five readings of an answer. RESUME_REJECTED: open a fresh session, there is no frame-level fallback."""
    if session_status == SessionStatus.RESUMED:
        return ResumeOutcome.RESUMED
    if session_status == SessionStatus.OPENED:
        enabled = session_flags_ack & int(SessionFlagsAck.RESUME_ENABLED)
        return ResumeOutcome.RESUME_ENABLED if enabled else ResumeOutcome.FRESH
    if session_status == SessionStatus.REJECTED and session_error_code == SessionErrorCode.RESUME_REJECTED:
        return ResumeOutcome.RESUME_REJECTED
    return ResumeOutcome.NOT_INSTALLED
