"""How a conformance case is declared, carried out and judged."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import ParamSpec, TypeAlias

import attrs

from protocol.errors import LocalProtocolError
from protocol.nnrp.errors import NnrpError, Outcome

__all__ = [
    "CASES",
    "SKIPS",
    "CaseOutcome",
    "Evidence",
    "Verdict",
    "both",
    "case",
    "expect",
    "expect_refusal",
    "run_case",
]

P = ParamSpec("P")


class CaseOutcome(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"
    ERROR = "error"


@attrs.frozen(slots=True)
class Verdict:
    """``failure_kind`` and ``message`` are empty on a pass; a skip has its reason as message."""

    outcome: CaseOutcome
    failure_kind: str = ""
    message: str = ""


def both(machine: Verdict, live: Verdict) -> Verdict:
    """What a case decided on the machines and on a running server comes to: the worse of the two. One that the machines
    cannot decide is the server's to decide; one the server could not, for want of something, says so."""
    if machine.outcome in (CaseOutcome.FAIL, CaseOutcome.ERROR):
        return machine
    return live


class Evidence:
    """What a case saw, line by line, for whoever wants to check it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


class ExpectationFailed(Exception):
    """The implementation does not do what the case demands."""


Case: TypeAlias = Callable[[Evidence], None]

CASES: dict[str, Case] = {}
SKIPS: dict[str, str] = {}
"""Known cases that cannot be decided here, with the reason."""


def case(identifier: str) -> Callable[[Case], Case]:
    """Register a case under the suite's id."""

    def register(function: Case) -> Case:
        if identifier in CASES:
            raise ValueError(f"two cases are called {identifier}")
        CASES[identifier] = function
        return function

    return register


def expect(condition: object, demand: str) -> None:
    """The implementation must have done this. ``demand`` says what, in the words of the specification."""
    if not condition:
        raise ExpectationFailed(demand)


def expect_refusal(
    outcome: Outcome, demand: str, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> NnrpError:
    """The call must be refused as the peer's fault with this outcome."""
    try:
        call(*args, **kwargs)
    except NnrpError as error:
        expect(error.outcome is outcome, f"{demand}: refused with {error.outcome.value}, not {outcome.value}")
        return error
    raise ExpectationFailed(f"{demand}: it was accepted")


def expect_local_refusal(demand: str, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """The call must be refused as our own fault, before anything is sent."""
    try:
        call(*args, **kwargs)
    except LocalProtocolError:
        return
    raise ExpectationFailed(f"{demand}: it was allowed")


def expect_code(code: int, demand: str, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """The call must be refused with this stable error code."""
    try:
        call(*args, **kwargs)
    except NnrpError as error:
        expect(error.code == code, f"{demand}: code {error.code:#x}, not {code:#x}")
        return
    raise ExpectationFailed(f"{demand}: it was accepted")


def run_case(identifier: str, evidence: Evidence) -> Verdict:
    """Carry out one case. An unknown id is skipped; an exception that no rule names is an error of this adapter."""
    function = CASES.get(identifier)
    if function is None:
        return Verdict(CaseOutcome.SKIP, message=SKIPS.get(identifier, "this adapter does not know the case"))
    try:
        function(evidence)
    except ExpectationFailed as failed:
        return Verdict(CaseOutcome.FAIL, "expectation", str(failed))
    except NnrpError as refused:
        return Verdict(CaseOutcome.FAIL, "refused", f"a legal step was refused: {refused}")
    except Exception as broken:  # the fault barrier of one case: the others are still to be carried out
        return Verdict(CaseOutcome.ERROR, type(broken).__name__, str(broken))
    return Verdict(CaseOutcome.PASS)
