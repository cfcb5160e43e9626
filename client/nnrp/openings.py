"""SESSION_OPENs under way on a client's connection, of new sessions and of those that come back (nnrp-wire 13.2, 13.7)."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final

import attrs
import trio

from client.backoff import Backoff
from client.nnrp.delivering import lose_unanswered
from client.nnrp.errors import NnrpClientError, NnrpConnectionLost, NnrpRefused, NnrpSessionOver
from client.nnrp.link import Link
from client.nnrp.options import NnrpOptions
from client.nnrp.session import NnrpSession
from protocol.nnrp.enums import ConnectionState, InFlightPolicy, OperationFeatures, SessionErrorCode, SessionStatus
from protocol.nnrp.errors import NnrpLocalError, Outcome
from protocol.nnrp.machines.events import SessionOpened, SessionRefused
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.resume import ResumeOutcome
from protocol.nnrp.machines.session import Session
from protocol.nnrp.messages import SessionOpen, SessionOpenAck
from protocol.nnrp.vendor import ResumeFrom

if TYPE_CHECKING:
    from client.nnrp.connection import NnrpConnection

__all__ = ["Openings"]

DOUBT: Final = 2.5
"""Seconds before a resume is asked for again that was refused where the answer to the one before may be lost. For two seconds the
server holds the client to be there, on the connection where nobody heard of the new token (docs/nnrp.md, Used up)."""
OVERDUE: Final = 1.0
"""Seconds past its budget that the end of an operation may take to arrive (nnrp-wire 13.4: it is counted from the receipt)."""


@attrs.define(slots=True, eq=False)
class _Opening:
    """A SESSION_OPEN under way on ``link``: of a new session, or of ``resumed``."""

    link: Link
    request: SessionOpen
    resumed: NnrpSession | None = None
    again: bool = False
    """Asked for the second time on this connection, because the answer on the one before may be lost."""
    backoff: Backoff | None = None
    """Of a resume that the server has put off."""
    answered: trio.Event = attrs.field(factory=trio.Event)
    session: NnrpSession | None = None
    error: NnrpClientError | None = None
    last_event_id: int = 0
    given_up: bool = False
    """Nobody waits for the answer any more. It still comes in its turn."""


class Openings:
    """Asks for sessions and takes the answers, which come in the order of the requests on the same link. ``sessions`` are those of
    the connection, by id; what opens is entered there. ``auth`` is the auth block of every request."""

    def __init__(
        self,
        connection: NnrpConnection,
        sessions: dict[int, NnrpSession],
        options: NnrpOptions,
        nursery: trio.Nursery,
        auth: bytes,
    ) -> None:
        self._connection = connection
        self._sessions = sessions
        self._options = options
        self._nursery = nursery
        self._auth = auth
        self._waiting: deque[_Opening] = deque()

    # What the application wants

    async def open(
        self, link: Link, request: SessionOpen, *, token: bytes, features: OperationFeatures, last_event_id: int
    ) -> NnrpSession:
        """A session of the caller's, new or, with ``token``, one that is there already. Raises `NnrpRefused`, `NnrpConnectionLost`."""
        opening = _Opening(link, request, last_event_id=last_event_id)
        try:
            link.machine.open_session(
                request,
                resume_token=token,
                auth=self._auth,
                features=features,
                resume_from=ResumeFrom(last_event_id=last_event_id) if token and last_event_id else None,
            )
        except NnrpLocalError as early:
            if early.outcome is not Outcome.BAD_STATE:
                raise
            raise NnrpConnectionLost("the connection is being made again, or is closing") from early
        self._waiting.append(opening)
        link.flush()
        try:
            await self._connection.wait_answer(opening.answered, "SESSION_OPEN")
        except BaseException:
            self._give_up(opening)
            raise
        if opening.error is not None:
            raise opening.error
        assert opening.session is not None
        return opening.session

    def spare_id(self, link: Link) -> int:
        """The id to ask for, 0 where the server may choose. It knows nothing on a new connection of the sessions that are still to
        be resumed there, and would give out the id of one."""
        if not self._connection.resuming or all(each.attached for each in self._sessions.values()):
            return 0
        taken = {
            *self._sessions,
            *link.machine.sessions,
            *[each.request.requested_session_id for each in self._waiting],
        }
        return next(each for each in count(1) if each not in taken)

    # Coming back

    def resume_all(self, link: Link) -> None:
        """Ask for every session there is on a new connection."""
        for session in list(self._sessions.values()):
            self.resume(link, session)
        if self._waiting:
            self._nursery.start_soon(self._watch, tuple(self._waiting))

    def resume(self, link: Link, session: NnrpSession) -> None:
        """Ask for a session on another connection than it was on."""
        self._resume(_Opening(link, session.opened_with.replace(requested_session_id=session.session_id), session))

    def _resume(self, opening: _Opening) -> None:
        session = opening.resumed
        assert session is not None
        features = OperationFeatures(session.machine.terms.features)
        watermark = ResumeFrom(last_event_id=session.cursor) if features else None
        opening.link.machine.open_session(
            opening.request,
            resume_token=session.token,
            auth=self._auth,
            features=features,
            resume_from=watermark,
        )
        self._waiting.append(opening)

    # What happens

    def opened(self, link: Link, event: SessionOpened) -> None:
        opening = self._next(link)
        session = opening.resumed
        if session is None:
            session = NnrpSession(
                self._connection,
                opening.request,
                event.session,
                event.resume_token,
                opening.last_event_id,
                ordered=link.machine.ordered,
            )
            event.session.attachment = session
            self._sessions[session.session_id] = session
            opening.session = session
            if opening.given_up:
                self._give_up(opening)
        elif session.over or event.outcome is not ResumeOutcome.RESUMED:
            # What was opened afresh knows nothing of what is in flight, which would run a second time (nnrp-wire 13.7).
            self._drop(event.session)
            session.fail(NnrpSessionOver("the session could not be resumed: the server has opened another"))
        else:
            event.session.attachment = session
            once = session.attach(event.session, event.resume_token, ordered=link.machine.ordered)
            if once:
                self._nursery.start_soon(self._watch_once, session, once)
            self._connection.send_again(session)
            self._connection.go_on()
        opening.answered.set()

    def refused(self, link: Link, event: SessionRefused) -> None:
        opening = self._next(link)
        answer = event.packet.metadata
        assert isinstance(answer, SessionOpenAck)
        opening.error = NnrpRefused(
            f"the server refused the session: {event.outcome.name.lower()} ({answer.session_error_code:#010x})",
            answer.session_error_code,
            retry_later=answer.session_status is SessionStatus.RETRY_LATER,
        )
        session = opening.resumed
        if session is not None:
            delay = self._resume_delay(opening, session, answer)
            if delay is None:
                session.fail(NnrpSessionOver("the session could not be resumed"))
            else:
                self._nursery.start_soon(self._resume_again, opening, session, delay)
        opening.answered.set()

    def lost(self, link: Link, error: NnrpClientError) -> None:
        """The link is gone, or left, and no answer comes on it any more."""
        for opening in [each for each in self._waiting if each.link is link]:
            self._waiting.remove(opening)
            opening.error = error
            opening.answered.set()
            if opening.resumed is not None:
                opening.resumed.unheard = True

    # Inside

    def _next(self, link: Link) -> _Opening:
        """The one that the next answer on ``link`` is for."""
        opening = next(each for each in self._waiting if each.link is link)
        self._waiting.remove(opening)
        return opening

    def _give_up(self, opening: _Opening) -> None:
        """Nobody takes this session. Its answer may have come already, or comes later."""
        opening.given_up = True
        if opening.session is not None:
            self._drop(opening.session.machine)
            opening.session.fail(NnrpSessionOver("nobody waited for the session"))
            self._connection.flush()

    def _drop(self, session: Session) -> None:
        """Close at the server what nobody here wants."""
        if (machine := self._connection.machine) is not None and session.open:
            machine.close_session(session, trio.current_time(), policy=InFlightPolicy.ABORT)

    def _resume_delay(self, opening: _Opening, session: NnrpSession, answer: SessionOpenAck) -> float | None:
        """In how many seconds a resume that was refused is asked for again on the same connection; None: it is the end."""
        if answer.session_status is SessionStatus.RETRY_LATER and (policy := self._options.reconnect) is not None:
            if opening.backoff is None:
                opening.backoff = Backoff(policy, self._options.random)
            return opening.backoff.next_delay(trio.current_time(), at_least=policy.base)
        rejected = answer.session_error_code == SessionErrorCode.RESUME_REJECTED
        if rejected and session.unheard and not opening.again:
            opening.again = True
            return DOUBT
        return None

    async def _resume_again(self, opening: _Opening, session: NnrpSession, delay: float) -> None:
        """Ask once more after ``delay`` seconds. Once the connection is over, or closing, this is nothing to see to: the next one
        asks for every session that there is."""
        link = opening.link
        while not link.done.is_set():
            with trio.move_on_after(delay):
                await link.done.wait()
            if session.over or session.attached:
                return
            if self._connection.machine is link.machine and link.machine.state is ConnectionState.OPEN:
                once_more = _Opening(link, opening.request, session, opening.again, opening.backoff)
                self._resume(once_more)
                self._nursery.start_soon(self._watch, (once_more,))
                link.flush()
                return

    async def _watch(self, openings: tuple[_Opening, ...]) -> None:
        """A session whose resume the server does not answer is over, so that nobody waits for it for ever."""
        await trio.sleep(self._options.answer_timeout)
        for opening in openings:
            if not opening.answered.is_set() and opening.resumed is not None:
                opening.resumed.fail(NnrpConnectionLost("the server did not answer the resume in time"))

    async def _watch_once(self, session: NnrpSession, operations: list[Operation]) -> None:
        """What is sent once may have been lost with its connection: it is waited for no longer than any answer, and with a budget
        no longer than that."""
        machine, now = session.machine, trio.current_time()
        for each in sorted(operations, key=lambda each: each.deadline):
            await trio.sleep_until(min(now + self._options.answer_timeout, max(now, each.deadline) + OVERDUE))
            if session.over or session.machine is not machine or not session.attached:
                return
            if lose_unanswered(machine, each):
                self._connection.go_on()
