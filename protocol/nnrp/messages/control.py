"""Connection control: CLOSE, ERROR, probing, migration, PING and PONG (nnrp-wire 7.5, 7.6, 7.18 – 7.20)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from protocol.layout import Check, Reserved, u32, u64
from protocol.layout_codec import layout
from protocol.nnrp.enums import ErrorScope, MessageType, TransportId
from protocol.nnrp.record import Message

__all__ = [
    "Close",
    "Error",
    "Ping",
    "Pong",
    "SessionMigrate",
    "SessionMigrateAck",
    "TransportProbe",
    "TransportProbeAck",
]


@layout("CLOSE", "7.5", "[seed][rs3]")
class Close(Message, frozen=True, gc=False):
    """Closes the connection, never one session. Body: empty, UTF-8 text or control extensions; any is accepted."""

    TYPE: ClassVar[MessageType] = MessageType.CLOSE


@layout("ERROR", "7.6", "[rs3=py3]")
class Error(Message, frozen=True, gc=False):
    """Reports a fault. Body: diagnostic text, then control extensions."""

    TYPE: ClassVar[MessageType] = MessageType.ERROR
    CHECKS: ClassVar[tuple[Check, ...]] = (Check("is_fatal", "is_fatal in (0, 1)", "is_fatal must be 0 or 1"),)

    error_code: Annotated[int, u32, "section 12.9 or a family code"] = 0
    error_scope: Annotated[ErrorScope, u32] = ErrorScope.CONNECTION
    is_fatal: Annotated[int, u32, "0 or 1"] = 0
    retry_after_ms: Annotated[int, u32] = 0
    related_session_id: Annotated[int, u32] = 0
    related_frame_id: Annotated[int, u32] = 0
    related_view_id: Annotated[int, u32] = 0
    diagnostic_bytes: Annotated[int, u32, "leading body bytes that are UTF-8 text"] = 0


@layout("TRANSPORT_PROBE", "7.18", "[rs3=py3]")
class TransportProbe(Message, frozen=True, gc=False):
    """Measures one candidate transport. Body: padding of probe_payload_bytes."""

    TYPE: ClassVar[MessageType] = MessageType.TRANSPORT_PROBE

    probe_id: Annotated[int, u32, "client chosen"] = 0
    probe_payload_bytes: Annotated[int, u32, "= body_len"] = 0
    client_send_ts_us: Annotated[int, u64, "client clock"] = 0


@layout("TRANSPORT_PROBE_ACK", "7.18", "[rs3=py3]")
class TransportProbeAck(Message, frozen=True, gc=False):
    """Answers a probe; the body is sent empty and accepted whatever it holds."""

    TYPE: ClassVar[MessageType] = MessageType.TRANSPORT_PROBE_ACK

    probe_id: Annotated[int, u32, "echo; mismatch = failed sample"] = 0
    reserved0: ClassVar[Reserved] = Reserved(u32)
    server_recv_ts_us: Annotated[int, u64, "server clock, not comparable with the client's"] = 0


@layout("SESSION_MIGRATE", "7.19", "[rs3=py3]")
class SessionMigrate(Message, frozen=True, gc=False):
    """Moves a session to another transport. Body: opaque."""

    TYPE: ClassVar[MessageType] = MessageType.SESSION_MIGRATE
    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check("old_transport_id", "old_transport_id != 0", "old_transport_id must be named"),
        Check("new_transport_id", "new_transport_id != 0", "new_transport_id must be named"),
        Check("new_transport_id", "new_transport_id != old_transport_id", "old and new transport must differ"),
    )

    old_transport_id: Annotated[TransportId, u32, "0 is refused"] = TransportId.UNSPECIFIED
    new_transport_id: Annotated[TransportId, u32, "0 is refused; differs from old"] = TransportId.UNSPECIFIED
    last_result_frame_id: Annotated[int, u64, "last frame whose result arrived"] = 0
    client_migrate_ts_us: Annotated[int, u64] = 0


@layout("SESSION_MIGRATE_ACK", "7.19", "[rs3=py3]")
class SessionMigrateAck(Message, frozen=True, gc=False):
    """Answers a migration. Body: opaque."""

    TYPE: ClassVar[MessageType] = MessageType.SESSION_MIGRATE_ACK

    accept_code: Annotated[int, u32, "0 accepted; else a rejection reason (unregistered)"] = 0
    resume_from_frame_id: Annotated[int, u64, "≥ request.last_result_frame_id"] = 0
    grace_window_ms: Annotated[int, u32, "how long the old path still delivers"] = 0
    server_migrate_ts_us: Annotated[int, u64] = 0


@layout("PING", "7.20", "[rs3][seed]")
class Ping(Message, frozen=True, gc=False):
    """Empty. Its session_id, route_id and trace_id come back in the PONG."""

    TYPE: ClassVar[MessageType] = MessageType.PING


@layout("PONG", "7.20", "[rs3][seed]")
class Pong(Message, frozen=True, gc=False):
    """Empty; copies session_id, route_id and trace_id of the PING."""

    TYPE: ClassVar[MessageType] = MessageType.PONG
