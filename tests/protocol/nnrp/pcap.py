"""Writes TCP conversations as packet captures, for the decoder and the Wireshark dissector."""

from __future__ import annotations

import struct

CLIENT, SERVER = b"\x0a\0\0\1", (b"\x0a\0\0\2", 4171)


def checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def segment(to_server: bool, sequence: int, acknowledge: int, flags: int, payload: bytes, port: int) -> bytes:
    """Ethernet, IPv4 and TCP around ``payload``."""
    client = CLIENT, port
    (source, from_port), (target, to_port) = (client, SERVER) if to_server else (SERVER, client)
    tcp = struct.pack(">HHIIBBHHH", from_port, to_port, sequence, acknowledge, 5 << 4, flags, 65_535, 0, 0)
    pseudo = source + target + struct.pack(">BBH", 0, 6, len(tcp) + len(payload))
    tcp = tcp[:16] + struct.pack(">H", checksum(pseudo + tcp + payload)) + tcp[18:]
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40 + len(payload), 1, 0, 64, 6, 0, source, target)
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    return b"\2\0\0\0\0\2" + b"\2\0\0\0\0\1" + b"\x08\0" + ip + tcp + payload


def conversation(turns: list[tuple[bool, bytes]], *, size: int = 1400, port: int = 50_000) -> list[bytes]:
    """Frames of a connection: handshake, then each turn (to the server or not, bytes) cut into segments."""
    sent = {True: 1001, False: 2001}
    frames = [
        segment(True, 1000, 0, 2, b"", port),
        segment(False, 2000, 1001, 18, b"", port),
        segment(True, 1001, 2001, 16, b"", port),
    ]
    for to_server, data in turns:
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            frames.append(segment(to_server, sent[to_server], sent[not to_server], 24, piece, port))
            sent[to_server] += len(piece)
    return frames


def classic(frames: list[bytes], *, order: str = "<") -> bytes:
    """A pcap file."""
    out = struct.pack(order + "IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 1)
    for index, frame in enumerate(frames):
        out += struct.pack(order + "IIII", index, 0, len(frame), len(frame)) + frame
    return out


def next_generation(frames: list[bytes]) -> bytes:
    """A pcapng file."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = len(body) + 12
        return struct.pack("<II", kind, size) + body + struct.pack("<I", size)

    out = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)) + block(1, struct.pack("<HHI", 1, 0, 65_535))
    for index, frame in enumerate(frames):
        out += block(6, struct.pack("<IIIII", 0, 0, index, len(frame), len(frame)) + frame)
    return out
