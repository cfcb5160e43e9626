"""Event streams: what every stream route gets, without sockets and on a virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from quart import Blueprint, Response
from trio.testing import MockClock, wait_all_tasks_blocked

from server.application import Application
from server.config import Config
from server.ground import Ground
from server.shutdown import Drain
from server.sse import SseBody, event_stream
from tests.support.asgi import Driver, drive
from tests.support.serving import fake_engine


class Source:
    """A stream fed by a test."""

    def __init__(self) -> None:
        self.pending: list[bytes] = []
        self.ended = False
        self.reads = 0
        self.closed = 0
        self.changed = trio.Event()

    def put(self, *chunks: bytes, end: bool = False) -> None:
        self.pending += chunks
        self.ended |= end
        self.changed.set()
        self.changed = trio.Event()

    async def read(self) -> bytes | None:
        self.reads += 1
        while not self.pending:
            if self.ended:
                return None
            await self.changed.wait()
        chunk = b"".join(self.pending)
        self.pending.clear()
        return chunk


@asynccontextmanager
async def streaming(**settings: Any) -> AsyncIterator[tuple[Driver, Source, Application]]:
    source = Source()

    def routes(ground: Ground) -> Blueprint:
        blueprint = Blueprint("stream", __name__)

        def closed() -> None:
            source.closed += 1

        @blueprint.get("/stream")
        async def stream() -> Response:
            return event_stream(
                source.read,
                drain=ground.drain,
                heartbeat=15.0,
                beat=b": hb\n\n",
                opening=b"retry: 3000\n\n",
                last=lambda: b"event: bye\n\n",
                closed=closed,
                headers={"X-Qwen-Event-Epoch": "e1"},
            )

        return blueprint

    application = Application(Config(**settings), open_engine=fake_engine, packages=[], routes=[routes])
    async with drive(application) as driver:
        yield driver, source, application


async def test_headers_and_opening_come_before_any_event(autojump_clock: MockClock) -> None:
    """ACP-090, ACP-091, C-031: flushed at once, whatever the peer says it could unpack."""
    async with streaming() as (driver, _, _), driver.stream("GET", "/stream", Accept_Encoding="gzip, br") as stream:
        before = trio.current_time()
        head = await stream.head()
        assert await stream.read() == b"retry: 3000\n\n"
        assert trio.current_time() == before
    assert head.status == 200
    assert head.headers["content-type"] == "text/event-stream"
    assert head.headers["cache-control"] == "no-cache, no-transform"
    assert head.headers["connection"] == "keep-alive"
    assert head.headers["x-accel-buffering"] == "no"
    assert head.headers["x-qwen-event-epoch"] == "e1"
    assert "content-length" not in head.headers
    assert "content-encoding" not in head.headers


async def test_heartbeat_every_fifteen_seconds_of_silence(autojump_clock: MockClock) -> None:
    """ACP-092; and no timeout ever ends the stream (the framework's own is 60 s)."""
    async with streaming() as (driver, source, _), driver.stream("GET", "/stream") as stream:
        await stream.head()
        await stream.read()
        start = trio.current_time()
        for beat in range(1, 101):
            assert await stream.read() == b": hb\n\n"
            assert trio.current_time() - start == pytest.approx(15.0 * beat)
        source.put(b"data: 1\n\n")
        assert await stream.read() == b"data: 1\n\n"


async def test_heartbeat_comes_although_events_do(autojump_clock: MockClock) -> None:
    """ACP-092: every 15 s, also on a stream that is never silent for so long."""
    async with streaming() as (driver, source, _), driver.stream("GET", "/stream") as stream:
        await stream.head()
        await stream.read()
        start = trio.current_time()
        beats = []

        async def feed() -> None:
            while True:
                await trio.sleep(1.1)
                source.put(b"data: 1\n\n")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed)
            while trio.current_time() - start < 62:
                if await stream.read() == b": hb\n\n":
                    beats.append(trio.current_time() - start)
            nursery.cancel_scope.cancel()
    assert beats == pytest.approx([15, 30, 45, 60])


async def test_everything_pending_is_one_chunk(autojump_clock: MockClock) -> None:
    async with streaming() as (driver, source, _), driver.stream("GET", "/stream") as stream:
        await stream.head()
        await stream.read()
        source.put(*(b"data: %d\n\n" % number for number in range(32)))
        assert (await stream.read()).count(b"data: ") == 32


async def test_source_may_find_nothing_after_all(autojump_clock: MockClock) -> None:
    """An empty chunk would end a chunked response."""
    async with streaming() as (driver, source, _), driver.stream("GET", "/stream") as stream:
        await stream.head()
        await stream.read()
        source.pending.append(b"")
        source.changed.set()
        source.put(b"data: 1\n\n", end=True)
        assert await stream.rest() == b"data: 1\n\n"


async def test_end_of_the_source_is_the_end_of_the_stream(autojump_clock: MockClock) -> None:
    async with streaming() as (driver, source, _), driver.stream("GET", "/stream") as stream:
        await stream.head()
        source.put(b"data: 1\n\n", end=True)
        assert await stream.rest() == b"retry: 3000\n\ndata: 1\n\n"
        await stream.over.wait()
        assert source.closed == 1


@pytest.mark.parametrize("wait", ["before_head", "before_opening", "waiting"])
async def test_disconnect_cleans_up_once_and_at_once(autojump_clock: MockClock, wait: str) -> None:
    """Wherever the peer goes: also before the response was sent at all."""
    async with streaming() as (driver, source, _):
        async with driver.stream("GET", "/stream", window=0) as stream:
            if wait != "before_head":
                await stream.head()
            if wait == "waiting":
                await stream.read()
            await wait_all_tasks_blocked()
            before = trio.current_time()
        assert source.closed == 1
        assert trio.current_time() == before


async def test_cut_ends_the_stream_with_its_last_frame(autojump_clock: MockClock) -> None:
    async with streaming() as (driver, source, application), driver.stream("GET", "/stream") as stream:
        await stream.head()
        await stream.read()
        application.drain.cut()
        assert await stream.rest() == b"event: bye\n\n"
        await stream.over.wait()
        assert source.closed == 1


async def test_a_stream_opened_after_the_cut_ends_too(autojump_clock: MockClock) -> None:
    async with streaming() as (driver, source, application):
        application.drain.cut()
        async with driver.stream("GET", "/stream") as stream:
            await stream.head()
            assert await stream.rest() == b"retry: 3000\n\nevent: bye\n\n"
        assert source.closed == 1


async def test_the_engine_closes_its_sessions_before_the_cut(autojump_clock: MockClock) -> None:
    """Readers get what the closing brings: `begin` ends no stream by itself."""
    async with streaming() as (driver, source, application), driver.stream("GET", "/stream") as stream:
        engine = driver.ground.engine

        async def drain(grace: float) -> None:
            await trio.sleep(0.5)
            source.put(b"event: session_closed\n\n")
            await trio.sleep(0.5)

        engine.drain = drain
        await stream.head()
        await stream.read()
        application.drain.begin()
        assert await stream.rest() == b"event: session_closed\n\nevent: bye\n\n"


async def test_an_engine_that_does_not_come_to_an_end_is_not_waited_for(autojump_clock: MockClock) -> None:
    async with streaming(drain_ms=3000) as (driver, _, application), driver.stream("GET", "/stream") as stream:

        async def drain(grace: float) -> None:
            await trio.sleep_forever()

        driver.ground.engine.drain = drain
        await stream.head()
        before = trio.current_time()
        application.drain.begin()
        assert (await stream.rest()).endswith(b"event: bye\n\n")
        assert trio.current_time() - before == pytest.approx(1.65)


async def test_head_request_holds_nothing_open(autojump_clock: MockClock) -> None:
    async with streaming() as (driver, source, _):
        reply = await driver.request("HEAD", "/stream")
        assert (reply.status, reply.body) == (200, b"")
        assert reply.headers["content-type"] == "text/event-stream"
        assert source.closed == 1
        assert source.reads == 0


async def test_a_reader_that_takes_nothing_for_too_long_is_given_up(autojump_clock: MockClock) -> None:
    """Also where no transport deadline sees it."""
    async with streaming(send_timeout_ms=5000) as (driver, source, _):
        async with driver.stream("GET", "/stream", window=0) as stream:
            await stream.head()
            before = trio.current_time()
            await stream.over.wait()
            assert trio.current_time() - before == pytest.approx(5.0)
        assert source.closed == 1


@pytest.mark.parametrize("gone", [False, True])
async def test_a_long_replay_lets_others_have_their_turn(gone: bool) -> None:
    """What is sent without waiting stops neither other tasks nor the news that its reader has left."""
    sent: list[bytes] = []
    seen: list[int] = []

    async def read() -> bytes | None:
        return b"x" * 100_000 if len(sent) < 50 else None

    async def send(chunk: bytes) -> None:
        sent.append(chunk)

    async def other() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            seen.append(len(sent))
            if gone and sent:
                nursery.cancel_scope.cancel()

    body = SseBody(read, drain=Drain(), heartbeat=15.0, beat=b"", opening=b"")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await body.pump(send)
        nursery.cancel_scope.cancel()
    assert len(sent) <= 3 if gone else len(set(seen)) > 25
