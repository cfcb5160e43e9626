"""One session of a client; it goes on when its connection is lost and it can be resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio

from client.nnrp.background import Background
from client.nnrp.cache import Lease, NnrpCache
from client.nnrp.errors import (
    NnrpClientError,
    NnrpConnectionLost,
    NnrpOperationEnded,
    NnrpPatchRefused,
    NnrpResultsLost,
    NnrpSessionOver,
    too_large,
)
from client.nnrp.references import refer
from client.nnrp.results import Result
from client.nnrp.submission import Submission
from protocol.layout import Buffer
from protocol.nnrp.descriptors import TypedPayloadDescriptor
from protocol.nnrp.enums import (
    AckStatus,
    BudgetPolicy,
    CancelReason,
    CancelScopeKind,
    CloseReason,
    ConnectionState,
    DescriptorFlags,
    ExtensionKind,
    FrameClass,
    HeaderFlags,
    InFlightPolicy,
    LossTolerance,
    OperationFeatures,
    OperationPriority,
    PatchMask,
    PayloadKind,
    PriorityClass,
    ProfileId,
    SessionState,
    StreamSemantics,
)
from protocol.nnrp.errors import NnrpLocalError
from protocol.nnrp.header import HEADER_BYTES
from protocol.nnrp.machines.closing import CloseStep
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.patching import SessionSettings
from protocol.nnrp.machines.session import Session
from protocol.nnrp.messages import FrameCancel, FrameSubmit, ResultHint, SessionOpen, SessionPatch, SessionPatchAck
from protocol.nnrp.packet import BodyLike, Packet, encode_parts
from protocol.nnrp.plain import BODY_BYTES
from protocol.nnrp.regions import ExtensionFrame, Regions, TypedPayload
from protocol.nnrp.template import Template
from protocol.nnrp.vendor import SubmitContext

if TYPE_CHECKING:
    from client.nnrp.connection import NnrpConnection

__all__ = ["NnrpSession", "Sent", "SubmitOptions", "ended", "lose"]

Payload: TypeAlias = Buffer | list[TypedPayload] | tuple[TypedPayload, ...]
"""One payload under the session's default schema, or typed payloads as they are."""

_DEFAULTS = SessionSettings()
_RETRANSMIT = HeaderFlags.RETRANSMIT
_NO_FLAGS = HeaderFlags(0)


@attrs.frozen(slots=True, kw_only=True)
class SubmitOptions:
    """Where an operation stands. Ids other than the frame's, the tree, groups and supersede need the operation extensions;
    without them they are refused here, before anything is sent."""

    operation_id: int = 0
    """0: the frame id."""
    parent_id: int = 0
    group_id: int = 0
    priority: PriorityClass | None = None
    deadline_ms: int = 0
    supersedes: int = 0
    budget_policy: BudgetPolicy = BudgetPolicy(0)  # noqa: RUF009  # an immutable number
    """How the operation may end when its time is over (nnrp-wire 12.5); needs no extension."""
    trace_id: int = 0
    """What names the operation in the logs of both ends; it comes back with its results."""
    objects: tuple[Lease, ...] = ()
    """Cached objects it refers to; needs no extension either, unless versions are to be checked."""

    @property
    def plain(self) -> bool:
        """Whether nothing here needs a submit_context."""
        return self.priority is None and not (
            self.operation_id or self.parent_id or self.group_id or self.deadline_ms or self.supersedes
        )


_PLAIN = SubmitOptions()


@attrs.define(slots=True, eq=False)
class Sent:
    """What was sent for an operation, kept while it may have to be sent again."""

    metadata: FrameSubmit
    body: BodyLike
    submission: Submission

    @property
    def once(self) -> bool:
        """Whether it is never sent again (nnrp-wire 12.5)."""
        return self._tolerance is LossTolerance.FIRE_AND_FORGET

    @property
    def kept(self) -> bool:
        """Whether the server keeps its parts, which so come again where everything does (nnrp-wire 12.5)."""
        return self._tolerance not in (LossTolerance.LOW_LATENCY, LossTolerance.FIRE_AND_FORGET)

    @property
    def _tolerance(self) -> LossTolerance:
        """A keyframe is never given up (nnrp-wire 12.5)."""
        metadata = self.metadata
        if metadata.frame_class == FrameClass.KEYFRAME:
            return LossTolerance.STRICT
        return metadata.loss_tolerance_policy


@attrs.define(slots=True, eq=False)
class _Patch:
    """A SESSION_PATCH under way."""

    answered: trio.Event = attrs.field(factory=trio.Event)
    ack: SessionPatchAck | None = None
    error: NnrpClientError | None = None


class NnrpSession:
    """Made by `NnrpConnection.open_session`. ``machine`` changes when the session is resumed."""

    def __init__(
        self,
        connection: NnrpConnection,
        request: SessionOpen,
        machine: Session,
        token: bytes,
        last_event_id: int = 0,
        *,
        ordered: bool = True,
    ) -> None:
        self.machine = machine
        self.opened_with = request
        self.last_event_id = last_event_id
        """The highest event that has come on this connection, or before it where nothing could overtake it."""
        self.background = Background()
        """What others do in this session, where the server lets it be shared."""
        self.hint: ResultHint | None = None
        """What the server has last said of how it is faring."""
        self.unheard = False
        """Whether the answer to a resume was lost with its connection, and a new token with it, perhaps."""
        self._connection = connection
        self._token = token
        self._over: NnrpClientError | None = None
        self._attached = True
        self._ordered = ordered
        self._had = 0
        """The highest event that came before the session was resumed."""
        self._unsent: list[tuple[Operation, Sent]] = []
        self._closing = False
        self._closed: trio.Event | None = None
        self._close_with: tuple[InFlightPolicy, int] | None = None
        """Policy and milliseconds to drain of the SESSION_CLOSE that is to be said on every connection until it is answered."""
        self._cache: NnrpCache | None = None
        self._patches: list[_Patch] = []
        self._template: Template[FrameSubmit] | None = None
        self._largest_body = connection.largest_body

    # What is there

    @property
    def session_id(self) -> int:
        return self.machine.session_id

    @property
    def resumable(self) -> bool:
        return bool(self._token)

    @property
    def token(self) -> bytes:
        """What resumes the session after its connection was lost; empty where it cannot be."""
        return self._token

    @property
    def cursor(self) -> int:
        """The event to go on behind when the session is resumed: every result that is missing comes after it. Where answers overtake
        each other that is not the last one, but the last of the operation in flight of which the oldest is known."""
        if self._ordered:
            return self.last_event_id
        seen = [each.attachment.submission.last_event_id for each in self._live() if isinstance(each.attachment, Sent)]
        return min(seen, default=self.last_event_id)

    @property
    def in_flight(self) -> int:
        return self.machine.in_flight

    @property
    def settings(self) -> SessionSettings:
        """What SESSION_PATCH can change, as the server has last confirmed it."""
        return self.machine.settings or _DEFAULTS

    @property
    def over(self) -> bool:
        return self._over is not None

    @property
    def cache(self) -> NnrpCache:
        """Objects and schemas that the server keeps for this session."""
        if self._cache is None:
            self._cache = NnrpCache(self._connection, self._stored_in)
            if self._over is not None:
                self._cache.fail(self._over)
        return self._cache

    # What the application wants

    async def submit(
        self,
        payload: Payload,
        *,
        kind: PayloadKind = PayloadKind.TOKEN_CHUNK,
        options: SubmitOptions = _PLAIN,
    ) -> Submission:
        """Submit an operation: one payload under the session's default schema, or typed payloads as they are. Waits for
        credit, and for the connection while it is being made again; cancelled meanwhile, nothing was sent, or it is
        cancelled at the server too.

        Raises `NnrpSessionOver`, `NnrpConnectionLost`, and ``NnrpLocalError`` for what may not be sent.
        """
        if isinstance(payload, (list, tuple)):
            payloads = tuple(payload)
        elif self.machine.terms.implicit:
            payloads = (TypedPayload.legacy(payload, PayloadKind.TOKEN_CHUNK),)
        else:
            template = self._template_of(kind)
            return await self.submit_frame(
                template.message, Regions((TypedPayload(template.descriptor, payload),)), options
            )
        metadata = FrameSubmit(payload_kind_bitmap=kind, payload_frame_count=len(payloads))
        return await self.submit_frame(metadata, Regions(payloads), options)

    async def submit_frame(
        self, metadata: FrameSubmit, body: Regions | Buffer, options: SubmitOptions = _PLAIN
    ) -> Submission:
        """Submit metadata and body as they are: tensors, references. As `submit`."""
        connection = self._connection
        self._check()
        if connection.is_full():
            await connection.wait_room()
            self._check()
        if not connection.credit.waits(self) and not self._held(options):
            return self._start(metadata, body, options)
        made: list[Submission] = []
        try:
            await connection.credit.start(
                self, lambda: self._held(options), lambda: made.append(self._start(metadata, body, options))
            )
        except BaseException:
            if made:
                made[0].cancel()
            raise
        return made[0]

    async def request(self, payload: Payload, *, kind: PayloadKind = PayloadKind.TOKEN_CHUNK) -> Result:
        """Submit, and wait for the final result. Cancelled meanwhile, the operation is cancelled too."""
        submission = await self.submit(payload, kind=kind)
        try:
            return await submission.result()
        finally:
            submission.cancel()

    def cancel(
        self,
        scope: CancelScopeKind = CancelScopeKind.SESSION,
        *,
        operation_id: int = 0,
        group_id: int = 0,
        reason: CancelReason = CancelReason.USER,
    ) -> list[Submission]:
        """Cancel what the scope reaches; returns what it was. While the connection is being made again, that is done when it
        is there. Raises ``NnrpError`` when the scope names nothing, and `NnrpSessionOver`; not while the session drains."""
        if self._over is not None:
            raise self._over
        machine = self._connection.machine
        if machine is None or not self._attached:
            reached = self.machine.operations.cancel(scope, operation_id, group_id)
        else:
            reached = machine.cancel(self.machine, scope, operation_id=operation_id, group_id=group_id, reason=reason)
            self._connection.flush()
        return [sent.submission for each in reached if isinstance(sent := each.attachment, Sent)]

    async def patch(
        self,
        *,
        target_cadence_x100: int | None = None,
        quality_tier: int | None = None,
        degrade_policy: int | None = None,
        active_lane_mask: int | None = None,
        preferred_codec_bitmap: int | None = None,
        preferred_compression_bitmap: int | None = None,
        profile_patch: bytes | None = None,
        profile_id: int = 0,
    ) -> SessionPatchAck:
        """Change settings of the session (nnrp-wire 7.3); None leaves one as it is. Returns the server's answer: its masks tell
        what was applied, where that is not all. What is in force then: `settings`.

        Raises `NnrpPatchRefused` where nothing was, `NnrpSessionOver`, `NnrpConnectionLost` where it cannot be known, and
        ``NnrpLocalError`` where the session cannot be patched any more.
        """
        self._check()
        machine = self._connection.need_machine()
        if not self._attached:
            raise NnrpConnectionLost("the session is being resumed")
        wanted = {
            "target_cadence_x100": target_cadence_x100,
            "quality_tier": quality_tier,
            "degrade_policy": degrade_policy,
            "active_lane_mask": active_lane_mask,
            "preferred_codec_bitmap": preferred_codec_bitmap,
            "preferred_compression_bitmap": preferred_compression_bitmap,
        }
        mask = sum(1 << bit for bit, value in enumerate((*wanted.values(), profile_patch)) if value is not None)
        fields = {name: value for name, value in wanted.items() if value is not None}
        request = SessionPatch(profile_id=profile_id, patch_mask=PatchMask(mask), **fields)
        machine.patch_session(self.machine, request, profile_patch or b"")
        patch = _Patch()
        self._patches.append(patch)
        self._connection.flush()
        await self._connection.wait_answer(patch.answered, "SESSION_PATCH")
        if patch.ack is None:
            assert patch.error is not None
            raise patch.error
        if patch.ack.ack_status is AckStatus.REJECTED:
            raise NnrpPatchRefused(patch.ack)
        return patch.ack

    async def close(
        self, *, policy: InFlightPolicy = InFlightPolicy.DRAIN, drain_timeout_ms: int = 0, patience: float = 10.0
    ) -> None:
        """Close the session and wait until the server has confirmed it, at most ``patience`` seconds past the drain. Where its
        connection is lost meanwhile it is closed on the next one. Idempotent; cancelled, the session is over all the same."""
        machine = self._connection.machine
        try:
            if drain_timeout_ms and policy is InFlightPolicy.DRAIN and machine is not None and not machine.ordered:
                # SESSION_CLOSE could overtake the submits it is to drain: they are waited for here.
                self._closing = True
                with trio.move_on_after(drain_timeout_ms / 1000):
                    for operation in self._live():
                        if isinstance(sent := operation.attachment, Sent):
                            await sent.submission.wait_over()
                drain_timeout_ms, machine = 0, self._connection.machine
            if self._over is None and machine is not None and self._attached:
                self._close_with = (policy, drain_timeout_ms)
                self._ask_close()
                if self._over is None:
                    if self._closed is None:
                        self._closed = trio.Event()
                    with trio.move_on_after(patience + drain_timeout_ms / 1000):
                        await self._closed.wait()
        finally:
            self.fail(NnrpSessionOver("the session was closed"))

    async def __aenter__(self) -> NnrpSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
            await self.close(policy=InFlightPolicy.ABORT)

    # What happens; for the connection only

    def fail(self, error: NnrpClientError) -> None:
        """The session is over; so is everything in it that has not ended."""
        if self._over is not None:
            return
        self._over = error
        self._token = b""
        self._unsent = []
        if self._cache is not None:
            self._cache.fail(error)
        self._fail_patches(error)
        if self._closed is not None:
            self._closed.set()
        self.background.finish(None if isinstance(error, NnrpSessionOver) else error)
        for operation in self._live():
            if isinstance(sent := operation.attachment, Sent):
                sent.submission.finish(error)
        self._connection.forget(self, error)

    def end(self, step: CloseStep) -> None:
        """A close is over, ours or the server's, and with it what it has cut off."""
        error = NnrpSessionOver("the session was closed")
        for operation in step.abandoned:
            if isinstance(sent := operation.attachment, Sent):
                sent.submission.finish(error)
        self.fail(error)

    def take_hint(self, hint: ResultHint, frame_id: int) -> None:
        self.hint = hint
        operation = self.machine.operations.of_frame(frame_id) if frame_id and self.machine.in_flight else None
        if operation is not None and isinstance(sent := operation.attachment, Sent):
            sent.submission.hint = hint

    def patched(self, packet: Packet) -> None:
        """A SESSION_PATCH_ACK has come. They come in the order of the patches; one that nobody waits for counts too."""
        ack = packet.metadata
        assert isinstance(ack, SessionPatchAck)
        if self._patches:
            patch = self._patches.pop(0)
            patch.ack = ack
            patch.answered.set()

    @property
    def attached(self) -> bool:
        """Whether the session is on a connection; submits wait while it is not."""
        return self._attached

    def detach(self) -> None:
        self._attached = False
        self._fail_patches(NnrpConnectionLost("the connection was lost before SESSION_PATCH was answered"))

    def attach(self, machine: Session, token: bytes, *, ordered: bool = True) -> list[Operation]:
        """The session is on a new connection, on which packets arrive ``ordered`` or not: take over what had not ended. It is to be
        sent again, but for what is returned: that is sent once (nnrp-wire 12.5), and may not have arrived."""
        carried = self._live()
        machine.resume_frames_at(self.machine.next_frame_id)
        machine.raise_watermark(self.machine.watermark)
        machine.adopt(tuple(carried))
        cursor, self._had = self.cursor, max(self._had, self.last_event_id)
        everything = not (cursor and machine.terms.grants(OperationFeatures.RESUME_WATERMARK))
        again = everything or cursor < self._had
        if again:
            machine.expect_everything_again()
            self.background.expect_again()
        self.last_event_id, self._ordered = cursor, ordered
        machine.settings = self.machine.settings
        self.machine, self._token, self._attached, self.unheard = machine, token, True, False
        self._template = None
        self._largest_body = self._connection.largest_body
        self._unsent, once = [], []
        for each in carried:
            if isinstance(sent := each.attachment, Sent):
                if again:
                    sent.submission.expect_again(everything=everything and sent.kept)
                each.unsent = not sent.once
                if each.unsent:
                    self._unsent.append((each, sent))
                    continue
                if each.ended:
                    self._cancel_again(each)
                if not sent.submission.partials:
                    once.append(each)
        self._ask_close()
        return once

    @property
    def unsent(self) -> int:
        """How many operations are still to be sent again on the connection there is."""
        if not self._attached:
            return 0
        if self._unsent:
            self._unsent = [each for each in self._unsent if not each[0].settled]
        return len(self._unsent)

    def send_again(self, everywhere: int) -> bool:
        """Send the oldest of these, and its cancel, if credit allows it; ``everywhere`` counts those of the whole connection.
        False when it has to wait. The server ignores what had arrived the first time: the header says that this is the
        second. It may not have arrived, and then needs the credit that there is now. What this server, another perhaps, does
        not accept is over."""
        if not self.unsent:
            self._ask_close()
            return False
        operation, sent = self._unsent[0]
        if self.machine.hold_again(operation, len(self._unsent), everywhere) is not None:
            return False
        del self._unsent[0]
        operation.sent_again, operation.unsent = True, False
        problem = None
        try:
            ids = (operation.frame_id, operation.view_id, operation.trace_id)
            self._connection.write(self._encode(sent.metadata, sent.body, *ids, _RETRANSMIT))
        except NnrpLocalError as refused:
            problem = refused
        if operation.ended:
            self._cancel_again(operation)
        if problem is not None:
            lose(self.machine, operation, sent, f"it could not be sent again: {problem}")
        return True

    def put_back(self, operation: Operation) -> None:
        """There was no credit to send it again: it waits for some."""
        if isinstance(sent := operation.attachment, Sent):
            self._unsent.insert(0, (operation, sent))

    # Inside

    def _ask_close(self) -> None:
        """Say SESSION_CLOSE where it is wanted and was not said on this connection: behind what is to be sent again and then
        drained; what would be cut is not sent again."""
        machine = self._connection.machine
        if self._close_with is None or machine is None or not (self._attached and self.machine.open):
            return
        policy, drain_timeout_ms = self._close_with
        if policy is InFlightPolicy.ABORT or not drain_timeout_ms:
            self._unsent = []
        elif self._unsent:
            return
        step = machine.close_session(
            self.machine,
            trio.current_time(),
            reason=CloseReason.NORMAL,
            policy=policy,
            drain_timeout_ms=drain_timeout_ms,
        )
        self._connection.flush()
        if step.closed:
            self.end(step)

    def _live(self) -> list[Operation]:
        return list(self.machine.operations) if self.machine.in_flight else []

    def _stored_in(self) -> Session:
        self._check()
        if not self._attached:
            raise NnrpConnectionLost("the session is being resumed")
        return self.machine

    def _held(self, options: SubmitOptions) -> bool:
        """Whether an operation has to wait: for credit, or for the connection."""
        if not self._attached or self._connection.leaving or self._connection.machine is None:
            return True
        coming = self._connection.coming if self._connection.resuming else 0
        return self.machine.hold(options.parent_id, options.priority, coming) is not None

    def _fail_patches(self, error: NnrpClientError) -> None:
        while self._patches:
            patch = self._patches.pop(0)
            patch.error = error
            patch.answered.set()

    def _check(self) -> None:
        if self._over is not None:
            raise self._over
        if self._closing:
            raise NnrpSessionOver("the session is being closed")

    def _start(self, metadata: FrameSubmit, body: Regions | Buffer, options: SubmitOptions) -> Submission:
        self._check()
        connection = self._connection
        machine = connection.machine
        assert machine is not None  # held back while there is none
        session = self.machine
        if options.budget_policy:
            metadata = metadata.replace(budget_policy=options.budget_policy)
        if options.objects:
            if not isinstance(body, Regions):
                raise ValueError("references need a region body")
            versions = session.terms.grants(OperationFeatures.CACHE_SEMANTICS)
            metadata, body = refer(metadata, body, options.objects, versions=versions)
        context = None
        if options is not _PLAIN and not options.plain:
            context = SubmitContext(
                options.operation_id or session.next_frame_id,
                options.parent_id,
                options.group_id,
                OperationPriority.INHERIT if options.priority is None else OperationPriority(options.priority),
                options.deadline_ms,
                options.supersedes,
            )
            if isinstance(body, Regions):
                frame = ExtensionFrame.of(ExtensionKind.SUBMIT_CONTEXT, context)
                body = Regions(body.payloads, body.inline_objects, body.references, (*body.extensions, frame))
        # First of all, because it may be refused: a submit that is not sent replaces nothing.
        parts = self._encode(metadata, body, session.next_frame_id, 0, options.trace_id)
        try:
            operation = machine.submit(
                session, connection.now(), latency_budget_ms=metadata.latency_budget_ms, context=context
            )
        except NnrpLocalError as early:
            if not session.open:
                raise NnrpSessionOver("the session is being closed") from early
            if machine.state is ConnectionState.DRAINING:
                raise NnrpConnectionLost("the connection is being closed") from early
            raise
        operation.trace_id = options.trace_id
        submission = Submission(operation, self._cancel_one, self.last_event_id)
        operation.attachment = Sent(metadata, body, submission)
        connection.write(parts)
        return submission

    def _encode(
        self,
        metadata: FrameSubmit,
        body: BodyLike,
        frame_id: int,
        view_id: int,
        trace_id: int,
        flags: HeaderFlags = _NO_FLAGS,
    ) -> list[Buffer]:
        """A FRAME_SUBMIT. Raises ``NnrpLocalError`` where it may not be sent, or is too large for the server."""
        template = self._template
        if template is not None and not flags and (data := template.payload_of(metadata, body)) is not None:
            if len(data) + BODY_BYTES > self._largest_body:
                raise too_large("FRAME_SUBMIT")
            return template.encode_parts(data, self.machine.session_id, frame_id, view_id, 0, trace_id)
        parts = encode_parts(
            metadata,
            body,
            session_id=self.machine.session_id,
            frame_id=frame_id,
            view_id=view_id,
            trace_id=trace_id,
            flags=flags,
            strict=self._connection.strict_out,
        )
        if sum(map(len, parts)) - HEADER_BYTES - metadata.SIZE > self._largest_body:
            raise too_large("FRAME_SUBMIT")
        return parts

    def _cancel_again(self, operation: Operation) -> None:
        """A cancel may have been lost with the connection; the server ignores one it knows."""
        parts = encode_parts(
            FrameCancel(),
            session_id=self.machine.session_id,
            frame_id=operation.frame_id,
            view_id=operation.view_id,
        )
        self._connection.write(parts)

    def _cancel_one(self, operation: Operation) -> None:
        if not self.over and not operation.settled and not operation.ended:
            self.cancel(CancelScopeKind.OPERATION, operation_id=operation.operation_id)

    def _template_of(self, kind: PayloadKind) -> Template[FrameSubmit]:
        """What submits of one payload under the session's default schema have in common."""
        template = self._template
        if template is None or template.message.payload_kind_bitmap is not kind:
            terms = self.machine.terms
            descriptor = TypedPayloadDescriptor(
                terms.profile_id or int(ProfileId.TOKEN),
                DescriptorFlags.TERMINAL,
                terms.schema_id,
                terms.schema_version,
                StreamSemantics.APPEND if terms.schema_id else StreamSemantics.DEFAULT,
            )
            template = Template(FrameSubmit(payload_kind_bitmap=kind, payload_frame_count=1), descriptor)
            self._template = template
        return template


def lose(machine: Session, operation: Operation, sent: Sent, why: str) -> None:
    """Here the operation is over, as lost, and at the server it is cancelled: on the next connection, where this one is over."""
    sent.submission.cancel()
    sent.submission.finish(NnrpResultsLost(why))
    if machine.state is not SessionState.CLOSED:
        machine.receive_drop(operation.frame_id)


def ended(operation: Operation, code: int, *, retry_after: float = 0.0) -> NnrpOperationEnded:
    """How an operation that got a drop, or an error, has ended."""
    return NnrpOperationEnded(operation.state, code, retry_after=retry_after)
