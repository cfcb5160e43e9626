"""One operation being carried out: its cancel scope, and its one terminal message (nnrp-wire 13.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from protocol.layout import Buffer
from protocol.nnrp.enums import (
    BudgetPolicy,
    ConnectionState,
    ErrorCode,
    OperationState,
    ResultBudgetPolicy,
    ResultHintReason,
    SessionFlagsAck,
    SessionState,
)
from protocol.nnrp.errors import NnrpLocalError
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.session import Ending
from server.nnrp.budget import Ending as BudgetEnding
from server.nnrp.budget import Stock, settle_budget
from server.nnrp.hints import send_hint
from server.nnrp.results import NO_TIMES, Times, drop_parts, push_parts, state_parts
from server.nnrp.reuse import LatestResults
from server.nnrp.scheduler import Ticket
from server.nnrp.submit import Answer, OperationFailed, Submit
from server.nnrp.turns import Turns
from server.telemetry import log
from sessions.operation import CancelReason, OperationInput, Outcome
from sessions.operation import Operation as Record
from sessions.operation import OperationState as RecordState

if TYPE_CHECKING:
    from server.nnrp.session import ServedSession

__all__ = ["Running", "answer_at_once", "finish", "refuse", "ticket_of"]

_WAITING, _RUNNING, _PARTIAL = OperationState.WAITING_TOOL, OperationState.RUNNING, OperationState.PARTIAL
_LOWERED: Final = int(SessionFlagsAck.PRIORITY_DOWNGRADED)
_ALLOW_DROP: Final = BudgetPolicy.ALLOW_DROP.value
_NO_BUDGET: Final = BudgetPolicy(0)
_COMPLETED: Final = OperationState.COMPLETED
_PUSH, _DROP, _SILENT = Ending.PUSH, Ending.DROP, Ending.SILENT
_OPEN: Final = SessionState.OPEN
_CLOSED: Final = ConnectionState.CLOSED
_RECORD_STATES: Final = {
    OperationState.COMPLETED: RecordState.COMPLETED,
    OperationState.FAILED: RecordState.FAILED,
    OperationState.CANCELLED: RecordState.CANCELLED,
    OperationState.SUPERSEDED: RecordState.SUPERSEDED,
}


class Running:
    """The `Emit` of its worker. Made with the task that runs it; the machine's operation refers to it."""

    __slots__ = (
        "_kept",
        "_operation",
        "_partials",
        "_received",
        "_session",
        "_shed",
        "_started",
        "_submit",
        "_ticket",
        "_turns",
        "record",
    )

    def __init__(self, session: ServedSession, submit: Submit, received: float, turns: Turns, ticket: Ticket) -> None:
        operation = submit.operation
        self._session = session
        self._operation = operation
        self._submit: Submit | None = submit
        self._received = received
        self._started: float | None = None
        self._turns = turns
        self._ticket = ticket
        self._partials = 0
        self._kept: Answer | None = None
        self._shed = False
        self.record = Record(operation.operation_id, None, received=received)
        self.record.scope.deadline = operation.deadline
        operation.attachment = self

    def cancel(self, reason: CancelReason) -> None:
        """Record why, then cancel the scope. The terminal message follows when the worker has let go."""
        self.record.cancel(reason)

    def shed(self) -> None:
        """Drop it while it waits: another one needs the place, and its submit allows that."""
        self._shed = True
        self.record.cancel(CancelReason.RESOURCE)

    async def run(self) -> None:
        """The barrier: whatever happens in here becomes this operation's outcome."""
        submit, session = self._submit, self._session
        assert submit is not None
        assert session.worker is not None
        answer: Answer | None = None
        failure: OperationFailed | None = None
        try:
            with self.record.scope:
                await self._turns.wait(self._ticket)
                self.record.step(OperationInput.START)
                self._started = trio.current_time()
                made = await session.worker.run(submit, self)
                await self._wait_room()
                answer = made
        except OperationFailed as problem:
            failure = problem
        except Exception:
            log.error("nnrp_worker_failed", session=session.machine.session_id, exc_info=True)
            failure = OperationFailed("internal error")
        finally:
            self._turns.leave(self._ticket)
            self._submit = None
            try:
                self._end(submit, answer, failure)
            except Exception:
                # A defect of ours costs this operation, not every session there is, nor who waits for its end.
                log.error("nnrp_operation_failed", session=session.machine.session_id, exc_info=True)
                self.record.settle(Outcome(RecordState.FAILED))

    # Emit

    async def partial(self, answer: Answer, *, waits: bool = False) -> bool:
        await self._wait_room()
        lead = self._go_on()
        if not self._progress(_WAITING if waits else _PARTIAL):
            return False
        if waits:
            self._turns.suspend(self._ticket)
        self._partials += 1
        self._send_part(answer, _NO_BUDGET, lead)
        return True

    def keep(self, answer: Answer) -> None:
        self._kept = answer

    async def waiting_tool(self, waiting: bool) -> bool:
        await self._wait_room()
        session = self._session
        if not self._progress(_WAITING if waiting else _RUNNING):
            return False
        if waiting:
            self._turns.suspend(self._ticket)
        else:
            self._turns.resume(self._ticket)
        event_id = session.next_event_id()
        parts = state_parts(session.machine, self._operation, event_id)
        if parts is not None:
            session.send(parts, self._operation, event_id)
        return True

    # Inside

    def _go_on(self) -> list[Buffer]:
        """What has to be said ahead of anything but an end without a result, where the operation waits for a tool: that it
        runs again (13.4). It is no event of its own, but the first packet of the next one."""
        if self._operation.state is not _WAITING or not self._progress(_RUNNING):
            return []
        self._turns.resume(self._ticket)
        return state_parts(self._session.machine, self._operation, 0) or []

    def _progress(self, wanted: OperationState) -> bool:
        session = self._session
        if session.over or self._operation.settled:
            return False
        link = session.link
        if link is None or link.machine.closed:
            return session.machine.progress(self._operation, wanted)
        link.flush()
        return link.machine.progress(session.machine, self._operation, wanted)

    async def _wait_room(self) -> None:
        """See `ServedSession.wait_room`. A client that does not read must not keep others from their turn."""
        session, operation = self._session, self._operation
        if session.has_room(operation):
            return
        self._turns.suspend(self._ticket)
        try:
            await session.wait_room(operation)
        finally:
            self._turns.resume(self._ticket)

    def _times(self) -> Times:
        now = trio.current_time()
        return Times.between(self._received, now if self._started is None else self._started, now)

    def _send_part(self, answer: Answer, applied: BudgetPolicy, lead: list[Buffer]) -> None:
        session = self._session
        event_id = session.next_event_id(answer.event_id)
        parts = push_parts(
            session.machine,
            self._operation,
            answer,
            partial=True,
            times=self._times(),
            event_id=event_id,
            applied=applied,
        )
        session.send(lead + parts, self._operation, event_id, flat=answer.flat)

    def _end(self, submit: Submit, answer: Answer | None, failure: OperationFailed | None) -> None:
        reason = self.record.cancel_reason
        wanted, code, event_id = OperationState.CANCELLED, 0, 0
        spent = BudgetEnding(None)
        if self._shed:
            wanted, code = OperationState.FAILED, int(ErrorCode.SERVER_BUSY)
            spent = BudgetEnding(None, BudgetPolicy.ALLOW_DROP)
            self.hint(ResultHintReason.QUEUE_FULL, ResultBudgetPolicy.DROP)
        elif answer is not None:
            wanted, event_id = OperationState.COMPLETED, answer.event_id
            if LatestResults.wanted(submit) and not self._session.over:
                self._session.latest_results().keep(submit, answer)
        elif failure is not None:
            wanted, code, event_id = OperationState.FAILED, failure.code, failure.event_id
            if reason is not None or code == ErrorCode.FRAME_CANCELLED:
                # Cancelled from here, or by somebody else who uses the session behind it.
                wanted = OperationState.CANCELLED
        elif reason is CancelReason.SUPERSEDED:
            wanted = OperationState.SUPERSEDED
            self.hint(ResultHintReason.SUPERSEDED, ResultBudgetPolicy.DROP)
        elif reason is None and trio.current_time() >= self.record.scope.deadline:
            spent = self._spend(submit)
            answer = spent.final
            wanted, code = OperationState.FAILED, int(ErrorCode.FRAME_EXPIRED)
            if answer is not None:
                wanted, code = OperationState.COMPLETED, 0
        lead = self._go_on() if wanted is OperationState.COMPLETED else []
        times = self._times()
        finish(
            self._session,
            self._operation,
            wanted,
            answer,
            times=times,
            error_code=code,
            event_id=event_id,
            applied=spent.applied,
            reused_frame_id=spent.reused_frame_id,
            lead=lead,
        )
        if self._started is None and self._operation.state is OperationState.COMPLETED:
            self.record.step(OperationInput.START)  # an earlier result was the answer
        log.debug(
            "nnrp_operation_ended",
            session=self._session.machine.session_id,
            tag=self._session.tag,
            frame=self._operation.frame_id,
            trace=self._operation.trace_id,
            state=self._operation.state.name.lower(),
            code=code,
            queue_ms=times.queue_ms,
            compute_ms=times.compute_ms,
            total_ms=times.total_ms,
            applied=int(spent.applied),
            reused=spent.reused_frame_id,
        )
        self.record.settle(Outcome(_RECORD_STATES[self._operation.state], reason=reason))

    def _spend(self, submit: Submit) -> BudgetEnding:
        """The budget is spent: choose the ending, and send what comes before it."""
        session, operation = self._session, self._operation
        if operation.ended or session.over:
            return BudgetEnding(None)
        found = session.reusable(submit) if LatestResults.wanted(submit) else None
        flat = self._kept is not None and self._kept.flat
        ending = settle_budget(
            int(submit.metadata.budget_policy),
            Stock(
                parts_sent=self._partials,
                kept=self._kept,
                previous=None if found is None else found.answer,
                previous_frame=0 if found is None else found.frame_id,
                ends_partial=session.tells_state and not flat,
            ),
        )
        self._turns.budgets[ending.hint] += 1
        self.hint(ResultHintReason.BUDGET_EXCEEDED, ending.hint)
        if ending.before is not None:
            lead = self._go_on()
            if self._progress(_PARTIAL):
                self._send_part(ending.before, ending.applied, lead)
        return ending

    def hint(self, reason: ResultHintReason, applied: ResultBudgetPolicy = ResultBudgetPolicy.NONE) -> None:
        """Tell the client how the operation fares, if it wants to hear that."""
        turns = self._turns
        congestion = turns.pressure.congestion(turns.scheduler.waiting)
        send_hint(self._session, self._operation, reason, applied=applied, congestion=congestion)


def refuse(session: ServedSession, submit: Submit, turns: Turns) -> None:
    """Too many wait: the operation ends before it begins."""
    congestion = turns.pressure.congestion(turns.scheduler.waiting)
    applied = ResultBudgetPolicy.DROP
    send_hint(session, submit.operation, ResultHintReason.QUEUE_FULL, applied=applied, congestion=congestion)
    finish(session, submit.operation, OperationState.FAILED, None, error_code=int(ErrorCode.SERVER_BUSY))


def ticket_of(session: ServedSession, submit: Submit) -> Ticket:
    """The place of an operation in the line of its class. One in a session that was lowered is never above its session."""
    priority = submit.operation.priority
    terms = session.machine.terms
    if terms.flags & _LOWERED:
        priority = max(priority, terms.priority)
    return Ticket(session, priority, droppable=bool(int(submit.metadata.budget_policy) & _ALLOW_DROP))


def answer_at_once(session: ServedSession, submit: Submit, answer: Answer, now: float) -> None:
    """An operation that needed no waiting: accepted and completed in one step, without a task."""
    if LatestResults.wanted(submit):
        session.latest_results().keep(submit, answer)
    finish(session, submit.operation, _COMPLETED, answer, now=now)


def finish(
    session: ServedSession,
    operation: Operation,
    wanted: OperationState,
    answer: Answer | None,
    *,
    now: float | None = None,
    times: Times = NO_TIMES,
    error_code: int = 0,
    event_id: int = 0,
    applied: BudgetPolicy = _NO_BUDGET,
    reused_frame_id: int = 0,
    lead: list[Buffer] | None = None,
) -> None:
    """Settle an operation and send its terminal message, behind ``lead``: to the connection, to the journal, or to nobody any
    more."""
    link, machine = session.link, session.machine
    abandoned = operation.abandoned
    if link is None or link.machine.state is _CLOSED:
        ending = machine.finish(operation, wanted)
    else:
        if link.machine.has_messages():
            link.flush()  # what was queued before comes before: the answer to the SESSION_OPEN, for one
        ending = link.machine.finish(machine, operation, wanted, trio.current_time() if now is None else now)
    if ending is _SILENT and not abandoned and session.journal is not None and not session.over:
        ending = _PUSH if operation.state is _COMPLETED else _DROP
    if ending is not _SILENT:
        event_id = session.next_event_id(event_id)
        if ending is _PUSH and answer is not None:
            parts = _push_or_drop(session, operation, answer, times, event_id, applied, reused_frame_id)
        else:
            parts = drop_parts(machine, operation, error_code=error_code, event_id=event_id)
        session.send(lead + parts if lead else parts, operation, event_id, flat=answer is not None and answer.flat)
    if link is not None and (link.machine.has_messages() or machine.state is not _OPEN):
        link.flush()
        link.after_settle(session)


def _push_or_drop(
    session: ServedSession,
    operation: Operation,
    answer: Answer,
    times: Times,
    event_id: int,
    applied: BudgetPolicy,
    reused_frame_id: int,
) -> list[Buffer]:
    """A result that cannot be put on the wire is the worker's defect; its operation still gets its terminal message."""
    machine = session.machine
    try:
        if times is NO_TIMES and not applied and not reused_frame_id:
            parts = session.plain_results.parts(machine, operation, answer)
            if parts is not None:
                return parts
        return push_parts(
            machine,
            operation,
            answer,
            times=times,
            event_id=event_id,
            applied=applied,
            reused_frame_id=reused_frame_id,
        )
    except NnrpLocalError as problem:
        log.error("nnrp_result_illegal", session=session.machine.session_id, problem=str(problem))
        return drop_parts(
            session.machine,
            operation,
            state=OperationState.FAILED,
            error_code=int(ErrorCode.INTERNAL_ERROR),
            event_id=event_id,
        )
