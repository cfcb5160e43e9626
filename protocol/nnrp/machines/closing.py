"""How a session closes: drain, cut, answer (nnrp-wire 13.3). Functions over one session; the connection sends what they say."""

from __future__ import annotations

import math
from enum import IntEnum

import attrs

from protocol.nnrp.enums import CancelScopeKind, CloseReason, CloseStatus, InFlightPolicy, SessionState
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.session import Session
from protocol.nnrp.machines.session_table import ACK_INPUTS, SessionInput
from protocol.nnrp.messages import SessionClose, SessionCloseAck

__all__ = [
    "ANSWER_GRACE",
    "SETTLE_GRACE",
    "ClosePhase",
    "CloseStep",
    "Closing",
    "ask_close",
    "close_deadline",
    "close_on_settled",
    "receive_close",
    "receive_close_ack",
]

#: Seconds a cancelled operation may take to settle before the session is closed over it.
SETTLE_GRACE = 1.0

#: Seconds that results may come after the message they were sent before, where packets overtake each other.
OVERTAKEN = 5.0

#: Seconds past the drain timeout that we wait for the peer's answer to our SESSION_CLOSE.
ANSWER_GRACE = 10.0


class ClosePhase(IntEnum):
    WAITING = 0
    """We asked; the peer has not said that it is done."""
    DRAINING = 1
    """What is in flight may still end by itself."""
    CUTTING = 2
    """Everything has been cancelled; the operations are settling, each with its terminal message."""


@attrs.define(slots=True, eq=False)
class Closing:
    """A close that is under way in one session. ``deadline`` is a monotonic instant."""

    phase: ClosePhase
    asked_by_us: bool
    deadline: float = math.inf
    peer_watermark: int = 0
    """The peer's last_operation_id, 0 where it names none. Where we carry out, a drain waits for no operation beyond it."""
    tag: int = 0
    confirmed: bool = False
    """The peer has said that it is done, ahead of results that are still under way."""
    request: SessionClose | None = None
    """What is sent when everything has settled: a peer that has read it waits for no result any more."""


@attrs.frozen(slots=True)
class CloseStep:
    """What one step of a close comes to. ``request`` and ``acks`` are to be sent in order; ``cancelled`` operations are to be
    stopped and finished by whoever carries them out; ``abandoned`` ones are settled already, whoever carries them out has
    nothing more to say. Where this end does and the peer still reads, they get their drop ahead of ``request`` and ``acks``."""

    request: SessionClose | None = None
    acks: tuple[SessionCloseAck, ...] = ()
    cancelled: tuple[Operation, ...] = ()
    abandoned: tuple[Operation, ...] = ()
    closed: bool = False


def ask_close(
    session: Session,
    now: float,
    *,
    carries_out: bool,
    reason: CloseReason = CloseReason.NORMAL,
    policy: InFlightPolicy = InFlightPolicy.DRAIN,
    drain_timeout_ms: int = 0,
    session_error_code: int = 0,
    tag: int = 0,
) -> CloseStep:
    """We close the session. Raises NnrpError BadState when it is not open.

    The end that carries the operations out cancels them itself: at once, and then says so when each has had its terminal
    message; or, where there is time to drain, when that is over.
    """
    session.step(SessionInput.CLOSE, "SESSION_CLOSE")
    message = SessionClose(
        close_reason=reason,
        in_flight_policy=policy,
        drain_timeout_ms=drain_timeout_ms,
        last_operation_id=session.watermark,
        session_error_code=session_error_code,
        session_close_tag=tag,
    )
    closing = session.closing = Closing(ClosePhase.WAITING, asked_by_us=True, tag=tag)
    if not (carries_out and session.in_flight):
        closing.deadline = now + drain_timeout_ms / 1000 + ANSWER_GRACE
        return CloseStep(request=message)
    if policy is InFlightPolicy.ABORT or drain_timeout_ms == 0:
        closing.request = message
        return _cut(session, closing, now)
    closing.phase, closing.deadline = ClosePhase.DRAINING, now + drain_timeout_ms / 1000
    return CloseStep(request=message)


def receive_close(
    session: Session, message: SessionClose, now: float, *, carries_out: bool, mute: bool, ordered: bool
) -> CloseStep:
    """The peer closes the session. Raises NnrpError BadState when it is not open.

    ``mute``: the peer reads nothing but one final answer from now on (the bare dialect), so nothing is drained. ``ordered``:
    what the peer has sent before has arrived; otherwise terminal messages may, and are waited for.
    When both ends close at once, the one that carries out answers the other's request and drops its own.
    """
    mine = session.closing
    crossing = mine is not None and mine.asked_by_us
    if crossing and not carries_out:
        return CloseStep()
    if not crossing:
        session.step(SessionInput.CLOSE, "SESSION_CLOSE")
    closing = session.closing = Closing(
        ClosePhase.DRAINING,
        asked_by_us=False,
        deadline=now + message.drain_timeout_ms / 1000,
        peer_watermark=message.last_operation_id,
        tag=message.session_close_tag,
    )
    if session.in_flight == 0:
        return _answer_closed(session)
    if mute or (not carries_out and ordered and message.in_flight_policy is InFlightPolicy.ABORT):
        return _answer_closed(session, abandoned=session.abandon())
    drains = message.in_flight_policy is InFlightPolicy.DRAIN and message.drain_timeout_ms
    if drains and not (carries_out and _is_beyond(session, closing)):
        session.step(SessionInput.ACK_DRAINING, "SESSION_CLOSE_ACK")
        return CloseStep(acks=(_ack(session, CloseStatus.DRAINING),))
    if not carries_out:
        closing.deadline = now + ANSWER_GRACE
        return CloseStep()
    return _cut(session, closing, now)


def receive_close_ack(session: Session, message: SessionCloseAck, now: float, *, ordered: bool) -> CloseStep:
    """The peer says how far the close is. Raises NnrpError BadState for a session that is closed. Not ``ordered``, results
    that were sent before may come after: the session is over when they have, or soon."""
    closing = session.closing
    if closing is not None:
        closing.peer_watermark = max(closing.peer_watermark, message.last_operation_id)
    if message.close_status is CloseStatus.CLOSED and closing is not None and session.in_flight and not ordered:
        session.step(SessionInput.ACK_DRAINING, "SESSION_CLOSE_ACK")
        closing.confirmed, closing.deadline = True, now + OVERTAKEN
        return CloseStep()
    session.step(ACK_INPUTS[message.close_status], "SESSION_CLOSE_ACK")
    if message.close_status is CloseStatus.REJECTED:
        session.closing = None
    if message.close_status is not CloseStatus.CLOSED:
        return CloseStep()
    return CloseStep(abandoned=session.abandon(), closed=True)


def close_on_settled(session: Session, now: float, *, carries_out: bool) -> CloseStep:
    """An operation of a closing session was settled: the last one completes a close that the peer asked for, and lets ours
    be said that waited for it. The last one up to the peer's watermark ends the drain: ``close_deadline`` is due at once."""
    closing = session.closing
    if closing is None or session.state is SessionState.CLOSED:
        return CloseStep()
    if session.in_flight:
        if carries_out and closing.phase is ClosePhase.DRAINING and _is_beyond(session, closing):
            closing.deadline = now
        return CloseStep()
    if not closing.asked_by_us:
        return _answer_closed(session)
    if closing.confirmed:
        session.step(SessionInput.ACK_CLOSED, "SESSION_CLOSE_ACK")
        return CloseStep(closed=True)
    return CloseStep() if closing.phase is ClosePhase.WAITING else _wait_answer(closing, now)


def close_deadline(session: Session, now: float, *, carries_out: bool) -> CloseStep:
    """The time of the present phase may be over: cut what drains, give up on what does not settle or answer."""
    closing = session.closing
    if closing is None or now < closing.deadline:
        return CloseStep()
    if closing.phase is ClosePhase.DRAINING and carries_out:
        return _cut(session, closing, now)
    if closing.asked_by_us and closing.phase is ClosePhase.CUTTING:
        return attrs.evolve(_wait_answer(closing, now), abandoned=session.abandon())
    if closing.asked_by_us:
        session.step(SessionInput.CONNECTION_CLOSED, "SESSION_CLOSE")
        return CloseStep(abandoned=session.abandon(), closed=True)
    return _answer_closed(session, abandoned=session.abandon())


def _is_beyond(session: Session, closing: Closing) -> bool:
    """Whether all that is in flight lies beyond the watermark of the peer's close: nothing of it is drained."""
    bound = closing.peer_watermark
    return 0 < bound < session.watermark and all(each.operation_id > bound for each in session.operations)


def _cut(session: Session, closing: Closing, now: float) -> CloseStep:
    closing.phase = ClosePhase.CUTTING
    closing.deadline = now + SETTLE_GRACE
    return CloseStep(cancelled=session.operations.cancel(CancelScopeKind.SESSION))


def _wait_answer(closing: Closing, now: float) -> CloseStep:
    """Nothing is in flight any more: now the peer's answer is waited for."""
    request, closing.request = closing.request, None
    closing.phase, closing.deadline = ClosePhase.WAITING, now + ANSWER_GRACE
    return CloseStep(request=request)


def _answer_closed(session: Session, abandoned: tuple[Operation, ...] = ()) -> CloseStep:
    ack = _ack(session, CloseStatus.CLOSED)
    session.step(SessionInput.ACK_CLOSED, "SESSION_CLOSE_ACK")
    return CloseStep(acks=(ack,), abandoned=abandoned, closed=True)


def _ack(session: Session, status: CloseStatus) -> SessionCloseAck:
    return SessionCloseAck(close_status=status, last_operation_id=session.watermark)
