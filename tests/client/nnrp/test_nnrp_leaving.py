"""What a client does, and what happens to it, while it moves to another transport, with servers by hand (nnrp-wire 13.9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
import trio.testing

from client.nnrp import (
    NnrpClientError,
    NnrpConnection,
    NnrpConnectionLost,
    NnrpOptions,
    NnrpSession,
    Submission,
    moving,
)
from client.nnrp.dialling import dial
from protocol.nnrp.enums import MessageType, TransportId
from protocol.nnrp.messages import CacheAck, Pong, SessionMigrateAck
from tests.client.nnrp.test_nnrp_bad_servers import HELLO_ACK, OPENED, Script, Server
from tests.client.nnrp.test_nnrp_retry import RESUMABLE, RESUMED, WIDE, answer, connected
from tests.support.nnrp import raw

ELSEWHERE = "nnrp://127.0.0.1"
IMPATIENT = NnrpOptions(answer_timeout=5.0)


@pytest.fixture(autouse=True)
def two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(moving._TRANSPORTS, "nnrp", TransportId.QUIC)


@attrs.define
class Greeting:
    """A server that answers the hello when it is let, and then does ``then``. ``asked`` is set when the hello has come."""

    then: Script
    asked: trio.Event = attrs.field(factory=trio.Event)
    go: trio.Event = attrs.field(factory=trio.Event)

    async def __call__(self, server: Server) -> None:
        await server.expect(MessageType.CLIENT_HELLO)
        self.asked.set()
        await self.go.wait()
        await server.stream.send_all(raw(HELLO_ACK))
        await self.then(server)


def resumes(*ids: int) -> Script:
    """A server that resumes these sessions and answers a submit in the first."""

    async def script(server: Server) -> None:
        for session_id in ids:
            await server.open(RESUMED.replace(session_id=session_id), b"def")
        await answer(server)
        await server.rest()

    return script


async def opens(server: Server) -> None:
    """A server that opens a session that can be resumed, and says no more."""
    await server.greet()
    await server.open(RESUMABLE, b"abc")
    await server.rest()


async def move(connection: NnrpConnection, greeting: Greeting, meanwhile: Callable[[], Awaitable[object]]) -> None:
    """Do something while the new transport is being greeted. Raises what the move raises."""
    errors: list[NnrpClientError] = []

    async def migrate() -> None:
        try:
            await connection.migrate(ELSEWHERE)
        except NnrpClientError as error:
            errors.append(error)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(migrate)
            await greeting.asked.wait()
            await meanwhile()
            greeting.go.set()
    if errors:
        raise errors[0]


async def test_a_session_that_is_opened_meanwhile_moves_too(autojump_clock: trio.testing.MockClock) -> None:
    """13.9: one primary path at a time, for every session that there is when the old transport is left."""

    async def opens_two(server: Server) -> None:
        await server.greet()
        for session_id in (1, 2):
            await server.open(RESUMABLE.replace(session_id=session_id), b"abc")
        await server.rest()

    greeting = Greeting(resumes(1, 2))
    async with connected([opens_two, greeting]) as connection:
        sessions = [await connection.open_session(resumable=True)]

        async def open_another() -> None:
            sessions.append(await connection.open_session(resumable=True))

        await move(connection, greeting, open_another)
        assert [(each.token, each.attached) for each in sessions] == [(b"def", True)] * 2


async def test_an_open_that_is_not_answered_before_the_move(autojump_clock: trio.testing.MockClock) -> None:
    """13.2: answers go to the requests of their own connection. The caller is told, and gets no session of somebody else's."""
    greeting = Greeting(resumes(1))
    raised = trio.Event()
    async with connected([opens, greeting]) as connection, trio.open_nursery() as nursery:
        session = await connection.open_session(resumable=True)

        async def open_another() -> None:
            with pytest.raises(NnrpConnectionLost, match="moved before"):
                await connection.open_session(resumable=True)
            raised.set()

        nursery.start_soon(open_another)
        await trio.testing.wait_all_tasks_blocked()
        await move(connection, greeting, trio.lowlevel.checkpoint)
        await raised.wait()
        assert (session.token, session.attached) == (b"def", True)
        assert (await session.request(b"x")).final


async def test_the_connection_is_lost_while_it_is_to_be_moved(autojump_clock: trio.testing.MockClock) -> None:
    """It is made again as ever, and no session is asked for by the same token in two places."""
    gone = trio.Event()

    async def opens_and_goes(server: Server) -> None:
        await server.greet()
        await server.open(RESUMABLE, b"abc")
        await gone.wait()

    async def is_left(server: Server) -> None:
        with pytest.raises(EOFError):
            await server.expect(MessageType.SESSION_OPEN)

    async def resumes_one(server: Server) -> None:
        await server.greet()
        await resumes(1)(server)

    greeting = Greeting(is_left)
    async with connected([opens_and_goes, greeting, resumes_one]) as connection:
        session = await connection.open_session(resumable=True)

        async def lose() -> None:
            gone.set()
            await trio.sleep(5)

        with pytest.raises(NnrpConnectionLost, match="before it could be left"):
            await move(connection, greeting, lose)
        assert (await session.request(b"x")).final
        assert connection.reconnects == 1


async def test_what_may_not_move_may_not_move_at_the_end_either(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """13.9: a session that cannot be resumed is at rest when the old transport is left, or nothing changes. What it is told to do
    while the new one is greeted waits for that."""
    session: NnrpSession
    submissions: list[Submission] = []
    go_on = trio.Event()

    async def dial_late(url: str, options: NnrpOptions, nursery: trio.Nursery) -> trio.abc.Stream:
        if url == ELSEWHERE:
            submissions.append(await session.submit(b"x"))
        return await dial(url, options, nursery)

    async def answers_later(server: Server) -> None:
        await server.greet()
        await server.open(WIDE)
        await go_on.wait()
        await answer(server, 2)
        await server.rest()

    async def submit_another() -> None:
        nursery.start_soon(submit, session)
        await trio.testing.wait_all_tasks_blocked()
        assert session.in_flight == 1

    async def submit(session: NnrpSession) -> None:
        submissions.append(await session.submit(b"y"))

    monkeypatch.setattr("client.nnrp.connection.dial", dial_late)
    greeting = Greeting(Server.rest)
    async with connected([answers_later, greeting]) as connection, trio.open_nursery() as nursery:
        session = await connection.open_session()
        with pytest.raises(NnrpClientError, match="at rest"):
            await move(connection, greeting, submit_another)
        go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert [(await each.result()).final for each in submissions] == [True, True]


async def test_a_move_that_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    """13.9: the answer to SESSION_MIGRATE comes when nobody takes it any more. No submit waits for its session for ever."""

    async def answers_late(server: Server) -> None:
        await server.greet()
        await server.expect(MessageType.SESSION_MIGRATE)
        await trio.sleep(2)
        await server.stream.send_all(raw(SessionMigrateAck(0, 2, 500), session_id=1))
        await server.rest()

    async def opens_one(server: Server) -> None:
        await server.greet()
        await server.open()
        await server.rest()

    async with connected([opens_one, answers_late]) as connection:
        session = await connection.open_session()
        with trio.move_on_after(1):
            await connection.migrate(ELSEWHERE)
        with trio.fail_after(60), pytest.raises(NnrpConnectionLost):
            await session.submit(b"x")


async def test_one_move_at_a_time(autojump_clock: trio.testing.MockClock) -> None:
    greeting = Greeting(resumes(1))
    async with connected([opens, greeting]) as connection:
        session = await connection.open_session(resumable=True)

        async def move_again() -> None:
            with pytest.raises(NnrpClientError, match="being moved"):
                await connection.migrate("quic://127.0.0.1")

        await move(connection, greeting, move_again)
        assert (await session.request(b"x")).final


async def test_a_cancel_during_a_move_that_fails(autojump_clock: trio.testing.MockClock) -> None:
    """13.4: it goes to the server where the operation runs, which is where the session stays."""
    asked = trio.Event()
    cancelled = trio.Event()

    async def runs(server: Server) -> None:
        await server.greet()
        await server.open(RESUMABLE, b"abc")
        await server.expect(MessageType.FRAME_SUBMIT)
        await server.expect(MessageType.FRAME_CANCEL)
        cancelled.set()
        await server.rest()

    async def hangs_up(server: Server) -> None:
        await server.expect(MessageType.CLIENT_HELLO)
        asked.set()
        await trio.sleep(1)

    async def cancel(running: Submission) -> None:
        await asked.wait()
        running.cancel()

    async with connected([runs, hangs_up]) as connection, trio.open_nursery() as nursery:
        session = await connection.open_session(resumable=True)
        nursery.start_soon(cancel, await session.submit(b"x"))
        with pytest.raises(NnrpConnectionLost):
            await connection.migrate(ELSEWHERE)
        with trio.fail_after(5):
            await cancelled.wait()


async def test_what_is_not_answered_before_the_move_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    """7.15, 7.20: neither PING nor CACHE_PUT; and the answers on the new transport go to what was asked there."""

    async def resumes_and_answers(server: Server) -> None:
        await server.open(RESUMED, b"def")
        await server.expect(MessageType.CACHE_PUT)
        await server.stream.send_all(raw(CacheAck(cache_key_lo=1, accepted_ttl_ms=77), session_id=1))
        await server.rest()

    async def opens_and_answers_no_ping(server: Server) -> None:
        server.pongs = False
        await opens(server)

    greeting = Greeting(resumes_and_answers)
    lost: list[str] = []
    async with connected([opens_and_answers_no_ping, greeting], IMPATIENT) as connection:
        session = await connection.open_session(resumable=True)

        async def ask(what: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(NnrpConnectionLost) as caught:
                await what()
            lost.append(str(caught.value))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, connection.ping)
            nursery.start_soon(ask, lambda: session.cache.put((0, 1), b"x"))
            await trio.testing.wait_all_tasks_blocked()
            await move(connection, greeting, trio.lowlevel.checkpoint)
        assert sorted(lost) == [
            "the connection moved before this was answered",
            "the connection was lost, or left, before it answered PING",
        ]
        assert (await session.cache.put((0, 1), b"y")).ttl_ms == 77
        assert await connection.ping() < 1


async def test_the_answer_to_a_keepalive_is_nobodys(autojump_clock: trio.testing.MockClock) -> None:
    """7.20: PONG brings back the trace id. The connection asks by itself too, and what that is answered is no answer to `ping`."""

    async def script(server: Server) -> None:
        server.pongs = False
        await server.greet()
        await server.open(OPENED)
        keepalive = await server.expect(MessageType.PING)
        asked = await server.expect(MessageType.PING)
        await server.stream.send_all(raw(Pong(), trace_id=keepalive.trace_id))
        await trio.sleep(2)
        await server.stream.send_all(raw(Pong(), trace_id=asked.trace_id))
        await server.rest()

    async with connected([script], NnrpOptions(reconnect=None, keepalive=10.0)) as connection:
        await connection.open_session()
        await trio.sleep(11)
        assert await connection.ping() == pytest.approx(2)
