"""From a URL to a byte stream."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import trio

__all__ = ["DEFAULT_PORT", "Connect", "dial"]

DEFAULT_PORT: Final = 4171
Connect: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Opens a stream to (host, port). Raises ``OSError`` or a Trio resource error if it cannot."""
_ALPN: Final = ["nnrp/1", "nnrp/1-tcp"]


async def dial(url: str, connect: Connect | None = None) -> trio.abc.Stream:
    """Open ``url``. Raises ``ValueError`` for one that names no transport of ours, else what connecting raises."""
    parts = urlsplit(url)
    if parts.scheme not in ("tcp", "nnrp", "tls") or not parts.hostname:
        raise ValueError(f"{url!r} is not tcp://host:port or tls://host:port")
    stream = await (connect or trio.open_tcp_stream)(parts.hostname, parts.port or DEFAULT_PORT)
    if parts.scheme != "tls":
        return stream
    context = ssl.create_default_context()
    context.set_alpn_protocols(_ALPN)
    secured = trio.SSLStream(stream, context, server_hostname=parts.hostname, https_compatible=True)
    try:
        await secured.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured
