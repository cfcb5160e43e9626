"""One operation being carried out: its cancel scope, and its one terminal message (nnrp-wire 13.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from protocol.layout import Buffer
from protocol.nnrp.enums import BudgetPolicy, ErrorCode, OperationState, ResultClass
from protocol.nnrp.errors import NnrpLocalError
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.session import Ending
from server.nnrp.results import NO_TIMES, Times, drop_parts, push_parts, state_parts
from server.nnrp.submit import Answer, OperationFailed, Submit
from server.telemetry import log
from sessions.operation import CancelReason, OperationInput, Outcome
from sessions.operation import Operation as Record
from sessions.operation import OperationState as RecordState

if TYPE_CHECKING:
    from server.nnrp.session import ServedSession

__all__ = ["Running", "answer_at_once", "finish"]

_WAITING, _RUNNING, _PARTIAL = OperationState.WAITING_TOOL, OperationState.RUNNING, OperationState.PARTIAL
_NO_BUDGET: Final = BudgetPolicy(0)
_RECORD_STATES: Final = {
    OperationState.COMPLETED: RecordState.COMPLETED,
    OperationState.FAILED: RecordState.FAILED,
    OperationState.CANCELLED: RecordState.CANCELLED,
    OperationState.SUPERSEDED: RecordState.SUPERSEDED,
}


class Running:
    """The `Emit` of its worker. Made with the task that runs it; the machine's operation refers to it."""

    __slots__ = ("_operation", "_partials", "_received", "_session", "_submit", "record")

    def __init__(self, session: ServedSession, submit: Submit, received: float) -> None:
        operation = submit.operation
        self._session = session
        self._operation = operation
        self._submit: Submit | None = submit
        self._received = received
        self._partials = 0
        self.record = Record(operation.operation_id, None, received=received)
        self.record.scope.deadline = operation.deadline
        operation.attachment = self

    def cancel(self, reason: CancelReason) -> None:
        """Record why, then cancel the scope. The terminal message follows when the worker has let go."""
        self.record.cancel(reason)

    async def run(self) -> None:
        """The barrier: whatever happens in here becomes this operation's outcome."""
        submit, session = self._submit, self._session
        assert submit is not None
        assert session.worker is not None
        self.record.step(OperationInput.START)
        answer: Answer | None = None
        failure: OperationFailed | None = None
        started = trio.current_time()
        try:
            with self.record.scope:
                made = await session.worker.run(submit, self)
                await self._wait_room()
                answer = made
        except OperationFailed as problem:
            failure = problem
        except Exception:
            log.error("nnrp_worker_failed", session=session.machine.session_id, exc_info=True)
            failure = OperationFailed("internal error")
        finally:
            self._submit = None
            self._end(submit, answer, failure, started)

    # Emit

    async def partial(self, answer: Answer) -> bool:
        await self._wait_room()
        session = self._session
        if self._operation.state is _WAITING and not await self.waiting_tool(False):
            return False
        if not self._progress(_PARTIAL):
            return False
        self._partials += 1
        event_id = session.next_event_id(answer.event_id)
        times = Times.between(self._received, self._received, trio.current_time())
        parts = push_parts(session.machine, self._operation, answer, partial=True, times=times, event_id=event_id)
        session.send(parts, self._operation, event_id)
        return True

    async def waiting_tool(self, waiting: bool) -> bool:
        await self._wait_room()
        session = self._session
        if not self._progress(_WAITING if waiting else _RUNNING):
            return False
        event_id = session.next_event_id()
        parts = state_parts(session.machine, self._operation, event_id)
        if parts is not None:
            session.send(parts, self._operation, event_id)
        return True

    # Inside

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
        """Wait while the connection is full, or its peer has paused results. A session without a connection is bounded by
        its journal. Not a checkpoint when nothing has to be waited for."""
        while (link := self._session.link) is not None and not link.machine.closed:
            if link.writer.full:
                await link.writer.wait_room()
            elif not self._session.machine.may_push():
                await link.wait_flow()
            else:
                return

    def _end(self, submit: Submit, answer: Answer | None, failure: OperationFailed | None, started: float) -> None:
        reason, now = self.record.cancel_reason, trio.current_time()
        wanted, code, event_id = OperationState.CANCELLED, 0, 0
        applied = _NO_BUDGET
        if answer is None and failure is None and reason is None and now >= self.record.scope.deadline:
            wanted, code = OperationState.FAILED, int(ErrorCode.FRAME_EXPIRED)
            if self._partials and int(submit.metadata.budget_policy) & BudgetPolicy.ALLOW_DEGRADED.value:
                # What has been sent is of use as it is: say so instead of taking it back (13.4).
                answer, applied = Answer(result_class=ResultClass.DEGRADED), BudgetPolicy.ALLOW_DEGRADED
        if answer is not None:
            wanted, event_id = OperationState.COMPLETED, answer.event_id
        elif failure is not None:
            wanted, code, event_id = OperationState.FAILED, failure.code, failure.event_id
            if reason is not None:
                wanted = OperationState.CANCELLED
        elif reason is CancelReason.SUPERSEDED:
            wanted = OperationState.SUPERSEDED
        if wanted is OperationState.COMPLETED and self._operation.state is _WAITING:
            self._operation.advance(_RUNNING)
        times = Times.between(self._received, started, now)
        finish(
            self._session,
            self._operation,
            wanted,
            answer,
            times=times,
            error_code=code,
            event_id=event_id,
            applied=applied,
        )
        self.record.settle(Outcome(_RECORD_STATES[self._operation.state], reason=reason))


def answer_at_once(session: ServedSession, submit: Submit, answer: Answer) -> None:
    """An operation that needed no waiting: accepted and completed in one step, without a task."""
    finish(session, submit.operation, OperationState.COMPLETED, answer)


def finish(
    session: ServedSession,
    operation: Operation,
    wanted: OperationState,
    answer: Answer | None,
    *,
    times: Times = NO_TIMES,
    error_code: int = 0,
    event_id: int = 0,
    applied: BudgetPolicy = _NO_BUDGET,
) -> None:
    """Settle an operation and send its terminal message: to the connection, to the journal, or to nobody any more."""
    link, machine = session.link, session.machine
    abandoned = operation.abandoned
    if link is None or link.machine.closed:
        ending = machine.finish(operation, wanted)
    else:
        link.flush()  # what was queued before comes before: the answer to the SESSION_OPEN, for one
        ending = link.machine.finish(machine, operation, wanted, trio.current_time())
    if ending is Ending.SILENT and not abandoned and session.journal is not None and not session.over:
        ending = Ending.PUSH if operation.state is OperationState.COMPLETED else Ending.DROP
    if ending is not Ending.SILENT:
        event_id = session.next_event_id(event_id)
        if ending is Ending.PUSH and answer is not None:
            parts = _push_or_drop(session, operation, answer, times, event_id, applied)
        else:
            parts = drop_parts(machine, operation, error_code=error_code, event_id=event_id)
        session.send(parts, operation, event_id)
    if link is not None:
        link.flush()
        link.after_settle(session)


def _push_or_drop(
    session: ServedSession, operation: Operation, answer: Answer, times: Times, event_id: int, applied: BudgetPolicy
) -> list[Buffer]:
    """A result that cannot be put on the wire is the worker's defect; its operation still gets its terminal message."""
    try:
        return push_parts(session.machine, operation, answer, times=times, event_id=event_id, applied=applied)
    except NnrpLocalError as problem:
        log.error("nnrp_result_illegal", session=session.machine.session_id, problem=str(problem))
        return drop_parts(
            session.machine,
            operation,
            state=OperationState.FAILED,
            error_code=int(ErrorCode.INTERNAL_ERROR),
            event_id=event_id,
        )
