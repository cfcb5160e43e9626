"""Who may ask: Host, Origin, bearer token, in this order, before anything is read or created (ACP-250 to ACP-255).

The same three questions for HTTP requests and for WebSocket upgrades; only the form of the refusal differs.
"""

from __future__ import annotations

import base64
import enum
import hmac
from collections.abc import Iterable
from typing import Final

import attrs

from server.config import Config
from server.middleware.asgi import App, Message, Receive, Scope, Send, header, headers, respond

__all__ = ["BEARER_PREFIXES", "Policy", "Security", "Verdict"]

BEARER_PREFIXES: Final = ("qwen-bearer.", "moorline-bearer.")
"""Subprotocols that carry ``base64url(token)`` for browsers, which cannot set headers on an upgrade (ACP-241)."""

_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "host.docker.internal"})
_ORIGIN_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
_ALLOW_METHODS: Final = b"GET, POST, PATCH, DELETE, OPTIONS"
_ALLOW_HEADERS: Final = (
    b"Authorization, Content-Type, X-Qwen-Client-Id, Last-Event-ID, X-Qwen-Event-Epoch, "
    b"Acp-Connection-Id, Acp-Session-Id, Idempotency-Key, X-Moorline-Stream-Role"
)
_EXPOSE_HEADERS: Final = b"Retry-After, X-Qwen-Event-Epoch, X-Qwen-SSE-Stream-Id, Acp-Connection-Id, Acp-Session-Id"
_VARY: Final = (b"vary", b"Origin")


class Verdict(enum.Enum):
    """What is wrong with a request, or nothing."""

    FINE = (200, b"")
    BAD_HOST = (403, b'{"error":"Invalid Host header"}')
    BAD_ORIGIN = (403, b'{"error":"Request denied by CORS policy"}')
    UNAUTHORIZED = (401, b'{"error":"Unauthorized"}')

    @property
    def status(self) -> int:
        return self.value[0]

    @property
    def body(self) -> bytes:
        return self.value[1]


@attrs.frozen(slots=True, kw_only=True)
class Policy:
    """What the questions are decided by. ``port`` None: the port the request came in on."""

    token: str | None = None
    loopback: bool = True
    """Whether the listener can only be reached from this machine."""
    bound_name: str | None = None
    require_auth: bool = False
    allow_origin: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: Config, *, loopback: bool | None = None, token: str | None = None) -> Policy:
        """From the configuration; ``loopback`` and ``token`` override it where the server knows better."""
        return cls(
            token=config.token if token is None else token,
            loopback=config.loopback if loopback is None else loopback,
            bound_name=config.hostname,
            require_auth=config.require_auth,
            allow_origin=frozenset(config.allow_origin),
        )

    # The three questions

    def host_is_fine(self, host: str | None, port: int) -> bool:
        """ACP-252: against DNS rebinding, which needs a foreign name in ``Host``."""
        if not self.loopback:
            return True
        if host is None:
            return False
        name, given = _split(host.lower())
        if given is None:
            # The default port of either scheme may be left out.
            if port not in (80, 443):
                return False
        elif given != str(port):
            return False
        return name in _LOCAL_NAMES or (self.bound_name is not None and name == _bracketed(self.bound_name.lower()))

    def is_own_origin(self, origin: str, port: int, tls: bool) -> bool:
        scheme = "https" if tls else "http"
        suffix = "" if port == (443 if tls else 80) else f":{port}"
        return any(origin == f"{scheme}://{host}{suffix}" for host in _ORIGIN_HOSTS)

    def origin_is_allowed(self, origin: str) -> bool:
        """``null`` never is, not even by ``*`` (ACP-253)."""
        return origin != "null" and ("*" in self.allow_origin or origin in self.allow_origin)

    def knows(self, credentials: Iterable[str]) -> bool:
        """Whether one of the presented tokens is ours. Every comparison takes the same time."""
        if self.token is None:
            return True
        expected = self.token.encode()
        found = False
        for token in credentials:
            found |= hmac.compare_digest(token.encode("utf-8", "surrogateescape"), expected)
        return found


class Security:
    """ASGI wrapper. Refuses, answers preflights, and puts the CORS headers on what an allowed origin gets."""

    def __init__(self, app: App, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        verdict, origin = self._look(scope)
        if verdict is Verdict.BAD_HOST:
            await respond(send, verdict.status, verdict.body)
        elif verdict is Verdict.BAD_ORIGIN:
            await respond(send, verdict.status, verdict.body, [_VARY])
        elif origin is not None and _is_preflight(scope):
            await respond(send, 204, b"", _grant(origin, preflight=True))
        else:
            send = send if origin is None else _Granting(send, origin)
            if self._is_exempt(scope) or self._policy.knows(_bearer(scope)):
                await self._app(scope, receive, send)
            else:
                await respond(send, 401, Verdict.UNAUTHORIZED.body, [(b"www-authenticate", b"Bearer")])

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        verdict, _ = self._look(scope)
        carried, offered = _carried_tokens(scope.get("subprotocols", []))
        if verdict is Verdict.FINE and not self._policy.knows([*_bearer(scope), *carried]):
            verdict = Verdict.UNAUTHORIZED
        if verdict is not Verdict.FINE:
            await _refuse_upgrade(scope, receive, send, verdict.status)
            return
        # ACP-240: a carrier is never selected; the routes do not even see it.
        scope["subprotocols"] = offered
        await self._app(scope, receive, send)

    def _look(self, scope: Scope) -> tuple[Verdict, str | None]:
        """Host and Origin. With a fine verdict, the foreign origin that may read the answer, if there is one."""
        tls = scope.get("scheme") in ("https", "wss")
        server = scope.get("server") or ("", 443 if tls else 80)
        port = server[1] or (443 if tls else 80)
        origins = headers(scope, b"origin")
        # The server's own pages are not foreign: their header is ignored before anything looks at it (ACP-255).
        origins = [origin for origin in origins if not self._policy.is_own_origin(origin, port, tls)]
        if not self._policy.host_is_fine(header(scope, b"host"), port):
            return Verdict.BAD_HOST, None
        if not origins:
            return Verdict.FINE, None
        if len(origins) > 1 or not self._policy.origin_is_allowed(origins[0]):
            return Verdict.BAD_ORIGIN, None
        return Verdict.FINE, origins[0]

    def _is_exempt(self, scope: Scope) -> bool:
        return (
            scope["path"] == "/health"
            and scope["method"] in ("GET", "HEAD")
            and self._policy.loopback
            and not self._policy.require_auth
        )


def _split(host: str) -> tuple[str, str | None]:
    """Name and port of a Host header; the brackets of an IPv6 address stay on."""
    if host.startswith("["):
        name, bracket, rest = host.partition("]")
        if rest and not rest.startswith(":"):
            return host, None
        return name + bracket, rest[1:] or None
    name, colon, port = host.partition(":")
    return name, port if colon else None


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name


def _bearer(scope: Scope) -> list[str]:
    value = header(scope, b"authorization")
    if value is None:
        return []
    scheme, _, token = value.partition(" ")
    return [token.strip()] if scheme.lower() == "bearer" else []


def _carried_tokens(subprotocols: Iterable[str]) -> tuple[list[str], list[str]]:
    """Tokens carried by subprotocols, and the subprotocols that are not carriers."""
    tokens: list[str] = []
    offered: list[str] = []
    for name in subprotocols:
        prefix = next((each for each in BEARER_PREFIXES if name.startswith(each)), None)
        if prefix is None:
            offered.append(name)
            continue
        raw = name.removeprefix(prefix)
        try:
            tokens.append(base64.b64decode(raw + "=" * (-len(raw) % 4), altchars=b"-_", validate=True).decode())
        except ValueError:
            # Not a token: as good as a wrong one.
            continue
    return tokens, offered


def _is_preflight(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method") is not None


def _grant(origin: str, *, preflight: bool) -> list[tuple[bytes, bytes]]:
    granted = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        _VARY,
        (b"access-control-expose-headers", _EXPOSE_HEADERS),
    ]
    if preflight:
        granted += [
            (b"access-control-allow-methods", _ALLOW_METHODS),
            (b"access-control-allow-headers", _ALLOW_HEADERS),
            (b"access-control-max-age", b"86400"),
        ]
    return granted


class _Granting:
    def __init__(self, send: Send, origin: str) -> None:
        self._send = send
        self._granted = _grant(origin, preflight=True)

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *self._granted]}
        await self._send(message)


async def _refuse_upgrade(scope: Scope, receive: Receive, send: Send, status: int) -> None:
    """A bare status on the socket, then the end (ACP-241, ACP-242)."""
    if (await receive())["type"] != "websocket.connect":
        return
    if "websocket.http.response" in (scope.get("extensions") or {}):
        fields = [(b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "websocket.http.response.start", "status": status, "headers": fields})
        await send({"type": "websocket.http.response.body", "body": b"", "more_body": False})
    else:
        await send({"type": "websocket.close", "code": 1008})
