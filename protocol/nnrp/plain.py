"""Plain data packets: a FRAME_SUBMIT or RESULT_PUSH with one typed payload, and nothing else in its body.

Nearly every packet is one, and senders repeat themselves: what tells two of them apart are the ids, the payload and its
length. Everything else is fixed bytes, in two runs. The general codec has checked them where they were met first; what is left
is one `struct`, made from the layouts. `Template` sends such packets, `PlainPackets` reads them.
"""

from __future__ import annotations

import struct
from typing import Final

from protocol.nnrp.bodies import VIEW_BYTES, Body, BodyForm, DataBody
from protocol.nnrp.descriptors import BodyRegionPrelude, TypedPayloadDescriptor
from protocol.nnrp.enums import HeaderFlags, PayloadKind
from protocol.nnrp.header import Header
from protocol.nnrp.messages import FrameSubmit, Message, ResultPush
from protocol.nnrp.regions import Regions, TypedPayload

__all__ = ["BODY_BYTES", "PLAIN", "PlainPackets", "plain_struct"]

BODY_BYTES: Final = BodyRegionPrelude.SIZE + TypedPayloadDescriptor.SIZE
"""Of a plain body, before the payload."""
_MOST: Final = 64
"""Runs of fixed bytes remembered for each message type. A session mostly has one."""
_NO_FLAGS: Final = HeaderFlags(0)
_REGION: Final = BodyForm.REGION
_FRAMED: Final = BodyRegionPrelude.LAYOUT.field("typed_payload_frame_bytes")
_LENGTH: Final = TypedPayloadDescriptor.LAYOUT.field("length")


def plain_struct(message: type[FrameSubmit | ResultPush]) -> struct.Struct:
    """Everything before the payload: the header up to meta_len, body_len and the ids, the first run of fixed bytes (metadata,
    and the prelude's beginning), the payload's length, the second run, the payload's length again."""
    fields = Header.LAYOUT.fields
    first = next(index for index, each in enumerate(fields) if each.name == "body_len")
    ids = "".join([each.scalar.code for each in fields[first:]])
    before = message.SIZE + _FRAMED.offset
    between = BODY_BYTES - TypedPayloadDescriptor.SIZE + _LENGTH.offset - _FRAMED.offset - _FRAMED.scalar.size
    return struct.Struct(f"<{fields[first].offset}s{ids}{before}s{_FRAMED.scalar.code}{between}s{_LENGTH.scalar.code}")


class PlainPackets:
    """The plain packets of one message type, as they were read before: `learn` one, then `read` those like it."""

    __slots__ = ("_bytes", "_known", "_message", "_unpack")

    def __init__(self, message: type[FrameSubmit | ResultPush]) -> None:
        made = plain_struct(message)
        self._message = message
        self._bytes = made.size
        self._unpack = made.unpack_from
        self._known: tuple[dict[bytes, _Known], dict[bytes, _Known]] = ({}, {})

    def read(
        self, buffer: bytes, start: int, strict: bool
    ) -> tuple[Header, FrameSubmit | ResultPush, bytes, DataBody] | None:
        """The complete packet at ``buffer[start:]``, whose header up to meta_len is that of a plain packet: what the general
        decoder would make of it. None where it has to say."""
        try:
            _, body_len, session_id, frame_id, view_id, route_id, trace_id, before, framed, between, length = (
                self._unpack(buffer, start)
            )
            known = self._known[strict][before + between]
        except (struct.error, KeyError):
            return None
        if framed != length or body_len != BODY_BYTES + length or body_len >= VIEW_BYTES:
            return None
        if not (session_id and frame_id):
            return None
        descriptor = known.descriptor
        if descriptor.length != length:
            descriptor = known.descriptor = descriptor.replace(length=length)
        message = known.message
        stop = start + self._bytes + length
        body = buffer[stop - body_len : stop]
        return (
            Header(message.TYPE, _NO_FLAGS, message.SIZE, body_len, session_id, frame_id, view_id, route_id, trace_id),
            message,
            body,
            DataBody(_REGION, Regions((TypedPayload(descriptor, body[BODY_BYTES:], known.kind),))),
        )

    def learn(self, buffer: bytes, start: int, strict: bool, message: Message, content: Body) -> None:
        """Remember what the general decoder has made of the packet at ``buffer[start:]``, if it is plain. A result that tells
        times is not: they do not come again."""
        assert isinstance(message, (FrameSubmit, ResultPush))
        assert isinstance(content, DataBody)
        regions = content.regions
        payloads = regions.payloads
        if len(payloads) != 1 or regions.extensions or content != DataBody(_REGION, Regions(payloads)):
            return
        if isinstance(message, ResultPush) and (message.inference_ms or message.queue_ms or message.server_total_ms):
            return
        (payload,) = payloads
        descriptor = payload.descriptor
        if not isinstance(descriptor, TypedPayloadDescriptor) or descriptor.offset:
            return
        *_, before, _, between, _ = self._unpack(buffer, start)
        known = self._known[strict]
        if before + between not in known:
            if len(known) >= _MOST:
                known.clear()
            known[before + between] = _Known(message, descriptor, payload.kind)


class _Known:
    """What two runs of fixed bytes mean. ``descriptor`` has the length that was read last."""

    __slots__ = ("descriptor", "kind", "message")

    def __init__(
        self, message: FrameSubmit | ResultPush, descriptor: TypedPayloadDescriptor, kind: PayloadKind | None
    ) -> None:
        self.message = message
        self.descriptor = descriptor
        self.kind = kind


PLAIN: Final = {
    Header(message.TYPE, _NO_FLAGS, message.SIZE).pack()[: Header.LAYOUT.field("body_len").offset]: PlainPackets(
        message
    )
    for message in (FrameSubmit, ResultPush)
}
"""By the header up to meta_len, without flags."""
