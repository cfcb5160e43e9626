"""Answers that overtake each other (QUIC with a stream for each, nnrp-wire 2.4): what is missing when the connection is lost comes
again on the next one, and what has come is dropped (nnrp-extensions, Resume watermark; nnrp-wire 13.4, 13.7)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import trio
import trio.testing

from client.nnrp import BackgroundEvent, NnrpSession, Submission, SubmitOptions
from protocol.nnrp.descriptors import TypedPayloadDescriptor
from protocol.nnrp.enums import (
    ExtensionKind,
    ExtType,
    LossTolerance,
    MessageType,
    OperationFeatures,
    OperationState,
    PayloadKind,
    ResultClass,
    ResultFlags,
    SessionFlagsAck,
    SessionStatus,
    StreamSemantics,
)
from protocol.nnrp.extensions import ControlExtension, pack_extensions
from protocol.nnrp.machines.reading import resume_from
from protocol.nnrp.messages import FrameSubmit, ResultPush
from protocol.nnrp.packet import Packet, encode_packet
from protocol.nnrp.regions import ExtensionFrame, Regions, TypedPayload
from protocol.nnrp.vendor import OperationExtensions, OperationStateBlock, ResumeFrom
from tests.client.nnrp.test_nnrp_bad_servers import Script, Server
from tests.client.nnrp.test_nnrp_retry import RESUMABLE, connected

STATE, CURSOR = OperationFeatures.OPERATION_STATE, OperationFeatures.RESUME_WATERMARK
BOTH = STATE | CURSOR
NONE = OperationFeatures(0)
GRANT = RESUMABLE.replace(
    granted_operation_credit=8,
    max_in_flight_operations=8,
    session_flags_ack=SessionFlagsAck.RESUME_ENABLED | SessionFlagsAck.BACKGROUND_RESULTS_ENABLED,
)
OTHERS = 0x8000_0001
"""A frame of somebody else's work."""
RUNNING, PARTIAL, COMPLETED = OperationState.RUNNING, OperationState.PARTIAL, OperationState.COMPLETED
Event = tuple[int, int, OperationState]
"""Event id, frame, state."""


def result(event_id: int, frame_id: int, state: OperationState, *, stated: bool = True) -> bytes:
    """A RESULT_PUSH whose text is its event id."""
    last = state is COMPLETED
    message = ResultPush(
        active_profile_id=2,
        payload_kind_bitmap=PayloadKind.TOKEN_CHUNK,
        payload_frame_count=1,
        result_class=ResultClass.COMPLETE if last else ResultClass.PARTIAL,
        result_flags=ResultFlags(0) if last else ResultFlags.PARTIAL,
    )
    payload = TypedPayload.of(
        b"%d " % event_id, profile_id=2, schema_id=0x1001, schema_version=3, stream_semantics=StreamSemantics.APPEND
    )
    block = OperationStateBlock(frame_id, state, 0, event_id)
    frames = (ExtensionFrame.of(ExtensionKind.OPERATION_STATE, block),) if stated else ()
    return encode_packet(message, Regions((payload,), extensions=frames), session_id=1, frame_id=frame_id)


def serves(
    opens: list[Packet], features: OperationFeatures, submits: int, *steps: Iterable[Event], stays: bool = False
) -> Script:
    """A server that opens or resumes the session, waits for so many submits, sends these events and is lost. ``steps`` are sent
    with a second between them."""

    async def script(server: Server) -> None:
        await server.greet()
        await server.expect(MessageType.SESSION_OPEN)
        opens.extend(server.opens)
        status = SessionStatus.OPENED if len(opens) == 1 else SessionStatus.RESUMED
        extension = OperationExtensions(features=features)
        body = pack_extensions([ControlExtension.of(ExtType.OPERATION_EXTENSIONS, extension)]) if features else b""
        ack = GRANT.replace(session_status=status, session_extension_bytes=len(body))
        await server.stream.send_all(encode_packet(ack, b"abc" + body, session_id=1))
        for _ in range(submits):
            await server.expect(MessageType.FRAME_SUBMIT)
        for step in steps:
            for each in step:
                await server.stream.send_all(result(*each, stated=bool(features & STATE)))
            await trio.sleep(1)
        if stays:
            await server.rest()

    return script


async def texts(submission: Submission) -> list[bytes]:
    return [each.data.strip() async for each in submission]


def cursors(opens: list[Packet]) -> list[int]:
    found = [resume_from(each) for each in opens[1:]]
    assert all(each is not None for each in found)
    return [each.last_event_id for each in found if isinstance(each, ResumeFrom)]


async def test_an_ending_that_was_overtaken_comes_again(autojump_clock: trio.testing.MockClock) -> None:
    """The first ends as event 5, which is lost with the connection; 6, of the second, had overtaken it. The resume asks for what comes
    after 4, the last that is certain; 6 comes once more, and is no fault."""
    opens: list[Packet] = []
    first = serves(opens, BOTH, 2, [(1, 1, PARTIAL), (2, 2, PARTIAL), (4, 1, PARTIAL), (6, 2, COMPLETED)])
    then = serves(opens, BOTH, 1, [(5, 1, COMPLETED), (6, 2, COMPLETED)], stays=True)
    async with connected([first, then], unordered=1) as connection:
        session = await connection.open_session(resumable=True)
        one, two = await session.submit(b"x"), await session.submit(b"y")
        with trio.fail_after(10):
            assert await texts(two) == [b"2", b"6"]
            assert await texts(one) == [b"1", b"4", b"5"]
        assert cursors(opens) == [4]
        assert connection.machine is not None
        assert connection.machine.counters.violations == 0
        assert connection.reconnects == 1


@pytest.mark.parametrize(("unordered", "asked"), [(1, [1, 3]), (3, [1, 1])])
async def test_what_comes_again_is_dropped_by_its_event_id(
    unordered: int, asked: list[int], autojump_clock: trio.testing.MockClock
) -> None:
    """Each operation is behind by another number of parts, in other states; and the connection is lost again, on which packets came in
    order or not, before all that was missing had come."""
    opens: list[Packet] = []
    waits = OperationState.WAITING_TOOL
    first = serves(opens, BOTH, 2, [(1, 1, RUNNING), (2, 2, RUNNING), (3, 2, PARTIAL), (5, 2, waits)])
    again = serves(opens, BOTH, 2, [(2, 2, RUNNING), (3, 2, PARTIAL)])
    last = serves(
        opens,
        BOTH,
        2,
        [(4, 1, PARTIAL), (5, 2, waits), (6, 2, RUNNING), (7, 2, COMPLETED), (8, 1, COMPLETED)],
        stays=True,
    )
    async with connected([first, again, last], unordered=unordered) as connection:
        session = await connection.open_session(resumable=True)
        one, two = await session.submit(b"x"), await session.submit(b"y")
        with trio.fail_after(20):
            assert await texts(one) == [b"1", b"4", b"8"]
            assert await texts(two) == [b"2", b"3", b"5", b"6", b"7"]
        assert cursors(opens) == asked
        assert connection.machine is not None
        assert connection.machine.counters.violations == 0


async def test_where_nothing_is_overtaken_the_last_event_is_the_cursor(autojump_clock: trio.testing.MockClock) -> None:
    opens: list[Packet] = []
    first = serves(opens, BOTH, 2, [(1, 1, PARTIAL), (2, 2, PARTIAL), (3, 2, COMPLETED)])
    then = serves(opens, BOTH, 1, [(4, 1, COMPLETED)], stays=True)
    async with connected([first, then]) as connection:
        session = await connection.open_session(resumable=True)
        one, _ = await session.submit(b"x"), await session.submit(b"y")
        with trio.fail_after(10):
            assert await texts(one) == [b"1", b"4"]
        assert cursors(opens) == [3]


async def test_an_operation_is_behind_nothing_that_came_before_its_submit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its events come after those: nothing of it was seen, and yet not everything has to come again. What others did is told once, and
    told where an event of one's own had overtaken it."""
    opens: list[Packet] = []
    ahead = [(4, OTHERS, PARTIAL), (6, 3, PARTIAL)]
    first = serves(opens, BOTH, 1, [(1, 1, PARTIAL), (2, 1, COMPLETED)], ahead)
    missing = [(3, 2, COMPLETED), (4, OTHERS, PARTIAL), (5, OTHERS, COMPLETED), (6, 3, PARTIAL), (7, 3, COMPLETED)]
    then = serves(opens, BOTH, 2, missing, stays=True)
    async with connected([first, then], unordered=1) as connection:
        session = await connection.open_session(resumable=True)
        assert await texts(await session.submit(b"x")) == [b"1", b"2"]
        two, three = await session.submit(b"y"), await session.submit(b"z")
        with trio.fail_after(10):
            assert await texts(two) == [b"3"]
            assert await texts(three) == [b"6", b"7"]
        assert cursors(opens) == [2]
        assert [each.event_id for each in await told(session, 2)] == [4, 5]


async def told(session: NnrpSession, count: int) -> list[BackgroundEvent]:
    with trio.fail_after(5):
        return [await session.background.__anext__() for _ in range(count)]


@pytest.mark.parametrize(
    ("policy", "features", "kept"),
    [
        (LossTolerance.LOW_LATENCY, STATE, False),
        (LossTolerance.LOW_LATENCY, NONE, False),
        (LossTolerance.FIRE_AND_FORGET, STATE, False),
        (LossTolerance.FIRE_AND_FORGET, NONE, False),
        (LossTolerance.STRICT, STATE, True),
        (LossTolerance.STRICT, NONE, True),
    ],
)
async def test_parts_that_do_not_come_again_cost_no_others(
    policy: LossTolerance, features: OperationFeatures, kept: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """12.5: of what is sent once no part is kept. Where everything is to come again (no cursor was granted) the first parts behind a
    resume are new then, and are told apart by their event ids, or not counted as others are."""
    opens: list[Packet] = []
    seen, new = [(1, 1, PARTIAL), (2, 1, PARTIAL)], [(3, 1, PARTIAL), (4, 1, PARTIAL), (5, 1, COMPLETED)]
    first = serves(opens, features, 1, seen)
    submits = 0 if policy is LossTolerance.FIRE_AND_FORGET else 1
    then = serves(opens, features, submits, [*(seen if kept else []), *new], stays=True)
    metadata = FrameSubmit(
        payload_kind_bitmap=PayloadKind.TOKEN_CHUNK,
        payload_frame_count=1,
        loss_tolerance_policy=policy,
        frame_class=1,
    )
    descriptor = TypedPayloadDescriptor(2, schema_id=0x1001, schema_version=3, stream_semantics=StreamSemantics.APPEND)
    async with connected([first, then]) as connection:
        session = await connection.open_session(resumable=True)
        body = Regions((TypedPayload(descriptor, b"x"),))
        submission = await session.submit_frame(metadata, body, SubmitOptions())
        with trio.fail_after(10):
            assert await texts(submission) == [b"1", b"2", b"3", b"4", b"5"]
