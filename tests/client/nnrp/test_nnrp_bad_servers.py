"""Servers that do not do what they should, by hand over loopback: the client neither waits for ever nor loses a result without
saying so (issue 5, Client)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
import trio.testing

from client.backoff import ReconnectPolicy
from client.nnrp import (
    NnrpConnection,
    NnrpConnectionLost,
    NnrpOperationEnded,
    NnrpOptions,
    NnrpResultsLost,
    NnrpSessionOver,
    open_nnrp,
)
from protocol.nnrp.enums import (
    CloseStatus,
    ErrorScope,
    MessageType,
    OperationState,
    PayloadKind,
    SessionFlagsAck,
    SessionStatus,
)
from protocol.nnrp.header import Header
from protocol.nnrp.messages import (
    Error,
    Pong,
    ResultPush,
    ServerHelloAck,
    SessionCloseAck,
    SessionOpenAck,
)
from protocol.nnrp.packet import Packet
from protocol.nnrp.splitter import Splitter
from tests.support.nnrp import raw

HELLO_ACK = ServerHelloAck(
    selected_version_major=1, accepted_profile_bitmap=3, accepted_payload_kind_bitmap=PayloadKind(0x7F)
)
OPENED = SessionOpenAck(
    session_id=1,
    accepted_profile_id=2,
    schema_id=0x1001,
    schema_version=3,
    granted_operation_credit=1,
    max_in_flight_operations=1,
    session_flags_ack=SessionFlagsAck.CACHE_LEASES_ENABLED,
)
QUICK = NnrpOptions(answer_timeout=0.3, reconnect=None)
PATIENT = NnrpOptions(reconnect=None)


class Server:
    """One connection of a server that says what it is told to. It answers PING unless told not to, so that the connection
    lives on whatever else it leaves unsaid."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.seen: list[MessageType] = []
        self.opens: list[Packet] = []
        self.pongs = True
        self._splitter = Splitter()
        self._waiting: list[Header] = []

    async def expect(self, kind: MessageType) -> Header:
        """Read until this comes. Raises EOFError at the end."""
        while (header := await self.next()).msg_type is not kind:
            pass
        return header

    async def next(self) -> Header:
        """Read one more. Raises EOFError at the end."""
        while not self._waiting:
            data = await self.stream.receive_some(65_536)
            if not data:
                raise EOFError
            self._splitter.receive_data(data)
            for each in self._splitter.packets():
                self._waiting.append(each.header)
                if each.header.msg_type is MessageType.SESSION_OPEN:
                    self.opens.append(each.decode(strict=True))
        header = self._waiting.pop(0)
        self.seen.append(header.msg_type)
        if header.msg_type is MessageType.PING and self.pongs:
            await self.stream.send_all(raw(Pong(), trace_id=header.trace_id))
        return header

    async def greet(self) -> None:
        await self.expect(MessageType.CLIENT_HELLO)
        await self.stream.send_all(raw(HELLO_ACK))

    async def open(self, answer: SessionOpenAck = OPENED, body: bytes = b"") -> None:
        await self.expect(MessageType.SESSION_OPEN)
        await self.stream.send_all(raw(answer, body, session_id=answer.session_id))

    async def rest(self) -> None:
        await self.expect(MessageType.CLIENT_HELLO)  # never comes again


Script = Callable[[Server], Awaitable[None]]


@asynccontextmanager
async def connected(script: Script, options: NnrpOptions = QUICK) -> AsyncIterator[NnrpConnection]:
    async def serve(stream: trio.SocketStream) -> None:
        with suppress(EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
            await script(Server(stream))
        await trio.aclose_forcefully(stream)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            port = listener.socket.getsockname()[1]
            async with open_nnrp(f"tcp://127.0.0.1:{port}", options) as connection:
                yield connection
            nursery.cancel_scope.cancel()


async def says_hello_only(server: Server) -> None:
    await server.greet()
    await server.rest()


async def opens_and_says_no_more(server: Server) -> None:
    server.pongs = False
    await server.greet()
    await server.open()
    await server.rest()


async def test_an_open_that_is_never_answered() -> None:
    """nnrp-wire 13.2: answers come by order, so that this one may still come; but nobody waits for it for ever."""
    async with connected(says_hello_only) as connection:
        with pytest.raises(NnrpConnectionLost, match="SESSION_OPEN in time"):
            await connection.open_session()
        assert connection.connected


async def test_a_ping_that_is_never_answered() -> None:
    """nnrp-wire 7.20: what is lost as a datagram, or never said, does not hold the caller; nor the next answer."""
    async with connected(opens_and_says_no_more) as connection:
        await connection.open_session()
        with pytest.raises(NnrpConnectionLost, match="PING in time"):
            await connection.ping()


async def test_a_put_that_is_never_answered() -> None:
    """nnrp-wire 7.15."""
    async with connected(opens_and_says_no_more) as connection:
        session = await connection.open_session()
        with pytest.raises(NnrpConnectionLost, match="CACHE_PUT in time"):
            await session.cache.put((0, 1), b"x")


async def test_a_session_that_nobody_waits_for_is_closed_at_the_server() -> None:
    """nnrp-wire 13.2: an answer that comes after the wait for it was cancelled opens a session nobody has."""
    closed, go = trio.Event(), trio.Event()

    async def script(server: Server) -> None:
        await server.greet()
        await server.expect(MessageType.SESSION_OPEN)
        await go.wait()
        await server.stream.send_all(raw(OPENED, session_id=1))
        await server.expect(MessageType.SESSION_CLOSE)
        closed.set()
        await server.rest()

    async with connected(script, PATIENT) as connection:
        with trio.move_on_after(0.05):
            await connection.open_session()
        go.set()
        await closed.wait()


async def test_a_resume_that_is_never_answered() -> None:
    """nnrp-wire 13.7: what waits for the session is told, instead of waiting for as long as the connection lives."""
    times = iter(range(2))

    async def script(server: Server) -> None:
        await server.greet()
        if next(times, 1) == 0:
            flags = SessionFlagsAck.RESUME_ENABLED
            await server.open(
                OPENED.replace(resume_window_ms=9000, resume_token_bytes=3, session_flags_ack=flags), b"abc"
            )
            await server.expect(MessageType.FRAME_SUBMIT)
            return
        await server.rest()

    options = NnrpOptions(answer_timeout=0.3, reconnect=ReconnectPolicy(base=0.01, give_up_after=20.0))
    async with connected(script, options) as connection:
        session = await connection.open_session(resumable=True)
        submission = await session.submit(b"x")
        with pytest.raises(NnrpConnectionLost, match="resume in time"):
            await submission.result()


async def test_a_resume_that_is_answered_with_a_new_session() -> None:
    """nnrp-wire 13.7: opened is no resumed. What was in flight there is unknown here, and would run a second time."""
    times = iter(range(2))
    seen: list[MessageType] = []

    async def script(server: Server) -> None:
        flags = SessionFlagsAck.RESUME_ENABLED
        await server.greet()
        await server.open(OPENED.replace(resume_window_ms=9000, resume_token_bytes=3, session_flags_ack=flags), b"abc")
        if next(times) == 0:
            await server.expect(MessageType.FRAME_SUBMIT)
            return
        server.seen.clear()
        await server.expect(MessageType.SESSION_CLOSE)
        seen.extend(server.seen)
        await server.stream.send_all(raw(SessionCloseAck(close_status=CloseStatus.CLOSED), session_id=1))
        await server.rest()

    options = NnrpOptions(reconnect=ReconnectPolicy(base=0.01, give_up_after=20.0))
    async with connected(script, options) as connection:
        session = await connection.open_session(resumable=True)
        submission = await session.submit(b"x")
        with pytest.raises(NnrpSessionOver, match="opened another"):
            await submission.result()
        await connection.ping()
    assert seen == [MessageType.SESSION_CLOSE]


async def test_a_result_that_cannot_be_read_is_not_lost_silently() -> None:
    """Issue 5: it may have been the last one. The operation ends as lost, is cancelled at the server, and its credit is back."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.open()
        frame = (await server.expect(MessageType.FRAME_SUBMIT)).frame_id
        spoilt = bytearray(raw(ResultPush(), session_id=1, frame_id=frame))
        spoilt[40 + 62] = 1  # reserved5
        await server.stream.send_all(bytes(spoilt))
        await server.expect(MessageType.FRAME_CANCEL)
        frame = (await server.expect(MessageType.FRAME_SUBMIT)).frame_id
        await server.stream.send_all(raw(ResultPush(), session_id=1, frame_id=frame))
        await server.rest()

    async with connected(script, PATIENT) as connection:
        session = await connection.open_session()
        submission = await session.submit(b"x")
        with pytest.raises(NnrpResultsLost, match="could not be read"):
            await submission.result()
        assert (await (await session.submit(b"y")).result()).final


async def test_a_result_behind_the_end_of_its_connection_comes_again() -> None:
    """13.7: what arrives when the connection is over already, here by a PING that cannot be read, is not looked at. It is no reason to
    give its operation up."""
    flags = SessionFlagsAck.RESUME_ENABLED
    grant = OPENED.replace(resume_window_ms=9000, resume_token_bytes=3, session_flags_ack=flags)
    answers = iter([SessionStatus.OPENED, SessionStatus.RESUMED])

    async def script(server: Server) -> None:
        await server.greet()
        status = next(answers)
        await server.open(grant.replace(session_status=status), b"abc")
        frame = (await server.expect(MessageType.FRAME_SUBMIT)).frame_id
        result = raw(ResultPush(), session_id=1, frame_id=frame)
        if status is SessionStatus.OPENED:
            await server.stream.send_all(Header(MessageType.PING, meta_len=1).pack() + b"?" + result)
            return
        await server.stream.send_all(result)
        await server.rest()

    async with connected(script, NnrpOptions(reconnect=ReconnectPolicy(base=0.01))) as connection:
        session = await connection.open_session(resumable=True)
        assert (await session.request(b"x")).final
        assert connection.reconnects == 1


async def test_a_session_that_the_server_gives_up() -> None:
    """nnrp-wire 7.6: ERROR of scope session, fatal. What waits in it is told, and the connection goes on."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.open()
        await server.expect(MessageType.FRAME_SUBMIT)
        error = Error(error_code=12, error_scope=ErrorScope.SESSION, is_fatal=1, related_session_id=1)
        await server.stream.send_all(raw(error, session_id=1))
        await server.open()
        await server.rest()

    async with connected(script, PATIENT) as connection:
        session = await connection.open_session()
        submission = await session.submit(b"x")
        with pytest.raises(NnrpSessionOver):
            await submission.result()
        assert session.over
        assert (await connection.open_session()).session_id == 1


async def test_a_fatal_error_where_no_hello_is_said() -> None:
    """nnrp-wire 2.6, 7.6: towards nnrp-rs there is no hello that it could refuse. What it names has ended."""

    async def script(server: Server) -> None:
        await server.open()
        header = await server.expect(MessageType.FRAME_SUBMIT)
        error = Error(error_code=12, error_scope=ErrorScope.FRAME, is_fatal=1, related_frame_id=header.frame_id)
        await server.stream.send_all(raw(error, session_id=1, frame_id=header.frame_id))
        await server.rest()

    async with connected(script, NnrpOptions(reconnect=None, dialect="nnrp-rs")) as connection:
        session = await connection.open_session()
        with trio.fail_after(5), pytest.raises(NnrpOperationEnded):
            await session.request(b"x")


async def test_closing_twice_at_once() -> None:
    """`NnrpSession.close` is idempotent: the second waits for the same answer."""
    seen: list[MessageType] = []

    async def script(server: Server) -> None:
        await server.greet()
        await server.open()
        await server.expect(MessageType.SESSION_CLOSE)
        await server.expect(MessageType.PING)
        await server.stream.send_all(raw(SessionCloseAck(close_status=CloseStatus.CLOSED), session_id=1))
        seen.extend(server.seen)
        await server.rest()

    async with connected(script, PATIENT) as connection:
        session = await connection.open_session()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.close)
            nursery.start_soon(session.close)
            await trio.testing.wait_all_tasks_blocked()
            await connection.ping()
        assert session.over
    assert seen.count(MessageType.SESSION_CLOSE) == 1


@pytest.mark.parametrize("status", [SessionStatus.REJECTED, SessionStatus.RETRY_LATER])
async def test_answers_go_to_their_requests_in_order(status: SessionStatus) -> None:
    """nnrp-wire 13.2: one that nobody waits for any more keeps its place."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.expect(MessageType.SESSION_OPEN)
        await server.open(SessionOpenAck(session_status=status, session_error_code=0x0001_0007))
        await server.stream.send_all(raw(OPENED, session_id=1))
        await server.rest()

    async with connected(script, PATIENT) as connection:
        with trio.move_on_after(0.05):
            await connection.open_session()
        assert (await connection.open_session()).session_id == 1


@pytest.mark.parametrize("scope", [ErrorScope.SESSION, ErrorScope.FRAME])
async def test_an_error_in_the_place_of_a_result(scope: ErrorScope) -> None:
    """7.6, 12.9: server_busy is of the session by default, and names the frame it is about: that operation has ended, whatever
    the scope, and the session goes on."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.open()
        for _ in range(2):
            header = await server.expect(MessageType.FRAME_SUBMIT)
            error = Error(error_code=0x0B, error_scope=scope, related_session_id=1, related_frame_id=header.frame_id)
            await server.stream.send_all(raw(error, session_id=1))
        await server.rest()

    async with connected(script) as connection:
        session = await connection.open_session()
        for _ in range(2):
            with pytest.raises(NnrpOperationEnded) as ended:
                await session.request(b"x")
            assert (ended.value.state, ended.value.code) == (OperationState.FAILED, 0x0B)
        assert session.in_flight == 0
        assert not session.over
