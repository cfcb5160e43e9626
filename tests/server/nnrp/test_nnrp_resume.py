"""Sessions that come back: tokens, windows, redelivery, and the old connection that is still there (nnrp-wire 13.7)."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from client.nnrp.results import drop_details
from protocol.nnrp.enums import (
    CancelScopeKind,
    ErrorCode,
    ErrorScope,
    ExtType,
    FlowScope,
    HeaderFlags,
    MessageType,
    OperationFeatures,
    SessionErrorCode,
    SessionFlags,
    SessionStatus,
    UpdateReason,
)
from protocol.nnrp.extensions import ALL_FEATURES, ControlExtension, pack_extensions
from protocol.nnrp.machines import closing
from protocol.nnrp.machines.layers.core import ConnectionLimits
from protocol.nnrp.machines.opening import OpenPolicy
from protocol.nnrp.messages import (
    Close,
    Error,
    FlowUpdate,
    FrameCancel,
    Pong,
    SessionClose,
    SessionOpen,
    SessionOpenAck,
)
from protocol.nnrp.packet import Packet
from protocol.nnrp.tensor import TensorBody
from protocol.nnrp.vendor import CancelScope, ResumeFrom, SubmitContext
from server.nnrp.policy import ServingPolicy, token_check
from server.nnrp.submit import Answer, Emit, Submit
from server.nnrp.workers.echo import EchoWorker
from tests.support.nnrp import OPEN, Peer, Served, functions, raw, serving_nnrp, submit_packet, text_of, token_of
from tests.support.nnrp_transports import EVERY, EVERYWHERE, on_a_line, serving_on

LONG = b"sleep=60000;"
RESUMABLE = OPEN.replace(requested_session_id=5, session_flags=SessionFlags.ALLOW_RESUME)


def ack(packet: Packet) -> SessionOpenAck:
    assert isinstance(packet.metadata, SessionOpenAck)
    return packet.metadata


@asynccontextmanager
async def lost(served: Served) -> AsyncIterator[Peer]:
    """A peer whose connection is cut at the end of the block, with the server knowing it."""
    async with served.peer() as peer:
        yield peer
    await served.wait_until(lambda: not served.service.links)


@EVERYWHERE
async def test_resume_after_a_dropped_connection(tmp_path: Path, transport: str) -> None:
    """C-086: after operation 1 the result of 2 and, when it is there, of 3 arrive once each; nothing ran twice."""
    ran: list[int] = []
    gates = {2: trio.Event(), 3: trio.Event()}

    async def handler(submit: Submit, emit: Emit) -> Answer:
        number = submit.operation.operation_id
        ran.append(number)
        if number in gates:
            await gates[number].wait()
        return await EchoWorker().run(submit, emit)

    async with serving_on(transport, tmp_path, make_worker=functions(handler)) as served:
        async with lost(served) as peer:
            opened = await peer.open(RESUMABLE, features=ALL_FEATURES)
            assert ack(opened).resume_window_ms == 120_000
            token = token_of(opened)
            assert len(token) == 24
            for number, text in enumerate((b"one", b"two", b"three"), 1):
                await peer.submit(number, text, session_id=5, context=SubmitContext(number))
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"one"
            await served.wait_until(lambda: len(ran) == 3)
        gates[2].set()
        await served.wait_until(lambda: served.service.statistics().operations == 1)
        async with served.peer() as peer:
            answer = await peer.open(
                RESUMABLE, token=token, features=ALL_FEATURES, resume_from=ResumeFrom(resume_from_operation_id=1)
            )
            assert ack(answer).session_status is SessionStatus.RESUMED
            assert token_of(answer) not in (b"", token)
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"two"
            gates[3].set()
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"three"
            await peer.submit(4, b"four", session_id=5, context=SubmitContext(4))
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"four"
            await peer.nothing_comes()
        assert sorted(ran) == [1, 2, 3, 4]


async def test_resume_by_cursor_redelivers_exactly_what_comes_after_it() -> None:
    """nnrp-extensions, Resume watermark: last_event_id, also in the middle of an operation's parts."""
    async with serving_nnrp() as served:
        async with lost(served) as peer:
            token = token_of(await peer.open(RESUMABLE, features=ALL_FEATURES))
            await peer.submit(1, b"partial=4;abcdefgh", session_id=5)
            for _ in range(4):
                await peer.receive(MessageType.RESULT_PUSH)
        async with served.peer() as peer:
            await peer.open(RESUMABLE, token=token, features=ALL_FEATURES, resume_from=ResumeFrom(last_event_id=2))
            again = [await peer.receive(MessageType.RESULT_PUSH) for _ in range(2)]
            assert b"".join(map(text_of, again)) == b"partial=4;abcdefgh"[9:]
            await peer.nothing_comes()


@pytest.mark.parametrize("position", [ResumeFrom(last_event_id=1), ResumeFrom(), None], ids=["cursor", "zero", "none"])
async def test_a_gap_is_said(position: ResumeFrom | None) -> None:
    """nnrp-extensions: the cursor lies below what is held, or everything is asked for and not everything is held → ERROR, scope
    session, not fatal, naming the first id. So nobody waits for what is gone (nnrp-wire 13.4)."""
    policy = ServingPolicy(journal_entries=2)
    async with serving_nnrp(policy) as served:
        async with lost(served) as peer:
            token = token_of(await peer.open(RESUMABLE, features=ALL_FEATURES))
            await peer.submit(1, b"partial=5;abcdefgh", session_id=5)
            for _ in range(5):
                await peer.receive(MessageType.RESULT_PUSH)
        async with served.peer() as peer:
            await peer.open(RESUMABLE, token=token, features=ALL_FEATURES, resume_from=position)
            packet = await peer.receive(MessageType.ERROR)
            assert isinstance(packet.metadata, Error)
            assert packet.metadata.error_code == SessionErrorCode.RESUME_REJECTED
            assert not packet.metadata.is_fatal
            assert b"4" in bytes(packet.body)
            assert len([await peer.receive(MessageType.RESULT_PUSH) for _ in range(2)]) == 2


async def test_no_gap_is_said_to_who_is_told_no_ids() -> None:
    """nnrp-extensions, Resume watermark: without operation_state its cursor is always 0, whatever it has seen."""
    features = ALL_FEATURES & ~OperationFeatures.OPERATION_STATE
    async with serving_nnrp(ServingPolicy(journal_entries=2)) as served:
        async with lost(served) as peer:
            token = token_of(await peer.open(RESUMABLE, features=features))
            await peer.submit(1, b"partial=5;abcdefgh", session_id=5, context=SubmitContext(1))
            for _ in range(5):
                await peer.receive(MessageType.RESULT_PUSH)
        async with served.peer() as peer:
            await peer.open(RESUMABLE, token=token, features=features, resume_from=ResumeFrom())
            assert len([await peer.receive(MessageType.RESULT_PUSH) for _ in range(2)]) == 2
            await peer.nothing_comes()


async def test_flat_tensors_that_are_kept_no_longer_are_no_gap() -> None:
    """nnrp-wire 8.1: they have no place for an event id, so a cursor of 0 does not say that its client has not seen them."""

    async def answer(submit: Submit, emit: Emit) -> Answer:
        return Answer(tensor=TensorBody(range(0), ()))

    async with serving_nnrp(ServingPolicy(journal_entries=2), functions(answer)) as served:
        async with lost(served) as peer:
            token = token_of(await peer.open(RESUMABLE, features=ALL_FEATURES))
            for number in range(1, 5):
                await peer.submit(number, session_id=5, context=SubmitContext(number))
                await peer.receive(MessageType.RESULT_PUSH)
        async with served.peer() as peer:
            await peer.open(RESUMABLE, token=token, features=ALL_FEATURES, resume_from=ResumeFrom())
            assert [(await peer.receive(MessageType.RESULT_PUSH)).header.frame_id for _ in range(2)] == [3, 4]
            await peer.nothing_comes()


@EVERYWHERE
async def test_bad_tokens_are_all_refused_the_same_way(tmp_path: Path, transport: str) -> None:
    """C-087, C-090: random, flipped, truncated, declared but absent, used up; the owner can still resume."""
    async with serving_on(transport, tmp_path) as served:
        async with lost(served) as peer:
            token = token_of(await peer.open(RESUMABLE))
        flipped = bytes([token[0] ^ 1]) + token[1:]
        async with served.peer() as peer:
            for bad in (b"x" * 24, flipped, token[:-1], token + b"0"):
                await refused(peer, RESUMABLE, bad)
            await refused(peer, RESUMABLE.replace(requested_session_id=6), token)
            await refused(peer, RESUMABLE.replace(profile_id=1, schema_id=0, schema_version=0), token)
            declared = RESUMABLE.replace(resume_token_bytes=24)
            await peer.send(declared, strict=False)
            answer = ack(await peer.receive(MessageType.SESSION_OPEN_ACK))
            assert answer.session_error_code == SessionErrorCode.RESUME_REJECTED
            assert ack(await peer.open(OPEN.replace(requested_session_id=9))).session_status is SessionStatus.OPENED
            assert ack(await peer.open(RESUMABLE, token=token)).session_status is SessionStatus.RESUMED
            await peer.submit(1, session_id=5)  # by which the server knows that the next token has arrived
            await peer.receive(MessageType.RESULT_PUSH)
        async with served.peer() as peer:
            await refused(peer, RESUMABLE, token)  # used up


async def refused(peer: Peer, request: SessionOpen, token: bytes, auth: bytes = b"") -> None:
    answer = ack(await peer.open(request, token=token, auth=auth))
    assert (answer.session_status, answer.session_error_code) == (
        SessionStatus.REJECTED,
        SessionErrorCode.RESUME_REJECTED,
    )


async def test_another_principal_cannot_resume() -> None:
    """C-087: a token presented under another principal is refused like any other; the true owner can still resume."""
    ours, theirs = token_check("ours"), token_check("theirs")
    policy = ServingPolicy(authenticate=lambda block: ours(block) or theirs(block))
    async with serving_nnrp(policy) as served:
        async with served.peer(hello=False) as peer:
            token = token_of(await peer.open(RESUMABLE, auth=b"ours"))
        await served.wait_until(lambda: not served.service.links)
        async with served.peer(hello=False) as peer:
            await refused(peer, RESUMABLE, token, auth=b"theirs")
            assert ack(await peer.open(RESUMABLE, token=token, auth=b"ours")).session_status is SessionStatus.RESUMED


@EVERYWHERE
async def test_resume_while_the_old_connection_is_half_open(tmp_path: Path, transport: str) -> None:
    """C-088: results flow to the new connection; what the old one has sent for this session arrives late, is refused and
    cancels nothing."""
    gate = trio.Event()

    async def handler(submit: Submit, emit: Emit) -> Answer:
        await gate.wait()
        return await EchoWorker().run(submit, emit)

    async with (
        serving_on(transport, tmp_path, make_worker=functions(handler)) as served,
        on_a_line(served) as (far, line),
        far.peer() as old,
        served.peer() as new,
        trio.open_nursery() as nursery,
    ):
        token = token_of(await old.open(RESUMABLE, features=ALL_FEATURES))
        await old.submit(1, b"work", session_id=5, context=SubmitContext(1))
        await served.wait_until(lambda: served.service.statistics().operations == 1)
        line.drop()
        whole = pack_extensions([ControlExtension.of(ExtType.CANCEL_SCOPE, CancelScope(CancelScopeKind.SESSION))])
        nursery.start_soon(partial(old.send, FrameCancel(), whole, session_id=5))
        answer = await new.open(RESUMABLE, token=token, features=ALL_FEATURES)
        assert ack(answer).session_status is SessionStatus.RESUMED
        await new.nothing_comes()
        line.let_through()
        error = (await old.receive(MessageType.ERROR, seconds=20)).metadata
        assert isinstance(error, Error)
        assert error.error_code == ErrorCode.INVALID_STATE
        assert served.service.statistics().operations == 1
        gate.set()
        assert text_of(await new.receive(MessageType.RESULT_PUSH)) == b"work"
        await old.nothing_comes()


@pytest.mark.parametrize("why", ["full", "paused"])
async def test_what_waits_for_a_dead_connection_comes_on_the_next(why: str) -> None:
    """C-088, 13.6: a result that waits for room, or for its client to go on, waits no longer when the session is elsewhere."""
    go = trio.Event()

    async def handler(submit: Submit, emit: Emit) -> Answer:
        if bytes(submit.data()[0]) == b"last":
            await go.wait()
        return await EchoWorker().run(submit, emit)

    async with serving_nnrp(ServingPolicy(send_timeout=600), functions(handler)) as served, served.peer() as dead:
        token = token_of(await dead.open(RESUMABLE, features=ALL_FEATURES))
        await dead.submit(1, b"last", session_id=5, context=SubmitContext(1))
        (session,) = served.service.sessions
        await served.wait_until(lambda: session.machine.in_flight == 1)
        if why == "full":
            session.link.writer.write([bytes(32 * 1024 * 1024)])  # type: ignore[union-attr]  # attached
        else:
            pause = FlowUpdate(scope_kind=FlowScope.SESSION, update_reason=UpdateReason.PAUSE, credit_epoch=1)
            await dead.send(pause, session_id=5)
            await served.wait_until(lambda: not session.machine.may_push())
        go.set()
        await served.wait_until(lambda: served.service.turns.scheduler.statistics().suspended == 1)
        async with served.peer() as peer:
            answer = await peer.open(RESUMABLE, token=token, features=ALL_FEATURES)
            assert ack(answer).session_status is SessionStatus.RESUMED
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"last"


async def test_the_window_opens_and_closes_on_time(tmp_path: Path) -> None:
    """C-089: within the window resumed; after it refused, the operation stopped, its lease gone, and the session with it. On
    all transports at once, because it takes its time."""
    policy = ServingPolicy(opening=OpenPolicy(resume_window_ms=1500))

    async def resume_in_time_and_too_late(transport: str) -> None:
        directory = tmp_path / transport
        directory.mkdir()
        async with serving_on(transport, directory, policy) as served:
            async with lost(served) as peer:
                opened = await peer.open(RESUMABLE)
                assert ack(opened).resume_window_ms == 1500, transport
                await peer.submit(1, LONG, session_id=5)
                await served.wait_until(lambda: served.service.statistics().operations == 1)
            await trio.sleep(0.3)
            async with lost(served) as peer:
                resumed = await peer.open(RESUMABLE, token=token_of(opened))
                assert ack(resumed).session_status is SessionStatus.RESUMED, transport
                since = trio.current_time()
            assert served.service.statistics().operations == 1, transport
            await served.wait_until(lambda: not served.service.sessions)
            assert trio.current_time() - since >= 1.5, transport
            assert served.service.statistics().operations == 0, transport
            assert not served.service.cache_totals().leases, transport
            async with served.peer() as peer:
                await refused(peer, RESUMABLE, token_of(resumed))

    async with trio.open_nursery() as nursery:
        for transport in EVERY:
            nursery.start_soon(resume_in_time_and_too_late, transport)


async def test_tokens_cannot_be_guessed() -> None:
    """C-074: 200 tokens of two runs: each is another, 192 bits long, and no part of one is the same in all."""
    tokens = []
    for _ in range(2):
        async with serving_nnrp() as served, served.peer() as peer:
            for number in range(1, 101):
                tokens.append(token_of(await peer.open(RESUMABLE.replace(requested_session_id=number))))
    assert len(set(tokens)) == 200
    assert {len(each) for each in tokens} == {24}
    for position in zip(*tokens, strict=True):
        assert len(set(position)) > 100 - 1, "of 256 values, 200 draws show some 139"


async def test_tokens_from_before_a_restart_are_refused() -> None:
    """C-090."""
    async with serving_nnrp() as served:
        async with served.peer() as peer:
            token = token_of(await peer.open(RESUMABLE))
    async with serving_nnrp() as served, served.peer() as peer:
        await refused(peer, RESUMABLE, token)


@pytest.mark.parametrize("message", [Close(), SessionClose()], ids=["connection", "session"])
async def test_what_was_closed_cannot_be_resumed(message: Close | SessionClose) -> None:
    """nnrp-wire 13.1, 13.2: a CLOSE closes every session of the connection; only a lost connection leaves them."""
    async with serving_nnrp() as served:
        async with served.peer() as peer:
            token = token_of(await peer.open(RESUMABLE))
            await peer.send(message, session_id=0 if isinstance(message, Close) else 5)
            await served.wait_until(lambda: not served.service.sessions)
        async with served.peer() as peer:
            await refused(peer, RESUMABLE, token)


async def test_a_submit_that_is_sent_again_runs_once() -> None:
    """A client that lost its connection sends again, flagged RETRANSMIT, what it has no answer to: a frame that had
    arrived is ignored, one that had not is carried out."""
    async with serving_nnrp() as served:
        async with lost(served) as peer:
            token = token_of(await peer.open(RESUMABLE, features=ALL_FEATURES))
            await peer.submit(1, b"sleep=200;first", session_id=5, context=SubmitContext(1))
            await served.wait_until(lambda: served.service.statistics().operations == 1)
        async with served.peer() as peer:
            await peer.open(RESUMABLE, token=token, features=ALL_FEATURES)
            for number, data in ((1, b"sleep=200;first"), (2, b"second")):
                await submit_again(peer, number, data)
            texts = [text_of(await peer.receive(MessageType.RESULT_PUSH)) for _ in range(2)]
            assert texts == [b"second", b"sleep=200;first"]
            for number, data in ((1, b"sleep=200;first"), (2, b"second")):
                await submit_again(peer, number, data)
            await peer.nothing_comes()


async def submit_again(peer: Peer, number: int, data: bytes) -> None:
    packet = bytearray(submit_packet(number, data, session_id=5, context=SubmitContext(number)))
    packet[8] |= HeaderFlags.RETRANSMIT.value
    await peer.stream.send_all(packet)


async def gone(peer: Peer, number: int) -> None:
    """The operation is sent again, and answered that it has ended, nobody can say how."""
    await submit_again(peer, number, b"again")
    drop = await peer.receive(MessageType.RESULT_DROP)
    assert (drop.header.frame_id, drop_details(drop)) == (number, ErrorCode.FRAME_EXPIRED)


@pytest.mark.parametrize("why", ["evicted", "seen"])
async def test_a_submit_that_is_sent_again_and_whose_end_is_gone(why: str) -> None:
    """nnrp-wire 13.4: exactly one terminal message, also where the frame is known and its result is kept no longer: it did not fit,
    or the client had said that it has it. The frame does not run twice; what is still to come is not dropped."""
    async with serving_nnrp(ServingPolicy(journal_entries=2 if why == "evicted" else 1024)) as served:
        async with lost(served) as peer:
            token = token_of(await peer.open(RESUMABLE, features=ALL_FEATURES))
            await peer.submit(4, b"sleep=300;last", session_id=5, context=SubmitContext(4))
            for number in range(1, 4):
                await peer.submit(number, b"%d" % number, session_id=5, context=SubmitContext(number))
                await peer.receive(MessageType.RESULT_PUSH)
        async with served.peer() as peer:
            await peer.open(RESUMABLE, token=token, features=ALL_FEATURES, resume_from=ResumeFrom(last_event_id=1))
            assert [text_of(await peer.receive(MessageType.RESULT_PUSH)) for _ in range(2)] == [b"2", b"3"]
            await gone(peer, 1)
            for number in (1, 3, 4):
                await submit_again(peer, number, b"again")
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=300;last"
            await submit_again(peer, 4, b"again")
            await peer.submit(5, b"new", session_id=5, context=SubmitContext(5))
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"new"
            await peer.nothing_comes()


async def test_a_submit_that_is_sent_again_and_was_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """13.1, 13.4: the drain after a fatal ERROR gave the operation up while its worker held on; its drop went to a connection
    that nobody read, and the session was kept."""
    monkeypatch.setattr(closing, "SETTLE_GRACE", 0.0)
    let_go = trio.Event()

    async def stuck(submit: Submit, emit: Emit) -> Answer:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 20):
            await let_go.wait()
        return await EchoWorker().run(submit, emit)

    policy = ServingPolicy(limits=ConnectionLimits(drain_timeout=0.0))
    async with serving_nnrp(policy, functions(stuck)) as served:
        async with lost(served) as peer:
            token = token_of(await peer.open(RESUMABLE, features=ALL_FEATURES))
            await peer.submit(1, b"work", session_id=5, context=SubmitContext(1))
            await served.wait_until(lambda: served.service.statistics().operations == 1)
            await peer.send(Error(error_code=int(ErrorCode.INTERNAL_ERROR), is_fatal=1))
            await served.wait_until(lambda: not served.service.links)
        async with served.peer() as peer:
            assert ack(await peer.open(RESUMABLE, token=token, features=ALL_FEATURES)).session_id == 5
            await gone(peer, 1)
            let_go.set()
            await peer.nothing_comes()


async def test_without_resume_the_operations_of_a_lost_connection_end() -> None:
    """nnrp-wire 13.7 item 6, the other way round."""
    async with serving_nnrp() as served:
        async with served.peer() as peer:
            await peer.open()
            await peer.submit(1, b"sleep=60000;")
            await served.wait_until(lambda: served.service.statistics().operations == 1)
        await served.wait_until(lambda: served.service.statistics().sessions == 0)


def reset(peer: Peer) -> None:
    """Make the end of this connection a cut: what is under way to it is lost."""
    assert isinstance(peer.stream, trio.SocketStream)
    peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


LAST_WORDS = {
    "unreadable": raw(Error(error_code=1, error_scope=ErrorScope.SESSION, related_session_id=5), session_id=5),
    "fatal": raw(Error(error_code=1, is_fatal=1)),
    "violation": bytes(40),
}
"""Of a client that could not read the answer, or that breaks a rule: that it knows the new token does not follow."""


@pytest.mark.parametrize("end", ["cut", "unreadable", "fatal", "violation", "goodbye", "heard"])
async def test_a_resume_whose_answer_a_cut_may_have_swallowed(end: str) -> None:
    """13.7 item 5: a token is used once, and used up when its successor has arrived: else the session would be lost."""
    async with serving_nnrp() as served:
        async with lost(served) as peer:
            first = token_of(await peer.open(RESUMABLE, features=ALL_FEATURES))
        async with lost(served) as peer:
            peer.answers = end in ("goodbye", "heard")
            second = token_of(await peer.open(RESUMABLE, token=first, features=ALL_FEATURES))
            if end == "heard":
                await peer.submit(1, b"one", session_id=5)
                await peer.receive(MessageType.RESULT_PUSH)
            if end in ("cut", "heard"):
                reset(peer)
            elif end != "goodbye":
                await peer.nothing_comes()  # but the PING: what is unread makes the end of a connection a cut
                await peer.stream.send_all(LAST_WORDS[end])
        async with served.peer() as peer:
            answer = await peer.open(RESUMABLE, token=first, features=ALL_FEATURES)
            if end in ("goodbye", "heard"):
                assert ack(answer).session_error_code == SessionErrorCode.RESUME_REJECTED
                answer = await peer.open(RESUMABLE, token=second, features=ALL_FEATURES)
            assert ack(answer).session_status is SessionStatus.RESUMED
        assert len(served.service.registry) <= 2


async def test_what_is_heard_of_one_session_says_nothing_of_another() -> None:
    """13.7 item 5: two resumes on one connection, and a cut that took the second answer only."""
    other = RESUMABLE.replace(requested_session_id=6)
    async with serving_nnrp() as served:
        async with lost(served) as peer:
            first = token_of(await peer.open(RESUMABLE, features=ALL_FEATURES))
            second = token_of(await peer.open(other, features=ALL_FEATURES))
        async with lost(served) as peer:
            peer.answers = False
            await peer.open(RESUMABLE, token=first, features=ALL_FEATURES)
            await peer.open(other, token=second, features=ALL_FEATURES)
            await peer.send(Pong())
            await peer.submit(1, b"one", session_id=5)
            await peer.receive(MessageType.RESULT_PUSH)
            reset(peer)
        async with served.peer() as peer:
            answer = await peer.open(RESUMABLE, token=first, features=ALL_FEATURES)
            assert ack(answer).session_error_code == SessionErrorCode.RESUME_REJECTED
            answer = await peer.open(other, token=second, features=ALL_FEATURES)
            assert ack(answer).session_status is SessionStatus.RESUMED


async def test_a_request_that_comes_late_does_not_cost_the_token_given_since() -> None:
    """13.7 item 5: a resume was under way on a lost connection, and is read behind a later one, whose answer has arrived."""
    async with serving_nnrp() as served:
        async with lost(served) as peer:
            first = token_of(await peer.open(RESUMABLE, features=ALL_FEATURES))
        tokens = []
        for _ in range(2):
            async with lost(served) as peer:
                peer.answers = False
                tokens.append(token_of(await peer.open(RESUMABLE, token=first, features=ALL_FEATURES)))
                reset(peer)
        async with served.peer() as peer:
            answer = await peer.open(RESUMABLE, token=tokens[0], features=ALL_FEATURES)
            assert ack(answer).session_status is SessionStatus.RESUMED
            await peer.submit(1, b"one", session_id=5)
            await peer.receive(MessageType.RESULT_PUSH)
            assert len(served.service.registry) == 1


async def test_a_half_dead_connection_that_was_resumed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """13.7: the same where nobody has noticed the loss; a token that comes again at once is a replay all the same."""
    async with serving_nnrp() as served:
        async with lost(served) as peer:
            first = token_of(await peer.open(RESUMABLE, features=ALL_FEATURES))
        async with served.peer() as silent, served.peer() as again:
            silent.answers = False
            await silent.open(RESUMABLE, token=first, features=ALL_FEATURES)
            answer = await again.open(RESUMABLE, token=first, features=ALL_FEATURES)
            assert ack(answer).session_error_code == SessionErrorCode.RESUME_REJECTED
            monkeypatch.setattr("server.nnrp.session.SILENCE", 0.0)
            answer = await again.open(RESUMABLE, token=first, features=ALL_FEATURES)
            assert ack(answer).session_status is SessionStatus.RESUMED
            await again.submit(1, b"one", session_id=5)
            assert text_of(await again.receive(MessageType.RESULT_PUSH)) == b"one"
            answer = await silent.open(RESUMABLE, token=first, features=ALL_FEATURES)
            assert ack(answer).session_error_code == SessionErrorCode.RESUME_REJECTED


async def test_a_client_that_only_waits_has_its_new_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 5, Resume: single use. A client that was resumed and waits says nothing by itself; it is asked with PING, and from its
    PONG on the former token is a replay, however long the silence after it."""
    monkeypatch.setattr("server.nnrp.session.SILENCE", 0.0)
    async with serving_nnrp() as served:
        async with lost(served) as peer:
            first = token_of(await peer.open(RESUMABLE, features=ALL_FEATURES))
        async with served.peer() as waiting, served.peer() as thief:
            await waiting.open(RESUMABLE, token=first, features=ALL_FEATURES)
            await waiting.nothing_comes()  # but the PING, which it answers
            (session,) = served.service.sessions
            await served.wait_until(lambda: not session.in_doubt)
            answer = await thief.open(RESUMABLE, token=first, features=ALL_FEATURES)
            assert ack(answer).session_error_code == SessionErrorCode.RESUME_REJECTED
