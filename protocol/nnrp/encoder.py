"""A message to bytes, checked before anything is sent (nnrp-wire 2.1, 4)."""

from __future__ import annotations

import struct
from typing import TypeAlias

from protocol.layout import Buffer
from protocol.nnrp.catalogue import ID_RULES
from protocol.nnrp.decoder import VIEW_BYTES, check_message
from protocol.nnrp.enums import HeaderFlags
from protocol.nnrp.errors import NnrpError, NnrpLocalError, Outcome
from protocol.nnrp.header import HEADER_BYTES, Header
from protocol.nnrp.messages import FrameSubmit, Message, ResultPush
from protocol.nnrp.region_parser import pack_payload_regions
from protocol.nnrp.regions import Regions, TypedPayload

__all__ = ["BodyLike", "encode_built", "encode_packet", "encode_parts"]

BodyLike: TypeAlias = Buffer | Regions | list[Buffer]
"""The body of a packet to send: bytes, buffers to be written one after the other, or the regions to build it from."""

_NO_FLAGS = HeaderFlags(0)
_DATA = (FrameSubmit, ResultPush)


def encode_packet(
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
) -> bytes:
    """The packet as one bytes object; arguments and errors as in `encode_parts`."""
    return b"".join(_encode(message, body, flags, session_id, frame_id, view_id, route_id, trace_id, strict))


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
    return _gather(_encode(message, body, flags, session_id, frame_id, view_id, route_id, trace_id, strict))


def encode_built(
    message: Message, body: bytes, session_id: int, frame_id: int, view_id: int, route_id: int, trace_id: int
) -> bytes:
    """The packet of a message whose body was built here, with its lengths in the metadata. Metadata and ids are checked, the
    body is not read again. Raises `NnrpLocalError`."""
    kind = message.TYPE
    try:
        packed = message.pack_checked()
        ID_RULES[kind](session_id, frame_id, message, True)
        values = (kind, _NO_FLAGS, message.SIZE, len(body), session_id, frame_id, view_id, route_id, trace_id)
        return b"".join((Header.pack_values(*values), packed, body))
    except (struct.error, NnrpError) as error:
        raise _local(error, kind.name) from error


def _local(error: struct.error | NnrpError, name: str) -> NnrpLocalError:
    """Why a message cannot be sent."""
    if isinstance(error, NnrpError):
        return NnrpLocalError(error.outcome, error.rule, subject=error.subject, field=error.field, offset=error.offset)
    return NnrpLocalError(Outcome.LENGTH_OVERFLOW, f"a value does not fit its field: {error}", subject=name)


def _encode(
    message: Message,
    body: BodyLike,
    flags: HeaderFlags,
    session_id: int,
    frame_id: int,
    view_id: int,
    route_id: int,
    trace_id: int,
    strict: bool,
) -> list[Buffer]:
    """Header, metadata and body as they were packed, checked. Positional: this is the hot path."""
    kind = message.TYPE
    try:
        packed = message.pack_checked() if strict else message.pack()
        if strict and type(body) is Regions and isinstance(message, _DATA) and body.only_payloads:
            # The common case, typed payloads and nothing else: checked while it is built, the data is not looked at.
            parts, size = _payload_parts(message, body.payloads)
            ID_RULES[kind](session_id, frame_id, message, True)
        else:
            parts = body.build() if isinstance(body, Regions) else body if isinstance(body, list) else [body]
            size = sum([len(part) for part in parts])
            _check_any(message, packed, parts, session_id, frame_id, strict)
        values = (kind, flags, message.SIZE, size, session_id, frame_id, view_id, route_id, trace_id)
        return [Header.pack_values(*values), packed, *parts]
    except (struct.error, NnrpError) as error:
        raise _local(error, kind.name) from error


def _payload_parts(message: FrameSubmit | ResultPush, payloads: tuple[TypedPayload, ...]) -> tuple[list[Buffer], int]:
    if message.payload_frame_count != len(payloads):
        rule = f"payload_frame_count is {message.payload_frame_count}, the body has {len(payloads)} payloads"
        field = "payload_frame_count"
        raise NnrpError(Outcome.BAD_COMBINATION, rule, subject=message.TYPE.name, field=field)
    return pack_payload_regions(payloads, message.payload_kind_bitmap + 0)


def _check_any(
    message: Message, packed: bytes, parts: list[Buffer], session_id: int, frame_id: int, strict: bool
) -> None:
    """Check as a receiver would: one truth for both directions."""
    if not strict:
        message = message.decode(packed, 0, False, HEADER_BYTES)
    whole = parts[0] if len(parts) == 1 else b"".join(parts)
    check_message(session_id, frame_id, message, whole, strict)


def _gather(parts: list[Buffer]) -> list[Buffer]:
    """Join small neighbours, keep large buffers as they are."""
    if max(map(len, parts)) < VIEW_BYTES:
        return [b"".join(parts)]
    out: list[Buffer] = []
    small: list[Buffer] = []
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
