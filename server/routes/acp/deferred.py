"""Replies that wait: for a stream, for a replay to end, for the content they follow (ACP-130 to ACP-137)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import attrs

from server.routes.acp.buffers import Meter

if TYPE_CHECKING:
    from server.routes.acp.inflight import InFlight

__all__ = ["Replies", "Reply"]


@attrs.define(slots=True, eq=False)
class Reply:
    """One response on its way to the peer."""

    message: bytes
    watermark: int = 0
    """Id of the session's last event when the reply was made: it must not be sent before that event (ACP-136)."""
    prompt: InFlight | None = None
    """The prompt it answers: what another connection can take over."""
    on_written: Callable[[], object] | None = None
    """Called once, when the transport has taken the reply."""
    position: int | None = None
    """Id of the last event sent before it, once it has been sent."""


class Replies:
    """A FIFO of replies for one stream. Synchronous; counts what it holds in ``meter`` until `confirm`.

    A reply goes through three states: waiting here, taken by a stream that is writing it, confirmed. What was taken and
    not confirmed comes back with `put_back`, before everything else.
    """

    __slots__ = ("_meter", "_waiting")

    def __init__(self, meter: Meter) -> None:
        self._waiting: deque[Reply] = deque()
        self._meter = meter

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Reply]:
        return iter(tuple(self._waiting))

    def push(self, reply: Reply) -> None:
        self._meter.add(len(reply.message))
        self._waiting.append(reply)

    def admit(self, reply: Reply) -> Reply:
        """Count a reply that a stream sends without its having waited here."""
        self._meter.add(len(reply.message))
        return reply

    def release(self, delivered: int) -> list[Reply]:
        """Take what may be sent now that every event through ``delivered`` has been: in order, so an older reply that has
        to wait holds up the younger ones behind it."""
        ready: list[Reply] = []
        while self._waiting and self._waiting[0].watermark <= delivered:
            ready.append(self._waiting.popleft())
        return ready

    def confirm(self, written: Iterable[Reply]) -> None:
        """The transport has these."""
        for reply in written:
            self._meter.remove(len(reply.message))
            call, reply.on_written = reply.on_written, None
            if call is not None:
                call()

    def put_back(self, unwritten: Iterable[Reply]) -> None:
        """Nobody knows whether these reached the peer: the next stream sends them first (ACP-123)."""
        self._waiting.extendleft(reversed(list(unwritten)))

    def send_again(self, doubtful: Iterable[Reply]) -> None:
        """These were taken by a transport that has since failed, and the peer has shown that it did not get them."""
        self.put_back([self.admit(reply) for reply in doubtful])

    def drain(self) -> list[Reply]:
        """Take everything, whatever its watermark; it is no longer counted here."""
        taken = list(self._waiting)
        self._waiting.clear()
        for reply in taken:
            self._meter.remove(len(reply.message))
        return taken

    def take_prompts(self) -> list[Reply]:
        """Take the replies to prompts, in order; the others stay. They are no longer counted here."""
        taken = [reply for reply in self._waiting if reply.prompt is not None]
        self._waiting = deque(reply for reply in self._waiting if reply.prompt is None)
        for reply in taken:
            self._meter.remove(len(reply.message))
        return taken
