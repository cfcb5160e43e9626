"""Payloads with a form of their own: token chunks (nnrp-extensions) and schema objects (nnrp-wire 11.2, 11.3)."""

from __future__ import annotations

import hashlib

import msgspec

from protocol.errors import Reach
from protocol.layout import Buffer
from protocol.nnrp.descriptors import SchemaDescriptor, TypedPayloadDescriptor
from protocol.nnrp.enums import DescriptorFlags, StopReason
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.regions import TypedPayload
from protocol.nnrp.vendor import TokenHint

__all__ = ["SchemaObject", "TokenChunk", "schema_hash"]


class TokenChunk(msgspec.Struct, frozen=True, gc=False):
    """The payload of llm.chat.delta.v1: UTF-8 text, preceded by a hint where the session allows one."""

    text: Buffer
    hint: TokenHint | None = None

    @classmethod
    def parse(cls, payload: TypedPayload, *, hints: bool, strict: bool = True) -> TokenChunk:
        """Read ``payload``; ``hints`` says whether operation_extensions were granted on its session.

        Without a grant the flag profile_hint_present means nothing to us and all of the payload is text.
        """
        descriptor = payload.descriptor
        if not (hints and isinstance(descriptor, TypedPayloadDescriptor)):
            return cls(payload.data)
        if not int(descriptor.descriptor_flags) & DescriptorFlags.PROFILE_HINT_PRESENT.value:
            return cls(payload.data)
        if len(payload.data) < TokenHint.SIZE:
            raise _fault(Outcome.TOO_SHORT, f"the hint has {TokenHint.SIZE} bytes", None)
        hint = TokenHint.decode(payload.data, 0, strict)
        if hint.stop_reason != StopReason.NONE and not descriptor.terminal:
            raise _fault(Outcome.BAD_COMBINATION, "a stop_reason needs the descriptor flag terminal", "stop_reason")
        return cls(payload.data[TokenHint.SIZE :], hint)

    def pack(self) -> bytes:
        return bytes(self.text) if self.hint is None else self.hint.pack() + bytes(self.text)


def _fault(outcome: Outcome, rule: str, field: str | None) -> NnrpError:
    return NnrpError(outcome, rule, subject="TOKEN_HINT", field=field, offset=0, reach=Reach.OPERATION)


def schema_hash(body: Buffer) -> int:
    """A stable digest of a schema body. Which one is ours to choose (nnrp-wire 11.2): the first 8 bytes of SHA-256."""
    return int.from_bytes(hashlib.sha256(body).digest()[:8], "little")


class SchemaObject(msgspec.Struct, frozen=True, gc=False):
    """A schema as a cache object: the 32-byte header and its body (nnrp-wire 11.3, carriage)."""

    descriptor: SchemaDescriptor
    body: Buffer = b""

    @classmethod
    def parse(cls, data: Buffer, *, strict: bool = True) -> SchemaObject:
        """Read an object that fills ``data``; body_bytes must be what follows the header."""
        if len(data) < SchemaDescriptor.SIZE:
            SchemaDescriptor.wrong_size(len(data), 0)
        descriptor = SchemaDescriptor.decode(data, 0, strict)
        body = data[SchemaDescriptor.SIZE :]
        if len(body) != descriptor.body_bytes:
            rule = f"body_bytes {descriptor.body_bytes}, {len(body)} follow the header"
            name, outcome = SchemaDescriptor.LAYOUT.name, Outcome.LENGTH_MISMATCH
            raise NnrpError(outcome, rule, subject=name, field="body_bytes", offset=16, reach=Reach.OPERATION)
        return cls(descriptor, body)

    def pack(self) -> bytes:
        """The object; ``body_bytes`` is written as counted."""
        return self.descriptor.replace(body_bytes=len(self.body)).pack() + bytes(self.body)
