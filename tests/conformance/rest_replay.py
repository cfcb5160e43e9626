"""Replays the REST part of a recorded exchange against a running moorline and compares by meaning.

What the recording has must be there with the same meaning; further fields are allowed. Identities (sessions, clients,
prompts, requests, epochs) are learned where they first turn up and must stay the same from then on. Times only have to be
times. Event ids are compared, because the agent here says what the recorded one said, event by event.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from sessions import Operation, SessionHost, SessionSpec, TurnResult
from sessions.errors import RunnerError
from tests.server.rest.api import Api, Frame, Frames
from tests.server.rest.runner import RestRunner
from tests.support.fake_runner import FakeSession

__all__ = ["RecordedAgent", "RestReplay", "load"]

VECTORS: Final = Path(__file__).parents[1] / "vectors" / "acp-transcripts"
UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ISO: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
MODES: Final = ("plan", "default", "auto-edit", "auto", "yolo")
TIMES: Final = frozenset({"serverTimestamp", "queuedAt", "cancelledAt", "elapsedMs", "lastSeenAt", "at", "durationMs"})
OWN: Final = frozenset({"branchPoint", "models", "modes", "configOptions", "state", "toolCall"})
"""The recorded product's own matter, or its agent's."""
USAGE: Final = {
    "inputTokens": 10,
    "outputTokens": 5,
    "totalTokens": 15,
    "thoughtTokens": 0,
    "cachedReadTokens": 0,
}
HEADERS: Final = ("content-type", "retry-after", "cache-control", "x-accel-buffering", "vary")


def load(number: str) -> list[dict[str, Any]]:
    """The steps of transcript ``number`` that are REST's."""
    (path,) = VECTORS.glob(f"{number}-*.json")
    steps: list[dict[str, Any]] = msgspec.json.decode(path.read_bytes())["steps"]
    return [step for step in steps if " /acp " not in step["request"]["line"]]


class RecordedAgent(RestRunner):
    """Says what the recorded agent said: ``say hello``, ``FAILNOW``, ``SLOWnxm``, ``TOOL``."""

    commands_at_start = False
    """The recorded agent told its commands when a session was made over /acp, and in the first turn otherwise."""

    async def start_session(self, spec: SessionSpec, host: SessionHost) -> FakeSession:
        await trio.lowlevel.checkpoint()
        session = _RecordedSession(self, spec, host, mode="auto", model="$runtime|openai|fake-model(openai)")
        host.bind(f"agent-{len(self.sessions)}")
        self.sessions.append(session)
        if self.commands_at_start:
            session.tell_commands()
        return session

    def script(self, operation: Operation) -> Any:
        text = operation.request.text()
        if match := re.match(r"SLOW(\d+)x(\d+)", text):
            return _slow(int(match[1]), int(match[2]) / 1000)
        return {"FAILNOW": _fail, "TOOL": _tool}.get(text.split(" ")[0], _hello)


class _RecordedSession(FakeSession):
    told = False

    def state(self) -> dict[str, Any]:
        return {
            "models": {"currentModelId": self.model, "availableModels": []},
            "modes": {"currentModeId": self.mode, "availableModes": [{"id": name, "name": name} for name in MODES]},
        }

    async def set_model(self, model_id: str) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        raise RunnerError("Internal error", -32603, {"details": f"Model '{model_id}' not found for authType 'openai'"})

    def tell_commands(self) -> None:
        if not self.told:
            self.told = True
            commands = {"availableCommands": [], "_meta": {"elided": True}}
            self.host.update({"sessionUpdate": "available_commands_update", **commands})

    def tell_usage(self) -> None:
        self.host.update(
            {
                "_meta": {"usage": USAGE, "durationMs": 1},
                "content": {"text": "", "type": "text"},
                "sessionUpdate": "agent_message_chunk",
            }
        )


async def _hello(session: _RecordedSession, _: Operation) -> TurnResult | None:
    session.tell_commands()
    for word in ("Hello", " from", " the", " fake", " model."):
        session.say(word)
    session.tell_usage()
    await trio.lowlevel.checkpoint()
    return None


async def _fail(session: _RecordedSession, _: Operation) -> TurnResult | None:
    await trio.lowlevel.checkpoint()
    raise RunnerError("Internal error", -32603, {"details": "400 fake upstream failure"})


def _slow(count: int, pause: float) -> Callable[[_RecordedSession, Operation], Awaitable[TurnResult | None]]:
    async def run(session: _RecordedSession, _: Operation) -> TurnResult | None:
        for number in range(1, count + 1):
            await trio.sleep(pause)
            session.say(f"w{number} ")
        session.tell_usage()
        return None

    return run


async def _tool(session: _RecordedSession, operation: Operation) -> TurnResult | None:
    kinds = {"proceed_always_project": "allow_always", "proceed_once": "allow_once", "cancel": "reject_once"}
    await session.host.ask_permission(
        {"toolCallId": "call_1", "title": "touch"},
        [{"optionId": option, "name": option, "kind": kind} for option, kind in kinds.items()],
    )
    return await _hello(session, operation)


class RestReplay:
    """One transcript on one application."""

    def __init__(self, api: Api, number: str) -> None:
        self.api = api
        self.steps = load(number)
        self.names: dict[str, str] = {}
        """Identities: recorded to ours."""
        self.pauses: dict[int, float] = {}
        """Seconds before a step; a moment by default."""
        self.preludes: dict[int, Callable[[], Awaitable[None]]] = {}
        """What happened before a step and was not recorded as REST."""
        self.skip: set[int] = set()
        self.edits: dict[int, Callable[[Any], Any]] = {}
        """What a body, or the list of a stream's envelopes, has to be where something else decides."""
        self._streams: list[tuple[dict[str, Any], Frames]] = []

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            for step in self.steps:
                number = int(step["step"])
                if number in self.skip:
                    continue
                await trio.sleep(self.pauses.get(number, 0.05))
                if number in self.preludes:
                    await self.preludes[number]()
                if step["kind"] == "sse":
                    await self._open(stack, step)
                else:
                    await self._call(number, step)
            await trio.sleep(0.1)
            for step, frames in self._streams:
                await self._compare_stream(step, frames)

    # Requests

    def ours(self, text: str) -> str:
        return UUID.sub(lambda match: self.names.get(match[0], match[0]), text)

    def _request(self, step: dict[str, Any]) -> tuple[str, str, list[tuple[str, str]]]:
        method, path, _ = step["request"]["line"].split(" ")
        path = path.replace("%2Fwork%2Fproject", "%2Fhome%2Fproject")
        headers = [(name, self.ours(value)) for name, value in step["request"]["headers"]]
        wanted = [(name, value) for name, value in headers if name.lower() not in ("host", "content-length")]
        return method, self.ours(path), wanted

    async def _call(self, number: int, step: dict[str, Any]) -> None:
        method, path, headers = self._request(step)
        text = step["request"]["body"]
        body = b"" if text is None else self.ours(text).encode()
        if text is not None and text.startswith("<10.5 MB"):
            body = b'{"x":"' + b"x" * 10_500_000 + b'"}'
        reply = await self.api.call(method, path, body, headers)
        response = step["response"]
        where = f"step {number} ({step['note']})"
        assert reply.status == int(response["status_line"].split(" ")[1]), (where, reply)
        self._compare_headers(response["headers"], reply.headers, where)
        if not response["body"]:
            assert reply.body == b"", where
            return
        recorded = self._value(response["body"])
        if number in self.edits:
            recorded = self.edits[number](recorded)
        self.compare(recorded, self._value(reply.body.decode()), where)

    def _value(self, text: str) -> Any:
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text

    async def _open(self, stack: AsyncExitStack, step: dict[str, Any]) -> None:
        _, path, headers = self._request(step)
        path, _, query = path.partition("?")
        session_id = path.split("/")[2]
        opened = self.api.events(session_id, f"?{query}" if query else "", headers, window=1000)
        frames = await stack.enter_async_context(opened)
        self._compare_headers(step["response"]["headers"], frames.headers, f"stream of step {step['step']}")
        self._streams.append((step, frames))

    def _compare_headers(self, recorded: list[list[str]], ours: dict[str, str], where: str) -> None:
        given = {name.lower(): value for name, value in recorded}
        for name in HEADERS:
            if name in given and "text/html" not in given[name]:
                assert ours.get(name) == given[name], (where, name)
        for name in ("x-qwen-event-epoch", "x-qwen-sse-stream-id"):
            if name in given:
                self.compare(given[name], ours.get(name), f"{where} {name}")

    # Streams

    async def _compare_stream(self, step: dict[str, Any], frames: Frames) -> None:
        where = f"stream of step {step['step']}"
        recorded = [
            Frame(raw.encode()) for raw in step["response"]["sse"].split("\n\n") if raw.startswith(("id", "event"))
        ]
        values = [frame.value for frame in recorded]
        if int(step["step"]) in self.edits:
            values = self.edits[int(step["step"])](values)
        shown = []
        for value in values:
            frame = await frames.next()
            has_id = "id" in value
            assert frame.names == (["id", "event", "data"] if has_id else ["event", "data"]), where
            assert frame.field("event") == frame.type
            assert frame.id == frame.value.get("id")
            shown.append(frame.value)
        for index, (value, own) in enumerate(zip(values, shown, strict=True)):
            self.compare(value, own, f"{where}, frame {index}")
        if step["response"]["stream_closed_by"] == "server":
            assert await frames.rest() == [], where

    # Meaning

    def compare(self, recorded: Any, ours: Any, where: str) -> None:
        """Raises ``AssertionError`` saying where the two differ."""
        if isinstance(recorded, dict):
            assert isinstance(ours, dict), (where, ours)
            for key, value in recorded.items():
                if key in OWN:
                    continue
                assert key in ours, (where, key, ours)
                if key in TIMES:
                    assert isinstance(ours[key], int), (where, key)
                else:
                    self.compare(value, ours[key], f"{where} {key}")
        elif isinstance(recorded, list):
            assert isinstance(ours, list), (where, ours)
            assert len(recorded) == len(ours), (where, recorded, ours)
            for index, (value, own) in enumerate(zip(recorded, ours, strict=True)):
                self.compare(value, own, f"{where}[{index}]")
        elif isinstance(recorded, str):
            self._compare_text(recorded, ours, where)
        else:
            assert recorded == ours, (where, recorded, ours)

    def _compare_text(self, recorded: str, ours: Any, where: str) -> None:
        assert isinstance(ours, str), (where, ours)
        if ISO.fullmatch(recorded):
            assert ISO.fullmatch(ours), (where, ours)
            return
        ids, own = UUID.findall(recorded), UUID.findall(ours)
        assert len(ids) == len(own), (where, recorded, ours)
        for theirs, mine in zip(ids, own, strict=True):
            known = self.names.setdefault(theirs, mine)
            assert known == mine, (where, recorded, ours)
        assert UUID.sub("*", recorded) == UUID.sub("*", ours), (where, recorded, ours)
