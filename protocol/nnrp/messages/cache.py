"""CACHE_PUT, CACHE_ACK and CACHE_INVALIDATE (nnrp-wire 7.15)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from protocol.layout import u32
from protocol.layout_codec import layout
from protocol.nnrp.enums import CacheAckStatus, CachePutFlags, InvalidateScope, MessageType, ObjectKind
from protocol.nnrp.record import Message

__all__ = ["CacheAck", "CacheInvalidate", "CachePut"]


@layout("CACHE_PUT", "7.15", "[rs3=py3]")
class CachePut(Message, frozen=True, gc=False):
    """Stores an object and asks for a lease. Body: the object, then (if negotiated) control extensions."""

    TYPE: ClassVar[MessageType] = MessageType.CACHE_PUT

    cache_namespace: Annotated[int, u32] = 0
    cache_key_hi: Annotated[int, u32] = 0
    cache_key_lo: Annotated[int, u32] = 0
    object_kind: Annotated[ObjectKind, u32] = ObjectKind.CAMERA_BLOCK
    ttl_ms: Annotated[int, u32, "wanted lease TTL"] = 0
    object_bytes: Annotated[int, u32, "body length"] = 0
    codec_bitmap: Annotated[int, u32] = 0
    flags: Annotated[CachePutFlags, u32] = CachePutFlags(0)


@layout("CACHE_ACK", "7.15", "[rs3=py3]")
class CacheAck(Message, frozen=True, gc=False):
    """accepted and replaced mean that the object can be referenced at once."""

    TYPE: ClassVar[MessageType] = MessageType.CACHE_ACK

    cache_namespace: Annotated[int, u32] = 0
    cache_key_hi: Annotated[int, u32] = 0
    cache_key_lo: Annotated[int, u32] = 0
    status: Annotated[CacheAckStatus, u32] = CacheAckStatus.ACCEPTED
    accepted_ttl_ms: Annotated[int, u32, "granted lease TTL"] = 0
    max_object_bytes: Annotated[int, u32] = 0
    detail_code: Annotated[int, u32, "0, or a cache or schema error code"] = 0


@layout("CACHE_INVALIDATE", "7.15", "[rs3=py3]")
class CacheInvalidate(Message, frozen=True, gc=False):
    """Removes objects by scope."""

    TYPE: ClassVar[MessageType] = MessageType.CACHE_INVALIDATE

    invalidate_scope: Annotated[InvalidateScope, u32] = InvalidateScope.WHOLE_SESSION
    cache_namespace: Annotated[int, u32] = 0
    cache_key_hi: Annotated[int, u32, "scope object_kind: holds the object_kind value"] = 0
    cache_key_lo: Annotated[int, u32] = 0
    reason_code: Annotated[int, u32, "cache or schema error code, or 0 explicit"] = 0
