"""Operations that wait for a tool (nnrp-wire 12.2, 13.4): the tool calls of an ACP agent, a process of its own, and what a
runner in this process says."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import trio

from client.nnrp import NnrpOperationEnded, Submission, SubmitOptions, open_nnrp
from client.nnrp.results import Result
from protocol.nnrp.enums import BudgetPolicy, OperationFeatures, OperationState, PayloadKind
from protocol.nnrp.extensions import ALL_FEATURES, NO_FEATURES
from server.nnrp.submit import Answer, Emit, Submit, text_payload
from tests.server.nnrp.test_nnrp_application import serving
from tests.support.nnrp import functions, serving_nnrp
from tests.support.scripted_agent import shell_line, steps

S = OperationState
RUNNING, PARTIAL, WAITING, COMPLETED = S.RUNNING, S.PARTIAL, S.WAITING_TOOL, S.COMPLETED


def call(name: str, status: str | None = "pending") -> list[Any]:
    update = {"sessionUpdate": "tool_call", "toolCallId": name, "title": name, "kind": "read", "status": status}
    return ["update", update]


def news(name: str, status: str | None = None, **fields: Any) -> list[Any]:
    update: dict[str, Any] = {"sessionUpdate": "tool_call_update", "toolCallId": name, **fields}
    return ["update", update if status is None else update | {"status": status}]


def seen(result: Result) -> tuple[str, OperationState]:
    """What a result brings, and what it says its operation is doing."""
    if result.event is not None:
        update = result.event["data"]["update"]
        return f"{update['toolCallId']} {update.get('status', '-')}", result.state
    return result.text, result.state


TURNS = {
    "one tool": (
        [call("a"), news("a", "in_progress"), news("a", title="b"), news("a", "completed"), ["say", "done"]],
        [
            ("a pending", WAITING),
            ("", RUNNING),
            ("a in_progress", WAITING),
            ("", RUNNING),
            ("a -", WAITING),
            ("", RUNNING),
            ("a completed", PARTIAL),
            ("done", PARTIAL),
            ("", COMPLETED),
        ],
    ),
    "two at once": (
        [call("a"), call("b", "in_progress"), news("a", "failed"), news("b", "completed")],
        [
            ("a pending", WAITING),
            ("", RUNNING),
            ("b in_progress", WAITING),
            ("", RUNNING),
            ("a failed", WAITING),
            ("", RUNNING),
            ("b completed", PARTIAL),
            ("", COMPLETED),
        ],
    ),
    "it talks meanwhile": (
        [["say", "one"], call("a"), ["say", "two"], news("a", "in_progress"), ["say", "three"]],
        [
            ("one", PARTIAL),
            ("a pending", WAITING),
            ("", RUNNING),
            ("two", PARTIAL),
            ("a in_progress", WAITING),
            ("", RUNNING),
            ("three", PARTIAL),
            ("", COMPLETED),
        ],
    ),
    "it ends while a tool runs": ([call("a")], [("a pending", WAITING), ("", RUNNING), ("", COMPLETED)]),
    "a call that is over at once": ([call("a", "completed")], [("a completed", PARTIAL), ("", COMPLETED)]),
}


@pytest.mark.parametrize("name", TURNS)
async def test_the_tool_calls_of_an_agent(tmp_path: Path, name: str) -> None:
    """13.4, nnrp-extensions State: pending and in progress are waiting_tool, and back; every step is one the table allows, which
    our client checks."""
    script, expected = TURNS[name]
    async with serving(tmp_path, agent=shell_line()) as (_, url), open_nnrp(url) as connection:
        session = await connection.open_session()
        submission = await session.submit(steps(*script).encode())
        with trio.fail_after(30):
            assert [seen(each) async for each in submission] == expected


async def test_a_waiting_operation_gives_its_turn_away_and_can_be_cancelled(tmp_path: Path) -> None:
    """13.4 waiting_tool → cancelled; 13.5: what waits for a tool keeps nobody from running."""
    async with serving(tmp_path, agent=shell_line()) as (application, url), open_nnrp(url) as connection:
        session = await connection.open_session()
        submission = await session.submit(steps(call("a"), ["hold"]).encode())
        with trio.fail_after(30):
            assert (await anext(submission)).state is WAITING
            assert application.nnrp is not None
            scheduler = application.nnrp.service.turns.scheduler
            assert (scheduler.statistics().suspended, scheduler.running) == (1, 0)
            submission.cancel()
            with pytest.raises(NnrpOperationEnded) as ended:
                await anext(submission)
            assert ended.value.state is S.CANCELLED
            assert scheduler.statistics().suspended == 0


@pytest.mark.parametrize("features", [NO_FEATURES, ALL_FEATURES & ~OperationFeatures.OPERATION_STATE])
async def test_who_is_not_told_states_gets_no_messages_for_them(tmp_path: Path, features: OperationFeatures) -> None:
    """nnrp-extensions, State: only where it was granted; the server counts the operation as waiting all the same."""
    script = [call("a"), ["pause", 300], news("a", "completed"), ["say", "done"]]
    async with serving(tmp_path, agent=shell_line()) as (application, url), open_nnrp(url) as connection:
        session = await connection.open_session(features=features)
        submission = await session.submit(steps(*script).encode())
        assert application.nnrp is not None
        (served,) = application.nnrp.service.sessions
        with trio.fail_after(30):
            while not any(each.state is WAITING for each in served.machine.operations):  # noqa: ASYNC110
                await trio.sleep(0.005)
            results = [each async for each in submission]
        assert all(each.payloads for each in results)
        assert [each.state for each in results] == [PARTIAL] * (len(results) - 1) + [COMPLETED]


@pytest.mark.parametrize("after", range(4))
async def test_nothing_is_lost_or_twice_when_the_connection_is(tmp_path: Path, after: int) -> None:
    """13.7 with 13.4: cut behind any result, the steps between states still fit: what says that the operation runs again
    comes again with what it leads."""
    script = [
        call("a"),
        news("a", "in_progress"),
        ["pause", 300],
        news("a", "completed"),
        ["pause", 200],
        ["say", "done"],
    ]
    async with serving(tmp_path, agent=shell_line()) as (application, url), open_nnrp(url) as connection:
        session = await connection.open_session(resumable=True)
        submission = await session.submit(steps(*script).encode())
        results: list[Result] = []
        with trio.fail_after(30):
            async for each in submission:
                results.append(each)
                if len(results) == after + 1:
                    assert application.nnrp is not None
                    (link,) = application.nnrp.service.links
                    link._lose()
        assert connection.reconnects == 1
        brought = [seen(each) for each in results if each.payloads]
        assert [what for what, _ in brought] == ["a pending", "a in_progress", "a completed", "done", ""]
        assert [state for _, state in brought] == [WAITING, WAITING, PARTIAL, PARTIAL, COMPLETED]


def said(text: bytes, *, terminal: bool = False) -> Answer:
    payload = text_payload(text, terminal=terminal, schema=(0x1001, 3))
    return Answer(payloads=(payload,), kinds=PayloadKind.TOKEN_CHUNK)


async def every_state(submission: Submission) -> list[OperationState]:
    with trio.fail_after(10):
        return [each.state async for each in submission]


async def test_a_runner_that_answers_while_it_waits() -> None:
    """13.4: completed does not follow waiting_tool, so that the server says running in between, whatever its runner says."""

    async def handler(submit: Submit, emit: Emit) -> Answer:
        await emit.waiting_tool(True)
        return said(b"x", terminal=True)

    async with serving_nnrp(make_worker=functions(handler)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        assert await every_state(await session.submit(b"")) == [WAITING, RUNNING, COMPLETED]


@pytest.mark.parametrize("features", [NO_FEATURES, ALL_FEATURES])
async def test_a_budget_that_ends_while_a_tool_runs(features: OperationFeatures) -> None:
    """12.5, 13.4: the part that was kept comes, whole or as the last, though partial does not follow waiting_tool; and the
    server goes on."""

    async def handler(submit: Submit, emit: Emit) -> Answer:
        if bytes(submit.data()[0]) == b"at once":
            return said(b"on", terminal=True)
        emit.keep(said(b"kept"))
        await emit.waiting_tool(True)
        await trio.sleep_forever()
        raise AssertionError

    async with serving_nnrp(make_worker=functions(handler)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session(deadline_ms=100, features=features)
        submission = await session.submit(b"", options=SubmitOptions(budget_policy=BudgetPolicy.ALLOW_PARTIAL))
        got: list[Result] = []
        ends = nullcontext() if features else pytest.raises(NnrpOperationEnded, match="failed")
        with trio.fail_after(10), ends:
            async for each in submission:
                got.append(each)
        assert b"kept" in [each.data for each in got]
        assert (await session.request(b"at once")).data == b"on"
