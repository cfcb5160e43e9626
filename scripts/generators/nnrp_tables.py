"""docs/nnrp-wire-tables.md: every layout, enumeration, bitmap, code and message of NNRP as the code declares them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import IntEnum, IntFlag

from protocol.layout import Field, Layout
from protocol.nnrp import enums
from protocol.nnrp.annotate import LAYOUTS, section_name
from protocol.nnrp.catalogue import CATALOGUE
from protocol.nnrp.errors import WIRE_CODES

__all__ = ["documents"]

PATH = "docs/nnrp-wire-tables.md"

_HEAD = """# NNRP/1 preview3: tables

Generated from the declarations in `protocol/nnrp` by `python -m scripts.generate`; do not edit. Integers are unsigned and
little-endian, structures are packed, offsets count bytes from the start of the structure. Reserved fields are sent as 0
and refused otherwise; a bit outside a mask is E:ReservedBits, a value outside an enumeration E:UnknownEnum. Section
numbers are those of the NNRP/1 wire reference; "ext" stands for its page of operation extensions.

T marks a tensor field: 0 unless payload_kind_bitmap has the tensor bit.
"""


def documents() -> dict[str, str]:
    parts = [_HEAD, *_messages(), *_layouts(), *_tolerances(), *_enumerations(), *_outcomes()]
    return {PATH: "\n".join(parts).rstrip() + "\n"}


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or "–"


def _messages() -> Iterator[str]:
    yield "## Messages\n"
    yield "| type | name | metadata bytes | direction | reach of a fault | body | length rule | ids |"
    yield "|---|---|---|---|---|---|---|---|"
    for number, entry in CATALOGUE.items():
        cells = [
            f"{number:#04x}",
            entry.name + (" (may be lost)" if entry.may_drop else ""),
            str(entry.metadata.SIZE),
            entry.direction.value,
            entry.reach.value,
            entry.body,
            entry.body_rule,
            entry.ids,
        ]
        yield "| " + " | ".join(_cell(cell) for cell in cells) + " |"
    yield ""


def _rule(field: Field) -> str:
    parts = [field.rule] if field.rule else []
    if field.kind == "reserved":
        parts.append("0")
    elif field.kind == "constant":
        value = field.value
        shown = f"`{value.decode()}`" if isinstance(value, bytes) else str(value)
        parts.append(f"{shown}, else E:{field.outcome}")
    elif field.enum is not None:
        mask = f", mask {field.mask:#x}" if field.kind == "bitmap" else ""
        other = "" if field.outcome in ("UnknownEnum", "ReservedBits") else f", else E:{field.outcome}"
        parts.append(f"`{field.enum.__name__}`{mask}{other}")
    return "; ".join(parts)


def _layouts() -> Iterator[str]:
    yield "## Layouts\n"
    for name, made in LAYOUTS.items():
        layout = made.LAYOUT
        yield f"### {name}\n"
        yield f"{layout.size} bytes. {section_name(layout)}. Source {layout.source}.\n"
        if layout.size:
            yield "| off | field | type | rule |"
            yield "|---|---|---|---|"
            for field in layout.fields:
                yield f"| {field.offset} | {field.name} | {field.scalar.name} | {_cell(_rule(field))} |"
            yield ""
        yield from _checks(layout)


def _checks(layout: Layout) -> Iterator[str]:
    if layout.checks:
        yield "| at | must hold | outcome |"
        yield "|---|---|---|"
        for check in layout.checks:
            code = "" if check.code is None else f", code {int(check.code):#x}"
            strict = ", strict only" if check.strict_only else ""
            yield f"| {check.field} | {_cell(check.rule)} | E:{check.outcome}{code}{strict} |"
        yield ""


def _tolerances() -> Iterator[str]:
    yield "## What a tolerant receiver takes in fixed structures\n"
    yield "Tolerances of bodies and header ids: `protocol/README.md`.\n"
    yield "| structure | field | instead of an error |"
    yield "|---|---|---|"
    for name, made in LAYOUTS.items():
        for field in made.LAYOUT.fields:
            if field.loose is not None:
                yield f"| {name} | {field.name} | {field.loose.note} |"
        for check in made.LAYOUT.checks:
            if check.strict_only:
                yield f"| {name} | {check.field} | accepted although: {_cell(check.rule)} |"
    yield ""


def _enumerations() -> Iterator[str]:
    yield "## Enumerations, bitmaps and codes\n"
    for name in enums.__all__:
        made = getattr(enums, name)
        if not issubclass(made, IntEnum | IntFlag) or name in ("MessageType", "ConnectionState", "SessionState"):
            continue
        yield f"### {name}\n"
        if made.__doc__ and made.__doc__ not in (IntEnum.__doc__, IntFlag.__doc__):
            yield inspect.cleandoc(made.__doc__) + "\n"
        wide = max(made, key=int) > 0xFF
        yield "| value | name |"
        yield "|---|---|"
        for member in made:
            shown = (
                f"{int(member):#010x}" if int(member) > 0xFFFF else f"{int(member):#06x}" if wide else str(int(member))
            )
            yield f"| {shown} | {str(member.name).lower()} |"
        yield ""


def _outcomes() -> Iterator[str]:
    yield "## Outcomes and the ERROR they are answered with\n"
    yield "Faults in the header are malformed_header (4) where nothing else is said; a check may name a code of its own.\n"
    yield "| outcome | error_code |"
    yield "|---|---|"
    for outcome, code in WIRE_CODES.items():
        name = getattr(code, "name", "").lower()
        shown = "none: dropped silently" if not code else f"{int(code):#x} {name}"
        yield f"| {outcome.value} | {shown} |"
    yield ""
