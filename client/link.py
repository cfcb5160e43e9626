"""One session as the client follows it: its reader, its consumer, its waiting prompts, its permission requests."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import attrs
import trio

from client.background import Background
from client.deadline import limited
from client.errors import DaemonError, DaemonStreamEndedError, DaemonTurnError
from client.events import Event
from client.permissions import PermissionDesk, Showing
from client.prompts import TERMINALS, PromptLedger, Ticket
from client.reader import ReaderOptions, SessionReader
from client.requests import Vote
from client.rest import session_path
from client.results import PromptOutcome, PromptResult, SessionInfo
from client.subscription import EventQueue
from client.transport import Transport

__all__ = ["ClientContext", "SessionLink", "settle_by_outcome"]

logger = logging.getLogger("moorline.client")

BEST_EFFORT = 5.0
"""Seconds for what is tried without anybody waiting for it: a default vote, a late cancel."""
ADOPTION_WAIT = 10.0
"""Seconds after a session was taken back within which the outcome of an older prompt must show up, or the daemon say
that it still runs. A daemon that gave up the connection has ended its prompts, and the end is in the ring."""


@attrs.frozen
class ClientContext:
    """What everything built on one client shares."""

    background: Background
    transport: Transport
    rng: random.Random
    reader: ReaderOptions
    default_vote: Vote | None


@attrs.define(eq=False, repr=False)
class SessionLink:
    """Belongs to one client. On ``/acp`` it is shared by everything that uses the session, and reads all the time
    (CLI-035); on REST it reads while somebody consumes.
    """

    context: ClientContext
    session_id: str
    client_id: str | None = None
    epoch: str | None = None
    users: int = 0

    desk: PermissionDesk = attrs.field(init=False, factory=PermissionDesk)
    ledger: PromptLedger = attrs.field(init=False)
    on_client_id: Callable[[str], None] | None = attrs.field(init=False, default=None)
    _reader: SessionReader | None = attrs.field(init=False, default=None)
    _queue: EventQueue | None = attrs.field(init=False, default=None)
    _seeing_to_it: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self.ledger = PromptLedger(self._cancel_late)

    @property
    def subscribed(self) -> bool:
        """Whether somebody consumes events."""
        return self._queue is not None

    @property
    def reader(self) -> SessionReader | None:
        """The reader, while there is one."""
        return self._reader

    def keep_reading(self, cursor: int | None) -> None:
        """Have a stream open, so that answers arrive, if this transport needs one."""
        if self.context.transport.always_reading and self._reader is None:
            # A WebSocket can only count its events from a known cursor on, so it starts with one.
            start = cursor if self.context.transport.supports_replay and not self._has_id_lines() else None
            self._start_reader(start, consumer=False)

    def follow(self, cursor: int | None) -> None:
        """Read on from ``cursor`` for the sake of the prompts, without a consumer."""
        self._start_reader(cursor, consumer=True)

    def subscribe(self, cursor: int | None, max_events: int, max_bytes: int) -> EventQueue:
        """Begin to consume after ``cursor``. Raises ``RuntimeError`` if somebody does already."""
        if self._queue is not None:
            raise RuntimeError(f"the events of session {self.session_id} are being consumed already")
        self._queue = EventQueue(self._refetch, self._is_replayable, max_events, max_bytes, cursor)
        self.desk.forget_shown()
        if self._reader is None:
            self._start_reader(cursor, consumer=True)
        elif self.context.transport.supports_replay or cursor is None:
            self._reader.restart(cursor, consumer=True)
        else:
            self._reader.consumer = True
        return self._queue

    def unsubscribe(self, queue: EventQueue) -> None:
        """Stop consuming. Synchronous, so that it can be done from anywhere. More than once is fine."""
        if self._queue is not queue:
            return
        self._queue = None
        queue.finish(None)
        if self._reader is None:
            return
        if self.context.transport.always_reading:
            self._stop_consuming(self._reader)
            return
        self._reader.stop()
        self._reader = None
        # Their turns can be seen no more (CLI-016).
        self.ledger.fail_all(DaemonStreamEndedError("SSE stream ended: the subscription was closed"))

    async def wait_open(self) -> None:
        """Return when the stream is open for the first time, or has failed: then consuming says why."""
        if self._reader is not None:
            await self._reader.opened.wait()

    def close(self) -> None:
        """End everything. Waiting prompts fail."""
        if self._queue is not None:
            self.unsubscribe(self._queue)
        if self._reader is not None:
            self._reader.stop()
            self._reader = None
        self.ledger.fail_all(DaemonStreamEndedError("the session was left"))

    def take(self, event: Event) -> None:
        """From the reader: settle prompts first, they wait for nobody."""
        self.ledger.take(event)
        if event.type == "permission_request" and not self._take_permission(event):
            return
        if event.type in ("permission_resolved", "permission_already_resolved"):
            self.desk.learn(event)
        if self._queue is not None:
            self._queue.offer(event)

    def interrupted(self) -> None:
        """From the reader."""
        self.ledger.mark_lost()

    def reopened(self) -> None:
        """From the reader: see to it that nobody waits for an answer that will not come, and no agent for a vote."""
        if self.context.transport.always_reading:
            for answer in self.desk.unresolved():
                self.context.background.spawn(self._repeat_vote, answer.request_id, answer.vote)
        self._see_to_it()

    def expect(self, ticket: Ticket, since: int | None) -> None:
        """Watch for the end of a prompt that was accepted behind event ``since``.

        Its acceptance may have been told so late that the end has come and been forgotten; then it is asked for.
        """
        self.ledger.add(ticket)
        if not ticket.settled and since is not None and since < self.ledger.forgotten:
            ticket.mark_lost()
            self._see_to_it()

    def doubt(self, ticket: Ticket) -> None:
        """A prompt was given up on its way to the daemon: find out whether it is there, or it would wait for ever."""
        ticket.mark_lost()
        self._see_to_it()

    def recovered(self, session: SessionInfo) -> None:
        """From the reader: another connection, or a restarted daemon."""
        self._adopt_client_id(session)

    def reloaded(self, session: SessionInfo) -> None:
        """From the reader: the end of a turn may be among the events that were lost."""
        self._adopt_client_id(session)
        self.ledger.mark_lost()
        for envelope in session.history or ():
            self._take_history(envelope)

    def ids_start_again(self) -> None:
        """From the reader."""
        self.ledger.forget_ids()
        self.desk.forget_shown()

    def finish(self, failure: Exception | None) -> None:
        """From the reader: it is over."""
        self._reader = None
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.finish(failure)
        ended = DaemonStreamEndedError(f"SSE stream ended: {failure or 'the session is closed'}")
        ended.__cause__ = failure
        self.ledger.fail_all(ended)

    def _start_reader(self, cursor: int | None, *, consumer: bool) -> None:
        self._reader = SessionReader(
            transport=self.context.transport,
            session_id=self.session_id,
            sink=self,
            rng=self.context.rng,
            options=self.context.reader,
            cursor=cursor,
            epoch=self.epoch,
            client_id=self.client_id,
            consumer=consumer,
        )
        self.context.background.spawn(self._run_reader, self._reader)

    def _stop_consuming(self, reader: SessionReader) -> None:
        # Where a stream can say that it only routes replies it has to be opened again to say so; elsewhere the same
        # stream goes on, and requests are answered by default.
        if self.context.transport.silent_replies_stream:
            reader.restart(reader.cursor, consumer=False)
        else:
            reader.consumer = False

    async def _run_reader(self, reader: SessionReader) -> None:
        try:
            await reader.run()
        finally:
            self.epoch = reader.epoch

    def _take_permission(self, event: Event) -> bool:
        """Whether the consumer is to see it."""
        showing = self.desk.arrive(event)
        if showing is Showing.REPEAT:
            again = self.desk.answer_again(event)
            if again is not None:
                self.context.background.spawn(self._send_vote, again.request_id, again.vote)
            return False
        if showing is Showing.HIDE:
            return False
        if self._queue is None:
            self._answer_by_default(event)
        return True

    def _answer_by_default(self, event: Event) -> None:
        # Where the server knows that this stream answers nothing, it decides by itself, and others may vote (K4).
        vote = self.context.default_vote
        if vote is None or event.request_id is None or self.context.transport.silent_replies_stream:
            return
        self.context.background.spawn(self._send_vote, event.request_id, vote)

    async def _send_vote(self, request_id: str, vote: Vote) -> None:
        outbound_id = self.desk.record(request_id, vote)
        try:
            with limited(BEST_EFFORT, "vote"):
                await self.context.transport.vote(
                    self.session_id, request_id, vote, self.client_id, outbound_id=outbound_id
                )
        except DaemonError as exc:
            logger.warning("the default vote on %s failed: %s", request_id, exc)

    def _adopt_client_id(self, session: SessionInfo) -> None:
        if session.client_id is not None:
            self.client_id = session.client_id
            if self.on_client_id is not None:
                self.on_client_id(session.client_id)

    def _take_history(self, envelope: dict[str, Any]) -> None:
        data = envelope.get("data")
        prompt_id = data.get("promptId") if isinstance(data, dict) else None
        for ticket in self.ledger:
            known = ticket.prompt_id is not None and ticket.prompt_id == prompt_id
            if known and envelope.get("type") in TERMINALS:
                ticket.finish(Event(envelope["type"], data))

    async def _repeat_vote(self, request_id: str, vote: Vote) -> None:
        # As a response the vote had no answer of its own, so it may have died with the connection; as a request it is
        # answered, and refused if the first one arrived (ACP-175).
        try:
            with limited(BEST_EFFORT, "vote"):
                await self.context.transport.vote(self.session_id, request_id, vote, self.client_id)
        except DaemonError as exc:
            logger.info("the vote on %s could not be repeated: %s", request_id, exc)

    def _see_to_it(self) -> None:
        if self.ledger.lost and not self._seeing_to_it:
            self._seeing_to_it = True
            self.context.background.spawn(self._see_to_lost_prompts)

    async def _see_to_lost_prompts(self) -> None:
        """Settle prompts whose answer may be lost by asking, or fail them when the daemon has nothing more to say.

        A turn that goes on will end with an event. One that is over has had its event, or the event is lost too.
        """
        while lost := self.ledger.lost:
            await trio.sleep(ADOPTION_WAIT)
            known = [ticket for ticket in lost if await self._settled_by_polling(ticket)]
            if await self._has_active_prompt():
                continue
            for ticket in lost:
                if ticket not in known:
                    ticket.fail(DaemonStreamEndedError("the connection was lost and the prompt's outcome with it"))
        self._seeing_to_it = False

    async def _has_active_prompt(self) -> bool:
        try:
            with limited(BEST_EFFORT, "status"):
                answer = await self.context.transport.rest("GET", session_path(self.session_id, "status"))
            status = answer.json()
        except DaemonError:
            return False
        return isinstance(status, dict) and status.get("hasActivePrompt") is True

    async def _settled_by_polling(self, ticket: Ticket) -> bool:
        """Whether the daemon knows the prompt: then it is settled now, or will be by an event."""
        if ticket.prompt_id is None:
            return False
        try:
            with limited(BEST_EFFORT, "prompt outcome"):
                outcome = await self.context.transport.prompt_outcome(self.session_id, ticket.prompt_id)
        except DaemonError:
            return False
        if outcome is None:
            return False
        settle_by_outcome(ticket, outcome)
        return True

    def _cancel_late(self, ticket: Ticket) -> None:
        self.context.background.spawn(self._cancel, ticket)

    async def _cancel(self, ticket: Ticket) -> None:
        try:
            with limited(BEST_EFFORT, "cancel"):
                await self.context.transport.abandon_prompt(self.session_id, ticket, self.client_id)
        except DaemonError as exc:
            logger.warning("an abandoned prompt could not be cancelled: %s", exc)

    def _refetch(self, cursor: int | None) -> None:
        if self._reader is not None:
            self._reader.restart(cursor, consumer=True)

    def _is_replayable(self) -> bool:
        return self.context.transport.supports_replay and self._queue is not None and self._queue.cursor is not None

    def _has_id_lines(self) -> bool:
        return self.context.transport.kind.value != "acp-ws"


def settle_by_outcome(ticket: Ticket, outcome: PromptOutcome) -> None:
    """Settle a ticket from a polled outcome, if that is final."""
    if outcome.state == "failed":
        error = outcome.error if isinstance(outcome.error, dict) else {"message": str(outcome.error or "turn failed")}
        ticket.fail(DaemonTurnError(error | {"promptId": outcome.prompt_id}))
    elif outcome.settled:
        stop_reason = outcome.stop_reason or ("cancelled" if outcome.state == "cancelled" else "end_turn")
        ticket.settle(PromptResult(stop_reason))
