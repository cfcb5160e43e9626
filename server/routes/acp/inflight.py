"""Prompts of a connection that are accepted and not answered, and the answers they will get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from protocol.jsonrpc import Id, encode_error, encode_notification, encode_result
from server.routes.acp.errors import agent_error, rpc_error_of
from sessions import Operation, OperationState, Outcome
from sessions.errors import RunnerLost
from sessions.turn import cancel_report

if TYPE_CHECKING:
    from server.routes.acp.binding import Binding

__all__ = ["OUTCOME_NOTIFICATION", "InFlight", "goes_on_counting"]

OUTCOME_NOTIFICATION: Final = "_moorline/session/prompt_outcome"
"""Tells the outcome of an adopted prompt to a client for which the old request id means something else."""


@attrs.define(slots=True, eq=False)
class InFlight:
    """One prompt, and the binding that gets its reply. Adoption changes the binding, never the prompt."""

    request_id: Id
    operation: Operation
    binding: Binding
    as_response: bool = True
    """False after an adoption by a client that may use the request id for something else."""

    def watch(self) -> None:
        """Answer when the prompt is settled; at once if it is."""
        self.operation.when_settled(self._settled)

    def _settled(self, _: Operation) -> None:
        self.binding.prompt_settled(self)

    def message(self) -> bytes:
        """The reply. Only for a settled prompt."""
        outcome = self.operation.outcome
        assert outcome is not None
        body = _body(self.operation, outcome)
        if not self.as_response:
            about = {
                "sessionId": self.binding.session.id,
                "promptId": self.operation.id,
                "requestId": self.request_id,
            }
            return encode_notification(OUTCOME_NOTIFICATION, {**about, **body})
        if "error" in body:
            error = body["error"]
            return encode_error(self.request_id, error["code"], error["message"], error["data"])
        return encode_result(self.request_id, body["result"])


def goes_on_counting(adopting: Id | None, adopted: Id) -> bool:
    """Whether the client that sent ``adopting`` on a new connection can still tell what ``adopted`` was the id of.

    A client that counts its requests from one again on every connection would take the response for that of another
    request. One whose number is higher has gone on counting; one that uses texts is taken to make them unique.
    """
    if isinstance(adopted, str):
        return isinstance(adopting, str) and adopting != adopted
    return isinstance(adopting, (int, float)) and adopting > adopted


def _body(operation: Operation, outcome: Outcome) -> dict[str, Any]:
    if outcome.state is OperationState.FAILED:
        assert outcome.error is not None
        # An agent that died is told apart; every other failure of a prompt is the agent's own (ACP-220).
        lost = isinstance(outcome.error, RunnerLost)
        error = rpc_error_of(outcome.error) if lost else agent_error(outcome.error)
        return {"error": {"code": error.code, "message": error.message, "data": error.data}}
    cancelled = outcome.state is not OperationState.COMPLETED
    result: dict[str, Any] = {"stopReason": "cancelled" if cancelled else outcome.stop_reason or "end_turn"}
    meta = dict(outcome.meta or {})
    if cancelled and operation.started is not None and operation.cancelled_at is not None:
        meta["qwen.promptCancelled"] = cancel_report(operation)
    if meta:
        result["_meta"] = meta
    return {"result": result}
