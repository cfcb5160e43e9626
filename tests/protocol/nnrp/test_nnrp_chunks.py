"""What both writers hand to their transport at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.nnrp.chunks import chunks

SIZES = st.sampled_from([0, 1, 40, 4096, 65535, 65536, 65537, 262144, 300000])


@given(st.lists(SIZES, max_size=12))
def test_every_byte_once_in_order_and_none_empty(sizes: list[int]) -> None:
    batch = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    found = [bytes(chunk) for chunk in chunks(batch)]
    assert b"".join(found) == b"".join(batch)
    assert all(found)
    assert max(map(len, found), default=0) <= 262144 + 65536


def test_small_neighbours_are_one_and_large_ones_are_views() -> None:
    large = bytes(300_000)
    found = list(chunks([b"a", b"b", large, b"c"]))
    assert [len(chunk) for chunk in found] == [2, 262144, 300_000 - 262144, 1]
    assert all(isinstance(chunk, memoryview) and chunk.obj is large for chunk in found[1:3])
