"""``GET /session/:id/events``: the session's events as a stream (rest.md section 6)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio
from quart import Blueprint, Response, request

from protocol.acp import EPOCH_HEADER, SSE_STREAM_ID_HEADER
from protocol.sse import comment_frame, retry_frame
from server.ground import Ground
from server.routes.cursor import read_cursor
from server.routes.rest.asking import client_header, session_of
from server.routes.rest.errors import INVALID_MAX_QUEUED, Refused
from server.routes.rest.frames import chunk, notice_frame, snapshot_frame
from server.sse import bear_with_current, event_stream, hurry_current
from server.telemetry import log
from sessions import NoticeType, Session, Subscription
from sessions.subscription import PROBATION, Item

__all__ = ["SessionReader", "register"]

MAX_QUEUED_RANGE: Final = (16, 2048)
RETRY_MS: Final = 3000
HEARTBEAT: Final = comment_frame("heartbeat")
_DECIMAL = re.compile(r"[0-9]{1,6}")


def register(routes: Blueprint, ground: Ground) -> None:
    writer_idle = ground.config.writer_idle_timeout_ms / 1000 or None

    @routes.get("/session/<session_id>/events")
    async def events(session_id: str) -> Response:
        """The session's events as a stream, from ``Last-Event-ID`` or live (REST-080 to REST-088).

        The subscription is made before anything is sent, so that a refusal is a plain status.
        """
        client_id = client_header()
        max_queued = _max_queued()
        session = session_of(ground, session_id, client_id)
        cursor, epoch = read_cursor(request.headers)
        subscription = session.subscribe(cursor, epoch=epoch, max_queued=max_queued)
        subscription.on_overdue = hurry_current(PROBATION)
        if writer_idle is not None:
            bear_with_current(writer_idle + PROBATION)
        snapshot = request.args.get("snapshot") == "1"
        reader = SessionReader(session, subscription, snapshot=snapshot and cursor is not None, writer_idle=writer_idle)
        opening = retry_frame(RETRY_MS)
        if snapshot and cursor is None:
            opening += snapshot_frame(session)
        return event_stream(
            reader.read,
            drain=ground.drain,
            heartbeat=ground.config.heartbeat,
            beat=HEARTBEAT,
            opening=opening,
            last=reader.last,
            closed=subscription.close,
            headers={EPOCH_HEADER: session.ring.epoch, SSE_STREAM_ID_HEADER: str(uuid.uuid4())},
        )


class SessionReader:
    """One stream's reading side: what `server.sse` asks for bytes. ``writer_idle`` in seconds.

    With ``snapshot`` a ``session_snapshot`` follows ``replay_complete`` (REST-086).
    """

    __slots__ = ("_failed", "_given_at", "_session", "_snapshot", "_subscription", "_writer_idle")

    def __init__(
        self,
        session: Session,
        subscription: Subscription,
        *,
        snapshot: bool = False,
        writer_idle: float | None = None,
    ) -> None:
        self._session = session
        self._subscription = subscription
        self._snapshot = snapshot
        self._writer_idle = writer_idle
        self._given_at: float | None = None
        self._failed = False

    async def read(self) -> bytes | None:
        """Everything pending; None at the end. Cancelling it loses nothing."""
        if self._failed:
            return None
        if self._writer_idle is not None and (late := self._accepted_late(self._writer_idle)) is not None:
            return late
        try:
            items = await self._subscription.take()
            if not items:
                return None
            made = self._chunk(items)
        except Exception as problem:
            return self._fail(problem)
        if self._writer_idle is not None:
            self._given_at = trio.current_time()
        return made

    def last(self) -> bytes:
        """What is still pending, and why the stream ends: the process does."""
        try:
            pending = self._chunk(self._subscription.take_nowait())
        except trio.WouldBlock:
            pending = b""
        data = {"error": "The server is shutting down", "errorKind": "daemon_draining"}
        return pending + self._notice(NoticeType.STREAM_ERROR, data)

    def _chunk(self, items: Sequence[Item]) -> bytes:
        session = self._session
        after_replay = self._snapshot_once if self._snapshot else None
        return chunk(session.ring, items, session.now_ms, after_replay)

    def _snapshot_once(self) -> bytes:
        self._snapshot = False
        return snapshot_frame(self._session)

    def _accepted_late(self, limit: float) -> bytes | None:
        """REST-087: the last chunk was accepted, but too late. A peer that never accepts it is cut off by the connection."""
        given_at, self._given_at = self._given_at, None
        idle = 0.0 if given_at is None else trio.current_time() - given_at
        if idle <= limit:
            return None
        self._failed = True
        self._subscription.close()
        return self._notice(
            NoticeType.CLIENT_EVICTED,
            {
                "reason": "writer_idle_timeout",
                "errorKind": "writer_idle_timeout",
                "idleForMs": round(idle * 1000),
                "timeoutMs": round(limit * 1000),
            },
        )

    def _fail(self, problem: Exception) -> bytes:
        log.error("event_stream_failed", session_id=self._session.id, exc_info=problem)
        self._failed = True
        self._subscription.close()
        return self._notice(NoticeType.STREAM_ERROR, {"error": "The event stream failed"})

    def _notice(self, type: NoticeType, data: Mapping[str, Any]) -> bytes:
        return notice_frame(type, data, self._session.now_ms())


def _max_queued() -> int | None:
    text = request.args.get("maxQueued")
    if text is None:
        return None
    low, high = MAX_QUEUED_RANGE
    if _DECIMAL.fullmatch(text) is None:
        raise Refused(INVALID_MAX_QUEUED, "`maxQueued` must be a decimal integer")
    if not low <= int(text) <= high:
        raise Refused(INVALID_MAX_QUEUED, f"`maxQueued` must be in [{low}, {high}]")
    return int(text)
