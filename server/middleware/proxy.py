"""Reverse proxies: who really asked, and how. Off unless networks are named (``--trust-proxy``).

The library's own wrapper deep-copies the scope, which fails as soon as the lifespan state holds a lock.
"""

from __future__ import annotations

import ipaddress
import re

from server.middleware.asgi import App, Receive, Scope, Send, headers

__all__ = ["TrustedProxies"]

_PAIR = re.compile(r'\s*([A-Za-z]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;,"]+))\s*')


class TrustedProxies:
    """ASGI wrapper. From the right, the first address that is no trusted proxy is the client (RFC 7239, 5.2).

    Only client and scheme are taken over. ``Host`` is not: it guards a loopback listener against rebinding, and a page that
    rebinds could forge the header of a proxy as well.
    """

    def __init__(self, app: App, networks: tuple[str, ...]) -> None:
        self._app = app
        self._networks = [ipaddress.ip_network(network) for network in networks]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] in ("http", "websocket") and client and self._trusts(client[0]):
            scope = dict(scope)
            self._rewrite(scope)
        await self._app(scope, receive, send)

    def _trusts(self, address: str) -> bool:
        try:
            return any(ipaddress.ip_address(address) in network for network in self._networks)
        except ValueError:
            return False

    def _rewrite(self, scope: Scope) -> None:
        hops = _forwarded(headers(scope, b"forwarded")) or _x_forwarded(scope)
        for address, scheme in reversed(hops):
            if address is not None:
                scope["client"] = (address, 0)
            if scheme in ("http", "https"):
                scope["scheme"] = scheme if scope["type"] == "http" else {"http": "ws", "https": "wss"}[scheme]
            if address is None or not self._trusts(address):
                return


def _forwarded(values: list[str]) -> list[tuple[str | None, str | None]]:
    hops = []
    for element in ",".join(values).split(",") if values else []:
        fields = {
            match[1].lower(): match[2] or match[3] or "" for match in map(_PAIR.fullmatch, element.split(";")) if match
        }
        hops.append((_address(fields.get("for")), fields.get("proto", "").lower() or None))
    return hops


def _x_forwarded(scope: Scope) -> list[tuple[str | None, str | None]]:
    addresses = [item for value in headers(scope, b"x-forwarded-for") for item in value.split(",")]
    schemes = [item.strip().lower() for value in headers(scope, b"x-forwarded-proto") for item in value.split(",")]
    if len(schemes) != len(addresses):
        # Proxies that set one scheme for the whole way.
        schemes = [schemes[-1]] * len(addresses) if schemes else [""] * len(addresses)
    return [(_address(address), scheme or None) for address, scheme in zip(addresses, schemes, strict=True)]


def _address(text: str | None) -> str | None:
    """An IP address with or without port and brackets; None for ``unknown``, obfuscated names and nonsense."""
    if text is None:
        return None
    text = text.strip().strip('"')
    candidates = [text, text.rpartition(":")[0].strip("[]"), text.strip("[]")]
    for candidate in candidates:
        try:
            return str(ipaddress.ip_address(candidate))
        except ValueError:
            continue
    return None
