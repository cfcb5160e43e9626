"""Answering a SESSION_OPEN: a new session, or one that comes back (nnrp-wire 13.2, 13.7)."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

import attrs
import trio

from protocol.nnrp.bodies import ControlBody
from protocol.nnrp.enums import (
    ErrorScope,
    MessageType,
    OperationFeatures,
    PriorityClass,
    SessionErrorCode,
    SessionFlagsAck,
)
from protocol.nnrp.machines.connection_table import Dialect
from protocol.nnrp.machines.events import SessionOpenReceived
from protocol.nnrp.machines.history import RisingIds
from protocol.nnrp.machines.opening import ACCEPT, OpenDecision, OpenVerdict
from protocol.nnrp.machines.outgoing import Outgoing
from protocol.nnrp.machines.reading import offered_features, resume_from
from protocol.nnrp.machines.resume import (
    RedeliveryPlan,
    Resumable,
    ResumeDecision,
    ResumeRefusal,
    ResumeRequest,
    decide_resume,
)
from protocol.nnrp.machines.session import Session
from protocol.nnrp.messages import Error, SessionOpen
from protocol.nnrp.packet import Packet
from server.nnrp.announcing import announce_schemas
from server.nnrp.journal import Entry, Journal
from server.nnrp.policy import Principal
from server.nnrp.session import Doubt, ServedSession
from server.telemetry import log

if TYPE_CHECKING:
    from server.nnrp.driver import Link

__all__ = ["open_session", "take_again", "take_over", "tell_gap"]

FORMER_TOKENS: Final = 4
"""Of one session: a client that loses more answers in a row and hears one of them too late begins anew."""
_NO_WATERMARK = (0, 0)
_WAS_LOWERED = int(SessionFlagsAck.PRIORITY_DOWNGRADED)
_LOWERED = OpenVerdict(priority=PriorityClass.BALANCED)
"""Balanced at most; the answer then says priority_downgraded."""


def open_session(link: Link, event: SessionOpenReceived, now: float) -> None:
    """Decide and answer in one step; a session that comes back is complete before the next packet is read."""
    service, packet = link.service, event.packet
    content = packet.content
    assert isinstance(content, ControlBody)
    principal = link.principal
    if principal is None:
        principal = service.policy.authenticate(bytes(content.auth))
        if principal is None:
            log.warning("nnrp_auth_failed", transport=link.transport, message="SESSION_OPEN")
    held = service.registry.find(bytes(content.resume_token))
    decision = link.machine.decide_open(
        service.policy.opening,
        hook=lambda _: _verdict(link, principal, held),
        resume=lambda: _decide_resume(link, packet, held, principal, now),
        server_session_tag=service.next_tag(),
    )
    if decision.terms is None:
        _log_refusal(link, decision)
        link.machine.answer_open(decision)
        return
    assert principal is not None  # the hook has refused it otherwise
    if decision.plan is not None and held is not None:
        _resume(link, held, decision, decision.plan, bytes(content.resume_token))
    else:
        _open(link, decision, principal)


def _verdict(link: Link, principal: Principal | None, held: ServedSession | None) -> OpenVerdict:
    if principal is None:
        return OpenVerdict(code=int(SessionErrorCode.AUTH_FAILED))
    service = link.service
    if service.draining:
        return OpenVerdict(code=int(SessionErrorCode.SESSION_LIMIT_REACHED), retry_later=True)
    mine = 0
    if held is not None:
        terms = held.machine.terms
        if terms.flags & _WAS_LOWERED:
            return OpenVerdict(priority=terms.priority)  # it does not rise by coming back
        mine = terms.priority is PriorityClass.INTERACTIVE
    if 0 < service.policy.max_interactive <= service.interactive - mine:
        return _LOWERED
    return ACCEPT


def _open(link: Link, decision: OpenDecision, principal: Principal) -> None:
    service = link.service
    assert decision.terms is not None
    token = service.registry.new_token() if decision.terms.resume_enabled else b""
    machine = link.machine.answer_open(decision, resume_token=token)
    assert machine is not None
    session = service.new_session(machine, link, principal)
    if token:
        policy = service.policy
        service.registry.enter(session, token)
        session.journal = Journal(policy.journal_entries, policy.journal_bytes)
        session.received = RisingIds()
    announce_schemas(link, machine)
    service.greet(link, session)
    terms = decision.terms
    log.debug(
        "nnrp_session_opened",
        session=machine.session_id,
        tag=session.tag,
        client_tag=terms.client_session_tag,
        route_scope=terms.route_scope_id,
        transport=link.transport,
    )


def _decide_resume(
    link: Link, packet: Packet, held: ServedSession | None, principal: Principal | None, now: float
) -> ResumeDecision:
    request, content = packet.metadata, packet.content
    assert isinstance(request, SessionOpen)
    assert isinstance(content, ControlBody)
    features = offered_features(packet) & OperationFeatures(link.service.policy.opening.features)
    if held is not None and held.machine.terms.tree and not features & OperationFeatures.SUBMIT_CONTEXT:
        # Its operations have ids of their own, which this client could not name.
        return ResumeDecision(refusal=ResumeRefusal.OTHER_CONTRACT)
    watermark = resume_from(packet)
    operation_id, event_id = (
        _NO_WATERMARK if watermark is None else (watermark.resume_from_operation_id, watermark.last_event_id)
    )
    wanted = ResumeRequest(
        request.requested_session_id,
        bytes(content.resume_token) or None,
        request.profile_id,
        request.schema_id,
        request.schema_version,
        principal,
        operation_id,
        event_id,
    )
    return decide_resume(
        wanted,
        None if held is None else _resumable(held, bytes(content.resume_token)),
        now,
        watermark_granted=bool(features & OperationFeatures.RESUME_WATERMARK),
    )


def _resumable(held: ServedSession, presented: bytes) -> Resumable:
    terms = held.machine.terms
    former = held.doubt is not None and any(hmac.compare_digest(each, presented) for each in held.doubt.tokens)
    return Resumable(
        held.machine.session_id,
        presented if former else held.token,
        terms.profile_id,
        terms.schema_id,
        terms.schema_version,
        held.principal,
        resume_enabled=held.machine.closing is None,
        expires_at=held.expires_at,
        oldest_event_id=_oldest_event_id(held),
        lost_operation_id=_lost_operation_id(held),
    )


def _oldest_event_id(held: ServedSession) -> int:
    oldest = 0 if held.journal is None else held.journal.oldest_event_id
    return oldest if held.follower is None else max(oldest, held.follower.oldest_event_id)


def _lost_operation_id(held: ServedSession) -> int:
    """Nothing is lost to whoever follows a session of others without a cursor: it asks for what is to come. Nor is it known of a
    client that is told no ids: it may have everything."""
    if held.journal is None or held.follower is not None or not held.tells_state:
        return 0
    return held.journal.lost_operation_id


def _resume(link: Link, held: ServedSession, decision: OpenDecision, plan: RedeliveryPlan, used: bytes) -> None:
    """Take the session over, from its lost connection or from one that only seems to be there still."""
    service = link.service
    if held.link is not None:
        held.link.release(held)
    assert decision.terms is not None
    token = service.registry.new_token()
    # The new session keeps the old one's name in logs.
    decision = attrs.evolve(
        decision, terms=attrs.evolve(decision.terms, server_session_tag=held.machine.terms.server_session_tag)
    )
    carried = tuple(held.machine.operations) if held.machine.in_flight else ()
    machine = link.machine.answer_open(decision, resume_token=token, carried=carried)
    assert machine is not None
    take_over(link, held, machine)
    former = _former_tokens(held, used)
    service.registry.enter(held, token)
    now, asked = trio.current_time(), link.machine.dialect is Dialect.NATIVE
    if asked:
        # A client that only waits says by its PONG that it has the new token.
        link.machine.send_ping(now)
    link.doubt(held, Doubt(former, link.machine.pings if asked else 0, now))
    link.flush()
    announce_schemas(link, machine)
    if plan.first_available is not None:
        tell_gap(link, machine.session_id, plan.first_available)
    again = take_again(held, plan)
    if held.follower is not None:
        again = held.follower.resume(plan, again)
    for entry in again:
        link.writer.write(entry.parts, result=True)
    service.greet(link, held)
    log.info(
        "nnrp_session_resumed",
        session=machine.session_id,
        tag=held.tag,
        transport=link.transport,
        operations=len(carried),
        redelivered=len(again),
    )


def _former_tokens(held: ServedSession, used: bytes) -> tuple[bytes, ...]:
    """Which tokens the client may hold while nothing shows that it has the one to come."""
    if held.doubt is None or held.token is None or held.token == used:
        return (used,)
    later = [each for each in (held.token, *held.doubt.tokens) if each != used]
    return (used, *later)[:FORMER_TOKENS]


def take_over(link: Link, held: ServedSession, machine: Session) -> None:
    """``machine``, new on this connection, carries on what ``held`` has been doing on another."""
    machine.legacy_descriptors = held.machine.legacy_descriptors
    machine.settings = held.machine.settings
    machine.raise_watermark(held.machine.watermark)
    machine.window.epoch = held.machine.window.epoch  # it rises within a session, whatever connection that is on
    link.machine.adopt_store(machine, held.machine)
    machine.attachment = held
    link.service.count_class(held, machine)
    held.machine, held.link = machine, link


def take_again(held: ServedSession, plan: RedeliveryPlan) -> list[Entry]:
    """What is sent again on the connection that has taken the session over."""
    again = [] if held.journal is None else held.journal.take(plan)
    held.coming = {each.ends for each in again}
    if held.machine.in_flight:
        held.coming.update([each.frame_id for each in held.machine.operations])
    return again


def tell_gap(link: Link, session_id: int, first: int) -> None:
    """Events were lost: the client must rebuild its state (nnrp-extensions, Resume watermark)."""
    if not link.machine.may_send(MessageType.ERROR):
        return
    text = f"events before {first} are gone; the first available is {first}".encode()
    message = Error(
        error_code=int(SessionErrorCode.RESUME_REJECTED),
        error_scope=ErrorScope.SESSION,
        related_session_id=session_id,
        diagnostic_bytes=len(text),
    )
    link.writer.write([Outgoing(message, session_id=session_id, body=text).encode()])


def _log_refusal(link: Link, decision: OpenDecision) -> None:
    refusal = decision.resume_refusal
    log.info(
        "nnrp_session_refused",
        transport=link.transport,
        code=f"{decision.code:#010x}",
        resume="" if refusal is None else refusal.name.lower(),
    )
