"""A message a machine wants sent, and the ERROR for a fault (nnrp-wire 15)."""

from __future__ import annotations

import msgspec

from protocol.nnrp.enums import ErrorScope, HeaderFlags, MessageType, SessionStatus
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.header import Header
from protocol.nnrp.messages import Error, Message, SessionOpenAck
from protocol.nnrp.packet import encode_built, encode_packet

__all__ = ["DIAGNOSTIC_BYTES", "Outgoing", "to_wire_error"]

#: Longest diagnostic text sent with an ERROR. It is for humans, and quotes what the peer sent.
DIAGNOSTIC_BYTES = 512

_NO_FLAGS = HeaderFlags(0)
_SESSION_FAMILY = 0x0001


class Outgoing(msgspec.Struct, frozen=True):
    """One message to send, with its header ids and its body."""

    message: Message
    session_id: int = 0
    frame_id: int = 0
    view_id: int = 0
    route_id: int = 0
    trace_id: int = 0
    flags: HeaderFlags = _NO_FLAGS
    body: bytes = b""
    strict: bool = True
    """False for an answer in the shape of what it answers, which a tolerant end has accepted."""
    built: bool = False
    """The body was made by the machine, and its lengths counted: there is nothing to find out about it."""

    def encode(self, *, strict: bool = True) -> bytes:
        """The packet. Raises NnrpLocalError when the message is illegal."""
        if self.built and strict:
            return encode_built(
                self.message, self.body, self.session_id, self.frame_id, self.view_id, self.route_id, self.trace_id
            )
        return encode_packet(
            self.message,
            self.body,
            session_id=self.session_id,
            frame_id=self.frame_id,
            view_id=self.view_id,
            route_id=self.route_id,
            trace_id=self.trace_id,
            flags=self.flags,
            strict=strict and self.strict,
        )


def to_wire_error(error: NnrpError, header: Header | None = None, *, retry_after_ms: int = 0) -> Outgoing | None:
    """The message that reports ``error`` about the packet with ``header``; None when it is to be dropped silently.

    Codes of the session family answer a SESSION_OPEN: they become a SESSION_OPEN_ACK, rejected. Everything else is an
    ERROR whose scope and fatality the error carries.
    """
    if not error.code:
        return None
    route_id, trace_id = (0, 0) if header is None else (header.route_id, header.trace_id)
    if error.code >> 16 == _SESSION_FAMILY and header is not None and header.msg_type is MessageType.SESSION_OPEN:
        refusal = SessionOpenAck(session_status=SessionStatus.REJECTED, session_error_code=error.code)
        return Outgoing(refusal, route_id=route_id, trace_id=trace_id)
    text = str(error).encode("utf-8")[:DIAGNOSTIC_BYTES].decode("utf-8", "ignore").encode("utf-8")
    session_id = error.session_id or (header.session_id if header is not None else 0)
    frame_id = error.frame_id or (header.frame_id if header is not None else 0)
    if error.scope is not ErrorScope.FRAME:
        frame_id = 0
    message = Error(
        error_code=error.code,
        error_scope=error.scope,
        is_fatal=int(error.fatal),
        retry_after_ms=retry_after_ms,
        related_session_id=session_id,
        related_frame_id=frame_id,
        related_view_id=header.view_id if header is not None and error.scope is ErrorScope.FRAME else 0,
        diagnostic_bytes=len(text),
    )
    return Outgoing(
        message,
        session_id=0 if error.scope is ErrorScope.CONNECTION else session_id,
        frame_id=frame_id,
        route_id=route_id,
        trace_id=trace_id,
        body=text,
    )
