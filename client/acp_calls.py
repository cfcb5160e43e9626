"""JSON-RPC calls that wait for an answer, over whichever stream it comes (CLI-030, CLI-034)."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import trio

from client.errors import (
    DaemonHttpError,
    DaemonPromptQueueFullError,
    DaemonProtocolError,
    DaemonTurnError,
    JsonRpcError,
)
from client.prompts import Ticket
from client.results import prompt_result
from protocol.jsonrpc import InvalidJson, Response, decode_json

__all__ = ["Call", "PlainCall", "PromptCall", "error_from"]


class Call(abc.ABC):
    """Something that waits for the response to one request."""

    @abc.abstractmethod
    def answer(self, response: Response) -> None:
        """Synchronous, so that what the next message means can depend on it."""

    @abc.abstractmethod
    def fail(self, error: Exception) -> None:
        """No answer will come."""

    @abc.abstractmethod
    def connection_lost(self, error: Exception) -> bool:
        """The connection the request went out on is gone. True if an answer may still come, on another."""


class PlainCall(Call):
    """A caller waits for the result. ``on_result`` runs before any later message is looked at."""

    def __init__(self, on_result: Callable[[Any], None] | None = None) -> None:
        self._done = trio.Event()
        self._result: Any = None
        self._error: Exception | None = None
        self._on_result = on_result

    def answer(self, response: Response) -> None:
        try:
            self._result = _result_of(response)
        except (DaemonHttpError, DaemonProtocolError) as exc:
            self.fail(exc)
            return
        if self._on_result is not None:
            try:
                self._on_result(self._result)
            except DaemonProtocolError as exc:
                self.fail(exc)
                return
        self._done.set()

    def fail(self, error: Exception) -> None:
        if not self._done.is_set():
            self._error = error
            self._done.set()

    def connection_lost(self, error: Exception) -> bool:
        self.fail(error)
        return False

    def again(self) -> PlainCall:
        """The same for another attempt."""
        return PlainCall(self._on_result)

    async def wait(self) -> Any:
        """The result. Raises what the call failed with."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result


class PromptCall(Call):
    """A prompt's answer is its outcome, and it is not lost with the connection (CLI-027)."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    def answer(self, response: Response) -> None:
        try:
            self._ticket.settle(prompt_result(_result_of(response)))
        except JsonRpcError as exc:
            self._ticket.fail(_as_turn_error(exc))
        except (DaemonHttpError, DaemonProtocolError) as exc:
            self._ticket.fail(exc)

    def fail(self, error: Exception) -> None:
        self._ticket.fail(error)

    def connection_lost(self, error: Exception) -> bool:
        self._ticket.mark_lost()
        return not self._ticket.settled


def error_from(error: object) -> DaemonHttpError:
    """The exception for a JSON-RPC error object; a full queue is the same class as on REST (CLI-014, CLI-039)."""
    fields = error if isinstance(error, dict) else {}
    code, message, data = fields.get("code"), str(fields.get("message", "error")), fields.get("data")
    if isinstance(data, dict) and data.get("errorKind") == "prompt_queue_full":
        return DaemonPromptQueueFullError(503, {"error": message, "code": "prompt_queue_full"} | data, message)
    return JsonRpcError(code if isinstance(code, int) else 0, message, data)


def _as_turn_error(exc: JsonRpcError) -> DaemonHttpError:
    """A failed turn is the same class on every transport (CLI-039); a refusal keeps its own."""
    details = exc.data if isinstance(exc.data, dict) else {}
    if details.get("errorKind") != "internal":
        return exc
    failure = DaemonTurnError({"message": details.get("details") or exc.message})
    failure.__cause__ = exc
    return failure


def _result_of(response: Response) -> Any:
    try:
        if response.error is not None:
            raise error_from(decode_json(response.error))
        return decode_json(response.result) if response.result is not None else None
    except InvalidJson as exc:
        raise DaemonProtocolError(f"an unreadable response: {exc}") from exc
