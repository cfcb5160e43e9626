"""A resume without a cursor: the server sends everything again that is unfinished or unacknowledged, and the client drops what it
already has (nnrp-extensions, Negotiation; nnrp-wire 13.7)."""

from __future__ import annotations

import pytest
import trio

from client.backoff import ReconnectPolicy
from client.nnrp import NnrpOptions, Submission, open_nnrp
from protocol.nnrp.enums import OperationFeatures
from tests.support.nnrp import serving_nnrp

NONE = OperationFeatures(0)
STATE, TREE = OperationFeatures.OPERATION_STATE, OperationFeatures.SUBMIT_CONTEXT
CURSOR = OperationFeatures.RESUME_WATERMARK
ALL = OperationFeatures(0x1F)


class Cut:
    """Streams of a client, the last of which can be cut."""

    def __init__(self) -> None:
        self.streams: list[trio.SocketStream] = []
        self.options = NnrpOptions(connect=self.connect, reconnect=ReconnectPolicy(base=0.05))

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        self.streams.append(await trio.open_tcp_stream(host, port))
        return self.streams[-1]

    async def now(self) -> None:
        await trio.aclose_forcefully(self.streams[-1])


@pytest.mark.parametrize("features", [NONE, STATE, TREE, CURSOR, STATE | TREE, STATE | CURSOR, ALL])
@pytest.mark.parametrize("cuts", [1, 3])
async def test_every_part_comes_once(features: OperationFeatures, cuts: int) -> None:
    """Whatever was granted; also where the connection is lost again before what was sent again has come. Operations that had
    ended before the cut are sent again as well: that is no fault of the server's."""
    cut = Cut()
    with trio.fail_after(20):
        async with serving_nnrp() as served, open_nnrp(served.url, cut.options) as connection:
            session = await connection.open_session(resumable=True, features=features)
            for number in range(3):
                assert (await session.request(b"partial=2;before%d" % number)).final
            submission = await session.submit(b"sleep=250;partial=4;abcdefgh")
            got: list[bytes] = []
            while len(got) < 2:
                got.append((await submission.__anext__()).data)
            for number in range(cuts):
                await cut.now()
                await served.wait_until(lambda number=number: connection.reconnects == number + 1)  # type: ignore[misc]
                await served.wait_until(lambda: session.attached)
            got += [each.data async for each in submission]
            assert len(got) == 4
            assert b"".join(got) == b"sleep=250;partial=4;abcdefgh"
            assert (await session.request(b"after")).data == b"after"
            assert served.service.violations == 0
            (link,) = served.service.links
            assert link.machine.counters.errors_received == 0


@pytest.mark.parametrize("features", [NONE, STATE, ALL])
async def test_states_come_again_in_their_order(features: OperationFeatures) -> None:
    """13.4: what comes again begins where the operation began, though it waits for its tool here already."""
    cut = Cut()
    with trio.fail_after(20):
        async with serving_nnrp() as served, open_nnrp(served.url, cut.options) as connection:
            session = await connection.open_session(resumable=True, features=features)
            submissions: list[Submission] = [
                await session.submit(b"sleep=150;tool;partial=3;x%d" % n) for n in range(3)
            ]
            for _ in range(4):
                await trio.sleep(0.03)
                before = connection.reconnects
                await cut.now()
                await served.wait_until(lambda before=before: connection.reconnects > before)  # type: ignore[misc]
            for number, submission in enumerate(submissions):
                parts = [each.data async for each in submission]
                assert b"".join(parts) == b"sleep=150;tool;partial=3;x%d" % number
            assert served.service.violations == 0
