"""The same connection over every transport (nnrp-wire 2; nnrp-extensions, WebSocket): what holds on one holds on all."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import trio

from client.nnrp import NnrpOperationEnded, open_nnrp
from protocol.nnrp.bodies import ControlBody
from protocol.nnrp.descriptors import TransportPolicy, TransportPolicyAck
from protocol.nnrp.enums import (
    CancelScopeKind,
    ErrorCode,
    ExtType,
    FlowFlags,
    FlowScope,
    MessageType,
    OperationState,
    SessionFlags,
    SessionStatus,
    TransportId,
    TransportPolicyKind,
    UpdateReason,
)
from protocol.nnrp.extensions import ALL_FEATURES, ControlExtension, pack_extensions
from protocol.nnrp.machines.connection import ConnectionLimits
from protocol.nnrp.messages import Error, FlowUpdate, Ping, SessionOpenAck, TransportProbe, TransportProbeAck
from protocol.nnrp.vendor import ResumeFrom
from server.nnrp.policy import ServingPolicy
from tests.support.nnrp import HELLO, OPEN, Peer, raw, text_of, token_of
from tests.support.nnrp_transports import (
    EVERY,
    EVERYWHERE,
    TRANSPORTS,
    Place,
    on_a_line,
    send_bytes,
    serving_everywhere,
    serving_on,
)

RESUMABLE = OPEN.replace(requested_session_id=5, session_flags=SessionFlags.ALLOW_RESUME)
PAIRS = [(lost, resumed) for lost in ("tcp", "ws", "quic") for resumed in ("tcp", "ws", "quic") if lost != resumed]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_everything_a_session_does(tmp_path: Path, transport: str) -> None:
    """Issue 5, Listeners: hello, sessions, results in parts, large payloads, cancel, ping and close on each of them."""
    async with serving_everywhere(tmp_path) as place:
        async with open_nnrp(place.urls[transport], place.options) as connection:
            first, second = await connection.open_session(), await connection.open_session()
            assert (await first.request(b"hello")).data == b"hello"
            assert [each.data async for each in await first.submit(b"partial=4;abcdefgh")] == [
                b"part",
                b"ial=4",
                b";abc",
                b"defgh",
            ]
            large = bytes(range(256)) * 4096
            assert (await second.request(large)).data == large
            held = await first.submit(b"sleep=60000;")
            first.cancel(CancelScopeKind.SESSION)
            with pytest.raises(NnrpOperationEnded) as ended:
                await held.result()
            assert ended.value.state is OperationState.CANCELLED
            assert await connection.ping() >= 0
            await second.close()
            assert (await first.request(b"goes on")).data == b"goes on"
            (link,) = place.service.links
            assert link.transport == {"ws": "websocket", "wss": "websocket"}.get(transport, transport)
        await place.wait_until(lambda: not place.service.links)
    assert place.service.violations == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_probe_is_answered_before_the_hello(tmp_path: Path, transport: str) -> None:
    """nnrp-wire 2.7, 7.18: 32 KiB of padding, the id comes back; a hello may follow on the same connection."""
    async with serving_everywhere(tmp_path) as place, place.peer(transport, hello=False) as peer:
        for number in (7, 8):
            await peer.send(TransportProbe(number, 32_768, 1), b"P" * 32_768)
            answer = (await peer.receive(MessageType.TRANSPORT_PROBE_ACK)).metadata
            assert isinstance(answer, TransportProbeAck)
            assert answer.probe_id == number
        await peer.send(HELLO)
        await peer.receive(MessageType.SERVER_HELLO_ACK)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_transport_is_told(tmp_path: Path, transport: str) -> None:
    """nnrp-wire 6, 2.7: active_transport_id is 1 for QUIC, 2 for TCP; WebSocket has none, 0 (nnrp-extensions)."""
    asked = TransportPolicy(TransportPolicyKind.PREFER_QUIC, TransportId.QUIC)
    block = pack_extensions([ControlExtension.of(ExtType.TRANSPORT_POLICY, asked)])
    async with serving_everywhere(tmp_path) as place, place.peer(transport, hello=False) as peer:
        await peer.send(HELLO.replace(control_extension_bytes=len(block)), block)
        content = (await peer.receive(MessageType.SERVER_HELLO_ACK)).content
        assert isinstance(content, ControlBody)
        (ack,) = [each.value for each in content.extensions if isinstance(each.value, TransportPolicyAck)]
        assert ack.active_transport_id == {"quic": 1, "ws": 0, "wss": 0}.get(transport, 2)
        assert ack.accepted_transport_policy is TransportPolicyKind.PREFER_QUIC


@pytest.mark.parametrize(("lost", "resumed"), PAIRS)
async def test_a_session_is_resumed_on_another_transport(tmp_path: Path, lost: str, resumed: str) -> None:
    """Issue 5, Resume: lost on one listener, resumed on another; what ran meanwhile is delivered there, once (nnrp-wire
    13.7)."""
    async with serving_everywhere(tmp_path) as place:
        async with place.peer(lost) as peer:
            token = token_of(await peer.open(RESUMABLE, features=ALL_FEATURES))
            await peer.submit(1, b"one", session_id=5)
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"one"
            await peer.submit(2, b"sleep=150;two", session_id=5)
            await place.wait_until(lambda: place.service.statistics().operations == 1)
        await place.wait_until(lambda: not place.service.links)
        async with place.peer(resumed) as peer:
            answer = await peer.open(
                RESUMABLE, token=token, features=ALL_FEATURES, resume_from=ResumeFrom(resume_from_operation_id=1)
            )
            assert isinstance(answer.metadata, SessionOpenAck)
            assert answer.metadata.session_status is SessionStatus.RESUMED
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=150;two"
            await peer.submit(3, b"three", session_id=5)
            assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"three"
            await peer.nothing_comes()


async def test_connections_are_bounded(tmp_path: Path) -> None:
    """``--max-connections``: one more is refused, and counted; those that are there do not notice."""
    async with serving_everywhere(tmp_path, ServingPolicy(max_connections=1), only=["tcp", "tls"]) as place:
        async with place.peer("tcp") as peer:
            async with place.stream("tls") as refused:
                with pytest.raises(EOFError):
                    await Peer(refused).receive()
            await peer.open()
            assert place.service.statistics().refused_connections == 1
        await place.wait_until(lambda: not place.service.links)
        async with place.peer("tls") as peer:
            await peer.open()


@EVERYWHERE
async def test_no_bound_on_connections(tmp_path: Path, transport: str) -> None:
    """``--max-connections 0``."""
    async with serving_on(transport, tmp_path, ServingPolicy(max_connections=0)) as place, place.peer() as peer:
        await peer.open()


async def test_connections_that_never_say_hello(tmp_path: Path) -> None:
    """C-077: all of them are closed within the handshake timeout, over every transport; a proper client works meanwhile.
    Every second has sent half a CLIENT_HELLO."""
    half = raw(HELLO)[:20]
    policy = ServingPolicy(limits=ConnectionLimits(handshake_timeout=4.0))
    closed: list[str] = []

    async def stay_silent(place: Place, transport: str, number: int) -> None:
        async with place.stream(transport) as stream:
            if number % 2:
                await send_bytes(stream, half, end=False)
            try:
                while await stream.receive_some(4096):
                    pass
            except trio.BrokenResourceError:
                pass
            closed.append(transport)

    counts = dict.fromkeys(EVERY, 20) | {"tcp": 100}
    async with serving_everywhere(tmp_path, policy, only=EVERY) as place:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for transport, count in counts.items():
                    for number in range(count):
                        nursery.start_soon(stay_silent, place, transport, number)
                for transport in counts:
                    async with open_nnrp(place.urls[transport], place.options) as connection:
                        assert (await (await connection.open_session()).request(b"x")).data == b"x"
        await place.wait_until(lambda: not place.service.links)
    assert {each: closed.count(each) for each in counts} == counts


async def test_half_open_peers_are_reclaimed(tmp_path: Path) -> None:
    """C-099, 13.8: of two idle peers on each transport the one whose packets are dropped is closed, its session waits to be
    resumed and is; the other, which only answers PINGs, is served after three times the idle timeout. On all transports at
    once, because it takes its time."""
    idle = 1.2
    policy = ServingPolicy(limits=ConnectionLimits(idle_timeout=idle, keepalive_interval=idle / 3))

    async def two_peers(transport: str) -> None:
        directory = tmp_path / transport
        directory.mkdir()
        async with (
            serving_on(transport, directory, policy) as place,
            on_a_line(place) as (far, line),
            far.peer() as gone,
            place.peer() as healthy,
            trio.open_nursery() as nursery,
        ):
            service = place.service
            token = token_of(await gone.open(RESUMABLE))
            await healthy.open()
            answering = trio.CancelScope()

            async def answer() -> None:
                with answering:
                    await healthy.receive(seconds=60)

            nursery.start_soon(answer)
            line.drop()
            since = trio.current_time()
            await place.wait_until(lambda: len(service.links) == 1)
            assert service.statistics().detached == 1, transport
            await trio.sleep_until(since + 3 * idle)
            answering.cancel()
            await healthy.submit(1, b"still here")
            assert text_of(await healthy.receive(MessageType.RESULT_PUSH)) == b"still here", transport
            ack = (await healthy.open(RESUMABLE, token=token)).metadata
            assert isinstance(ack, SessionOpenAck)
            assert ack.session_status is SessionStatus.RESUMED, transport
            line.let_through()

    async with trio.open_nursery() as nursery:
        for transport in EVERY:
            nursery.start_soon(two_peers, transport)


@pytest.mark.parametrize("transport", ["tcp", "quic", "aioquic"])
async def test_many_sessions_after_each_other(tmp_path: Path, transport: str) -> None:
    """C-095: 500 times a session is opened, does one short turn and is closed, on one connection: nothing of them is left, on
    either side, and no more memory is in use after the last than after the fiftieth."""
    async with serving_on(transport, tmp_path) as place, open_nnrp(place.url, place.options) as connection:
        (link,) = place.service.links
        tasks = early = 0
        for number in range(500):
            session = await connection.open_session()
            assert (await session.request(b"x")).data == b"x"
            await session.close()
            if number == 50:
                tasks, early = trio.lowlevel.current_statistics().tasks_living, resident()
        assert not place.service.sessions
        assert len(place.service.registry) == 0
        assert not link.machine.sessions
        counts = place.service.statistics()
        assert (counts.sessions, counts.operations, counts.connections) == (0, 0, 1)
        assert trio.lowlevel.current_statistics().tasks_living <= tasks
        assert resident() - early < 20 * 2**20


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


VALID = FlowFlags.CREDIT_VALID


def flow(scope: FlowScope, reason: UpdateReason, epoch: int, credit: int = 4, *, operation_id: int = 0) -> FlowUpdate:
    return FlowUpdate(
        scope_kind=scope,
        update_reason=reason,
        credit_epoch=epoch,
        connection_credit=credit if scope is FlowScope.CONNECTION else 0,
        session_credit=credit if scope is FlowScope.SESSION else 0,
        operation_credit=credit if scope is FlowScope.OPERATION else 0,
        operation_id=operation_id,
        flow_flags=VALID,
    )


@EVERYWHERE
async def test_old_credit_news_is_ignored(tmp_path: Path, transport: str) -> None:
    """C-079, where the server accepts updates: epoch 5 stops results, epoch 4 changes nothing, epoch 6 lets go."""
    session = FlowScope.SESSION
    async with serving_on(transport, tmp_path) as place, place.peer() as peer:
        await peer.open()
        await peer.send(flow(session, UpdateReason.PAUSE, 5), session_id=1)
        await peer.send(flow(session, UpdateReason.GRANT, 4), session_id=1)
        await settled(peer)
        await peer.submit(1, b"sleep=1;held")
        await peer.nothing_comes()
        await peer.send(flow(session, UpdateReason.RESUME, 6), session_id=1)
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=1;held"


@EVERYWHERE
async def test_epochs_are_counted_per_scope(tmp_path: Path, transport: str) -> None:
    """C-082: session X epoch 10, connection epoch 3, session Y epoch 1, operation 7 epoch 1: all four are applied."""
    grant = UpdateReason.GRANT
    async with serving_on(transport, tmp_path) as place, place.peer() as peer:
        for number in (1, 2):
            await peer.open(OPEN.replace(requested_session_id=number))
        await peer.submit(7, b"sleep=60000;", session_id=2)
        await peer.send(flow(FlowScope.SESSION, grant, 10, 3), session_id=1)
        await peer.send(flow(FlowScope.CONNECTION, grant, 3, 8))
        await peer.send(flow(FlowScope.SESSION, grant, 1, 2), session_id=2)
        await peer.send(flow(FlowScope.OPERATION, grant, 1, 1, operation_id=7), session_id=2)
        await settled(peer)
        (link,) = place.service.links
        machine = link.machine
        first, second = machine.sessions[1], machine.sessions[2]
        windows = [first.reverse, machine.reverse, second.reverse, second.operation_window(7, reverse=True)]
        assert [None if each is None else each.limit for each in windows] == [3, 8, 2, 1]
        assert machine.counters.stale_updates == 0


MALFORMED = {
    "connection scope, session id": (5, flow(FlowScope.CONNECTION, UpdateReason.PAUSE, 9), None),
    "session scope, operation id": (1, flow(FlowScope.SESSION, UpdateReason.PAUSE, 9, operation_id=9), None),
    "operation scope, no operation": (1, flow(FlowScope.OPERATION, UpdateReason.PAUSE, 9), None),
    "scope 7": (1, flow(FlowScope.SESSION, UpdateReason.PAUSE, 9), (40, 7)),
    "flow flag 4": (1, flow(FlowScope.SESSION, UpdateReason.PAUSE, 9), (68, 0x11)),
    "reserved byte": (1, flow(FlowScope.SESSION, UpdateReason.PAUSE, 9), (43, 1)),
}


@EVERYWHERE
async def test_malformed_flow_updates_change_nothing(tmp_path: Path, transport: str) -> None:
    """C-083: each is answered with malformed_body and pauses nothing, and a valid update behind it works. Where the fault is
    in the connection's scope, it ends the connection (nnrp-wire 15); so every case has a connection of its own."""
    policy = ServingPolicy(strict=True)
    async with serving_on(transport, tmp_path, policy) as place:
        for name, (session_id, update, change) in MALFORMED.items():
            async with place.peer() as peer:
                await peer.open()
                packet = bytearray(raw(update, session_id=session_id))
                if change is not None:
                    packet[change[0]] = change[1]
                await peer.stream.send_all(bytes(packet))
                error = (await peer.receive(MessageType.ERROR)).metadata
                assert isinstance(error, Error), name
                assert error.error_code == ErrorCode.MALFORMED_BODY, name
                if error.is_fatal:
                    continue
                await peer.submit(1, b"sleep=1;a")
                assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=1;a", name
                await peer.send(flow(FlowScope.SESSION, UpdateReason.PAUSE, 1), session_id=1)
                await settled(peer)
                await peer.submit(2, b"sleep=1;b")
                await peer.nothing_comes()


async def settled(peer: Peer) -> None:
    """The server has acted on everything before this: what is on one stream is carried out in order."""
    await peer.send(Ping())
    await peer.receive(MessageType.PONG)
