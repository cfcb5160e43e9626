"""Bus events and notices as ``/acp`` messages (acp-http section 7), and messages as what a transport sends.

Event data is JSON on one line already, so a frame is made by joining bytes, at most once per event and transport, and
shared by every reader (`Ring.form`). Permission requests carry an id of the connection and are made per connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from protocol.acp import META_KEY, QWEN_META_KEY, QWEN_NOTIFY
from protocol.jsonrpc import encode_notification, encode_request
from protocol.sse import acp_frame
from sessions import Event, EventType, Notice, NoticeType, Ring

__all__ = ["SSE", "Wire", "event_message", "notice_message", "permission_message", "socket_wire", "stream_error"]

_UPDATE: Final = b'{"jsonrpc":"2.0","method":"session/update","params":'
_NOTIFY: Final = b'{"jsonrpc":"2.0","method":"' + QWEN_NOTIFY.encode() + b'","params":{"kind":'
_encode = msgspec.json.Encoder().encode


def event_message(event: Event) -> bytes:
    """The message for a published event other than a permission request. One line, whatever the agent wrote."""
    data = event.data
    if b"\n" in data or b"\r" in data:
        # Line ends between the tokens of an agent's own JSON would end the frame early (C-044).
        data = _encode(event.value())
    if event.type == EventType.SESSION_UPDATE:
        return b"%b%b}" % (_UPDATE, data)
    return b'%b%b,"data":%b}}' % (_NOTIFY, _encode(str(event.type)), data)


def notice_message(notice: Notice, session_id: str | None = None) -> bytes:
    """The message for a synthetic frame (ACP-020). ``session_id`` says under our own key whose it is (ACP-199)."""
    params: dict[str, Any] = {"kind": notice.type, "data": notice.data}
    if notice.type is NoticeType.STREAM_ERROR:
        params = {**notice.data, "kind": notice.type}
    if session_id is not None:
        params["_meta"] = {META_KEY: {"sessionId": session_id}}
    return encode_notification(QWEN_NOTIFY, params)


def stream_error(text: str) -> Notice:
    """ACP-183."""
    return Notice(NoticeType.STREAM_ERROR, {"error": text})


def permission_message(data: Mapping[str, Any], outbound_id: str) -> bytes:
    """``session/request_permission`` from the data of a ``permission_request`` event (ACP-172)."""
    request_id = data["requestId"]
    meta = data.get("_meta")
    params = {
        "sessionId": data["sessionId"],
        "toolCall": data["toolCall"],
        "options": data["options"],
        "_meta": {
            **(meta if isinstance(meta, Mapping) else {}),
            "requestId": request_id,
            QWEN_META_KEY: {"requestId": request_id},
        },
    }
    return encode_request(outbound_id, "session/request_permission", params)


class Wire(Protocol):
    """How one transport writes messages."""

    def event(self, ring: Ring, event: Event) -> bytes | None:
        """A published event; None for one that this transport does not show."""
        ...

    def unshared(self, event: Event) -> bytes | None:
        """The same, made anew: for events that are not the ring's own."""
        ...

    def numbered(self, message: bytes, event_id: int) -> bytes:
        """A message made from an event for one connection only."""
        ...

    def notice(self, notice: Notice, session_id: str) -> bytes:
        """A synthetic message about a session's stream: no id (ACP-095)."""
        ...

    def plain(self, message: bytes) -> bytes:
        """A reply, or another message that is no event: no id (ACP-095)."""
        ...


class _Sse:
    def event(self, ring: Ring, event: Event) -> bytes | None:
        if event.type == EventType.OPERATION_STATE:
            return None
        return ring.form(event, "acp.sse", _sse_form)

    def unshared(self, event: Event) -> bytes | None:
        return None if event.type == EventType.OPERATION_STATE else _sse_form(event)

    def numbered(self, message: bytes, event_id: int) -> bytes:
        return acp_frame(message, event_id)

    def notice(self, notice: Notice, session_id: str) -> bytes:
        return acp_frame(notice_message(notice))

    def plain(self, message: bytes) -> bytes:
        return acp_frame(message)


class _Socket:
    """One message per text frame, without ids (ACP-231).

    A client that resumes counts what it gets, so it is shown every event, also the kind others are spared. And since one
    socket carries all its sessions, it is told which of them a synthetic message is about.
    """

    def __init__(self, complete: bool) -> None:
        self._complete = complete

    def event(self, ring: Ring, event: Event) -> bytes | None:
        if event.type == EventType.OPERATION_STATE and not self._complete:
            return None
        return ring.form(event, "acp.message", event_message)

    def unshared(self, event: Event) -> bytes | None:
        return None if event.type == EventType.OPERATION_STATE and not self._complete else event_message(event)

    def numbered(self, message: bytes, event_id: int) -> bytes:
        return message

    def notice(self, notice: Notice, session_id: str) -> bytes:
        return notice_message(notice, session_id if self._complete else None)

    def plain(self, message: bytes) -> bytes:
        return message


def _sse_form(event: Event) -> bytes:
    return acp_frame(event_message(event), event.id)


SSE: Final[Wire] = _Sse()
_PLAIN_SOCKET: Final = _Socket(complete=False)
_COUNTED_SOCKET: Final = _Socket(complete=True)


def socket_wire(resumable: bool) -> Wire:
    """The wire of a WebSocket; ``resumable`` when its client asked to be able to resume."""
    return _COUNTED_SOCKET if resumable else _PLAIN_SOCKET
