"""Whole packets: bytes to a decoded `Packet`, and a message to bytes (nnrp-wire 2.1, 3.3, 4)."""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import msgspec

from protocol.errors import Reach
from protocol.layout import Buffer, Violation
from protocol.nnrp.bodies import Body, cancels_more_than_one, parse_body
from protocol.nnrp.catalogue import check_ids
from protocol.nnrp.enums import HeaderFlags, MessageType, OperationFeatures
from protocol.nnrp.errors import NnrpError, NnrpLocalError, Outcome
from protocol.nnrp.extensions import ALL_FEATURES, NO_FEATURES
from protocol.nnrp.header import HEADER_BYTES, MAX_META_BYTES, Header
from protocol.nnrp.messages import MESSAGES, Message
from protocol.nnrp.regions import Regions

__all__ = [
    "DEFAULT_MAX_BODY_BYTES",
    "VIEW_BYTES",
    "Packet",
    "RawPacket",
    "check_limits",
    "decode_packet",
    "encode_packet",
    "encode_parts",
    "parse_header",
]

DEFAULT_MAX_BODY_BYTES = 33_554_432
"""Largest body accepted unless negotiated otherwise (nnrp-wire 2.1 item 6)."""

VIEW_BYTES = 4096
"""From this size on a body is a view of the buffer it arrived in; smaller ones are copied, which is cheaper and
lets go of the buffer."""

BodyLike: TypeAlias = Buffer | Regions | list[Buffer]

_NO_FLAGS = HeaderFlags(0)


class Packet(msgspec.Struct, frozen=True):
    """A decoded and validated packet.

    ``body`` holds the body bytes: a `bytes` copy below `VIEW_BYTES`, else a read-only view that keeps the buffer it
    arrived in alive, as do the payloads inside ``content``. Nothing else refers to that buffer after the splitter has
    handed the packet out, so the views stay valid and unchanged for as long as they are held; copy what is to be kept
    for long. ``content`` is the body, decoded: `ControlBody`, or `DataBody` for submits and results.
    """

    header: Header
    metadata: Message
    body: Buffer
    content: Body

    @property
    def kind(self) -> MessageType:
        return self.header.msg_type

    def pack(self) -> bytes:
        """The bytes of this packet as it stands, without any check: what `decode_packet` was given."""
        return b"".join((self.header.pack(), self.metadata.pack(), self.body))


class RawPacket(msgspec.Struct, frozen=True):
    """A packet whose header is valid and whose bytes are complete, not yet decoded.

    ``buffer`` holds the whole read it arrived in; the packet begins at ``start``. It keeps that buffer alive.
    """

    header: Header
    buffer: bytes | memoryview
    start: int

    def decode(self, *, strict: bool = True, granted: OperationFeatures = NO_FEATURES) -> Packet:
        """Decode and validate metadata, header ids and body, in that order (nnrp-wire 4.9).

        ``granted`` are the operation extensions of the session; extensions that were not granted count as unknown.
        Raises `NnrpError` with the message's reach; the framing is intact, so the connection may go on where the
        error is not fatal.
        """
        header = self.header
        try:
            return _decode(header, self.buffer, self.start, strict, granted)
        except NnrpError as error:
            raise _locate(error, header) from error.__cause__

    @property
    def data(self) -> bytes:
        """The bytes of the packet, copied."""
        end = self.start + HEADER_BYTES + self.header.meta_len + self.header.body_len
        return bytes(self.buffer[self.start : end])


def _decode(header: Header, buffer: bytes | memoryview, start: int, strict: bool, granted: OperationFeatures) -> Packet:
    message = MESSAGES[header.msg_type]
    meta_len, body_len = header.meta_len, header.body_len
    if meta_len != message.SIZE:
        _wrong_meta_len(message, meta_len)
    begin = start + HEADER_BYTES
    metadata = message.decode(buffer, begin, strict, HEADER_BYTES)
    check_ids(header, metadata, strict)
    begin += meta_len
    body: Buffer = b""
    if body_len >= VIEW_BYTES:
        body = memoryview(buffer)[begin : begin + body_len]
    elif body_len:
        body = bytes(buffer[begin : begin + body_len])
    content = parse_body(metadata, body, strict=strict, granted=granted, at=HEADER_BYTES + meta_len)
    if header.msg_type is MessageType.FRAME_CANCEL and not header.frame_id and not cancels_more_than_one(content):
        rule = "frame_id 0 needs a granted cancel_scope of group or session"
        raise NnrpError(Outcome.BAD_COMBINATION, rule, subject="FRAME_CANCEL", field="frame_id", offset=24)
    return Packet(header, metadata, body, content)


def _wrong_meta_len(message: type[Message], meta_len: int) -> None:
    name = message.LAYOUT.name
    if not message.SIZE:
        message.fail(Violation("BadCombination", name, "meta_len", 12, f"{name} has no metadata, meta_len {meta_len}"))
    message.wrong_size(meta_len, HEADER_BYTES)


def _locate(error: NnrpError, header: Header) -> NnrpError:
    """Give ``error`` the scope of the message it was found in (nnrp-wire 15)."""
    if error.outcome is not Outcome.LENGTH_OVERFLOW:
        reach = MESSAGES[header.msg_type].REACH
        if header.msg_type in (MessageType.FLOW_UPDATE, MessageType.ERROR) and not header.session_id:
            reach = Reach.CONNECTION
        error.reach = reach
    error.fatal = error.reach is Reach.CONNECTION
    error.session_id = header.session_id
    error.frame_id = header.frame_id
    return error


def parse_header(data: Buffer, offset: int = 0) -> Header:
    """The header at ``data[offset:]``, checked by the rules of nnrp-wire 3.3 up to the lengths as such."""
    if len(data) - offset < HEADER_BYTES:
        rule = f"a packet starts with {HEADER_BYTES} bytes, got {len(data) - offset}"
        Header.fail(Violation("TooShort", "HEADER", None, max(len(data) - offset, 0), rule))
    return Header.decode(data, offset, True, 0)


def check_limits(header: Header, max_body_bytes: int, max_meta_bytes: int = MAX_META_BYTES) -> None:
    """Refuse a header that declares more than the receiver is ready to hold (nnrp-wire 2.1 item 6)."""
    if header.meta_len > max_meta_bytes:
        rule = f"meta_len {header.meta_len} is above {max_meta_bytes}"
        Header.fail(Violation("LimitExceeded", "HEADER", "meta_len", 12, rule))
    if header.body_len > max_body_bytes:
        rule = f"body_len {header.body_len} is above {max_body_bytes}"
        Header.fail(Violation("LimitExceeded", "HEADER", "body_len", 16, rule))


def decode_packet(
    buffer: Buffer,
    *,
    strict: bool = True,
    granted: OperationFeatures = NO_FEATURES,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
) -> Packet:
    """The packet that is exactly ``buffer``; raises `NnrpError` for the first rule it breaks (nnrp-wire 3.3, 4.9).

    Bodies of `VIEW_BYTES` and more are views of ``buffer``, which must then not be changed; a bytearray is copied.
    """
    if isinstance(buffer, bytearray):
        buffer = bytes(buffer)
    header = parse_header(buffer)
    check_limits(header, max_body_bytes)
    declared = HEADER_BYTES + header.meta_len + header.body_len
    if len(buffer) != declared:
        rule = f"the header declares {declared} bytes, {len(buffer)} are present"
        Header.fail(Violation("LengthMismatch", "HEADER", None, min(declared, len(buffer)), rule))
    return RawPacket(header, buffer, 0).decode(strict=strict, granted=granted)


def _flatten(body: BodyLike) -> list[Buffer]:
    if isinstance(body, Regions):
        return body.build()
    if isinstance(body, list):
        return body
    return [body] if body else []


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
    parts = _flatten(body)
    size = sum(map(len, parts))
    kind = message.TYPE
    try:
        packed = message.pack()
        header = Header(kind, flags, len(packed), size, session_id, frame_id, view_id, route_id, trace_id)
        head = header.pack() + packed
    except struct.error as error:
        rule = f"a value does not fit its field: {error}"
        raise NnrpLocalError(Outcome.LENGTH_OVERFLOW, rule, subject=kind.name) from error
    _check_outgoing(header, head, parts, body, strict)
    return _gather(head, parts)


def _check_outgoing(header: Header, head: bytes, parts: list[Buffer], body: BodyLike, strict: bool) -> None:
    whole = b"".join((head, *parts))
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
    return b"".join(encode_parts(message, body, **header))
