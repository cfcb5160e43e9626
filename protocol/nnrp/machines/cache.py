"""Objects, leases, versions, dependencies and owners (nnrp-wire 13.10, nnrp-extensions Cache objects).

One cache per session, one per connection for session id 0; neither reads a clock. Content is dropped when its lease ends;
that it ended is remembered for a while, because lease_expired and cache_miss are different answers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator

from protocol.nnrp.enums import (
    CacheAckStatus,
    CacheErrorCode,
    DependencyKind,
    ErrorCode,
    ExpiryPolicy,
    InvalidateScope,
    LeaseOwnerScope,
    SchemaErrorCode,
    SessionErrorCode,
)
from protocol.nnrp.machines.cache_records import (
    CacheEntry,
    CacheKey,
    CacheLimits,
    CachePool,
    CacheStatistics,
    PutAnswer,
    PutMeta,
    PutRequest,
)
from protocol.nnrp.machines.schemas import SchemaRegistry
from protocol.nnrp.vendor import Dependency

__all__ = ["ObjectCache"]

#: Ended leases that are remembered per cache so that a lookup answers lease_expired.
REMEMBERED_LEASES = 1024


class ObjectCache:
    """The objects of one session or connection.

    ``pool`` bounds several caches together. ``schemas`` resolves schema dependencies; ``live_operation`` says whether an operation may still own a lease;
    ``lease_ended`` is told of every lease that ends by time or with its owner. Every lookup answers an entry or the stable code, in the order of nnrp-wire 13.10 item 5.
    """

    __slots__ = (
        "_bytes",
        "_deadlines",
        "_entries",
        "_expired",
        "_held",
        "_hits",
        "_last_lease",
        "_lease_ended",
        "_misses",
        "_over",
        "_pool",
        "_rejected",
        "_schemas",
        "_versions",
        "leases_allowed",
        "limits",
        "live_operation",
    )

    def __init__(
        self,
        schemas: SchemaRegistry,
        limits: CacheLimits | None = None,
        *,
        leases_allowed: bool = True,
        live_operation: Callable[[int], bool] = lambda _: False,
        lease_ended: Callable[[CacheKey], None] = lambda _: None,
        pool: CachePool | None = None,
    ) -> None:
        self.limits = limits or CacheLimits()
        self._pool = pool or CachePool()
        self.leases_allowed = leases_allowed
        self._schemas = schemas
        self.live_operation = live_operation
        self._lease_ended = lease_ended
        self._entries: dict[CacheKey, CacheEntry] = {}
        self._versions: dict[int, list[CacheEntry]] = {}
        self._over: dict[CacheKey, int] = {}
        self._deadlines: list[tuple[float, int, CacheKey]] = []
        self._bytes = 0
        self._held = 0
        self._last_lease = 0
        self._hits = self._misses = self._expired = self._rejected = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[CacheEntry]:
        return iter(self._entries.values())

    def __contains__(self, key: CacheKey) -> bool:
        return key in self._entries

    def put(self, request: PutRequest, now: float) -> PutAnswer:
        """Store, replace or renew. A refusal changes nothing and names its code in ``detail_code``."""
        self.handle_deadline(now)
        code = self._refuse_put(request)
        if code:
            self._rejected += 1
            return PutAnswer(CacheAckStatus.REJECTED, int(code))
        if self._renews(request):
            return self._renew(self._entries[request.key], request, now)
        return self._store(request, now)

    def lookup(
        self,
        key: CacheKey,
        now: float,
        *,
        object_id: int = 0,
        version: int = 0,
        schema: tuple[int, int] | None = None,
    ) -> CacheEntry | CacheErrorCode:
        """The live object, or why it cannot be used. ``object_id`` and ``version`` 0 accept any."""
        self.handle_deadline(now)
        entry = self._entries.get(key)
        code = self._refuse_lookup(key, entry, object_id, version, schema)
        if code is not None or entry is None:
            self._misses += 1
            return code if code is not None else CacheErrorCode.CACHE_MISS
        self._hits += 1
        if entry.renew_on_use:
            self._extend(entry, now, entry.ttl)
        return entry

    def invalidate(
        self, scope: InvalidateScope, namespace: int = 0, key_hi: int = 0, key_lo: int = 0
    ) -> tuple[CacheKey, ...]:
        """Remove what the scope reaches (nnrp-wire 7.15), live or ended, and return the live keys that went."""
        matches = _MATCHES[scope]
        gone = [key for key in self._entries if matches(key, namespace, key_hi, key_lo)]
        for key in gone:
            self._drop(key)
        for key in [key for key in self._over if matches(key, namespace, key_hi, key_lo)]:
            del self._over[key]
        return tuple(gone)

    def clear(self) -> None:
        """The cache is over: let go of everything. Nobody is told."""
        for key in list(self._entries):
            self._drop(key)
        self._pool.bytes -= self._bytes
        self._bytes = self._held = 0

    def hold(self, size: int) -> bool:
        """Count something that is kept beside the objects: a schema without a lease. False: it does not fit."""
        limits = self.limits
        if size > limits.max_object_bytes or len(self._entries) + self._held >= limits.max_entries:
            return False
        if self._bytes + size > limits.max_bytes or self._pool.bytes + size > self._pool.max_bytes:
            return False
        self._held += 1
        self._bytes += size
        self._pool.bytes += size
        return True

    def let_go(self, size: int) -> None:
        """What ``hold`` has counted is gone."""
        self._held -= 1
        self._bytes -= size
        self._pool.bytes -= size

    def end_owner(self, scope: LeaseOwnerScope, operation_id: int = 0) -> tuple[CacheKey, ...]:
        """The owner is gone, and its leases with it. ``operation_id`` names the owner of scope operation."""
        gone = [
            key
            for key, entry in self._entries.items()
            if entry.owner_scope == scope
            and (scope is not LeaseOwnerScope.OPERATION or entry.owner_operation_id == operation_id)
        ]
        for key in gone:
            self._end_lease(key)
        return tuple(gone)

    def handle_deadline(self, now: float) -> tuple[CacheKey, ...]:
        """End the leases that are over at ``now`` and return their keys."""
        gone: list[CacheKey] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, lease_id, key = heapq.heappop(self._deadlines)
            entry = self._entries.get(key)
            if entry is None or entry.lease_id != lease_id:
                continue
            if entry.expires_at > now:
                heapq.heappush(self._deadlines, (entry.expires_at, lease_id, key))
                continue
            self._expired += 1
            self._end_lease(key)
            gone.append(key)
        return tuple(gone)

    def next_deadline(self) -> float:
        """Not later than the first lease to end; inf when there is none."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def valid(self, dependency: Dependency) -> bool:
        """Whether what an object depends on is still there, in that version, with all it depends on itself."""
        pending, seen = [dependency], {dependency}
        while pending:
            current = pending.pop()
            found = self._resolve(current)
            if found is None:
                return False
            for below in found:
                if below not in seen:
                    seen.add(below)
                    pending.append(below)
        return True

    def holds(self, entry: CacheEntry, now: float) -> bool:
        """Whether ``entry``, found before, is still what a lookup of its key would find."""
        live = self._entries.get(entry.key) is entry and entry.expires_at > now
        return live and all(self.valid(each) for each in entry.dependencies)

    def dependants(self, dependency: Dependency) -> tuple[CacheKey, ...]:
        """The live objects that are built on it, directly or not: the graph that 13.10 item 6 asks to be observable."""
        found: list[CacheKey] = []
        pending = [dependency]
        while pending:
            target = pending.pop()
            for entry in self._entries.values():
                if target in entry.dependencies and entry.key not in found:
                    found.append(entry.key)
                    pending.append(Dependency(DependencyKind.OBJECT, entry.object_id, entry.version))
        return tuple(found)

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(len(self._entries), self._bytes, self._hits, self._misses, self._expired, self._rejected)

    def _refuse_put(self, request: PutRequest) -> int:
        if not self.leases_allowed:
            return SessionErrorCode.LEASE_POLICY_REJECTED
        meta = request.meta
        if meta is not None:
            code = self._refuse_meta(request, meta)
            if code:
                return code
        return 0 if self._fits(request) else ErrorCode.LIMIT_EXCEEDED

    def _refuse_meta(self, request: PutRequest, meta: PutMeta) -> int:
        if meta.lease_id and not self._holds(request.key, meta.lease_id):
            return CacheErrorCode.LEASE_EXPIRED
        for entry in self._versions.get(meta.object_id, ()):
            if meta.object_version < entry.version:
                return CacheErrorCode.VERSION_MISMATCH
            if meta.object_version == entry.version and entry.content != request.content:
                return CacheErrorCode.VERSION_MISMATCH
        for dependency in meta.dependencies:
            if not self.valid(dependency):
                if dependency.kind is DependencyKind.SCHEMA:
                    return SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING
                return CacheErrorCode.DEPENDENCY_INVALID
        if meta.owner_scope is LeaseOwnerScope.OPERATION and not self.live_operation(meta.owner_operation_id):
            return SessionErrorCode.LEASE_POLICY_REJECTED
        return 0

    def _refuse_lookup(
        self,
        key: CacheKey,
        entry: CacheEntry | None,
        object_id: int,
        version: int,
        schema: tuple[int, int] | None,
    ) -> CacheErrorCode | None:
        if entry is None:
            return CacheErrorCode.LEASE_EXPIRED if key in self._over else CacheErrorCode.CACHE_MISS
        if (object_id and entry.object_id != object_id) or (version and entry.version != version):
            return CacheErrorCode.VERSION_MISMATCH
        if not all(self.valid(each) for each in entry.dependencies):
            return CacheErrorCode.DEPENDENCY_INVALID
        if schema is not None and entry.schema is not None and entry.schema != schema:
            return CacheErrorCode.SCHEMA_MISMATCH
        return None

    def _renews(self, request: PutRequest) -> bool:
        """Whether this puts again what is there: same key, content, object and version."""
        entry = self._entries.get(request.key)
        if entry is None or entry.content != request.content:
            return False
        meta = request.meta
        return meta is None or (entry.object_id, entry.version) == (meta.object_id, meta.object_version)

    def _renew(self, entry: CacheEntry, request: PutRequest, now: float) -> PutAnswer:
        ttl_ms = self._grant_ttl(request.ttl_ms)
        entry.ttl = ttl_ms / 1000
        entry.pinned = request.pinned
        self._extend(entry, now, entry.ttl)
        return PutAnswer(CacheAckStatus.ACCEPTED, 0, ttl_ms, entry.version, entry.lease_id, entry.owner_scope)

    def _store(self, request: PutRequest, now: float) -> PutAnswer:
        before = self._entries.get(request.key)
        meta = request.meta or PutMeta(0, before.version + 1 if before is not None else 1)
        ttl_ms = self._grant_ttl(request.ttl_ms)
        if before is not None and meta.lease_id == before.lease_id:
            lease_id = before.lease_id
        else:
            self._last_lease += 1
            lease_id = self._last_lease
        if before is not None:
            self._drop(request.key)
        entry = CacheEntry(
            request.key,
            request.content,
            meta.object_id,
            meta.object_version,
            lease_id,
            meta.owner_scope,
            meta.owner_operation_id,
            ttl_ms / 1000,
            now + ttl_ms / 1000,
            meta.expiry_policy is ExpiryPolicy.RENEW_ON_USE,
            request.pinned,
            meta.dependencies,
            request.schema,
        )
        self._insert(entry)
        status = CacheAckStatus.ACCEPTED if before is None else CacheAckStatus.REPLACED
        return PutAnswer(status, 0, ttl_ms, entry.version, lease_id, meta.owner_scope)

    def _insert(self, entry: CacheEntry) -> None:
        self._entries[entry.key] = entry
        self._bytes += len(entry.content)
        self._pool.bytes += len(entry.content)
        self._over.pop(entry.key, None)
        if entry.object_id:
            self._versions.setdefault(entry.object_id, []).append(entry)
        self._schedule(entry)

    def _schedule(self, entry: CacheEntry) -> None:
        """Queue the end of a lease. Replaced objects leave their old place behind; too many of those are swept out."""
        if len(self._deadlines) > 2 * len(self._entries) + 64:
            self._deadlines = [(each.expires_at, each.lease_id, each.key) for each in self._entries.values()]
            heapq.heapify(self._deadlines)
        else:
            heapq.heappush(self._deadlines, (entry.expires_at, entry.lease_id, entry.key))

    def _extend(self, entry: CacheEntry, now: float, ttl: float) -> None:
        """A later end needs no new place in the queue: the early one finds out when it comes up, and moves."""
        earlier = entry.expires_at
        entry.expires_at = now + ttl
        if entry.expires_at < earlier:
            self._schedule(entry)

    def _end_lease(self, key: CacheKey) -> None:
        self._over[key] = self._drop(key).version
        while len(self._over) > REMEMBERED_LEASES:
            del self._over[next(iter(self._over))]
        self._lease_ended(key)

    def _drop(self, key: CacheKey) -> CacheEntry:
        entry = self._entries.pop(key)
        self._bytes -= len(entry.content)
        self._pool.bytes -= len(entry.content)
        if entry.object_id:
            holders = self._versions[entry.object_id]
            holders.remove(entry)
            if not holders:
                del self._versions[entry.object_id]
        return entry

    def _holds(self, key: CacheKey, lease_id: int) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.lease_id == lease_id

    def _fits(self, request: PutRequest) -> bool:
        before = self._entries.get(request.key)
        limits = self.limits
        size = len(request.content)
        more = size - (len(before.content) if before is not None else 0)
        if self._pool.bytes + more > self._pool.max_bytes or self._bytes + more > limits.max_bytes:
            return False
        return (
            size <= limits.max_object_bytes and len(self._entries) + self._held + (before is None) <= limits.max_entries
        )

    def _grant_ttl(self, wanted_ms: int) -> int:
        return min(wanted_ms, self.limits.max_ttl_ms) if wanted_ms else self.limits.default_ttl_ms

    def _resolve(self, dependency: Dependency) -> tuple[Dependency, ...] | None:
        """What the dependency depends on itself; None when it is not there."""
        if dependency.kind is DependencyKind.SCHEMA:
            schema = self._schemas.get(dependency.id, dependency.version)
            return None if schema is None or self._schemas.missing(schema) else ()
        for entry in self._versions.get(dependency.id, ()):
            if entry.version == dependency.version:
                return entry.dependencies
        return None


_Match = Callable[[CacheKey, int, int, int], bool]
_MATCHES: dict[InvalidateScope, _Match] = {
    InvalidateScope.WHOLE_SESSION: lambda key, namespace, hi, lo: True,
    InvalidateScope.NAMESPACE: lambda key, namespace, hi, lo: key.namespace == namespace,
    InvalidateScope.OBJECT_KIND: lambda key, namespace, hi, lo: (key.namespace, key.object_kind) == (namespace, hi),
    InvalidateScope.OBJECT_KEY: lambda key, namespace, hi, lo: (
        (key.namespace, key.key_hi, key.key_lo) == (namespace, hi, lo)
    ),
}
