"""fire_and_forget at the end that submits (nnrp-wire 12.5): sent once. A server that has carried the frame out and knows no more of
it than its session (13.7 item 3) would carry it out twice."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from client.nnrp import NnrpOptions, NnrpResultsLost, NnrpSession, Submission, SubmitOptions, open_nnrp
from client.nnrp.delivering import lose_unanswered
from protocol.nnrp.descriptors import TypedPayloadDescriptor
from protocol.nnrp.enums import (
    FrameClass,
    HeaderFlags,
    LossTolerance,
    MessageType,
    PayloadKind,
    ResultClass,
    ResultFlags,
    SessionStatus,
    StreamSemantics,
)
from protocol.nnrp.header import Header
from protocol.nnrp.messages import FrameSubmit, ResultPush
from protocol.nnrp.regions import Regions, TypedPayload
from tests.client.nnrp.test_nnrp_bad_servers import Script, Server
from tests.client.nnrp.test_nnrp_retry import OPTIONS, RESUMABLE, connected
from tests.support.nnrp import raw, serving_nnrp

WIDE = RESUMABLE.replace(granted_operation_credit=8, max_in_flight_operations=8)
STRICT, BEST, LOW, ONCE, INHERIT = LossTolerance
KEY, DELTA = FrameClass.KEYFRAME, FrameClass.DELTA
DONE = ResultPush(active_profile_id=2, payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)
PART = DONE.replace(result_class=ResultClass.PARTIAL, result_flags=ResultFlags.PARTIAL)


async def submit(
    session: NnrpSession, policy: LossTolerance, kind: FrameClass = DELTA, data: bytes = b"x", budget_ms: int = 0
) -> Submission:
    descriptor = TypedPayloadDescriptor(2, schema_id=0x1001, schema_version=3, stream_semantics=StreamSemantics.APPEND)
    metadata = FrameSubmit(
        payload_kind_bitmap=PayloadKind.TOKEN_CHUNK,
        payload_frame_count=1,
        loss_tolerance_policy=policy,
        frame_class=int(kind),
        latency_budget_ms=budget_ms,
    )
    return await session.submit_frame(metadata, Regions((TypedPayload(descriptor, data),)), SubmitOptions())


def takes(count: int, *, partial: bool = False) -> Script:
    """A server that loses its connection once it has so many submits, and perhaps has begun to answer the first."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.open(WIDE, b"abc")
        for _ in range(count):
            await server.expect(MessageType.FRAME_SUBMIT)
        if partial:
            await server.stream.send_all(raw(PART, session_id=1, frame_id=1))
            await trio.sleep(1)

    return script


def resumes(seen: list[Header], *ends: int, after: float = 0.0) -> Script:
    """A server that resumes, answers these frames and notes what comes."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.open(WIDE.replace(session_status=SessionStatus.RESUMED), b"def")
        await trio.sleep(after)
        for frame_id in ends:
            await server.stream.send_all(raw(DONE, session_id=1, frame_id=frame_id))
        while True:
            header = await server.next()
            if header.msg_type in (MessageType.FRAME_SUBMIT, MessageType.FRAME_CANCEL):
                seen.append(header)

    return script


async def test_what_is_sent_again_and_what_is_not(autojump_clock: trio.testing.MockClock) -> None:
    """12.5, 3.1 RETRANSMIT: all but fire_and_forget, and of that the keyframes."""
    seen: list[Header] = []
    kinds = [(STRICT, DELTA), (ONCE, DELTA), (BEST, DELTA), (LOW, DELTA), (INHERIT, DELTA), (ONCE, KEY), (INHERIT, KEY)]
    async with connected([takes(len(kinds)), resumes(seen)]) as connection:
        session = await connection.open_session(resumable=True)
        for policy, kind in kinds:
            await submit(session, policy, kind)
        await trio.sleep(1)
        assert connection.reconnects == 1
        assert [each.frame_id for each in seen] == [1, 3, 4, 5, 6, 7]
        assert all(each.flags & HeaderFlags.RETRANSMIT for each in seen)


@pytest.mark.parametrize(("budget_ms", "waits"), [(0, 30.0), (400, 1.4), (60_000, 30.0)])
async def test_what_was_lost_is_not_waited_for(
    budget_ms: int, waits: float, autojump_clock: trio.testing.MockClock
) -> None:
    """No longer than answer_timeout, and a little longer than its budget: then it is over, cancelled, and its credit is back."""
    seen: list[Header] = []
    async with connected([takes(1), resumes(seen)]) as connection:
        session = await connection.open_session(resumable=True)
        submission = await submit(session, ONCE, budget_ms=budget_ms)
        began = trio.current_time()
        with pytest.raises(NnrpResultsLost, match="sent once"):
            await submission.result()
        assert trio.current_time() - began == pytest.approx(waits)
        assert session.in_flight == 0
        await trio.testing.wait_all_tasks_blocked()
        assert [(each.msg_type, each.frame_id) for each in seen] == [(MessageType.FRAME_CANCEL, 1)]


@pytest.mark.parametrize(("partial", "after"), [(False, 20.0), (True, 90.0)])
async def test_what_had_arrived_ends_as_the_server_says(
    partial: bool, after: float, autojump_clock: trio.testing.MockClock
) -> None:
    """13.7: operations go on while their connection is away, and so do these. One that had begun to answer is waited for as long as
    it takes."""
    seen: list[Header] = []
    async with connected([takes(1, partial=partial), resumes(seen, 1, after=after)]) as connection:
        session = await connection.open_session(resumable=True)
        submission = await submit(session, ONCE)
        assert (await submission.result()).final
        await trio.sleep(100)
        assert not seen


async def test_a_cancel_is_sent_again_though_its_submit_is_not(autojump_clock: trio.testing.MockClock) -> None:
    """It may have been lost with the connection (13.4: of a frame that is not known, it is ignored)."""
    seen: list[Header] = []
    async with connected([takes(1), resumes(seen)]) as connection:
        session = await connection.open_session(resumable=True)
        submission = await submit(session, ONCE)
        submission.cancel()
        await trio.sleep(1)
        assert connection.reconnects == 1
        assert [(each.msg_type, each.frame_id) for each in seen] == [(MessageType.FRAME_CANCEL, 1)]


async def test_the_wait_is_over_while_the_connection_goes(autojump_clock: trio.testing.MockClock) -> None:
    """The link is closed, and still sends its last words: the session is not away yet. The cancel is sent on the next one."""
    seen: list[Header] = []
    async with connected([takes(1), resumes(seen)]) as connection:
        session = await connection.open_session(resumable=True)
        submission = await submit(session, ONCE)
        assert connection.machine is not None
        connection.machine.lose_transport()
        assert lose_unanswered(session.machine, submission.operation)
        with pytest.raises(NnrpResultsLost, match="sent once"):
            await submission.result()
        await trio.sleep(1)
        assert session.attached
        assert [(each.msg_type, each.frame_id) for each in seen] == [(MessageType.FRAME_CANCEL, 1)]


async def test_with_our_server_it_goes_on() -> None:
    """The frame had arrived and runs on; its result comes on the next connection, once."""
    streams: list[trio.SocketStream] = []

    async def connect(host: str, port: int) -> trio.abc.Stream:
        streams.append(await trio.open_tcp_stream(host, port))
        return streams[-1]

    options = NnrpOptions(connect=connect, reconnect=OPTIONS.reconnect)
    with trio.fail_after(20):
        async with serving_nnrp() as served, open_nnrp(served.url, options) as connection:
            session = await connection.open_session(resumable=True)
            submission = await submit(session, ONCE, data=b"sleep=300;once")
            await served.wait_until(lambda: served.service.statistics().operations == 1)
            await streams[0].aclose()
            assert (await submission.result()).data == b"sleep=300;once"
            assert connection.reconnects == 1
            assert session.in_flight == 0
