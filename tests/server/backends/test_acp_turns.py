"""Turns of an ACP agent behind the stdio runner: what passes, in which order, and how a turn ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from server.backends.acp_stdio import session as session_module
from server.backends.acp_stdio.messages import INTERNAL_ERROR
from sessions.errors import RunnerError, Unsupported
from sessions.operation import Operation
from sessions.runner import PermissionOutcome, SessionSpec
from tests.support.agents import scripted_runner, scripted_session, until
from tests.support.fake_host import FakeHost, open_session, prompt, run_prompt, running, texts
from tests.support.scripted_agent import steps

pytestmark = pytest.mark.process


async def test_a_turn_streams_and_ends() -> None:
    """ACP-197: updates in order, then the stop reason."""
    async with scripted_session() as desk:
        result = await run_prompt(desk.session, "hi")
        assert (result.stop_reason, texts(desk.host)) == ("end_turn", ["Hello", " from", " the scripted", " agent."])
        assert (await run_prompt(desk.session, steps(["stop", "max_tokens"]))).stop_reason == "max_tokens"


async def test_c_045_noise_on_stdout() -> None:
    """C-045: noise before the handshake, in mid-turn, and none of it arrives anywhere."""
    noise = 'starting up…\n\x1b[2J\n42\n"text"\n[]\nnull\n\n{"jsonrpc":"2.0"}\n{not json\n'
    async with scripted_session(options={"start": [["raw", noise]]}) as desk:
        await run_prompt(desk.session, steps(["say", "a"], ["raw", noise], ["say", "b"]))
        assert texts(desk.host) == ["a", "b"]
        assert len(desk.host.updates) == 2
        (agent,) = desk.runner.statistics().agents
        assert agent.noise_lines == 18


async def test_c_046_lines_of_every_size() -> None:
    """C-046: around 64 KiB and beyond, both ways, in order, and the next small one."""
    sizes = [65_535, 65_536, 65_537, 1_048_576]
    async with scripted_session() as desk:
        await run_prompt(desk.session, steps(*(["big", size] for size in sizes), ["say", "small"]))
        *big, small = desk.host.raw_updates
        envelope = sizes[0] - len(big[0])
        assert [len(raw) + envelope for raw in big] == sizes
        assert set("".join(texts(desk.host)[:-1])) == {"b"}
        assert small.endswith(b'"text":"small"}}')
        result = await run_prompt(desk.session, "x" * 2**20)
        assert result.stop_reason == "end_turn"


async def test_lines_of_20_mib_pass() -> None:
    async with scripted_session() as desk:
        await run_prompt(desk.session, steps(["big", 20 * 2**20]))
        assert len(texts(desk.host)[0]) > 20 * 2**20 - 300


def _update_line(text: str) -> str:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    message = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "{session}", "update": update}}
    return json.dumps(message, ensure_ascii=False)


async def test_c_047_framing() -> None:
    """C-047: three in one write, one in many writes, CRLF, and a last one without newline before the exit."""
    three = "".join(_update_line(f"t{n}") + "\n" for n in range(3))
    turn = [
        ["raw", three],
        ["drip", _update_line("dripped é漢🙂") + "\n", 0],
        ["raw", _update_line("crlf") + "\r\n"],
        ["raw", _update_line("unterminated")],
        ["exit", 0],
    ]
    async with scripted_session(options={"turns": [turn]}) as desk:
        with pytest.raises(RunnerError):
            await run_prompt(desk.session, "go")
        assert texts(desk.host) == ["t0", "t1", "t2", "dripped é漢🙂", "crlf", "unterminated"]


async def test_c_042_c_048_characters_that_are_no_line_ends_and_no_characters() -> None:
    """C-042: U+2028, U+2029, U+0085 pass. C-048: a lone surrogate is repaired, the turn goes on."""
    lone = json.dumps(_update_line("X")).replace("X", "\\\\ud83d")
    turn = [["raw", _update_line("a\u2028b\u2029c\u0085d") + "\n"], ["raw", json.loads(lone) + "\n"], ["say", "ok 🙂"]]
    async with scripted_session(options={"turns": [turn]}) as desk:
        await run_prompt(desk.session, "go")
        assert texts(desk.host) == ["a\u2028b\u2029c\u0085d", "\ufffd", "ok 🙂"]


async def test_unknown_updates_and_members_pass_untouched() -> None:
    """Issue 2, runner 1: what we do not know is none of our business, byte for byte."""
    raw = '{ "sessionUpdate":"_vendor/x", "n":1234567890123456789012, "deep":{"a":[1.50,null]} }'
    line = '{"params":{"_meta":{"k":[1]},"update":' + raw + ',"sessionId":"{session}"},"method":"session/update"}\r\n'
    async with scripted_session(options={"turns": [[["raw", line]]]}) as desk:
        await run_prompt(desk.session, "go")
        assert desk.host.raw_updates == [raw.encode()]
        assert desk.host.extras == [{"_meta": {"k": [1]}}]


async def test_carriage_returns_never_reach_an_event() -> None:
    """A CR between tokens is white space in JSON and a line end in SSE."""
    line = '{"method":"session/update","params":{"sessionId":"{session}","update":{\r"sessionUpdate":\r"x"}}}\n'
    async with scripted_session(options={"turns": [[["raw", line]]]}) as desk:
        await run_prompt(desk.session, "go")
        assert desk.host.updates == [{"sessionUpdate": "x"}]


async def test_extension_notifications_become_events() -> None:
    async with scripted_session() as desk:
        await run_prompt(
            desk.session, steps(["notify", "_vendor/thing", {"a": 1}], ["notify", "_nobody", {"sessionId": "?"}])
        )
        data = {"sessionId": desk.host.session_id, "method": "_vendor/thing", "params": {"a": 1}}
        assert desk.host.events == [("agent_notification", data)]


@pytest.mark.parametrize("method", ["_vendor/ask", "elicitation/create", "session/prompt"])
async def test_unknown_requests_are_answered(method: str) -> None:
    """An agent that asks for something we do not serve must not wait for ever."""
    async with scripted_session() as desk:
        await run_prompt(desk.session, steps(["request", method, {}]))
        assert '"code": -32601' in texts(desk.host)[0]


async def test_requests_with_odd_params_are_answered(tmp_path: Path) -> None:
    """Positional params are legal JSON-RPC and not ACP: an error, not silence."""
    log = tmp_path / "log"
    async with scripted_session(options={"log": str(log)}) as desk:
        line = {"jsonrpc": "2.0", "id": "odd", "method": "fs/read_text_file", "params": [1]}
        await run_prompt(desk.session, steps(["line", line], ["say", "on"]))
        await until(lambda: '"odd"' in log.read_text())
        assert '"code":-32602' in log.read_text()
        assert texts(desk.host) == ["on"]


async def test_an_agents_error_is_the_turns_error() -> None:
    """REST-002: code and data are the agent's own; the next prompt works."""
    async with scripted_session() as desk:
        with pytest.raises(RunnerError) as caught:
            await run_prompt(desk.session, steps(["error", -32603, "Internal error", {"details": "400 no"}]))
        assert (caught.value.message, caught.value.code, caught.value.data) == (
            "Internal error",
            INTERNAL_ERROR,
            {"details": "400 no"},
        )
        assert (await run_prompt(desk.session, "hi")).stop_reason == "end_turn"


async def test_another_wires_request_is_not_a_prompt() -> None:
    async with scripted_session() as desk:
        with pytest.raises(Unsupported):
            await desk.session.run(Operation(7, object()))


async def test_prompt_meta_reaches_the_agent(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with scripted_session(options={"log": str(log)}) as desk:
        await desk.session.run(prompt("hi", meta={"trace": "t"}))
    sent = [json.loads(line) for line in log.read_text().splitlines()]
    assert [message["params"].get("_meta") for message in sent if message["method"] == "session/prompt"] == [
        {"trace": "t"}
    ]


# Permission


@pytest.mark.parametrize(
    ("outcome", "seen"),
    [
        (PermissionOutcome("allow"), "allow"),
        (PermissionOutcome("reject"), "reject"),
        (PermissionOutcome(), "cancelled"),
    ],
)
async def test_permission_goes_to_the_host(outcome: PermissionOutcome, seen: str) -> None:
    """ACP-178: the agent goes on with whatever the host says, a missing consumer's ``cancelled`` included."""
    host = FakeHost()
    host.outcome = outcome
    async with scripted_session(host=host) as desk:
        await run_prompt(desk.session, "permission")
        assert texts(host) == [f"answer: {seen}"]
        ((call, options, _),) = host.questions
        assert call["toolCallId"] == "call-1"
        assert [option["optionId"] for option in options] == ["allow", "reject"]


async def test_the_question_comes_before_the_updates_behind_it() -> None:
    """The ring shows what the agent did in the order in which it did it."""
    async with scripted_session(host=FakeHost(answer=None)) as desk:
        await run_prompt(
            desk.session, steps(*[["say", "before"]] * 20, ["permission_nowait"], *[["say", "behind"]] * 20)
        )
        kinds = ["asked" if "asked" in update else update["sessionUpdate"] for update in desk.host.updates]
        assert kinds.index("asked") == 21


async def test_permission_without_options_is_an_error() -> None:
    async with scripted_session() as desk:
        await run_prompt(
            desk.session, steps(["request", "session/request_permission", {"toolCall": {}, "options": [{}]}])
        )
        assert '"code": -32602' in texts(desk.host)[0]
        assert desk.host.questions == []


async def test_a_question_does_not_hold_up_other_turns() -> None:
    async with scripted_session(host=FakeHost(answer=None)) as desk:
        turn = desk.begin("permission")
        await desk.host.asked.wait()
        other = FakeHost()
        assert (await run_prompt(await open_session(desk.runner, other), "hi")).stop_reason == "end_turn"
        desk.host.decide("reject")
        assert (await desk.end_of(turn)).stop_reason == "end_turn"


# Cancel


async def test_c_060_cancel_reaches_the_agent_at_once() -> None:
    """C-060: the agent gets session/cancel in mid-stream and the operation ends."""
    async with scripted_session() as desk:
        turn = desk.begin(steps(["say", "w{n}", 10_000, 5]))
        await desk.host.wait_for(lambda: len(desk.host.updates) > 3)
        begun = trio.current_time()
        turn.scope.cancel()
        assert await desk.end_of(turn) == "cancelled"
        assert trio.current_time() - begun < 0.5
        assert (await run_prompt(desk.session, "hi")).stop_reason == "end_turn"


async def test_c_061_updates_after_cancel_come_first() -> None:
    """C-061: three more updates, then the answer; the operation is over only after that."""
    async with scripted_session() as desk:
        turn = desk.begin("hold after=3")
        await desk.host.wait_for(lambda: len(desk.host.updates) == 4)
        turn.scope.cancel()
        await desk.end_of(turn)
        assert texts(desk.host)[4:] == ["after 0", "after 1", "after 2"]


async def test_cancel_of_a_turn_that_asks() -> None:
    """ACP-179: the host answers cancelled, the agent ends the turn."""
    async with scripted_session(host=FakeHost(answer=None)) as desk:
        turn = desk.begin("permission")
        await desk.host.asked.wait()
        turn.scope.cancel()
        desk.host.decide("")
        assert await desk.end_of(turn) == "cancelled"
        assert (await run_prompt(desk.session, "hi")).stop_reason == "end_turn"


async def test_c_059_cancel_ignored_is_given_up() -> None:
    """C-059: after the grace the operation ends without the agent; no new session goes to it."""
    async with scripted_session(cancel_grace=0.3) as desk:
        turn = desk.begin("deaf-hold")
        await desk.host.wait_for(lambda: desk.host.updates)
        begun = trio.current_time()
        turn.scope.cancel()
        assert await desk.end_of(turn) == "cancelled"
        assert 0.25 < trio.current_time() - begun < 2
        other = await open_session(desk.runner, FakeHost())
        assert desk.runner.statistics().processes == 2
        assert (await run_prompt(other, "hi")).stop_reason == "end_turn"


async def test_c_059_closing_does_not_wait_for_the_cancel_grace() -> None:
    """C-059: close in a turn that ignores cancel ends the process at once."""
    async with scripted_session(cancel_grace=60) as desk:
        turn = desk.begin("deaf-hold")
        await desk.host.wait_for(lambda: desk.host.updates)
        turn.scope.cancel()
        with trio.fail_after(3):
            await desk.session.aclose()
        assert await desk.end_of(turn) == "cancelled"
        assert desk.runner.statistics().processes == 0
        assert desk.host.deaths == []


async def test_c_059_closing_beside_another_session() -> None:
    """C-059: the process lives on for the other session; the close and the cancelled turn do not wait for it."""
    async with scripted_session(cancel_grace=60) as desk:
        other = await open_session(desk.runner, FakeHost())
        turn = desk.begin("deaf-hold")
        await desk.host.wait_for(lambda: desk.host.updates)
        turn.scope.cancel()
        await trio.sleep(0.05)
        with trio.fail_after(3):
            await desk.session.aclose()
        assert await desk.end_of(turn, 1) == "cancelled"
        assert (await run_prompt(other, "hi")).stop_reason == "end_turn"
        await open_session(desk.runner, FakeHost())
        assert desk.runner.statistics().processes == 2


# Settings


async def test_mode_and_model() -> None:
    """ACP-192, REST-120: what the agent says of modes and models, and its errors as they are."""
    async with scripted_session() as desk:
        session = desk.session
        await session.set_mode("yolo")
        await session.set_model("scripted-large")
        state: Any = session.state()
        assert (state["modes"]["currentModeId"], state["models"]["currentModelId"]) == ("yolo", "scripted-large")
        assert [option["currentValue"] for option in state["configOptions"]] == ["yolo", "scripted-large"]
        with pytest.raises(RunnerError) as caught:
            await session.set_mode("bogus")
        assert caught.value.code == -32602
        with pytest.raises(RunnerError) as caught:
            await session.set_model("none")
        assert (caught.value.code, caught.value.data) == (-32603, {"details": "Model 'none' not found"})
        result = await session.set_config_option("mode", "plan")
        assert [option["currentValue"] for option in result["configOptions"]] == ["plan", "scripted-large"]
        assert session.state()["modes"]["currentModeId"] == "plan"


async def test_model_as_configuration_option() -> None:
    """Agents of the newer schema have no session/set_model."""
    async with scripted_session(options={"config_model": True}) as desk:
        await desk.session.set_model("scripted-large")
        options = {option["id"]: option["currentValue"] for option in desk.session.state()["configOptions"]}
        assert options["model"] == "scripted-large"


async def test_settings_follow_the_agents_own_changes() -> None:
    async with scripted_session() as desk:
        await run_prompt(
            desk.session, steps(["update", {"currentModeId": "auto", "sessionUpdate": "current_mode_update"}])
        )
        assert desk.session.state()["modes"]["currentModeId"] == "auto"
        options = [{"id": "mode", "currentValue": "plan"}]
        update = {"sessionUpdate": "config_option_update", "configOptions": options}
        await run_prompt(desk.session, steps(["update", update]))
        assert desk.session.state()["configOptions"] == options
        assert len(desk.host.updates) == 2


@pytest.mark.parametrize("how", ["set_mode", "set_model"])
async def test_a_setting_is_not_waited_for_for_ever(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-069, issue 2: an agent that never answers; the next request works."""
    async with scripted_session(options={"unanswered": [f"session/{how}"]}) as desk:
        with monkeypatch.context() as patched, trio.fail_after(10):
            patched.setattr(session_module, "SETTING_TIMEOUT", 0.2)
            with pytest.raises(RunnerError, match="did not answer session/set_mod"):
                await getattr(desk.session, how)("plan" if how == "set_mode" else "scripted-large")
        assert desk.session.state()["modes"]["currentModeId"] == "default"
        assert (await run_prompt(desk.session, "hi")).stop_reason == "end_turn"


async def test_a_session_whose_mode_is_never_confirmed_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """C-069: in bounded time, and nothing of it stays."""
    monkeypatch.setattr(session_module, "SETTING_TIMEOUT", 0.2)
    runner = scripted_runner({"unanswered": ["session/set_mode"]})
    async with running(runner):
        with trio.fail_after(10), pytest.raises(RunnerError, match="did not answer"):
            await runner.start_session(SessionSpec("/", mode="plan"), FakeHost())
        assert runner.statistics().sessions == 0


ODD_SETTINGS: list[dict[str, Any]] = [
    {"modes": 5, "models": "x", "configOptions": {"a": 1}},
    {"modes": [1], "models": {"availableModels": 7, "currentModelId": []}, "configOptions": None},
    {"modes": {"availableModes": "x"}, "models": True},
]


@pytest.mark.parametrize("result", ODD_SETTINGS, ids=str)
async def test_settings_of_another_type_are_left_out(result: dict[str, Any]) -> None:
    """Issue 2, bad input: who reads a session's state finds objects, with lists of choices, or nothing."""
    async with scripted_session(options={"no_modes": True, "new_result": result}) as desk:
        assert desk.session.state() == {}
        assert (await run_prompt(desk.session, "hi")).stop_reason == "end_turn"


async def test_extension_requests() -> None:
    async with scripted_session() as desk:
        sent = {"sessionId": desk.host.session_id, "x": [1]}
        assert await desk.session.extension("_echo", sent) == {"sessionId": desk.host.agent_session_id, "x": [1]}
        with pytest.raises(RunnerError) as caught:
            await desk.session.extension("_fail", {"y": 2})
        assert (caught.value.code, caught.value.data) == (-32050, {"y": 2})
        with pytest.raises(Unsupported):
            await desk.session.extension("_unknown", {})


async def test_a_session_id_has_several_spellings() -> None:
    """JSON writes ``/`` and ``é`` in two ways each; the agent's updates and questions find their session all the same."""
    async with scripted_session(options={"session_id": "sé/1"}) as desk:
        chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "slashed"}}
        line = {"method": "session/update", "params": {"sessionId": "sé/1", "update": chunk}}
        slashed = json.dumps(line).replace("/1", "\\/1") + "\n"
        await run_prompt(desk.session, steps(["say", "escaped"], ["raw", slashed], ["permission"]))
        assert texts(desk.host)[:2] == ["escaped", "slashed"]
        assert len(desk.host.questions) == 1
        assert desk.runner.statistics().agents[0].stray_updates == 0


async def test_an_answer_may_say_that_it_has_no_method() -> None:
    """Agents whose messages are one type write the members they do not use as null."""
    async with scripted_session() as desk:
        # initialize and session/new had 1 and 2.
        answer = {"id": 3, "method": None, "params": None, "error": None, "result": {"stopReason": "max_tokens"}}
        with trio.fail_after(10):
            result = await run_prompt(desk.session, steps(["line", answer], ["never"]))
        assert result.stop_reason == "max_tokens"


@pytest.mark.parametrize("result", [5, [], {}, {"sessions": 5}, {"sessions": None}], ids=str)
async def test_a_list_that_is_none_is_an_error(result: Any, tmp_path: Path) -> None:
    """REST-041: the agent's error, which takes nothing from the list of what we have."""
    async with running(scripted_runner({"state": str(tmp_path / "state"), "list_result": result})) as runner:
        with pytest.raises(RunnerError):
            await runner.list_sessions("/")


# Starting sessions


async def test_updates_before_the_session_is_known_are_held() -> None:
    """Before session/new is answered the agent may speak already: after bind, in order, nothing lost."""
    async with scripted_session(options={"early": 5}) as desk:
        assert texts(desk.host) == [f"early {n}" for n in range(5)]
        assert desk.runner.statistics().agents[0].stray_updates == 0


async def test_updates_for_nobody_are_counted() -> None:
    """C-068: news for a session that is not here touch nobody."""
    stray = {"method": "session/update", "params": {"sessionId": "gone", "update": {"sessionUpdate": "x"}}}
    async with scripted_session() as desk:
        await run_prompt(desk.session, steps(["line", stray], ["say", "mine"]))
        assert len(desk.host.updates) == 1
        assert desk.runner.statistics().agents[0].stray_updates == 1


async def test_load_replays_and_resume_does_not(tmp_path: Path) -> None:
    """REST-030: load brings the history through the host, resume does not, an unknown id is -32002."""
    runner = scripted_runner({"state": str(tmp_path / "state")})
    async with running(runner):
        first = FakeHost()
        session = await open_session(runner, first)
        await run_prompt(session, "echo one")
        await session.aclose()
        stored = first.agent_session_id
        listed = await runner.list_sessions("/")
        assert [(each.agent_session_id, each.title) for each in listed] == [(stored, f"title of {stored}")]
        for start, wants, expected in (("load", True, ["one"]), ("load", False, []), ("resume", True, [])):
            host = FakeHost(wants_history=wants)
            session = await open_session(runner, host, start=start, agent_session_id=stored)
            assert (texts(host), host.agent_session_id) == (expected, stored)
            assert (await run_prompt(session, steps(["stop", "refusal"]))).stop_reason == "refusal"
            await session.aclose()
        with pytest.raises(RunnerError) as caught:
            await open_session(runner, FakeHost(), start="load", agent_session_id="none")
        assert caught.value.code == -32002


async def test_what_is_not_advertised_is_not_asked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    runner = scripted_runner({"log": str(log)})
    async with running(runner):
        capabilities = await runner.capabilities()
        assert (capabilities.load_session, capabilities.list_sessions, capabilities.raw["_meta"]) == (
            False,
            False,
            {"scripted": True},
        )
        assert capabilities.prompt == {"image": True, "embeddedContext": True}
        for start in ("load", "resume", "fork"):
            with pytest.raises(Unsupported):
                await open_session(runner, FakeHost(), start=start, agent_session_id="x")
        assert await runner.list_sessions("/") == ()
        session = await open_session(runner, FakeHost())
        await session.aclose()
    methods = [json.loads(line)["method"] for line in log.read_text().splitlines()]
    assert methods == ["initialize", "session/new"]


async def test_fork_and_close_where_advertised(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with scripted_session(options={"fork": True, "close": True, "early": 1, "log": str(log)}) as desk:
        host = FakeHost()
        fork = await open_session(desk.runner, host, start="fork", agent_session_id=desk.host.agent_session_id)
        assert host.agent_session_id != desk.host.agent_session_id
        assert texts(host) == ["early 0"]
        await fork.aclose()
        assert '"session/close"' in log.read_text()
        assert (await run_prompt(desk.session, "hi")).stop_reason == "end_turn"


async def test_the_callers_id_model_and_mode_reach_the_agent() -> None:
    """REST-023: the wish goes along in ``_meta``; whether it was honoured is for the wire to say."""
    runner = scripted_runner()
    async with running(runner):
        wanted = "2b63d6a8-1108-49ed-9960-61df5b6dd882"
        host = FakeHost()
        spec = SessionSpec("/", agent_session_id=wanted, mode="plan", model="scripted-large", meta={"k": 1})
        session = await runner.start_session(spec, host)
        assert host.agent_session_id == wanted
        state = session.state()
        assert (state["modes"]["currentModeId"], state["models"]["currentModelId"]) == ("plan", "scripted-large")
        with pytest.raises(RunnerError):
            await runner.start_session(SessionSpec("/", mode="bogus"), FakeHost())
        kept = await runner.start_session(SessionSpec("/", model="bogus"), FakeHost())
        assert kept.state()["models"]["currentModelId"] == "scripted-small"
        assert runner.statistics().sessions == 2


async def test_one_process_serves_many_sessions_in_parallel() -> None:
    runner = scripted_runner()
    async with running(runner), trio.open_nursery() as nursery:
        hosts = [FakeHost() for _ in range(10)]

        async def one(host: FakeHost, number: int) -> None:
            session = await open_session(runner, host)
            await run_prompt(session, f"slow=5 echo mine {number}" if number % 2 else f"echo mine {number}")

        for number, host in enumerate(hosts):
            nursery.start_soon(one, host, number)
    assert [texts(host)[-1].endswith(f"mine {number}") for number, host in enumerate(hosts)].count(False) == 5
    assert runner.statistics().starts == 1


async def test_session_new_refused() -> None:
    """The agent's error (authentication, for one) with a kind clients know; nothing stays."""
    runner = scripted_runner({"new_error": [-32000, "Authentication required", {"authMethods": []}]})
    async with running(runner):
        with pytest.raises(RunnerError) as caught:
            await open_session(runner, FakeHost())
        assert (caught.value.code, caught.value.error_kind) == (-32000, "auth_env_error")
        assert runner.statistics().sessions == 0
