"""NNRP in the simulation: cuts at any byte, resume on another listener, races of credit and cancel; and faults it finds.

The long form: ``python -m scripts.simulate --transport nnrp``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from client.nnrp import NnrpRefused, NnrpSessionOver, attach_session
from protocol.nnrp.enums import CancelScopeKind, OperationState
from protocol.nnrp.machines.credit import Window
from protocol.nnrp.machines.events import CancelReceived
from protocol.nnrp.machines.resume import Redelivery, RedeliveryPlan
from protocol.nnrp.machines.session import Session as Machine
from scripts.simulate import quiet, run_chunk
from server.nnrp import driver
from server.nnrp.driver import Link
from server.nnrp.following import Follower
from server.nnrp.journal import Entry, Journal
from server.nnrp.registry import Registry
from server.nnrp.session import ServedSession
from server.testing.nnrp_storm import nnrp_weather, run_nnrp_storm
from server.testing.nnrp_world import open_nnrp_world
from sessions import Event, Limits, PromptRequest
from sessions.errors import SessionNotFound
from sessions.operation import CancelReason

SEEDS = range(8)
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet()


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_in_a_storm(seed: int) -> None:
    """Issue 5, Simulation: one terminal per operation, credits balanced, no event twice or lost, no task left (C-001, C-003,
    C-062, C-080 on this wire)."""
    report = run_nnrp_storm(seed, cuts=30)
    assert report.findings == ()
    assert report.cuts >= 30
    assert report.prompts > 10


def test_a_small_ring_says_what_is_gone() -> None:
    """nnrp-extensions, Resume watermark: with a ring of 6 events a follower loses some, and is told."""
    reports = [
        run_nnrp_storm(seed, cuts=12, limits=Limits(event_ring_size=6, max_pending_prompts=0)) for seed in (2, 3)
    ]
    assert [each.findings for each in reports] == [()] * 2
    assert sum(each.gaps for each in reports) > 0


@pytest.mark.parametrize("seed", range(2))
def test_flipped_bytes_cost_the_hit_connection_at_most(seed: int) -> None:
    """Issue 5, Bad input: the process survives, nothing hangs and nothing is left, and another connection notices nothing."""
    report = run_nnrp_storm(seed, cuts=30, weather=attrs.evolve(nnrp_weather(seed), corrupt=0.3))
    assert report.findings == ()
    assert report.cuts >= 30


def test_a_seed_replays_to_the_byte() -> None:
    first, second, other = (run_nnrp_storm(seed, cuts=5) for seed in (11, 11, 12))
    assert first == second
    assert first.digest != other.digest


async def test_a_session_somebody_follows_is_in_use(autojump_clock: trio.testing.MockClock) -> None:
    """A session that only an NNRP client follows is not reaped as idle; without that client it is."""
    async with open_nnrp_world(1) as world:
        shared = (await world.harbour.create()).session
        async with world.client() as connection:
            session = await attach_session(connection, world.ticket(shared))
            await trio.sleep(4000)
            assert world.harbour.find(shared.id).live
            assert not session.over
        await trio.sleep(4000)
        with pytest.raises(SessionNotFound):
            world.harbour.find(shared.id)
        assert not world.service.sessions


async def test_an_unused_ticket_expires(autojump_clock: trio.testing.MockClock) -> None:
    """Issue 5: expiresInMs is the resume window."""
    async with open_nnrp_world(1) as world, world.client() as connection:
        shared = (await world.harbour.create()).session
        early, late = world.ticket(shared), world.ticket(shared)
        await trio.sleep(late.expires_in - 1)
        await attach_session(connection, early)
        await trio.sleep(1.5)
        with pytest.raises(NnrpRefused):
            await attach_session(connection, late)


async def test_the_end_of_the_session_while_its_client_is_away(autojump_clock: trio.testing.MockClock) -> None:
    """The client comes back to a session that was closed meanwhile: it gets the last events, then SESSION_CLOSE."""
    async with open_nnrp_world(1) as world, world.client() as connection:
        shared = (await world.harbour.create()).session
        session = await attach_session(connection, world.ticket(shared))
        world.network.cut_all()
        shared.submit_prompt(PromptRequest([{"type": "text", "text": "p1 chunks=1 size=4 pause=0"}]))
        await trio.sleep(0.05)
        await shared.close()
        types = [each.value() and each.value()["type"] async for each in session.background]
        assert types[-1] == "session_closed"
        assert session.over
    assert not world.service.sessions


async def test_cancel_of_the_session_scope_crosses_a_cut(autojump_clock: trio.testing.MockClock) -> None:
    """C-062: what was cancelled while the connection was being made again ends cancelled, nothing else does."""
    async with open_nnrp_world(1) as world, world.client() as connection:
        first = await connection.open_session(resumable=True, deadline_ms=1_000_000)
        other = await connection.open_session(resumable=True, deadline_ms=1_000_000)
        held = [await first.submit(b"sleep=60000;x") for _ in range(3)]
        free = await other.submit(b"sleep=3000;free")
        world.network.cut_all()
        await trio.sleep(0.01)
        assert set(first.cancel(CancelScopeKind.SESSION)) == set(held)
        for each in held:
            with pytest.raises(Exception, match="cancelled"):
                await each.result()
            assert each.operation.state is OperationState.CANCELLED
        assert (await free.result()).data == b"sleep=3000;free"
        await other.close()
        with pytest.raises(NnrpSessionOver):
            await other.submit(b"x")


async def test_a_result_waits_for_its_place_behind_what_comes_again(autojump_clock: trio.testing.MockClock) -> None:
    """nnrp-extensions, Resume watermark: ids only rise on a connection, or a second cut would lose what was overtaken."""
    async with open_nnrp_world(1) as world, world.client() as connection:
        shared = (await world.harbour.create()).session
        session = await attach_session(connection, world.ticket(shared))
        shared.submit_prompt(PromptRequest([{"type": "text", "text": "o1 chunks=6 size=4 pause=0"}]))
        await trio.sleep(1)
        (served,) = world.service.sessions
        follower, link = served.follower, served.link
        assert follower is not None
        assert link is not None
        assert not follower.keep_back(99, [b"live results go out at once"])
        written: list[bytes] = []
        link.writer.write = lambda parts, result=False: written.append(b"".join(parts))  # type: ignore[method-assign, assignment]
        follower.resume(RedeliveryPlan(Redelivery.AFTER_EVENT, 2), [])
        assert follower.keep_back(5, [b"own"])
        assert not follower.keep_back(0, [b"what is no event has no place"])
        await trio.sleep(1)
        assert written.index(b"own") == 2
        assert len(written) == shared.ring.head - 2 + 1
        assert session.last_event_id == shared.ring.head


# Planted faults


def token_good_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Sessions nobody resumes are never let go of."""

    async def reap(self: Registry) -> None:
        await trio.sleep_forever()

    patch.setattr(Registry, "reap", reap)


def redelivery_begins_too_early(patch: pytest.MonkeyPatch) -> None:
    """An exclusive bound where an inclusive one belongs."""
    patch.setattr(Entry, "seen", lambda self, position: self.event_id < position)


def redelivery_begins_too_late(patch: pytest.MonkeyPatch) -> None:
    real = Journal.take

    def take(self: Journal, plan: RedeliveryPlan) -> list[Entry]:
        return real(self, plan)[1:]

    patch.setattr(Journal, "take", take)


def results_of_the_detached_are_lost(patch: pytest.MonkeyPatch) -> None:
    real = ServedSession.send

    def send(self: ServedSession, *args: Any) -> None:
        if self.link is not None:
            real(self, *args)

    patch.setattr(ServedSession, "send", send)


def submit_runs_twice(patch: pytest.MonkeyPatch) -> None:
    """A submit that is sent again is not known as one."""
    patch.setattr(Link, "_is_known", lambda self, raw: False)


def credit_not_given_back(patch: pytest.MonkeyPatch) -> None:
    real, count = Window.release, [0]

    def release(self: Window) -> None:
        count[0] += 1
        if count[0] % 7:
            real(self)

    patch.setattr(Window, "release", release)


def client_ignores_its_credit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Machine, "hold", lambda self, *_: None)


def cancel_reaches_the_whole_session(patch: pytest.MonkeyPatch) -> None:
    """Whatever the scope says."""
    real = driver._ACTS[CancelReceived]

    def act(link: Link, event: CancelReceived, now: float) -> None:
        real(link, event, now)
        session = event.session.attachment
        assert isinstance(session, ServedSession)
        session.cancel_all(CancelReason.USER)

    patch.setitem(driver._ACTS, CancelReceived, act)


def follower_forgets_to_rewind(patch: pytest.MonkeyPatch) -> None:
    """After a resume it goes on where it was, not where the client is."""
    real = Follower.resume

    def resume(self: Follower, plan: RedeliveryPlan, again: list[Entry]) -> list[Entry]:
        at = self._after
        found = real(self, plan, again)
        self._after = at if self._begun and at else self._after
        return found

    patch.setattr(Follower, "resume", resume)


def follower_sends_own_events_again(patch: pytest.MonkeyPatch) -> None:
    real = Follower._pass_on

    async def pass_on(self: Follower, batch: list[Event]) -> None:
        await real(self, batch)
        for event in batch:
            if event.originator == self._client_id:
                self._push(event)

    patch.setattr(Follower, "_pass_on", pass_on)


def attachment_never_let_go(patch: pytest.MonkeyPatch) -> None:
    """The task goes on after its session is over."""
    patch.setattr(Follower, "close", lambda self: None)


MUTANTS: list[Plant] = [
    token_good_for_ever,
    redelivery_begins_too_early,
    redelivery_begins_too_late,
    results_of_the_detached_are_lost,
    submit_runs_twice,
    credit_not_given_back,
    client_ignores_its_credit,
    cancel_reaches_the_whole_session,
    follower_forgets_to_rewind,
    follower_sends_own_events_again,
    attachment_never_let_go,
]


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda each: each.__name__)
def test_the_simulation_finds_it(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in SEEDS:
        if run_chunk("nnrp", seed, seed, 25)["bad"]:
            return
    pytest.fail(f"not found in {len(SEEDS)} storms")
