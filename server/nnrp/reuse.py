"""Results kept to be used again when a later operation runs out of its budget (nnrp-wire 7.13, 13.10 item 6)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import attrs

from protocol.nnrp.enums import BudgetPolicy, PayloadKind, ResultClass
from protocol.nnrp.machines.cache import ObjectCache
from protocol.nnrp.machines.cache_records import CacheEntry, CachePool
from server.nnrp.submit import Answer, Submit

__all__ = ["MAX_BYTES", "MAX_LANES", "LatestResults", "Reusable"]

MAX_LANES: Final = 8
MAX_BYTES: Final = 1024 * 1024
"""Of one result; a larger one is not kept. A session keeps one per lane."""
_ALLOWS: Final = BudgetPolicy.ALLOW_STALE_REUSE.value


@attrs.frozen(slots=True, eq=False)
class Reusable:
    frame_id: int
    answer: Answer
    kinds: PayloadKind
    """What the submit held: a result answers only the like."""
    made_from: tuple[CacheEntry, ...]
    """The cache objects it was made from, as they were."""


class LatestResults:
    """The last complete result of each lane of a session whose submits allow reuse. ``pool`` bounds all sessions together."""

    __slots__ = ("_by_lane", "_pool")

    def __init__(self, pool: CachePool) -> None:
        self._pool = pool
        self._by_lane: OrderedDict[int, Reusable] = OrderedDict()

    def keep(self, submit: Submit, answer: Answer) -> None:
        """Take note of a result. Only where the submit says that reuse is welcome, so others cost nothing."""
        operation, size, pool = submit.operation, answer.size, self._pool
        if answer.result_class is not ResultClass.COMPLETE or size > MAX_BYTES:
            return
        self._drop(operation.view_id)
        if pool.bytes + size > pool.max_bytes:
            return
        pool.bytes += size
        kinds = submit.metadata.payload_kind_bitmap
        self._by_lane[operation.view_id] = Reusable(operation.frame_id, answer, kinds, submit.objects)
        if len(self._by_lane) > MAX_LANES:
            self._drop(next(iter(self._by_lane)))

    def clear(self) -> None:
        """The session is over."""
        for lane in list(self._by_lane):
            self._drop(lane)

    def find(self, submit: Submit, caches: Sequence[ObjectCache], now: float) -> Reusable | None:
        """What may stand for the result of ``submit``; None too when an object it was made from is no longer the same."""
        found = self._by_lane.get(submit.operation.view_id)
        if found is None or found.kinds != submit.metadata.payload_kind_bitmap:
            return None
        good = all(any(cache.holds(each, now) for cache in caches) for each in found.made_from)
        return found if good else None

    def _drop(self, lane: int) -> None:
        gone = self._by_lane.pop(lane, None)
        if gone is not None:
            self._pool.bytes -= gone.answer.size

    @staticmethod
    def wanted(submit: Submit) -> bool:
        return bool(int(submit.metadata.budget_policy) & _ALLOWS)
