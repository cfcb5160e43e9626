"""What a listener reads of a QUIC packet before it knows the connection, and how it has addresses proved.

The fields are those that every version of QUIC keeps (RFC 8999), and the token of an Initial (RFC 9000, 17.2.2).
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import struct
from typing import Final

import attrs

from protocol.nnrp.quic_engine import Address

__all__ = ["Head", "RetryTokens", "parse_head"]

_LONG: Final = 0x80
_KIND: Final = 0x30
_MOST_ID_BYTES: Final = 20
_EXPIRY: Final = struct.Struct(">dB")
_MAC_BYTES: Final = 16
_LIFETIME: Final = 30.0
"""Seconds: a client returns a retry token at once (RFC 9000, 8.1.4)."""


@attrs.frozen(slots=True)
class Head:
    """``version`` None: a short header, which only a connection that is known can have."""

    destination: bytes
    source: bytes = b""
    version: int | None = None
    is_initial: bool = False
    token: bytes = b""


def parse_head(data: bytes, id_bytes: int) -> Head | None:
    """The head of the first packet of a UDP datagram; None when it is none. ``id_bytes``: how long our ids are."""
    try:
        if not data[0] & _LONG:
            return Head(data[1 : 1 + id_bytes]) if len(data) > id_bytes else None
        version = int.from_bytes(data[1:5], "big")
        destination, at = _take(data, 5)
        source, at = _take(data, at)
        is_initial = version != 0 and not data[0] & _KIND
        token = b""
        if is_initial:
            size, at = _varint(data, at)
            token = data[at : at + size]
    except (IndexError, ValueError):
        return None
    return Head(destination, source, version, is_initial, token)


def _take(data: bytes, at: int) -> tuple[bytes, int]:
    size = data[at]
    end = at + 1 + size
    if size > _MOST_ID_BYTES or end > len(data):
        raise ValueError
    return data[at + 1 : end], end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    size = 1 << (data[at] >> 6)
    if at + size > len(data):
        raise ValueError
    return int.from_bytes(data[at : at + size], "big") & ((1 << (8 * size - 2)) - 1), at + size


class RetryTokens:
    """Tokens that prove an address without anything being kept for it: who returns one receives at the address it was made
    for. They are bound to the address and to both connection ids, and die soon."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def make(self, address: Address, original: bytes, source: bytes, now: float) -> bytes:
        """``original``: the id the client had chosen for us; ``source``: the one it must use from now on."""
        content = _EXPIRY.pack(now + _LIFETIME, len(original)) + original + source
        return content + self._mac(address, content)

    def check(self, address: Address, token: bytes, now: float) -> tuple[bytes, bytes] | None:
        """The two ids, None when the token was not made here, for this address, lately."""
        content, mac = token[:-_MAC_BYTES], token[-_MAC_BYTES:]
        if len(content) < _EXPIRY.size or not hmac.compare_digest(mac, self._mac(address, content)):
            return None
        expiry, size = _EXPIRY.unpack_from(content)
        if expiry < now:
            return None
        ids = content[_EXPIRY.size :]
        return ids[:size], ids[size:]

    def _mac(self, address: Address, content: bytes) -> bytes:
        where = ipaddress.ip_address(address[0].partition("%")[0]).packed + address[1].to_bytes(2, "big")
        return hmac.digest(self._key, where + content, "sha256")[:_MAC_BYTES]
