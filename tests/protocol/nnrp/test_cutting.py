"""Packets out of what a writer joined (nnrp-extensions, WebSocket: one message is one packet)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.nnrp.cutting import PacketCutter, check_message, largest_packet
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.messages import Close, Ping
from protocol.nnrp.packet import encode_packet


@given(st.lists(st.integers(0, 300), max_size=6), st.lists(st.integers(1, 90), min_size=1, max_size=20))
def test_wherever_it_is_cut(sizes: list[int], pieces: list[int]) -> None:
    """Every packet comes out once, whole and in order, however the bytes are handed over."""
    packets = [encode_packet(Close(), bytes([number]) * size) for number, size in enumerate(sizes)]
    data, cutter = b"".join(packets), PacketCutter()
    found: list[bytes] = []
    at = number = 0
    while at < len(data):
        size = pieces[number % len(pieces)]
        found += cutter.cut(memoryview(data)[at : at + size])
        at, number = at + size, number + 1
    assert found == packets
    assert cutter.pending_bytes == 0


@pytest.mark.parametrize(
    "message", [b"", encode_packet(Ping())[:-1], encode_packet(Ping()) + b"x", encode_packet(Ping()) * 2]
)
def test_a_message_is_exactly_one_packet(message: bytes) -> None:
    """nnrp-extensions, WebSocket: else LengthMismatch, which ends the connection."""
    with pytest.raises(NnrpError) as found:
        check_message(message)
    assert found.value.outcome is Outcome.LENGTH_MISMATCH
    assert found.value.fatal
    check_message(encode_packet(Ping()))


def test_the_largest_packet() -> None:
    """nnrp-extensions, WebSocket: 40 + 4096 + max_body_bytes."""
    assert largest_packet(1000) == 40 + 4096 + 1000
