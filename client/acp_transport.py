"""What both ``/acp`` transports have in common: calls, methods and the meaning of messages."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from client.acp_calls import Call, PlainCall, PromptCall
from client.background import Background
from client.errors import DaemonConnectionError, DaemonError, DaemonHttpError, DaemonTransportClosedError, JsonRpcError
from client.events import BadEventError, Event, event_from_message
from client.http import Answer, HttpLink
from client.prompts import Ticket
from client.requests import PromptRequest, SessionRequest, Vote
from client.rest import rest_call, rest_capabilities, rest_health
from client.results import (
    Capabilities,
    Heartbeat,
    PromptOutcome,
    PromptReceipt,
    SessionInfo,
    SessionPage,
    heartbeat,
    session_info,
    session_page,
)
from client.transport import Transport
from protocol.acp import META_KEY, PROTOCOL_VERSION, QWEN_META_KEY, SESSION_REPLY_METHODS, RpcCode
from protocol.jsonrpc import (
    Id,
    Invalid,
    Message,
    PendingCalls,
    Request,
    Response,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
)

__all__ = ["AcpTransport", "AgentOffer", "ConnectionGoneError"]

NOT_OWNED = "is not owned by this connection"
"""What a daemon says to a session call on a connection that lost the session (ACP-121). The call was not executed."""


class ConnectionGoneError(Exception):
    """The daemon does not know the connection (any more). What was sent on it was not executed."""


@dataclass(frozen=True, slots=True)
class AgentOffer:
    """What ``initialize`` answered."""

    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def moorline(self) -> dict[str, Any] | None:
        """Our own extensions, ``None`` if the server has none (ACP-199)."""
        offered = self._meta().get(META_KEY)
        return offered if isinstance(offered, dict) else None

    @property
    def reply_methods(self) -> frozenset[str]:
        """Methods answered on the session stream: the server's list, else the built-in set (ACP-104)."""
        offered = (self.moorline or {}).get("sessionReplyMethods")
        if isinstance(offered, list) and all(isinstance(method, str) for method in offered):
            return frozenset(offered)
        return SESSION_REPLY_METHODS

    @property
    def connection_id(self) -> str | None:
        """For clients that cannot read the header (ACP-062)."""
        qwen = self._meta().get(QWEN_META_KEY)
        found = qwen.get("connectionId") if isinstance(qwen, dict) else None
        return found if isinstance(found, str) else None

    def _meta(self) -> dict[str, Any]:
        capabilities = self.raw.get("agentCapabilities")
        meta = capabilities.get("_meta") if isinstance(capabilities, dict) else None
        return meta if isinstance(meta, dict) else {}


class AcpTransport(Transport):
    """JSON-RPC methods as the calls of the interface. Subclasses move the messages.

    Background readers run in the nursery given to the subclass and end with ``aclose``.
    """

    always_reading = True

    def __init__(self, link: HttpLink, nursery: trio.Nursery) -> None:
        self._link = link
        self._background = Background(nursery)
        # Ids go on counting over reconnects: the answer to a prompt may arrive on a later connection.
        self._calls: PendingCalls[Call] = PendingCalls()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    @abc.abstractmethod
    def offer(self) -> AgentOffer:
        """What the current connection's ``initialize`` answered; empty before."""

    @property
    def silent_replies_stream(self) -> bool:
        offered = self.offer.moorline
        return offered is not None and offered.get("streamRoles", True) is True

    @abc.abstractmethod
    async def _transmit(self, payload: bytes, leaving: Callable[[], None] | None = None) -> None:
        """Open a connection if there is none, and send one message on it. ``leaving`` is called just before it is sent:
        whoever cancels this later than that does not know whether the message arrives.

        Raises :class:`ConnectionGoneError` if it certainly was not executed because its connection is gone, and
        :class:`DaemonConnectionError` if the connection failed.
        """

    async def rest(self, method: str, path: str, *, body: object = None, client_id: str | None = None) -> Answer:
        return await rest_call(self._link, method, path, body=body, client_id=client_id)

    async def health(self) -> None:
        await rest_health(self._link)

    async def capabilities(self) -> Capabilities:
        return await rest_capabilities(self._link)

    async def create_session(self, request: SessionRequest, client_id: str | None) -> SessionInfo:
        params = request.acp_params()
        if request.session_id is not None:
            params["_meta"] = {"qwen-code/sessionId": request.session_id}
        return await self._open_session("session/new", params)

    async def restore_session(
        self,
        session_id: str,
        request: SessionRequest,
        client_id: str | None,
        *,
        history: bool,
    ) -> SessionInfo:
        params = request.acp_params() | {"sessionId": session_id}
        return await self._open_session("session/load" if history else "session/resume", params, session_id=session_id)

    async def _open_session(self, method: str, params: dict[str, Any], *, session_id: str | None = None) -> SessionInfo:
        """Call what gives this connection a session."""
        return session_info(await self.call(method, params), session_id=session_id)

    async def list_sessions(self, cwd: str, *, size: int | None = None, cursor: str | None = None) -> SessionPage:
        params: dict[str, Any] = {"workspaceCwd": cwd, "cwd": cwd}
        if cursor is not None:
            params["cursor"] = cursor
        if size is not None:
            params["_meta"] = {"size": size}
        return session_page(await self.call("session/list", params))

    async def close_session(self, session_id: str, client_id: str | None) -> None:
        try:
            await self.session_call("session/close", session_id)
        except JsonRpcError as exc:
            if exc.rpc_code != RpcCode.INVALID_PARAMS:
                raise

    async def detach_session(self, session_id: str, client_id: str | None) -> None:
        # Not owned means detached already; taking ownership first would defeat the purpose.
        try:
            await self.call("_qwen/session/detach", {"sessionId": session_id})
        except JsonRpcError as exc:
            if exc.rpc_code != RpcCode.INVALID_PARAMS:
                raise

    async def heartbeat(self, session_id: str, client_id: str | None) -> Heartbeat:
        return heartbeat(await self.session_call("_qwen/session/heartbeat", session_id), session_id)

    async def set_mode(self, session_id: str, mode: str, client_id: str | None) -> dict[str, Any]:
        result = await self.session_call("session/set_mode", session_id, {"modeId": mode})
        return result if isinstance(result, dict) else {}

    async def set_model(self, session_id: str, model_id: str, client_id: str | None) -> dict[str, Any]:
        result = await self.session_call("session/set_model", session_id, {"modelId": model_id})
        return result if isinstance(result, dict) else {}

    async def cancel(self, session_id: str, client_id: str | None) -> None:
        await self.notify("session/cancel", {"sessionId": session_id})

    async def vote(
        self,
        session_id: str,
        request_id: str,
        vote: Vote,
        client_id: str | None,
        *,
        outbound_id: Id | None = None,
    ) -> bool:
        if outbound_id is not None:
            with _as_connection_error("the vote"):
                await self._transmit(encode_result(outbound_id, vote.result()))
                return True
        params = vote.result() | {"requestId": request_id}
        try:
            await self.session_call("session/permission", session_id, params)
        except JsonRpcError as exc:
            if exc.status in (404, 409):
                return False
            raise
        return True

    async def send_prompt(
        self, session_id: str, request: PromptRequest, ticket: Ticket, client_id: str | None
    ) -> PromptReceipt:
        params = request.body() | {"sessionId": session_id}
        for last in (False, True):
            id = self._calls.register(PromptCall(ticket))
            try:
                await self._transmit(encode_request(id, "session/prompt", params), ticket.note_sent)
            except ConnectionGoneError as exc:
                ticket.sent = ticket.lost = False
                self._calls.forget(id)
                if last:
                    raise DaemonConnectionError(str(exc), maybe_sent=False) from exc
                await self.recover_session(session_id)
            except BaseException as exc:
                # A prompt that was given up on its way may run all the same, and then its answer settles the ticket.
                if isinstance(exc, DaemonError) or not ticket.sent:
                    self._calls.forget(id)
                raise
            else:
                return PromptReceipt(None)
        raise AssertionError("the loop returns or raises")

    async def abandon_prompt(self, session_id: str, ticket: Ticket, client_id: str | None) -> None:
        await self.cancel(session_id, client_id)

    async def prompt_outcome(self, session_id: str, prompt_id: str) -> PromptOutcome | None:
        return None

    async def call(self, method: str, params: dict[str, Any], *, call: PlainCall | None = None) -> Any:
        """The result of one request.

        Registered before it is sent (CLI-030). A connection that turns out to be gone is replaced and the request
        repeated once: it had not been executed.
        """
        call = call or PlainCall()
        try:
            return await self._call_once(method, params, call)
        except ConnectionGoneError:
            # The first attempt may have been failed with its connection.
            with _as_connection_error(method):
                return await self._call_once(method, params, call.again())

    async def session_call(self, method: str, session_id: str, params: dict[str, Any] | None = None) -> Any:
        """Like :meth:`call`; if the connection has lost the session, take it back and repeat once."""
        all_params = {"sessionId": session_id} | (params or {})
        try:
            return await self.call(method, all_params)
        except JsonRpcError as exc:
            if not is_ownership_error(exc):
                raise
        await self.recover_session(session_id)
        return await self.call(method, all_params)

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification."""
        payload = encode_notification(method, params)
        with _as_connection_error(method):
            await self._transmit(payload)

    async def _call_once(self, method: str, params: dict[str, Any], call: PlainCall) -> Any:
        id = self._calls.register(call)
        try:
            await self._transmit(encode_request(id, method, params))
            return await call.wait()
        finally:
            self._calls.forget(id)

    def _deliver(self, message: Message, id_line: str | None = None, size: int = 0) -> Event | None:
        """Route one message: answers to their callers at once, the event in anything else to the reader (CLI-031)."""
        match message:
            case Response():
                call = self._calls.settle(message.id)
                if call is not None:
                    call.answer(message)
                return None
            case Invalid():
                raise BadEventError(f"{message.problem.value}: {message.detail}")
            case _:
                event = event_from_message(message, id_line, size)
                if event is None and isinstance(message, Request):
                    self._background.spawn(self._refuse, message)
                return event

    async def _refuse(self, request: Request) -> None:
        # A daemon never asks its clients for files or terminals (ACP-198); an agent that does must not wait for ever.
        payload = encode_error(request.id, RpcCode.METHOD_NOT_FOUND, f"Unknown method: {request.method}")
        with contextlib.suppress(ConnectionGoneError, DaemonConnectionError, DaemonHttpError):
            await self._transmit(payload)

    def _connection_lost(self, reason: str) -> None:
        """Tell every call whose request went out on the connection."""
        error = DaemonConnectionError(reason, maybe_sent=True)
        for id in self._calls:
            call = self._calls.settle(id)
            if call is not None and call.connection_lost(error):
                self._calls.restore(id, call)

    def _fail_everything(self) -> None:
        for call in self._calls.drain():
            call.fail(DaemonTransportClosedError("the transport is closed"))

    def _initialize_params(self) -> dict[str, Any]:
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}},
            "clientInfo": {"name": "moorline-client", "version": "1"},
        }


def is_ownership_error(exc: JsonRpcError) -> bool:
    """Whether the call was refused because this connection does not own the session."""
    return exc.rpc_code == RpcCode.INVALID_PARAMS and NOT_OWNED in exc.message


@contextlib.contextmanager
def _as_connection_error(what: str) -> Any:
    try:
        yield
    except ConnectionGoneError as exc:
        raise DaemonConnectionError(f"{what}: {exc}", maybe_sent=False) from exc
