"""loss_tolerance (nnrp-wire 3.1 CAN_DROP, 6, 12.5): fire_and_forget is sent once; keyframes are not; low_latency is where the round
trip takes more than half of the budget; the budget outranks all."""

from __future__ import annotations

import pytest
import trio

from protocol.nnrp.descriptors import LossToleranceBlock
from protocol.nnrp.enums import ExtType, FrameClass, HeaderFlags, LossTolerance, MessageType, SessionFlags
from protocol.nnrp.extensions import ControlExtension, pack_extensions
from protocol.nnrp.messages import FrameSubmit, Pong
from tests.support.nnrp import HELLO, OPEN, Peer, Served, serving_nnrp, submit_packet, text_of, token_of

RESUMABLE = OPEN.replace(requested_session_id=5, session_flags=SessionFlags.ALLOW_RESUME)
STRICT, BEST, LOW, ONCE, INHERIT = LossTolerance
KEY, DELTA = FrameClass.KEYFRAME, FrameClass.DELTA


async def greeted(peer: Peer, declared: LossTolerance | None) -> None:
    extensions = b""
    if declared is not None:
        extensions = pack_extensions([ControlExtension.of(ExtType.LOSS_TOLERANCE, LossToleranceBlock(declared))])
    await peer.send(HELLO.replace(control_extension_bytes=len(extensions)), extensions)
    await peer.receive(MessageType.SERVER_HELLO_ACK)


async def submit(peer: Peer, frame_id: int, data: bytes, metadata: FrameSubmit) -> None:
    await peer.stream.send_all(submit_packet(frame_id, data, session_id=5, metadata=metadata))


@pytest.mark.parametrize(
    ("declared", "policy", "frame_class", "once"),
    [
        (None, ONCE, DELTA, True),
        (None, ONCE, KEY, False),
        (None, INHERIT, DELTA, False),
        (ONCE, INHERIT, DELTA, True),
        (ONCE, INHERIT, KEY, False),
        (ONCE, STRICT, DELTA, False),
        (STRICT, ONCE, DELTA, True),
        (None, LOW, DELTA, False),
        (None, BEST, DELTA, False),
    ],
)
async def test_what_is_sent_once(
    declared: LossTolerance | None, policy: LossTolerance, frame_class: FrameClass, once: bool
) -> None:
    """The submit's word, else the hello's, else best_effort. Sent once: its results say CAN_DROP, and after a resume there is only
    word of their end, so that each operation still has its one terminal message; anything else comes again."""
    metadata = FrameSubmit(loss_tolerance_policy=policy, frame_class=int(frame_class))
    async with serving_nnrp() as served:
        async with served.peer(hello=False) as peer:
            await greeted(peer, declared)
            token = token_of(await peer.open(RESUMABLE))
            await submit(peer, 1, b"partial=2;seen", metadata)
            for _ in range(2):
                flags = (await peer.receive(MessageType.RESULT_PUSH)).header.flags
                assert bool(flags & HeaderFlags.CAN_DROP) == once
            await submit(peer, 2, b"sleep=100;partial=2;late", metadata)
            await served.wait_until(lambda: served.service.statistics().operations == 1)
        await finished(served)
        async with served.peer() as peer:
            await peer.open(RESUMABLE, token=token)
            # Without a cursor everything comes again that may have been lost.
            if once:
                for frame in (1, 2):
                    assert (await peer.receive(MessageType.RESULT_DROP)).header.frame_id == frame
            else:
                parts = [await peer.receive(MessageType.RESULT_PUSH) for _ in range(4)]
                assert b"".join(map(text_of, parts)) == b"partial=2;seensleep=100;partial=2;late"
            await peer.nothing_comes()


@pytest.mark.parametrize(
    ("policy", "frame_class", "budget_ms", "once"),
    [
        (LOW, DELTA, 390, True),
        (LOW, DELTA, 60_000, False),
        (LOW, DELTA, 0, False),
        (LOW, KEY, 390, False),
        (BEST, DELTA, 390, False),
        (STRICT, DELTA, 390, False),
    ],
)
async def test_low_latency_may_drop_once_the_way_is_too_long(
    policy: LossTolerance, frame_class: FrameClass, budget_ms: int, once: bool
) -> None:
    """12.5: the round trip, which the server asks for when such frames come, is 200 ms here: more than half of 390. Before it is
    known nothing may be dropped. What then may be is sent once: CAN_DROP, and after a resume only word of its end."""
    metadata = FrameSubmit(loss_tolerance_policy=policy, frame_class=int(frame_class), latency_budget_ms=budget_ms)
    async with serving_nnrp() as served:
        async with served.peer() as peer:
            peer.answers = False
            token = token_of(await peer.open(RESUMABLE))
            await submit(peer, 1, b"first", metadata)
            assert not (await peer.receive(MessageType.RESULT_PUSH)).header.flags & HeaderFlags.CAN_DROP
            (link,) = served.service.links
            assert link.machine.pings == (policy is LOW and frame_class is DELTA and budget_ms > 0)
            link.machine.round_trip = 0.2
            await submit(peer, 2, b"second", metadata)
            flags = (await peer.receive(MessageType.RESULT_PUSH)).header.flags
            assert bool(flags & HeaderFlags.CAN_DROP) == once
        await finished(served)
        async with served.peer() as peer:
            await peer.open(RESUMABLE, token=token)
            assert (await peer.receive(MessageType.RESULT_PUSH)).header.frame_id == 1
            again = await peer.receive(MessageType.RESULT_DROP if once else MessageType.RESULT_PUSH)
            assert again.header.frame_id == 2
            await peer.nothing_comes()


async def test_the_round_trip_is_measured() -> None:
    """12.5: from the PING to its PONG, asked for by the first such frame, and not by every one."""
    metadata = FrameSubmit(loss_tolerance_policy=LOW, frame_class=int(DELTA), latency_budget_ms=10_000)
    async with serving_nnrp() as served, served.peer() as peer:
        peer.answers = False
        await peer.open(RESUMABLE)
        (link,) = served.service.links
        for frame in range(1, 4):
            await submit(peer, frame, b"now", metadata)
        for frame in range(1, 4):
            assert (await peer.receive(MessageType.RESULT_PUSH)).header.frame_id == frame
        assert link.machine.round_trip is None
        await trio.sleep(0.05)
        await peer.send(Pong())
        await served.wait_until(lambda: link.machine.round_trip is not None)
        assert link.machine.round_trip is not None
        assert link.machine.round_trip >= 0.05
        assert link.machine.pings == 1


async def test_a_result_that_needed_no_waiting_says_so_too() -> None:
    """3.1: CAN_DROP is in the header of every result of a frame that is sent once, and of no other."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(RESUMABLE)
        for frame, policy in enumerate((ONCE, BEST, ONCE), 1):
            await submit(peer, frame, b"at once", FrameSubmit(loss_tolerance_policy=policy, frame_class=int(DELTA)))
            flags = (await peer.receive(MessageType.RESULT_PUSH)).header.flags
            assert bool(flags & HeaderFlags.CAN_DROP) == (policy is ONCE)


async def finished(served: Served) -> None:
    await served.wait_until(lambda: not served.service.links)
    await served.wait_until(lambda: served.service.statistics().operations == 0)


@pytest.mark.parametrize("policy", [STRICT, BEST, LOW, ONCE])
async def test_the_budget_outranks_it(policy: LossTolerance) -> None:
    """12.5: over budget even strict ends in RESULT_DROP."""
    metadata = FrameSubmit(loss_tolerance_policy=policy, frame_class=int(DELTA), latency_budget_ms=50)
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(RESUMABLE)
        await submit(peer, 1, b"sleep=60000;", metadata)
        assert (await peer.receive(MessageType.RESULT_DROP)).header.frame_id == 1
