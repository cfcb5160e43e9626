"""The simulation in short: 2,000 cuts, the seed that replays, and the harness itself. The long form: scripts/simulate."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from client import DaemonSessionClient, TransportKind
from scripts.simulate import quiet
from server.config import Config
from server.testing import LinkFaults, Turn, Weather, World, open_world, run_seeded
from server.testing.faults import Cut
from server.testing.link import Link
from server.testing.storm import run_storm

TRANSPORTS = ["rest", "acp-http", "acp-ws"]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("seed", range(7))
def test_nothing_is_lost_in_a_storm(transport: str, seed: int) -> None:
    """C-001 to C-004, C-058, ACP-137, CLI-024 to CLI-026: each event once and in order, one outcome per prompt, no reply
    before its content, nothing left over, whatever the network does."""
    report = run_storm(seed, transport, cuts=100)
    assert report.findings == ()
    assert report.cuts >= 95


@pytest.mark.parametrize("seed", range(3))
def test_a_small_ring_says_what_is_gone(seed: int) -> None:
    """C-005: with a ring of 16 events readers lose some, and are told each time."""
    reports = [run_storm(seed, "rest", cuts=40, config=Config(event_ring_size=16))]
    assert [report.findings for report in reports] == [()]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_flipped_bytes_cost_the_hit_connection_at_most(transport: str) -> None:
    """The process survives, nothing hangs and nothing is left, and who has another connection notices nothing."""
    report = run_storm(0, transport, cuts=30, weather=Weather(corrupt=0.3))
    assert report.findings == ()
    assert report.cuts >= 30


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_seed_replays_to_the_byte(transport: str) -> None:
    first, second, other = (run_storm(seed, transport, cuts=15) for seed in (11, 11, 12))
    assert first == second
    assert first.digest != other.digest


async def test_the_documented_example(autojump_clock: trio.testing.MockClock) -> None:
    """docs/testing.md: a turn survives the loss of every connection."""
    async with open_world(seed=1) as world:
        async with world.client("rest") as client:
            session = await DaemonSessionClient.create_or_attach(client)
            async with session, session.events() as events:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(session.prompt, Turn("hello", chunks=10, pause=1.0).words())
                    texts = []
                    async for event in events:
                        if event.update_kind == "agent_message_chunk":
                            texts.append(event.text)
                        if len(texts) in (3, 6):
                            world.network.cut_all()
                        if event.type == "turn_complete":
                            break
    assert texts == [f"hello.{number}.".ljust(8, "x") for number in range(10)]
    assert world.network.cuts >= 2


@pytest.mark.parametrize("kind", list(Cut))
async def test_links_end_as_planned(kind: Cut, autojump_clock: trio.testing.MockClock) -> None:
    link = Link(1, LinkFaults(cut=kind, cut_down=10))
    sent = b"0123456789abcdef"
    received = b""

    async def send() -> None:
        try:
            await link.server.send_all(sent)
        except trio.BrokenResourceError:
            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        with trio.move_on_after(5) as waited:
            try:
                while data := await link.client.receive_some(4):
                    received += data
            except trio.BrokenResourceError:
                received = b"reset"
        nursery.cancel_scope.cancel()
    if kind in (Cut.RESET, Cut.VANISH):
        assert received == b"reset"
    elif kind is Cut.STALL:
        assert waited.cancelled_caught
    else:
        assert received == sent[:10]
    if kind is Cut.HALF_CLOSE:
        await link.client.send_all(b"still open")
        assert await link.server.receive_some() == b"still open"
    if kind is Cut.VANISH:
        await link.client.aclose()
        await link.server.send_all(b"into the void")
        with trio.move_on_after(5) as waited:
            await link.server.receive_some()
        assert waited.cancelled_caught
        link.reset()
        with pytest.raises(trio.BrokenResourceError):
            await link.server.receive_some()


async def test_links_drip_delay_and_corrupt(autojump_clock: trio.testing.MockClock) -> None:
    link = Link(1, LinkFaults(latency=2.0, piece=1, corrupt_down=1), rng=random.Random(1))
    await link.server.send_all(b"ab")
    began = trio.current_time()
    assert await link.client.receive_some(100) == b"a"
    assert trio.current_time() - began == pytest.approx(2.0)
    assert await link.client.receive_some(100) == bytes([ord("b") ^ 0x55])
    await link.server.aclose()
    assert await link.client.receive_some(100) == b""


async def test_corruption_breaks_the_connection_and_nothing_else(autojump_clock: trio.testing.MockClock) -> None:
    """A flipped byte may spoil a frame; the client notices or the framing does, and what is shown is right."""
    for seed in range(5):
        async with open_world(seed, weather=Weather(cut=0.5, corrupt=0.3, refuse=0, drip=0), cuts=5) as world:
            assert world.network.plan is not None
            fates = [world.network.plan.draw(0.0) for _ in range(50)]
    assert any(fate.corrupt_down < float("inf") for fate in fates)


def test_run_seeded_orders_tasks_by_the_seed() -> None:
    async def race() -> list[int]:
        order: list[int] = []

        async def runner(number: int) -> None:
            await trio.lowlevel.checkpoint()
            order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(runner, number)
        return order

    orders = [run_seeded(race, seed=seed) for seed in (1, 1, 2, 3, 4, 5)]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) > 1


async def test_world_serves_every_transport(autojump_clock: trio.testing.MockClock) -> None:
    world: World
    async with open_world(3) as world:
        for transport in TransportKind:
            async with world.client(transport) as client:
                session = await DaemonSessionClient.create_or_attach(client)
                async with session:
                    result = await session.prompt(Turn(f"t{transport.value}").words())
                    assert result.stop_reason == "end_turn"
