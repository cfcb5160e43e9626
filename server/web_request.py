"""One HTTP request in Quart's hands, without the tasks Quart gives it.

Quart runs two tasks for every request: one waits for the peer to leave, one answers. An idle stream would hold both for
hours. Where the server can call us when the peer leaves, a request without a body needs neither: it is answered in the task
it came in, inside a scope that is cancelled then. A stream keeps nothing of the request that opened it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import quart.wrappers
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable
from quart import Request, Response
from quart.utils import encode_headers
from quart_trio.asgi import TrioASGIHTTPConnection

from server.connection import RequestSends, connection_of
from server.sse import SseBody

__all__ = ["HttpConnection"]


# Python 3.13 and the Quart for it: a body that is complete, or whose sender has left, takes no more.
_QUEUE_SHUT_DOWN: Any = getattr(asyncio, "QueueShutDown", ())


# What the newer Quart raises instead of sending a response to a peer that has left; nothing of its own catches it.
_PEER_HAS_LEFT: Any = getattr(quart.wrappers, "ClientDisconnectedError", ())


class HttpConnection(TrioASGIHTTPConnection):
    """Used in place of the framework's class."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        scope = cast("Mapping[str, Any]", self.scope)
        connection = connection_of(scope)
        with trio.CancelScope() as answering:
            if _has_body(scope) or not connection.on_gone(answering.cancel):
                await super().__call__(receive, send)
                return
            try:
                await self._answer(send, connection)
            finally:
                connection.on_gone(None)

    async def handle_messages(  # type: ignore[override]  # as the framework's own
        self, nursery: trio.Nursery, request: Request, receive: ASGIReceiveCallable
    ) -> None:
        """A message behind the end of the body says nothing new; the next one may say that the peer has left."""
        while True:
            try:
                await super().handle_messages(nursery, request, receive)
            except _QUEUE_SHUT_DOWN:
                continue
            return

    async def _send_response(self, send: ASGISendCallable, response: Any) -> None:
        try:
            await super()._send_response(send, response)
        except _PEER_HAS_LEFT:
            return

    async def _answer(self, send: ASGISendCallable, connection: RequestSends) -> None:
        response = await self._dispatch(send)
        if isinstance(response, Response) and isinstance(response.response, SseBody):
            stream = response.response
            await send(
                {
                    "type": "http.response.start",
                    "status": response.status_code,
                    "headers": encode_headers(response.headers),
                }
            )
            del response
            await _stream(stream, send, connection)
        else:
            await self._send_response(send, response)

    async def _dispatch(self, send: ASGISendCallable) -> Any:
        request = self._create_request_from_scope(send)
        request.body.set_complete()
        return await self.app.handle_request(request)


async def _stream(body: SseBody, send: ASGISendCallable, connection: RequestSends) -> None:
    async def send_chunk(chunk: bytes) -> None:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async with body:
        if connection.timed_here:
            async for chunk in body:
                await send_chunk(chunk)
        else:
            await body.pump(send_chunk)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _has_body(scope: Mapping[str, Any]) -> bool:
    """Whether the request may have a body. Over HTTP/2 one needs no header: the method has to tell."""
    if scope["method"] not in ("GET", "HEAD"):
        return True
    return any(
        (name == b"content-length" and value != b"0") or name == b"transfer-encoding"
        for name, value in scope["headers"]
    )
