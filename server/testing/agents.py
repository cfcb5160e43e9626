"""A scripted agent for simulations: what it says is a function of the prompt, so an oracle can know it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import trio

from sessions import (
    Capabilities,
    Operation,
    PermissionOutcome,
    PromptRequest,
    SessionHost,
    SessionSpec,
    StoredSession,
    TurnResult,
)
from sessions.errors import RunnerError

__all__ = ["ScriptedAgent", "Turn"]


@attrs.frozen(slots=True)
class Turn:
    """What one prompt makes the agent do. Written into the prompt as ``name k=v …``; see `Turn.words`."""

    name: str
    chunks: int = 3
    size: int = 8
    """Characters per chunk."""
    pause: float = 0.0
    """Seconds before each chunk."""
    ask: bool = False
    """Ask for permission in the middle, and say which option was chosen."""
    fail: bool = False
    """End with an agent's error instead of ``end_turn``."""

    def words(self) -> str:
        """The prompt text."""
        flags = "".join(f" {flag}" for flag in ("ask", "fail") if getattr(self, flag))
        return f"{self.name} chunks={self.chunks} size={self.size} pause={self.pause}{flags}"

    @classmethod
    def of(cls, words: str) -> Turn:
        """The inverse of `words`. Raises ``ValueError`` for text that is none."""
        name, *rest = words.split()
        values: dict[str, Any] = {}
        for each in rest:
            key, _, value = each.partition("=")
            if key in ("ask", "fail"):
                values[key] = True
            elif key == "pause":
                values[key] = float(value)
            elif key in ("chunks", "size"):
                values[key] = int(value)
            else:
                raise ValueError(f"not a word of a scripted turn: {each!r}")
        return cls(name, **values)

    def text(self, number: int) -> str:
        """What chunk ``number`` says."""
        return f"{self.name}.{number}.".ljust(self.size, "x")


@attrs.define(eq=False)
class ScriptedAgent:
    """A `sessions.Runner`. ``ran`` lists the prompt names in the order they started: each name once, or a prompt ran twice."""

    rng: random.Random
    load: bool = True
    ran: list[str] = attrs.field(factory=list)
    answers: dict[str, PermissionOutcome] = attrs.field(factory=dict)
    """Permission outcomes by prompt name."""
    name: str = "scripted"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def capabilities(self) -> Capabilities:
        await trio.lowlevel.checkpoint()
        return Capabilities(load_session=self.load, resume_session=self.load)

    async def start_session(self, spec: SessionSpec, host: SessionHost) -> _ScriptedSession:
        await trio.lowlevel.checkpoint()
        host.bind(spec.agent_session_id or f"scripted-{self.rng.getrandbits(64):016x}")
        return _ScriptedSession(self, host)

    async def list_sessions(self, cwd: str) -> Sequence[StoredSession]:
        await trio.lowlevel.checkpoint()
        return ()


class _ScriptedSession:
    def __init__(self, agent: ScriptedAgent, host: SessionHost) -> None:
        self._agent = agent
        self._host = host
        self._mode = "default"

    def state(self) -> Mapping[str, Any]:
        modes = [{"id": each, "name": each.title()} for each in ("plan", "default", "yolo")]
        return {"modes": {"currentModeId": self._mode, "availableModes": modes}}

    async def run(self, operation: Operation) -> TurnResult:
        request = operation.request
        assert isinstance(request, PromptRequest)
        turn = Turn.of(request.text())
        self._agent.ran.append(turn.name)
        for number in range(turn.chunks):
            if turn.pause:
                await trio.sleep(turn.pause)
            if turn.ask and number == turn.chunks // 2:
                await self._ask(turn)
            self._say(turn.text(number))
            if number % 16 == 15:
                await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        if turn.fail:
            raise RunnerError("Internal error", -32603, {"details": f"{turn.name} was to fail"})
        return TurnResult()

    async def _ask(self, turn: Turn) -> None:
        options = [{"optionId": each, "name": each, "kind": "allow_once"} for each in ("yes", "no")]
        outcome = await self._host.ask_permission({"toolCallId": turn.name, "title": turn.name}, options)
        self._agent.answers[turn.name] = outcome

    def _say(self, text: str) -> None:
        self._host.update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})

    async def set_model(self, model_id: str) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        return {}

    async def set_mode(self, mode_id: str) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        self._mode = mode_id
        return {}

    async def set_config_option(self, config_id: str, value: str) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"configOptions": []}

    async def extension(self, method: str, params: Mapping[str, Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return {}

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
