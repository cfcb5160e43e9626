"""A fixed binary layout, declared once: struct format, codec, validation and documentation all come from it.

A layout is a class. Its annotations, in wire order, give name, type and rule of every field::

    @layout("SESSION_CLOSE_ACK", "7.10", "[seed]")
    class SessionCloseAck(Structure, frozen=True, gc=False):
        close_status: Annotated[CloseStatus, u8] = CloseStatus.ACKNOWLEDGED
        reserved0: ClassVar = Reserved(u8)
        last_operation_id: Annotated[int, u64, "server-confirmed operation watermark"] = 0

An ``IntEnum`` type makes an enumeration of the field, an ``IntFlag`` type a bitmap whose members are the only bits
allowed. The decorator (`layout_codec`) compiles the codec: a fast path that accepts what is certainly right, and falls
back to a walk over the declaration, which names the first fault and applies the tolerances.

Nothing here knows a protocol: what a violation becomes is the business of `Structure.fail`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from types import CodeType
from typing import Any, ClassVar, NoReturn, Self, TypeAlias

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
    packer: struct.Struct
    """The same bytes, reserved fields left out and written as zero."""
    folded: int = 0
    """How many leading fields the fast path reads as one number; see `layout`."""
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
    BASE: ClassVar[int] = 0
    """Where `pack_checked` reports the first byte of this structure to be."""

    def pack(self) -> bytes:
        """The bytes of this structure, reserved fields zero."""
        raise NotImplementedError

    def pack_checked(self) -> bytes:
        """As `pack`, but refuses what a strict receiver would refuse, with the same error."""
        raise NotImplementedError

    @staticmethod
    def pack_values(*values: Any) -> bytes:
        """`pack_checked` of an object with these attributes, in order, without making one."""
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
