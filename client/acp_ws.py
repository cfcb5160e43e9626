"""``/acp`` over a WebSocket: one socket for everything (client-sdk section 4.2, ACP-230 to ACP-241).

A plain server sends no event ids here, so nothing can be resumed: after a drop the session is loaded again and the
reader is told that it missed something (CLI-038). A moorline server keeps the session of a client that asked for it
(``_meta.moorline.detach``) and continues from a cursor on a new socket.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import trio

from client.acp_calls import PlainCall
from client.acp_transport import AcpTransport, AgentOffer, ConnectionGoneError
from client.deadline import limited
from client.errors import DaemonConnectionError, DaemonHttpError, DaemonTransportClosedError, JsonRpcError
from client.events import BadEventError, Event
from client.http import HttpLink
from client.requests import SessionRequest
from client.results import SessionInfo, session_info
from client.sse_feed import report_bad_event
from client.transport import Feed, StreamRequest, TransportKind
from client.ws_inbox import Inbox, missed_events
from client.ws_socket import Socket, SocketOptions, run_socket
from protocol.acp import META_KEY, MOORLINE_SESSION_ATTACH, RpcCode
from protocol.jsonrpc import encode_request, parse_message

__all__ = ["AcpWsTransport"]


@attrs.define(eq=False)
class _Line:
    """One socket and what belongs to it."""

    socket: Socket | None = None
    offer: AgentOffer | None = None
    owned: set[str] = attrs.Factory(set)
    loaded: set[str] = attrs.Factory(set)
    inboxes: dict[str, Inbox] = attrs.Factory(dict)
    lost: bool = False

    @property
    def resumable(self) -> bool:
        """Whether the server keeps our sessions when the socket is lost."""
        moorline = self.offer.moorline if self.offer is not None else None
        if moorline is None:
            return False
        methods = moorline.get("methods")
        return moorline.get("detach") is True or (isinstance(methods, list) and MOORLINE_SESSION_ATTACH in methods)

    def own(self, session_id: str) -> Inbox:
        """From now on this socket carries the session's events."""
        self.owned.add(session_id)
        return self.inboxes.setdefault(session_id, Inbox())

    def inbox_of(self, event: Event) -> Inbox | None:
        """Where an event belongs. One that names no session can only be placed while there is one session."""
        if event.session_id is not None:
            return self.inboxes.get(event.session_id)
        return next(iter(self.inboxes.values())) if len(self.inboxes) == 1 else None


class AcpWsTransport(AcpTransport):
    """One socket at a time, opened when first needed and again after a drop. Timeouts are in seconds."""

    kind = TransportKind.ACP_WS

    def __init__(
        self, link: HttpLink, nursery: trio.Nursery, *, idle_timeout: float = 45.0, open_timeout: float = 30.0
    ) -> None:
        super().__init__(link, nursery)
        headers = {} if link.token is None else {"Authorization": f"Bearer {link.token}"}
        self._options = SocketOptions(
            url=link.base_url + "/acp",
            headers=headers,
            connect=link.connect,
            ssl_context=link.ssl_context,
            open_timeout=open_timeout,
            idle_timeout=idle_timeout,
        )
        self._line: _Line | None = None
        self._sockets: dict[Socket, None] = {}
        """Those that have not ended, given up or not."""
        self._was_open = False
        self._opening = trio.Lock()

    @property
    def supports_replay(self) -> bool:
        return self._line is not None and self._line.resumable

    @property
    def silent_replies_stream(self) -> bool:
        # A socket has no role: the server takes it for a consumer.
        return False

    @property
    def offer(self) -> AgentOffer:
        return (self._line.offer if self._line is not None else None) or AgentOffer()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._fail_everything()
        for socket in tuple(self._sockets):
            await socket.aclose()
        await self._background.aclose()
        await self._link.aclose()

    async def recover_session(self, session_id: str) -> SessionInfo:
        line = await self._ensure()
        # With a cursor the gap is replayed after a resume; without one only a load can bring it back.
        info = await self.restore_session(session_id, SessionRequest(), None, history=not line.resumable)
        if self._line is not None:
            self._line.loaded.add(session_id)
        return info

    async def open_stream(self, request: StreamRequest) -> Feed:
        line = await self._ensure()
        session_id = request.session_id
        if line.resumable and request.cursor is not None and await self._attach(line, request):
            line.loaded.discard(session_id)
            return _WsFeed(line.inboxes[session_id], [], replays=True)
        if line.lost:
            # The call may have gone out on the next socket, which carries the events now; this one's inbox stays empty.
            raise DaemonConnectionError("the socket is lost", maybe_sent=False)
        if session_id not in line.owned:
            raise DaemonHttpError(403, None, f"session {session_id} is not owned by this socket")
        first = [missed_events("reconnected")] if session_id in line.loaded else []
        line.loaded.discard(session_id)
        return _WsFeed(line.own(session_id), first, replays=False)

    async def _attach(self, line: _Line, request: StreamRequest) -> bool:
        assert request.cursor is not None
        params: dict[str, Any] = {"sessionId": request.session_id, "lastEventId": request.cursor}
        if request.epoch is not None:
            params["epoch"] = request.epoch
        next_id = request.cursor + 1

        def number_from_here(result: Any) -> None:
            line.owned.add(request.session_id)
            line.inboxes[request.session_id] = Inbox(next_id)

        try:
            await self.call(MOORLINE_SESSION_ATTACH, params, call=PlainCall(number_from_here))
        except JsonRpcError as exc:
            if exc.rpc_code in (RpcCode.INVALID_PARAMS, RpcCode.METHOD_NOT_FOUND):
                return False
            raise
        return not line.lost

    async def _open_session(self, method: str, params: dict[str, Any], *, session_id: str | None = None) -> SessionInfo:
        def own(result: Any) -> None:
            # Synchronously, with the answer: the very next message may be an event of the session.
            if self._line is not None:
                self._line.own(session_info(result, session_id=session_id).session_id)

        if session_id is not None:
            # A history may even come before the answer.
            line = await self._ensure()
            line.inboxes.setdefault(session_id, Inbox())
        return session_info(await self.call(method, params, call=PlainCall(own)), session_id=session_id)

    async def _transmit(self, payload: bytes, leaving: Callable[[], None] | None = None) -> None:
        line = await self._ensure()
        assert line.socket is not None
        if leaving is not None:
            leaving()
        try:
            await line.socket.send(payload)
        except DaemonConnectionError as exc:
            # Its runner may need a moment to notice; the next message must not be tried on it again.
            line.socket.close()
            self._lose(line, str(exc))
            if exc.maybe_sent:
                raise
            raise ConnectionGoneError(str(exc)) from exc

    async def _ensure(self) -> _Line:
        if self._line is not None and self._line.offer is not None and not self._closed:
            return self._line
        async with self._opening:
            if self._closed:
                raise DaemonTransportClosedError("the transport is closed")
            if self._line is None:
                try:
                    return await self._open()
                except DaemonConnectionError as exc:
                    if self._was_open:
                        raise DaemonTransportClosedError(f"the daemon is gone: {exc}") from exc
                    raise
            return self._line

    async def _open(self) -> _Line:
        line = _Line()
        socket: Socket = await self._background.start(self._run, line)
        line.socket = socket
        self._sockets[socket] = None
        self._line = line
        params = self._initialize_params() | {"_meta": {META_KEY: {"detach": True}}}
        call = PlainCall()
        id = self._calls.register(call)
        try:
            with limited(self._options.open_timeout, "initialize"):
                await socket.send(encode_request(id, "initialize", params))
                result = await call.wait()
            line.offer = AgentOffer(result if isinstance(result, dict) else {})
            self._was_open = True
            return line
        finally:
            self._calls.forget(id)
            if line.offer is None:
                socket.close()
                self._lose(line, "initialize failed")

    async def _run(  # noqa: ASYNC128 - the socket reports
        self, line: _Line, *, task_status: trio.TaskStatus[Socket]
    ) -> None:
        reason = "closed"
        try:
            reason = await run_socket(self._options, functools.partial(self._take, line), task_status=task_status)
        finally:
            if line.socket is not None:
                self._sockets.pop(line.socket, None)
            self._lose(line, reason)

    async def _take(self, line: _Line, text: str) -> None:
        try:
            event = self._deliver(parse_message(text), size=len(text))
        except BadEventError as exc:
            report_bad_event(exc, text)
            return
        inbox = line.inbox_of(event) if event is not None else None
        if event is not None and inbox is not None:
            inbox.put(event)
            await inbox.wait_room()

    def _lose(self, line: _Line, reason: str) -> None:
        if line.lost:
            return
        line.lost = True
        for inbox in line.inboxes.values():
            inbox.close(f"the socket is lost: {reason}")
        if self._line is line:
            self._line = None
            self._connection_lost(f"the socket is lost: {reason}")


class _WsFeed(Feed):
    heartbeats = False  # pings are answered below, and silence is noticed for the socket as a whole

    def __init__(self, inbox: Inbox, first: list[Event], *, replays: bool) -> None:
        self.replays = replays
        self._inbox = inbox
        self._first = first
        inbox.claim()

    @property
    def retry(self) -> float | None:
        return None

    async def receive(self) -> list[Event]:
        if self._first:
            first, self._first = self._first, []
            await trio.lowlevel.checkpoint()
            return first
        return await self._inbox.take()

    async def aclose(self) -> None:
        self._inbox.leave()
