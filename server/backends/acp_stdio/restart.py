"""How soon an agent that failed is started again."""

from __future__ import annotations

import attrs
import trio

__all__ = ["Backoff", "RestartPolicy"]


@attrs.frozen(slots=True)
class RestartPolicy:
    """Exponential back-off. Times are seconds. Nothing restarts by itself: the next demand does, after the wait."""

    initial: float = 0.1
    factor: float = 2.0
    maximum: float = 5.0
    healthy_after: float = 30.0
    """An agent that lived this long was well: its failure counts as a first one."""


class Backoff:
    """The state of a `RestartPolicy`."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._not_before = float("-inf")
        self.failures = 0
        """Failures in a row."""

    def failed(self, lived: float) -> None:
        """The agent crashed, or did not start, after ``lived`` seconds."""
        if lived >= self._policy.healthy_after:
            self.failures = 0
        delay = min(self._policy.maximum, self._policy.initial * self._policy.factor**self.failures)
        self.failures += 1
        self._not_before = trio.current_time() + delay

    def ended_well(self) -> None:
        self.failures = 0
        self._not_before = float("-inf")

    async def wait(self) -> None:
        """Wait until the next start is allowed."""
        if self._not_before > trio.current_time():
            await trio.sleep_until(self._not_before)
