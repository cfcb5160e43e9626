"""What a client may no longer send, and what it goes on reading, while the server closes (nnrp-wire 13.1 – 13.3)."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

from client.nnrp import NnrpClientError, NnrpConnectionLost, NnrpOptions, NnrpSession, NnrpSessionOver
from protocol.nnrp.enums import CloseReason, CloseStatus, MessageType, PayloadKind, SessionStatus
from protocol.nnrp.messages import Close, Message, ResultPush, SessionClose, SessionCloseAck
from tests.client.nnrp.test_nnrp_bad_servers import HELLO_ACK, OPENED, Server
from tests.client.nnrp.test_nnrp_retry import RESUMABLE, connected
from tests.support.nnrp import raw

WIDE = OPENED.replace(granted_operation_credit=8, max_in_flight_operations=8)
DONE = ResultPush(active_profile_id=2, payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)
SINGLE = NnrpOptions(reconnect=None)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Close(), NnrpConnectionLost),
        (SessionClose(CloseReason.SERVER_SHUTDOWN, drain_timeout_ms=5000), NnrpSessionOver),
    ],
    ids=["CLOSE", "SESSION_CLOSE"],
)
async def test_a_submit_while_the_server_closes(
    message: Message, error: type[NnrpClientError], autojump_clock: trio.testing.MockClock
) -> None:
    """13.1, 13.2: new operations only while both are open. The caller hears that it is over, as ever, and what is in flight has its
    result."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.open(WIDE)
        await server.expect(MessageType.FRAME_SUBMIT)
        await server.stream.send_all(raw(message, session_id=0 if isinstance(message, Close) else 1))
        await trio.sleep(2)
        await server.stream.send_all(raw(DONE, session_id=1, frame_id=1))
        await server.rest()

    async with connected([script], SINGLE) as connection:
        session = await connection.open_session()
        submission = await session.submit(b"in flight")
        await trio.sleep(1)
        with pytest.raises(error, match="is being closed"):
            await session.submit(b"late")
        assert session.in_flight == 1
        assert (await submission.result()).final
        await trio.sleep(1)
        assert session.over
        with pytest.raises(NnrpClientError):
            await session.submit(b"too late")


@pytest.mark.parametrize(
    "acks",
    [
        [CloseStatus.CLOSED],
        [CloseStatus.DRAINING, CloseStatus.CLOSED],
        [CloseStatus.ACKNOWLEDGED, CloseStatus.DRAINING, CloseStatus.DRAINING, CloseStatus.CLOSED],
    ],
    ids=["closed", "draining", "acknowledged, draining, higher"],
)
async def test_a_drain_is_followed_to_its_end(acks: list[CloseStatus], autojump_clock: trio.testing.MockClock) -> None:
    """13.3: several acks may follow one close; terminal events are processed until the one that says closed. What the server has not
    ended by then will not end any more."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.open(WIDE)
        for _ in range(len(acks) + 1):
            await server.expect(MessageType.FRAME_SUBMIT)
        await server.expect(MessageType.SESSION_CLOSE)
        for number, status in enumerate(acks, 1):
            await trio.sleep(1)
            await server.stream.send_all(raw(DONE, session_id=1, frame_id=number))
            await server.stream.send_all(raw(SessionCloseAck(status, number), session_id=1))
        await server.rest()

    async def close(session: NnrpSession) -> None:
        await session.close(drain_timeout_ms=30_000)

    async with connected([script], SINGLE) as connection, trio.open_nursery() as nursery:
        session = await connection.open_session()
        submissions = [await session.submit(b"x") for _ in range(len(acks) + 1)]
        nursery.start_soon(close, session)
        *ended, left = submissions
        for number, each in enumerate(ended, 1):
            assert (await each.result()).final
            await trio.testing.wait_all_tasks_blocked()
            assert session.over == (number == len(acks))
        with pytest.raises(NnrpSessionOver):
            await left.result()
        assert connection.connected


async def test_a_close_that_the_server_rejects(autojump_clock: trio.testing.MockClock) -> None:
    """13.2, CLOSE_ACK rejected → OPEN: at the server the session goes on; here its owner has done with it, after its patience."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.open(WIDE)
        await server.expect(MessageType.SESSION_CLOSE)
        await server.stream.send_all(raw(SessionCloseAck(CloseStatus.REJECTED), session_id=1))
        await server.rest()

    async with connected([script], attrs.evolve(SINGLE, idle_timeout=600.0)) as connection:
        session = await connection.open_session()
        with trio.fail_after(60):
            await session.close()
        assert session.over
        assert connection.connected


@pytest.mark.parametrize("drain_timeout_ms", [0, 5000])
async def test_a_close_that_is_lost_with_its_connection(
    drain_timeout_ms: int, autojump_clock: trio.testing.MockClock
) -> None:
    """13.3, 13.7: the session comes back, and is closed then: behind the submits that are sent again, where they are to be drained;
    where they would be cut they are not sent again."""
    kinds: list[MessageType] = []

    async def cuts(server: Server) -> None:
        await server.greet()
        await server.open(RESUMABLE, b"abc")
        await server.expect(MessageType.SESSION_CLOSE)

    async def resumes(server: Server) -> None:
        await server.greet()
        await server.open(RESUMABLE.replace(session_status=SessionStatus.RESUMED), b"def")
        again = 0
        while (header := await server.next()).msg_type is not MessageType.SESSION_CLOSE:
            again += header.msg_type is MessageType.FRAME_SUBMIT
        kinds.extend(server.seen)
        if again:
            await server.stream.send_all(raw(DONE, session_id=1, frame_id=1))
        await server.stream.send_all(raw(SessionCloseAck(CloseStatus.CLOSED), session_id=1))
        await server.rest()

    async with connected([cuts, resumes]) as connection:
        session = await connection.open_session(resumable=True)
        submission = await session.submit(b"x")
        with trio.fail_after(5):
            await session.close(drain_timeout_ms=drain_timeout_ms)
        assert session.over
        assert connection.reconnects == 1
        if drain_timeout_ms:
            assert (await submission.result()).final
        else:
            with pytest.raises(NnrpSessionOver):
                await submission.result()
        assert kinds.count(MessageType.FRAME_SUBMIT) == (1 if drain_timeout_ms else 0)


async def test_a_session_whose_close_is_not_answered_in_time(autojump_clock: trio.testing.MockClock) -> None:
    """Its owner has left the block: nothing of it is waited for, and nobody comes back for it."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.open(RESUMABLE, b"abc")
        await server.expect(MessageType.SESSION_CLOSE)
        await trio.sleep(3)

    async with connected([script], attrs.evolve(SINGLE, idle_timeout=600.0)) as connection:
        async with await connection.open_session(resumable=True) as session:
            submission = await session.submit(b"x")
        assert session.over
        with pytest.raises(NnrpSessionOver, match="was closed"):
            await submission.result()
        await trio.sleep(5)
        assert not connection.connected


async def test_a_close_that_is_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    """It was said: the session is not to be used any more."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.open(WIDE)
        await server.rest()

    async with connected([script], attrs.evolve(SINGLE, idle_timeout=600.0)) as connection:
        session = await connection.open_session()
        with trio.move_on_after(1) as cut:
            await session.close()
        assert cut.cancelled_caught
        assert session.over


async def test_closing_the_session_of_a_server_that_knows_no_close(autojump_clock: trio.testing.MockClock) -> None:
    """2.6: nnrp-py has no SESSION_CLOSE and answers none: there is nothing to wait for."""
    kinds: list[MessageType] = []

    async def script(server: Server) -> None:
        await server.expect(MessageType.CLIENT_HELLO)
        await server.stream.send_all(raw(HELLO_ACK.replace(session_id=1)))
        try:
            await server.rest()
        finally:
            kinds.extend(server.seen)

    async with connected([script], attrs.evolve(SINGLE, dialect="nnrp-py")) as connection:
        session = await connection.open_session()
        submission = await session.submit(b"x")
        began = trio.current_time()
        await session.close()
        assert trio.current_time() == began
        with pytest.raises(NnrpSessionOver, match="was closed"):
            await submission.result()
    assert MessageType.SESSION_CLOSE not in kinds
