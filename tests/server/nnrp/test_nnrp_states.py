"""The tables of nnrp-wire 13.1, 13.2 and 13.4 over the wire: what is no longer allowed costs an ERROR and nothing else."""

from __future__ import annotations

import attrs
import pytest
import trio
from structlog.testing import capture_logs

from client.backoff import ReconnectPolicy
from client.nnrp import NnrpOptions, open_nnrp
from protocol.nnrp.enums import (
    CancelScopeKind,
    CloseStatus,
    ErrorCode,
    ErrorScope,
    ExtType,
    HeaderFlags,
    MessageType,
    SessionFlags,
)
from protocol.nnrp.extensions import ALL_FEATURES, ControlExtension, pack_extensions
from protocol.nnrp.messages import (
    Close,
    Error,
    FlowUpdate,
    FrameCancel,
    Message,
    SessionClose,
    SessionCloseAck,
    SessionPatch,
)
from protocol.nnrp.vendor import CancelScope, SubmitContext
from server.nnrp import GO_ON, PAUSE, ServingPolicy
from tests.support.nnrp import HELLO, OPEN, Peer, raw, serving_nnrp, submit_packet, text_of, token_of

RESUMABLE = OPEN.replace(requested_session_id=5, session_flags=SessionFlags.ALLOW_RESUME)


async def refused(peer: Peer, scope: ErrorScope, code: int = ErrorCode.INVALID_STATE) -> None:
    error = (await peer.receive(MessageType.ERROR)).metadata
    assert isinstance(error, Error)
    assert (error.error_code, error.error_scope, error.is_fatal) == (code, scope, 0)


@pytest.mark.parametrize("who", ["peer", "server"])
async def test_a_connection_that_drains_takes_nothing_new(who: str) -> None:
    """13.1: in DRAINING no SESSION_OPEN, FRAME_SUBMIT or SESSION_PATCH, whoever has closed; what is in flight is delivered, and then
    the connection ends. A second close is an error."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        await peer.submit(1, b"sleep=400;in flight")
        (link,) = served.service.links
        if who == "server":
            await served.wait_until(lambda: link.machine.in_flight == 1)
            link.close("")
            await peer.receive(MessageType.CLOSE)
        await peer.send(Close())
        await peer.stream.send_all(raw(OPEN.replace(requested_session_id=2)))
        await refused(peer, ErrorScope.SESSION)
        await peer.stream.send_all(submit_packet(2))
        await refused(peer, ErrorScope.FRAME)
        await peer.send(SessionPatch(), session_id=1)
        await refused(peer, ErrorScope.SESSION)
        await peer.send(Close())
        await refused(peer, ErrorScope.CONNECTION)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=400;in flight"
        with pytest.raises(EOFError):
            await peer.receive()


@pytest.mark.parametrize("message", [SessionPatch(), SessionClose()], ids=["SESSION_PATCH", "SESSION_CLOSE"])
async def test_a_session_that_drains(message: Message) -> None:
    """13.2: SESSION_CLOSE on a session that is not OPEN is BadState, and so is an operation; other messages of the session are
    taken in every state but CLOSED. Its sibling is not concerned."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(OPEN.replace(requested_session_id=1))
        await peer.open(OPEN.replace(requested_session_id=2))
        await peer.submit(1, b"sleep=300;drained")
        await peer.send(SessionClose(drain_timeout_ms=5000), session_id=1)
        ack = (await peer.receive(MessageType.SESSION_CLOSE_ACK)).metadata
        assert isinstance(ack, SessionCloseAck)
        assert ack.close_status is CloseStatus.DRAINING
        await peer.send(message, session_id=1)
        if isinstance(message, SessionClose):
            await refused(peer, ErrorScope.SESSION)
        else:
            await peer.receive(MessageType.SESSION_PATCH_ACK)
        await peer.submit(1, b"sibling", session_id=2)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sibling"
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=300;drained"
        await peer.receive(MessageType.SESSION_CLOSE_ACK)
        await peer.send(message, session_id=1)
        await refused(peer, ErrorScope.SESSION)
        await peer.send(SessionCloseAck(CloseStatus.CLOSED), session_id=1)
        await refused(peer, ErrorScope.SESSION)


async def test_a_frame_id_names_one_operation() -> None:
    """10.3, 13.4: in use or used, also by another lane: the view shares its frame's operation. One terminal message each."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        await peer.submit(1, b"sleep=150;first")
        lane = bytearray(submit_packet(1, b"lane"))
        lane[28:30] = (7).to_bytes(2, "little")
        for packet in (submit_packet(1, b"again"), bytes(lane)):
            await peer.stream.send_all(packet)
            await refused(peer, ErrorScope.FRAME)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=150;first"
        for packet in (submit_packet(1, b"again"), bytes(lane)):
            await peer.stream.send_all(packet)
            await refused(peer, ErrorScope.FRAME)
        await peer.nothing_comes()


@pytest.mark.parametrize("flags", [HeaderFlags(0), HeaderFlags.RETRANSMIT], ids=["as new", "as sent again"])
async def test_frame_ids_that_begin_anew_after_a_resume(flags: HeaderFlags) -> None:
    """13.7 item 3: nnrp-rs counts from 1 again. A frame whose operation has ended is a new one, one that is in flight is not; and
    one that says it is sent again (3.1) is no new one in any case."""
    async with serving_nnrp() as served:
        async with served.peer() as peer:
            token = token_of(await peer.open(RESUMABLE))
            await peer.submit(1, b"ended", session_id=5)
            await peer.receive(MessageType.RESULT_PUSH)
            await peer.submit(2, b"sleep=700;in flight", session_id=5)
            await served.wait_until(lambda: served.service.statistics().operations == 1)
        await served.wait_until(lambda: not served.service.links)
        async with served.peer() as peer:
            await peer.open(RESUMABLE, token=token)
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"ended"
            for frame in (1, 2):
                packet = bytearray(submit_packet(frame, b"anew", session_id=5))
                packet[8] |= flags.value
                await peer.stream.send_all(packet)
            if not flags:
                seen = {(await peer.receive()).kind for _ in range(2)}
                assert seen == {MessageType.RESULT_PUSH, MessageType.ERROR}
            last = await peer.receive(MessageType.RESULT_PUSH)
            assert (last.header.frame_id, text_of(last)) == (2, b"sleep=700;in flight")
            await peer.nothing_comes()


async def test_the_watermark_goes_on_after_a_resume() -> None:
    """10.7: the highest operation that was seen submitted in the session, whichever connection that was on; at both ends."""
    streams: list[trio.SocketStream] = []

    async def connect(host: str, port: int) -> trio.abc.Stream:
        streams.append(await trio.open_tcp_stream(host, port))
        return streams[-1]

    with capture_logs() as logs:
        async with serving_nnrp() as served:
            async with served.peer() as peer:
                token = token_of(await peer.open(RESUMABLE))
                for number in (1, 2, 3):
                    await peer.submit(number, session_id=5)
                    await peer.receive(MessageType.RESULT_PUSH)
            await served.wait_until(lambda: not served.service.links)
            async with served.peer() as peer:
                await peer.open(RESUMABLE, token=token)
                for _ in range(3):
                    await peer.receive(MessageType.RESULT_PUSH)
                await peer.send(SessionClose(), session_id=5)
                ack = (await peer.receive(MessageType.SESSION_CLOSE_ACK)).metadata
                assert isinstance(ack, SessionCloseAck)
                assert (ack.close_status, ack.last_operation_id) == (CloseStatus.CLOSED, 3)
            options = NnrpOptions(connect=connect, reconnect=ReconnectPolicy(base=0.05))
            async with open_nnrp(served.url, options) as connection:
                session = await connection.open_session(resumable=True)
                for _ in range(2):
                    await session.request(b"x")
                await trio.aclose_forcefully(streams[0])
                await served.wait_until(lambda: connection.reconnects == 1 and session.attached)
                await session.close()
    assert [each["watermark"] for each in logs if each["event"] == "nnrp_session_close"] == [0, 2]


async def test_epochs_go_on_after_a_resume() -> None:
    """13.6: credit_epoch increases within one scope, and the scope of a session is its id: a peer that remembers the last one it has
    accepted over its connections is not told old news. Those of another session are its own."""
    epochs = []
    async with serving_nnrp() as served:
        async with served.peer() as peer:
            token = token_of(await peer.open(RESUMABLE))
            (session,) = served.service.sessions
            for order in (PAUSE, GO_ON):
                assert served.service.order_flow(order, session)
                epochs.append((await peer.receive(MessageType.FLOW_UPDATE)).metadata)
        await served.wait_until(lambda: not served.service.links)
        async with served.peer() as peer:
            await peer.open(RESUMABLE, token=token)
            await peer.open()
            for each in served.service.sessions:
                assert served.service.order_flow(PAUSE, each)
                epochs.append((await peer.receive(MessageType.FLOW_UPDATE)).metadata)
    assert [each.credit_epoch for each in epochs if isinstance(each, FlowUpdate)] == [1, 2, 3, 1]


async def test_a_second_hello_and_a_hello_late() -> None:
    """13.1: a second CLIENT_HELLO is BadState, and so is one behind SESSION_OPEN; neither costs a session."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        await peer.send(HELLO)
        await refused(peer, ErrorScope.CONNECTION)
        await peer.submit(1, b"goes on")
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"goes on"


async def test_what_a_drain_does_not_wait_for() -> None:
    """13.1: in-flight results delivered or timeout: what is left then is cancelled, and has its terminal message."""
    policy = ServingPolicy()
    policy = attrs.evolve(policy, limits=attrs.evolve(policy.limits, drain_timeout=0.2))
    async with serving_nnrp(policy) as served, served.peer() as peer:
        await peer.open()
        await peer.submit(1, b"sleep=60000;")
        await peer.send(Close())
        with trio.fail_after(3):
            assert (await peer.receive(MessageType.RESULT_DROP)).header.frame_id == 1
            with pytest.raises(EOFError):
                await peer.receive()


TARGET = CancelScope(CancelScopeKind.OPERATION, operation_id=1)
_KIND = CancelScopeKind


@pytest.mark.parametrize(
    ("scope", "frame_id", "code"),
    [
        (None, 0, ErrorCode.MALFORMED_BODY),
        (TARGET, 0, ErrorCode.MALFORMED_BODY),
        (CancelScope(_KIND.SUBTREE, operation_id=1), 0, ErrorCode.MALFORMED_BODY),
        (CancelScope(_KIND.OPERATION), 1, ErrorCode.MALFORMED_BODY),
        (CancelScope(_KIND.GROUP, operation_id=1, operation_group_id=9), 0, ErrorCode.MALFORMED_BODY),
        (CancelScope(_KIND.GROUP), 0, ErrorCode.MALFORMED_BODY),
        (CancelScope(_KIND.SESSION, operation_id=1), 0, ErrorCode.MALFORMED_BODY),
        (CancelScope(_KIND.SESSION, operation_group_id=9), 0, ErrorCode.MALFORMED_BODY),
    ],
)
async def test_a_cancel_that_names_the_wrong_thing(scope: CancelScope | None, frame_id: int, code: int) -> None:
    """nnrp-extensions Cancel, nnrp-wire 3.2: frame 0 only with scope group or session; an operation only with scope operation or
    subtree, and then it must be one; a group only with scope group, and then it must be one. What runs is not touched."""
    body = b"" if scope is None else pack_extensions([ControlExtension.of(ExtType.CANCEL_SCOPE, TARGET)])
    if scope is not None:
        body = body[:8] + scope.pack()
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        await peer.submit(1, b"sleep=150;runs", context=SubmitContext(1))
        await peer.stream.send_all(raw(FrameCancel(), body, session_id=1, frame_id=frame_id))
        error = (await peer.receive(MessageType.ERROR)).metadata
        assert isinstance(error, Error)
        assert (error.error_code, error.is_fatal) == (code, 0)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=150;runs"
