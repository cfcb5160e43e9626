"""A message to bytes, checked before anything is sent (nnrp-wire 2.1, 4)."""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

from protocol.layout import Buffer
from protocol.nnrp.decoder import VIEW_BYTES, decode_packet
from protocol.nnrp.enums import HeaderFlags
from protocol.nnrp.errors import NnrpError, NnrpLocalError, Outcome
from protocol.nnrp.extensions import ALL_FEATURES
from protocol.nnrp.header import Header
from protocol.nnrp.messages import Message
from protocol.nnrp.regions import Regions

__all__ = ["BodyLike", "encode_packet", "encode_parts"]

BodyLike: TypeAlias = Buffer | Regions | list[Buffer]
"""The body of a packet to send: bytes, buffers to be written one after the other, or the regions to build it from."""

_NO_FLAGS = HeaderFlags(0)


def encode_parts(
    message: Message,
    body: BodyLike = b"",
    *,
    session_id: int = 0,
    frame_id: int = 0,
    view_id: int = 0,
    route_id: int = 0,
    trace_id: int = 0,
    flags: HeaderFlags = _NO_FLAGS,
    strict: bool = True,
) -> list[Buffer]:
    """The packet as buffers to be written one after the other; body buffers of `VIEW_BYTES` and more are not copied.

    The message is checked as a receiver would check it, in strict mode; ``strict=False`` is for answering a peer in
    its dialect (nnrp-wire 2.6, 8.6) and for nothing else. Raises `NnrpLocalError`, and nothing was sent.
    """
    parts = body.build() if isinstance(body, Regions) else body if isinstance(body, list) else [body]
    size = sum(map(len, parts))
    kind = message.TYPE
    try:
        header = Header(kind, flags, message.SIZE, size, session_id, frame_id, view_id, route_id, trace_id)
        head = header.pack() + message.pack()
    except struct.error as error:
        rule = f"a value does not fit its field: {error}"
        raise NnrpLocalError(Outcome.LENGTH_OVERFLOW, rule, subject=kind.name) from error
    gathered = _gather(head, parts)
    _check(gathered[0] if len(gathered) == 1 else b"".join(gathered), strict)
    return gathered


def _check(whole: Buffer, strict: bool) -> None:
    """What we send must be what we would accept: one truth for both directions."""
    try:
        decode_packet(whole, strict=strict, granted=ALL_FEATURES, max_body_bytes=0xFFFF_FFFF)
    except NnrpError as error:
        raise NnrpLocalError(
            error.outcome, error.rule, subject=error.subject, field=error.field, offset=error.offset
        ) from error


def _gather(head: bytes, parts: list[Buffer]) -> list[Buffer]:
    """Join small neighbours, keep large buffers as they are."""
    out: list[Buffer] = []
    small: list[Buffer] = [head]
    for part in parts:
        if len(part) < VIEW_BYTES:
            small.append(part)
            continue
        if small:
            out.append(b"".join(small))
            small = []
        out.append(part)
    if small:
        out.append(b"".join(small))
    return out


def encode_packet(message: Message, body: BodyLike = b"", **header: Any) -> bytes:
    """The packet as one bytes object; arguments and errors as in `encode_parts`."""
    parts = encode_parts(message, body, **header)
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
