"""Building packets: what is refused before anything is sent, and which bytes are copied."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import LocalProtocolError
from protocol.nnrp.enums import (
    DescriptorFlags,
    HeaderFlags,
    MessageType,
    PayloadKind,
    SessionFlags,
    StreamSemantics,
    SubmitMode,
)
from protocol.nnrp.errors import NnrpLocalError, Outcome
from protocol.nnrp.messages import CachePut, FrameSubmit, Message, Ping, ResultPush, SessionOpen, SessionPatch
from protocol.nnrp.packet import VIEW_BYTES, decode_packet, encode_packet, encode_parts
from protocol.nnrp.regions import Regions, TypedPayload

TOKENS = FrameSubmit(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK, payload_frame_count=1)
TOKEN = TypedPayload.of(b"hi", profile_id=2)
IDS = {"session_id": 1, "frame_id": 1}


@pytest.mark.parametrize(
    ("message", "body", "ids", "outcome"),
    [
        (SessionPatch(), b"", {}, Outcome.BAD_COMBINATION),
        (SessionOpen(auth_bytes=3), b"", {}, Outcome.LENGTH_MISMATCH),
        (SessionOpen(session_flags=SessionFlags(16)), b"", {}, Outcome.RESERVED_BITS),
        (SessionOpen(priority_class=3), b"", {}, Outcome.UNKNOWN_ENUM),  # type: ignore[arg-type]  # the point
        (SessionOpen(requested_session_id=-1), b"", {}, Outcome.LENGTH_OVERFLOW),
        (SessionOpen(profile_id=1 << 16), b"", {}, Outcome.LENGTH_OVERFLOW),
        (Ping(), b"x", {}, Outcome.BAD_COMBINATION),
        (Ping(), b"", {"trace_id": 1 << 64}, Outcome.LENGTH_OVERFLOW),
        (Ping(), b"", {"flags": HeaderFlags(64)}, Outcome.RESERVED_BITS),
        (TOKENS, Regions((TOKEN,)), {"session_id": 1}, Outcome.BAD_COMBINATION),
        (TOKENS.replace(payload_frame_count=2), Regions((TOKEN,)), IDS, Outcome.BAD_COMBINATION),
        (TOKENS.replace(submit_mode=SubmitMode.MIXED), Regions((TOKEN,)), IDS, Outcome.BAD_COMBINATION),
        (TOKENS, Regions((TypedPayload.of(b"hi", profile_id=0),)), IDS, Outcome.BAD_COMBINATION),
        (TOKENS, Regions((TypedPayload.of(b"hi", profile_id=1),)), IDS, Outcome.BAD_COMBINATION),
        (
            TOKENS,
            Regions((TypedPayload.of(b"", profile_id=2, flags=DescriptorFlags(3)),)),
            IDS,
            Outcome.BAD_COMBINATION,
        ),
        (TOKENS, Regions((TypedPayload.of(b"", profile_id=2, flags=DescriptorFlags(16)),)), IDS, Outcome.RESERVED_BITS),
        (TOKENS, Regions((TypedPayload.legacy(b"hi", PayloadKind.TOKEN_CHUNK),)), IDS, Outcome.BAD_COMBINATION),
        (TOKENS, b"text", IDS, Outcome.TOO_SHORT),
        (ResultPush(payload_kind_bitmap=PayloadKind.TENSOR, tile_count=1), b"", IDS, Outcome.BAD_COMBINATION),
    ],
)
def test_refused(message: Message, body: Any, ids: dict[str, Any], outcome: Outcome) -> None:
    """House style: what we ask for illegally is a local error; the rules are those of a strict receiver."""
    with pytest.raises(NnrpLocalError) as caught:
        encode_packet(message, body, **ids)
    assert caught.value.outcome is outcome
    assert isinstance(caught.value, LocalProtocolError)


def test_mixed_descriptor_sizes() -> None:
    """One body has one kind of descriptor, whichever comes first."""
    legacy = TypedPayload.legacy(b"hi", PayloadKind.TOKEN_CHUNK)
    for payloads in ((TOKEN, legacy), (legacy, TOKEN)):
        for strict in (True, False):
            with pytest.raises(NnrpLocalError):
                encode_packet(TOKENS.replace(payload_frame_count=2), Regions(payloads), **IDS, strict=strict)


def test_fast_and_general_way_build_the_same_bytes() -> None:
    """Payloads alone are packed as they are checked; as a list of buffers the same body goes the general way."""
    payloads = tuple(
        TypedPayload.of(data, profile_id=2, schema_id=0x1001, schema_version=3, stream_semantics=StreamSemantics.APPEND)
        for data in (b"", b"one", b"twelve bytes")
    )
    message = TOKENS.replace(payload_frame_count=3)
    regions = Regions(payloads)
    fast = encode_packet(message, regions, **IDS, trace_id=9)
    assert fast == encode_packet(message, regions.build(), **IDS, trace_id=9)
    assert decode_packet(fast).pack() == fast


def test_parts_do_not_copy_large_payloads() -> None:
    """Issue 4: none of the payload bytes is copied from 4 KiB on; small neighbours are joined."""
    large, small = bytes(VIEW_BYTES), b"s" * (VIEW_BYTES - 1)
    regions = Regions(tuple(TypedPayload.of(data, profile_id=2) for data in (small, large, small, b"x")))
    message = TOKENS.replace(payload_frame_count=4)
    parts = encode_parts(message, regions, **IDS)
    assert len(parts) == 3
    assert parts[1] is large
    assert b"".join(parts) == encode_packet(message, regions, **IDS)


def test_parts_of_an_opaque_body() -> None:
    large = memoryview(bytes(VIEW_BYTES))
    head, body = encode_parts(CachePut(object_bytes=VIEW_BYTES), large, session_id=1)
    assert body is large
    assert len(head) == 72


def test_header_fields() -> None:
    packet = encode_packet(
        TOKENS,
        Regions((TOKEN,)),
        session_id=0xFFFF_FFFF,
        frame_id=2,
        view_id=3,
        route_id=4,
        trace_id=5,
        flags=HeaderFlags.KEYFRAME,
    )
    header = decode_packet(packet).header
    assert header.msg_type is MessageType.FRAME_SUBMIT
    assert (header.session_id, header.frame_id, header.view_id) == (0xFFFF_FFFF, 2, 3)
    assert (header.route_id, header.trace_id, header.flags) == (4, 5, HeaderFlags.KEYFRAME)
