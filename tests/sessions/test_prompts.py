"""Admission, order and release of prompts: acp-http.md 8.1, rest.md 5, seed B."""

from __future__ import annotations

import math
import random

import pytest
import trio
import trio.testing

from sessions import CancelReason, EndReason, Harbour, Limits, OperationState
from sessions.errors import (
    IdempotencyKeyReused,
    PromptAborted,
    PromptNotFound,
    PromptQueueFull,
    RunnerLost,
    SessionNotFound,
    UnknownClient,
)
from tests.support.engine import events, quiet, said, submit, terminals, text, types
from tests.support.fake_runner import FakeRunner, FakeSession


async def test_five_accepted_sixth_refused(harbour: Harbour, runner: FakeRunner) -> None:
    """ACP-210, ACP-212, C-021, seed B 1: refused before anything is acknowledged, and the agent never sees it."""
    session = (await harbour.create()).session
    for number in range(5):
        submit(session, f"hold {number}")
    with pytest.raises(PromptQueueFull) as caught:
        submit(session, "one too many")
    assert (caught.value.limit, caught.value.pending) == (5, 5)
    assert str(caught.value) == f'Prompt queue full for session "{session.id}" (5/5 pending)'
    await quiet()
    assert [operation.request.text() for operation in runner.started] == ["hold 0"]
    session.cancel_prompt()
    await quiet()
    submit(session, "fits again")


@pytest.mark.parametrize("ending", ["x", "fail", "crash", "cancel", "deadline", "remove"])
@pytest.mark.parametrize("limits", [Limits(max_pending_prompts=2, prompt_deadline=100)])
async def test_slot_is_released_once_on_every_ending(
    harbour: Harbour, autojump_clock: trio.testing.MockClock, ending: str
) -> None:
    """ACP-212 (5), C-023, seed B 1."""
    session = (await harbour.create()).session
    for _ in range(20):
        first = submit(session, ending if ending in ("x", "fail", "crash") else "hold")
        await quiet()
        if ending == "cancel":
            session.cancel_prompt()
        elif ending == "remove":
            waiting = submit(session, "waits")
            assert session.remove_prompt(str(waiting.id))
            session.cancel_prompt()
        await first.wait_settled()
        await quiet()
        assert session.prompts.count == 0
    submit(session, "hold")
    submit(session, "hold")
    with pytest.raises(PromptQueueFull) as caught:
        submit(session, "hold")
    assert caught.value.pending == 2


async def test_aborted_signal_does_not_count(harbour: Harbour) -> None:
    """ACP-212 (2), seed B 2."""
    session = (await harbour.create()).session
    for _ in range(10):
        with pytest.raises(PromptAborted):
            submit(session, "hold", aborted=True)
    assert session.prompts.count == 0
    assert events(session) == []


@pytest.mark.parametrize("value", [0, math.inf])
async def test_no_limit(runner: FakeRunner, value: float) -> None:
    """ACP-211, seed B 3."""
    from sessions import open_harbour

    async with open_harbour(runner, workspaces=["/w"], limits=Limits(max_pending_prompts=value)) as harbour:
        session = (await harbour.create()).session
        for _ in range(50):
            submit(session, "hold")
        assert session.prompts.limit is None
        assert session.prompts.count == 50


@pytest.mark.parametrize("value", [-1, 1.5, math.nan, -math.inf, "5", True])
def test_bad_limits_are_refused_when_built(value: object) -> None:
    """ACP-211, seed B 3."""
    with pytest.raises(ValueError, match="max_pending_prompts"):
        Limits(max_pending_prompts=value)  # type: ignore[arg-type]  # that is the point


async def test_fork_waits_its_turn_and_takes_no_slot(harbour: Harbour) -> None:
    """ACP-214, REST-123, seed B 4."""
    session = (await harbour.create()).session
    for number in range(5):
        submit(session, "hold" if number == 0 else "x")
    order: list[str] = []

    async def fork() -> None:
        async with session.queue_turn():
            order.append("fork")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fork)
        await quiet()
        assert order == []
        assert session.prompts.count == 5
        session.cancel_prompt()
        await quiet()
        assert order == ["fork"]
        assert session.prompts.count == 0


async def test_an_abandoned_turn_does_not_block(harbour: Harbour) -> None:
    session = (await harbour.create()).session
    submit(session, "hold")
    with trio.move_on_after(0.01):
        async with session.queue_turn():
            pytest.fail("its turn cannot have come")
    after = submit(session, "after")
    session.cancel_prompt()
    assert (await after.wait_settled()).state is OperationState.COMPLETED


async def test_a_failure_does_not_poison_the_queue(harbour: Harbour) -> None:
    """ACP-213, seed B 5: the next runs, and the caller of the failed one gets its failure."""
    session = (await harbour.create()).session
    failing, crashing, fine = (submit(session, each) for each in ("fail", "crash", "fine"))
    failed = await failing.wait_settled()
    assert failed.state is OperationState.FAILED
    assert failed.error is not None
    assert failed.error.code == -32603
    assert (await crashing.wait_settled()).state is OperationState.FAILED
    assert (await fine.wait_settled()).state is OperationState.COMPLETED
    assert said(session) == ["fine"]
    message = events(session, "turn_error")[0].value()
    assert message["message"] == "400 upstream failure"
    assert message["code"] == "-32603"


async def test_events_of_a_normal_turn(harbour: Harbour) -> None:
    """REST-070, ACP-185."""
    opened = await harbour.create()
    operation = submit(opened.session, "hello", client_id=opened.client_id)
    await operation.wait_settled()
    await quiet()
    assert types(opened.session) == ["user_message_chunk", "agent_message_chunk", "turn_complete"]
    echo, chunk, done = events(opened.session)
    assert echo.value()["update"]["_meta"]["source"] == "bridge-echo"
    assert done.value() == {"sessionId": opened.session.id, "stopReason": "end_turn", "promptId": operation.id}
    assert {event.prompt_id for event in (echo, chunk, done)} == {operation.id}
    assert {event.originator for event in (echo, chunk, done)} == {opened.client_id}


async def test_events_of_a_failing_turn(harbour: Harbour) -> None:
    """REST-070."""
    session = (await harbour.create()).session
    await submit(session, "fail").wait_settled()
    await quiet()
    assert types(session) == ["user_message_chunk", "prompt_cancelled", "turn_error"]
    assert events(session, "prompt_cancelled")[0].value()["reason"] == "forward_failed"


async def test_events_of_waiting_prompts(harbour: Harbour) -> None:
    """REST-067, T08: added, started, terminal, completed."""
    session = (await harbour.create()).session
    first = submit(session, "hold")
    await quiet()
    second = submit(session, "second")
    session.cancel_prompt()
    await second.wait_settled()
    await quiet()
    assert types(session) == [
        "user_message_chunk",
        "pending_prompt_added",
        "prompt_cancelled",
        "turn_complete",
        "pending_prompt_started",
        "user_message_chunk",
        "agent_message_chunk",
        "turn_complete",
        "pending_prompt_completed",
    ]
    assert terminals(session) == {first.id: ["cancelled"], second.id: ["end_turn"]}
    cancelled = events(session, "turn_complete")[0].value()
    assert set(cancelled["promptCancelled"]) == {"cancelledAt", "elapsedMs"}


async def test_removing_a_waiting_prompt(harbour: Harbour) -> None:
    """REST-068: removed, then its terminal event; the slot comes back (ACP-218 allows at once)."""
    session = (await harbour.create()).session
    submit(session, "hold")
    await quiet()
    waiting = submit(session, "waits")
    assert session.remove_prompt(str(waiting.id))
    assert types(session)[-2:] == ["pending_prompt_completed", "turn_complete"]
    assert events(session, "pending_prompt_completed")[0].value()["state"] == "removed"
    assert session.prompts.count == 1
    assert not session.remove_prompt(str(waiting.id))
    with pytest.raises(PromptNotFound):
        session.remove_prompt("nope")


async def test_cancel_takes_the_running_prompt_only(harbour: Harbour) -> None:
    """REST-069, ACP-195: queued prompts stay; with nothing running it is a no-op that is not stored (C-057)."""
    session = (await harbour.create()).session
    assert not session.cancel_prompt()
    first, second = submit(session, "hold"), submit(session, "hold")
    await quiet()
    assert session.cancel_prompt()
    await first.wait_settled()
    await quiet()
    assert second.state is OperationState.RUNNING
    session.cancel_prompt()
    await second.wait_settled()
    await quiet()
    third = submit(session, "fine")
    assert (await third.wait_settled()).state is OperationState.COMPLETED


async def test_updates_after_cancel_come_before_the_terminal_event(harbour: Harbour, runner: FakeRunner) -> None:
    """C-061: the runner may still emit while it ends in good order."""

    async def polite(session: FakeSession, operation: object) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                for number in range(3):
                    session.say(f"late {number}")
                    await trio.lowlevel.checkpoint()

    runner.scripts["polite"] = polite
    session = (await harbour.create()).session
    operation = submit(session, "polite")
    await quiet()
    session.cancel_prompt()
    assert (await operation.wait_settled()).state is OperationState.CANCELLED
    assert types(session) == [
        "user_message_chunk",
        "prompt_cancelled",
        "agent_message_chunk",
        "agent_message_chunk",
        "agent_message_chunk",
        "turn_complete",
    ]


@pytest.mark.parametrize("limits", [Limits(prompt_deadline=10)])
async def test_deadline(harbour: Harbour, autojump_clock: trio.testing.MockClock) -> None:
    """REST-061, ACP-215, seed B 7: a request only shortens it; the slot is released; admission does not look at it."""
    session = (await harbour.create()).session
    began = trio.current_time()
    for asked, expected in ((None, 10), (3.0, 3), (500.0, 10)):
        operation = submit(session, "hold", deadline=asked)
        outcome = await operation.wait_settled()
        assert outcome.state is OperationState.FAILED
        assert trio.current_time() - began == pytest.approx(expected, abs=0.5)
        began = trio.current_time()
    error = events(session, "turn_error")[0].value()
    assert error["code"] == "prompt_deadline_exceeded"
    assert error["errorKind"] == "prompt_deadline_exceeded"
    assert session.prompts.count == 0


@pytest.mark.parametrize("limits", [Limits(prompt_deadline=10)])
async def test_deadline_counts_from_acceptance(harbour: Harbour, autojump_clock: trio.testing.MockClock) -> None:
    """A prompt that waits is not kept past its deadline either, and never runs after it."""
    session = (await harbour.create()).session
    submit(session, "hold")
    await trio.sleep(4)
    waiting = submit(session, "hold")
    third = submit(session, "hold", deadline=1.0)
    assert (await third.wait_settled()).reason is CancelReason.DEADLINE
    assert trio.current_time() == pytest.approx(5, abs=0.1)
    outcome = await waiting.wait_settled()
    assert outcome.reason is CancelReason.DEADLINE
    assert trio.current_time() == pytest.approx(14, abs=0.1)
    assert [event.value().get("code") for event in events(session, "turn_error")] == ["prompt_deadline_exceeded"] * 3
    assert session.prompts.count == 0


async def test_deadline_is_ignored_without_a_configured_one(
    harbour: Harbour, autojump_clock: trio.testing.MockClock
) -> None:
    """REST-061."""
    session = (await harbour.create()).session
    operation = submit(session, "hold", deadline=1.0)
    await trio.sleep(100)
    assert not operation.settled


async def test_idempotency(harbour: Harbour, runner: FakeRunner) -> None:
    """Same key, same prompt, never run twice; another body is refused; a refused prompt stores nothing."""
    session = (await harbour.create()).session
    first = submit(session, "hold", idempotency=("k", b"1"))
    assert submit(session, "hold", idempotency=("k", b"1")) is first
    with pytest.raises(IdempotencyKeyReused):
        submit(session, "other", idempotency=("k", b"2"))
    for _ in range(4):
        submit(session, "x")
    with pytest.raises(PromptQueueFull):
        submit(session, "late", idempotency=("full", b"3"))
    await quiet()
    session.cancel_prompt()
    await quiet()
    again = submit(session, "late", idempotency=("full", b"3"))
    await again.wait_settled()
    assert submit(session, "hold", idempotency=("k", b"1")) is first
    assert len(runner.started) == 6


async def test_outcomes_can_be_polled_for_a_bounded_number(runner: FakeRunner) -> None:
    from sessions import open_harbour

    async with open_harbour(runner, workspaces=["/w"], limits=Limits(remembered_prompts=3)) as harbour:
        session = (await harbour.create()).session
        done = []
        for _ in range(5):
            done.append(submit(session, "x"))
            await done[-1].wait_settled()
        with pytest.raises(PromptNotFound):
            session.prompt(str(done[1].id))
        assert session.prompt(str(done[2].id)) is done[2]


async def test_unknown_client_and_closed_session(harbour: Harbour) -> None:
    """REST-004."""
    session = (await harbour.create()).session
    with pytest.raises(UnknownClient):
        submit(session, "x", client_id="stranger")
    await session.close()
    with pytest.raises(SessionNotFound):
        submit(session, "x")


@pytest.mark.parametrize("seed", range(20))
async def test_every_accepted_prompt_ends_exactly_once(harbour: Harbour, seed: int) -> None:
    """REST-090, C-058: whatever ends the session, and with prompts running and waiting."""
    rng = random.Random(seed)
    session = (await harbour.create()).session
    accepted = []
    for _ in range(rng.randrange(1, 25)):
        try:
            accepted.append(submit(session, rng.choice(["hold", "fail", "crash", "x", "ask"])))
        except PromptQueueFull:
            session.cancel_prompt()
        if rng.random() < 0.5:
            await quiet()
        if rng.random() < 0.2 and accepted:
            session.cancel_operation(rng.choice(accepted), CancelReason.USER)
    end = rng.choice(["close", "died", "both"])
    if end in ("died", "both"):
        session.died("agent gone", exit_code=1)
    if end in ("close", "both"):
        await session.close()
    await quiet()
    for each in accepted:
        assert each.settled
    assert {prompt: len(found) for prompt, found in terminals(session).items()} == {each.id: 1 for each in accepted}
    assert session.prompts.count == 0
    assert types(session)[-1] in ("session_closed", "session_died")


async def test_agent_death_with_prompts_waiting(harbour: Harbour) -> None:
    """C-064: an error for each of the three, then session_died, then the end of the ring; a new prompt is refused."""
    session = (await harbour.create()).session
    prompts = [submit(session, "hold") for _ in range(3)]
    await quiet()
    reader = session.subscribe()
    session.died("Agent process exited", exit_code=None, signal="SIGKILL")
    for each in prompts:
        outcome = await each.wait_settled()
        assert outcome.state is OperationState.FAILED
        assert isinstance(outcome.error, RunnerLost)
    items = await reader.take()
    assert [item.type for item in items if item.type.startswith(("turn", "session"))] == [
        *["turn_error"] * 3,
        "session_died",
    ]
    assert items[-1].data
    assert b'"signalCode":"SIGKILL"' in items[-1].data
    assert await reader.take() == []
    with pytest.raises(SessionNotFound):
        submit(session, "x")
    assert session.end_reason is EndReason.DIED


async def test_reply_callbacks_run_before_the_terminal_event(harbour: Harbour) -> None:
    """ACP-103, ACP-136: the reply's watermark is the last content, not turn_complete."""
    session = (await harbour.create()).session
    heads: list[int] = []
    operation = submit(session, "hello")
    operation.when_settled(lambda _: heads.append(session.ring.head))
    await operation.wait_settled()
    await quiet()
    assert heads == [2]
    assert types(session)[1:] == ["agent_message_chunk", "turn_complete"]


def test_prompt_text_joins_text_blocks() -> None:
    assert text("a").text() == "a"
