"""What a writer joined, as packets again: for transports that carry a packet at a time (WebSocket, QUIC)."""

from __future__ import annotations

import struct
from typing import Final

from protocol.layout import Buffer
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.header import HEADER_BYTES, MAX_META_BYTES
from protocol.nnrp.packet import DEFAULT_MAX_BODY_BYTES

__all__ = ["PacketCutter", "check_message", "largest_packet"]

_LENGTHS: Final = struct.Struct("<II")
_LENGTHS_AT: Final = 12


class PacketCutter:
    """Cuts a stream of our own packets, whose headers are therefore not doubted. A packet that lies within one buffer is
    copied once; one that is spread over several is collected."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Of a packet whose end has not been given yet."""
        return len(self._pending)

    def cut(self, data: Buffer) -> list[bytes]:
        """The packets that ``data`` completes, in order."""
        packets: list[bytes] = []
        offset, size = 0, len(data)
        while offset < size:
            if self._pending:
                offset = self._fill(data, offset, packets)
                continue
            end = offset + size_at(data, offset) if size - offset >= HEADER_BYTES else size + 1
            if end > size:
                self._pending += data[offset:]
                break
            packets.append(bytes(data[offset:end]))
            offset = end
        return packets

    def _fill(self, data: Buffer, offset: int, packets: list[bytes]) -> int:
        pending = self._pending
        wanted = size_at(pending, 0) if len(pending) >= HEADER_BYTES else HEADER_BYTES
        take = min(wanted - len(pending), len(data) - offset)
        pending += data[offset : offset + take]
        if len(pending) == wanted and wanted == size_at(pending, 0):
            packets.append(bytes(pending))
            self._pending = bytearray()
        return offset + take


def size_at(data: Buffer, start: int) -> int:
    """Bytes of the packet that begins at ``start``; its header must be there."""
    meta_len, body_len = _LENGTHS.unpack_from(data, start + _LENGTHS_AT)
    size: int = HEADER_BYTES + meta_len + body_len
    return size


def largest_packet(max_body_bytes: int = DEFAULT_MAX_BODY_BYTES) -> int:
    """Bytes of the largest message of a transport that carries one packet per message (nnrp-extensions, WebSocket)."""
    return HEADER_BYTES + MAX_META_BYTES + max_body_bytes


def check_message(message: Buffer) -> None:
    """Raises ``NnrpError`` LengthMismatch unless ``message`` is exactly as long as its header says (nnrp-extensions,
    WebSocket). Whether the header is right is for the splitter to say."""
    size = len(message)
    if size < HEADER_BYTES or size_at(message, 0) != size:
        raise NnrpError(Outcome.LENGTH_MISMATCH, "a message must be exactly one packet", subject="PACKET")
