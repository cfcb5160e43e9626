"""What a writer hands to its transport at once; the same for both sides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from protocol.layout import Buffer

__all__ = ["chunks"]

_JOIN: Final = 64 * 1024
_SLICE: Final = 256 * 1024
"""A peer has the send timeout for each slice, so a large result to a slow peer is not taken for a dead peer."""


def chunks(batch: Iterable[Buffer]) -> Iterator[Buffer]:
    """Neighbours joined while they are small, large buffers in slices that are views of them; never an empty one."""
    small: list[Buffer] = []
    held = 0
    for part in batch:
        if len(part) < _JOIN:
            small.append(part)
            held += len(part)
            if held < _SLICE:
                continue
        if held:
            yield small[0] if len(small) == 1 else b"".join(small)
        small, held = [], 0
        if len(part) >= _JOIN:
            view = memoryview(part)
            for start in range(0, len(view), _SLICE):
                yield view[start : start + _SLICE]
    if held:
        yield small[0] if len(small) == 1 else b"".join(small)
