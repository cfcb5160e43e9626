"""SESSION_MIGRATE at the server, packet by packet (nnrp-wire 7.19, 13.9). What transports the numbers name is the client's word: both
paths are TCP here."""

from __future__ import annotations

import pytest

from protocol.nnrp.enums import ErrorCode, MessageType, SessionFlags, TransportId
from protocol.nnrp.messages import Error, SessionMigrate, SessionMigrateAck
from tests.support.nnrp import OPEN, Peer, serving_nnrp, text_of

RESUMABLE = OPEN.replace(requested_session_id=5, session_flags=SessionFlags.ALLOW_RESUME)


async def migrate(peer: Peer, last: int = 0, session_id: int = 5) -> SessionMigrateAck:
    await peer.send(SessionMigrate(TransportId.TCP, TransportId.QUIC, last), session_id=session_id)
    answer = await peer.receive(MessageType.SESSION_MIGRATE_ACK)
    assert answer.header.session_id == session_id
    assert isinstance(answer.metadata, SessionMigrateAck)
    return answer.metadata


async def refused(peer: Peer, frame_id: int) -> None:
    error = (await peer.receive(MessageType.ERROR)).metadata
    assert isinstance(error, Error)
    assert (error.error_code, error.is_fatal, error.related_frame_id) == (ErrorCode.INVALID_STATE, 0, frame_id)


@pytest.mark.parametrize("hello", [True, False], ids=["behind a hello", "as the first packet"])
async def test_a_session_is_bound_to_the_new_path(hello: bool) -> None:
    """Item 2, 3: accept_code 0, resume_from_frame_id = last + 1, a grace window; what was in flight goes on and is delivered once,
    and new work is taken on the new path only: one primary path at a time."""
    async with serving_nnrp() as served, served.peer() as old, served.peer(hello=hello) as new:
        await old.open(RESUMABLE)
        await old.submit(1, b"done", session_id=5)
        assert text_of(await old.receive(MessageType.RESULT_PUSH)) == b"done"
        await old.submit(2, b"sleep=300;in flight", session_id=5)
        await served.wait_until(lambda: served.service.statistics().operations == 1)
        ack = await migrate(new, 1)
        assert (ack.accept_code, ack.resume_from_frame_id) == (0, 3)
        assert ack.grace_window_ms > 0
        assert ack.server_migrate_ts_us > 0
        await old.submit(3, b"on the old path", session_id=5)
        await refused(old, 3)
        assert text_of(await new.receive(MessageType.RESULT_PUSH)) == b"sleep=300;in flight"
        await new.submit(3, b"on the new path", session_id=5)
        assert text_of(await new.receive(MessageType.RESULT_PUSH)) == b"on the new path"
        await new.nothing_comes()
        await old.nothing_comes()


async def test_frames_before_the_cursor_are_not_replayed() -> None:
    """Item 4: frames with id < resume_from_frame_id are not replayed; what the client has not had by its own word is. A frame id
    that was used stays used."""
    async with serving_nnrp() as served, served.peer() as old, served.peer() as new:
        await old.open(RESUMABLE)
        for number in (1, 2, 3):
            await old.submit(number, b"%d" % number, session_id=5)
            await old.receive(MessageType.RESULT_PUSH)
        assert (await migrate(new, 2)).accept_code == 0
        again = await new.receive(MessageType.RESULT_PUSH)
        assert (again.header.frame_id, text_of(again)) == (3, b"3")
        await new.nothing_comes()
        await new.submit(4, b"4", session_id=5)
        assert text_of(await new.receive(MessageType.RESULT_PUSH)) == b"4"


async def test_a_session_that_is_not_there() -> None:
    """Item 3: unknown → an ACK with accept_code ≠ 0, whose cursor is still no less than the client's (7.19); the connection goes
    on, and so does the session of somebody else on its own path."""
    async with serving_nnrp() as served, served.peer() as other, served.peer() as peer:
        await other.open(RESUMABLE)
        ack = await migrate(peer, 9, session_id=77)
        assert ack.accept_code != 0
        assert ack.resume_from_frame_id >= 9
        await peer.open()
        await peer.submit(1, b"goes on")
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"goes on"
        await other.submit(1, b"stays", session_id=5)
        assert text_of(await other.receive(MessageType.RESULT_PUSH)) == b"stays"


async def test_two_sessions_of_one_id_cannot_be_told_apart() -> None:
    """docs/nnrp.md, Choosing and moving: SESSION_MIGRATE carries no credential, so that the id must be unambiguous."""
    async with serving_nnrp() as served, served.peer() as one, served.peer() as two, served.peer() as peer:
        for each in (one, two):
            await each.open(RESUMABLE)
        assert (await migrate(peer)).accept_code != 0
        for each in (one, two):
            await each.submit(1, b"stays", session_id=5)
            assert text_of(await each.receive(MessageType.RESULT_PUSH)) == b"stays"
