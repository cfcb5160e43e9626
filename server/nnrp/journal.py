"""What a resumable session has sent and may have to send again (nnrp-wire 13.7)."""

from __future__ import annotations

from collections import deque

import attrs

from protocol.layout import Buffer
from protocol.nnrp.machines.resume import Redelivery, RedeliveryPlan

__all__ = ["Entry", "Journal"]


@attrs.frozen(slots=True)
class Entry:
    """One RESULT_PUSH or RESULT_DROP, as bytes. One that says no event id (not ``numbered``) stands behind the event named.
    ``ends`` is the frame whose terminal message it is, 0 where more comes."""

    event_id: int
    operation_id: int
    parts: tuple[Buffer, ...]
    size: int
    numbered: bool = True
    ends: int = 0

    def seen(self, position: int) -> bool:
        """Whether a client whose last event is ``position`` has certainly got this."""
        return self.event_id < position or (self.event_id == position and self.numbered)


class Journal:
    """A bounded record of result packets, in the order they were sent. The protocol has no acknowledgement for them: what
    a client has seen is learnt when it resumes."""

    __slots__ = ("_bytes", "_entries", "_max_bytes", "_max_entries", "lost_operation_id", "lost_through")

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self.lost_through = 0
        """The highest event id that was let go of for want of room, 0 when nothing was."""
        self.lost_operation_id = 0
        """The highest operation that had such an event, of those that had said their id."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest_event_id(self) -> int:
        """For `Resumable.oldest_event_id`: the first id that can still be asked for, 0 when nothing was ever lost."""
        return self.lost_through + 1 if self.lost_through else 0

    def add(
        self, event_id: int, operation_id: int, parts: tuple[Buffer, ...], *, numbered: bool = True, ends: int = 0
    ) -> None:
        size = sum([len(part) for part in parts])
        self._entries.append(Entry(event_id, operation_id, parts, size, numbered, ends))
        self._bytes += size
        while self._entries and (len(self._entries) > self._max_entries or self._bytes > self._max_bytes):
            lost = self._drop_first()
            self.lost_through = max(self.lost_through, lost.event_id)
            if lost.numbered:
                self.lost_operation_id = max(self.lost_operation_id, lost.operation_id)

    def take(self, plan: RedeliveryPlan) -> list[Entry]:
        """What ``plan`` sends again. What lies before that has been seen, and is forgotten."""
        if plan.redelivery is Redelivery.AFTER_EVENT:
            while self._entries and self._entries[0].seen(plan.position):
                self._drop_first()
            return [each for each in self._entries if not each.seen(plan.position)]
        if plan.redelivery is Redelivery.AFTER_OPERATION:
            return [each for each in self._entries if each.operation_id > plan.position]
        return list(self._entries)

    def _drop_first(self) -> Entry:
        entry = self._entries.popleft()
        self._bytes -= entry.size
        return entry
