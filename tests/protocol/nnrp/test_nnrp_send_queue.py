"""What both writers hand to their transport at once, and what of it goes without their task."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from protocol.layout import Buffer
from protocol.nnrp.send_queue import SendQueue, chunks

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


class Transport(SendQueue):
    """Takes so many bytes at once; what it does not take is sent by `run`, the writer's task."""

    def __init__(self, room: int) -> None:
        super().__init__(self.offer)
        self.room = room
        self.sent = b""
        self.running: Iterator[Buffer] | None = None

    def offer(self, data: Buffer) -> int:
        if not self.room:
            raise BlockingIOError
        taken = bytes(data)[: self.room]
        self.room -= len(taken)
        self.sent += taken
        return len(taken)

    def _wake(self) -> None:
        if self.running is None:
            self.running = iter(())

    def run(self) -> None:
        """One chunk goes out."""
        if self.running is None:
            return
        chunk = next(self.running, None)
        if chunk is not None:
            self.sent += bytes(chunk)
            self._sent(chunk)
        else:
            self._idle()
            self.running = self._take() if self._queue else None


@given(
    st.integers(0, 100_000),
    st.lists(st.one_of(st.sampled_from(["hold", "release", "run"]), st.integers(0, 70_000)), max_size=30),
)
def test_every_byte_goes_once_in_order_whoever_sends_it(room: int, steps: list[str | int]) -> None:
    queue, written = Transport(room), b""
    for number, step in enumerate(steps):
        if isinstance(step, int):
            packet = bytes([number]) * step
            assert queue.write([packet[:40], packet[40:]]) == step
            written += packet
        elif step == "run":
            queue.run()
        else:
            getattr(queue, step)()
        assert written.startswith(queue.sent)
        assert queue.size == len(written) - len(queue.sent)
    queue.release()
    while queue.running is not None:
        queue.run()
    assert queue.sent == written
