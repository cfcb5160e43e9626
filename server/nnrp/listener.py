"""Accepting connections. One peer's failure is counted and skipped; running out of sockets backs off (trio does that)."""

from __future__ import annotations

import ssl
from functools import partial

import trio

from server.nnrp.service import NnrpService
from server.telemetry import log

__all__ = ["ALPN", "listen_tcp", "tls_context"]

ALPN = ("nnrp/1", "nnrp/1-tcp")
"""In our order of preference; a client that names none is served too (nnrp-wire 2.3)."""


async def listen_tcp(  # noqa: ASYNC114  # the lint's list of startable functions is its own
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
    listeners = await trio.open_tcp_listeners(port, host=host)
    addresses = [each.socket.getsockname()[:2] for each in listeners]
    name = "tcp" if tls is None else "tls"
    async with trio.open_nursery() as connections:
        accepting = partial(
            trio.serve_listeners, partial(_serve, service, name, tls), listeners, handler_nursery=connections
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(accepting)
            for host_name, number in addresses:
                log.info("nnrp_listening", transport=name, host=host_name, port=number)
            task_status.started(addresses)
            await service.wait_draining()
            nursery.cancel_scope.cancel()


async def _serve(service: NnrpService, name: str, tls: ssl.SSLContext | None, stream: trio.SocketStream) -> None:
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
        await service.serve_stream(secured, name)
    except Exception:
        # A defect of ours costs this connection, not the listener.
        log.error("nnrp_connection_failed", transport=name, exc_info=True)


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.3 and the protocol's names (nnrp-wire 2.3)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(list(ALPN))
    return context
