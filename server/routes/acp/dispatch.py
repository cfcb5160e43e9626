"""From one accepted message to its method and back: who may call, where the answer goes (acp-http 3.1, 5.1, 8)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import attrs

from protocol.acp import SESSION_REPLY_METHODS, RpcCode
from protocol.jsonrpc import Id, Invalid, Message, Notification, Request, Response, encode_error, encode_result
from server.routes.acp.binding import Binding
from server.routes.acp.connection import AcpConnection
from server.routes.acp.deferred import Reply
from server.routes.acp.errors import RpcError, invalid_params, not_owned, rpc_error_of, unknown_method
from server.routes.acp.params import params_of
from server.routes.acp.permissions import vote_by_response
from server.telemetry import log

__all__ = ["LATER", "Call", "Dispatcher", "Method", "Work"]

LATER: Final = object()
"""What a handler returns whose answer comes by another way."""

HEADER_MISMATCH: Final = "Acp-Session-Id header does not match params.sessionId"

Work = Callable[[], Awaitable[None]]


@attrs.define(slots=True, eq=False)
class Call:
    """One request or notification of an owner, being carried out."""

    connection: AcpConnection
    method: str
    id: Id | None
    """None for a notification: nothing is ever sent back."""
    params: dict[str, Any]
    owned: Binding | None = None
    on_written: Callable[[], object] | None = None
    """Called when the transport has taken the answer."""

    @property
    def binding(self) -> Binding:
        """The session's; only for methods that need one."""
        assert self.owned is not None
        return self.owned

    def answer(self, result: Any) -> None:
        if self.id is None:
            return
        try:
            message = encode_result(self.id, result)
        except (TypeError, ValueError, RecursionError, OverflowError):
            # ACP-221: the result exists and cannot be sent; the caller must not wait for it.
            log.exception("acp_reply_failed", method=self.method)
            error = encode_error(self.id, RpcCode.INTERNAL_ERROR, "Response delivery failed")
            self.connection.send(Reply(error))
            return
        self._send(Reply(message, on_written=self.on_written))

    def refuse(self, error: RpcError) -> None:
        if self.id is not None:
            self._send(Reply(encode_error(self.id, error.code, error.message, error.data)))

    def _send(self, reply: Reply) -> None:
        if self.owned is not None and self.method in SESSION_REPLY_METHODS:
            self.owned.reply(reply)
        else:
            self.connection.send(reply)


Handler = Callable[[Call], Any]


@attrs.frozen(slots=True, kw_only=True)
class Method:
    """One entry of the method table. A handler that is no coroutine function is carried out at once, in one step."""

    handler: Handler
    needs_session: bool = True
    """The connection must own ``params.sessionId`` (ACP-121)."""
    as_notification: bool = True
    """Carried out also without an id; otherwise such a message is ignored (ACP-190)."""
    waits_for_prompts: bool = False
    """Its answer may take as long as a turn: over a WebSocket the messages behind it do not wait (ACP-235)."""
    starts_events: bool = True
    """Over a WebSocket it makes the session's events flow (ACP-234)."""

    @property
    def immediate(self) -> bool:
        return not inspect.iscoroutinefunction(self.handler)


class Dispatcher:
    """Carries out what connections ask for. ``methods``: the one table, name to `Method`."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self.methods = methods

    @property
    def vendor_methods(self) -> list[str]:
        """What ``initialize`` lists (ACP-062)."""
        return [name for name in self.methods if name.startswith("_qwen/")]

    def dispatch(self, connection: AcpConnection, message: Message, header_session: str | None = None) -> None:
        """Carry out one message; what takes time goes on as work of the connection (ACP-052)."""
        work = self.begin(connection, message, header_session)
        if work is not None:
            connection.spawn(work[1])

    def begin(
        self, connection: AcpConnection, message: Message, header_session: str | None = None
    ) -> tuple[Method, Work] | None:
        """Do what can be done at once. Returns what is left: to be called and awaited, by whoever decides when."""
        if connection.dead is not None:
            return None
        match message:
            case Response():
                vote_by_response(connection, message)
                return None
            case Invalid():
                return None
        method = self.methods.get(message.method)
        call = self._accept(connection, message, method, header_session)
        if call is None or method is None:
            return None
        if method.immediate:
            self._carry_out(call, method)
            return None
        return method, functools.partial(self._run, call, method)

    def _accept(
        self,
        connection: AcpConnection,
        message: Request | Notification,
        method: Method | None,
        header_session: str | None,
    ) -> Call | None:
        """A call that may be carried out; None when it was refused or ignored. Refusals go to the connection stream,
        where the caller certainly listens (ACP-053, ACP-101)."""
        call = Call(connection, message.method, message.id if isinstance(message, Request) else None, {})
        try:
            if method is None:
                raise unknown_method(message.method)
            call.params = params_of(message)
            session_id = call.params.get("sessionId")
            if header_session and isinstance(session_id, str):
                _require_match(connection, header_session, session_id)
            if method.needs_session:
                call.owned = _owned(connection, session_id)
        except RpcError as problem:
            call.refuse(problem)
            return None
        if call.id is None and not method.as_notification:
            return None
        if call.owned is not None and method.starts_events:
            connection.start_events(call.owned)
        return call

    def _carry_out(self, call: Call, method: Method) -> None:
        try:
            result = method.handler(call)
        except Exception as problem:
            call.refuse(rpc_error_of(problem))
        else:
            if result is not LATER:
                call.answer(result)

    async def _run(self, call: Call, method: Method) -> None:
        try:
            result = await method.handler(call)
        except Exception as problem:
            call.refuse(rpc_error_of(problem))
        else:
            if result is not LATER:
                call.answer(result)


def _require_match(connection: AcpConnection, header: str, session_id: str) -> None:
    if connection.canonical(header) != connection.canonical(session_id):
        raise invalid_params(HEADER_MISMATCH)


def _owned(connection: AcpConnection, session_id: object) -> Binding:
    if not isinstance(session_id, str) or not session_id:
        raise invalid_params("`sessionId` is required")
    binding = connection.owned(session_id)
    if binding is None:
        raise not_owned(session_id)
    return binding
