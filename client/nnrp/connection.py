"""A client's connection to an NNRP server: opened, kept, made again when it is lost."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import trio

from client.backoff import Backoff
from client.nnrp.credit import CreditQueue
from client.nnrp.delivering import deliver, deliver_error, lose_unreadable
from client.nnrp.dialling import dial, why
from client.nnrp.errors import NnrpClientError, NnrpConnectionLost, NnrpRefused, NnrpSessionOver
from client.nnrp.link import Link
from client.nnrp.moving import Mover
from client.nnrp.observing import logged
from client.nnrp.openings import Openings
from client.nnrp.options import NnrpOptions
from client.nnrp.session import NnrpSession
from protocol.layout import Buffer
from protocol.nnrp.enums import (
    ConnectionState,
    ErrorScope,
    MessageType,
    OperationFeatures,
    PayloadKind,
    PriorityClass,
    ProfileId,
    SessionFlags,
)
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.extensions import ALL_FEATURES, NO_FEATURES
from protocol.nnrp.header import Header
from protocol.nnrp.machines import events
from protocol.nnrp.machines.connection import Connection, ConnectionLimits
from protocol.nnrp.machines.connection_table import Dialect
from protocol.nnrp.messages import ClientHello, Error, ServerHelloAck, SessionOpen

__all__ = ["NnrpConnection", "open_nnrp"]

logger = logging.getLogger("moorline.client")

_IN_FLIGHT: Final = 32
_BARE_IN_FLIGHT: Final = 4
"""What a default nnrp-rs server allows; it lowers nothing (nnrp-wire 13.2)."""
_CLOSED: Final = ConnectionState.CLOSED
_DIALECTS: Final = {"native": Dialect.UNKNOWN, "nnrp-py": Dialect.IMPLICIT, "nnrp-rs": Dialect.BARE}
_HELLO: Final = ClientHello(
    supported_profile_bitmap=3,
    supported_payload_kind_bitmap=PayloadKind(0x7F),
    supported_codec_bitmap=0xFFFF_FFFF,
    supported_compression_bitmap=0xFFFF_FFFF,
    supported_dtype_bitmap=0xFF,
    supported_layout_bitmap=3,
    cache_digest_bitmap=1,
    cache_object_bitmap=0x1FF,
    cache_namespace_count=1,
    max_lane_count=1,
    max_cache_entries=256,
    max_cache_bytes=8 * 1024 * 1024,
)

_FLAGS: Final = (
    SessionFlags.ALLOW_SCHEMA_OVERRIDE | SessionFlags.ALLOW_BACKGROUND_RESULTS | SessionFlags.ALLOW_CACHE_LEASES
)


@asynccontextmanager
async def open_nnrp(url: str, options: NnrpOptions | None = None) -> AsyncIterator[NnrpConnection]:
    """A connection for the length of an ``async with`` block. ``url``: ``tcp://host:port`` (or ``nnrp://``), ``tls://…``,
    ``ws://host:port/nnrp``, ``wss://…``, ``quic://host:port``.

    Raises `NnrpConnectionLost` when it cannot be made, `NnrpRefused` when the server refuses the hello. At the end what is
    in flight is cancelled and the connection closed.
    """
    async with trio.open_nursery() as nursery:
        connection = NnrpConnection(url, options or NnrpOptions(), nursery)
        failure = await nursery.start(connection._keep)
        if failure is not None:
            nursery.cancel_scope.cancel()
        else:
            try:
                yield connection
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
                    await connection._end()
                nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


class NnrpConnection:
    """Made by `open_nnrp`. Lost, it is made again by itself for as long as a session can be resumed; submits wait meanwhile,
    and operations go on at the server."""

    def __init__(self, url: str, options: NnrpOptions, nursery: trio.Nursery) -> None:
        self._urls = deque(dict.fromkeys((url, *options.alternatives)))
        self._nursery = nursery
        self.credit = CreditQueue()
        self.now = trio.lowlevel.current_clock().current_time
        self.reconnects = 0
        self._options = options
        self._dialect = _DIALECTS[options.dialect]
        self._link: Link | None = None
        self._sessions: dict[int, NnrpSession] = {}
        auth = options.auth if self._dialect is Dialect.BARE else b""
        self._openings = Openings(self, self._sessions, options, nursery, auth)
        self.resuming = False
        """Whether some session is not on the connection yet, or was not when somebody last looked."""
        self._resumed: dict[NnrpSession, None] = {}
        """Sessions with operations that are to be sent again, in this order."""
        self._mover: Mover | None = None
        self.leaving = False
        """Whether submits wait because another transport is being greeted: what has gone out arrives before the sessions move."""
        self._closing = False
        self._error: NnrpClientError | None = None
        self._retry_at = -math.inf
        """When the server, which has refused the connection for now, may be asked again."""

    # What is there

    @property
    def url(self) -> str:
        """Where the connection is, or is to be made again."""
        return self._urls[0]

    @property
    def machine(self) -> Connection | None:
        """The machine of the transport connection there is; None while there is none."""
        link = self._link
        return None if link is None or link.machine.state is _CLOSED else link.machine

    @property
    def connected(self) -> bool:
        return self.machine is not None

    @property
    def strict_out(self) -> bool:
        """Whether what is sent must be strict preview3: not towards a peer that reads another form."""
        return self._dialect is not Dialect.IMPLICIT

    # What the application wants

    async def open_session(
        self,
        *,
        profile_id: int = ProfileId.TOKEN,
        schema: tuple[int, int] = (0x1001, 3),
        resumable: bool = False,
        max_in_flight: int | None = None,
        priority: PriorityClass = PriorityClass.BALANCED,
        deadline_ms: int = 0,
        features: OperationFeatures | None = None,
        session_id: int = 0,
        lease_ttl_ms: int = 0,
        flags: SessionFlags = _FLAGS,
        token: bytes = b"",
        last_event_id: int = 0,
    ) -> NnrpSession:
        """Open a session. ``features`` are the operation extensions to ask for, by default all; ``session_id`` 0 lets the
        server choose (1 towards nnrp-rs); ``max_in_flight`` is 32 by default (4 towards nnrp-rs, which refuses more).
        ``deadline_ms`` is the budget, in milliseconds, of operations that name none (0: unlimited), ``lease_ttl_ms`` how long
        a lease shall last that is asked for without saying how long (0: the server's choice; nnrp-wire 7.7). With ``token``
        it is a session that is there already, from the event behind ``last_event_id`` on (see `attach_session`).

        Raises `NnrpRefused`, `NnrpConnectionLost`, and ``NnrpLocalError`` for what may not be asked."""
        link = self._need_link()
        if self._dialect is Dialect.IMPLICIT:
            return self._implicit(link)
        if self._dialect is Dialect.BARE:
            features, session_id, max_in_flight = NO_FEATURES, session_id or 1, max_in_flight or _BARE_IN_FLIGHT
        request = SessionOpen(
            requested_session_id=session_id or self._openings.spare_id(link),
            profile_id=profile_id,
            priority_class=priority,
            session_flags=flags | SessionFlags.ALLOW_RESUME if resumable else flags,
            schema_id=schema[0],
            schema_version=schema[1],
            default_deadline_ms=deadline_ms,
            max_in_flight_operations=_IN_FLIGHT if max_in_flight is None else max_in_flight,
            lease_ttl_hint_ms=lease_ttl_ms,
            client_session_tag=session_id,
        )
        return await self._openings.open(
            link,
            request,
            token=token,
            features=ALL_FEATURES if features is None else features,
            last_event_id=last_event_id,
        )

    async def ping(self) -> float:
        """The time a PING takes, in seconds. Raises `NnrpConnectionLost`, and `NnrpClientError` towards nnrp-rs, which answers
        none."""
        link = self._need_link()
        if not link.machine.may_send(MessageType.PING):
            raise NnrpClientError("this server answers no PING")
        trace_id = link.machine.pings + 1
        answered = link.pings[trace_id] = trio.Event()
        began = trio.current_time()
        link.machine.send_ping(began, trace_id=trace_id)
        link.flush()
        try:
            await self.wait_answer(answered, "PING")
        finally:
            unanswered = link.pings.pop(trace_id, None)
        if unanswered is not None:
            raise NnrpConnectionLost("the connection was lost, or left, before it answered PING")
        return trio.current_time() - began

    async def migrate(self, url: str) -> None:
        """Move to another transport of the same server, sessions and all. Operations go on, and results arrive once; submits
        wait while the new transport is greeted. What is not answered by then is not waited for: a SESSION_OPEN, PING, CACHE_PUT
        or SESSION_PATCH under way raises `NnrpConnectionLost`.

        Raises `NnrpConnectionLost` or `NnrpRefused` when the new transport cannot be had, and `NnrpClientError` when a session
        cannot move, or another move is under way: then everything stays as it is. So it does when this is cancelled while the
        new transport is greeted; cancelled later, what can be resumed is, and the rest may be over.
        """
        old = self._need_link()
        if self._mover is not None:
            raise NnrpClientError("the connection is being moved already")
        self._mover = mover = Mover(self._openings, self._sessions, self.url, url)
        try:
            link = await self._greet_beside(old, url, mover)
            self._leave(old, link)
            self._move_to(url)
            try:
                mover.begin(link)
                with trio.move_on_after(self._options.answer_timeout) as patience:
                    await mover.wait_moved(link)
                if patience.cancelled_caught:
                    link.lose()
                    raise NnrpConnectionLost("the server did not answer in time what was to be moved")
            finally:
                if mover.migrating:
                    link.lose()
                old.lose()
        finally:
            self._mover = None
            self.go_on()

    async def _greet_beside(self, old: Link, url: str, mover: Mover) -> Link:
        """Another transport, to which everything can be moved at once. Raises what `migrate` raises, and has lost it then."""
        mover.check()
        link = await self._dial(url)
        self._nursery.start_soon(link.run)
        self.leaving = True
        try:
            # A peer of the implicit dialect is told by the first packet that this is no new client.
            failure = await self._greet(link, says_hello=self._dialect is not Dialect.IMPLICIT)
            if failure is not None:
                raise failure
            if self._need_link() is not old:
                raise NnrpConnectionLost("the connection was lost before it could be left")
            mover.check()
        except BaseException:
            link.lose()
            raise
        finally:
            self.leaving = False
        return link

    def _leave(self, old: Link, link: Link) -> None:
        """The connection is ``link`` from now on; nothing of what ``old`` still brings is looked at."""
        old.mute()
        self._link = link
        error = NnrpConnectionLost("the connection moved before this was answered")
        self._unanswered(old, error)
        for session in self._sessions.values():
            self._detach(session, error)

    def _move_to(self, url: str) -> None:
        if url in self._urls:
            self._urls.remove(url)
        self._urls.appendleft(url)

    def is_full(self) -> bool:
        """Whether `wait_room` would wait."""
        return self._link is not None and self._link.writer.is_full()

    async def wait_room(self) -> None:
        """Wait while more is queued to be sent than should be."""
        if self._link is not None:
            await self._link.writer.wait_room()

    # For the sessions, the caches and the openings

    @property
    def largest_body(self) -> int:
        """Bytes of the largest body the server accepts (nnrp-wire 7.2): a larger one would cost the connection."""
        machine = self.machine
        announced = 0 if machine is None or machine.answer is None else machine.answer.max_body_bytes
        return announced or 0xFFFF_FFFF

    @property
    def coming(self) -> int:
        """Operations of sessions that are not on the connection yet. Once their resume is under way the server counts them."""
        return sum(each.in_flight for each in self._sessions.values() if not each.attached)

    def need_machine(self) -> Connection:
        """Raises `NnrpConnectionLost` while there is no connection."""
        return self._need_link().machine

    async def wait_answer(self, answered: trio.Event, kind: str) -> None:
        """Wait for what the server owes. Raises `NnrpConnectionLost` when it does not come in time."""
        with trio.move_on_after(self._options.answer_timeout):
            await answered.wait()
        if not answered.is_set():
            raise NnrpConnectionLost(f"the server did not answer {kind} in time")

    def write(self, parts: Iterable[Buffer]) -> None:
        """Queue packets behind what the machine has queued."""
        link = self._link
        if link is None:
            return
        link.collect()
        # Somebody waits for what is alone; others go out with those that come after them.
        link.writer.write(parts, at_once=link.machine.window.in_flight <= 1)

    def flush(self) -> None:
        if self._link is not None:
            self._link.flush()

    def forget(self, session: NnrpSession, error: NnrpClientError) -> None:
        if self._sessions.get(session.session_id) is session:
            del self._sessions[session.session_id]
        self.credit.fail(session, error)
        self.go_on()

    def send_again(self, session: NnrpSession) -> None:
        """It has operations that are to be sent again, as credit allows: from the next ``go_on`` on."""
        self._resumed[session] = None

    def go_on(self) -> None:
        """There may be credit: for what was in flight when the connection was lost, then for what waits."""
        if self._closing or self.leaving or self.machine is None:
            return
        if self.resuming:
            self.resuming = any(not each.attached for each in self._sessions.values())
        if self._resumed:
            self._send_again()
        self.credit.changed()

    # Tasks

    async def _keep(  # noqa: ASYNC114  # the lint's list of startable functions is its own
        self, *, task_status: trio.TaskStatus[NnrpClientError | None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Make the connection, drive it, and make it again. Reports the first attempt's failure, None when it is there."""
        try:
            link = await self._dial(self.url)
        except NnrpClientError as error:
            task_status.started(error)
            return
        backoff = None if self._options.reconnect is None else Backoff(self._options.reconnect, self._options.random)
        first = True
        while True:
            self._link = link
            self._nursery.start_soon(link.run)
            failure = await self._greet(link)
            if failure is not None:
                link.lose()
            else:
                self._openings.resume_all(link)
                link.flush()
                if backoff is not None:
                    backoff.reset()
            if first:
                task_status.started(failure)
            await self._wait_over(link)
            if first and failure is not None:
                return
            first = False
            self._lost(failure)
            again = await self._again(backoff)
            if again is None:
                return
            link = again
            self.reconnects += 1

    async def _wait_over(self, link: Link) -> None:
        """Until the connection is over that ``link`` has been, or that has taken its place since."""
        while True:
            await link.done.wait()
            if self._link is None or self._link is link:
                return
            link = self._link

    async def _greet(self, link: Link, *, says_hello: bool = True) -> NnrpClientError | None:
        """Say hello on ``link``, where one is said. None when it is served."""
        if self._dialect is Dialect.BARE or not says_hello:
            link.greeted.set()
            return None
        auth = self._options.auth
        hello = _HELLO.replace(auth_bytes=len(auth), requested_session_id=1 if self._dialect is Dialect.IMPLICIT else 0)
        link.machine.send_hello(hello, auth)
        link.flush()
        with trio.move_on_after(self._options.open_timeout) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_hello, link)
                await link.greeted.wait()
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught:
            return NnrpConnectionLost("the server did not answer the hello in time")
        if link.refusal is None and link.machine.closed:
            return NnrpConnectionLost("the connection was lost during the hello")
        return link.refusal

    async def _watch_hello(self, link: Link) -> None:
        """A connection that is lost answers nothing any more."""
        await link.done.wait()
        link.greeted.set()

    async def _again(self, backoff: Backoff | None) -> Link | None:
        """The next connection, while there is something to resume; None: it is the end."""
        while not self._closing and backoff is not None and self._sessions:
            now = trio.current_time()
            delay = backoff.next_delay(now, at_least=self._retry_at - now)
            if delay is None:
                break
            await trio.sleep(delay)
            try:
                return await self._dial(self.url)
            except NnrpClientError as error:
                logger.info("cannot reach %s: %s", self.url, error)
                self._urls.rotate(-1)
        self._fail(NnrpConnectionLost("the connection is closed" if self._closing else "the connection was lost"))
        return None

    async def _dial(self, url: str) -> Link:
        options = self._options
        try:
            with trio.fail_after(options.open_timeout):
                stream = await dial(url, options, self._nursery)
        except (OSError, trio.BrokenResourceError, trio.TooSlowError, ValueError, RuntimeError) as error:
            raise NnrpConnectionLost(f"cannot connect to {url}: {why(error)}") from error
        link = Link(
            stream,
            logged(lambda event: self._act(link, event)),
            spoilt=self._on_spoilt,
            dialect=self._dialect,
            strict=options.strict,
            limits=ConnectionLimits(
                handshake_timeout=options.open_timeout,
                idle_timeout=options.idle_timeout,
                keepalive_interval=options.keepalive,
            ),
            send_timeout=options.send_timeout,
        )
        return link

    async def _end(self) -> None:
        """Cancel what is in flight, close, and wait until the peer has it or two seconds have passed."""
        self._closing = True
        link = self._link
        for session in list(self._sessions.values()):
            session.fail(NnrpSessionOver("the connection was closed"))
        if link is not None and not link.machine.closed:
            link.machine.limits = attrs.evolve(link.machine.limits, drain_timeout=0.0)
            if not link.machine.close_sent and link.machine.may_send(MessageType.CLOSE):
                link.machine.close(trio.current_time())
            link.flush()
            link.lose()
            await link.done.wait()

    # What happens

    def _act(self, link: Link, event: events.Event) -> None:
        credit = deliver(event)
        if credit:
            self.go_on()
        elif credit is None and (act := _ACTS.get(type(event))) is not None:
            act(self, link, event)

    def _on_hello(self, link: Link, event: events.HelloAccepted) -> None:
        link.greeted.set()

    def _on_hello_refused(self, link: Link, event: events.HelloRefused) -> None:
        answer = event.packet.metadata
        assert isinstance(answer, ServerHelloAck)
        self._refuse_hello(link, "the server refused the hello", 0, answer.retry_after_ms)

    def _refuse_hello(self, link: Link, text: str, code: int, retry_after_ms: int) -> None:
        retry_after = retry_after_ms / 1000
        self._retry_at = trio.current_time() + retry_after
        link.refusal = NnrpRefused(text, code, retry_later=retry_after > 0, retry_after=retry_after)
        link.greeted.set()

    def _on_error(self, link: Link, event: events.ErrorReceived | events.ConnectionClosing) -> None:
        packet = event.packet
        message = None if packet is None else packet.metadata
        if packet is None or not isinstance(message, Error):
            return
        text = bytes(packet.body)[: message.diagnostic_bytes].decode("utf-8", "replace")
        if message.is_fatal and not link.greeted.is_set():
            self._refuse_hello(link, text or "the server refused the hello", message.error_code, message.retry_after_ms)
            return
        if message.is_fatal and message.error_scope is ErrorScope.CONNECTION:
            self._retry_at = trio.current_time() + message.retry_after_ms / 1000
        if not isinstance(event, events.ErrorReceived):
            return
        if event.put_back is not None and event.session is not None:
            session = event.session.attachment
            if isinstance(session, NnrpSession):
                session.put_back(event.put_back)
                self.send_again(session)
                # Until something ends or is granted: to try at once would only be refused again. Where nothing can end, it has.
                if link.machine.in_flight == sum(each.unsent for each in self._resumed):
                    self.go_on()
            return
        deliver_error(link.machine, event, message, text)
        self.go_on()

    def _on_spoilt(self, connection: Connection, header: Header, fault: NnrpError) -> None:
        if lose_unreadable(connection, header, fault):
            self.go_on()

    def _on_opened(self, link: Link, event: events.SessionOpened) -> None:
        self._openings.opened(link, event)
        self._note_move()

    def _on_refused(self, link: Link, event: events.SessionRefused) -> None:
        self._openings.refused(link, event)
        self._note_move()

    def _on_migrated(self, link: Link, event: events.MigrateAnswered) -> None:
        if self._mover is not None:
            self._mover.answered(link, event)

    def _note_move(self) -> None:
        if self._mover is not None:
            self._mover.note()

    def _on_pong(self, link: Link, event: events.PongReceived) -> None:
        if (answered := link.pings.pop(event.packet.header.trace_id, None)) is not None:
            answered.set()

    # Inside

    def _send_again(self) -> None:
        unsent = sum(each.unsent for each in self._resumed) - self.coming
        for session in list(self._resumed):
            while session.send_again(unsent):
                unsent -= 1
            if session.over or (session.attached and not session.unsent):
                del self._resumed[session]

    def _need_link(self) -> Link:
        if self._error is not None:
            raise self._error
        if self._link is None or self._link.machine.closed:
            raise NnrpConnectionLost("there is no connection now")
        return self._link

    def _implicit(self, link: Link) -> NnrpSession:
        """The one session a peer of the implicit dialect has."""
        (machine,) = link.machine.sessions.values()
        if isinstance(machine.attachment, NnrpSession):
            return machine.attachment
        session = NnrpSession(self, SessionOpen(), machine, b"")
        machine.attachment = session
        self._sessions[session.session_id] = session
        return session

    def _lost(self, failure: NnrpClientError | None) -> None:
        """The transport is gone: what can be resumed waits, the rest is over."""
        link, self._link = self._link, None
        self._note_move()
        error = failure or NnrpConnectionLost("the connection was lost")
        if link is not None:
            self._unanswered(link, error)
        for session in list(self._sessions.values()):
            if session.resumable and not self._closing and self._options.reconnect is not None:
                self._detach(session, error)
            else:
                session.fail(error)

    def _unanswered(self, link: Link, error: NnrpClientError) -> None:
        """What waits for an answer on ``link`` gets none."""
        self._openings.lost(link, error)
        for each in link.pings.values():
            each.set()

    def _detach(self, session: NnrpSession, error: NnrpClientError) -> None:
        session.cache.fail(error)
        session.detach()
        self.resuming = True

    def _fail(self, error: NnrpClientError) -> None:
        self._error = error
        for session in list(self._sessions.values()):
            session.fail(error)


_ACTS: Final[dict[type, Callable[[NnrpConnection, Link, Any], None]]] = {
    events.HelloAccepted: NnrpConnection._on_hello,
    events.HelloRefused: NnrpConnection._on_hello_refused,
    events.ErrorReceived: NnrpConnection._on_error,
    events.ConnectionClosing: NnrpConnection._on_error,
    events.SessionOpened: NnrpConnection._on_opened,
    events.SessionRefused: NnrpConnection._on_refused,
    events.MigrateAnswered: NnrpConnection._on_migrated,
    events.PongReceived: NnrpConnection._on_pong,
}
