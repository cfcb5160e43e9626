"""Installing our schemas at a client, ahead of the first payload of theirs (nnrp-wire 11.3, carriage)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.nnrp.agent_schemas import carries_agent_schemas
from protocol.nnrp.machines.session import Session
from server.telemetry import log

if TYPE_CHECKING:
    from protocol.nnrp.machines.events import CacheAnswered
    from server.nnrp.driver import Link

__all__ = ["announce_schemas", "log_answer"]


def announce_schemas(link: Link, session: Session) -> None:
    """Send them, if the session may carry them. The answer is not waited for: what is sent first arrives first, and a client
    that refuses them reads the payloads as what they are, JSON."""
    if not carries_agent_schemas(session.terms):
        return
    for message, content in link.service.policy.announced:
        link.machine.put_object(session, message, content)
    link.flush()


def log_answer(event: CacheAnswered) -> None:
    """A client has answered; a refusal is worth a line."""
    ack = event.packet.metadata
    detail = getattr(ack, "detail_code", 0)
    if detail:
        log.warning("nnrp_schema_refused", session=event.packet.header.session_id, detail=f"{detail:#010x}")
