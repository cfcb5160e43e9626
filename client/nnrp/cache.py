"""Objects and schemas that a server keeps for a session (nnrp-wire 7.15, 11.3, 13.10)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import trio

from client.nnrp.errors import NnrpCacheRefused, NnrpClientError, too_large
from protocol.layout import Buffer
from protocol.nnrp.bodies import ControlBody
from protocol.nnrp.descriptors import ObjectReference, SchemaDescriptor
from protocol.nnrp.enums import (
    CacheAckStatus,
    CacheErrorCode,
    CachePutFlags,
    DependencyKind,
    ExpiryPolicy,
    ExtType,
    InvalidateScope,
    LeaseOwnerScope,
    ObjectKind,
    PolicyHints,
    ProfileId,
    SchemaFlags,
    StreamSemantics,
)
from protocol.nnrp.extensions import ControlExtension, ObjectMetaEntry, find_extension, pack_extensions
from protocol.nnrp.machines.connection import Connection
from protocol.nnrp.machines.session import Session
from protocol.nnrp.messages import CacheAck, CacheInvalidate, CachePut
from protocol.nnrp.packet import Packet
from protocol.nnrp.payloads import SchemaObject, schema_hash
from protocol.nnrp.vendor import Dependency, LeaseInfo, ObjectExpect, ObjectMeta

if TYPE_CHECKING:
    from client.nnrp.connection import NnrpConnection

__all__ = ["Lease", "NnrpCache", "ObjectVersion", "object_dependency", "schema_dependency"]

Key: TypeAlias = tuple[int, int]
"""(cache_key_hi, cache_key_lo)."""
_NO_HINTS: Final = PolicyHints(0)


@attrs.frozen(slots=True, kw_only=True)
class ObjectVersion:
    """What makes an object more than bytes under a key (nnrp-extensions, Cache objects); needs the feature cache_semantics.

    ``lease_id`` names a lease to renew, 0 asks for a new one. ``owner_operation_id`` makes an operation the owner, whose end
    ends the lease.
    """

    object_id: int
    version: int
    lease_id: int = 0
    owner: LeaseOwnerScope = LeaseOwnerScope.SESSION
    owner_operation_id: int = 0
    renew_on_use: bool = False
    hints: PolicyHints = _NO_HINTS
    dependencies: tuple[Dependency, ...] = ()

    def entry(self) -> ObjectMetaEntry:
        policy = ExpiryPolicy.RENEW_ON_USE if self.renew_on_use else ExpiryPolicy.DROP_AT_EXPIRY
        meta = ObjectMeta(
            self.object_id,
            self.version,
            self.lease_id,
            self.owner,
            policy,
            self.hints,
            len(self.dependencies),
            self.owner_operation_id,
        )
        return ObjectMetaEntry(meta, self.dependencies)


@attrs.frozen(slots=True)
class Lease:
    """What a put was granted: the right to refer to the object for ``ttl_ms`` from now, 0: for as long as the session."""

    kind: ObjectKind
    namespace: int
    key: Key
    ttl_ms: int
    replaced: bool
    max_object_bytes: int
    object_id: int = 0
    version: int = 0
    lease_id: int = 0

    @property
    def reference(self) -> ObjectReference:
        """What a submit names the object by."""
        return ObjectReference(self.kind, self.namespace, *self.key)

    @property
    def expected(self) -> ObjectExpect:
        """Which object and version a submit means."""
        return ObjectExpect(self.object_id, self.version if self.object_id else 0)

    @property
    def dependency(self) -> Dependency:
        """For an object that is built on this one."""
        return object_dependency(self.object_id, self.version)


def object_dependency(object_id: int, version: int) -> Dependency:
    return Dependency(DependencyKind.OBJECT, object_id, version)


def schema_dependency(schema_id: int, version: int) -> Dependency:
    return Dependency(DependencyKind.SCHEMA, schema_id, version)


class _Put:
    __slots__ = ("ack", "error", "over")

    def __init__(self) -> None:
        self.over = trio.Event()
        self.ack: Packet | None = None
        self.error: NnrpClientError | None = None


class NnrpCache:
    """The cache calls of one session (`NnrpSession.cache`).

    Every call needs a connection that is there: it raises `NnrpConnectionLost` while there is none, and when it is lost
    before the answer has come; the object may be stored then, and putting it again is harmless. What a session has stored
    comes back with it when it is resumed. Raises `NnrpSessionOver` when the session is.
    """

    def __init__(self, connection: NnrpConnection, session: Callable[[], Session]) -> None:
        self._connection = connection
        self._session = session
        self._puts: dict[tuple[int, int, int], deque[_Put]] = {}

    @property
    def pending(self) -> int:
        """Puts that wait for their answer."""
        return sum(map(len, self._puts.values()))

    async def put(
        self,
        key: Key,
        content: Buffer,
        *,
        kind: ObjectKind = ObjectKind.PROMPT_SEGMENT,
        namespace: int = 0,
        ttl_ms: int = 0,
        pinned: bool = False,
        reusable: bool = False,
        version: ObjectVersion | None = None,
    ) -> Lease:
        """Store an object, replace it, or renew its lease by putting the same again. ``ttl_ms`` 0: the session's default.

        Raises `NnrpCacheRefused` with the server's code: lease_policy_rejected for a session that was not granted leases,
        version_mismatch, dependency_invalid, lease_expired, limit_exceeded.
        """
        flags = CachePutFlags(CachePutFlags.PINNED * pinned | CachePutFlags.REUSABLE * reusable)
        message = CachePut(namespace, *key, object_kind=kind, ttl_ms=ttl_ms, flags=flags)
        return await self._put(message, bytes(content), version)

    def invalidate(
        self,
        scope: InvalidateScope = InvalidateScope.WHOLE_SESSION,
        *,
        namespace: int = 0,
        kind: ObjectKind | None = None,
        key: Key = (0, 0),
        reason: int = CacheErrorCode.NONE,
    ) -> None:
        """Drop what the scope reaches, at once and without an answer: everything, a namespace, a kind in it, or a key."""
        if (scope is InvalidateScope.OBJECT_KIND) != (kind is not None):
            raise ValueError("a kind goes with the scope object_kind, and with no other")
        hi, lo = key if kind is None else (int(kind), 0)
        machine = self._machine()
        machine.invalidate_objects(self._session(), CacheInvalidate(scope, namespace, hi, lo, int(reason)))
        self._connection.flush()

    async def install_schema(
        self,
        schema_id: int,
        version: int,
        body: Buffer,
        *,
        profile_id: int = ProfileId.TOKEN,
        kind: ObjectKind = ObjectKind.STRUCTURED_EVENT_SCHEMA,
        flags: SchemaFlags = SchemaFlags.HASH_STABLE,
        semantics: StreamSemantics = StreamSemantics.DEFAULT,
        digest: int | None = None,
        dependencies: Sequence[Key] = (),
        ttl_ms: int = 0,
    ) -> Lease:
        """Install a schema, or a newer version of one. Without the flag cacheable it has no lease and stays with the
        session. ``dependencies`` are (id, version) of schemas it builds on; they need cache_semantics.

        Raises `NnrpCacheRefused`: schema_hash_conflict, schema_incompatible, schema_dependency_missing,
        schema_update_rejected, lease_policy_rejected.
        """
        header = SchemaDescriptor(
            schema_id,
            version,
            profile_id,
            flags,
            dependency_count=len(dependencies),
            default_stream_semantics=semantics,
            schema_hash=schema_hash(body) if digest is None else digest,
        )
        about = None
        if dependencies:
            needed = tuple(schema_dependency(*each) for each in dependencies)
            about = ObjectVersion(object_id=schema_id, version=version, dependencies=needed)
        message = CachePut(0, schema_id, version, object_kind=kind, ttl_ms=ttl_ms)
        return await self._put(message, SchemaObject(header, body).pack(), about)

    def invalidate_schema(self, schema_id: int, version: int, *, reason: int = 0x0004_0000) -> None:
        """Remove one version of a schema; what depends on it can no longer be used. One that is not there is answered by an
        ERROR, schema_version_unknown, which is logged and changes nothing."""
        self.invalidate(InvalidateScope.OBJECT_KEY, key=(schema_id, version), reason=reason)

    # For the connection

    def answered(self, packet: Packet) -> None:
        """A CACHE_ACK has come. Answers to one key come in the order of the puts."""
        ack = packet.metadata
        assert isinstance(ack, CacheAck)
        place = (ack.cache_namespace, ack.cache_key_hi, ack.cache_key_lo)
        waiting = self._puts.get(place)
        if waiting:
            put = waiting.popleft()
            put.ack = packet
            put.over.set()
            if not waiting:
                del self._puts[place]

    def fail(self, error: NnrpClientError) -> None:
        """No answer will come any more."""
        for waiting in self._puts.values():
            for put in waiting:
                put.error = error
                put.over.set()
        self._puts.clear()

    # Inside

    def _machine(self) -> Connection:
        return self._connection.need_machine()

    async def _put(self, message: CachePut, content: bytes, version: ObjectVersion | None) -> Lease:
        await self._connection.wait_room()
        machine = self._machine()
        meta = None if version is None else version.entry()
        behind = 0 if meta is None else len(pack_extensions([ControlExtension.of(ExtType.OBJECT_META, meta)]))
        if len(content) + behind > self._connection.largest_body:
            raise too_large("CACHE_PUT")
        place = (message.cache_namespace, message.cache_key_hi, message.cache_key_lo)
        machine.put_object(self._session(), message, content, meta)
        put = _Put()
        self._puts.setdefault(place, deque()).append(put)
        self._connection.flush()
        await self._connection.wait_answer(put.over, "CACHE_PUT")
        if put.ack is None:
            assert put.error is not None
            raise put.error
        return _lease(message, put.ack, version)


def _lease(message: CachePut, packet: Packet, version: ObjectVersion | None) -> Lease:
    ack, content = packet.metadata, packet.content
    assert isinstance(ack, CacheAck)
    if ack.status is CacheAckStatus.REJECTED:
        raise NnrpCacheRefused(ack.detail_code)
    info = find_extension(content.extensions, ExtType.LEASE_INFO) if isinstance(content, ControlBody) else None
    granted = info if isinstance(info, LeaseInfo) else LeaseInfo()
    return Lease(
        message.object_kind,
        message.cache_namespace,
        (message.cache_key_hi, message.cache_key_lo),
        ack.accepted_ttl_ms,
        ack.status is CacheAckStatus.REPLACED,
        ack.max_object_bytes,
        0 if version is None else version.object_id,
        granted.object_version or (0 if version is None else version.version),
        granted.lease_id,
    )
