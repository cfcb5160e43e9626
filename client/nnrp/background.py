"""What others do in a session, as it comes: results outside submit calls (nnrp-wire 7.7, allow_background_results)."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import attrs
import trio

from client.nnrp.errors import NnrpClientError, NnrpResultsLost
from client.nnrp.results import Result, drop_details, event_id_of, size_of, state_block
from protocol.nnrp.bodies import DataBody
from protocol.nnrp.enums import OperationState
from protocol.nnrp.machines.events import BackgroundReceived
from protocol.nnrp.messages import ResultPush

__all__ = ["MAX_KEPT", "Background", "BackgroundEvent"]

MAX_KEPT: Final = 16 * 1024 * 1024
"""Bytes kept for a consumer that does not take them; beyond that the oldest are dropped, and the consumer is told."""
_OVERHEAD: Final = 512


@attrs.frozen(slots=True)
class BackgroundEvent:
    """One event of a session that others use too."""

    event_id: int
    """Its id in the session's ring, the same on every wire; 0 where the server tells none."""
    operation_id: int
    """Which of the others' operations; 0 where the server tells none."""
    frame_id: int
    state: OperationState
    result: Result | None
    """None for an operation that ended without a result."""
    error_code: int = 0

    @property
    def text(self) -> str:
        """The agent's text, empty when the event is none. Raises ``UnicodeDecodeError``."""
        return "" if self.result is None else self.result.text

    def value(self) -> Any:
        """An event that is not text, as REST shows it (decoded JSON); None for text. Raises ``msgspec.DecodeError``."""
        return None if self.result is None else self.result.event


class Background:
    """Iterate it: every event, then the end of the session. Raises `NnrpResultsLost` once where events had to be dropped, and
    goes on after that; what the session ended with, when it did not end in good order. One consumer."""

    def __init__(self) -> None:
        self._kept: deque[tuple[BackgroundEvent, int]] = deque()
        self._kept_bytes = 0
        self._lost = 0
        self._last = 0
        self._had = 0
        self._more: trio.Event | None = None
        self._over = False
        self._error: NnrpClientError | None = None

    def __aiter__(self) -> Background:
        return self

    async def __anext__(self) -> BackgroundEvent:
        while True:
            if self._lost:
                lost, self._lost = self._lost, 0
                raise NnrpResultsLost(f"{lost} events were not taken in time, or are gone at the server")
            if self._kept:
                event, size = self._kept.popleft()
                self._kept_bytes -= size
                return event
            if self._over:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                raise StopAsyncIteration
            self._more = trio.Event()
            await self._more.wait()

    # What happens

    def put(self, received: BackgroundReceived) -> None:
        event = _event_of(received)
        if 0 < event.event_id <= self._had:
            return
        self._last = max(self._last, event.event_id)
        size = _OVERHEAD + (0 if event.result is None else size_of(event.result.content))
        self._kept.append((event, size))
        self._kept_bytes += size
        while self._kept_bytes > MAX_KEPT and len(self._kept) > 1:
            _, size = self._kept.popleft()
            self._kept_bytes -= size
            self._lost += 1
        self._tell()

    def expect_again(self) -> None:
        """The session was resumed, and what has come may come again: it is not told twice."""
        self._had = self._last

    def note_gap(self) -> None:
        """The server no longer has what came in between."""
        self._lost += 1
        self._tell()

    def finish(self, error: NnrpClientError | None) -> None:
        """No more comes. The first call counts."""
        if not self._over:
            self._over, self._error = True, error
            self._tell()

    def _tell(self) -> None:
        if self._more is not None:
            self._more.set()


def _event_of(received: BackgroundReceived) -> BackgroundEvent:
    packet, result = received.packet, None
    if isinstance(packet.metadata, ResultPush):
        assert isinstance(packet.content, DataBody)
        result = Result(
            packet.metadata,
            packet.content,
            received.state,
            received.state is OperationState.COMPLETED,
            bool(received.session.terms.features),
            event_id_of(packet),
        )
    block = state_block(packet)
    return BackgroundEvent(
        event_id_of(packet),
        0 if block is None else block.operation_id,
        packet.header.frame_id,
        received.state,
        result,
        drop_details(packet),
    )
