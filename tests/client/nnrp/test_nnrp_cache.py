"""Objects, leases and schemas of our client at our server, over loopback sockets."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path

import attrs
import pytest
import trio

from client.nnrp import (
    Lease,
    NnrpCacheRefused,
    NnrpConnection,
    NnrpConnectionLost,
    NnrpOperationEnded,
    NnrpOptions,
    NnrpSession,
    NnrpSessionOver,
    ObjectVersion,
    SubmitOptions,
    open_nnrp,
    schema_dependency,
)
from protocol.nnrp.enums import (
    BudgetPolicy,
    CacheErrorCode,
    DescriptorFlags,
    DtypeId,
    ErrorCode,
    InvalidateScope,
    LeaseOwnerScope,
    ObjectKind,
    PayloadKind,
    ProfileId,
    ResultClass,
    SchemaErrorCode,
    SchemaFlags,
    SessionErrorCode,
    SessionFlags,
    StreamSemantics,
)
from protocol.nnrp.machines.cache_records import CacheLimits, CachePool
from protocol.nnrp.machines.connection import ConnectionLimits
from protocol.nnrp.machines.opening import OpenPolicy
from protocol.nnrp.messages import FrameSubmit
from protocol.nnrp.regions import InlineObject, Regions, TypedPayload
from protocol.nnrp.tensor import TensorSection, TileIndexMode, pack_sections, pack_tile_index
from server.nnrp.policy import ServingPolicy
from server.nnrp.submit import Answer, Emit, Submit, text_payload
from tests.support.nnrp import Served, functions, serving_nnrp
from tests.support.nnrp_transports import EVERYWHERE, serving_on

SEGMENT = ObjectKind.PROMPT_SEGMENT


async def recite(submit: Submit, emit: Emit) -> Answer:
    """What is referred to, then what was submitted; ``slow`` never ends."""
    said = b"".join([*submit.referenced(SEGMENT), *(bytes(each) for each in submit.data())])
    if said.endswith(b"slow"):
        await trio.sleep_forever()
    payload = text_payload(said, terminal=True, schema=(0x1001, 3))
    return Answer(payloads=(payload,), kinds=PayloadKind.TOKEN_CHUNK, profile_id=2)


async def said(session: NnrpSession, text: bytes, *objects: Lease, **fields: object) -> bytes:
    options = attrs.evolve(SubmitOptions(objects=objects), **fields)
    return (await (await session.submit(text, options=options)).result()).data


async def code_of(call: Awaitable[object]) -> int:
    """The stable code of a refused put, or of an operation that ended."""
    with pytest.raises((NnrpCacheRefused, NnrpOperationEnded)) as refused:
        await call
    assert isinstance(refused.value, (NnrpCacheRefused, NnrpOperationEnded))
    return refused.value.code


async def test_an_object_is_stored_and_referred_to() -> None:
    """nnrp-wire 7.15, 8.4, 13.10: a lease of --nnrp-lease-ttl-ms, 30000 unless said otherwise; the worker gets the content."""
    async with serving_nnrp(make_worker=functions(recite)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        lease = await session.cache.put((1, 2), b"You are brief. ")
        assert (lease.ttl_ms, lease.replaced, lease.kind) == (30_000, False, SEGMENT)
        assert lease.max_object_bytes > 0
        assert await said(session, b"Hello", lease) == b"You are brief. Hello"
        totals = served.service.cache_totals()
        assert (totals.leases, totals.hits, totals.misses) == (1, 1, 0)


@pytest.mark.parametrize(
    ("default", "hint", "wanted", "granted"),
    [(30_000, 0, 0, 30_000), (7_000, 0, 0, 7_000), (7_000, 2_000, 0, 2_000), (7_000, 0, 500, 500)],
    ids=["as documented", "as configured", "as the session asked", "as the put asked"],
)
async def test_how_long_a_lease_is(default: int, hint: int, wanted: int, granted: int) -> None:
    """13.10 item 2: the put's ttl_ms, else the session's lease_ttl_hint_ms, else the server's default."""
    policy = ServingPolicy(opening=OpenPolicy(lease_ttl_ms=default))
    async with serving_nnrp(policy) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session(lease_ttl_ms=hint)
        assert (await session.cache.put((0, 1), b"x", ttl_ms=wanted)).ttl_ms == granted


@EVERYWHERE
async def test_the_versions_of_an_object_only_go_up(tmp_path: Path, transport: str) -> None:
    """C-094, 13.10 item 1: an older version, or the same with other content, is refused; the same again renews its lease;
    a newer one replaces it under a lease of its own."""
    async with (
        serving_on(transport, tmp_path, make_worker=functions(recite)) as served,
        open_nnrp(served.url, served.options) as connection,
    ):
        session = await connection.open_session()

        async def put(version: int, content: bytes) -> Lease:
            return await session.cache.put((0, 1), content, version=ObjectVersion(object_id=1, version=version))

        third = await put(3, b"three ")
        assert await code_of(put(2, b"two")) == CacheErrorCode.VERSION_MISMATCH
        assert await code_of(put(3, b"other")) == CacheErrorCode.VERSION_MISMATCH
        assert await said(session, b"!", third) == b"three !"
        renewed = await put(3, b"three ")
        assert (renewed.lease_id, renewed.replaced) == (third.lease_id, False)
        fourth = await put(4, b"four ")
        assert fourth.replaced
        assert fourth.lease_id not in (0, third.lease_id)
        assert await said(session, b"!", fourth) == b"four !"
        assert await code_of(said(session, b"!", third)) == CacheErrorCode.VERSION_MISMATCH


@EVERYWHERE
async def test_expired_and_missing_are_different_answers(tmp_path: Path, transport: str) -> None:
    """C-092, 13.10 item 5: lease_expired, cache_miss, version_mismatch; no operation starts and the session goes on."""
    async with (
        serving_on(transport, tmp_path, make_worker=functions(recite)) as served,
        open_nnrp(served.url, served.options) as connection,
    ):
        session = await connection.open_session()
        short = await session.cache.put((0, 1), b"short", ttl_ms=1)
        await trio.sleep(0.01)
        assert await code_of(said(session, b"", short)) == CacheErrorCode.LEASE_EXPIRED
        missing = attrs.evolve(short, key=(0, 99))
        assert await code_of(said(session, b"", missing)) == CacheErrorCode.CACHE_MISS
        live = await session.cache.put((0, 2), b"v3", version=ObjectVersion(object_id=2, version=3))
        assert await code_of(said(session, b"", attrs.evolve(live, version=2))) == CacheErrorCode.VERSION_MISMATCH
        assert await code_of(said(session, b"", attrs.evolve(live, object_id=7))) == CacheErrorCode.VERSION_MISMATCH
        assert await said(session, b"!", live) == b"v3!"
        assert served.service.statistics().operations == 0
        totals = served.service.cache_totals()
        assert (totals.expired, totals.misses, totals.hits) == (1, 4, 1)


async def test_a_dependency_that_breaks_is_told_where_it_matters() -> None:
    """13.10 items 5 and 6: a missing dependency is refused at once; one that is replaced or invalidated later makes what was
    built on it answer dependency_invalid."""
    async with serving_nnrp(make_worker=functions(recite)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        base = await session.cache.put((0, 1), b"base ", version=ObjectVersion(object_id=1, version=1))
        built_on = ObjectVersion(object_id=2, version=1, dependencies=(base.dependency,))
        top = await session.cache.put((0, 2), b"top ", version=built_on)
        assert await said(session, b"!", top) == b"top !"
        lost = ObjectVersion(object_id=3, version=1, dependencies=(attrs.evolve(base, version=9).dependency,))
        assert await code_of(session.cache.put((0, 3), b"x", version=lost)) == CacheErrorCode.DEPENDENCY_INVALID
        unknown = ObjectVersion(object_id=3, version=1, dependencies=(schema_dependency(0x2001, 1),))
        refused = session.cache.put((0, 3), b"x", version=unknown)
        assert await code_of(refused) == SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING
        await session.cache.put((0, 1), b"new base ", version=ObjectVersion(object_id=1, version=2))
        assert await code_of(said(session, b"!", top)) == CacheErrorCode.DEPENDENCY_INVALID


async def test_a_lease_ends_with_the_operation_that_owns_it() -> None:
    """13.10 item 3; nnrp-extensions lease_owner_scope 2: it needs a live operation, and goes with it."""
    async with serving_nnrp(make_worker=functions(recite)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        running = await session.submit(b"slow")
        owned = ObjectVersion(
            object_id=1, version=1, owner=LeaseOwnerScope.OPERATION, owner_operation_id=running.operation_id
        )
        lease = await session.cache.put((0, 1), b"mine ", version=owned)
        assert await said(session, b"!", lease) == b"mine !"
        running.cancel()
        await running.wait_over()
        assert await code_of(said(session, b"!", lease)) == CacheErrorCode.LEASE_EXPIRED
        again = session.cache.put((0, 2), b"x", version=attrs.evolve(owned, object_id=2))
        assert await code_of(again) == SessionErrorCode.LEASE_POLICY_REJECTED
        assert served.service.violations == 1


async def test_without_the_flag_there_are_no_leases() -> None:
    """13.10 item 4: allow_cache_leases must have been asked for and acknowledged."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session(flags=SessionFlags(0))
        assert await code_of(session.cache.put((0, 1), b"x")) == SessionErrorCode.LEASE_POLICY_REJECTED
        assert served.service.cache_totals().rejected == 1


async def test_over_the_limits() -> None:
    """13.10 item 9: an object too large, or one too many, is refused with limit_exceeded; what is there stays."""
    limits = ConnectionLimits(cache=CacheLimits(max_entries=2, max_object_bytes=8))
    async with (
        serving_nnrp(ServingPolicy(limits=limits), functions(recite)) as served,
        open_nnrp(served.url) as connection,
    ):
        session = await connection.open_session()
        assert await code_of(session.cache.put((0, 1), bytes(9))) == ErrorCode.LIMIT_EXCEEDED
        first = await session.cache.put((0, 1), b"1")
        await session.cache.put((0, 2), b"2")
        assert await code_of(session.cache.put((0, 3), b"3")) == ErrorCode.LIMIT_EXCEEDED
        assert await said(session, b"!", first) == b"1!"


@pytest.mark.parametrize(
    ("scope", "fields", "left"),
    [
        (InvalidateScope.WHOLE_SESSION, {}, ""),
        (InvalidateScope.NAMESPACE, {"namespace": 1}, "ab"),
        (InvalidateScope.OBJECT_KIND, {"namespace": 0, "kind": SEGMENT}, "cd"),
        (InvalidateScope.OBJECT_KEY, {"namespace": 1, "key": (0, 1)}, "abd"),
    ],
    ids=["session", "namespace", "kind", "key"],
)
async def test_invalidation_by_scope(scope: InvalidateScope, fields: dict[str, object], left: str) -> None:
    """7.15: the four scopes. What is gone is a cache_miss, what is not still serves; a sibling session is not touched."""
    async with serving_nnrp(make_worker=functions(recite)) as served, open_nnrp(served.url) as connection:
        session, sibling = await connection.open_session(), await connection.open_session()
        leases = {}
        for name, namespace, key in (("a", 0, 1), ("b", 0, 2), ("c", 1, 1), ("d", 1, 2)):
            leases[name] = await session.cache.put((0, key), name.encode(), namespace=namespace)
        theirs = await sibling.cache.put((0, 1), b"theirs")
        session.cache.invalidate(scope, **fields)  # type: ignore[arg-type]  # of one parameter or another
        found = ""
        for name, lease in leases.items():
            if name in left:
                found += (await said(session, b"", lease)).decode()
            else:
                assert await code_of(said(session, b"", lease)) == CacheErrorCode.CACHE_MISS
        assert found == left
        assert await said(sibling, b"", theirs) == b"theirs"


async def test_a_tensor_is_made_of_what_is_referred_to() -> None:
    """8.3, 8.4, 9.2: tile index and section table by reference; one that does not fit is schema_mismatch (13.10 item 5)."""
    section = TensorSection.of(1, [b"\1", b"\2"], dtype_id=DtypeId.UINT8, element_count_per_tile=1)
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session(profile_id=ProfileId.TENSOR, schema=(0, 0))
        table = pack_sections([section])
        index = pack_tile_index([5, 3], mode=TileIndexMode.RAW_U16)
        sections = await session.cache.put((0, 1), table, kind=ObjectKind.TENSOR_SECTION_TABLE)
        tiles = await session.cache.put((0, 2), index, kind=ObjectKind.TILE_INDEX_BLOCK)
        metadata = FrameSubmit(
            tile_count=2,
            section_count=1,
            tile_index_mode=TileIndexMode.RAW_U16,
            payload_kind_bitmap=PayloadKind.TENSOR,
        )
        options = SubmitOptions(objects=(sections, tiles))
        result = await (await session.submit_frame(metadata, Regions(), options)).result()
        assert list(result.tensor.tile_ids) == [5, 3]
        assert [bytes(each) for each in result.tensor.sections[0].tiles()] == [b"\1", b"\2"]
        await session.cache.put((0, 1), table[:-1] + b"\0\0", kind=ObjectKind.TENSOR_SECTION_TABLE)
        broken = await session.submit_frame(metadata, Regions(), options)
        assert await code_of(broken.result()) == CacheErrorCode.SCHEMA_MISMATCH


async def test_what_was_made_of_an_object_is_not_used_again_without_it() -> None:
    """13.10 item 6: a result for reuse depends on the objects it was made of; when one is replaced, there is none."""
    reuse = BudgetPolicy.ALLOW_STALE_REUSE
    async with serving_nnrp(make_worker=functions(recite)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()

        async def submit(text: bytes, *objects: Lease) -> Awaitable[object]:
            metadata = FrameSubmit(
                latency_budget_ms=60 if text == b"slow" else 0,
                payload_kind_bitmap=PayloadKind.TOKEN_CHUNK,
                payload_frame_count=1,
            )
            payload = text_payload(text, terminal=True, schema=(0x1001, 3))
            options = SubmitOptions(objects=objects, budget_policy=reuse)
            return (await session.submit_frame(metadata, Regions((payload,)), options)).result()

        lease = await session.cache.put((0, 1), b"made of this ")
        await (await submit(b"first", lease))
        reused = await (await submit(b"slow"))
        assert reused.result_class is ResultClass.STALE_REUSE  # type: ignore[attr-defined]  # a Result
        await session.cache.put((0, 1), b"made of that ")
        assert await code_of(await submit(b"slow")) == ErrorCode.FRAME_EXPIRED


async def cut_and_wait(served: Served, connection: NnrpConnection) -> None:
    before = connection.reconnects
    (link,) = served.service.links
    await trio.aclose_forcefully(link._stream)
    await served.wait_until(lambda: connection.reconnects > before and connection.connected)
    await served.wait_until(lambda: all(each.link is not None for each in served.service.sessions))


async def test_what_a_session_has_stored_comes_back_with_it() -> None:
    """13.7, 13.10 item 3: leases end with their owner: those of a resumed session go on, those that the lost
    connection owned do not; schemas stay too."""
    async with serving_nnrp(make_worker=functions(recite)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session(resumable=True)
        kept = await session.cache.put((0, 1), b"kept ")
        await session.cache.install_schema(0x2001, 1, b"{}")
        of_connection = ObjectVersion(object_id=2, version=1, owner=LeaseOwnerScope.CONNECTION)
        lost = await session.cache.put((0, 2), b"lost", version=of_connection)
        await cut_and_wait(served, connection)
        assert await said(session, b"!", kept) == b"kept !"
        assert await code_of(said(session, b"!", lost)) == CacheErrorCode.LEASE_EXPIRED
        assert await submitted_under(session, 0x2001, 1) == b"x"


async def test_calls_end_with_what_they_were_made_on() -> None:
    """Client: a put whose answer cannot come any more fails; a session that is closed takes none."""
    async with serving_nnrp() as served, open_nnrp(served.url, NnrpOptions(reconnect=None)) as connection:
        session = await connection.open_session()
        closed = await connection.open_session()
        await closed.close()
        with pytest.raises(NnrpSessionOver):
            await closed.cache.put((0, 1), b"x")
        with pytest.raises(ValueError, match="object_kind"):
            session.cache.invalidate(InvalidateScope.NAMESPACE, kind=SEGMENT)
        (link,) = served.service.links
        link.flush = lambda: None  # type: ignore[method-assign]  # a server that does not answer
        outcomes: list[BaseException] = []

        async def put() -> None:
            try:
                await session.cache.put((0, 1), b"x")
            except NnrpConnectionLost as lost:
                outcomes.append(lost)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(put)
            await served.wait_until(lambda: session.cache.pending == 1)
            await trio.aclose_forcefully(link._stream)
        assert len(outcomes) == 1
        with pytest.raises(NnrpConnectionLost):
            await session.cache.put((0, 1), b"x")


# Schemas


async def submitted_under(session: NnrpSession, schema_id: int, version: int, *, override: bool = True) -> bytes:
    payload = TypedPayload.of(
        b"x",
        profile_id=ProfileId.TOKEN,
        schema_id=schema_id,
        schema_version=version,
        flags=DescriptorFlags.SCHEMA_OVERRIDE if override else DescriptorFlags(0),
    )
    result = await session.request([payload], kind=PayloadKind.STRUCTURED_EVENT)
    return bytes(result.payloads[0].data)


@EVERYWHERE
async def test_a_schema_is_installed_and_used(tmp_path: Path, transport: str) -> None:
    """11.3 carriage, C-091: installed, installed again without effect, refused with another hash; the payload is bound to
    the first; a newer version replaces nothing of the older."""
    async with serving_on(transport, tmp_path) as served, open_nnrp(served.url, served.options) as connection:
        session = await connection.open_session()
        assert await code_of(submitted_under(session, 0x2001, 1)) == SchemaErrorCode.SCHEMA_UNKNOWN
        first = await session.cache.install_schema(0x2001, 1, b'{"a":1}', semantics=StreamSemantics.EVENT)
        assert first.ttl_ms == 0, "without the flag cacheable it lives as long as the session (11.2)"
        await session.cache.install_schema(0x2001, 1, b'{"a":1}')
        conflict = session.cache.install_schema(0x2001, 1, b'{"a":2}')
        assert await code_of(conflict) == SchemaErrorCode.SCHEMA_HASH_CONFLICT
        assert await submitted_under(session, 0x2001, 1) == b"x"
        assert (await session.cache.install_schema(0x2001, 2, b'{"a":2}')).replaced
        (machine,) = [each.machine for each in served.service.sessions]
        assert machine.store is not None
        schema = machine.store.schemas.get(0x2001, 1)
        assert schema is not None
        assert schema.body == b'{"a":1}'


@EVERYWHERE
async def test_every_schema_code_is_answered(tmp_path: Path, transport: str) -> None:
    """C-093, 11.2 – 11.4: unknown, version unknown, incompatible, dependency missing, update rejected; nothing starts, and
    the session stays usable."""
    async with serving_on(transport, tmp_path) as served, open_nnrp(served.url, served.options) as connection:
        session = await connection.open_session()
        install = session.cache.install_schema
        refused = install(0x2001, 1, b"", profile_id=9)
        assert await code_of(refused) == SchemaErrorCode.SCHEMA_UPDATE_REJECTED
        refused = install(0x2001, 1, b"", dependencies=[(0x7777, 1)])
        assert await code_of(refused) == SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING
        await install(0x2000, 1, b"base")
        await install(0x2001, 1, b"top", dependencies=[(0x2000, 1)])
        await install(0x2002, 1, b"tensor's", profile_id=ProfileId.TENSOR)
        assert await code_of(submitted_under(session, 0x3001, 1)) == SchemaErrorCode.SCHEMA_UNKNOWN
        assert await code_of(submitted_under(session, 0x2001, 9)) == SchemaErrorCode.SCHEMA_VERSION_UNKNOWN
        assert await code_of(submitted_under(session, 0x2002, 1)) == SchemaErrorCode.SCHEMA_INCOMPATIBLE
        not_said = submitted_under(session, 0x2001, 1, override=False)
        assert await code_of(not_said) == SchemaErrorCode.SCHEMA_INCOMPATIBLE
        session.cache.invalidate_schema(0x2000, 1)
        missing = submitted_under(session, 0x2001, 1)
        assert await code_of(missing) == SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING
        assert served.service.statistics().operations == 0
        assert (await session.request(b"still here")).data == b"still here"


async def test_invalidating_a_schema_that_is_not_there_changes_nothing() -> None:
    """11.3: schema_version_unknown, an ERROR that ends neither the session nor anything in it."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        running = await session.submit(b"sleep=50;x")
        await session.cache.put((0, 1), b"makes the store")
        session.cache.invalidate_schema(0x4444, 1)
        assert (await running.result()).data == b"sleep=50;x"
        assert served.service.violations == 1


async def test_a_cacheable_schema_goes_with_its_lease() -> None:
    """11.2 schema_flags: cacheable has a lease; when that is over the schema is not known any more."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        lease = await session.cache.install_schema(0x2001, 1, b"{}", flags=SchemaFlags.CACHEABLE, ttl_ms=1)
        assert lease.ttl_ms == 1
        await trio.sleep(0.01)
        assert await code_of(submitted_under(session, 0x2001, 1)) == SchemaErrorCode.SCHEMA_UNKNOWN


async def test_all_sessions_together_are_bounded() -> None:
    """Issue 5, Bad input: what sessions store together has a bound, --nnrp-cache-bytes, schemas included; what ends makes
    room again: a lease, a schema, a session, a connection."""
    pool = CachePool(100)
    policy = ServingPolicy(limits=ConnectionLimits(cache=CacheLimits(max_entries=3), cache_pool=pool))
    async with serving_nnrp(policy) as served:
        async with open_nnrp(served.url) as connection, open_nnrp(served.url) as other:
            one, two = await connection.open_session(), await other.open_session()
            await one.cache.put((0, 1), bytes(60))
            assert await code_of(two.cache.put((0, 1), bytes(60))) == ErrorCode.LIMIT_EXCEEDED
            assert await code_of(two.cache.install_schema(0x2001, 1, bytes(60))) == ErrorCode.LIMIT_EXCEEDED
            assert await code_of(submitted_under(two, 0x2001, 1)) == SchemaErrorCode.SCHEMA_UNKNOWN
            await two.cache.install_schema(0x2001, 1, b"12345678")
            assert pool.bytes == 60 + 32 + 8
            two.cache.invalidate_schema(0x2001, 1)
            await two.cache.put((0, 1), bytes(40))
            await one.close()
            await served.wait_until(lambda: pool.bytes == 40)
            await two.cache.put((0, 1), bytes(100))
            assert pool.bytes == 100
        await served.wait_until(lambda: pool.bytes == 0)


async def test_schemas_without_a_lease_are_counted_too() -> None:
    """13.10 item 9: a session cannot install schemas without end."""
    limits = ConnectionLimits(cache=CacheLimits(max_entries=2))
    async with serving_nnrp(ServingPolicy(limits=limits)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        for number in (1, 2):
            await session.cache.install_schema(0x2001, number, b"{}")
        assert await code_of(session.cache.install_schema(0x2001, 3, b"{}")) == ErrorCode.LIMIT_EXCEEDED
        assert await code_of(session.cache.put((0, 1), b"x")) == ErrorCode.LIMIT_EXCEEDED
        await session.cache.install_schema(0x2001, 2, b"{}")
        session.cache.invalidate_schema(0x2001, 1)
        await session.cache.put((0, 1), b"x")


async def test_inline_and_referenced_slots_go_together() -> None:
    """7.11 submit_mode mixed, 8.3: one slot in the body, the other by reference."""
    section = TensorSection.of(1, [b"\1", b"\2"], dtype_id=DtypeId.UINT8, element_count_per_tile=1)
    index = pack_tile_index([5, 3], mode=TileIndexMode.RAW_U16)
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session(profile_id=ProfileId.TENSOR, schema=(0, 0))
        table = await session.cache.put((0, 1), pack_sections([section]), kind=ObjectKind.TENSOR_SECTION_TABLE)
        metadata = FrameSubmit(
            tile_count=2,
            section_count=1,
            tile_index_mode=TileIndexMode.RAW_U16,
            tile_index_bytes=len(index),
            payload_kind_bitmap=PayloadKind.TENSOR,
        )
        body = Regions(inline_objects=(InlineObject(ObjectKind.TILE_INDEX_BLOCK, index),))
        result = await (await session.submit_frame(metadata, body, SubmitOptions(objects=(table,)))).result()
        assert list(result.tensor.tile_ids) == [5, 3]
        assert [bytes(each) for each in result.tensor.sections[0].tiles()] == [b"\1", b"\2"]
