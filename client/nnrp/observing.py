"""What a client logs of what the server says (nnrp-wire 14): at level debug, one line for each message that has something to tell."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import Final

from protocol.nnrp.enums import MessageType
from protocol.nnrp.machines import events

__all__ = ["logged"]

logger = logging.getLogger("moorline.client")

_KEY: Final = ("cache_namespace", "cache_key_hi", "cache_key_lo")
_FIELDS: Final[dict[MessageType, tuple[str, ...]]] = {
    MessageType.SESSION_OPEN_ACK: (
        "session_status",
        "session_error_code",
        "server_session_tag",
        "route_scope_id",
        "resume_window_ms",
        "lease_ttl_ms",
    ),
    MessageType.SESSION_CLOSE: ("close_reason", "last_operation_id", "session_error_code", "session_close_tag"),
    MessageType.SESSION_CLOSE_ACK: ("close_status", "last_operation_id", "session_error_code"),
    MessageType.RESULT_PUSH: (
        "result_class",
        "queue_ms",
        "inference_ms",
        "server_total_ms",
        "applied_budget_policy",
        "reused_frame_id",
        "covered_tile_count",
        "dropped_tile_count",
    ),
    MessageType.RESULT_DROP: (),
    MessageType.RESULT_HINT: ("applied_budget_policy", "congestion_state", "reason", "retry_after_ms"),
    MessageType.FLOW_UPDATE: (
        "scope_kind",
        "operation_id",
        "update_reason",
        "backpressure_level",
        "credit_epoch",
        "retry_after_ms",
    ),
    MessageType.CACHE_ACK: (*_KEY, "status", "detail_code", "accepted_ttl_ms"),
    MessageType.CACHE_INVALIDATE: (*_KEY, "invalidate_scope", "reason_code"),
    MessageType.ERROR: ("error_code", "error_scope", "is_fatal", "retry_after_ms", "related_frame_id"),
    MessageType.SESSION_MIGRATE_ACK: (
        "accept_code",
        "resume_from_frame_id",
        "grace_window_ms",
        "server_migrate_ts_us",
    ),
    MessageType.TRANSPORT_PROBE_ACK: ("probe_id", "server_recv_ts_us"),
}


def logged(act: Callable[[events.Event], None]) -> Callable[[events.Event], None]:
    """``act``, with a line in the log before it. What is logged is decided here, once for each connection: where nobody listens,
    ``act`` itself is what comes back, and no message pays for it."""
    if not logger.isEnabledFor(logging.DEBUG):
        return act

    def log_and_act(event: events.Event) -> None:
        _log(event)
        act(event)

    return log_and_act


def _log(event: events.Event) -> None:
    packet = None if isinstance(event, (events.RetryDue, events.CancelReceived)) else event.packet
    if packet is None or packet.kind not in _FIELDS:
        return
    header, message = packet.header, packet.metadata
    facts: dict[str, object] = {
        "session": header.session_id,
        "frame": header.frame_id,
        "route": header.route_id,
        "trace": header.trace_id,
    }
    facts |= {name: getattr(message, name) for name in _FIELDS[packet.kind]}
    if isinstance(event, events.SessionOpened):
        facts["client_session_tag"] = event.session.terms.client_session_tag
    elif isinstance(event, events.FlowReceived):
        facts["applied"] = event.applied
    elif isinstance(event, (events.ResultReceived, events.BackgroundReceived)):
        facts["operation_state"] = event.state
    elif isinstance(event, events.DropReceived):
        facts["operation_state"] = event.operation.state
    words = (f"{name}={_word(value)}" for name, value in facts.items())
    logger.debug("nnrp_%s %s", packet.kind.name.lower(), " ".join(words))


def _word(value: object) -> str:
    return (value.name or "none").lower() if isinstance(value, Enum) else str(value)
