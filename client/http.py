"""HTTP for the transports: one request, or one stream. Knows nothing of sessions.

Cookies are kept for the life of the link, connections are HTTP/1.1 and their number is not capped, so that open
streams never starve a request (CLI-005).
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import httpcore2
import httpx2
import msgspec
import trio

from client.deadline import outlasting
from client.dial import Connect, open_tcp
from client.errors import (
    DaemonConnectionError,
    DaemonHttpError,
    DaemonPromptQueueFullError,
    DaemonProtocolError,
    DaemonTransportClosedError,
)
from client.pool import PoolTransport
from protocol.jsonrpc import InvalidJson, decode_json

__all__ = ["Answer", "HttpLink", "StreamAnswer"]

CLOSE_TIMEOUT = 2.0
"""Seconds that closing a response may take. It writes nothing but a TLS goodbye."""

ANSWER_LIMIT = 64 * 1024 * 1024
"""Bytes of one answer that is not a stream. The largest is the history of a loaded session."""

_FAILURES = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response."""

    status: int
    headers: httpx2.Headers
    content: bytes

    def json(self) -> Any:
        """The decoded body. Raises :class:`DaemonProtocolError` if it is not JSON."""
        try:
            return decode_json(self.content)
        except InvalidJson as exc:
            raise DaemonProtocolError(f"the answer is not JSON: {exc}") from exc

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    def error(self, context: str) -> DaemonHttpError:
        """The exception that stands for this refusal."""
        try:
            body = decode_json(self.content)
        except InvalidJson:
            body = self.content.decode("utf-8", "replace")
        text = body.get("error") if isinstance(body, dict) else None
        if isinstance(text, dict):
            text = text.get("message")
        message = f"{context}: HTTP {self.status}" + (f" {text}" if isinstance(text, str) else "")
        kind = DaemonHttpError
        if self.status == 503 and isinstance(body, dict) and body.get("code") == "prompt_queue_full":
            kind = DaemonPromptQueueFullError
        return kind(self.status, body, message, retry_after=_retry_after(self.headers.get("retry-after")))


class StreamAnswer:
    """A response whose body is read piece by piece. Close it, whatever happened."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._chunks: AsyncGenerator[bytes] = response.aiter_raw()
        self.status = response.status_code
        self.headers = response.headers

    @property
    def is_event_stream(self) -> bool:
        """Whether this is what a stream reader may read."""
        media_type = self.headers.get("content-type", "").partition(";")[0]
        return self.status == 200 and bool(media_type.strip().lower() == "text/event-stream")

    async def read(self) -> bytes:
        """The next piece, ``b""`` at the end. Raises :class:`DaemonConnectionError` if the connection broke."""
        try:
            return await anext(self._chunks, b"")
        except _FAILURES as exc:
            raise DaemonConnectionError(_describe(exc), maybe_sent=True) from exc

    async def read_all(self) -> Answer:
        """The whole body. Raises :class:`DaemonProtocolError` if it is larger than any answer may be."""
        pieces = []
        size = 0
        while piece := await self.read():
            pieces.append(piece)
            size += len(piece)
            if size > ANSWER_LIMIT:
                raise DaemonProtocolError(f"an answer of more than {ANSWER_LIMIT} bytes")
        return Answer(self.status, self.headers, b"".join(pieces))

    async def aclose(self) -> None:
        """Drop the connection. Safe under cancellation."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT):
            await self._chunks.aclose()
            await self._response.aclose()


class HttpLink:
    """Requests to one base URL. ``aclose`` ends all of them."""

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        connect: Connect = open_tcp,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.token = token
        self.connect = connect
        self.ssl_context = ssl_context
        headers = {"Accept-Encoding": "identity", "User-Agent": "moorline-client"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx2.AsyncClient(
            transport=PoolTransport(connect, ssl_context), headers=headers, timeout=None, trust_env=False
        )
        self._closed = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: object = None,
        content: bytes | None = None,
        linger: float = 0.0,
    ) -> Answer:
        """One request and its complete answer, whatever its status.

        ``body`` is encoded as JSON; ``content`` is JSON already. A GET that found its connection dead is repeated
        once. A caller who is cancelled when the whole request has left still waits ``linger`` seconds for the answer,
        and gets it (see :func:`outlasting`). Raises :class:`DaemonConnectionError` on failure.
        """
        if body is not None:
            content = msgspec.json.encode(body)
        progress = _Progress()
        attempt = functools.partial(self._request_once, method, path, headers, content, progress)
        if linger > 0:
            return await outlasting(lambda: linger if progress.sent else 0.0, attempt)
        try:
            return await attempt()
        except DaemonConnectionError as exc:
            if method != "GET" or not exc.maybe_sent:
                raise
        return await attempt()

    async def open_event_stream(self, path: str, *, headers: Mapping[str, str] | None = None) -> StreamAnswer:
        """GET an event stream. Returns with its headers; the caller closes it.

        Raises :class:`DaemonHttpError` for a refusal and :class:`DaemonProtocolError` for a 200 that is no stream.
        """
        accept = {"Accept": "text/event-stream"}
        stream = await self._begin("GET", path, accept | dict(headers or {}), None, _Progress())
        if stream.is_event_stream:
            return stream
        try:
            refusal = await stream.read_all()
        finally:
            await stream.aclose()
        if refusal.ok:
            raise DaemonProtocolError(f"GET {path}: {refusal.status}, but no event stream")
        raise refusal.error(f"GET {path}")

    async def aclose(self) -> None:
        """Close every connection. Later requests raise :class:`DaemonTransportClosedError`."""
        self._closed = True
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT):
            await self._client.aclose()

    async def _request_once(
        self, method: str, path: str, headers: Mapping[str, str] | None, content: bytes | None, progress: _Progress
    ) -> Answer:
        stream = await self._begin(method, path, headers, content, progress)
        try:
            return await stream.read_all()
        finally:
            await stream.aclose()

    async def _begin(
        self, method: str, path: str, headers: Mapping[str, str] | None, content: bytes | None, progress: _Progress
    ) -> StreamAnswer:
        if self._closed:
            raise DaemonTransportClosedError("the client is closed")
        all_headers = dict(headers or {})
        if content is not None:
            all_headers.setdefault("Content-Type", "application/json")
        request = self._client.build_request(
            method,
            self.base_url + path,
            headers=all_headers,
            content=content,
            extensions={"trace": progress.note},
        )
        try:
            return StreamAnswer(await self._client.send(request, stream=True))
        except _FAILURES as exc:
            if self._closed:
                raise DaemonTransportClosedError("the client was closed during the request") from exc
            raise DaemonConnectionError(f"{method} {path}: {_describe(exc)}", maybe_sent=progress.sending) from exc


class _Progress:
    """Learns from the pool how far a request got on its way to the daemon."""

    sending = False
    """Some of it may have left. Until then nobody can have received it."""
    sent = False
    """All of it has left. Until then nobody can have acted on it."""

    async def note(self, name: str, info: object) -> None:
        if name == "http11.send_request_headers.started":
            self.sending = True
        elif name == "http11.send_request_body.complete":
            self.sent = True


def _describe(exc: Exception) -> str:
    return str(exc) or type(exc).__name__


def _retry_after(value: str | None) -> float | None:
    return float(value) if value is not None and value.isascii() and value.isdigit() and len(value) < 7 else None
