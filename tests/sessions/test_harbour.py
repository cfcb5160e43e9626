"""Making, finding, restoring, reaping sessions; shutting down: rest.md 4, acp-http.md 5."""

from __future__ import annotations

import random
import uuid
from functools import partial
from typing import cast

import pytest
import trio
import trio.testing

from sessions import (
    Capabilities,
    EndReason,
    Harbour,
    Limits,
    Note,
    NullObserver,
    Opened,
    OperationState,
    Session,
    SessionPhase,
    SessionSpec,
    open_harbour,
)
from sessions.errors import (
    AgentStartError,
    HarbourDraining,
    RestoreInProgress,
    RunnerError,
    SessionConflict,
    SessionLimitExceeded,
    SessionNotFound,
    SessionRestoreTimeout,
    Unsupported,
    WorkspaceMismatch,
)
from tests.support.engine import events, quiet, said, submit, types
from tests.support.fake_runner import FakeRunner, FakeSession


async def test_thread_sessions_are_distinct_and_shared_ones_are_not(harbour: Harbour) -> None:
    """REST-021."""
    one, two = await harbour.create(), await harbour.create()
    assert one.session is not two.session
    first, again = await harbour.create(shared=True), await harbour.create(shared=True)
    assert first.session is again.session
    assert (first.attached, again.attached) == (False, True)
    assert first.client_id != again.client_id
    elsewhere = await harbour.create("/other", shared=True)
    assert elsewhere.session is not first.session


async def test_two_creates_of_the_shared_session_at_once(
    harbour: Harbour, runner: FakeRunner, autojump_clock: trio.testing.MockClock
) -> None:
    """One is made, the other attaches."""
    runner.start_delay = 1
    opened: list[Opened] = []

    async def create() -> None:
        opened.append(await harbour.create(shared=True))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(create)
    assert len({each.session for each in opened}) == 1
    assert sorted(each.attached for each in opened) == [False, True, True]


async def test_shared_create_that_fails_lets_the_next_try(harbour: Harbour, runner: FakeRunner) -> None:
    runner.start_error = AgentStartError("no such file")
    results: list[str] = []

    async def create() -> None:
        try:
            await harbour.create(shared=True)
        except AgentStartError:
            results.append("failed")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(create)
        nursery.start_soon(create)
    assert results == ["failed", "failed"]
    assert harbour.sessions == []
    runner.start_error = None
    assert not (await harbour.create(shared=True)).attached


async def test_workspaces(harbour: Harbour) -> None:
    """REST-020."""
    assert (await harbour.create()).session.cwd == "/project"
    assert (await harbour.create("/project/../other")).session.cwd == "/other"
    with pytest.raises(WorkspaceMismatch) as caught:
        await harbour.create("/elsewhere")
    assert (caught.value.bound, caught.value.requested) == ("/project", "/elsewhere")


async def test_limits_of_live_sessions(runner: FakeRunner) -> None:
    """REST-024: attaching does not count; a closed session gives its place back."""
    limits = Limits(max_sessions_per_workspace=2, max_total_sessions=3)
    async with open_harbour(runner, workspaces=["/a", "/b"], limits=limits) as harbour:
        first = await harbour.create(shared=True)
        await harbour.create()
        with pytest.raises(SessionLimitExceeded) as caught:
            await harbour.create()
        assert (caught.value.limit, caught.value.scope) == (2, "workspace")
        assert (await harbour.create(shared=True)).attached
        await harbour.create("/b")
        with pytest.raises(SessionLimitExceeded) as caught:
            await harbour.create("/b")
        assert (caught.value.limit, caught.value.scope) == (3, "total")
        await first.session.close()
        await harbour.create()


async def test_sessions_that_are_starting_count(runner: FakeRunner, autojump_clock: trio.testing.MockClock) -> None:
    runner.start_delay = 1
    results: list[str] = []
    async with open_harbour(runner, workspaces=["/a"], limits=Limits(max_sessions_per_workspace=3)) as harbour:

        async def create() -> None:
            try:
                await harbour.create()
            except SessionLimitExceeded:
                results.append("refused")
            else:
                results.append("made")

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(create)
    assert sorted(results) == ["made"] * 3 + ["refused"] * 7


async def test_caller_chosen_ids(harbour: Harbour) -> None:
    """REST-023."""
    wanted = "550e8400-e29b-41d4-a716-446655440000"
    session = (await harbour.create(session_id=wanted)).session
    assert session.id == wanted
    with pytest.raises(SessionConflict) as caught:
        await harbour.create(session_id=wanted)
    assert caught.value.conflict == "live"
    await session.close()
    with pytest.raises(SessionConflict) as caught:
        await harbour.create(session_id=wanted)
    assert caught.value.conflict == "stored"


async def test_an_agents_uuid_is_adopted_and_nothing_else(harbour: Harbour, runner: FakeRunner) -> None:
    """C-074: what may be guessed stays private behind our own id."""
    mine = str(uuid.UUID("550e8400-e29b-41d4-a716-44665544abcd"))

    class Naming(FakeRunner):
        async def start_session(self, spec: SessionSpec, host) -> FakeSession:  # type: ignore[no-untyped-def]  # as the base
            host.bind(self.name)
            session = FakeSession(self, spec, host)
            self.sessions.append(session)
            return session

    for name, adopted in ((mine, True), ("session-1", False), (mine.upper(), False)):
        async with open_harbour(Naming(name=name), workspaces=["/w"]) as other:
            session = (await other.create()).session
            assert (session.id == name) is adopted
            uuid.UUID(session.id)
            assert session.agent_session_id == name


async def test_ids_are_random() -> None:
    """C-074: 122 random bits, and no repeat between two runs."""
    seen: set[str] = set()
    for _ in range(2):
        async with open_harbour(
            FakeRunner(), workspaces=["/w"], limits=Limits(max_sessions_per_workspace=0)
        ) as harbour:
            for _ in range(200):
                opened = await harbour.create()
                seen |= {opened.session.id, opened.client_id, opened.session.ring.epoch}
    assert len(seen) == 1200


async def test_start_failures_leave_nothing(harbour: Harbour, runner: FakeRunner) -> None:
    """C-069, REST-025."""
    for problem in (AgentStartError("missing file"), RunnerError("refused", -32603), OSError("disk")):
        runner.start_error = problem
        with pytest.raises(type(problem)):
            await harbour.create()
    assert harbour.sessions == []
    assert harbour.archived == []
    runner.start_error = None
    await harbour.create()


async def test_create_whose_caller_left(
    harbour: Harbour, runner: FakeRunner, autojump_clock: trio.testing.MockClock
) -> None:
    """REST-026."""
    runner.start_delay = 5
    with trio.move_on_after(1):
        await harbour.create()
    await trio.sleep(10)
    assert harbour.sessions == []


async def test_close(harbour: Harbour, runner: FakeRunner) -> None:
    """REST-050: operations end, then session_closed, then the end of every stream; the history stays loadable."""
    session = (await harbour.create()).session
    running, waiting = submit(session, "hold"), submit(session, "hold")
    await quiet()
    reader = session.subscribe()
    await session.close(closed_by="client_x")
    assert (await running.wait_settled()).state is OperationState.CANCELLED
    assert (await waiting.wait_settled()).state is OperationState.CANCELLED
    items = await reader.take()
    assert items[-1].type == "session_closed"
    assert await reader.take() == []
    assert events(session, "session_closed")[0].value() == {
        "sessionId": session.id,
        "reason": "client_close",
        "closedBy": "client_x",
    }
    assert runner.sessions[0].closed
    with pytest.raises(SessionNotFound):
        harbour.find(session.id)
    assert harbour.archived == [session]
    await session.close()


async def test_close_does_not_wait_for_a_runner_that_ignores_cancel(
    harbour: Harbour, runner: FakeRunner, autojump_clock: trio.testing.MockClock
) -> None:
    """C-059: bounded, one terminal event, and the late end of the runner changes nothing."""

    async def stubborn(session: FakeSession, operation: object) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)
        session.say("too late")

    runner.scripts["stubborn"] = stubborn
    session = (await harbour.create()).session
    operation = submit(session, "stubborn")
    await quiet()
    began = trio.current_time()
    await session.close()
    assert trio.current_time() - began <= 2 * harbour.limits.close_grace
    assert operation.outcome is not None
    assert operation.outcome.state is OperationState.CANCELLED
    closed = types(session)
    assert closed[-1] == "session_closed"
    again = (await harbour.create()).session
    assert (await submit(again, "hello").wait_settled()).state is OperationState.COMPLETED
    await trio.sleep(100)
    assert types(session) == closed


async def test_restore_of_a_live_session_attaches(harbour: Harbour) -> None:
    """REST-030."""
    made = await harbour.create()
    opened = await harbour.restore(made.session.id, "load")
    assert opened.session is made.session
    assert opened.attached
    assert opened.client_id != made.client_id


async def test_closed_session_is_loaded_again(harbour: Harbour, runner: FakeRunner) -> None:
    """REST-050: with its history and its numbering, so that an old cursor still resumes."""
    session = (await harbour.create()).session
    await submit(session, "hello").wait_settled()
    await session.close()
    head, epoch = session.ring.head, session.ring.epoch
    opened = await harbour.restore(session.id, "load")
    assert opened.session is session
    assert not opened.attached
    assert (session.ring.head, session.ring.epoch) == (head, epoch)
    assert runner.sessions[-1].spec.start == "load"
    assert runner.sessions[-1].spec.agent_session_id == session.agent_session_id
    assert not session.wants_history, "the agent's replay would only repeat what the ring has"
    await submit(session, "again").wait_settled()
    assert said(session) == ["hello", "again"]
    assert harbour.archived == []


@pytest.mark.parametrize(
    ("action", "capabilities", "start"),
    [
        ("load", Capabilities(load_session=True), "load"),
        ("resume", Capabilities(resume_session=True), "resume"),
        ("resume", Capabilities(load_session=True), "load"),
        ("load", Capabilities(resume_session=True), "resume"),
        ("load", Capabilities(), "new"),
        ("resume", Capabilities(), "new"),
    ],
)
async def test_restore_uses_what_the_agent_has(
    harbour: Harbour, runner: FakeRunner, action: str, capabilities: Capabilities, start: str
) -> None:
    session = (await harbour.create()).session
    await session.close()
    runner.answers = capabilities
    await harbour.restore(session.id, action)  # type: ignore[arg-type]  # one of the two literals
    assert runner.sessions[-1].spec.start == start


async def test_stored_session_after_a_restart(harbour: Harbour, runner: FakeRunner) -> None:
    """After a restart a session is loadable if its agent can load, else it is not found."""
    session = (await harbour.restore("from-before", "load")).session
    assert session.id == "from-before"
    assert session.wants_history or session.ring.head == 0
    runner.answers = Capabilities()
    with pytest.raises(SessionNotFound):
        await harbour.restore("another", "load")


async def test_restore_errors(harbour: Harbour, runner: FakeRunner, autojump_clock: trio.testing.MockClock) -> None:
    """REST-033."""
    runner.start_delay = 200
    problems: list[Exception] = []

    async def load() -> None:
        try:
            await harbour.restore("slow", "load")
        except (SessionRestoreTimeout, RestoreInProgress) as problem:
            problems.append(problem)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(load)
        nursery.start_soon(load)
    assert {type(each) for each in problems} == {SessionRestoreTimeout, RestoreInProgress}
    assert harbour.sessions == []
    runner.start_delay = 0
    runner.start_error = RunnerError("no such session", -32002)
    with pytest.raises(SessionNotFound):
        await harbour.restore("unknown", "load")
    assert harbour.sessions == []


@pytest.mark.parametrize("first", ["create", "load", "resume"])
async def test_one_id_is_brought_up_once(
    harbour: Harbour, runner: FakeRunner, autojump_clock: trio.testing.MockClock, first: str
) -> None:
    """REST-023, REST-033: who creates an id and who restores it at the same time do not both get a session, and the one
    that is refused takes nothing from the other."""
    runner.start_delay = 1.0
    wanted = "550e8400-e29b-41d4-a716-446655440000"
    opened: list[Session] = []
    problems: list[Exception] = []

    async def bring_up(how: str) -> None:
        try:
            if how == "create":
                opened.append((await harbour.create(session_id=wanted)).session)
            else:
                opened.append((await harbour.restore(wanted, "load" if how == "load" else "resume")).session)
        except (SessionConflict, RestoreInProgress) as problem:
            problems.append(problem)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bring_up, first)
        await quiet()
        for how in ("create", "load", "resume"):
            nursery.start_soon(bring_up, how)
    assert (len(opened), [type(each) for each in problems].count(SessionConflict), len(problems)) == (1, 1, 3)
    assert harbour.find(wanted) is opened[0]
    assert len(runner.sessions) == 1


async def test_an_id_that_did_not_come_to_live_ends_nobody_else(harbour: Harbour, runner: FakeRunner) -> None:
    """REST-023: the end of a session that failed to start is not the end of the one that has its id."""
    live = (await harbour.create()).session
    failed = Session(harbour, live.id, live.cwd)
    runner.start_error = AgentStartError("down")
    with pytest.raises(AgentStartError):
        await failed.start(SessionSpec(live.cwd), keep_id=True)
    assert (harbour.find(live.id), harbour.archived) == (live, [])


async def test_a_failed_load_keeps_the_archived_history(harbour: Harbour, runner: FakeRunner) -> None:
    session = (await harbour.create()).session
    await submit(session, "hello").wait_settled()
    await session.close()
    runner.start_error = AgentStartError("down")
    with pytest.raises(AgentStartError):
        await harbour.restore(session.id, "load")
    assert harbour.archived == [session]
    runner.start_error = None
    assert (await harbour.restore(session.id, "load")).session is session
    assert said(session) == ["hello"]


async def test_load_while_closing_waits(harbour: Harbour) -> None:
    session = (await harbour.create()).session
    session.close_soon(EndReason.CLIENT_CLOSE)
    opened = await harbour.restore(session.id, "load")
    assert opened.session is session
    assert session.phase is SessionPhase.LIVE


async def test_archive_is_bounded(runner: FakeRunner) -> None:
    limits = Limits(archived_sessions=3, archived_bytes=20_000)
    async with open_harbour(runner, workspaces=["/w"], limits=limits) as harbour:
        for number in range(6):
            session = (await harbour.create()).session
            await submit(session, "x" * 3000 * number).wait_settled()
            await session.close()
            assert len(harbour.archived) <= 3
            assert harbour.statistics().archived_bytes <= 20_000
        assert not await harbour.remove("nope")
        assert await harbour.remove(harbour.archived[0].id)


async def test_fork(harbour: Harbour, runner: FakeRunner) -> None:
    """ACP-214, REST-123."""
    session = (await harbour.create()).session
    with pytest.raises(Unsupported):
        await harbour.fork(session)
    runner.answers = Capabilities(fork_session=True)
    branch = (await harbour.fork(session)).session
    assert branch is not session
    assert runner.sessions[-1].spec.start == "fork"
    assert runner.sessions[-1].spec.agent_session_id == session.agent_session_id


@pytest.mark.parametrize("how", ["closed", "died"])
@pytest.mark.parametrize("before", ["prompt", "fork"])
async def test_a_fork_that_waits_ends_with_its_session(
    harbour: Harbour, runner: FakeRunner, autojump_clock: trio.testing.MockClock, before: str, how: str
) -> None:
    """ACP-214, REST-050: a session that is over is not gone on from by a fork that still waits, and nobody waits for ever."""
    runner.answers = Capabilities(fork_session=True, load_session=True)
    session = (await harbour.create()).session
    refused: list[str] = []

    async def fork() -> None:
        try:
            await harbour.fork(session)
        except SessionNotFound as problem:
            refused.append(problem.session_id)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            if before == "prompt":
                submit(session, "hold")
            else:
                runner.start_delay = 1.0
                nursery.start_soon(harbour.fork, session)
            await quiet()
            nursery.start_soon(fork)
            await quiet()
            if how == "closed":
                await session.close()
            else:
                session.died("gone")
    assert (refused, len(harbour.sessions), session.prompts.waiting) == ([session.id], before == "fork", 0)
    again = (await harbour.restore(session.id, "load")).session
    assert again is session
    operation = submit(session, "hold")
    await quiet()
    assert session.cancel_prompt()
    await operation.wait_settled()


async def test_idle_sessions_are_reaped(runner: FakeRunner, autojump_clock: trio.testing.MockClock) -> None:
    """ACP-153: a reader, a prompt or a heartbeat keeps one. Nobody is told: who loads it later goes on where he was."""
    limits = Limits(session_idle=100, reap_interval=10)
    async with open_harbour(runner, workspaces=["/w"], limits=limits) as harbour:
        idle, read, busy, beaten = [(await harbour.create()).session for _ in range(4)]
        read.subscribe()
        submit(busy, "hold")
        for _ in range(15):
            await trio.sleep(10)
            beaten.heartbeat()
        assert {each.id for each in harbour.sessions} == {read.id, busy.id, beaten.id}
        assert idle.end_reason is EndReason.IDLE
        assert types(idle) == []


@pytest.mark.parametrize("other", ["client", "reader", "follower", "prompt", "fork", "binding", None])
async def test_the_last_to_leave_closes(harbour: Harbour, other: str | None) -> None:
    """ACP-153: only when nobody else has a client id, reads, waits or is waited for."""
    opened = await harbour.create()
    session = opened.session
    match other:
        case "client":
            session.register_client()
        case "reader":
            session.subscribe()
        case "follower":
            session.followers.add(other)
        case "prompt":
            submit(session, "hold")
        case "fork":
            session.queue_turn()
        case "binding":
            session.hold(other)
    session.leave(opened.client_id)
    await quiet()
    assert opened.client_id not in session.clients
    assert harbour.sessions == ([] if other is None else [session])
    assert session.end_reason is (EndReason.ABANDONED if other is None else None)


async def test_a_question_keeps_a_session(harbour: Harbour) -> None:
    """ACP-153: somebody may still answer it."""
    opened = await harbour.create()
    reader = opened.session.subscribe()
    submit(opened.session, "ask")
    await quiet()
    reader.close()
    opened.session.leave(opened.client_id)
    assert opened.session.live


async def test_model_mode_and_metadata(harbour: Harbour) -> None:
    """REST-120, REST-121, REST-122."""
    opened = await harbour.create()
    session = opened.session
    await session.set_model("large", opened.client_id)
    with pytest.raises(RunnerError):
        await session.set_model("unknown")
    assert await session.set_mode("yolo") == {
        "sessionId": session.id,
        "mode": "yolo",
        "previous": "default",
        "persisted": False,
    }
    session.rename("My session")
    assert [(event.type, event.value().get("error")) for event in events(session)] == [
        ("model_switched", None),
        ("model_switch_failed", "no such model"),
        ("approval_mode_changed", None),
        ("session_metadata_updated", None),
    ]
    assert session.display_name == "My session"


async def test_commands_are_remembered(harbour: Harbour) -> None:
    session = (await harbour.create()).session
    session.update({"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "init"}]})
    assert session.available_commands == [{"name": "init"}]


async def test_draining_admits_nothing_and_closes_everything(runner: FakeRunner) -> None:
    async with open_harbour(runner, workspaces=["/w"]) as harbour:
        session = (await harbour.create()).session
        operation = submit(session, "hold")
        await quiet()
        harbour.start_draining()
        with pytest.raises(HarbourDraining):
            await harbour.create()
        with pytest.raises(HarbourDraining):
            submit(session, "x")
        await harbour.drain(5)
        assert session.phase is SessionPhase.CLOSED
        assert session.end_reason is EndReason.SHUTDOWN
        assert operation.settled


@pytest.mark.parametrize("how", ["create", "restore", "fork"])
async def test_draining_gives_up_what_is_being_opened(
    runner: FakeRunner, autojump_clock: trio.testing.MockClock, how: str
) -> None:
    """REST section 8: who waits for a slow agent is told that the server is shutting down, while it still can be."""
    runner.answers = Capabilities(load_session=True, fork_session=True)
    problems: list[Exception] = []
    async with open_harbour(runner, workspaces=["/w"]) as harbour, trio.open_nursery() as nursery:
        session = (await harbour.create()).session
        runner.start_delay = 60.0
        opening = {
            "create": harbour.create,
            "restore": partial(harbour.restore, "some id", "load"),
            "fork": partial(harbour.fork, session),
        }

        async def open_one() -> None:
            try:
                await opening[how]()
            except HarbourDraining as problem:
                problems.append(problem)

        nursery.start_soon(open_one)
        await quiet()
        begun = trio.current_time()
        await harbour.drain(5)
        await quiet()
        assert (len(problems), trio.current_time() - begun < 1) == (1, True)
        assert harbour.sessions == []


async def test_leaving_the_harbour_ends_everything(runner: FakeRunner, autojump_clock: trio.testing.MockClock) -> None:
    """The runner goes last; also when the block is cancelled or raises."""

    async def stubborn(session: FakeSession, operation: object) -> None:
        assert runner.running
        with trio.CancelScope(shield=True):
            await trio.sleep(3)
        assert runner.running

    runner.scripts["stubborn"] = stubborn
    with trio.move_on_after(1) as outer:
        async with open_harbour(runner, workspaces=["/w"]) as harbour:
            submit((await harbour.create()).session, "stubborn")
            await trio.sleep_forever()
    assert outer.cancelled_caught
    assert not runner.running
    assert harbour.sessions == []


async def test_statistics_return_to_zero(harbour: Harbour) -> None:
    """C-095 in small."""
    rng = random.Random(3)
    for _ in range(50):
        opened = await harbour.create()
        reader = opened.session.subscribe()
        for _ in range(rng.randrange(3)):
            submit(opened.session, rng.choice(["x", "hold", "ask"]))
        await quiet()
        await opened.session.close()
        while await reader.take():
            pass
    found = harbour.statistics()
    assert (found.sessions, found.active_prompts, found.pending_permissions, found.clients, found.subscribers) == (
        0,
    ) * 5


def test_relative_workspace_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="absolute"):
            async with open_harbour(FakeRunner(), workspaces=["relative"]):
                pytest.fail("opened")

    trio.run(main)


async def test_operations_are_timed_by_trios_clock(runner: FakeRunner, autojump_clock: trio.testing.MockClock) -> None:
    """Metrics and ``promptCancelled`` (REST-069), also across a wall clock that is set back an hour meanwhile."""
    noted: list[float] = []

    class Noting(NullObserver):
        def note(self, note: Note, /, **fields: object) -> None:
            if note is Note.OPERATION_SETTLED:
                noted.append(cast(float, fields["seconds"]))

    wall = iter(range(10**13, 0, -3_600_000))
    async with open_harbour(runner, workspaces=["/project"], observer=Noting(), now_ms=lambda: next(wall)) as harbour:
        session = (await harbour.create()).session
        first = submit(session, "hold")
        second = submit(session, "say x")
        await trio.sleep(5)
        session.cancel_operation(first)
        await second.wait_settled()
        report = events(session, "turn_complete")[0].value()["promptCancelled"]
    assert noted == pytest.approx([5.0, 5.0])
    assert report["elapsedMs"] == 5000
    assert 10**13 - 10**9 < report["cancelledAt"] < 10**13
