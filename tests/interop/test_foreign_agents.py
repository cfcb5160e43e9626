"""Agents nobody here wrote, behind moorline: PyPI's and npm's official ACP libraries, and qwen itself (issue 2, runners 1)."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from tests.interop.conftest import QWEN, Moorline, StartMoorline
from tests.interop.rest import Event, Rest, RestError, text_of, updates_of
from tests.support.openai_stub import OpenAIStub

pytestmark = pytest.mark.process

AGENTS = Path(__file__).parent / "agents"


def option_of(kind: str) -> Callable[[Event], str]:
    """Chooses the first option of that kind."""

    def choose(request: Event) -> str:
        return str(next(option["optionId"] for option in request["data"]["options"] if option["kind"] == kind))

    return choose


@pytest.fixture(scope="module", params=["pypi", pytest.param("npm", marks=pytest.mark.node)])
def server(request: pytest.FixtureRequest, start_moorline: StartMoorline) -> Moorline:
    """moorline with one of the two scripted agents behind it."""
    if request.param == "pypi":
        command = [sys.executable, str(AGENTS / "pypi_agent.py")]
    else:
        command = [request.getfixturevalue("node"), str(AGENTS / "npm_agent.mjs")]
    return start_moorline("--max-sessions", "0", agent=shlex.join(command))


@pytest.fixture
def rest(server: Moorline) -> Rest:
    return Rest(server.url)


def test_turns_in_order(rest: Rest) -> None:
    """REST-070: echo, thought, plan, text, turn_complete; a second turn in the same session works."""
    session = rest.create()
    for text in ("good morning", "good evening"):
        events = rest.turn(session, text)
        assert text_of(events) == text
        kinds = [event["data"]["update"]["sessionUpdate"] for event in events if event["type"] == "session_update"]
        assert kinds == ["user_message_chunk", "agent_thought_chunk", "plan", "agent_message_chunk"]
        assert (events[-1]["type"], events[-1]["data"]["stopReason"]) == ("turn_complete", "end_turn")


@pytest.mark.parametrize(("kind", "chosen"), [("allow_once", "yes"), ("reject_once", "no")])
def test_permission(rest: Rest, kind: str, chosen: str) -> None:
    """REST-101: the vote reaches the agent, whose own request id counts from 0."""
    session = rest.create()
    events = rest.turn(session, "permission", option_of(kind))
    assert text_of(events) == f"outcome {chosen}"
    assert updates_of(events, "tool_call_update")[-1]["status"] == ("completed" if chosen == "yes" else "failed")


def test_cancel(rest: Rest) -> None:
    """REST-069: the agent hears session/cancel and answers; the next prompt runs."""
    session = rest.create()
    prompt = rest.submit(session, "hold")
    rest.until(session, lambda event: text_of([event]) == "holding")
    rest.call("POST", f"/session/{session}/cancel")
    events = rest.until(session, lambda event: event["type"] == "turn_complete")
    assert (events[-1]["data"]["promptId"], events[-1]["data"]["stopReason"]) == (prompt, "cancelled")
    assert text_of(rest.turn(session, "again")) == "again"


def test_failing_turn(rest: Rest) -> None:
    """REST-070: the agent's JSON-RPC error is the outcome of this turn only."""
    session = rest.create()
    events = rest.turn(session, "fail")
    assert events[-1]["type"] == "turn_error"
    assert text_of(rest.turn(session, "again")) == "again"


def test_files_of_the_workspace(rest: Rest, server: Moorline) -> None:
    """ACP-198: fs/* is served from the workspace by the server itself."""
    session = rest.create()
    written = server.workspace / f"{uuid4()}.txt"
    assert text_of(rest.turn(session, f"write {written}")) == "written"
    assert written.read_text() == "written by the agent"
    assert text_of(rest.turn(session, f"read {written}")) == "written by the agent"
    assert rest.turn(session, f"read {server.workspace / 'no-such-file'}")[-1]["type"] == "turn_error"
    assert rest.turn(session, f"write {server.workspace.parent / 'outside'}")[-1]["type"] == "turn_error"
    assert not (server.workspace.parent / "outside").exists()


def test_terminal(rest: Rest, server: Moorline) -> None:
    """ACP-198: terminal/* runs in the workspace: create, wait, output, release."""
    session = rest.create()
    said = text_of(rest.turn(session, "run pwd; exit 3"))
    assert said == f"exit 3: {server.workspace}\n"


def test_sessions_side_by_side(rest: Rest) -> None:
    """One process serves many sessions; each gets its own text, once."""
    sessions = [rest.create() for _ in range(4)]
    for session in sessions:
        rest.submit(session, "slow")
    for session in sessions:
        events = rest.until(session, lambda event: event["type"] == "turn_complete")
        assert text_of(events) == "".join(f"w{n} " for n in range(10))


def test_crash_in_mid_turn(start_moorline: StartMoorline) -> None:
    """Issue 2: turn_error and session_died within a second, and a new session gets a new process."""
    agent = shlex.join([sys.executable, str(AGENTS / "pypi_agent.py")])
    rest = Rest(start_moorline(agent=agent).url)
    session = rest.create()
    # Open before the crash: a session that has died has no stream any more.
    with rest.stream(session) as stream:
        start = time.monotonic()
        prompt = rest.submit(session, "crash")
        events = rest.up_to(stream, lambda event: event["type"] == "session_died")
    assert time.monotonic() - start < 3  # the promise is one second after the crash; the crash itself takes a moment
    errors = [event for event in events if event["type"] == "turn_error"]
    assert [event["data"]["promptId"] for event in errors] == [prompt]
    assert text_of(rest.turn(rest.create(), "reborn")) == "reborn"


@pytest.fixture(scope="module")
def qwen(
    node: str, start_moorline: StartMoorline, openai_stub: OpenAIStub, tmp_path_factory: pytest.TempPathFactory
) -> Rest:
    """moorline with `qwen --acp` behind it, in a home of its own, on the scripted upstream."""
    home = tmp_path_factory.mktemp("qwen-home")
    (home / ".qwen").mkdir()
    # Suggestions cost a second model call per turn and half of its time.
    (home / ".qwen" / "settings.json").write_text('{"ui": {"enableFollowupSuggestions": false}}')
    env = {
        "HOME": str(home),
        "OPENAI_BASE_URL": openai_stub.url,
        "OPENAI_API_KEY": "no-key",
        "OPENAI_MODEL": "stub-model",
    }
    agent = shlex.join([node, str(QWEN), "--acp", "--auth-type", "openai"])
    server = start_moorline("--agent-start-timeout-ms", "40000", agent=agent, env=env)
    return Rest(server.url)


@pytest.mark.node
class TestQwen:
    """`qwen --acp` of @qwen-code/qwen-code 0.24.4."""

    def test_turn_permission_cancel_error(self, qwen: Rest, openai_stub: OpenAIStub) -> None:
        """One session through every kind of turn."""
        session = qwen.create()
        qwen.call("POST", f"/session/{session}/approval-mode", {"mode": "default"})
        assert text_of(qwen.turn(session, "long=5")) == "w0 w1 w2 w3 w4 "
        events = qwen.turn(session, "permission", option_of("allow_once"))
        assert text_of(events) == "tool done."
        assert updates_of(events, "tool_call_update")[-1]["status"] == "completed"
        assert qwen.turn(session, "fail")[-1]["type"] == "turn_error"
        qwen.submit(session, "hold")
        held = qwen.until(session, lambda event: text_of([event]) == "Hello")[-1]["id"]
        cut = openai_stub.cut_by_peer
        qwen.call("POST", f"/session/{session}/cancel")
        events = qwen.until(session, lambda event: event["type"] == "turn_complete", after=held)
        assert events[-1]["data"]["stopReason"] == "cancelled"
        assert text_of(qwen.turn(session, "echo again")) == "again"
        assert openai_stub.cut_by_peer == cut + 1

    def test_its_file_tools_use_the_servers_workspace(self, qwen: Rest) -> None:
        """ACP-198: fs/read_text_file and fs/write_text_file; a missing file is -32002."""
        session = qwen.create()
        workspace = qwen.call("GET", f"/session/{session}/status")["workspaceCwd"]
        qwen.call("POST", f"/session/{session}/approval-mode", {"mode": "default"})
        path = f"{workspace}/made.txt"
        tool = f'tool write_file {{"file_path":"{path}","content":"made by a tool"}}'
        qwen.turn(session, tool, option_of("allow_once"))
        assert Path(path).read_text() == "made by a tool"
        events = qwen.turn(session, f'tool read_file {{"file_path":"{path}"}}')
        assert "made by a tool" in str(updates_of(events, "tool_call_update")[-1]["content"])

    def test_modes_models_and_stored_sessions(self, qwen: Rest) -> None:
        """REST-041, 121, 030: what the agent advertises is used: set_mode, session/list, session/load after a close."""
        session = qwen.create()
        qwen.turn(session, "echo remembered")
        state = qwen.call("GET", f"/session/{session}/context")["state"]
        modes = {mode["id"] for mode in state["modes"]["availableModes"]}
        assert {"plan", "default", "auto-edit", "auto", "yolo"} <= modes
        with pytest.raises(RestError) as refused:
            qwen.call("POST", f"/session/{session}/approval-mode", {"mode": "no-such-mode"})
        assert refused.value.status == 400
        qwen.call("DELETE", f"/session/{session}")
        loaded = qwen.call("POST", f"/session/{session}/load", {})
        assert "remembered" in str(loaded["compactedReplay"])
        assert text_of(qwen.turn(session, "echo on")) == "on"
