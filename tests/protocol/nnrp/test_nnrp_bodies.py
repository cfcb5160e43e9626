"""The rules for bodies, one by one: lengths, extensions, objects, tensors, header ids (nnrp-wire 3.2, 5, 6, 8, 9)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import Reach
from protocol.nnrp.bodies import BodyForm, ControlBody, DataBody
from protocol.nnrp.descriptors import BodyRegionPrelude, ExtensionFrameDescriptor, ObjectReference, TransportPolicy
from protocol.nnrp.enums import (
    DtypeId,
    ExtensionFlags,
    ExtFlags,
    ExtType,
    FlowScope,
    MessageType,
    ObjectKind,
    ObjectRefMask,
    PayloadKind,
    SubmitMode,
    TileIndexMode,
    TransportPolicyKind,
)
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.extensions import ControlExtension, pack_extensions, parse_extensions
from protocol.nnrp.header import Header
from protocol.nnrp.messages import MESSAGES, Error, FlowUpdate, FrameSubmit, Message, ResultPush
from protocol.nnrp.packet import decode_packet
from protocol.nnrp.regions import ExtensionFrame, InlineObject, Regions, TypedPayload
from protocol.nnrp.tensor import (
    TensorBody,
    TensorSection,
    pack_flat_tensor,
    pack_sections,
    pack_tile_index,
    parse_tile_index,
)

TENSOR = PayloadKind.TENSOR
SECTION = TensorSection.of(1, [b"ab", b"c"], dtype_id=DtypeId.UINT8)
INDEX = pack_tile_index([3, 4], mode=TileIndexMode.RAW_U16)
KEY = {"cache_namespace": 1, "cache_key_hi": 2, "cache_key_lo": 3}


def packet(message: Message, body: bytes | Regions = b"", session_id: int = 1, frame_id: int = 1) -> bytes:
    data = b"".join(body.build()) if isinstance(body, Regions) else body
    header = Header(message.TYPE, meta_len=message.SIZE, body_len=len(data), session_id=session_id, frame_id=frame_id)
    return header.pack() + message.pack() + data


def refused(data: bytes, outcome: Outcome = Outcome.BAD_COMBINATION, **more: Any) -> NnrpError:
    with pytest.raises(NnrpError) as caught:
        decode_packet(data, **more)
    assert caught.value.outcome is outcome, caught.value
    return caught.value


# Header ids, nnrp-wire 3.2.


@pytest.mark.parametrize("kind", list(MessageType), ids=lambda kind: kind.name)
@pytest.mark.parametrize(("session_id", "frame_id"), [(0, 0), (0, 9), (9, 0), (9, 9)])
def test_ids_by_scope(kind: MessageType, session_id: int, frame_id: int) -> None:
    """nnrp-wire 3.2: the table of session and frame ids, strict."""
    session_free = {
        MessageType.ERROR,
        MessageType.PING,
        MessageType.PONG,
    }
    connection = {
        MessageType.CLIENT_HELLO,
        MessageType.SERVER_HELLO_ACK,
        MessageType.CLOSE,
        MessageType.SESSION_OPEN,
        MessageType.TRANSPORT_PROBE,
        MessageType.TRANSPORT_PROBE_ACK,
    }
    frames = {MessageType.FRAME_SUBMIT, MessageType.FRAME_CANCEL, MessageType.RESULT_PUSH, MessageType.RESULT_DROP}
    session_ok = kind in session_free or (session_id == 0) == (kind in connection)
    frame_ok = kind is MessageType.RESULT_HINT or (frame_id != 0) == (kind in frames)
    legal: dict[MessageType, dict[str, Any]] = {
        MessageType.CLIENT_HELLO: {"supported_profile_bitmap": 1, "supported_payload_kind_bitmap": 1},
        MessageType.SESSION_OPEN_ACK: {"session_id": 9},
        MessageType.SESSION_MIGRATE: {"old_transport_id": 1, "new_transport_id": 2},
        MessageType.FLOW_UPDATE: {"scope_kind": FlowScope.SESSION},
        MessageType.ERROR: {"error_scope": 1},
    }
    data = packet(MESSAGES[kind](**legal.get(kind, {})), session_id=session_id, frame_id=frame_id)
    if session_ok and frame_ok:
        assert decode_packet(data).pack() == data
    else:
        error = refused(data)
        assert error.field == ("frame_id" if session_ok else "session_id")
        assert error.offset == (24 if session_ok else 20)


def test_error_scopes_of_the_report() -> None:
    """nnrp-wire 15: a fault reaches as far as its message; the report names session and frame."""
    error = refused(
        packet(FrameSubmit(payload_kind_bitmap=2, payload_frame_count=1), b"x" * 40), Outcome.LENGTH_OVERFLOW
    )
    assert error.code == 5
    assert (error.reach, error.fatal, error.session_id, error.frame_id) == (Reach.OPERATION, False, 1, 1)
    error = refused(packet(FlowUpdate(), b"x", session_id=0, frame_id=0))
    assert (error.reach, error.fatal) == (Reach.CONNECTION, True)
    error = refused(packet(FlowUpdate(FlowScope.SESSION), b"x", frame_id=0))
    assert (error.reach, error.fatal) == (Reach.SESSION, False)


# Lengths, nnrp-wire 5.


@pytest.mark.parametrize(
    ("kind", "fields", "body"),
    [
        (MessageType.CLIENT_HELLO, {"auth_bytes": 3}, b"ab"),
        (MessageType.SERVER_HELLO_ACK, {}, b"ab"),
        (MessageType.SESSION_PATCH, {"profile_patch_bytes": 2}, b"abc"),
        (MessageType.SESSION_PATCH_ACK, {"profile_patch_ack_bytes": 2}, b""),
        (MessageType.SESSION_OPEN, {"auth_bytes": 2}, b"abc"),
        (MessageType.SESSION_OPEN_ACK, {"session_id": 1}, b"abc"),
        (MessageType.ERROR, {"diagnostic_bytes": 4}, b"abc"),
        (MessageType.CACHE_PUT, {"object_bytes": 2}, b"abc"),
        (MessageType.TRANSPORT_PROBE, {"probe_payload_bytes": 4}, b"abc"),
    ],
)
def test_body_length_rules(kind: MessageType, fields: dict[str, Any], body: bytes) -> None:
    """nnrp-wire 5: declared lengths and body_len agree."""
    hello = {"supported_profile_bitmap": 1, "supported_payload_kind_bitmap": 1}
    message = MESSAGES[kind](**(hello if kind is MessageType.CLIENT_HELLO else {}), **fields)
    connection = kind in (
        MessageType.CLIENT_HELLO,
        MessageType.SERVER_HELLO_ACK,
        MessageType.SESSION_OPEN,
        MessageType.ERROR,
        MessageType.TRANSPORT_PROBE,
    )
    refused(packet(message, body, session_id=0 if connection else 1, frame_id=0), Outcome.LENGTH_MISMATCH)


@pytest.mark.parametrize("kind", [MessageType.FLOW_UPDATE, MessageType.PING, MessageType.PONG])
def test_messages_without_a_body(kind: MessageType) -> None:
    refused(packet(MESSAGES[kind](), b"x", session_id=0, frame_id=0))


@pytest.mark.parametrize("kind", [MessageType.FRAME_CANCEL, MessageType.RESULT_DROP, MessageType.RESULT_HINT])
def test_optional_extension_bodies(kind: MessageType) -> None:
    """nnrp-wire 5: empty or a well-formed block; any malformed block is BadCombination, an unknown critical one not."""
    block = pack_extensions([ControlExtension(0x9000, b"hello")])
    content = decode_packet(packet(MESSAGES[kind](), block)).content
    assert content == ControlBody((ControlExtension(0x9000, b"hello"),))
    refused(packet(MESSAGES[kind](), block[:-1]))
    refused(packet(MESSAGES[kind](), b"\0\0\2\0" + bytes(4)))
    critical = pack_extensions([ControlExtension(0x9000, b"", ExtFlags.CRITICAL)])
    assert refused(packet(MESSAGES[kind](), critical), Outcome.UNKNOWN_CRITICAL).code == 6


@pytest.mark.parametrize("kind", [MessageType.SESSION_CLOSE, MessageType.SESSION_CLOSE_ACK, MessageType.CACHE_ACK])
def test_extension_bodies(kind: MessageType) -> None:
    refused(packet(MESSAGES[kind](), b"abc", frame_id=0), Outcome.TOO_SHORT)


@pytest.mark.parametrize("body", [b"", b"bye", b"\x00\xff", pack_extensions([ControlExtension(0x9000)])])
def test_close_takes_any_body(body: bytes) -> None:
    """nnrp-wire 7.5."""
    assert decode_packet(packet(MESSAGES[MessageType.CLOSE](), body, 0, 0)).content == ControlBody(opaque=body)


def test_error_body() -> None:
    block = pack_extensions([ControlExtension(0x4002, b"\1")])
    content = decode_packet(packet(Error(diagnostic_bytes=4), b"text" + block, 0, 0)).content
    assert content == ControlBody((ControlExtension(0x4002, b"\1"),), diagnostic=b"text")


# Control extensions, nnrp-wire 6.


@pytest.mark.parametrize(
    ("data", "outcome", "field"),
    [
        (b"\1\2\3", Outcome.TOO_SHORT, None),
        (b"\1\x90\0\0\1\0\0\0", Outcome.TOO_SHORT, "ext_len"),
        (b"\1\x90\0\0\xff\xff\xff\xff", Outcome.TOO_SHORT, "ext_len"),
        (b"\1\x90\0\0\1\0\0\0x\0\0\0\0\0\0", Outcome.TOO_SHORT, "ext_len"),
        (b"\1\x90\0\0\1\0\0\0x\0\0\0\0\0\1\0", Outcome.RESERVED_NON_ZERO, "padding"),
        (b"\1\x90\2\0\0\0\0\0", Outcome.RESERVED_BITS, "ext_flags"),
        (b"\1\x90\1\0\0\0\0\0", Outcome.UNKNOWN_CRITICAL, "ext_type"),
    ],
)
def test_malformed_extension_blocks(data: bytes, outcome: Outcome, field: str | None) -> None:
    good = pack_extensions([ControlExtension(0x9001, b"12345678")])
    for block, start in ((data, 0), (good + data, len(good))):
        with pytest.raises(NnrpError) as caught:
            parse_extensions(block, at=100)
        assert caught.value.outcome is outcome
        assert caught.value.field == field
        assert caught.value.offset is not None
        assert 100 + start <= caught.value.offset <= 100 + len(block)


@pytest.mark.parametrize("ext_type", [each for each in ExtType if each < 0x8000])
@pytest.mark.parametrize("size", [0, 7, 9])
def test_known_extensions_have_eight_bytes(ext_type: ExtType, size: int) -> None:
    """nnrp-wire 6: wrong payload length: E:LengthMismatch."""
    with pytest.raises(NnrpError) as caught:
        parse_extensions(pack_extensions([ControlExtension(ext_type, bytes(size))]))
    assert caught.value.outcome is Outcome.LENGTH_MISMATCH


def test_a_known_type_in_another_message_is_unknown() -> None:
    """nnrp-wire 6, column "in"."""
    entry = ControlExtension.of(ExtType.TRANSPORT_POLICY, TransportPolicy(TransportPolicyKind.FORCE_TCP))
    block = pack_extensions([entry])
    assert parse_extensions(block, message=MessageType.CLIENT_HELLO) == (entry,)
    (elsewhere,) = parse_extensions(block, message=MessageType.SERVER_HELLO_ACK)
    assert elsewhere.value is None


# Region bodies, nnrp-wire 8.


def submit(regions: Regions | bytes = b"", **fields: Any) -> bytes:
    values: dict[str, Any] = {"payload_kind_bitmap": PayloadKind.TOKEN_CHUNK}
    return packet(FrameSubmit(**(values | fields)), regions)


TOKEN = TypedPayload.of(b"hi", profile_id=2)


@pytest.mark.parametrize(
    ("prelude", "rest", "outcome", "field"),
    [
        (BodyRegionPrelude(typed_payload_descriptor_bytes=24), 23, Outcome.LENGTH_MISMATCH, None),
        (BodyRegionPrelude(typed_payload_descriptor_bytes=24), 25, Outcome.LENGTH_MISMATCH, None),
        (BodyRegionPrelude(0xFFFF_FFFF, extension_payload_bytes=1), 0, Outcome.LENGTH_OVERFLOW, None),
        (BodyRegionPrelude(object_reference_bytes=8), 8, Outcome.BAD_COMBINATION, "object_reference_bytes"),
        (BodyRegionPrelude(extension_descriptor_bytes=8), 8, Outcome.BAD_COMBINATION, "extension_descriptor_bytes"),
        (
            BodyRegionPrelude(typed_payload_descriptor_bytes=48),
            48,
            Outcome.BAD_COMBINATION,
            "typed_payload_descriptor_bytes",
        ),
        (BodyRegionPrelude(), 0, Outcome.BAD_COMBINATION, "typed_payload_descriptor_bytes"),
    ],
)
def test_preludes(prelude: BodyRegionPrelude, rest: int, outcome: Outcome, field: str | None) -> None:
    """nnrp-wire 8.2: sum, multiples, descriptor count."""
    assert refused(submit(prelude.pack() + bytes(rest), payload_frame_count=1), outcome).field == field


@pytest.mark.parametrize("place", [24, 28])
def test_prelude_reserved(place: int) -> None:
    body = bytearray(b"".join(Regions((TOKEN,)).build()))
    body[place] = 1
    error = refused(submit(bytes(body), payload_frame_count=1), Outcome.RESERVED_NON_ZERO)
    assert error.offset == 40 + 72 + place


def test_frames_without_a_count() -> None:
    prelude = BodyRegionPrelude(typed_payload_frame_bytes=4)
    assert refused(submit(prelude.pack() + b"abcd")).field == "typed_payload_frame_bytes"


@pytest.mark.parametrize(
    ("bitmap", "profile", "accepted"),
    [
        (PayloadKind.TOKEN_CHUNK, 2, True),
        (PayloadKind.TOKEN_CHUNK, 0, False),
        (PayloadKind.TOKEN_CHUNK, 1, False),
        (PayloadKind.STRUCTURED_EVENT, 0, True),
        (PayloadKind.STRUCTURED_EVENT, 1, False),
        (PayloadKind.TOKEN_CHUNK | PayloadKind.TOOL_DELTA, 0, True),
    ],
)
def test_descriptor_profiles(bitmap: PayloadKind, profile: int, accepted: bool) -> None:
    """nnrp-wire 8.5: no tensor descriptor beside other kinds; token_chunk alone needs profile token."""
    data = submit(
        Regions((TypedPayload.of(b"x", profile_id=profile),)), payload_kind_bitmap=bitmap, payload_frame_count=1
    )
    if accepted:
        decode_packet(data)
    else:
        assert refused(data).field == "profile_id"


@pytest.mark.parametrize(
    ("bitmap", "profile", "kind"),
    [
        (PayloadKind.AUDIO_CHUNK, 7, PayloadKind.AUDIO_CHUNK),
        (PayloadKind.AUDIO_CHUNK | PayloadKind.TOKEN_CHUNK, 2, PayloadKind.TOKEN_CHUNK),
        (PayloadKind.AUDIO_CHUNK | PayloadKind.TOKEN_CHUNK, 7, None),
    ],
)
def test_kind_of_a_payload(bitmap: PayloadKind, profile: int, kind: PayloadKind | None) -> None:
    """nnrp-wire 8.5 [decision]: one bit, then profile token, then the schema."""
    data = submit(
        Regions((TypedPayload.of(b"x", profile_id=profile),)), payload_kind_bitmap=bitmap, payload_frame_count=1
    )
    content = decode_packet(data).content
    assert isinstance(content, DataBody)
    assert content.payloads[0].kind == kind


@pytest.mark.parametrize(
    ("offsets", "lengths"), [((0, 1), (2, 2)), ((2, 0), (2, 2)), ((0, 2), (2, 3)), ((0, 2), (2, 0xFFFF_FFFF))]
)
def test_extension_frames_ascend_and_stay_inside(offsets: tuple[int, int], lengths: tuple[int, int]) -> None:
    """nnrp-wire 8.7."""
    heads = b"".join(
        ExtensionFrameDescriptor(0x9000, payload_offset=offset, payload_length=length).pack()
        for offset, length in zip(offsets, lengths, strict=True)
    )
    prelude = BodyRegionPrelude(extension_descriptor_bytes=32, extension_payload_bytes=4)
    refused(submit(prelude.pack() + heads + b"abcd"))


def test_extension_frames() -> None:
    frames = (ExtensionFrame(0x9000, b"one"), ExtensionFrame(0x9001, b"", profile_id=4))
    content = decode_packet(submit(Regions((TOKEN,), extensions=frames), payload_frame_count=1)).content
    assert isinstance(content, DataBody)
    assert content.regions.extensions == frames
    critical = ExtensionFrame(0x9000, b"one", ExtensionFlags.CRITICAL)
    refused(submit(Regions(extensions=(critical,))), Outcome.UNKNOWN_CRITICAL)


# Objects, nnrp-wire 8.3, 8.4.


def camera(payload: bytes = b"cam") -> InlineObject:
    return InlineObject(ObjectKind.CAMERA_BLOCK, payload)


INLINE_INDEX = InlineObject(ObjectKind.TILE_INDEX_BLOCK, INDEX)
INLINE_TABLE = InlineObject(ObjectKind.TENSOR_SECTION_TABLE, pack_sections([SECTION]))
REFERENCE = {kind: ObjectReference(kind, **KEY) for kind in ObjectKind}
MIXED: dict[str, Any] = {
    "payload_kind_bitmap": TENSOR,
    "submit_mode": SubmitMode.MIXED,
    "tile_index_mode": TileIndexMode.RAW_U16,
    "tile_count": 2,
    "section_count": 1,
}


def test_mixed_submit() -> None:
    regions = Regions(
        inline_objects=(camera(), INLINE_TABLE),
        references=(REFERENCE[ObjectKind.TILE_INDEX_BLOCK], REFERENCE[ObjectKind.PROMPT_SEGMENT]),
    )
    data = submit(regions, **MIXED, camera_bytes=3, object_ref_mask=ObjectRefMask.TILE_INDEX_BLOCK)
    content = decode_packet(data).content
    assert isinstance(content, DataBody)
    assert content.tensor == TensorBody((), (SECTION,), b"cam")


@pytest.mark.parametrize(
    ("name", "regions", "fields", "field"),
    [
        (
            "camera length",
            Regions(inline_objects=(camera(), INLINE_TABLE), references=(REFERENCE[2],)),
            {"camera_bytes": 4, "object_ref_mask": 2},
            "camera_bytes",
        ),
        (
            "camera missing",
            Regions(inline_objects=(INLINE_TABLE,), references=(REFERENCE[2],)),
            {"camera_bytes": 3, "object_ref_mask": 2},
            "camera_bytes",
        ),
        ("mask without reference", Regions(inline_objects=(INLINE_TABLE,)), {"object_ref_mask": 2}, "object_ref_mask"),
        (
            "reference without mask",
            Regions(inline_objects=(INLINE_TABLE,), references=(REFERENCE[1], REFERENCE[2])),
            {"object_ref_mask": 2},
            "object_ref_mask",
        ),
        (
            "references out of order",
            Regions(inline_objects=(INLINE_TABLE,), references=(REFERENCE[2], REFERENCE[1])),
            {"object_ref_mask": 3},
            "camera_block",
        ),
        (
            "reference twice",
            Regions(inline_objects=(INLINE_TABLE,), references=(REFERENCE[2], REFERENCE[2])),
            {"object_ref_mask": 2},
            "tile_index_block",
        ),
        (
            "inline twice",
            Regions(inline_objects=(INLINE_TABLE, INLINE_TABLE), references=(REFERENCE[2],)),
            {"object_ref_mask": 2},
            "tensor_section_table",
        ),
        (
            "inline out of order",
            Regions(inline_objects=(INLINE_TABLE, camera()), references=(REFERENCE[2],)),
            {"camera_bytes": 3, "object_ref_mask": 2},
            "camera_block",
        ),
        (
            "inline and reference",
            Regions(inline_objects=(INLINE_TABLE,), references=(REFERENCE[3],)),
            {"object_ref_mask": 4},
            "tensor_section_table",
        ),
        (
            "index neither inline nor referenced",
            Regions(inline_objects=(INLINE_TABLE,), references=(REFERENCE[1],)),
            {"object_ref_mask": 1},
            "tile_count",
        ),
        (
            "index length",
            Regions(inline_objects=(INLINE_INDEX, INLINE_TABLE), references=(REFERENCE[1],)),
            {"object_ref_mask": 1, "tile_index_bytes": 6},
            "tile_index_bytes",
        ),
        (
            "index referenced with bytes",
            Regions(inline_objects=(INLINE_TABLE,), references=(REFERENCE[2],)),
            {"object_ref_mask": 2, "tile_index_bytes": 4},
            "tile_index_bytes",
        ),
        (
            "sections neither inline nor referenced",
            Regions(inline_objects=(camera(),), references=(REFERENCE[2],)),
            {"camera_bytes": 3, "object_ref_mask": 2},
            "section_count",
        ),
        (
            "nothing inline in mixed mode",
            Regions(references=(REFERENCE[2], REFERENCE[3])),
            {"object_ref_mask": 6},
            "submit_mode",
        ),
        (
            "inline in reference mode",
            Regions(inline_objects=(INLINE_TABLE,), references=(REFERENCE[2],)),
            {"object_ref_mask": 2, "submit_mode": SubmitMode.REFERENCE},
            "submit_mode",
        ),
    ],
)
def test_submit_objects(name: str, regions: Regions, fields: dict[str, Any], field: str) -> None:
    """nnrp-wire 8.3, 8.4: each rule broken alone."""
    assert refused(submit(regions, **(MIXED | fields))).field == field


def test_mask_without_a_body() -> None:
    """A submit that promises references and has no body."""
    fields = {"submit_mode": SubmitMode.REFERENCE, "object_ref_mask": 1}
    assert refused(submit(b"", **fields)).field == "object_ref_mask"
    assert refused(submit(Regions((TOKEN,)), payload_frame_count=1, **fields)).field == "object_ref_mask"


def result(regions: Regions, **fields: Any) -> bytes:
    values: dict[str, Any] = {
        "payload_kind_bitmap": TENSOR | PayloadKind.AUDIO_CHUNK,
        "tile_count": 2,
        "covered_tile_count": 2,
        "section_count": 1,
        "tile_index_bytes": 4,
    }
    return packet(ResultPush(**(values | fields)), regions)


def test_result_objects() -> None:
    content = decode_packet(result(Regions(inline_objects=(INLINE_INDEX, INLINE_TABLE)))).content
    assert isinstance(content, DataBody)
    assert content.tensor == TensorBody((3, 4), (SECTION,))
    dense = Regions(inline_objects=(InlineObject(ObjectKind.TILE_INDEX_BLOCK, b""), INLINE_TABLE))
    content = decode_packet(result(dense, tile_index_bytes=0, tile_base_id=7)).content
    assert isinstance(content, DataBody)
    assert list(content.tensor.tile_ids) == [7, 8]
    other = (REFERENCE[5], ObjectReference(ObjectKind.PROMPT_SEGMENT), REFERENCE[7])
    decode_packet(result(Regions(inline_objects=(INLINE_INDEX, INLINE_TABLE), references=other)))


@pytest.mark.parametrize(
    ("regions", "fields"),
    [
        (Regions(inline_objects=(INLINE_INDEX, INLINE_TABLE), references=(REFERENCE[7], REFERENCE[5])), {}),
        (Regions(inline_objects=(INLINE_INDEX, INLINE_TABLE), references=(REFERENCE[7], REFERENCE[7])), {}),
        (Regions(inline_objects=(INLINE_INDEX, INLINE_TABLE), references=(REFERENCE[2],)), {}),
        (Regions(inline_objects=(INLINE_TABLE,), references=(REFERENCE[2],)), {"tile_index_bytes": 4}),
        (Regions(inline_objects=(INLINE_TABLE,)), {"tile_index_bytes": 0}),
        (Regions(inline_objects=(INLINE_INDEX,)), {}),
        (Regions(inline_objects=(INLINE_TABLE, INLINE_INDEX)), {}),
        (
            Regions(
                inline_objects=(INLINE_TABLE,),
                references=(REFERENCE[2], ObjectReference(ObjectKind.TILE_INDEX_BLOCK, 9)),
            ),
            {"tile_index_bytes": 0},
        ),
    ],
)
def test_result_object_rules(regions: Regions, fields: dict[str, Any]) -> None:
    """nnrp-wire 8.3: order of references, slots once, index and table present."""
    refused(result(regions, **fields))


LIMIT = 0xFFFF


@pytest.mark.parametrize("count", [LIMIT, LIMIT + 1])
@pytest.mark.parametrize("part", ["extensions", "references", "objects", "frames"])
def test_entries_are_bounded(part: str, count: int) -> None:
    """A body of tiny entries must not cost many times its size: LimitExceeded, for the message, not fatal."""
    if part == "extensions":
        data = packet(MESSAGES[MessageType.SESSION_CLOSE](), b"\0\x90\0\0\0\0\0\0" * count, frame_id=0)
    elif part == "references":
        prelude = BodyRegionPrelude(object_reference_bytes=16 * count)
        data = submit(prelude.pack() + REFERENCE[7].pack() * count)
    elif part == "objects":
        prelude = BodyRegionPrelude(16 * count)
        data = submit(prelude.pack() + InlineObject(ObjectKind.PROMPT_SEGMENT, b"").pack() * count)
    else:
        prelude = BodyRegionPrelude(extension_descriptor_bytes=16 * count)
        data = submit(prelude.pack() + ExtensionFrameDescriptor(0x9000).pack() * count)
    if count == LIMIT:
        decode_packet(data)
        return
    error = refused(data, Outcome.LIMIT_EXCEEDED)
    assert (error.code, error.fatal) == (7, False)


# Tensors, nnrp-wire 9.


def flat(body: bytes, **fields: Any) -> bytes:
    values: dict[str, Any] = {
        "payload_kind_bitmap": TENSOR,
        "tile_index_mode": TileIndexMode.RAW_U16,
        "tile_count": 2,
        "section_count": 1,
        "tile_index_bytes": 4,
    }
    return packet(FrameSubmit(**(values | fields)), body)


FLAT = pack_flat_tensor(TensorBody((3, 4), (SECTION,)), mode=TileIndexMode.RAW_U16)


def test_flat_body() -> None:
    content = decode_packet(flat(FLAT)).content
    assert content == DataBody(BodyForm.FLAT_TENSOR, tensor=TensorBody((3, 4), (SECTION,)))


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (FLAT + b"\0", Outcome.LENGTH_MISMATCH),
        (FLAT[:-1], Outcome.TOO_SHORT),
        (FLAT[:20], Outcome.TOO_SHORT),
        (FLAT[:5], Outcome.TOO_SHORT),
        (FLAT[:3], Outcome.TOO_SHORT),
        (FLAT[:4] + b"\0\0\1\0" + FLAT[8:], Outcome.RESERVED_NON_ZERO),
    ],
)
def test_flat_body_lengths(body: bytes, outcome: Outcome) -> None:
    """nnrp-wire 9.1."""
    refused(flat(body), outcome)


def test_camera_and_padding() -> None:
    body = pack_flat_tensor(TensorBody((3, 4), (SECTION,), b"cam"), mode=TileIndexMode.RAW_U16)
    decode_packet(flat(body, camera_bytes=3))
    refused(flat(body[:3] + b"x" + body[4:], camera_bytes=3), Outcome.RESERVED_NON_ZERO)
    refused(flat(b"ca", camera_bytes=3), Outcome.TOO_SHORT)


def sections(*made: TensorSection, **fields: Any) -> bytes:
    body = pack_flat_tensor(TensorBody((3, 4), made), mode=TileIndexMode.RAW_U16)
    return flat(body, section_count=len(made), **fields)


STRIDED = TensorSection.of(2, [b"ab", b"c"], dtype_id=DtypeId.INT8, stride=4)
MANY_CODECS = TensorSection.of(3, [b"ab", b"c"], dtype_id=DtypeId.INT8, codec_ids=b"\1\2")


def test_sections() -> None:
    content = decode_packet(sections(SECTION, STRIDED, MANY_CODECS)).content
    assert isinstance(content, DataBody)
    assert content.tensor.sections == (SECTION, STRIDED, MANY_CODECS)
    assert content.tensor.sections[1].tiles() == [b"ab", b"c"]


def changed(section: TensorSection, **fields: Any) -> bytes:
    """The section with descriptor fields as given, not as counted."""
    return section.descriptor.replace(**fields).pack() + section.pack()[32:]


@pytest.mark.parametrize(
    ("table", "field"),
    [
        (TensorSection.of(1, [b"ab"], dtype_id=DtypeId.INT8).pack(), "length_table_bytes"),
        (changed(SECTION, payload_bytes=2), "payload_bytes"),
        (changed(SECTION, flags=2), "payload_stride_bytes"),
        (changed(SECTION, payload_stride_bytes=4), "payload_stride_bytes"),
        (changed(SECTION, flags=1), "codec_table_bytes"),
        (changed(MANY_CODECS, flags=0), "codec_table_bytes"),
        (changed(SECTION, length_table_bytes=6), "length_table_bytes"),
        (changed(STRIDED, payload_stride_bytes=5), "payload_bytes"),
        (STRIDED.pack()[:-1] + b"x", "payload"),
        (STRIDED.pack()[:32] + b"\5\0\0\0" + STRIDED.pack()[36:], "payload_stride_bytes"),
    ],
)
def test_section_rules(table: bytes, field: str) -> None:
    """nnrp-wire 9.3, each rule broken alone."""
    assert refused(flat(INDEX + bytes(4) + table)).field == field


def test_roles_increase() -> None:
    assert refused(sections(STRIDED, SECTION)).field == "role_id"
    assert refused(sections(SECTION, SECTION)).field == "role_id"


@pytest.mark.parametrize(
    ("mode", "data", "count"),
    [
        (TileIndexMode.DENSE_RANGE, b"\0", 1),
        (TileIndexMode.RAW_U16, b"\0\0\0", 1),
        (TileIndexMode.RAW_U16, b"\0\0", 2),
        (TileIndexMode.DELTA_U16, b"\1\0\0\0", 2),
        (TileIndexMode.DELTA_U16, b"\xff\xff\1\0", 2),
        (TileIndexMode.BITSET, b"\3", 1),
        (TileIndexMode.BITSET, b"\1\0", 1),
        (TileIndexMode.BITSET, bytes(0x2000) + b"\1", 1),
    ],
)
def test_tile_index_rules(mode: TileIndexMode, data: bytes, count: int) -> None:
    """nnrp-wire 9.4."""
    with pytest.raises(NnrpError) as caught:
        parse_tile_index(data, mode=mode, tile_count=count)
    assert caught.value.outcome is Outcome.BAD_COMBINATION


def test_a_dense_range_costs_nothing() -> None:
    ids = parse_tile_index(b"", mode=TileIndexMode.DENSE_RANGE, tile_count=65_535, tile_base_id=0xFFFF_FFFF)
    assert isinstance(ids, range)
    assert len(ids) == 65_535


@pytest.mark.parametrize(
    ("mode", "ids"),
    [(TileIndexMode.RAW_U16, [65536]), (TileIndexMode.DELTA_U16, [2, 2]), (TileIndexMode.BITSET, [3, 1])],
)
def test_tile_indexes_that_cannot_be_packed(mode: TileIndexMode, ids: list[int]) -> None:
    with pytest.raises(ValueError, match="tile ids"):
        pack_tile_index(ids, mode=mode)
