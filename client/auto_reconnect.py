"""A transport that replaces itself when its peer is gone for good (CLI-041)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from client.errors import DaemonTransportClosedError
from client.http import Answer
from client.prompts import Ticket
from client.requests import PromptRequest, SessionRequest, Vote
from client.results import Capabilities, Heartbeat, PromptOutcome, PromptReceipt, SessionInfo, SessionPage
from client.transport import Feed, StreamRequest, Transport, TransportKind
from protocol.jsonrpc import Id

__all__ = ["AutoReconnectTransport"]

logger = logging.getLogger("moorline.client")

T = TypeVar("T")


class AutoReconnectTransport(Transport):
    """Passes everything on, and reacts to one thing: :class:`DaemonTransportClosedError`.

    Then the old transport is closed and ``factory`` is asked for another of the preferred kind, once; if that fails,
    for REST; and the failed call is repeated once. Concurrent failures share one replacement. Sessions are the
    caller's business: their readers recover them, from their latest cursor.
    """

    def __init__(self, first: Transport, factory: Callable[[TransportKind], Awaitable[Transport]]) -> None:
        self._current = first
        self._factory = factory
        self._preferred = first.kind
        self._closed = False
        self._replacing = trio.Lock()
        self.replacements = 0

    @property
    def kind(self) -> TransportKind:  # type: ignore[override]  # changes when REST takes over
        """Kind of the transport in use."""
        return self._current.kind

    @property
    def always_reading(self) -> bool:  # type: ignore[override]  # changes when REST takes over
        """As of the transport in use."""
        return self._current.always_reading

    @property
    def current(self) -> Transport:
        """The transport in use."""
        return self._current

    @property
    def supports_replay(self) -> bool:
        return self._current.supports_replay

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def silent_replies_stream(self) -> bool:
        return self._current.silent_replies_stream

    async def aclose(self) -> None:
        self._closed = True
        await self._current.aclose()

    async def rest(self, method: str, path: str, *, body: object = None, client_id: str | None = None) -> Answer:
        return await self._through(lambda t: t.rest(method, path, body=body, client_id=client_id))

    async def health(self) -> None:
        await self._through(lambda t: t.health())

    async def capabilities(self) -> Capabilities:
        return await self._through(lambda t: t.capabilities())

    async def create_session(self, request: SessionRequest, client_id: str | None) -> SessionInfo:
        return await self._through(lambda t: t.create_session(request, client_id))

    async def restore_session(
        self, session_id: str, request: SessionRequest, client_id: str | None, *, history: bool
    ) -> SessionInfo:
        return await self._through(lambda t: t.restore_session(session_id, request, client_id, history=history))

    async def list_sessions(self, cwd: str, *, size: int | None = None, cursor: str | None = None) -> SessionPage:
        return await self._through(lambda t: t.list_sessions(cwd, size=size, cursor=cursor))

    async def close_session(self, session_id: str, client_id: str | None) -> None:
        await self._through(lambda t: t.close_session(session_id, client_id))

    async def detach_session(self, session_id: str, client_id: str | None) -> None:
        await self._through(lambda t: t.detach_session(session_id, client_id))

    async def heartbeat(self, session_id: str, client_id: str | None) -> Heartbeat:
        return await self._through(lambda t: t.heartbeat(session_id, client_id))

    async def set_mode(self, session_id: str, mode: str, client_id: str | None) -> dict[str, Any]:
        return await self._through(lambda t: t.set_mode(session_id, mode, client_id))

    async def set_model(self, session_id: str, model_id: str, client_id: str | None) -> dict[str, Any]:
        return await self._through(lambda t: t.set_model(session_id, model_id, client_id))

    async def cancel(self, session_id: str, client_id: str | None) -> None:
        await self._through(lambda t: t.cancel(session_id, client_id))

    async def vote(
        self, session_id: str, request_id: str, vote: Vote, client_id: str | None, *, outbound_id: Id | None = None
    ) -> bool:
        return await self._through(lambda t: t.vote(session_id, request_id, vote, client_id, outbound_id=outbound_id))

    async def send_prompt(
        self, session_id: str, request: PromptRequest, ticket: Ticket, client_id: str | None
    ) -> PromptReceipt:
        return await self._through(lambda t: t.send_prompt(session_id, request, ticket, client_id))

    async def abandon_prompt(self, session_id: str, ticket: Ticket, client_id: str | None) -> None:
        await self._through(lambda t: t.abandon_prompt(session_id, ticket, client_id))

    async def prompt_outcome(self, session_id: str, prompt_id: str) -> PromptOutcome | None:
        return await self._through(lambda t: t.prompt_outcome(session_id, prompt_id))

    async def open_stream(self, request: StreamRequest) -> Feed:
        return await self._through(lambda t: t.open_stream(request))

    async def recover_session(self, session_id: str) -> SessionInfo:
        return await self._through(lambda t: t.recover_session(session_id))

    async def _through(self, call: Callable[[Transport], Awaitable[T]]) -> T:
        used = self._current
        try:
            return await call(used)
        except DaemonTransportClosedError:
            if self._closed:
                raise
        await self._replace(used)
        return await call(self._current)

    async def _replace(self, failed: Transport) -> None:
        async with self._replacing:
            if self._current is not failed:
                return
            await failed.aclose()
            self.replacements += 1
            try:
                self._current = await self._factory(self._preferred)
            except Exception as exc:
                # Whatever kept the preferred kind from coming up, REST needs nothing but requests.
                logger.warning("no %s transport, so REST: %s", self._preferred.value, exc)
                self._current = await self._factory(TransportKind.REST)
