"""Whole packets, in both directions: the parts of `decoder` and `encoder` that others use."""

from __future__ import annotations

from protocol.nnrp.decoder import (
    DEFAULT_MAX_BODY_BYTES,
    VIEW_BYTES,
    Packet,
    RawPacket,
    check_limits,
    decode_packet,
    parse_header,
)
from protocol.nnrp.encoder import BodyLike, encode_built, encode_packet, encode_parts

__all__ = [
    "DEFAULT_MAX_BODY_BYTES",
    "VIEW_BYTES",
    "BodyLike",
    "Packet",
    "RawPacket",
    "check_limits",
    "decode_packet",
    "encode_built",
    "encode_packet",
    "encode_parts",
    "parse_header",
]
