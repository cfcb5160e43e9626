"""The real server on a loopback port in front of the scripted agent, and a small client on raw sockets."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from server.application import Application
from server.config import Config
from server.nnrp.serving import NnrpServing
from server.serve import serve
from sessions import Harbour
from tests.server.rest.api import Frame, block
from tests.support import scripted_agent
from tests.support.http import RawConnection, Reply, ask, open_raw, port_of

__all__ = ["RawStream", "Remote", "Served", "rest_server"]


class RawStream:
    """An open event stream; ``connection`` is its socket."""

    def __init__(self, connection: RawConnection, headers: dict[str, str]) -> None:
        self.connection = connection
        self.headers = headers
        self._pending = b""
        self._frames: deque[Frame] = deque()

    async def next(self) -> Frame:
        """The next event. Raises ``EOFError`` at the end, in good order or not."""
        while not self._frames:
            *blocks, self._pending = (self._pending + await self._chunk()).split(b"\n\n")
            self._frames += [Frame(raw) for raw in blocks if not raw.startswith((b":", b"retry:"))]
        return self._frames.popleft()

    async def _chunk(self) -> bytes:
        size = int((await self.connection.line()).split(b";")[0], 16)
        chunk = await self.connection.exactly(size)
        await self.connection.line()
        if not size:
            raise EOFError
        return chunk

    async def take(self, count: int) -> list[Frame]:
        return [await self.next() for _ in range(count)]

    async def until(self, *types: str, count: int = 1) -> list[Frame]:
        """Up to and with the ``count``-th event of these types."""
        found: list[Frame] = []
        while count:
            found.append(await self.next())
            count -= found[-1].type in types
        return found

    async def rest(self) -> list[Frame]:
        found: list[Frame] = []
        with contextlib.suppress(EOFError):
            while True:
                found.append(await self.next())
        return found

    def reset(self) -> None:
        """End the TCP connection with RST."""
        stream: Any = self.connection.stream
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.socket.close()


class Remote:
    """Requests to one port, each on a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def call(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        raw = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await ask(self.port, method, path, raw, **headers)

    async def post(self, path: str, body: object = None, **headers: str) -> Reply:
        return await self.call("POST", path, {} if body is None else body, **headers)

    async def get(self, path: str) -> Any:
        reply = await self.call("GET", path)
        assert reply.status == 200, reply
        return reply.json()

    async def create(self, **fields: Any) -> str:
        reply = await self.post("/session", {"sessionScope": "thread", **fields})
        assert reply.status == 200, reply
        return str(reply.json()["sessionId"])

    async def prompt(self, session_id: str, text: str) -> Reply:
        return await self.post(f"/session/{session_id}/prompt", block(text))

    async def submit(self, session_id: str, text: str) -> str:
        reply = await self.prompt(session_id, text)
        assert reply.status == 202, reply
        return str(reply.json()["promptId"])

    async def outcome(self, session_id: str, prompt_id: str) -> dict[str, Any]:
        while True:
            answer: dict[str, Any] = await self.get(f"/session/{session_id}/prompts/{prompt_id}")
            if answer["state"] not in ("queued", "running"):
                return answer
            await trio.sleep(0.02)

    async def run(self, session_id: str, text: str) -> dict[str, Any]:
        return await self.outcome(session_id, await self.submit(session_id, text))

    @asynccontextmanager
    async def events(
        self,
        session_id: str,
        cursor: int | None = None,
        query: str = "",
        receive_buffer: int | None = None,
        **more: Any,
    ) -> AsyncIterator[RawStream]:
        async with open_raw(self.port, receive_buffer=receive_buffer) as connection:
            if cursor is not None:
                more["Last_Event_ID"] = str(cursor)
            await connection.request("GET", f"/session/{session_id}/events{query}", **more)
            head = await connection.read_head()
            assert head.status == 200, head
            yield RawStream(connection, head.headers)

    async def replay(self, session_id: str, cursor: int = 0) -> list[Frame]:
        async with self.events(session_id, cursor) as stream:
            return await stream.until("replay_complete")


class Served(Remote):
    """The same, with a look at the engine behind it."""

    def __init__(self, port: int, harbour: Harbour, application: Application) -> None:
        super().__init__(port)
        self.harbour = harbour
        self.application = application

    @property
    def nnrp(self) -> NnrpServing:
        """NNRP of the same process (``nnrp_port=0``)."""
        assert self.application.nnrp is not None
        return self.application.nnrp

    @property
    def nnrp_url(self) -> str:
        host, port = self.nnrp.addresses[0]
        return f"tcp://{host}:{port}"


@asynccontextmanager
async def rest_server(
    agent: dict[str, Any] | str | None = None, *, workspace: Path | None = None, **settings: Any
) -> AsyncIterator[Served]:
    """Serve in this program. ``agent``: options of the scripted agent, or another command line; ``settings``: fields of
    `Config`."""
    places = () if workspace is None else (str(workspace),)
    command = agent if isinstance(agent, str) else scripted_agent.shell_line(**(agent or {}))
    config = Config(**{"port": 0, "agent": command, "workspace": places, **settings})
    opened: list[Harbour] = []

    @asynccontextmanager
    async def open_engine(config: Config, observer: Any) -> AsyncIterator[Any]:
        from server.engine import open_engine as real

        async with real(config, observer) as harbour:
            opened.append(harbour)
            yield harbour

    application = Application(config, open_engine=open_engine)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(partial(serve, config, application=application, shutdown=stop.wait))
        try:
            yield Served(port_of(urls[0]), opened[0], application)
        finally:
            stop.set()
