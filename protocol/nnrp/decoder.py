"""Bytes to a decoded `Packet` (nnrp-wire 2.1, 3.3, 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from protocol.errors import Reach
from protocol.layout import Buffer, Violation
from protocol.nnrp.bodies import VIEW_BYTES, Body, Context
from protocol.nnrp.catalogue import ID_RULES, IdRule
from protocol.nnrp.control_bodies import CONTROL_BODIES, widens_cancel
from protocol.nnrp.data_bodies import parse_result, parse_submit
from protocol.nnrp.enums import ErrorCode, MessageType, OperationFeatures
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.extensions import ALL_FEATURES, NO_FEATURES
from protocol.nnrp.header import HEADER_BYTES, MAX_META_BYTES, Header
from protocol.nnrp.messages import MESSAGES, Message
from protocol.nnrp.plain import PLAIN

__all__ = [
    "DEFAULT_MAX_BODY_BYTES",
    "VIEW_BYTES",
    "Packet",
    "RawPacket",
    "check_limits",
    "check_message",
    "decode_packet",
    "parse_header",
]

DEFAULT_MAX_BODY_BYTES = 33_554_432
"""Largest body accepted unless negotiated otherwise (nnrp-wire 2.1 item 6)."""


class Packet(msgspec.Struct, frozen=True, gc=False):
    """A decoded and validated packet.

    ``body`` holds the body bytes: a `bytes` copy below `VIEW_BYTES`, else a read-only view that keeps the buffer it
    arrived in alive, as do the payloads inside ``content``. Nobody writes to that buffer, so views stay valid and
    unchanged for as long as they are held; copy what is kept for long. ``content`` is the body, decoded:
    `ControlBody`, or `DataBody` for submits and results.
    """

    header: Header
    metadata: Message
    body: Buffer
    content: Body

    @property
    def kind(self) -> MessageType:
        return self.header.msg_type

    def pack(self) -> bytes:
        """The bytes of this packet as it stands, without any check: what it was decoded from."""
        return b"".join((self.header.pack(), self.metadata.pack(), self.body))


class RawPacket(msgspec.Struct, frozen=True, gc=False):
    """A packet whose header is valid and whose bytes are complete, not yet decoded.

    ``buffer`` is the whole read it arrived in, the packet begins at ``start``; it keeps that buffer alive.
    """

    buffer: bytes | memoryview
    start: int = 0

    @property
    def header(self) -> Header:
        """The header, decoded on each access."""
        return Header.decode(self.buffer, self.start)

    @property
    def data(self) -> bytes:
        """The bytes of the packet, copied."""
        header = self.header
        return bytes(self.buffer[self.start : self.start + HEADER_BYTES + header.meta_len + header.body_len])

    def decode(self, *, strict: bool = True, granted: OperationFeatures = NO_FEATURES) -> Packet:
        """Decode and validate metadata, header ids and body, in that order (nnrp-wire 4.9).

        ``granted`` are the operation extensions of the session; extensions that were not granted count as unknown.
        Raises `NnrpError` with the message's reach; the framing is intact, so the connection may go on where the
        error is not fatal.
        """
        buffer, start = self.buffer, self.start
        if not isinstance(buffer, bytes) or (plain := PLAIN.get(buffer[start : start + _BEGIN])) is None:
            return self._decode(strict, granted)
        found = plain.read(buffer, start, strict)
        if found is not None:
            return Packet(*found)
        packet = self._decode(strict, granted)
        plain.learn(buffer, start, strict, packet.metadata, packet.content)
        return packet

    def _decode(self, strict: bool, granted: OperationFeatures) -> Packet:
        header = Header.decode(self.buffer, self.start)
        try:
            return _decode(header, self.buffer, self.start + HEADER_BYTES, strict, granted)
        except NnrpError as error:
            _locate(error, header)
            raise


_BEGIN = Header.LAYOUT.field("body_len").offset

BodyParser: TypeAlias = Callable[[Any, Buffer, Context], Body]
_BODIES: dict[MessageType, BodyParser] = {
    **CONTROL_BODIES,
    MessageType.FRAME_SUBMIT: parse_submit,
    MessageType.RESULT_PUSH: parse_result,
}
_Step: TypeAlias = tuple[type[Message], IdRule, BodyParser, Context, Context]
_STEPS: dict[MessageType, _Step] = {
    kind: (
        message,
        ID_RULES[kind],
        _BODIES[kind],
        Context(True, NO_FEATURES, HEADER_BYTES + message.SIZE),
        Context(False, NO_FEATURES, HEADER_BYTES + message.SIZE),
    )
    for kind, message in MESSAGES.items()
}
"""What decodes each message type, in the order of nnrp-wire 4.9, and the contexts that need no features."""


def _decode(header: Header, buffer: bytes | memoryview, start: int, strict: bool, granted: OperationFeatures) -> Packet:
    message, check_ids, parse_body, strictly, tolerantly = _STEPS[header.msg_type]
    meta_len, body_len = header.meta_len, header.body_len
    if meta_len != message.SIZE:
        _wrong_meta_len(message, meta_len)
    metadata = message.decode(buffer, start, strict, HEADER_BYTES)
    check_ids(header.session_id, header.frame_id, metadata, strict)
    start += meta_len
    body: Buffer = b""
    if body_len:
        body = _cut(buffer, start, start + body_len)
    how = strictly if strict else tolerantly
    if granted:
        how = Context(strict, granted, how.at)
    content = parse_body(metadata, body, how)
    if not header.frame_id and header.msg_type is MessageType.FRAME_CANCEL:
        _check_wide_cancel(content)
    return Packet(header, metadata, body, content)


def _cut(buffer: bytes | memoryview, start: int, stop: int) -> Buffer:
    """A copy of a small body, a view of a large one."""
    if stop - start < VIEW_BYTES:
        return bytes(buffer[start:stop])
    return memoryview(buffer)[start:stop]


def _check_wide_cancel(content: Body) -> None:
    if not widens_cancel(content):
        rule = "frame_id 0 needs a granted cancel_scope of group or session"
        raise NnrpError(Outcome.BAD_COMBINATION, rule, subject="FRAME_CANCEL", field="frame_id", offset=24)


def check_message(session_id: int, frame_id: int, message: Message, body: Buffer, strict: bool) -> None:
    """Apply the rules for ids and body to a message about to be sent; its own were applied in `pack_checked`."""
    _, check_ids, parse_body, _, _ = _STEPS[message.TYPE]
    check_ids(session_id, frame_id, message, strict)
    content = parse_body(message, body, Context(strict, ALL_FEATURES, HEADER_BYTES + message.SIZE))
    if not frame_id and message.TYPE is MessageType.FRAME_CANCEL:
        _check_wide_cancel(content)


def _wrong_meta_len(message: type[Message], meta_len: int) -> None:
    name = message.LAYOUT.name
    if not message.SIZE:
        message.fail(Violation("BadCombination", name, "meta_len", 12, f"{name} has no metadata, meta_len {meta_len}"))
    message.wrong_size(meta_len, HEADER_BYTES)


def _locate(error: NnrpError, header: Header) -> None:
    """Give ``error`` the scope of the message it was found in (nnrp-wire 15)."""
    reach = MESSAGES[header.msg_type].REACH
    if header.msg_type in (MessageType.FLOW_UPDATE, MessageType.ERROR) and not header.session_id:
        reach = Reach.CONNECTION
    if error.outcome is Outcome.LENGTH_OVERFLOW:
        error.code = ErrorCode.MALFORMED_BODY  # of lengths inside a body: the packet itself is well framed (2.1 item 5)
    error.reach = reach
    error.fatal = reach is Reach.CONNECTION
    error.session_id = header.session_id
    error.frame_id = header.frame_id


def parse_header(data: Buffer, offset: int = 0) -> Header:
    """The header at ``data[offset:]``, checked by the rules of nnrp-wire 3.3 up to the lengths as such."""
    present = len(data) - offset
    if present < HEADER_BYTES:
        rule = f"a packet starts with {HEADER_BYTES} bytes, got {max(present, 0)}"
        Header.fail(Violation("TooShort", "HEADER", None, max(present, 0), rule))
    return Header.decode(data, offset)


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
    header = Header.decode(buffer) if len(buffer) >= HEADER_BYTES else parse_header(buffer)
    declared = HEADER_BYTES + header.meta_len + header.body_len
    if len(buffer) != declared or header.meta_len > MAX_META_BYTES or header.body_len > max_body_bytes:
        check_limits(header, max_body_bytes)
        rule = f"the header declares {declared} bytes, {len(buffer)} are present"
        Header.fail(Violation("LengthMismatch", "HEADER", None, min(declared, len(buffer)), rule))
    try:
        return _decode(header, buffer, HEADER_BYTES, strict, granted)
    except NnrpError as error:
        _locate(error, header)
        raise
