"""NNRP over QUIC where datagrams are lost, doubled and reordered (nnrp-wire 2.4, 13.4): results arrive once, whole and in order,
whatever overtakes what."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import qh3.quic.connection
import trio

import client.nnrp.quic
from client.nnrp import NnrpConnection, NnrpOperationEnded, NnrpSession, SubmitOptions, open_nnrp
from protocol.nnrp.enums import CancelScopeKind, OperationState
from server.nnrp.submit import Answer, Emit, Submit, WorkerMaker
from server.nnrp.workers.echo import EchoWorker
from tests.support.nnrp import functions
from tests.support.nnrp_transports import Place, serving_everywhere
from tests.support.udp_relay import Relay, Weather, relaying

LIBRARIES = ("qh3", "aioquic")
LONG = b"sleep=60000;"
LATE = Weather(lost=0.0, twice=0.0, late=0.5, delay=0.1)


class Counted:
    """Echo, and how often each payload was carried out."""

    def __init__(self) -> None:
        self.runs: Counter[bytes] = Counter()
        self._echo = EchoWorker()

    async def __call__(self, submit: Submit, emit: Emit) -> Answer:
        self.runs[b"".join(bytes(each) for each in submit.data())] += 1
        return await self._echo.run(submit, emit)


@asynccontextmanager
async def in_bad_weather(
    directory: Path, seed: int, make_worker: WorkerMaker, weather: Weather | None = None, library: str = "aioquic"
) -> AsyncIterator[tuple[Place, Relay, NnrpConnection]]:
    async with (
        serving_everywhere(directory, make_worker=make_worker, library=library) as place,
        relaying(place.host_and_port("quic"), seed, weather) as relay,
    ):
        with trio.fail_after(60):
            async with open_nnrp(f"quic://127.0.0.1:{relay.port}", place.options) as connection:
                yield place, relay, connection


@pytest.mark.parametrize("theirs", LIBRARIES)
@pytest.mark.parametrize("ours", LIBRARIES)
async def test_results_come_once_whole_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: str, theirs: str
) -> None:
    """Both libraries on both sides: many operations of two sessions at once, in parts, of up to 30 KB; each is carried out once
    and answered once; what fails and what is cancelled has its one end too. The sessions can be resumed: a defect of qh3 may cost
    a connection."""
    monkeypatch.setattr(client.nnrp.quic, "_LIBRARIES", (ours,))
    counted, chance = Counted(), random.Random(7)
    ended: Counter[OperationState] = Counter()
    async with in_bad_weather(tmp_path, 7, functions(counted), library=theirs) as (place, relay, connection):
        sessions = [await connection.open_session(resumable=True) for _ in range(2)]

        async def one(session: NnrpSession, number: int) -> None:
            parts = chance.randrange(1, 5)
            payload = b"partial=%d;%d." % (parts, number) + chance.randbytes(chance.choice((0, 300, 30_000)))
            got = [each async for each in await session.submit(payload)]
            assert b"".join(each.data for each in got) == payload
            assert [each.final for each in got] == [False] * (parts - 1) + [True]

        async def ends(session: NnrpSession, number: int) -> None:
            submission = await session.submit(b"fail;%d" % number if number % 2 else LONG + b"%d" % number)
            if not number % 2:
                submission.cancel()
            with pytest.raises(NnrpOperationEnded) as end:
                await submission.result()
            ended[end.value.state] += 1

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(ends if number % 5 == 0 else one, sessions[number % 2], number)
        for session in sessions:
            assert session.in_flight == 0
        assert ended == {OperationState.FAILED: 6, OperationState.CANCELLED: 6}
        assert max(counted.runs.values()) == 1
        assert place.service.violations == 0
        assert relay.fates["lost"] > 0
        assert relay.fates["late"] > 0
        await place.wait_until(lambda: place.service.statistics().operations == 0)


@pytest.mark.parametrize("seed", [1, 2])
async def test_what_was_overtaken_when_the_connection_was_cut_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """13.7: some answers are behind, others ahead of them whole; of each, what has not arrived comes on the next connection, and
    nothing twice."""
    monkeypatch.setattr(client.nnrp.quic, "_LIBRARIES", ("aioquic",))
    counted, chance = Counted(), random.Random(seed)
    async with in_bad_weather(tmp_path, seed, functions(counted)) as (place, _, connection):
        session = await connection.open_session(resumable=True)

        async def one(number: int) -> None:
            payload = b"sleep=%d;partial=4;%d." % (chance.randrange(1, 60), number) + chance.randbytes(300)
            got = [each.data async for each in await session.submit(payload)]
            assert len(got) == 4
            assert b"".join(got) == payload

        async with trio.open_nursery() as nursery:
            for number in range(120):
                nursery.start_soon(one, number)
            for _ in range(5):
                await trio.sleep(chance.uniform(0.05, 0.2))
                await place.wait_until(lambda: session.attached)
                assert connection._link is not None
                await trio.aclose_forcefully(connection._link._stream)
        assert max(counted.runs.values()) == 1
        assert connection.reconnects


@pytest.mark.parametrize("scope", [CancelScopeKind.GROUP, CancelScopeKind.SESSION])
async def test_a_cancel_reaches_what_was_submitted_before_and_nothing_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: CancelScopeKind
) -> None:
    """2.4, 13.4: submits and cancels go on streams of their own and overtake each other; a cancel of a scope means what its
    sender had submitted by then."""
    monkeypatch.setattr(client.nnrp.quic, "_LIBRARIES", ("aioquic",))
    async with in_bad_weather(tmp_path, 3, lambda _: EchoWorker(), LATE) as (place, _, connection):
        session = await connection.open_session(max_in_flight=64)
        for round_ in range(6):
            group = SubmitOptions(group_id=round_ + 1)
            before = []
            for _ in range(8):
                before.append(await session.submit(LONG, options=group))
                await trio.sleep(0.002)  # so that they share no datagram
            reached = session.cancel(scope, group_id=round_ + 1 if scope is CancelScopeKind.GROUP else 0)
            assert reached == before
            after = [await session.submit(b"sleep=150;%d" % number, options=group) for number in range(4)]
            for each in before:
                with pytest.raises(NnrpOperationEnded, match="cancelled"):
                    await each.result()
            assert [(await each.result()).data for each in after] == [b"sleep=150;%d" % each for each in range(4)]
        assert place.service.violations == 0


async def test_a_close_does_not_overtake_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """13.3: what was submitted before SESSION_CLOSE is drained, and its results arrive before the session is over."""
    monkeypatch.setattr(client.nnrp.quic, "_LIBRARIES", ("aioquic",))
    async with in_bad_weather(tmp_path, 11, lambda _: EchoWorker(), LATE) as (place, _, connection):
        for _ in range(8):
            session = await connection.open_session()
            submissions = []
            for number in range(6):
                submissions.append(await session.submit(b"%d" % number))
                await trio.sleep(0.002)  # so that they share no datagram
            await session.close(drain_timeout_ms=5000)
            assert [(await each.result()).data for each in submissions] == [b"%d" % each for each in range(6)]
        assert place.service.violations == 0


async def test_a_connection_that_has_lost_data_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """13.7: where qh3 has given up data for good, as it says by an error, the client hears at once that the connection is over, and
    has what it waits for on the next."""
    gate = trio.Event()
    library = qh3.quic.connection.QuicConnection
    make = library.datagrams_to_send
    broken: list[object] = []

    def break_once(connection: Any, now: float) -> Any:
        if gate.is_set() and not broken and not connection._configuration.is_client:
            broken.append(connection)
            raise ValueError("stream state error: reserved stream is missing")
        return make(connection, now)

    async def handler(submit: Submit, emit: Emit) -> Answer:
        await gate.wait()
        return await EchoWorker().run(submit, emit)

    monkeypatch.setattr(library, "datagrams_to_send", break_once)
    async with (
        serving_everywhere(tmp_path, make_worker=functions(handler), only=["quic"]) as place,
        open_nnrp(place.urls["quic"], place.options) as connection,
    ):
        session = await connection.open_session(resumable=True)
        submission = await session.submit(b"once")
        gate.set()
        with trio.fail_after(20):
            assert (await submission.result()).data == b"once"
    assert broken
