"""SESSION_MIGRATE (nnrp-wire 7.19, 13.9), in both peers' ways.

nnrp-rs asks on the connection the session is on, which then is its old path and its new one in one: nothing moves.
nnrp-py asks with the first packet of a new connection: the session is taken over there, as by resume.

The message carries no credential and a session id is no secret. So a session moves only to a connection of its own
principal, where there is no other session of that name; or, ours, by the resume token as the body. What follows an engine
session moves by resume only: its cursor is in that session's ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocol.nnrp.bodies import ControlBody
from protocol.nnrp.machines.events import MigrateReceived
from protocol.nnrp.machines.migration import MigrationRefusal, decide_migration
from protocol.nnrp.machines.resume import Redelivery, RedeliveryPlan
from protocol.nnrp.messages import SessionMigrate
from server.nnrp.opening import take_again, take_over
from server.nnrp.session import ServedSession
from server.telemetry import log

if TYPE_CHECKING:
    from server.nnrp.driver import Link

__all__ = ["answer_migrate"]

_GRACE_MS: Final = 500
"""How long the client should still read the old path: what was queued there goes out there."""


def answer_migrate(link: Link, event: MigrateReceived, now: float) -> None:
    """Accept, and take the session over where another connection has it; or refuse, which leaves everything as it was."""
    request = event.packet.metadata
    assert isinstance(request, SessionMigrate)
    held = None
    highest = 0
    refusal = MigrationRefusal.ACCEPTED
    if event.session is not None:
        highest = event.session.operations.highest_frame
    else:
        held = _find(link, event)
        if held is None:
            refusal = MigrationRefusal.UNKNOWN_SESSION
        else:
            highest = held.machine.operations.highest_frame
    answer = decide_migration(
        request.last_result_frame_id, refusal=refusal, highest_frame_id=highest, grace_window_ms=_GRACE_MS
    )
    link.machine.answer_migrate(event.packet, answer, now, server_migrate_ts_us=int(now * 1_000_000))
    if held is not None:
        _move(link, held, request.last_result_frame_id)
    elif event.session is None:
        log.info("nnrp_migration_refused", session=event.packet.header.session_id, transport=link.transport)


def _find(link: Link, event: MigrateReceived) -> ServedSession | None:
    """The session that may move here. One of another principal is as good as none: its existence is not told."""
    service = link.service
    session_id = event.packet.header.session_id
    content = event.packet.content
    token = bytes(content.opaque) if isinstance(content, ControlBody) else b""
    named = service.registry.find(token)
    if named is not None and named.machine.session_id == session_id:
        own = link.principal in (None, named.principal)
        return named if own and named.follower is None else None
    principal = link.principal if link.principal is not None else service.policy.authenticate(b"")
    if principal is None:
        return None
    found = [
        each
        for each in service.sessions
        if each.machine.session_id == session_id and each.principal == principal and each.follower is None
    ]
    return found[0] if len(found) == 1 else None


def _move(link: Link, held: ServedSession, last_result: int) -> None:
    """As a resume, but that its token stays good: the client has not been given another."""
    if held.link is not None:
        held.link.release(held)
    carried = tuple(held.machine.operations) if held.machine.in_flight else ()
    machine = link.machine.install(held.machine.session_id, held.machine.terms, carried=carried)
    take_over(link, held, machine)
    link.service.registry.attach(held)
    link.flush()
    plan = RedeliveryPlan(Redelivery.AFTER_OPERATION, last_result)
    again = take_again(held, plan)
    for entry in again:
        link.writer.write(entry.parts, result=True)
    log.info(
        "nnrp_session_migrated",
        session=machine.session_id,
        tag=held.tag,
        transport=link.transport,
        operations=len(carried),
        redelivered=len(again),
    )
