"""From what the server sends to the submissions and sessions it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from client.nnrp.errors import NnrpResultsLost, NnrpSessionOver
from client.nnrp.results import Result, drop_details, event_id_of
from client.nnrp.session import NnrpSession, Sent, ended, lose
from protocol.nnrp.bodies import DataBody
from protocol.nnrp.enums import ErrorScope, SessionErrorCode, SessionState
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.header import Header
from protocol.nnrp.machines import events
from protocol.nnrp.machines.connection import Connection
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.session import Delivery, Session
from protocol.nnrp.messages import Error, ResultHint, ResultPush

__all__ = ["deliver", "deliver_error", "lose_unanswered", "lose_unreadable"]

_FINAL, _LATE = Delivery.FINAL, Delivery.LATE
_CLOSED: Final = SessionState.CLOSED


def deliver(event: events.Event) -> bool | None:
    """Hand ``event`` to those it is for. Whether there may be credit now; None: it is for the connection itself."""
    act = _ACTS.get(type(event))
    return None if act is None else act(event)


def deliver_error(connection: Connection, event: events.ErrorReceived, message: Error, text: str) -> None:
    """An ERROR that leaves the connection: it ends an operation, or a session, or says that results were lost."""
    machine = event.session
    if event.operation is not None and isinstance(sent := event.operation.attachment, Sent):
        retry_after = message.retry_after_ms / 1000
        sent.submission.finish(ended(event.operation, message.error_code, retry_after=retry_after))
    if machine is None:
        return
    session = machine.attachment
    if message.error_scope is ErrorScope.SESSION and message.is_fatal:
        connection.detach(machine.session_id)
        if isinstance(session, NnrpSession):
            session.fail(NnrpSessionOver(text or f"the server has given the session up ({message.error_code:#06x})"))
    elif message.error_scope is ErrorScope.SESSION and message.error_code == SessionErrorCode.RESUME_REJECTED:
        _lose_all(session, text)
    _note_closed(machine)


def lose_unreadable(connection: Connection, header: Header, fault: NnrpError) -> bool:
    """A result came that cannot be read. It may have been the last: here its operation is over, as lost, and at the server
    it is cancelled. Whether there was such an operation. One that only came too late for its connection comes again on the next."""
    if connection.closed and fault.outcome is Outcome.BAD_STATE:
        return False
    session = connection.sessions.get(header.session_id)
    operation = session.operations.of_frame(header.frame_id) if session is not None and session.in_flight else None
    if session is None or operation is None or not isinstance(sent := operation.attachment, Sent):
        return False
    lose(session, operation, sent, f"a result could not be read: {fault}")
    return True


def lose_unanswered(machine: Session, operation: Operation) -> bool:
    """Nothing came of this operation for so long that its submit, which is not sent again, must have been lost. Whether it had
    been waited for until now."""
    sent = operation.attachment
    if operation.settled or not isinstance(sent, Sent) or sent.submission.partials:
        return False
    lose(machine, operation, sent, "the submit is sent once, and was lost with its connection")
    return True


def _lose_all(session: object, text: str) -> None:
    """Results were lost at the server. What they belonged to cannot be told, so nothing is waited for any more."""
    if not isinstance(session, NnrpSession):
        return
    session.background.note_gap()
    for operation in list(session.machine.operations) if session.machine.in_flight else []:
        if isinstance(sent := operation.attachment, Sent):
            sent.submission.cancel()
            sent.submission.finish(NnrpResultsLost(text))


def _result(event: events.ResultReceived) -> bool:
    session, operation, packet, delivery = event.session, event.operation, event.packet, event.delivery
    sent, served = operation.attachment, session.attachment
    extended = session.terms.features != 0
    event_id = event_id_of(packet) if extended else 0
    if event_id and isinstance(served, NnrpSession):
        served.last_event_id = max(served.last_event_id, event_id)
    if isinstance(sent, Sent):
        if delivery is not _LATE:
            metadata, content = packet.metadata, packet.content
            assert isinstance(metadata, ResultPush)
            assert isinstance(content, DataBody)
            sent.submission.put(Result(metadata, content, event.state, delivery is _FINAL, extended, event_id))
        elif operation.settled:
            sent.submission.finish(ended(operation, 0))
    if operation.settled:
        operation.attachment = None  # nothing more is delivered to it, and what was sent is not sent again
        _note_closed(session)
        return True
    return False


def _drop(event: events.DropReceived) -> bool:
    session, sent = event.session.attachment, event.operation.attachment
    if isinstance(session, NnrpSession):
        session.last_event_id = max(session.last_event_id, event_id_of(event.packet))
    if isinstance(sent, Sent):
        sent.submission.finish(ended(event.operation, drop_details(event.packet)))
    _note_closed(event.session)
    return True


def _background(event: events.BackgroundReceived) -> bool:
    session = event.session.attachment
    if isinstance(session, NnrpSession):
        session.last_event_id = max(session.last_event_id, event_id_of(event.packet))
        session.background.put(event)
    return False


def _flow(event: events.FlowReceived | events.RetryDue) -> bool:
    return True


def _hint(event: events.HintReceived) -> bool:
    session, hint = event.session, event.packet.metadata
    assert isinstance(hint, ResultHint)
    if session is not None and isinstance(session.attachment, NnrpSession):
        session.attachment.take_hint(hint, event.packet.header.frame_id)
    return False


def _patched(event: events.PatchAnswered) -> bool:
    session = event.session.attachment
    if isinstance(session, NnrpSession):
        session.patched(event.packet)
    return False


def _cache_answer(event: events.CacheAnswered) -> bool:
    session = None if event.session is None else event.session.attachment
    if isinstance(session, NnrpSession):
        session.cache.answered(event.packet)
    return False


def _close_progress(event: events.SessionCloseProgress) -> bool:
    session = event.session.attachment
    if event.step.closed and isinstance(session, NnrpSession):
        session.end(event.step)
    return True


def _note_closed(machine: Session) -> None:
    """The last terminal message may have been what a close waited for."""
    session = machine.attachment
    if machine.state is _CLOSED and isinstance(session, NnrpSession) and session.machine is machine:
        session.fail(NnrpSessionOver("the session was closed"))


_ACTS: Final[dict[type, Callable[[Any], bool]]] = {
    events.ResultReceived: _result,
    events.DropReceived: _drop,
    events.BackgroundReceived: _background,
    events.FlowReceived: _flow,
    events.RetryDue: _flow,
    events.HintReceived: _hint,
    events.PatchAnswered: _patched,
    events.CacheAnswered: _cache_answer,
    events.SessionCloseProgress: _close_progress,
}
