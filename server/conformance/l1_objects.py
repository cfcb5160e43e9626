"""Layer 1, objects and schemas: leases, versions, dependencies, the registry (nnrp-wire 11, 13.10)."""

from __future__ import annotations

from protocol.nnrp.descriptors import SchemaDescriptor
from protocol.nnrp.enums import (
    CacheAckStatus,
    CacheErrorCode,
    DependencyKind,
    LeaseOwnerScope,
    ObjectKind,
    SchemaErrorCode,
    SchemaFlags,
    StreamSemantics,
)
from protocol.nnrp.errors import Outcome
from protocol.nnrp.machines.cache import ObjectCache
from protocol.nnrp.machines.cache_records import CacheEntry, CacheKey, Dependency, PutAnswer, PutMeta, PutRequest
from protocol.nnrp.machines.events import CacheAnswered
from protocol.nnrp.machines.schemas import ANCHOR, Installed, Schema, SchemaBinding, SchemaRegistry, builtin_registry
from protocol.nnrp.messages import CacheAck, CachePut
from server.conformance.case import Evidence, case, expect, expect_code, expect_refusal
from server.conformance.link import Link

__all__: list[str] = []

NO_DEFAULT = SchemaBinding(2)


def key(number: int) -> CacheKey:
    return CacheKey(0, 0, number, ObjectKind.PROMPT_SEGMENT)


def put(
    cache: ObjectCache, number: int, version: int, content: bytes = b"content", now: float = 0.0, **meta: object
) -> PutAnswer:
    described = PutMeta(number, version, **meta)  # type: ignore[arg-type]  # named fields of it
    return cache.put(PutRequest(key(number), content, 1000, meta=described), now)


def found(cache: ObjectCache, number: int, now: float = 0.0, version: int = 0) -> bool:
    return isinstance(cache.lookup(key(number), now, version=version), CacheEntry)


def new_cache(schemas: SchemaRegistry | None = None) -> ObjectCache:
    return ObjectCache(schemas or builtin_registry(), live_operation=lambda number: number == 7)


@case("l1.cache.lease_owner_scope.validation")
def lease_owner(evidence: Evidence) -> None:
    cache = new_cache()
    put(cache, 1, 1, owner_scope=LeaseOwnerScope.OPERATION, owner_operation_id=7)
    put(cache, 2, 1, owner_scope=LeaseOwnerScope.SESSION)
    put(cache, 3, 1, owner_scope=LeaseOwnerScope.CONNECTION)
    refused = put(cache, 4, 1, owner_scope=LeaseOwnerScope.OPERATION, owner_operation_id=8)
    expect(not refused.stored, "an operation that is not live cannot own a lease")
    cache.end_owner(LeaseOwnerScope.OPERATION, 7)
    expect([found(cache, n) for n in (1, 2, 3)] == [False, True, True], "the operation's lease ends with it")
    cache.end_owner(LeaseOwnerScope.SESSION)
    expect([found(cache, n) for n in (1, 2, 3)] == [False, False, True], "the session's lease ends with it")
    cache.end_owner(LeaseOwnerScope.CONNECTION)
    expect(not found(cache, 3), "the connection's lease ends with it")
    evidence.note(str(cache.statistics()))


@case("l1.cache.object_version.monotonicity.validation")
def object_version(evidence: Evidence) -> None:
    cache = new_cache()
    expect(put(cache, 1, 3, b"three").status is CacheAckStatus.ACCEPTED, "version 3 is stored")
    for version, content in ((2, b"two"), (3, b"other")):
        answer = put(cache, 1, version, content)
        evidence.note(str(answer))
        expect(answer.detail_code == CacheErrorCode.VERSION_MISMATCH, f"version {version} is stale")
    expect(put(cache, 1, 4, b"four").status is CacheAckStatus.REPLACED, "version 4 replaces it")
    entry = cache.lookup(key(1), 0.0)
    expect(isinstance(entry, CacheEntry) and entry.version == 4, "and is what is read")


@case("l1.cache.dependency_invalidation.validation")
def dependency_invalidation(evidence: Evidence) -> None:
    schemas = SchemaRegistry(builtin_registry())
    schemas.install(Schema(0x2001, 1, 2, 5))
    cache = new_cache(schemas)
    put(cache, 1, 1)
    put(cache, 2, 1, dependencies=(Dependency(DependencyKind.OBJECT, 1, 1),))
    put(cache, 3, 1, dependencies=(Dependency(DependencyKind.SCHEMA, 0x2001, 1),))
    expect(found(cache, 2) and found(cache, 3), "both are good while what they depend on is there")
    dependants = cache.dependants(Dependency(DependencyKind.OBJECT, 1, 1))
    expect(dependants == (key(2),), "the dependency is observable")
    put(cache, 1, 2, b"new")
    schemas.invalidate(0x2001, 1)
    for number in (2, 3):
        code = cache.lookup(key(number), 0.0)
        evidence.note(f"object {number}: {code}")
        expect(code is CacheErrorCode.DEPENDENCY_INVALID, "it reports dependency_invalid")


@case("l1.cache.error_code.cache_miss.validation")
def cache_miss(evidence: Evidence) -> None:
    cache = new_cache()
    expect(cache.lookup(key(99), 0.0) is CacheErrorCode.CACHE_MISS, "an object never stored is a cache_miss")


@case("l1.cache.error_code.lease_expired.validation")
def lease_expired(evidence: Evidence) -> None:
    cache = new_cache()
    answer = put(cache, 1, 1)
    expect(answer.accepted_ttl_ms == 1000, "the lease has the TTL asked for")
    expect(found(cache, 1, 0.999), "it is live before the end")
    expect(cache.lookup(key(1), 1.0) is CacheErrorCode.LEASE_EXPIRED, "at the end it is over")
    expect(cache.lookup(key(2), 1.0) is CacheErrorCode.CACHE_MISS, "which is not the same as never stored")


@case("l1.cache.error_code.version_mismatch.validation")
def version_mismatch(evidence: Evidence) -> None:
    cache = new_cache()
    put(cache, 1, 3)
    for version in (2, 4):
        code = cache.lookup(key(1), 0.0, version=version)
        expect(code is CacheErrorCode.VERSION_MISMATCH, f"version {version} is not there, and nothing else is taken")
    expect(found(cache, 1, version=3), "version 3 is")


@case("l1.cache.error_code.dependency_invalid.validation")
def dependency_invalid(evidence: Evidence) -> None:
    cache = new_cache()
    put(cache, 1, 1)
    put(cache, 2, 1, dependencies=(Dependency(DependencyKind.OBJECT, 1, 1),))
    put(cache, 3, 1, dependencies=(Dependency(DependencyKind.OBJECT, 2, 1),))
    cache.end_owner(LeaseOwnerScope.OPERATION, 7)
    expect(found(cache, 3), "a whole chain is good")
    put(cache, 1, 2, b"new")
    expect(key(3) in cache, "the object itself is there")
    expect(cache.lookup(key(3), 0.0) is CacheErrorCode.DEPENDENCY_INVALID, "its chain is not")
    answer = put(cache, 4, 1, dependencies=(Dependency(DependencyKind.OBJECT, 1, 1),))
    evidence.note(str(answer))
    expect(answer.detail_code == CacheErrorCode.DEPENDENCY_INVALID, "a put on a broken dependency is refused")


@case("l1.cache.error_code.schema_mismatch.validation")
def schema_mismatch(evidence: Evidence) -> None:
    cache = new_cache()
    cache.put(PutRequest(key(1), b"content", 1000, schema=ANCHOR.key), 0.0)
    read = cache.lookup(key(1), 0.0, schema=ANCHOR.key)
    expect(isinstance(read, CacheEntry), "read through its own schema it is good")
    other = cache.lookup(key(1), 0.0, schema=(ANCHOR.schema_id, ANCHOR.schema_version + 1))
    expect(other is CacheErrorCode.SCHEMA_MISMATCH, "read through another it is not")


# Schemas

HEADER = SchemaDescriptor(
    0x01020304,
    0x05060708,
    2,
    SchemaFlags(15),
    1,
    1,
    0x090A0B0C,
    0x0D0E,
    StreamSemantics.APPEND,
    0x1112131415161718,
)


@case("l1.schema.descriptor.layout.validation")
def schema_layout(evidence: Evidence) -> None:
    data = HEADER.pack()
    evidence.note(data.hex())
    places = {
        "schema_id": (0, 4),
        "schema_version": (4, 4),
        "profile_id": (8, 2),
        "schema_flags": (10, 2),
        "min_version_major": (12, 1),
        "max_version_major": (13, 1),
        "body_bytes": (16, 4),
        "dependency_count": (20, 2),
        "default_stream_semantics": (22, 2),
        "schema_hash": (24, 8),
    }
    expect(len(data) == 32, "the header has 32 bytes")
    for name, (offset, size) in places.items():
        value = int.from_bytes(data[offset : offset + size], "little")
        expect(value == int(getattr(HEADER, name)), f"{name} stands at offset {offset}")
    wrong = data[:14] + b"\1" + data[15:]
    expect_refusal(Outcome.RESERVED_NON_ZERO, "a reserved byte", SchemaDescriptor.parse, wrong)


@case("l1.schema.descriptor.flags.validation")
def schema_flags(evidence: Evidence) -> None:
    names = {member.name: int(member) for member in SchemaFlags}
    evidence.note(str(names))
    expect(names == {"CACHEABLE": 1, "CRITICAL": 2, "DEFAULT_BINDABLE": 4, "HASH_STABLE": 8}, "the four bits are these")
    registry = SchemaRegistry(builtin_registry())
    registry.install(Schema(1, 1, 2, 5))
    registry.install(Schema(2, 1, 2, 5, int(SchemaFlags.DEFAULT_BINDABLE)))
    expect(not registry.default_bindable(2, 1, 1), "without default_bindable it is no session default")
    expect(registry.default_bindable(2, 2, 1), "with it it is")
    link = Link(evidence)
    mine, _ = link.open()
    for version, flags in ((1, SchemaFlags.CACHEABLE), (2, SchemaFlags(0))):
        header = SchemaDescriptor(0x2001, version, 2, flags, schema_hash=9)
        message = CachePut(0, 0x2001, version, ObjectKind.TOOL_SCHEMA, 1000)
        link.client.machine.put_object(mine, message, header.pack())
        link.pump()
        ack = link.client.last(CacheAnswered).packet.metadata
        ttl = ack.accepted_ttl_ms if isinstance(ack, CacheAck) else -1
        expect(ttl == (1000 if flags else 0), "cacheable gets a lease, without it none")
    conflict = Schema(2, 1, 2, 6, int(SchemaFlags.HASH_STABLE))
    expect_code(SchemaErrorCode.SCHEMA_HASH_CONFLICT, "another hash", registry.install, conflict)
    wrong = bytearray(HEADER.pack())
    wrong[10] |= 0x10
    expect_refusal(Outcome.RESERVED_BITS, "bit 4", SchemaDescriptor.parse, bytes(wrong))


@case("l1.schema.descriptor.default_stream.validation")
def schema_stream(evidence: Evidence) -> None:
    streams = {
        semantics.name.lower(): Schema(1, 1, 2, 5, default_stream_semantics=semantics).streams
        for semantics in StreamSemantics
    }
    evidence.note(str(streams))
    expect(streams["append"], "append builds on what came before")
    expect(not streams["snapshot"] and not streams["replace"], "snapshot and replace stand alone")
    expect(ANCHOR.streams, "the standard token schema is a stream")
    wrong = bytearray(HEADER.pack())
    wrong[22] = 6
    expect_refusal(Outcome.UNKNOWN_ENUM, "an unknown semantics", SchemaDescriptor.parse, bytes(wrong))


@case("l1.schema.registry.install_update.validation")
def schema_install(evidence: Evidence) -> None:
    registry = SchemaRegistry(builtin_registry())
    expect(registry.install(Schema(0x2001, 1, 2, 5)) is Installed.INSTALLED, "a new schema is installed")
    expect(registry.install(Schema(0x2001, 1, 2, 5)) is Installed.ALREADY_INSTALLED, "the same again is no error")
    expect(registry.install(Schema(0x2001, 2, 2, 6)) is Installed.UPDATED, "a higher version updates")

    def bind(schema_id: int, version: int) -> Schema | None:
        return registry.bind(2, schema_id, version, override=True, session=NO_DEFAULT)

    expect(bind(0x2001, 1) is not None, "the older version can still be bound")
    expect_code(SchemaErrorCode.SCHEMA_UNKNOWN, "an unknown schema", bind, 0x3001, 1)
    expect_code(SchemaErrorCode.SCHEMA_VERSION_UNKNOWN, "an unknown version", bind, 0x2001, 3)
    conflict = Schema(0x2001, 1, 2, 99)
    expect_code(SchemaErrorCode.SCHEMA_HASH_CONFLICT, "another hash", registry.install, conflict)
    kept = bind(0x2001, 1)
    expect(kept is not None and kept.schema_hash == 5, "its hash never changes")


@case("l1.schema.registry.invalidate_conflict.validation")
def schema_invalidate(evidence: Evidence) -> None:
    registry = SchemaRegistry(builtin_registry())
    registry.install(Schema(0x2001, 1, 2, 5))
    registry.install(Schema(0x2002, 1, 2, 5, dependency_count=1, dependencies=((0x2001, 1),)))
    refusals = (
        (SchemaErrorCode.SCHEMA_UPDATE_REJECTED, Schema(0x2003, 1, 0xFFFF, 5), "an unregistered profile"),
        (SchemaErrorCode.SCHEMA_INCOMPATIBLE, Schema(0x2003, 1, 2, 5, 0, 2, 3), "a window without 1"),
        (SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING, Schema(0x2003, 1, 2, 5, dependency_count=1), "no dependency"),
        (SchemaErrorCode.SCHEMA_HASH_CONFLICT, Schema(0x2001, 1, 2, 6), "another hash"),
    )
    for code, schema, demand in refusals:
        expect_code(code, demand, registry.install, schema)
    registry.invalidate(0x2001, 1)
    expect_code(SchemaErrorCode.SCHEMA_VERSION_UNKNOWN, "absent", registry.invalidate, 0x2001, 1)
    expect_code(
        SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING,
        "a dependant of what was invalidated",
        registry.bind,
        2,
        0x2002,
        1,
        override=True,
        session=NO_DEFAULT,
    )
    expect_code(SchemaErrorCode.SCHEMA_UPDATE_REJECTED, "the standard schema", registry.invalidate, *ANCHOR.key)
    evidence.note(f"left: {[each.key for each in registry]}")
