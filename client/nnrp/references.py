"""A submit that refers to cached objects instead of carrying them (nnrp-wire 8.4; nnrp-extensions, object_expect)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from client.nnrp.cache import Lease
from protocol.nnrp.enums import ExtensionKind, ObjectKind, ObjectRefMask, SubmitMode
from protocol.nnrp.messages import FrameSubmit
from protocol.nnrp.regions import ExtensionFrame, Regions

__all__ = ["refer"]

_SLOTS: Final = (
    ObjectKind.CAMERA_BLOCK,
    ObjectKind.TILE_INDEX_BLOCK,
    ObjectKind.TENSOR_SECTION_TABLE,
    ObjectKind.PAYLOAD_LAYOUT_TEMPLATE,
)


def refer(
    metadata: FrameSubmit, body: Regions, objects: Sequence[Lease], *, versions: bool
) -> tuple[FrameSubmit, Regions]:
    """The submit with references to ``objects``. ``versions``: cache_semantics was granted, so say which versions are meant.

    The four standard slots stand first and in their order, with their bits in object_ref_mask; other kinds need a server
    that accepts them, as ours does.
    """
    ordered = sorted(objects, key=_place)
    mask = 0
    for each in ordered:
        if each.kind in _SLOTS:
            mask |= 1 << _SLOTS.index(each.kind)
    if mask:
        inline = any(each.object_kind in _SLOTS for each in body.inline_objects)
        mode = SubmitMode.MIXED if inline else SubmitMode.REFERENCE
        metadata = metadata.replace(submit_mode=mode, object_ref_mask=ObjectRefMask(mask))
    extensions = body.extensions
    if versions and any(each.object_id for each in ordered):
        expected = tuple(each.expected for each in ordered)
        extensions = (*extensions, ExtensionFrame.of(ExtensionKind.OBJECT_EXPECT, expected))
    references = (*body.references, *(each.reference for each in ordered))
    return metadata, Regions(body.payloads, body.inline_objects, references, extensions)


def _place(lease: Lease) -> tuple[int, int, Sequence[int]]:
    place = _SLOTS.index(lease.kind) if lease.kind in _SLOTS else len(_SLOTS)
    return place, lease.namespace, lease.key
