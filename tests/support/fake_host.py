"""A `SessionHost` that writes down what a runner does, and a few lines to run one operation by hand."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from sessions.operation import Operation, PromptRequest
from sessions.runner import PermissionOutcome, Runner, RunnerSession, SessionSpec, TurnResult

__all__ = ["FakeHost", "prompt", "run_prompt", "running", "texts"]

_numbers = itertools.count(1)


class FakeHost:
    """Everything published, in order; permission questions are answered with `answer`, or wait while it is None."""

    def __init__(self, cwd: str = "/", *, answer: str | None = "allow", wants_history: bool = True) -> None:
        self.session_id = f"public-{next(_numbers)}"
        self.cwd = cwd
        self.wants_history = wants_history
        self.agent_session_id: str | None = None
        self.updates: list[Any] = []
        self.raw_updates: list[bytes] = []
        self.extras: list[dict[str, Any]] = []
        self.events: list[tuple[str, Any]] = []
        self.questions: list[tuple[Any, list[Any], Any]] = []
        self.deaths: list[tuple[str, int | None, str | None]] = []
        self.asked = trio.Event()
        self.answer = answer
        self.outcome: PermissionOutcome | None = None
        self.keep = True
        self.count = 0
        self._changed = trio.Event()

    def bind(self, agent_session_id: str) -> str:
        assert not self.updates, "published before bind"
        self.agent_session_id = agent_session_id
        return self.session_id

    def publish(self, type: str, data: Mapping[str, Any] | msgspec.Raw, *, prompt_id: str | None = None) -> None:
        encoded = bytes(data) if isinstance(data, msgspec.Raw) else msgspec.json.encode(data)
        self.events.append((type, msgspec.json.decode(encoded)))
        self._tell()

    def update(self, update: Mapping[str, Any] | msgspec.Raw, extra: Mapping[str, msgspec.Raw] | None = None) -> None:
        self.count += 1
        if self.keep:
            encoded = bytes(update) if isinstance(update, msgspec.Raw) else msgspec.json.encode(update)
            assert b"\n" not in encoded
            assert b"\r" not in encoded
            encoded.decode()
            self.raw_updates.append(encoded)
            self.updates.append(msgspec.json.decode(encoded))
            if extra:
                self.extras.append({key: msgspec.json.decode(value) for key, value in extra.items()})
        self._tell()

    async def ask_permission(
        self,
        tool_call: Mapping[str, Any] | msgspec.Raw,
        options: Sequence[Mapping[str, Any]],
        *,
        meta: Mapping[str, Any] | None = None,
    ) -> PermissionOutcome:
        call = msgspec.json.decode(tool_call) if isinstance(tool_call, msgspec.Raw) else dict(tool_call)
        self.questions.append((call, list(options), meta))
        self.updates.append({"asked": call})
        self.asked.set()
        if self.outcome is not None:
            return self.outcome
        while self.answer is None:
            await self._change()
        return PermissionOutcome(self.answer) if self.answer else PermissionOutcome()

    def died(self, reason: str, *, exit_code: int | None = None, signal: str | None = None) -> None:
        self.deaths.append((reason, exit_code, signal))
        self._tell()

    def decide(self, answer: str) -> None:
        """Answer the open question; the empty string cancels."""
        self.answer = answer
        self._tell()

    async def wait_for(self, condition: Callable[[], object], within: float = 10.0) -> None:
        """Wait until something published makes the condition true."""
        with trio.fail_after(within):
            while not condition():
                await self._change()

    async def _change(self) -> None:
        await self._changed.wait()

    def _tell(self) -> None:
        old, self._changed = self._changed, trio.Event()
        old.set()


def texts(host: FakeHost, kind: str = "agent_message_chunk") -> list[str]:
    """The texts of the chunks of one kind, in order."""
    return [update["content"]["text"] for update in host.updates if update.get("sessionUpdate") == kind]


def prompt(text: str, **fields: Any) -> Operation:
    return Operation(f"prompt-{next(_numbers)}", PromptRequest([{"type": "text", "text": text}], **fields))


async def run_prompt(session: RunnerSession, text: str, within: float = 20.0) -> TurnResult:
    with trio.fail_after(within):
        return await session.run(prompt(text))


@asynccontextmanager
async def running(runner: Runner) -> AsyncIterator[Runner]:
    """The runner's background, for the length of the block."""
    async with trio.open_nursery() as nursery:
        await nursery.start(runner.run)
        yield runner
        nursery.cancel_scope.cancel()


async def open_session(runner: Runner, host: FakeHost, **spec: Any) -> RunnerSession:
    with trio.fail_after(20):
        return await runner.start_session(SessionSpec(host.cwd, **spec), host)
