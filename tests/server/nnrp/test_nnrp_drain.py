"""How far a drain reaches (nnrp-wire 13.3): up to the last_operation_id of the SESSION_CLOSE."""

from __future__ import annotations

import pytest

from protocol.nnrp.enums import CloseStatus, MessageType
from protocol.nnrp.messages import SessionClose, SessionCloseAck
from tests.support.nnrp import Peer, serving_nnrp

SHORT, LONG = b"sleep=400;", b"sleep=60000;"


async def until_closed(peer: Peer) -> tuple[list[CloseStatus], list[int], list[int]]:
    """What comes: the acks of the close, and the frames of results and of drops; no result behind a drop."""
    acks: list[CloseStatus] = []
    results: list[int] = []
    drops: list[int] = []
    while CloseStatus.CLOSED not in acks:
        packet = await peer.receive()
        if isinstance(packet.metadata, SessionCloseAck):
            assert packet.metadata.last_operation_id == 3
            acks.append(packet.metadata.close_status)
        elif packet.kind is MessageType.RESULT_DROP:
            drops.append(packet.header.frame_id)
        else:
            assert not drops
            results.append(packet.header.frame_id)
    return acks, results, drops


@pytest.mark.parametrize(
    ("works", "bound", "drains"),
    [
        ((SHORT, LONG, LONG), 1, True),
        ((SHORT, SHORT, LONG), 2, True),
        ((b"now", LONG, LONG), 1, False),
        ((SHORT, SHORT, SHORT), 3, True),
        ((SHORT, SHORT, SHORT), 0, True),
    ],
    ids=["one of three", "two of three", "nothing left to drain", "all", "none named"],
)
async def test_a_drain_waits_for_operations_up_to_the_watermark(
    works: tuple[bytes, ...], bound: int, drains: bool
) -> None:
    """13.3: terminal events of operations ≤ last_operation_id are delivered until there are none, then what is left is cancelled
    and the session closed, long before the time is over. A close that names none (0) bounds nothing. Each operation has
    its one terminal message, the drained ones their result."""
    drained = bound or 3
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        for number, work in enumerate(works, 1):
            await peer.submit(number, work)
        await peer.send(SessionClose(drain_timeout_ms=60_000, last_operation_id=bound), session_id=1)
        acks, results, drops = await until_closed(peer)
        assert acks == [CloseStatus.DRAINING, CloseStatus.CLOSED][not drains :]
        assert sorted(results) == list(range(1, drained + 1))
        assert sorted(drops) == list(range(drained + 1, 4))
        await peer.nothing_comes()
        assert served.service.statistics().operations == 0
