"""What a session was opened with: the agreed fields of SESSION_OPEN_ACK, or of a hello for an implicit session."""

from __future__ import annotations

import attrs

from protocol.nnrp.enums import OperationFeatures, PriorityClass, SessionFlagsAck
from protocol.nnrp.machines.schemas import SchemaBinding

__all__ = ["SessionTerms"]

_SUBMIT_CONTEXT = int(OperationFeatures.SUBMIT_CONTEXT)


@attrs.frozen(slots=True)
class SessionTerms:
    """Fixed for the session's life on one connection. Times are in milliseconds as on the wire."""

    profile_id: int = 0
    schema_id: int = 0
    schema_version: int = 0
    priority: PriorityClass = PriorityClass.BALANCED
    flags: int = 0
    """Bits of session_flags_ack."""
    default_deadline_ms: int = 0
    granted_operation_credit: int = 0
    max_in_flight_operations: int = 0
    lease_ttl_ms: int = 0
    resume_window_ms: int = 0
    features: int = 0
    """Bits of operation_extensions that were granted."""
    client_session_tag: int = 0
    server_session_tag: int = 0
    route_scope_id: int = 0
    implicit: bool = False
    """Opened by the first submit after a hello, without SESSION_OPEN (nnrp-wire 13.2)."""

    @property
    def resume_enabled(self) -> bool:
        return bool(self.flags & int(SessionFlagsAck.RESUME_ENABLED))

    @property
    def leases_enabled(self) -> bool:
        return bool(self.flags & int(SessionFlagsAck.CACHE_LEASES_ENABLED))

    @property
    def tree(self) -> bool:
        """Whether submits name their operation and its place in the tree (submit_context was granted)."""
        return self.features & _SUBMIT_CONTEXT != 0

    def grants(self, feature: OperationFeatures) -> bool:
        return bool(self.features & int(feature))

    @property
    def binding(self) -> SchemaBinding:
        return SchemaBinding(
            self.profile_id,
            self.schema_id,
            self.schema_version,
            bool(self.flags & int(SessionFlagsAck.SCHEMA_OVERRIDE_ENABLED)),
        )
