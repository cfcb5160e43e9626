"""What the writers of both ends give to a plain socket without their task, and what they leave to it (issue 5, Speed)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import pytest
import trio
import trio.testing

from client.nnrp.writer import Writer as ClientWriter
from server.nnrp.writer import Writer as ServerWriter

Either: TypeAlias = ClientWriter | ServerWriter
Make: TypeAlias = Callable[[trio.abc.SendStream], Either]
_BOTH = pytest.mark.parametrize(
    "make", [partial(ClientWriter, timeout=30.0), partial(ServerWriter, timeout=30.0)], ids=["client", "server"]
)
_PACKET = 1024


def connected() -> tuple[trio.SocketStream, trio.SocketStream]:
    ours, theirs = socket.socketpair()
    return trio.SocketStream(trio.socket.from_stdlib_socket(ours)), trio.SocketStream(
        trio.socket.from_stdlib_socket(theirs)
    )


def packets(count: int) -> list[bytes]:
    return [number.to_bytes(4, "little") * (_PACKET // 4) for number in range(count)]


async def read_exactly(stream: trio.SocketStream, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        data = await stream.receive_some(size - len(found))
        assert data, "the stream ended early"
        found += data
    return bytes(found)


@_BOTH
async def test_what_a_step_has_written_goes_out_at_its_end_without_a_task(make: Make) -> None:
    ours, theirs = connected()
    async with ours, theirs:
        writer = make(ours)
        writer.hold()
        writer.write([b"one", b"two"])
        writer.write([b"three"])
        assert writer.size == 11
        writer.release()
        assert writer.size == 0
        assert await theirs.receive_some(100) == b"onetwothree"


@_BOTH
async def test_a_full_socket_leaves_the_rest_to_the_task_in_order(make: Make) -> None:
    ours, theirs = connected()
    sent = packets(2_000)
    with trio.fail_after(30):
        async with ours, theirs, trio.open_nursery() as nursery:
            writer = make(ours)
            for index, packet in enumerate(sent):
                writer.hold()
                writer.write([packet])
                writer.release()
                if index == len(sent) // 2:
                    assert writer.size > 0, "the socket has taken a megabyte from a peer that does not read"
                    nursery.start_soon(writer.run)
                    await trio.testing.wait_all_tasks_blocked()
            writer.end()
            assert await read_exactly(theirs, len(sent) * _PACKET) == b"".join(sent)
        assert writer.size == 0


@_BOTH
async def test_a_broken_socket_is_for_the_task_to_report(make: Make) -> None:
    ours, theirs = connected()
    async with ours:
        await theirs.aclose()
        writer = make(ours)
        for packet in packets(8):
            writer.hold()
            writer.write([packet])
            writer.release()
        assert writer.size == 8 * _PACKET
        with trio.fail_after(30), pytest.raises(trio.BrokenResourceError):
            await writer.run()


@_BOTH
async def test_a_stream_that_is_no_socket_is_served_by_the_task_alone(make: Make, autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_one_way_pair()
    async with trio.open_nursery() as nursery:
        writer = make(ours)
        writer.hold()
        writer.write(packets(4))
        writer.release()
        assert writer.size == 4 * _PACKET
        writer.end()
        nursery.start_soon(writer.run)
        found = b""
        while len(found) < 4 * _PACKET:
            found += await theirs.receive_some()
    assert found == b"".join(packets(4))
