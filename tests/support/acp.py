"""A client of ``/acp`` for tests, over any driver that has ``request`` and ``stream``: says what it is told, hides nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import trio

from server.application import Application
from server.config import Config
from sessions import Harbour, Session, open_harbour
from tests.support.asgi import Driver, Stream, WebSocket, drive
from tests.support.fake_runner import FakeRunner
from tests.support.http import Reply

__all__ = ["AcpClient", "Feed", "Frame", "Place", "Talker", "acp_place", "prompt_params"]

ACP_ROUTES = ["server.routes.ops", "server.routes.rest", "server.routes.acp"]


@attrs.frozen
class Frame:
    """One event of an ``/acp`` stream."""

    id: int | None
    message: dict[str, Any]

    @property
    def method(self) -> str | None:
        return self.message.get("method")

    @property
    def kind(self) -> str:
        """In a word: ``reply:ID``, the kind of a notification, the kind of an update."""
        if "method" not in self.message:
            return f"reply:{self.message['id']}"
        params = self.message.get("params", {})
        if self.method == "session/update":
            return str(params["update"]["sessionUpdate"])
        if self.method == "_qwen/notify":
            return str(params["kind"])
        return str(self.method)


def parse_frame(block: bytes) -> Frame | None:
    """A block of an event stream; None for comments and the retry hint. Nothing but ``id`` and ``data`` may occur."""
    lines = block.split(b"\n")
    if len(lines) == 1 and lines[0].startswith((b":", b"retry:")):
        return None
    event_id = None
    if lines[0].startswith(b"id: "):
        event_id = int(lines[0][4:])
        lines = lines[1:]
    assert len(lines) == 1, block
    assert lines[0].startswith(b"data: "), block
    return Frame(event_id, msgspec.json.decode(lines[0][6:]))


def prompt_params(session_id: str, text: str) -> dict[str, Any]:
    return {"sessionId": session_id, "prompt": [{"type": "text", "text": text}]}


class Feed:
    """The frames of one open stream, one by one."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.raw = b""
        self._blocks: deque[bytes] = deque()
        self._partial = b""

    async def __anext__(self) -> Frame:
        while True:
            while self._blocks:
                frame = parse_frame(self._blocks.popleft())
                if frame is not None:
                    return frame
            part = await self.stream.read()
            if not part:
                assert not self._partial, "the stream ended in the middle of a frame"
                raise StopAsyncIteration
            self.raw += part
            *blocks, self._partial = (self._partial + part).split(b"\n\n")
            self._blocks += blocks

    def __aiter__(self) -> Feed:
        return self

    async def take(self, count: int) -> list[Frame]:
        return [await anext(self) for _ in range(count)]

    async def until(self, wanted: Callable[[Frame], bool]) -> list[Frame]:
        """Frames up to the first that is wanted, included."""
        frames: list[Frame] = []
        while True:
            frame = await anext(self)
            frames.append(frame)
            if wanted(frame):
                return frames

    async def until_kind(self, kind: str) -> list[Frame]:
        return await self.until(lambda frame: frame.kind == kind)

    async def rest(self) -> list[Frame]:
        return [frame async for frame in self]

    async def drain(self) -> int:
        """Read what is left of a stream that was cut; the id of the last whole event."""
        last = 0
        while True:
            while self._blocks:
                frame = parse_frame(self._blocks.popleft())
                last = frame.id if frame is not None and frame.id is not None else last
            part = await self.stream.read()
            if not part:
                return last
            *blocks, self._partial = (self._partial + part).split(b"\n\n")
            self._blocks += blocks


class AcpClient:
    """One ``/acp`` connection over HTTP. Ids count from 1; `initialize` is number 0 unless told otherwise."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.connection_id = ""
        self.offer: dict[str, Any] = {}
        self.last_id = 0

    @classmethod
    async def connect(cls, driver: Driver, **params: Any) -> AcpClient:
        """``protocolVersion=None`` leaves the version out, as the shipped SDK does; that client gets a lead (`Lead`)."""
        client = cls(driver)
        params = {name: value for name, value in {"protocolVersion": 1, **params}.items() if value is not None}
        reply = await client.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        assert reply.status == 200, reply
        client.connection_id = reply.headers["acp-connection-id"]
        client.offer = reply.json()["result"]
        return client

    def headers(self, session_id: str | None = None, **more: str) -> list[tuple[str, str]]:
        given = [(name.replace("_", "-"), value) for name, value in more.items()]
        if self.connection_id:
            given.append(("Acp-Connection-Id", self.connection_id))
        if session_id is not None:
            given.append(("Acp-Session-Id", session_id))
        return given

    async def post(self, message: Any, **more: str) -> Reply:
        body = message if isinstance(message, bytes) else msgspec.json.encode(message)
        more.setdefault("Content_Type", "application/json")
        return await self.driver.request("POST", "/acp", body=body, headers=self.headers(**more))

    async def call(self, method: str, params: Any = None, *, id: Any = None, **more: str) -> Any:
        """Send a request, see it accepted, return its id."""
        if id is None:
            self.last_id += 1
            id = self.last_id
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        reply = await self.post(message if params is None else {**message, "params": params}, **more)
        assert (reply.status, reply.body) == (202, b""), reply
        return id

    async def notify(self, method: str, params: Any = None) -> None:
        reply = await self.post({"jsonrpc": "2.0", "method": method, "params": params})
        assert (reply.status, reply.body) == (202, b""), reply

    async def respond(self, id: Any, **body: Any) -> None:
        reply = await self.post({"jsonrpc": "2.0", "id": id, **body})
        assert reply.status == 202, reply

    @asynccontextmanager
    async def listen(
        self, session_id: str | None = None, *, cursor: int | str | None = None, window: int = 16, **more: str
    ) -> AsyncIterator[Feed]:
        """A stream; the end of the block is a lost connection."""
        if cursor is not None:
            more["Last_Event_ID"] = str(cursor)
        headers = self.headers(session_id, Accept="text/event-stream", **more)
        async with self.driver.stream("GET", "/acp", headers=headers, window=window) as stream:
            head = await stream.head()
            assert head.status == 200, (head, await stream.rest())
            yield Feed(stream)

    async def try_listen(self, session_id: str | None = None, **more: str) -> Reply:
        """A GET that is expected to be refused."""
        return await self.driver.request(
            "GET", "/acp", headers=self.headers(session_id, Accept="text/event-stream", **more)
        )

    async def ask(self, method: str, params: Any = None, **more: Any) -> dict[str, Any]:
        """Send a request whose answer comes on the connection stream; opens that stream for as long as needed."""
        async with self.listen() as feed:
            id = await self.call(method, params, **more)
            frames = await feed.until(lambda frame: "method" not in frame.message and frame.message["id"] == id)
            return frames[-1].message

    async def result(self, method: str, params: Any = None) -> Any:
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, method: str, params: Any = None) -> dict[str, Any]:
        answer = await self.ask(method, params)
        assert "error" in answer, answer
        error: dict[str, Any] = answer["error"]
        return error

    async def new_session(self, **params: Any) -> str:
        result = await self.result("session/new", {"mcpServers": [], **params})
        session_id: str = result["sessionId"]
        return session_id

    async def prompt(self, session_id: str, text: str, **more: Any) -> Any:
        return await self.call("session/prompt", prompt_params(session_id, text), **more)

    async def delete(self) -> Reply:
        return await self.driver.request("DELETE", "/acp", headers=self.headers())


class Talker:
    """One ``/acp`` connection over a WebSocket."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket
        self.last_id = 0
        self.offer: dict[str, Any] = {}
        self.seen: list[Frame] = []

    def say(self, message: Any) -> None:
        self.socket.send_text(message if isinstance(message, str) else msgspec.json.encode(message).decode())

    def call(self, method: str, params: Any = None, *, id: Any = None) -> Any:
        if id is None:
            self.last_id += 1
            id = self.last_id
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        self.say(message if params is None else {**message, "params": params})
        return id

    async def next(self) -> Frame:
        frame = Frame(None, msgspec.json.decode(await self.socket.receive_text()))
        self.seen.append(frame)
        return frame

    async def until(self, wanted: Callable[[Frame], bool]) -> list[Frame]:
        frames: list[Frame] = []
        while True:
            frames.append(await self.next())
            if wanted(frames[-1]):
                return frames

    async def until_kind(self, kind: str) -> list[Frame]:
        return await self.until(lambda frame: frame.kind == kind)

    async def answer(self, id: Any) -> dict[str, Any]:
        return (await self.until_kind(f"reply:{id}"))[-1].message

    async def result(self, method: str, params: Any = None) -> Any:
        answer = await self.answer(self.call(method, params))
        assert "result" in answer, answer
        return answer["result"]

    async def error(self, method: str, params: Any = None) -> dict[str, Any]:
        answer = await self.answer(self.call(method, params))
        assert "error" in answer, answer
        error: dict[str, Any] = answer["error"]
        return error

    async def new_session(self) -> str:
        session_id: str = (await self.result("session/new", {"mcpServers": []}))["sessionId"]
        return session_id

    async def close_code(self) -> tuple[int, str]:
        """Reads to the end; what was closed with."""
        try:
            while True:
                await self.next()
        except EOFError as end:
            code, reason = end.args
            return code, reason


@attrs.define
class Place:
    """A running application with its driver, its harbour and what stands behind it."""

    driver: Driver
    harbour: Harbour
    runner: FakeRunner

    async def connect(self, **params: Any) -> AcpClient:
        return await AcpClient.connect(self.driver, **params)

    def session(self, session_id: str) -> Session:
        return self.harbour.find(session_id)

    @asynccontextmanager
    async def socket(self, *, detach: bool = False, **more: Any) -> AsyncIterator[Talker]:
        async with self.driver.websocket("/acp", **more) as socket:
            assert (await socket.answer()).status == 101
            talker = Talker(socket)
            params = {"_meta": {"moorline": {"detach": True}}} if detach else {}
            talker.offer = (await talker.answer(talker.call("initialize", params, id=0)))["result"]
            yield talker


@asynccontextmanager
async def acp_place(runner: FakeRunner | None = None, **settings: Any) -> AsyncIterator[Place]:
    """moorline in memory with ``/acp`` and REST. ``settings``: of `Config`."""
    runner = runner or FakeRunner()
    harbours: list[Harbour] = []
    config = Config(**{"workspace": ("/tmp",), **settings})

    @asynccontextmanager
    async def opener(config: Config, observer: Any) -> AsyncIterator[Harbour]:
        async with open_harbour(
            runner, workspaces=config.workspaces, limits=config.limits, observer=observer
        ) as harbour:
            harbours.append(harbour)
            yield harbour

    application = Application(config, open_engine=opener, packages=ACP_ROUTES)
    async with drive(application) as driver:
        yield Place(driver, harbours[0], runner)
        await trio.lowlevel.checkpoint()
