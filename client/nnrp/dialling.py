"""From a URL to a transport."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias
from urllib.parse import SplitResult, urlsplit

import trio

from client.nnrp.websocket import upgrade

__all__ = ["DEFAULT_PORT", "SCHEMES", "Connect", "Dialling", "dial", "why"]

DEFAULT_PORT: Final = 4171
SCHEMES: Final = ("tcp", "nnrp", "tls", "ws", "wss", "quic")
Connect: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Opens a stream to (host, port). Raises ``OSError`` or a Trio resource error if it cannot."""
_ALPN: Final = ["nnrp/1", "nnrp/1-tcp"]
_PATH: Final = "/nnrp"
_PORTS: Final = {"ws": 80, "wss": 443}


class Dialling(Protocol):
    """What dialling needs to know (`client.nnrp.options.NnrpOptions`)."""

    @property
    def token(self) -> str | None: ...
    @property
    def ca_file(self) -> str | None: ...
    @property
    def connect(self) -> Connect | None: ...
    @property
    def one_stream(self) -> bool: ...
    @property
    def datagrams(self) -> bool: ...


async def dial(url: str, options: Dialling, nursery: trio.Nursery) -> trio.abc.Stream:
    """Open ``url``; ``nursery`` runs what the transport needs beside reading and writing.

    Raises ``ValueError`` for a URL that names no transport of ours, ``RuntimeError`` where the library for it is not
    installed, else what connecting raises.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ValueError(f"{url!r} is not one of {', '.join(f'{each}://' for each in SCHEMES)} and a host")
    port = parts.port or _PORTS.get(parts.scheme, DEFAULT_PORT)
    if parts.scheme == "quic":
        from client.nnrp.quic import dial_quic

        return await dial_quic(parts.hostname, port, options, nursery)
    stream = await (options.connect or trio.open_tcp_stream)(parts.hostname, port)
    try:
        if parts.scheme in ("tls", "wss"):
            stream = await _secure(stream, parts, options)
        if parts.scheme in ("ws", "wss"):
            target = (parts.path if parts.path not in ("", "/") else _PATH) + (f"?{parts.query}" if parts.query else "")
            stream = await upgrade(stream, parts.netloc.rpartition("@")[2], target, options.token)
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream


async def _secure(stream: trio.abc.Stream, parts: SplitResult, options: Dialling) -> trio.abc.Stream:
    context = ssl.create_default_context(cafile=options.ca_file)
    context.set_alpn_protocols(_ALPN if parts.scheme == "tls" else ["http/1.1"])
    secured = trio.SSLStream(stream, context, server_hostname=parts.hostname, https_compatible=True)
    await secured.do_handshake()
    return secured


def why(error: BaseException) -> str:
    """What has gone wrong in `dial`, in words also where the exception has none, or has them in the one behind it, as with TLS."""
    if isinstance(error, trio.TooSlowError):
        return "no answer in time"
    return str(error) or str(error.__cause__ or "") or type(error).__name__
