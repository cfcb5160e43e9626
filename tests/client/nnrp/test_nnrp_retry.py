"""Not before the server has said so: retry_after and retry_later as the client obeys them (nnrp-wire 7.2, 7.6, 7.8, 12.9, 13.6,
13.7), against servers by hand on a clock of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import attrs
import pytest
import trio
import trio.testing

from client.backoff import ReconnectPolicy
from client.nnrp import NnrpConnection, NnrpOperationEnded, NnrpOptions, NnrpRefused, NnrpSessionOver, open_nnrp
from client.nnrp.transport import PacketTransport
from protocol.layout import Buffer
from protocol.nnrp.enums import (
    BackpressureLevel,
    ErrorCode,
    ErrorScope,
    FlowFlags,
    FlowScope,
    MessageType,
    OperationState,
    PayloadKind,
    SessionFlagsAck,
    SessionStatus,
    UpdateReason,
)
from protocol.nnrp.messages import Close, Error, FlowUpdate, ResultPush, SessionOpenAck
from tests.client.nnrp.test_nnrp_bad_servers import HELLO_ACK, OPENED, Script, Server
from tests.support.nnrp import raw

RESUMABLE = OPENED.replace(
    resume_window_ms=600_000, resume_token_bytes=3, session_flags_ack=SessionFlagsAck.RESUME_ENABLED
)
LATER = SessionOpenAck(session_status=SessionStatus.RETRY_LATER, session_error_code=0x0001_0007)
WIDE = OPENED.replace(granted_operation_credit=8, max_in_flight_operations=8)
POLICY = ReconnectPolicy(base=0.5, maximum=4.0, jitter=0.0, give_up_after=60.0)
OPTIONS = NnrpOptions(reconnect=POLICY)


class Unordered(PacketTransport):
    """Says of a stream that packets overtake each other on it, as on QUIC with a stream for every answer."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    @property
    def ordered(self) -> bool:
        return False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_all(self, data: Buffer) -> None:
        await self._stream.send_all(data)

    async def part(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def connected(
    scripts: Sequence[Script], options: NnrpOptions = OPTIONS, *, unordered: int = 0
) -> AsyncIterator[NnrpConnection]:
    """One script for each connection, in their order; a connection ends with its script. On the first ``unordered`` packets may
    overtake each other."""
    waiting = list(scripts)

    async def serve(stream: trio.abc.Stream, script: Script) -> None:
        with suppress(EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
            await script(Server(stream))
        await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:

        async def connect(host: str, port: int) -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(serve, theirs, waiting.pop(0))
            return ours if len(scripts) - len(waiting) > unordered else Unordered(ours)

        async with open_nnrp("tcp://127.0.0.1", attrs.evolve(options, connect=connect)) as connection:
            yield connection
        nursery.cancel_scope.cancel()


async def answer(server: Server, count: int = 1) -> None:
    for _ in range(count):
        header = await server.expect(MessageType.FRAME_SUBMIT)
        done = ResultPush(active_profile_id=2, payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)
        await server.stream.send_all(raw(done, session_id=1, frame_id=header.frame_id))


async def opens_and_is_lost(server: Server) -> None:
    await server.greet()
    await server.open(RESUMABLE, b"abc")


def puts_off(times: int, seen: list[float]) -> Script:
    """A server that says retry_later so many times, then resumes the session."""

    async def script(server: Server) -> None:
        await server.greet()
        for _ in range(times):
            await server.open(LATER)
            seen.append(trio.current_time())
        await server.open(RESUMABLE.replace(session_status=SessionStatus.RESUMED), b"def")
        seen.append(trio.current_time())
        await answer(server)
        await server.rest()

    return script


async def test_a_resume_that_is_put_off_is_asked_for_again(autojump_clock: trio.testing.MockClock) -> None:
    """13.7, 7.8: retry_later is no refusal; the same request is repeated, later each time, on the same connection. What was
    submitted meanwhile waits, and goes out when the session is back."""
    seen: list[float] = []
    async with connected([opens_and_is_lost, puts_off(3, seen)]) as connection:
        session = await connection.open_session(resumable=True)
        assert (await session.request(b"x")).final
        assert session.token == b"def"
        assert connection.reconnects == 1
    waited = [later - earlier for earlier, later in pairwise(seen)]
    assert waited == pytest.approx([0.5, 0.5, 1.0])


async def test_a_resume_is_put_off_within_bounds(autojump_clock: trio.testing.MockClock) -> None:
    """Once the client has tried for ``give_up_after`` the session is over, and whoever waits for it is told; the connection is not."""
    seen: list[float] = []
    async with connected([opens_and_is_lost, puts_off(1000, seen)]) as connection:
        session = await connection.open_session(resumable=True)
        with pytest.raises(NnrpSessionOver, match="could not be resumed"):
            await session.request(b"x")
        assert connection.connected
    assert 60.0 <= seen[-1] - seen[0] <= 60.0 + POLICY.maximum


async def test_a_session_that_is_closed_while_its_resume_is_put_off(autojump_clock: trio.testing.MockClock) -> None:
    """Nobody asks for it any more."""
    seen: list[float] = []
    async with connected([opens_and_is_lost, puts_off(1000, seen)]) as connection:
        session = await connection.open_session(resumable=True)
        await trio.sleep(1.2)
        await session.close()
        asked = len(seen)
        assert asked
        await trio.sleep(300)
        assert len(seen) == asked


RESUMED = RESUMABLE.replace(session_status=SessionStatus.RESUMED)


async def opens_two_and_is_lost(server: Server) -> None:
    await server.greet()
    for session_id in (1, 2):
        await server.open(RESUMABLE.replace(session_id=session_id), b"abc")
    await server.expect(MessageType.FRAME_SUBMIT)


async def test_a_resume_that_is_put_off_while_the_server_closes(autojump_clock: trio.testing.MockClock) -> None:
    """13.1: no SESSION_OPEN while the connection drains. The session is asked for on the next one."""

    async def closes(server: Server) -> None:
        await server.greet()
        await server.open(RESUMED, b"def")
        await server.open(LATER)
        await server.stream.send_all(raw(Close()))
        await trio.sleep(3)
        await answer(server)
        with pytest.raises(EOFError):
            await server.expect(MessageType.SESSION_OPEN)

    async def resumes(server: Server) -> None:
        await server.greet()
        await server.open(RESUMED.replace(session_id=2), b"ghi")
        await server.rest()

    async with connected([opens_two_and_is_lost, closes, resumes]) as connection:
        running, put_off = [await connection.open_session(resumable=True) for _ in range(2)]
        assert (await running.request(b"x")).final
        await trio.sleep(10)
        assert put_off.token == b"ghi"
        assert connection.reconnects == 2


async def test_credit_of_a_session_that_is_closed_while_its_resume_is_put_off(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """13.6: what it had in flight was counted, because it was to come back. Now it is not, and who waits for that hears of it."""

    async def puts_the_first_off(server: Server) -> None:
        await server.expect(MessageType.CLIENT_HELLO)
        await server.stream.send_all(raw(HELLO_ACK.replace(max_concurrent_frames=1)))
        await server.open(LATER)
        await server.open(RESUMED.replace(session_id=2), b"def")
        header = await server.expect(MessageType.FRAME_SUBMIT)
        assert header.session_id == 2
        done = ResultPush(active_profile_id=2, payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)
        await server.stream.send_all(raw(done, session_id=2, frame_id=header.frame_id))
        await server.rest()

    options = NnrpOptions(reconnect=ReconnectPolicy(base=100.0, maximum=100.0, jitter=0.0))
    async with connected([opens_two_and_is_lost, puts_the_first_off], options) as connection:
        put_off, idle = [await connection.open_session(resumable=True) for _ in range(2)]
        await put_off.submit(b"x")
        await trio.sleep(1)
        assert (put_off.attached, idle.attached) == (False, True)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(idle.request, b"y")
                await trio.sleep(1)
                assert not idle.in_flight
                await put_off.close()


async def test_an_open_that_is_put_off(autojump_clock: trio.testing.MockClock) -> None:
    """7.8: a new session that cannot be had now is the caller's to ask for again."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.open(LATER)
        await server.open(OPENED)
        await server.rest()

    async with connected([script]) as connection:
        with pytest.raises(NnrpRefused) as refused:
            await connection.open_session()
        assert (refused.value.retry_later, refused.value.retry_after, refused.value.code) == (True, 0.0, 0x0001_0007)
        assert (await connection.open_session()).session_id == 1


def busy(scope: ErrorScope, *, fatal: bool = False, frame_id: int = 0) -> Error:
    return Error(
        error_code=int(ErrorCode.SERVER_BUSY),
        error_scope=scope,
        is_fatal=int(fatal),
        retry_after_ms=7000,
        related_session_id=0 if scope is ErrorScope.CONNECTION else 1,
        related_frame_id=frame_id,
    )


@pytest.mark.parametrize("by", ["SERVER_HELLO_ACK", "ERROR"])
async def test_a_hello_that_is_refused_for_now(by: str, autojump_clock: trio.testing.MockClock) -> None:
    """7.2 retry_after_ms, 7.6: the first hello's caller is told when; a client that has lost its connection waits that long,
    though its own policy would have it ask sooner."""
    seen: list[float] = []

    async def refuses(server: Server) -> None:
        await server.expect(MessageType.CLIENT_HELLO)
        refusal = HELLO_ACK.replace(auth_status=1, retry_after_ms=7000)
        message = refusal if by == "SERVER_HELLO_ACK" else busy(ErrorScope.CONNECTION, fatal=True)
        await server.stream.send_all(raw(message))
        seen.append(trio.current_time())

    with pytest.RaisesGroup(NnrpRefused) as group:
        async with connected([refuses]):
            raise AssertionError("it was refused")
    refused = group.value.exceptions[0]
    assert isinstance(refused, NnrpRefused)
    assert (refused.retry_later, refused.retry_after) == (True, 7.0)
    async with connected([opens_and_is_lost, refuses, puts_off(0, seen)]) as connection:
        session = await connection.open_session(resumable=True)
        assert (await session.request(b"x")).final
    assert seen[-1] - seen[-2] == pytest.approx(7.0)


async def test_a_connection_that_is_ended_for_now(autojump_clock: trio.testing.MockClock) -> None:
    """7.6, 12.9: a fatal ERROR of an open connection may say when to come back."""
    seen: list[float] = []

    async def script(server: Server) -> None:
        await opens_and_is_lost(server)
        await server.stream.send_all(raw(busy(ErrorScope.CONNECTION, fatal=True)))
        seen.append(trio.current_time())

    async with connected([script, puts_off(0, seen)]) as connection:
        session = await connection.open_session(resumable=True)
        assert (await session.request(b"x")).final
    assert seen[1] - seen[0] == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("scope", "waits", "sibling_waits"),
    [(ErrorScope.FRAME, 0.0, 0.0), (ErrorScope.SESSION, 7.0, 0.0), (ErrorScope.CONNECTION, 7.0, 7.0)],
)
async def test_a_submit_that_is_refused_for_now(
    scope: ErrorScope, waits: float, sibling_waits: float, autojump_clock: trio.testing.MockClock
) -> None:
    """7.6, 12.9: the operation's caller is told when to try again; where the ERROR is about more than the frame, nothing new goes
    out there before."""
    went: dict[int, float] = {}
    sent = trio.Event()

    async def script(server: Server) -> None:
        await server.greet()
        await server.open(WIDE)
        await server.open(WIDE.replace(session_id=2))
        frame = (await server.expect(MessageType.FRAME_SUBMIT)).frame_id
        await server.stream.send_all(
            raw(busy(scope, frame_id=frame), session_id=0 if scope is ErrorScope.CONNECTION else 1)
        )
        sent.set()
        for _ in range(2):
            header = await server.expect(MessageType.FRAME_SUBMIT)
            went[header.session_id] = trio.current_time()
        await server.rest()

    async with connected([script]) as connection, trio.open_nursery() as nursery:
        session, sibling = await connection.open_session(), await connection.open_session()
        refused = await session.submit(b"x")
        if scope is not ErrorScope.CONNECTION:
            with pytest.raises(NnrpOperationEnded) as ended:
                await refused.result()
            assert (ended.value.state, ended.value.retry_after) == (OperationState.FAILED, 7.0)
        await sent.wait()
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        nursery.start_soon(session.submit, b"y")
        nursery.start_soon(sibling.submit, b"z")
        await trio.sleep(10)
        assert {each: at - began for each, at in went.items()} == pytest.approx({1: waits, 2: sibling_waits})


def flow(scope: FlowScope, epoch: int, **more: object) -> bytes:
    update = FlowUpdate(
        scope_kind=scope, update_reason=UpdateReason.CONGESTION, credit_epoch=epoch, flow_flags=FlowFlags(0)
    )
    session_id = 0 if scope is FlowScope.CONNECTION else 1
    return raw(update.replace(**more), session_id=session_id)


SOFT = {
    "backpressure_level": BackpressureLevel.SOFT,
    "retry_after_ms": 7000,
    "flow_flags": FlowFlags.RETRY_AFTER_VALID,
}
HARD = {**SOFT, "backpressure_level": BackpressureLevel.HARD}


@pytest.mark.parametrize("scope", [FlowScope.CONNECTION, FlowScope.SESSION])
@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (SOFT, None, 7.0),
        (SOFT, {"backpressure_level": BackpressureLevel.SOFT}, 2.0),
        (SOFT, {**SOFT, "retry_after_ms": 9000}, 11.0),
        (HARD, None, None),
        (HARD, {"update_reason": UpdateReason.RESUME}, 2.0),
        (HARD, SOFT, 9.0),
    ],
    ids=["alone", "taken back", "prolonged", "hard", "hard, then resume", "hard, then soft"],
)
async def test_retry_after_in_a_flow_update_is_the_earliest_retry(
    scope: FlowScope,
    first: dict[str, object],
    second: dict[str, object] | None,
    waits: float | None,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """13.6: new work goes out when the time is over, with no further word; a newer update replaces it; a hard level holds until
    the server lifts it, however soon it may be asked again."""
    went: list[float] = []

    async def script(server: Server) -> None:
        await server.greet()
        await server.open(WIDE)
        await server.stream.send_all(flow(scope, 1, **first))
        if second is not None:
            await trio.sleep(2)
            await server.stream.send_all(flow(scope, 2, **second))
        await server.expect(MessageType.FRAME_SUBMIT)
        went.append(trio.current_time())
        await server.rest()

    async with connected([script]) as connection:
        session = await connection.open_session()
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        with trio.move_on_after(25):
            await session.submit(b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert went == ([] if waits is None else pytest.approx([began + waits]))
