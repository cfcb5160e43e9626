"""``moorline prompt``, ``attach``, ``sessions``, ``cancel`` as a user runs them, against a daemon on loopback."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from client import Event
from server.commands.client_commands import attach, cancel, prompt, sessions
from server.commands.client_rendering import Printer, as_json, harmless
from tests.support.fake_daemon import FakeDaemon, Turn, echo, wait_for_cancel
from tests.support.scripted_server import loopback

ROOT = Path(__file__).resolve().parents[2]


class Background:
    """A fake daemon in a thread of its own: the commands run their own event loop in this one."""

    def __init__(self) -> None:
        self.url = ""
        self.daemon: FakeDaemon | None = None
        self._ready: queue.Queue[tuple[str, FakeDaemon, trio.lowlevel.TrioToken, trio.CancelScope]] = queue.Queue()
        self._thread = threading.Thread(target=trio.run, args=(self._serve,))

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            daemon = FakeDaemon(nursery, echo)
            async with loopback(daemon.handle) as url:
                self._ready.put((url, daemon, trio.lowlevel.current_trio_token(), nursery.cancel_scope))
                await trio.sleep_forever()

    def __enter__(self) -> Background:
        self._thread.start()
        self.url, self.daemon, self._token, self._scope = self._ready.get(timeout=10)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._token.run_sync_soon(self._scope.cancel)
        self._thread.join(10)

    def soon(self, function: Any, *args: Any) -> None:
        self._token.run_sync_soon(function, *args)


@pytest.fixture
def served() -> Iterator[Background]:
    with Background() as background:
        yield background


def run(served: Background, command: Any, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--url", served.url], catch_exceptions=False)


@pytest.mark.parametrize("transport", ["rest", "acp-http", "acp-ws"])
def test_prompt_prints_what_the_agent_says(served: Background, transport: str) -> None:
    result = run(served, prompt, "hello", "--transport", transport)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == ["> hello", "hello", "-- end_turn"]


def test_prompt_quietly_and_as_json(served: Background) -> None:
    assert run(served, prompt, "hello", "-q").output == "hello\n"
    lines = [json.loads(line) for line in run(served, prompt, "hello", "--json").output.splitlines()]
    assert [line["type"] for line in lines][-2:] == ["turn_complete", "result"]
    assert lines[-1]["stopReason"] == "end_turn"


def test_prompt_goes_on_in_a_session(served: Background) -> None:
    assert served.daemon is not None
    session = served.daemon.new_session("known")
    assert run(served, prompt, "again", "--session", "known").exit_code == 0
    assert session.head == 3
    refused = run(served, prompt, "again", "--session", "unknown")
    assert refused.exit_code == 1
    assert "moorline: POST /session/unknown/resume: HTTP 404" in refused.output


def test_a_failed_turn_is_a_failed_command(served: Background) -> None:
    async def fail(turn: Turn) -> str:
        raise RuntimeError("out of \x1b[31mcoal")

    assert served.daemon is not None
    served.daemon.agent = fail
    result = run(served, prompt, "x")
    assert result.exit_code == 1
    assert "-- failed: out of [31mcoal" in result.output


@pytest.mark.parametrize(("answer", "expected"), [("allow", "yes"), ("deny", "no")])
def test_permissions_without_a_terminal(served: Background, answer: str, expected: str) -> None:
    async def ask(turn: Turn) -> str:
        options = [
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ]
        tool = {"toolCallId": "t", "title": "rm"}
        turn.session.publish(
            "permission_request",
            {"requestId": "r", "sessionId": turn.session.id, "toolCall": tool, "options": options},
        )
        while not turn.session.votes:  # noqa: ASYNC110 - the vote comes from another thread's request
            await trio.sleep(0.01)
        return "end_turn"

    assert served.daemon is not None
    served.daemon.agent = ask
    result = run(served, prompt, "x", "--permission", answer)
    assert "? rm: yes, no" in result.output
    votes = next(iter(served.daemon.sessions.values())).votes
    assert votes == [("r", {"outcome": "selected", "optionId": expected})]


def test_attach_follows_to_the_end(served: Background) -> None:
    """Issue 3: attach survives the network: the stream is cut again and again, and everything is shown once."""
    assert served.daemon is not None
    session = served.daemon.new_session("known")
    for number in range(40):
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"{number} "}}
        session.publish("session_update", {"sessionId": "known", "update": update})
    session.publish("session_closed", {"sessionId": "known", "reason": "client_close"})
    session.closed = True
    served.daemon.cut_after, served.daemon.cut_bytes = 7, 9
    result = run(served, attach, "known")
    assert result.exit_code == 0
    text = "".join(f"{number} " for number in range(40))
    assert result.output.splitlines() == [text, "-- session_closed: client_close"]
    part = run(served, attach, "known", "--from", "39", "--json")
    assert [json.loads(line)["id"] for line in part.output.splitlines() if "id" in json.loads(line)] == [40, 41]


def test_sessions_are_listed(served: Background) -> None:
    assert served.daemon is not None
    served.daemon.new_session("one")
    served.daemon.new_session("two")
    assert run(served, sessions).output.splitlines() == ["one  idle", "two  idle"]
    assert json.loads(run(served, sessions, "--json", "--cwd", "/w").output.splitlines()[0]) == {
        "sessionId": "one",
        "workspaceCwd": "/w",
    }


@pytest.mark.parametrize("transport", ["rest", "acp-http"])
def test_cancel(served: Background, transport: str) -> None:
    daemon = served.daemon
    assert daemon is not None
    daemon.agent = wait_for_cancel
    session = daemon.new_session("known")
    served.soon(daemon.start_turn, session, "long")
    assert run(served, cancel, "known", "--transport", transport).exit_code == 0
    assert run(served, attach, "--help").exit_code == 0
    assert session.turns == [] or session.turns[0].cancelled.is_set()


def test_nobody_there() -> None:
    result = CliRunner().invoke(sessions, ["--url", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.output.startswith("moorline: ")


def test_terminals_are_not_steered() -> None:
    """Text of an agent cannot move the cursor, hide text or change the title."""
    assert harmless("a\x1b]0;x\x07\u202eb\u200bc\n\td\r") == "a]0;xbc\n\td"


def test_lines_for_every_kind_of_event(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer()

    def update(kind: str, **fields: Any) -> Event:
        return Event("session_update", {"update": {"sessionUpdate": kind, **fields}})

    for event in (
        update("agent_thought_chunk", content={"text": "hm"}),
        update("tool_call", title="Shell", status="pending"),
        update("tool_call_update", toolCallId="t"),
        update("plan", entries=[{"content": "first"}]),
        update("unknown"),
        Event("permission_resolved", {"outcome": {"outcome": "cancelled"}}),
        Event("state_resync_required", {"reason": "ring_evicted"}),
        Event("session_died", {"reason": "crash"}),
        Event("turn_error", {"message": "boom"}),
        Event("never_heard_of", None),
    ):
        printer.show(event)
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        "hm",
        "* Shell pending",
        "* t",
        "* plan",
        "  first",
        "? cancelled",
        "-- events are missing here (ring_evicted)",
        "-- session_died: crash",
        "-- failed: boom",
    ]
    assert json.loads(as_json(Event("x", {"a": 1}, 3, prompt_id="p"))) == {
        "id": 3,
        "type": "x",
        "data": {"a": 1},
        "promptId": "p",
    }


def command(*arguments: str) -> subprocess.Popen[str]:
    code = "from server.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.process
def test_ctrl_c_cancels_the_prompt(served: Background) -> None:
    """CLI-002: an interrupted command cancels its turn and exits as shells expect."""
    daemon = served.daemon
    assert daemon is not None
    daemon.agent = wait_for_cancel
    process = command("prompt", "long", "--url", served.url)
    assert process.stdout is not None
    assert process.stdout.readline() == "> long\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    process.stdout.close()
    session = next(iter(daemon.sessions.values()))
    deadline = time.monotonic() + 5
    while session.turns and time.monotonic() < deadline:
        time.sleep(0.01)
    assert session.turns == []


@pytest.mark.process
def test_a_reader_that_has_seen_enough(served: Background) -> None:
    """A closed pipe ends the command without a traceback."""
    assert served.daemon is not None
    for number in range(3000):
        served.daemon.new_session(f"session-{number}")
    process = command("sessions", "--url", served.url, "--size", "1000")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(20) == 141
