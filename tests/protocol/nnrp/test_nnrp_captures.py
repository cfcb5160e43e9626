"""The recorded streams of other implementations through decoder and splitter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.packet import Packet, decode_packet
from protocol.nnrp.splitter import Splitter
from tests.protocol.nnrp.vectors import captures

NOT_PREVIEW3 = {
    # A preview4 peer puts plain text where preview3 has a control extension block (nnrp-wire 7.7, decision).
    ("p4-tcp-open-rejected", 3): Outcome.RESERVED_BITS,
    # A preview4 submit has operation_id at offset 40, reserved in preview3 (nnrp-wire 19).
    ("p4-tcp-submit-result", 4): Outcome.RESERVED_NON_ZERO,
}
TOLERATED = {
    # 16-byte descriptors of nnrp-py (nnrp-wire 8.6).
    ("py-quic-tensor-token-flow", "FRAME_SUBMIT"),
    ("py-quic-tensor-token-flow", "RESULT_PUSH"),
    ("py-tcp-token-typed", "FRAME_SUBMIT"),
    ("py-tcp-token-typed", "RESULT_PUSH"),
    # nnrp-rs declares a resume token and sends none (nnrp-wire 5).
    ("rs-tcp-resume-accepted", "SESSION_OPEN"),
    ("rs-tcp-resume-accepted", "SESSION_OPEN_ACK"),
    ("rs-tcp-resume-rejected", "SESSION_OPEN"),
}
"""Packets of real peers that only a tolerant receiver takes: file and type."""

EVERY = [pytest.param(name, index, entry, id=f"{name}-{index}-{entry['type']}") for name, index, entry in captures()]


def decode(data: bytes) -> tuple[Packet, bool]:
    """The packet, and whether it took the tolerant mode."""
    try:
        return decode_packet(data), False
    except NnrpError:
        return decode_packet(data, strict=False), True


@pytest.mark.parametrize(("name", "index", "entry"), EVERY)
def test_captured_packets(name: str, index: int, entry: dict[str, Any]) -> None:
    """Decodes to the recorded fields and re-encodes to the same bytes, in the strictest mode that fits."""
    data = bytes.fromhex(entry["hex"])
    if (name, index) in NOT_PREVIEW3:
        for strict in (True, False):
            with pytest.raises(NnrpError) as caught:
                decode_packet(data, strict=strict)
            assert caught.value.outcome is NOT_PREVIEW3[name, index]
        return
    packet, tolerated = decode(data)
    assert packet.pack() == data
    assert packet.kind.name == entry["type"]
    for part in ("header", "metadata"):
        for field, value in entry["decoded"].get(part, {}).items():
            if hasattr(type(getattr(packet, part)), "__struct_fields__") and field in packet_fields(packet, part):
                assert getattr(getattr(packet, part), field) == value, field
    assert not tolerated or (name, entry["type"]) in TOLERATED


def packet_fields(packet: Packet, part: str) -> tuple[str, ...]:
    made: Any = getattr(packet, part)
    return tuple(made.__struct_fields__)


def streams() -> Iterator[Any]:
    """The bytes of each direction of each connection, with the packets they consist of."""
    found: defaultdict[tuple[str, object, str], list[bytes]] = defaultdict(list)
    for name, _, entry in captures():
        stream = entry.get("quic_stream", 0)
        found[name, (entry["conn"], stream), entry["dir"]].append(bytes.fromhex(entry["hex"]))
    for (name, connection, direction), packets in found.items():
        yield pytest.param(packets, id=f"{name}-{connection}-{direction}")


@pytest.mark.parametrize("packets", list(streams()))
@pytest.mark.parametrize("chunk", [1, 7, 64, 65_536])
def test_captured_streams(packets: list[bytes], chunk: int) -> None:
    """nnrp-wire 2.1: packets follow each other without anything between them, however the stream is cut."""
    stream = b"".join(packets)
    splitter = Splitter()
    found = []
    for start in range(0, len(stream), chunk):
        splitter.receive_data(stream[start : start + chunk])
        found += [raw.data for raw in splitter.packets()]
    splitter.receive_eof()
    assert list(splitter.packets()) == []
    assert found == packets
