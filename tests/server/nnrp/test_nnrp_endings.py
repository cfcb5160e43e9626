"""Exactly one terminal message per operation (nnrp-wire 13.4), where it is not the operation that ends but what it is in: the
connection, by either end (13.1), or the session, by the server (13.3)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio

from client.nnrp import NnrpOperationEnded, open_nnrp
from protocol.nnrp.enums import (
    CloseReason,
    InFlightPolicy,
    MessageType,
    OperationFeatures,
    OperationState,
    SessionFlags,
)
from protocol.nnrp.machines.connection import ConnectionLimits
from protocol.nnrp.machines.reading import drop_state
from protocol.nnrp.messages import Close, SessionClose
from server.nnrp.policy import ServingPolicy, token_check
from server.nnrp.submit import Answer, Emit, Submit
from server.nnrp.workers.echo import EchoWorker
from tests.support.nnrp import HELLO, OPEN, Peer, functions, serving_nnrp
from tests.support.nnrp_transports import EVERYWHERE, serving_on

LONG = b"sleep=60000;"
POLICY = ServingPolicy(limits=ConnectionLimits(drain_timeout=0.3))
AT_ONCE = ServingPolicy(limits=ConnectionLimits(drain_timeout=0.0))
DROP, PUSH = MessageType.RESULT_DROP, MessageType.RESULT_PUSH


async def holds_on(submit: Submit, emit: Emit) -> Answer:
    """Work that does not let go when it is told to."""
    try:
        return await EchoWorker().run(submit, emit)
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(3)


async def until_the_end(peer: Peer) -> list[tuple[MessageType, int, int]]:
    """Everything that comes, with its session and its frame."""
    seen = []
    while True:
        try:
            packet = await peer.receive()
        except (EOFError, trio.BrokenResourceError):
            return seen
        seen.append((packet.kind, packet.header.session_id, packet.header.frame_id))


@pytest.mark.parametrize("who", ["server", "peer"])
@EVERYWHERE
async def test_a_drain_that_is_cut_tells_every_operation(tmp_path: Path, transport: str, who: str) -> None:
    """C-063 on this wire: results that come in time are delivered, the rest is cancelled, and each has its one terminal message before the
    connection ends; sessions that could be resumed are no exception, because CLOSE ends them too."""
    async with serving_on(transport, tmp_path, POLICY) as place, place.peer() as peer:
        await peer.open(
            OPEN.replace(session_flags=SessionFlags.ALLOW_RESUME), features=OperationFeatures.OPERATION_STATE
        )
        await peer.open(OPEN.replace(requested_session_id=2))
        await peer.submit(1, b"sleep=60;in time")
        for frame, session in ((2, 1), (1, 2), (2, 2)):
            await peer.submit(frame, LONG, session_id=session)
        await place.wait_until(lambda: place.service.statistics().operations == 4)
        if who == "server":
            place.service.begin_drain()
        else:
            await peer.send(Close())
        seen = await until_the_end(peer)
        kinds = Counter(kind for kind, _, _ in seen)
        assert kinds == {PUSH: 1, DROP: 3} | ({MessageType.CLOSE: 1} if who == "server" else {})
        assert {each for each in seen if each[0] is DROP} == {(DROP, 1, 2), (DROP, 2, 1), (DROP, 2, 2)}
        await place.wait_until(lambda: place.service.statistics().sessions == 0)


@EVERYWHERE
async def test_who_says_goodbye_and_leaves_at_once_leaves_nothing(tmp_path: Path, transport: str) -> None:
    """nnrp-wire 13.1: closing the connection closes every session; one that could be resumed is not kept for its window, and
    nothing goes on for it, though nobody waited for the end of the drain."""
    async with serving_on(transport, tmp_path) as place:
        async with place.peer() as peer:
            await peer.open(OPEN.replace(session_flags=SessionFlags.ALLOW_RESUME))
            await peer.submit(1, LONG)
            await place.wait_until(lambda: place.service.statistics().operations == 1)
            await peer.send(Close())
        await place.wait_until(lambda: place.service.statistics().sessions == 0)
        assert place.service.statistics().operations == 0


async def test_work_that_does_not_let_go_holds_up_no_drain() -> None:
    """13.4: the terminal message does not wait for a worker that ignores its cancel, and does not come twice when it has let
    go."""
    async with serving_nnrp(AT_ONCE, functions(holds_on)) as served, served.peer() as peer:
        await peer.open(features=OperationFeatures.OPERATION_STATE)
        await peer.submit(1, LONG)
        await served.wait_until(lambda: served.service.statistics().operations == 1)
        served.service.begin_drain()
        await peer.receive(MessageType.CLOSE)
        drop = await peer.receive(DROP)
        assert (drop.header.frame_id, drop_state(drop)) == (1, OperationState.CANCELLED)
        with pytest.raises(EOFError):
            await peer.receive()


@pytest.mark.parametrize("dialect", ["bare", "implicit"])
async def test_the_other_dialects_are_told_what_they_read(dialect: str) -> None:
    """2.6: nnrp-rs reads no CLOSE unasked, nnrp-py no SESSION_CLOSE; both read RESULT_DROP."""
    async with serving_nnrp(AT_ONCE) as served, served.peer(hello=False) as peer:
        if dialect == "bare":
            await peer.open()
        else:
            await peer.send(HELLO.replace(requested_session_id=1))
            await peer.receive(MessageType.SERVER_HELLO_ACK)
        await peer.submit(1, LONG)
        await served.wait_until(lambda: served.service.statistics().operations == 1)
        served.service.begin_drain()
        close = [(MessageType.CLOSE, 0, 0)] if dialect == "implicit" else []
        assert await until_the_end(peer) == [*close, (DROP, 1, 1)]


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_session_that_the_server_closes(stubborn: bool) -> None:
    """nnrp-extensions, Authentication, and 13.3: a withdrawn token closes its sessions. The drop comes before SESSION_CLOSE: who
    has read that waits for nothing. A submit meanwhile is refused; the connection stays."""
    check = token_check("s")
    principal = check(b"s")
    assert principal is not None
    make_worker = functions(holds_on) if stubborn else functions(EchoWorker().run)
    async with (
        serving_nnrp(ServingPolicy(authenticate=check), make_worker) as served,
        served.peer(hello=False) as peer,
    ):
        await peer.send(HELLO.replace(auth_bytes=1), b"s")
        await peer.receive(MessageType.SERVER_HELLO_ACK)
        await peer.open()
        await peer.submit(1, LONG)
        await served.wait_until(lambda: served.service.statistics().operations == 1)
        served.service.withdraw(principal)
        assert (await peer.receive(DROP)).header.frame_id == 1
        close = (await peer.receive(MessageType.SESSION_CLOSE)).metadata
        assert isinstance(close, SessionClose)
        assert close.close_reason is CloseReason.AUTH_REVOKED
        await peer.submit(2, b"late")
        await peer.receive(MessageType.ERROR)


async def test_a_session_that_closes_already_shields_no_other() -> None:
    """nnrp-extensions, Authentication: a withdrawn token closes all its sessions, and what drains in one that closes is cut."""
    check = token_check("s")
    principal = check(b"s")
    assert principal is not None
    async with serving_nnrp(ServingPolicy(authenticate=check)) as served, served.peer(hello=False) as peer:
        await peer.send(HELLO.replace(auth_bytes=1), b"s")
        await peer.receive(MessageType.SERVER_HELLO_ACK)
        for number in (1, 2):
            await peer.open(OPEN.replace(requested_session_id=number))
            await peer.submit(1, LONG, session_id=number)
        await peer.send(
            SessionClose(in_flight_policy=InFlightPolicy.DRAIN, drain_timeout_ms=60_000, last_operation_id=1),
            session_id=1,
        )
        await peer.receive(MessageType.SESSION_CLOSE_ACK)
        await served.wait_until(lambda: served.service.statistics().operations == 2)
        served.service.withdraw(principal)
        seen = [await peer.receive() for _ in range(4)]
        assert [each.kind for each in seen if each.header.session_id == 1] == [DROP, MessageType.SESSION_CLOSE_ACK]
        assert [each.kind for each in seen if each.header.session_id == 2] == [DROP, MessageType.SESSION_CLOSE]
        (link,) = served.service.links
        assert link.principal is None


@EVERYWHERE
async def test_our_client_hears_how_its_operations_ended(tmp_path: Path, transport: str) -> None:
    """13.1: a shutdown is no lost connection to whoever waits for a result: the operation was cancelled, and that is known."""
    async with (
        serving_on(transport, tmp_path, POLICY) as place,
        open_nnrp(place.url, place.options) as connection,
    ):
        session = await connection.open_session(resumable=True)
        running = [await session.submit(LONG) for _ in range(3)]
        await place.wait_until(lambda: place.service.statistics().operations == 3)
        place.service.begin_drain()
        for each in running:
            with trio.fail_after(10), pytest.raises(NnrpOperationEnded) as ended:
                await each.result()
            assert ended.value.state is OperationState.CANCELLED
