"""Every vector of nnrp-preview3.json against the codec (nnrp-wire 20)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.nnrp.errors import NnrpError
from protocol.nnrp.extensions import parse_extensions
from protocol.nnrp.packet import decode_packet
from protocol.nnrp.record import Record
from protocol.nnrp.tensor import parse_tile_index
from tests.protocol.nnrp.vectors import NEGATIVE, POSITIVE, attributes, block_from, packet_from, structure

STATEFUL = {
    # Legal bytes at the wrong time or against an earlier message: the machines decide (tests of the machines).
    "reject.hello_ack_profile_not_offered",
    "reject.hello_ack_wire_format_not_offered",
    "reject.open_ack_unrequested_flag",
    "reject.session_close_unknown_session",
    "reject.session_close_twice",
    "reject.flow_epoch_regression_connection",
    "reject.flow_unknown_session",
    "reject.migrate_ack_cursor_behind",
    "reject.submit_after_close",
    "reject.submit_before_any_open",
    "reject.result_as_first_packet",
    "reject.session_open_after_connection_close",
    # Legal descriptors that the schema registry refuses.
    "reject.schema_hash_conflict",
    "reject.schema_unregistered_profile",
    "reject.binding_schema_unknown",
    "reject.binding_version_unknown",
    "reject.binding_profile_mismatch",
    "reject.binding_unspecified_profile_with_schema",
}


def of_kind(vectors: list[dict[str, Any]], *kinds: str) -> list[Any]:
    return [pytest.param(each, id=each["name"]) for each in vectors if each["kind"] in kinds]


def decode(vector: dict[str, Any], *, strict: bool = True) -> object:
    """Decode the vector's bytes as what it says they are."""
    data = bytes.fromhex(vector["hex"])
    if vector["kind"] == "packet":
        return decode_packet(data, strict=strict)
    if vector["message"] == "CONTROL_EXTENSION_BLOCK":
        return parse_extensions(data, strict=strict)
    if vector["message"] == "TILE_INDEX_BLOCK":
        fields = vector["fields"]
        count, base = len(fields["tile_ids"]), fields["tile_base_id"]
        return tuple(parse_tile_index(data, mode=fields["mode"], tile_count=count, tile_base_id=base))
    if vector["message"] == "INLINE_OBJECT_BLOCK":
        return inline_object(data, strict)
    return structure(vector["message"]).parse(data, strict=strict)


def inline_object(data: bytes, strict: bool) -> object:
    """An inline object on its own: as the only region of a token body."""
    from protocol.nnrp.bodies import Context
    from protocol.nnrp.descriptors import BodyRegionPrelude
    from protocol.nnrp.enums import MessageType
    from protocol.nnrp.region_parser import parse_regions

    body = BodyRegionPrelude(inline_object_bytes=len(data)).pack() + data
    (found,) = parse_regions(MessageType.FRAME_SUBMIT, body, 0, 2, Context(strict)).inline_objects
    return found


@pytest.mark.parametrize("vector", of_kind(POSITIVE, "packet"))
def test_positive_packets(vector: dict[str, Any]) -> None:
    """nnrp-wire 20: decode to fields, build from fields, in the mode the vector names and in no stricter one."""
    data = bytes.fromhex(vector["hex"])
    strict = vector["mode"] == "strict"
    packet = decode_packet(data, strict=strict)
    assert packet.pack() == data
    assert packet_from(vector["fields"]) == data
    for part in ("header", "metadata"):
        decoded = getattr(packet, part)
        assert {name: getattr(decoded, name) for name in vector["fields"][part]} == vector["fields"][part]
    if strict:
        assert decode_packet(data, strict=False) == packet
    else:
        with pytest.raises(NnrpError):
            decode_packet(data)


@pytest.mark.parametrize("vector", of_kind(POSITIVE, "metadata"))
def test_positive_metadata(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    made = structure(vector["message"])(**vector["fields"])
    assert made.pack() == data
    if vector["mode"] != "codec_only":
        assert structure(vector["message"]).parse(data) == made
        assert made.pack_checked() == data


@pytest.mark.parametrize("vector", of_kind(POSITIVE, "body"))
def test_positive_blocks(vector: dict[str, Any]) -> None:
    data, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    assert block_from(vector["message"], fields) == data
    if vector["message"] == "CODE_LIST":
        return
    decoded = decode(vector, strict=vector["mode"] == "strict")
    if isinstance(decoded, Record):
        known = attributes(type(decoded), fields)
        assert {name: getattr(decoded, name) for name in known} == known
    elif vector["message"] == "TILE_INDEX_BLOCK":
        assert list(decoded) == fields["tile_ids"]  # type: ignore[call-overload]  # a tuple for this message


def test_code_lists() -> None:
    """nnrp-wire 12.7: the cache and schema families are exactly the listed codes."""
    from protocol.nnrp.enums import CacheErrorCode, SchemaErrorCode

    listed = {each["name"]: each["fields"]["values"] for each in POSITIVE if each["message"] == "CODE_LIST"}
    assert listed == {
        "codes.cache_error_code": [int(code) for code in CacheErrorCode],
        "codes.schema_error_code": [int(code) for code in SchemaErrorCode],
    }


@pytest.mark.parametrize("vector", of_kind(NEGATIVE, "packet", "metadata", "body"))
def test_negative_vectors(vector: dict[str, Any]) -> None:
    """nnrp-wire 20: the outcome, and by section 15 the code; the stateful ones decode and are left to the machines."""
    binding = vector["name"].startswith("reject.binding")  # a schema first, then a descriptor that refers to it
    for before in vector.get("after", ()):
        decode({**vector, "hex": before, "message": "SCHEMA_DESCRIPTOR" if binding else vector["message"]})
    if vector["name"] in STATEFUL:
        decode(vector)
        return
    with pytest.raises(NnrpError) as caught:
        decode(vector)
    assert caught.value.outcome.value == vector["outcome"]
    assert caught.value.code == vector["error_code"]
    assert caught.value.rule in str(caught.value)
    assert caught.value.outcome.value in str(caught.value)


@pytest.mark.parametrize("vector", of_kind(NEGATIVE, "metadata"))
def test_errors_name_field_and_offset(vector: dict[str, Any]) -> None:
    """Issue 4: error messages name field, offset and rule; the offset is that of the field in the structure."""
    made = structure(vector["message"])
    with pytest.raises(NnrpError) as caught:
        made.parse(bytes.fromhex(vector["hex"]))
    error = caught.value
    assert error.subject == vector["message"]
    if error.outcome.value in ("TooShort", "LengthMismatch"):
        assert str(made.SIZE) in error.rule
        return
    assert error.field is not None
    assert error.offset == made.LAYOUT.field(error.field).offset
    assert f"{error.field} at offset {error.offset}" in str(error)
