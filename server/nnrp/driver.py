"""One connection: a byte stream, the machine, one reader, one writer, one timer (stack.md 4; protocol/README, machines)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from protocol.errors import Reach
from protocol.nnrp.bodies import DataBody
from protocol.nnrp.enums import CancelReason as WireReason
from protocol.nnrp.enums import (
    CloseReason,
    ConnectionState,
    ErrorCode,
    HeaderFlags,
    InFlightPolicy,
    MessageType,
    OperationState,
    TransportId,
)
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.header import Header
from protocol.nnrp.machines import events
from protocol.nnrp.machines.connection import Connection, Side
from protocol.nnrp.machines.connection_table import Dialect
from protocol.nnrp.machines.reading import cancel_scope
from protocol.nnrp.messages import FlowUpdate, FrameSubmit, SessionClose, TransportProbe
from protocol.nnrp.packet import RawPacket
from protocol.nnrp.splitter import Splitter
from server.guard_arrival import everything_arrived
from server.nnrp.announcing import log_answer
from server.nnrp.cache_metrics import log_invalidation, log_put
from server.nnrp.hello import answer_hello
from server.nnrp.migrating import answer_migrate
from server.nnrp.opening import open_session
from server.nnrp.policy import Principal
from server.nnrp.receiving import receive_some
from server.nnrp.running import Running, answer_at_once, finish
from server.nnrp.session import Doubt, ServedSession
from server.nnrp.submit import Submit
from server.nnrp.transport import STRANGER_BYTES, PacketTransport
from server.nnrp.writer import Writer
from server.telemetry import log
from sessions.operation import CancelReason

if TYPE_CHECKING:
    from server.nnrp.service import NnrpService

__all__ = ["Link"]

_CLOSED: Final = ConnectionState.CLOSED
_READ: Final = 65_536
_TRANSPORTS: Final = {"tcp": TransportId.TCP, "tls": TransportId.TCP, "quic": TransportId.QUIC}
_LINGER: Final = 5.0
"""Seconds the last packets of an ended connection may take to go out."""
_PARTING: Final = 0.5
"""Seconds we let the peer read our last words before the socket goes: closing over unread data would destroy them."""
_FLAGS: Final = Header.LAYOUT.field("flags").offset
_RETRANSMIT: Final = int(HeaderFlags.RETRANSMIT)
_REASONS: Final = {
    WireReason.SUPERSEDED: CancelReason.SUPERSEDED,
    WireReason.DEADLINE: CancelReason.DEADLINE,
    WireReason.RESOURCE: CancelReason.RESOURCE,
    WireReason.SHUTDOWN: CancelReason.SHUTDOWN,
}
_CUT: Final = (
    events.EndCause.TRANSPORT_LOST,
    events.EndCause.IDLE_TIMEOUT,
    events.EndCause.PROTOCOL_ERROR,
    events.EndCause.PEER_ERROR,
)
"""What we said last may never have arrived."""
_BECAUSE: Final = {
    Dialect.NATIVE: "CLIENT_HELLO came first",
    Dialect.IMPLICIT: "a submit in the session of the hello, without SESSION_OPEN",
    Dialect.BARE: "SESSION_OPEN came first",
}
_ENDED_FOR_ALL: Final = (events.EndCause.PEER_CLOSED, events.EndCause.WE_CLOSED)
"""A CLOSE closes every session of the connection; after anything else a session may be resumed."""


class Link:
    """Drives one machine. Everything but `run` and its tasks is synchronous: an event is acted on in the step that read it."""

    def __init__(self, service: NnrpService, stream: trio.abc.Stream, transport: str) -> None:
        policy = service.policy
        self.service = service
        self.transport = transport
        self.transport_id = _TRANSPORTS.get(transport, TransportId.UNSPECIFIED)
        self.machine = Connection(
            Side.SERVER,
            now=trio.current_time(),
            schemas=service.schemas,
            limits=policy.limits,
            strict=policy.strict,
        )
        self.writer = Writer(stream, timeout=policy.send_timeout)
        self.principal: Principal | None = None
        """Who said hello; None before, and for a peer that says none."""
        self._stream = stream
        self._splitter = Splitter(max_body_bytes=policy.hello.max_body_bytes)
        self._reading = trio.CancelScope()
        self._now = trio.lowlevel.current_clock().current_time
        self._timer = trio.CancelScope()
        self._due = math.inf
        """The deadline of ``_timer``, as a number: it is asked for with every packet."""
        self._flow = trio.Event()
        self._told = Dialect.UNKNOWN
        self._stranger = True
        self._doubted: dict[int, ServedSession] = {}
        """Sessions that were resumed here, until something shows that their client knows."""
        self._unread = False
        """The peer has said by an ERROR that it could not read something of ours, or its goodbye has crossed something, which nobody
        reads."""
        self._concluded = False

    async def run(self) -> None:
        """Until the connection is over. Closes the stream."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._keep_time)
                with self._reading:
                    await self._read()
                self._conclude()
                self.writer.end()
                self._timer.cancel()
                nursery.cancel_scope.deadline = trio.current_time() + _LINGER
            await self._part()
        finally:
            self.machine.lose_transport()
            self._conclude()
            self.writer.abandon()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await trio.aclose_forcefully(self._stream)

    # For those who carry out operations

    def flush(self) -> None:
        """Queue what the machine wants sent; stop reading when it is over."""
        machine = self.machine
        if machine.has_messages():
            self.writer.write([each.encode() for each in machine.messages()])
        if machine.state is _CLOSED:
            self._reading.cancel()

    def after_settle(self, session: ServedSession) -> None:
        """An operation was settled: it may have been the last of a session that closes, or the last that it drains."""
        if session.closed_here:
            self.service.end_session(session, CancelReason.SESSION_CLOSED)
        elif session.machine.closing is not None:
            self._retime()

    async def wait_flow(self) -> None:
        """Wait for the next FLOW_UPDATE, for another connection to take a session over, or for the end."""
        await self._flow.wait()

    # For the service

    def close(self, reason: str) -> None:
        """Ask for the end in good order: operations in flight have ``drain_timeout``. Raises what the machine raises."""
        self.machine.close(trio.current_time(), reason)
        self.flush()
        self._retime()

    def close_session(self, session: ServedSession, reason: CloseReason) -> None:
        """Close one session from here, cutting what is in flight."""
        step = self.machine.close_session(
            session.machine, trio.current_time(), reason=reason, policy=InFlightPolicy.ABORT
        )
        self.flush()
        self._carry_out_close(session, step.cancelled, step.abandoned, step.closed)
        self._retime()

    def release(self, session: ServedSession) -> None:
        """Another connection has taken the session over: what still comes for it here is refused (C-088)."""
        self._doubted.pop(session.machine.session_id, None)
        self.machine.detach(session.machine.session_id)
        session.link = None
        self._tell_flow()
        self.writer.look_again()

    def doubt(self, session: ServedSession, doubt: Doubt) -> None:
        """The session was resumed here, and the answer may yet be lost (nnrp-wire 13.7 item 5)."""
        self.service.registry.keep_former(session, doubt)
        self._doubted[session.machine.session_id] = session

    def forget_principal(self, principal: Principal) -> None:
        """Who said hello with it is nobody any more, and has no session waiting that a submit would open."""
        if self.principal == principal:
            self.principal = None
            self.machine.reserved_session_id = 0

    # Tasks

    async def _read(self) -> None:
        machine, writer, splitter, burst = self.machine, self.writer, self._splitter, False
        while not machine.closed:
            count = splitter.count
            if writer.flooded:
                await writer.wait_taken()
            try:
                data = await receive_some(self._stream, burst=burst, bulk=splitter.buffered_bytes > 0)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                machine.lose_transport()
                return
            except NnrpError as fault:
                # The transport carries whole packets, and what came was none.
                machine.receive_violation(fault)
                self._note(fault)
                self.flush()
                return
            if not data:
                self._unread = self._unread or writer.size > 0 or not _has_read_all(self._stream)
                machine.receive_eof(inside_packet=splitter.statistics().buffered_bytes > 0)
                return
            self._take(data)
            burst = splitter.count - count != 1

    async def _write(self) -> None:
        try:
            await self.writer.run()
        except trio.TooSlowError:
            log.warning("nnrp_slow_reader", transport=self.transport)
            self._lose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._lose()

    async def _keep_time(self) -> None:
        machine = self.machine
        while not machine.closed:
            self._due = machine.next_deadline()
            with trio.CancelScope(deadline=self._due) as self._timer:
                await trio.sleep_forever()
            if self._concluded:
                return
            for event in machine.handle_deadline(trio.current_time()):
                if isinstance(event, events.SessionCloseProgress):
                    _act_on_close(self, event, 0.0)
            self.flush()

    async def _part(self) -> None:
        """Say that nothing more comes, and let the peer take in what has come."""
        stream, cause = self._stream, self.machine.end_cause
        if cause is events.EndCause.TRANSPORT_LOST:
            return
        with trio.move_on_after(_PARTING):
            try:
                if isinstance(stream, PacketTransport):
                    await stream.part(violated=cause is events.EndCause.PROTOCOL_ERROR)
                    return
                plain = _plain(stream)
                if not isinstance(plain, trio.SocketStream):
                    return
                await plain.send_eof()
                while await plain.receive_some(_READ):
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    # What arrives

    def _take(self, data: bytes | bytearray) -> None:
        now, machine = self._now(), self.machine
        self._splitter.receive_data(data)
        self.writer.hold()
        only_submits = True
        try:
            for raw in self._splitter.packets():
                if self._doubted:
                    self._believe(raw.header)
                if raw.buffer[raw.start + _FLAGS] & _RETRANSMIT and self._is_known(raw):
                    continue
                try:
                    event = machine.receive_raw(raw, now)
                except NnrpError as fault:
                    only_submits = False
                    self._note(fault)
                else:
                    act = _ACTS.get(type(event))
                    only_submits = only_submits and act is _act_on_submit
                    if act is not None:
                        act(self, event, now)
                if machine.state is _CLOSED:
                    break
            if self._stranger:
                self._get_to_know()
        except NnrpError as fault:
            machine.receive_violation(fault)
            self._note(fault)
        if machine.dialect is not self._told:
            self._tell_dialect(machine.dialect)
        self.flush()
        self.writer.release()
        if not (only_submits and machine.is_steady()):
            self._retime()

    def _get_to_know(self) -> None:
        """Raises NnrpError for a peer that sends more than anybody need before its hello or a session of it was accepted."""
        if self.principal is not None or self.machine.sessions:
            self._stranger = False
            if isinstance(self._stream, PacketTransport):
                self._stream.trust()
        elif self._splitter.buffered_bytes > STRANGER_BYTES:
            rule = f"more than {STRANGER_BYTES} bytes of a packet before the hello or a session was accepted"
            raise NnrpError(Outcome.LIMIT_EXCEEDED, rule, subject="PACKET", reach=Reach.CONNECTION)

    def _believe(self, header: Header) -> None:
        """Settle the doubts that a packet settles: of the session it names, or, with a PONG, of the answer before its PING. An ERROR
        may be about that very answer."""
        if header.msg_type is MessageType.ERROR:
            self._unread = True
            return
        settled = [self._doubted[header.session_id]] if header.session_id in self._doubted else []
        if header.msg_type is MessageType.PONG:
            answered = self.machine.pongs + 1
            settled += [each for each in self._doubted.values() if each.doubt and 0 < each.doubt.ping <= answered]
        for each in settled:
            self._doubted.pop(each.machine.session_id, None)
            self.service.registry.settle_doubt(each)

    def _is_known(self, raw: RawPacket) -> bool:
        """Whether a submit that says it is sent again did arrive the first time, and its end comes on this connection: then it is
        ignored, so that a client that lost its connection can send again what it has no answer to, and nothing runs twice."""
        header = raw.header
        if header.msg_type is not MessageType.FRAME_SUBMIT:
            return False
        machine = self.machine.sessions.get(header.session_id)
        session = None if machine is None else machine.attachment
        return (
            isinstance(session, ServedSession)
            and session.received is not None
            and header.frame_id in session.received
            and session.brings_end_of(header.frame_id)
        )

    def _note(self, fault: NnrpError) -> None:
        self.service.violations += 1
        log.info("nnrp_violation", transport=self.transport, fault=str(fault), fatal=fault.fatal)

    def _tell_dialect(self, dialect: Dialect) -> None:
        """Which dialect, and why (nnrp-wire 2.6). A peer that has said hello shows only by its first submit that it is nnrp-py."""
        self._told = dialect
        because = _BECAUSE[dialect]
        if dialect is Dialect.IMPLICIT and self.machine.offer is None:
            because = "SESSION_MIGRATE came first"
        log.info("nnrp_dialect", transport=self.transport, dialect=dialect.name.lower(), because=because)

    def _retime(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline < self._due:
            self._due = self._timer.deadline = deadline

    # The end

    def _lose(self) -> None:
        self.machine.lose_transport()
        self.writer.abandon()
        self._reading.cancel()

    def _conclude(self) -> None:
        """The connection is over: its sessions end, or wait to be resumed. Synchronous and idempotent."""
        if self._concluded:
            return
        self._concluded = True
        machine = self.machine
        if not machine.closed:
            machine.lose_transport()
        for each in list(machine.sessions.values()):
            session = each.attachment
            if not isinstance(session, ServedSession) or session.link is not self:
                continue
            if machine.end_cause in _ENDED_FOR_ALL:
                self.service.end_session(session, CancelReason.SESSION_CLOSED)
            else:
                if not self._unread and machine.end_cause not in _CUT:
                    self.service.registry.settle_doubt(session)
                self.service.detach(session)
        self._tell_flow()
        cause = machine.end_cause
        log.debug("nnrp_connection_over", transport=self.transport, cause="" if cause is None else cause.name.lower())

    def _tell_flow(self) -> None:
        flow, self._flow = self._flow, trio.Event()
        flow.set()

    def _carry_out_close(
        self, session: ServedSession | None, cancelled: tuple[Any, ...], abandoned: tuple[Any, ...], closed: bool
    ) -> None:
        for operation in (*cancelled, *abandoned):
            if isinstance(operation.attachment, Running):
                operation.attachment.cancel(CancelReason.SESSION_CLOSED)
        if closed and session is not None:
            self.service.end_session(session, CancelReason.SESSION_CLOSED)


def _act_on_hello(link: Link, event: events.HelloReceived, now: float) -> None:
    answer_hello(link, event)


def _has_read_all(stream: trio.abc.Stream) -> bool:
    """Whether a peer that says goodbye is known to have read everything. Other transports than TCP cannot be asked."""
    plain = _plain(stream)
    return isinstance(plain, trio.SocketStream) and everything_arrived(plain.socket)


def _plain(stream: trio.abc.Stream) -> trio.abc.Stream:
    """What is under TLS."""
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    return stream


def _act_on_open(link: Link, event: events.SessionOpenReceived, now: float) -> None:
    open_session(link, event, now)


def _act_on_submit(link: Link, event: events.SubmitReceived, now: float) -> None:
    machine, operation, packet = event.session, event.operation, event.packet
    session = machine.attachment
    if not isinstance(session, ServedSession):
        session = link.service.new_session(machine, link, link.principal or b"")
    replaced = event.superseded
    if replaced is not None and isinstance(replaced.attachment, Running):
        replaced.attachment.cancel(CancelReason.SUPERSEDED)
    if session.received is not None:
        if packet.header.flags & HeaderFlags.RETRANSMIT and operation.frame_id in session.received:
            # It has been here, and how it ended is gone (`_is_known`): it does not run twice.
            finish(session, operation, OperationState.FAILED, None, now=now, error_code=int(ErrorCode.FRAME_EXPIRED))
            return
        session.received.add(operation.frame_id)
    metadata, content = packet.metadata, packet.content
    assert isinstance(metadata, FrameSubmit)
    assert isinstance(content, DataBody)
    submit = Submit(metadata, content, operation, machine, event.objects)
    worker = session.worker or link.service.worker_of(session)
    answer = worker.answer_nowait(submit) if session.has_room(operation) else None
    if answer is not None:
        answer_at_once(session, submit, answer, now)
    else:
        link.service.start(session, submit, now)


def _act_on_cancel(link: Link, event: events.CancelReceived, now: float) -> None:
    reason = _REASONS.get(event.reason, CancelReason.USER)
    for operation in event.operations:
        if isinstance(operation.attachment, Running):
            operation.attachment.cancel(reason)


def _act_on_ignored(link: Link, event: events.Ignored, now: float) -> None:
    """A cancel that names no operation of its session may name one that somebody else has submitted to it."""
    if event.because is not events.IgnoredBecause.UNKNOWN_CANCEL_TARGET:
        return
    header = event.packet.header
    machine = link.machine.sessions.get(header.session_id)
    session = None if machine is None else machine.attachment
    if isinstance(session, ServedSession) and session.follower is not None:
        scope = cancel_scope(event.packet)
        session.follower.cancel_other(header.frame_id, 0 if scope is None else scope.operation_id)


def _act_on_close(link: Link, event: events.SessionCloseProgress, now: float) -> None:
    session = event.session.attachment
    step = event.step
    served = session if isinstance(session, ServedSession) else None
    message = None if event.packet is None else event.packet.metadata
    if isinstance(message, SessionClose):
        log.debug(
            "nnrp_session_close",
            session=event.session.session_id,
            tag=event.session.terms.server_session_tag,
            close_tag=message.session_close_tag,
            reason=message.close_reason.name.lower(),
            watermark=message.last_operation_id,
        )
    link._carry_out_close(served, step.cancelled, step.abandoned, step.closed)


def _act_on_patch(link: Link, event: events.PatchReceived, now: float) -> None:
    policy, agreed = link.service.policy.patching, link.machine.answer
    if agreed is not None:
        policy = policy.within(agreed)
    link.machine.answer_patch(event.session, event.packet, policy)


def _act_on_migrate(link: Link, event: events.MigrateReceived, now: float) -> None:
    answer_migrate(link, event, now)


def _act_on_put(link: Link, event: events.CachePutDone, now: float) -> None:
    log_put(event)


def _act_on_cache_answer(link: Link, event: events.CacheAnswered, now: float) -> None:
    log_answer(event)


def _act_on_invalidation(link: Link, event: events.CacheInvalidated, now: float) -> None:
    log_invalidation(event)


def _act_on_flow(link: Link, event: events.FlowReceived, now: float) -> None:
    link._tell_flow()
    update = event.packet.metadata
    assert isinstance(update, FlowUpdate)
    log.debug(
        "nnrp_flow_received",
        session=event.packet.header.session_id,
        reason=update.update_reason.name.lower(),
        level=update.backpressure_level.name.lower(),
        epoch=update.credit_epoch,
        applied=event.applied.name.lower(),
    )


def _act_on_probe(link: Link, event: events.ProbeReceived, now: float) -> None:
    probe = event.packet.metadata
    assert isinstance(probe, TransportProbe)
    log.debug(
        "nnrp_probe",
        transport=link.transport,
        probe=probe.probe_id,
        bytes=probe.probe_payload_bytes,
        sent_us=probe.client_send_ts_us,
        received_us=int(now * 1_000_000),
    )


_ACTS: Final[dict[type, Callable[[Link, Any, float], None]]] = {
    events.HelloReceived: _act_on_hello,
    events.SessionOpenReceived: _act_on_open,
    events.SubmitReceived: _act_on_submit,
    events.CancelReceived: _act_on_cancel,
    events.Ignored: _act_on_ignored,
    events.SessionCloseProgress: _act_on_close,
    events.PatchReceived: _act_on_patch,
    events.MigrateReceived: _act_on_migrate,
    events.CachePutDone: _act_on_put,
    events.CacheAnswered: _act_on_cache_answer,
    events.CacheInvalidated: _act_on_invalidation,
    events.FlowReceived: _act_on_flow,
    events.ProbeReceived: _act_on_probe,
}
"""What is not here was answered or applied by the machine already."""
