"""How a client gets its byte streams: TCP, or whatever function it was given.

Everything the client sends goes through one ``connect`` function, so a test or a simulation can hand it streams in
memory that cut, stall and corrupt; TLS is laid over them as over a socket.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

import httpcore2
import trio

__all__ = ["Connect", "DialledBackend", "open_tcp"]

Connect: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Opens a stream to (host, port). Raises ``OSError`` or a Trio resource error if it cannot."""

IDLE_REUSE: Final = 4.0
"""Seconds an idle connection may be used again. Shorter than the keep-alive of common servers, so that a request is
rarely written into a connection the server is about to close."""

_DIAL_ERRORS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
_IO_ERRORS = (trio.BrokenResourceError, trio.ClosedResourceError)


async def open_tcp(host: str, port: int) -> trio.abc.Stream:
    """The default way: a TCP connection. Cancelled, it raises ``Cancelled`` and no group of them, as Trio's own does."""
    try:
        return await trio.open_tcp_stream(host, port)
    except BaseExceptionGroup as exc:
        cancelled, rest = exc.split(trio.Cancelled)
        if cancelled is None or rest is not None:
            raise
        raise _first(cancelled) from None


def _first(group: BaseExceptionGroup[trio.Cancelled]) -> trio.Cancelled:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


class DialledBackend(httpcore2.AsyncNetworkBackend):
    """Gives the HTTP pool streams from a ``connect`` function."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the pool's interface, as below
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Dial. Deadlines are the caller's cancel scopes; ``timeout`` and the socket options are not used."""
        try:
            return _DialledStream(await self._connect(host, port))
        except _DIAL_ERRORS as exc:
            raise httpcore2.ConnectError(str(exc) or type(exc).__name__) from exc

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Not offered: a caller with a Unix socket passes its own ``connect``."""
        raise httpcore2.ConnectError("unix sockets need a connect function of their own")

    async def sleep(self, seconds: float) -> None:
        """Required by the pool for its own retries, which are switched off."""
        await trio.sleep(seconds)


class _DialledStream(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._last_use = trio.current_time()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        try:
            data = await self._stream.receive_some(max_bytes)
        except _IO_ERRORS as exc:
            raise httpcore2.ReadError(str(exc) or type(exc).__name__) from exc
        self._last_use = trio.current_time()
        return bytes(data)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        if not buffer:
            return
        try:
            await self._stream.send_all(buffer)
        except _IO_ERRORS as exc:
            raise httpcore2.WriteError(str(exc) or type(exc).__name__) from exc
        self._last_use = trio.current_time()

    async def aclose(self) -> None:
        # A TLS stream says goodbye first; a peer that does not read must not keep us.
        with trio.move_on_after(1.0):
            await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        stream = trio.SSLStream(self._stream, ssl_context, server_hostname=server_hostname, https_compatible=True)
        try:
            await stream.do_handshake()
        except (*_IO_ERRORS, ssl.SSLError) as exc:
            await trio.aclose_forcefully(self._stream)
            raise httpcore2.ConnectError(str(exc) or type(exc).__name__) from exc
        return _DialledStream(stream)

    def get_extra_info(self, info: str) -> Any:
        """``is_readable`` is asked of idle connections and means "do not use it again"."""
        if info == "is_readable":
            return trio.current_time() - self._last_use > IDLE_REUSE or self._has_been_closed()
        if info == "ssl_object" and isinstance(self._stream, trio.SSLStream):
            # Trio hands it out under this name through __getattr__.
            return self._stream._ssl_object
        return None

    def _has_been_closed(self) -> bool:
        stream = self._stream
        while isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        if isinstance(stream, trio.SocketStream):
            return bool(stream.socket.is_readable())
        # A stream in memory may answer the same question; if it cannot, it is not used twice.
        is_readable = getattr(stream, "is_readable", None)
        return True if is_readable is None else bool(is_readable())
