"""Layer 2: what the public API shows of payloads, results and schema errors. Where it takes a session that runs over a
transport to see it, the case is skipped with that reason."""

from __future__ import annotations

from protocol.nnrp.bodies import DataBody
from protocol.nnrp.descriptors import SchemaDescriptor
from protocol.nnrp.enums import (
    CacheAckStatus,
    DescriptorFlags,
    ErrorScope,
    ObjectKind,
    OperationState,
    PayloadKind,
    SchemaErrorCode,
    SchemaFlags,
)
from protocol.nnrp.machines.events import CacheAnswered, ErrorReceived, ResultReceived, SubmitReceived
from protocol.nnrp.machines.schemas import ANCHOR, Schema, SchemaRegistry, builtin_registry
from protocol.nnrp.machines.session import Delivery
from protocol.nnrp.messages import CacheAck, CachePut, Error, FrameSubmit, ResultPush
from protocol.nnrp.regions import InlineObject, Regions, TypedPayload
from server.conformance.case import SKIPS, Evidence, case, expect, expect_code
from server.conformance.l1_data import PARTIAL, TOKEN, TOKEN_SUBMIT, token_body
from server.conformance.link import Link

__all__: list[str] = []

_TRANSPORT = "needs a transport: decided against a running server"
_CLIENT = (
    "needs a running session under both drive modes (async iterator and _nowait): decided against a running server"
)

SKIPS["l3.transport.quic.minimum"] = _TRANSPORT
SKIPS["l3.transport.tcp.minimum"] = _TRANSPORT
SKIPS["l2.payload.typed.callback_polling.descriptor_consistency.validation"] = _CLIENT
SKIPS["l2.profile.token.partial.callback_polling.validation"] = _CLIENT


@case("l2.payload.typed.buffer_ownership.relative_region.validation")
def relative_region(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, _ = link.open()
    payloads = token_body((b"a" * 5000, DescriptorFlags.PARTIAL), (b"b" * 3, DescriptorFlags.TERMINAL)).payloads
    body = Regions(payloads, (InlineObject(ObjectKind.PROMPT_SEGMENT, b"before the payloads"),))
    link.submit(mine, FrameSubmit(payload_kind_bitmap=TOKEN, payload_frame_count=2), body)
    content = link.server.last(SubmitReceived).packet.content
    expect(isinstance(content, DataBody) and len(content.payloads) == 2, "both payloads arrive")
    if isinstance(content, DataBody):
        places = [(each.descriptor.offset, each.descriptor.length) for each in content.payloads]  # type: ignore[union-attr]
        evidence.note(f"descriptors: {places}")
        expect(places == [(0, 5000), (5000, 3)], "offset and length are relative to the frame region")
        expect([len(each.data) for each in content.payloads] == [5000, 3], "each payload is exactly its range")
        first = content.payloads[0].data
        expect(isinstance(first, bytes) or (isinstance(first, memoryview) and first.readonly), "nobody can change it")


@case("l2.result_push.basic.event_pump.single_terminal.validation")
def single_terminal(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, theirs = link.open()
    running = [link.submit(mine, TOKEN_SUBMIT)[1] for _ in range(3)]
    for operation in reversed(running):
        for _ in range(2):
            link.server.machine.progress(theirs, operation, OperationState.PARTIAL)
            link.to_client(PARTIAL, session_id=mine.session_id, frame_id=operation.frame_id)
    for operation in (running[1], running[0], running[2]):
        link.finish(theirs, operation, OperationState.COMPLETED, ResultPush())
    events = [each for each in link.client.events if isinstance(each, ResultReceived)]
    for operation in running:
        own = [each.delivery for each in events if each.packet.header.frame_id == operation.frame_id]
        evidence.note(f"frame {operation.frame_id}: {own}")
        expect(own == [Delivery.PROGRESS, Delivery.PROGRESS, Delivery.FINAL], "partials in order, then one end")
    finals = [each.packet.header.frame_id for each in events if each.delivery is Delivery.FINAL]
    expect(finals == [2, 1, 3], "operations may end in another order than they began")


def submit_with_schema(link: Link, schema_id: int, version: int) -> Error | None:
    """Submit a payload of that schema; the ERROR the submitting end is told, None when it started."""
    (mine,) = link.client.machine.sessions.values()
    payload = TypedPayload.of(
        b"x", profile_id=2, schema_id=schema_id, schema_version=version, flags=DescriptorFlags.SCHEMA_OVERRIDE
    )
    before = len(link.client.events)
    metadata = FrameSubmit(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK, payload_frame_count=1)
    operation = link.client.machine.submit(mine, 0.0)
    link.to_server(metadata, Regions((payload,)), session_id=mine.session_id, frame_id=operation.frame_id)
    link.server.refusals.clear()
    errors = [each for each in link.client.events[before:] if isinstance(each, ErrorReceived)]
    if not errors:
        return None
    message = errors[0].packet.metadata
    expect(errors[0].operation is operation, "the error names the operation it ends")
    return message if isinstance(message, Error) else None


@case("l2.schema.registry.error_mapping.critical_unknown.validation")
def critical_unknown(evidence: Evidence) -> None:
    link = Link(evidence)
    _, theirs = link.open()
    for schema_id, version, code in (
        (0x7001, 1, SchemaErrorCode.SCHEMA_UNKNOWN),
        (ANCHOR.schema_id, 9, SchemaErrorCode.SCHEMA_VERSION_UNKNOWN),
    ):
        error = submit_with_schema(link, schema_id, version)
        evidence.note(str(error))
        expect(error is not None and error.error_code == code, f"schema {schema_id:#x} v{version}: {code.name.lower()}")
        expect(error is not None and error.error_scope is ErrorScope.FRAME, "at frame scope")
        expect(error is not None and not error.is_fatal, "and not fatal")
    expect(theirs.in_flight == 0, "no operation started")
    expect(submit_with_schema(link, *ANCHOR.key) is None, "the session stays usable")
    critical = Schema(0x7001, 1, 2, 5, int(SchemaFlags.CRITICAL), dependency_count=1, dependencies=((9, 9),))
    registry = SchemaRegistry(builtin_registry())
    expect_code(
        SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING, "a critical one lacks a dependency", registry.install, critical
    )


@case("l2.schema.registry.conflict_error_mapping.validation")
def conflict_mapping(evidence: Evidence) -> None:
    link = Link(evidence)
    mine, _ = link.open()
    codes = []
    for profile, digest in ((2, 5), (2, 6), (0xFFFF, 7)):
        header = SchemaDescriptor(0x2001, 1 if profile == 2 else 2, profile, schema_hash=digest)
        message = CachePut(0, 0x2001, header.schema_version, ObjectKind.TOOL_SCHEMA)
        link.client.machine.put_object(mine, message, header.pack())
        link.pump()
        ack = link.client.last(CacheAnswered).packet.metadata
        evidence.note(str(ack))
        expect(isinstance(ack, CacheAck), "every put is answered")
        if isinstance(ack, CacheAck):
            codes.append((ack.status, ack.detail_code))
    expect(
        codes
        == [
            (CacheAckStatus.ACCEPTED, 0),
            (CacheAckStatus.REJECTED, SchemaErrorCode.SCHEMA_HASH_CONFLICT),
            (CacheAckStatus.REJECTED, SchemaErrorCode.SCHEMA_UPDATE_REJECTED),
        ],
        "hash_conflict and update_rejected stay distinct",
    )
