"""The handler runner and the demo agent on it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from server.backends import DemoRunner, Emitter, HandlerRunner, Mode, Model
from sessions.errors import RunnerError, Unsupported
from sessions.operation import CancelReason, Operation
from sessions.runner import Capabilities, PermissionOutcome, Runner, SessionSpec, TurnResult
from tests.support.fake_host import FakeHost, open_session, prompt, run_prompt, running, texts


async def turn(handler: Any, text: str = "hi", **settings: Any) -> tuple[FakeHost, TurnResult]:
    host = FakeHost("/w")
    session = await open_session(HandlerRunner(handler, **settings), host)
    return host, await run_prompt(session, text)


def test_they_are_runners() -> None:
    async def nothing(operation: Operation, emit: Emitter) -> None: ...

    assert isinstance(HandlerRunner(nothing), Runner)
    assert isinstance(DemoRunner(), Runner)


async def test_every_kind_of_update() -> None:
    """rest.md 6.1: the shapes of session_update."""

    async def handler(operation: Operation, emit: Emitter) -> None:
        await emit.thought("t")
        await emit.plan(["first", {"content": "second", "priority": "high", "status": "completed"}])
        call = await emit.tool_call("c", "do", kind="edit", locations=[{"path": "/x"}])
        await emit.tool_update(call["toolCallId"], "completed", rawOutput=1)
        await emit.tool_update("c", title="only a title")
        await emit.usage(3, 10, cost={"amount": 0, "currency": "EUR"})
        await emit.message(f"{emit.cwd} {operation.request.text()}", _meta={"k": 1})
        await emit.update({"sessionUpdate": "_own", "x": None})

    host, result = await turn(handler)
    assert result == TurnResult("end_turn")
    assert host.updates == [
        {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "t"}},
        {
            "sessionUpdate": "plan",
            "entries": [
                {"content": "first", "priority": "medium", "status": "pending"},
                {"content": "second", "priority": "high", "status": "completed"},
            ],
        },
        {
            "sessionUpdate": "tool_call",
            "toolCallId": "c",
            "title": "do",
            "kind": "edit",
            "status": "pending",
            "locations": [{"path": "/x"}],
        },
        {"sessionUpdate": "tool_call_update", "toolCallId": "c", "rawOutput": 1, "status": "completed"},
        {"sessionUpdate": "tool_call_update", "toolCallId": "c", "title": "only a title"},
        {"sessionUpdate": "usage_update", "used": 3, "size": 10, "cost": {"amount": 0, "currency": "EUR"}},
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "/w hi"}, "_meta": {"k": 1}},
        {"sessionUpdate": "_own", "x": None},
    ]


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, TurnResult("end_turn")),
        ("refusal", TurnResult("refusal")),
        (TurnResult("max_tokens", {"k": 1}), TurnResult("max_tokens", {"k": 1})),
    ],
)
async def test_what_a_handler_may_return(returned: Any, expected: TurnResult) -> None:
    async def handler(operation: Operation, emit: Emitter) -> Any:
        await emit.checkpoint()
        return returned

    assert (await turn(handler))[1] == expected


async def _raise(error: Exception) -> None:
    async with trio.open_nursery():
        raise error


@pytest.mark.parametrize(
    ("error", "message", "data"),
    [
        (ValueError("bad"), "Internal error", {"details": "ValueError: bad"}),
        (RunnerError("mine", 7, [1]), "mine", [1]),
    ],
)
async def test_exceptions_are_the_turns_error(error: Exception, message: str, data: Any) -> None:
    """Nothing but `RunnerError` leaves the port, a nursery's group included."""

    async def handler(operation: Operation, emit: Emitter) -> None:
        await _raise(error)

    with pytest.raises(RunnerError) as caught:
        await turn(handler)
    assert (caught.value.message, caught.value.data) == (message, data)


async def test_a_wrong_return_value_is_an_error() -> None:
    async def handler(operation: Operation, emit: Emitter) -> Any:
        await emit.checkpoint()
        return 5

    with pytest.raises(RunnerError):
        await turn(handler)


async def test_cancel_reaches_a_handler_that_only_emits() -> None:
    """The port's contract: a checkpoint at least every 16 events."""
    counted = 0

    async def handler(operation: Operation, emit: Emitter) -> None:
        nonlocal counted
        while True:
            await emit.message("x")
            counted += 1
            if counted == 100:
                operation.cancel(CancelReason.USER)

    session = await open_session(HandlerRunner(handler), FakeHost())
    operation = prompt("go")
    with operation.scope:
        await session.run(operation)
    assert operation.scope.cancelled_caught
    assert counted <= 116


async def test_permission() -> None:
    async def handler(operation: Operation, emit: Emitter) -> None:
        outcome = await emit.ask_permission(await emit.tool_call("c", "t"))
        await emit.message(str(outcome.option_id))

    host, _ = await turn(handler)
    assert texts(host) == ["allow"]
    assert [option["kind"] for option in host.questions[0][1]] == ["allow_once", "reject_once"]


async def test_sessions_can_be_brought_back_with_their_settings() -> None:
    """REST-030, ACP-191: mode and model survive; an unknown id is -32002; the memory is bounded."""

    async def handler(operation: Operation, emit: Emitter) -> None:
        await emit.message(f"{emit.mode} {emit.model}")

    runner = HandlerRunner(
        handler,
        modes=[Mode("a", "A"), Mode("b", "B")],
        models=[Model("m", "M", context=5), Model("n", "N")],
        remembered=2,
    )
    first = FakeHost("/w")
    session = await open_session(runner, first, mode="b")
    await session.set_model("n")
    await session.aclose()
    for start in ("load", "resume", "fork"):
        host = FakeHost("/w")
        again = await open_session(runner, host, start=start, agent_session_id=first.agent_session_id)
        await run_prompt(again, "hi")
        assert texts(host) == ["b n"]
        assert (host.agent_session_id == first.agent_session_id) == (start != "fork")
    assert {each.agent_session_id for each in await runner.list_sessions("/w")} >= {first.agent_session_id}
    for _ in range(2):
        await open_session(runner, FakeHost("/other"))
    assert await runner.list_sessions("/w") == []
    with pytest.raises(RunnerError) as caught:
        await open_session(runner, FakeHost(), start="load", agent_session_id=first.agent_session_id)
    assert caught.value.code == -32002


async def test_what_a_handler_does_not_offer() -> None:
    async def handler(operation: Operation, emit: Emitter) -> None: ...

    runner = HandlerRunner(handler, capabilities=Capabilities())
    with pytest.raises(Unsupported):
        await open_session(runner, FakeHost(), start="load", agent_session_id="x")
    session = await open_session(runner, FakeHost())
    assert session.state() == {}
    for call in (session.set_mode, session.set_model):
        with pytest.raises(Unsupported):
            await call("x")
    with pytest.raises(Unsupported):
        await session.extension("_x", {})


# The demo agent


async def demo(text: str, host: FakeHost | None = None, **spec: Any) -> FakeHost:
    host = host if host is not None else FakeHost("/w")
    await run_prompt(await open_session(DemoRunner(), host, **spec), text)
    return host


async def test_demo_streams_everything() -> None:
    """Issue 2, runner 4: thought, plan, message chunks, usage."""
    host = await demo("hello there")
    kinds = [update["sessionUpdate"] for update in host.updates]
    assert kinds == ["agent_thought_chunk", "plan", *["agent_message_chunk"] * 6, "plan", "usage_update"]
    assert "".join(texts(host)) == "Hello from the demo agent."
    assert host.updates[-1]["size"] == 8192


@pytest.mark.parametrize(
    ("text", "seconds", "chunks"),
    [("slow", 1.2, 6), ("slow=50 long=3", 0.15, 3), ("long=500", 0, 500), ("slow=10", 0.06, 6)],
)
async def test_demo_pace(text: str, seconds: float, chunks: int, autojump_clock: trio.testing.MockClock) -> None:
    begun = trio.current_time()
    host = await demo(text)
    assert trio.current_time() - begun == pytest.approx(seconds)
    assert len(texts(host)) == chunks


async def test_demo_echo() -> None:
    host = await demo("echo  long=3 permission")
    assert [update["content"]["text"] for update in host.updates] == ["long=3 permission"]


@pytest.mark.parametrize(
    ("outcome", "mode", "said", "status"),
    [
        (PermissionOutcome("allow"), None, "allow", "completed"),
        (PermissionOutcome("reject"), None, "reject", "failed"),
        (PermissionOutcome(), None, "cancelled", "failed"),
        (None, "yolo", "allow (mode yolo)", "completed"),
    ],
)
async def test_demo_permission(outcome: PermissionOutcome | None, mode: str | None, said: str, status: str) -> None:
    host = FakeHost("/w")
    host.outcome = outcome
    await demo("permission", host, mode=mode)
    assert texts(host)[0] == f"Permission: {said}. "
    assert len(host.questions) == (0 if mode else 1)
    assert [u["status"] for u in host.updates if u.get("sessionUpdate") == "tool_call_update"] == [status]


async def test_demo_tool_and_fail() -> None:
    host = await demo("tool")
    assert [u["status"] for u in host.updates if u.get("toolCallId") == "demo-look"] == ["in_progress", "completed"]
    with pytest.raises(RunnerError) as caught:
        await demo("fail")
    assert (caught.value.code, caught.value.message) == (-32603, "Internal error")


async def test_demo_hold_until_cancelled() -> None:
    host = FakeHost()
    session = await open_session(DemoRunner(), host)
    operation = prompt("hold")
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            with operation.scope:
                await session.run(operation)

        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        assert texts(host) == ["Holding until cancelled."]
        operation.cancel(CancelReason.USER)
    assert operation.scope.cancelled_caught


async def test_demo_settings_have_the_recorded_shapes() -> None:
    """T07, ACP-191, ACP-192, REST-120: models, modes, configOptions; errors -32602 and -32603."""
    session = await open_session(DemoRunner(), FakeHost())
    state = session.state()
    assert [mode["id"] for mode in state["modes"]["availableModes"]] == ["plan", "default", "auto-edit", "auto", "yolo"]
    assert all(mode["name"] for mode in state["modes"]["availableModes"])
    assert [model["modelId"] for model in state["models"]["availableModels"]] == ["demo-small", "demo-large"]
    assert (state["modes"]["currentModeId"], state["models"]["currentModelId"]) == ("default", "demo-small")
    assert [(option["id"], option["type"], option["currentValue"]) for option in state["configOptions"]] == [
        ("mode", "select", "default"),
        ("model", "select", "demo-small"),
    ]
    with pytest.raises(RunnerError) as caught:
        await session.set_model("no-such-model")
    assert (caught.value.message, caught.value.code) == ("Internal error", -32603)
    assert caught.value.data == {"details": "Model 'no-such-model' not found"}
    with pytest.raises(RunnerError) as caught:
        await session.set_mode("bogus")
    assert caught.value.code == -32602
    result = await session.set_config_option("model", "demo-large")
    assert [option["currentValue"] for option in result["configOptions"]] == ["default", "demo-large"]
    with pytest.raises(RunnerError) as caught:
        await session.set_config_option("colour", "x")
    assert caught.value.code == -32602


async def test_background_ends_when_cancelled() -> None:
    async with running(DemoRunner()) as runner:
        assert (await runner.capabilities()).load_session
        await runner.start_session(SessionSpec("/"), FakeHost())
