"""What a peer may do that nobody should, over real sockets (issue 5, Bad input): it costs that peer at most."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from protocol.nnrp.enums import (
    CacheAckStatus,
    ErrorCode,
    ErrorScope,
    InFlightPolicy,
    MessageType,
    ObjectKind,
    SessionErrorCode,
    SessionFlags,
    SessionStatus,
    TransportId,
)
from protocol.nnrp.messages import (
    CacheAck,
    CachePut,
    Close,
    Error,
    SessionClose,
    SessionCloseAck,
    SessionMigrate,
    SessionMigrateAck,
    SessionOpenAck,
    TransportProbe,
)
from server.nnrp.policy import ServingPolicy, token_check
from server.nnrp.transport import STRANGER_BYTES
from server.nnrp.writer import ANSWER_BYTES, HIGH_BYTES, Writer
from tests.support.nnrp import HELLO, OPEN, Served, raw, serving_nnrp, submit_packet, text_of, token_of
from tests.support.nnrp_transports import serving_on

U64 = 0xFFFF_FFFF_FFFF_FFFF


@pytest.mark.parametrize("transport", ["tcp", "tls", "quic", "aioquic"])
async def test_a_stranger_is_given_little_memory(tmp_path: Path, transport: str) -> None:
    """Before a hello or a session was accepted a packet may have a megabyte, far above any probe (nnrp-wire 2.7); a refused
    SESSION_OPEN is none, and a token that is right lifts the bound."""
    size = STRANGER_BYTES * 3 // 2
    policy = ServingPolicy(authenticate=token_check("right"))
    async with serving_on(transport, tmp_path, policy) as place:
        async with place.peer(hello=False) as peer:
            await peer.open()
            await peer.stream.send_all(raw(TransportProbe(probe_payload_bytes=size), bytes(size)))
            with pytest.raises((EOFError, trio.BrokenResourceError)):
                await peer.receive()
        async with place.peer(hello=False) as peer:
            await peer.stream.send_all(raw(TransportProbe(probe_payload_bytes=size), bytes(size)))
            error = (await peer.receive(MessageType.ERROR)).metadata
            assert isinstance(error, Error)
            assert (error.error_code, error.is_fatal) == (ErrorCode.LIMIT_EXCEEDED, 1)
            with pytest.raises((EOFError, trio.BrokenResourceError)):
                await peer.receive()
        async with place.peer(hello=False) as peer:
            await peer.send(HELLO.replace(auth_bytes=5), b"right")
            await peer.receive(MessageType.SERVER_HELLO_ACK)
            await peer.open()
            await peer.submit(1, bytes(size))
            assert len(text_of(await peer.receive(MessageType.RESULT_PUSH))) == size


async def test_a_peer_of_the_implicit_session_may_open_and_close_others() -> None:
    """nnrp-wire 13.1, 13.2: a submit without SESSION_OPEN makes it a peer that knows no 0x07 – 0x0A (2.6), until it sends one:
    then it is answered."""
    async with serving_nnrp() as served, served.peer(hello=False) as peer:
        await peer.send(HELLO.replace(requested_session_id=5))
        await peer.receive(MessageType.SERVER_HELLO_ACK)
        await peer.submit(1, session_id=5)
        await peer.receive(MessageType.RESULT_PUSH)
        ack = (await peer.open(OPEN.replace(requested_session_id=6))).metadata
        assert isinstance(ack, SessionOpenAck)
        assert (ack.session_id, ack.session_status) == (6, SessionStatus.OPENED)
        for session_id in (6, 5):
            await peer.send(SessionClose(), session_id=session_id)
            closed = await peer.receive(MessageType.SESSION_CLOSE_ACK)
            assert isinstance(closed.metadata, SessionCloseAck)
            assert closed.header.session_id == session_id


async def test_an_object_of_the_whole_connection_is_stored_and_acknowledged() -> None:
    """nnrp-wire 3.2: session 0 is the connection-wide cache for tolerant ends; the answer names it as the put did."""
    async with serving_nnrp() as served, served.peer() as peer:
        put = CachePut(cache_key_lo=7, object_kind=ObjectKind.PROMPT_SEGMENT, object_bytes=3)
        await peer.stream.send_all(raw(put, b"abc"))
        answer = await peer.receive(MessageType.CACHE_ACK, strict=False)
        assert isinstance(answer.metadata, CacheAck)
        assert (answer.header.session_id, answer.metadata.status) == (0, CacheAckStatus.ACCEPTED)


@pytest.mark.parametrize("last", [0xFFFF_FFFF, U64 - 1, U64])
async def test_a_cursor_at_the_end_of_all_numbers_is_answered(last: int) -> None:
    """nnrp-wire 7.19: resume_from_frame_id is no less than last_result_frame_id, and there is nothing above the last u64."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        await peer.send(SessionMigrate(TransportId.TCP, TransportId.QUIC, last), session_id=1)
        ack = (await peer.receive(MessageType.SESSION_MIGRATE_ACK)).metadata
        assert isinstance(ack, SessionMigrateAck)
        assert (ack.accept_code, ack.resume_from_frame_id) == (0, min(last + 1, U64))


async def test_endings_that_wait_for_no_room_stop_the_reading_all_the_same() -> None:
    """Issue 5, Bad input: a peer that never reads costs bounded memory. A RESULT_DROP does not wait for room as a result does,
    so operations that fail at once must not fill the queue for ever; what fits beside the results does not count (C-084)."""
    stream, _ = trio.testing.lockstep_stream_pair()
    writer = Writer(stream, timeout=60)
    writer.write([bytes(HIGH_BYTES - 1)], result=True)
    writer.write([bytes(1)], result=True)
    assert writer.is_full()
    drop = bytes(40)
    for _ in range(ANSWER_BYTES // len(drop)):
        writer.write([drop], result=True)
    assert not writer.flooded
    writer.write([drop], result=True)
    assert writer.flooded


RESUMABLE = OPEN.replace(session_flags=SessionFlags.ALLOW_RESUME)


async def refused(served: Served, session_id: int, token: bytes) -> None:
    """A resume with this token is refused, and for that reason."""
    async with served.peer() as peer:
        ack = (await peer.open(RESUMABLE.replace(requested_session_id=session_id), token=token)).metadata
        assert isinstance(ack, SessionOpenAck)
        assert (ack.session_status, ack.session_error_code) == (
            SessionStatus.REJECTED,
            SessionErrorCode.RESUME_REJECTED,
        )


async def test_a_session_whose_close_ends_with_its_connection_is_over() -> None:
    """Issue 5, close cascade: SESSION_CLOSE and CLOSE in one breath, with an operation in flight. Its end completes both in one
    step; the session must be gone, and its token with it."""
    async with serving_nnrp() as served, served.peer() as peer:
        token = token_of(await peer.open(RESUMABLE))
        await peer.submit(1, b"sleep=60000;")
        await served.wait_until(lambda: served.service.statistics().operations == 1)
        close = SessionClose(in_flight_policy=InFlightPolicy.ABORT)
        await peer.stream.send_all(raw(close, session_id=1) + raw(Close()))
        await served.wait_until(lambda: served.service.statistics().connections == 0)
        assert served.service.statistics().sessions == 0
        await refused(served, 1, token)


@pytest.mark.parametrize("lost", [False, True])
async def test_a_session_that_is_being_closed_cannot_be_resumed(lost: bool) -> None:
    """nnrp-wire 13.2, 13.3: SESSION_CLOSE is for good, while it drains as well, and when the connection is lost meanwhile."""
    async with serving_nnrp() as served, served.peer() as peer:
        token = token_of(await peer.open(RESUMABLE))
        await peer.submit(1, b"sleep=60000;")
        await peer.send(SessionClose(drain_timeout_ms=60_000), session_id=1)
        await peer.receive(MessageType.SESSION_CLOSE_ACK)
        if lost:
            await trio.aclose_forcefully(peer.stream)
            await served.wait_until(lambda: served.service.statistics().connections == 0)
            assert served.service.statistics().sessions == 0
        await refused(served, 1, token)


async def test_a_withdrawn_token_opens_no_implicit_session() -> None:
    """nnrp-extensions, Authentication: a token that is withdrawn ends what it opened; the session that a hello reserved, and that
    the first submit would open without another word about who asks, is among that."""
    check = token_check("secret")
    principal = check(b"secret")
    assert principal is not None
    async with serving_nnrp(ServingPolicy(authenticate=check)) as served, served.peer(hello=False) as peer:
        await peer.send(HELLO.replace(requested_session_id=5, auth_bytes=6), b"secret")
        await peer.receive(MessageType.SERVER_HELLO_ACK)
        served.service.withdraw(principal)
        await peer.submit(1, session_id=5)
        answer = (await peer.receive(MessageType.ERROR)).metadata
        assert isinstance(answer, Error)
        assert answer.error_code == ErrorCode.INVALID_STATE
        assert served.service.statistics().sessions == 0


@pytest.mark.parametrize("scope", [ErrorScope.SESSION, ErrorScope.FRAME])
async def test_an_error_about_an_operation_under_way_does_not_end_it(scope: ErrorScope) -> None:
    """nnrp-wire 13.4, 15: the client could not read something. The server still owes the one terminal message, and goes on."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(OPEN.replace(requested_session_id=5))
        await peer.submit(1, b"sleep=50;one", session_id=5)
        error = Error(
            error_code=int(ErrorCode.MALFORMED_BODY), error_scope=scope, related_session_id=5, related_frame_id=1
        )
        await peer.send(error, session_id=5, frame_id=1)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=50;one"
        await peer.submit(2, b"two", session_id=5)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"two"


async def test_a_defect_in_an_ending_costs_its_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 5: the process survives."""

    def fail(*args: object, **values: object) -> None:
        raise ValueError("a defect")

    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(OPEN.replace(requested_session_id=5))
        with monkeypatch.context() as broken:
            broken.setattr("server.nnrp.running.finish", fail)
            await peer.submit(1, b"sleep=5;one", session_id=5)
            await peer.nothing_comes()
        await peer.submit(2, b"sleep=5;two", session_id=5)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=5;two"


async def test_a_bare_submit_without_a_frame_gets_no_answer() -> None:
    """nnrp-wire 2.6, 3.2, 15: nnrp-rs reads no ERROR, and the drop it gets instead has to name a frame. The connection goes
    on."""
    async with serving_nnrp() as served, served.peer(hello=False) as peer:
        await peer.open()
        wrong = bytearray(submit_packet(1))
        wrong[24] = 0
        await peer.stream.send_all(bytes(wrong))
        await peer.submit(2)
        assert (await peer.receive(MessageType.RESULT_PUSH)).header.frame_id == 2
