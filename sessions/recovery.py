"""The resume decision, as a pure function: what a subscriber with this cursor is to be told and shown."""

from __future__ import annotations

from typing import Any

import attrs

__all__ = ["Resume", "RingState", "plan_resume"]


@attrs.frozen(slots=True)
class RingState:
    """What the decision needs to know of a ring."""

    epoch: str
    head: int
    """Id of the newest event ever published; 0 if there is none."""
    waterline: int
    """Lowest id still held; ``head + 1`` when the ring is empty."""


@attrs.frozen(slots=True)
class Resume:
    """The decision. Ring events with ``id > after`` are replayed, and ``resync``, if any, is announced first."""

    after: int
    resync: dict[str, Any] | None = None


def plan_resume(ring: RingState, cursor: int, epoch: str | None) -> Resume:
    """Decide (ACP-012, ACP-015).

    An epoch that is not the ring's, or a cursor past the head, means that the reader's ids count something else: it is
    shown the whole ring. A cursor below the waterline has lost events: it is told, then shown what is left.
    """

    def resync(reason: str, **detail: str) -> dict[str, Any]:
        return {
            "reason": reason,
            "lastDeliveredId": cursor,
            "earliestAvailableId": ring.waterline,
            **detail,
        }

    if epoch is not None and epoch != ring.epoch:
        return Resume(after=0, resync=resync("epoch_reset", detail="epoch_mismatch"))
    if cursor > ring.head:
        return Resume(after=0, resync=resync("epoch_reset"))
    if ring.waterline > cursor + 1:
        empty = ring.waterline > ring.head
        return Resume(after=cursor, resync=resync("seeded_replay_not_in_ring" if empty else "ring_evicted"))
    return Resume(after=cursor)
