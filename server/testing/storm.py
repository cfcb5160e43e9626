"""The storm: one client, one session, prompts and votes, while the network falls apart; then the oracle looks."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any, Final

import attrs
import trio

from client import (
    DaemonClient,
    DaemonError,
    DaemonHttpError,
    DaemonSessionClient,
    DaemonTurnError,
    JsonRpcError,
    SessionRequest,
    TransportKind,
)
from client import Event as ClientEvent
from server.config import Config
from server.testing.agents import ScriptedAgent, Turn
from server.testing.faults import Weather
from server.testing.oracle import Findings, Transcript, check_prompts, check_transcript
from server.testing.run import run_seeded
from server.testing.wire import Recorder, check_acp_replies
from server.testing.world import World, open_world
from sessions.errors import SessionNotFound

__all__ = ["Storm", "StormReport", "run_storm"]

LONGEST: Final = 3600.0
"""Seconds of virtual time a run may take before it counts as hanging."""
PATIENCE: Final = 60.0
"""Seconds a prompt is waited for where bytes are flipped."""
HOUSEKEEPING: Final = Counter({"server.routes.acp.registry.Registry._sweep": 1})
"""Tasks that start with the first use of a surface and stay as long as the server."""
SETTLE: Final = 4000.0
"""Seconds of virtual time after the client has gone: longer than every grace, sweep and idle limit."""


@attrs.frozen(slots=True)
class StormReport:
    """What happened. ``findings`` empty: nothing was wrong."""

    seed: int
    transport: str
    cuts: int
    dialled: int
    prompts: int
    events: int
    gaps: int
    unanswered: int
    """Prompts whose outcome the caller was told it cannot learn (allowed; silence is not)."""
    digest: str
    findings: tuple[str, ...]


def run_storm(
    seed: int,
    transport: TransportKind | str = TransportKind.REST,
    *,
    cuts: int = 30,
    weather: Weather | None = None,
    config: Config | None = None,
) -> StormReport:
    """One run, in its own Trio loop on a virtual clock. The same arguments give the same report, digest included."""
    storm = Storm(seed, TransportKind(transport), cuts, weather or Weather(), config)
    return run_seeded(storm.run, seed=seed)


@attrs.define(eq=False)
class Storm:
    seed: int
    transport: TransportKind
    cuts: int
    weather: Weather
    config: Config | None = None
    findings: Findings = attrs.field(factory=Findings, init=False)
    claims: Findings = attrs.field(factory=Findings, init=False)
    """What must hold where bytes arrive as they were sent: findings too, unless the weather flips some."""
    unanswered: int = attrs.field(default=0, init=False)
    answered: int = attrs.field(default=0, init=False)
    _names: int = attrs.field(default=0, init=False)
    _followed: str = attrs.field(default="", init=False)
    _beside: str = attrs.field(default="", init=False)
    _head: int = attrs.field(default=0, init=False)
    """The ring's head when the reader left."""

    async def run(self) -> StormReport:
        rng = random.Random(self.seed * 7919 + 1)
        agent = ScriptedAgent(random.Random(rng.getrandbits(64)))
        transcript = Transcript(self.claims)
        beside = Transcript(self.findings, "bystander")
        async with open_world(
            self.seed, runner=agent, weather=self.weather, cuts=self.cuts, config=self.config
        ) as world:
            recorder = Recorder()
            if self.transport is TransportKind.ACP_HTTP:
                world.network.recorder = recorder.note
            living = Counter(task_names())
            with trio.move_on_after(LONGEST) as limit:
                async with trio.open_nursery() as nursery:
                    if self.weather.corrupt:
                        nursery.start_soon(self._bystander, world, beside)
                    await self._client(world, rng, transcript)
                    nursery.cancel_scope.cancel()
            self.findings.expect(not limit.cancelled_caught, f"hung: not over after {LONGEST:g} s of virtual time")
            known = [*world.harbour.sessions, *world.harbour.archived]
            await trio.sleep(SETTLE)
            if self.weather.corrupt:
                # A question that has reached nobody waits for its answer, and keeps its session in use.
                for session in list(world.harbour.sessions):
                    await session.close()
                await trio.sleep(SETTLE)
            self._after(world, living)
            for session in known:
                if session.id == self._beside:
                    check_transcript(self.findings, beside, session, beside.last)
                if session.id == self._followed and not self.weather.corrupt:
                    check_transcript(self.findings, transcript, session, self._head)
                    check_acp_replies(self.findings, recorder, session)
            check_prompts(self.findings, () if self.weather.corrupt else agent.ran, known)
            if not self.weather.corrupt:
                self.findings.extend(self.claims)
            return StormReport(
                self.seed,
                self.transport.value,
                world.network.cuts,
                world.network.dialled,
                len(agent.ran),
                len(transcript.shown),
                transcript.gaps,
                self.unanswered,
                world.network.digest,
                tuple(self.findings),
            )

    async def _client(self, world: World, rng: random.Random, transcript: Transcript) -> None:
        async with world.client(self.transport, max_pending_prompts_per_session=None, default_vote=None) as client:
            session = await self._create(world, client)
            async with session, trio.open_nursery() as nursery:
                reading = trio.Event()
                nursery.start_soon(self._read, session, rng, transcript, reading)
                await reading.wait()
                async with trio.open_nursery() as prompts:
                    for _ in range(rng.choice((1, 1, 2, 3))):
                        prompts.start_soon(self._prompt_until_clear, world, session, random.Random(rng.getrandbits(64)))
                await self._catch_up(world, session, transcript)
                self._followed, self._head = session.session_id, transcript.last
                nursery.cancel_scope.cancel()

    async def _bystander(self, world: World, transcript: Transcript) -> None:
        """Somebody whose bytes nobody touches notices nothing."""
        calm = world.network.connect_in_calm
        async with world.client(self.transport, connect=calm, default_vote=None) as client:
            session = await DaemonSessionClient.create_or_attach(client, SessionRequest(scope="thread"))
            self._beside = session.session_id
            async with session, trio.open_nursery() as nursery:
                reading = trio.Event()
                nursery.start_soon(self._follow, session, transcript, reading)
                await reading.wait()
                number = 0
                while True:
                    number += 1
                    with trio.move_on_after(60) as patience:
                        result = await session.prompt(Turn(f"b{number}", chunks=3, size=20, pause=0.02).words())
                        self.findings.expect(
                            result.stop_reason == "end_turn", f"b{number} ended as {result.stop_reason}"
                        )
                    self.findings.expect(not patience.cancelled_caught, f"b{number} was not answered")
                    await trio.sleep(1)

    async def _follow(self, session: DaemonSessionClient, transcript: Transcript, reading: trio.Event) -> None:
        async with session.events(cursor=transcript.last) as events:
            reading.set()
            async for event in events:
                transcript.note(event)

    async def _create(self, world: World, client: DaemonClient) -> DaemonSessionClient:
        """A create whose answer is lost leaves a session behind (reaped as idle) that nobody reads: so only a few tries are
        made in the storm, or the server would rightly refuse further sessions."""
        for _ in range(3):
            try:
                return await DaemonSessionClient.create_or_attach(client)
            except DaemonError:
                await trio.sleep(0.5)
        plan, world.network.plan = world.network.plan, None
        try:
            while True:
                try:
                    return await DaemonSessionClient.create_or_attach(client)
                except DaemonError:
                    # A connection of the stormy time may still be in use.
                    await trio.sleep(0.5)
        finally:
            world.network.plan = plan
            # The storm takes the calm time's connections too.
            world.network.cut_all()

    async def _read(
        self, session: DaemonSessionClient, rng: random.Random, transcript: Transcript, reading: trio.Event
    ) -> None:
        while True:
            try:
                async with session.events(cursor=transcript.last) as events:
                    reading.set()
                    async for event in events:
                        transcript.note(event)
                        if event.type == "permission_request":
                            await self._vote(session, event, rng)
            except DaemonError as problem:
                self.claims.append(f"the event stream was given up: {problem!r}")
                reading.set()
                return

    async def _vote(self, session: DaemonSessionClient, event: ClientEvent, rng: random.Random) -> None:
        assert event.request_id is not None
        for _ in range(50):
            try:
                await session.vote(event.request_id, rng.choice(("yes", "no")))
            except DaemonHttpError:
                # Refused: it was resolved meanwhile.
                return
            except DaemonError:
                await trio.sleep(0.2)
            else:
                return

    async def _prompt_until_clear(self, world: World, session: DaemonSessionClient, rng: random.Random) -> None:
        plan = world.network.plan
        assert plan is not None
        while not plan.clear(trio.current_time()):
            # A flipped byte may have given the answer, or the question before it, to nobody.
            with trio.move_on_after(PATIENCE if self.weather.corrupt else math.inf):
                await self._prompt(session, rng)
            await trio.sleep(rng.random())

    async def _prompt(self, session: DaemonSessionClient, rng: random.Random) -> None:
        self._names += 1
        turn = Turn(
            f"p{self._names}",
            chunks=rng.choice((0, 1, 2, 4, 12)),
            size=rng.choice((4, 30, 200)),
            pause=rng.choice((0.0, 0.0, 0.02, 0.5)),
            ask=rng.random() < 0.2,
            fail=rng.random() < 0.1,
        )
        try:
            result = await session.prompt(turn.words())
        except (DaemonTurnError, JsonRpcError) as problem:
            # On /acp a refusal by the queue or a lost ownership is an answer too; the failed turn is told apart by its text.
            if isinstance(problem, JsonRpcError) and not turn.fail:
                self.unanswered += 1
                return
            self.answered += 1
            self.claims.expect(turn.fail, f"{turn.name} was told it failed: {problem!r}")
        except DaemonError:
            self.unanswered += 1
        else:
            self.answered += 1
            # A client that was away for longer than the grace finds its turn cancelled, also one that was about to fail.
            self.claims.expect(
                not turn.fail or result.stop_reason == "cancelled",
                f"{turn.name} was to fail and was told {result.stop_reason}",
            )
            self.claims.expect(
                result.stop_reason in ("end_turn", "cancelled"), f"{turn.name} ended with {result.stop_reason}"
            )

    async def _catch_up(self, world: World, session: DaemonSessionClient, transcript: Transcript) -> None:
        """The weather is clear: the reader must reach the head of the ring. If it was away for longer than the grace, the session
        was closed meanwhile, and it has to load it again first."""
        served = None
        for _ in range(600):
            try:
                served = world.harbour.find(session.session_id)
            except SessionNotFound:
                served = None
            if served is not None and transcript.last >= served.ring.head and not len(served.operations):
                return
            await trio.sleep(0.5)
        if served is None:
            self.claims.append("the session is gone while its client follows it")
            return
        head = served.ring.head
        self.claims.append(f"the reader stopped at {transcript.last} of {head}")

    def _after(self, world: World, living: Counter[str]) -> None:
        """Nothing is left of the client: no slot, no subscriber, no connection, no task."""
        counts: dict[str, Any] = attrs.asdict(world.harbour.statistics())
        for name in ("sessions", "active_prompts", "pending_permissions", "subscribers", "clients"):
            self.findings.expect(counts[name] == 0, f"{counts[name]} {name} left over")
        self.findings.expect(not world.network.links, f"{len(world.network.links)} connections left over")
        left = Counter(task_names()) - living - HOUSEKEEPING
        self.findings.expect(not left, f"tasks left over: {dict(left)}")


def task_names() -> list[str]:
    """Names of all tasks of this run that are alive."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    names, todo = [], [root]
    while todo:
        task = todo.pop()
        names.append(task.name)
        for nursery in task.child_nurseries:
            todo.extend(nursery.child_tasks)
    return names
