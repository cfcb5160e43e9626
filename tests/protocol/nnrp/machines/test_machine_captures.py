"""The recorded streams of real peers, played to our machines from both ends (captures README; nnrp-wire 2.6, 16)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protocol.nnrp.bodies import ControlBody
from protocol.nnrp.enums import CloseStatus, ErrorCode, MessageType, OperationState, SessionErrorCode
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.machines.connection import Connection, Side
from protocol.nnrp.machines.connection_table import Dialect
from protocol.nnrp.machines.events import (
    CancelReceived,
    ErrorReceived,
    Event,
    FlowReceived,
    HelloAccepted,
    HelloReceived,
    MigrateReceived,
    PatchReceived,
    ResultReceived,
    SessionCloseProgress,
    SessionOpened,
    SessionOpenReceived,
    SessionRefused,
    SubmitReceived,
)
from protocol.nnrp.machines.hello import HelloPolicy
from protocol.nnrp.machines.migration import decide_migration
from protocol.nnrp.machines.opening import OpenPolicy
from protocol.nnrp.machines.patching import PatchPolicy
from protocol.nnrp.machines.schemas import builtin_registry
from protocol.nnrp.machines.session import Delivery, Ending
from protocol.nnrp.machines.terms import SessionTerms
from protocol.nnrp.messages import (
    CacheInvalidate,
    CachePut,
    ClientHello,
    FlowUpdate,
    SessionClose,
    SessionCloseAck,
    SessionMigrate,
    SessionOpen,
    SessionOpenAck,
    SessionPatch,
    TransportProbe,
)
from protocol.nnrp.packet import Packet, RawPacket, decode_packet
from tests.protocol.nnrp.vectors import VECTORS

_M = MessageType
PREVIEW3 = [
    path.stem
    for path in sorted((VECTORS / "captures").glob("*-*.json"))
    if path.stem.startswith(("py-", "rs-")) or path.stem.startswith("cross-")
]


def connections(name: str) -> dict[int, list[tuple[str, bytes]]]:
    """Direction and bytes of every packet, by connection, in the order of the connection numbers."""
    recorded: dict[str, Any] = json.loads((VECTORS / "captures" / f"{name}.json").read_text())
    found: dict[int, list[tuple[str, bytes]]] = {}
    for entry in recorded["packets"]:
        packets = found.setdefault(entry["conn"], [])
        if "hex" in entry:
            packets.append((entry["dir"], bytes.fromhex(entry["hex"])))
    return dict(sorted(found.items()))


class Served:
    """Our server machine with the simplest driver: everything is granted, results come when the peer asks no more."""

    def __init__(self) -> None:
        self.machine = Connection(Side.SERVER, now=0.0, schemas=builtin_registry(), strict=False)
        self.events: list[Event] = []
        self.sent: list[Packet] = []
        self.endings: list[Ending] = []

    def feed(self, data: bytes) -> None:
        event = self.machine.receive_raw(RawPacket(data), 0.0)
        self.events.append(event)
        machine = self.machine
        if isinstance(event, HelloReceived):
            machine.accept_hello(HelloPolicy())
        elif isinstance(event, SessionOpenReceived):
            decision = machine.decide_open(OpenPolicy(max_in_flight_operations=4, operation_credit=4))
            enabled = decision.terms is not None and decision.terms.resume_enabled
            machine.answer_open(decision, resume_token=b"t" * 24 if enabled else b"")
        elif isinstance(event, PatchReceived):
            machine.answer_patch(event.session, event.packet, PatchPolicy())
        elif isinstance(event, MigrateReceived):
            request = event.packet.metadata
            assert isinstance(request, SessionMigrate)
            answer = decide_migration(request.last_result_frame_id, grace_window_ms=500)
            machine.answer_migrate(event.packet, answer, 0.0)
            if event.session is None:
                machine.install(event.packet.header.session_id, SessionTerms(max_in_flight_operations=4))
        elif isinstance(event, (CancelReceived, SessionCloseProgress)):
            self._finish(OperationState.CANCELLED)
        for outgoing in machine.messages():
            self.sent.append(decode_packet(outgoing.encode(), strict=True))

    def _finish(self, wanted: OperationState) -> None:
        for session in list(self.machine.sessions.values()):
            for operation in [each for each in session.operations if each.ended]:
                self.endings.append(self.machine.finish(session, operation, wanted, 0.0))

    def kinds(self) -> list[MessageType]:
        return [each.kind for each in self.sent]


@pytest.mark.parametrize("name", PREVIEW3)
def test_recorded_clients_are_served(name: str) -> None:
    """Every client stream is legal for our tolerant server machine, and its dialect is recognised."""
    for number, packets in connections(name).items():
        if (name, number) == ("rs-tcp-resume-accepted", 1):
            continue  # refused by us, which its own test shows; the peer then has no session to go on with
        served = Served()
        for _, data in (each for each in packets if each[0] == "c2s"):
            served.feed(data)
        assert served.machine.counters.violations == 0
        expected = Dialect.BARE if name.startswith(("rs-", "cross-rs")) else served.machine.dialect
        assert served.machine.dialect is expected
        if name == "py-migrate-tcp-to-quic" and number == 1:
            assert served.machine.dialect is Dialect.IMPLICIT
        forbidden = {_M.SESSION_OPEN_ACK, _M.SESSION_CLOSE_ACK} if served.machine.dialect is Dialect.IMPLICIT else set()
        if served.machine.dialect is Dialect.BARE:
            forbidden |= {_M.PING, _M.ERROR, _M.RESULT_HINT, _M.CACHE_PUT, _M.CACHE_INVALIDATE}
        assert not forbidden & set(served.kinds())


def test_the_bare_peer_gets_what_it_waits_for() -> None:
    """nnrp-wire 16, first exchange: one ACK to open, one closed ACK to close, watermark echoed."""
    (packets,) = connections("rs-tcp-open-token-result-close").values()
    served = Served()
    for direction, data in packets:
        if direction == "c2s":
            served.feed(data)
            for event in served.events[-1:]:
                if isinstance(event, SubmitReceived):
                    served.machine.finish(event.session, event.operation, OperationState.COMPLETED, 0.0)
    opened, closed = served.sent
    assert isinstance(opened.metadata, SessionOpenAck)
    assert opened.header.session_id == opened.metadata.session_id == 1
    assert isinstance(closed.metadata, SessionCloseAck)
    assert (closed.metadata.close_status, closed.metadata.last_operation_id) == (CloseStatus.CLOSED, 1)


def test_its_resume_without_token_bytes_is_refused() -> None:
    """nnrp-wire 13.7 item 5 and issue 5: nnrp-rs declares a token and sends none."""
    fresh, resumed = connections("rs-tcp-resume-accepted").values()
    served = Served()
    served.feed(next(data for direction, data in fresh if direction == "c2s"))
    assert served.sent[0].metadata.session_error_code == 0  # type: ignore[attr-defined]  # the ack
    again = Served()
    again.feed(next(data for direction, data in resumed if direction == "c2s"))
    (refusal,) = again.sent
    assert refusal.metadata.session_error_code == SessionErrorCode.RESUME_REJECTED  # type: ignore[attr-defined]
    content = again.events[0].packet.content  # type: ignore[union-attr]  # the SESSION_OPEN
    assert isinstance(content, ControlBody)
    assert content.declared_absent


@pytest.mark.parametrize(
    ("connection", "code"),
    [(0, SessionErrorCode.PROFILE_UNSUPPORTED), (1, SessionErrorCode.SCHEMA_UNSUPPORTED)],
)
def test_refusals_as_recorded(connection: int, code: SessionErrorCode) -> None:
    """Our decision and the recorded one agree where the specification does not change it."""
    packets = connections("rs-tcp-open-rejected")[connection]
    served = Served()
    served.feed(packets[0][1])
    theirs = decode_packet(packets[1][1], strict=False).metadata
    assert served.sent[0].metadata.session_error_code == code  # type: ignore[attr-defined]  # the ack
    assert theirs.session_error_code == code  # type: ignore[attr-defined]  # the recorded ack


class Dialled:
    """Our client machine, made to do what the recorded client did."""

    def __init__(self, dialect: Dialect) -> None:
        self.machine = Connection(Side.CLIENT, now=0.0, schemas=builtin_registry(), strict=False, dialect=dialect)
        self.events: list[Event] = []

    def act(self, packet: Packet) -> None:
        machine, metadata, header = self.machine, packet.metadata, packet.header
        session = machine.sessions.get(header.session_id)
        content = packet.content
        opaque = bytes(content.opaque) if isinstance(content, ControlBody) else b""
        if isinstance(metadata, ClientHello):
            machine.send_hello(metadata, bytes(packet.body))
        elif isinstance(metadata, SessionOpen):
            machine.open_session(metadata, resume_token=b"T" * metadata.resume_token_bytes)
        elif isinstance(metadata, TransportProbe):
            machine.send_probe(metadata.probe_id, opaque, client_send_ts_us=metadata.client_send_ts_us)
        elif isinstance(metadata, SessionMigrate):
            machine.migrate_session(header.session_id, metadata, opaque)
            if session is None:
                machine.install(header.session_id, SessionTerms(max_in_flight_operations=4))
        elif packet.kind is _M.PING:
            machine.send_ping(0.0, trace_id=header.trace_id, session_id=header.session_id)
        elif packet.kind is _M.CLOSE:
            machine.close(0.0, opaque.decode())
        elif isinstance(metadata, FlowUpdate):
            machine.update_credit(0.0, session=session, credit=1)
        else:
            assert session is not None
            self._act_in(session, packet, opaque)
        machine.messages()

    def _act_in(self, session: Any, packet: Packet, opaque: bytes) -> None:
        machine, metadata, frame = self.machine, packet.metadata, packet.header.frame_id
        if packet.kind is _M.FRAME_SUBMIT:
            session.accept(0.0, frame)  # the recorded client does not keep to rising frame ids, which ours would
        elif packet.kind is _M.FRAME_CANCEL:
            machine.cancel(session, operation_id=frame)
        elif isinstance(metadata, SessionPatch):
            machine.patch_session(session, metadata, opaque)
        elif isinstance(metadata, SessionClose):
            machine.close_session(session, 0.0, policy=metadata.in_flight_policy)
        elif isinstance(metadata, CachePut):
            machine.put_object(session, metadata, b"object")
        elif isinstance(metadata, CacheInvalidate):
            machine.invalidate_objects(session, metadata)
        else:
            raise AssertionError(f"no way to do {packet.kind.name}")


@pytest.mark.parametrize("name", [each for each in PREVIEW3 if not each.startswith("cross-")])
def test_recorded_servers_are_understood(name: str) -> None:
    """Every answer of a real server is legal for our tolerant client machine at the moment it came."""
    dialect = Dialect.BARE if name.startswith("rs-") else Dialect.IMPLICIT
    for number, packets in connections(name).items():
        dialled = Dialled(dialect)
        for direction, data in packets:
            if direction == "c2s":
                dialled.act(decode_packet(data, strict=False))
            else:
                dialled.events.append(dialled.machine.receive_raw(RawPacket(data), 0.0))
        assert dialled.machine.counters.violations == 0, (name, number)
        final = [each for each in dialled.events if isinstance(each, ResultReceived)]
        assert all(each.delivery is not Delivery.LATE for each in final)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("py-tcp-tensor-dense", HelloAccepted),
        ("rs-tcp-open-rejected", SessionRefused),
        ("rs-tcp-open-token-result-close", SessionOpened),
        ("rs-tcp-flow-update", FlowReceived),
        ("py-tcp-cancel-cache-patch-hint-error-close", ErrorReceived),
    ],
)
def test_a_recorded_answer_gives_its_event(name: str, kind: type[Event]) -> None:
    dialled = Dialled(Dialect.BARE if name.startswith("rs-") else Dialect.IMPLICIT)
    for direction, data in connections(name)[0]:
        if direction == "c2s":
            dialled.act(decode_packet(data, strict=False))
        else:
            dialled.events.append(dialled.machine.receive_raw(RawPacket(data), 0.0))
    assert any(isinstance(each, kind) for each in dialled.events)


def test_a_strict_client_refuses_what_a_tolerant_one_clamps() -> None:
    """Captures fact 9: nnrp-py's server acks payload kinds that were not offered (nnrp-wire 18 item 34)."""
    offer, answer = (data for _, data in connections("py-tcp-tensor-dense")[0][:2])
    strict = Connection(Side.CLIENT, now=0.0, schemas=builtin_registry(), dialect=Dialect.IMPLICIT)
    packet = decode_packet(offer, strict=False)
    assert isinstance(packet.metadata, ClientHello)
    strict.send_hello(packet.metadata, bytes(packet.body))
    with pytest.raises(NnrpError) as caught:
        strict.receive_raw(RawPacket(answer), 0.0)
    assert caught.value.code in (ErrorCode.UNSUPPORTED_CAPABILITY, ErrorCode.MALFORMED_BODY)
    assert strict.closed
