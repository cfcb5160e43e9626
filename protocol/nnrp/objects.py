"""The rules that tie inline objects and references to the metadata (nnrp-wire 8.3, 8.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TypeAlias

from protocol.errors import Reach
from protocol.layout import Buffer
from protocol.nnrp.descriptors import BodyRegionPrelude, InlineObjectHeader, ObjectReference
from protocol.nnrp.enums import ObjectKind, SubmitMode, TileIndexMode
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.messages import FrameSubmit, ResultPush
from protocol.nnrp.regions import InlineObject, Regions
from protocol.nnrp.tensor import TensorBody, TensorSection, TileIds, parse_sections, parse_tile_index

__all__ = ["bind_result_objects", "bind_submit_objects", "resolve_submit_objects"]

SLOTS = (
    ObjectKind.CAMERA_BLOCK,
    ObjectKind.TILE_INDEX_BLOCK,
    ObjectKind.TENSOR_SECTION_TABLE,
    ObjectKind.PAYLOAD_LAYOUT_TEMPLATE,
)
"""The submit slots in order; slot n is bit n of object_ref_mask."""
RESULT_SLOTS = (ObjectKind.TILE_INDEX_BLOCK, ObjectKind.TENSOR_SECTION_TABLE)


_Inline: TypeAlias = tuple[Buffer, int]


def _bad(rule: str, field: str, at: int) -> NnrpError:
    outcome = Outcome.BAD_COMBINATION
    return NnrpError(outcome, rule, subject="BODY_OBJECTS", field=field, offset=at, reach=Reach.OPERATION)


def _slot(kind: ObjectKind) -> str:
    return kind.name.lower()


def _inline_slots(objects: Iterable[InlineObject], slots: tuple[ObjectKind, ...], at: int) -> dict[ObjectKind, _Inline]:
    """Payload and position of each slot that is inline: at most once, in slot order."""
    found: dict[ObjectKind, _Inline] = {}
    previous, following = -1, at + BodyRegionPrelude.SIZE
    for each in objects:
        at = following
        following += InlineObjectHeader.SIZE + len(each.payload) + -len(each.payload) % 8
        if each.object_kind not in slots:
            continue
        place = slots.index(each.object_kind)
        if place <= previous:
            raise _bad("inline objects stand in slot order, each at most once", _slot(each.object_kind), at)
        previous = place
        found[each.object_kind] = each.payload, at + InlineObjectHeader.SIZE
    return found


def bind_submit_objects(metadata: FrameSubmit, regions: Regions, *, strict: bool = True, at: int = 0) -> TensorBody:
    """Check the objects of a submit against its metadata and decode the inline tensor parts."""
    inline = _inline_slots(regions.inline_objects, SLOTS, at)
    referenced = _submit_references(metadata, regions.references, at)
    for kind in SLOTS:
        if kind in inline and kind in referenced:
            raise _bad("a slot is inline or by reference, never both", _slot(kind), at)
    if inline and metadata.submit_mode == SubmitMode.REFERENCE:
        raise _bad("reference mode carries no slot inline", "submit_mode", at)
    if not inline and metadata.submit_mode == SubmitMode.MIXED and strict:
        raise _bad("mixed mode keeps at least one slot inline", "submit_mode", at)
    camera, _ = inline.get(ObjectKind.CAMERA_BLOCK, (b"", at))
    if len(camera) != metadata.camera_bytes:
        raise _bad("camera_bytes is the length of the inline camera block", "camera_bytes", at)
    return TensorBody(
        _tile_ids(metadata, metadata.tile_index_mode, inline, referenced, at),
        _sections(metadata, inline, referenced, strict, at),
        camera,
    )


def resolve_submit_objects(metadata: FrameSubmit, regions: Regions, objects: Mapping[ObjectKind, Buffer]) -> TensorBody:
    """The tensor of a submit whose slots are partly ``objects``, the contents of what it refers to. Raises NnrpError where
    they do not fit its metadata."""
    inline = _inline_slots(regions.inline_objects, SLOTS, 0)
    found = {kind: (content, 0) for kind, content in objects.items() if kind in SLOTS} | inline
    camera, _ = found.get(ObjectKind.CAMERA_BLOCK, (b"", 0))
    index, _ = found.get(ObjectKind.TILE_INDEX_BLOCK, (b"", 0))
    count, base = metadata.tile_count, metadata.tile_base_id
    ids = parse_tile_index(index, mode=metadata.tile_index_mode, tile_count=count, tile_base_id=base)
    return TensorBody(ids, _sections(metadata, found, set(), True, 0), camera)


def _submit_references(metadata: FrameSubmit, references: Iterable[ObjectReference], at: int) -> set[ObjectKind]:
    """The slots given by reference; other kinds are allowed and not counted (nnrp-wire 8.4)."""
    mask, previous, found = 0, -1, set()
    for each in references:
        if each.object_kind not in SLOTS:
            continue
        place = SLOTS.index(each.object_kind)
        if place <= previous:
            raise _bad("references stand in slot order, each at most once", _slot(each.object_kind), at)
        previous = place
        mask |= 1 << place
        found.add(each.object_kind)
    if mask != metadata.object_ref_mask:
        rule = f"the references give mask {mask:#x}, object_ref_mask is {int(metadata.object_ref_mask):#x}"
        raise _bad(rule, "object_ref_mask", at)
    return found


def bind_result_objects(metadata: ResultPush, regions: Regions, *, strict: bool = True, at: int = 0) -> TensorBody:
    """Check the objects of a result against its metadata and decode the inline tensor parts."""
    inline = _inline_slots(regions.inline_objects, RESULT_SLOTS, at)
    keys = [
        (int(each.object_kind), each.cache_namespace, each.cache_key_hi, each.cache_key_lo)
        for each in regions.references
    ]
    if any(later <= earlier for earlier, later in pairwise(keys)):
        raise _bad("references ascend by kind, namespace and key", "object_reference_region", at)
    referenced: set[ObjectKind] = set()
    for each in regions.references:
        if each.object_kind in referenced or each.object_kind in inline:
            raise _bad("a slot is given once, inline or by reference", _slot(each.object_kind), at)
        if each.object_kind in RESULT_SLOTS:
            referenced.add(each.object_kind)
    mode = TileIndexMode.RAW_U16 if metadata.tile_index_bytes else TileIndexMode.DENSE_RANGE
    return TensorBody(
        _tile_ids(metadata, mode, inline, referenced, at), _sections(metadata, inline, referenced, strict, at)
    )


def _tile_ids(
    metadata: FrameSubmit | ResultPush,
    mode: TileIndexMode,
    inline: dict[ObjectKind, _Inline],
    referenced: set[ObjectKind],
    at: int,
) -> TileIds:
    kind = ObjectKind.TILE_INDEX_BLOCK
    block, place = inline.get(kind, (None, at))
    if len(block or b"") != metadata.tile_index_bytes:
        raise _bad("tile_index_bytes is the length of the inline tile index", "tile_index_bytes", at)
    if block is None:
        if metadata.tile_count and kind not in referenced:
            raise _bad("tile_count needs a tile index, inline or referenced", "tile_count", at)
        return ()
    count, base = metadata.tile_count, metadata.tile_base_id
    return parse_tile_index(block, mode=mode, tile_count=count, tile_base_id=base, at=place)


def _sections(
    metadata: FrameSubmit | ResultPush,
    inline: dict[ObjectKind, _Inline],
    referenced: set[ObjectKind],
    strict: bool,
    at: int,
) -> tuple[TensorSection, ...]:
    kind = ObjectKind.TENSOR_SECTION_TABLE
    block, place = inline.get(kind, (None, at))
    if block is None:
        if metadata.section_count and kind not in referenced:
            raise _bad("section_count needs a section table, inline or referenced", "section_count", at)
        return ()
    counts = {"section_count": metadata.section_count, "tile_count": metadata.tile_count}
    return parse_sections(block, **counts, strict=strict, at=place)
