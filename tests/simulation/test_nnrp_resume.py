"""NNRP: what the answer to a resume, lost at any byte and in any way, may cost: time, and nothing else (nnrp-wire 13.7)."""

from __future__ import annotations

import random

import attrs
import pytest
import trio
import trio.testing

from client.nnrp import NnrpConnection
from protocol.nnrp.enums import UpdateReason
from protocol.nnrp.header import HEADER_BYTES
from protocol.nnrp.messages import ClientHello, SessionOpen
from scripts.simulate import quiet
from server.nnrp.backpressure import PAUSE, FlowOrder
from server.nnrp.registry import TOKEN_BYTES
from server.testing.faults import PERFECT, Cut, FaultPlan, LinkFaults
from server.testing.nnrp_world import ECHO_DEADLINE_MS, NnrpWorld, open_nnrp_world
from server.testing.run import run_seeded

HELLO = HEADER_BYTES + ClientHello.SIZE
OPEN = HEADER_BYTES + SessionOpen.SIZE + TOKEN_BYTES + 40
"""With what it says of extensions and of the last event seen."""


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet()


@attrs.define
class Fates(FaultPlan):
    """These, then perfect connections."""

    fates: list[LinkFaults] = attrs.field(factory=list, kw_only=True)

    def draw(self, now: float) -> LinkFaults:
        return self.fates.pop(0) if self.fates else PERFECT


def foresee(world: NnrpWorld, *fates: LinkFaults) -> None:
    world.network.plan = Fates(random.Random(1), fates=list(fates))


async def echo(connection: NnrpConnection, count: int) -> None:
    """Sessions that are used, cut off, and used again with what is in flight."""
    sessions = [await connection.open_session(resumable=True, deadline_ms=ECHO_DEADLINE_MS) for _ in range(count)]
    waiting = [await each.submit(b"sleep=1000;before") for each in sessions]
    await trio.sleep(1.5)
    for session, before in zip(sessions, waiting, strict=True):
        assert (await before.result()).data == b"sleep=1000;before"
        assert (await session.request(b"after")).data == b"after"


@pytest.mark.parametrize("cut", [Cut.RESET, Cut.CLOSE, Cut.HALF_CLOSE, Cut.VANISH])
async def test_a_cut_in_the_answers_to_resumes_costs_no_session(
    cut: Cut, autojump_clock: trio.testing.MockClock
) -> None:
    """At any byte, twice: each session is resumed by the token that its client has, once the server knows or must suspect that
    it has no other. What arrived of the answer to one session says nothing of the others."""
    for at in range(100, 900, 37):
        first = LinkFaults(cut=Cut.RESET, cut_at=0.5, latency=0.01)
        second = LinkFaults(cut=cut, cut_down=at, latency=0.01)
        third = LinkFaults(cut=cut, cut_down=1000 - at, latency=0.005)
        async with open_nnrp_world(at) as world:
            foresee(world, first, second, third)
            with trio.fail_after(60):
                async with world.client() as connection:
                    await echo(connection, 3)
            assert world.network.dialled == 4
            assert world.service.violations == 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(LinkFaults(cut=Cut.CLOSE, cut_up=HELLO + 3 * OPEN), id="before it is sent"),
        pytest.param(LinkFaults(cut=Cut.CLOSE, cut_at=0.035, latency=0.01, piece=50), id="under way"),
    ],
)
def test_a_goodbye_that_crosses_the_answer_to_a_resume(lost: LinkFaults, seed: int) -> None:
    """Nobody has read it: the client has its old token still."""

    async def cross() -> None:
        async with open_nnrp_world(seed) as world:
            foresee(world, LinkFaults(cut=Cut.RESET, cut_at=0.5), lost)
            async with world.client() as connection:
                await echo(connection, 3)
            assert world.network.dialled == 3

    run_seeded(cross, seed=seed)


async def test_what_is_sent_again_waits_for_credit(autojump_clock: trio.testing.MockClock) -> None:
    """13.6: a submit that was lost needs the credit that there is when it is sent again. The connection was resumed on late, and
    paused before."""
    async with open_nnrp_world(1) as world:
        vanish = LinkFaults(cut=Cut.VANISH)
        foresee(world, vanish, LinkFaults(cut=Cut.VANISH, cut_down=150))
        async with world.client() as connection:
            session = await connection.open_session(resumable=True, deadline_ms=ECHO_DEADLINE_MS)
            world.network.cut_all()
            lost = await session.submit(b"lost on its way")
            await trio.sleep(1)
            assert (connection.reconnects, session.attached) == (2, False)
            world.service.order_flow(PAUSE)
            await trio.sleep(3)
            assert session.attached
            world.service.release_flow()
            assert (await lost.result()).data == b"lost on its way"
        assert world.service.violations == 0


def test_what_is_sent_again_beyond_the_credit_is_not_lost() -> None:
    """13.6: of two that were in flight one had arrived, and takes all the credit that is left. The client cannot know which; that
    the other is refused for now is not its end. Whether it is refused depends on which task runs first."""
    refused: list[int] = []

    async def lose() -> None:
        async with open_nnrp_world(1) as world:
            foresee(world, LinkFaults(cut=Cut.VANISH), LinkFaults(cut=Cut.VANISH, cut_down=150))
            async with world.client() as connection:
                first, second = [
                    await connection.open_session(resumable=True, deadline_ms=ECHO_DEADLINE_MS) for _ in range(2)
                ]
                running = await second.submit(b"sleep=9000;running")
                await trio.sleep(0.5)
                world.network.cut_all()
                lost = await first.submit(b"lost on its way")
                await trio.sleep(1)
                assert (connection.reconnects, first.attached, second.attached) == (2, False, False)
                world.service.order_flow(FlowOrder(reason=UpdateReason.REDUCE, credit=1))
                assert (await lost.result()).data == b"lost on its way"
                assert (await running.result()).data.endswith(b"running")
            refused.append(world.service.violations)

    for seed in range(8):
        run_seeded(lose, seed=seed)
    assert set(refused) == {0, 1}


async def test_credit_is_kept_for_what_is_still_to_come_back(autojump_clock: trio.testing.MockClock) -> None:
    """13.6: the server counts what runs in every session as soon as that is resumed; the client hears of one after the other."""
    async with open_nnrp_world(1) as world:
        foresee(world, LinkFaults(cut=Cut.VANISH, cut_at=0.5), LinkFaults(cut=Cut.VANISH, cut_down=150))
        async with world.client() as connection:
            sessions = [
                await connection.open_session(resumable=True, deadline_ms=ECHO_DEADLINE_MS, max_in_flight=2)
                for _ in range(2)
            ]
            for each in sessions:
                await each.submit(b"sleep=9000;running")
            await trio.sleep(1.5)
            assert (connection.reconnects, *[each.attached for each in sessions]) == (2, False, False)
            world.service.order_flow(FlowOrder(reason=UpdateReason.REDUCE, credit=2))
            async with trio.open_nursery() as nursery:
                for each in sessions:
                    nursery.start_soon(each.request, b"waits")
        assert world.service.violations == 0


async def test_a_new_session_takes_no_id_of_one_that_is_still_to_come_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """13.2: ids are of a connection; a server that does not know yet what is coming would give out the first."""
    async with open_nnrp_world(1) as world:
        foresee(world, LinkFaults(cut=Cut.VANISH), LinkFaults(cut=Cut.VANISH, cut_down=150))
        async with world.client() as connection:
            old = await connection.open_session(resumable=True, deadline_ms=ECHO_DEADLINE_MS)
            world.network.cut_all()
            await trio.sleep(1)
            assert (connection.reconnects, old.attached) == (2, False)
            new = await connection.open_session(resumable=True, deadline_ms=ECHO_DEADLINE_MS)
            assert new.session_id != old.session_id
            assert (await new.request(b"new")).data == b"new"
            assert (await old.request(b"old")).data == b"old"
