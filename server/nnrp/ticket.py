"""From a session of another wire to NNRP: a token with which any connection takes up the session's events (issue 5, One
session, two wires)."""

from __future__ import annotations

from typing import Final

import attrs

from protocol.nnrp.enums import ProfileId, SessionFlagsAck
from protocol.nnrp.machines.credit import UNLIMITED, Window
from protocol.nnrp.machines.history import RisingIds
from protocol.nnrp.machines.schemas import ANCHOR
from protocol.nnrp.machines.session import Session as Machine
from protocol.nnrp.machines.terms import SessionTerms
from server.nnrp.journal import Journal
from server.nnrp.policy import Principal
from server.nnrp.service import NnrpService
from server.nnrp.session import ServedSession
from server.nnrp.workers.agent import AgentWorker
from sessions.errors import HarbourDraining
from sessions.harbour import Harbour
from sessions.operation import CancelReason
from sessions.session import Session

__all__ = ["UNUSED_TICKETS", "Ticket", "issue_ticket"]

UNUSED_TICKETS: Final = 16
"""Tokens of one session that wait to be used; with one more the oldest is no longer valid."""
_FIRST_ID: Final = 0x4000_0000
"""Ids of these sessions: far from those that a connection's clients and its server give out by counting."""


@attrs.frozen(slots=True)
class Ticket:
    """What SESSION_OPEN has to name. ``token`` is good for one attach, within ``expires_in_ms``."""

    token: bytes
    session_id: int
    profile_id: int
    schema_id: int
    schema_version: int
    expires_in_ms: int


def issue_ticket(service: NnrpService, harbour: Harbour, session: Session, principal: Principal) -> Ticket:
    """A detached NNRP session in front of ``session``, which one client can attach to as if it resumed it.

    Raises `HarbourDraining` when the server is coming to its end.
    """
    if service.draining:
        raise HarbourDraining
    policy = service.policy
    _make_room(service, session)
    tag = service.next_tag()
    terms = SessionTerms(
        profile_id=ProfileId.TOKEN,
        schema_id=ANCHOR.schema_id,
        schema_version=ANCHOR.schema_version,
        flags=int(SessionFlagsAck.RESUME_ENABLED),
        resume_window_ms=policy.opening.resume_window_ms,
        server_session_tag=tag,
    )
    served = service.new_session(
        Machine(_FIRST_ID | tag & (_FIRST_ID - 1), terms, Window(UNLIMITED), Window(UNLIMITED)), None, principal
    )
    served.journal = Journal(policy.journal_entries, policy.journal_bytes)
    served.received = RisingIds()
    served.worker = AgentWorker(harbour, served.machine, session)
    token = service.registry.new_token()
    service.registry.enter(served, token)
    service.registry.detach(served)
    return Ticket(
        token,
        served.machine.session_id,
        terms.profile_id,
        terms.schema_id,
        terms.schema_version,
        terms.resume_window_ms,
    )


def _make_room(service: NnrpService, session: Session) -> None:
    unused = [each for each in service.registry.waiting if _is_unused(each, session)]
    for each in unused[: max(0, len(unused) - UNUSED_TICKETS + 1)]:
        service.end_session(each, CancelReason.RESOURCE)


def _is_unused(served: ServedSession, session: Session) -> bool:
    follower = served.follower
    return follower is not None and follower.engine is session and not follower.attached
