"""Short words for REST tests: requests by method and path, streams as lists of decoded events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from server.routes.rest.shapes import SHAPES
from sessions import Harbour, Session
from tests.support.asgi import Driver, Stream
from tests.support.http import Reply

__all__ = ["Api", "Frame", "Frames", "block", "check_shape"]


def block(text: str) -> dict[str, Any]:
    """A prompt of one text."""
    return {"prompt": [{"type": "text", "text": text}]}


class Frame:
    """One frame of an event stream, as bytes and as what they mean."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.fields: list[tuple[str, str]] = []
        for line in raw.decode().split("\n"):
            name, _, value = line.partition(":")
            self.fields.append((name, value.removeprefix(" ")))

    def __repr__(self) -> str:
        return repr(self.raw)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.fields]

    def field(self, name: str) -> str | None:
        return next((value for each, value in self.fields if each == name), None)

    @property
    def is_comment(self) -> bool:
        return self.raw.startswith(b":")

    @property
    def value(self) -> Any:
        """The envelope."""
        return msgspec.json.decode(self.field("data") or "null")

    @property
    def type(self) -> str:
        return str(self.value["type"])

    @property
    def data(self) -> Any:
        return self.value["data"]

    @property
    def id(self) -> int | None:
        text = self.field("id")
        return None if text is None else int(text)


def check_shape(frame: Frame) -> None:
    """Whether an event is what the documentation says of its type (rest.md 6.1)."""
    shape = SHAPES.get(frame.type)
    if shape is None:
        return
    fields = set(frame.data)
    assert set(shape.required) <= fields <= {*shape.required, *shape.optional}, (frame.type, fields)


class Frames:
    """The frames of one open stream, in order; comments and ``retry`` are kept apart."""

    def __init__(self, stream: Stream, status: int, headers: dict[str, str]) -> None:
        self._source = stream.frames()
        self.status = status
        self.headers = headers
        self.others: list[Frame] = []
        self.seen: list[Frame] = []

    async def next(self) -> Frame:
        """The next event. Raises ``EOFError`` at the end of the stream."""
        async for raw in self._source:
            frame = Frame(raw)
            if frame.is_comment or frame.names == ["retry"]:
                self.others.append(frame)
                continue
            check_shape(frame)
            self.seen.append(frame)
            return frame
        raise EOFError

    async def until(self, type: str, count: int = 1) -> list[Frame]:
        """The next events up to and with the ``count``-th of a type."""
        found: list[Frame] = []
        while count:
            found.append(await self.next())
            count -= found[-1].type == type
        return found

    async def rest(self) -> list[Frame]:
        """Everything until the server ends the stream."""
        found: list[Frame] = []
        while True:
            try:
                found.append(await self.next())
            except EOFError:
                return found

    async def aclose(self) -> None:
        await self._source.aclose()  # type: ignore[attr-defined]  # an async generator, typed as an iterator


class Api:
    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    @property
    def harbour(self) -> Harbour:
        harbour: Harbour = self.driver.ground.engine
        return harbour

    def session(self, session_id: str) -> Session:
        return self.harbour.find(session_id)

    async def call(
        self, method: str, path: str, body: object = None, headers: Iterable[tuple[str, str]] = (), **more: Any
    ) -> Reply:
        """``body`` bytes go as they are, None as no body, anything else as JSON."""
        raw = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        length = [("content-length", str(len(raw)))] if raw else []
        return await self.driver.request(method, path, body=raw, headers=[*length, *headers], **more)

    async def post(self, path: str, body: object = None, **more: Any) -> Reply:
        return await self.call("POST", path, {} if body is None else body, **more)

    async def get(self, path: str, **more: Any) -> Reply:
        return await self.call("GET", path, **more)

    async def delete(self, path: str, **more: Any) -> Reply:
        return await self.call("DELETE", path, **more)

    async def create(self, **fields: Any) -> dict[str, Any]:
        """A new session (scope thread): the answer."""
        reply = await self.post("/session", {"sessionScope": "thread", **fields})
        assert reply.status == 200, reply.body
        answer: dict[str, Any] = reply.json()
        return answer

    async def prompt(self, session_id: str, text: str, **more: Any) -> Reply:
        return await self.post(f"/session/{session_id}/prompt", block(text), **more)

    async def submit(self, session_id: str, text: str, **more: Any) -> str:
        """An accepted prompt's id."""
        reply = await self.prompt(session_id, text, **more)
        assert reply.status == 202, reply.body
        return str(reply.json()["promptId"])

    async def outcome(self, session_id: str, prompt_id: str) -> dict[str, Any]:
        """The outcome of a prompt once it has one."""
        while True:
            answer: dict[str, Any] = (await self.get(f"/session/{session_id}/prompts/{prompt_id}")).json()
            if answer["state"] not in ("queued", "running"):
                return answer
            await trio.sleep(0.01)

    async def run(self, session_id: str, text: str) -> dict[str, Any]:
        """One turn to its end."""
        return await self.outcome(session_id, await self.submit(session_id, text))

    @asynccontextmanager
    async def events(
        self, session_id: str, query: str = "", headers: Iterable[tuple[str, str]] = (), window: int = 16, **more: Any
    ) -> AsyncIterator[Frames]:
        """The session's event stream, which must be granted."""
        path = f"/session/{session_id}/events{query}"
        async with self.driver.stream("GET", path, headers=headers, window=window, **more) as stream:
            head = await stream.head()
            assert head.status == 200, (head, await stream.rest())
            frames = Frames(stream, head.status, head.headers)
            try:
                yield frames
            finally:
                await frames.aclose()

    async def replay(self, session_id: str, cursor: int | str = 0, **more: Any) -> list[Frame]:
        """What a reader with this cursor is shown up to ``replay_complete``."""
        async with self.events(session_id, Last_Event_ID=str(cursor), **more) as frames:
            return await frames.until("replay_complete")
