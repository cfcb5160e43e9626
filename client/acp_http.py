"""``/acp`` over HTTP: POST for what we say, event streams for what we hear (client-sdk section 4)."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import attrs
import trio

from client.acp_transport import AcpTransport, AgentOffer, ConnectionGoneError
from client.backoff import Backoff, ReconnectPolicy
from client.deadline import limited
from client.errors import (
    DaemonConnectionError,
    DaemonError,
    DaemonHttpError,
    DaemonProtocolError,
    DaemonTransportClosedError,
    SseFramingError,
)
from client.events import BadEventError, Event
from client.http import HttpLink, StreamAnswer
from client.rest import cursor_headers
from client.results import SessionInfo, session_info
from client.sse_feed import SseFeed, report_bad_event
from client.transport import Feed, StreamRequest, TransportKind
from protocol.acp import CONNECTION_ID_HEADER, REPLIES_ROLE, SESSION_ID_HEADER, STREAM_ROLE_HEADER, RpcCode
from protocol.jsonrpc import InvalidJson, Response, decode_json, encode_request, parse_message
from protocol.sse import SseEvent

__all__ = ["AcpHttpTransport"]

logger = logging.getLogger("moorline.client")

_LEFT = "the connection of this stream is gone"

GOODBYE_TIMEOUT = 2.0
"""Seconds spent on telling the daemon that the connection is not needed any more."""


@attrs.define(eq=False)
class _Connection:
    id: str
    offer: AgentOffer
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    feeds: set[_SessionFeed] = attrs.Factory(set)
    """The session streams that are being read."""
    gone: bool = False


class _SessionFeed(SseFeed):
    """A session stream, which ends with the connection it belongs to.

    The server may go on sending on it, but answers to what is asked on another connection never come here.
    """

    def __init__(
        self, connection: _Connection, answer: StreamAnswer, translate: Callable[[SseEvent], Event | None]
    ) -> None:
        super().__init__(answer, translate)
        self._feeds = connection.feeds
        self._feeds.add(self)
        self._reading = trio.CancelScope()
        self._left = False

    async def receive(self) -> list[Event]:
        events: list[Event] = []
        if not self._left:
            with trio.CancelScope() as self._reading:
                events = await super().receive()
        if self._left:
            raise DaemonConnectionError(_LEFT, maybe_sent=False)
        return events

    def leave(self) -> None:
        """Make the reader give this stream up."""
        self._left = True
        self._reading.cancel()

    async def aclose(self) -> None:
        self._feeds.discard(self)
        await super().aclose()


class AcpHttpTransport(AcpTransport):
    """One ``/acp`` connection at a time, opened when first needed and replaced when the daemon has lost it.

    The connection stream has its own reader for as long as the connection lives; session streams are opened by
    whoever follows the session. Timeouts are in seconds.
    """

    kind = TransportKind.ACP_HTTP

    def __init__(
        self,
        link: HttpLink,
        nursery: trio.Nursery,
        *,
        rng: random.Random,
        policy: ReconnectPolicy | None = None,
        idle_timeout: float = 45.0,
        open_timeout: float = 30.0,
    ) -> None:
        super().__init__(link, nursery)
        self._rng = rng
        self._policy = policy or ReconnectPolicy()
        self._idle_timeout = idle_timeout
        self._open_timeout = open_timeout
        self._connection: _Connection | None = None
        self._was_open = False
        self._opening = trio.Lock()

    @property
    def supports_replay(self) -> bool:
        return True

    @property
    def offer(self) -> AgentOffer:
        return self._connection.offer if self._connection is not None else AgentOffer()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.scope.cancel()
            await self._say_goodbye(connection)
        self._fail_everything()
        await self._background.aclose()
        await self._link.aclose()

    async def open_stream(self, request: StreamRequest) -> Feed:
        connection = await self._ensure()
        headers = {CONNECTION_ID_HEADER: connection.id, SESSION_ID_HEADER: request.session_id}
        if not request.consumer:
            headers[STREAM_ROLE_HEADER] = REPLIES_ROLE
        headers |= cursor_headers(request)
        try:
            answer = await self._link.open_event_stream("/acp", headers=headers)
        except DaemonHttpError as exc:
            if exc.status == 404:
                self._drop(connection, "the daemon does not know the connection")
            raise
        if connection.gone:
            await answer.aclose()
            raise DaemonConnectionError(_LEFT, maybe_sent=False)
        return _SessionFeed(connection, answer, self._translate)

    async def recover_session(self, session_id: str) -> SessionInfo:
        params = {"sessionId": session_id, "mcpServers": []}
        try:
            result = await self.call("session/resume", params)
        except DaemonHttpError as exc:
            if getattr(exc, "rpc_code", None) != RpcCode.METHOD_NOT_FOUND:
                raise
            result = await self.call("session/load", params)
        return session_info(result, session_id=session_id)

    async def _transmit(self, payload: bytes, leaving: Callable[[], None] | None = None) -> None:
        connection = await self._ensure()
        if leaving is not None:
            leaving()
        answer = await self._link.request(
            "POST", "/acp", headers={CONNECTION_ID_HEADER: connection.id}, content=payload
        )
        if answer.status == 404:
            self._drop(connection, "the daemon does not know the connection")
            raise ConnectionGoneError("the daemon does not know the connection")
        if not answer.ok:
            raise answer.error("POST /acp")
        if answer.content.strip():
            # An answer in the POST itself is as good as one on a stream (client-sdk K1).
            self._take_inline_answer(answer.content)

    async def _ensure(self) -> _Connection:
        if self._connection is not None:
            return self._connection
        async with self._opening:
            if self._closed:
                raise DaemonTransportClosedError("the transport is closed")
            if self._connection is None:
                self._connection = await self._open_connection()
                self._background.spawn(self._read_connection_stream, self._connection)
            return self._connection

    async def _open_connection(self) -> _Connection:
        try:
            connection = await self._initialize()
        except DaemonConnectionError as exc:
            if self._was_open:
                raise DaemonTransportClosedError(f"the daemon is gone: {exc}") from exc
            raise
        self._was_open = True
        return connection

    async def _initialize(self) -> _Connection:
        with limited(self._open_timeout, "initialize"):
            answer = await self._link.request(
                "POST", "/acp", content=encode_request(0, "initialize", self._initialize_params())
            )
        if not answer.ok:
            raise answer.error("initialize")
        message = parse_message(answer.content)
        if not isinstance(message, Response) or message.result is None:
            raise DaemonProtocolError("initialize was not answered with a result")
        try:
            result = decode_json(message.result)
        except InvalidJson as exc:
            raise DaemonProtocolError(f"initialize: {exc}") from exc
        offer = AgentOffer(result if isinstance(result, dict) else {})
        connection_id = answer.headers.get(CONNECTION_ID_HEADER) or offer.connection_id
        if connection_id is None:
            raise DaemonProtocolError("initialize gave no connection id")
        return _Connection(connection_id, offer)

    async def _read_connection_stream(self, connection: _Connection) -> None:
        with connection.scope:
            try:
                await self._follow_connection_stream(connection)
            except (DaemonError, SseFramingError) as exc:
                self._drop(connection, str(exc))
            except Exception as exc:  # fault barrier: a bug here must not end the caller's nursery
                logger.exception("the reader of the connection stream failed")
                self._drop(connection, f"internal error: {exc!r}")

    async def _follow_connection_stream(self, connection: _Connection) -> None:
        backoff = Backoff(self._policy, self._rng)
        retry: float | None = None
        while not connection.gone:
            failure: DaemonError = DaemonConnectionError("the connection stream ended", maybe_sent=False)
            at_least = 0.0
            try:
                feed = await self._open_connection_stream(connection, backoff)
            except DaemonConnectionError as exc:
                failure = exc
            except DaemonHttpError as exc:
                if exc.status < 500 and exc.status != 429:
                    raise
                failure, at_least = exc, exc.retry_after or 0.0
            else:
                await self._read_until_end(feed)
                retry = feed.retry if feed.retry is not None else retry
            delay = backoff.next_delay(trio.current_time(), retry=retry, at_least=at_least)
            if delay is None:
                raise failure
            await trio.sleep(delay)

    async def _open_connection_stream(self, connection: _Connection, backoff: Backoff) -> SseFeed:
        with limited(self._open_timeout, "the connection stream"):
            answer = await self._link.open_event_stream("/acp", headers={CONNECTION_ID_HEADER: connection.id})

        def translate(frame: SseEvent) -> Event | None:
            backoff.reset()
            return self._translate(frame)

        return SseFeed(answer, translate)

    async def _read_until_end(self, feed: SseFeed) -> None:
        try:
            while True:
                with trio.move_on_after(self._idle_timeout) as patience:
                    await feed.receive()
                if patience.cancelled_caught:
                    return
        except (trio.EndOfChannel, DaemonConnectionError):
            return
        finally:
            await feed.aclose()

    def _take_inline_answer(self, content: bytes) -> None:
        try:
            self._translate_text(content)
        except BadEventError as exc:
            report_bad_event(exc, content.decode("utf-8", "replace"))

    def _translate(self, frame: SseEvent) -> Event | None:
        return self._translate_text(frame.data.encode("utf-8", "replace"), frame.id, len(frame.data))

    def _translate_text(self, text: bytes, id_line: str | None = None, size: int = 0) -> Event | None:
        return self._deliver(parse_message(text), id_line, size)

    def _drop(self, connection: _Connection, reason: str) -> None:
        if connection.gone:
            return
        connection.gone = True
        connection.scope.cancel()
        for feed in tuple(connection.feeds):
            feed.leave()
        if self._connection is connection:
            self._connection = None
            self._connection_lost(reason)

    async def _say_goodbye(self, connection: _Connection) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + GOODBYE_TIMEOUT):
            try:
                await self._link.request("DELETE", "/acp", headers={CONNECTION_ID_HEADER: connection.id})
            except DaemonError as exc:
                # The daemon notices by itself when the grace is over.
                logger.debug("the connection could not be given back: %s", exc)
