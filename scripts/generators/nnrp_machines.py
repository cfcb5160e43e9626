"""docs/nnrp-machines.md: the transition tables of NNRP as tables and diagrams, and every bound a machine keeps."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from protocol.nnrp.enums import MessageType
from protocol.nnrp.machines import cache, closing, history, operations, outgoing, session
from protocol.nnrp.machines.connection_table import CONNECTION, DIALECT, INPUTS
from protocol.nnrp.machines.layers import control, core, handshake
from protocol.nnrp.machines.migration import MIGRATION
from protocol.nnrp.machines.operation import OPERATION
from protocol.nnrp.machines.session_table import SESSION
from protocol.transitions import Table

__all__ = ["documents"]

PATH = "docs/nnrp-machines.md"

_HEAD = """# NNRP/1 preview3: state machines

Generated from the tables in `protocol/nnrp/machines` by `python -m scripts.generate`; do not edit. A pair of state and
input that is not listed is refused: E:BadState for connections and sessions, E:BadTransition for operations. Sent and
received make no difference, and neither does the side: both ends step through the same tables. How a machine is driven
stands in `protocol/README.md`.
"""

_ABOUT: dict[str, str] = {
    "connection": "Section 13.1. What each message is as an input is listed below the table.",
    "dialect": "Section 2.6: what the first packet tells about the peer. BARE sends no hello, IMPLICIT no session messages.",
    "session": "Section 13.2. RESERVED ids of a hello are not sessions yet.",
    "operation": "Section 13.4. The input is the wanted state. A final state still waits for its one terminal message.",
    "migration": "Section 13.9, from the point of view of the old path.",
}

_BOUNDS = (
    (operations, "MAX_DEPTH", "depth of an operation tree"),
    (operations, "RETAINED", "ended operations a session with a tree still knows"),
    (history, "OPEN_HOLES", "used frame ids remembered above a hole"),
    (history, "REMEMBERED_IDS", "used operation ids remembered one by one"),
    (session, "OPERATION_WINDOWS", "operation credit windows of one session"),
    (core, "CLOSED_IDS", "closed session ids a connection remembers"),
    (control, "OPENS_OUTSTANDING", "unanswered SESSION_OPENs of a connection"),
    (handshake, "IMPLICIT_IN_FLIGHT", "operations of an implicit session without a limit in the hello"),
    (cache, "REMEMBERED_LEASES", "ended leases a cache remembers"),
    (outgoing, "DIAGNOSTIC_BYTES", "bytes of diagnostic text in an ERROR"),
    (closing, "SETTLE_GRACE", "seconds a cancelled operation may hold up a close"),
    (closing, "ANSWER_GRACE", "seconds past the drain timeout until an unanswered close is over"),
)


def documents() -> dict[str, str]:
    parts = [_HEAD]
    for table in (CONNECTION, DIALECT, SESSION, OPERATION, MIGRATION):
        parts += _section(table)
    parts += _bounds()
    return {PATH: "\n".join(parts).rstrip() + "\n"}


def _section(table: Table[Any, Any, Any]) -> Iterator[str]:
    yield f"## {table.name.capitalize()}\n"
    yield _ABOUT[table.name] + "\n"
    yield from _diagram(table)
    yield from _rows(table)
    if table is CONNECTION:
        yield from _inputs()


def _diagram(table: Table[Any, Any, Any]) -> Iterator[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    for state in table.states:
        if state in table.initial:
            yield f"    [*] --> {state.name}"
    for (source, target), inputs in _arrows(table).items():
        yield f"    {source} --> {target}: {', '.join(inputs)}"
    for state in table.states:
        if state in table.terminal:
            yield f"    {state.name} --> [*]"
    yield "```\n"


def _arrows(table: Table[Any, Any, Any]) -> dict[tuple[str, str], list[str]]:
    """State changes only: what leaves a state as it is stands in the table."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for state, given in table.pairs():
        row = table.rows.get((state, given))
        if row is not None and row[0] is not state:
            arrows.setdefault((state.name, row[0].name), []).append(given.name)
    return arrows


def _rows(table: Table[Any, Any, Any]) -> Iterator[str]:
    yield "| state | input | next | effect |"
    yield "|---|---|---|---|"
    for state, given in table.pairs():
        row = table.rows.get((state, given))
        if row is not None:
            yield f"| {state.name} | {given.name} | {row[0].name} | {row[1].name} |"
    yield ""


def _inputs() -> Iterator[str]:
    by_input: dict[IntEnum, list[str]] = {}
    for kind in MessageType:
        by_input.setdefault(INPUTS[kind], []).append(kind.name)
    yield "| input | messages |"
    yield "|---|---|"
    for given in CONNECTION.inputs:
        yield f"| {given.name} | {', '.join(by_input.get(given, ())) or 'none'} |"
    yield ""
    yield (
        "A SERVER_HELLO_ACK with a non-zero auth_status is HELLO_REFUSED, and an ERROR that is fatal for the connection "
        "is FATAL.\n"
    )


def _bounds() -> Iterator[str]:
    yield "## Bounds\n"
    yield "| bound | value | where |"
    yield "|---|---|---|"
    for module, name, what in _BOUNDS:
        where = inspect.getmodulename(module.__file__ or "")
        yield f"| {what} | {getattr(module, name):g} | `{where}.{name}` |"
    yield ""
