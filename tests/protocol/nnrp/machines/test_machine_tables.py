"""Every (state, input) pair of every table: legal exactly where the specification says so."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from protocol.nnrp.enums import ConnectionState, OperationState, SessionState
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.machines.connection_table import (
    CONNECTION,
    DIALECT,
    INPUTS,
    ConnectionInput,
    Dialect,
    DialectInput,
)
from protocol.nnrp.machines.migration import MIGRATION, MigrationInput, PathState
from protocol.nnrp.machines.operation import OPERATION, TERMINAL_STATES, Operation, OperationEffect
from protocol.nnrp.machines.session_table import SESSION, SessionInput
from protocol.nnrp.messages import MESSAGES
from protocol.transitions import IllegalTransition, Table

TABLES: list[Table[Any, Any, Any]] = [CONNECTION, DIALECT, SESSION, OPERATION, MIGRATION]
PAIRS = [(table, state, given) for table in TABLES for state, given in table.pairs()]


@pytest.mark.parametrize(("table", "state", "given"), PAIRS, ids=lambda each: getattr(each, "name", ""))
def test_every_pair_steps_or_is_the_one_error(table: Table[Any, Any, Any], state: IntEnum, given: IntEnum) -> None:
    row = table.rows.get((state, given))
    assert table.allows(state, given) == (row is not None)
    if row is None:
        with pytest.raises(IllegalTransition, match=f"{table.name}: {given.name} is not allowed in {state.name}"):
            table.step(state, given)
    else:
        assert table.step(state, given) == row
        assert row[0] in table.states
        assert state not in table.terminal or row[0] is state


# nnrp-wire 13.4, written out again: the table must say the same.
_O = OperationState
OPERATION_RULE = {
    _O.ACCEPTED: {_O.RUNNING, _O.CANCELLED, _O.FAILED, _O.SUPERSEDED},
    _O.RUNNING: {_O.PARTIAL, _O.WAITING_TOOL, _O.CANCELLED, _O.FAILED, _O.COMPLETED, _O.SUPERSEDED},
    _O.PARTIAL: {_O.PARTIAL, _O.WAITING_TOOL, _O.CANCELLED, _O.FAILED, _O.COMPLETED, _O.SUPERSEDED},
    _O.WAITING_TOOL: {_O.RUNNING, _O.CANCELLED, _O.FAILED, _O.SUPERSEDED},
    _O.SUPERSEDED: set(),
    _O.CANCELLED: set(),
    _O.FAILED: set(),
    _O.COMPLETED: set(),
}


@pytest.mark.parametrize(("state", "wanted"), list(OPERATION.pairs()), ids=lambda each: each.name)
def test_operation_changes(state: OperationState, wanted: OperationState) -> None:
    """nnrp-wire 13.4: listed changes happen, every other one is BadTransition and changes nothing."""
    operation = Operation(7, 7)
    operation.state = state
    if wanted in OPERATION_RULE[state]:
        effect = operation.advance(wanted)
        assert operation.state is wanted
        assert (effect is OperationEffect.END) == (wanted in TERMINAL_STATES) == operation.ended
    else:
        with pytest.raises(NnrpError) as caught:
            operation.advance(wanted)
        assert caught.value.outcome is Outcome.BAD_TRANSITION
        assert operation.state is state


_S, _I = SessionState, SessionInput
_PRESENT = (_S.OPEN, _S.RESUMED, _S.CLOSING, _S.DRAINING)
SESSION_RULE = {
    _I.WORK: {_S.OPEN: _S.OPEN, _S.RESUMED: _S.RESUMED},
    _I.TRAFFIC: {state: state for state in _PRESENT},
    _I.CLOSE: {_S.OPEN: _S.CLOSING, _S.RESUMED: _S.CLOSING},
    _I.ACK_ACKNOWLEDGED: dict.fromkeys(_PRESENT, _S.CLOSING),
    _I.ACK_DRAINING: dict.fromkeys(_PRESENT, _S.DRAINING),
    _I.ACK_CLOSED: dict.fromkeys(_PRESENT, _S.CLOSED),
    _I.ACK_REJECTED: dict.fromkeys(_PRESENT, _S.OPEN),
    _I.CONNECTION_CLOSED: dict.fromkeys(_S, _S.CLOSED),
}


@pytest.mark.parametrize(("state", "given"), list(SESSION.pairs()), ids=lambda each: each.name)
def test_session_steps(state: SessionState, given: SessionInput) -> None:
    """nnrp-wire 13.2."""
    expected = SESSION_RULE[given].get(state)
    assert SESSION.allows(state, given) == (expected is not None)
    if expected is not None:
        assert SESSION.step(state, given)[0] is expected


_C, _G = ConnectionState, ConnectionInput
CONNECTION_RULE = {
    (_C.INIT, _G.HELLO): _C.NEGOTIATING,
    (_C.INIT, _G.SESSION_OPEN): _C.OPEN,
    (_C.INIT, _G.MIGRATE): _C.OPEN,
    (_C.INIT, _G.PROBE): _C.INIT,
    (_C.INIT, _G.PING): _C.INIT,
    (_C.NEGOTIATING, _G.HELLO_ACK): _C.OPEN,
    (_C.NEGOTIATING, _G.HELLO_REFUSED): _C.CLOSED,
    (_C.OPEN, _G.CLOSE): _C.DRAINING,
    (_C.OPEN, _G.FATAL): _C.DRAINING,
    (_C.DRAINING, _G.DRAINED): _C.CLOSED,
} | {(state, _G.LOST): _C.CLOSED for state in _C}
CONNECTION_REFUSALS = {
    (_C.OPEN, _G.HELLO),
    (_C.DRAINING, _G.HELLO),
    (_C.DRAINING, _G.SESSION_OPEN),
    (_C.DRAINING, _G.WORK),
    (_C.DRAINING, _G.CLOSE),
} | {(_C.CLOSED, given) for given in _G if given not in (_G.LOST, _G.DRAINED)}


@pytest.mark.parametrize(("pair", "target"), CONNECTION_RULE.items(), ids=str)
def test_connection_rows(pair: tuple[ConnectionState, ConnectionInput], target: ConnectionState) -> None:
    """nnrp-wire 13.1: each row of its table."""
    assert CONNECTION.step(*pair)[0] is target


@pytest.mark.parametrize("pair", sorted(CONNECTION_REFUSALS), ids=str)
def test_connection_refusals(pair: tuple[ConnectionState, ConnectionInput]) -> None:
    """nnrp-wire 13.1: no second hello, nothing new while draining, nothing at all once closed."""
    assert not CONNECTION.allows(*pair)


def test_every_message_type_is_an_input() -> None:
    assert set(INPUTS) == set(MESSAGES)


def test_first_packet_tells_the_dialect() -> None:
    """nnrp-wire 2.6."""
    learned = {given: DIALECT.step(Dialect.UNKNOWN, given)[0] for given in DialectInput if given is not DialectInput(5)}
    assert learned == {
        DialectInput.HELLO: Dialect.NATIVE,
        DialectInput.SESSION_OPEN: Dialect.BARE,
        DialectInput.MIGRATE: Dialect.IMPLICIT,
        DialectInput.PROBE: Dialect.UNKNOWN,
        DialectInput.PING: Dialect.UNKNOWN,
    }


def test_a_migration_that_was_not_asked_for_cannot_be_answered() -> None:
    """nnrp-wire 13.9: one primary path at a time."""
    assert not MIGRATION.allows(PathState.PRIMARY, MigrationInput.ACCEPTED)
    assert not MIGRATION.allows(PathState.GRACE, MigrationInput.ASKED)


class Colour(IntEnum):
    RED = 0
    BLUE = 1


class Gap(IntEnum):
    RED = 0
    BLUE = 2


def test_a_table_with_a_lost_state_is_refused() -> None:
    with pytest.raises(ValueError, match="no way leads to BLUE"):
        Table(
            "lost",
            Colour,
            Colour,
            {(Colour.RED, Colour.RED): (Colour.RED, Colour.RED)},
            initial=frozenset({Colour.RED}),
            terminal=frozenset(),
        )


def test_a_table_whose_terminal_state_can_be_left_is_refused() -> None:
    rows = {
        (Colour.RED, Colour.RED): (Colour.BLUE, Colour.RED),
        (Colour.BLUE, Colour.RED): (Colour.RED, Colour.RED),
    }
    with pytest.raises(ValueError, match="terminal state BLUE is left by RED"):
        Table("leaky", Colour, Colour, rows, initial=frozenset({Colour.RED}), terminal=frozenset({Colour.BLUE}))


def test_numbering_with_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="Gap must be numbered"):
        Table("gap", Gap, Colour, {}, initial=frozenset(Gap), terminal=frozenset())
