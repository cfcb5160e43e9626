"""Choosing a transport, and moving to another while sessions are in use (nnrp-wire 2.7, 13.9)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from client.nnrp import NnrpClientError, NnrpConnection, NnrpConnectionLost, open_nnrp
from client.nnrp.link import Link
from client.nnrp.moving import Mover
from client.nnrp.probing import Candidate, probe_transports
from server.nnrp.submit import Answer, Emit, Submit
from server.nnrp.workers.echo import EchoWorker
from tests.support.nnrp import functions
from tests.support.nnrp_transports import TRANSPORTS, Place, serving_everywhere

PAIRS = [(first, second) for first in ("tcp", "ws", "quic") for second in ("tcp", "ws", "quic") if first != second]


def transports(place: Place) -> set[str]:
    return {each.transport for each in place.service.links}


@pytest.mark.parametrize(("first", "second"), PAIRS)
async def test_sessions_move_with_what_is_in_flight(tmp_path: Path, first: str, second: str) -> None:
    """Issue 5, Client: migration over another transport URL. Operations go on, nothing runs twice, parts come once and in
    order; then the old transport is left."""
    ran: list[int] = []
    go_on = trio.Event()
    echo = EchoWorker()

    async def handler(submit: Submit, emit: Emit) -> Answer:
        ran.append(submit.operation.operation_id)
        if submit.operation.operation_id == 1:
            await emit.partial(await echo.run(submit, emit))
            await go_on.wait()
        return await echo.run(submit, emit)

    async with serving_everywhere(tmp_path, make_worker=functions(handler)) as place:
        async with open_nnrp(place.urls[first], place.options) as connection:
            session = await connection.open_session(resumable=True)
            other = await connection.open_session(resumable=True)
            long = await session.submit(b"abc")
            assert (await anext(long)).data == b"abc"
            await connection.migrate(place.urls[second])
            assert connection.url == place.urls[second]
            await place.wait_until(lambda: len(place.service.links) == 1)
            assert transports(place) == {{"ws": "websocket"}.get(second, second)}
            go_on.set()
            assert [each.data async for each in long] == [b"abc"]
            assert (await session.request(b"two")).data == b"two"
            assert (await other.request(b"other")).data == b"other"
        assert ran == [1, 2, 1]
    assert place.service.violations == 0


@pytest.mark.parametrize("first", ["tcp", "quic"])
async def test_a_result_that_comes_by_the_old_transport_while_moving(
    tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the old transport brings after the cursor was taken comes again on the new one, and counts there only."""
    go_on = trio.Event()
    echo = EchoWorker()
    begin = Mover.begin

    async def handler(submit: Submit, emit: Emit) -> Answer:
        await go_on.wait()
        return await echo.run(submit, emit)

    async with serving_everywhere(tmp_path, make_worker=functions(handler)) as place:

        async def begin_late(mover: Mover, link: Link) -> None:
            go_on.set()
            await place.wait_until(lambda: place.service.statistics().operations == 0)
            await trio.testing.wait_all_tasks_blocked(0.05)
            begin(mover, link)

        async with (
            open_nnrp(place.urls[first], place.options) as connection,
            trio.open_nursery() as nursery,
        ):
            monkeypatch.setattr(Mover, "begin", lambda mover, link: nursery.start_soon(begin_late, mover, link))
            session = await connection.open_session(resumable=True)
            running = await session.submit(b"in between")
            await connection.migrate(place.urls["ws"])
            with trio.fail_after(20):
                assert (await running.result()).data == b"in between"


@pytest.mark.parametrize(("first", "second"), [("tcp", "quic"), ("quic", "tcp")])
async def test_a_session_without_resume_moves_at_rest(tmp_path: Path, first: str, second: str) -> None:
    """nnrp-wire 13.9: SESSION_MIGRATE on the new transport. Not in use, because nothing would come again; and not to
    WebSocket, which has no transport_id."""
    async with serving_everywhere(tmp_path) as place, open_nnrp(place.urls[first], place.options) as connection:
        session = await connection.open_session()
        assert (await session.request(b"one")).data == b"one"
        running = await session.submit(b"sleep=60000;")
        with pytest.raises(NnrpClientError, match="at rest"):
            await connection.migrate(place.urls[second])
        running.cancel()
        await place.wait_until(lambda: place.service.statistics().operations == 0)
        await place.wait_until(lambda: not session.in_flight)
        with pytest.raises(NnrpClientError, match="between TCP and QUIC"):
            await connection.migrate(place.urls["ws"])
        await connection.migrate(place.urls[second])
        assert (await session.request(b"two")).data == b"two"
        await place.wait_until(lambda: transports(place) == {second})
        assert place.service.statistics().sessions == 1


async def test_a_move_that_fails_changes_nothing(tmp_path: Path) -> None:
    """nnrp-wire 13.9: one primary path at a time; where there is no other, the first stays."""

    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.aclose()

    async with serving_everywhere(tmp_path) as place, trio.open_nursery() as nursery:
        (rude,) = await nursery.start(partial(trio.serve_tcp, hang_up, 0, host="127.0.0.1"))
        async with open_nnrp(place.urls["tcp"], place.options) as connection:
            await stay(connection, rude.socket.getsockname()[1], place)
        nursery.cancel_scope.cancel()


async def stay(connection: NnrpConnection, rude: int, place: Place) -> None:
    session = await connection.open_session(resumable=True)
    for url in ("tcp://127.0.0.1:1", f"tcp://127.0.0.1:{rude}"):
        with pytest.raises(NnrpConnectionLost):
            await connection.migrate(url)
    assert (await session.request(b"stays")).data == b"stays"
    assert connection.url == place.urls["tcp"]
    assert connection.reconnects == 0


@pytest.mark.parametrize("second", ["ws", "quic"])
async def test_a_lost_connection_comes_back_on_an_alternative(tmp_path: Path, second: str) -> None:
    """Issue 5, Client: automatic resume over another transport URL, when the first answers no more."""
    streams: list[trio.SocketStream] = []

    async def connect(host: str, port: int) -> trio.SocketStream:
        if streams and f":{port}" in place.urls["tcp"]:
            raise OSError("gone")
        streams.append(await trio.open_tcp_stream(host, port))
        return streams[-1]

    async with serving_everywhere(tmp_path) as place:
        options = attrs.evolve(place.options, connect=connect, alternatives=(place.urls[second],))
        async with open_nnrp(place.urls["tcp"], options) as connection:
            session = await connection.open_session(resumable=True)
            running = await session.submit(b"sleep=300;still here")
            await streams[0].aclose()
            assert (await running.result()).data == b"sleep=300;still here"
            assert connection.url == place.urls[second]
            assert connection.reconnects == 1


async def test_probing_ranks_what_answers(tmp_path: Path) -> None:
    """nnrp-wire 2.7: every binding measured on fresh connections; one that does not answer comes last, and the first can be
    opened."""
    dead = "tcp://127.0.0.1:1"
    async with serving_everywhere(tmp_path) as place:
        found = await probe_transports([dead, *(place.urls[each] for each in TRANSPORTS)], place.options)
        assert found[-1].url == dead
        assert found[-1].failure
        assert all(len(each.round_trips) == 3 for each in found[:-1])
        assert {each.url for each in found[:-1]} == set(place.urls.values())
        assert [each.rank for each in found] == sorted(each.rank for each in found)
        async with open_nnrp(found[0].url, place.options) as connection:
            assert await connection.ping() >= 0
        await place.wait_until(lambda: not place.service.links)
    assert place.service.violations == 0
    with pytest.raises(NnrpConnectionLost, match="no transport answers"):
        await probe_transports([dead], samples=1, warm_up=False)


def test_the_order_of_the_ranking() -> None:
    """nnrp-wire 2.7: more successes, then higher median throughput."""
    slow, fast, lossy = (
        Candidate("slow", (0.3, 0.2, 0.25)),
        Candidate("fast", (0.1, 0.1, 0.5)),
        Candidate("lossy", (0.01, 0.01)),
    )
    assert sorted([lossy, slow, fast], key=lambda each: each.rank) == [fast, slow, lossy]
