"""What a QUIC peer may do that nobody should (issue 5, Bad input; nnrp-wire 2.1, 2.4): streams opened and abandoned, resets inside
packets, drips, garbage on the port. It costs that peer at most; another client is served all the time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from aioquic.quic.events import QuicEvent, StreamDataReceived

from client.nnrp import open_nnrp
from protocol.nnrp.enums import MessageType
from protocol.nnrp.machines.connection import ConnectionLimits
from protocol.nnrp.messages import FrameCancel, Ping
from protocol.nnrp.packet import encode_packet
from protocol.nnrp.quic_streams import QuicPackets
from server.nnrp.policy import ServingPolicy
from server.nnrp.quic_transport import QuicTransport
from tests.server.nnrp.test_nnrp_quic import Peer, connected, greeted, where
from tests.support.nnrp import HELLO, OPEN, raw, submit_packet, text_of
from tests.support.nnrp_transports import Place, in_asyncio, serving_everywhere

LIBRARIES = pytest.mark.parametrize("library", ["qh3", "aioquic"])


@asynccontextmanager
async def served(directory: Path, library: str, policy: ServingPolicy | None = None) -> AsyncIterator[Place]:
    """The service, with another client on it that works before and after."""
    async with (
        serving_everywhere(directory, policy, library=library) as place,
        open_nnrp(place.urls["quic"], place.options) as connection,
    ):
        session = await connection.open_session()
        assert (await session.request(b"before")).data == b"before"
        yield place
        with trio.fail_after(10):
            assert (await session.request(b"after")).data == b"after"
            assert connection.reconnects == 0


async def rude(place: Place, behave: Callable[[Peer], Awaitable[Any]]) -> Any:
    async def run(*to: Any) -> Any:
        async with connected(*to) as peer:
            await greeted(peer)
            return await behave(peer)

    return await in_asyncio(run, *where(place))


async def works(peer: Peer, frame_id: int) -> None:
    peer.put_uni(submit_packet(frame_id, b"%d" % frame_id))
    assert text_of((await peer.next(MessageType.RESULT_PUSH))[1]) == b"%d" % frame_id


def open_uni(peer: Peer, data: bytes) -> int:
    stream_id: int = peer._quic.get_next_available_stream_id(is_unidirectional=True)
    peer.put(stream_id, data)
    return stream_id


@LIBRARIES
async def test_streams_opened_and_abandoned_by_the_hundred(tmp_path: Path, library: str) -> None:
    """Half a submit on each, then a reset: nothing is kept of them, and the connection goes on, further than the number of
    streams that may be open at a time."""

    async def behave(peer: Peer) -> None:
        half = submit_packet(1)[:60]
        for round_ in range(6):
            streams = [open_uni(peer, half) for _ in range(60)]
            await asyncio.sleep(0.02)
            for each in streams:
                peer._quic.reset_stream(each, 7)
            peer.transmit()
            await works(peer, 10 + round_)

    async with served(tmp_path, library) as place:
        await rude(place, behave)
        assert place.service.violations == 0


@LIBRARIES
async def test_streams_that_are_left_half_open(tmp_path: Path, library: str) -> None:
    """As many as are admitted, each inside a packet, without an end: what they hold is bounded, control is answered, and all of
    it goes with the connection."""
    held: list[int] = []

    async def behave(peer: Peer, place: Place) -> None:
        for _ in range(100):
            open_uni(peer, submit_packet(1, bytes(2000))[:-1])
        peer.put(0, encode_packet(Ping()))
        await peer.next(MessageType.PONG)
        held.extend(each.buffered_bytes for each in packets_of(place))

    async with served(tmp_path, library) as place:
        await rude(place, lambda peer: behave(peer, place))
        assert 0 < max(held) <= 100 * 2200
        await place.wait_until(lambda: len(place.service.links) == 1)


def packets_of(place: Place) -> list[QuicPackets]:
    streams = [each._stream for each in place.service.links]
    return [each.packets for each in streams if isinstance(each, QuicTransport)]


@LIBRARIES
async def test_a_control_stream_that_is_reset_inside_a_packet(tmp_path: Path, library: str) -> None:
    """Without it there is no connection: what ran for it ends."""

    async def behave(peer: Peer) -> None:
        peer.put_uni(submit_packet(1, b"sleep=60000;"))
        peer.put(0, encode_packet(OPEN)[:30])
        await asyncio.sleep(0.05)
        peer._quic.reset_stream(0, 7)
        peer.transmit()
        await asyncio.wait_for(peer.over.wait(), 10)

    async with served(tmp_path, library) as place:
        await rude(place, behave)
        await place.wait_until(lambda: place.service.statistics().operations == 0)
        await place.wait_until(lambda: len(place.service.links) == 1)


@LIBRARIES
async def test_a_peer_that_wants_no_answer(tmp_path: Path, library: str) -> None:
    """STOP_SENDING on an answer that goes on: its rest is nobody's, and the operations behind it are answered."""

    async def behave(peer: Peer) -> None:
        received = peer.quic_event_received
        begun: asyncio.Queue[int] = asyncio.Queue()
        stopped: set[int] = set()

        def stop_at_the_first_bytes(event: QuicEvent) -> None:
            received(event)
            # Afterwards the rest may come all at once, and a stream that is complete cannot be stopped.
            if isinstance(event, StreamDataReceived) and event.stream_id & 3 == 3 and event.stream_id not in stopped:
                assert not event.end_stream
                peer._quic.stop_stream(event.stream_id, 7)
                stopped.add(event.stream_id)
                begun.put_nowait(event.stream_id)

        peer.quic_event_received = stop_at_the_first_bytes  # type: ignore[method-assign]
        for number in range(1, 6):
            peer.put_uni(submit_packet(number, b"partial=4;" + bytes(200_000)))
            await asyncio.wait_for(begun.get(), 10)
            peer.transmit()
        await asyncio.sleep(0.1)
        while not peer.packets.empty():
            peer.packets.get_nowait()
        peer.put(0, encode_packet(Ping()))
        while (await peer.next())[1].kind is not MessageType.PONG:
            pass

    async with served(tmp_path, library) as place:
        await rude(place, behave)
        await place.wait_until(lambda: place.service.statistics().operations == 0)


@LIBRARIES
async def test_a_handshake_that_drips(tmp_path: Path, library: str) -> None:
    """Slowloris: a byte of the hello now and then is no hello; it is over with the handshake timeout."""

    async def drip(*to: Any) -> float:
        loop = asyncio.get_running_loop()
        async with connected(*to) as peer:
            began = loop.time()
            for at in range(len(raw(HELLO))):
                if peer.over.is_set():
                    break
                peer.put(0, raw(HELLO)[at : at + 1])
                await asyncio.sleep(0.05)
            await asyncio.wait_for(peer.over.wait(), 10)
            return loop.time() - began

    policy = ServingPolicy(limits=ConnectionLimits(handshake_timeout=1.0))
    async with served(tmp_path, library, policy) as place:
        await in_asyncio(drip, *where(place))
        await place.wait_until(lambda: len(place.service.links) == 1)


@LIBRARIES
async def test_garbage_on_the_port(tmp_path: Path, library: str) -> None:
    """Datagrams of nobody, and damaged copies of what a client has sent, while that client works: dropped, every one."""
    chance = random.Random(5)

    async def behave(peer: Peer) -> None:
        transport = peer._transport
        assert transport is not None
        send = transport.sendto

        def twice(data: bytes, address: Any = None) -> None:
            damaged = bytearray(data)
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            send(bytes(damaged), address)
            send(data[: chance.randrange(1, len(data))], address)
            send(chance.randbytes(chance.randrange(1, 1300)), address)
            send(data, address)

        transport.sendto = twice  # type: ignore[method-assign]
        for number in range(1, 40):
            await works(peer, number)

    async with served(tmp_path, library) as place:
        await rude(place, behave)
        assert place.service.violations == 0


@LIBRARIES
async def test_cancels_of_what_never_comes(tmp_path: Path, library: str) -> None:
    """A cancel is remembered for a submit it may have overtaken; ten thousand of them are not."""
    kept: list[int] = []

    async def behave(peer: Peer, place: Place) -> None:
        for start in range(1, 10_000, 500):
            peer.put(
                0, b"".join([raw(FrameCancel(), session_id=1, frame_id=each) for each in range(start, start + 500)])
            )
            await asyncio.sleep(0)
        peer.put(0, encode_packet(Ping()))
        await peer.next(MessageType.PONG)
        kept.extend(len(each._cancels) for each in packets_of(place))
        await works(peer, 10_001)

    async with served(tmp_path, library) as place:
        await rude(place, lambda peer: behave(peer, place))
    assert max(kept) <= 1024
