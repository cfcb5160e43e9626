"""What others do in a session that NNRP clients share, as results outside submit calls (nnrp-wire 7.7, flag 1).

A prompt that came over REST, /acp or another NNRP session is an operation here too: it has a frame id with the highest bit
set, an operation id made of its prompt id, and one terminal message. Events of the session itself, which belong to no
prompt, have frame id 0x80000000 and no end.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping
from typing import Any, Final

from protocol.layout import Buffer
from protocol.nnrp.enums import ErrorCode, OperationState
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.session import BACKGROUND_FRAMES
from protocol.nnrp.machines.session import Session as Machine
from server.nnrp.chunks import Chunks, stop_reason
from server.nnrp.results import drop_parts, push_parts
from sessions.events import Event, EventType
from sessions.ring import Ring

__all__ = ["Others", "ids_of"]

_OUTCOMES: Final = frozenset({EventType.TURN_COMPLETE, EventType.TURN_ERROR})
_LOW: Final = BACKGROUND_FRAMES - 1
_OPERATIONS: Final = 1 << 63


def ids_of(prompt_id: str | None) -> tuple[int, int]:
    """(frame id, operation id) of somebody else's prompt; the same for every client, before and after a resume."""
    if prompt_id is None:
        return BACKGROUND_FRAMES, _OPERATIONS
    try:
        number = uuid.UUID(prompt_id).int
    except ValueError:
        number = zlib.crc32(prompt_id.encode()) * (1 << 64 | 1)
    return BACKGROUND_FRAMES | number & _LOW, _OPERATIONS | number >> 64


class Others:
    """Makes the packets, event by event in the order of the ring."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._turn: str | None = None
        self._chunks: Chunks | None = None

    def rewind(self) -> None:
        """The next event is not the one behind the last."""
        self._turn = self._chunks = None

    def parts(self, machine: Machine, event: Event) -> list[Buffer] | None:
        """The packet for ``event``; None for one that no wire shows."""
        if event.type == EventType.OPERATION_STATE:
            return None
        frame_id, operation_id = ids_of(event.prompt_id)
        operation = Operation(operation_id, frame_id)
        chunks = self._chunks_for(machine, event)
        if event.type not in _OUTCOMES or event.prompt_id is None:
            operation.state = OperationState.PARTIAL
            return push_parts(machine, operation, chunks.every(event), partial=True, event_id=event.id)
        self.rewind()
        outcome = event.value()
        state = _ended_as(event.type, outcome)
        operation.state = state
        if state is OperationState.COMPLETED:
            last = chunks.last(stop_reason(outcome.get("stopReason")), event.id)
            return push_parts(machine, operation, last, event_id=event.id)
        code = ErrorCode.FRAME_CANCELLED if state is OperationState.CANCELLED else ErrorCode.INTERNAL_ERROR
        return drop_parts(machine, operation, error_code=int(code), event_id=event.id)

    def _chunks_for(self, machine: Machine, event: Event) -> Chunks:
        """Turns of one session do not overlap, so positions of one are kept at a time."""
        if self._chunks is None or (event.prompt_id is not None and event.prompt_id != self._turn):
            self._chunks, self._turn = Chunks(machine.terms), None
        if self._turn is None and event.prompt_id is not None and event.type == EventType.SESSION_UPDATE:
            self._turn = event.prompt_id
            for each in reversed(self._told_before(event)):
                self._chunks.pass_over(each)
        return self._chunks

    def _told_before(self, event: Event) -> list[Event]:
        """What the ring holds of its turn up to the event, the newest first: no further back than an update of another turn."""
        told: list[Event] = []
        for number in range(event.id - 1, self._ring.waterline - 1, -1):
            (each,) = self._ring.read(number - 1, 1)
            if each.prompt_id == event.prompt_id:
                told.append(each)
            elif each.prompt_id is not None and each.type == EventType.SESSION_UPDATE:
                break
        return told


def _ended_as(type: str, outcome: Mapping[str, Any]) -> OperationState:
    if type == EventType.TURN_ERROR:
        return OperationState.FAILED
    cancelled = outcome.get("stopReason") == "cancelled"
    return OperationState.CANCELLED if cancelled else OperationState.COMPLETED
