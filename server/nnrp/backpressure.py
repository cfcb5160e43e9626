"""Telling clients to slow down, to stop, and to go on: FLOW_UPDATE as the server sends it (nnrp-wire 7.16, 13.5, 13.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from protocol.nnrp.enums import BackpressureLevel, ConnectionState, PriorityClass, UpdateReason
from protocol.nnrp.errors import NnrpError, NnrpLocalError
from protocol.nnrp.machines.connection_table import Dialect
from protocol.nnrp.machines.session import Session
from server.nnrp.pressure import RETRY_MS
from server.telemetry import log

if TYPE_CHECKING:
    from server.nnrp.driver import Link
    from server.nnrp.session import ServedSession

__all__ = [
    "DRAIN_ONLY",
    "GO_ON",
    "ONLY_BACKGROUND",
    "PAUSE",
    "FlowOrder",
    "announce",
    "greet",
    "order",
    "order_of_level",
]

_NONE, _SOFT, _HARD = BackpressureLevel.NONE, BackpressureLevel.SOFT, BackpressureLevel.HARD
_CALM: Final = 1
"""Credit of a background session while others wait: it stays in the queue, where ageing serves it, and no more than that."""


@attrs.frozen(slots=True, kw_only=True)
class FlowOrder:
    """One FLOW_UPDATE, whatever its scope. ``credit`` None leaves the window as wide as it is."""

    reason: UpdateReason = UpdateReason.GRANT
    level: BackpressureLevel = _NONE
    credit: int | None = None
    background_only: bool = False
    drain_only: bool = False
    retry_after_ms: int | None = None


PAUSE: Final = FlowOrder(reason=UpdateReason.PAUSE)
GO_ON: Final = FlowOrder(reason=UpdateReason.RESUME)
DRAIN_ONLY: Final = FlowOrder(reason=UpdateReason.REDUCE, drain_only=True)
ONLY_BACKGROUND: Final = FlowOrder(reason=UpdateReason.REDUCE, background_only=True)


def order(link: Link, session: Session | None, wanted: FlowOrder, now: float) -> bool:
    """Send one FLOW_UPDATE, for the connection or for ``session``, and hold the peer to it. False where the peer would not
    read it: nnrp-rs may be waiting for another message (2.6)."""
    machine = link.machine
    if machine.state is not ConnectionState.OPEN or machine.dialect is Dialect.BARE:
        return False
    try:
        sent = machine.update_credit(
            now,
            session=session,
            credit=wanted.credit,
            reason=wanted.reason,
            level=wanted.level,
            background_only=wanted.background_only,
            drain_only=wanted.drain_only,
            retry_after_ms=wanted.retry_after_ms,
        )
    except (NnrpError, NnrpLocalError) as problem:
        log.debug("nnrp_flow_update_skipped", problem=str(problem))
        return False
    link.flush()
    log.debug(
        "nnrp_flow_sent",
        session=0 if session is None else session.session_id,
        reason=sent.update_reason.name.lower(),
        level=sent.backpressure_level.name.lower(),
        epoch=sent.credit_epoch,
    )
    return True


def order_of_level(level: BackpressureLevel) -> FlowOrder:
    """What a connection is told at this level. A newer update replaces the earlier state completely."""
    if level is _HARD:
        return FlowOrder(reason=UpdateReason.CONGESTION, level=_HARD, retry_after_ms=RETRY_MS)
    if level is _SOFT:
        return FlowOrder(reason=UpdateReason.CONGESTION, level=_SOFT)
    return GO_ON


def announce(link: Link, level: BackpressureLevel, now: float) -> int:
    """Tell one connection, and narrow or widen the background sessions on it. Returns how many updates went out."""
    if link.machine.window.level is level:
        return 0
    sent = int(order(link, None, order_of_level(level), now))
    for machine in list(link.machine.sessions.values()):
        if machine.terms.priority is PriorityClass.BACKGROUND and machine.open:
            sent += order(link, machine, _of_background(machine, level), now)
    return sent


def greet(link: Link, session: ServedSession, level: BackpressureLevel, now: float) -> None:
    """A session was opened while the service is under pressure: it has not heard of that yet."""
    if level is _NONE:
        return
    if link.machine.window.level is not level:
        order(link, None, order_of_level(level), now)
    if session.machine.terms.priority is PriorityClass.BACKGROUND:
        order(link, session.machine, _of_background(session.machine, level), now)


def _of_background(session: Session, level: BackpressureLevel) -> FlowOrder:
    if level is _NONE:
        terms = session.terms
        wide = terms.granted_operation_credit or terms.max_in_flight_operations
        return FlowOrder(reason=UpdateReason.RESUME, credit=min(wide, terms.max_in_flight_operations))
    return FlowOrder(reason=UpdateReason.REDUCE, level=level, credit=_CALM)
