"""The HTTP side: one client for all sessions of a runner, streamed answers, errors that say what is wrong."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
import trio

from protocol.sse.decoder import SseDecoder, SseFramingError
from server.backends.openai.chunks import Answer, decode_chunk
from server.backends.settings import Model
from sessions.errors import AgentStartError, RunnerError

if TYPE_CHECKING:
    import httpx2

__all__ = ["Upstream"]

_ERROR_BODY: Final = 65536
"""Bytes of an error answer that are read."""
_MODELS_BODY: Final = 4 * 2**20
_MODELS_TIMEOUT: Final = 3.0


def _httpx2() -> Any:
    """The HTTP client library, imported on first need: it is an extra."""
    try:
        import httpx2
    except ImportError as error:
        message = "An OpenAI-compatible upstream needs httpx2: install moorline[client]"
        raise AgentStartError(message, error_kind="missing_binary") from error
    return httpx2


class Upstream:
    """Speaks to ``base_url``. A URL without a path gets ``/v1``. Times are seconds."""

    def __init__(self, base_url: str, api_key: str | None, *, connect_timeout: float, idle_timeout: float) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"not an http(s) URL: {base_url!r}")
        self._library = _httpx2()
        self.url = base_url.rstrip("/") if parts.path.strip("/") else base_url.rstrip("/") + "/v1"
        self._headers = {"Accept": "text/event-stream, application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = self._library.Timeout(connect=connect_timeout, read=idle_timeout, write=idle_timeout, pool=None)
        self._client: httpx2.AsyncClient | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """The connection pool, for the length of the block."""
        limits = self._library.Limits(max_connections=None, max_keepalive_connections=20)
        async with self._library.AsyncClient(headers=self._headers, timeout=self._timeout, limits=limits) as client:
            self._client = client
            try:
                yield
            finally:
                self._client = None

    async def complete(self, body: Mapping[str, Any], answer: Answer) -> None:
        """Stream one chat completion into ``answer``. Cancelled, it closes the connection at once. Raises `RunnerError`."""
        headers = {"Content-Type": "application/json"}
        content = msgspec.json.encode(body)
        try:
            async with self._opened().stream(
                "POST", f"{self.url}/chat/completions", content=content, headers=headers
            ) as response:
                if response.status_code != 200:
                    raise await _status_error(response)
                await _read_answer(response, answer)
        except self._library.HTTPError as error:
            raise self._transport_error(error) from error
        if not answer.complete:
            raise RunnerError("The upstream ended its answer in the middle", -32603, error_kind="protocol_error")

    async def models(self) -> tuple[Model, ...]:
        """What ``/models`` lists, as far as it can be had quickly; empty otherwise."""
        with trio.move_on_after(_MODELS_TIMEOUT):
            try:
                response = await self._opened().get(f"{self.url}/models")
                if response.status_code == 200 and len(response.content) <= _MODELS_BODY:
                    return _models(msgspec.json.decode(response.content))
            except (self._library.HTTPError, msgspec.MsgspecError):
                # Many upstreams have no such list. The first prompt will tell whether anything is wrong.
                return ()
        return ()

    def _opened(self) -> httpx2.AsyncClient:
        if self._client is None:
            raise AgentStartError("The upstream runner is not running", error_kind="acp_channel_unavailable")
        return self._client

    def _transport_error(self, error: Exception) -> RunnerError:
        unreachable = isinstance(error, (self._library.ConnectError, self._library.ConnectTimeout))
        details = f"{type(error).__name__}: {error}".rstrip(": ")
        what = f"Cannot reach {self.url}" if unreachable else "The upstream connection failed"
        kind = "blocked_egress" if unreachable else None
        return RunnerError(f"{what} ({details})", -32603, {"details": f"{what} ({details})"}, kind)


@asynccontextmanager
async def _body_of(response: httpx2.Response) -> AsyncIterator[AsyncIterator[bytes]]:
    """The body's pieces; however the block ends, no generator of the library stays behind half read.

    Closing the outermost one is not enough: it leaves those inside to the garbage collector. Reading on under a scope that
    is cancelled already unwinds them all, in order, and closes the connection.
    """
    pieces = response.aiter_bytes()
    try:
        yield pieces
    finally:
        with trio.CancelScope(shield=True, deadline=-math.inf):  # noqa: ASYNC100 - the iteration is the checkpoint
            async for _ in pieces:
                pass


async def _read_answer(response: httpx2.Response, answer: Answer) -> None:
    decoder = SseDecoder()
    async with _body_of(response) as pieces:
        async for piece in pieces:
            try:
                events = decoder.receive_data(piece)
            except SseFramingError as error:
                raise RunnerError(
                    f"Malformed answer from the upstream: {error}", error_kind="protocol_error"
                ) from error
            for event in events:
                if event.data == "[DONE]":
                    answer.done = True
                    return
                await answer.take(decode_chunk(event.data))


async def _status_error(response: httpx2.Response) -> RunnerError:
    body = bytearray()
    async with _body_of(response) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) >= _ERROR_BODY:
                break
    status = response.status_code
    message = f"{status} {_error_message(bytes(body[:_ERROR_BODY]))}".rstrip()
    kind = "auth_env_error" if status in (401, 403) else None
    return RunnerError(message, -32603, {"details": message, "httpStatus": status}, kind)


def _error_message(body: bytes) -> str:
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return body[:500].decode("utf-8", "replace")
    found = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(found, dict):
        found = found.get("message", found)
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


def _models(value: object) -> tuple[Model, ...]:
    listed = value.get("data") if isinstance(value, dict) else None
    found = []
    for item in listed if isinstance(listed, list) else ():
        if isinstance(item, dict) and isinstance(item.get("id"), str):
            context = item.get("max_model_len") or item.get("context_length") or 0
            found.append(Model(item["id"], item["id"], context=context if isinstance(context, int) else 0))
    return tuple(found)
