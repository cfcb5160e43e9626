"""A runner for engine tests: turns are plain async functions, looked up by the first word of the prompt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs
import trio

from sessions import Capabilities, Operation, SessionHost, SessionSpec, StoredSession, TurnResult
from sessions.errors import RunnerError

Script = Callable[["FakeSession", Operation], Awaitable[TurnResult | None]]


@attrs.define
class FakeSession:
    runner: FakeRunner
    spec: SessionSpec
    host: SessionHost
    mode: str = "default"
    model: str = "small"
    closed: bool = False

    def state(self) -> Mapping[str, Any]:
        return {
            "modes": {"currentModeId": self.mode, "availableModes": [{"id": "default", "name": "Default"}]},
            "models": {"currentModelId": self.model, "availableModels": []},
        }

    async def run(self, operation: Operation) -> TurnResult:
        self.runner.started.append(operation)
        script = self.runner.script(operation)
        result = await script(self, operation)
        return result or TurnResult()

    async def set_model(self, model_id: str) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        if model_id == "unknown":
            raise RunnerError("Internal error", -32603, {"details": "no such model"})
        self.model = model_id
        return {}

    async def set_mode(self, mode_id: str) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        self.mode = mode_id
        return {}

    async def set_config_option(self, config_id: str, value: str) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"configOptions": [{"id": config_id, "currentValue": value}]}

    async def extension(self, method: str, params: Mapping[str, Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return {"method": method, "params": params}

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed = True

    def say(self, text: str) -> None:
        self.host.update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})


async def echo(session: FakeSession, operation: Operation) -> TurnResult | None:
    """Say the prompt back."""
    await trio.lowlevel.checkpoint()
    session.say(operation.request.text())
    return None


async def hold(session: FakeSession, operation: Operation) -> TurnResult | None:
    """Run until cancelled."""
    await trio.sleep_forever()


async def fail(session: FakeSession, operation: Operation) -> TurnResult | None:
    """An agent's error."""
    await trio.lowlevel.checkpoint()
    raise RunnerError("Internal error", -32603, {"details": "400 upstream failure"})


async def crash(session: FakeSession, operation: Operation) -> TurnResult | None:
    """A programming error behind the port."""
    await trio.lowlevel.checkpoint()
    raise ZeroDivisionError("bug")


async def ask(session: FakeSession, operation: Operation) -> TurnResult | None:
    """Ask for permission with options ``a`` and ``b``, and tell the answer."""
    outcome = await session.host.ask_permission(
        {"toolCallId": "t1", "title": "do it"},
        [{"optionId": each, "name": each, "kind": "allow_once"} for each in ("a", "b")],
    )
    session.say(f"answer: {outcome.option_id}")
    return None


SCRIPTS: dict[str, Script] = {"hold": hold, "fail": fail, "crash": crash, "ask": ask}


@attrs.define
class FakeRunner:
    name: str = "fake"
    answers: Capabilities = attrs.field(factory=lambda: Capabilities(load_session=True))
    start_error: Exception | None = None
    start_delay: float = 0.0
    agent_ids: bool = False
    scripts: dict[str, Script] = attrs.field(factory=lambda: dict(SCRIPTS))
    started: list[Operation] = attrs.field(factory=list)
    sessions: list[FakeSession] = attrs.field(factory=list)
    stored: list[StoredSession] = attrs.field(factory=list)
    running: bool = False

    def script(self, operation: Operation) -> Script:
        text = operation.request.text() if hasattr(operation.request, "text") else ""
        return self.scripts.get(text.split(" ")[0], echo)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.running = True
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            self.running = False

    async def capabilities(self) -> Capabilities:
        await trio.lowlevel.checkpoint()
        return self.answers

    async def start_session(self, spec: SessionSpec, host: SessionHost) -> FakeSession:
        await trio.sleep(self.start_delay)
        if self.start_error is not None:
            raise self.start_error
        host.bind(spec.agent_session_id or f"agent-{len(self.sessions)}")
        session = FakeSession(self, spec, host)
        self.sessions.append(session)
        return session

    async def list_sessions(self, cwd: str) -> Sequence[StoredSession]:
        await trio.lowlevel.checkpoint()
        return self.stored
