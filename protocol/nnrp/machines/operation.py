"""The life of one operation (nnrp-wire 13.4) as a table, and the record a session keeps of it."""

from __future__ import annotations

import math
from enum import IntEnum

from protocol.errors import Reach
from protocol.nnrp.enums import OperationState, PriorityClass
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.transitions import IllegalTransition, Table

__all__ = ["LIVE_STATES", "OPERATION", "TERMINAL_STATES", "Operation", "OperationEffect"]


class OperationEffect(IntEnum):
    """What a state change means to whoever drives the operation."""

    PROGRESS = 0
    """Still live: an intermediate event."""
    END = 1
    """The state is final. The operation stays in flight until it is settled with its one terminal message."""


_S = OperationState
_ACCEPTED, _SUPERSEDED = _S.ACCEPTED, _S.SUPERSEDED
TERMINAL_STATES = frozenset({_S.SUPERSEDED, _S.CANCELLED, _S.FAILED, _S.COMPLETED})
LIVE_STATES = frozenset(OperationState) - TERMINAL_STATES

_ALLOWED: dict[OperationState, tuple[OperationState, ...]] = {
    _S.ACCEPTED: (_S.RUNNING, _S.CANCELLED, _S.FAILED, _S.SUPERSEDED),
    _S.RUNNING: (_S.PARTIAL, _S.WAITING_TOOL, _S.CANCELLED, _S.FAILED, _S.COMPLETED, _S.SUPERSEDED),
    _S.PARTIAL: (_S.PARTIAL, _S.WAITING_TOOL, _S.CANCELLED, _S.FAILED, _S.COMPLETED, _S.SUPERSEDED),
    _S.WAITING_TOOL: (_S.RUNNING, _S.CANCELLED, _S.FAILED, _S.SUPERSEDED),
}

#: The input of this table is the wanted state: that is how the rule is written, and how operation_state carries it.
OPERATION: Table[OperationState, OperationState, OperationEffect] = Table(
    "operation",
    OperationState,
    OperationState,
    {
        (state, wanted): (wanted, OperationEffect.END if wanted in TERMINAL_STATES else OperationEffect.PROGRESS)
        for state, following in _ALLOWED.items()
        for wanted in following
    },
    initial=frozenset({_S.ACCEPTED}),
    terminal=TERMINAL_STATES,
)


class Operation:
    """One operation of one session: identity, place in the tree, state. Made by the session's operation table only.

    ``deadline`` is a monotonic instant, ``math.inf`` when the operation has none. ``attachment`` belongs to the driver
    (its own object for the operation) and is never looked at here. ``abandoned`` says that it was settled because nobody
    was left to tell, while whoever carries it out may not know yet. ``route_id`` and ``trace_id`` are those of its submit; they
    come back with everything said about it (nnrp-wire 3). ``sent_once``: its results are not sent again when they are lost, because
    they are fire_and_forget, or low_latency and come too late anyway (12.5). ``sent_again``: by us, after a resume;
    the other end may have had it already, or not. ``unsent``: it was carried over by a resume and is still to be sent on this
    connection. ``refused``: there, though nothing else was in flight and there was credit as far as we know.
    """

    __slots__ = (
        "abandoned",
        "attachment",
        "children",
        "deadline",
        "depth",
        "frame_id",
        "group_id",
        "live_below",
        "operation_id",
        "parent_id",
        "priority",
        "refused",
        "route_id",
        "sent_again",
        "sent_once",
        "settled",
        "state",
        "trace_id",
        "unsent",
        "view_id",
    )

    def __init__(
        self,
        operation_id: int,
        frame_id: int,
        view_id: int = 0,
        parent_id: int = 0,
        group_id: int = 0,
        priority: PriorityClass = PriorityClass.BALANCED,
        deadline: float = math.inf,
        depth: int = 0,
    ) -> None:
        self.operation_id = operation_id
        self.frame_id = frame_id
        self.view_id = view_id
        self.parent_id = parent_id
        self.group_id = group_id
        self.priority = priority
        self.deadline = deadline
        self.depth = depth
        self.state = _ACCEPTED
        self.settled = False
        self.abandoned = False
        self.route_id = 0
        self.trace_id = 0
        self.sent_once = False
        self.sent_again = False
        self.unsent = False
        self.refused = False
        self.children: set[int] | None = None
        self.live_below = 0
        self.attachment: object = None

    @property
    def ended(self) -> bool:
        """Whether the state is final, settled or not."""
        return self.state >= _SUPERSEDED

    def advance(self, wanted: OperationState) -> OperationEffect:
        """Change the state. Raises NnrpError BadTransition for a change that is not listed; the state is then untouched."""
        try:
            self.state, effect = OPERATION.step(self.state, wanted)
        except IllegalTransition as refused:
            raise NnrpError(
                Outcome.BAD_TRANSITION,
                f"an operation may not go from {self.state.name.lower()} to {wanted.name.lower()}",
                subject="operation",
                reach=Reach.OPERATION,
                frame_id=self.frame_id,
            ) from refused
        return effect

    def begin_again(self) -> None:
        """Everything that was said about it comes again. An end that was our own (a cancel) stays."""
        if not self.ended:
            self.state = _ACCEPTED

    def __repr__(self) -> str:
        return f"<Operation {self.operation_id} frame={self.frame_id} {self.state.name.lower()}>"
