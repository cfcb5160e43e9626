"""The NNRP codec beside nnrp-py, in one run: python -m benchmarks.nnrp_codec [--rounds N]

Both sides are measured in turns, in rounds of well under a millisecond, so that a busy machine slows both and many rounds
are not interrupted at all; the figure is the best round of each, the ratio is taken between those. What is compared does
the same work on both sides: nnrp-py's own builders, packers and validators against ours, with the bytes checked to be
equal first where the two overlap.
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nnrp.core.header import NnrpHeader
from nnrp.core.messages.data import FrameSubmitMetadata
from nnrp.core.packet import (
    NnrpPacket,
    build_frame_submit_typed_payload_packet,
    build_token_chunk_frame,
    validate_frame_submit_body,
)

from protocol.nnrp.descriptors import TypedPayloadDescriptor
from protocol.nnrp.enums import DescriptorFlags, PayloadKind, StreamSemantics, TileIndexMode
from protocol.nnrp.header import Header
from protocol.nnrp.messages import FrameSubmit, SessionClose
from protocol.nnrp.packet import RawPacket, decode_packet, encode_packet, encode_parts
from protocol.nnrp.regions import Regions, TypedPayload
from protocol.nnrp.splitter import Splitter

__all__ = ["main"]

RESULT = Path(__file__).resolve().parent / "results" / "nnrp_codec.md"
READ_BYTES = 65_536
PAYLOAD = b"x" * 64
HEADER_STRUCT = struct.Struct("<4sBBBBIIIIIHHQ")


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of the table: ours against theirs, or against a bare loop."""

    name: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    target: float
    per: int = 1
    """Packets handled by one call."""


def best_of(measure: Measure, rounds: int, calls: int) -> tuple[float, float]:
    """Nanoseconds per packet, ours and theirs, best round of each."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for index, function in enumerate((measure.ours, measure.theirs)):
            started = time.perf_counter_ns()
            for _ in range(calls):
                function()
            best[index] = min(best[index], (time.perf_counter_ns() - started) / calls / measure.per)
    return best[0], best[1]


def their_submit() -> bytes:
    frame = build_token_chunk_frame(PAYLOAD, profile_id=2)
    return build_frame_submit_typed_payload_packet(session_id=1, frame_id=2, frames=[frame]).pack()


def our_submit() -> bytes:
    descriptor = TypedPayloadDescriptor(2, DescriptorFlags.TERMINAL, 0x1001, 3, StreamSemantics.APPEND)
    payload = TypedPayload(descriptor, PAYLOAD)
    metadata = FrameSubmit(
        tile_index_mode=TileIndexMode.RAW_U16, payload_kind_bitmap=PayloadKind.TOKEN_CHUNK, payload_frame_count=1
    )
    return encode_packet(metadata, Regions((payload,)), session_id=1, frame_id=2)


def header_measure() -> Measure:
    raw = encode_packet(SessionClose(), session_id=1)[:40]
    assert NnrpHeader.unpack(their_submit()[:40]).pack() == Header.parse(their_submit()[:40]).pack()
    theirs_raw = their_submit()[:40]
    return Measure(
        "header encode + decode",
        lambda: Header.decode(raw).pack(),
        lambda: NnrpHeader.unpack(theirs_raw).pack(),
        4.0,
    )


def metadata_measure() -> Measure:
    raw = their_submit()[40:112]
    assert FrameSubmit.parse(raw).pack() == FrameSubmitMetadata.unpack(raw).pack() == raw
    return Measure(
        "FRAME_SUBMIT metadata encode + decode",
        lambda: FrameSubmit.decode(raw).pack(),
        lambda: FrameSubmitMetadata.unpack(raw).pack(),
        4.0,
    )


def packet_measures() -> list[Measure]:
    ours, theirs = our_submit(), their_submit()

    def parse_theirs() -> object:
        packet = NnrpPacket.unpack(theirs)
        return validate_frame_submit_body(FrameSubmitMetadata.unpack(packet.metadata), packet.body)

    return [
        Measure("whole submit packet: build", our_submit, their_submit, 6.0),
        Measure("whole submit packet: parse + validate", lambda: decode_packet(ours), parse_theirs, 6.0),
    ]


def splitter_measure() -> Measure:
    packet = encode_packet(SessionClose(), session_id=1)
    assert len(packet) == 64
    read = packet * (READ_BYTES // len(packet))
    splitter = Splitter()

    def split() -> int:
        splitter.receive_data(read)
        count = 0
        for _ in splitter.packets():
            count += 1
        return count

    def bare() -> int:
        unpack, offset, count = HEADER_STRUCT.unpack_from, 0, 0
        while offset < READ_BYTES:
            unpack(read, offset)
            offset += 64
            count += 1
        return count

    assert split() == bare() == 1024
    return Measure("splitter, 64 B packets, 64 KiB reads", split, bare, 0.6, per=1024)


def copied_bytes() -> list[str]:
    """Where the bytes of a 4 KiB payload are after receiving and before sending: shown, not timed."""
    payload = bytes(4096)
    parts = encode_parts(
        FrameSubmit(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK, payload_frame_count=1),
        Regions((TypedPayload.of(payload, profile_id=2),)),
        session_id=1,
        frame_id=1,
    )
    sent = any(part is payload for part in parts)
    read = b"".join(parts)
    splitter = Splitter()
    splitter.receive_data(read)
    (raw,) = splitter.packets()
    assert isinstance(raw, RawPacket)
    body = raw.decode().body
    received = isinstance(body, memoryview) and body.obj is read
    answer = {True: "none", False: "all"}
    return [
        f"| payload bytes copied, socket read → message, ≥ 4 KiB | {answer[received]} | none |",
        f"| payload bytes copied, message → send buffers, ≥ 4 KiB | {answer[sent]} | none |",
        "| the same for a packet that is spread over several reads | once, into a buffer of its own | – |",
    ]


def table(rounds: int) -> str:
    lines = [
        f"NNRP codec beside nnrp-py 1.0.0rc3.post5, one run, best of {rounds} rounds taken in turns, ns per packet.",
        "",
        "| measure | moorline | compared with | ratio | must reach |",
        "|---|---|---|---|---|",
    ]
    for measure in (header_measure(), metadata_measure(), *packet_measures(), splitter_measure()):
        ours, theirs = best_of(measure, rounds, 1 if measure.per > 1 else 10)
        ratio = theirs / ours
        peer, wanted = ("bare unpack_from", "≥ 60 %") if measure.per > 1 else ("nnrp-py", f"≥ {measure.target:g} ×")
        shown = f"{ratio:.0%}" if measure.per > 1 else f"{ratio:.1f} ×"
        lines.append(f"| {measure.name} | {ours:.0f} | {theirs:.0f} ({peer}) | {shown} | {wanted} |")
    lines += ["", "| measure | found | must reach |", "|---|---|---|", *copied_bytes(), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1500)
    text = table(parser.parse_args().rounds)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
