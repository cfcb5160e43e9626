"""What an operation ends with when its budget is spent: partial, degraded, stale_reuse or a drop (nnrp-wire 12.5, 13.4)."""

from __future__ import annotations

from typing import Final

import attrs
from msgspec.structs import replace

from protocol.nnrp.enums import BudgetPolicy, ResultBudgetPolicy, ResultClass
from server.nnrp.submit import Answer

__all__ = ["Ending", "Stock", "settle_budget"]

_PARTIAL, _STALE = BudgetPolicy.ALLOW_PARTIAL, BudgetPolicy.ALLOW_STALE_REUSE
_DEGRADED, _DROP = BudgetPolicy.ALLOW_DEGRADED, BudgetPolicy.ALLOW_DROP
_NOTHING: Final = BudgetPolicy(0)


@attrs.frozen(slots=True)
class Stock:
    """What is at hand when the budget is spent."""

    parts_sent: int = 0
    kept: Answer | None = None
    """The best the worker had so far (`Emit.keep`)."""
    previous: Answer | None = None
    """The last complete result of the same lane, still good to be used again."""
    previous_frame: int = 0
    ends_partial: bool = False
    """Whether the peer understands a result that is partial and the last: that takes operation_state, and a body with room
    for it."""


@attrs.frozen(slots=True)
class Ending:
    """``final`` is the last message, None for RESULT_DROP. ``before``: a part to be sent before the drop, where the peer
    could not tell that a partial result is the last one."""

    final: Answer | None
    applied: BudgetPolicy = _NOTHING
    reused_frame_id: int = 0
    before: Answer | None = None
    hint: ResultBudgetPolicy = ResultBudgetPolicy.DROP


def settle_budget(allowed: int, stock: Stock) -> Ending:
    """Choose what the submit allows, in this order: what is new, if not whole; what is whole, if worse; what is old; nothing.

    Whatever is chosen is the operation's one terminal message.
    """
    kept = stock.kept
    partial, degraded = bool(allowed & _PARTIAL.value), bool(allowed & _DEGRADED.value)
    if kept is not None and kept.result_class is ResultClass.DEGRADED:
        if degraded:
            return Ending(kept, _DEGRADED, hint=ResultBudgetPolicy.FULL)
        kept = None
    if partial and stock.ends_partial and (kept is not None or stock.parts_sent):
        final = replace(kept or Answer(), result_class=ResultClass.PARTIAL)
        return Ending(final, _PARTIAL, hint=ResultBudgetPolicy.PARTIAL)
    if degraded and (kept is not None or stock.parts_sent):
        # What has been sent, or is there, is of use as it is: say so instead of taking it back.
        final = replace(kept or Answer(), result_class=ResultClass.DEGRADED)
        return Ending(final, _DEGRADED, hint=ResultBudgetPolicy.FULL)
    if partial and kept is not None:
        return Ending(None, _PARTIAL, before=kept, hint=ResultBudgetPolicy.PARTIAL)
    if stock.previous is not None and allowed & _STALE.value:
        final = replace(stock.previous, result_class=ResultClass.STALE_REUSE)
        return Ending(final, _STALE, stock.previous_frame, hint=ResultBudgetPolicy.STALE_REUSE)
    return Ending(None, _DROP if allowed & _DROP.value else _NOTHING)
