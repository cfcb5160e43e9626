"""How much may wait to be sent, per stream, per connection and in the whole process (ACP-131).

Nothing is ever dropped to stay within a bound: whoever exceeds one loses its binding or its connection, and is told.
"""

from __future__ import annotations

from typing import Final

import attrs

__all__ = ["DEFAULT_BOUNDS", "Bounds", "Meter"]

_MIB: Final = 2**20


@attrs.frozen(slots=True, kw_only=True)
class Bounds:
    """Frames and bytes that may wait."""

    stream_frames: int = 256
    connection_frames: int = 1024
    connection_bytes: int = 64 * _MIB
    process_frames: int = 4096
    process_bytes: int = 256 * _MIB


DEFAULT_BOUNDS: Final = Bounds()


class Meter:
    """Counts what waits at one place and everywhere above it. Bounds are in frames and bytes."""

    __slots__ = ("_max_bytes", "_max_frames", "_parent", "bytes", "frames")

    def __init__(self, max_frames: int, max_bytes: int | None = None, parent: Meter | None = None) -> None:
        self._max_frames = max_frames
        self._max_bytes = max_bytes
        self._parent = parent
        self.frames = 0
        self.bytes = 0

    @property
    def exceeded(self) -> bool:
        """Here; the places above answer for themselves."""
        return self.frames > self._max_frames or (self._max_bytes is not None and self.bytes > self._max_bytes)

    def add(self, size: int) -> None:
        meter: Meter | None = self
        while meter is not None:
            meter.frames += 1
            meter.bytes += size
            meter = meter._parent

    def remove(self, size: int) -> None:
        meter: Meter | None = self
        while meter is not None:
            meter.frames -= 1
            meter.bytes -= size
            meter = meter._parent
