"""A byte stream to packets (nnrp-wire 2.1), without waiting for more than the header declares and the limits allow."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat

from protocol.layout import Violation
from protocol.nnrp.enums import HeaderFlags
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.header import HEADER_BYTES, MAX_META_BYTES, Header
from protocol.nnrp.messages import MESSAGES
from protocol.nnrp.packet import DEFAULT_MAX_BODY_BYTES, RawPacket, check_limits, parse_header

__all__ = ["Splitter", "SplitterStatistics"]

_HEAD = struct.Struct("<16sI")
"""What the fast path looks at: everything up to meta_len at once, then body_len."""

_HEADS: dict[bytes, int] = {
    Header(kind, HeaderFlags(flags), message.SIZE).pack()[:16]: HEADER_BYTES + message.SIZE
    for kind, message in MESSAGES.items()
    for flags in range(64)
}
"""Every legal beginning of a packet, from magic to meta_len → bytes of header and metadata."""


@dataclass(frozen=True, slots=True)
class SplitterStatistics:
    """What a splitter holds and has seen."""

    buffered_bytes: int
    wanted_bytes: int
    """Size of the incomplete packet as far as known: at least the header."""
    packets: int
    failed: bool


class Splitter:
    """Cuts one direction of a stream into packets; the same for both sides.

    Drive it: `receive_data` for every read, then take what `packets` gives; `receive_eof` once at the end. A framing
    fault is terminal: `packets` gives what came before it and then raises it, now and on every later call.

    Memory: a declared length is held against ``max_body_bytes`` and ``max_meta_bytes`` before anything is waited for,
    and nothing is allocated ahead of its arrival. At most one incomplete packet is buffered.

    Ownership: a packet that arrives within one read is a view of that read, nothing is copied; a packet spread over
    several reads is collected once, in a buffer that belongs to it alone. So ``data`` must be immutable; a bytearray
    is copied on entry.
    """

    def __init__(self, *, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES, max_meta_bytes: int = MAX_META_BYTES) -> None:
        self._max_body = max_body_bytes
        self._max_meta = max_meta_bytes
        self._pending = bytearray()
        self._wanted = HEADER_BYTES
        self._header: Header | None = None
        self._ready: list[tuple[bytes | memoryview, list[int]]] = []
        self._failure: NnrpError | None = None
        self.count = 0
        """Packets seen so far."""

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Take the bytes of one read. Bytes after a framing fault are dropped."""
        if self._failure is not None or not data:
            return
        if isinstance(data, bytearray):
            data = bytes(data)
        try:
            offset = self._complete_pending(data) if self._pending else 0
            if not self._pending:
                self._split(data, offset)
        except NnrpError as failure:
            self._failure = failure
            self._pending = bytearray()

    def receive_eof(self) -> None:
        """The stream has ended: legal on a packet boundary, otherwise the next `packets` raises TooShort."""
        if self._failure is not None or not self._pending:
            return
        rule = f"the stream ended {len(self._pending)} bytes into a packet of at least {self._wanted}"
        try:
            Header.fail(Violation("TooShort", "PACKET", None, len(self._pending), rule))
        except NnrpError as failure:
            self._failure = failure
            self._pending = bytearray()

    def set_max_body_bytes(self, limit: int) -> None:
        """Apply a negotiated limit to the packets whose header has not been seen yet."""
        self._max_body = limit

    def packets(self) -> Iterator[RawPacket]:
        """The complete packets not yet taken, then the framing fault if there was one."""
        ready, self._ready = self._ready, []
        packets: Iterator[RawPacket]
        if len(ready) == 1:
            packets = map(RawPacket, repeat(ready[0][0]), ready[0][1])
        else:
            packets = chain.from_iterable(map(RawPacket, repeat(data), starts) for data, starts in ready)
        return packets if self._failure is None else self._and_fail(packets, self._failure)

    @staticmethod
    def _and_fail(packets: Iterator[RawPacket], failure: NnrpError) -> Iterator[RawPacket]:
        yield from packets
        raise failure

    @property
    def buffered_bytes(self) -> int:
        """Of the incomplete packet, as in `statistics`, for those who ask often."""
        return len(self._pending)

    def statistics(self) -> SplitterStatistics:
        return SplitterStatistics(len(self._pending), self._wanted, self.count, self._failure is not None)

    def _complete_pending(self, data: bytes | memoryview) -> int:
        """Add to the incomplete packet what belongs to it; the number of bytes of ``data`` used up."""
        offset = 0
        pending = self._pending
        while True:
            take = self._wanted - len(pending)
            pending += data if not offset and take >= len(data) else memoryview(data)[offset : offset + take]
            offset = min(offset + take, len(data))
            if len(pending) < self._wanted:
                return offset
            if self._header is not None:
                break
            self._header = self._admit(parse_header(pending))
        # The buffer is handed to the packet and never touched again by the splitter.
        self._ready.append((memoryview(pending).toreadonly(), [0]))
        self.count += 1
        self._pending = bytearray()
        self._header = None
        self._wanted = HEADER_BYTES
        return offset

    def _admit(self, header: Header) -> Header:
        check_limits(header, self._max_body, self._max_meta)
        self._wanted = HEADER_BYTES + header.meta_len + header.body_len
        return header

    def _split(self, data: bytes | memoryview, offset: int) -> None:
        """Cut ``data[offset:]``; what the fast path does not know, the rules of the header decide."""
        starts: list[int] = []
        self._ready.append((data, starts))
        size = len(data)
        try:
            while size - offset >= HEADER_BYTES:
                if size <= self._max_body:  # then no complete body in it can be too large
                    offset = _run(data, offset, starts)
                    if size - offset < HEADER_BYTES:
                        break
                header = self._admit(parse_header(data, offset))
                if self._wanted > size - offset:
                    self._header = header
                    break
                starts.append(offset)
                offset += self._wanted
                self._wanted = HEADER_BYTES
        finally:
            self.count += len(starts)
        if offset < size:
            self._pending = bytearray(memoryview(data)[offset:])


def _run(data: bytes | memoryview, offset: int, starts: list[int]) -> int:
    """Cut packets off ``data`` for as long as they are complete and begin in a known way."""
    unpack, heads, append = _HEAD.unpack_from, _HEADS, starts.append
    size = len(data)
    try:
        while size - offset >= HEADER_BYTES:
            head, body_len = unpack(data, offset)
            end = offset + heads[head] + body_len
            if end > size:
                break
            append(offset)
            offset = end
    except KeyError:  # a beginning the table does not know
        pass
    return offset
