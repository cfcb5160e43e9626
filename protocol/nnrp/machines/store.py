"""The objects and schemas of one session, or of a connection: CACHE_PUT and CACHE_INVALIDATE carried out (11.3, 13.10)."""

from __future__ import annotations

from collections.abc import Callable

from protocol.nnrp.descriptors import ObjectReference, SchemaDescriptor
from protocol.nnrp.enums import (
    CacheAckStatus,
    CacheErrorCode,
    DependencyKind,
    ErrorCode,
    InvalidateScope,
    ObjectKind,
    SchemaErrorCode,
    SessionErrorCode,
)
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.extensions import ObjectMetaEntry
from protocol.nnrp.machines.cache import ObjectCache
from protocol.nnrp.machines.cache_records import (
    CacheEntry,
    CacheKey,
    CacheLimits,
    CachePool,
    PutAnswer,
    PutMeta,
    PutRequest,
)
from protocol.nnrp.machines.schemas import Installed, Schema, SchemaRegistry
from protocol.nnrp.messages import CacheInvalidate, CachePut
from protocol.nnrp.vendor import ObjectExpect

__all__ = ["ObjectStore"]

_SCHEMA_KINDS = (ObjectKind.TOOL_SCHEMA, ObjectKind.STRUCTURED_EVENT_SCHEMA)


class ObjectStore:
    """A cache and a schema registry that belong together, made when the first object arrives.

    ``leases_allowed`` is the acknowledged session flag, or cache_enabled where there is no such flag.
    """

    __slots__ = ("_leased", "cache", "schemas")

    def __init__(
        self,
        base: SchemaRegistry,
        limits: CacheLimits,
        *,
        leases_allowed: bool,
        live_operation: Callable[[int], bool],
        pool: CachePool | None = None,
    ) -> None:
        self.schemas = SchemaRegistry(base)
        self.cache = ObjectCache(
            self.schemas,
            limits,
            leases_allowed=leases_allowed,
            live_operation=live_operation,
            lease_ended=self._lease_ended,
            pool=pool,
        )
        self._leased: dict[CacheKey, tuple[int, int]] = {}

    def put(self, message: CachePut, content: bytes, meta: ObjectMetaEntry | None, now: float) -> PutAnswer:
        """Carry out a CACHE_PUT. Schema kinds are installed in the registry, everything else is cached."""
        if message.object_kind in _SCHEMA_KINDS:
            return self._install(message, content, meta, now)
        return self.cache.put(_request(message, content, meta), now)

    def invalidate(self, message: CacheInvalidate) -> tuple[CacheKey, ...]:
        """Carry out a CACHE_INVALIDATE: the objects it reaches, and the schemas among them.

        Raises NnrpError SchemaVersionUnknown when it names one schema, by its reason, that is not there.
        """
        scope = message.invalidate_scope
        namespace, hi, lo = message.cache_namespace, message.cache_key_hi, message.cache_key_lo
        gone = self.cache.invalidate(scope, namespace, hi, lo)
        reached = [each for each in self.schemas.own() if _reaches(scope, hi, lo, each)]
        for schema in reached:
            self._remove(schema)
        about_schema = message.reason_code >> 16 == SchemaErrorCode.NONE >> 16
        if about_schema and scope is InvalidateScope.OBJECT_KEY and not (reached or gone):
            self.schemas.invalidate(hi, lo)  # raises: it is not there, or is not this store's
        return gone

    def adopted_by(self, live_operation: Callable[[int], bool]) -> None:
        """Another session machine stands for the same session from now on."""
        self.cache.live_operation = live_operation

    def find(
        self, reference: ObjectReference, expected: ObjectExpect | None, now: float
    ) -> CacheEntry | CacheErrorCode:
        """The object a submit refers to, or the stable code."""
        key = CacheKey(reference.cache_namespace, reference.cache_key_hi, reference.cache_key_lo, reference.object_kind)
        if expected is None:
            return self.cache.lookup(key, now)
        return self.cache.lookup(key, now, object_id=expected.object_id, version=expected.object_version)

    def _install(self, message: CachePut, content: bytes, meta: ObjectMetaEntry | None, now: float) -> PutAnswer:
        """Install a schema. With the cacheable flag it has a lease and goes with it; without, it stays with its store."""
        if not self.cache.leases_allowed:
            return PutAnswer(CacheAckStatus.REJECTED, SessionErrorCode.LEASE_POLICY_REJECTED)
        try:
            schema = _read_schema(message, content, meta)
            done = self.schemas.install(schema)
        except NnrpError as refused:
            return PutAnswer(CacheAckStatus.REJECTED, refused.code)
        if not schema.cacheable:
            if done is not Installed.ALREADY_INSTALLED and not self.cache.hold(len(content)):
                self.schemas.invalidate(*schema.key)
                return PutAnswer(CacheAckStatus.REJECTED, ErrorCode.LIMIT_EXCEEDED)
            return PutAnswer(CacheAckStatus.REPLACED if done is Installed.UPDATED else CacheAckStatus.ACCEPTED)
        request = _request(message, content, None)
        answer = self.cache.put(request, now)
        if answer.stored:
            self._leased[request.key] = schema.key
        elif done is not Installed.ALREADY_INSTALLED:
            self.schemas.invalidate(*schema.key)
        return answer

    def _remove(self, schema: Schema) -> None:
        self.schemas.invalidate(*schema.key)
        if not schema.cacheable:
            self.cache.let_go(SchemaDescriptor.SIZE + len(schema.body))

    def _lease_ended(self, key: CacheKey) -> None:
        schema = self._leased.pop(key, None)
        if schema is not None and self.schemas.owns(*schema):
            self.schemas.invalidate(*schema)


def _read_schema(message: CachePut, content: bytes, meta: ObjectMetaEntry | None) -> Schema:
    """The schema in a CACHE_PUT body: its 32-byte header, then the schema body. Raises NnrpError."""
    if len(content) < SchemaDescriptor.SIZE:
        SchemaDescriptor.wrong_size(len(content), 0)
    header = SchemaDescriptor.decode(content)
    body = content[SchemaDescriptor.SIZE :]
    named = (message.cache_key_hi, message.cache_key_lo)
    if len(body) != header.body_bytes or named != (header.schema_id, header.schema_version):
        raise SchemaRegistry.refuse(
            SchemaErrorCode.SCHEMA_INCOMPATIBLE, "the schema object contradicts its own header or its key"
        )
    entries = meta.dependencies if meta is not None else ()
    return Schema(
        header.schema_id,
        header.schema_version,
        header.profile_id,
        header.schema_hash,
        int(header.schema_flags),
        header.min_version_major,
        header.max_version_major,
        header.default_stream_semantics,
        header.dependency_count,
        tuple((each.id, each.version) for each in entries if each.kind is DependencyKind.SCHEMA),
        bytes(body),
    )


def _request(message: CachePut, content: bytes, meta: ObjectMetaEntry | None) -> PutRequest:
    key = CacheKey(message.cache_namespace, message.cache_key_hi, message.cache_key_lo, message.object_kind)
    return PutRequest(key, content, message.ttl_ms, bool(int(message.flags) & 1), _meta(meta))


def _meta(entry: ObjectMetaEntry | None) -> PutMeta | None:
    if entry is None:
        return None
    meta = entry.meta
    return PutMeta(
        meta.object_id,
        meta.object_version,
        meta.lease_id,
        meta.lease_owner_scope,
        meta.owner_operation_id,
        meta.expiry_policy,
        int(meta.policy_hints),
        entry.dependencies,
    )


def _reaches(scope: InvalidateScope, hi: int, lo: int, schema: Schema) -> bool:
    """Schemas have no namespace; by kind they are reached as either schema kind."""
    if scope is InvalidateScope.WHOLE_SESSION:
        return True
    if scope is InvalidateScope.OBJECT_KIND:
        return hi in _SCHEMA_KINDS
    return scope is InvalidateScope.OBJECT_KEY and (hi, lo) == schema.key
