"""Layer 0: bytes. Golden structures decode and re-encode unchanged, malformed ones are refused (nnrp-wire 3, 4, 7, 12)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import partial
from typing import Any

from protocol.nnrp.enums import BackpressureLevel, CacheErrorCode, MessageType, SchemaErrorCode
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.header import HEADER_BYTES, Header
from protocol.nnrp.messages import FlowUpdate, Ping, SessionOpen, SessionOpenAck
from protocol.nnrp.packet import decode_packet, parse_header
from protocol.nnrp.record import Record
from protocol.nnrp.splitter import Splitter
from server.conformance.case import Evidence, case, expect, expect_refusal
from server.conformance.golden import BLOCKS, CACHE_CODES, HEADER, PACKETS, SCHEMA_CODES, Golden
from server.conformance.link import raw_packet

__all__: list[str] = []


def fields_of(record: Record, names: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(getattr(record, name)) for name in names}


def round_trip(golden: Golden, evidence: Evidence) -> None:
    decoded = golden.layout.parse(golden.data, strict=golden.strict)
    evidence.note(f"{golden.data.hex()} decodes to {decoded}")
    expect(fields_of(decoded, golden.fields) == golden.fields, "the fields have the golden values")
    expect(decoded.pack() == golden.data, "the fields encode to the golden bytes")
    rebuilt = golden.layout(**{name: getattr(decoded, name) for name in golden.fields})
    expect(rebuilt.pack() == golden.data, "a structure built from its fields alone encodes to the golden bytes")


def packet_round_trip(golden: Golden, evidence: Evidence) -> None:
    packet = decode_packet(golden.data)
    evidence.note(f"{golden.data.hex()} decodes to {packet.header} {packet.metadata}")
    expect(fields_of(packet.metadata, golden.fields) == golden.fields, "the metadata has the golden values")
    expect(fields_of(packet.header, golden.header) == golden.header, "the header has the golden ids")
    expect(packet.pack() == golden.data, "the packet encodes to the golden bytes")


def family(expected: Mapping[str, int], enum: type[IntEnum], evidence: Evidence) -> None:
    present = {member.name.lower(): int(member) for member in enum if member.name != "NONE"}
    evidence.note(f"{enum.__name__}: {present}")
    expect(present == dict(expected), "the family has exactly the frozen names and values")
    data = b"".join(value.to_bytes(4, "little") for value in expected.values())
    read = [enum(int.from_bytes(data[start : start + 4], "little")) for start in range(0, len(data), 4)]
    expect([int(each) for each in read] == list(expected.values()), "each u32 on the wire is its member")


@case("l0.header.roundtrip.basic")
def header_round_trip(evidence: Evidence) -> None:
    round_trip(HEADER, evidence)
    expect(parse_header(HEADER.data) == Header.parse(HEADER.data), "the header stands at the start of a packet")


for _identifier, _golden in BLOCKS.items():
    case(_identifier)(partial(round_trip, _golden))
for _identifier, _golden in PACKETS.items():
    case(_identifier)(partial(packet_round_trip, _golden))


@case("l0.cache.error_code.family.golden")
def cache_codes(evidence: Evidence) -> None:
    family(CACHE_CODES, CacheErrorCode, evidence)


@case("l0.schema.error_code.family.golden")
def schema_codes(evidence: Evidence) -> None:
    family(SCHEMA_CODES, SchemaErrorCode, evidence)


@case("l0.header.invalid_length.reject")
def invalid_length(evidence: Evidence) -> None:
    good = raw_packet(Ping())
    decode_packet(good)
    for offset in (12, 16):
        wrong = bytearray(good)
        wrong[offset] = 1
        error = expect_refusal(
            Outcome.LENGTH_MISMATCH, "a length beyond the bytes present", decode_packet, bytes(wrong)
        )
        evidence.note(str(error))
    splitter = Splitter()
    header = Header(MessageType.CLOSE, body_len=8)
    splitter.receive_data(header.pack() + b"half")
    splitter.receive_eof()
    expect_refusal(Outcome.TOO_SHORT, "a stream that ends inside a packet", list, splitter.packets())


@case("l0.header.length_mismatch.reject")
def length_mismatch(evidence: Evidence) -> None:
    packet = raw_packet(FlowUpdate())
    for data, demand in (
        (packet + b"\0", "bytes after the declared end"),
        (packet[:-1], "fewer bytes than declared"),
        (packet[: HEADER_BYTES - 1], "less than a header"),
    ):
        try:
            decode_packet(data)
        except NnrpError as error:
            evidence.note(str(error))
            expect(error.outcome in (Outcome.LENGTH_MISMATCH, Outcome.TOO_SHORT), f"{demand} is a length fault")
        else:
            expect(False, f"{demand} is refused")
    shorter = Header(MessageType.FLOW_UPDATE, meta_len=31).pack() + FlowUpdate().pack()[:31]
    expect_refusal(Outcome.TOO_SHORT, "metadata shorter than its layout", decode_packet, shorter)
    overflow = Header(MessageType.CLOSE, meta_len=0xFFFF_FFFF, body_len=0xFFFF_FFFF).pack()
    expect_refusal(Outcome.LENGTH_OVERFLOW, "lengths whose sum leaves u32", parse_header, overflow)


def set_bits(record: Record, offset: int, width: int, bits: range, outcome: Outcome, evidence: Evidence) -> None:
    """Every one of ``bits`` of the field at ``offset`` must be refused when it is set."""
    good = record.pack()
    type(record).parse(good)
    for bit in bits:
        wrong = bytearray(good)
        value = int.from_bytes(wrong[offset : offset + width], "little") | 1 << bit
        wrong[offset : offset + width] = value.to_bytes(width, "little")
        error = expect_refusal(outcome, f"bit {bit} at offset {offset}", type(record).parse, bytes(wrong))
        evidence.note(str(error))


@case("l0.session_open.reserved_fields.reject")
def session_open_reserved(evidence: Evidence) -> None:
    set_bits(SessionOpen(), 22, 2, range(16), Outcome.RESERVED_NON_ZERO, evidence)
    set_bits(SessionOpen(), 7, 1, range(4, 8), Outcome.RESERVED_BITS, evidence)


@case("l0.session_open_ack.reserved_fields.reject")
def session_open_ack_reserved(evidence: Evidence) -> None:
    set_bits(SessionOpenAck(session_id=1), 52, 4, range(5, 32), Outcome.RESERVED_BITS, evidence)


@case("l0.flow_update.reserved_flags.reject")
def flow_update_reserved(evidence: Evidence) -> None:
    update = FlowUpdate(backpressure_level=BackpressureLevel.HARD)
    set_bits(update, 28, 4, range(4, 32), Outcome.RESERVED_BITS, evidence)
