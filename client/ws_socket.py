"""One WebSocket as a source of texts, over any stream the client can dial."""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Awaitable, Callable
from typing import cast
from urllib.parse import urlsplit

import attrs
import trio
import trio_websocket

from client.dial import Connect
from client.errors import DaemonConnectionError, DaemonError, DaemonHttpError

__all__ = ["Socket", "SocketOptions", "run_socket"]

logger = logging.getLogger("moorline.client")

MAX_MESSAGE = 10 * 1024 * 1024
"""Bytes of one message, as the daemon bounds them (ACP-237)."""
CLOSE_TIMEOUT = 2.0
"""Seconds for the closing handshake."""


@attrs.frozen
class SocketOptions:
    """Where to and how. ``url`` is ``http``, ``https``, ``ws`` or ``wss``; times are in seconds."""

    url: str
    headers: dict[str, str]
    connect: Connect
    ssl_context: ssl.SSLContext | None = None
    open_timeout: float = 30.0
    idle_timeout: float = 45.0


class Socket:
    """An open WebSocket. ``send`` may be called from any task; what arrives goes to the runner's ``take``."""

    def __init__(self, connection: trio_websocket.WebSocketConnection) -> None:
        self._connection = connection
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def send(self, text: bytes) -> None:
        """Raises :class:`DaemonConnectionError` if the socket is closed or closes meanwhile."""
        if self._connection.closed is not None:
            raise DaemonConnectionError(f"the socket is closed: {self._connection.closed}", maybe_sent=False)
        try:
            await self._connection.send_message(text.decode("utf-8"))
        except trio_websocket.ConnectionClosed as exc:
            raise DaemonConnectionError(f"the socket is closed: {exc.reason}", maybe_sent=True) from exc

    def close(self) -> None:
        """End the runner, which says goodbye."""
        self._scope.cancel()

    async def aclose(self) -> None:
        """`close`, and wait until the goodbye is said, for a few seconds at most: a server that resumes sockets takes one
        that just ends for a lost one."""
        self.close()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT):
            await self._ended.wait()

    def note_end(self) -> None:
        """From the runner: it is over."""
        self._ended.set()

    async def read(self, take: Callable[[str], Awaitable[None]]) -> str:
        """Hand on texts until the socket ends; return why it did."""
        with self._scope:
            try:
                while True:
                    message = await self._connection.get_message()
                    if isinstance(message, str):
                        await take(message)
            except trio_websocket.ConnectionClosed as exc:
                return f"closed: {exc.reason}"
        return "closed by us"

    async def say_goodbye(self) -> None:
        """The closing handshake, unless we are being cancelled: then the stream is simply dropped."""
        if trio.current_effective_deadline() == -math.inf:
            return
        with trio.move_on_after(CLOSE_TIMEOUT):
            await self._connection.aclose()


async def run_socket(  # noqa: ASYNC128 - reports through _Started, which remembers that it did
    options: SocketOptions,
    take: Callable[[str], Awaitable[None]],
    *,
    task_status: trio.TaskStatus[Socket],
) -> str:
    """Open a socket, report it through ``task_status``, read until it ends, and return why it ended.

    Raises :class:`DaemonConnectionError` or :class:`DaemonHttpError` if it cannot be opened, and nothing afterwards.
    ``take`` may wait: nothing more is read meanwhile.
    """
    stream = _WatchedStream(await _dial(options))
    started = _Started(task_status)
    reason = "internal error"
    try:
        async with trio.open_nursery() as nursery:
            # The library's reader raises in here what it makes of a refusal.
            socket = await _shake_hands(options, stream, nursery)
            started.report(socket)
            nursery.start_soon(_drop_when_silent, stream, socket, options.idle_timeout)
            try:
                reason = await socket.read(take)
                await socket.say_goodbye()
            finally:
                socket.note_end()
            nursery.cancel_scope.cancel()
    except Exception as exc:
        if not started.reported:
            raise _opening_failure(exc) from exc
        logger.warning("the socket failed: %r", exc)
    finally:
        await trio.aclose_forcefully(stream)
    return reason


async def _dial(options: SocketOptions) -> trio.abc.Stream:
    parts = urlsplit(options.url)
    secure = parts.scheme in ("https", "wss")
    port = parts.port or (443 if secure else 80)
    try:
        with trio.fail_after(options.open_timeout):
            stream = await options.connect(parts.hostname or "", port)
            if not secure:
                return stream
            context = options.ssl_context or ssl.create_default_context()
            wrapped = trio.SSLStream(stream, context, server_hostname=parts.hostname, https_compatible=True)
            await wrapped.do_handshake()
            return wrapped
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as exc:
        raise DaemonConnectionError(f"{options.url}: {exc or type(exc).__name__}", maybe_sent=False) from exc


async def _shake_hands(options: SocketOptions, stream: _WatchedStream, nursery: trio.Nursery) -> Socket:
    parts = urlsplit(options.url)
    with trio.move_on_after(options.open_timeout) as patience:
        # The library waits for ever if the peer hangs up before it answers.
        stream.on_end = patience.cancel
        connection = await trio_websocket.wrap_client_stream(
            nursery,
            # Typed for sockets, but it only ever uses the Stream interface.
            cast("trio.SocketStream", stream),
            parts.netloc.rpartition("@")[2],
            parts.path or "/",
            extra_headers=[(name.encode("ascii"), value.encode("latin-1")) for name, value in options.headers.items()],
            max_message_size=MAX_MESSAGE,
            receive_buffer_size=65536,
        )
        stream.on_end = None
        return Socket(connection)
    raise DaemonConnectionError(f"{options.url}: no WebSocket handshake", maybe_sent=False)


async def _drop_when_silent(stream: _WatchedStream, socket: Socket, idle_timeout: float) -> None:
    # The server pings every 15 s (ACP-237), so silence means that nobody is there (CLI-023).
    while True:
        remaining = stream.last_byte + idle_timeout - trio.current_time()
        if remaining <= 0:
            socket.close()
            return
        await trio.sleep(remaining)


def _opening_failure(exc: Exception) -> DaemonError:
    for error in _leaves(exc):
        if isinstance(error, trio_websocket.ConnectionRejected):
            body = (error.body or b"").decode("utf-8", "replace")
            return DaemonHttpError(error.status_code, body, f"WebSocket refused: HTTP {error.status_code}")
        if isinstance(error, DaemonError):
            return error
    return DaemonConnectionError(f"no WebSocket: {exc!r}", maybe_sent=False)


def _leaves(exc: BaseException) -> list[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        return [leaf for child in exc.exceptions for leaf in _leaves(child)]
    return [exc]


class _Started:
    def __init__(self, task_status: trio.TaskStatus[Socket]) -> None:
        self._task_status = task_status
        self.reported = False

    def report(self, socket: Socket) -> None:
        self.reported = True
        self._task_status.started(socket)


class _WatchedStream(trio.abc.Stream):
    """A stream that knows when it was last heard of, and tells when it ended."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.last_byte = trio.current_time()
        self.on_end: Callable[[], None] | None = None

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            data = bytes(await self._stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._ended()
            raise
        if data:
            self.last_byte = trio.current_time()
        else:
            self._ended()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        # Cancelled here, nothing was sent and the socket is as good as before.
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._ended()
            raise
        except BaseException:
            # Half a frame may be out, and what comes next would be read as its other half.
            await trio.aclose_forcefully(self._stream)
            raise

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _ended(self) -> None:
        if self.on_end is not None:
            self.on_end()
