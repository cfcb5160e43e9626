"""The NNRP storm: sessions, operations in trees and groups, cancels and changes of credit, a session of two wires, while the
network falls apart; then the oracle looks."""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from typing import Any, Final

import attrs
import trio

from client.nnrp import (
    NnrpClientError,
    NnrpConnection,
    NnrpConnectionLost,
    NnrpOperationEnded,
    NnrpResultsLost,
    NnrpSession,
    Submission,
    attach_session,
)
from client.nnrp.session import SubmitOptions
from protocol.nnrp.enums import CancelScopeKind, InFlightPolicy, OperationState, UpdateReason
from protocol.nnrp.errors import NnrpError, NnrpLocalError
from server.nnrp.policy import ServingPolicy
from server.testing.agents import Turn
from server.testing.faults import Weather
from server.testing.nnrp_wire import check_nnrp_wire
from server.testing.nnrp_world import ECHO_DEADLINE_MS, NnrpWorld, open_nnrp_world
from server.testing.oracle import Findings, check_prompts
from server.testing.run import run_seeded
from server.testing.storm import StormReport, task_names
from server.testing.wire import Recorder
from sessions import Limits, PromptRequest, Session

__all__ = ["NnrpStorm", "nnrp_weather", "run_nnrp_storm"]

LONGEST: Final = 7200.0
"""Seconds of virtual time a run may take before it counts as hanging."""
SETTLE: Final = 4000.0
"""Seconds after the client has gone: longer than every window and idle limit."""
PATIENCE: Final = 60.0
"""Seconds an operation is waited for where bytes are flipped."""
FAR: Final = 300
"""Events by which the follower may be behind: the others then wait for it, or a stalled minute of theirs would be most of the work."""


def nnrp_weather(seed: int) -> Weather:
    """The weather of a seed's storm. A resume of three sessions takes some 700 bytes each way: where connections are cut after as
    many on average, it is resumes that are cut, again and again; where they live for longer, it is work."""
    rng = random.Random(seed * 6151 + 5)
    return Weather(
        mean_bytes=math.exp(rng.uniform(math.log(400), math.log(2500))),
        mean_seconds=math.exp(rng.uniform(math.log(0.2), math.log(1.2))),
        stall=rng.choice((0.0, 0.03, 0.1)),
        vanish=rng.choice((0.0, 0.2, 0.5)),
        cut=0.98,
        drip=0.02,
    )


def run_nnrp_storm(
    seed: int,
    *,
    cuts: int = 30,
    weather: Weather | None = None,
    policy: ServingPolicy | None = None,
    limits: Limits | None = None,
) -> StormReport:
    """One run, in its own Trio loop on a virtual clock, in the weather of its seed unless another is given. The same arguments give the same report, digest included."""
    storm = NnrpStorm(seed, cuts, weather or nnrp_weather(seed), policy, limits)
    return run_seeded(storm.run, seed=seed)


@attrs.define(eq=False)
class NnrpStorm:
    seed: int
    cuts: int
    weather: Weather
    policy: ServingPolicy | None = None
    limits: Limits | None = None
    findings: Findings = attrs.field(factory=Findings, init=False)
    claims: Findings = attrs.field(factory=Findings, init=False)
    """What must hold where bytes arrive as they were sent: findings too, unless the weather flips some."""
    operations: int = attrs.field(default=0, init=False)
    completed: int = attrs.field(default=0, init=False)
    unanswered: int = attrs.field(default=0, init=False)
    gaps: int = attrs.field(default=0, init=False)
    shown: list[int] = attrs.field(factory=list, init=False)
    """Event ids of others' doings in the shared session, in the order they were shown."""
    own: list[int] = attrs.field(factory=list, init=False)
    """Event ids of own results there."""
    _cursor: int = attrs.field(default=0, init=False)
    _closed: set[NnrpSession] = attrs.field(factory=set, init=False)
    """Sessions we have closed ourselves, with what was in flight."""
    _live: dict[NnrpSession, set[int]] = attrs.field(factory=dict, init=False)
    """Operations in flight, by id: parents for others."""
    _asked: set[Submission] = attrs.field(factory=set, init=False)
    """What a cancel of ours has reached."""

    async def run(self) -> StormReport:
        rng = random.Random(self.seed * 7919 + 3)
        recorder = Recorder()
        async with open_nnrp_world(
            self.seed, weather=self.weather, cuts=self.cuts, policy=self.policy, limits=self.limits
        ) as world:
            world.network.recorder = recorder.note
            shared = (await world.harbour.create()).session
            living = Counter(task_names())
            with trio.move_on_after(LONGEST) as limit:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._others, world, shared, random.Random(rng.getrandbits(64)))
                    if self.weather.corrupt:
                        nursery.start_soon(self._bystander, world)
                    await self._client(world, shared, rng)
                    nursery.cancel_scope.cancel()
            self.findings.expect(not limit.cancelled_caught, f"hung: not over after {LONGEST:g} s of virtual time")
            await trio.sleep(SETTLE)
            self._after(world, living)
            self._check_shared(shared)
            check_prompts(self.findings, () if self.weather.corrupt else world.agent.ran, [shared])
            if not self.weather.corrupt:
                check_nnrp_wire(self.findings, recorder)
                self.findings.extend(self.claims)
            return StormReport(
                self.seed,
                "nnrp",
                world.network.cuts,
                world.network.dialled,
                self.operations,
                len(self.shown),
                self.gaps,
                self.unanswered,
                world.network.digest,
                tuple(self.findings),
            )

    # The client

    async def _client(self, world: NnrpWorld, shared: Session, rng: random.Random) -> None:
        """Connections one after the other, until the weather is clear and a last one has brought everything to its end."""
        plan = world.network.plan
        assert plan is not None
        last = False
        while not last:
            last = plan.clear(trio.current_time())
            try:
                async with world.client() as connection:
                    await self._use(world, connection, shared, random.Random(rng.getrandbits(64)))
            except* NnrpClientError:
                # It could not be made, or was lost with nothing to resume.
                await trio.sleep(0.5)

    async def _use(self, world: NnrpWorld, connection: NnrpConnection, shared: Session, rng: random.Random) -> None:
        # The anchor keeps the connection: it is made again for as long as there is a session to resume.
        anchor = await self._open_echo(connection, rng)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._operator, world, random.Random(rng.getrandbits(64)))
            async with trio.open_nursery() as work:
                for _ in range(2):
                    work.start_soon(self._submit_until_clear, world, anchor, random.Random(rng.getrandbits(64)))
                work.start_soon(self._come_and_go, world, connection, anchor, random.Random(rng.getrandbits(64)))
                while not anchor.over:
                    with contextlib.suppress(NnrpClientError):
                        await self._share(world, connection, shared, random.Random(rng.getrandbits(64)))
                        if self._clear(world):
                            break
                    await trio.sleep(0.5)
            self._check_over(anchor)
            self._check_credit(world, connection, [anchor])
            self._check_connection(world, connection)
            nursery.cancel_scope.cancel()

    def _check_over(self, session: NnrpSession) -> None:
        """A session that can be resumed ends when it is closed, or with its connection."""
        if not session.over or session in self._closed:
            return
        try:
            session.cancel()
        except NnrpClientError as because:
            lost = isinstance(because, NnrpConnectionLost)
            self.claims.expect(lost, f"session {session.session_id} was given up: {because}")

    async def _open_echo(self, connection: NnrpConnection, rng: random.Random) -> NnrpSession:
        return await connection.open_session(
            resumable=True, deadline_ms=ECHO_DEADLINE_MS, max_in_flight=rng.choice((2, 8))
        )

    async def _come_and_go(
        self, world: NnrpWorld, connection: NnrpConnection, anchor: NnrpSession, rng: random.Random
    ) -> None:
        """A session after the other, each used for a while and then closed, whatever is in flight."""
        while not (self._clear(world) or anchor.over):
            try:
                session = await self._open_echo(connection, rng)
            except NnrpClientError:
                await trio.sleep(0.5)
                continue
            async with trio.open_nursery() as work:
                for _ in range(2):
                    work.start_soon(self._submit_until_clear, world, session, random.Random(rng.getrandbits(64)))
                work.start_soon(self._pause, world, connection, session, random.Random(rng.getrandbits(64)))
                with trio.move_on_after(rng.expovariate(1 / 10)):
                    while not (self._clear(world) or session.over):  # noqa: ASYNC110  # the weather has no event
                        await trio.sleep(0.5)
                self._check_over(session)
                if not self._clear(world):
                    self._closed.add(session)
                    policy = rng.choice((InFlightPolicy.DRAIN, InFlightPolicy.ABORT))
                    await session.close(policy=policy, drain_timeout_ms=rng.choice((0, 300)))

    async def _pause(
        self, world: NnrpWorld, connection: NnrpConnection, session: NnrpSession, rng: random.Random
    ) -> None:
        """The client takes no results of its session for a moment, again and again."""
        while not (session.over or session in self._closed or self._clear(world)):
            await trio.sleep(rng.expovariate(0.5))
            for reason in (UpdateReason.PAUSE, UpdateReason.RESUME):
                with contextlib.suppress(NnrpError, NnrpLocalError):
                    if connection.machine is not None:
                        connection.machine.update_credit(trio.current_time(), session=session.machine, reason=reason)
                        connection.flush()
                await trio.sleep(rng.random())

    async def _share(self, world: NnrpWorld, connection: NnrpConnection, shared: Session, rng: random.Random) -> None:
        """Follow and prompt the shared session until the weather is clear, or the attachment is over."""
        self._cursor = self._cursor or shared.ring.head
        session = await attach_session(connection, world.ticket(shared), last_event_id=self._cursor)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow, session)
            await self._prompt_until_clear(world, session, rng)
            await self._catch_up(session, shared)
            self._check_over(session)
            self._check_credit(world, connection, [session])
            nursery.cancel_scope.cancel()

    async def _submit_until_clear(self, world: NnrpWorld, session: NnrpSession, rng: random.Random) -> None:
        while not self._clear(world) and not session.over:
            await self._submit(session, rng)
            await trio.sleep(rng.random() * 2)

    async def _prompt_until_clear(self, world: NnrpWorld, session: NnrpSession, rng: random.Random) -> None:
        while not self._clear(world) and not session.over:
            await self._prompt(session, rng)
            await trio.sleep(rng.random())

    @staticmethod
    def _clear(world: NnrpWorld) -> bool:
        assert world.network.plan is not None
        return world.network.plan.clear(trio.current_time())

    async def _submit(self, session: NnrpSession, rng: random.Random) -> None:
        """One operation of the echo: it comes back whole, or has ended as it was asked to."""
        self.operations += 1
        number = self.operations
        fails = rng.random() < 0.1
        text = b"partial=%d;sleep=%d;%s" % (rng.choice((1, 1, 3, 8)), rng.choice((0, 0, 5, 400)), b"fail;" * fails)
        payload = text + b"operation %d " % number + bytes(rng.choice((0, 40, 3000)))
        live = self._live.setdefault(session, set())
        parent = rng.choice(sorted(live)) if live and rng.random() < 0.3 else 0
        options = SubmitOptions(operation_id=1_000_000 + number, parent_id=parent, group_id=rng.choice((0, 7)))
        try:
            with trio.fail_after(300):
                submission = await session.submit(payload, options=options)
        except (NnrpClientError, NnrpLocalError) as refused:
            # Its parent may have ended, and been forgotten, while it waited for credit.
            ending = session.over or session in self._closed or bool(parent)
            self.claims.expect(ending, f"operation {number} was refused in a session that goes on: {refused!r}")
            return
        except trio.TooSlowError:
            self.claims.append(f"operation {number} waited for its turn for 300 s")
            return
        live.add(submission.operation_id)
        async with trio.open_nursery() as nursery:
            if rng.random() < 0.3:
                nursery.start_soon(self._cancel, session, submission, rng)
            data, failure = await self._consume(submission, f"operation {number}", self_ids=None)
            nursery.cancel_scope.cancel()
        live.discard(submission.operation_id)
        if failure is None:
            self.completed += 1
            self.claims.expect(not fails, f"operation {number} was to fail and completed")
            self.claims.expect(data == payload, f"operation {number} came back as {data[:60]!r}, not {payload[:60]!r}")
        else:
            # Its parent may have ended, and been forgotten, on the way.
            self._judge(session, submission, failure, fails or bool(parent), f"operation {number}")

    async def _consume(
        self, submission: Submission, name: str, self_ids: list[int] | None
    ) -> tuple[bytes, NnrpClientError | None]:
        data, last = b"", 0
        # A flipped byte may have given the result to another operation.
        with trio.move_on_after(PATIENCE if self.weather.corrupt else math.inf):
            try:
                async for result in submission:
                    data += result.data
                    self.claims.expect(result.event_id > last, f"{name}: event {result.event_id} came after {last}")
                    last = result.event_id
                    if self_ids is not None:
                        self_ids.append(last)
            except NnrpClientError as failure:
                return data, failure
            except NnrpError as unreadable:
                self.claims.append(f"{name}: {unreadable}")
                return data, NnrpResultsLost(str(unreadable))
            return data, None
        return data, NnrpResultsLost("nothing came")

    def _judge(
        self, session: NnrpSession, submission: Submission, failure: NnrpClientError, fails: bool, name: str
    ) -> None:
        """What an operation without a final result may have ended as."""
        if session in self._closed:
            self.unanswered += 1
        elif not isinstance(failure, NnrpOperationEnded):
            self.unanswered += 1
            allowed = session.over or isinstance(failure, NnrpResultsLost)
            self.claims.expect(allowed, f"{name} was given up in a session that goes on: {failure!r}")
        elif failure.state is OperationState.CANCELLED:
            self.claims.expect(submission in self._asked, f"{name} was cancelled, and nobody has asked for that")
        else:
            self.claims.expect(
                fails and failure.state is OperationState.FAILED, f"{name} ended as {failure.state.name.lower()}"
            )
        self._asked.discard(submission)

    async def _cancel(self, session: NnrpSession, submission: Submission, rng: random.Random) -> None:
        await trio.sleep(rng.choice((0.0, 0.0, 0.01, 0.2)))
        scope = rng.choice((CancelScopeKind.OPERATION, CancelScopeKind.OPERATION, *CancelScopeKind))
        operation_id = submission.operation_id if scope <= CancelScopeKind.SUBTREE else 0
        group_id = 7 if scope is CancelScopeKind.GROUP else 0
        # Over, unknown or without such a group: it has lost the race.
        with contextlib.suppress(NnrpClientError, NnrpError, NnrpLocalError):
            self._asked.add(submission)
            self._asked.update(session.cancel(scope, operation_id=operation_id, group_id=group_id))

    async def _prompt(self, session: NnrpSession, rng: random.Random) -> None:
        self.operations += 1
        turn = self._turn(rng)
        try:
            submission = await session.submit(turn.words().encode())
        except (NnrpClientError, NnrpLocalError):
            self.claims.expect(session.over, f"{turn.name} was refused in a session that goes on")
            return
        if rng.random() < 0.2:
            await trio.sleep(rng.random() / 5)
            self._asked.add(submission)
            submission.cancel()
        data, failure = await self._consume(submission, turn.name, self.own)
        if failure is None:
            self.completed += 1
            said = "".join(turn.text(number) for number in range(turn.chunks)).encode()
            self.claims.expect(data == said and not turn.fail, f"{turn.name} said {data[:80]!r}")
        else:
            self._judge(session, submission, failure, turn.fail, turn.name)

    def _turn(self, rng: random.Random) -> Turn:
        return Turn(
            f"p{self.operations}",
            chunks=rng.choice((0, 1, 4, 12)),
            size=rng.choice((4, 30, 200)),
            pause=rng.choice((0.0, 0.02, 0.3)),
            fail=rng.random() < 0.1,
        )

    async def _follow(self, session: NnrpSession) -> None:
        while True:
            try:
                async for event in session.background:
                    self.shown.append(event.event_id)
                return
            except NnrpResultsLost:
                self.gaps += 1
            except NnrpClientError:
                return
            finally:
                self._cursor = max(self._cursor, session.last_event_id)

    # The others

    async def _bystander(self, world: NnrpWorld) -> None:
        """Somebody whose bytes nobody touches notices nothing."""
        async with world.client(connect=world.network.connect_in_calm) as connection:
            session = await connection.open_session(resumable=True, deadline_ms=ECHO_DEADLINE_MS)
            number = 0
            while True:
                number += 1
                payload = b"partial=3;sleep=5;beside %d" % number
                with trio.move_on_after(60) as patience:
                    submission = await session.submit(payload)
                    data, failure = await self._consume(submission, f"beside {number}", None)
                    self.findings.expect(data == payload and failure is None, f"beside {number}: {data!r}, {failure!r}")
                self.findings.expect(not patience.cancelled_caught, f"beside {number} was not answered")
                await trio.sleep(1)

    async def _others(self, world: NnrpWorld, shared: Session, rng: random.Random) -> None:
        """Prompts of another wire in the shared session."""
        number = 0
        while not self._clear(world):
            number += 1
            turn = attrs.evolve(self._turn(rng), name=f"o{number}")
            prompt, _ = shared.submit_prompt(PromptRequest([{"type": "text", "text": turn.words()}]))
            if rng.random() < 0.2:
                await trio.sleep(rng.random() / 3)
                shared.cancel_operation(prompt)
            await prompt.wait_settled()
            await trio.sleep(rng.random())
            while shared.ring.head > self._cursor + FAR and not self._clear(world):  # noqa: ASYNC110  # as above
                await trio.sleep(1)
        await trio.sleep_forever()

    async def _operator(self, world: NnrpWorld, rng: random.Random) -> None:
        """Somebody narrows and widens the credit of whatever is connected."""
        while True:
            await trio.sleep(rng.expovariate(1.0))
            calm = self._clear(world)
            for link in list(world.service.links):
                sessions = list(link.machine.sessions.values())
                session = rng.choice([None, *sessions])
                reason, credit = rng.choice(((UpdateReason.REDUCE, 1), (UpdateReason.PAUSE, None), (_GRANT, 8)))
                with contextlib.suppress(NnrpError, NnrpLocalError):
                    if calm:
                        for each in (None, *sessions):
                            link.machine.update_credit(trio.current_time(), session=each, credit=16, reason=_GRANT)
                    else:
                        link.machine.update_credit(trio.current_time(), session=session, credit=credit, reason=reason)
                    link.flush()
            if calm:
                return

    # The oracle

    async def _catch_up(self, session: NnrpSession, shared: Session) -> None:
        """The weather is clear: everything that was submitted ends, and the follower comes to the head of the ring."""
        for _ in range(1200):
            ahead = [each for each in shared.ring.read(session.last_event_id, 8000) if each.originator is None]
            if session.over or not (ahead or len(shared.operations) or shared.prompts.count):
                return
            await trio.sleep(0.5)
        self.claims.append(f"the follower stopped at {session.last_event_id} of {shared.ring.head}")

    def _check_credit(self, world: NnrpWorld, connection: NnrpConnection, sessions: list[NnrpSession]) -> None:
        """Everything has ended: no window holds anything, on neither side."""
        if connection.machine is None or not self._clear(world):
            return
        for session in [each for each in sessions if not each.over]:
            left = (session.in_flight, session.machine.window.in_flight)
            self.claims.expect(left == (0, 0), f"session {session.session_id} still counts {left} at the client")

    def _check_connection(self, world: NnrpWorld, connection: NnrpConnection) -> None:
        if connection.machine is None or not self._clear(world):
            return
        self.claims.expect(not len(connection.credit), f"{len(connection.credit)} submits still wait for credit")
        left = connection.machine.window.in_flight
        self.claims.expect(left == 0, f"the client's connection still counts {left} operations")

    def _check_shared(self, shared: Session) -> None:
        """Every event of the others' prompts once, unless a gap was told; none both as own and as somebody else's."""
        counts = Counter(self.shown)
        twice = sorted(number for number, count in counts.items() if count > 1)
        self.claims.expect(not twice, f"shown twice: {twice[:10]}")
        both = sorted(set(self.own) & set(self.shown))
        self.claims.expect(not both, f"shown as own and as others': {both[:10]}")
        again = sorted(number for number, count in Counter(self.own).items() if count > 1)
        self.claims.expect(not again, f"own results shown twice: {again[:10]}")
        events = shared.ring.read(0, shared.ring.head)
        first = min(self.shown, default=self._cursor)
        known = [each.id for each in events if each.originator is None and first <= each.id <= self._cursor]
        missing = [number for number in known if number not in counts]
        self.claims.expect(bool(self.gaps) or not missing, f"never shown, and no gap was told: {missing[:10]}")

    def _after(self, world: NnrpWorld, living: Counter[str]) -> None:
        """Nothing is left of the client: no session, operation, connection, queued byte or task."""
        counts: dict[str, Any] = attrs.asdict(world.service.statistics())
        for name in ("connections", "sessions", "detached", "operations"):
            self.findings.expect(counts[name] == 0, f"{counts[name]} {name} left over")
        self.findings.expect(len(world.service.registry) == 0, f"{len(world.service.registry)} tokens left over")
        self.findings.expect(not world.network.links, f"{len(world.network.links)} connections left over")
        left = Counter(task_names()) - living
        self.findings.expect(not left, f"tasks left over: {dict(left)}")


_GRANT: Final = UpdateReason.GRANT
