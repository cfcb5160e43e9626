"""Which transport: by name, or by asking the daemon (CLI-040)."""

from __future__ import annotations

import logging
import random
import ssl

import attrs
import trio

from client.acp_http import AcpHttpTransport
from client.acp_ws import AcpWsTransport
from client.backoff import ReconnectPolicy
from client.deadline import limited
from client.dial import Connect, open_tcp
from client.environment import default_token
from client.errors import DaemonError
from client.http import HttpLink
from client.rest import RestTransport
from client.transport import Transport, TransportKind

__all__ = ["TransportOptions", "make_transport", "negotiate_transport"]

logger = logging.getLogger("moorline.client")


@attrs.frozen
class TransportOptions:
    """What a transport needs. Its background readers run in ``nursery``; times are in seconds."""

    nursery: trio.Nursery
    token: str | None = None
    connect: Connect = open_tcp
    ssl_context: ssl.SSLContext | None = None
    rng: random.Random = attrs.field(factory=random.Random)
    policy: ReconnectPolicy = attrs.field(factory=ReconnectPolicy)
    idle_timeout: float = 45.0
    open_timeout: float = 30.0


def make_transport(base_url: str, kind: TransportKind | str, options: TransportOptions) -> Transport:
    """A transport that opens its connections when first used. Raises ``ValueError`` for an unknown name."""
    link = HttpLink(base_url, token=options.token, connect=options.connect, ssl_context=options.ssl_context)
    match TransportKind(kind):
        case TransportKind.REST:
            return RestTransport(link)
        case TransportKind.ACP_HTTP:
            return AcpHttpTransport(
                link,
                options.nursery,
                rng=options.rng,
                policy=options.policy,
                idle_timeout=options.idle_timeout,
                open_timeout=options.open_timeout,
            )
        case TransportKind.ACP_WS:
            return AcpWsTransport(
                link, options.nursery, idle_timeout=options.idle_timeout, open_timeout=options.open_timeout
            )


async def negotiate_transport(
    base_url: str,
    token: str | None = None,
    probe_timeout: float = 5.0,
    *,
    nursery: trio.Nursery,
    options: TransportOptions | None = None,
) -> Transport:
    """The best transport the daemon lists: a WebSocket that works, ``/acp`` over HTTP, else REST (CLI-040).

    Never raises because of the daemon: one that does not answer within ``probe_timeout`` seconds, or lists nothing
    known, is spoken to over REST.
    """
    options = options or TransportOptions(nursery, token if token is not None else default_token())
    rest = make_transport(base_url, TransportKind.REST, options)
    listed = await _listed(rest, probe_timeout)
    if TransportKind.ACP_WS.value in listed:
        socket = make_transport(base_url, TransportKind.ACP_WS, options)
        if await _works(socket, probe_timeout):
            await rest.aclose()
            return socket
        await socket.aclose()
    if TransportKind.ACP_HTTP.value in listed:
        await rest.aclose()
        return make_transport(base_url, TransportKind.ACP_HTTP, options)
    return rest


async def _listed(rest: Transport, probe_timeout: float) -> tuple[str, ...]:
    try:
        with limited(probe_timeout, "capabilities"):
            return (await rest.capabilities()).transports
    except DaemonError as exc:
        logger.info("no capabilities, so REST: %s", exc)
        return ()


async def _works(transport: Transport, probe_timeout: float) -> bool:
    # Listing asks for nothing to be changed, and only a working connection can answer it.
    try:
        with limited(probe_timeout, "probe"):
            await transport.list_sessions("/", size=1)
    except DaemonError as exc:
        # A refusal is an answer: the connection works.
        answered = hasattr(exc, "rpc_code")
        logger.info("the WebSocket %s: %s", "answers" if answered else "does not work", exc)
        return answered
    return True
