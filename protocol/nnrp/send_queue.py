"""What is to be sent on one connection, and what of it goes at once; the same for both ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from protocol.layout import Buffer

__all__ = ["HIGH_BYTES", "Offer", "SendQueue", "chunks"]

HIGH_BYTES: Final = 1024 * 1024
"""Queued bytes from which on those who can wait do."""
_DIRECT: Final = 64 * 1024
"""Up to here what is queued may be sent in the step that queued it."""
_PIECE: Final = 2048
"""From here on it is, without waiting for the end of the step: the peer begins on it while we go on."""
_JOIN: Final = 64 * 1024
_SLICE: Final = 256 * 1024
"""A peer has the send timeout for each slice, so a large packet to a slow peer is not taken for a dead peer."""

Offer: TypeAlias = Callable[[Buffer], int]
"""Gives bytes to a transport that takes some of them without waiting; returns how many. Raises ``OSError`` when it takes none."""


class SendQueue:
    """Packets in the order they were written. What is little goes to the transport in the step that wrote it, if the transport
    can ``offer`` that; the rest goes to the task of the writer that this is the ground of. That task is told by ``_wake``,
    sends what ``_take`` gives, and says so to ``_sent``, chunk by chunk, and to ``_idle``.
    """

    def __init__(self, offer: Offer | None, *, high: int = HIGH_BYTES) -> None:
        self._offer = offer
        self._high = high
        self._queue: list[Buffer] = []
        self._busy = False
        self._held = False
        self._ended = False
        self.size = 0
        """Bytes queued and not yet taken by the transport."""

    def is_full(self) -> bool:
        """Whether more is queued than should be. Never after the end: what is written then is dropped."""
        return self.size >= self._high and not self._ended

    def write(self, parts: Iterable[Buffer], *, at_once: bool = False) -> int:
        """Queue one packet, or several, given as buffers. They must not change until they are sent. ``at_once``: as if they
        were between `hold` and `release`. Returns their bytes."""
        if self._ended:
            return 0
        added = 0
        for part in parts:
            self._queue.append(part)
            added += len(part)
        self.size += added
        if self.size >= _PIECE or (at_once and not self._held):
            self._send_nowait()
        if self._queue and not self._held:
            self._wake()
        return added

    def hold(self) -> None:
        """Let what is written add up until `release`."""
        self._held = True

    def release(self) -> None:
        """Send what has been written since `hold`: in this step if it is little, the transport can, and nothing is being sent,
        so that it costs no task switch. Otherwise, and where the transport does not take it all, the task does it."""
        self._held = False
        if self._queue:
            self._send_nowait()
            if self._queue:
                self._wake()

    # For the writer

    def _wake(self) -> None:
        """Something is queued for the task."""
        raise NotImplementedError

    def _emptied(self) -> None:
        """Everything that was queued has gone in the step that wrote it."""

    def _take(self) -> Iterator[Buffer]:
        """Everything queued, to be sent in this order. Until `_idle` nothing else goes to the transport."""
        batch, self._queue = self._queue, []
        self._busy = True
        return chunks(batch)

    def _sent(self, chunk: Buffer) -> None:
        self.size -= len(chunk)

    def _idle(self) -> None:
        self._busy = False

    def _send_nowait(self) -> None:
        """What goes without waiting. When the transport does not take everything, the task sends the rest, and all that comes
        until then."""
        if self._offer is None or self._busy or self.size > _DIRECT:
            return
        data = self._queue[0] if len(self._queue) == 1 else b"".join(self._queue)
        try:
            taken = self._offer(data)
        except OSError:
            taken = 0  # full, or broken: the task meets the same, and waits or says so
        self.size -= taken
        if self.size:
            self._busy = True
            self._queue = [memoryview(data)[taken:]]
        else:
            self._queue = []
            self._emptied()


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
