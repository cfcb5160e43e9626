"""Transition tables: (state, input) in, (state, effect) out, and one error for every pair that is not listed.

A machine declares its table as data. Code, tests and the generated diagrams all read that one table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Generic, TypeVar

__all__ = ["IllegalTransition", "Table"]

State = TypeVar("State", bound=IntEnum)
Input = TypeVar("Input", bound=IntEnum)
Effect = TypeVar("Effect", bound=IntEnum)


class IllegalTransition(Exception):
    """The table has no row for this pair. The machine turns it into its protocol's own error; the state is untouched."""

    def __init__(self, table: str, state: IntEnum, given: IntEnum) -> None:
        super().__init__(f"{table}: {given.name} is not allowed in {state.name}")
        self.table = table
        self.state = state
        self.given = given


class Table(Generic[State, Input, Effect]):
    """One machine's legal pairs.

    ``states`` and ``inputs`` are IntEnums numbered 0, 1, 2... without gaps: a step is then two tuple lookups, which
    matters because one is taken for every packet. A table that names an unreachable state, or lets a terminal state be
    left, is refused when it is declared (ValueError).
    """

    __slots__ = ("grid", "initial", "inputs", "name", "rows", "states", "terminal")

    def __init__(
        self,
        name: str,
        states: type[State],
        inputs: type[Input],
        rows: Mapping[tuple[State, Input], tuple[State, Effect]],
        *,
        initial: frozenset[State],
        terminal: frozenset[State],
    ) -> None:
        self.name = name
        self.states = states
        self.inputs = inputs
        self.rows = dict(rows)
        self.initial = initial
        self.terminal = terminal
        self.grid = tuple(tuple(self.rows.get((state, given)) for given in inputs) for state in states)
        """By state and input what `step` gives, None where it raises: for those who take a step for every packet."""
        _check_numbering(states)
        _check_numbering(inputs)
        self._check_shape()

    def step(self, state: State, given: Input) -> tuple[State, Effect]:
        """The next state and what to do about it. Raises IllegalTransition for a pair that is not listed."""
        row = self.grid[state][given]
        if row is None:
            raise IllegalTransition(self.name, state, given)
        return row

    def allows(self, state: State, given: Input) -> bool:
        return self.grid[state][given] is not None

    def pairs(self) -> Iterator[tuple[State, Input]]:
        """Every pair there is, legal or not: what an exhaustive test walks."""
        for state in self.states:
            for given in self.inputs:
                yield state, given

    def _check_shape(self) -> None:
        reached = set(self.initial)
        pending = list(self.initial)
        while pending:
            state = pending.pop()
            for (source, _), (target, _) in self.rows.items():
                if source is state and target not in reached:
                    reached.add(target)
                    pending.append(target)
        lost = [state.name for state in self.states if state not in reached]
        if lost:
            raise ValueError(f"{self.name}: no way leads to {', '.join(lost)}")
        for (source, given), (target, _) in self.rows.items():
            if source in self.terminal and target is not source:
                raise ValueError(f"{self.name}: terminal state {source.name} is left by {given.name}")


def _check_numbering(members: type[IntEnum]) -> None:
    if [int(each) for each in members] != list(range(len(members))):
        raise ValueError(f"{members.__name__} must be numbered from 0 without gaps")
