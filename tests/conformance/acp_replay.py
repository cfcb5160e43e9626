"""Replays a recorded exchange against a running moorline and compares by meaning: ids and times aside.

Identities of the recording (connections, sessions, prompts, questions) are learned as they turn up and must stay the same
from then on. Fields the recording has must be there with the same meaning; further fields are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import trio

from sessions import Operation, SessionHost, SessionSpec, TurnResult
from sessions.errors import RunnerError
from tests.support.acp import AcpClient, Frame, Place, parse_frame
from tests.support.fake_runner import FakeRunner, FakeSession

__all__ = ["Expected", "RecordedRunner", "Replay", "load"]

VECTORS: Final = Path(__file__).parents[1] / "vectors" / "acp-transcripts"
UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
RECORDED_PORT: Final = re.compile(r":4\d{4}\b")
IGNORED: Final = frozenset(
    {
        "serverTimestamp", "queuedAt", "cancelledAt", "elapsedMs", "lastSeenAt", "createdAt", "updatedAt", "durationMs",
        "qwen.branchPoint", "branchPoint", "configOptions", "models", "modes", "methods", "imageCapability",
        "earliestAvailableId", "lastDeliveredId", "lastReplayedEventId", "lastEventId", "replayedCount", "earliest",
        "toolCall", "options", "workspaceCwd", "cwd", "displayName", "title", "usage", "error", "details",
    }
)  # fmt: skip
"""Times; what is the recorded product's own; numbers that count its events (checked against the stream instead)."""
SETTLE: Final = 0.005
"""Seconds of virtual time a step gets: more than any answer takes, less than the recorded agent's pauses."""
PRODUCT_KINDS: Final = frozenset({"available_commands_update", "followup_suggestion"})
"""Frames the recorded agent sends by itself, at its own moments."""


def load(number: str) -> list[dict[str, Any]]:
    """The steps of transcript ``number``."""
    (path,) = VECTORS.glob(f"{number}-*.json")
    steps: list[dict[str, Any]] = msgspec.json.decode(path.read_bytes())["steps"]
    return [step for step in steps if "request" in step]


def _is_product_frame(frame: Frame) -> bool:
    if frame.kind in PRODUCT_KINDS:
        return True
    if frame.kind in ("agent_message_chunk", "tool_call", "tool_call_update"):
        update = frame.message["params"]["update"]
        # Usage figures ride on empty chunks; tool calls are told by the recorded agent in its own way.
        return frame.kind != "agent_message_chunk" or update["content"]["text"] == ""
    return False


@attrs.define
class Expected:
    """The frames of one recorded stream that have a meaning here."""

    frames: list[Frame]
    closed_by: str

    @classmethod
    def of(cls, response: dict[str, Any]) -> Expected:
        frames = []
        for block in response["sse"].split("\n\n"):
            if "data: " not in block:
                continue
            frame = parse_frame(block.strip("\n").encode())
            if frame is not None and not _is_product_frame(frame):
                frames.append(frame)
        return cls(frames, response["stream_closed_by"])


class RecordedRunner(FakeRunner):
    """Behaves like the recorded agent: ``say``, ``SLOWnxm`` (n words, one every m ms), ``TOOL`` (asks)."""

    async def start_session(self, spec: SessionSpec, host: SessionHost) -> FakeSession:
        known = [f"agent-{number}" for number in range(len(self.sessions))]
        if spec.start == "load" and spec.agent_session_id not in known:
            raise RunnerError("Resource not found", -32002)
        session = _RecordedSession(self, spec, host)
        session.mode = "auto"
        host.bind(spec.agent_session_id or f"agent-{len(self.sessions)}")
        self.sessions.append(session)
        await trio.lowlevel.checkpoint()
        host.update({"sessionUpdate": "available_commands_update", "availableCommands": []})
        return session

    def script(self, operation: Operation) -> Any:
        words = operation.request.text().split(" ")[0]
        if match := re.match(r"SLOW(\d+)x(\d+)", words):
            return _slow(int(match[1]), int(match[2]) / 1000)
        return _tool if words == "TOOL" else _hello


class _RecordedSession(FakeSession):
    def state(self) -> dict[str, Any]:
        names = ("plan", "default", "auto-edit", "auto", "yolo")
        return {
            "modes": {
                "currentModeId": self.mode,
                "availableModes": [{"id": name, "name": name} for name in names],
            }
        }

    async def set_model(self, model_id: str) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        raise RunnerError("Internal error", -32603, {"details": f"Model '{model_id}' not found for authType 'openai'"})

    async def set_config_option(self, config_id: str, value: str) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        self.mode = value
        return {"configOptions": []}


async def _hello(session: FakeSession, _: Operation) -> TurnResult | None:
    await trio.lowlevel.checkpoint()
    for word in ("Hello", " from", " the", " fake", " model."):
        session.say(word)
    return _end(session)


def _end(session: FakeSession) -> TurnResult:
    """The recorded agent tells its usage on an empty chunk, and a point to branch from with the result."""
    session.say("")
    return TurnResult(meta={"qwen.branchPoint": {}})


def _slow(count: int, pause: float) -> Any:
    async def run(session: FakeSession, _: Operation) -> TurnResult | None:
        for number in range(1, count + 1):
            await trio.sleep(pause)
            session.say(f"w{number} ")
        return _end(session)

    return run


async def _tool(session: FakeSession, operation: Operation) -> TurnResult | None:
    kinds = {"proceed_always_project": "allow_always", "proceed_once": "allow_once", "cancel": "reject_once"}
    await session.host.ask_permission(
        {"toolCallId": "call_1", "title": "touch"},
        [{"optionId": option, "name": option, "kind": kind} for option, kind in kinds.items()],
    )
    return await _hello(session, operation)


class Replay:
    """One transcript on one place."""

    def __init__(self, place: Place, number: str) -> None:
        self.place = place
        self.steps = load(number)
        self.names: dict[str, str] = {}
        """Identities: recorded to ours."""
        self.cursors: dict[str, dict[int, int]] = {}
        """Event ids by recorded session: recorded to ours."""
        self.streams: dict[int, _Stream] = {}
        self.skip: set[int] = set()
        self.pauses: dict[int, float] = {}
        """Seconds before a step."""
        self.edit: dict[int, Callable[[list[Frame]], list[Frame]]] = {}
        """What a stream has to show instead, where the specification decides otherwise."""
        self.preludes: dict[int, Callable[[Replay], Any]] = {}
        """What happened before a step and was not recorded."""
        self.extra_kinds: dict[int, set[str]] = {}
        """Kinds a stream of ours may show besides."""
        self.open_ended: set[int] = set()
        """Streams of which only the beginning is compared."""
        self.bodies: set[int] = set()
        """Steps whose body is not compared."""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for step in self.steps:
                number = int(step["step"])
                if number in self.skip:
                    continue
                await trio.sleep(self.pauses.get(number, 0))
                if number in self.preludes:
                    await self.preludes[number](self)
                if step["kind"] == "http":
                    await self._http(number, step)
                elif step["request"]["line"].startswith("GET /acp"):
                    await self._open(nursery, number, step)
                await trio.sleep(SETTLE)
            for stream in self.streams.values():
                await stream.finish()

    # Translation

    def ours(self, text: str) -> str:
        """A recorded text with our identities in it."""
        return UUID.sub(lambda match: self.names.get(match[0], match[0]), text)

    async def _meet(self, headers: dict[str, str]) -> None:
        """Connections and sessions that were made before the recording began."""
        connection = headers.get("acp-connection-id")
        if (
            connection
            and UUID.fullmatch(connection)
            and connection not in self.names
            and not connection.startswith("0000")
        ):
            self.names[connection] = (await self.place.connect()).connection_id
        session = headers.get("acp-session-id")
        if session and session not in self.names and not session.startswith("00000000"):
            before = {each.id for each in self.place.harbour.sessions}
            assert connection is not None
            await self.client(connection).call("session/new", {"cwd": "/tmp"}, id=2)
            await trio.sleep(0.05)
            (self.names[session],) = {each.id for each in self.place.harbour.sessions} - before

    def client(self, recorded_connection: str) -> AcpClient:
        client = AcpClient(self.place.driver)
        client.connection_id = self.names[recorded_connection]
        return client

    def _headers(self, step: dict[str, Any], session: str | None = None) -> list[tuple[str, str]]:
        found = []
        for name, value in step["request"]["headers"]:
            lower = name.lower()
            if lower in ("content-length", "connection", "authorization"):
                continue
            if lower in ("host", "origin"):
                value = RECORDED_PORT.sub(":4170", value)
            if lower == "last-event-id" and session is not None and value.isdigit():
                value = str(self._cursor(session, int(value)))
            found.append((name, self.ours(value)))
        return found

    def _cursor(self, session: str, recorded: int) -> int:
        known = self.cursors.get(session, {})
        below = [each for each in known if each <= recorded]
        # Frames of the recorded product have no counterpart here: go on after the last one that has.
        return known[max(below)] if below and recorded <= max(known) else recorded

    # Steps

    async def _http(self, number: int, step: dict[str, Any]) -> None:
        headers = {name.lower(): value for name, value in step["request"]["headers"]}
        await self._meet(headers)
        method, path, _ = step["request"]["line"].split(" ")
        body = self.ours(step["request"].get("body") or "").replace("/home/project", "/tmp")
        reply = await self.place.driver.request(
            method, self.ours(path), body=body.encode(), headers=self._headers(step)
        )
        expected = step["response"]
        status = int(expected["status_line"].split(" ")[1])
        assert reply.status == status, (number, step["note"], reply)
        for name, value in expected["headers"]:
            if name.lower() == "acp-connection-id":
                self.names[value] = reply.headers["acp-connection-id"]
            elif name.lower() in ("retry-after", "vary"):
                assert reply.headers[name.lower()] == value, (number, name)
        if number in self.bodies:
            return
        if expected.get("body", "").startswith(("{", "[")):
            self.same(msgspec.json.decode(expected["body"]), reply.json(), f"step {number}")
        elif not expected.get("body"):
            assert reply.body == b"", (number, reply)

    async def _open(self, nursery: trio.Nursery, number: int, step: dict[str, Any]) -> None:
        headers = {name.lower(): value for name, value in step["request"]["headers"]}
        key = (headers.get("acp-connection-id"), headers.get("acp-session-id"))
        for other in self.streams.values():
            if other.key == key and other.expected.closed_by == "client" and not other.complete.is_set():
                with trio.fail_after(120):
                    await other.complete.wait()
        await self._meet(headers)
        expected = Expected.of(step["response"])
        if number in self.edit:
            expected.frames = self.edit[number](expected.frames)
        stream = _Stream(self, number, key, expected)
        self.streams[number] = stream
        await nursery.start(stream.run, self._headers(step, headers.get("acp-session-id")), step)

    # Comparison

    def same(self, recorded: Any, ours: Any, where: str) -> None:
        """Everything the recording says is said, with the identities that belong to it."""
        if isinstance(recorded, dict):
            assert isinstance(ours, dict), (where, recorded, ours)
            for key, value in recorded.items():
                if _is_ignored(key, value):
                    continue
                assert key in ours, (where, key, recorded, ours)
                self.same(value, ours[key], f"{where}.{key}")
        elif isinstance(recorded, list):
            assert len(recorded) == len(ours), (where, recorded, ours)
            for index, value in enumerate(recorded):
                self.same(value, ours[index], f"{where}[{index}]")
        elif isinstance(recorded, str):
            self._same_text(recorded, ours, where)
        else:
            assert recorded == ours, (where, recorded, ours)

    def _same_text(self, recorded: str, ours: Any, where: str) -> None:
        assert isinstance(ours, str), (where, recorded, ours)
        mine, theirs = UUID.findall(ours), UUID.findall(recorded)
        assert len(mine) == len(theirs), (where, recorded, ours)
        for one, other in zip(theirs, mine, strict=True):
            if not one.startswith("00000000"):
                assert self.names.setdefault(one, other) == other, (where, recorded, ours)
        if where.endswith(".message") and "Workspace mismatch" in recorded:
            assert "Workspace mismatch" in ours
            return
        if recorded.startswith("_qwen_perm_"):
            assert ours.startswith("_qwen_perm_")
            assert self.names.setdefault(recorded, ours) == ours
            return
        assert UUID.sub("", recorded).replace("/home/project", "/tmp") == UUID.sub("", ours), (where, recorded, ours)


def _is_ignored(key: str, value: Any) -> bool:
    """Also a ``_meta`` with nothing in it but what is ignored."""
    if key == "error" and isinstance(value, dict):
        return False
    return key in IGNORED or (
        key == "_meta" and isinstance(value, dict) and all(map(_is_ignored, value, value.values()))
    )


class _Stream:
    """One recorded stream while it is being replayed."""

    def __init__(self, replay: Replay, number: int, key: tuple[Any, Any], expected: Expected) -> None:
        self.key = key
        self.expected = expected
        self.complete = trio.Event()
        self._replay = replay
        self._number = number
        self._frames: list[Frame] = []
        self._ids: list[int] = []
        self._ended = trio.Event()

    async def run(  # noqa: ASYNC114  # started by `Replay`, which waits for the stream's head
        self, headers: list[tuple[str, str]], step: dict[str, Any], *, task_status: trio.TaskStatus[None]
    ) -> None:
        async with self._replay.place.driver.stream("GET", "/acp", headers=headers, window=10_000) as stream:
            head = await stream.head()
            assert head.status == 200, (self._number, head, await stream.rest())
            recorded = {name.lower() for name, _ in step["response"]["headers"]}
            assert ("x-qwen-event-epoch" in recorded) == ("x-qwen-event-epoch" in head.headers)
            for name, value in step["response"]["headers"]:
                if name.lower() == "x-qwen-event-epoch":
                    self._learn_epoch(value, head.headers["x-qwen-event-epoch"])
            assert await stream.read() == b"retry: 3000\n\n"
            self._check_complete()
            task_status.started()
            pending = b""
            while not (self.complete.is_set() and self.expected.closed_by == "client"):
                part = await stream.read()
                if not part:
                    break
                *blocks, pending = (pending + part).split(b"\n\n")
                for block in blocks:
                    self._take(parse_frame(block))
            self._ended.set()

    def _learn_epoch(self, recorded: str, ours: str) -> None:
        if recorded not in self._replay.names:
            # A new bus of the recorded daemon numbers from one again.
            self._replay.cursors[self.key[1]] = {}
        self._replay.names[recorded] = ours

    def _take(self, frame: Frame | None) -> None:
        if frame is None:
            return
        if frame.id is not None:
            self._ids.append(frame.id)
        if _is_product_frame(frame) or frame.kind in self._replay.extra_kinds.get(self._number, ()):
            return
        place = f"step {self._number}, frame {len(self._frames) + 1}"
        if len(self._frames) >= len(self.expected.frames):
            if self.expected.closed_by == "server" and self._number not in self._replay.open_ended:
                raise AssertionError(f"{place}: unexpected {frame}")
            return
        recorded = self.expected.frames[len(self._frames)]
        assert (recorded.id is None) == (frame.id is None), (place, recorded, frame)
        assert recorded.kind == frame.kind, (place, recorded, frame)
        self._replay.same(recorded.message, frame.message, place)
        self._number_it(recorded, frame, place)
        self._check_counts(recorded, frame, place)
        self._frames.append(frame)
        self._check_complete()

    def _number_it(self, recorded: Frame, frame: Frame, place: str) -> None:
        if recorded.id is None or frame.id is None:
            return
        known = self._replay.cursors.setdefault(self.key[1], {})
        assert known.setdefault(recorded.id, frame.id) == frame.id, (place, recorded.id, frame.id)
        assert self._ids == sorted(set(self._ids)), (place, self._ids)

    def _check_counts(self, recorded: Frame, frame: Frame, place: str) -> None:
        """The numbers of control frames, against the stream they are in."""
        if frame.kind != "replay_complete":
            return
        ids = self._ids
        data = frame.message["params"]["data"]
        if recorded.message["params"]["data"]["replayedCount"]:
            assert data["replayedCount"] == len(ids), (place, data, ids)
            assert data["lastReplayedEventId"] == data["lastEventId"] == ids[-1], (place, data)

    def _check_complete(self) -> None:
        if len(self._frames) >= len(self.expected.frames):
            self.complete.set()

    async def finish(self) -> None:
        with trio.fail_after(120):
            await self.complete.wait()
            if self.expected.closed_by == "server":
                await self._ended.wait()
        assert len(self._frames) == len(self.expected.frames)
