"""The local prompt limit: how many prompts of a session this client lets wait (CLI-010 to CLI-012)."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Final, TypeAlias

from client.errors import DaemonPendingPromptLimitError
from client.results import DEFAULT_PROMPT_LIMIT

__all__ = ["OMITTED", "Omitted", "PromptCounters", "PromptLimit", "effective_limit"]


class Omitted(enum.Enum):
    """The type of :data:`OMITTED`."""

    OMITTED = "omitted"


OMITTED: Final = Omitted.OMITTED
"""Stands for "not given" where ``None`` already means something."""

PromptLimit: TypeAlias = int | float | Omitted | None


def effective_limit(value: PromptLimit) -> int | None:
    """The limit a value stands for; ``None`` is unlimited.

    Omitted is 5; ``None``, 0 and infinity switch it off. Raises ``TypeError`` for what is no number and ``ValueError``
    for negative, fractional and NaN values.
    """
    if value is OMITTED:
        return DEFAULT_PROMPT_LIMIT
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("the prompt limit is a number, None or omitted")
    if value == math.inf:
        return None
    if math.isnan(value) or value < 0 or value != int(value):
        raise ValueError("the prompt limit is a whole number, not negative")
    return int(value) or None


class PromptCounters:
    """One counter per session id, shared by everything built on one client (CLI-012)."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, session_id: str) -> int:
        """Prompts reserved and not released."""
        return self._counts.get(session_id, 0)

    def reserve(self, session_id: str, limit: int | None) -> Callable[[], None]:
        """Take a place and get the function that gives it back; calling that again does nothing.

        Raises :class:`DaemonPendingPromptLimitError` at the limit. Without a limit nothing is counted.
        """
        if limit is None:
            return _nothing
        count = self.count(session_id)
        if count >= limit:
            raise DaemonPendingPromptLimitError(session_id, limit, count)
        self._counts[session_id] = count + 1
        return _Reservation(self._counts, session_id).release


class _Reservation:
    def __init__(self, counts: dict[str, int], session_id: str) -> None:
        self._counts: dict[str, int] | None = counts
        self._session_id = session_id

    def release(self) -> None:
        counts, self._counts = self._counts, None
        if counts is None:
            return
        left = counts[self._session_id] - 1
        if left:
            counts[self._session_id] = left
        else:
            del counts[self._session_id]


def _nothing() -> None:
    """The release of a prompt that was not counted."""
