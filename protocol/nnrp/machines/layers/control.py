"""Opening, patching, closing and moving sessions (nnrp-wire 7.3, 7.7 – 7.10, 13.2, 13.3, 13.7, 13.9)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from protocol.errors import Reach
from protocol.nnrp.bodies import ControlBody
from protocol.nnrp.enums import (
    CancelScopeKind,
    CloseReason,
    ConnectionState,
    ExtType,
    InFlightPolicy,
    MessageType,
    OperationFeatures,
    SessionErrorCode,
    SessionStatus,
)
from protocol.nnrp.errors import NnrpError, NnrpLocalError, Outcome
from protocol.nnrp.extensions import ControlExtension, pack_extensions
from protocol.nnrp.machines import closing
from protocol.nnrp.machines.connection_table import ConnectionInput, Dialect, DialectInput
from protocol.nnrp.machines.events import (
    Ignored,
    IgnoredBecause,
    MigrateAnswered,
    MigrateReceived,
    PatchAnswered,
    PatchReceived,
    SessionCloseProgress,
    SessionOpened,
    SessionOpenReceived,
    SessionRefused,
)
from protocol.nnrp.machines.layers.core import Side
from protocol.nnrp.machines.layers.handshake import Handshake
from protocol.nnrp.machines.migration import Migration, MigrationAnswer, MigrationEffect
from protocol.nnrp.machines.opening import (
    ACCEPT,
    OpenDecision,
    OpenPolicy,
    OpenVerdict,
    answer_message,
    check_answer,
    decide_open,
    terms_of_answer,
)
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.outgoing import Outgoing
from protocol.nnrp.machines.patching import PatchPolicy, SessionSettings, apply_answer, decide_patch
from protocol.nnrp.machines.reading import offered_features
from protocol.nnrp.machines.resume import ResumeDecision, ResumeOutcome, classify_answer
from protocol.nnrp.machines.session import Session
from protocol.nnrp.machines.session_table import SessionInput
from protocol.nnrp.machines.terms import SessionTerms
from protocol.nnrp.messages import (
    ResultDrop,
    SessionClose,
    SessionCloseAck,
    SessionMigrate,
    SessionMigrateAck,
    SessionOpen,
    SessionOpenAck,
    SessionPatch,
    SessionPatchAck,
)
from protocol.nnrp.packet import Packet
from protocol.nnrp.vendor import OperationExtensions, OperationStateBlock, ResumeFrom

__all__ = ["SessionControl"]

#: SESSION_OPENs one connection may have waiting for an answer.
OPENS_OUTSTANDING = 65_536

_DEFAULT_SETTINGS = SessionSettings()
_DRAINING = ConnectionState.DRAINING


class SessionControl(Handshake):
    __slots__ = ("_cutting", "_migrations", "_next_session_id", "_opens")

    def _prepare(self) -> None:
        super()._prepare()
        self._opens: deque[tuple[SessionOpen, Packet | None]] = deque()
        self._migrations: dict[int, Migration] = {}
        self._next_session_id = 1
        self._cutting = False

    # Getters

    @property
    def opens_outstanding(self) -> int:
        """SESSION_OPENs sent or received and not answered; answers come in the order of the requests (13.2)."""
        return len(self._opens)

    # Things the application wants: opening

    def open_session(
        self,
        request: SessionOpen,
        *,
        resume_token: bytes = b"",
        auth: bytes = b"",
        features: OperationFeatures | None = None,
        resume_from: ResumeFrom | None = None,
    ) -> None:
        """Ask for a session. The block lengths in ``request`` are filled in; without ``features`` no operation
        extensions are offered, and ``resume_from`` goes only with a token."""
        entries = []
        if features:
            value = OperationExtensions(features=features)
            entries.append(ControlExtension.of(ExtType.OPERATION_EXTENSIONS, value))
        if resume_from is not None:
            entries.append(ControlExtension.of(ExtType.RESUME_FROM, resume_from))
        extension = pack_extensions(entries)
        request = request.replace(
            resume_token_bytes=len(resume_token), auth_bytes=len(auth), session_extension_bytes=len(extension)
        )
        if self.dialect is Dialect.IMPLICIT:
            raise NnrpLocalError(Outcome.BAD_STATE, "this peer knows only its implicit session", subject="SESSION_OPEN")
        outgoing = self._checked(Outgoing(request, body=resume_token + auth + extension, built=resume_from is None))
        self._step_ours(ConnectionInput.SESSION_OPEN, MessageType.SESSION_OPEN)
        self._opens.append((request, None))
        self._queue(outgoing)

    def decide_open(
        self,
        policy: OpenPolicy,
        *,
        hook: Callable[[SessionOpen], OpenVerdict] = lambda _: ACCEPT,
        resume: Callable[[], ResumeDecision] | None = None,
        server_session_tag: int = 0,
    ) -> OpenDecision:
        """Decide on the oldest unanswered SESSION_OPEN (see `opening.decide_open`). Nothing is sent yet."""
        request, packet = self._oldest_open()
        return decide_open(
            request,
            policy,
            schemas=self.schemas,
            present=self.sessions,
            session_count=len(self.sessions),
            assign=self._free_session_id,
            hook=hook,
            resume=resume,
            features=0 if packet is None else int(offered_features(packet)),
            server_session_tag=server_session_tag,
        )

    def answer_open(
        self, decision: OpenDecision, *, resume_token: bytes = b"", carried: tuple[Operation, ...] = ()
    ) -> Session | None:
        """Answer the oldest unanswered SESSION_OPEN. ``resume_token`` is needed when resume is granted; ``carried`` are
        the operations of a resumed session that went on meanwhile. The session, or None when it was refused."""
        _, packet = self._oldest_open()
        terms = decision.terms
        if terms is not None and terms.resume_enabled != bool(resume_token):
            raise NnrpLocalError(
                Outcome.BAD_COMBINATION, "a token goes with resume_enabled", subject="SESSION_OPEN_ACK"
            )
        extension = b""
        if terms is not None and terms.features:
            grant = OperationExtensions(features=OperationFeatures(terms.features))
            extension = pack_extensions([ControlExtension.of(ExtType.OPERATION_EXTENSIONS, grant)])
        self._opens.popleft()
        message = answer_message(decision, resume_token, len(extension))
        if packet is not None:
            body = resume_token + extension
            self._reply(packet, message, body=body, session_id=decision.session_id, built=True)
        if terms is None:
            return None
        return self.install(
            decision.session_id, terms, resumed=decision.status is SessionStatus.RESUMED, carried=carried
        )

    def install(
        self, session_id: int, terms: SessionTerms, *, resumed: bool = False, carried: tuple[Operation, ...] = ()
    ) -> Session:
        """Put a session on this connection: opened, resumed, or moved here by a migration."""
        session = Session(session_id, terms, self.window, self.reverse, resumed=resumed)
        self.sessions[session_id] = session
        self._closed_ids.pop(session_id, None)
        self._extended = self._extended or bool(terms.features)
        if session_id == self.reserved_session_id:
            self.reserved_session_id = 0
        session.adopt(carried)
        return session

    def detach(self, session_id: int) -> Session | None:
        """Take a session off this connection without a word, because another one has it now. What still arrives for it
        here is refused."""
        session = self.sessions.get(session_id)
        if session is not None:
            session.step(SessionInput.CONNECTION_CLOSED, "SESSION_CLOSE")
            session.abandon_credit()
            self._forget(session)
        return session

    # Things the application wants: patching, closing, moving

    def patch_session(self, session: Session, request: SessionPatch, body: bytes = b"") -> None:
        request = request.replace(profile_patch_bytes=len(body))
        outgoing = self._checked(Outgoing(request, session_id=session.session_id, body=body))
        self._step_ours(ConnectionInput.WORK, MessageType.SESSION_PATCH)
        session.step(SessionInput.TRAFFIC, "SESSION_PATCH")
        session.pending_patches += 1
        self._queue(outgoing)

    def answer_patch(self, session: Session, packet: Packet, policy: PatchPolicy) -> SessionPatchAck:
        """Decide on a SESSION_PATCH, apply what is accepted, and answer."""
        request = packet.metadata
        assert isinstance(request, SessionPatch)
        content = packet.content
        body = bytes(content.opaque) if isinstance(content, ControlBody) else b""
        current = session.settings or _DEFAULT_SETTINGS
        ack, ack_body, settings = decide_patch(request, body, current, policy, profile_id=session.terms.profile_id)
        session.settings = settings
        self._reply(packet, ack, body=ack_body)
        return ack

    def close_session(
        self,
        session: Session,
        now: float,
        *,
        reason: CloseReason = CloseReason.NORMAL,
        policy: InFlightPolicy = InFlightPolicy.DRAIN,
        drain_timeout_ms: int = 0,
        session_error_code: SessionErrorCode = SessionErrorCode.NONE,
        tag: int = 0,
    ) -> closing.CloseStep:
        """Close one session; siblings and connection stay. Raises NnrpError BadState when it is closing already.

        A peer of the implicit dialect has no message for it, a client of the bare one waits for none: the session then
        just ends here.
        """
        if not self.may_send(MessageType.SESSION_CLOSE):
            session.step(SessionInput.CLOSE, "SESSION_CLOSE")
            session.step(SessionInput.ACK_CLOSED, "SESSION_CLOSE")
            step = closing.CloseStep(abandoned=session.abandon(), closed=True)
            self._carry_out(session, step)
            return step
        step = closing.ask_close(
            session,
            now,
            carries_out=self.side is Side.SERVER,
            reason=reason,
            policy=policy,
            drain_timeout_ms=drain_timeout_ms,
            session_error_code=int(session_error_code),
            tag=tag,
        )
        self._closing[session.session_id] = session
        self._carry_out(session, step)
        return step

    def migrate_session(self, session_id: int, request: SessionMigrate, body: bytes = b"") -> None:
        """Ask to move a session: on its present connection, or as the first packet of the new one."""
        self._step_ours(ConnectionInput.MIGRATE, MessageType.SESSION_MIGRATE)
        migration = Migration()
        migration.ask(request.last_result_frame_id)
        self._migrations[session_id] = migration
        self._queue(Outgoing(request, session_id=session_id, body=body))

    def answer_migrate(
        self, packet: Packet, answer: MigrationAnswer, now: float, *, server_migrate_ts_us: int = 0, body: bytes = b""
    ) -> MigrationEffect:
        """Answer a SESSION_MIGRATE. When accepted here for a session of this connection, the connection is from now on
        its old path; to bind it to this connection instead, call ``install`` as well."""
        migration = self._migrations.pop(packet.header.session_id)
        effect = migration.answer(answer, now)
        ack = SessionMigrateAck(
            answer.accept_code, answer.resume_from_frame_id, answer.grace_window_ms, server_migrate_ts_us
        )
        self._reply(packet, ack, body=body)
        return effect

    def leave_path(self, session: Session, migration: Migration) -> None:
        """The session's primary path is elsewhere now: only results of work in flight still flow here."""
        session.migration = migration
        self._closing[session.session_id] = session

    # Things that happened

    def _on_session_open(self, packet: Packet, now: float) -> SessionOpenReceived:
        self._step(packet.header)
        self._learn(DialectInput.SESSION_OPEN)
        request = packet.metadata
        assert isinstance(request, SessionOpen)
        if len(self._opens) >= OPENS_OUTSTANDING:
            raise NnrpError(
                Outcome.LIMIT_EXCEEDED, "too many unanswered requests", subject="SESSION_OPEN", reach=Reach.SESSION
            )
        self._opens.append((request, packet))
        return SessionOpenReceived(packet)

    def _on_session_open_ack(self, packet: Packet, now: float) -> SessionOpened | SessionRefused:
        self._step(packet.header)
        answer = packet.metadata
        assert isinstance(answer, SessionOpenAck)
        if not self._opens:
            raise self._bad_state(packet.header, "no SESSION_OPEN is waiting for an answer")
        request, _ = self._opens.popleft()
        check_answer(request, answer, self.sessions)
        outcome = classify_answer(answer.session_status, int(answer.session_flags_ack), answer.session_error_code)
        if answer.session_status not in (SessionStatus.OPENED, SessionStatus.RESUMED):
            return SessionRefused(packet, outcome)
        terms = terms_of_answer(request, answer, int(offered_features(packet)))
        session = self.install(answer.session_id, terms, resumed=outcome is ResumeOutcome.RESUMED)
        content = packet.content
        token = bytes(content.resume_token) if isinstance(content, ControlBody) else b""
        return SessionOpened(session, packet, outcome, token)

    def _on_patch(self, packet: Packet, now: float) -> PatchReceived:
        self._step(packet.header)
        session = self._find_or_open(packet)
        session.step(SessionInput.TRAFFIC, "SESSION_PATCH")
        return PatchReceived(session, packet)

    def _on_patch_ack(self, packet: Packet, now: float) -> PatchAnswered:
        self._step(packet.header)
        session = self._find(packet)
        session.step(SessionInput.TRAFFIC, "SESSION_PATCH_ACK")
        answer = packet.metadata
        assert isinstance(answer, SessionPatchAck)
        if session.pending_patches == 0:
            raise self._bad_state(packet.header, "no SESSION_PATCH is waiting for an answer")
        session.pending_patches -= 1
        content = packet.content
        body = bytes(content.opaque) if isinstance(content, ControlBody) else b""
        session.settings = apply_answer(answer, body, session.settings or _DEFAULT_SETTINGS)
        return PatchAnswered(session, packet)

    def _on_session_close(self, packet: Packet, now: float) -> SessionCloseProgress | Ignored:
        self._step(packet.header)
        session = self._find(packet)
        message = packet.metadata
        assert isinstance(message, SessionClose)
        server = self.side is Side.SERVER
        crossing = session.closing is not None and session.closing.asked_by_us
        step = closing.receive_close(
            session,
            message,
            now,
            carries_out=server,
            mute=self.dialect is Dialect.BARE and server,
            ordered=self.ordered,
        )
        if crossing and not server:
            return Ignored(packet, IgnoredBecause.CLOSE_CROSSED)
        self._closing[session.session_id] = session
        self._carry_out(session, step, packet)
        return SessionCloseProgress(session, step, packet)

    def _on_session_close_ack(self, packet: Packet, now: float) -> SessionCloseProgress:
        self._step(packet.header)
        session = self._find(packet)
        message = packet.metadata
        assert isinstance(message, SessionCloseAck)
        step = closing.receive_close_ack(session, message, now, ordered=self.ordered)
        self._carry_out(session, step, packet)
        if session.closing is None:
            self._closing.pop(session.session_id, None)
        return SessionCloseProgress(session, step, packet)

    def _on_migrate(self, packet: Packet, now: float) -> MigrateReceived:
        self._step(packet.header)
        self._learn(DialectInput.MIGRATE)
        request = packet.metadata
        assert isinstance(request, SessionMigrate)
        session_id = packet.header.session_id
        migration = Migration()
        migration.ask(request.last_result_frame_id)
        self._migrations[session_id] = migration
        return MigrateReceived(self.sessions.get(session_id), packet)

    def _on_migrate_ack(self, packet: Packet, now: float) -> MigrateAnswered:
        self._step(packet.header)
        ack = packet.metadata
        assert isinstance(ack, SessionMigrateAck)
        session_id = packet.header.session_id
        migration = self._migrations.get(session_id)
        if migration is None:
            raise self._bad_state(packet.header, "no SESSION_MIGRATE is waiting for an answer")
        effect = migration.answer(MigrationAnswer(ack.accept_code, ack.resume_from_frame_id, ack.grace_window_ms), now)
        del self._migrations[session_id]
        session = self.sessions.get(session_id)
        if session is not None and effect is MigrationEffect.REBIND:
            session.resume_frames_at(ack.resume_from_frame_id)
        return MigrateAnswered(session, packet, effect)

    # Inside

    def _find_or_open(self, packet: Packet) -> Session:
        """The session a packet names, opening the implicit one. A strict server opens it for a submit only (13.2)."""
        header = packet.header
        if header.session_id in self.sessions or header.session_id != self.reserved_session_id or not header.session_id:
            return self._find(packet)
        if self.strict and header.msg_type is not MessageType.FRAME_SUBMIT:
            return self._find(packet)
        return self._open_implicit()

    def _oldest_open(self) -> tuple[SessionOpen, Packet | None]:
        if not self._opens or self.side is not Side.SERVER:
            raise NnrpLocalError(
                Outcome.BAD_STATE, "no SESSION_OPEN is waiting for an answer", subject="SESSION_OPEN_ACK"
            )
        return self._opens[0]

    def _free_session_id(self) -> int:
        while True:
            candidate = self._next_session_id
            self._next_session_id = candidate % 0xFFFF_FFFF + 1
            if candidate not in self.sessions and candidate != self.reserved_session_id:
                return candidate

    def _carry_out(self, session: Session, step: closing.CloseStep, packet: Packet | None = None) -> None:
        """Send what a close wants said and let go of the session when it is over."""
        if self.side is Side.SERVER and packet is None:
            self._drop_abandoned(session, step.abandoned)
        if step.request is not None and not self.closed:
            self._queue(Outgoing(step.request, session_id=session.session_id))
        for ack in step.acks:
            if packet is not None:
                self._reply(packet, ack)
            elif not self.closed:
                self._queue(Outgoing(ack, session_id=session.session_id))
        if step.closed:
            self._forget(session)
            self._end_if_drained()

    def _after_settle(self, session: Session, now: float) -> None:
        if session.closing is not None:
            step = closing.close_on_settled(session, now, carries_out=self.side is Side.SERVER)
            self._carry_out(session, step)
        if self.state is _DRAINING:
            self._end_if_drained()

    def _close_deadlines(self, now: float) -> list[SessionCloseProgress]:
        """Sessions whose close, or whose old path, has run out of time."""
        events = []
        for session in list(self._closing.values()):
            if session.migration is not None and session.migration.handle_deadline(now) is not None:
                self.detach(session.session_id)
                continue
            step = closing.close_deadline(session, now, carries_out=self.side is Side.SERVER)
            if step.request or step.cancelled or step.abandoned or step.closed:
                self._carry_out(session, step)
                events.append(SessionCloseProgress(session, step, None))
        return events

    def _cut_drain(self, now: float) -> list[SessionCloseProgress]:
        """The connection's drain is over. The end that carries out cancels what is left, which may take ``SETTLE_GRACE`` to
        settle with its terminal message; what has not by then gets it from here, and the connection ends."""
        if self.side is Side.SERVER and not self._cutting and self.window.in_flight:
            self._cutting, self._drain_deadline = True, now + closing.SETTLE_GRACE
            steps = [
                (each, closing.CloseStep(cancelled=each.operations.cancel(CancelScopeKind.SESSION)))
                for each in self.sessions.values()
                if each.in_flight
            ]
            return [SessionCloseProgress(each, step, None) for each, step in steps]
        events = []
        if self.side is Side.SERVER:
            for session in [each for each in self.sessions.values() if each.in_flight]:
                step = closing.CloseStep(abandoned=session.abandon())
                self._drop_abandoned(session, step.abandoned)
                events.append(SessionCloseProgress(session, step, None))
        self._finish_drain()
        return events

    def _drop_abandoned(self, session: Session, abandoned: tuple[Operation, ...]) -> None:
        """The one terminal message of operations that whoever carries them out has not let go of in time."""
        for operation in () if self.closed else abandoned:
            body = b""
            if session.terms.grants(OperationFeatures.OPERATION_STATE):
                state = OperationStateBlock(operation.operation_id, operation.state)
                body = pack_extensions([ControlExtension.of(ExtType.OPERATION_STATE, state)])
            ids = (session.session_id, operation.frame_id, operation.view_id, operation.route_id, operation.trace_id)
            self._queue(Outgoing(ResultDrop(), *ids, body=body))

    def _next_close_deadline(self) -> float:
        return min(
            (
                min(
                    session.closing.deadline if session.closing is not None else float("inf"),
                    session.migration.next_deadline() if session.migration is not None else float("inf"),
                )
                for session in self._closing.values()
            ),
            default=float("inf"),
        )
