"""What goes into a cache and comes out of it: requests, answers, bounds (nnrp-wire 13.10)."""

from __future__ import annotations

import attrs

from protocol.nnrp.enums import CacheAckStatus, ExpiryPolicy, LeaseOwnerScope
from protocol.nnrp.vendor import Dependency

__all__ = [
    "CacheEntry",
    "CacheKey",
    "CacheLimits",
    "CachePool",
    "CacheStatistics",
    "Dependency",
    "PutAnswer",
    "PutMeta",
    "PutRequest",
]


@attrs.frozen(slots=True)
class CacheKey:
    """The wire identity of an object."""

    namespace: int
    key_hi: int
    key_lo: int
    object_kind: int


@attrs.frozen(slots=True)
class PutMeta:
    """What object_meta says about a put; without it the plain rule of preview3 holds."""

    object_id: int
    object_version: int
    lease_id: int = 0
    owner_scope: LeaseOwnerScope = LeaseOwnerScope.SESSION
    owner_operation_id: int = 0
    expiry_policy: ExpiryPolicy = ExpiryPolicy.DROP_AT_EXPIRY
    policy_hints: int = 0
    dependencies: tuple[Dependency, ...] = ()


@attrs.frozen(slots=True)
class PutRequest:
    key: CacheKey
    content: bytes
    ttl_ms: int = 0
    pinned: bool = False
    meta: PutMeta | None = None
    schema: tuple[int, int] | None = None
    """The schema the content is to be read with, when the putter said so: checked by lookups that name one."""


@attrs.frozen(slots=True)
class PutAnswer:
    """The decided fields of CACHE_ACK, and the lease for lease_info."""

    status: CacheAckStatus
    detail_code: int = 0
    accepted_ttl_ms: int = 0
    object_version: int = 0
    lease_id: int = 0
    owner_scope: LeaseOwnerScope = LeaseOwnerScope.SESSION

    @property
    def stored(self) -> bool:
        return self.status is not CacheAckStatus.REJECTED


@attrs.frozen(slots=True)
class CacheLimits:
    """Bounds of one cache. ``default_ttl_ms`` answers a request of 0, ``max_ttl_ms`` caps every other."""

    max_entries: int = 256
    max_bytes: int = 8 * 1024 * 1024
    max_object_bytes: int = 4 * 1024 * 1024
    default_ttl_ms: int = 30_000
    max_ttl_ms: int = 3_600_000

    def with_default(self, ttl_ms: int) -> CacheLimits:
        """The same bounds with the default that a session agreed on."""
        return attrs.evolve(self, default_ttl_ms=min(ttl_ms, self.max_ttl_ms))


@attrs.define(slots=True, eq=False)
class CachePool:
    """Bytes that several caches hold together: of all sessions and connections that share their limits."""

    max_bytes: int = 256 * 1024 * 1024
    bytes: int = 0


@attrs.frozen(slots=True)
class CacheStatistics:
    entries: int
    bytes: int
    hits: int
    misses: int
    expired: int
    rejected: int


@attrs.define(slots=True, eq=False)
class CacheEntry:
    """One live object and its lease. ``expires_at`` is a monotonic instant; equality with now is expired."""

    key: CacheKey
    content: bytes
    object_id: int
    version: int
    lease_id: int
    owner_scope: LeaseOwnerScope
    owner_operation_id: int
    ttl: float
    expires_at: float
    renew_on_use: bool
    pinned: bool
    dependencies: tuple[Dependency, ...]
    schema: tuple[int, int] | None
