"""The 40-byte common header (nnrp-wire 3)."""

from __future__ import annotations

from typing import Annotated, ClassVar, NoReturn

from protocol.errors import Reach
from protocol.layout import Check, Constant, Violation, named, raw4, u8, u16, u32, u64
from protocol.layout_codec import layout
from protocol.nnrp.enums import ErrorCode, HeaderFlags, MessageType
from protocol.nnrp.errors import NnrpError, Outcome, wire_code
from protocol.nnrp.record import Record

__all__ = ["HEADER_BYTES", "MAGIC", "MAX_META_BYTES", "Header"]

MAGIC = b"NNRP"
HEADER_BYTES = 40
MAX_META_BYTES = 4096
"""Largest metadata a receiver buffers (nnrp-wire 2.1 item 6); the longest defined message has 80 bytes."""
U32_MAX = 0xFFFF_FFFF


@layout("HEADER", "3", "[p1-doc][rs3][py3]", fold=8)
class Header(Record, frozen=True, gc=False):
    """What every packet starts with. Lengths are in bytes."""

    REACH: ClassVar[Reach] = Reach.CONNECTION
    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            "meta_len",
            f"meta_len + body_len <= {U32_MAX}",
            "meta_len + body_len must fit in u32",
            outcome="LengthOverflow",
        ),
    )

    magic: ClassVar[Constant] = Constant(raw4, MAGIC, "BadMagic")
    version_major: ClassVar[Constant] = Constant(u8, 1, "BadVersion")
    wire_format: ClassVar[Constant] = Constant(u8, 0, "BadWireFormat")
    msg_type: Annotated[MessageType, u8, named(MessageType, "UnknownMsgType"), "section 5"] = MessageType.PING
    header_len: ClassVar[Constant] = Constant(u8, HEADER_BYTES, "BadHeaderLen")
    flags: Annotated[HeaderFlags, u32, "section 3.1"] = HeaderFlags(0)
    meta_len: Annotated[int, u32, "bytes of metadata"] = 0
    body_len: Annotated[int, u32, "bytes of body"] = 0
    session_id: Annotated[int, u32, "scope rules 3.2"] = 0
    frame_id: Annotated[int, u32, "scope rules 3.2"] = 0
    view_id: Annotated[int, u16, "logical lane; 0 when no lane or non-frame message"] = 0
    route_id: Annotated[int, u16, "reserved for routing; any value accepted; echoed on replies"] = 0
    trace_id: Annotated[int, u64, "opaque correlation id; echoed on replies"] = 0

    @classmethod
    def fail(cls, violation: Violation) -> NoReturn:
        """A faulty header ends the connection: unsupported_version, limit_exceeded or malformed_header (15)."""
        outcome = Outcome(violation.outcome)
        known = wire_code(outcome)
        own = known in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.LIMIT_EXCEEDED)
        raise NnrpError(
            outcome,
            violation.rule,
            subject=violation.structure,
            field=violation.field,
            offset=violation.offset,
            code=known if own else ErrorCode.MALFORMED_HEADER,
            reach=Reach.CONNECTION,
        )
