"""The prompt queue of one session: admission, order, release."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import trio

from sessions.errors import PromptQueueFull
from sessions.operation import Operation

__all__ = ["PromptQueue", "Turn"]


class Turn:
    """A place in the FIFO that is not a prompt and takes no slot (`session/fork`, ACP-214).

    Wait with ``async with turn:``; the next in line starts when the block is left.
    """

    def __init__(self) -> None:
        self._come = trio.Event()
        self._over = trio.Event()

    async def __aenter__(self) -> None:
        try:
            await self._come.wait()
        except BaseException:
            self._over.set()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._over.set()

    def come(self) -> None:
        """The queue says: now."""
        self._come.set()

    async def wait_over(self) -> None:
        await self._over.wait()


class PromptQueue:
    """FIFO of accepted prompts with a bounded count of unsettled ones. Synchronous; the session runs what it hands out.

    *Pending* is accepted and not settled, waiting or running (ACP-210). A slot is taken in `admit` and given back by the
    operation's own settling, nowhere else, so exactly once.
    """

    def __init__(self, session_id: Callable[[], str], limit: int | float) -> None:
        self._session_id = session_id
        self._limit: int | None = None if limit in (0, math.inf) else int(limit)
        self._waiting: deque[Operation | Turn] = deque()
        self._pending: dict[Operation, None] = {}

    @property
    def limit(self) -> int | None:
        """None: no limit."""
        return self._limit

    @property
    def pending(self) -> list[Operation]:
        """Accepted and unsettled prompts, in order."""
        return list(self._pending)

    @property
    def count(self) -> int:
        return len(self._pending)

    @property
    def waiting(self) -> int:
        """Prompts and turns that have not come up."""
        return len(self._waiting)

    @property
    def first(self) -> Operation | Turn | None:
        """Whose turn comes next."""
        return next((each for each in self._waiting if isinstance(each, Turn) or not each.settled), None)

    def admit(self, operation: Operation) -> None:
        """Take a slot and a place, in one step (ACP-212). Raises `PromptQueueFull`; nothing has changed then."""
        if self._limit is not None and len(self._pending) >= self._limit:
            raise PromptQueueFull(self._session_id(), self._limit, len(self._pending))
        self._pending[operation] = None
        self._waiting.append(operation)
        operation.when_settled(self._release)

    def queue_turn(self) -> Turn:
        """A place in the FIFO without a slot."""
        turn = Turn()
        self._waiting.append(turn)
        return turn

    def next_nowait(self) -> Operation | Turn | None:
        """Whose turn it is; None when nobody waits. Prompts settled while they waited are passed over."""
        while self._waiting:
            each = self._waiting.popleft()
            if isinstance(each, Turn) or not each.settled:
                return each
        return None

    def end(self) -> None:
        """The session is over: who still waits for a turn has it now, and must look whether there is anything left to do."""
        for each in self._waiting:
            if isinstance(each, Turn):
                each.come()
        self._waiting.clear()

    def _release(self, operation: Operation) -> None:
        del self._pending[operation]
