"""Names for the shapes of ASGI, and small answers without a framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

__all__ = ["App", "Message", "Receive", "Scope", "Send", "header", "headers", "respond"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Pairs = Iterable[tuple[bytes, bytes]]


def headers(scope: Scope, name: bytes) -> list[str]:
    """Every value of one header, in order; ``name`` in lower case."""
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key.lower() == name]


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a header that may occur once; None when it is absent or occurs again."""
    values = headers(scope, name)
    return values[0] if len(values) == 1 else None


async def respond(send: Send, status: int, body: bytes = b"", extra: Pairs = ()) -> None:
    """Answer an ``http`` scope with JSON text, or with nothing."""
    fields = [(b"content-length", b"%d" % len(body))] if status != 204 else []
    if body:
        fields.append((b"content-type", b"application/json; charset=utf-8"))
    await send({"type": "http.response.start", "status": status, "headers": [*fields, *extra]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
