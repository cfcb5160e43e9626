"""The life of one session on a connection (nnrp-wire 13.2), as a table."""

from __future__ import annotations

from enum import IntEnum

from protocol.nnrp.enums import CloseStatus, SessionState
from protocol.transitions import Table

__all__ = ["ACK_INPUTS", "SESSION", "SessionEffect", "SessionInput"]


class SessionInput(IntEnum):
    """What can happen to a session; sent or received makes no difference."""

    WORK = 0
    """A new operation: FRAME_SUBMIT."""
    TRAFFIC = 1
    """Any other message of the session."""
    CLOSE = 2
    ACK_ACKNOWLEDGED = 3
    ACK_DRAINING = 4
    ACK_CLOSED = 5
    ACK_REJECTED = 6
    CONNECTION_CLOSED = 7


class SessionEffect(IntEnum):
    ADMIT = 0
    PASS = 1
    BEGIN_CLOSE = 2
    FOLLOW_CLOSE = 3
    """The other end reports how far it is."""
    REOPEN = 4
    END = 5
    NOTHING = 6


ACK_INPUTS = {
    CloseStatus.ACKNOWLEDGED: SessionInput.ACK_ACKNOWLEDGED,
    CloseStatus.DRAINING: SessionInput.ACK_DRAINING,
    CloseStatus.CLOSED: SessionInput.ACK_CLOSED,
    CloseStatus.REJECTED: SessionInput.ACK_REJECTED,
}

_S, _I, _E = SessionState, SessionInput, SessionEffect
_RUNNING = (_S.OPEN, _S.RESUMED)
_PRESENT = (*_RUNNING, _S.CLOSING, _S.DRAINING)

SESSION: Table[SessionState, SessionInput, SessionEffect] = Table(
    "session",
    SessionState,
    SessionInput,
    {(state, _I.WORK): (state, _E.ADMIT) for state in _RUNNING}
    | {(state, _I.TRAFFIC): (state, _E.PASS) for state in _PRESENT}
    | {(state, _I.CLOSE): (_S.CLOSING, _E.BEGIN_CLOSE) for state in _RUNNING}
    | {(state, _I.ACK_ACKNOWLEDGED): (_S.CLOSING, _E.FOLLOW_CLOSE) for state in _PRESENT}
    | {(state, _I.ACK_DRAINING): (_S.DRAINING, _E.FOLLOW_CLOSE) for state in _PRESENT}
    | {(state, _I.ACK_CLOSED): (_S.CLOSED, _E.END) for state in _PRESENT}
    | {(state, _I.ACK_REJECTED): (_S.OPEN, _E.REOPEN) for state in _PRESENT}
    | {(state, _I.CONNECTION_CLOSED): (_S.CLOSED, _E.END) for state in _PRESENT}
    | {(_S.CLOSED, _I.CONNECTION_CLOSED): (_S.CLOSED, _E.NOTHING)},
    initial=frozenset(_RUNNING),
    terminal=frozenset({_S.CLOSED}),
)
