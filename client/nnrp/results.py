"""A result, or a part of one, as the caller sees it."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.nnrp.bodies import DataBody
from protocol.nnrp.enums import DescriptorFlags, ExtType, OperationState, PayloadKind, ResultClass
from protocol.nnrp.extensions import find_extension
from protocol.nnrp.messages import ResultPush
from protocol.nnrp.packet import Packet
from protocol.nnrp.payloads import TokenChunk
from protocol.nnrp.regions import TypedPayload
from protocol.nnrp.tensor import TensorBody
from protocol.nnrp.vendor import OperationStateBlock, TokenHint

__all__ = ["Result", "drop_details", "event_id_of", "size_of", "state_block"]

_HINT = DescriptorFlags.PROFILE_HINT_PRESENT.value
_JSON = int(PayloadKind.STRUCTURED_EVENT | PayloadKind.TOOL_DELTA)


class Result(msgspec.Struct, frozen=True, gc=False):
    """One RESULT_PUSH. ``final``: nothing follows for its operation. Large payloads are views; copy what is kept for long."""

    metadata: ResultPush
    content: DataBody
    state: OperationState
    final: bool
    hints: bool
    event_id: int = 0

    @property
    def payloads(self) -> tuple[TypedPayload, ...]:
        return self.content.payloads

    @property
    def tensor(self) -> TensorBody:
        return self.content.tensor

    @property
    def result_class(self) -> ResultClass:
        return self.metadata.result_class

    @property
    def data(self) -> bytes:
        """The payloads joined, without the hints that token chunks may begin with. Raises ``NnrpError`` for a malformed hint."""
        return b"".join(bytes(each.text) for each in self._chunks())

    @property
    def text(self) -> str:
        """The same as text. Raises ``UnicodeDecodeError``."""
        return self.data.decode("utf-8")

    @property
    def kinds(self) -> PayloadKind:
        """What its payloads are: text (token_chunk), a structured_event, a tool_delta, or else."""
        return self.metadata.payload_kind_bitmap

    @property
    def event(self) -> Any:
        """A structured event or a tool delta, decoded: the event as the REST wire shows it, ``{id, v, type, data, …}``. None
        for text. Raises ``msgspec.DecodeError`` for what is no JSON."""
        if not int(self.kinds) & _JSON or int(self.kinds) & ~_JSON:
            return None
        return msgspec.json.decode(b"".join(bytes(each.data) for each in self.payloads))

    @property
    def hint(self) -> TokenHint | None:
        """The hint of the first chunk that has one."""
        return next((each.hint for each in self._chunks() if each.hint is not None), None)

    def _chunks(self) -> list[TokenChunk]:
        if self.content.raw_kind is not None:
            return [TokenChunk(self.content.raw)]
        if int(self.metadata.payload_kind_bitmap) & _JSON and not int(self.metadata.payload_kind_bitmap) & ~_JSON:
            return []  # a tool call, a plan: nothing that text clients read
        return [TokenChunk.parse(each, hints=self.hints, strict=False) for each in self.content.payloads]


def event_id_of(packet: Packet) -> int:
    """The event a result says it is, 0 when it says none."""
    block = state_block(packet)
    return 0 if block is None else block.event_id


def drop_details(packet: Packet) -> int:
    """The error code a RESULT_DROP carries, 0 when none."""
    block = state_block(packet)
    return 0 if block is None else block.error_code


def state_block(packet: Packet) -> OperationStateBlock | None:
    content = packet.content
    if isinstance(content, DataBody):
        for frame in content.regions.extensions:
            if isinstance(frame.value, OperationStateBlock):
                return frame.value
        return None
    value = find_extension(content.extensions, ExtType.OPERATION_STATE) if content.extensions else None
    return value if isinstance(value, OperationStateBlock) else None


def size_of(content: DataBody) -> int:
    """Bytes a kept result holds."""
    size = len(content.raw)
    for payload in content.payloads:
        size += len(payload.data)
    for section in content.tensor.sections:
        size += len(section.payload)
    return size
