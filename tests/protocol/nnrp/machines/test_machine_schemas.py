"""The schema registry and descriptor binding (nnrp-wire 11.2 – 11.4; C-091, C-093)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocol.errors import Reach
from protocol.nnrp.enums import SchemaErrorCode, SchemaFlags, StreamSemantics
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.machines.schemas import (
    ANCHOR,
    Installed,
    Schema,
    SchemaBinding,
    SchemaRegistry,
    builtin_registry,
)

C = SchemaErrorCode
TOKEN, TENSOR = 2, 1
BINDABLE = int(SchemaFlags.DEFAULT_BINDABLE)
NO_DEFAULT = SchemaBinding(TOKEN)


def schema(schema_id: int = 0x2001, version: int = 1, digest: int = 0xA1, **fields: object) -> Schema:
    return Schema(schema_id, version, fields.pop("profile_id", TOKEN), digest, **fields)  # type: ignore[arg-type]


def refused(code: SchemaErrorCode, call: Callable[[], object]) -> None:
    with pytest.raises(NnrpError) as caught:
        call()
    assert caught.value.code == code
    assert caught.value.reach is Reach.OPERATION
    assert not caught.value.fatal


@pytest.fixture
def registry() -> SchemaRegistry:
    return SchemaRegistry(builtin_registry())


def test_same_version_other_hash(registry: SchemaRegistry) -> None:
    """C-091: install, install again, install with another hash; the payload is read with the first."""
    first = schema(digest=0xA1)
    assert registry.install(first) is Installed.INSTALLED
    assert registry.install(schema(digest=0xA1)) is Installed.ALREADY_INSTALLED
    refused(C.SCHEMA_HASH_CONFLICT, lambda: registry.install(schema(digest=0xA2)))
    assert registry.bind(TOKEN, 0x2001, 1, override=False, session=NO_DEFAULT) is first


def test_the_anchor_cannot_be_replaced(registry: SchemaRegistry) -> None:
    """nnrp-wire 11.1: the conformance header is a hash conflict by design."""
    conformance = schema(0x1001, 3, 0x1122334455667788, schema_flags=0xF, dependency_count=2)
    refused(C.SCHEMA_HASH_CONFLICT, lambda: registry.install(conformance))


def test_same_hash_other_profile_is_a_conflict(registry: SchemaRegistry) -> None:
    registry.install(schema())
    refused(C.SCHEMA_HASH_CONFLICT, lambda: registry.install(schema(profile_id=TENSOR)))


def test_same_hash_other_fields_is_already_installed(registry: SchemaRegistry) -> None:
    """nnrp-wire 18 item 29."""
    registry.install(schema())
    assert registry.install(schema(schema_flags=int(SchemaFlags.CRITICAL))) is Installed.ALREADY_INSTALLED


def test_update_keeps_the_old_version(registry: SchemaRegistry) -> None:
    """nnrp-wire 11.3: update; roll back by binding to the older version (11.4)."""
    old = schema(version=1)
    registry.install(old)
    assert registry.install(schema(version=3, digest=2)) is Installed.UPDATED
    assert registry.install(schema(version=2, digest=3)) is Installed.INSTALLED, "lower than an existing one"
    assert registry.bind(TOKEN, 0x2001, 1, override=False, session=NO_DEFAULT) is old


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (schema(profile_id=0xFFFF), C.SCHEMA_UPDATE_REJECTED),
        (schema(min_version_major=2, max_version_major=3), C.SCHEMA_INCOMPATIBLE),
        (schema(min_version_major=0, max_version_major=0), C.SCHEMA_INCOMPATIBLE),
        (schema(dependency_count=1), C.SCHEMA_DEPENDENCY_MISSING),
        (schema(dependency_count=1, dependencies=((9, 9),)), C.SCHEMA_DEPENDENCY_MISSING),
        (schema(dependency_count=1, dependencies=(ANCHOR.key, (9, 9))), C.SCHEMA_DEPENDENCY_MISSING),
    ],
)
def test_refused_installs(registry: SchemaRegistry, made: Schema, code: SchemaErrorCode) -> None:
    """nnrp-wire 11.3."""
    refused(code, lambda: registry.install(made))
    assert len(registry) == 0


def test_policy_keeps_a_schema() -> None:
    """nnrp-wire 11.3: update and invalidate refused by policy."""
    registry = SchemaRegistry(frozen_ids=frozenset({0x2001}))
    refused(C.SCHEMA_UPDATE_REJECTED, lambda: registry.install(schema()))
    session = SchemaRegistry(builtin_registry())
    refused(C.SCHEMA_UPDATE_REJECTED, lambda: session.invalidate(0x1001, 3))


def test_invalidate(registry: SchemaRegistry) -> None:
    """nnrp-wire 11.3: present goes, absent is schema_version_unknown; dependants can no longer be bound."""
    registry.install(schema(1, 1))
    registry.install(schema(2, 1, dependency_count=1, dependencies=((1, 1),)))
    registry.install(schema(3, 1, dependency_count=1, dependencies=((2, 1),)))
    assert set(registry.dependants(1, 1)) == {(2, 1), (3, 1)}
    registry.invalidate(1, 1)
    refused(C.SCHEMA_VERSION_UNKNOWN, lambda: registry.invalidate(1, 1))
    for dependant in (2, 3):
        refused(
            C.SCHEMA_DEPENDENCY_MISSING,
            lambda dependant=dependant: registry.bind(TOKEN, dependant, 1, override=False, session=NO_DEFAULT),
        )
    assert (1, 1) in registry.missing(schema(3, 1, dependency_count=1, dependencies=((2, 1),)))


def test_dependency_circles_end(registry: SchemaRegistry) -> None:
    registry.install(schema(1, 1))
    registry.install(schema(2, 1, dependency_count=1, dependencies=((1, 1),)))
    registry.invalidate(1, 1)
    registry.install(schema(1, 1, dependency_count=1, dependencies=((1, 1),)))
    assert registry.missing(schema(2, 1, dependency_count=1, dependencies=((1, 1),))) == ()


@pytest.mark.parametrize(
    ("profile", "schema_id", "version", "code"),
    [
        (0xFFFF, 0x1001, 3, C.SCHEMA_UPDATE_REJECTED),
        (0, 0x1001, 3, C.SCHEMA_INCOMPATIBLE),
        (0, 0, 3, C.SCHEMA_INCOMPATIBLE),
        (TENSOR, 0, 0, C.SCHEMA_UNKNOWN),
        (TOKEN, 0, 3, C.SCHEMA_UNKNOWN),
        (TOKEN, 0x31, 1, C.SCHEMA_UNKNOWN),
        (TOKEN, 0x1001, 4, C.SCHEMA_VERSION_UNKNOWN),
        (TENSOR, 0x1001, 3, C.SCHEMA_INCOMPATIBLE),
    ],
)
def test_binding_order(
    registry: SchemaRegistry, profile: int, schema_id: int, version: int, code: SchemaErrorCode
) -> None:
    """nnrp-wire 11.4, items 1 to 5; C-093: unknown, unknown version. Never a silent skip."""
    refused(code, lambda: registry.bind(profile, schema_id, version, override=True, session=NO_DEFAULT))


def test_no_profile_no_schema(registry: SchemaRegistry) -> None:
    assert registry.bind(0, 0, 0, override=False, session=NO_DEFAULT) is None


def test_session_default(registry: SchemaRegistry) -> None:
    """nnrp-wire 11.4 item 3: 0/0 means the default of the same profile."""
    session = SchemaBinding(TOKEN, *ANCHOR.key)
    assert registry.bind(TOKEN, 0, 0, override=False, session=session) is ANCHOR
    refused(C.SCHEMA_UNKNOWN, lambda: registry.bind(TENSOR, 0, 0, override=False, session=session))


@pytest.mark.parametrize(("enabled", "flag", "allowed"), [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 0)])
def test_override_needs_both(registry: SchemaRegistry, enabled: bool, flag: bool, allowed: bool) -> None:
    """nnrp-wire 11.4 item 6."""
    registry.install(schema())
    session = SchemaBinding(TOKEN, *ANCHOR.key, override_enabled=bool(enabled))

    def bind() -> object:
        return registry.bind(TOKEN, 0x2001, 1, override=bool(flag), session=session)

    if allowed:
        assert bind() is registry.get(0x2001, 1)
    else:
        refused(C.SCHEMA_INCOMPATIBLE, bind)
    assert registry.bind(TOKEN, *ANCHOR.key, override=False, session=session) is ANCHOR


def test_default_bindable(registry: SchemaRegistry) -> None:
    """nnrp-wire 11.2: the flag, the exempt anchor, 0/0, the right profile."""
    registry.install(schema(1, 1))
    registry.install(schema(2, 1, schema_flags=BINDABLE))
    assert registry.default_bindable(TOKEN, 0, 0)
    assert registry.default_bindable(TOKEN, *ANCHOR.key)
    assert registry.default_bindable(TOKEN, 2, 1)
    assert not registry.default_bindable(TOKEN, 1, 1)
    assert not registry.default_bindable(TENSOR, 2, 1)
    assert not registry.default_bindable(TOKEN, 2, 9)
    assert not registry.default_bindable(TOKEN, 77, 1)


def test_flags_and_semantics() -> None:
    made = schema(schema_flags=3, default_stream_semantics=StreamSemantics.SNAPSHOT)
    assert made.cacheable
    assert made.critical
    assert not made.streams
    assert ANCHOR.streams


def test_registries_stack() -> None:
    base = builtin_registry()
    one, other = SchemaRegistry(base), SchemaRegistry(base)
    one.install(schema())
    assert other.get(0x2001, 1) is None
    assert [each.schema_id for each in one] == [0x2001, 0x1001]
