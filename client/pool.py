"""The connection pool under httpx2, on streams from a ``connect`` function."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import httpcore2
import httpx2

from client.dial import Connect, DialledBackend

__all__ = ["PoolTransport"]


class PoolTransport(httpx2.AsyncBaseTransport):
    """The pool under httpx2's client, on our streams. Its errors pass through as they are."""

    def __init__(self, connect: Connect, ssl_context: ssl.SSLContext | None) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context,
            max_connections=None,
            max_keepalive_connections=8,
            network_backend=DialledBackend(connect),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._pool.handle_async_request(
            httpcore2.Request(
                method=request.method,
                url=httpcore2.URL(
                    scheme=request.url.raw_scheme,
                    host=request.url.raw_host,
                    port=request.url.port,
                    target=request.url.raw_path,
                ),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx2.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Body(answer),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._answer.aiter_stream()

    async def aclose(self) -> None:
        await self._answer.aclose()
