"""The end of the process, on real sockets: bounded, in order, and told to whoever is connected."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypercorn.utils import LifespanFailureError

from server.config import Config
from server.shutdown import Drain
from tests.support.http import RawConnection, ask, open_raw
from tests.support.serving import serving, wait_until


async def test_begin_and_cut_are_once_and_for_all(autojump_clock: trio.testing.MockClock) -> None:
    drain = Drain()
    scope = trio.CancelScope()
    drain.watch(scope)
    drain.begin()
    drain.begin()
    assert drain.begun
    assert not scope.cancel_called
    drain.cut()
    assert scope.cancel_called
    late = trio.CancelScope()
    drain.watch(late)
    assert late.cancel_called
    with trio.fail_after(1):
        await drain.wait_begun()
        await drain.wait_cut()


async def test_an_unwatched_scope_is_left_alone() -> None:
    drain = Drain()
    scope = trio.CancelScope()
    drain.watch(scope)
    drain.unwatch(scope)
    drain.cut()
    assert not scope.cancel_called


async def test_a_hundred_streams_and_a_stalled_client() -> None:
    """Every stream gets its last frame and its proper end; the stalled one does not hold up the rest (C-063: at most 5 s)."""
    said_goodbye = 0

    async def follow(raw: RawConnection, ready: trio.Event) -> None:
        nonlocal said_goodbye
        await raw.request("GET", "/try/quiet")
        await raw.read_head()
        ready.set()
        frames = [frame async for frame in raw.frames()]
        said_goodbye += frames[-1] == b"event: bye\ndata: {}"

    async with serving() as served, trio.open_nursery() as nursery:

        async def one(ready: trio.Event) -> None:
            async with open_raw(served.port) as raw:
                await follow(raw, ready)

        for _ in range(100):
            ready = trio.Event()
            nursery.start_soon(one, ready)
            await ready.wait()

        async def stall(ready: trio.Event) -> None:
            async with open_raw(served.port, receive_buffer=4096) as raw:
                await raw.request("GET", "/try/flood")
                ready.set()
                await trio.sleep_forever()

        ready = trio.Event()
        nursery.start_soon(stall, ready)
        await ready.wait()
        await trio.sleep(0.3)
        started = trio.current_time()
        served.stop.set()
        with trio.fail_after(5):
            await served.ended.wait()
        took = trio.current_time() - started
        await wait_until(lambda: said_goodbye == 100, 2.0)
        nursery.cancel_scope.cancel()
    assert took < 3
    assert served.engine.drained


async def test_idle_connections_do_not_delay_the_end() -> None:
    async with serving() as served, open_raw(served.port) as idle, open_raw(served.port) as used:
        await used.request("GET", "/health")
        await used.reply()
        await trio.sleep(0.05)
        served.stop.set()
        with trio.fail_after(1):
            await served.ended.wait()
        await idle.wait_end(within=1)
        await used.wait_end(within=1)


async def test_a_request_in_progress_is_finished() -> None:
    async with serving() as served, open_raw(served.port) as raw:
        await raw.request("GET", "/try/slow?s=0.4")
        await trio.sleep(0.1)
        served.stop.set()
        reply = await raw.reply()
        assert (reply.status, reply.json()) == (200, {"slept": True})
        with trio.fail_after(1):
            await served.ended.wait()


async def test_a_request_that_takes_longer_is_cut() -> None:
    async with serving(Config(port=0, drain_ms=500)) as served, open_raw(served.port) as raw:
        await raw.request("GET", "/try/slow?s=60")
        await trio.sleep(0.1)
        started = trio.current_time()
        served.stop.set()
        with trio.fail_after(2):
            await served.ended.wait()
        assert trio.current_time() - started > 0.3


async def test_nothing_is_accepted_after_the_end_has_begun() -> None:
    async with serving() as served:
        served.stop.set()
        await served.ended.wait()
        with pytest.raises(OSError, match="refused"):
            await ask(served.port, "GET", "/health")


async def test_when_the_engine_dies_the_server_ends() -> None:
    """hypercorn alone would log it and go on serving without an engine."""
    caught: list[BaseException] = []
    try:
        async with serving() as served, open_raw(served.port) as raw:
            await raw.request("GET", "/try/quiet")
            await raw.read_head()
            served.engine.fail.set()
            await raw.wait_end(within=3)
            with trio.fail_after(3):
                await served.ended.wait()
    except* LifespanFailureError as errors:
        caught.append(errors)
    assert "the engine is gone" in str(_leaf(caught[0]))


def _leaf(error: BaseException) -> BaseException:
    return _leaf(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
