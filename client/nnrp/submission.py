"""One submitted operation: its results as they come, and how it ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from client.nnrp.errors import NnrpClientError, NnrpResultsLost
from client.nnrp.results import Result, size_of
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.messages import ResultHint

__all__ = ["MAX_KEPT", "Submission"]

MAX_KEPT: Final = 64 * 1024 * 1024
"""Bytes of results kept for a consumer that does not take them; beyond that the operation is cancelled."""


class Submission:
    """Iterate it: every part, then the final result, then the end. Raises `NnrpOperationEnded` where there is no final
    result, and other `NnrpClientError` where it cannot be known. One consumer at a time.

    Leaving the iteration early does not stop the operation: ``cancel`` does.
    """

    __slots__ = (
        "_again",
        "_cancel",
        "_changed",
        "_error",
        "_kept",
        "_kept_bytes",
        "_over",
        "_repeats",
        "_through",
        "_unnumbered",
        "hint",
        "last_event_id",
        "operation",
        "partials",
    )

    def __init__(self, operation: Operation, cancel: Callable[[Operation], None], last_event_id: int = 0) -> None:
        self.operation = operation
        self.partials = 0
        self.last_event_id = last_event_id
        """Of its events what came up to here has come; at first the last one of the session ahead of its submit."""
        self.hint: ResultHint | None = None
        """What the server has said of how this one is faring, ahead of its end."""
        self._cancel = cancel
        self._kept: deque[Result] = deque()
        self._kept_bytes = 0
        self._again = False
        self._through = 0
        self._repeats = 0
        self._unnumbered = 0
        self._changed: trio.Event | None = None
        self._error: NnrpClientError | None = None
        self._over = False

    @property
    def operation_id(self) -> int:
        return self.operation.operation_id

    @property
    def frame_id(self) -> int:
        return self.operation.frame_id

    @property
    def over(self) -> bool:
        """Whether the terminal message has come, or will never come."""
        return self._over

    def cancel(self) -> None:
        """Ask for the end of this operation alone. The iteration then ends with `NnrpOperationEnded`. Harmless when over."""
        if not self._over:
            self._cancel(self.operation)

    def __aiter__(self) -> Submission:
        return self

    async def __anext__(self) -> Result:
        while (result := self.receive_nowait()) is None:
            await self.wait_more()
        return result

    def receive_nowait(self) -> Result | None:
        """The next result if it has come, None if none has yet: for a caller that polls. Raises ``StopAsyncIteration`` at
        the end, and what the iteration raises."""
        if self._kept:
            result = self._kept.popleft()
            if not self._over:
                self._kept_bytes -= size_of(result.content)
            return result
        if not self._over:
            return None
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    async def wait_more(self) -> None:
        """Wait until `receive_nowait` has something to say."""
        if not self._kept and not self._over:
            await self._wait_changed()

    async def result(self) -> Result:
        """The final result; parts that were not iterated are dropped. Raises as the iteration does."""
        while not self._over:
            self._kept.clear()
            self._kept_bytes = 0
            await self._wait_changed()
        final = self._kept.pop() if self._kept else None
        self._kept.clear()
        if self._error is not None:
            raise self._error
        if final is None or not final.final:
            raise NnrpResultsLost("the final result was taken before")
        return final

    async def wait_over(self) -> None:
        """Wait for the end, whatever it is, without taking results."""
        while not self._over:
            await self._wait_changed()

    # What happens

    def expect_again(self, *, everything: bool) -> None:
        """After a resume parts that have come may come again, and are dropped then (nnrp-extensions, Negotiation): those that have
        an event id by that; the others by their number, where ``everything`` comes again."""
        self._again = True
        self._through = self.last_event_id
        self._repeats = self._unnumbered if everything else 0

    def put(self, result: Result) -> None:
        if self._again and not result.final and self._had(result):
            return
        self._kept.append(result)
        if result.final:
            self.finish(None)
            return
        self.partials += 1
        if result.event_id:
            self.last_event_id = result.event_id
        else:
            self._unnumbered += 1
        self._kept_bytes += size_of(result.content)
        if self._kept_bytes > MAX_KEPT:
            self.cancel()
            self.finish(NnrpResultsLost("nobody took this operation's results; it was cancelled"))
        self._tell()

    def finish(self, error: NnrpClientError | None) -> None:
        """No more comes. The first call counts."""
        if self._over:
            return
        self._over = True
        self._error = error
        self._tell()

    # Inside

    def _had(self, part: Result) -> bool:
        if part.event_id:
            return part.event_id <= self._through
        self._repeats -= 1
        return self._repeats >= 0

    async def _wait_changed(self) -> None:
        """Wait for the next result or the end. The event is made when somebody waits: most operations end before that, or
        are waited for once."""
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()

    def _tell(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()
