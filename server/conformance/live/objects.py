"""Objects and schemas at a running server: leases, versions, dependencies and the registry, by their stable codes."""

from __future__ import annotations

from typing import Final

import trio

from protocol.nnrp.descriptors import ObjectReference, SchemaDescriptor
from protocol.nnrp.enums import (
    CacheAckStatus,
    CacheErrorCode,
    DependencyKind,
    DescriptorFlags,
    ErrorScope,
    ExtensionKind,
    ExtType,
    InvalidateScope,
    LeaseOwnerScope,
    MessageType,
    ObjectKind,
    PayloadKind,
    SchemaErrorCode,
    SchemaFlags,
    StreamSemantics,
)
from protocol.nnrp.extensions import ALL_FEATURES, ControlExtension, ObjectMetaEntry, pack_extensions
from protocol.nnrp.messages import CacheAck, CacheInvalidate, CachePut, Error, FrameSubmit, Ping
from protocol.nnrp.regions import ExtensionFrame, Regions, TypedPayload
from protocol.nnrp.vendor import Dependency, ObjectExpect, ObjectMeta
from server.conformance.case import Evidence, expect
from server.conformance.link import OPEN
from server.conformance.live.judge import live_case
from server.conformance.live.peer import Peer, metadata
from server.conformance.live.place import Place

__all__ = [
    "dependency_code",
    "expired_code",
    "install",
    "miss_code",
    "schema_error_codes",
    "version_code",
]

_KIND: Final = ObjectKind.PROMPT_SEGMENT
_TTL: Final = 60_000
_DEFAULT_TTL: Final = 30_000


class Store:
    """A session with the operation extensions, and what is done with its objects."""

    def __init__(self, peer: Peer, session_id: int) -> None:
        self.peer = peer
        self.session_id = session_id
        self._frame = 0

    @classmethod
    async def open(cls, peer: Peer) -> Store:
        return cls(peer, await peer.opened(OPEN, ALL_FEATURES))

    async def put(
        self,
        number: int,
        version: int,
        content: bytes = b"content",
        *,
        ttl: int = _TTL,
        dependencies: tuple[Dependency, ...] = (),
        owner: LeaseOwnerScope = LeaseOwnerScope.SESSION,
        operation: int = 0,
        whole_connection: bool = False,
    ) -> CacheAck:
        meta = ObjectMeta(number, version, lease_owner_scope=owner, owner_operation_id=operation)
        entry = ObjectMetaEntry(meta, dependencies)
        body = content + pack_extensions([ControlExtension.of(ExtType.OBJECT_META, entry)])
        message = CachePut(0, 0, number, _KIND, ttl, object_bytes=len(content))
        await self.peer.send(message, body, session_id=self.session_id)
        return metadata(await self.peer.take(MessageType.CACHE_ACK), CacheAck)

    async def refer(self, number: int, version: int = 0) -> int:
        """Submit with a reference; the code it is refused with, 0 when it is answered by a result."""
        self._frame += 1
        expected = ExtensionFrame.of(ExtensionKind.OBJECT_EXPECT, (ObjectExpect(number, version),))
        payload = TypedPayload.of(
            b"x", profile_id=2, schema_id=0x1001, schema_version=3, flags=DescriptorFlags.TERMINAL
        )
        body = Regions((payload,), references=(ObjectReference(_KIND, 0, 0, number),), extensions=(expected,))
        message = FrameSubmit(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK, payload_frame_count=1)
        await self.peer.send(message, body, session_id=self.session_id, frame_id=self._frame)
        packet = await self.peer.receive()
        if packet is not None and packet.kind is MessageType.ERROR:
            error = metadata(packet, Error)
            expect(error.error_scope is ErrorScope.FRAME and not error.is_fatal, "a reference fails at frame scope")
            expect(error.related_frame_id == self._frame, "and names its frame")
            return error.error_code
        expect(packet is not None and packet.kind is MessageType.RESULT_PUSH, "what resolves is carried out")
        return 0


async def install(
    peer: Peer, session_id: int, header: SchemaDescriptor, body: bytes = b"", depends: tuple[Dependency, ...] = ()
) -> int:
    """Install a schema; the code it is refused with, 0 when it is there now."""
    content = header.pack() + body
    extension = b""
    if depends:
        entry = ObjectMetaEntry(ObjectMeta(1, 1), depends)
        extension = pack_extensions([ControlExtension.of(ExtType.OBJECT_META, entry)])
    message = CachePut(
        0, header.schema_id, header.schema_version, ObjectKind.TOOL_SCHEMA, _TTL, object_bytes=len(content)
    )
    await peer.send(message, content + extension, session_id=session_id)
    ack = metadata(await peer.take(MessageType.CACHE_ACK), CacheAck)
    expect((ack.status is CacheAckStatus.REJECTED) == (ack.detail_code != 0), "a refusal has its code")
    return ack.detail_code


async def bind(peer: Peer, session_id: int, frame_id: int, schema_id: int, version: int, profile_id: int = 2) -> int:
    """Submit a payload of that schema; the code it is refused with, 0 when it is answered."""
    payload = TypedPayload.of(
        b"x",
        profile_id=profile_id,
        schema_id=schema_id,
        schema_version=version,
        flags=DescriptorFlags.TERMINAL | DescriptorFlags.SCHEMA_OVERRIDE,
    )
    message = FrameSubmit(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK, payload_frame_count=1)
    await peer.send(message, Regions((payload,)), session_id=session_id, frame_id=frame_id)
    packet = await peer.receive()
    if packet is not None and packet.kind is MessageType.ERROR:
        error = metadata(packet, Error)
        expect(error.error_scope is ErrorScope.FRAME and not error.is_fatal, "a binding fails at frame scope")
        return error.error_code
    expect(packet is not None and packet.kind is MessageType.RESULT_PUSH, "what can be bound is carried out")
    return 0


# The codes of the cache


async def miss_code(place: Place) -> int:
    async with place.peer() as peer:
        return await (await Store.open(peer)).refer(99)


async def expired_code(place: Place) -> int:
    async with place.peer() as peer:
        store = await Store.open(peer)
        ack = await store.put(1, 1, ttl=800)
        expect(ack.accepted_ttl_ms == 800, "the lease has the TTL asked for")
        expect(await store.refer(1) == 0, "it is live before the end")
        await trio.sleep(0.9)
        return await store.refer(1)


async def version_code(place: Place) -> int:
    async with place.peer() as peer:
        store = await Store.open(peer)
        await store.put(1, 3)
        expect(await store.refer(1, 3) == 0, "version 3 is there")
        expect(await store.refer(1, 2) == CacheErrorCode.VERSION_MISMATCH, "version 2 is not")
        return await store.refer(1, 4)


async def dependency_code(place: Place) -> int:
    async with place.peer() as peer:
        store = await Store.open(peer)
        await store.put(1, 1)
        await store.put(2, 1, dependencies=(Dependency(DependencyKind.OBJECT, id=1, version=1),))
        await store.put(3, 1, dependencies=(Dependency(DependencyKind.OBJECT, id=2, version=1),))
        expect(await store.refer(3) == 0, "a whole chain is good")
        await store.put(1, 2, b"new")
        answer = await store.put(4, 1, dependencies=(Dependency(DependencyKind.OBJECT, id=1, version=1),))
        expect(answer.detail_code == CacheErrorCode.DEPENDENCY_INVALID, "a put on a broken dependency is refused")
        return await store.refer(3)


@live_case("l1.cache.error_code.cache_miss.validation")
async def cache_miss(place: Place, evidence: Evidence) -> None:
    expect(await miss_code(place) == CacheErrorCode.CACHE_MISS, "an object never stored is a cache_miss")


@live_case("l1.cache.error_code.lease_expired.validation")
async def lease_expired(place: Place, evidence: Evidence) -> None:
    expect(await expired_code(place) == CacheErrorCode.LEASE_EXPIRED, "after its end it is lease_expired")


@live_case("l1.cache.error_code.version_mismatch.validation")
async def version_mismatch(place: Place, evidence: Evidence) -> None:
    expect(await version_code(place) == CacheErrorCode.VERSION_MISMATCH, "no other version is taken silently")


@live_case("l1.cache.error_code.dependency_invalid.validation", "l1.cache.dependency_invalidation.validation")
async def dependency_invalid(place: Place, evidence: Evidence) -> None:
    expect(await dependency_code(place) == CacheErrorCode.DEPENDENCY_INVALID, "a broken chain is dependency_invalid")
    async with place.peer() as peer:
        store = await Store.open(peer)
        header = SchemaDescriptor(0x7001, 1, 2, SchemaFlags(0), schema_hash=5)
        expect(await install(peer, store.session_id, header) == 0, "a schema is installed")
        await store.put(3, 1, dependencies=(Dependency(DependencyKind.SCHEMA, id=0x7001, version=1),))
        expect(await store.refer(3) == 0, "what depends on it is good")
        about = CacheInvalidate(InvalidateScope.OBJECT_KEY, 0, 0x7001, 1, int(SchemaErrorCode.SCHEMA_UPDATE_REJECTED))
        await peer.send(about, session_id=store.session_id)
        expect(await store.refer(3) == CacheErrorCode.DEPENDENCY_INVALID, "then no longer")


@live_case("l1.cache.error_code.schema_mismatch.validation")
async def schema_mismatch(place: Place, evidence: Evidence) -> None:
    """No message of preview3 says by which schema an object is to be read, so no peer can read one by another: what can be
    read over the wire is never taken through a schema that is not its own. The rule itself is decided on the cache."""
    async with place.peer() as peer:
        store = await Store.open(peer)
        header = SchemaDescriptor(0x7002, 1, 2, SchemaFlags.CACHEABLE, schema_hash=5)
        expect(await install(peer, store.session_id, header) == 0, "a schema object is stored")
        expect(await bind(peer, store.session_id, 50, 0x7002, 1) == 0, "by its own version it is read")
        code = await bind(peer, store.session_id, 51, 0x7002, 2)
        expect(code == SchemaErrorCode.SCHEMA_VERSION_UNKNOWN, "by another it is not")


@live_case("l1.cache.object_version.monotonicity.validation")
async def object_version(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        store = await Store.open(peer)
        expect((await store.put(1, 3, b"three")).status is CacheAckStatus.ACCEPTED, "version 3 is stored")
        for version, content in ((2, b"two"), (3, b"other")):
            ack = await store.put(1, version, content)
            expect(ack.detail_code == CacheErrorCode.VERSION_MISMATCH, f"version {version} is stale")
        expect((await store.put(1, 3, b"three")).detail_code == 0, "the same again is a renewal")
        expect((await store.put(1, 4, b"four")).status is CacheAckStatus.REPLACED, "version 4 replaces it")
        expect(await store.refer(1, 4) == 0, "and is what is read")


@live_case("l1.cache.lease_owner_scope.validation")
async def lease_owner(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        store = await Store.open(peer)
        refused = await store.put(4, 1, owner=LeaseOwnerScope.OPERATION, operation=77)
        expect(refused.status is CacheAckStatus.REJECTED, "an operation that is not live cannot own a lease")
        await peer.submit(store.session_id, 90, b"sleep=600;owner")
        ack = await store.put(1, 1, owner=LeaseOwnerScope.OPERATION, operation=90)
        expect(ack.detail_code == 0, "one that is can")
        await store.put(2, 1, owner=LeaseOwnerScope.SESSION)
        await peer.finals(90)
        store._frame = 90
        expect(await store.refer(1) != 0, "the operation's lease ends with it")
        expect(await store.refer(2) == 0, "the session's does not")


# Schemas


def _header(schema_id: int, version: int = 1, **fields: object) -> SchemaDescriptor:
    return SchemaDescriptor(schema_id, version, 2, schema_hash=5).replace(**fields)


async def schema_error_codes(place: Place) -> dict[str, int]:
    """Each code of the family as the server sends it."""
    async with place.peer() as peer:
        session_id = (await Store.open(peer)).session_id
        await install(peer, session_id, _header(0x7001))
        return {
            "schema_unknown": await bind(peer, session_id, 1, 0x7FFF, 1),
            "schema_version_unknown": await bind(peer, session_id, 2, 0x7001, 9),
            "schema_hash_conflict": await install(peer, session_id, _header(0x7001, schema_hash=6)),
            "schema_incompatible": await install(
                peer, session_id, _header(0x7003, min_version_major=2, max_version_major=3)
            ),
            "schema_dependency_missing": await install(peer, session_id, _header(0x7004, dependency_count=1)),
            "schema_update_rejected": await install(peer, session_id, _header(0x7005, profile_id=0xFFFF)),
        }


@live_case("l1.schema.descriptor.layout.validation")
async def schema_layout(place: Place, evidence: Evidence) -> None:
    """Every field of the header means at the server what stands at its offset: each one, changed alone, is seen."""
    async with place.peer() as peer:
        session_id = (await Store.open(peer)).session_id
        good = _header(0x7010)
        expect(await install(peer, session_id, good) == 0, "the header is taken")
        for offset, demand, code in (
            (24, "another hash", SchemaErrorCode.SCHEMA_HASH_CONFLICT),
            (16, "a body that is not there", SchemaErrorCode.SCHEMA_INCOMPATIBLE),
            (12, "a lowest major of 2", SchemaErrorCode.SCHEMA_INCOMPATIBLE),
            (9, "profile 258", SchemaErrorCode.SCHEMA_UPDATE_REJECTED),
        ):
            version = 1 if offset == 24 else 2
            wrong = bytearray(good.replace(schema_version=version).pack())
            wrong[offset] += 1
            wrong[13] += 2 * (offset == 12)
            message = CachePut(0, 0x7010, version, ObjectKind.TOOL_SCHEMA, _TTL, object_bytes=len(wrong))
            await peer.send(message, bytes(wrong), session_id=session_id)
            ack = metadata(await peer.take(MessageType.CACHE_ACK), CacheAck)
            expect(ack.detail_code == code, f"{demand} at offset {offset}: {code.name.lower()}")


@live_case("l1.schema.descriptor.flags.validation")
async def schema_flags(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        session_id = (await Store.open(peer)).session_id
        for number, flags in enumerate((SchemaFlags.CACHEABLE, SchemaFlags(0))):
            header = _header(0x7020 + number, schema_flags=flags)
            message = CachePut(0, header.schema_id, 1, ObjectKind.TOOL_SCHEMA, 1000, object_bytes=32)
            await peer.send(message, header.pack(), session_id=session_id)
            ack = metadata(await peer.take(MessageType.CACHE_ACK), CacheAck)
            expect(ack.accepted_ttl_ms == (1000 if flags else 0), "cacheable gets a lease, without it none")
        wrong = bytearray(_header(0x7030).pack())
        wrong[10] |= 0x10
        message = CachePut(0, 0x7030, 1, ObjectKind.TOOL_SCHEMA, _TTL, object_bytes=32)
        await peer.send(message, bytes(wrong), session_id=session_id)
        ack = metadata(await peer.take(MessageType.CACHE_ACK), CacheAck)
        expect(ack.status is CacheAckStatus.REJECTED, "flag bit 4 is refused")


@live_case("l1.schema.descriptor.default_stream.validation")
async def schema_stream(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        session_id = (await Store.open(peer)).session_id
        for semantics in StreamSemantics:
            header = _header(0x7040 + semantics, default_stream_semantics=semantics)
            expect(await install(peer, session_id, header) == 0, f"{semantics.name.lower()} is a semantics")
        wrong = bytearray(_header(0x7050).pack())
        wrong[22] = 6
        message = CachePut(0, 0x7050, 1, ObjectKind.TOOL_SCHEMA, _TTL, object_bytes=32)
        await peer.send(message, bytes(wrong), session_id=session_id)
        ack = metadata(await peer.take(MessageType.CACHE_ACK), CacheAck)
        expect(ack.status is CacheAckStatus.REJECTED, "6 is none")


@live_case("l1.schema.registry.install_update.validation")
async def schema_install(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        session_id = (await Store.open(peer)).session_id
        for header in (_header(0x7001), _header(0x7001), _header(0x7001, 2, schema_hash=6)):
            expect(await install(peer, session_id, header) == 0, "installed, installed already, updated")
        expect(await bind(peer, session_id, 1, 0x7001, 1) == 0, "the older version can still be bound")
        expect(await bind(peer, session_id, 2, 0x7001, 2) == 0, "the newer too")
        code = await bind(peer, session_id, 3, 0x7001, 3)
        expect(code == SchemaErrorCode.SCHEMA_VERSION_UNKNOWN, "an unknown version is not")
        code = await install(peer, session_id, _header(0x7001, schema_hash=99))
        expect(code == SchemaErrorCode.SCHEMA_HASH_CONFLICT, "a hash never changes")


@live_case("l1.schema.registry.invalidate_conflict.validation")
async def schema_invalidate(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        session_id = (await Store.open(peer)).session_id
        depends = (Dependency(DependencyKind.SCHEMA, id=0x7001, version=1),)
        await install(peer, session_id, _header(0x7001))
        code = await install(peer, session_id, _header(0x7002, dependency_count=1), depends=depends)
        expect(code == 0, "what its dependency has is installed")
        expect(await bind(peer, session_id, 1, 0x7002, 1) == 0, "and can be bound")
        about = CacheInvalidate(InvalidateScope.OBJECT_KEY, 0, 0x7001, 1, int(SchemaErrorCode.SCHEMA_UPDATE_REJECTED))
        await peer.send(about, session_id=session_id)
        code = await bind(peer, session_id, 2, 0x7002, 1)
        expect(code == SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING, "a dependant of what was invalidated cannot")
        await peer.send(about, session_id=session_id)
        await peer.refused(int(SchemaErrorCode.SCHEMA_VERSION_UNKNOWN), "absent")
        codes = await schema_error_codes(place)
        expect(len(set(codes.values())) == len(codes), "the outcomes stay distinct")


@live_case("l2.schema.registry.error_mapping.critical_unknown.validation")
async def critical_unknown(place: Place, evidence: Evidence) -> None:
    """Through our client: the operation ends with the stable code, the session goes on."""
    from client.nnrp import NnrpOperationEnded

    async with place.client() as connection, await connection.open_session() as session:
        for schema_id, version, code in (
            (0x7001, 1, SchemaErrorCode.SCHEMA_UNKNOWN),
            (0x1001, 9, SchemaErrorCode.SCHEMA_VERSION_UNKNOWN),
        ):
            payload = TypedPayload.of(
                b"x",
                profile_id=2,
                schema_id=schema_id,
                schema_version=version,
                flags=DescriptorFlags.SCHEMA_OVERRIDE,
            )
            submission = await session.submit([payload])
            try:
                await submission.result()
            except NnrpOperationEnded as ended:
                evidence.note(repr(ended))
                expect(ended.code == code, f"schema {schema_id:#x} v{version}: {code.name.lower()}")
            else:
                expect(False, f"schema {schema_id:#x} v{version} is refused")
        expect((await session.request(b"x")).data == b"x", "the session stays usable")


@live_case("l2.schema.registry.conflict_error_mapping.validation")
async def conflict_mapping(place: Place, evidence: Evidence) -> None:
    async with place.peer() as peer:
        session_id = (await Store.open(peer)).session_id
        codes = [
            await install(peer, session_id, header)
            for header in (_header(0x7001), _header(0x7001, schema_hash=6), _header(0x7001, 2, profile_id=0xFFFF))
        ]
        wanted = [0, SchemaErrorCode.SCHEMA_HASH_CONFLICT, SchemaErrorCode.SCHEMA_UPDATE_REJECTED]
        expect(codes == wanted, "hash_conflict and update_rejected stay distinct")
        await peer.send(Ping())
        await peer.take(MessageType.PONG)
