"""One unit of work: its place in the tree, its cancel scope, and its single terminal outcome."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from sessions.errors import RunnerError, WrongPhase

__all__ = [
    "TERMINAL",
    "TRANSITIONS",
    "CancelReason",
    "Operation",
    "OperationId",
    "OperationInput",
    "OperationState",
    "Outcome",
    "Priority",
    "PromptRequest",
]

REMEMBERED_TEXT: Final = 4096
"""Characters of a settled prompt that are kept."""
TITLE_LENGTH: Final = 120
"""Characters of a prompt that serve as its session's name until somebody gives one."""

OperationId = str | int
"""A prompt's UUID, or the number another wire gave."""


class OperationState(enum.StrEnum):
    """The life of an operation (nnrp-wire.md 13.4; REST's queued is ``accepted``)."""

    ACCEPTED = "accepted"
    RUNNING = "running"
    PARTIAL = "partial"
    WAITING_TOOL = "waiting_tool"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


class OperationInput(enum.StrEnum):
    """What can happen to an operation."""

    START = "start"
    PARTIAL = "partial"
    WAIT_TOOL = "wait_tool"
    GO_ON = "go_on"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    SUPERSEDE = "supersede"


def _table() -> dict[tuple[OperationState, OperationInput], OperationState]:
    s, i = OperationState, OperationInput
    table = {
        (s.ACCEPTED, i.START): s.RUNNING,
        (s.RUNNING, i.PARTIAL): s.PARTIAL,
        (s.RUNNING, i.WAIT_TOOL): s.WAITING_TOOL,
        (s.RUNNING, i.COMPLETE): s.COMPLETED,
        (s.PARTIAL, i.PARTIAL): s.PARTIAL,
        (s.PARTIAL, i.WAIT_TOOL): s.WAITING_TOOL,
        (s.PARTIAL, i.COMPLETE): s.COMPLETED,
        (s.WAITING_TOOL, i.GO_ON): s.RUNNING,
    }
    for live in (s.ACCEPTED, s.RUNNING, s.PARTIAL, s.WAITING_TOOL):
        table[live, i.CANCEL] = s.CANCELLED
        table[live, i.FAIL] = s.FAILED
        table[live, i.SUPERSEDE] = s.SUPERSEDED
    return table


TRANSITIONS: Final = _table()
"""Every legal step; anything else is `WrongPhase`."""
TERMINAL: Final = frozenset(
    {OperationState.COMPLETED, OperationState.FAILED, OperationState.CANCELLED, OperationState.SUPERSEDED}
)


class Priority(enum.IntEnum):
    """Priority classes, the most urgent first (nnrp-wire.md 13.5)."""

    INTERACTIVE = 0
    STANDARD = 1
    BACKGROUND = 2


class CancelReason(enum.StrEnum):
    """Why an operation was cancelled; recorded before its scope is."""

    USER = "user"
    REMOVED = "removed"
    SUPERSEDED = "superseded"
    DEADLINE = "deadline"
    RESOURCE = "resource"
    OWNER_GONE = "owner_gone"
    SESSION_CLOSED = "session_closed"
    SESSION_DIED = "session_died"
    SHUTDOWN = "shutdown"


@attrs.frozen(slots=True)
class PromptRequest:
    """What a prompt asks: ACP content blocks, never interpreted by the engine."""

    blocks: Sequence[Mapping[str, Any]]
    meta: Mapping[str, Any] | None = None

    def text(self) -> str:
        """The text blocks, joined: what lists and titles show."""
        return "\n".join(
            block["text"] for block in self.blocks if block.get("type") == "text" and isinstance(block.get("text"), str)
        )

    def title(self) -> str | None:
        """A name for the session that begins with this: the text's beginning on one line, or None without text."""
        return " ".join(self.text()[: TITLE_LENGTH * 4].split())[:TITLE_LENGTH].rstrip() or None

    def remembered(self) -> PromptRequest:
        """What is kept of it once it is settled: itself if it is small, else its title. Prompts may be megabytes, and
        hundreds of settled ones are remembered."""
        text = self.text()
        if len(text) <= REMEMBERED_TEXT and all(block.get("type") == "text" for block in self.blocks):
            return self
        return PromptRequest([{"type": "text", "text": self.title() or ""}])


@attrs.frozen(slots=True)
class Outcome:
    """How an operation ended."""

    state: OperationState
    stop_reason: str | None = None
    """For ``completed`` and ``cancelled``: as in ACP-197."""
    error: RunnerError | None = None
    reason: CancelReason | None = None
    meta: Mapping[str, Any] | None = None


@attrs.define(slots=True, eq=False)
class Operation:
    """One operation of one session.

    ``scope`` *is* the protocol's cancel scope: cancelling the operation is ``cancel(reason)``, which records the reason
    and cancels that scope, and nothing else. The outcome is settled once, synchronously; the first to settle wins.
    """

    id: OperationId
    request: Any
    parent_id: OperationId | None = None
    group_id: OperationId | None = None
    priority: Priority = Priority.STANDARD
    deadline: float = math.inf
    """Seconds the operation may take, counted from its acceptance (nnrp-wire.md 13.4: from receipt)."""
    client_id: str | None = None
    """Who asked."""
    accepted_at: int = 0
    """Wall clock, ms."""
    received: float = 0.0
    """The same in Trio's clock."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    state: OperationState = attrs.field(default=OperationState.ACCEPTED, init=False)
    cancel_reason: CancelReason | None = attrs.field(default=None, init=False)
    outcome: Outcome | None = attrs.field(default=None, init=False)
    started: float | None = attrs.field(default=None, init=False)
    """In Trio's clock; None while it waits."""
    cancelled_at: int | None = attrs.field(default=None, init=False)
    """When the cancel was asked for; wall clock, ms."""
    cancelled: float = attrs.field(default=math.inf, init=False)
    """The same in Trio's clock."""
    queued: bool = attrs.field(default=False, init=False)
    """It was accepted behind others (REST-067)."""
    told: trio.Event | None = attrs.field(default=None, init=False)
    """Set `TOLD_LEAD` seconds after whoever asked was told the operation's id; None: they know it already.

    The outcome waits for it. A client that learns the id from one stream and the outcome from another can match them only
    in this order (client-sdk.md 2.4: the shipped SDK drops an outcome whose id it has not registered, and waits for ever).
    """
    _settled: trio.Event | None = attrs.field(default=None, init=False)
    _callbacks: list[Callable[[Operation], object]] | None = attrs.field(default=None, init=False)

    # What is there

    @property
    def settled(self) -> bool:
        return self.outcome is not None

    @property
    def cancelling(self) -> bool:
        """A cancel was asked for and the outcome is not there yet."""
        return self.cancel_reason is not None and self.outcome is None

    async def wait_settled(self) -> Outcome:
        """Wait for the outcome. Cancelling the wait does not touch the operation."""
        if self.outcome is None:
            if self._settled is None:
                self._settled = trio.Event()
            await self._settled.wait()
        else:
            await trio.lowlevel.checkpoint()
        assert self.outcome is not None
        return self.outcome

    # What happens

    def step(self, given: OperationInput) -> OperationState:
        """Take one step of the table. Raises `WrongPhase`; the state is then unchanged."""
        try:
            self.state = TRANSITIONS[self.state, given]
        except KeyError:
            raise WrongPhase(self.state, given) from None
        return self.state

    def cancel(self, reason: CancelReason) -> bool:
        """Ask for the end: record why, then cancel the scope. False if it is settled or being cancelled already."""
        if self.outcome is not None or self.cancel_reason is not None:
            return False
        self.cancel_reason = reason
        self.scope.cancel()
        return True

    def when_settled(self, callback: Callable[[Operation], object]) -> None:
        """Call ``callback(operation)`` synchronously when the outcome is settled (at once if it is)."""
        if self.outcome is not None:
            callback(self)
            return
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)

    def forget_callback(self, callback: Callable[[Operation], object]) -> None:
        """Take back a `when_settled`; unknown ones are ignored."""
        if self._callbacks is not None and callback in self._callbacks:
            self._callbacks.remove(callback)

    def settle(self, outcome: Outcome) -> bool:
        """Settle, if nobody has. True for the one call that did; only that call may publish the terminal event."""
        if self.outcome is not None:
            return False
        self.step(_INPUT_FOR[outcome.state])
        self.outcome = outcome
        if self._settled is not None:
            self._settled.set()
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)
        return True


_INPUT_FOR: Final = {
    OperationState.COMPLETED: OperationInput.COMPLETE,
    OperationState.FAILED: OperationInput.FAIL,
    OperationState.CANCELLED: OperationInput.CANCEL,
    OperationState.SUPERSEDED: OperationInput.SUPERSEDE,
}
