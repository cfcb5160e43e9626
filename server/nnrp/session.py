"""A session as this server holds it: it outlives the connection when it can be resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from protocol.layout import Buffer
from protocol.nnrp.enums import ConnectionState, ErrorCode, OperationFeatures, OperationState, SessionState
from protocol.nnrp.machines.cache_records import CachePool
from protocol.nnrp.machines.history import RisingIds
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.session import Session
from server.nnrp.journal import Journal
from server.nnrp.policy import Principal
from server.nnrp.results import PlainResults, drop_parts
from server.nnrp.reuse import LatestResults, Reusable
from server.nnrp.submit import Submit, Worker
from sessions.operation import CancelReason

if TYPE_CHECKING:
    from server.nnrp.driver import Link
    from server.nnrp.following import Follower
    from server.nnrp.running import Running

__all__ = ["SILENCE", "Doubt", "ServedSession"]

_CLOSED: Final = ConnectionState.CLOSED
SILENCE: Final = 2.0
"""Seconds after which a session that was resumed, and that nothing was heard of, may be one whose client never knew."""


@attrs.frozen(slots=True)
class Doubt:
    """A resume whose answer may not have arrived."""

    tokens: tuple[bytes, ...]
    """The one it was asked for with, and, where that was a former one, those after it: the request may have been under way for
    long, and the client have the answer to a later one."""
    ping: int
    """Which PING of its connection stands behind the answer; 0 where the client's dialect reads none."""
    since: float


class ServedSession:
    """One NNRP session. ``machine`` is its state on the connection it is on, or was on last; ``link`` that connection's
    driver, None while it is detached. No task and no worker before its first operation."""

    __slots__ = (
        "_latest",
        "coming",
        "doubt",
        "expires_at",
        "follower",
        "journal",
        "last_event_id",
        "link",
        "machine",
        "over",
        "plain_results",
        "principal",
        "received",
        "reuse_pool",
        "token",
        "worker",
    )

    def __init__(self, machine: Session, link: Link | None, principal: Principal, reuse_pool: CachePool) -> None:
        self.machine = machine
        self.link = link
        self.principal = principal
        self.worker: Worker | None = None
        self.journal: Journal | None = None
        self.received: RisingIds | None = None
        """Frame ids of every submit that was accepted, over all connections; kept where the session can be resumed."""
        self.coming: set[int] = set()
        """Frames of earlier connections whose terminal message the present one brings: they were in flight when it took the
        session over, or had ended and are sent again."""
        self.token: bytes | None = None
        self.doubt: Doubt | None = None
        """Set by a resume, until something shows that its answer, with the new token, has arrived."""
        self.expires_at = 0.0
        self.follower: Follower | None = None
        """Brings what happens in the engine session behind it; that session's ring then numbers its events."""
        self.last_event_id = 0
        self.reuse_pool = reuse_pool
        self._latest: LatestResults | None = None
        self.over = False
        self.plain_results = PlainResults()
        machine.attachment = self

    @property
    def tag(self) -> int:
        """What names the session in logs; 0 for an implicit one."""
        return self.machine.terms.server_session_tag

    @property
    def resumable(self) -> bool:
        return self.token is not None

    @property
    def in_doubt(self) -> bool:
        """Whether the client may still hold the token before this one: nothing shows that it has the answer to its resume,
        and its connection was cut, or has let us wait for so long that it may be half dead."""
        doubt = self.doubt
        return doubt is not None and (self.link is None or trio.current_time() - doubt.since >= SILENCE)

    @property
    def tells_state(self) -> bool:
        return bool(self.machine.terms.features & int(OperationFeatures.OPERATION_STATE))

    def brings_end_of(self, frame_id: int) -> bool:
        """Whether the present connection brings, or has brought, the terminal message of a frame that has arrived."""
        return frame_id in self.coming or self.machine.operations.used_frame(frame_id)

    def running(self) -> list[Running]:
        """What is being carried out, in the order of the submits."""
        if not self.machine.in_flight:
            return []
        attached = [each.attachment for each in self.machine.operations]
        return [each for each in attached if each is not None]  # type: ignore[misc]  # ours, set by `running.start`

    def next_event_id(self, given: int = 0) -> int:
        """The id of the next result event. An engine session's events have their own, given by its ring; what is no event of
        the ring has none, 0."""
        if given or self.follower is not None:
            self.last_event_id = max(given, self.last_event_id)
            return given
        self.last_event_id += 1
        return self.last_event_id

    def send(self, parts: list[Buffer], operation: Operation, event_id: int, *, flat: bool = False) -> None:
        """Keep a result packet for redelivery, and send it if anybody is there. Of an operation whose results are sent once
        only its end is kept: that it has ended, without them. One that is ``flat`` (`Answer.flat`) does not say its id."""
        if self.journal is not None and (operation.settled or not operation.sent_once):
            kept = parts
            if operation.sent_once:
                kept = drop_parts(
                    self.machine,
                    operation,
                    state=OperationState.FAILED,
                    error_code=int(ErrorCode.FRAME_EXPIRED),
                    event_id=event_id,
                )
            self.journal.add(
                event_id or self.last_event_id,
                operation.operation_id,
                tuple(kept),
                numbered=event_id != 0 and (not flat or operation.sent_once),
                ends=operation.frame_id if operation.settled else 0,
            )
        if self.follower is not None and self.follower.keep_back(event_id, parts):
            return
        if self.link is not None:
            self.link.writer.write(parts, result=True)

    def has_room(self, operation: Operation | None = None) -> bool:
        """Whether `wait_room` would not wait."""
        link = self.link
        if link is None or link.machine.state is _CLOSED:
            return True
        return not link.writer.is_full() and self.machine.may_push(operation)

    async def wait_room(self, operation: Operation | None = None) -> None:
        """Wait while the connection is full, or its peer has paused results: those of ``operation``, or of what happens beside
        the session's own. A session without a connection is bounded by its journal. Not a checkpoint when nothing has to be
        waited for."""
        while (link := self.link) is not None and not link.machine.closed:
            if link.writer.is_full():
                await link.writer.wait_news()
            elif not self.machine.may_push(operation):
                await link.wait_flow()
            else:
                return

    def latest_results(self) -> LatestResults:
        """What may be used again. Made when the first submit allows reuse."""
        if self._latest is None:
            self._latest = LatestResults(self.reuse_pool)
        return self._latest

    def forget_results(self) -> None:
        if self._latest is not None:
            self._latest.clear()
            self._latest = None

    def reusable(self, submit: Submit) -> Reusable | None:
        """An earlier result that may stand for the one of ``submit``."""
        if self._latest is None:
            return None
        stores = [self.machine.store, None if self.link is None else self.link.machine.store]
        return self._latest.find(submit, [each.cache for each in stores if each is not None], trio.current_time())

    def cancel_all(self, reason: CancelReason) -> None:
        for each in self.running():
            each.cancel(reason)

    @property
    def closed_here(self) -> bool:
        """Whether the session has ended by its own close, perhaps in the step that also ended its connection. One that ends
        with its connection is still among that one's sessions, and whoever concludes the connection sees to it."""
        machine, link = self.machine, self.link
        return (
            machine.state is SessionState.CLOSED
            and link is not None
            and link.machine.sessions.get(machine.session_id) is not machine
        )
