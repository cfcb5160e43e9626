"""Follows one session's stream through drops, restarts and silence (CLI-021 to CLI-026, CLI-031)."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from typing import Any, Protocol

import attrs
import trio

from client.backoff import Backoff, ReconnectPolicy
from client.deadline import limited
from client.errors import (
    DaemonConnectionError,
    DaemonError,
    DaemonHttpError,
    DaemonStreamEndedError,
    DaemonTransportClosedError,
    SseFramingError,
)
from client.events import END_OF_SESSION, SYNTHETIC_TYPES, Event
from client.requests import SessionRequest
from client.results import SessionInfo
from client.transport import Feed, StreamRequest, Transport
from client.ws_inbox import is_own_notice

__all__ = ["EventSink", "ReaderOptions", "SessionReader"]

logger = logging.getLogger("moorline.client")

CHECKPOINT_EVERY = 64
"""Events handled between two chances for other tasks to run."""


class EventSink(Protocol):
    """Who gets what a reader reads. All synchronous: a reader never waits for anybody."""

    def take(self, event: Event) -> None:
        """One event, each once and in order, or after a resync notice."""

    def interrupted(self) -> None:
        """The stream was lost; answers may have been lost with it."""

    def reopened(self) -> None:
        """The stream is open again after an interruption."""

    def recovered(self, session: SessionInfo) -> None:
        """The session was taken back on a new connection, or from storage."""

    def reloaded(self, session: SessionInfo) -> None:
        """Events were lost, and the session's state was loaded again."""

    def ids_start_again(self) -> None:
        """The session's event ids are counted anew."""

    def finish(self, failure: Exception | None) -> None:
        """Nothing more comes: ``None`` after the session's end, else why."""


@attrs.frozen
class ReaderOptions:
    """Times in seconds. ``reload_on_resync`` is CLI-025: load the state again when events were lost."""

    policy: ReconnectPolicy = attrs.field(factory=ReconnectPolicy)
    idle_timeout: float = 45.0
    open_timeout: float = 30.0
    restore_timeout: float = 70.0
    reload_on_resync: bool = True


@attrs.define(eq=False, repr=False)
class SessionReader:
    """One task, started with :meth:`run`, that keeps a session's stream open.

    ``cursor`` is the last event seen and only grows, except when the session's ids start again. The stream is live
    only while it is ``None``. ``consumer`` says whether somebody reads the events or the stream only brings answers.
    """

    transport: Transport
    session_id: str
    sink: EventSink
    rng: random.Random
    options: ReaderOptions = attrs.field(factory=ReaderOptions)
    cursor: int | None = None
    epoch: str | None = None
    client_id: str | None = None
    consumer: bool = True

    opened: trio.Event = attrs.field(init=False, factory=trio.Event)
    done: trio.Event = attrs.field(init=False, factory=trio.Event)
    reconnects: int = attrs.field(init=False, default=0)
    duplicates: int = attrs.field(init=False, default=0)
    _scope: trio.CancelScope | None = attrs.field(init=False, default=None)
    _stopped: bool = attrs.field(init=False, default=False)
    _restarting: bool = attrs.field(init=False, default=False)
    _resync: Event | None = attrs.field(init=False, default=None)
    _progress: int = attrs.field(init=False, default=0)
    _interrupted: bool = attrs.field(init=False, default=False)
    _retry: float | None = attrs.field(init=False, default=None)
    _ended: bool = attrs.field(init=False, default=False)
    _replaying: bool = attrs.field(init=False, default=False)
    """An end of the session that is replayed is a former one when more follows: it was loaded again since."""

    def restart(self, cursor: int | None, *, consumer: bool) -> None:
        """Leave the stream and open it again at ``cursor``, at once."""
        self.cursor = cursor
        self.consumer = consumer
        self.opened = trio.Event()
        self._restarting = True
        self._wake()

    def stop(self) -> None:
        """End the task. Nothing is reported to the sink any more."""
        self._stopped = True
        self._wake()

    async def run(self) -> None:
        """Never raises but for cancellation: failures go to the sink."""
        failure: Exception | None = None
        try:
            await self._follow()
        except (DaemonError, SseFramingError) as exc:
            failure = exc
        except Exception as exc:  # fault barrier: a bug here must not end the caller's nursery
            logger.exception("the reader of session %s failed", self.session_id)
            failure = DaemonError(f"internal error: {exc!r}")
        finally:
            self.done.set()
            self.opened.set()
        if not self._stopped:
            self.sink.finish(failure)

    async def _follow(self) -> None:
        backoff = Backoff(self.options.policy, self.rng)
        while not self._stopped:
            progress, failure = self._progress, None
            with trio.CancelScope() as self._scope:
                failure = await self._read_once()
            self._scope = None
            if self._stopped or self._ended:
                return
            if self._resync is not None:
                await self._reload(self._resync)
                continue
            if self._restarting:
                backoff.reset()
                continue
            if self._progress != progress:
                backoff.reset()
            self.reconnects += 1
            self._interrupted = True
            logger.info("session %s: the stream is lost (%s), trying again", self.session_id, failure or "it ended")
            self.sink.interrupted()
            await self._prepare_retry(failure, backoff)

    async def _read_once(self) -> DaemonError | None:
        """Read one stream to its end; the error is why it ended, ``None`` if in good order."""
        self._restarting = False
        request = StreamRequest(self.session_id, self.cursor, self.epoch, self.client_id, self.consumer)
        try:
            with limited(self.options.open_timeout, "the session stream"):
                feed = await self.transport.open_stream(request)
        except (DaemonConnectionError, DaemonHttpError) as exc:
            return exc
        except DaemonTransportClosedError as exc:
            if self.transport.closed:
                raise
            return exc
        try:
            self.epoch = feed.epoch or self.epoch
            if self._interrupted:
                self._interrupted = False
                self.sink.reopened()
                logger.info("session %s: following again from event %s", self.session_id, self.cursor)
            self.opened.set()
            self._replaying = feed.replays and self.cursor is not None
            return await self._drain(feed)
        finally:
            self._retry = feed.retry if feed.retry is not None else self._retry
            await feed.aclose()

    async def _drain(self, feed: Feed) -> DaemonError | None:
        patience = self.options.idle_timeout if feed.heartbeats else float("inf")
        while True:
            try:
                with limited(patience, "the session stream is silent"):
                    events = await feed.receive()
            except trio.EndOfChannel:
                return None
            except DaemonConnectionError as exc:
                return exc
            for count, event in enumerate(events, start=1):
                if not self._take(event):
                    return None
                if count % CHECKPOINT_EVERY == 0:
                    await trio.lowlevel.checkpoint()

    def _take(self, event: Event) -> bool:
        """Handle one event; false if the stream must be left."""
        if event.type == "state_resync_required":
            return self._take_resync(event)
        if event.id is not None:
            if self.cursor is not None and event.id <= self.cursor:
                self.duplicates += 1
                return True
            self.cursor = event.id
        if event.type not in SYNTHETIC_TYPES:
            self._progress += 1
        self.sink.take(event)
        if event.type == "replay_complete":
            self._replaying = False
        elif event.type not in SYNTHETIC_TYPES:
            self._ended = event.type in END_OF_SESSION
        # The sink may have asked for another stream.
        return not ((self._ended and not self._replaying) or self._restarting or self._stopped)

    def _take_resync(self, event: Event) -> bool:
        data = event.data if isinstance(event.data, dict) else {}
        reason = data.get("reason")
        if is_own_notice(event):
            self.sink.take(event)
            return True
        if reason == "replay_budget_exceeded":
            # Only this replay was cut short: the rest is still there, behind the last id delivered (ACP-015).
            return False
        earliest = data.get("earliestAvailableId")
        resume_at = earliest - 1 if isinstance(earliest, int) and earliest > 0 else None
        if reason == "epoch_reset":
            self.sink.ids_start_again()
            self.cursor = resume_at if resume_at is not None else 0
        elif resume_at is not None:
            self.cursor = max(self.cursor or 0, resume_at)
        self.sink.take(replace(event, moves_cursor_to=self.cursor))
        self._resync = event
        # Without reloading the replay that follows is all there is.
        return not self.options.reload_on_resync

    async def _reload(self, resync: Event) -> None:
        self._resync = None
        with trio.CancelScope() as self._scope:
            try:
                with limited(self.options.restore_timeout, "load"):
                    session = await self.transport.restore_session(
                        self.session_id, SessionRequest(), None, history=True
                    )
            except (DaemonConnectionError, DaemonHttpError, DaemonTransportClosedError) as exc:
                # The stream goes on behind the gap; its reader knows about the gap.
                logger.warning("session %s could not be loaded again: %s", self.session_id, exc)
                return
            self._adopt(session, resync)
        self._scope = None

    def _adopt(self, session: SessionInfo, resync: Event) -> None:
        self.sink.reloaded(session)
        if session.history is None or session.last_event_id is None:
            return
        self.cursor = session.last_event_id
        self.epoch = session.epoch or self.epoch
        data: dict[str, Any] = {
            "sessionId": self.session_id,
            "reason": resync.data.get("reason") if isinstance(resync.data, dict) else None,
            "lastEventId": session.last_event_id,
            "history": list(session.history),
        }
        self.sink.take(
            Event("session_reloaded", data, session_id=self.session_id, moves_cursor_to=session.last_event_id)
        )

    async def _prepare_retry(self, failure: DaemonError | None, backoff: Backoff) -> None:
        """Wait until it makes sense to try again. Raises ``failure`` when it does not."""
        at_least = 0.0
        if isinstance(failure, DaemonHttpError):
            if self._lost_ownership(failure):
                await self._recover(failure)
                if self._restarting or self._stopped:
                    return
            elif failure.status != 429 and failure.status < 500:
                raise failure
            at_least = failure.retry_after or 0.0
        delay = backoff.next_delay(trio.current_time(), retry=self._retry, at_least=at_least)
        if delay is None:
            raise failure or DaemonStreamEndedError("the stream ends again and again")
        with trio.CancelScope() as self._scope:
            await trio.sleep(delay)
        self._scope = None

    def _lost_ownership(self, failure: DaemonHttpError) -> bool:
        return failure.status in (403, 404) or failure.code == "invalid_client_id"

    async def _recover(self, failure: DaemonHttpError) -> None:
        with trio.CancelScope() as self._scope:
            try:
                with limited(self.options.restore_timeout, "recovery"):
                    session = await self.transport.recover_session(self.session_id)
            except DaemonHttpError as exc:
                if exc.status == 429 or exc.status >= 500:
                    return
                raise
            except (DaemonConnectionError, DaemonTransportClosedError):
                if self.transport.closed:
                    raise
                return
            self.client_id = session.client_id or self.client_id
            self.sink.recovered(session)
        self._scope = None

    def _wake(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
