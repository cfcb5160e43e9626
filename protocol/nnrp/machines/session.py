"""One session on one connection: its state, its credit and its operations (nnrp-wire 13.2 – 13.4, 13.6).

The same object serves both ends. ``start`` is for the end that submits, ``accept`` for the end that is submitted to;
``finish`` is for the end that carries out, ``receive_result`` for the end that waits.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TYPE_CHECKING

from protocol.errors import Reach
from protocol.nnrp.enums import CancelScopeKind, OperationState, PriorityClass, SessionFlagsAck, SessionState
from protocol.nnrp.errors import NnrpError, NnrpLocalError, Outcome
from protocol.nnrp.machines.credit import UNLIMITED, Applied, CreditUpdate, Hold, Window, session_limit
from protocol.nnrp.machines.operation import OPERATION, TERMINAL_STATES, Operation, OperationEffect
from protocol.nnrp.machines.operations import OperationTable
from protocol.nnrp.machines.schemas import SchemaBinding
from protocol.nnrp.machines.session_table import SESSION, SessionEffect, SessionInput
from protocol.nnrp.machines.terms import SessionTerms
from protocol.nnrp.vendor import SubmitContext

if TYPE_CHECKING:
    from protocol.nnrp.machines.closing import Closing
    from protocol.nnrp.machines.migration import Migration
    from protocol.nnrp.machines.patching import SessionSettings
    from protocol.nnrp.machines.store import ObjectStore

__all__ = ["BACKGROUND_FRAMES", "Delivery", "Ending", "Session"]

#: Frame ids from here on are the server's, for results of work that a session's client has not submitted.
BACKGROUND_FRAMES = 0x8000_0000

#: Operation windows one session keeps. A peer that opens more loses the oldest that belongs to no live operation.
OPERATION_WINDOWS = 256

_WORK = SessionInput.WORK
_TRAFFIC = SessionInput.TRAFFIC
_OPEN = SessionState.OPEN
_RESUMED = SessionState.RESUMED
_CLOSED = SessionState.CLOSED
_ACCEPTED = OperationState.ACCEPTED
_RUNNING = OperationState.RUNNING
_COMPLETED = OperationState.COMPLETED
_BACKGROUND = PriorityClass.BACKGROUND
#: States that do not follow themselves.
_CHANGES_ONCE = (_RUNNING, OperationState.WAITING_TOOL)
#: Where an operation gets that is done as soon as it is accepted: by two steps of its table, taken here once.
_DONE_AT_ONCE = OPERATION.step(OPERATION.step(_ACCEPTED, _RUNNING)[0], _COMPLETED)[0]
#: The reverse window of an end that has never sent FLOW_UPDATE.
_ANY = Window(UNLIMITED)
_BACKGROUND_RESULTS = int(SessionFlagsAck.BACKGROUND_RESULTS_ENABLED)


class Delivery(IntEnum):
    """What a received result means to whoever waits for it."""

    PROGRESS = 0
    FINAL = 1
    LATE = 2
    """The operation had ended here before (cancelled, superseded): nothing to deliver."""


class Ending(IntEnum):
    """The one terminal message of an operation."""

    PUSH = 1
    """A RESULT_PUSH with its result."""
    DROP = 2
    """A RESULT_DROP: it has ended without one, or its result came too late."""
    SILENT = 3
    """None: the session is over here, or the peer reads no results any more."""


_PROGRESS, _FINAL, _LATE = Delivery.PROGRESS, Delivery.FINAL, Delivery.LATE
_PUSH, _DROP, _SILENT = Ending.PUSH, Ending.DROP, Ending.SILENT


class Session:
    """A session that is open on this connection. Made by the connection machine only.

    ``attachment`` belongs to the driver (its own object for the session) and is never looked at here.
    """

    __slots__ = (
        "_binding",
        "_connection_reverse",
        "_connection_window",
        "_next_frame",
        "_operation_windows",
        "_operations",
        "_redelivered_below",
        "_reverse_windows",
        "attachment",
        "bound",
        "closing",
        "legacy_descriptors",
        "migration",
        "pending_patches",
        "reverse",
        "session_id",
        "settings",
        "state",
        "store",
        "suppressed",
        "terms",
        "window",
    )

    def __init__(
        self,
        session_id: int,
        terms: SessionTerms,
        connection_window: Window,
        connection_reverse: Window,
        *,
        resumed: bool = False,
    ) -> None:
        self.session_id = session_id
        self.terms = terms
        self.state = _RESUMED if resumed else _OPEN
        self.window = Window(session_limit(terms.granted_operation_credit, terms.max_in_flight_operations))
        self.reverse: Window | None = None
        """Credit that the submitting end grants the other way, should it send FLOW_UPDATE; see ``may_push``."""
        self.closing: Closing | None = None
        self.migration: Migration | None = None
        self.settings: SessionSettings | None = None
        self.store: ObjectStore | None = None
        self.legacy_descriptors = False
        self.pending_patches = 0
        self.suppressed = 0
        """Results that came after their operation had ended."""
        self.attachment: object = None
        self._connection_window = connection_window
        self._connection_reverse = connection_reverse
        self._binding: SchemaBinding | None = None
        self.bound: tuple[int, int, int, int, int] | None = None
        """What the last payload was bound with (see `layers.data`), and the registry's generation then."""
        self._operations: OperationTable | None = None
        self._operation_windows: dict[int, Window] | None = None
        self._reverse_windows: dict[int, Window] | None = None
        self._next_frame = 1
        self._redelivered_below = 0

    # Getters

    @property
    def operations(self) -> OperationTable:
        """The session's operations. Made at first use: an idle session has none."""
        if self._operations is None:
            self._operations = OperationTable(self.session_id, tree=self.terms.tree)
        return self._operations

    @property
    def in_flight(self) -> int:
        return 0 if self._operations is None else len(self._operations)

    @property
    def open(self) -> bool:
        """Whether new operations may start, credit apart."""
        return self.state is _OPEN or self.state is _RESUMED

    @property
    def watermark(self) -> int:
        """The highest operation id seen, for last_operation_id."""
        return 0 if self._operations is None else self._operations.watermark

    @property
    def next_frame_id(self) -> int:
        """The frame id the next ``start`` will take unless told otherwise."""
        return self._next_frame

    @property
    def binding(self) -> SchemaBinding:
        """What payload descriptors are bound with."""
        if self._binding is None:
            self._binding = self.terms.binding
        return self._binding

    def owns_live(self, operation_id: int) -> bool:
        """Whether the operation is in flight and has not ended: it may then own a lease."""
        operation = None if self._operations is None else self._operations.get(operation_id)
        return operation is not None and not operation.settled and not operation.ended

    def hold(self, parent_id: int = 0, priority: PriorityClass | None = None, coming: int = 0) -> Hold | None:
        """Why one more operation may not start now in the connection, the session or above it in the tree; None: go.
        ``coming`` are operations of sessions that are being resumed on the connection: the other end may count them already."""
        background = (self.terms.priority if priority is None else priority) is _BACKGROUND
        held = self._connection_window.hold(background, -coming) or self.window.hold(background)
        if held is None and parent_id and self._operation_windows:
            held = self._hold_above(parent_id, background)
        return held

    def hold_again(self, operation: Operation, here: int, everywhere: int) -> Hold | None:
        """Why an operation that was carried over by a resume may not be sent again now. It is in flight already; ``here`` of the
        session's and ``everywhere`` of the connection's have not been sent again, itself included."""
        background = operation.priority is _BACKGROUND
        return self._connection_window.hold(background, everywhere) or self.window.hold(background, here)

    def may_push(self, operation: Operation | None = None) -> bool:
        """Whether the other end takes results now, of ``operation`` or of what happens beside the session's own: false while
        it has paused the connection, the session or the operation in the reverse direction, or lets through only work of
        class background there. drain_in_flight_only holds nothing back: a result belongs to an operation that exists."""
        background = (self.terms.priority if operation is None else operation.priority) is _BACKGROUND
        if not (self._connection_reverse.lets_pass(background) and (self.reverse or _ANY).lets_pass(background)):
            return False
        if operation is None or not self._reverse_windows:
            return True
        return self._reverse_windows.get(operation.operation_id, _ANY).lets_pass(background)

    def is_background(self, frame_id: int) -> bool:
        """Whether a result of this frame belongs to work that was submitted elsewhere (7.7, allow_background_results): such
        frames have their highest bit set, and are not among ours."""
        return (
            frame_id >= BACKGROUND_FRAMES
            and bool(self.terms.flags & _BACKGROUND_RESULTS)
            and (self._operations is None or not self._operations.used_frame(frame_id))
        )

    def operation_window(self, operation_id: int, *, reverse: bool = False) -> Window | None:
        """The window of one operation, None before the first FLOW_UPDATE for it in that direction."""
        windows = self._reverse_windows if reverse else self._operation_windows
        return None if windows is None else windows.get(operation_id)

    # Things the application wants: submitting end

    def start(
        self,
        now: float,
        frame_id: int = 0,
        view_id: int = 0,
        latency_budget_ms: int = 0,
        context: SubmitContext | None = None,
    ) -> Operation:
        """We submit. ``frame_id`` 0 takes the next one; frame ids must rise. Raises NnrpLocalError and starts nothing
        when the session is not open, no credit is left, or the ids are used."""
        wanted = frame_id or self._next_frame
        if wanted < self._next_frame:
            raise NnrpLocalError(Outcome.OPERATION_EXISTS, "frame ids rise within a session", subject="FRAME_SUBMIT")
        if wanted > 0xFFFF_FFFF:
            raise NnrpLocalError(Outcome.LIMIT_EXCEEDED, "frame ids are used up; open a new session")
        priority, parent_id = self.terms.priority, 0
        if context is not None:
            priority, parent_id = _priority(priority, context), context.parent_operation_id
        held = self.hold(parent_id, priority)
        if held is not None:
            raise NnrpLocalError(Outcome.LIMIT_EXCEEDED, f"held back: {held.name.lower()}", subject="FRAME_SUBMIT")
        try:
            operation = self._admit(now, wanted, view_id, latency_budget_ms, context, priority)
        except NnrpError as refused:
            raise NnrpLocalError(refused.outcome, refused.rule, subject="FRAME_SUBMIT") from refused
        self._next_frame = wanted + 1
        return operation

    def cancel(self, scope: CancelScopeKind, operation_id: int = 0, group_id: int = 0) -> tuple[Operation, ...]:
        """Cancel everything the scope reaches, at once; each affected operation still gets its one terminal message.

        Ascending ids. Raises NnrpError (UnknownOperation, BadCombination) when the scope names nothing.
        """
        self._step(SessionInput.TRAFFIC, "FRAME_CANCEL")
        return self.operations.cancel(scope, operation_id, group_id)

    def resume_frames_at(self, frame_id: int) -> None:
        """Go on counting from here, after a migration or a resume."""
        self._next_frame = max(self._next_frame, frame_id)

    def raise_watermark(self, operation_id: int) -> None:
        """The session has had operations up to this one before it was resumed or moved here (nnrp-wire 10 item 7)."""
        if operation_id:
            self.operations.raise_watermark(operation_id)

    def expect_everything_again(self) -> None:
        """The session was resumed without a cursor (nnrp-extensions, Negotiation): what is in flight begins anew here, and what comes
        of frames before ``next_frame_id`` that are not is no fault."""
        self._redelivered_below = self._next_frame
        for operation in self._operations or ():
            operation.begin_again()

    def had_ended(self, frame_id: int) -> bool:
        """Whether a result of this frame is only there because everything was to be sent again."""
        return frame_id < self._redelivered_below and self.operations.of_frame(frame_id) is None

    # Things that happened: end that is submitted to

    def accept(
        self,
        now: float,
        frame_id: int,
        view_id: int = 0,
        latency_budget_ms: int = 0,
        context: SubmitContext | None = None,
    ) -> Operation:
        """The peer submitted. Raises NnrpError, reach operation, and starts nothing when it was not allowed to."""
        priority = self.terms.priority if context is None else _priority(self.terms.priority, context)
        background = priority is _BACKGROUND
        broken = self._connection_window.overrun(now, background) or self.window.overrun(now, background)
        if broken is None and context is not None and context.parent_operation_id and self._operation_windows:
            broken = self._hold_above(context.parent_operation_id, background)
        if broken is not None and self.open:
            raise NnrpError(
                Outcome.LIMIT_EXCEEDED,
                f"the submit exceeds the granted credit ({broken.name.lower()})",
                subject="FRAME_SUBMIT",
                reach=Reach.OPERATION,
                session_id=self.session_id,
                frame_id=frame_id,
            )
        return self._admit(now, frame_id, view_id, latency_budget_ms, context, priority)

    # Things the application wants: end that carries out

    def progress(self, operation: Operation, wanted: OperationState) -> bool:
        """The operation goes on: running, partial or waiting for a tool. False when it has ended meanwhile, in which
        case nothing may be sent. Raises NnrpError BadTransition for a change that is not listed."""
        if operation.ended:
            self.suppressed += 1
            return False
        if operation.state is _ACCEPTED and wanted is not _RUNNING:
            operation.advance(_RUNNING)
        operation.advance(wanted)
        return True

    def finish(self, operation: Operation, wanted: OperationState) -> Ending:
        """The operation is over: settle it, give its credit back, and say which terminal message is to be sent.

        An operation that had ended already (cancelled, superseded) keeps that end, whatever its runner brought.
        Exactly once per operation; raises ValueError the second time.
        """
        if operation.abandoned:
            operation.abandoned = False
            return _SILENT
        if operation.settled:
            raise ValueError(f"operation {operation.operation_id} settled twice")
        if operation.state is _ACCEPTED and wanted is _COMPLETED:
            operation.state = _DONE_AT_ONCE
        elif operation.ended:
            self.suppressed += wanted is _COMPLETED
        else:
            operation.advance(wanted)
        self._settle(operation)
        if self.state is _CLOSED:
            return _SILENT
        return _PUSH if operation.state is _COMPLETED else _DROP

    # Things that happened: end that waits

    def receive_result(self, frame_id: int, wanted: OperationState) -> tuple[Operation, Delivery]:
        """A RESULT_PUSH arrived that means ``wanted``. Raises NnrpError for an unknown frame, or one that had ended."""
        operation = self._waiting_for(frame_id, "RESULT_PUSH")
        if operation.state is _ACCEPTED and wanted is _COMPLETED:
            operation.state = _DONE_AT_ONCE
        elif operation.ended:
            self.suppressed += 1
            if wanted in TERMINAL_STATES:
                self._settle(operation)
            return operation, _LATE
        elif self.state is _RESUMED and wanted is operation.state and wanted in _CHANGES_ONCE:
            return operation, _PROGRESS  # sent again, because what came with it had not arrived
        else:
            if operation.state is _ACCEPTED and wanted is not _RUNNING:
                operation.advance(_RUNNING)
            if operation.advance(wanted) is OperationEffect.PROGRESS:
                return operation, _PROGRESS
        self._settle(operation)
        return operation, _FINAL

    def receive_drop(self, frame_id: int, wanted: OperationState = OperationState.FAILED) -> Operation:
        """A RESULT_DROP, or an ERROR of frame scope, arrived: the operation ends as what we made it, else ``wanted``."""
        operation = self._waiting_for(frame_id, "RESULT_DROP")
        if not operation.ended:
            operation.advance(wanted)
        self._settle(operation)
        return operation

    # Used by the connection machine and its parts

    def step(self, given: SessionInput, subject: str) -> SessionEffect:
        """Take one step of the session's table. Raises NnrpError BadState; the state is then untouched."""
        return self._step(given, subject)

    def adopt(self, operations: tuple[Operation, ...]) -> None:
        """Take over what went on while the session was detached: in flight here from now on."""
        for operation in operations:
            self.operations.adopt(operation)
            self._connection_window.take()
            self.window.take()

    def abandon(self) -> tuple[Operation, ...]:
        """Settle everything that is in flight without a message: nobody is left to tell. Ended as failed if not ended."""
        left = tuple(self._operations or ())
        for operation in left:
            if not operation.ended:
                operation.advance(OperationState.FAILED)
            self._settle(operation)
            operation.abandoned = True
        return left

    def abandon_credit(self) -> None:
        """The session goes elsewhere with its operations: they no longer count on this connection."""
        for _ in range(self.in_flight):
            self._connection_window.release()
        self._connection_window = Window(UNLIMITED)
        self._connection_window.in_flight = self.in_flight
        self._connection_reverse = _ANY

    def apply_credit(
        self, operation_id: int, update: CreditUpdate, now: float, *, reverse: bool, tolerance: float = 0.0
    ) -> Applied:
        """A FLOW_UPDATE of scope session or operation. ``reverse``: it came from the submitting end."""
        if operation_id:
            return self._window_of(operation_id, reverse).apply(update, now, tolerance=tolerance)
        if not reverse:
            return self.window.apply(update, now, tolerance=tolerance)
        if self.reverse is None:
            self.reverse = Window(update.credit)
        return self.reverse.apply(update, now)

    def _admit(
        self,
        now: float,
        frame_id: int,
        view_id: int,
        latency_budget_ms: int,
        context: SubmitContext | None,
        priority: PriorityClass,
    ) -> Operation:
        self._step(_WORK, "FRAME_SUBMIT", frame_id)
        if self.migration is not None:
            self.migration.check_new_work(self.session_id, frame_id)
        budget_ms = latency_budget_ms or self.terms.default_deadline_ms
        if context is None:
            deadline = now + budget_ms / 1000 if budget_ms else math.inf
            operation = self.operations.register(frame_id, view_id, priority, deadline)
        else:
            budget_ms = context.deadline_ms or budget_ms
            operation = self.operations.register(
                frame_id,
                view_id,
                priority,
                now + budget_ms / 1000 if budget_ms else math.inf,
                operation_id=context.operation_id,
                parent_id=context.parent_operation_id,
                group_id=context.operation_group_id,
            )
            if context.supersedes_operation_id:
                self._supersede(context.supersedes_operation_id)
        self._connection_window.take()
        self.window.take()
        return operation

    def _supersede(self, operation_id: int) -> None:
        """An operation that is not known or has ended cannot be replaced any more; that is no error: it lost the race."""
        replaced = self.operations.get(operation_id)
        if replaced is not None and not replaced.ended:
            replaced.advance(OperationState.SUPERSEDED)

    def _settle(self, operation: Operation) -> None:
        assert self._operations is not None  # it is in there
        self._operations.settle(operation)
        self._connection_window.release()
        self.window.release()
        if self._operation_windows is not None and (
            window := self._operation_windows.pop(operation.operation_id, None)
        ):
            window.retry_at = None
        if self._reverse_windows is not None:
            self._reverse_windows.pop(operation.operation_id, None)

    def _waiting_for(self, frame_id: int, subject: str) -> Operation:
        self._step(_TRAFFIC, subject, frame_id)
        operation = None if self._operations is None else self._operations.of_frame(frame_id)
        if operation is not None:
            return operation
        used = self._operations is not None and self._operations.used_frame(frame_id)
        raise NnrpError(
            Outcome.BAD_TRANSITION if used else Outcome.UNKNOWN_OPERATION,
            "the operation has had its terminal message" if used else "no operation was submitted with this frame id",
            subject=subject,
            field="frame_id",
            reach=Reach.OPERATION,
            session_id=self.session_id,
            frame_id=frame_id,
        )

    def _step(self, given: SessionInput, subject: str, frame_id: int = 0) -> SessionEffect:
        row = SESSION.grid[self.state][given]
        if row is None:
            raise NnrpError(
                Outcome.BAD_STATE,
                f"the session is {self.state.name.lower()}",
                subject=subject,
                reach=Reach.OPERATION if frame_id else Reach.SESSION,
                session_id=self.session_id,
                frame_id=frame_id,
            )
        self.state, effect = row
        return effect

    def _hold_above(self, parent_id: int, background: bool) -> Hold | None:
        windows = self._operation_windows or {}
        for above in self.operations.ancestors(parent_id):
            window = windows.get(above.operation_id)
            if window is not None:
                window.in_flight = above.live_below
                held = window.hold(background)
                if held is not None:
                    return held
        return None

    def _window_of(self, operation_id: int, reverse: bool) -> Window:
        windows = self._reverse_windows if reverse else self._operation_windows
        if windows is None:
            windows = {}
            if reverse:
                self._reverse_windows = windows
            else:
                self._operation_windows = windows
        window = windows.get(operation_id)
        if window is None:
            if len(windows) >= OPERATION_WINDOWS:
                live = self.operations
                idle = next((each for each in windows if live.get(each) is None), next(iter(windows)))
                windows.pop(idle).retry_at = None
            window = windows[operation_id] = Window(self.terms.granted_operation_credit)
        return window


def _priority(session: PriorityClass, context: SubmitContext | None) -> PriorityClass:
    if context is None or context.priority_class > PriorityClass.BACKGROUND:
        return session
    return PriorityClass(context.priority_class)
