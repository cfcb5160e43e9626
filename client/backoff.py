"""When to try again (CLI-022, CLI-026)."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

__all__ = ["Backoff", "ReconnectPolicy"]


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """How stubborn a stream is. All in seconds.

    The first attempt is immediate. Then delays double from the server's ``retry:`` (``base`` until it says one) up
    to ``maximum``, each shortened by up to ``jitter`` of itself, so that the first attempts stay within a server's
    grace of ten seconds. A stream that made no progress for ``give_up_after`` ends with the last error.
    """

    base: float = 3.0
    maximum: float = 30.0
    jitter: float = 0.5
    give_up_after: float = 600.0

    def __post_init__(self) -> None:
        if not (self.base >= 0 and self.maximum >= 0 and 0 <= self.jitter <= 1 and self.give_up_after >= 0):
            raise ValueError("reconnect delays are not negative, and jitter lies between 0 and 1")


class Backoff:
    """Counts attempts of one stream. ``now`` is the caller's monotonic clock."""

    def __init__(self, policy: ReconnectPolicy, rng: random.Random) -> None:
        self._policy = policy
        self._rng = rng
        self._attempts = 0
        self._since: float | None = None

    @property
    def attempts(self) -> int:
        """Failed attempts since the last progress."""
        return self._attempts

    def reset(self) -> None:
        """The stream made progress."""
        self._attempts = 0
        self._since = None

    def next_delay(self, now: float, *, retry: float | None = None, at_least: float = 0.0) -> float | None:
        """Seconds to wait before the next attempt, or ``None`` to give up.

        ``retry`` is the server's reconnect hint; ``at_least`` its ``Retry-After``, which jitter never shortens.
        """
        if self._since is None:
            self._since = now
        elif now - self._since >= self._policy.give_up_after:
            return None
        self._attempts += 1
        return max(self._shortened(self._plain(retry)), at_least)

    def _plain(self, retry: float | None) -> float:
        if self._attempts == 1:
            return 0.0
        base = self._policy.base if retry is None else retry
        # The exponent is bounded before the power is taken: a stream may fail for weeks.
        doublings = min(self._attempts - 2, 32)
        return min(base * math.ldexp(1.0, doublings), self._policy.maximum)

    def _shortened(self, delay: float) -> float:
        return delay * (1.0 - self._policy.jitter * self._rng.random())
