"""Control extension blocks: type-length-value entries in control bodies (nnrp-wire 6, nnrp-extensions)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from protocol.errors import Reach
from protocol.layout import Buffer, Structure
from protocol.nnrp.descriptors import (
    ControlExtensionHeader,
    LossToleranceBlock,
    PayloadCapabilities,
    TransportPolicy,
    TransportPolicyAck,
)
from protocol.nnrp.enums import ExtFlags, ExtType, MessageType, OperationFeatures
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.vendor import (
    CancelScope,
    Dependency,
    LeaseInfo,
    ObjectMeta,
    OperationExtensions,
    OperationStateBlock,
    ResumeFrom,
)

__all__ = [
    "ALL_FEATURES",
    "MAX_ENTRIES",
    "NO_FEATURES",
    "ControlExtension",
    "ObjectMetaEntry",
    "find_extension",
    "pack_extensions",
    "parse_extensions",
]

NO_FEATURES = OperationFeatures(0)
ALL_FEATURES = OperationFeatures(0x1F)

MAX_ENTRIES = 0xFFFF
"""Most entries of one kind in one body. payload_frame_count cannot declare more payloads; extensions, objects and
references have no count of their own, and millions of them in one large body would cost many times its size."""

_HEADER = ControlExtensionHeader.SIZE
_BLOCK = "CONTROL_EXTENSION_BLOCK"


class ObjectMetaEntry(msgspec.Struct, frozen=True, gc=False):
    """The value of an object_meta extension: the fixed part and its dependency entries."""

    meta: ObjectMeta
    dependencies: tuple[Dependency, ...] = ()

    def pack(self) -> bytes:
        """The payload bytes; ``dependency_count`` is written as counted."""
        fixed = self.meta.replace(dependency_count=len(self.dependencies))
        return fixed.pack() + b"".join(entry.pack() for entry in self.dependencies)

    @classmethod
    def parse(cls, data: Buffer, *, strict: bool = True, at: int = 0) -> ObjectMetaEntry:
        if len(data) < ObjectMeta.SIZE:
            raise _wrong_length("OBJECT_META", f"at least {ObjectMeta.SIZE}", len(data), at)
        meta = ObjectMeta.decode(data, 0, strict, at)
        wanted = ObjectMeta.SIZE + Dependency.SIZE * meta.dependency_count
        if len(data) != wanted:
            raise _wrong_length("OBJECT_META", str(wanted), len(data), at)
        starts = range(ObjectMeta.SIZE, wanted, Dependency.SIZE)
        return cls(meta, tuple(Dependency.decode(data, start, strict, at + start) for start in starts))


ExtensionValue: TypeAlias = Structure | ObjectMetaEntry


class ControlExtension(msgspec.Struct, frozen=True, gc=False):
    """One entry. ``value`` is the decoded payload of a known type in its place, else None: such an entry is skipped."""

    ext_type: int
    payload: Buffer = b""
    ext_flags: ExtFlags = ExtFlags(0)
    value: ExtensionValue | None = None

    @classmethod
    def of(cls, ext_type: ExtType, value: ExtensionValue) -> ControlExtension:
        """An entry built from its value. None of the known extensions is sent critical."""
        return cls(ext_type, value.pack(), value=value)


Parser: TypeAlias = Callable[[Buffer, bool, int], ExtensionValue]


def _fixed(layout: type[Structure]) -> Parser:
    """A parser for a payload of one structure. Any other length is LengthMismatch (nnrp-wire 6)."""

    def parse(data: Buffer, strict: bool, at: int) -> ExtensionValue:
        if len(data) != layout.SIZE:
            raise _wrong_length(layout.LAYOUT.name, str(layout.SIZE), len(data), at)
        return layout.decode(data, 0, strict, at)

    return parse


def _object_meta(data: Buffer, strict: bool, at: int) -> ExtensionValue:
    return ObjectMetaEntry.parse(data, strict=strict, at=at)


_PARSERS: dict[int, Parser] = {
    ExtType.TRANSPORT_POLICY: _fixed(TransportPolicy),
    ExtType.TRANSPORT_POLICY_ACK: _fixed(TransportPolicyAck),
    ExtType.LOSS_TOLERANCE: _fixed(LossToleranceBlock),
    ExtType.LOSS_TOLERANCE_ACK: _fixed(LossToleranceBlock),
    ExtType.PAYLOAD_CAPABILITIES: _fixed(PayloadCapabilities),
    ExtType.PAYLOAD_CAPABILITIES_ACK: _fixed(PayloadCapabilities),
    ExtType.OPERATION_EXTENSIONS: _fixed(OperationExtensions),
    ExtType.RESUME_FROM: _fixed(ResumeFrom),
    ExtType.CANCEL_SCOPE: _fixed(CancelScope),
    ExtType.OPERATION_STATE: _fixed(OperationStateBlock),
    ExtType.OBJECT_META: _object_meta,
    ExtType.LEASE_INFO: _fixed(LeaseInfo),
}

_PLACES: dict[tuple[MessageType, int], OperationFeatures] = {
    (MessageType.CLIENT_HELLO, ExtType.TRANSPORT_POLICY): NO_FEATURES,
    (MessageType.CLIENT_HELLO, ExtType.LOSS_TOLERANCE): NO_FEATURES,
    (MessageType.CLIENT_HELLO, ExtType.PAYLOAD_CAPABILITIES): NO_FEATURES,
    (MessageType.SERVER_HELLO_ACK, ExtType.TRANSPORT_POLICY_ACK): NO_FEATURES,
    (MessageType.SERVER_HELLO_ACK, ExtType.LOSS_TOLERANCE_ACK): NO_FEATURES,
    (MessageType.SERVER_HELLO_ACK, ExtType.PAYLOAD_CAPABILITIES_ACK): NO_FEATURES,
    (MessageType.SESSION_OPEN, ExtType.OPERATION_EXTENSIONS): NO_FEATURES,
    (MessageType.SESSION_OPEN, ExtType.RESUME_FROM): NO_FEATURES,
    (MessageType.SESSION_OPEN_ACK, ExtType.OPERATION_EXTENSIONS): NO_FEATURES,
    (MessageType.FRAME_CANCEL, ExtType.CANCEL_SCOPE): OperationFeatures.CANCEL_SCOPE,
    (MessageType.RESULT_DROP, ExtType.OPERATION_STATE): OperationFeatures.OPERATION_STATE,
    (MessageType.CACHE_PUT, ExtType.OBJECT_META): OperationFeatures.CACHE_SEMANTICS,
    (MessageType.CACHE_ACK, ExtType.LEASE_INFO): OperationFeatures.CACHE_SEMANTICS,
}
"""Where a known type means something, and the feature that must have been granted for it."""


def _wrong_length(subject: str, wanted: str, got: int, at: int) -> NnrpError:
    rule = f"the payload must have {wanted} bytes, got {got}"
    return NnrpError(Outcome.LENGTH_MISMATCH, rule, subject=subject, offset=at, reach=Reach.OPERATION)


def _fault(outcome: Outcome, rule: str, field: str | None, offset: int) -> NnrpError:
    return NnrpError(outcome, rule, subject=_BLOCK, field=field, offset=offset, reach=Reach.OPERATION)


def _parser(message: MessageType | None, ext_type: int, granted: int) -> Parser | None:
    """How to read ``ext_type`` in ``message``; None: unknown there. Without a message every known type is read."""
    if message is None:
        return _PARSERS.get(ext_type)
    feature = _PLACES.get((message, ext_type))
    if feature is None or int(feature) & ~int(granted):
        return None
    return _PARSERS[ext_type]


def parse_extensions(
    data: Buffer,
    *,
    message: MessageType | None = None,
    granted: OperationFeatures = NO_FEATURES,
    strict: bool = True,
    at: int = 0,
) -> tuple[ControlExtension, ...]:
    """The entries of a block that fills ``data``.

    ``message`` is where the block stands; it decides which types are known. ``granted`` are the features of the
    session. An unknown entry is kept with ``value`` None; an unknown critical one is UnknownCritical.
    """
    entries = []
    offset, end = 0, len(data)
    while offset < end:
        entry, offset = _parse_entry(data, offset, message, granted, strict, at)
        entries.append(entry)
        if len(entries) > MAX_ENTRIES:
            raise _fault(Outcome.LIMIT_EXCEEDED, f"more than {MAX_ENTRIES} entries", None, at + offset)
    return tuple(entries)


def _parse_entry(
    data: Buffer, offset: int, message: MessageType | None, granted: OperationFeatures, strict: bool, at: int
) -> tuple[ControlExtension, int]:
    if len(data) - offset < _HEADER:
        raise _fault(Outcome.TOO_SHORT, f"{len(data) - offset} bytes where a TLV header is needed", None, at + offset)
    header = ControlExtensionHeader.decode(data, offset, strict, at + offset)
    start = offset + _HEADER
    stop = start + header.ext_len
    following = stop + -stop % 8
    if following > len(data):
        raise _fault(Outcome.TOO_SHORT, "payload or padding past the end of the block", "ext_len", at + offset + 4)
    if any(data[stop:following]):
        raise _fault(Outcome.RESERVED_NON_ZERO, "padding must be zero", "padding", at + stop)
    payload = data[start:stop]
    parser = _parser(message, header.ext_type, granted)
    if parser is None:
        if header.ext_flags & ExtFlags.CRITICAL:
            rule = f"unknown critical extension {header.ext_type:#06x}"
            raise _fault(Outcome.UNKNOWN_CRITICAL, rule, "ext_type", at + offset)
        return ControlExtension(header.ext_type, payload, header.ext_flags), following
    value = parser(payload, strict, at + start)
    return ControlExtension(header.ext_type, payload, header.ext_flags, value), following


def pack_extensions(entries: Iterable[ControlExtension]) -> bytes:
    """The block made of ``entries``, padding included."""
    parts: list[Buffer] = []
    for entry in entries:
        size = len(entry.payload)
        parts.append(ControlExtensionHeader(entry.ext_type, entry.ext_flags, size).pack())
        parts.append(entry.payload)
        parts.append(bytes(-size % 8))
    return b"".join(parts)


def find_extension(entries: Iterable[ControlExtension], ext_type: ExtType) -> ExtensionValue | None:
    """The value of the first entry of that type that was understood, or None."""
    for entry in entries:
        if entry.ext_type == ext_type and entry.value is not None:
            return entry.value
    return None
