"""What became of an operation, from what its work returned or raised. Only looks at Trio's clock."""

from __future__ import annotations

import attrs
import trio

from sessions.errors import RunnerError
from sessions.operation import CancelReason, Operation, OperationState, Outcome
from sessions.runner import TurnResult

__all__ = ["cancelled_outcome", "failure_of", "outcome_of"]


def outcome_of(operation: Operation, result: TurnResult) -> Outcome:
    """The work has come to its end."""
    if result.stop_reason == "cancelled":
        return attrs.evolve(cancelled_outcome(operation), meta=result.meta)
    return Outcome(OperationState.COMPLETED, stop_reason=result.stop_reason, meta=result.meta)


def failure_of(operation: Operation, problem: RunnerError) -> Outcome:
    """An agent that answers a cancel with an error has still been cancelled."""
    if operation.cancel_reason is not None or operation.scope.cancel_called:
        return cancelled_outcome(operation)
    return Outcome(OperationState.FAILED, error=problem)


def cancelled_outcome(operation: Operation) -> Outcome:
    """The scope was cancelled: by its deadline, by somebody with a reason, or from further out."""
    reason = operation.cancel_reason
    if reason is None and trio.current_time() >= operation.scope.deadline:
        error = RunnerError(
            f"Prompt deadline of {operation.deadline:g} s exceeded",
            "prompt_deadline_exceeded",
            error_kind="prompt_deadline_exceeded",
        )
        return Outcome(OperationState.FAILED, error=error, reason=CancelReason.DEADLINE)
    state = OperationState.SUPERSEDED if reason is CancelReason.SUPERSEDED else OperationState.CANCELLED
    return Outcome(state, stop_reason="cancelled", reason=reason or CancelReason.SHUTDOWN)
