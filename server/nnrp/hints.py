"""RESULT_HINT: how the server is faring with a frame (nnrp-wire 7.17). Said ahead of what it explains, never instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.nnrp.enums import (
    CongestionState,
    ConnectionState,
    MessageType,
    ResultBudgetPolicy,
    ResultHintReason,
    SessionState,
)
from protocol.nnrp.machines.connection_table import Dialect
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.messages import ResultHint
from server.nnrp.pressure import RETRY_MS

if TYPE_CHECKING:
    from server.nnrp.session import ServedSession

__all__ = ["send_hint"]


def send_hint(
    session: ServedSession,
    operation: Operation,
    reason: ResultHintReason,
    *,
    applied: ResultBudgetPolicy = ResultBudgetPolicy.NONE,
    congestion: CongestionState = CongestionState.NONE,
) -> bool:
    """Say it, if the session's client is there and is one that reads hints at any time: a full preview3 peer. Where the queue
    is full, or the server saturated, it is told when to ask again."""
    link = session.link
    if link is None or link.machine.dialect is not Dialect.NATIVE or not link.machine.may_send(MessageType.RESULT_HINT):
        return False
    if link.machine.state is not ConnectionState.OPEN or session.machine.state is SessionState.CLOSED:
        return False
    later = reason is ResultHintReason.QUEUE_FULL or congestion is CongestionState.SATURATED
    hint = ResultHint(applied, congestion, reason, RETRY_MS if later else 0)
    link.machine.send_hint(session.machine, hint, operation)
    link.flush()
    return True
