"""What a tolerant receiver takes and a strict one refuses: nnrp-wire 18, column "tolerant receivers accept"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocol.nnrp.bodies import BodyForm, ControlBody, DataBody
from protocol.nnrp.descriptors import BodyRegionPrelude, TypedPayloadDescriptor
from protocol.nnrp.enums import (
    DescriptorFlags,
    FlowScope,
    LossTolerance,
    MessageType,
    PayloadKind,
    ServerFlags,
    SessionStatus,
)
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.extensions import ControlExtension, pack_extensions
from protocol.nnrp.header import Header
from protocol.nnrp.messages import (
    CachePut,
    ClientHello,
    Error,
    FlowUpdate,
    FrameSubmit,
    Message,
    ResultHint,
    ServerHelloAck,
    SessionOpen,
    SessionOpenAck,
    SessionPatch,
    TransportProbe,
)
from protocol.nnrp.packet import Packet, decode_packet, encode_packet
from protocol.nnrp.regions import Regions, TypedPayload
from protocol.nnrp.tensor import TensorBody, TensorSection, pack_flat_tensor

HELLO = ClientHello(supported_profile_bitmap=3, supported_payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)
TOKENS = FrameSubmit(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK, payload_frame_count=1)


def raw(message: Message, body: bytes = b"", *, session_id: int = 0, frame_id: int = 0, metadata: bytes = b"") -> bytes:
    """A packet without any check, as a careless peer would send it."""
    packed = metadata or message.pack()
    header = Header(message.TYPE, meta_len=len(packed), body_len=len(body), session_id=session_id, frame_id=frame_id)
    return header.pack() + packed + body


def only_tolerant(data: bytes, outcome: Outcome) -> Packet:
    """Refused by a strict receiver with ``outcome``; what a tolerant one makes of it."""
    with pytest.raises(NnrpError) as caught:
        decode_packet(data)
    assert caught.value.outcome is outcome
    return decode_packet(data, strict=False)


def replace_bytes(message: Message, field: str, value: int) -> bytes:
    place = type(message).LAYOUT.field(field)
    packed = bytearray(message.pack())
    packed[place.offset : place.offset + place.scalar.size] = value.to_bytes(place.scalar.size, "little")
    return bytes(packed)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(raw(ServerHelloAck(session_id=4), session_id=5), id="hello ack with another session id"),
        pytest.param(raw(SessionOpen(requested_session_id=9), session_id=9), id="open with the requested id"),
        pytest.param(raw(Error(error_scope=0), session_id=3), id="connection error with a session id"),
        pytest.param(raw(Error(error_scope=2), session_id=3, frame_id=4), id="error with another frame"),
        pytest.param(raw(CachePut()), id="connection-wide cache"),
        pytest.param(raw(ResultHint(), frame_id=3), id="hint without a session"),
        pytest.param(raw(TransportProbe(), session_id=3), id="probe with a session id"),
    ],
)
def test_header_ids(data: bytes) -> None:
    """nnrp-wire 3.2, column "tolerant"."""
    assert only_tolerant(data, Outcome.BAD_COMBINATION).pack() == data


@pytest.mark.parametrize(
    "message",
    [
        SessionOpen(requested_session_id=7, session_flags=1, resume_token_bytes=24),
        SessionOpenAck(session_id=7, resume_window_ms=9, resume_token_bytes=24, session_flags_ack=1),
        SessionPatch(patch_mask=64, profile_patch_bytes=16),
    ],
    ids=lambda message: message.LAYOUT.name,
)
def test_declared_but_absent(message: Any) -> None:
    """nnrp-wire 5, 18 item 6: declared blocks with an empty body are unavailable, not an error."""
    session = 0 if message.TYPE is MessageType.SESSION_OPEN else 7
    content = only_tolerant(raw(message, session_id=session), Outcome.LENGTH_MISMATCH).content
    assert content == ControlBody(declared_absent=True)
    with pytest.raises(NnrpError):
        decode_packet(raw(message, b"short", session_id=session), strict=False)


def test_hello_with_auth_first() -> None:
    """nnrp-wire 18 item 5: only when the leading bytes are no extension block and the trailing ones are."""
    block = pack_extensions([ControlExtension(0x4001, b"abc")])
    hello = HELLO.replace(auth_bytes=5, control_extension_bytes=len(block))
    content = only_tolerant(raw(hello, b"token" + block), Outcome.RESERVED_BITS).content
    assert content == ControlBody((ControlExtension(0x4001, b"abc"),), auth=b"token")
    with pytest.raises(NnrpError):
        decode_packet(raw(hello, b"token" + b"\xff" * len(block)), strict=False)


def test_hello_ack_with_trailing_bytes() -> None:
    """nnrp-wire 5: opaque bytes behind the extensions of a hello ack."""
    content = only_tolerant(raw(ServerHelloAck(), b"tail"), Outcome.LENGTH_MISMATCH).content
    assert content == ControlBody(opaque=b"tail")


def test_unknown_payload_kinds_in_a_hello() -> None:
    """nnrp-wire 7.1: unknown bits are dropped."""
    data = raw(HELLO, metadata=replace_bytes(HELLO, "supported_payload_kind_bitmap", 0x82))
    metadata = only_tolerant(data, Outcome.RESERVED_BITS).metadata
    assert metadata == HELLO.replace(supported_payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)
    with pytest.raises(NnrpError, match="at least one payload kind"):
        decode_packet(raw(HELLO, metadata=replace_bytes(HELLO, "supported_payload_kind_bitmap", 0x80)), strict=False)


def test_server_flags() -> None:
    """nnrp-wire 18 item 11."""
    data = raw(ServerHelloAck(), metadata=replace_bytes(ServerHelloAck(), "server_flags", 7))
    metadata = only_tolerant(data, Outcome.RESERVED_BITS).metadata
    assert metadata == ServerHelloAck(server_flags=ServerFlags.CACHE_ENABLED)


def test_loss_tolerance() -> None:
    """nnrp-wire 18 item 24: any value, read as inherit."""
    submit = FrameSubmit(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)
    packed = replace_bytes(submit, "loss_tolerance_policy", 17)
    data = raw(submit, session_id=1, frame_id=1, metadata=packed)
    metadata = only_tolerant(data, Outcome.UNKNOWN_ENUM).metadata
    assert metadata == submit.replace(loss_tolerance_policy=LossTolerance.INHERIT)


def test_rejected_ack_with_a_session_id() -> None:
    """nnrp-wire 18 item 8: the id is ignored, whatever the header says."""
    ack = SessionOpenAck(session_id=42, session_status=SessionStatus.REJECTED)
    for session in (0, 42):
        only_tolerant(raw(ack, session_id=session), Outcome.BAD_COMBINATION)


def test_flow_update_operation_scope() -> None:
    """nnrp-wire 18 item 21: other credits in operation scope."""
    flow = FlowUpdate(FlowScope.OPERATION, session_credit=3, operation_credit=1, operation_id=5)
    only_tolerant(raw(flow, session_id=1), Outcome.BAD_COMBINATION)


def body(*payloads: TypedPayload) -> bytes:
    return b"".join(Regions(payloads).build())


def submit_packet(data: bytes, metadata: FrameSubmit = TOKENS) -> bytes:
    return raw(metadata, data, session_id=1, frame_id=1)


def test_legacy_descriptors() -> None:
    """nnrp-wire 8.6, 18 item 1."""
    packet = submit_packet(body(TypedPayload.legacy(b"hi", PayloadKind.TOKEN_CHUNK)))
    content = only_tolerant(packet, Outcome.BAD_COMBINATION).content
    assert isinstance(content, DataBody)
    assert [(each.kind, each.data) for each in content.payloads] == [(PayloadKind.TOKEN_CHUNK, b"hi")]
    assert content.regions.descriptor_bytes == 16


@pytest.mark.parametrize("kind", [PayloadKind.TENSOR, PayloadKind.AUDIO_CHUNK])
def test_legacy_descriptor_kinds(kind: PayloadKind) -> None:
    """nnrp-wire 8.6: the kind is in the bitmap and not tensor."""
    with pytest.raises(NnrpError) as caught:
        decode_packet(submit_packet(body(TypedPayload.legacy(b"hi", kind))), strict=False)
    assert caught.value.field == "payload_kind"


def test_terminal_and_partial() -> None:
    """nnrp-wire 18 item 27: terminal wins."""
    both = DescriptorFlags.TERMINAL | DescriptorFlags.PARTIAL
    packet = submit_packet(body(TypedPayload.of(b"x", profile_id=2, flags=both)))
    content = only_tolerant(packet, Outcome.BAD_COMBINATION).content
    assert isinstance(content, DataBody)
    descriptor = content.payloads[0].descriptor
    assert isinstance(descriptor, TypedPayloadDescriptor)
    assert descriptor.terminal
    assert not descriptor.partial


def gapped(first: int, second: int, region: int) -> bytes:
    made = [TypedPayloadDescriptor(2, offset=first, length=2), TypedPayloadDescriptor(2, offset=second, length=2)]
    prelude = BodyRegionPrelude(typed_payload_descriptor_bytes=48, typed_payload_frame_bytes=region)
    return prelude.pack() + b"".join(each.pack() for each in made) + bytes(region)


@pytest.mark.parametrize(("first", "second", "region"), [(1, 3, 5), (0, 3, 5), (0, 2, 6)])
def test_gaps_between_payloads(first: int, second: int, region: int) -> None:
    """nnrp-wire 18 item 28."""
    only_tolerant(
        submit_packet(gapped(first, second, region), TOKENS.replace(payload_frame_count=2)), Outcome.BAD_COMBINATION
    )


@pytest.mark.parametrize(("first", "second", "region"), [(0, 1, 4), (2, 0, 4), (0, 3, 4), (0, 0xFFFF_FFFF, 4)])
def test_payloads_never_overlap_or_leave_the_region(first: int, second: int, region: int) -> None:
    """nnrp-wire 8.5: not even for a tolerant receiver."""
    packet = submit_packet(gapped(first, second, region), TOKENS.replace(payload_frame_count=2))
    for strict in (True, False):
        with pytest.raises(NnrpError):
            decode_packet(packet, strict=strict)


@pytest.mark.parametrize("text", [b"", b"hello", b"x" * 31, b"hello, this is a bare text, longer than a prelude"])
def test_bare_payload(text: bytes) -> None:
    """nnrp-wire 8.1: a body that cannot be a region body is one payload of the one declared kind."""
    with pytest.raises(NnrpError):
        decode_packet(submit_packet(text))
    content = decode_packet(submit_packet(text), strict=False).content
    assert content == DataBody(BodyForm.RAW, raw=text, raw_kind=PayloadKind.TOKEN_CHUNK)


def test_bare_payload_needs_one_kind() -> None:
    two = TOKENS.replace(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK | PayloadKind.AUDIO_CHUNK)
    with pytest.raises(NnrpError) as caught:
        decode_packet(submit_packet(b"hello", two), strict=False)
    assert caught.value.outcome is Outcome.TOO_SHORT


def test_region_body_instead_of_flat_tensor() -> None:
    """nnrp-wire 8.1, 18 item 7: accepted when the flat form does not parse and the region form does exactly."""
    metadata = FrameSubmit(payload_kind_bitmap=PayloadKind.TENSOR)
    content = only_tolerant(submit_packet(body(), metadata), Outcome.LENGTH_MISMATCH).content
    assert isinstance(content, DataBody)
    assert content.form is BodyForm.REGION
    flat = pack_flat_tensor(TensorBody(), mode=metadata.tile_index_mode)
    assert decode_packet(submit_packet(flat, metadata)).content == DataBody(
        BodyForm.FLAT_TENSOR, tensor=TensorBody(range(0))
    )


UNRELAXED: list[tuple[str, Callable[[], bytes]]] = [
    ("header flag bit 6", lambda: encode_packet(SessionOpen())[:8] + b"\x40" + encode_packet(SessionOpen())[9:]),
    ("session_flags bit 4", lambda: raw(SessionOpen(), metadata=replace_bytes(SessionOpen(), "session_flags", 16))),
    (
        "session_flags_ack bit 5",
        lambda: raw(
            SessionOpenAck(session_id=1),
            session_id=1,
            metadata=replace_bytes(SessionOpenAck(session_id=1), "session_flags_ack", 32),
        ),
    ),
    ("flow_flags bit 4", lambda: raw(FlowUpdate(), metadata=replace_bytes(FlowUpdate(), "flow_flags", 16))),
    ("reserved0", lambda: raw(SessionOpen(), metadata=replace_bytes(SessionOpen(), "reserved0", 1))),
    ("metadata longer than fixed", lambda: raw(SessionOpen(), metadata=SessionOpen().pack() + b"\0")),
]


@pytest.mark.parametrize("data", [pytest.param(make(), id=name) for name, make in UNRELAXED])
def test_what_no_mode_relaxes(data: bytes) -> None:
    """nnrp-wire 4.5 and 18 items 22, 23, 37: the same outcome in both modes."""
    outcomes = set()
    for strict in (True, False):
        with pytest.raises(NnrpError) as caught:
            decode_packet(data, strict=strict)
        outcomes.add(caught.value.outcome)
    assert len(outcomes) == 1


def test_a_section_survives_both_modes() -> None:
    """A tolerant receiver reads a good flat tensor body exactly as a strict one."""
    section = TensorSection.of(1, [b"ab", b"c"], dtype_id=5)  # type: ignore[arg-type]  # a plain number works too
    tensor = TensorBody((4, 9), (section,), b"camera")
    metadata = FrameSubmit(
        tile_count=2,
        section_count=1,
        tile_index_mode=1,
        camera_bytes=6,
        tile_index_bytes=4,
        payload_kind_bitmap=PayloadKind.TENSOR,
    )
    packet = submit_packet(pack_flat_tensor(tensor, mode=metadata.tile_index_mode), metadata)
    strict, tolerant = decode_packet(packet), decode_packet(packet, strict=False)
    assert strict == tolerant
    assert isinstance(strict.content, DataBody)
    assert strict.content.tensor.sections[0].tiles() == [b"ab", b"c"]
