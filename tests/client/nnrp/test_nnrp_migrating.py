"""What SESSION_MIGRATE_ACK means to a client (nnrp-wire 7.19, 13.9 item 4), with servers by hand. Which transport a URL is does not
matter to them: one of two that are alike counts as the other kind."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from client.nnrp import NnrpOptions, NnrpRefused, NnrpSessionOver, moving
from protocol.nnrp.enums import MessageType, PayloadKind, TransportId
from protocol.nnrp.header import Header
from protocol.nnrp.messages import ResultPush, SessionMigrateAck
from tests.client.nnrp.test_nnrp_bad_servers import Script, Server
from tests.client.nnrp.test_nnrp_retry import answer, connected
from tests.support.nnrp import raw

SINGLE = NnrpOptions(reconnect=None)
DONE = ResultPush(active_profile_id=2, payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)


@pytest.fixture(autouse=True)
def two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(moving._TRANSPORTS, "nnrp", TransportId.QUIC)


async def opens(server: Server) -> None:
    await server.greet()
    await server.open()
    await answer(server, 2)
    await server.rest()


def accepts(ack: SessionMigrateAck, seen: list[Header]) -> Script:
    async def script(server: Server) -> None:
        await server.greet()
        await server.expect(MessageType.SESSION_MIGRATE)
        await server.stream.send_all(raw(ack, session_id=1))
        while True:
            seen.append(await server.expect(MessageType.FRAME_SUBMIT))
            await server.stream.send_all(raw(DONE, session_id=1, frame_id=seen[-1].frame_id))

    return script


@pytest.mark.parametrize(("resume_from", "frames"), [(2, [3, 4]), (3, [3, 4]), (50, [50, 51])])
async def test_frame_ids_go_on_from_where_the_server_says(
    resume_from: int, frames: list[int], autojump_clock: trio.testing.MockClock
) -> None:
    """13.9 item 4: new frame ids are no less than resume_from_frame_id, and strictly increasing across the move (3.2)."""
    seen: list[Header] = []
    async with connected([opens, accepts(SessionMigrateAck(0, resume_from, 500), seen)], SINGLE) as connection:
        session = await connection.open_session()
        for _ in range(2):
            assert (await session.request(b"before")).final
        await connection.migrate("nnrp://127.0.0.1")
        for _ in range(2):
            assert (await session.request(b"after")).final
    assert [each.frame_id for each in seen] == frames


async def test_a_migration_that_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    """13.9 item 4: a new session is to be opened; it is never reported as a plain loss of frames."""
    seen: list[Header] = []
    async with connected([opens, accepts(SessionMigrateAck(3, 2), seen)], SINGLE) as connection:
        session = await connection.open_session()
        for _ in range(2):
            assert (await session.request(b"before")).final
        await connection.migrate("nnrp://127.0.0.1")
        with pytest.raises((NnrpRefused, NnrpSessionOver)):
            await session.submit(b"after")
    assert not seen
