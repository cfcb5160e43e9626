"""The decision on a SESSION_OPEN, as a pure function in the order of nnrp-wire 13.2, and the reading of its answer."""

from __future__ import annotations

from collections.abc import Callable, Container

import attrs

from protocol.errors import Reach
from protocol.nnrp.enums import (
    OperationFeatures,
    PriorityClass,
    SessionErrorCode,
    SessionFlags,
    SessionFlagsAck,
    SessionStatus,
)
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.machines.resume import RedeliveryPlan, ResumeDecision, ResumeRefusal
from protocol.nnrp.machines.schemas import SchemaRegistry
from protocol.nnrp.machines.terms import SessionTerms
from protocol.nnrp.messages import SessionOpen, SessionOpenAck

__all__ = ["ACCEPT", "OpenDecision", "OpenPolicy", "OpenVerdict", "check_answer", "decide_open", "terms_of_answer"]

_ALL_FLAGS = int(SessionFlags.ALLOW_RESUME | SessionFlags.ALLOW_BACKGROUND_RESULTS) | int(
    SessionFlags.ALLOW_CACHE_LEASES | SessionFlags.ALLOW_SCHEMA_OVERRIDE
)


@attrs.frozen(slots=True)
class OpenPolicy:
    """What a server grants. Requests above it are lowered, not refused, because the answer can say so."""

    profiles: frozenset[int] = frozenset({0, 1, 2})
    max_in_flight_operations: int = 64
    operation_credit: int = 32
    lease_ttl_ms: int = 30_000
    max_lease_ttl_ms: int = 3_600_000
    resume_window_ms: int = 120_000
    max_sessions: int = 65_535
    flags: int = _ALL_FLAGS
    """The session_flags a client may have acknowledged."""
    highest_priority: PriorityClass = PriorityClass.INTERACTIVE
    features: int = 31
    """operation_extensions this server supports; the mask of nnrp-extensions."""
    route_scope_id: int = 0


@attrs.frozen(slots=True)
class OpenVerdict:
    """The answer of the policy hook. ``code`` 0 accepts; with ``retry_later`` the code says why not now."""

    code: int = 0
    retry_later: bool = False
    priority: PriorityClass | None = None
    """Lower the session to this class, which the answer then says with priority_downgraded."""


ACCEPT = OpenVerdict()
_FEATURES = int(OperationFeatures(0x1F))


@attrs.frozen(slots=True)
class OpenDecision:
    """What a SESSION_OPEN comes to. ``terms`` is set when the session is opened or resumed, else ``code`` says why not.

    ``plan`` says what a resumed session sends again. ``resume_refusal`` is for our logs, not for the peer.
    """

    status: SessionStatus
    session_id: int = 0
    terms: SessionTerms | None = None
    code: int = 0
    plan: RedeliveryPlan | None = None
    resume_refusal: ResumeRefusal | None = None


def decide_open(
    request: SessionOpen,
    policy: OpenPolicy,
    *,
    schemas: SchemaRegistry,
    present: Container[int],
    session_count: int,
    assign: Callable[[], int],
    hook: Callable[[SessionOpen], OpenVerdict] = lambda _: ACCEPT,
    resume: Callable[[], ResumeDecision] | None = None,
    features: int = 0,
    server_session_tag: int = 0,
) -> OpenDecision:
    """Decide in the specified order: profile, default schema, (limits are clamped), policy hook, resume, identity.

    ``present`` are the session ids of this connection; ``assign`` makes a free non-zero one. ``resume`` is called only
    when the request carries a token and everything before was in order. ``features`` is the client's offer.
    """
    if request.profile_id not in policy.profiles:
        return _rejected(SessionErrorCode.PROFILE_UNSUPPORTED)
    if not schemas.default_bindable(request.profile_id, request.schema_id, request.schema_version):
        return _rejected(SessionErrorCode.SCHEMA_UNSUPPORTED)
    verdict = hook(request)
    if verdict.retry_later:
        return OpenDecision(SessionStatus.RETRY_LATER, code=verdict.code)
    if verdict.code:
        return _rejected(verdict.code)
    plan: RedeliveryPlan | None = None
    if request.resume_token_bytes:
        decision = resume() if resume is not None else ResumeDecision(refusal=ResumeRefusal.NOT_RESUMABLE)
        if decision.refusal is not None:
            return _rejected(SessionErrorCode.RESUME_REJECTED, decision.refusal)
        if request.requested_session_id in present:
            return _rejected(SessionErrorCode.RESUME_REJECTED, ResumeRefusal.NOT_RESUMABLE)
        plan = decision.plan
        request = request.replace(schema_id=decision.schema_id, schema_version=decision.schema_version)
    elif request.requested_session_id in present:
        return _rejected(SessionErrorCode.SESSION_LIMIT_REACHED)
    if session_count >= policy.max_sessions:
        return _rejected(SessionErrorCode.SESSION_LIMIT_REACHED)
    terms = _grant(request, policy, verdict, features, server_session_tag)
    status = SessionStatus.OPENED if plan is None else SessionStatus.RESUMED
    return OpenDecision(status, request.requested_session_id or assign(), terms, plan=plan)


def _rejected(code: int, refusal: ResumeRefusal | None = None) -> OpenDecision:
    return OpenDecision(SessionStatus.REJECTED, code=int(code), resume_refusal=refusal)


def _grant(
    request: SessionOpen, policy: OpenPolicy, verdict: OpenVerdict, features: int, server_session_tag: int
) -> SessionTerms:
    limit = min(request.max_in_flight_operations or policy.max_in_flight_operations, policy.max_in_flight_operations)
    flags = int(request.session_flags) & policy.flags
    resumable = bool(flags & int(SessionFlags.ALLOW_RESUME)) and policy.resume_window_ms > 0
    if not resumable:
        flags &= ~int(SessionFlags.ALLOW_RESUME)
    priority = PriorityClass(max(request.priority_class, policy.highest_priority, verdict.priority or 0))
    if priority != request.priority_class:
        flags |= int(SessionFlagsAck.PRIORITY_DOWNGRADED)
    wanted_ttl = request.lease_ttl_hint_ms or policy.lease_ttl_ms
    return SessionTerms(
        profile_id=request.profile_id,
        schema_id=request.schema_id,
        schema_version=request.schema_version,
        priority=priority,
        flags=flags,
        default_deadline_ms=request.default_deadline_ms,
        granted_operation_credit=min(policy.operation_credit, limit),
        max_in_flight_operations=limit,
        lease_ttl_ms=min(wanted_ttl, policy.max_lease_ttl_ms),
        resume_window_ms=policy.resume_window_ms if resumable else 0,
        features=features & policy.features,
        client_session_tag=request.client_session_tag,
        server_session_tag=server_session_tag,
        route_scope_id=policy.route_scope_id,
    )


def answer_message(decision: OpenDecision, resume_token: bytes, extension_bytes: int) -> SessionOpenAck:
    """The SESSION_OPEN_ACK of a decision. A refusal carries zeros besides its status and code (18 item 9)."""
    terms = decision.terms
    if terms is None:
        return SessionOpenAck(session_status=decision.status, session_error_code=decision.code)
    return SessionOpenAck(
        session_id=decision.session_id,
        accepted_profile_id=terms.profile_id,
        accepted_priority_class=terms.priority,
        session_status=decision.status,
        schema_id=terms.schema_id,
        schema_version=terms.schema_version,
        granted_operation_credit=terms.granted_operation_credit,
        max_in_flight_operations=terms.max_in_flight_operations,
        lease_ttl_ms=terms.lease_ttl_ms,
        resume_window_ms=terms.resume_window_ms,
        resume_token_bytes=len(resume_token),
        session_extension_bytes=extension_bytes,
        server_session_tag=terms.server_session_tag,
        route_scope_id=terms.route_scope_id,
        session_flags_ack=SessionFlagsAck(terms.flags),
    )


def check_answer(request: SessionOpen, answer: SessionOpenAck, present: Container[int]) -> None:
    """The rules of 7.8 that need the request. Raises NnrpError; what the answer alone tells is checked when decoding."""
    if answer.session_status not in (SessionStatus.OPENED, SessionStatus.RESUMED):
        return
    if int(answer.session_flags_ack) & 0x0F & ~int(request.session_flags):
        raise _bad_answer(Outcome.BAD_COMBINATION, "session_flags_ack", "a flag was acknowledged but not requested")
    if answer.session_status == SessionStatus.RESUMED and not request.resume_token_bytes:
        raise _bad_answer(Outcome.BAD_COMBINATION, "session_status", "resumed without a resume token in the request")
    if request.resume_token_bytes and answer.session_id != request.requested_session_id:
        raise _bad_answer(Outcome.BAD_COMBINATION, "session_id", "another session than was to be resumed")
    if answer.session_id in present:
        raise _bad_answer(Outcome.SESSION_EXISTS, "session_id", "the session is open on this connection already")


def terms_of_answer(request: SessionOpen, answer: SessionOpenAck, features: int) -> SessionTerms:
    """What a client holds after an answer that opened or resumed the session. ``features`` are the granted ones."""
    return SessionTerms(
        profile_id=answer.accepted_profile_id,
        schema_id=answer.schema_id,
        schema_version=answer.schema_version,
        priority=answer.accepted_priority_class,
        flags=int(answer.session_flags_ack),
        default_deadline_ms=request.default_deadline_ms,
        granted_operation_credit=answer.granted_operation_credit,
        max_in_flight_operations=answer.max_in_flight_operations,
        lease_ttl_ms=answer.lease_ttl_ms,
        resume_window_ms=answer.resume_window_ms,
        features=features & _FEATURES,
        client_session_tag=request.client_session_tag,
        server_session_tag=answer.server_session_tag,
        route_scope_id=answer.route_scope_id,
    )


def _bad_answer(outcome: Outcome, field: str, rule: str) -> NnrpError:
    return NnrpError(outcome, rule, subject="SESSION_OPEN_ACK", field=field, reach=Reach.SESSION)
