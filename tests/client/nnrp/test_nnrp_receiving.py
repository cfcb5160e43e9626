"""Both ends read a plain socket themselves: what `trio.SocketStream.receive_some` promises still holds (issue 5, Speed)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from client.nnrp.receiving import receive_some as client_receive
from server.nnrp.receiving import receive_some as server_receive

Receive = Callable[..., Awaitable[bytes | bytearray]]
_EACH = pytest.mark.parametrize(
    ("receive", "burst"),
    [(end, burst) for end in (client_receive, server_receive) for burst in (False, True)],
    ids=["client", "client-burst", "server", "server-burst"],
)


async def connected() -> tuple[trio.SocketStream, trio.SocketStream]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        ours = await trio.open_tcp_stream(*listener.socket.getsockname())
        return ours, await listener.accept()


@_EACH
async def test_what_has_arrived_is_given_at_once_and_is_a_checkpoint(receive: Receive, burst: bool) -> None:
    ours, theirs = await connected()
    async with ours, theirs:
        await theirs.send_all(b"one")
        await theirs.send_all(b"two")
        await trio.lowlevel.wait_readable(ours.socket)
        with trio.testing.assert_checkpoints():
            assert (await receive(ours, burst=burst, bulk=False)).startswith(b"one")


@_EACH
async def test_what_has_not_arrived_is_waited_for(receive: Receive, burst: bool) -> None:
    ours, theirs = await connected()
    found: list[Any] = []

    async def read() -> None:
        found.append(await receive(ours, burst=burst, bulk=False))

    async with ours, theirs:
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked()
                assert not found
                await theirs.send_all(b"late")
        assert found == [b"late"]


@_EACH
async def test_a_wait_that_is_cancelled_takes_nothing(receive: Receive, burst: bool) -> None:
    ours, theirs = await connected()
    async with ours, theirs:
        with trio.CancelScope() as scope:
            scope.cancel()
            await receive(ours, burst=burst, bulk=False)
        assert scope.cancelled_caught
        await theirs.send_all(b"kept")
        with trio.fail_after(5):
            assert await receive(ours, burst=burst, bulk=False) == b"kept"


@_EACH
async def test_the_end_and_a_reset_are_told_apart(receive: Receive, burst: bool) -> None:
    ours, theirs = await connected()
    async with ours, theirs:
        await theirs.send_eof()
        with trio.fail_after(5):
            assert await receive(ours, burst=burst, bulk=False) == b""
    ours, theirs = await connected()
    async with ours:
        theirs.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(theirs)
        with trio.fail_after(5), pytest.raises(trio.BrokenResourceError):
            await receive(ours, burst=burst, bulk=False)


@_EACH
async def test_a_stream_closed_here_is_said_to_be(receive: Receive, burst: bool) -> None:
    ours, theirs = await connected()

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await receive(ours, burst=burst, bulk=False)

    async with theirs:
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked()
                await ours.aclose()
            with pytest.raises(trio.ClosedResourceError):
                await receive(ours, burst=burst, bulk=False)


@_EACH
async def test_any_other_stream_is_asked_itself(receive: Receive, burst: bool) -> None:
    ours, theirs = trio.testing.memory_stream_one_way_pair()
    await ours.send_all(b"x")
    assert await receive(theirs, burst=burst, bulk=False) == b"x"


@_EACH
async def test_the_rest_of_a_large_packet_is_read_in_larger_pieces(receive: Receive, burst: bool) -> None:
    ours, theirs = await connected()
    async with ours, theirs:
        await theirs.send_all(bytes(60_000))
        with trio.fail_after(5):
            first = await receive(ours, burst=burst, bulk=False)
            assert len(first) <= 16_384
            left = 60_000 - len(first)
            while left:
                left -= len(await receive(ours, burst=burst, bulk=True))
