"""From a declaration to its codec: reads the annotations, compiles the fast path, explains violations slowly.

The two paths apply one set of rules. The fast path is generated from the declaration when the class is made and only
ever accepts; whatever it does not accept goes to `explain`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import struct
from collections.abc import Callable, Iterator
from enum import IntEnum, IntFlag
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from protocol.layout import Buffer, Constant, Field, Layout, Loose, Reserved, Scalar, Structure, Violation

__all__ = ["describe", "explain", "layout"]

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


def describe(cls: type[Structure], name: str, section: str, source: str, fold: int = 0) -> Layout:
    """Read the declaration ``cls``."""
    fields = tuple(_fields(cls))
    order = {each.name: index for index, each in enumerate(fields)}
    checks = tuple(sorted(cls.CHECKS, key=lambda check: order[check.field]))
    unpacker = _format(fields, pad=False)
    tests = tuple(compile(check.test, f"<{name}.{check.field}>", "eval") for check in checks)
    folded = sum(1 for each in fields if each.offset < fold)
    return Layout(
        name, section, source, unpacker.size, fields, checks, unpacker, _format(fields, pad=True), folded, tests
    )


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
    """The fast path: one unpack, one condition over everything that must hold, one constructor call.

    Enumerations and bitmaps need no condition: their tables refuse what they do not contain.
    """
    folded = made.fields[: made.folded]
    rest = made.fields[made.folded :]
    targets = "".join(f"f_{each.name}, " for each in rest)
    values = [_argument(each) for each in rest if each.is_attribute]
    if folded:
        targets = f"prefix, {targets}"
        values.insert(0, "prefixes[prefix]")
    tests = [f"f_{each.name} == {each.value!r}" for each in rest if each.kind == "constant"]
    reserved = [f"f_{each.name}" for each in rest if each.kind == "reserved"]
    if reserved:
        tests.insert(0, f"not ({' or '.join(reserved)})")
    tests += _fast_checks(made)
    lines = ["def decode(data, offset=0, strict=True, at=0):"]
    if made.size:
        lines.append(f"    {targets}= unpack_from(data, offset)")
    if tests:
        lines.append(f"    if not ({' and '.join(tests)}):")
        lines.append("        return explain(cls, data, offset, strict, at)")
    lines += ["    try:", f"        return cls({', '.join(values)})", "    except LookupError:"]
    lines.append("        return explain(cls, data, offset, strict, at)")
    return "\n".join(lines)


def _fast_checks(made: Layout) -> Iterator[str]:
    for check in made.checks:
        fast = check.test if check.fast is None else check.fast
        if fast:
            condition = f"({_local(fast, made)})"
            yield f"(not strict or {condition})" if check.strict_only else condition


def _prefixes(folded: tuple[Field, ...]) -> dict[int, Any]:
    """Every legal value of the folded fields as one number → the enumeration member among them."""
    choices: dict[int, Any] = {0: None}
    for each in folded:
        shift = 8 * each.offset
        if each.kind == "constant":
            value = each.value if isinstance(each.value, int) else int.from_bytes(each.value, "little")
            choices = {key | value << shift: member for key, member in choices.items()}
        else:
            choices = {key | int(member) << shift: member for key in choices for member in each.enum or ()}
    return choices


def _pack_source(made: Layout) -> str:
    values = [repr(f.value) if f.kind == "constant" else f"self.{f.name}" for f in made.fields if f.kind != "reserved"]
    return f"def pack(self):\n    return pack_struct({', '.join(values)})"


def _checked_source(made: Layout, *, method: bool) -> str:
    """`pack_checked`, or `pack_values` which is given the values: the strict rules, then the bytes.

    Adding 0 makes a plain number of an enumeration member, whose operators would be slow.
    """
    attributes = [each for each in made.fields if each.is_attribute]
    names = [f"f_{each.name}" for each in attributes]
    lines = ["def pack_checked(self):" if method else f"def pack_values({', '.join(names)}):"]
    for each in attributes:
        source = f"self.{each.name}" if method else f"f_{each.name}"
        if method or each.kind == "bitmap":
            lines.append(f"    f_{each.name} = {source}{' + 0' if each.kind == 'bitmap' else ''}")
    lines += ["    try:"]
    lines += [f"        t_{each.name}[f_{each.name}]" for each in attributes if each.table is not None]
    tests = " and ".join(_fast_checks(made)).replace("not strict or ", "")
    lines.append(f"        if {tests or True}:")
    packed = [repr(f.value) if f.kind == "constant" else f"f_{f.name}" for f in made.fields if f.kind != "reserved"]
    lines.append(f"            return pack_struct({', '.join(packed)})")
    lines += ["    except LookupError:", "        pass"]
    lines.append(f"    return recheck(cls, pack_struct({', '.join(packed)}))")
    return "\n".join(lines)


def recheck(cls: type[Structure], packed: bytes) -> bytes:
    """Name the rule that ``packed`` breaks, or find that it breaks none."""
    explain(cls, packed, 0, True, cls.BASE)
    return packed


def _compile(cls: type[Structure], made: Layout) -> dict[str, Callable[..., Any]]:
    folded = made.fields[: made.folded]
    rest = _format(made.fields[made.folded :], pad=False).format
    scope: dict[str, Any] = {
        "cls": cls,
        "explain": explain,
        "recheck": recheck,
        "unpack_from": struct.Struct(rest.replace("<", "<Q") if folded else rest).unpack_from,
        "pack_struct": made.packer.pack,
        "prefixes": _prefixes(folded),
    }
    scope |= {f"t_{each.name}": each.table for each in made.fields if each.table is not None}
    checked = [_checked_source(made, method=method) for method in (True, False)]
    for source in (_decode_source(made), _pack_source(made), *checked):
        exec(compile(source, f"<layout {made.name}>", "exec"), scope)  # generated from our own declaration
    return {name: scope[name] for name in ("decode", "pack", "pack_checked", "pack_values")}


def layout(name: str, section: str, source: str, *, fold: int = 0) -> Callable[[type[S]], type[S]]:
    """Class decorator: compile the declaration. ``section`` and ``source`` say where the rules stand.

    ``fold=8`` makes the fast path read the first eight bytes, constants and one enumeration, as one number that a
    table knows or does not.
    """

    def decorate(cls: type[S]) -> type[S]:
        made = describe(cls, name, section, source, fold)
        functions = _compile(cls, made)
        attributes: dict[str, Any] = {"LAYOUT": made, "SIZE": made.size, **functions}
        for static in ("decode", "pack_values"):
            attributes[static] = staticmethod(functions[static])
        for key, value in attributes.items():
            setattr(cls, key, value)
        return cls

    return decorate
