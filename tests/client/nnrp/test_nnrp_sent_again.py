"""What was in flight is sent again after a resume, and may be refused for credit that others of it take (nnrp-wire 13.6): who waits
for what then, against servers by hand on a clock of their own."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from client.nnrp import NnrpOperationEnded, Submission
from protocol.nnrp.enums import BackpressureLevel, ErrorCode, ErrorScope, FlowScope, MessageType, UpdateReason
from protocol.nnrp.messages import Error
from tests.client.nnrp.test_nnrp_bad_servers import Script, Server
from tests.client.nnrp.test_nnrp_retry import RESUMABLE, RESUMED, answer, connected, flow
from tests.client.nnrp.test_nnrp_sent_once import DONE
from tests.support.nnrp import raw

CREDIT = {"granted_operation_credit": 8, "max_in_flight_operations": 8}


def takes(count: int) -> Script:
    """A server that loses its connection once it has so many submits."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.open(RESUMABLE.replace(**CREDIT), b"abc")
        for _ in range(count):
            await server.expect(MessageType.FRAME_SUBMIT)

    return script


async def resume(server: Server, count: int) -> None:
    await server.greet()
    await server.open(RESUMED.replace(**CREDIT), b"def")
    assert [(await server.expect(MessageType.FRAME_SUBMIT)).frame_id for _ in range(count)] == list(range(1, count + 1))


async def refuse(server: Server, *frames: int, scope: ErrorScope = ErrorScope.FRAME, retry_after_ms: int = 0) -> None:
    for frame_id in frames:
        error = Error(
            error_code=int(ErrorCode.LIMIT_EXCEEDED),
            error_scope=scope,
            retry_after_ms=retry_after_ms,
            related_session_id=1,
            related_frame_id=frame_id,
        )
        await server.stream.send_all(raw(error, session_id=1))


async def lasts(count: int, *, then: Script) -> list[Submission]:
    """Operations whose connection is lost; all that comes of them."""
    async with connected([takes(count), then]) as connection:
        session = await connection.open_session(resumable=True)
        submissions = [await session.submit(b"x") for _ in range(count)]
        with trio.fail_after(60):
            for each in submissions:
                await each.wait_over()
    return submissions


async def test_refusals_that_are_overtaken_by_the_end_that_they_wait_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """2.4: the first's result comes before the refusals that it was the reason of. Nothing is in flight that could still end."""

    async def script(server: Server) -> None:
        await resume(server, 3)
        await server.stream.send_all(raw(DONE, session_id=1, frame_id=1))
        await refuse(server, 2, 3)
        await answer(server, 2)
        await server.rest()

    for each in await lasts(3, then=script):
        assert (await each.result()).final


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_refusal_that_is_for_good(count: int, autojump_clock: trio.testing.MockClock) -> None:
    """12.9: limit_exceeded is not about credit alone. What is refused a second time with nothing else in flight has failed."""
    seen: list[int] = []

    async def script(server: Server) -> None:
        await resume(server, count)
        await refuse(server, *range(1, count + 1))
        while True:
            seen.append((await server.expect(MessageType.FRAME_SUBMIT)).frame_id)
            await refuse(server, seen[-1])

    for each in await lasts(count, then=script):
        with pytest.raises(NnrpOperationEnded) as ended:
            await each.result()
        assert ended.value.code == ErrorCode.LIMIT_EXCEEDED
    assert set(seen) == set(range(1, count + 1))
    assert len(seen) <= 2 * count**2


async def test_the_only_one_is_refused_because_of_a_hard_level(autojump_clock: trio.testing.MockClock) -> None:
    """13.6: hard is not an error; it lasts until it is lifted."""

    async def script(server: Server) -> None:
        await resume(server, 1)
        for epoch in (1, 3, 5):
            await server.stream.send_all(flow(FlowScope.SESSION, epoch, backpressure_level=BackpressureLevel.HARD))
            await refuse(server, 1)
            await trio.sleep(1)
            await server.stream.send_all(flow(FlowScope.SESSION, epoch + 1, update_reason=UpdateReason.RESUME))
            await server.expect(MessageType.FRAME_SUBMIT)
        await server.stream.send_all(raw(DONE, session_id=1, frame_id=1))
        await server.rest()

    (only,) = await lasts(1, then=script)
    assert (await only.result()).final


async def test_a_refusal_that_says_when_to_try_again(autojump_clock: trio.testing.MockClock) -> None:
    """7.6: not before, though credit comes sooner."""
    waited: list[float] = []

    async def script(server: Server) -> None:
        await resume(server, 2)
        await refuse(server, 2, scope=ErrorScope.SESSION, retry_after_ms=7000)
        began = trio.current_time()
        await trio.sleep(1)
        await server.stream.send_all(raw(DONE, session_id=1, frame_id=1))
        await answer(server)
        waited.append(trio.current_time() - began)
        await server.rest()

    for each in await lasts(2, then=script):
        assert (await each.result()).final
    assert waited == pytest.approx([7.0])
