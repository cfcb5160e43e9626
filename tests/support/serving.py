"""The real server on a loopback port, with a fake engine and a few routes that misbehave on request."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio
from quart import Blueprint, Response, request, websocket

from server.application import Application
from server.config import Config
from server.ground import Ground
from server.routes.body import json_response, read_json_object
from server.serve import serve
from server.sse import event_stream, hurry_current
from sessions.harbour import HarbourStatistics
from tests.support.http import port_of

__all__ = ["UPGRADE", "FakeEngine", "Served", "carrier", "fake_engine", "serving", "try_routes", "wait_until"]


UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec_WebSocket_Version": "13",
}
"""Headers of a WebSocket upgrade, for `tests.support.http.RawConnection.request`."""


def carrier(token: str, prefix: str = "qwen-bearer.") -> str:
    """The subprotocol that carries ``token`` (ACP-241)."""
    return prefix + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


class FakeEngine:
    """As much of a harbour as the ground itself asks for."""

    def __init__(self) -> None:
        self.drained = False
        self.open_streams = 0
        self.overdue: list[Any] = []
        self.uploaded = 0
        self.fail = trio.Event()

    def statistics(self) -> HarbourStatistics:
        return HarbourStatistics(2, 1, 100, 3, 4, 5, self.open_streams, 0.0)

    async def drain(self, grace: float) -> None:
        await trio.lowlevel.checkpoint()
        self.drained = True


@asynccontextmanager
async def fake_engine(config: Config, observer: object) -> AsyncIterator[FakeEngine]:
    """An engine that dies when its ``fail`` event is set."""
    engine = FakeEngine()

    async def die() -> None:
        await engine.fail.wait()
        raise RuntimeError("the engine is gone")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(die)
        yield engine
        nursery.cancel_scope.cancel()


def try_routes(ground: Ground) -> Blueprint:
    """Routes under ``/try``: an idle stream, a stream at full speed, an echo, a crash, a WebSocket."""
    routes = Blueprint("try", __name__, url_prefix="/try")
    engine: FakeEngine = ground.engine

    def stream(read: Any) -> Response:
        engine.open_streams += 1
        engine.overdue.append(hurry_current(2.0))

        def closed() -> None:
            engine.open_streams -= 1

        return event_stream(
            read,
            drain=ground.drain,
            heartbeat=ground.config.heartbeat,
            beat=b": hb\n\n",
            opening=b"retry: 3000\n\n",
            last=lambda: b"event: bye\ndata: {}\n\n",
            closed=closed,
        )

    @routes.get("/quiet")
    async def quiet() -> Response:
        async def read() -> bytes | None:
            await trio.sleep_forever()
            return None

        return stream(read)

    @routes.get("/flood")
    async def flood() -> Response:
        async def read() -> bytes | None:
            await trio.lowlevel.checkpoint()
            return b"data: " + b"x" * 60_000 + b"\n\n"

        return stream(read)

    @routes.get("/ticks")
    async def ticks() -> Response:
        count = 0

        async def read() -> bytes | None:
            nonlocal count
            if count == int(request_count):
                return None
            await trio.sleep(0.001)
            count += 1
            return b"id: %d\ndata: %d\n\n" % (count, count)

        request_count = request.args.get("n", "3")
        return stream(read)

    @routes.post("/echo")
    async def echo() -> Response:
        return json_response(await read_json_object())

    @routes.post("/size")
    async def size() -> Response:
        return json_response({"size": len(await request.get_data())})

    @routes.post("/early")
    async def early() -> Response:
        return json_response({"error": "no need to read"}, 409)

    @routes.get("/crash")
    async def crash() -> Response:
        raise RuntimeError("a defect")

    @routes.get("/big")
    async def big() -> Response:
        return Response(b"x" * int(request.args["n"]))

    @routes.get("/slow")
    async def slow() -> Response:
        await trio.sleep(float(request.args["s"]))
        return json_response({"slept": True})

    @routes.websocket("/ws")
    async def ws() -> None:
        await websocket.accept(subprotocol=next(iter(websocket.requested_subprotocols), None))
        while True:
            await websocket.send(await websocket.receive())

    return routes


@attrs.define
class Served:
    port: int
    urls: list[str]
    application: Application
    engine: FakeEngine
    stop: trio.Event
    """Set it to begin the shutdown; the block then ends when the server has."""
    ended: trio.Event
    """Set when the server has ended."""


@asynccontextmanager
async def serving(config: Config | None = None, **more: Any) -> AsyncIterator[Served]:
    """Serve in this program until the block ends. ``more`` goes to `Application`."""
    config = config if config is not None else Config(port=0)
    engines: list[FakeEngine] = []

    @asynccontextmanager
    async def opener(config: Config, observer: object) -> AsyncIterator[FakeEngine]:
        async with fake_engine(config, observer) as engine:
            engines.append(engine)
            yield engine

    application = Application(
        config, **{"open_engine": opener, "packages": ["server.routes.ops"], "routes": [try_routes], **more}
    )
    stop, ended = trio.Event(), trio.Event()

    async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:  # noqa: ASYNC128  # serve calls it
        try:
            await serve(config, application=application, shutdown=stop.wait, task_status=task_status)
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        urls = await nursery.start(partial(run))
        yield Served(port_of(urls[0]), urls, application, engines[0] if engines else FakeEngine(), stop, ended)
        stop.set()
        with trio.fail_after(20):
            await ended.wait()


async def wait_until(condition: Callable[[], object], within: float = 3.0) -> None:
    """Real time: for what happens in sockets, about which nobody could set an event."""
    with trio.fail_after(within):
        while not condition():  # noqa: ASYNC110  # see above
            await trio.sleep(0.005)
