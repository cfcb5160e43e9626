"""Section 15 of nnrp-wire over real sockets: every outcome at its scope, and the order in which a session is decided on."""

from __future__ import annotations

import struct

import pytest
import trio

from protocol.nnrp.enums import (
    AckStatus,
    CloseStatus,
    ErrorCode,
    ErrorScope,
    ExtensionFlags,
    ExtensionKind,
    InFlightPolicy,
    MessageType,
    OperationState,
    PatchMask,
    PatchRejectReason,
    SessionErrorCode,
    SessionFlags,
    SessionStatus,
)
from protocol.nnrp.extensions import ALL_FEATURES
from protocol.nnrp.header import Header
from protocol.nnrp.machines.opening import OpenPolicy
from protocol.nnrp.machines.reading import drop_state
from protocol.nnrp.messages import (
    ClientHello,
    Error,
    FlowUpdate,
    FrameSubmit,
    Ping,
    ServerHelloAck,
    SessionClose,
    SessionCloseAck,
    SessionOpen,
    SessionOpenAck,
    SessionPatch,
    SessionPatchAck,
)
from protocol.nnrp.vendor import SubmitContext
from server.nnrp.policy import ServingPolicy, token_check
from server.nnrp.scheduler import SchedulingPolicy
from server.nnrp.writer import ANSWER_BYTES
from tests.support.nnrp import HELLO, OPEN, raw, serving_nnrp, submit_packet, text_of, token_of

CONNECTION, SESSION, FRAME = ErrorScope
META = 40


def patched(packet: bytes, offset: int, value: int, size: int = 1) -> bytes:
    """The packet with some bytes of its own."""
    return packet[:offset] + value.to_bytes(size, "little") + packet[offset + size :]


def resized(meta: bytes) -> bytes:
    """A FRAME_SUBMIT with other metadata, of whatever length."""
    header = Header(MessageType.FRAME_SUBMIT, meta_len=len(meta), session_id=1, frame_id=2)
    return header.pack() + meta


SUBMIT = submit_packet(2, b"x")

FATAL: list[tuple[str, bytes, int]] = [
    ("BadMagic", patched(raw(Ping()), 0, 0x58), ErrorCode.MALFORMED_HEADER),
    ("BadHeaderLen", patched(raw(Ping()), 7, 41), ErrorCode.MALFORMED_HEADER),
    ("ReservedBits in the header", patched(raw(Ping()), 8, 0x40, 4), ErrorCode.MALFORMED_HEADER),
    ("UnknownMsgType", patched(raw(Ping()), 6, 0x0B), ErrorCode.MALFORMED_HEADER),
    ("LengthOverflow", patched(raw(Ping()), 12, 0xFFFF_FFFF_FFFF_FFFF, 8), ErrorCode.MALFORMED_HEADER),
    ("BadVersion", patched(raw(Ping()), 4, 2), ErrorCode.UNSUPPORTED_VERSION),
    ("BadWireFormat", patched(raw(Ping()), 5, 1), ErrorCode.UNSUPPORTED_VERSION),
    ("LimitExceeded, body", patched(raw(Ping()), 16, 40_000_000, 4), ErrorCode.LIMIT_EXCEEDED),
    ("BadCombination at connection scope", raw(Ping(), b"body"), ErrorCode.MALFORMED_BODY),
]


@pytest.mark.parametrize(("packet", "code"), [each[1:] for each in FATAL], ids=[each[0] for each in FATAL])
async def test_what_ends_the_connection(packet: bytes, code: int) -> None:
    """nnrp-wire 15, rows that are fatal: one ERROR of connection scope, then the close; another connection goes on."""
    async with serving_nnrp() as served, served.peer() as peer, served.peer() as other:
        await peer.open()
        await other.open()
        await peer.stream.send_all(packet)
        error = (await peer.receive(MessageType.ERROR)).metadata
        assert isinstance(error, Error)
        assert (error.error_code, error.error_scope, error.is_fatal) == (code, CONNECTION, 1)
        with pytest.raises(EOFError):
            await peer.receive()
        await other.submit(1, b"fine")
        assert text_of(await other.receive(MessageType.RESULT_PUSH)) == b"fine"
        assert served.service.statistics().violations == 1


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (HELLO.replace(min_version_major=2, max_version_major=3), ErrorCode.UNSUPPORTED_VERSION),
        (HELLO.replace(supported_profile_bitmap=0x8000_0000), ErrorCode.UNSUPPORTED_CAPABILITY),
    ],
    ids=["version window", "no common profile"],
)
async def test_a_hello_with_nothing_in_common(hello: ClientHello, code: int) -> None:
    """15: unsupported_version and unsupported_capability, connection scope, fatal."""
    async with serving_nnrp() as served, served.peer(hello=False) as peer:
        await peer.stream.send_all(raw(hello))
        error = (await peer.receive(MessageType.ERROR)).metadata
        assert isinstance(error, Error)
        assert (error.error_code, error.error_scope, error.is_fatal) == (code, CONNECTION, 1)
        with pytest.raises(EOFError):
            await peer.receive()


def with_critical_frame() -> bytes:
    """A submit with an extension frame that nobody knows and that must not be skipped."""
    packet = bytearray(submit_packet(2, b"x", context=SubmitContext(2)))
    place = packet.index(int(ExtensionKind.SUBMIT_CONTEXT).to_bytes(2, "little"), META + 72 + 32 + 24)
    packet[place : place + 4] = (0x7777).to_bytes(2, "little") + int(ExtensionFlags.CRITICAL).to_bytes(2, "little")
    return bytes(packet)


NOT_FATAL: list[tuple[str, bytes, int, ErrorScope]] = [
    ("ReservedNonZero", patched(SUBMIT, META + 15, 1), ErrorCode.MALFORMED_BODY, FRAME),
    ("UnknownEnum", patched(SUBMIT, META + 14, 9), ErrorCode.MALFORMED_BODY, FRAME),
    ("ReservedBits", patched(SUBMIT, META + 53, 0x10), ErrorCode.MALFORMED_BODY, FRAME),
    ("BadCombination", patched(SUBMIT, META + 8, 3, 2), ErrorCode.MALFORMED_BODY, FRAME),
    ("TooShort", resized(bytes(71)), ErrorCode.MALFORMED_BODY, FRAME),
    ("LengthMismatch", resized(bytes(73)), ErrorCode.MALFORMED_BODY, FRAME),
    ("UnknownSession", submit_packet(2, b"x", session_id=77), ErrorCode.INVALID_STATE, FRAME),
    ("OperationExists", submit_packet(1, b"x", context=SubmitContext(9)), ErrorCode.INVALID_STATE, FRAME),
    ("UnknownOperation", submit_packet(2, b"x", context=SubmitContext(2, 55)), ErrorCode.INVALID_STATE, FRAME),
    ("UnknownCritical", with_critical_frame(), ErrorCode.UNSUPPORTED_CAPABILITY, FRAME),
    (
        "ReservedBits at session scope",
        raw(SessionPatch(), session_id=1)[:META] + patched(SessionPatch().pack(), 4, 0x80, 4),
        ErrorCode.MALFORMED_BODY,
        SESSION,
    ),
    ("UnknownSession at session scope", raw(SessionClose(), session_id=77), ErrorCode.INVALID_STATE, SESSION),
    ("BadState, a second hello", raw(HELLO), ErrorCode.INVALID_STATE, CONNECTION),
    (
        "BadCombination, a flow update",
        raw(FlowUpdate(operation_id=3), session_id=1)[:META] + patched(FlowUpdate(operation_id=3).pack(), 0, 1),
        ErrorCode.MALFORMED_BODY,
        SESSION,
    ),
]


@pytest.mark.parametrize(
    ("packet", "code", "scope"), [each[1:] for each in NOT_FATAL], ids=[each[0] for each in NOT_FATAL]
)
async def test_what_costs_no_more_than_its_scope(packet: bytes, code: int, scope: ErrorScope) -> None:
    """nnrp-wire 15, rows that are not fatal: one ERROR with its code and scope; operations in flight, the session, its
    siblings and the connection go on."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(OPEN.replace(requested_session_id=1), features=ALL_FEATURES)
        await peer.open(OPEN.replace(requested_session_id=2))
        await peer.submit(1, b"sleep=60;runs", context=SubmitContext(1))
        await peer.stream.send_all(packet)
        error = (await peer.receive(MessageType.ERROR)).metadata
        assert isinstance(error, Error)
        assert (error.error_code, error.error_scope, error.is_fatal) == (code, scope, 0)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=60;runs"
        await peer.submit(3, b"again", context=SubmitContext(3))
        await peer.submit(1, b"sibling", session_id=2)
        answers = {text_of(await peer.receive(MessageType.RESULT_PUSH)) for _ in range(2)}
        assert answers == {b"again", b"sibling"}
        assert served.service.statistics().operations == 0


async def test_submits_on_closed_sessions() -> None:
    """Issue 5, Bad input; 15 BadState: a thousand submits on a closed and on an unknown session get an ERROR each, start
    nothing, and hurt nobody; the id can be opened again."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        await peer.open(OPEN.replace(requested_session_id=2))
        await peer.send(SessionClose(), session_id=1)
        await peer.receive(MessageType.SESSION_CLOSE_ACK)
        flood = b"".join(submit_packet(number, session_id=1 + 98 * (number % 2)) for number in range(1, 1001))
        await peer.stream.send_all(flood)
        for number in range(1, 1001):
            error = (await peer.receive(MessageType.ERROR)).metadata
            assert isinstance(error, Error)
            assert (error.error_code, error.is_fatal) == (ErrorCode.INVALID_STATE, 0)
            assert error.related_frame_id == number
        await peer.submit(1, b"fine", session_id=2)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"fine"
        await peer.open(OPEN.replace(requested_session_id=1))
        await peer.submit(1, b"again", session_id=1)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"again"
        assert served.service.statistics().sessions == 2


# SESSION_OPEN


async def test_a_session_is_decided_on_in_the_specified_order() -> None:
    """13.2: profile, default schema, (limits are clamped), policy, resume, identity, number. The first fault is the answer,
    however many there are; the answer to each is an ACK and never an ERROR (15)."""
    policy = ServingPolicy(
        opening=OpenPolicy(profiles=frozenset({2}), max_sessions=1), authenticate=token_check("secret")
    )
    async with serving_nnrp(policy) as served, served.peer(hello=False) as peer:
        first = (await peer.open(auth=b"secret")).metadata
        assert isinstance(first, SessionOpenAck)
        request = SessionOpen(
            requested_session_id=first.session_id,
            profile_id=1,
            session_flags=SessionFlags.ALLOW_RESUME,
            schema_id=0x9999,
            schema_version=1,
            max_in_flight_operations=65_535,
        )
        auth, token = b"wrong", b"no token"
        codes = []

        async def ask() -> SessionErrorCode:
            answer = (await peer.open(request, token=token, auth=auth)).metadata
            assert isinstance(answer, SessionOpenAck)
            assert answer.session_status is SessionStatus.REJECTED
            assert (answer.session_id, answer.max_in_flight_operations) == (0, 0), "a refusal carries zeros (18 item 9)"
            return SessionErrorCode(answer.session_error_code)

        codes.append(await ask())
        request = request.replace(profile_id=2)
        codes.append(await ask())
        request = request.replace(schema_id=0x1001, schema_version=3)
        codes.append(await ask())
        auth = b"secret"
        codes.append(await ask())
        token = b""
        codes.append(await ask())
        request = request.replace(requested_session_id=0)
        codes.append(await ask())
        assert codes == [
            SessionErrorCode.PROFILE_UNSUPPORTED,
            SessionErrorCode.SCHEMA_UNSUPPORTED,
            SessionErrorCode.AUTH_FAILED,
            SessionErrorCode.RESUME_REJECTED,
            SessionErrorCode.SESSION_LIMIT_REACHED,
            SessionErrorCode.SESSION_LIMIT_REACHED,
        ]
        await peer.submit(1, b"still here")
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"still here"
        assert served.service.statistics().sessions == 1


async def test_what_is_too_much_is_lowered() -> None:
    """13.2, 18 item 33: in flight, credit and lease are granted as far as they go; what was not asked for is not given."""
    policy = ServingPolicy(
        opening=OpenPolicy(max_in_flight_operations=4, operation_credit=3, max_lease_ttl_ms=1000, lease_ttl_ms=500)
    )
    async with serving_nnrp(policy) as served, served.peer() as peer:
        wanted = OPEN.replace(max_in_flight_operations=9999, lease_ttl_hint_ms=60_000)
        answer = (await peer.open(wanted)).metadata
        assert isinstance(answer, SessionOpenAck)
        assert (answer.max_in_flight_operations, answer.granted_operation_credit) == (4, 3)
        assert (answer.lease_ttl_ms, answer.session_error_code, answer.resume_window_ms) == (1000, 0, 0)
        small = (await peer.open(OPEN.replace(max_in_flight_operations=1))).metadata
        assert isinstance(small, SessionOpenAck)
        assert (small.max_in_flight_operations, small.granted_operation_credit, small.lease_ttl_ms) == (1, 1, 500)


async def test_an_implicit_session_is_reserved_and_may_be_opened_properly() -> None:
    """13.2: the id asked for in the hello is answered and reserved; a submit opens it with profile 0, a SESSION_OPEN asking
    for it takes it over instead of colliding."""
    for proper in (False, True):
        async with serving_nnrp() as served, served.peer(hello=False) as peer:
            await peer.send(HELLO.replace(requested_session_id=5))
            answer = (await peer.receive(MessageType.SERVER_HELLO_ACK)).metadata
            assert isinstance(answer, ServerHelloAck)
            assert answer.session_id == 5
            assert (await peer.open()).header.session_id != 5, "assigned ids pass over it"
            if proper:
                ack = (await peer.open(OPEN.replace(requested_session_id=5))).metadata
                assert isinstance(ack, SessionOpenAck)
                assert (ack.session_id, ack.accepted_profile_id) == (5, 2)
                await peer.submit(1, session_id=5)
                await peer.receive(MessageType.RESULT_PUSH)
            else:
                packet = patched(submit_packet(1, b"", session_id=5), META + 68, 0, 2)
                header = Header(MessageType.FRAME_SUBMIT, meta_len=72, session_id=5, frame_id=1)
                await peer.stream.send_all(header.pack() + packet[META : META + 72])
                assert (await peer.receive(MessageType.RESULT_PUSH)).header.session_id == 5
            served_ids = {each.machine.session_id: each.machine.terms for each in served.service.sessions}
            assert served_ids[5].implicit is not proper


# SESSION_PATCH, SESSION_CLOSE


@pytest.mark.parametrize(
    ("request_", "status", "reason", "applied"),
    [
        (SessionPatch(patch_mask=PatchMask.QUALITY_TIER, quality_tier=4), AckStatus.ACCEPTED, "NONE", 0x02),
        (
            SessionPatch(patch_mask=PatchMask.QUALITY_TIER | PatchMask.ACTIVE_LANE_MASK, quality_tier=4),
            AckStatus.PARTIALLY_APPLIED,
            "INVALID_LANE_MASK",
            0x02,
        ),
        (
            SessionPatch(patch_mask=PatchMask.DEGRADE_POLICY, degrade_policy=9),
            AckStatus.REJECTED,
            "UNSUPPORTED_STRATEGY",
            0,
        ),
        (
            SessionPatch(profile_id=1, patch_mask=PatchMask.QUALITY_TIER, quality_tier=4),
            AckStatus.REJECTED,
            "UNSUPPORTED_FIELD",
            0,
        ),
    ],
    ids=["accepted", "partly", "rejected", "another profile"],
)
async def test_a_session_is_patched(request_: SessionPatch, status: AckStatus, reason: str, applied: int) -> None:
    """7.3, 7.4: bit by bit; the answer says what is in force."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open()
        await peer.send(request_, session_id=1)
        ack = (await peer.receive(MessageType.SESSION_PATCH_ACK)).metadata
        assert isinstance(ack, SessionPatchAck)
        assert (ack.ack_status, ack.reject_reason) == (status, PatchRejectReason[reason])
        assert (int(ack.applied_patch_mask), ack.effective_profile_id) == (applied, 2)
        assert ack.effective_quality_tier == (4 if applied else 0)


async def test_a_patch_survives_a_resume() -> None:
    """7.3, 13.7: what was patched is the session's, not the connection's."""
    async with serving_nnrp() as served:
        request = OPEN.replace(requested_session_id=1, session_flags=SessionFlags.ALLOW_RESUME)
        async with served.peer() as peer:
            answer = await peer.open(request)
            await peer.send(SessionPatch(patch_mask=PatchMask.QUALITY_TIER, quality_tier=4), session_id=1)
            await peer.receive(MessageType.SESSION_PATCH_ACK)
        await served.wait_until(lambda: served.service.statistics().detached == 1)
        async with served.peer() as peer:
            await peer.open(request, token=token_of(answer))
            await peer.send(SessionPatch(patch_mask=PatchMask.TARGET_CADENCE, target_cadence_x100=5), session_id=1)
            ack = (await peer.receive(MessageType.SESSION_PATCH_ACK)).metadata
            assert isinstance(ack, SessionPatchAck)
            assert (ack.effective_quality_tier, ack.effective_target_cadence_x100) == (4, 5)


@pytest.mark.parametrize(
    ("policy", "drain_ms", "acks", "ends"),
    [
        (InFlightPolicy.DRAIN, 5000, [CloseStatus.DRAINING, CloseStatus.CLOSED], [OperationState.COMPLETED] * 2),
        (InFlightPolicy.DRAIN, 0, [CloseStatus.CLOSED], [OperationState.CANCELLED] * 2),
        (InFlightPolicy.ABORT, 5000, [CloseStatus.CLOSED], [OperationState.CANCELLED] * 2),
    ],
    ids=["drain", "at once", "abort"],
)
async def test_a_close_and_its_acks(
    policy: InFlightPolicy, drain_ms: int, acks: list[CloseStatus], ends: list[OperationState]
) -> None:
    """13.3: draining, then closed, or closed alone; terminal messages come before the last ack, which has the watermark; an
    operation that waits for its turn is drained or cut like one that runs."""
    narrow = ServingPolicy(scheduling=SchedulingPolicy(slots=1))
    async with serving_nnrp(narrow) as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)
        for number in (1, 2):
            await peer.submit(number, b"sleep=40;", context=SubmitContext(number))
        await peer.send(SessionClose(in_flight_policy=policy, drain_timeout_ms=drain_ms), session_id=1)
        seen: list[object] = []
        watermark = 0
        while not seen or seen[-1] is not CloseStatus.CLOSED:
            packet = await peer.receive()
            if isinstance(packet.metadata, SessionCloseAck):
                seen.append(packet.metadata.close_status)
                watermark = packet.metadata.last_operation_id
            elif packet.kind is MessageType.RESULT_DROP:
                seen.append(drop_state(packet))
            else:
                seen.append(OperationState.COMPLETED)
        assert [each for each in seen if isinstance(each, CloseStatus)] == acks
        assert [each for each in seen if isinstance(each, OperationState)] == ends
        assert watermark == 2
        assert served.service.turns.scheduler.statistics().running == 0
        await peer.nothing_comes()


# Floods


@pytest.mark.slow
async def test_a_flood_of_opens_up_to_the_last_session() -> None:
    """Issue 5, Bad input: 65,536 sessions on one connection, asked for without reading. What is queued for the peer stops
    growing, because nothing more is read from it, and another connection is served meanwhile. When it reads, every open has
    its answer, in order; --nnrp-max-sessions-per-connection is 65,535 by default, so the last is session_limit_reached. First
    and last session are served; they all end with their connection."""
    limit = OpenPolicy().max_sessions
    size = META + SessionOpenAck.SIZE
    answers = bytearray()
    async with serving_nnrp() as served, served.peer() as other:
        await other.open()
        async with served.peer() as peer, trio.open_nursery() as nursery:
            links = set(served.service.links)

            async def send() -> None:
                packet = raw(OPEN)
                for sent in range(0, limit + 1, 1024):
                    await peer.stream.send_all(packet * min(1024, limit + 1 - sent))

            nursery.start_soon(send)
            await served.wait_until(lambda: any(each.writer.flooded for each in links), 60)
            await other.submit(1, b"fine")
            assert text_of(await other.receive(MessageType.RESULT_PUSH, seconds=60)) == b"fine"
            assert max(each.writer.size for each in links) < 4 * ANSWER_BYTES
            with trio.fail_after(120):
                while len(answers) < size * (limit + 1):
                    answers += await peer.stream.receive_some(1 << 20)
            assert len(answers) == size * (limit + 1)
            fields = struct.Struct(f"<{META}x I 44x I 4x")  # session_id and session_error_code of 7.8
            acks = list(fields.iter_unpack(answers))
            assert acks[:-1] == [(number, 0) for number in range(1, limit + 1)]
            assert acks[-1] == (0, SessionErrorCode.SESSION_LIMIT_REACHED)
            assert limit == 65_535
            for session_id in (1, limit):
                await peer.submit(1, b"here", session_id=session_id)
                assert (await peer.receive(MessageType.RESULT_PUSH)).header.session_id == session_id
        await served.wait_until(lambda: served.service.statistics().sessions == 1, 30)


async def test_half_a_submit_is_not_waited_for_by_others() -> None:
    """Issue 5, Bad input; 15 truncated stream: a peer that stops inside a packet holds up nobody; its end is a loss, and its
    operations end with it."""
    async with serving_nnrp() as served, served.peer() as other:
        await other.open()
        async with served.peer() as peer:
            await peer.open()
            await peer.submit(1, b"sleep=60000;")
            await peer.stream.send_all(submit_packet(2, bytes(1000), metadata=FrameSubmit())[:500])
            await other.submit(1, b"fine")
            assert text_of(await other.receive(MessageType.RESULT_PUSH)) == b"fine"
        await served.wait_until(lambda: served.service.statistics().operations == 0)
        assert served.service.statistics().sessions == 1


async def test_route_and_trace_come_back_with_everything_said_about_an_operation() -> None:
    """nnrp-wire 3, 14: parts, results, hints, drops and errors carry the route_id and trace_id of the submit."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES)

        def traced(frame_id: int, data: bytes, metadata: FrameSubmit | None = None) -> bytes:
            packet = submit_packet(frame_id, data, metadata=metadata, context=SubmitContext(frame_id))
            return patched(patched(packet, 30, 7, 2), 32, 1000 + frame_id, 8)

        await peer.stream.send_all(traced(1, b"partial=2;ab") + traced(2, b"whole") + traced(3, b"fail;"))
        await peer.stream.send_all(traced(4, b"tool;x") + traced(4, b"again"))
        await peer.stream.send_all(traced(5, b"sleep=60000;", FrameSubmit(latency_budget_ms=40)))
        kinds: dict[int, list[MessageType]] = {}
        for _ in range(9):
            packet = await peer.receive()
            frame = packet.header.frame_id
            kinds.setdefault(frame, []).append(packet.kind)
            assert (packet.header.route_id, packet.header.trace_id) == (7, 1000 + frame)
        push, drop, error = MessageType.RESULT_PUSH, MessageType.RESULT_DROP, MessageType.ERROR
        assert {frame: sorted(each) for frame, each in kinds.items()} == {
            1: [push, push],
            2: [push],
            3: [drop],
            4: [error, push, push, push],
            5: [drop],
        }
        (hint,) = peer.hints
        assert (hint.header.frame_id, hint.header.route_id, hint.header.trace_id) == (5, 7, 1005)
