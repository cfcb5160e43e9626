"""TCP payloads out of a packet capture: classic pcap and pcapng, IPv4 and IPv6, reassembled by sequence number."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["CaptureError", "Flow", "is_capture", "tcp_flows"]

_CLASSIC = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">", b"\xa1\xb2\x3c\x4d": ">"}
_NG = b"\x0a\x0d\x0d\x0a"
_LINK_HEADERS = {0: 4, 1: 14, 12: 0, 101: 0, 108: 4, 113: 16, 276: 20, 228: 0, 229: 0}
"""Bytes before the IP header by link type: null, Ethernet, raw, loop, Linux cooked 1 and 2, IPv4, IPv6."""


class CaptureError(Exception):
    """The capture cannot be read, or bytes are missing from it."""


@dataclass(slots=True)
class Flow:
    """One direction of one TCP connection."""

    name: str
    start: int | None = None
    segments: dict[int, bytes] = field(default_factory=dict)

    def add(self, sequence: int, payload: bytes, *, opens: bool) -> None:
        if self.start is None or opens:
            self.start = (sequence + 1) & 0xFFFF_FFFF if opens else sequence
        if payload:
            place = (sequence + opens - self.start) & 0xFFFF_FFFF
            if len(payload) > len(self.segments.get(place, b"")):
                self.segments[place] = payload

    def data(self) -> bytes:
        """The stream from its first byte; raises `CaptureError` where a segment was not captured."""
        out = bytearray()
        for place, payload in sorted(self.segments.items()):
            if place > len(out):
                raise CaptureError(f"{self.name}: {place - len(out)} bytes are missing at byte {len(out)}")
            out += payload[len(out) - place :]
        return bytes(out)


def is_capture(data: bytes) -> bool:
    return data[:4] in _CLASSIC or data[:4] == _NG


def tcp_flows(data: bytes) -> list[Flow]:
    """Every direction of every TCP connection in the capture, in order of appearance."""
    flows: dict[str, Flow] = {}
    for link, frame in _frames(data):
        packet = _ip(link, frame)
        found = None if packet is None else _tcp(*packet)
        if found is not None:
            name, sequence, opens, payload = found
            flows.setdefault(name, Flow(name)).add(sequence, payload, opens=opens)
    return list(flows.values())


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    try:
        if data[:4] == _NG:
            yield from _ng_frames(data)
        else:
            yield from _classic_frames(data, _CLASSIC[data[:4]])
    except (struct.error, KeyError) as error:
        raise CaptureError(f"not a readable capture: {error}") from error


def _classic_frames(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    (link,) = struct.unpack_from(order + "I", data, 20)
    offset = 24
    while offset < len(data):
        _, _, size, _ = struct.unpack_from(order + "4I", data, offset)
        offset += 16
        yield link & 0xFFFF, data[offset : offset + size]
        offset += size


def _ng_frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset, order, links = 0, "<", list[int]()
    while offset < len(data):
        if data[offset : offset + 4] == _NG:
            order = "<" if data[offset + 8 : offset + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            links = []
        kind, size = struct.unpack_from(order + "2I", data, offset)
        if size < 12:
            raise CaptureError("not a readable capture: a block without a length")
        if kind == 1:
            links.append(struct.unpack_from(order + "H", data, offset + 8)[0])
        elif kind == 6:
            interface, _, _, captured = struct.unpack_from(order + "4I", data, offset + 8)
            if interface >= len(links):
                raise CaptureError("not a readable capture: a packet of an unknown interface")
            yield links[interface], data[offset + 28 : offset + 28 + captured]
        offset += size


def _ip(link: int, frame: bytes) -> tuple[str, str, bytes] | None:
    """Source, destination and TCP segment, or None for anything else."""
    start = _LINK_HEADERS.get(link)
    if start is None:
        raise CaptureError(f"link type {link} is not known")
    if link == 1 and frame[12:14] == b"\x81\x00":
        start += 4
    packet = frame[start:]
    version = packet[0] >> 4 if packet else 0
    if version == 4 and len(packet) >= 20 and packet[9] == 6:
        header, size = (packet[0] & 15) * 4, int.from_bytes(packet[2:4], "big")
        segment = packet[header : size or len(packet)]
        return ".".join(map(str, packet[12:16])), ".".join(map(str, packet[16:20])), segment
    if version == 6 and len(packet) >= 40 and packet[6] == 6:
        segment = packet[40 : 40 + int.from_bytes(packet[4:6], "big")]
        return f"[{packet[8:24].hex(':', 2)}]", f"[{packet[24:40].hex(':', 2)}]", segment
    return None


def _tcp(source: str, target: str, segment: bytes) -> tuple[str, int, bool, bytes] | None:
    """Flow name, sequence number, SYN, payload."""
    if len(segment) < 20:
        return None
    from_port, to_port, sequence = struct.unpack_from(">HHI", segment)
    payload = segment[(segment[12] >> 4) * 4 :]
    return f"{source}:{from_port} → {target}:{to_port}", sequence, bool(segment[13] & 2), payload
