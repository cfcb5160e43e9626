"""Flow control: absolute windows with epochs (nnrp-wire 13.6). One synchronous object per scope, no clock.

The same window serves both ends. Where it was granted to us, ``hold()`` says why a submit must wait; where we granted it,
``overrun()`` says which rule a submit broke. In flight is counted by whoever owns the operations, once per operation.
"""

from __future__ import annotations

import math
from enum import IntEnum

import attrs

from protocol.nnrp.enums import BackpressureLevel, FlowFlags, UpdateReason

__all__ = ["UNLIMITED", "Applied", "CreditUpdate", "Hold", "Window", "WindowStatistics"]

#: More than any u16 credit field can grant: the window of a connection that announced no limit.
UNLIMITED = 1 << 32

#: Epoch of a window that no FLOW_UPDATE has reached yet; every u32 is higher, so the first value is free.
NO_EPOCH = -1


class Hold(IntEnum):
    """Why a new operation may not start in a scope."""

    CREDIT = 1
    PAUSED = 2
    HARD = 3
    DRAIN_ONLY = 4
    BACKGROUND_ONLY = 5
    RETRY_LATER = 6


class Applied(IntEnum):
    """What became of a FLOW_UPDATE. Neither DUPLICATE nor STALE is an error: both are counted and change nothing."""

    APPLIED = 0
    DUPLICATE = 1
    STALE = 2


@attrs.frozen(slots=True)
class CreditUpdate:
    """A FLOW_UPDATE as one scope sees it: the credit field of that scope, and what goes with it."""

    epoch: int
    credit: int = 0
    reason: UpdateReason = UpdateReason.GRANT
    level: BackpressureLevel = BackpressureLevel.NONE
    flags: FlowFlags = FlowFlags.CREDIT_VALID
    retry_after_ms: int = 0


@attrs.frozen(slots=True)
class WindowStatistics:
    limit: int
    in_flight: int
    epoch: int
    applied: int
    stale: int
    duplicate: int
    level: BackpressureLevel
    hold: Hold | None
    retry_at: float | None


class Window:
    """How many operations may be in flight in one scope, and whether new ones may start at all.

    ``limit`` is absolute: a lower one never touches what is in flight, it only keeps new work out until enough has ended.
    """

    __slots__ = (
        "_gate",
        "_tolerated",
        "_tolerated_until",
        "applied",
        "duplicate",
        "epoch",
        "in_flight",
        "level",
        "limit",
        "retry_at",
        "stale",
    )

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self.epoch = NO_EPOCH
        self.level = BackpressureLevel.NONE
        self.retry_at: float | None = None
        self.applied = 0
        self.stale = 0
        self.duplicate = 0
        self._gate: Hold | None = None
        self._tolerated = 0
        self._tolerated_until = -math.inf

    def hold(self, background: bool = False, besides: int = 0) -> Hold | None:
        """Why one more operation may not be started now; None when it may.

        ``background`` says that the operation's priority class is background: background_only lets those through.
        ``besides`` of those in flight do not count; a negative number adds what is not counted here yet.
        """
        gate = self._gate
        if gate is not None and not (gate is Hold.BACKGROUND_ONLY and background):
            return gate
        return Hold.CREDIT if self.in_flight - besides >= self.limit else None

    def lets_pass(self, background: bool) -> bool:
        """Whether what belongs to operations that have started may flow: only a pause, a hard level, and background_only
        for other classes hold that back."""
        gate = self._gate
        return gate is None or gate is Hold.DRAIN_ONLY or (gate is Hold.BACKGROUND_ONLY and background)

    def overrun(self, now: float, background: bool = False) -> Hold | None:
        """Which rule the peer broke by starting one more operation; None when it stayed within what we granted.

        A window that was narrowed still counts at its old width until the tolerance given to ``apply`` has passed: the
        peer may have sent its submit before it saw the news, and FLOW_UPDATE has no acknowledgement.
        """
        broken = self.hold(background)
        if broken is None or (now < self._tolerated_until and self.in_flight < self._tolerated):
            return None
        return broken

    def put_off(self, until: float) -> bool:
        """For the end that submits: nothing new before ``until``, the peer's retry_after. False where something else holds new
        work back, which the peer has to lift itself."""
        if self._gate not in (None, Hold.RETRY_LATER):
            return False
        self._gate, self.retry_at = Hold.RETRY_LATER, until
        return True

    def handle_deadline(self, now: float) -> bool:
        """Whether ``retry_at`` has come: new work is put off no longer."""
        if self._gate is not Hold.RETRY_LATER or self.retry_at is None or now < self.retry_at:
            return False
        self._gate = None
        return True

    def take(self) -> None:
        """One operation starts. The caller has asked ``hold`` or ``overrun`` in the same step."""
        self.in_flight += 1

    def release(self) -> None:
        """One operation has settled. Raises ValueError when none was in flight: an operation settled twice."""
        if self.in_flight == 0:
            raise ValueError("credit released twice")
        self.in_flight -= 1

    def apply(self, update: CreditUpdate, now: float, *, tolerance: float = 0.0) -> Applied:
        """Take over a newer update completely; ignore and count an older or repeated one.

        ``tolerance`` is in seconds and matters only to the granting side (see ``overrun``).
        """
        if update.epoch <= self.epoch:
            return self._ignore(update.epoch)
        before = 0 if self._gate is not None else self.limit
        self.epoch = update.epoch
        self.applied += 1
        if update.flags & FlowFlags.CREDIT_VALID:
            self.limit = update.credit
        self.level = update.level
        self._gate = _gate(update)
        self.retry_at = now + update.retry_after_ms / 1000 if update.flags & FlowFlags.RETRY_AFTER_VALID else None
        after = 0 if self._gate is not None else self.limit
        if tolerance > 0 and after < before:
            self._tolerated = max(before, self._tolerated if now < self._tolerated_until else 0)
            self._tolerated_until = now + tolerance
        return Applied.APPLIED

    def statistics(self) -> WindowStatistics:
        return WindowStatistics(
            self.limit,
            self.in_flight,
            self.epoch,
            self.applied,
            self.stale,
            self.duplicate,
            self.level,
            self.hold(),
            self.retry_at,
        )

    def _ignore(self, epoch: int) -> Applied:
        if epoch == self.epoch:
            self.duplicate += 1
            return Applied.DUPLICATE
        self.stale += 1
        return Applied.STALE


def session_limit(granted_operation_credit: int, max_in_flight_operations: int) -> int:
    """The session window before the first FLOW_UPDATE: the smaller of the two grants, a grant of 0 not counting."""
    if granted_operation_credit > 0:
        return min(granted_operation_credit, max_in_flight_operations)
    return max_in_flight_operations


def _gate(update: CreditUpdate) -> Hold | None:
    if update.reason == UpdateReason.PAUSE:
        return Hold.PAUSED
    if update.level == BackpressureLevel.HARD:
        return Hold.HARD
    if update.flags & FlowFlags.DRAIN_IN_FLIGHT_ONLY:
        return Hold.DRAIN_ONLY
    if update.flags & FlowFlags.BACKGROUND_ONLY:
        return Hold.BACKGROUND_ONLY
    return None
