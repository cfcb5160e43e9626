"""Every (state, input) pair of every transition table of the engine."""

from __future__ import annotations

import itertools
from enum import Enum

import pytest

from sessions import operation, phase
from sessions.attachment import TRANSITIONS as ATTACHMENT
from sessions.attachment import Attachment, AttachmentInput, AttachmentPhase
from sessions.errors import WrongPhase
from sessions.operation import TERMINAL, Operation, OperationInput, OperationState
from sessions.phase import SessionInput, SessionPhase

OPERATION_NEXT = {
    # nnrp-wire.md 13.4, as printed there.
    "accepted": {"running", "cancelled", "failed", "superseded"},
    "running": {"partial", "waiting_tool", "cancelled", "failed", "completed", "superseded"},
    "partial": {"partial", "waiting_tool", "cancelled", "failed", "completed", "superseded"},
    "waiting_tool": {"running", "cancelled", "failed", "superseded"},
    "superseded": set(),
    "cancelled": set(),
    "failed": set(),
    "completed": set(),
}


@pytest.mark.parametrize(("state", "given"), list(itertools.product(OperationState, OperationInput)))
def test_operation_pairs(state: OperationState, given: OperationInput) -> None:
    """nnrp-wire 13.4: a legal pair leads to a listed state, any other is WrongPhase and changes nothing."""
    each = Operation("o", None)
    each.state = state
    if (state, given) in operation.TRANSITIONS:
        assert each.step(given).value in OPERATION_NEXT[state.value]
    else:
        with pytest.raises(WrongPhase):
            each.step(given)
        assert each.state is state


def test_operation_table_is_the_specified_one() -> None:
    reachable: dict[str, set[str]] = {state.value: set() for state in OperationState}
    for (state, _), target in operation.TRANSITIONS.items():
        reachable[state.value].add(target.value)
    assert reachable == OPERATION_NEXT
    assert {state for state in OperationState if not reachable[state.value]} == TERMINAL


@pytest.mark.parametrize(("phase", "given"), list(itertools.product(AttachmentPhase, AttachmentInput)))
def test_attachment_pairs(phase: AttachmentPhase, given: AttachmentInput) -> None:
    each = Attachment(1.0, lambda expired: None)
    each.phase = phase
    if (phase, given) in ATTACHMENT:
        each._step(given)
        assert each.phase is ATTACHMENT[phase, given]
    else:
        with pytest.raises(WrongPhase):
            each._step(given)
        assert each.phase is phase


LEGAL_SESSION = {
    ("starting", "started"): "live",
    ("starting", "start_failed"): "closed",
    ("starting", "close_asked"): "closing",
    ("starting", "died"): "closed",
    ("live", "close_asked"): "closing",
    ("live", "died"): "closed",
    ("closing", "last_done"): "closed",
    ("closing", "died"): "closed",
    ("closed", "loaded"): "starting",
}


def test_session_table() -> None:
    """Illegal pairs are simply absent; a closed session takes nothing but being loaded."""
    assert {(p.value, i.value): n.value for (p, i), n in phase.TRANSITIONS.items()} == LEGAL_SESSION


@pytest.mark.parametrize("enum", [OperationState, OperationInput, AttachmentPhase, SessionPhase, SessionInput])
def test_every_member_is_used(enum: type[Enum]) -> None:
    used: set[object] = set()
    tables: list[dict[tuple[Enum, Enum], Enum]] = [operation.TRANSITIONS, ATTACHMENT, phase.TRANSITIONS]  # type: ignore[list-item]  # enum keys differ
    for table in tables:
        for (state, given), target in table.items():
            used |= {state, given, target}
    assert set(enum) <= used
