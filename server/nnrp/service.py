"""NNRP as a whole: what every listener and every connection of one process shares."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Final

import attrs
import trio
from prometheus_client.core import Metric

from protocol.nnrp.enums import BackpressureLevel, CloseReason, PriorityClass, ResultHintReason
from protocol.nnrp.errors import NnrpError, NnrpLocalError
from protocol.nnrp.machines.cache_records import CachePool
from protocol.nnrp.machines.schemas import SchemaRegistry, builtin_registry
from protocol.nnrp.machines.session import Session
from protocol.nnrp.machines.store import ObjectStore
from server.metrics import gauge, total
from server.nnrp.backpressure import FlowOrder, announce, greet, order, order_of_level
from server.nnrp.cache_metrics import CacheTotals, cache_gauges
from server.nnrp.driver import Link
from server.nnrp.policy import Principal, ServingPolicy
from server.nnrp.registry import Registry
from server.nnrp.running import Running, refuse, ticket_of
from server.nnrp.scheduler import Admission
from server.nnrp.session import ServedSession
from server.nnrp.submit import Submit, Worker, WorkerMaker
from server.nnrp.turn_metrics import turn_gauges
from server.nnrp.turns import Turns
from server.telemetry import log
from sessions.operation import CancelReason

__all__ = ["NnrpService", "NnrpStatistics", "open_service"]

REUSE_BYTES: Final = 64 * 1024 * 1024
"""Of results kept to be used again, over all sessions; what does not fit is not kept."""


@attrs.frozen(slots=True)
class NnrpStatistics:
    connections: int
    sessions: int
    detached: int
    operations: int
    refused_connections: int
    violations: int


class NnrpService:
    """Made by `open_service`. ``nursery`` outlives connections: operations of a session that can be resumed go on in it."""

    def __init__(self, nursery: trio.Nursery, policy: ServingPolicy, make_worker: WorkerMaker) -> None:
        self._nursery = nursery
        self._make_worker = make_worker
        self._tags = count(1)
        self.policy = policy
        self.schemas: SchemaRegistry = builtin_registry()
        self.registry = Registry(policy.opening.resume_window_ms / 1000, policy.max_detached, self._expire)
        self.links: dict[Link, None] = {}
        """In the order they came, so that a simulated run is the same again; as the sessions."""
        self.sessions: dict[ServedSession, None] = {}
        self.turns = Turns(policy.scheduling, self._tell_pressure)
        self.standing: FlowOrder | None = None
        """What an operator has ordered for every connection; it outranks what follows from the queue."""
        self.interactive = 0
        """Sessions of class interactive."""
        self.flow_updates = 0
        self._reuse_pool = CachePool(REUSE_BYTES)
        self.caches = CacheTotals()
        """Of the caches that are over."""
        self._drain = trio.Event()
        self._quiet = trio.Event()
        self.refused_connections = 0
        self.violations = 0

    @property
    def draining(self) -> bool:
        return self._drain.is_set()

    async def wait_draining(self) -> None:
        await self._drain.wait()

    async def serve_stream(self, stream: trio.abc.Stream, transport: str) -> None:
        """Serve one connection until it ends, and close ``stream``. Never raises for what the peer does."""
        if self.draining or not self.policy.admits(len(self.links)):
            self.refused_connections += 1
            log.warning("nnrp_connection_refused", transport=transport, connections=len(self.links))
            await trio.aclose_forcefully(stream)
            return
        link = Link(self, stream, transport)
        self.links[link] = None
        try:
            await link.run()
        finally:
            del self.links[link]
            self._count_store(link.machine.store)
            if not self.links:
                quiet, self._quiet = self._quiet, trio.Event()
                quiet.set()

    async def wait_quiet(self) -> None:
        """Wait until no connection is left."""
        while self.links:
            await self._quiet.wait()

    def new_session(self, machine: Session, link: Link | None, principal: Principal) -> ServedSession:
        session = ServedSession(machine, link, principal, self._reuse_pool)
        self.sessions[session] = None
        self.interactive += machine.terms.priority is PriorityClass.INTERACTIVE
        return session

    def count_class(self, session: ServedSession, machine: Session) -> None:
        """The session goes on as ``machine``, perhaps in another class."""
        before, after = session.machine.terms.priority, machine.terms.priority
        self.interactive += (after is PriorityClass.INTERACTIVE) - (before is PriorityClass.INTERACTIVE)

    def next_tag(self) -> int:
        """server_session_tag of the next session: what names it in logs."""
        return next(self._tags)

    def start(self, session: ServedSession, submit: Submit, received: float) -> None:
        """Carry out an operation in a task of its own, when its turn has come."""
        turns, ticket = self.turns, ticket_of(session, submit)
        admission = turns.enter(ticket)
        if admission is Admission.FULL and (victim := turns.make_room(ticket)) is not None:
            assert isinstance(victim.attachment, Running)
            victim.attachment.shed()
            admission = turns.enter(ticket)
        if admission is Admission.FULL:
            refuse(session, submit, turns)
            return
        running = Running(session, submit, received, turns, ticket)
        ticket.attachment = running
        if admission is Admission.QUEUED and turns.pressure.level is not BackpressureLevel.NONE:
            running.hint(ResultHintReason.SERVER_BUSY)
        self._nursery.start_soon(running.run)

    def order_flow(self, wanted: FlowOrder, session: ServedSession | None = None) -> bool:
        """Send one FLOW_UPDATE to the client of ``session``, or, without one, to every connection there is and to those
        that come, until ``release_flow``. False where nobody there reads it."""
        now = trio.current_time()
        if session is not None:
            sent = session.link is not None and order(session.link, session.machine, wanted, now)
            self.flow_updates += sent
            return sent
        self.standing = wanted
        told = sum([order(each, None, wanted, now) for each in list(self.links)])
        self.flow_updates += told
        log.info("nnrp_flow_ordered", reason=wanted.reason.name.lower(), connections=told)
        return told > 0

    def release_flow(self) -> None:
        """End a standing order: clients are told what follows from the queue, or to go on."""
        if self.standing is None:
            return
        self.standing = None
        now, wanted = trio.current_time(), order_of_level(self.turns.pressure.level)
        self.flow_updates += sum([order(each, None, wanted, now) for each in list(self.links)])

    def greet(self, link: Link, session: ServedSession) -> None:
        """A session was opened or resumed: it hears what the others have heard already."""
        now = trio.current_time()
        if self.standing is not None:
            self.flow_updates += order(link, None, self.standing, now)
        else:
            greet(link, session, self.turns.pressure.level, now)

    def _count_store(self, store: ObjectStore | None) -> None:
        if store is not None:
            self.caches = self.caches.plus([store.cache.statistics()], over=True)
            store.cache.clear()

    def _tell_pressure(self) -> None:
        level, waiting = self.turns.pressure.level, self.turns.scheduler.waiting
        tell = log.info if level is BackpressureLevel.NONE else log.warning
        tell("nnrp_backpressure", level=level.name.lower(), waiting=waiting)
        if self.standing is None:
            now = trio.current_time()
            self.flow_updates += sum([announce(each, level, now) for each in list(self.links)])

    def worker_of(self, session: ServedSession) -> Worker:
        """Make the worker of a session whose first operation has come."""
        if session.worker is None:
            session.worker = self._make_worker(session.machine)
        return session.worker

    def end_session(self, session: ServedSession, reason: CancelReason) -> None:
        """The session is over for good. Synchronous and idempotent."""
        if session.over:
            return
        session.over = True
        self.sessions.pop(session, None)
        self.interactive -= session.machine.terms.priority is PriorityClass.INTERACTIVE
        self.registry.forget(session)
        session.cancel_all(reason)
        self._count_store(session.machine.store)
        session.forget_results()
        session.link = None
        session.journal = None
        if session.worker is not None:
            session.worker.close()

    def detach(self, session: ServedSession) -> None:
        """The session has lost its connection: it waits for its client, or is over. One that was being closed is over."""
        session.link = None
        if session.resumable and not self.draining and session.machine.closing is None:
            self.registry.detach(session)
        else:
            self.end_session(session, CancelReason.OWNER_GONE)

    def withdraw(self, principal: Principal) -> None:
        """A token is no longer valid: its sessions are closed with auth_revoked (nnrp-extensions, Authentication)."""
        for session in [each for each in self.sessions if each.principal == principal]:
            if session.link is None:
                self.end_session(session, CancelReason.SESSION_CLOSED)
            elif session.machine.open:
                session.link.close_session(session, CloseReason.AUTH_REVOKED)
            else:
                session.cancel_all(CancelReason.SESSION_CLOSED)  # it is closing, and has nothing to drain any more
        for link in list(self.links):
            link.forget_principal(principal)

    def begin_drain(self) -> None:
        """Accept nothing new; every connection is asked to end in good order."""
        self._drain.set()
        for session in [each for each in self.sessions if each.link is None]:
            self.end_session(session, CancelReason.SHUTDOWN)
        for link in list(self.links):
            try:
                link.close("server shutdown")
            except (NnrpError, NnrpLocalError) as problem:
                log.debug("nnrp_close_skipped", problem=str(problem))

    def statistics(self) -> NnrpStatistics:
        return NnrpStatistics(
            connections=len(self.links),
            sessions=len(self.sessions),
            detached=self.registry.detached,
            operations=sum(each.machine.in_flight for each in self.sessions),
            refused_connections=self.refused_connections,
            violations=self.violations,
        )

    def gauges(self) -> list[Metric]:
        """What ``GET /metrics`` shows of NNRP (nnrp-wire 14)."""
        now = self.statistics()
        return [
            gauge("nnrp_connections", "Open NNRP connections", now.connections),
            gauge("nnrp_sessions", "NNRP sessions, those that wait to be resumed included", now.sessions),
            gauge("nnrp_sessions_detached", "NNRP sessions that wait to be resumed", now.detached),
            gauge("nnrp_operations", "NNRP operations in flight", now.operations),
            gauge("nnrp_queued_bytes", "Bytes queued for NNRP peers", sum(each.writer.size for each in self.links)),
            total("nnrp_connections_refused", "NNRP connections refused", now.refused_connections),
            total("nnrp_violations", "Rules NNRP peers have broken", now.violations),
            *turn_gauges(self.turns, self.flow_updates),
            *cache_gauges(self.cache_totals()),
        ]

    def cache_totals(self) -> CacheTotals:
        """What all caches have seen, those that are over included."""
        stores = [each.machine.store for each in self.sessions]
        stores += [each.machine.store for each in self.links]
        return self.caches.plus([each.cache.statistics() for each in stores if each is not None])

    def _expire(self, session: ServedSession) -> None:
        log.info("nnrp_session_expired", session=session.machine.session_id, tag=session.tag)
        self.end_session(session, CancelReason.OWNER_GONE)


@asynccontextmanager
async def open_service(policy: ServingPolicy, make_worker: WorkerMaker) -> AsyncIterator[NnrpService]:
    """The service for the length of an ``async with`` block; at its end operations are cancelled, nothing is awaited for
    longer than their workers take to let go. Listeners must have stopped before."""
    async with trio.open_nursery() as nursery:
        service = NnrpService(nursery, policy, make_worker)
        nursery.start_soon(service.registry.reap)
        try:
            yield service
        finally:
            service._drain.set()
            for session in list(service.sessions):
                service.end_session(session, CancelReason.SHUTDOWN)
            nursery.cancel_scope.cancel()
