"""The REST surface: the default transport (``spec/rest.md``)."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import trio

from client.errors import DaemonHttpError, DaemonProtocolError
from client.events import event_from_rest
from client.http import Answer, HttpLink
from client.prompts import Ticket
from client.requests import PromptRequest, SessionRequest, Vote
from client.results import (
    Capabilities,
    Heartbeat,
    PromptOutcome,
    PromptReceipt,
    SessionInfo,
    SessionPage,
    heartbeat,
    prompt_outcome,
    prompt_receipt,
    prompt_result,
    session_info,
    session_page,
)
from client.sse_feed import SseFeed
from client.transport import Feed, StreamRequest, Transport, TransportKind
from protocol.acp import CLIENT_ID_HEADER, EPOCH_HEADER, IDEMPOTENCY_KEY_HEADER, LAST_EVENT_ID_HEADER
from protocol.jsonrpc import Id

__all__ = ["RestTransport", "cursor_headers", "rest_call", "rest_capabilities", "rest_health", "session_path"]

ACCEPTANCE_WAIT = 2.0
"""Seconds that a caller who gives up a prompt in flight waits for its 202. What has been accepted is cancelled by its
name (CLI-002); closing the request cancels only what has not been answered yet (REST-064), and an answer may be under
way."""


class RestTransport(Transport):
    """Plain HTTP and one event stream per subscription. Needs no background task."""

    kind = TransportKind.REST
    always_reading = False

    def __init__(self, link: HttpLink) -> None:
        self._link = link
        self._closed = False

    @property
    def supports_replay(self) -> bool:
        return True

    @property
    def closed(self) -> bool:
        return self._closed

    async def aclose(self) -> None:
        self._closed = True
        await self._link.aclose()

    async def rest(self, method: str, path: str, *, body: object = None, client_id: str | None = None) -> Answer:
        return await rest_call(self._link, method, path, body=body, client_id=client_id)

    async def health(self) -> None:
        await rest_health(self._link)

    async def capabilities(self) -> Capabilities:
        return await rest_capabilities(self._link)

    async def create_session(self, request: SessionRequest, client_id: str | None) -> SessionInfo:
        return session_info(await self._post("/session", request.rest_body(), client_id))

    async def restore_session(
        self,
        session_id: str,
        request: SessionRequest,
        client_id: str | None,
        *,
        history: bool,
    ) -> SessionInfo:
        path = session_path(session_id, "load" if history else "resume")
        return session_info(await self._post(path, request.rest_body(), client_id), session_id=session_id)

    async def list_sessions(self, cwd: str, *, size: int | None = None, cursor: str | None = None) -> SessionPage:
        query = [f"size={size}"] if size is not None else []
        if cursor is not None:
            query.append(f"cursor={quote(cursor, safe='')}")
        path = f"/workspace/{quote(cwd, safe='')}/sessions" + ("?" + "&".join(query) if query else "")
        answer = await self.rest("GET", path)
        return session_page(answer.json())

    async def close_session(self, session_id: str, client_id: str | None) -> None:
        await self._unless_gone("DELETE", session_path(session_id), client_id)

    async def detach_session(self, session_id: str, client_id: str | None) -> None:
        await self._unless_gone("POST", session_path(session_id, "detach"), client_id)

    async def heartbeat(self, session_id: str, client_id: str | None) -> Heartbeat:
        return heartbeat(await self._post(session_path(session_id, "heartbeat"), {}, client_id), session_id)

    async def set_mode(self, session_id: str, mode: str, client_id: str | None) -> dict[str, Any]:
        return _object(await self._post(session_path(session_id, "approval-mode"), {"mode": mode}, client_id))

    async def set_model(self, session_id: str, model_id: str, client_id: str | None) -> dict[str, Any]:
        return _object(await self._post(session_path(session_id, "model"), {"modelId": model_id}, client_id))

    async def cancel(self, session_id: str, client_id: str | None) -> None:
        await self.rest("POST", session_path(session_id, "cancel"), body={}, client_id=client_id)

    async def vote(
        self,
        session_id: str,
        request_id: str,
        vote: Vote,
        client_id: str | None,
        *,
        outbound_id: Id | None = None,
    ) -> bool:
        path = session_path(session_id, "permission", request_id)
        return await self._unless_gone("POST", path, client_id, vote.result())

    async def send_prompt(
        self, session_id: str, request: PromptRequest, ticket: Ticket, client_id: str | None
    ) -> PromptReceipt:
        headers = {} if request.idempotency_key is None else {IDEMPOTENCY_KEY_HEADER: request.idempotency_key}
        answer = await rest_call(
            self._link,
            "POST",
            session_path(session_id, "prompt"),
            body=request.body(),
            client_id=client_id,
            headers=headers,
            linger=ACCEPTANCE_WAIT,
        )
        if answer.status == 202:
            receipt = prompt_receipt(answer.json())
            ticket.prompt_id = receipt.prompt_id
            return receipt
        # The blocking form of old daemons: the answer is the outcome (REST-063).
        body = answer.json()
        if not isinstance(body, dict):
            raise DaemonProtocolError("a prompt was answered with something that is no object")
        ticket.settle(prompt_result(body))
        return PromptReceipt(None)

    async def abandon_prompt(self, session_id: str, ticket: Ticket, client_id: str | None) -> None:
        if ticket.prompt_id is not None and await self._removed_from_queue(session_id, ticket.prompt_id, client_id):
            return
        # A moorline server then cancels this prompt and no other; others ignore the name.
        body = {} if ticket.prompt_id is None else {"promptId": ticket.prompt_id}
        await self.rest("POST", session_path(session_id, "cancel"), body=body, client_id=client_id)

    async def prompt_outcome(self, session_id: str, prompt_id: str) -> PromptOutcome | None:
        try:
            answer = await self.rest("GET", session_path(session_id, "prompts", prompt_id))
        except DaemonHttpError as exc:
            if exc.status == 404:
                return None
            raise
        return prompt_outcome(answer.json())

    async def open_stream(self, request: StreamRequest) -> Feed:
        headers = cursor_headers(request)
        if request.client_id is not None:
            headers[CLIENT_ID_HEADER] = request.client_id
        path = session_path(request.session_id, "events")
        return SseFeed(await self._link.open_event_stream(path, headers=headers), event_from_rest)

    async def recover_session(self, session_id: str) -> SessionInfo:
        # Without a client id: after a restart the daemon does not know the old one, and issues a new one here.
        return await self.restore_session(session_id, SessionRequest(), None, history=False)

    async def _post(self, path: str, body: dict[str, Any], client_id: str | None) -> Any:
        return (await self.rest("POST", path, body=body, client_id=client_id)).json()

    async def _unless_gone(self, method: str, path: str, client_id: str | None, body: object = None) -> bool:
        try:
            await self.rest(
                method,
                path,
                body={} if body is None and method == "POST" else body,
                client_id=client_id,
            )
        except DaemonHttpError as exc:
            if exc.status == 404:
                return False
            raise
        return True

    async def _removed_from_queue(self, session_id: str, prompt_id: str, client_id: str | None) -> bool:
        # A cancel ends the *running* prompt, whoever's it is (REST-069); one that still waits is taken out instead.
        try:
            answer = await self.rest(
                "DELETE", session_path(session_id, "pending-prompts", prompt_id), client_id=client_id
            )
            return _object(answer.json()).get("removed") is True
        except (DaemonHttpError, DaemonProtocolError):
            return False


async def rest_call(
    link: HttpLink,
    method: str,
    path: str,
    *,
    body: object = None,
    client_id: str | None = None,
    headers: dict[str, str] | None = None,
    linger: float = 0.0,
) -> Answer:
    """A request whose answer must be 2xx. ``linger`` as in :meth:`HttpLink.request`."""
    all_headers = dict(headers or {})
    if client_id is not None:
        all_headers[CLIENT_ID_HEADER] = client_id
    answer = await link.request(method, path, headers=all_headers, body=body, linger=linger)
    if not answer.ok:
        # A refusal changed nothing: whoever gave up while it was waited for needs not hear of it.
        await trio.lowlevel.checkpoint_if_cancelled()
        raise answer.error(f"{method} {path}")
    return answer


async def rest_health(link: HttpLink) -> None:
    """``GET /health``, which every transport uses (CLI-039)."""
    await rest_call(link, "GET", "/health")


async def rest_capabilities(link: HttpLink) -> Capabilities:
    """``GET /capabilities``, which every transport uses."""
    body = (await rest_call(link, "GET", "/capabilities")).json()
    if not isinstance(body, dict):
        raise DaemonProtocolError("capabilities are no object")
    return Capabilities(body)


def session_path(session_id: str, *parts: str) -> str:
    """The path of a session route, percent-encoded (REST-003)."""
    return "/session/" + "/".join(quote(part, safe="") for part in (session_id, *parts))


def cursor_headers(request: StreamRequest) -> dict[str, str]:
    """``Last-Event-ID`` and the epoch, which only means something together with it (CLI-024, ACP-114)."""
    if request.cursor is None:
        return {}
    headers = {LAST_EVENT_ID_HEADER: str(request.cursor)}
    if request.epoch is not None:
        headers[EPOCH_HEADER] = request.epoch
    return headers


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
