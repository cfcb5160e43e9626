"""What the caches of a service have seen, as metrics and as log lines (nnrp-wire 14: cache hits, leases)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs
from prometheus_client.core import Metric

from protocol.nnrp.enums import CacheErrorCode, ErrorCode, SchemaErrorCode, SessionErrorCode
from protocol.nnrp.machines.cache_records import CacheStatistics
from protocol.nnrp.messages import CacheInvalidate, CachePut
from server.metrics import gauge, total
from server.telemetry import log

if TYPE_CHECKING:
    from protocol.nnrp.machines.events import CacheInvalidated, CachePutDone

__all__ = ["CacheTotals", "cache_gauges", "log_invalidation", "log_put"]

_NAMES = {
    int(each): each.name.lower()
    for family in (ErrorCode, SessionErrorCode, CacheErrorCode, SchemaErrorCode)
    for each in family
}


@attrs.frozen(slots=True)
class CacheTotals:
    """Sums over many caches. ``leases`` and ``bytes`` are of those that are there."""

    leases: int = 0
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    expired: int = 0
    rejected: int = 0

    def plus(self, found: Iterable[CacheStatistics], *, over: bool = False) -> CacheTotals:
        """With more of them; of a cache that is over only what has happened counts."""
        leases, size, hits, misses = self.leases, self.bytes, self.hits, self.misses
        expired, rejected = self.expired, self.rejected
        for each in found:
            leases += 0 if over else each.entries
            size += 0 if over else each.bytes
            hits += each.hits
            misses += each.misses
            expired += each.expired
            rejected += each.rejected
        return CacheTotals(leases, size, hits, misses, expired, rejected)


def cache_gauges(totals: CacheTotals) -> list[Metric]:
    return [
        gauge("nnrp_cache_leases", "Objects under a lease", totals.leases),
        gauge("nnrp_cache_bytes", "Bytes of objects under a lease", totals.bytes),
        total("nnrp_cache_hits", "Object references that were resolved", totals.hits),
        total("nnrp_cache_misses", "Object references that were not", totals.misses),
        total("nnrp_leases_expired", "Leases that ended by time", totals.expired),
        total("nnrp_cache_rejected", "Objects refused", totals.rejected),
    ]


def log_put(event: CachePutDone) -> None:
    """A CACHE_PUT was carried out: who, which object, and what was granted or why not."""
    message, answer = event.packet.metadata, event.answer
    assert isinstance(message, CachePut)
    log.debug(
        "nnrp_cache_put",
        session=event.packet.header.session_id,
        trace=event.packet.header.trace_id,
        kind=message.object_kind.name.lower(),
        key=f"{message.cache_namespace}/{message.cache_key_hi}/{message.cache_key_lo}",
        size=message.object_bytes,
        status=answer.status.name.lower(),
        ttl_ms=answer.accepted_ttl_ms,
        lease=answer.lease_id,
        detail=_NAMES.get(int(answer.detail_code), answer.detail_code) if answer.detail_code else "",
    )


def log_invalidation(event: CacheInvalidated) -> None:
    message = event.packet.metadata
    assert isinstance(message, CacheInvalidate)
    log.debug(
        "nnrp_cache_invalidated",
        session=event.packet.header.session_id,
        scope=message.invalidate_scope.name.lower(),
        reason=_NAMES.get(message.reason_code, message.reason_code) if message.reason_code else "",
        objects=len(event.keys),
    )
