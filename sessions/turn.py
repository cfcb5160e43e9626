"""What a prompt's life looks like on the ring: the order and the shapes of REST-067 to REST-070."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from sessions.events import EventType
from sessions.operation import CancelReason, Operation, OperationState, Outcome, PromptRequest

if TYPE_CHECKING:
    from sessions.session import Session

__all__ = ["TurnReport", "cancel_report"]


def cancel_report(operation: Operation) -> dict[str, int]:
    """``promptCancelled`` of an operation that was cancelled after it had started: ``cancelledAt`` is of the wall clock, ``elapsedMs``
    of Trio's."""
    assert operation.started is not None
    assert operation.cancelled_at is not None
    elapsed = operation.cancelled - operation.started
    return {"cancelledAt": operation.cancelled_at, "elapsedMs": round(elapsed * 1000)}


class TurnReport:
    """Publishes the events of one operation. Stateless but for what the operation knows."""

    __slots__ = ("_operation", "_session")

    def __init__(self, session: Session, operation: Operation) -> None:
        self._session = session
        self._operation = operation

    def added(self) -> None:
        """Accepted behind others (REST-067)."""
        operation = self._operation
        operation.queued = True
        self._publish(EventType.PENDING_PROMPT_ADDED, text=self._text(), queuedAt=operation.accepted_at)

    def started(self) -> None:
        """Its turn has come: say so if it waited, then echo what the user said (ACP-185)."""
        if self._operation.queued:
            self._publish(EventType.PENDING_PROMPT_STARTED, text=self._text())
        request = self._operation.request
        for block in request.blocks if isinstance(request, PromptRequest) else ():
            now = self._session.now_ms()
            self._session.update(
                {
                    "sessionUpdate": "user_message_chunk",
                    "content": block,
                    "_meta": {"serverTimestamp": now, "source": "bridge-echo"},
                }
            )

    def cancel_asked(self) -> None:
        """A running prompt is being cancelled (REST-069)."""
        self._cancelled()
        self._publish(EventType.PROMPT_CANCELLED, with_id=False)

    def _cancelled(self) -> None:
        self._operation.cancelled_at = self._session.now_ms()
        self._operation.cancelled = trio.current_time()

    def ended(self, outcome: Outcome) -> None:
        """The terminal event: exactly one (REST-090)."""
        if not isinstance(self._operation.request, PromptRequest):
            self._operation_state(outcome)
            return
        operation = self._operation
        removed = operation.queued and operation.started is None
        if removed:
            self._publish(EventType.PENDING_PROMPT_COMPLETED, state="removed")
        if outcome.state is OperationState.FAILED:
            self._error(outcome)
            return
        data: dict[str, Any] = {"stopReason": outcome.stop_reason or "end_turn"}
        if outcome.state is not OperationState.COMPLETED and operation.started is not None:
            if operation.cancelled_at is None:
                self._cancelled()
            data["promptCancelled"] = cancel_report(operation)
        self._session.turn_error = None
        self._publish(EventType.TURN_COMPLETE, **data)

    def completed(self) -> None:
        """After the terminal event of a prompt that had waited (REST-067)."""
        if self._operation.queued and self._operation.started is not None:
            self._publish(EventType.PENDING_PROMPT_COMPLETED, state="completed")

    def _error(self, outcome: Outcome) -> None:
        error = outcome.error
        assert error is not None
        message = error.message
        if isinstance(error.data, dict) and isinstance(error.data.get("details"), str):
            message = error.data["details"]
        data: dict[str, Any] = {"message": message}
        if error.code is not None:
            data["code"] = str(error.code)
        if error.error_kind is not None:
            data["errorKind"] = error.error_kind
        if outcome.reason is not CancelReason.DEADLINE and self._operation.started is not None:
            self._publish(EventType.PROMPT_CANCELLED, with_id=False, reason="forward_failed")
        self._session.turn_error = {"sessionId": self._session.id, **data}
        self._publish(EventType.TURN_ERROR, **data)

    def _operation_state(self, outcome: Outcome) -> None:
        data: dict[str, Any] = {"operationId": self._operation.id, "state": outcome.state}
        if outcome.error is not None:
            data["message"] = outcome.error.message
        self._session.publish(EventType.OPERATION_STATE, {"sessionId": self._session.id, **data})

    def _publish(self, type: EventType, *, with_id: bool = True, **data: Any) -> None:
        operation = self._operation
        body: dict[str, Any] = {"sessionId": self._session.id, **data}
        if with_id:
            body["promptId"] = operation.id
        self._session.publish(type, body, prompt_id=str(operation.id), originator=operation.client_id)

    def _text(self) -> str:
        request = self._operation.request
        return request.text() if isinstance(request, PromptRequest) else ""
