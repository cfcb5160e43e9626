"""The schemas under which an agent's events travel (nnrp-extensions, Token chunks: a schema of their own, installed as in
nnrp-wire 11.3). They are ours, and claim no standard number."""

from __future__ import annotations

from typing import Final

from protocol.nnrp.descriptors import SchemaDescriptor
from protocol.nnrp.enums import ObjectKind, ProfileId, SchemaFlags, StreamSemantics
from protocol.nnrp.machines.terms import SessionTerms
from protocol.nnrp.messages import CachePut
from protocol.nnrp.payloads import SchemaObject, schema_hash

__all__ = ["AGENT_EVENT", "AGENT_SCHEMAS", "AGENT_TOOL", "announcements", "carries_agent_schemas"]

_BODY: Final = (
    b'{"type":"object","required":["id","v","type","data"],"properties":{'
    b'"id":{"type":"integer"},"v":{"const":1},"type":{"type":"string"},"data":{}}}'
)
"""What both are: one event as the REST wire shows it, in JSON Schema."""


def _header(schema_id: int, semantics: StreamSemantics) -> SchemaDescriptor:
    # Not cacheable: no lease, it lives as long as the session (11.2).
    return SchemaDescriptor(
        schema_id,
        1,
        ProfileId.TOKEN,
        SchemaFlags.HASH_STABLE,
        body_bytes=len(_BODY),
        default_stream_semantics=semantics,
        schema_hash=schema_hash(_BODY),
    )


AGENT_EVENT: Final = _header(0x4D4F_0001, StreamSemantics.EVENT)
"""Plans, usage, questions and whatever else happens: payload kind structured_event."""
AGENT_TOOL: Final = _header(0x4D4F_0002, StreamSemantics.TOOL_UPDATE)
"""Tool calls and their updates: payload kind tool_delta."""
AGENT_SCHEMAS: Final = {ObjectKind.STRUCTURED_EVENT_SCHEMA: AGENT_EVENT, ObjectKind.TOOL_SCHEMA: AGENT_TOOL}


def carries_agent_schemas(terms: SessionTerms) -> bool:
    """Whether a session may have schemas installed at its client, and payloads of them besides its default: it was granted
    operation_extensions, leases and schema override."""
    return bool(terms.features) and terms.leases_enabled and terms.binding.override_enabled


def announcements() -> list[tuple[CachePut, bytes]]:
    """What installs them at a peer."""
    return [
        (CachePut(0, header.schema_id, header.schema_version, kind), SchemaObject(header, _BODY).pack())
        for kind, header in AGENT_SCHEMAS.items()
    ]
