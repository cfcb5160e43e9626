"""How far a drain reaches (nnrp-wire 13.3): up to the last_operation_id of the SESSION_CLOSE."""

from __future__ import annotations

import pytest

from protocol.nnrp.enums import CloseStatus, MessageType, OperationState
from protocol.nnrp.machines.reading import drop_state
from protocol.nnrp.messages import SessionClose, SessionCloseAck
from tests.support.nnrp import Peer, serving_nnrp

LONG = b"sleep=60000;"
WITHIN = 60_000


async def until_closed(peer: Peer) -> list[object]:
    """What comes: the statuses of the close, the frames of results, and how frames without one have ended."""
    seen: list[object] = []
    while not seen or seen[-1] is not CloseStatus.CLOSED:
        packet = await peer.receive()
        if isinstance(packet.metadata, SessionCloseAck):
            assert packet.metadata.last_operation_id == 3
            seen.append(packet.metadata.close_status)
        elif packet.kind is MessageType.RESULT_DROP:
            seen.append((packet.header.frame_id, drop_state(packet)))
        else:
            seen.append(packet.header.frame_id)
    return seen


@pytest.mark.parametrize(
    ("works", "bound", "expected"),
    [
        ((b"sleep=60;", LONG, LONG), 1, [CloseStatus.DRAINING, 1, 2, 3, CloseStatus.CLOSED]),
        ((b"sleep=60;", b"sleep=120;", LONG), 2, [CloseStatus.DRAINING, 1, 2, 3, CloseStatus.CLOSED]),
        ((b"now", LONG, LONG), 1, [1, 2, 3, CloseStatus.CLOSED]),
        ((b"sleep=60;", b"sleep=80;", b"sleep=120;"), 3, [CloseStatus.DRAINING, 1, 2, 3, CloseStatus.CLOSED]),
        ((b"sleep=60;", b"sleep=80;", b"sleep=120;"), 0, [CloseStatus.DRAINING, 1, 2, 3, CloseStatus.CLOSED]),
    ],
    ids=["one of three", "two of three", "nothing left to drain", "all", "none named"],
)
async def test_a_drain_waits_for_operations_up_to_the_watermark(
    works: tuple[bytes, ...], bound: int, expected: list[object]
) -> None:
    """13.3: terminal events of operations ≤ last_operation_id are delivered until there are none, then what is left is cancelled
    and the session closed, long before the time is over. A close that names none (0) bounds nothing. Each operation has
    its one terminal message, the drained ones their result."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        for number, work in enumerate(works, 1):
            await peer.submit(number, work)
        await peer.send(SessionClose(drain_timeout_ms=WITHIN, last_operation_id=bound), session_id=1)
        seen = await until_closed(peer)
        assert [each[0] if isinstance(each, tuple) else each for each in seen] == expected
        ends = [each for each in seen if isinstance(each, tuple)]
        assert len(ends) == (3 - bound if bound else 0)
        # Without operation extensions a RESULT_DROP says no more than that it is one.
        assert all(state is OperationState.FAILED for _, state in ends)
        await peer.nothing_comes()
        assert served.service.statistics().operations == 0
