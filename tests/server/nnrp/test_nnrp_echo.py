"""NNRP: hello, sessions, submits and their results, with the built-in echo."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs
from wsproto.events import BytesMessage

from client.nnrp.websocket import WebSocketTransport
from protocol.nnrp.enums import (
    CloseStatus,
    ConnectionState,
    ErrorCode,
    ErrorScope,
    MessageType,
    OperationState,
    PayloadKind,
    ResultClass,
    SessionErrorCode,
    SessionStatus,
)
from protocol.nnrp.extensions import ALL_FEATURES
from protocol.nnrp.machines.opening import OpenPolicy
from protocol.nnrp.machines.reading import drop_state, result_state
from protocol.nnrp.messages import (
    Close,
    Error,
    FrameSubmit,
    Ping,
    ResultPush,
    SessionClose,
    SessionCloseAck,
    SessionOpenAck,
)
from server.nnrp.policy import ServingPolicy, token_check
from tests.support.nnrp import HELLO, OPEN, Peer, raw, serving_nnrp, submit_packet, text_of
from tests.support.nnrp_transports import EVERYWHERE, send_bytes, serving_on


async def test_a_native_exchange_from_hello_to_close() -> None:
    """nnrp-wire 16: hello, two sessions, results, a session's close and the connection's."""
    async with serving_nnrp() as served, served.peer() as peer:
        for wanted in (7, 8):
            answer = await peer.open(OPEN.replace(requested_session_id=wanted))
            assert answer.header.session_id == wanted
        await peer.submit(1, b"one", session_id=7)
        await peer.submit(1, b"two", session_id=8)
        for session_id, text in ((7, b"one"), (8, b"two")):
            result = await peer.receive(MessageType.RESULT_PUSH)
            assert (result.header.session_id, result.header.frame_id) == (session_id, 1)
            assert text_of(result) == text
        await peer.send(SessionClose(), session_id=7)
        closed = (await peer.receive(MessageType.SESSION_CLOSE_ACK)).metadata
        assert isinstance(closed, SessionCloseAck)
        assert closed.close_status is CloseStatus.CLOSED
        await peer.submit(2, b"late", session_id=7)
        refused = await peer.receive(MessageType.ERROR)
        assert isinstance(refused.metadata, Error)
        assert refused.metadata.error_code == ErrorCode.INVALID_STATE
        await peer.submit(2, b"sibling", session_id=8)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sibling"
        await peer.send(Close())
        with pytest.raises(EOFError):
            await peer.receive()
    assert served.service.statistics().sessions == 0


@pytest.mark.parametrize("hello", [True, False], ids=["native", "nnrp-rs"])
@pytest.mark.parametrize("kind", [PayloadKind.TOKEN_CHUNK, PayloadKind.OPAQUE_BYTES])
async def test_a_bare_payload_comes_back(kind: PayloadKind, hello: bool) -> None:
    """nnrp-wire 8.1: a body without regions, as the tests of nnrp-rs send it, is one payload of the kind that is declared."""
    bare = FrameSubmit(payload_kind_bitmap=kind, payload_frame_count=1)
    async with serving_nnrp() as served, served.peer(hello=hello) as peer:
        await peer.open(OPEN.replace(requested_session_id=1))
        for frame, text in enumerate((b"hello", b"partial=2;ab"), 1):
            await peer.stream.send_all(raw(bare, text, session_id=1, frame_id=frame))
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"hello"
        parts = [await peer.receive(MessageType.RESULT_PUSH) for _ in range(2)]
        assert b"".join(map(text_of, parts)) == b"partial=2;ab"


async def test_the_directives_of_the_echo_runner() -> None:
    """Issue 5, Runners: sleep delays, partial splits, fail fails, tool passes through waiting_tool."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        await peer.submit(1, b"sleep=60;slow")
        await peer.submit(2, b"partial=3;abc")
        await peer.submit(3, b"fail;")
        await peer.submit(4, b"tool;x")
        by_frame: dict[int, list[tuple[MessageType, OperationState, bytes]]] = {1: [], 2: [], 3: [], 4: []}
        order = []
        for _ in range(8):
            packet = await peer.receive()
            push = packet.kind is MessageType.RESULT_PUSH
            state = result_state(packet) if push else drop_state(packet)
            by_frame[packet.header.frame_id].append((packet.kind, state, text_of(packet) if push else b""))
            order.append(packet.header.frame_id)
        push, drop = MessageType.RESULT_PUSH, MessageType.RESULT_DROP
        assert by_frame[1] == [(push, OperationState.COMPLETED, b"sleep=60;slow")]
        assert order[-1] == 1
        assert [each[1] for each in by_frame[2]] == [OperationState.PARTIAL] * 2 + [OperationState.COMPLETED]
        assert b"".join(each[2] for each in by_frame[2]) == b"partial=3;abc"
        assert by_frame[3] == [(drop, OperationState.FAILED, b"")]
        assert [each[1] for each in by_frame[4]] == [
            OperationState.WAITING_TOOL,
            OperationState.RUNNING,
            OperationState.COMPLETED,
        ]
        assert by_frame[4][-1][2] == b"tool;x"


@pytest.mark.parametrize("parts", [2, 3, 7, 50])
@pytest.mark.parametrize("text", ["aé日🙂" * 3, "🙂🙂🙂", "plain"])
async def test_parts_of_a_text_are_texts(text: str, parts: int) -> None:
    """nnrp-extensions, Token chunks: a chunk never splits a UTF-8 character; together they are the text. What is none is cut anywhere,
    and comes whole as well."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        for number, data in enumerate((text.encode(), b"\x80" * 30), 1):
            await peer.submit(number, b"partial=%d;" % parts + data)
            got = [text_of(await peer.receive(MessageType.RESULT_PUSH)) for _ in range(parts)]
            assert b"".join(got) == b"partial=%d;" % parts + data
            if number == 1:
                assert "".join(each.decode() for each in got) == f"partial={parts};{text}"


async def test_the_times_of_a_result_are_true() -> None:
    """nnrp-wire 14: queue, compute and total time of RESULT_PUSH."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        await peer.submit(1, b"sleep=50;")
        message = (await peer.receive(MessageType.RESULT_PUSH)).metadata
        assert isinstance(message, ResultPush)
        assert 45 <= message.inference_ms <= message.server_total_ms < 2000
        assert message.queue_ms + message.inference_ms <= message.server_total_ms + 1
        assert message.result_class is ResultClass.COMPLETE


async def test_ping_before_and_after_the_hello() -> None:
    """nnrp-wire 13.1: PING is answered in INIT and in OPEN."""
    async with serving_nnrp() as served, served.peer(hello=False) as peer:
        await peer.send(Ping())
        await peer.receive(MessageType.PONG)
        await peer.send(HELLO)
        await peer.receive(MessageType.SERVER_HELLO_ACK)
        await peer.send(Ping())
        await peer.receive(MessageType.PONG)


@EVERYWHERE
async def test_partial_reads_and_coalesced_packets(tmp_path: Path, transport: str) -> None:
    """C-055: a packet byte by byte, one cut after byte 20, two in one write, one and a half and then the rest; what is cut is
    the stream under a WebSocket's messages, the records of TLS, the control stream of QUIC."""
    async with serving_on(transport, tmp_path) as served, served.peer() as peer:

        async def write(data: bytes) -> None:
            await send_bytes(getattr(peer.stream, "_stream", peer.stream), data)

        for byte in framed(peer, raw(Ping())):
            await write(bytes([byte]))
        await peer.receive(MessageType.PONG)
        opening = framed(peer, raw(OPEN))
        await write(opening[:20])
        await peer.nothing_comes()
        await write(opening[20:])
        await peer.receive(MessageType.SESSION_OPEN_ACK)
        await write(framed(peer, submit_packet(1, b"a"), submit_packet(2, b"b")))
        assert [text_of(await peer.receive(MessageType.RESULT_PUSH)) for _ in range(2)] == [b"a", b"b"]
        third, fourth = framed(peer, submit_packet(3, b"c")), framed(peer, submit_packet(4, b"d"))
        await write(third + fourth[:50])
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"c"
        await peer.nothing_comes()
        await write(fourth[50:])
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"d"
    assert served.service.violations == 0


def framed(peer: Peer, *packets: bytes) -> bytes:
    """What the stream under this peer's transport carries for these packets."""
    if isinstance(peer.stream, WebSocketTransport):
        packets = tuple(peer.stream._ws.send(BytesMessage(data=each)) for each in packets)
    return b"".join(packets)


async def test_an_open_and_a_submit_in_one_write_are_answered_in_order() -> None:
    """nnrp-wire 13.2: nothing of a session is sent before its SESSION_OPEN_ACK."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.stream.send_all(raw(OPEN) + submit_packet(1) + raw(Ping()) + submit_packet(2))
        kinds = [(await peer.receive()).kind for _ in range(4)]
    assert kinds == [
        MessageType.SESSION_OPEN_ACK,
        MessageType.RESULT_PUSH,
        MessageType.PONG,
        MessageType.RESULT_PUSH,
    ]


async def test_the_token_is_asked_for_in_the_hello() -> None:
    """nnrp-extensions, Authentication: missing or wrong → ERROR auth_failed, fatal, close; right → served."""
    policy = ServingPolicy(authenticate=token_check("s3cret"))
    async with serving_nnrp(policy) as served:
        for auth in (b"", b"s3cre", b"s3cretx"):
            async with served.peer(hello=False) as peer:
                await peer.send(HELLO.replace(auth_bytes=len(auth)), auth)
                error = (await peer.receive(MessageType.ERROR)).metadata
                assert isinstance(error, Error)
                assert (error.error_code, error.is_fatal) == (ErrorCode.AUTH_FAILED, 1)
                assert error.error_scope is ErrorScope.CONNECTION
                with pytest.raises(EOFError):
                    await peer.receive()
        async with served.peer(hello=False) as peer:
            await peer.send(HELLO.replace(auth_bytes=6), b"s3cret")
            await peer.receive(MessageType.SERVER_HELLO_ACK)
            await peer.open()
            await peer.submit(1)
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"hello"


async def test_without_a_hello_the_token_is_asked_for_in_the_session_open() -> None:
    """nnrp-extensions, Authentication: rejected with auth_failed (0x00010001), the connection stays. The log warns of it as of
    one in the hello."""
    policy = ServingPolicy(authenticate=token_check("s3cret"))
    async with serving_nnrp(policy) as served, served.peer(hello=False) as peer:
        with capture_logs() as logs:
            for auth in (b"", b"wrong"):
                refused = (await peer.open(auth=auth)).metadata
                assert isinstance(refused, SessionOpenAck)
                assert refused.session_status is SessionStatus.REJECTED
                assert refused.session_error_code == SessionErrorCode.AUTH_FAILED
        warned = [each["message"] for each in logs if each["event"] == "nnrp_auth_failed"]
        assert warned == ["SESSION_OPEN", "SESSION_OPEN"]
        opened = (await peer.open(auth=b"s3cret")).metadata
        assert isinstance(opened, SessionOpenAck)
        assert opened.session_status is SessionStatus.OPENED


async def test_a_withdrawn_token_closes_its_sessions() -> None:
    """nnrp-extensions, Authentication: auth_revoked (5); nothing new is opened with it on the same connection."""
    policy = ServingPolicy(authenticate=token_check("s3cret"))
    principal = policy.authenticate(b"s3cret")
    assert principal is not None
    async with serving_nnrp(policy) as served, served.peer(hello=False) as peer:
        await peer.send(HELLO.replace(auth_bytes=6), b"s3cret")
        await peer.receive(MessageType.SERVER_HELLO_ACK)
        await peer.open()
        await peer.submit(1, b"sleep=60000;")
        await served.wait_until(lambda: served.service.statistics().operations == 1)
        served.service.withdraw(principal)
        await peer.receive(MessageType.RESULT_DROP)
        closing = (await peer.receive(MessageType.SESSION_CLOSE)).metadata
        assert isinstance(closing, SessionClose)
        assert closing.close_reason == 5
        await peer.send(SessionCloseAck(close_status=CloseStatus.CLOSED), session_id=1)
        refused = (await peer.open(OPEN.replace(requested_session_id=2))).metadata
        assert isinstance(refused, SessionOpenAck)
        assert refused.session_error_code == SessionErrorCode.AUTH_FAILED


async def test_more_sessions_than_allowed_are_refused_and_the_rest_is_untouched() -> None:
    """--nnrp-max-sessions-per-connection: session_limit_reached (0x00010007)."""
    policy = ServingPolicy(opening=OpenPolicy(max_sessions=2))
    async with serving_nnrp(policy) as served, served.peer() as peer:
        codes = []
        for _ in range(3):
            answer = (await peer.open()).metadata
            assert isinstance(answer, SessionOpenAck)
            codes.append(answer.session_error_code)
        assert codes == [0, 0, SessionErrorCode.SESSION_LIMIT_REACHED]
        await peer.submit(1, session_id=2)
        await peer.receive(MessageType.RESULT_PUSH)


async def test_a_session_that_does_nothing_has_no_worker_and_no_task() -> None:
    """Issue 5, memory: no task and no nursery until a session's first operation."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        (session,) = served.service.sessions
        assert session.worker is None
        assert session.machine._operations is None
        assert served.service.links
        (link,) = served.service.links
        assert link.machine.state is ConnectionState.OPEN
