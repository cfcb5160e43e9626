"""Hypothesis strategies made from the layouts: values that keep the rules, and bytes that may not."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from protocol.layout import Field, Structure
from protocol.nnrp import descriptors, vendor
from protocol.nnrp.header import Header
from protocol.nnrp.messages import MESSAGES, TensorProfilePatchBlock
from protocol.nnrp.record import Record


def examples(count: int) -> settings:
    """``count`` examples; time is not judged, since the machine that runs the suite may be busy with something else."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


STRUCTURES: list[type[Record]] = [
    Header,
    *MESSAGES.values(),
    TensorProfilePatchBlock,
    *(getattr(module, name) for module in (descriptors, vendor) for name in module.__all__),
]
"""Every declared layout."""


def field_values(field: Field) -> st.SearchStrategy[int]:
    if field.kind == "enum":
        return st.sampled_from([int(member) for member in field.enum or ()])
    if field.kind == "bitmap":
        return st.integers(0, field.mask)
    limit = (1 << (8 * field.scalar.size)) - 1
    return st.one_of(st.just(0), st.integers(0, limit), st.sampled_from([1, limit]))


@st.composite
def records(draw: st.DrawFn, made: type[Structure]) -> Structure:
    """A record of this layout that breaks no rule: what a check complains about is set to 0, or to 1 where it must be."""
    layout = made.LAYOUT
    values: dict[str, Any] = {each.name: draw(field_values(each)) if each.is_attribute else 0 for each in layout.fields}
    for fill in (0, 1, 0, 1):
        for check, test in zip(layout.checks, layout.tests, strict=True):
            if not eval(test, {}, values):  # the layout's own expression
                values[check.field] = fill
    values = _last_resort(made, values)
    kept = {each.name: values[each.name] for each in layout.fields if each.is_attribute}
    return made.decode(made(**kept).pack())


def _last_resort(made: type[Structure], values: dict[str, Any]) -> dict[str, Any]:
    """Rules that need two fields to agree."""
    layout = made.LAYOUT
    if all(eval(test, {}, values) for test in layout.tests):
        return values
    plain = {each.name: 0 for each in layout.fields}
    legal: dict[str, dict[str, int]] = {
        "CLIENT_HELLO": {
            "min_version_major": 1,
            "max_version_major": 1,
            "supported_wire_format_bitmap": 1,
            "supported_profile_bitmap": 1,
            "supported_payload_kind_bitmap": 1,
        },
        "SESSION_OPEN_ACK": {"session_id": 1},
        "SESSION_MIGRATE": {"old_transport_id": 1, "new_transport_id": 2},
        "OPERATION_EXTENSIONS": {"version": 1},
        "SUBMIT_CONTEXT": {"operation_id": 1},
        "CANCEL_SCOPE": {"operation_id": 1},
        "OBJECT_META": {"object_id": 1, "object_version": 1},
    }
    return plain | legal.get(layout.name, {})


def raw_bytes(made: type[Structure]) -> st.SearchStrategy[bytes]:
    """Bytes of the right size: legal ones, legal ones with a few bytes changed, and noise."""
    size = made.SIZE

    def damage(record: Structure, changes: list[tuple[int, int]]) -> bytes:
        data = bytearray(record.pack())
        for place, value in changes:
            if size:
                data[place % size] = value
        return bytes(data)

    changes = st.lists(st.tuples(st.integers(0, 4096), st.integers(0, 255)), max_size=3)
    return st.one_of(st.builds(damage, records(made), changes), st.binary(min_size=size, max_size=size))
