"""Results outside submit calls at the client (nnrp-wire 7.7, allow_background_results)."""

from __future__ import annotations

import pytest
import trio

from client.nnrp import Background, NnrpConnectionLost, NnrpOptions, NnrpResultsLost, open_nnrp
from client.nnrp import background as module
from protocol.nnrp.enums import DescriptorFlags, MessageType, OperationState, PayloadKind, ResultClass, SessionFlags
from protocol.nnrp.machines.events import BackgroundReceived
from protocol.nnrp.machines.session import BACKGROUND_FRAMES
from protocol.nnrp.messages import ResultDrop, ResultPush
from protocol.nnrp.regions import Regions, TypedPayload
from server.conformance.live.relay import spoiling_connect
from tests.protocol.nnrp.machines.duo import ALL_FLAGS, Duo
from tests.support.nnrp import serving_nnrp

FRAME = BACKGROUND_FRAMES | 5
PUSH = ResultPush(result_class=ResultClass.PARTIAL, payload_kind_bitmap=PayloadKind.TOKEN_CHUNK, payload_frame_count=1)


def body(text: bytes) -> Regions:
    return Regions(
        (TypedPayload.of(text, profile_id=2, schema_id=0x1001, schema_version=3, flags=DescriptorFlags.PARTIAL),)
    )


def received(*texts: bytes) -> list[BackgroundReceived]:
    duo = Duo()
    duo.connect()
    mine, _ = duo.open()
    for text in texts:
        duo.to_client(PUSH, body(text), session_id=mine.session_id, frame_id=FRAME)
    return [each for each in duo.client.events if isinstance(each, BackgroundReceived)]


def test_the_machine_takes_them_where_they_were_asked_for() -> None:
    """Results and drops of the server's own frames concern no operation of ours; they change no window."""
    duo = Duo()
    duo.connect()
    mine, _ = duo.open()
    duo.to_client(PUSH, body(b"x"), session_id=mine.session_id, frame_id=FRAME)
    assert duo.client.last(BackgroundReceived).state is OperationState.PARTIAL
    duo.to_client(ResultDrop(), session_id=mine.session_id, frame_id=FRAME)
    assert duo.client.last(BackgroundReceived).state is OperationState.FAILED
    assert (mine.in_flight, mine.window.in_flight, duo.client.errors) == (0, 0, [])


@pytest.mark.parametrize(
    ("flags", "frame_id"), [(SessionFlags(int(ALL_FLAGS) & ~2), FRAME), (ALL_FLAGS, BACKGROUND_FRAMES - 1)]
)
def test_the_machine_refuses_them_otherwise(flags: SessionFlags, frame_id: int) -> None:
    """Without allow_background_results, or with a frame of ours, a result nobody waits for is still a fault."""
    duo = Duo()
    duo.connect()
    mine, _ = duo.open(flags=flags)
    duo.to_client(PUSH, body(b"x"), session_id=mine.session_id, frame_id=frame_id)
    assert duo.client.errors


def test_a_frame_of_ours_stays_ours() -> None:
    """A client may count that far itself: what it has submitted is its operation."""
    duo = Duo()
    duo.connect()
    mine, _ = duo.open()
    mine.resume_frames_at(FRAME)
    duo.submit(mine)
    duo.to_client(PUSH, body(b"x"), session_id=mine.session_id, frame_id=FRAME)
    assert not [each for each in duo.client.events if isinstance(each, BackgroundReceived)]
    assert not duo.client.errors


async def test_a_consumer_that_takes_nothing_costs_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go, the consumer is told once, and what is there follows."""
    monkeypatch.setattr(module, "MAX_KEPT", 5_000)
    background = Background()
    for each in received(*[b"%d" % number + b"x" * 1000 for number in range(10)]):
        background.put(each)
    assert background._kept_bytes <= 5_000
    with pytest.raises(NnrpResultsLost):
        await anext(background)
    texts = [(await anext(background)).text[0] for _ in range(3)]
    assert texts == ["7", "8", "9"]


async def test_its_end() -> None:
    """What is kept comes first; then the end, with what the session ended with."""
    background = Background()
    (one,) = received(b"last")
    background.put(one)
    background.finish(NnrpConnectionLost("gone"))
    background.finish(None)
    assert (await anext(background)).text == "last"
    with pytest.raises(NnrpConnectionLost):
        await anext(background)
    assert [each async for each in background] == []


async def test_a_broken_answer_to_an_opening_ends_the_connection() -> None:
    """nnrp-wire 13.2: answers are matched by their order. Nobody waits for ever behind one that cannot be read."""

    def spoil(packet: bytes) -> bytes:
        wrong = bytearray(packet)
        if packet[6] == MessageType.SESSION_OPEN_ACK:
            wrong[40 + 55] |= 0x80
        return bytes(wrong)

    options = NnrpOptions(connect=spoiling_connect(spoil), reconnect=None)
    async with serving_nnrp() as served, open_nnrp(served.url, options) as connection:
        with trio.fail_after(10), pytest.raises(NnrpConnectionLost):
            await connection.open_session()
