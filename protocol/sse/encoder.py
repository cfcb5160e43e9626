"""Event-stream frames as bytes (ACP-091 to ACP-093, REST-084).

Payloads are JSON already encoded by msgspec, which escapes every control character, so a frame has one ``data:`` line.
The check below is for the day somebody passes something else: agent text must never be able to forge a frame (C-044).
"""

from __future__ import annotations

__all__ = ["acp_frame", "comment_frame", "rest_frame", "retry_frame"]


def acp_frame(data: bytes, event_id: int | None = None) -> bytes:
    """One frame of an ``/acp`` stream: ``id`` (bus frames only), ``data``, blank line.

    Raises ``ValueError`` if ``data`` contains a line end.
    """
    _require_one_line(data)
    if event_id is None:
        return b"data: %b\n\n" % data
    return b"id: %d\ndata: %b\n\n" % (event_id, data)


def rest_frame(data: bytes, event: str, event_id: int | None = None) -> bytes:
    """One frame of the REST stream: ``id`` (unless synthetic), ``event``, ``data``, blank line.

    Raises ``ValueError`` if ``data`` or ``event`` contains a line end.
    """
    _require_one_line(data)
    name = event.encode("utf-8", "replace")
    _require_one_line(name)
    if event_id is None:
        return b"event: %b\ndata: %b\n\n" % (name, data)
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event_id, name, data)


def comment_frame(text: str) -> bytes:
    """A comment block, the heartbeat of both streams (``hb`` on ``/acp``, ``heartbeat`` on REST)."""
    line = text.encode("utf-8", "replace")
    _require_one_line(line)
    return b": %b\n\n" % line


def retry_frame(milliseconds: int) -> bytes:
    """The reconnect hint that opens every stream, in milliseconds."""
    if milliseconds < 0:
        raise ValueError("retry is a number of milliseconds, not negative")
    return b"retry: %d\n\n" % milliseconds


def _require_one_line(data: bytes) -> None:
    if b"\n" in data or b"\r" in data:
        raise ValueError("an event-stream field must not contain a line end")
