"""The negative vectors that need a history: what comes before is accepted, the last one has its outcome (nnrp-wire 20)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.nnrp.catalogue import CATALOGUE
from protocol.nnrp.descriptors import SchemaDescriptor, TypedPayloadDescriptor
from protocol.nnrp.enums import DescriptorFlags, MessageType
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.machines.connection import Connection, Side
from protocol.nnrp.machines.credit import Applied
from protocol.nnrp.machines.events import FlowReceived
from protocol.nnrp.machines.hello import HelloPolicy
from protocol.nnrp.machines.opening import OpenDecision, terms_of_answer
from protocol.nnrp.machines.schemas import Schema, SchemaBinding, SchemaRegistry, builtin_registry
from protocol.nnrp.messages import (
    ClientHello,
    SessionMigrate,
    SessionOpen,
    SessionOpenAck,
)
from protocol.nnrp.packet import Packet, RawPacket, decode_packet, encode_packet
from protocol.registry import Direction
from tests.protocol.nnrp.machines.duo import HELLO
from tests.protocol.nnrp.test_nnrp_vectors import STATEFUL as LEFT_TO_THE_MACHINES
from tests.protocol.nnrp.vectors import NEGATIVE

STATEFUL = [each for each in NEGATIVE if each["kind"] == "packet" and ("after" in each or "context" in each)]
HELLOS = [each for each in NEGATIVE if each["name"] == "reject.hello_unknown_critical_extension"]
SCHEMAS = [each for each in NEGATIVE if each["outcome"].startswith("Schema")]


def side_for(vector: dict[str, Any]) -> Side:
    """Who receives the last packet."""
    kind = decode_packet(bytes.fromhex(vector["hex"]), strict=False).kind
    return Side.CLIENT if CATALOGUE[kind].direction is Direction.TO_CLIENT else Side.SERVER


def ready(side: Side, first: MessageType | None) -> Connection:
    """A fresh connection; a message that is no first packet needs the hello before it, which the vectors leave out."""
    machine = Connection(side, now=0.0, schemas=builtin_registry())
    opens = (MessageType.CLIENT_HELLO, MessageType.SESSION_OPEN, MessageType.SESSION_MIGRATE, None)
    if first not in opens:
        machine.receive(decode_packet(hello_bytes()), 0.0)
        machine.accept_hello(HelloPolicy())
    return machine


def hello_bytes() -> bytes:
    return encode_packet(HELLO)


def replay(machine: Connection, packet: Packet) -> None:
    """Take the packet in, or do what its sender did, when the sender is us."""
    direction = CATALOGUE[packet.kind].direction
    incoming = Direction.TO_SERVER if machine.side is Side.SERVER else Direction.TO_CLIENT
    metadata = packet.metadata
    if direction in (incoming, Direction.BOTH):
        if packet.kind is not MessageType.SESSION_CLOSE_ACK:  # the machine has sent it by itself
            machine.receive(packet, 0.0)
    elif isinstance(metadata, ClientHello):
        machine.send_hello(metadata)
    elif isinstance(metadata, SessionOpen):
        machine.open_session(metadata)
    elif isinstance(metadata, SessionMigrate):
        machine.migrate_session(packet.header.session_id, metadata)
    elif isinstance(metadata, SessionOpenAck):
        request, _ = machine._opens[0]
        machine.answer_open(
            OpenDecision(metadata.session_status, metadata.session_id, terms_of_answer(request, metadata, 0))
        )
    else:
        raise AssertionError(f"nobody sends {packet.kind.name} here")


@pytest.mark.parametrize("vector", STATEFUL, ids=lambda each: each["name"])
def test_a_vector_with_a_history(vector: dict[str, Any]) -> None:
    history = [decode_packet(bytes.fromhex(each), strict=False) for each in vector.get("after", ())]
    first = history[0].kind if history else None
    side = side_for(vector)
    machine = ready(side, first)
    for packet in history:
        replay(machine, packet)
    assert machine.counters.violations == 0
    raw = RawPacket(bytes.fromhex(vector["hex"]))
    if vector["outcome"] == "StaleEpoch":
        event = machine.receive_raw(raw, 0.0)
        assert isinstance(event, FlowReceived)
        assert event.applied is Applied.STALE
        assert machine.reverse is not None
        assert machine.reverse.epoch == 5
        return
    with pytest.raises(NnrpError) as caught:
        machine.receive_raw(raw, 0.0)
    assert caught.value.outcome.value == vector["outcome"]
    assert caught.value.code == vector["error_code"]


def test_the_hello_vector_with_an_unknown_critical_extension() -> None:
    """nnrp-wire 15: unsupported_capability, fatal in a hello."""
    (vector,) = HELLOS
    machine = Connection(Side.SERVER, now=0.0, schemas=builtin_registry())
    with pytest.raises(NnrpError) as caught:
        machine.receive_raw(RawPacket(bytes.fromhex(vector["hex"])), 0.0)
    assert caught.value.code == vector["error_code"]
    assert machine.closed


def installed(registry: SchemaRegistry, data: bytes) -> None:
    header = SchemaDescriptor.decode(data)
    registry.install(
        Schema(
            header.schema_id,
            header.schema_version,
            header.profile_id,
            header.schema_hash,
            int(header.schema_flags),
            header.min_version_major,
            header.max_version_major,
            header.default_stream_semantics,
            header.dependency_count,
        )
    )


def bound(registry: SchemaRegistry, data: bytes) -> None:
    found = TypedPayloadDescriptor.decode(data)
    override = bool(found.descriptor_flags & DescriptorFlags.SCHEMA_OVERRIDE)
    registry.bind(found.profile_id, found.schema_id, found.schema_version, override=override, session=SchemaBinding())


@pytest.mark.parametrize("vector", SCHEMAS, ids=lambda each: each["name"])
def test_a_schema_vector(vector: dict[str, Any]) -> None:
    """nnrp-wire 11.3, 11.4."""
    registry = SchemaRegistry()
    for each in vector.get("after", ()):
        installed(registry, bytes.fromhex(each))
    data = bytes.fromhex(vector["hex"])
    check = installed if vector["message"] == "SCHEMA_DESCRIPTOR" else bound
    with pytest.raises(NnrpError) as caught:
        check(registry, data)
    assert caught.value.outcome.value == vector["outcome"]
    assert caught.value.code == vector["error_code"]


def test_what_the_codec_leaves_to_the_machines_is_here() -> None:
    assert {each["name"] for each in (*STATEFUL, *SCHEMAS)} == LEFT_TO_THE_MACHINES
