"""Server-sent events: frames to bytes, bytes to events, and the cursor rules both wires share."""

from protocol.sse.cursor import MAX_EVENT_ID, parse_epoch, parse_last_event_id, sanitise_for_log
from protocol.sse.decoder import DEFAULT_EVENT_LIMIT, SseDecoder, SseEvent, SseFramingError
from protocol.sse.encoder import acp_frame, comment_frame, rest_frame, retry_frame

__all__ = [
    "DEFAULT_EVENT_LIMIT",
    "MAX_EVENT_ID",
    "SseDecoder",
    "SseEvent",
    "SseFramingError",
    "acp_frame",
    "comment_frame",
    "parse_epoch",
    "parse_last_event_id",
    "rest_frame",
    "retry_frame",
    "sanitise_for_log",
]
