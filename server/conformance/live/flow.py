"""Flow control between a running server and its clients (nnrp-wire 7.16, 13.6)."""

from __future__ import annotations

from typing import Final

import trio

from protocol.nnrp.enums import (
    BackpressureLevel,
    ErrorCode,
    FlowFlags,
    FlowScope,
    MessageType,
    UpdateReason,
)
from protocol.nnrp.extensions import ALL_FEATURES
from protocol.nnrp.messages import FlowUpdate
from server.conformance.case import Evidence, expect
from server.conformance.link import OPEN, raw_packet
from server.conformance.live.judge import live_case
from server.conformance.live.peer import Peer
from server.conformance.live.place import Place

__all__: list[str] = []

VALID = FlowFlags.CREDIT_VALID
_MALFORMED: Final = int(ErrorCode.MALFORMED_BODY)
_SESSION: Final = FlowUpdate(FlowScope.SESSION, session_credit=8, credit_epoch=1, flow_flags=VALID)


async def _misrouted(peer: Peer, *wrong: tuple[FlowUpdate, int]) -> None:
    """Each is refused and, as the server is strict about nothing else here, costs nothing but itself where it can."""
    for update, session_id in wrong:
        await peer.send_raw(raw_packet(update, session_id=session_id))
        packet = await peer.receive()
        expect(packet is not None and packet.kind is MessageType.ERROR, f"{update} for session {session_id} is refused")


@live_case("l1.flow_update.connection.scope.validation")
async def connection_scope(place: Place, evidence: Evidence) -> None:
    good = FlowUpdate(FlowScope.CONNECTION, connection_credit=9, credit_epoch=1, flow_flags=VALID)
    for update, session_id in ((good, 5), (good.replace(operation_id=9), 0), (good.replace(session_credit=1), 0)):
        async with place.peer() as peer:
            await _misrouted(peer, (update, session_id))
    async with place.peer() as peer:
        session_id = await peer.opened()
        await peer.send(good)
        await peer.submit(session_id, 1)
        await peer.finals(1)
    if place.service is not None:
        await _server_grants(place, evidence)


async def _server_grants(place: Place, evidence: Evidence) -> None:
    """The server itself lowers the connection's credit: our client holds to it over all its sessions, and no session's own
    window has changed."""
    assert place.service is not None
    async with place.client() as connection:
        first, second = await connection.open_session(), await connection.open_session()
        (link,) = place.service.links
        before = first.machine.window.statistics()
        link.machine.update_credit(trio.current_time(), credit=1, reason=UpdateReason.REDUCE)
        link.flush()
        while connection.machine is None or connection.machine.window.limit != 1:  # noqa: ASYNC110  # no event of ours
            await trio.sleep(0.005)
        expect(first.machine.window.statistics() == before, "nothing leaks into a session")
        held = await first.submit(b"sleep=800;first")
        with trio.move_on_after(0.1) as waited:
            await second.submit(b"second")
        expect(waited.cancelled_caught, "the other session waits: the limit is of both together")
        await held.result()
        expect((await second.request(b"second")).data == b"second", "then it goes on")
        evidence.note(f"connection window {connection.machine.window.statistics()}")


@live_case("l1.flow_update.session.scope.validation")
async def session_scope(place: Place, evidence: Evidence) -> None:
    for update, session_id in (
        (_SESSION, 0),
        (_SESSION.replace(operation_id=9), 1),
        (_SESSION.replace(connection_credit=9), 1),
    ):
        async with place.peer() as peer:
            await peer.opened(OPEN.replace(requested_session_id=1))
            await _misrouted(peer, (update, session_id))
    async with place.peer() as peer:
        first, second = await peer.opened(), await peer.opened()
        await peer.send(_SESSION, session_id=4711)
        await peer.refused(int(ErrorCode.INVALID_STATE), "an update for an unknown session")
        hard = _SESSION.replace(backpressure_level=BackpressureLevel.HARD, update_reason=UpdateReason.CONGESTION)
        await peer.send(hard, session_id=first)
        await peer.submit(first, 1, b"sleep=1;held")
        await peer.submit(second, 1, b"sleep=1;free")
        expect(
            (await peer.take(MessageType.RESULT_PUSH)).header.session_id == second, "the effect stays in its session"
        )
        await peer.quiet("results of the session are held back")
        await peer.send(_SESSION.replace(credit_epoch=2), session_id=first)
        expect((await peer.take(MessageType.RESULT_PUSH)).header.session_id == first, "a later grant lets them go")


@live_case("l1.flow_update.operation.scope.validation")
async def operation_scope(place: Place, evidence: Evidence) -> None:
    good = FlowUpdate(FlowScope.OPERATION, operation_credit=1, operation_id=50, credit_epoch=1, flow_flags=VALID)
    for update, session_id in ((good.replace(operation_id=0), 1), (good, 0)):
        async with place.peer() as peer:
            await peer.opened(OPEN.replace(requested_session_id=1))
            await _misrouted(peer, (update, session_id))
    if place.service is None:
        return
    async with place.client() as connection:
        session = await connection.open_session(features=ALL_FEATURES)
        from client.nnrp.session import SubmitOptions

        parent = await session.submit(b"sleep=1000;parent", options=SubmitOptions(operation_id=50))
        other = await session.submit(b"sleep=1000;other", options=SubmitOptions(operation_id=60))
        (link,) = place.service.links
        theirs = link.machine.sessions[session.session_id]
        link.machine.update_credit(trio.current_time(), session=theirs, operation_id=50, credit=1, drain_only=True)
        link.flush()
        with trio.move_on_after(5):
            while session.machine.hold(50) is None:  # noqa: ASYNC110  # no event of ours
                await trio.sleep(0.005)
        expect(session.machine.hold(50) is not None, "drain_in_flight_only holds work under that operation")
        expect(session.machine.hold(60) is None and session.machine.hold() is None, "and nothing else")
        await parent.result()
        await other.result()


@live_case("l1.flow_update.credit_epoch.monotonicity.validation")
async def epochs(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        session_id = await peer.opened()
        pause = _SESSION.replace(update_reason=UpdateReason.PAUSE)
        await peer.send(_SESSION.replace(credit_epoch=5), session_id=session_id)
        await peer.send(pause.replace(credit_epoch=4), session_id=session_id)
        await peer.submit(session_id, 1, b"sleep=1;one")
        await peer.finals(1)
        await peer.send(pause.replace(credit_epoch=6), session_id=session_id)
        await peer.send(_SESSION.replace(credit_epoch=6), session_id=session_id)
        await peer.submit(session_id, 2, b"sleep=1;two")
        await peer.quiet("an older or equal epoch is not applied: the pause holds")
        await peer.send(_SESSION.replace(credit_epoch=7, update_reason=UpdateReason.RESUME), session_id=session_id)
        await peer.finals(2)
        evidence.note("a newer one replaces the pause completely")


@live_case("l1.flow_update.preview3")
async def umbrella(place: Place, evidence: Evidence) -> None:
    for part in (connection_scope, session_scope, operation_scope, epochs):
        await part(place, evidence)
