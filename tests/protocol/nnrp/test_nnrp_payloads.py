"""Token chunks (nnrp-extensions, Token chunks) and schema objects (nnrp-wire 11.3)."""

from __future__ import annotations

import pytest

from protocol.nnrp.bodies import ControlBody
from protocol.nnrp.descriptors import SchemaDescriptor
from protocol.nnrp.enums import DescriptorFlags, PayloadKind, StopReason
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.packet import decode_packet
from protocol.nnrp.payloads import SchemaObject, TokenChunk
from protocol.nnrp.regions import TypedPayload
from protocol.nnrp.vendor import TokenHint
from tests.protocol.nnrp.vectors import POSITIVE

HINTED = DescriptorFlags.PROFILE_HINT_PRESENT


def chunk(data: bytes, flags: DescriptorFlags = DescriptorFlags(0)) -> TypedPayload:  # noqa: B008 - immutable
    return TypedPayload.of(data, profile_id=2, flags=flags)


def test_plain_text() -> None:
    """Bit 3 clear: the payload is text, nothing else."""
    assert TokenChunk.parse(chunk(b"hello"), hints=True) == TokenChunk(b"hello")
    legacy = TypedPayload.legacy(b"hello", PayloadKind.TOKEN_CHUNK)
    assert TokenChunk.parse(legacy, hints=True) == TokenChunk(b"hello")


def test_hint() -> None:
    made = TokenChunk(b"hello", TokenHint(sequence_start=2, sequence_end=7))
    assert TokenChunk.parse(chunk(made.pack(), HINTED), hints=True) == made
    assert TokenChunk.parse(chunk(made.pack(), HINTED), hints=False) == TokenChunk(made.pack())


def test_a_stop_reason_needs_terminal() -> None:
    data = TokenChunk(b"", TokenHint(stop_reason=StopReason.EOS)).pack()
    TokenChunk.parse(chunk(data, HINTED | DescriptorFlags.TERMINAL), hints=True)
    with pytest.raises(NnrpError) as caught:
        TokenChunk.parse(chunk(data, HINTED), hints=True)
    assert caught.value.outcome is Outcome.BAD_COMBINATION


def test_a_truncated_hint() -> None:
    with pytest.raises(NnrpError) as caught:
        TokenChunk.parse(chunk(bytes(15), HINTED), hints=True)
    assert caught.value.outcome is Outcome.TOO_SHORT


def test_schema_object_of_the_vector() -> None:
    """The CACHE_PUT vector carries a schema with a four byte body."""
    (vector,) = (each for each in POSITIVE if each["name"] == "cache_put.tool_schema_object")
    content = decode_packet(bytes.fromhex(vector["hex"])).content
    assert isinstance(content, ControlBody)
    schema = SchemaObject.parse(content.object)
    assert (schema.descriptor.schema_id, schema.descriptor.schema_version, schema.body) == (0x2002, 1, b"body")
    assert schema.pack() == content.object


@pytest.mark.parametrize(("data", "outcome"), [(bytes(31), "TooShort"), (bytes(33), "LengthMismatch")])
def test_schema_object_lengths(data: bytes, outcome: str) -> None:
    with pytest.raises(NnrpError) as caught:
        SchemaObject.parse(data)
    assert caught.value.outcome.value == outcome
    assert SchemaObject(SchemaDescriptor(), b"abc").pack()[16:20] == b"\3\0\0\0"
