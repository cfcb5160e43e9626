"""The schema registry (nnrp-wire 11.3) and the binding of a payload descriptor to it (11.4).

Registries stack: a session's registry sees what its connection's and the built-in one hold, and adds its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

import attrs

from protocol.errors import Reach
from protocol.nnrp.enums import ProfileId, SchemaErrorCode, SchemaFlags, StreamSemantics
from protocol.nnrp.errors import NnrpError, Outcome

__all__ = [
    "ANCHOR",
    "REGISTERED_PROFILES",
    "Installed",
    "Schema",
    "SchemaBinding",
    "SchemaKey",
    "SchemaRegistry",
    "builtin_registry",
]

REGISTERED_PROFILES = frozenset(int(each) for each in ProfileId)
VERSION_MAJOR = 1

SchemaKey = tuple[int, int]
"""(schema_id, schema_version): the identity of a schema."""

_OUTCOMES = {
    SchemaErrorCode.SCHEMA_UNKNOWN: Outcome.SCHEMA_UNKNOWN,
    SchemaErrorCode.SCHEMA_VERSION_UNKNOWN: Outcome.SCHEMA_VERSION_UNKNOWN,
    SchemaErrorCode.SCHEMA_HASH_CONFLICT: Outcome.SCHEMA_HASH_CONFLICT,
    SchemaErrorCode.SCHEMA_INCOMPATIBLE: Outcome.SCHEMA_INCOMPATIBLE,
    SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING: Outcome.SCHEMA_DEPENDENCY_MISSING,
    SchemaErrorCode.SCHEMA_UPDATE_REJECTED: Outcome.SCHEMA_UPDATE_REJECTED,
}


class Installed(IntEnum):
    """What an install did."""

    INSTALLED = 0
    ALREADY_INSTALLED = 1
    UPDATED = 2


@attrs.frozen(slots=True)
class Schema:
    """A schema as the registry keeps it: the fields of the 32-byte header, its dependencies resolved to keys, its body."""

    schema_id: int
    schema_version: int
    profile_id: int
    schema_hash: int
    schema_flags: int = 0
    min_version_major: int = VERSION_MAJOR
    max_version_major: int = VERSION_MAJOR
    default_stream_semantics: int = StreamSemantics.DEFAULT
    dependency_count: int = 0
    dependencies: tuple[SchemaKey, ...] = ()
    body: bytes = b""

    @property
    def key(self) -> SchemaKey:
        return self.schema_id, self.schema_version

    @property
    def cacheable(self) -> bool:
        return bool(self.schema_flags & SchemaFlags.CACHEABLE)

    @property
    def critical(self) -> bool:
        return bool(self.schema_flags & SchemaFlags.CRITICAL)

    @property
    def streams(self) -> bool:
        """Whether payloads of this schema build on each other by default, instead of standing alone."""
        return self.default_stream_semantics in (StreamSemantics.APPEND, StreamSemantics.TOOL_UPDATE)


#: The one standard schema (nnrp-wire 11.1), with the header both existing peers have built in.
ANCHOR = Schema(
    schema_id=0x1001,
    schema_version=3,
    profile_id=ProfileId.TOKEN,
    schema_hash=0x6E6E7270746F6B33,
    default_stream_semantics=StreamSemantics.APPEND,
)


@attrs.frozen(slots=True)
class SchemaBinding:
    """What a session opened with: its default schema and whether a payload may name another."""

    profile_id: int = ProfileId.UNSPECIFIED
    schema_id: int = 0
    schema_version: int = 0
    override_enabled: bool = False

    def differs(self, schema: Schema) -> bool:
        """Whether the session has a default and ``schema`` is another one."""
        return self.schema_id != 0 and schema.key != (self.schema_id, self.schema_version)


class SchemaRegistry:
    """Schemas by id and version. Every refusal is an NnrpError that carries the stable code of family 0x0004."""

    __slots__ = ("_changes", "_parent", "_versions", "frozen_ids")

    def __init__(self, parent: SchemaRegistry | None = None, *, frozen_ids: frozenset[int] = frozenset()) -> None:
        self._parent = parent
        self._versions: dict[int, dict[int, Schema]] = {}
        self._changes = 0
        self.frozen_ids = frozen_ids
        """Schema ids that policy protects from update and invalidation."""

    def __iter__(self) -> Iterator[Schema]:
        """Every schema visible here, the registry's own first."""
        for versions in self._versions.values():
            yield from versions.values()
        if self._parent is not None:
            yield from self._parent

    def __len__(self) -> int:
        """Schemas installed in this registry itself."""
        return sum(map(len, self._versions.values()))

    @property
    def generation(self) -> int:
        """Rises with every change here or above: what was bound in one generation is bound the same until the next."""
        return self._changes if self._parent is None else self._changes + self._parent.generation

    def own(self) -> tuple[Schema, ...]:
        """What is installed in this registry itself, not in those above it."""
        return tuple(schema for versions in self._versions.values() for schema in versions.values())

    def owns(self, schema_id: int, version: int) -> bool:
        return version in self._versions.get(schema_id, {})

    def get(self, schema_id: int, version: int) -> Schema | None:
        found = self._versions.get(schema_id, {}).get(version)
        if found is None and self._parent is not None:
            return self._parent.get(schema_id, version)
        return found

    def versions(self, schema_id: int) -> frozenset[int]:
        above = self._parent.versions(schema_id) if self._parent is not None else frozenset()
        return above | frozenset(self._versions.get(schema_id, {}))

    def install(self, schema: Schema) -> Installed:
        """Install or update. Raises NnrpError and changes nothing when the schema is refused (order: profile, identity
        and hash, majors, dependencies, policy)."""
        if schema.profile_id not in REGISTERED_PROFILES:
            raise self.refuse(SchemaErrorCode.SCHEMA_UPDATE_REJECTED, "the schema's profile is not registered")
        present = self.get(schema.schema_id, schema.schema_version)
        if present is not None:
            if present.schema_hash != schema.schema_hash or present.profile_id != schema.profile_id:
                raise self.refuse(SchemaErrorCode.SCHEMA_HASH_CONFLICT, "this version is installed with another hash")
            return Installed.ALREADY_INSTALLED
        if not schema.min_version_major <= VERSION_MAJOR <= schema.max_version_major:
            raise self.refuse(SchemaErrorCode.SCHEMA_INCOMPATIBLE, "the schema's version window does not contain 1")
        if len(schema.dependencies) != schema.dependency_count or self.missing(schema):
            raise self.refuse(SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING, "a schema it depends on is not installed")
        if schema.schema_id in self._protected():
            raise self.refuse(SchemaErrorCode.SCHEMA_UPDATE_REJECTED, "policy keeps this schema as it is")
        known = self.versions(schema.schema_id)
        self._changes += 1
        self._versions.setdefault(schema.schema_id, {})[schema.schema_version] = schema
        return Installed.UPDATED if known and schema.schema_version > max(known) else Installed.INSTALLED

    def invalidate(self, schema_id: int, version: int) -> Schema:
        """Remove one version and return it. What depends on it can no longer be bound."""
        if self.get(schema_id, version) is None:
            raise self.refuse(
                SchemaErrorCode.SCHEMA_VERSION_UNKNOWN, "the schema version to invalidate is not installed"
            )
        own = self._versions.get(schema_id, {})
        if version not in own or schema_id in self._protected():
            raise self.refuse(SchemaErrorCode.SCHEMA_UPDATE_REJECTED, "policy keeps this schema as it is")
        removed = own.pop(version)
        self._changes += 1
        if not own:
            del self._versions[schema_id]
        return removed

    def missing(self, schema: Schema) -> tuple[SchemaKey, ...]:
        """The dependencies, direct or not, that are not installed (any more)."""
        gone: list[SchemaKey] = []
        seen: set[SchemaKey] = {schema.key}
        pending: list[SchemaKey] = list(schema.dependencies)
        while pending:
            key = pending.pop()
            if key in seen:
                continue
            seen.add(key)
            found = self.get(*key)
            if found is None:
                gone.append(key)
            else:
                pending.extend(found.dependencies)
        return tuple(gone)

    def dependants(self, schema_id: int, version: int) -> tuple[SchemaKey, ...]:
        """The visible schemas that name this version as a dependency, directly or not."""
        found: list[SchemaKey] = []
        wanted: list[SchemaKey] = [(schema_id, version)]
        while wanted:
            target = wanted.pop()
            for schema in self:
                if target in schema.dependencies and schema.key not in found:
                    found.append(schema.key)
                    wanted.append(schema.key)
        return tuple(found)

    def default_bindable(self, profile_id: int, schema_id: int, version: int) -> bool:
        """Whether this may be a session's default schema: 0/0 always, the anchor always, others by their flag (11.2)."""
        if (schema_id, version) == (0, 0):
            return True
        schema = self.get(schema_id, version)
        if schema is None or schema.profile_id != profile_id or self.missing(schema):
            return False
        return schema.key == ANCHOR.key or bool(schema.schema_flags & SchemaFlags.DEFAULT_BINDABLE)

    def bind(
        self, profile_id: int, schema_id: int, version: int, *, override: bool, session: SchemaBinding
    ) -> Schema | None:
        """The schema a payload descriptor is to be read with, None for a payload without profile (nnrp-wire 11.4).

        ``override`` is the descriptor's schema_override flag. Raises NnrpError in the order of the rule; there is no
        fallback to a schema that merely looks close.
        """
        if profile_id not in REGISTERED_PROFILES:
            raise self.refuse(SchemaErrorCode.SCHEMA_UPDATE_REJECTED, "the descriptor's profile is not registered")
        if profile_id == ProfileId.UNSPECIFIED:
            if schema_id or version:
                raise self.refuse(SchemaErrorCode.SCHEMA_INCOMPATIBLE, "a payload without profile cannot name a schema")
            return None
        if schema_id == 0:
            if version or session.profile_id != profile_id or session.schema_id == 0:
                raise self.refuse(
                    SchemaErrorCode.SCHEMA_UNKNOWN, "the payload names no schema and the session has none"
                )
            schema_id, version = session.schema_id, session.schema_version
        schema = self._find(schema_id, version)
        if schema.profile_id != profile_id:
            raise self.refuse(SchemaErrorCode.SCHEMA_INCOMPATIBLE, "the schema belongs to another profile")
        if not (override and session.override_enabled) and session.differs(schema):
            raise self.refuse(SchemaErrorCode.SCHEMA_INCOMPATIBLE, "the session does not allow another schema here")
        if schema.dependencies and self.missing(schema):
            raise self.refuse(SchemaErrorCode.SCHEMA_DEPENDENCY_MISSING, "a schema it depends on was invalidated")
        return schema

    @staticmethod
    def refuse(code: SchemaErrorCode, rule: str) -> NnrpError:
        """The error of a refusal: the stable code, reach operation."""
        return NnrpError(_OUTCOMES[code], rule, subject="schema", code=code, reach=Reach.OPERATION)

    def _find(self, schema_id: int, version: int) -> Schema:
        found = self.get(schema_id, version)
        if found is not None:
            return found
        if self.versions(schema_id):
            raise self.refuse(SchemaErrorCode.SCHEMA_VERSION_UNKNOWN, "this version of the schema is not installed")
        raise self.refuse(SchemaErrorCode.SCHEMA_UNKNOWN, "the schema is not installed")

    def _protected(self) -> frozenset[int]:
        return self.frozen_ids if self._parent is None else self.frozen_ids | self._parent._protected()


def builtin_registry(extra: Sequence[Schema] = ()) -> SchemaRegistry:
    """A registry with the standard schema and ``extra``, to be shared as the parent of others."""
    registry = SchemaRegistry()
    for schema in (ANCHOR, *extra):
        registry.install(schema)
    return registry
