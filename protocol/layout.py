"""A fixed binary layout, declared once: struct format, codec, validation and documentation all come from it.

A layout is a class. Its annotations, in wire order, give name, type and rule of every field::

    @layout("SESSION_CLOSE_ACK", "7.10", "[seed]")
    class SessionCloseAck(Structure, frozen=True, gc=False):
        close_status: Annotated[CloseStatus, u8] = CloseStatus.ACKNOWLEDGED
        reserved0: ClassVar = Reserved(u8)
        last_operation_id: Annotated[int, u64, "server-confirmed operation watermark"] = 0

An ``IntEnum`` type makes an enumeration of the field, an ``IntFlag`` type a bitmap whose members are the only bits
allowed. The decorator compiles the codec: a fast path that accepts what is certainly right, and falls back to
`explain`, which walks the declaration field by field, names the first fault, and applies the tolerances. There is one
set of rules; the fast path only decides whether they need to be looked at.

Nothing here knows a protocol: what a violation becomes is the business of `Structure.fail`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from types import CodeType
from typing import Annotated, Any, ClassVar, NoReturn, Self, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec

__all__ = [
    "Buffer",
    "Check",
    "Constant",
    "Field",
    "Layout",
    "Loose",
    "Reserved",
    "Scalar",
    "Structure",
    "Violation",
    "layout",
    "named",
    "raw4",
    "u8",
    "u16",
    "u32",
    "u64",
    "zero_unless",
]

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Scalar:
    """One primitive wire type. Integers are unsigned and little-endian."""

    name: str
    code: str
    size: int


u8 = Scalar("u8", "B", 1)
u16 = Scalar("u16", "H", 2)
u32 = Scalar("u32", "I", 4)
u64 = Scalar("u64", "Q", 8)
raw4 = Scalar("4s", "4s", 4)


@dataclass(frozen=True, slots=True)
class Reserved:
    """A field that is sent as 0 and refused when it is anything else. It is not an attribute of the message."""

    scalar: Scalar


@dataclass(frozen=True, slots=True)
class Constant:
    """A field with one legal value. ``outcome`` names the violation."""

    scalar: Scalar
    value: int | bytes
    outcome: str


@dataclass(frozen=True, slots=True)
class Loose:
    """What a tolerant receiver makes of a value outside the enumeration or bitmap.

    ``value`` replaces an unknown enumeration value; for a bitmap the unknown bits are dropped.
    """

    note: str
    value: int = 0


@dataclass(frozen=True, slots=True)
class Check:
    """A rule over several fields of one structure. ``test`` is an expression over field names, true when all is well.

    ``strict_only`` rules are not applied by a tolerant receiver. ``code`` overrides the error code of the outcome.
    ``fast`` is the expression the compiled codec uses in place of ``test``; empty: another check's ``fast`` covers it.
    """

    field: str
    test: str
    rule: str
    outcome: str = "BadCombination"
    code: int | None = None
    strict_only: bool = False
    fast: str | None = None


def zero_unless(condition: str, names: tuple[str, ...], rule: str) -> tuple[Check, ...]:
    """One check for each of ``names``: it must be 0 unless ``condition`` holds."""
    together = f"({condition}) or not ({' or '.join(names)})"
    return tuple(
        Check(name, f"({condition}) or {name} == 0", rule, fast="" if index else together)
        for index, name in enumerate(names)
    )


def named(enum: type[IntEnum], outcome: str) -> tuple[type[IntEnum], str]:
    """Marker for an enumeration whose unknown values have an outcome of their own."""
    return enum, outcome


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a layout, as declared."""

    name: str
    offset: int
    scalar: Scalar
    kind: str
    """``plain``, ``enum``, ``bitmap``, ``reserved`` or ``constant``"""
    enum: type[IntEnum] | type[IntFlag] | None = None
    rule: str = ""
    value: int | bytes = 0
    outcome: str = ""
    loose: Loose | None = None
    table: Any = None

    @property
    def is_attribute(self) -> bool:
        return self.kind in ("plain", "enum", "bitmap")

    @property
    def mask(self) -> int:
        """All bits a bitmap may carry."""
        mask = 0
        for member in self.enum or ():
            mask |= int(member)
        return mask


@dataclass(frozen=True, slots=True)
class Violation:
    """The first rule a structure breaks."""

    outcome: str
    structure: str
    field: str | None
    offset: int
    rule: str
    code: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """A compiled declaration."""

    name: str
    section: str
    source: str
    size: int
    fields: tuple[Field, ...]
    checks: tuple[Check, ...]
    unpacker: struct.Struct
    """Every field, reserved ones and constants included."""
    reserved_mask: int
    """The reserved bytes as bits of the whole structure read as one little-endian integer."""
    tests: tuple[CodeType, ...] = field(repr=False, default=())

    def field(self, name: str) -> Field:
        return next(each for each in self.fields if each.name == name)


class Structure(msgspec.Struct, frozen=True, gc=False):
    """Base of every layout class: immutable, slotted, compared by value. See the module for how to declare one.

    Building one checks nothing; `pack` writes what is there, `decode` refuses what the rules refuse. A value that does
    not fit its field raises `struct.error` in `pack`.
    """

    LAYOUT: ClassVar[Layout]
    SIZE: ClassVar[int]
    CHECKS: ClassVar[tuple[Check, ...]] = ()

    def pack(self) -> bytes:
        """The bytes of this structure, reserved fields zero."""
        raise NotImplementedError

    @classmethod
    def decode(cls, data: Buffer, offset: int = 0, strict: bool = True, at: int = 0) -> Self:
        """The structure at ``data[offset:]``; there must be at least ``SIZE`` bytes.

        ``at`` is the position reported for the first byte. Raises what `fail` makes of the first violation.
        """
        raise NotImplementedError

    @classmethod
    def parse(cls, data: Buffer, *, strict: bool = True, at: int = 0) -> Self:
        """The structure that is exactly ``data``: shorter is TooShort, longer LengthMismatch."""
        if len(data) != cls.SIZE:
            cls.wrong_size(len(data), at)
        return cls.decode(data, 0, strict, at)

    @classmethod
    def wrong_size(cls, length: int, at: int) -> NoReturn:
        outcome = "TooShort" if length < cls.SIZE else "LengthMismatch"
        rule = f"{cls.LAYOUT.name} is {cls.SIZE} bytes, got {length}"
        cls.fail(Violation(outcome, cls.LAYOUT.name, None, at + min(length, cls.SIZE), rule))

    @classmethod
    def fail(cls, violation: Violation) -> NoReturn:
        """Raise the protocol's error for ``violation``."""
        raise NotImplementedError

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return msgspec.structs.replace(self, **changes)


S = TypeVar("S", bound=Structure)


def _fields(cls: type[Structure]) -> Iterator[Field]:
    offset = 0
    hints = get_type_hints(cls, include_extras=True)
    for name in inspect.get_annotations(cls):
        hint = hints[name]
        declared = cls.__dict__.get(name)
        if isinstance(declared, Reserved):
            made = Field(name, offset, declared.scalar, "reserved")
        elif isinstance(declared, Constant):
            outcome = declared.outcome
            made = Field(name, offset, declared.scalar, "constant", value=declared.value, outcome=outcome)
        elif get_origin(hint) is Annotated:
            made = _attribute(name, offset, *get_args(hint))
        else:
            continue
        yield made
        offset += made.scalar.size


def _attribute(name: str, offset: int, type_: Any, *marks: Any) -> Field:
    scalar = next(mark for mark in marks if isinstance(mark, Scalar))
    rule = next((mark for mark in marks if isinstance(mark, str)), "")
    loose = next((mark for mark in marks if isinstance(mark, Loose)), None)
    override = next((mark for mark in marks if isinstance(mark, tuple)), None)
    if issubclass(type_, IntFlag):
        made = Field(name, offset, scalar, "bitmap", type_, rule, outcome="ReservedBits", loose=loose)
        return _with_table(made, tuple(type_(value) for value in range(made.mask + 1)))
    if override is not None or issubclass(type_, IntEnum):
        enum, outcome = override or (type_, "UnknownEnum")
        made = Field(name, offset, scalar, "enum", enum, rule, outcome=outcome, loose=loose)
        return _with_table(made, _enum_table(enum))
    return Field(name, offset, scalar, "plain", rule=rule)


def _with_table(made: Field, table: object) -> Field:
    return dataclasses.replace(made, table=table)


def _enum_table(enum: type[IntEnum]) -> Any:
    """A tuple where the values run from 0 without gaps, else a mapping: indexing either refuses the unknown."""
    members = sorted(enum, key=int)
    if [int(member) for member in members] == list(range(len(members))):
        return tuple(members)
    return {int(member): member for member in members}


def _format(fields: tuple[Field, ...], *, pad: bool) -> struct.Struct:
    parts = [f"{f.scalar.size}x" if pad and f.kind == "reserved" else f.scalar.code for f in fields]
    return struct.Struct("<" + "".join(parts))


def _reserved_mask(fields: tuple[Field, ...]) -> int:
    mask = 0
    for each in fields:
        if each.kind == "reserved":
            mask |= ((1 << (8 * each.scalar.size)) - 1) << (8 * each.offset)
    return mask


def describe(cls: type[Structure], name: str, section: str, source: str) -> Layout:
    """Read the declaration ``cls``."""
    fields = tuple(_fields(cls))
    order = {each.name: index for index, each in enumerate(fields)}
    checks = tuple(sorted(cls.CHECKS, key=lambda check: order[check.field]))
    unpacker = _format(fields, pad=False)
    tests = tuple(compile(check.test, f"<{name}.{check.field}>", "eval") for check in checks)
    return Layout(name, section, source, unpacker.size, fields, checks, unpacker, _reserved_mask(fields), tests)


def explain(cls: type[S], data: Buffer, offset: int, strict: bool, at: int) -> S:
    """Decode slowly, in the order the rules are applied: reserved and constants, bitmaps, enumerations, checks."""
    made = cls.LAYOUT
    values = dict(zip((f.name for f in made.fields), made.unpacker.unpack_from(data, offset), strict=True))
    for step in (_explain_fixed, _explain_bitmap, _explain_enum):
        for each in made.fields:
            step(cls, each, values, strict, at)
    for check, test in zip(made.checks, made.tests, strict=True):
        if not (strict or not check.strict_only):
            continue
        if not eval(test, {}, values):  # our own expression, compiled from the declaration
            place = made.field(check.field)
            cls.fail(Violation(check.outcome, made.name, check.field, at + place.offset, check.rule, check.code))
    return cls(*(values[each.name] for each in made.fields if each.is_attribute))


def _explain_fixed(cls: type[Structure], each: Field, values: dict[str, Any], strict: bool, at: int) -> None:
    value = values[each.name]
    if each.kind == "reserved" and value != 0:
        cls.fail(Violation("ReservedNonZero", cls.LAYOUT.name, each.name, at + each.offset, "reserved, must be 0"))
    if each.kind == "constant" and value != each.value:
        rule = f"must be {each.value!r}, got {value!r}"
        cls.fail(Violation(each.outcome, cls.LAYOUT.name, each.name, at + each.offset, rule))


def _explain_bitmap(cls: type[Structure], each: Field, values: dict[str, Any], strict: bool, at: int) -> None:
    if each.kind != "bitmap" or each.enum is None:
        return
    value = values[each.name]
    if value & ~each.mask:
        if strict or each.loose is None:
            rule = f"only bits of mask {each.mask:#x} may be set, got {value:#x}"
            cls.fail(Violation("ReservedBits", cls.LAYOUT.name, each.name, at + each.offset, rule))
        value &= each.mask
    values[each.name] = each.enum(value)


def _explain_enum(cls: type[Structure], each: Field, values: dict[str, Any], strict: bool, at: int) -> None:
    if each.kind != "enum" or each.enum is None:
        return
    value = values[each.name]
    known = {int(member): member for member in each.enum}
    if value not in known:
        if strict or each.loose is None:
            members = ", ".join(f"{int(member):#x} {str(member.name).lower()}" for member in each.enum)
            rule = f"unknown value {value:#x}; known: {members}"
            cls.fail(Violation(each.outcome, cls.LAYOUT.name, each.name, at + each.offset, rule))
        value = each.loose.value
    values[each.name] = known[value]


def _local(expression: str, made: Layout) -> str:
    """``expression`` with every field name turned into the local variable of the compiled codec."""
    names = "|".join(re.escape(each.name) for each in made.fields)
    return re.sub(rf"\b({names})\b", r"f_\1", expression)


def _argument(each: Field) -> str:
    return f"f_{each.name}" if each.kind == "plain" else f"t_{each.name}[f_{each.name}]"


def _decode_source(made: Layout) -> str:
    picked = [each for each in made.fields if each.is_attribute or each.kind == "constant"]
    targets = "".join(f"f_{each.name}, " for each in picked)
    values = ", ".join(_argument(each) for each in picked if each.is_attribute)
    tests = [f"f_{each.name} == {each.value!r}" for each in picked if each.kind == "constant"]
    for check in made.checks:
        fast = check.test if check.fast is None else check.fast
        if fast:
            condition = f"({_local(fast, made)})"
            tests.append(f"(not strict or {condition})" if check.strict_only else condition)
    lines = ["def decode(data, offset=0, strict=True, at=0):"]
    if made.reserved_mask:
        lines.append(f"    if from_bytes(data[offset:offset + {made.size}], 'little') & {made.reserved_mask:#x}:")
        lines.append("        return explain(cls, data, offset, strict, at)")
    if made.size:
        lines.append(f"    {targets}= unpack_from(data, offset)")
    if tests:
        lines.append(f"    if not ({' and '.join(tests)}):")
        lines.append("        return explain(cls, data, offset, strict, at)")
    lines += ["    try:", f"        return cls({values})", "    except LookupError:"]
    lines.append("        return explain(cls, data, offset, strict, at)")
    return "\n".join(lines)


def _pack_source(made: Layout) -> str:
    if not made.size:
        return "def pack(self):\n    return b''"
    values = [
        repr(each.value) if each.kind == "constant" else f"self.{each.name}"
        for each in made.fields
        if each.kind != "reserved"
    ]
    return f"def pack(self):\n    return pack_struct({', '.join(values)})"


def _compile(cls: type[Structure], made: Layout) -> dict[str, Callable[..., Any]]:
    packer = _format(made.fields, pad=True)
    scope: dict[str, Any] = {
        "cls": cls,
        "explain": explain,
        "from_bytes": int.from_bytes,
        "unpack_from": packer.unpack_from,
        "pack_struct": packer.pack,
    }
    scope |= {f"t_{each.name}": each.table for each in made.fields if each.table is not None}
    for source in (_decode_source(made), _pack_source(made)):
        exec(compile(source, f"<layout {made.name}>", "exec"), scope)  # generated from our own declaration
    return {"decode": scope["decode"], "pack": scope["pack"]}


def layout(name: str, section: str, source: str) -> Callable[[type[S]], type[S]]:
    """Class decorator: compile the declaration. ``section`` and ``source`` say where the rules stand."""

    def decorate(cls: type[S]) -> type[S]:
        made = describe(cls, name, section, source)
        functions = _compile(cls, made)
        attributes: dict[str, Any] = {"LAYOUT": made, "SIZE": made.size, "pack": functions["pack"]}
        attributes["decode"] = staticmethod(functions["decode"])
        for key, value in attributes.items():
            setattr(cls, key, value)
        return cls

    return decorate
