"""Cancelling at awkward moments: what was started is not left to itself, and a cancel is never answered by another error."""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

from client.nnrp import NnrpOptions, NnrpResultsLost, NnrpSessionOver
from protocol.nnrp.enums import CloseStatus, MessageType, PayloadKind
from protocol.nnrp.messages import ResultDrop, ResultPush, SessionCloseAck
from tests.client.nnrp.test_nnrp_bad_servers import Script, Server
from tests.client.nnrp.test_nnrp_retry import connected
from tests.support.nnrp import raw

DONE = ResultPush(active_profile_id=2, payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)
SINGLE = NnrpOptions(reconnect=None, idle_timeout=600.0)


async def test_a_submit_that_is_cancelled_in_the_moment_it_starts(autojump_clock: trio.testing.MockClock) -> None:
    """13.6: it had waited for credit, and has it. It was sent, but nobody has it: it is cancelled at the server, which would
    carry it out for nobody else."""
    cancelled = trio.Event()

    async def script(server: Server) -> None:
        await server.greet()
        await server.open()
        await server.expect(MessageType.FRAME_SUBMIT)
        header = await server.expect(MessageType.FRAME_SUBMIT)
        assert (await server.expect(MessageType.FRAME_CANCEL)).frame_id == header.frame_id
        cancelled.set()
        await server.rest()

    async with connected([script], SINGLE) as connection, trio.open_nursery() as nursery:
        session = await connection.open_session()
        first = await session.submit(b"holds the credit")
        waits = trio.CancelScope()

        async def wait() -> None:
            with waits:
                await session.submit(b"waits for it")

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert session.in_flight == len(connection.credit) == 1
        waits.cancel()
        session.machine.receive_drop(first.frame_id)
        connection.go_on()
        with trio.fail_after(10):
            await cancelled.wait()
        assert waits.cancelled_caught


def draining(spoilt: bool) -> Script:
    """A server that ends nothing by itself while the client drains; ``spoilt``: that answers with what cannot be read."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.open()
        header = await server.expect(MessageType.FRAME_SUBMIT)
        if spoilt:
            await trio.sleep(1)
            result = bytearray(raw(DONE, session_id=1, frame_id=header.frame_id))
            result[40 + 62] = 1  # reserved5
            await server.stream.send_all(bytes(result))
        assert (await server.expect(MessageType.FRAME_CANCEL)).frame_id == header.frame_id
        if not spoilt:
            await server.stream.send_all(raw(ResultDrop(), session_id=1, frame_id=header.frame_id))
        await server.expect(MessageType.SESSION_CLOSE)
        await server.stream.send_all(raw(SessionCloseAck(CloseStatus.CLOSED), session_id=1))
        await server.rest()

    return script


async def test_a_request_that_is_cancelled_while_its_session_drains(autojump_clock: trio.testing.MockClock) -> None:
    """13.3: no new operations, but what is in flight may still be cancelled, and the caller sees its own cancel."""
    async with connected([draining(False)], SINGLE, unordered=1) as connection, trio.open_nursery() as nursery:
        session = await connection.open_session()
        cut = trio.CancelScope()

        async def request() -> None:
            with cut:
                await session.request(b"x")

        nursery.start_soon(request)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(partial(session.close, drain_timeout_ms=30_000))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(NnrpSessionOver):
            await session.submit(b"late")
        cut.cancel()
        await trio.sleep(1)
        assert cut.cancelled_caught
        assert session.over
        assert connection.connected


async def test_a_result_that_cannot_be_read_while_its_session_drains(autojump_clock: trio.testing.MockClock) -> None:
    """The operation is cancelled at the server by a task of the connection, which goes on."""
    async with connected([draining(True)], SINGLE, unordered=1) as connection, trio.open_nursery() as nursery:
        session = await connection.open_session()
        submission = await session.submit(b"x")
        nursery.start_soon(partial(session.close, drain_timeout_ms=30_000))
        with pytest.raises(NnrpResultsLost, match="could not be read"):
            await submission.result()
        await trio.sleep(1)
        assert session.over
        assert connection.connected
