"""Declaring, carrying out and judging a case against a running server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

import trio

from protocol.nnrp.errors import NnrpError, NnrpLocalError
from server.conformance.case import CaseOutcome, Evidence, ExpectationFailed, Verdict
from server.conformance.live.place import Place, Unavailable

__all__ = ["LIVE", "live_case", "run_live_cases"]

PATIENCE: Final = 20.0
"""Seconds one case may take."""

LiveCase: TypeAlias = Callable[[Place, Evidence], Awaitable[None]]

LIVE: dict[str, LiveCase] = {}


def live_case(*identifiers: str) -> Callable[[LiveCase], LiveCase]:
    """Register a case under the suite's ids."""

    def register(function: LiveCase) -> LiveCase:
        for each in identifiers:
            if each in LIVE:
                raise ValueError(f"two live cases are called {each}")
            LIVE[each] = function
        return function

    return register


async def run_live_cases(place: Place, identifiers: Iterable[str]) -> dict[str, tuple[Verdict, Evidence]]:
    """Carry out the cases one after the other; what this adapter does not know is skipped."""
    found: dict[str, tuple[Verdict, Evidence]] = {}
    for each in identifiers:
        evidence = Evidence()
        found[each] = (await _run(LIVE.get(each), place, evidence), evidence)
    return found


async def _run(case: LiveCase | None, place: Place, evidence: Evidence) -> Verdict:
    if case is None:
        return Verdict(CaseOutcome.SKIP, message="this adapter does not know the case")
    place.evidence = evidence
    try:
        with trio.fail_after(PATIENCE):
            await case(place, evidence)
    except Exception as problem:  # the fault barrier of one case: the others are still to be carried out
        return _judge(_first(problem))
    return Verdict(CaseOutcome.PASS)


def _judge(problem: BaseException) -> Verdict:
    if isinstance(problem, ExpectationFailed):
        return Verdict(CaseOutcome.FAIL, "expectation", str(problem))
    if isinstance(problem, Unavailable):
        return Verdict(CaseOutcome.SKIP, message=str(problem))
    if isinstance(problem, (NnrpError, NnrpLocalError)):
        return Verdict(CaseOutcome.FAIL, "refused", f"a legal step was refused: {problem}")
    if isinstance(problem, trio.TooSlowError):
        return Verdict(CaseOutcome.FAIL, "timeout", f"nothing came of it in {PATIENCE:g} s")
    return Verdict(CaseOutcome.ERROR, type(problem).__name__, str(problem))


def _first(error: BaseException) -> BaseException:
    """What went wrong inside nurseries of our client; a cancelled neighbour is no reason."""
    while isinstance(error, BaseExceptionGroup):
        error = next((each for each in error.exceptions if not isinstance(each, trio.Cancelled)), error.exceptions[0])
    return error
