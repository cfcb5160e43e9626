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
        self.not_before = float("-inf")
        """When the next start is allowed."""
        self.failures = 0
        """Failures in a row."""
        self._delay = policy.initial
        """Seconds the next failure costs."""

    def failed(self, lived: float) -> None:
        """The agent crashed, or did not start, after ``lived`` seconds."""
        if lived >= self._policy.healthy_after:
            self._forget()
        self._delay = min(self._policy.maximum, self._delay)
        self.not_before = trio.current_time() + self._delay
        # Step by step and never beyond the maximum: a power of the count of failures overflows in the end.
        self._delay *= self._policy.factor
        self.failures += 1

    def ended_well(self) -> None:
        self._forget()
        self.not_before = float("-inf")

    async def wait(self) -> None:
        """Wait until the next start is allowed."""
        if self.not_before > trio.current_time():
            await trio.sleep_until(self.not_before)

    def _forget(self) -> None:
        self.failures = 0
        self._delay = self._policy.initial
