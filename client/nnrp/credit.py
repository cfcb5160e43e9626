"""Who may submit next when credit is short: sessions take turns (nnrp-wire 13.6; C-080)."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

import trio

__all__ = ["CreditQueue"]


class _Waiter:
    __slots__ = ("error", "held", "over", "start")

    def __init__(self, held: Callable[[], bool], start: Callable[[], None]) -> None:
        self.held = held
        self.start = start
        self.over = trio.Event()
        self.error: Exception | None = None


class CreditQueue:
    """Submits that wait for credit, one line per session. ``changed`` starts what may start, a session at a time in turn; the
    submit itself happens in that step, so that credit seen is credit used."""

    def __init__(self) -> None:
        self._lines: OrderedDict[Hashable, deque[_Waiter]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def waits(self, line: Hashable) -> bool:
        """Whether anybody of ``line`` waits: who comes now is behind them."""
        return line in self._lines

    async def start(self, line: Hashable, held: Callable[[], bool], start: Callable[[], None]) -> None:
        """Call ``start`` as soon as ``held`` says no and nobody of the same line is ahead. Raises what ``start`` raises.

        A cancel while waiting takes the place back: nothing was started, unless the two came in the same moment. ``start`` was
        called then, and the caller is cancelled all the same.
        """
        if line not in self._lines and not held():
            start()
            return
        waiter = _Waiter(held, start)
        self._lines.setdefault(line, deque()).append(waiter)
        try:
            await waiter.over.wait()
        finally:
            if not waiter.over.is_set():
                self._leave(line, waiter)
        if waiter.error is not None:
            raise waiter.error

    def changed(self) -> None:
        """Credit may have come: start what may start."""
        going = bool(self._lines)
        while going:
            going = False
            for line in list(self._lines):
                waiter = self._lines[line][0]
                if waiter.held():
                    continue
                going = True
                self._leave(line, waiter)
                if line in self._lines:
                    self._lines.move_to_end(line)
                try:
                    waiter.start()
                except Exception as problem:
                    waiter.error = problem
                waiter.over.set()

    def fail(self, line: Hashable, error: Exception) -> None:
        """Everybody of this line gets ``error``."""
        for waiter in self._lines.pop(line, ()):
            waiter.error = error
            waiter.over.set()

    def _leave(self, line: Hashable, waiter: _Waiter) -> None:
        waiting = self._lines.get(line)
        if waiting is not None and waiter in waiting:
            waiting.remove(waiter)
            if not waiting:
                del self._lines[line]
