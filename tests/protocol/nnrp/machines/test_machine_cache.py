"""Objects, leases, versions, dependencies, owners (nnrp-wire 13.10; nnrp-extensions Cache objects; C-092, C-094)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.nnrp.enums import (
    CacheAckStatus,
    CacheErrorCode,
    DependencyKind,
    ErrorCode,
    ExpiryPolicy,
    InvalidateScope,
    LeaseOwnerScope,
    PolicyHints,
    SchemaErrorCode,
    SessionErrorCode,
)
from protocol.nnrp.machines.cache import REMEMBERED_LEASES, ObjectCache
from protocol.nnrp.machines.cache_records import CacheEntry, CacheKey, CacheLimits, Dependency, PutMeta, PutRequest
from protocol.nnrp.machines.schemas import ANCHOR, Schema, SchemaRegistry, builtin_registry

A, R, P = CacheAckStatus.ACCEPTED, CacheAckStatus.REJECTED, CacheAckStatus.REPLACED
E = CacheErrorCode
OBJECT, SCHEMA = DependencyKind.OBJECT, DependencyKind.SCHEMA


def key(number: int = 1, *, namespace: int = 0, kind: int = 7) -> CacheKey:
    return CacheKey(namespace, 0, number, kind)


def cache(**limits: int) -> ObjectCache:
    return ObjectCache(builtin_registry(), CacheLimits(**limits), live_operation=lambda number: number == 5)


def put(
    store: ObjectCache, number: int, version: int, content: bytes = b"x", *, now: float = 0.0, ttl: int = 0, **meta: Any
) -> tuple[CacheAckStatus, int]:
    answer = store.put(PutRequest(key(number), content, ttl, meta=PutMeta(number, version, **meta)), now)
    return answer.status, answer.detail_code


def test_expired_missing_and_wrong_version_are_different_answers() -> None:
    """C-092."""
    store = cache()
    put(store, 1, 3, ttl=1000)
    assert isinstance(store.lookup(key(1), 0.5), CacheEntry)
    assert store.lookup(key(1), 0.5, version=2) is E.VERSION_MISMATCH
    assert store.lookup(key(1), 2.0) is E.LEASE_EXPIRED
    assert store.lookup(key(99), 2.0) is E.CACHE_MISS
    put(store, 1, 3, now=2.0)
    assert store.lookup(key(1), 2.0, version=9) is E.VERSION_MISMATCH
    assert store.lookup(key(1), 2.0, object_id=8) is E.VERSION_MISMATCH


def test_versions_only_go_up() -> None:
    """C-094: 3, 2, 3 with other content, 4."""
    store = cache()
    assert put(store, 1, 3, b"three") == (A, 0)
    assert put(store, 1, 2, b"two") == (R, E.VERSION_MISMATCH)
    assert put(store, 1, 3, b"other") == (R, E.VERSION_MISMATCH)
    entry = store.lookup(key(1), 0.0)
    assert isinstance(entry, CacheEntry)
    assert (entry.version, entry.content) == (3, b"three")
    assert put(store, 1, 4, b"four") == (P, 0)


def test_a_version_is_one_for_all_keys_of_an_object() -> None:
    """nnrp-extensions: object_id is the logical identity, the key only its address."""
    store = cache()
    put(store, 1, 3)
    stale = store.put(PutRequest(key(2), b"x", meta=PutMeta(1, 2)), 0.0)
    assert (stale.status, stale.detail_code) == (R, E.VERSION_MISMATCH)


def test_equality_with_the_deadline_is_expired() -> None:
    """nnrp-wire 13.10 item 2: live iff now < granted_at + ttl."""
    store = cache()
    put(store, 1, 1, ttl=1000)
    assert isinstance(store.lookup(key(1), 0.999), CacheEntry)
    assert store.lookup(key(1), 1.0) is E.LEASE_EXPIRED


def test_granted_ttl_is_capped_and_defaulted() -> None:
    store = cache(default_ttl_ms=500, max_ttl_ms=2000)
    asked = [store.put(PutRequest(key(n), b"", ttl), 0.0).accepted_ttl_ms for n, ttl in enumerate((0, 1000, 9000))]
    assert asked == [500, 1000, 2000]


def test_putting_the_same_again_renews() -> None:
    """nnrp-wire 13.10 items 1 and 7: renewal keeps the lease, a new grant makes a new one."""
    store = cache()
    first = store.put(PutRequest(key(), b"x", 1000), 0.0)
    again = store.put(PutRequest(key(), b"x", 1000), 0.9)
    assert (again.status, again.lease_id) == (A, first.lease_id)
    assert isinstance(store.lookup(key(), 1.5), CacheEntry)
    other = store.put(PutRequest(key(), b"y", 1000), 1.6)
    assert other.status is P
    assert other.lease_id > first.lease_id
    store.handle_deadline(10.0)
    late = store.put(PutRequest(key(), b"y", 1000), 10.0)
    assert late.status is A
    assert late.lease_id > other.lease_id, "a new grant never reuses a lease id"


def test_a_shorter_renewal_shortens() -> None:
    store = cache()
    store.put(PutRequest(key(), b"x", 60_000), 0.0)
    store.put(PutRequest(key(), b"x", 1000), 0.0)
    assert store.next_deadline() <= 1.0
    assert store.handle_deadline(1.0) == (key(),)


def test_renewing_a_named_lease() -> None:
    """nnrp-extensions object_meta: unknown or over → rejected, lease_expired."""
    store = cache()
    first = store.put(PutRequest(key(), b"x", 1000, meta=PutMeta(1, 1)), 0.0)
    renewed = store.put(PutRequest(key(), b"x", 1000, meta=PutMeta(1, 1, first.lease_id)), 0.5)
    assert renewed.lease_id == first.lease_id
    assert put(store, 1, 1, now=0.6, lease_id=first.lease_id + 7) == (R, E.LEASE_EXPIRED)
    assert put(store, 1, 1, now=5.0, lease_id=first.lease_id) == (R, E.LEASE_EXPIRED)


def test_replacing_under_a_kept_lease() -> None:
    store = cache()
    first = store.put(PutRequest(key(), b"x", meta=PutMeta(1, 1)), 0.0)
    second = store.put(PutRequest(key(), b"y", meta=PutMeta(1, 2, first.lease_id)), 0.0)
    assert (second.status, second.lease_id, second.object_version) == (P, first.lease_id, 2)


def test_renew_on_use() -> None:
    store = cache()
    put(store, 1, 1, ttl=1000, expiry_policy=ExpiryPolicy.RENEW_ON_USE)
    for instant in (0.9, 1.8, 2.7):
        assert isinstance(store.lookup(key(1), instant), CacheEntry)
    assert store.lookup(key(1), 3.7) is E.LEASE_EXPIRED


@pytest.mark.parametrize("hint", [*PolicyHints, PolicyHints(0x1F)])
def test_hints_bypass_no_check(hint: PolicyHints) -> None:
    """nnrp-wire 13.10 item 7: prefetch, touch, renew, evict_hint and reuse_preference get past no version, dependency, limit or lease."""
    store = cache(max_entries=2)
    assert put(store, 1, 3, ttl=1000, policy_hints=int(hint)) == (A, 0)
    assert put(store, 1, 2, policy_hints=int(hint)) == (R, E.VERSION_MISMATCH)
    assert put(store, 2, 1, dependencies=(Dependency(OBJECT, 1, 9),), policy_hints=int(hint)) == (
        R,
        E.DEPENDENCY_INVALID,
    )
    assert put(store, 2, 1, ttl=60_000, policy_hints=int(hint)) == (A, 0)
    assert put(store, 4, 1, policy_hints=int(hint)) == (R, ErrorCode.LIMIT_EXCEEDED)
    assert store.lookup(key(1), 0.5, version=2) is E.VERSION_MISMATCH
    assert store.lookup(key(1), 2.0) is E.LEASE_EXPIRED


def test_leases_end_with_their_owner() -> None:
    """nnrp-wire 13.10 item 3: operation, session, connection."""
    store = cache()
    put(store, 1, 1, owner_scope=LeaseOwnerScope.OPERATION, owner_operation_id=5)
    put(store, 2, 1, owner_scope=LeaseOwnerScope.SESSION)
    put(store, 3, 1, owner_scope=LeaseOwnerScope.CONNECTION)
    assert store.end_owner(LeaseOwnerScope.OPERATION, 6) == ()
    assert store.end_owner(LeaseOwnerScope.OPERATION, 5) == (key(1),)
    assert store.lookup(key(1), 0.0) is E.LEASE_EXPIRED
    assert store.end_owner(LeaseOwnerScope.SESSION) == (key(2),)
    assert store.end_owner(LeaseOwnerScope.CONNECTION) == (key(3),)
    assert len(store) == 0


def test_an_operation_owner_must_be_live() -> None:
    refusal = put(cache(), 1, 1, owner_scope=LeaseOwnerScope.OPERATION, owner_operation_id=6)
    assert refusal == (R, SessionErrorCode.LEASE_POLICY_REJECTED)


def test_leases_need_the_session_flag() -> None:
    """nnrp-wire 13.10 item 4."""
    store = ObjectCache(builtin_registry(), leases_allowed=False)
    answer = store.put(PutRequest(key(), b"x"), 0.0)
    assert (answer.status, answer.detail_code) == (R, SessionErrorCode.LEASE_POLICY_REJECTED)


@pytest.mark.parametrize(
    "limits",
    [{"max_entries": 1}, {"max_bytes": 5}, {"max_object_bytes": 3}],
)
def test_over_limits(limits: dict[str, int]) -> None:
    """nnrp-wire 13.10 item 9: rejected, limit_exceeded; what is there stays."""
    store = cache(**limits)
    assert put(store, 1, 1, b"abc") == (A, 0)
    assert put(store, 2, 1, b"defg") == (R, ErrorCode.LIMIT_EXCEEDED)
    assert store.statistics().entries == 1
    assert put(store, 1, 2, b"xyz") == (P, 0), "replacing what is there takes no more room"


def test_a_missing_dependency_is_refused() -> None:
    store = cache()
    assert put(store, 2, 1, dependencies=(Dependency(OBJECT, 1, 1),)) == (R, E.DEPENDENCY_INVALID)
    missing = (R, SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING)
    assert put(store, 2, 1, dependencies=(Dependency(SCHEMA, 0x2001, 1),)) == missing
    assert put(store, 2, 1, dependencies=(Dependency(SCHEMA, *ANCHOR.key),)) == (A, 0)


def test_a_dependency_that_breaks_later() -> None:
    """nnrp-extensions: when one breaks later the object answers dependency_invalid, also through a chain."""
    store = cache()
    put(store, 1, 1)
    put(store, 2, 1, dependencies=(Dependency(OBJECT, 1, 1),))
    put(store, 3, 1, dependencies=(Dependency(OBJECT, 2, 1),))
    assert set(store.dependants(Dependency(OBJECT, 1, 1))) == {key(2), key(3)}
    assert isinstance(store.lookup(key(3), 0.0), CacheEntry)
    put(store, 1, 2, b"new")
    assert store.lookup(key(3), 0.0) is E.DEPENDENCY_INVALID
    assert store.lookup(key(2), 0.0) is E.DEPENDENCY_INVALID
    assert store.lookup(key(3), 0.0, version=9) is E.VERSION_MISMATCH, "13.10 item 5: version before dependency"


def test_a_schema_dependency_that_is_invalidated() -> None:
    schemas = SchemaRegistry(builtin_registry())
    schemas.install(Schema(0x2001, 1, 2, 7))
    store = ObjectCache(schemas)
    put(store, 1, 1, dependencies=(Dependency(SCHEMA, 0x2001, 1),))
    schemas.invalidate(0x2001, 1)
    assert store.lookup(key(1), 0.0) is E.DEPENDENCY_INVALID


def test_schema_mismatch_comes_last() -> None:
    store = cache()
    store.put(PutRequest(key(), b"x", schema=(1, 1)), 0.0)
    assert isinstance(store.lookup(key(), 0.0, schema=(1, 1)), CacheEntry)
    assert store.lookup(key(), 0.0, schema=(1, 2)) is E.SCHEMA_MISMATCH
    assert store.lookup(key(), 0.0, schema=(1, 2), version=8) is E.VERSION_MISMATCH


@pytest.mark.parametrize(
    ("scope", "arguments", "gone"),
    [
        (InvalidateScope.WHOLE_SESSION, (), {1, 2, 3, 4}),
        (InvalidateScope.NAMESPACE, (1,), {3, 4}),
        (InvalidateScope.OBJECT_KIND, (1, 7), {3}),
        (InvalidateScope.OBJECT_KEY, (0, 0, 1), {1}),
        (InvalidateScope.OBJECT_KEY, (9, 0, 1), set()),
    ],
)
def test_invalidate_scopes(scope: InvalidateScope, arguments: tuple[int, ...], gone: set[int]) -> None:
    """nnrp-wire 7.15, matching. Afterwards: cache_miss, not lease_expired."""
    store = cache()
    keys = {1: key(1), 2: key(2, kind=8), 3: key(3, namespace=1), 4: key(4, namespace=1, kind=8)}
    for each in keys.values():
        store.put(PutRequest(each, b"x"), 0.0)
    assert set(store.invalidate(scope, *arguments)) == {keys[number] for number in gone}
    for number, each in keys.items():
        expected = E.CACHE_MISS if number in gone else None
        found = store.lookup(each, 0.0)
        assert (found if expected else None) is expected


def test_any_kind_under_one_object_key() -> None:
    store = cache()
    for kind in (7, 8):
        store.put(PutRequest(key(kind=kind), b"x"), 0.0)
    assert len(store.invalidate(InvalidateScope.OBJECT_KEY, 0, 0, 1)) == 2


def test_memory_of_ended_leases_is_bounded() -> None:
    store = cache(max_entries=5000)
    for number in range(REMEMBERED_LEASES + 10):
        store.put(PutRequest(key(number), b"", 1), float(number))
    store.handle_deadline(1e9)
    assert store.lookup(key(0), 1e9) is E.CACHE_MISS
    assert store.lookup(key(REMEMBERED_LEASES), 1e9) is E.LEASE_EXPIRED


def test_replacing_for_ever_keeps_the_timers_bounded() -> None:
    store = cache()
    for number in range(5000):
        store.put(PutRequest(key(), b"%d" % number, 60_000), 0.0)
    assert len(store._deadlines) < 200
    assert store.next_deadline() == 60.0


def test_nothing_to_wait_for() -> None:
    assert cache().next_deadline() == math.inf


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("putil"), st.integers(1, 4), st.integers(1, 5)), max_size=40))
def test_any_history_agrees_with_a_plain_model(steps: list[tuple[str, int, int]]) -> None:
    """Put, touch, time, invalidate, look: byte count, expiry and liveness equal those of a dictionary with deadlines."""
    store = cache(max_entries=3)
    now = 0.0
    model: dict[int, tuple[bytes, float]] = {}
    for kind, number, amount in steps:
        model = {each: held for each, held in model.items() if held[1] > now}
        if kind in "pu":
            content = b"z" * amount
            answer = store.put(PutRequest(key(number), content, 1000 * amount), now)
            if answer.stored:
                model[number] = (content, now + amount)
            else:
                assert len(model) == 3
                assert number not in model
        elif kind == "t":
            now += amount / 2
        elif kind == "i":
            store.invalidate(InvalidateScope.OBJECT_KEY, 0, 0, number)
            model.pop(number, None)
        found = store.lookup(key(number), now)
        held = model.get(number)
        if held is not None and held[1] > now:
            assert isinstance(found, CacheEntry)
            assert found.content == held[0]
        else:
            assert found in (E.CACHE_MISS, E.LEASE_EXPIRED)
    store.handle_deadline(now)
    live = [held for held in model.values() if held[1] > now]
    statistics = store.statistics()
    assert (statistics.entries, statistics.bytes) == (len(live), sum(len(each[0]) for each in live))
