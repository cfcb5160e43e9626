"""How busy the service is, as clients are told it (nnrp-wire 13.5, 13.6). Synchronous, and without a clock."""

from __future__ import annotations

from typing import Final

import attrs

from protocol.nnrp.enums import BackpressureLevel, CongestionState

__all__ = ["RETRY_MS", "Pressure", "PressureMarks"]

RETRY_MS: Final = 250
"""When to ask again while the server is saturated. A hint: the end of it is announced."""

_NONE, _SOFT, _HARD = BackpressureLevel.NONE, BackpressureLevel.SOFT, BackpressureLevel.HARD


@attrs.frozen(slots=True)
class PressureMarks:
    """Numbers of waiting operations. A level ends well below where it begins, so that it does not flutter: soft at half of
    ``soft``, hard at ``soft``."""

    soft: int
    hard: int


class Pressure:
    """The level that follows from how many wait."""

    __slots__ = ("_marks", "level")

    def __init__(self, marks: PressureMarks) -> None:
        self._marks = marks
        self.level = _NONE

    def update(self, waiting: int) -> bool:
        """Take in how many wait now; whether the level has changed."""
        before, self.level = self.level, self._level(waiting)
        return self.level is not before

    def congestion(self, waiting: int) -> CongestionState:
        """The same in the words of RESULT_HINT (7.17)."""
        if self.level is _HARD:
            return CongestionState.SATURATED
        if self.level is _SOFT:
            return CongestionState.ELEVATED
        return CongestionState.STEADY if waiting else CongestionState.NONE

    def _level(self, waiting: int) -> BackpressureLevel:
        marks, level = self._marks, self.level
        if waiting >= marks.hard or (level is _HARD and waiting >= marks.soft):
            return _HARD
        if waiting >= marks.soft or (level is not _NONE and 2 * waiting >= marks.soft):
            return _SOFT
        return _NONE
