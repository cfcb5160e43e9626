"""Peers that stop half-way, on the transports that are not plain TCP (for which see test_nnrp_credit): they cost what they
hold, for as long as is said, and nobody else notices (issue 5, Bad input)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from client.nnrp.quic import QuicTransport
from protocol.nnrp.enums import MessageType, PayloadKind
from protocol.nnrp.machines.connection import ConnectionLimits
from protocol.nnrp.messages import Ping, SessionOpenAck
from protocol.nnrp.packet import encode_packet
from server.nnrp.policy import ServingPolicy
from server.nnrp.submit import Answer, Emit, Submit, text_payload
from server.nnrp.workers.echo import EchoWorker
from tests.support.nnrp import OPEN, Peer, functions, raw, text_of
from tests.support.nnrp_transports import send_bytes, serving_everywhere

MIB = 1 << 20


async def works(peer: Peer, frame_id: int) -> None:
    await peer.submit(frame_id, b"x")
    assert text_of(await peer.receive(MessageType.RESULT_PUSH, seconds=20)) == b"x"


@pytest.mark.parametrize("transport", ["tls", "ws", "quic"])
async def test_silence_after_half_a_header(tmp_path: Path, transport: str) -> None:
    """nnrp-wire 2.2, 13.8: only packets count against the idle timeout; what ran for the silent peer ends with it."""
    policy = ServingPolicy(limits=ConnectionLimits(idle_timeout=2.0))
    async with serving_everywhere(tmp_path, policy) as place, place.peer(transport) as peer:
        await peer.open()
        await peer.submit(1, b"sleep=60000;")
        await place.wait_until(lambda: place.service.statistics().operations == 1)
        await send_bytes(peer.stream, raw(Ping())[:20], end=False)
        async with place.peer("tcp") as other:
            await other.open()
            number = 0
            with trio.fail_after(20):
                while len(place.service.links) == 2:
                    number += 1
                    await works(other, number)
                    await trio.sleep(0.05)
        assert number > 1
        await place.wait_until(lambda: place.service.statistics().operations == 0)
        await place.wait_until(lambda: place.service.statistics().sessions <= 1)


@pytest.mark.parametrize("transport", ["tls", "ws", "quic"])
async def test_a_peer_that_never_reads(tmp_path: Path, transport: str) -> None:
    """Results for it are bounded, it is dropped after the send timeout, and another connection works all the time."""
    size = 64 * 1024 if transport == "quic" else MIB
    policy = ServingPolicy(send_timeout=0.6)
    go_on = trio.Event()

    async def handler(submit: Submit, emit: Emit) -> Answer:
        if bytes(submit.data()[0]) != b"large":
            return await EchoWorker().run(submit, emit)
        await go_on.wait()
        payload = text_payload(bytes(size), terminal=True, schema=(0x1001, 3))
        return Answer(payloads=(payload,), kinds=PayloadKind.TOKEN_CHUNK, profile_id=2)

    make_worker = functions(handler)
    async with serving_everywhere(tmp_path, policy, make_worker) as place, place.peer(transport) as deaf:
        await deaf.open(OPEN.replace(max_in_flight_operations=24))
        (link,) = place.service.links
        for number in range(1, 25):
            await deaf.submit(number, b"large")
        await place.wait_until(lambda: place.service.statistics().operations == 24)
        if isinstance(deaf.stream, QuicTransport):
            # Its library reads for it, and would go on to.
            deaf.stream._reading.cancel()
        go_on.set()
        async with place.peer("tcp") as other:
            await other.open()
            number = highest = 0
            with trio.fail_after(30):
                while not link.machine.closed:
                    number += 1
                    await works(other, number)
                    highest = max(highest, link.writer.size)
            await works(other, number + 1)
        assert highest <= 2 * MIB + size
        await place.wait_until(lambda: place.service.statistics().operations == 0)


@pytest.mark.parametrize("transport", ["ws", "quic"])
async def test_a_flood_that_takes_no_answers(tmp_path: Path, transport: str) -> None:
    """A peer that asks without end and reads nothing: its answers are bounded too, because it is not read from any more."""
    policy = ServingPolicy(send_timeout=0.6)
    pings = raw(Ping()) * 2000
    if transport in ("ws", "wss"):
        pings = raw(Ping())
    async with (
        serving_everywhere(tmp_path, policy) as place,
        place.peer(transport) as flood,
        place.peer("tcp") as other,
    ):
        await other.open()
        mine = next(each for each in place.service.links if each.transport != "tcp" or transport == "tcp")
        if isinstance(flood.stream, QuicTransport):
            flood.stream._reading.cancel()
        highest = number = 0
        with trio.move_on_after(1.2):
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    try:
                        while True:
                            await flood.stream.send_all(pings)
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        return

                nursery.start_soon(ask)
                while True:
                    number += 1
                    await works(other, number)
                    highest = max(highest, mine.writer.size)
                    await trio.sleep(0.02)
        assert number > 1
        assert highest <= 4 * MIB
        await works(other, number + 1)


@pytest.mark.parametrize("transport", ["tcp", "ws", "quic"])
async def test_all_the_sessions_there_can_be(tmp_path: Path, transport: str) -> None:
    """Issue 5, Bad input: 65,536 SESSION_OPENs in one go. Those beyond the limit are refused, each is answered in its order, the
    first and the last work, and another connection is served meanwhile."""
    count, at_once = 65_536, 512
    async with serving_everywhere(tmp_path) as place, place.peer(transport) as peer, place.peer("tcp") as other:
        limit = place.service.policy.opening.max_sessions
        await other.open()
        opened: list[int] = []
        one = encode_packet(OPEN)

        async def ask() -> None:
            for _ in range(count // at_once):
                await peer.stream.send_all(one * at_once)

        served_meanwhile = 0
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                while len(opened) < count:
                    ack = (await peer.receive(MessageType.SESSION_OPEN_ACK, seconds=30)).metadata
                    assert isinstance(ack, SessionOpenAck)
                    opened.append(ack.session_id)
                    if len(opened) % 8192 == 0:
                        served_meanwhile += 1
                        await other.submit(served_meanwhile, b"x")
                        assert text_of(await other.receive(MessageType.RESULT_PUSH)) == b"x"
        good = [each for each in opened if each]
        assert len(good) == len(set(good)) == min(count, limit)
        for number, session_id in enumerate((good[0], good[-1]), 1):
            await peer.submit(number, b"y", session_id=session_id)
            assert text_of(await peer.receive(MessageType.RESULT_PUSH, seconds=30)) == b"y"
    assert place.service.violations == 0
