"""The built-in echo: every submitted payload comes back.

A payload may begin with directives, alone or one after the other; it comes back with them:

``sleep=<ms>;``   the result waits that long
``partial=<n>;``  each payload comes back in n parts, the last one terminal
``fail;``         the operation fails
``tool;``         the operation waits for a tool for a moment, where the peer may hear of that
"""

from __future__ import annotations

import re
from typing import Final

import attrs
import trio

from protocol.layout import Buffer
from protocol.nnrp.bodies import DataBody
from protocol.nnrp.descriptors import TypedPayloadDescriptor
from protocol.nnrp.enums import DescriptorFlags, ErrorCode, PayloadKind, ProfileId
from protocol.nnrp.regions import TypedPayload
from protocol.nnrp.tensor import TensorBody
from server.nnrp.submit import Answer, Emit, OperationFailed, Submit

__all__ = ["EchoWorker", "Wish"]

_FIRST: Final = frozenset(b"sptf")
_DIRECTIVE: Final = re.compile(rb"(?:(sleep|partial)=([0-9]{1,9})|(tool|fail));")
_LONGEST: Final = 256
_MAX_PARTS: Final = 100_000
_CLEAR: Final = ~int(DescriptorFlags.PARTIAL | DescriptorFlags.TERMINAL)
_MOST_BYTES: Final = 4
"""Of one character in UTF-8."""
_TERMINAL, _PARTIAL = DescriptorFlags.TERMINAL, DescriptorFlags.PARTIAL
_TENSOR: Final = int(PayloadKind.TENSOR)
_NO_KIND: Final = PayloadKind(0)


@attrs.define(slots=True)
class Wish:
    """What the directives at the beginning of a payload ask for."""

    sleep: float = 0.0
    parts: int = 1
    tool: bool = False
    fail: bool = False

    @classmethod
    def of(cls, data: Buffer) -> Wish | None:
        """None when there are none."""
        if not len(data) or data[0] not in _FIRST:
            return None
        head, at, wish = bytes(data[:_LONGEST]), 0, cls()
        while (found := _DIRECTIVE.match(head, at)) is not None:
            name, number, word = found.groups()
            if name == b"sleep":
                wish.sleep += int(number) / 1000
            elif name == b"partial":
                wish.parts = min(max(int(number), 1), _MAX_PARTS)
            else:
                wish.tool |= word == b"tool"
                wish.fail |= word == b"fail"
            at = found.end()
        return wish if at else None


class EchoWorker:
    """Stateless: one serves every session."""

    def answer_nowait(self, submit: Submit) -> Answer | None:
        if submit.objects:
            return None  # what they hold may not be what it is taken for
        payloads = submit.content.regions.payloads
        first = payloads[0].data if payloads else next(iter(submit.data()), b"")
        if Wish.of(first) is not None:
            return None
        return _answer(submit, _typed(submit.content), submit.tensor)

    async def run(self, submit: Submit, emit: Emit) -> Answer:
        wish = Wish.of(next(iter(submit.data()), b"")) or Wish()
        if wish.tool:
            await emit.waiting_tool(True)
        await trio.sleep(wish.sleep)
        if wish.tool:
            await emit.waiting_tool(False)
        if wish.fail:
            raise OperationFailed("asked to fail", ErrorCode.INTERNAL_ERROR)
        typed = _typed(submit.content)
        if wish.parts == 1 or not typed:
            return _answer(submit, typed, submit.tensor)
        for index in range(wish.parts - 1):
            await emit.partial(_answer(submit, [_piece(each, index, wish.parts) for each in typed]))
            await trio.lowlevel.checkpoint()
        last = [_piece(each, wish.parts - 1, wish.parts) for each in typed]
        return _answer(submit, last, submit.tensor)

    def close(self) -> None:
        return


def _typed(content: DataBody) -> list[TypedPayload]:
    """The payloads to return, each terminal; a bare payload as one typed one."""
    if content.raw_kind is not None:
        profile = ProfileId.TOKEN if content.raw_kind is PayloadKind.TOKEN_CHUNK else ProfileId.UNSPECIFIED
        return [TypedPayload.of(content.raw, profile_id=profile, flags=_TERMINAL)]
    return [_flagged(each, each.data, _TERMINAL) for each in content.regions.payloads]


def _flagged(payload: TypedPayload, data: Buffer, flag: DescriptorFlags) -> TypedPayload:
    plan = payload.descriptor
    if not isinstance(plan, TypedPayloadDescriptor):
        return TypedPayload(plan, data, payload.kind)
    flags = int(plan.descriptor_flags)
    if flags & ~_CLEAR != int(flag):
        plan = plan.replace(descriptor_flags=DescriptorFlags(flags & _CLEAR | int(flag)))
    return TypedPayload(plan, data, payload.kind)


def _piece(payload: TypedPayload, index: int, parts: int) -> TypedPayload:
    data = payload.data[_cut(payload, index, parts) : _cut(payload, index + 1, parts)]
    return _flagged(payload, data, _TERMINAL if index == parts - 1 else _PARTIAL)


def _cut(payload: TypedPayload, index: int, parts: int) -> int:
    """Where a piece begins. Of tokens not inside a UTF-8 character (nnrp-extensions, Token chunks)."""
    data = payload.data
    at = len(data) * index // parts
    if payload.descriptor.profile_id == ProfileId.TOKEN:
        end = min(at + _MOST_BYTES - 1, len(data))
        while at < end and data[at] & 0xC0 == 0x80:
            at += 1
    return at


def _answer(submit: Submit, payloads: list[TypedPayload], tensor: TensorBody | None = None) -> Answer:
    kinds, whole = submit.metadata.payload_kind_bitmap, None
    if int(kinds) & _TENSOR:
        kinds, whole = PayloadKind(int(kinds) & ~_TENSOR), tensor
    return Answer(
        payloads=tuple(payloads),
        kinds=kinds if payloads else _NO_KIND,
        tensor=whole,
        profile_id=submit.session.terms.profile_id,
    )
