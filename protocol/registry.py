"""Message number → what is known about that message: layout, who sends it, how far a fault in it reaches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from protocol.errors import Reach
from protocol.layout import Structure

__all__ = ["Direction", "Entry", "Registry"]


class Direction(Enum):
    TO_SERVER = "C→S"
    TO_CLIENT = "S→C"
    BOTH = "both"


S = TypeVar("S", bound=Structure)


@dataclass(frozen=True, slots=True)
class Entry(Generic[S]):
    """One message type."""

    number: int
    name: str
    metadata: type[S]
    direction: Direction
    reach: Reach
    """What a malformed message of this type takes down with it."""
    body: str
    """What the body holds, in words."""
    body_rule: str = ""
    """The rule for its length."""
    ids: str = ""
    """The rule for the ids in the header."""
    may_drop: bool = False
    """An unreliable transport may lose it."""


class Registry(Mapping[int, Entry[S]]):
    """All message types of one protocol. Two entries with one number are refused."""

    def __init__(self, entries: tuple[Entry[S], ...]) -> None:
        self._entries: dict[int, Entry[S]] = {}
        for entry in entries:
            if entry.number in self._entries:
                raise ValueError(f"two messages have the number {entry.number:#04x}")
            self._entries[entry.number] = entry

    def __getitem__(self, number: int) -> Entry[S]:
        return self._entries[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
