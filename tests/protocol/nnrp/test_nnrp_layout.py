"""The declarations themselves: sizes and order against the specification, the registry, the generated documents, fuzz."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import pytest

from protocol.errors import Reach
from protocol.layout import Check, Reserved, Structure, u8, u16
from protocol.layout_codec import layout
from protocol.nnrp.catalogue import CATALOGUE
from protocol.nnrp.enums import MessageType
from protocol.nnrp.header import Header
from protocol.nnrp.messages import MESSAGES
from protocol.registry import Direction, Registry
from scripts.fuzz_nnrp import run
from scripts.generate import ROOT
from scripts.generators import nnrp_tables, nnrp_wireshark

SIZES = {
    "CLIENT_HELLO": 64,
    "SERVER_HELLO_ACK": 80,
    "SESSION_PATCH": 36,
    "SESSION_PATCH_ACK": 48,
    "CLOSE": 0,
    "ERROR": 32,
    "SESSION_OPEN": 48,
    "SESSION_OPEN_ACK": 56,
    "SESSION_CLOSE": 24,
    "SESSION_CLOSE_ACK": 16,
    "FRAME_SUBMIT": 72,
    "FRAME_CANCEL": 0,
    "RESULT_PUSH": 64,
    "RESULT_DROP": 0,
    "CACHE_PUT": 32,
    "CACHE_ACK": 28,
    "CACHE_INVALIDATE": 20,
    "FLOW_UPDATE": 32,
    "RESULT_HINT": 16,
    "TRANSPORT_PROBE": 16,
    "TRANSPORT_PROBE_ACK": 16,
    "SESSION_MIGRATE": 24,
    "SESSION_MIGRATE_ACK": 24,
    "PING": 0,
    "PONG": 0,
}


def test_metadata_sizes() -> None:
    """nnrp-wire 5, column meta."""
    assert {kind.name: made.SIZE for kind, made in MESSAGES.items()} == SIZES
    assert Header.SIZE == 40


@pytest.mark.parametrize(
    ("kind", "field", "offset"),
    [
        (MessageType.SESSION_OPEN_ACK, "server_session_tag", 36),
        (MessageType.SESSION_CLOSE_ACK, "last_operation_id", 4),
        (MessageType.SESSION_MIGRATE_ACK, "resume_from_frame_id", 4),
        (MessageType.FRAME_SUBMIT, "tile_index_bytes", 32),
        (MessageType.FRAME_SUBMIT, "payload_kind_bitmap", 64),
        (MessageType.RESULT_PUSH, "payload_kind_bitmap", 56),
        (MessageType.FLOW_UPDATE, "operation_id", 12),
    ],
)
def test_offsets_the_specification_points_out(kind: MessageType, field: str, offset: int) -> None:
    """nnrp-wire 4.2: packed, no padding, also where a u64 is not aligned."""
    assert MESSAGES[kind].LAYOUT.field(field).offset == offset


def test_registry() -> None:
    """nnrp-wire 5: 25 messages, directions, reach; 0x0B – 0x0F and the rest stay free."""
    assert list(CATALOGUE) == [int(kind) for kind in MessageType]
    assert len(CATALOGUE) == 25
    assert CATALOGUE[0x10].direction is Direction.TO_SERVER
    assert CATALOGUE[0x12].direction is Direction.TO_CLIENT
    assert CATALOGUE[0x17].direction is Direction.BOTH
    assert [kind.name for kind in MessageType if CATALOGUE[kind].may_drop] == ["FRAME_CANCEL", "PING", "PONG"]
    assert CATALOGUE[0x01].reach is Reach.CONNECTION
    with pytest.raises(ValueError, match="two messages"):
        Registry((CATALOGUE[1], CATALOGUE[1]))


@pytest.mark.parametrize("generator", [nnrp_tables, nnrp_wireshark], ids=lambda module: module.__name__)
def test_generated_documents_are_fresh(generator: Any) -> None:
    for path, text in generator.documents().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path}: run python -m scripts.generate"


@layout("SAMPLE", "0", "[test]")
class Sample(Structure, frozen=True, gc=False):
    """A structure of its own, without NNRP."""

    CHECKS: ClassVar[tuple[Check, ...]] = (Check("second", "second >= first", "second ≥ first"),)

    first: Annotated[int, u8] = 0
    reserved0: ClassVar[Reserved] = Reserved(u8)
    second: Annotated[int, u16] = 0

    @classmethod
    def fail(cls, violation: Any) -> Any:
        raise ValueError(f"{violation.field} {violation.offset} {violation.outcome}")


def test_a_declaration_is_all_there_is_to_write() -> None:
    assert Sample.SIZE == 4
    assert Sample(1, 2).pack() == b"\1\0\2\0"
    assert Sample.parse(b"\1\0\2\0") == Sample(1, 2)
    assert Sample(1, 2).replace(second=9) == Sample(1, 9)
    for data, complaint in (
        (b"\1\1\2\0", "reserved0 11 ReservedNonZero"),
        (b"\3\0\2\0", "second 12 BadCombination"),
        (b"\1\0\2", "None 13 TooShort"),
        (b"\1\0\2\0\0", "None 14 LengthMismatch"),
    ):
        with pytest.raises(ValueError, match=complaint):
            Sample.parse(data, at=10)
    with pytest.raises(ValueError, match="second 2 BadCombination"):
        Sample(3, 2).pack_checked()


def test_fuzz_short_form() -> None:
    """Issue 4: the short form of scripts/fuzz_nnrp.py; the long one runs apart and logs its count."""
    tally = run(seed=4, inputs=6_000, seconds=20)
    assert tally.inputs > 500
    assert tally.accepted > 0
    assert tally.failures == 0
