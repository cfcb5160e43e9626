"""One session: its events, its prompts, its cursor (client-sdk sections 2.4 and 3)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from client.acp_transport import is_ownership_error
from client.daemon import DaemonClient
from client.deadline import limited
from client.errors import DaemonError, DaemonHttpError, DaemonStreamEndedError, JsonRpcError
from client.event_stream import EventStream
from client.limits import OMITTED, Omitted, PromptLimit, effective_limit
from client.link import BEST_EFFORT, SessionLink, settle_by_outcome
from client.prompts import Ticket
from client.requests import Prompt, PromptRequest, SessionRequest, Vote
from client.results import Heartbeat, PromptReceipt, PromptResult, SessionInfo
from client.subscription import DEFAULT_MAX_BYTES, DEFAULT_MAX_EVENTS

__all__ = ["DaemonSessionClient"]

logger = logging.getLogger("moorline.client")

T = TypeVar("T")


class DaemonSessionClient:
    """A session of one client. ``async with`` leaves it at the end of the block; the session itself lives on.

    ``cursor`` is the last event consumed: where :meth:`events` continues. ``max_pending_prompts_per_session`` defaults
    to the client's limit; the counter is the client's (CLI-012).

    Raises ``TypeError`` for a cursor that is no whole number from 0 on.
    """

    def __init__(
        self,
        client: DaemonClient,
        info: SessionInfo | str,
        *,
        cursor: int | Omitted | None = OMITTED,
        max_pending_prompts_per_session: PromptLimit = OMITTED,
    ) -> None:
        self.info = SessionInfo(info) if isinstance(info, str) else info
        self.session_id = self.info.session_id
        self.client_id = self.info.client_id
        self.cursor = self.info.last_event_id if isinstance(cursor, Omitted) else _cursor(cursor)
        self._client = client
        given = max_pending_prompts_per_session
        self._limit = client.prompt_limit if given is OMITTED else effective_limit(given)
        self._link: SessionLink | None = client.link(self.session_id, self.client_id, self.info.epoch)
        self._link.on_client_id = self._set_client_id
        self._link.keep_reading(self.cursor)
        self._renewing = trio.Lock()

    @classmethod
    async def create_or_attach(
        cls, client: DaemonClient, request: SessionRequest | None = None, client_id: str | None = None
    ) -> DaemonSessionClient:
        """Create a session or attach to the shared one. A new session is followed from its beginning."""
        info = await client.create_session(request, client_id)
        return cls(client, info, cursor=None if info.attached else 0)

    @classmethod
    async def load(
        cls,
        client: DaemonClient,
        session_id: str,
        request: SessionRequest | None = None,
        client_id: str | None = None,
    ) -> DaemonSessionClient:
        """Attach to a session with its history: in ``info.history`` on REST, as events on ``/acp``."""
        info = await client.load_session(session_id, request, client_id)
        return cls(client, info, cursor=_restored_cursor(client, info, history=True))

    @classmethod
    async def resume(
        cls,
        client: DaemonClient,
        session_id: str,
        request: SessionRequest | None = None,
        client_id: str | None = None,
    ) -> DaemonSessionClient:
        """Attach to a session without its history."""
        info = await client.resume_session(session_id, request, client_id)
        return cls(client, info, cursor=_restored_cursor(client, info, history=False))

    async def __aenter__(self) -> DaemonSessionClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop following; waiting prompts fail. The session goes on. More than once is fine."""
        link, self._link = self._link, None
        if link is not None:
            self._client.release_link(link)
        await trio.lowlevel.checkpoint()

    @property
    def link(self) -> SessionLink:
        """What follows the session. Raises :class:`DaemonStreamEndedError` after :meth:`aclose`."""
        if self._link is None:
            raise DaemonStreamEndedError("the session object is closed")
        return self._link

    @property
    def epoch(self) -> str | None:
        """Epoch of the cursor."""
        reader = self.link.reader
        return reader.epoch if reader is not None else self.link.epoch

    def events(
        self,
        *,
        resume: bool = True,
        cursor: int | Omitted | None = OMITTED,
        max_events: int = DEFAULT_MAX_EVENTS,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> EventStream:
        """The session's events from ``cursor`` on, by default after the last one consumed; reconnects by itself.

        Use it as ``async with session.events() as events: async for event in events: ...``. Entering the block opens
        the stream, so that the server has a consumer before the first call (CLI-036), and leaving it closes it.
        A plain ``async for`` over it works too: then the stream is opened by the first iteration and closed when the
        object is garbage, which CPython does at once after ``break``; other implementations may take longer.

        One at a time per session. ``resume=False`` without a cursor starts live. When more than ``max_events`` or
        ``max_bytes`` wait to be consumed, the rest is fetched again later (CLI-032).
        """
        start = (self.cursor if resume else None) if isinstance(cursor, Omitted) else _cursor(cursor)
        return EventStream(self.link, self._consumed, start, max_events, max_bytes)

    async def prompt(self, prompt: Prompt, **options: Any) -> PromptResult:
        """Send a prompt and wait for its outcome. Options: ``deadline_ms``, ``meta``, ``idempotency_key``.

        Raises :class:`DaemonPendingPromptLimitError` before anything is sent, :class:`DaemonPromptQueueFullError` if
        the daemon refuses, :class:`DaemonTurnError` if the turn fails, :class:`PromptMayBeAcceptedError` if the answer
        was lost, :class:`DaemonStreamEndedError` if the outcome cannot be learnt any more. Cancellation cancels the
        prompt as well as it can.
        """
        release = self._client.counters.reserve(self.session_id, self._limit)
        try:
            return await self._prompt(self._client.build_prompt(prompt, **options))
        finally:
            release()

    async def submit_prompt(self, prompt: Prompt, **options: Any) -> PromptReceipt:
        """Hand over a prompt and return: no reservation, no waiting (CLI-017)."""
        request = self._client.build_prompt(prompt, **options)
        self.link.keep_reading(self.cursor)
        return await self._send(request, Ticket())

    async def cancel(self) -> None:
        """End the running prompt."""
        await self._call(self._client.transport.cancel)

    async def close(self) -> None:
        """Close the session for everybody, and leave it."""
        await self._call(self._client.transport.close_session)
        await self.aclose()

    async def detach(self) -> None:
        """Give up the registration as a client, and leave."""
        await self._call(self._client.transport.detach_session)
        await self.aclose()

    async def heartbeat(self) -> Heartbeat:
        """Keep the session from being taken for idle."""
        return await self._call(self._client.transport.heartbeat)

    async def set_mode(self, mode: str) -> dict[str, Any]:
        """Change the approval mode."""
        self.link.keep_reading(self.cursor)
        return await self._call(self._client.transport.set_mode, mode)

    async def set_model(self, model_id: str) -> dict[str, Any]:
        """Change the model."""
        self.link.keep_reading(self.cursor)
        return await self._call(self._client.transport.set_model, model_id)

    async def vote(self, request_id: str, option_id: str | None, answers: dict[str, str] | None = None) -> bool:
        """Answer a permission request by choosing an option, or ``None`` to cancel it.

        False if it was not pending any more, where the wire tells. The answer is remembered: a replay of the request
        is answered the same way (CLI-028).
        """
        vote = Vote(option_id, answers)
        outbound_id = self.link.desk.record(request_id, vote)

        async def call(session_id: str, client_id: str | None) -> bool:
            return await self._client.transport.vote(session_id, request_id, vote, client_id, outbound_id=outbound_id)

        return await self._call(call)

    async def _prompt(self, request: PromptRequest) -> PromptResult:
        ticket = Ticket(request.blocks[0] if request.blocks else None)
        link = self.link
        is_acp = self._client.transport.always_reading
        if is_acp:
            link.keep_reading(self.cursor)
            link.ledger.add(ticket)
        async with self._settling(ticket):
            receipt = await self._send(request, ticket)
            ticket.accepted = True
            if is_acp:
                return await self._outcome_on_acp(request, ticket)
            if ticket.settled:
                return ticket.result()
            return await self._outcome_on_rest(ticket, receipt)

    @asynccontextmanager
    async def _settling(self, ticket: Ticket) -> AsyncIterator[None]:
        """Whatever ends the block, the ticket does not stay open: an error becomes its outcome, a cancelled caller gives it up."""
        try:
            yield
        except DaemonError as exc:
            ticket.fail(exc)
            raise
        except BaseException:
            # Cancelled, alone or in a group: whoever dials may do so in a nursery.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + BEST_EFFORT):
                await self._give_up(ticket)
            raise

    async def _outcome_on_acp(self, request: PromptRequest, ticket: Ticket) -> PromptResult:
        try:
            return await ticket.wait()
        except JsonRpcError as exc:
            if not is_ownership_error(exc):
                raise
        # Refused before it ran: take the session back and send it once more.
        with self._client.limited("recovery"):
            await self._client.transport.recover_session(self.session_id)
        again = Ticket(ticket.first_block)
        self.link.ledger.add(again)
        async with self._settling(again):
            await self._send(request, again)
            again.accepted = True
            return await again.wait()

    async def _outcome_on_rest(self, ticket: Ticket, receipt: PromptReceipt) -> PromptResult:
        try:
            if self.link.subscribed:
                self.link.expect(ticket, receipt.last_event_id)
                return await ticket.wait()
            return await self._outcome_alone(ticket, receipt)
        except DaemonStreamEndedError as exc:
            return await self._polled_outcome(ticket, exc)

    async def _outcome_alone(self, ticket: Ticket, receipt: PromptReceipt) -> PromptResult:
        # Nobody consumes: a stream of its own from just before the prompt cannot miss the end (REST-062).
        link = self._client.own_link(self.session_id, self.client_id, receipt.epoch or self.link.epoch)
        link.on_client_id = self._set_client_id
        link.ledger.add(ticket)
        try:
            link.follow(receipt.last_event_id)
            return await ticket.wait()
        finally:
            # Whether it was given up or settled is decided already.
            link.ledger.discard(ticket)
            self._client.release_link(link)

    async def _polled_outcome(self, ticket: Ticket, failure: DaemonStreamEndedError) -> PromptResult:
        # The stream is gone for good, but a daemon may keep outcomes for asking.
        polled = Ticket()
        if ticket.prompt_id is not None and self._link is not None:
            try:
                with limited(BEST_EFFORT, "prompt outcome"):
                    outcome = await self._client.transport.prompt_outcome(self.session_id, ticket.prompt_id)
            except DaemonError as exc:
                logger.info("the outcome of %s could not be asked for: %s", ticket.prompt_id, exc)
            else:
                if outcome is not None:
                    settle_by_outcome(polled, outcome)
        if polled.settled:
            return polled.result()
        raise failure

    async def _send(self, request: PromptRequest, ticket: Ticket) -> PromptReceipt:
        async def send(client_id: str | None) -> PromptReceipt:
            return await self._client.send_prompt(self.session_id, request, ticket, client_id)

        return await self._with_client_id(send)

    async def _give_up(self, ticket: Ticket) -> None:
        """Nobody waits for it any more (CLI-002)."""
        if ticket.settled:
            return
        link = self._link
        if not ticket.accepted and not ticket.sent:
            # On /acp nothing has left, so there is nothing to cancel. On REST closing the request cancelled it (REST-064).
            if link is not None:
                link.ledger.discard(ticket)
            return
        try:
            await self._abandon(ticket)
        finally:
            if not ticket.accepted and link is not None:
                link.doubt(ticket)

    async def _abandon(self, ticket: Ticket) -> None:
        is_acp = self._client.transport.always_reading
        if is_acp and not self.link.ledger.abandon(ticket):
            return
        try:
            await self._client.transport.abandon_prompt(self.session_id, ticket, self.client_id)
        except DaemonError as exc:
            logger.info("an abandoned prompt could not be cancelled: %s", exc)

    async def _call(self, call: Callable[..., Awaitable[T]], *args: Any) -> T:
        async def bound(client_id: str | None) -> T:
            with self._client.limited("call"):
                return await call(self.session_id, *args, client_id)

        return await self._with_client_id(bound)

    async def _with_client_id(self, call: Callable[[str | None], Awaitable[T]]) -> T:
        used = self.client_id
        try:
            return await call(used)
        except DaemonHttpError as exc:
            if exc.status != 400 or exc.code != "invalid_client_id":
                raise
        # Refused before it ran, because the daemon was restarted: get a new id, once for all who wait (CLI-043).
        async with self._renewing:
            if self.client_id == used:
                info = await self._client.resume_session(self.session_id)
                self._set_client_id(info.client_id)
        return await call(self.client_id)

    def _set_client_id(self, client_id: str | None) -> None:
        self.client_id = client_id
        if self._link is not None:
            self._link.client_id = client_id

    def _consumed(self, cursor: int | None) -> None:
        self.cursor = cursor


def _cursor(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError("a cursor is a whole number from 0 on")
    return value


def _restored_cursor(client: DaemonClient, info: SessionInfo, *, history: bool) -> int | None:
    if info.last_event_id is not None:
        return info.last_event_id
    # On /acp a load brings its history to a stream without a cursor (ACP-193), and a resume knows no position.
    return None if client.transport.always_reading else 0
