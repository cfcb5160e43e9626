"""Handshake, sessions, resume and the connection as a container, at a running server (nnrp-wire 7, 13)."""

from __future__ import annotations

from typing import Final

from protocol.nnrp.enums import (
    CloseReason,
    CloseStatus,
    ErrorCode,
    InFlightPolicy,
    MessageType,
    PayloadKind,
    PriorityClass,
    SessionErrorCode,
    SessionFlags,
    SessionFlagsAck,
    SessionStatus,
)
from protocol.nnrp.extensions import ALL_FEATURES
from protocol.nnrp.messages import Close, Ping, ServerHelloAck, SessionClose, SessionCloseAck, SessionOpenAck
from protocol.nnrp.vendor import ResumeFrom
from server.conformance.case import Evidence, expect
from server.conformance.link import HELLO, OPEN, raw_packet
from server.conformance.live.judge import live_case
from server.conformance.live.peer import Peer, metadata, text_of, token_of
from server.conformance.live.place import Place

__all__: list[str] = []

_INVALID_STATE: Final = int(ErrorCode.INVALID_STATE)
_MALFORMED: Final = int(ErrorCode.MALFORMED_BODY)
_RESUMABLE: Final = OPEN.replace(session_flags=SessionFlags.ALLOW_RESUME)


@live_case("l1.handshake.basic")
async def handshake(place: Place, evidence: Evidence) -> None:
    async with place.peer(hello=False) as peer:
        answer = metadata(await peer.greet(), ServerHelloAck)
        expect(answer.selected_version_major == 1, "version 1 is selected")
        await peer.send(Ping())
        await peer.take(MessageType.PONG)
        await peer.send(Close())
        await peer.ended("a CLOSE ends the connection in good order")


@live_case("l1.handshake.capability_window.validation")
async def capability_window(place: Place, evidence: Evidence) -> None:
    for changes, code in (
        ({"min_version_major": 2, "max_version_major": 3}, ErrorCode.UNSUPPORTED_VERSION),
        ({"min_version_major": 2, "max_version_major": 1}, ErrorCode.MALFORMED_BODY),
        ({"supported_wire_format_bitmap": 2}, ErrorCode.UNSUPPORTED_VERSION),
        ({"supported_profile_bitmap": 0}, ErrorCode.UNSUPPORTED_CAPABILITY),
        ({"supported_payload_kind_bitmap": PayloadKind(0)}, ErrorCode.UNSUPPORTED_CAPABILITY),
    ):
        async with place.peer(hello=False) as peer:
            await peer.send_raw(raw_packet(HELLO.replace(**changes)))
            await peer.refused(int(code), f"an offer with {changes}", fatal=True)
    async with place.peer(hello=False) as peer:
        await peer.send(HELLO.replace(supported_profile_bitmap=2))
        answer = await peer.take(MessageType.SERVER_HELLO_ACK)
        ack = metadata(answer, ServerHelloAck)
        expect(ack.accepted_profile_bitmap == 2, "the answer is the intersection")
        identity = answer.header.pack()[:6]
        expect(identity == b"NNRP\x01\x00", "the code identity is NNRP 1, wire format 0, without a preview marker")


@live_case("l1.session.open_close")
async def open_close(place: Place, evidence: Evidence) -> None:
    async with place.client() as connection:
        session = await connection.open_session()
        expect((await session.request(b"hello")).data == b"hello", "the session holds state and works")
        await session.close()
        expect(session.over and connection.connected, "it is closed, the connection stays")
        other = await connection.open_session()
        expect((await other.request(b"again")).data == b"again", "and opens another")


@live_case("l1.session.open.fixed_metadata.validation")
async def open_metadata(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        request = OPEN.replace(requested_session_id=42, default_deadline_ms=120, client_session_tag=7)
        session_id = await peer.opened(request)
        expect(session_id == 42, "the requested id is used")
        await peer.submit(session_id, 1, b"sleep=2000;late")
        packet = await peer.receive()
        expect(
            packet is not None and packet.kind is MessageType.RESULT_DROP,
            "an operation without a budget of its own has the session's deadline",
        )
        await peer.send_raw(raw_packet(OPEN.replace(auth_bytes=4), b"auth!"))
        await peer.refused(_MALFORMED, "more body than declared")
        ack = metadata(await peer.open(OPEN.replace(schema_version=99)), SessionOpenAck)
        expect(ack.session_error_code == SessionErrorCode.SCHEMA_UNSUPPORTED, "an unknown schema has its code")
        ack = metadata(await peer.open(OPEN.replace(profile_id=77)), SessionOpenAck)
        expect(ack.session_error_code == SessionErrorCode.PROFILE_UNSUPPORTED, "an unknown profile has its code")


@live_case("l1.session.open_ack.fixed_metadata.validation")
async def open_ack_metadata(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        ack = metadata(await peer.open(OPEN.replace(max_in_flight_operations=0xFFFF)), SessionOpenAck)
        expect(ack.session_status is SessionStatus.OPENED, "too much asked for is lowered, not refused")
        expect(0 < ack.max_in_flight_operations < 0xFFFF, "the maximum is granted")
        expect(0 < ack.granted_operation_credit <= ack.max_in_flight_operations, "the credit lies within it")
        ack = metadata(await peer.open(OPEN.replace(session_flags=SessionFlags(0))), SessionOpenAck)
        allowed = int(SessionFlagsAck.PRIORITY_DOWNGRADED)
        expect(not int(ack.session_flags_ack) & ~allowed, "flags not asked for are not acknowledged")
        expect(ack.resume_token_bytes == 0 and ack.resume_window_ms == 0, "nor a token given")
        answer = await peer.open(OPEN.replace(session_flags=SessionFlags.ALLOW_RESUME))
        ack = metadata(answer, SessionOpenAck)
        enabled = int(ack.session_flags_ack) & int(SessionFlagsAck.RESUME_ENABLED)
        expect(not enabled or (ack.resume_window_ms and token_of(answer)), "resume has a window and a token")
        ack = metadata(await peer.open(OPEN.replace(priority_class=PriorityClass.INTERACTIVE)), SessionOpenAck)
        lowered = int(ack.session_flags_ack) & int(SessionFlagsAck.PRIORITY_DOWNGRADED)
        expect(
            bool(lowered) == (ack.accepted_priority_class is not PriorityClass.INTERACTIVE),
            "a lower priority is said with its flag",
        )


@live_case("l1.session.close.state_machine.validation")
async def close_states(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        session_id = await peer.opened()
        await peer.submit(session_id, 1, b"sleep=600;last")
        await peer.send(SessionClose(drain_timeout_ms=5000, last_operation_id=1), session_id=session_id)
        expect(await _close_status(peer) is CloseStatus.DRAINING, "work in flight drains")
        await peer.submit(session_id, 2)
        await peer.refused(_INVALID_STATE, "a submit while draining")
        result = await peer.take(MessageType.RESULT_PUSH)
        expect(result.header.frame_id == 1, "its result still comes")
        expect(await _close_status(peer) is CloseStatus.CLOSED, "then the session is closed")
        await peer.send(SessionClose(), session_id=session_id)
        await peer.refused(_INVALID_STATE, "a second close")
        await peer.send(SessionClose(), session_id=77)
        await peer.refused(_INVALID_STATE, "a close of an unknown session")
        await peer.send_raw(raw_packet(SessionClose()))
        error = await peer.receive()
        expect(error is not None and error.kind is MessageType.ERROR, "a close of session 0 is refused")
    async with place.peer() as peer:
        session_id = await peer.opened()
        await peer.submit(session_id, 1, b"sleep=60000;never")
        close = SessionClose(CloseReason.NORMAL, InFlightPolicy.ABORT, last_operation_id=1)
        await peer.send(close, session_id=session_id)
        statuses: list[CloseStatus] = []
        while not statuses or statuses[-1] is not CloseStatus.CLOSED:
            packet = await peer.receive()
            expect(packet is not None, "abort is answered")
            if packet is not None and packet.kind is MessageType.SESSION_CLOSE_ACK:
                statuses.append(metadata(packet, SessionCloseAck).close_status)
        evidence.note(f"abort: {statuses}")


async def _close_status(peer: Peer) -> CloseStatus:
    return metadata(await peer.take(MessageType.SESSION_CLOSE_ACK), SessionCloseAck).close_status


# Resume


@live_case("l1.session.resume.from_operation.validation")
async def resume_from_operation(place: Place, evidence: Evidence) -> None:
    """Results behind the watermark come again after the loss, those before it do not; no frame is ever named to resume."""
    async with place.peer() as peer:
        answer = await peer.open(_RESUMABLE, features=ALL_FEATURES)
        session_id = metadata(answer, SessionOpenAck).session_id
        for frame in (1, 2):
            await peer.submit(session_id, frame, b"%d" % frame)
        await peer.finals(1, 2)
        await peer.submit(session_id, 3, b"sleep=100;3")
    async with place.peer() as peer:
        request = _RESUMABLE.replace(requested_session_id=session_id)
        watermark = ResumeFrom(resume_from_operation_id=1)
        again = await peer.open(request, token=token_of(answer), features=ALL_FEATURES, resume_from=watermark)
        ack = metadata(again, SessionOpenAck)
        expect(ack.session_status is SessionStatus.RESUMED, "the answer is resumed")
        found = await peer.finals(2, 3)
        expect([text_of(each)[-1:] for each in found] == [b"2", b"3"], "results behind the watermark, and no other")
        await peer.submit(session_id, 4)
        await peer.finals(4)


@live_case("l1.session.resume.rejected.validation")
async def resume_rejected(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        first = await peer.open(_RESUMABLE)
        second = await peer.open(_RESUMABLE)
        ids = [metadata(each, SessionOpenAck).session_id for each in (first, second)]
    async with place.peer() as peer:
        good = _RESUMABLE.replace(requested_session_id=ids[0])
        token = token_of(first)
        for request, given, demand in (
            (good, b"x" * 24, "a wrong token"),
            (good, token_of(second), "a foreign token"),
            (good.replace(requested_session_id=4711), token, "another session"),
            (good.replace(schema_id=0, schema_version=0, profile_id=1), token, "another profile"),
        ):
            await _rejected(await peer.open(request, token=given), demand)
        ack = metadata(await peer.open(good, token=token), SessionOpenAck)
        expect(ack.session_status is SessionStatus.RESUMED, "the right one is taken")
        await _rejected(await peer.open(good.replace(requested_session_id=9), token=token), "a used token")
        fresh = await peer.opened()
        await peer.submit(fresh, 1)
        await peer.finals(1)
        evidence.note("a fresh session opens, and nothing is resumed by frame")


async def _rejected(answer: object, demand: str) -> None:
    ack = answer.metadata  # type: ignore[attr-defined]  # a packet
    expect(isinstance(ack, SessionOpenAck) and ack.session_status is SessionStatus.REJECTED, f"{demand} is rejected")
    expect(ack.session_error_code == SessionErrorCode.RESUME_REJECTED, f"{demand}: resume_rejected")


# The connection as a container


@live_case("l1.connection.session_container.parallel_open.validation")
async def parallel_open(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        for _ in range(4):
            await peer.send(OPEN)
        acks = [metadata(await peer.take(MessageType.SESSION_OPEN_ACK), SessionOpenAck) for _ in range(4)]
        ids = [each.session_id for each in acks]
        expect(len(set(ids)) == 4, "four sessions live on one connection")
        limit = acks[0].granted_operation_credit
        for frame in range(1, limit + 2):
            await peer.submit(ids[0], frame, b"sleep=5000;full")
        await peer.refused(int(ErrorCode.LIMIT_EXCEEDED), "one more than one session's credit")
        for each in ids[1:]:
            await peer.submit(each, 1, b"own")
            result = await peer.take(MessageType.RESULT_PUSH)
            expect(result.header.session_id == each, "another session has its own credit and its own frames")


@live_case("l1.session.close.sibling_survival.validation")
async def sibling_survival(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        first, second = await peer.opened(), await peer.opened()
        await peer.submit(second, 1, b"sleep=400;survives")
        await peer.send(SessionClose(), session_id=first)
        expect(await _close_status(peer) is CloseStatus.CLOSED, "one session is closed")
        result = await peer.take(MessageType.RESULT_PUSH)
        expect((result.header.session_id, text_of(result)) == (second, b"sleep=400;survives"), "its sibling goes on")
        await peer.submit(first, 1)
        await peer.refused(_INVALID_STATE, "a submit in the closed one")
        await peer.submit(second, 2)
        await peer.finals(2)


@live_case("l1.connection.close.session_cascade.validation")
async def session_cascade(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        answer = await peer.open(_RESUMABLE)
        session_id = metadata(answer, SessionOpenAck).session_id
        await peer.opened()
        await peer.send(Close())
        await peer.ended("CLOSE ends every session, and no session traffic comes after it")
    async with place.peer() as peer:
        request = _RESUMABLE.replace(requested_session_id=session_id)
        await _rejected(await peer.open(request, token=token_of(answer)), "a session that ended with its connection")
