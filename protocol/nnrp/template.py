"""Sending the same kind of packet again and again; see `plain`."""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

from protocol.layout import Buffer
from protocol.nnrp.bodies import VIEW_BYTES
from protocol.nnrp.descriptors import TypedPayloadDescriptor
from protocol.nnrp.encoder import encode_packet, encode_parts
from protocol.nnrp.messages import FrameSubmit, Message, ResultPush
from protocol.nnrp.plain import BODY_BYTES, plain_struct
from protocol.nnrp.regions import Regions, TypedPayload

__all__ = ["Template"]

_STRUCTS: dict[type[Message], struct.Struct] = {message: plain_struct(message) for message in (FrameSubmit, ResultPush)}


M = TypeVar("M", bound=FrameSubmit | ResultPush)


class Template(Generic[M]):
    """A FRAME_SUBMIT or RESULT_PUSH with one typed payload and nothing else in its body, whose ids and payload are to be filled
    in. Offset and length in ``descriptor`` do not matter.

    It is checked once, when it is made, as `encode_parts` checks; raises `NnrpLocalError`.
    """

    __slots__ = ("_before", "_begin", "_between", "_pack", "descriptor", "message")

    def __init__(self, message: M, descriptor: TypedPayloadDescriptor) -> None:
        whole = encode_packet(message, Regions((TypedPayload(descriptor, b""),)), session_id=1, frame_id=1)
        made = _STRUCTS[type(message)]
        self._begin, *_, self._before, _, self._between, _ = made.unpack(whole)
        self._pack = made.pack
        self.message: M = message
        self.descriptor = descriptor

    def payload_of(self, message: FrameSubmit | ResultPush, body: object) -> Buffer | None:
        """The payload, if this is the template of such a packet."""
        if message is not self.message or type(body) is not Regions or len(body.payloads) != 1:
            return None
        payload = body.payloads[0]
        if payload.descriptor is not self.descriptor or not body.only_payloads:
            return None
        return payload.data

    def describes(self, descriptor: TypedPayloadDescriptor) -> bool:
        """Whether ``descriptor`` differs from that of the template in offset and length at most."""
        mine = self.descriptor
        return mine is descriptor or (
            mine.profile_id == descriptor.profile_id
            and mine.descriptor_flags is descriptor.descriptor_flags
            and mine.schema_id == descriptor.schema_id
            and mine.schema_version == descriptor.schema_version
            and mine.stream_semantics is descriptor.stream_semantics
        )

    def encode_parts(
        self, data: Buffer, session_id: int, frame_id: int, view_id: int = 0, route_id: int = 0, trace_id: int = 0
    ) -> list[Buffer]:
        """What the function of this name gives for such a packet, and what it raises."""
        size = len(data)
        if session_id and frame_id:
            try:
                head = self._pack(
                    self._begin,
                    BODY_BYTES + size,
                    session_id,
                    frame_id,
                    view_id,
                    route_id,
                    trace_id,
                    self._before,
                    size,
                    self._between,
                    size,
                )
            except struct.error:
                pass  # a number that does not fit its field: the general way says which
            else:
                return [head + data] if size < VIEW_BYTES else [head, data]
        return encode_parts(
            self.message,
            Regions((TypedPayload(self.descriptor, data),)),
            session_id=session_id,
            frame_id=frame_id,
            view_id=view_id,
            route_id=route_id,
            trace_id=trace_id,
        )
