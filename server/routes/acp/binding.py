"""What a connection keeps for a session it owns: stream, waiting replies, prompts in flight, grace (acp-http 5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import trio

from protocol.jsonrpc import Id
from server.routes.acp.buffers import Meter
from server.routes.acp.deferred import Replies, Reply
from server.routes.acp.history import History
from server.routes.acp.inflight import InFlight, goes_on_counting
from server.routes.acp.streams import REMEMBERED, Carrier, SessionStream, StreamEnd
from sessions import Attachment, AttachmentPhase, CancelReason, EndReason, Operation, Session, Subscription
from sessions.errors import SubscriberLimitExceeded

if TYPE_CHECKING:
    from server.routes.acp.connection import AcpConnection

__all__ = ["Binding"]


class Binding:
    """One connection's hold on one session (made by `AcpConnection.bind`). Synchronous.

    It ends by `end`, by its grace running out, or with the session. Until then it owns its prompts: its end aborts them,
    hands the replies that are left to the connection, withdraws questions nobody else can see, and drops the client id.
    """

    def __init__(
        self,
        connection: AcpConnection,
        session: Session,
        client_id: str | None,
        *,
        grace: float,
        meter: Meter,
        fresh: bool = False,
        history: bool = False,
    ) -> None:
        """``grace`` in seconds. ``fresh``: the session was made for this binding. ``history``: its first stream without a
        cursor begins with what was there before (ACP-193)."""
        self.connection = connection
        self.session = session
        self.client_id = client_id
        self.fresh = fresh
        self.announced = False
        """The peer has been told of the session (ACP-120)."""
        self.close_answered: trio.Event | None = None
        """There while ``session/close`` is carried out; set when its reply is out."""
        self.replies = Replies(meter)
        self.prompts: dict[Operation, InFlight] = {}
        self.stream: SessionStream | None = None
        self.over = False
        self._doubtful: list[Reply] = []
        """Sent on a stream that was cut: the cursor the client comes back with tells whether they arrived."""
        self._meter = meter
        self._history_through = session.ring.head if history else 0
        self._attachment = Attachment(grace, self._on_end)
        self._timing = False
        if client_id is not None:
            session.clients.keep(client_id)
        session.when_closed(self._on_session_closed)

    # What is there

    @property
    def attached(self) -> bool:
        return self._attachment.phase is AttachmentPhase.ATTACHED

    @property
    def in_grace(self) -> bool:
        return self._attachment.in_grace

    # Streams

    def open_stream(
        self,
        carrier: Carrier,
        cursor: int | None = None,
        epoch: str | None = None,
        *,
        consumer: bool = True,
        first: Reply | None = None,
    ) -> SessionStream:
        """A new stream, in place of any other (ACP-123). Replays from ``cursor``; live only without one.

        When the session has as many readers as it may have, the stream says so and ends, and the grace runs (ACP-183).
        """
        ticket = self._attachment.attach()
        self.session.release(self)
        former, self.stream = self.stream, None
        if former is not None:
            former.supersede()
        self._settle_doubt(cursor)
        history: History | None = None
        through, self._history_through = self._history_through, 0
        if cursor is None and through:
            history, cursor = History(self.session, through), through
        subscription: Subscription | None = None
        error = None
        try:
            subscription = self.session.subscribe(cursor, epoch=epoch, consumer=consumer)
        except SubscriberLimitExceeded as problem:
            error = str(problem)
            history = None
        self.stream = SessionStream(self, subscription, ticket, carrier, first=first, history=history, error=error)
        return self.stream

    def doubt(self, replies: Iterable[Reply]) -> None:
        """A stream was cut after it had sent these, the latest; nobody knows whether they arrived."""
        self._doubtful = [*self._doubtful, *replies][-REMEMBERED:]

    def _settle_doubt(self, cursor: int | None) -> None:
        """Whoever has seen an event sent after a reply has seen the reply. One who has not gets it again: at worst a second
        time, under an id that waits for nothing any more. Without a cursor nothing is known, and nothing repeated."""
        doubtful, self._doubtful = self._doubtful, []
        if cursor is not None:
            self.replies.send_again(each for each in doubtful if each.position is None or each.position >= cursor)

    def stream_over(self, stream: SessionStream) -> None:
        """A transport is done with ``stream``. A stale one changes nothing (ACP-125)."""
        if stream is not self.stream or self.over:
            return
        self.stream = None
        if stream.end in (StreamEnd.CLOSED, StreamEnd.BROKEN):
            self.end()
        else:
            self._detach(stream.ticket)

    def lose_stream(self) -> None:
        """The grace begins, whatever stream there is or was: the client has left, or its socket has."""
        if self.over:
            return
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.stop()
        ticket = stream.ticket if stream is not None else self._attachment.attach()
        self._detach(ticket)

    # Replies

    def reply(self, reply: Reply) -> None:
        """Send a reply on the session stream, or on the connection's when the binding is gone (ACP-102)."""
        if self.over:
            reply.watermark = 0
            self.connection.send(reply)
            return
        reply.watermark = self.session.ring.head
        self._enqueue(reply)

    def _enqueue(self, reply: Reply) -> None:
        self.replies.push(reply)
        if self._meter.exceeded:
            self.end()
        self.connection.check_bounds()
        if self.stream is not None:
            self.stream.wake()

    # Prompts

    def track(self, request_id: Id, operation: Operation) -> None:
        """Answer ``request_id`` when ``operation`` is settled; abort it when the binding ends (ACP-217)."""
        prompt = self.prompts[operation] = InFlight(request_id, operation, self)
        prompt.watch()

    def prompt_settled(self, prompt: InFlight) -> None:
        self.prompts.pop(prompt.operation, None)
        self.reply(Reply(prompt.message(), prompt=prompt))

    def adopt(self, former: Binding, adopting: Id | None) -> list[InFlight]:
        """Take over the prompts of a binding nobody listens on any more, answered or not. ``adopting`` is the id of the
        request that asks for it on the new connection. The former binding's end then aborts nothing."""
        answered = former.replies.take_prompts()
        adopted = [reply.prompt for reply in answered if reply.prompt is not None]
        adopted += former.prompts.values()
        for prompt in adopted:
            prompt.as_response = prompt.as_response and goes_on_counting(adopting, prompt.request_id)
            self._take_over(prompt)
        former.prompts = {}
        for reply in answered:
            assert reply.prompt is not None
            self._enqueue(Reply(reply.prompt.message(), reply.watermark, reply.prompt))
        self._adopt_doubt(former, adopting)
        return adopted

    def _adopt_doubt(self, former: Binding, adopting: Id | None) -> None:
        for reply in [each for each in former._doubtful if each.prompt is not None]:
            assert reply.prompt is not None
            prompt = reply.prompt
            prompt.as_response = prompt.as_response and goes_on_counting(adopting, prompt.request_id)
            prompt.binding = self
            former._doubtful.remove(reply)
            self.doubt([Reply(prompt.message(), reply.watermark, prompt, position=reply.position)])

    def hand_over(self, successor: Binding) -> None:
        """Give everything to a binding of another connection of the same client, and end without aborting anything."""
        successor.client_id, self.client_id = self.client_id, None
        successor.announced, successor.fresh = self.announced, self.fresh
        self.connection.questions.move(self.session.id, successor.connection.questions)
        for prompt in self.prompts.values():
            successor._take_over(prompt)
        self.prompts = {}
        for reply in self.replies.drain():
            successor._enqueue(reply)
        successor.doubt(self._doubtful)
        self.end()

    def _take_over(self, prompt: InFlight) -> None:
        prompt.binding = self
        if not prompt.operation.settled:
            prompt.operation.client_id = self.client_id
            self.prompts[prompt.operation] = prompt

    # The end

    def revoke(self) -> None:
        """Ownership ends, and nothing else yet: the session is being closed by its owner (ACP-196)."""
        self.connection.unbind(self)
        self.close_answered = trio.Event()

    def end(self) -> None:
        """Tear down at once (ACP-145). Idempotent."""
        self._attachment.end()

    def _detach(self, ticket: int) -> None:
        if not self._attachment.detach(ticket):
            return
        self.session.hold(self)
        if not self._timing:
            self._timing = True
            self.connection.spawn(self._attachment.run)

    def _on_end(self, expired: bool) -> None:
        self.over = True
        self.session.release(self)
        self.session.forget_closed(self._on_session_closed)
        self.connection.unbind(self)
        if self.stream is not None:
            self.stream.stop()
        for prompt in list(self.prompts.values()):
            self.session.cancel_operation(prompt.operation, CancelReason.OWNER_GONE)
        for reply in self.replies.drain():
            reply.watermark = 0
            self.connection.send(reply)
        self._withdraw_questions()
        if expired or self.connection.gone_for_good:
            self.session.leave(self.client_id)
        else:
            self.session.drop_client(self.client_id)
        self.connection.binding_over(self, expired)

    def _withdraw_questions(self) -> None:
        asked = self.connection.questions.forget_session(self.session.id)
        if not self.session.has_consumer():
            for request_id in asked:
                self.session.permissions.withdraw(request_id)

    def _on_session_closed(self, session: Session) -> None:
        """A stream still has the end of the session to tell, and ends the binding itself. A client that is away is told
        when it comes back, unless the session was closed on purpose (C-017)."""
        if self.stream is None and not (self.in_grace and session.end_reason is EndReason.DIED):
            self.end()
