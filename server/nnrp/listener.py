"""Accepting connections. One peer's failure is counted and skipped; running out of sockets backs off (trio does that)."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeAlias

import trio

from server.nnrp.service import NnrpService
from server.telemetry import log

__all__ = ["ALPN", "Handler", "listen_tcp", "serve_port", "tls_context"]

ALPN = ("nnrp/1", "nnrp/1-tcp")
"""In our order of preference; a client that names none is served too (nnrp-wire 2.3)."""


Handler: TypeAlias = Callable[[trio.abc.Stream], Awaitable[None]]
"""Serves one accepted stream, and closes it."""


async def listen_tcp(  # noqa: ASYNC114, ASYNC128  # serve_port calls started
    service: NnrpService,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    task_status: trio.TaskStatus[list[tuple[str, int]]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve NNRP on a TCP port, until cancelled or until the service has begun to drain and its connections have ended.

    Reports the addresses it listens on (port 0 is resolved). Raises ``OSError`` when they cannot be bound.
    """
    name = "tcp" if tls is None else "tls"
    await serve_port(service, host, port, name, partial(service.serve_stream, transport=name), tls, task_status)


async def serve_port(
    service: NnrpService,
    host: str,
    port: int,
    name: str,
    handle: Handler,
    tls: ssl.SSLContext | None,
    task_status: trio.TaskStatus[list[tuple[str, int]]],
) -> None:
    """Accept streams on a TCP port and give them to ``handle``; otherwise as `listen_tcp`."""
    listeners = await trio.open_tcp_listeners(port, host=host)
    addresses = [each.socket.getsockname()[:2] for each in listeners]
    async with trio.open_nursery() as connections:
        accepting = partial(
            trio.serve_listeners, partial(_serve, service, name, handle, tls), listeners, handler_nursery=connections
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(accepting)
            for host_name, number in addresses:
                log.info("nnrp_listening", transport=name, host=host_name, port=number)
            task_status.started(addresses)
            await service.wait_draining()
            nursery.cancel_scope.cancel()


async def _serve(
    service: NnrpService, name: str, handle: Handler, tls: ssl.SSLContext | None, stream: trio.SocketStream
) -> None:
    secured: trio.abc.Stream = stream
    try:
        if tls is not None:
            secured = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
            with trio.fail_after(service.policy.limits.handshake_timeout):
                await secured.do_handshake()
    except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
        log.info("nnrp_tls_failed")
        await trio.aclose_forcefully(stream)
        return
    try:
        await handle(secured)
    except Exception:
        # A defect of ours costs this connection, not the listener.
        log.error("nnrp_connection_failed", transport=name, exc_info=True)


def tls_context(certificate: str, key: str, alpn: Iterable[str] = ALPN) -> ssl.SSLContext:
    """TLS 1.3 and the protocol's names (nnrp-wire 2.3); a WebSocket has that of HTTP."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(list(alpn))
    return context
