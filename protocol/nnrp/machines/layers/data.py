"""Submits, cancels, results and credit (nnrp-wire 7.11 – 7.17, 10, 13.4, 13.6)."""

from __future__ import annotations

import math

from protocol.errors import Reach
from protocol.nnrp.bodies import DataBody
from protocol.nnrp.descriptors import TypedPayloadDescriptor
from protocol.nnrp.enums import (
    BackpressureLevel,
    CacheErrorCode,
    CancelReason,
    CancelScopeKind,
    ConnectionState,
    DescriptorFlags,
    ExtType,
    FlowFlags,
    FlowScope,
    FrameClass,
    LeaseOwnerScope,
    LossTolerance,
    MessageType,
    OperationFeatures,
    OperationState,
    UpdateReason,
)
from protocol.nnrp.errors import NnrpError, NnrpLocalError, Outcome
from protocol.nnrp.extensions import ControlExtension, pack_extensions
from protocol.nnrp.machines.cache_records import CacheEntry
from protocol.nnrp.machines.connection_table import ConnectionInput, Dialect
from protocol.nnrp.machines.credit import Applied, CreditUpdate, Window
from protocol.nnrp.machines.events import (
    BackgroundReceived,
    CancelReceived,
    DropReceived,
    FlowReceived,
    HintReceived,
    Ignored,
    IgnoredBecause,
    ResultReceived,
    SubmitReceived,
)
from protocol.nnrp.machines.layers.caching import CacheFlow
from protocol.nnrp.machines.layers.core import Side
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.outgoing import Outgoing
from protocol.nnrp.machines.reading import (
    cancel_scope,
    drop_state,
    expectations,
    result_state,
    submit_context,
)
from protocol.nnrp.machines.schemas import SchemaRegistry
from protocol.nnrp.machines.session import BACKGROUND_FRAMES, Delivery, Ending, Session
from protocol.nnrp.machines.session_table import SessionInput
from protocol.nnrp.messages import FlowUpdate, FrameCancel, FrameSubmit, ResultHint
from protocol.nnrp.packet import Packet
from protocol.nnrp.vendor import CancelScope, SubmitContext

__all__ = ["DataFlow"]

#: Seconds after which a round trip is measured anew, where it matters.
ROUND_TRIP_AGE = 30.0

_OVERRIDE = int(DescriptorFlags.SCHEMA_OVERRIDE)
_CLOSED = ConnectionState.CLOSED
_WORK, _FRAME_SUBMIT = ConnectionInput.WORK, MessageType.FRAME_SUBMIT
_LATE, _SILENT = Delivery.LATE, Ending.SILENT
_INHERIT, _BEST_EFFORT = LossTolerance.INHERIT, LossTolerance.BEST_EFFORT


class DataFlow(CacheFlow):
    __slots__ = ()

    # Things the application wants: submitting end

    def submit(
        self,
        session: Session,
        now: float,
        *,
        frame_id: int = 0,
        view_id: int = 0,
        latency_budget_ms: int = 0,
        context: SubmitContext | None = None,
    ) -> Operation:
        """Start an operation; the caller then sends the FRAME_SUBMIT with ``operation.frame_id``. Raises NnrpLocalError
        when there is no credit (ask ``session.hold`` first), the session is not open, or the ids are used."""
        self._step_ours(_WORK, _FRAME_SUBMIT)
        if context is not None and not session.terms.tree:
            raise NnrpLocalError(Outcome.BAD_STATE, "submit_context was not granted", subject="FRAME_SUBMIT")
        return session.start(now, frame_id, view_id, latency_budget_ms, context)

    def cancel(
        self,
        session: Session,
        scope: CancelScopeKind = CancelScopeKind.OPERATION,
        *,
        operation_id: int = 0,
        group_id: int = 0,
        reason: CancelReason = CancelReason.UNSPECIFIED,
    ) -> tuple[Operation, ...]:
        """Cancel what the scope reaches: locally at once, and at the peer.

        Where the wider scopes were not granted they are carried out here: one FRAME_CANCEL for each operation reached; and
        where packets overtake each other, because a scope then means something else at the peer: submits that come later
        than they were sent, or sooner. The operations stay in flight until their terminal message comes.
        """
        reached = session.cancel(scope, operation_id, group_id)
        granted = session.terms.grants(OperationFeatures.CANCEL_SCOPE)
        if granted and (self.ordered or scope is CancelScopeKind.OPERATION):
            self._queue_scoped_cancel(session, scope, operation_id, group_id, reason)
            return reached
        for operation in reached:
            if granted:
                one = CancelScopeKind.OPERATION
                self._queue_scoped_cancel(session, one, operation.operation_id, 0, reason)
            else:
                self._queue(Outgoing(FrameCancel(), session.session_id, operation.frame_id, operation.view_id))
        return reached

    # Things the application wants: end that carries out

    def progress(self, session: Session, operation: Operation, wanted: OperationState) -> bool:
        """See `Session.progress`. When true the caller sends its partial result or state."""
        going = session.progress(operation, wanted)
        self.counters.late_results += not going
        return going and not self.closed

    def finish(self, session: Session, operation: Operation, wanted: OperationState, now: float) -> Ending:
        """See `Session.finish`. The caller sends the one terminal message this names, before ``messages()``, which may
        hold the answer to a close that waited for this operation."""
        if session.store is not None:
            session.store.cache.end_owner(LeaseOwnerScope.OPERATION, operation.operation_id)
        ending = session.finish(operation, wanted)
        if self.state is _CLOSED:
            return _SILENT
        if session.closing is not None or self.close_received or self.close_sent:
            self._after_settle(session, now)
        return ending

    def cancel_here(
        self, session: Session, scope: CancelScopeKind, operation_id: int = 0, group_id: int = 0
    ) -> tuple[Operation, ...]:
        """The carrying-out end cancels by itself, without a message: deadline, shutdown, policy. Each operation reached
        still gets its one terminal message through ``finish``."""
        return session.cancel(scope, operation_id, group_id)

    def send_hint(self, session: Session, hint: ResultHint, operation: Operation | None = None) -> None:
        """How this end is faring with an operation, or with the whole session."""
        self._step_ours(ConnectionInput.TRAFFIC, MessageType.RESULT_HINT)
        session.step(SessionInput.TRAFFIC, "RESULT_HINT")
        if operation is None:
            self._queue(Outgoing(hint, session.session_id))
            return
        ids = (operation.frame_id, operation.view_id, operation.route_id, operation.trace_id)
        self._queue(Outgoing(hint, session.session_id, *ids))

    # Things the application wants: either end

    def update_credit(
        self,
        now: float,
        *,
        session: Session | None = None,
        operation_id: int = 0,
        credit: int | None = None,
        reason: UpdateReason = UpdateReason.GRANT,
        level: BackpressureLevel = BackpressureLevel.NONE,
        background_only: bool = False,
        drain_only: bool = False,
        retry_after_ms: int | None = None,
    ) -> FlowUpdate:
        """Grant, narrow or stop. The scope is the connection, ``session``, or an operation of it; the epoch is the next
        of that scope. ``credit`` None leaves the window as it is. Raises NnrpLocalError where the connection is not open,
        NnrpError BadState where the session is closed."""
        flags = (
            int(FlowFlags.CREDIT_VALID) * (credit is not None)
            | int(FlowFlags.RETRY_AFTER_VALID) * (retry_after_ms is not None)
            | int(FlowFlags.BACKGROUND_ONLY) * background_only
            | int(FlowFlags.DRAIN_IN_FLIGHT_ONLY) * drain_only
        )
        self._step_ours(ConnectionInput.TRAFFIC, MessageType.FLOW_UPDATE)
        if session is not None:
            session.step(SessionInput.TRAFFIC, "FLOW_UPDATE")
        scope, field = _scope(session, operation_id)
        message = FlowUpdate(
            scope_kind=scope,
            update_reason=reason,
            backpressure_level=level,
            operation_id=operation_id,
            retry_after_ms=retry_after_ms or 0,
            credit_epoch=self._last_epoch(session, operation_id) + 1,
            flow_flags=FlowFlags(flags),
        ).replace(**{field: credit or 0})
        self._queue(Outgoing(message, 0 if session is None else session.session_id))
        self._apply(session, message, now, ours=True)
        return message

    # Things that happened

    def _on_submit(self, packet: Packet, now: float) -> SubmitReceived:
        header = packet.header
        self._step(header)
        session = self.sessions.get(header.session_id)
        opened = session is None
        if session is None:
            session = self._find_or_open(packet)
        metadata = packet.metadata
        assert isinstance(metadata, FrameSubmit)
        objects: tuple[CacheEntry, ...] = ()
        if session.open:
            objects = self._check_payload(session, packet, now)
        context, replaced = None, None
        if session.terms.tree:
            context = submit_context(packet)
            replaced = _replaced(session, context)
        operation = session.accept(now, header.frame_id, header.view_id, metadata.latency_budget_ms, context)
        operation.route_id, operation.trace_id = header.route_id, header.trace_id
        tolerance = metadata.loss_tolerance_policy
        if tolerance is _INHERIT:
            tolerance = self.loss_tolerance
        if tolerance is not _BEST_EFFORT and metadata.frame_class != FrameClass.KEYFRAME:
            operation.sent_once = self._is_sent_once(tolerance, operation.deadline - now)
        return SubmitReceived(session, operation, packet, replaced, opened, objects)

    def _is_sent_once(self, tolerance: LossTolerance, budget: float) -> bool:
        """Whether results of a frame that is no keyframe may be lost (12.5): always with fire_and_forget, with low_latency where
        the round trip takes more than half of the budget. That is asked for while such frames come."""
        if tolerance is not LossTolerance.LOW_LATENCY or budget == math.inf:
            return tolerance is LossTolerance.FIRE_AND_FORGET
        now = self._last_received
        if now >= self._pinged_at + ROUND_TRIP_AGE and self.dialect is Dialect.NATIVE:
            self.send_ping(now)
        return self.round_trip is not None and self.round_trip > budget / 2

    def _on_cancel(self, packet: Packet, now: float) -> CancelReceived | Ignored:
        self._step(packet.header)
        session = self._find_or_open(packet)
        wanted = cancel_scope(packet)
        scope, operation_id, group_id, reason = CancelScopeKind.OPERATION, 0, 0, CancelReason.UNSPECIFIED
        if wanted is not None:
            scope, reason = wanted.cancel_scope, wanted.reason
            operation_id, group_id = wanted.operation_id, wanted.operation_group_id
        else:
            target = session.operations.of_frame(packet.header.frame_id) if session.in_flight else None
            operation_id = 0 if target is None else target.operation_id
        try:
            return CancelReceived(session, session.cancel(scope, operation_id, group_id), reason)
        except NnrpError as error:
            if error.outcome is not Outcome.UNKNOWN_OPERATION:
                raise
            self.counters.ignored_cancels += 1
            return Ignored(packet, IgnoredBecause.UNKNOWN_CANCEL_TARGET)

    def _on_result(self, packet: Packet, now: float) -> ResultReceived | BackgroundReceived | Ignored:
        self._step(packet.header)
        session = self._find(packet)
        state = result_state(packet)
        if packet.header.frame_id >= BACKGROUND_FRAMES and session.is_background(packet.header.frame_id):
            session.step(SessionInput.TRAFFIC, "RESULT_PUSH")
            return BackgroundReceived(session, packet, state)
        try:
            operation, delivery = session.receive_result(packet.header.frame_id, state)
        except NnrpError:
            if session.had_ended(packet.header.frame_id):
                return Ignored(packet, IgnoredBecause.REDELIVERED)
            raise
        if delivery is _LATE:
            self.counters.late_results += 1
        if operation.settled:
            self._after_settle(session, now)
        return ResultReceived(session, operation, packet, delivery, state)

    def _on_drop(self, packet: Packet, now: float) -> DropReceived | BackgroundReceived | Ignored:
        self._step(packet.header)
        session = self._find(packet)
        if packet.header.frame_id >= BACKGROUND_FRAMES and session.is_background(packet.header.frame_id):
            session.step(SessionInput.TRAFFIC, "RESULT_DROP")
            return BackgroundReceived(session, packet, drop_state(packet))
        try:
            operation = session.receive_drop(packet.header.frame_id, drop_state(packet))
        except NnrpError:
            if session.had_ended(packet.header.frame_id):
                return Ignored(packet, IgnoredBecause.REDELIVERED)
            raise
        self._after_settle(session, now)
        return DropReceived(session, operation, packet)

    def _on_hint(self, packet: Packet, now: float) -> HintReceived:
        self._step(packet.header)
        return HintReceived(self._find(packet) if packet.header.session_id else None, packet)

    def _on_flow(self, packet: Packet, now: float) -> FlowReceived:
        self._step(packet.header)
        message = packet.metadata
        assert isinstance(message, FlowUpdate)
        session = None
        if message.scope_kind is not FlowScope.CONNECTION:
            session = self._find_or_open(packet)
            session.step(SessionInput.TRAFFIC, "FLOW_UPDATE")
        applied = self._apply(session, message, now, ours=False)
        if applied is Applied.STALE:
            self.counters.stale_updates += 1
        return FlowReceived(session, packet, applied)

    # Inside

    def _check_payload(self, session: Session, packet: Packet, now: float) -> tuple[CacheEntry, ...]:
        """Schemas and references of a submit, before anything starts: their failures cost the frame only (8.4, 11.4).
        Returns what the references name."""
        content = packet.content
        assert isinstance(content, DataBody)
        regions = content.regions
        store = session.store
        if store is not None:
            store.cache.handle_deadline(now)
        registry = self.schemas if store is None else store.schemas
        for payload in regions.payloads:
            descriptor = payload.descriptor
            if isinstance(descriptor, TypedPayloadDescriptor):
                _bind(session, registry, descriptor)
            else:
                session.legacy_descriptors = True
        return self._resolve(session, packet, now) if regions.references else ()

    def _resolve(self, session: Session, packet: Packet, now: float) -> tuple[CacheEntry, ...]:
        content = packet.content
        assert isinstance(content, DataBody)
        expected = expectations(packet)
        objects = []
        for index, reference in enumerate(content.regions.references):
            wanted = expected[index] if index < len(expected) else None
            found = self._find_object(session, reference, wanted, now)
            if isinstance(found, CacheErrorCode):
                raise NnrpError(
                    Outcome.BAD_STATE,
                    f"object reference {index}: {found.name.lower()}",
                    subject="OBJECT_REFERENCE",
                    code=int(found),
                    reach=Reach.OPERATION,
                    session_id=session.session_id,
                    frame_id=packet.header.frame_id,
                )
            objects.append(found)
        return tuple(objects)

    def _queue_scoped_cancel(
        self, session: Session, scope: CancelScopeKind, operation_id: int, group_id: int, reason: CancelReason
    ) -> None:
        target = session.operations.get(operation_id) if operation_id else None
        value = CancelScope(scope, reason, operation_id, group_id)
        body = pack_extensions([ControlExtension.of(ExtType.CANCEL_SCOPE, value)])
        frame_id = 0 if target is None else target.frame_id
        self._queue(Outgoing(FrameCancel(), session.session_id, frame_id, body=body))

    def _last_epoch(self, session: Session | None, operation_id: int) -> int:
        reverse = self.side is Side.CLIENT
        window: Window | None
        if session is None:
            window = self.reverse if reverse else self.window
        elif operation_id:
            window = session.operation_window(operation_id, reverse=reverse)
        else:
            window = session.reverse if reverse else session.window
        return 0 if window is None else max(window.epoch, 0)

    def _apply(self, session: Session | None, message: FlowUpdate, now: float, *, ours: bool) -> Applied:
        _, field = _scope(session, message.operation_id)
        update = CreditUpdate(
            message.credit_epoch,
            getattr(message, field),
            message.update_reason,
            message.backpressure_level,
            message.flow_flags,
            message.retry_after_ms,
        )
        reverse = (self.side is Side.CLIENT) is ours
        tolerance = self.limits.reduction_tolerance if ours else 0.0
        if session is not None:
            applied = session.apply_credit(message.operation_id, update, now, reverse=reverse, tolerance=tolerance)
        elif reverse:
            applied = self.reverse.apply(update, now)
        else:
            applied = self.window.apply(update, now, tolerance=tolerance)
        if applied is Applied.APPLIED and message.retry_after_ms and not ours and not reverse:
            window = session.operation_window(message.operation_id) if session and message.operation_id else None
            if session is None or window is None or session.owns_live(message.operation_id):
                self._put_off(session, now + message.retry_after_ms / 1000, window)
        return applied


def _bind(session: Session, registry: SchemaRegistry, descriptor: TypedPayloadDescriptor) -> None:
    """Bind one payload to its schema. A session mostly sends the same kind again, which needs no second look."""
    flags = int(descriptor.descriptor_flags)
    wanted = (
        descriptor.profile_id,
        descriptor.schema_id,
        descriptor.schema_version,
        flags & _OVERRIDE,
        registry.generation,
    )
    if wanted != session.bound:
        registry.bind(*wanted[:3], override=bool(flags & _OVERRIDE), session=session.binding)
        session.bound = wanted


def _replaced(session: Session, context: SubmitContext | None) -> Operation | None:
    """The operation that a submit is going to supersede, while it has not ended."""
    if context is None or not context.supersedes_operation_id:
        return None
    operation = session.operations.get(context.supersedes_operation_id)
    return None if operation is None or operation.ended else operation


def _scope(session: Session | None, operation_id: int) -> tuple[FlowScope, str]:
    if session is None:
        return FlowScope.CONNECTION, "connection_credit"
    if operation_id:
        return FlowScope.OPERATION, "operation_credit"
    return FlowScope.SESSION, "session_credit"
