"""Which ids a session has used up, remembered in bounded memory.

A frame id may be used once in a session (nnrp-wire 10 item 3). Frame ids rise (3.2), but a transport that gives every
submit a stream of its own may deliver them out of order, so "not above the last" cannot be the test.
"""

from __future__ import annotations

from collections import deque

__all__ = ["RecentIds", "RisingIds"]

#: Ids above a hole that are remembered one by one. A peer that leaves more holes open than this loses the lowest: the
#: ids in it then count as used, which refuses a late frame and never runs one twice.
OPEN_HOLES = 1024

#: Operation ids chosen freely by the peer (submit_context) that are remembered after their operation ended.
REMEMBERED_IDS = 4096


class RisingIds:
    """Used ids of a space that is filled roughly upwards: a floor, and the used ids above it. Constant in practice."""

    __slots__ = ("_above", "_floor")

    def __init__(self) -> None:
        self._floor = 0
        self._above: set[int] | None = None

    @property
    def highest(self) -> int:
        """The highest id used; 0 before the first. The watermark of nnrp-wire 10 item 7."""
        return max(self._above) if self._above else self._floor

    def __contains__(self, number: int) -> bool:
        return number <= self._floor or (self._above is not None and number in self._above)

    def add(self, number: int) -> None:
        """Mark ``number`` (1 or more) as used. Adding it twice is harmless."""
        if number == self._floor + 1:
            self._floor = number
        elif number > self._floor:
            above = self._above
            if above is None:
                above = self._above = set()
            above.add(number)
            if len(above) > OPEN_HOLES:
                self._floor = min(above)
        if self._above:
            self._close_holes(self._above)

    def _close_holes(self, above: set[int]) -> None:
        floor = self._floor
        above.discard(floor)
        while floor + 1 in above:
            floor += 1
            above.discard(floor)
        self._floor = floor
        if not above:
            self._above = None


class RecentIds:
    """Used ids of a space that is filled in any order: exactly the last ``REMEMBERED_IDS`` of them."""

    __slots__ = ("_highest", "_order", "_used")

    def __init__(self) -> None:
        self._used: set[int] = set()
        self._order: deque[int] = deque()
        self._highest = 0

    @property
    def highest(self) -> int:
        """The highest id used; 0 before the first."""
        return self._highest

    def __contains__(self, number: int) -> bool:
        return number in self._used

    def add(self, number: int) -> None:
        if number in self._used:
            return
        self._used.add(number)
        self._order.append(number)
        self._highest = max(self._highest, number)
        if len(self._order) > REMEMBERED_IDS:
            self._used.discard(self._order.popleft())
