"""The bodies of FRAME_SUBMIT and RESULT_PUSH: which form they have, and what must hold (nnrp-wire 8)."""

from __future__ import annotations

from protocol.layout import Buffer
from protocol.nnrp.bodies import BodyForm, Context, DataBody
from protocol.nnrp.enums import PayloadKind, SubmitMode, TileIndexMode
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.messages import FrameSubmit, ResultPush
from protocol.nnrp.objects import bind_result_objects, bind_submit_objects
from protocol.nnrp.region_parser import parse_regions
from protocol.nnrp.regions import Regions
from protocol.nnrp.tensor import parse_flat_tensor

__all__ = ["parse_result", "parse_submit"]


def parse_submit(message: FrameSubmit, body: Buffer, how: Context) -> DataBody:
    bitmap = int(message.payload_kind_bitmap)
    count = message.payload_frame_count
    if count:
        return _data_body(message, body, bitmap, count, False, how)
    if not (body or bitmap & 1):
        if message.object_ref_mask:
            bind_submit_objects(message, Regions(), strict=how.strict, at=how.at)
        return DataBody(BodyForm.EMPTY)
    return _data_body(message, body, bitmap, 0, bitmap == 1 and message.submit_mode == SubmitMode.INLINE, how)


def parse_result(message: ResultPush, body: Buffer, how: Context) -> DataBody:
    bitmap = int(message.payload_kind_bitmap)
    count = message.payload_frame_count
    if not (body or count or bitmap & 1):
        return DataBody(BodyForm.EMPTY)
    return _data_body(message, body, bitmap, count, bitmap == 1 and not count, how)


def _data_body(
    message: FrameSubmit | ResultPush, body: Buffer, bitmap: int, count: int, flat: bool, how: Context
) -> DataBody:
    """The form follows from the metadata alone; a tolerant receiver has two fallbacks (nnrp-wire 8.1)."""
    if not flat:
        try:
            return _region_body(message, body, bitmap, count, how)
        except NnrpError as error:
            raw = None if how.strict else _raw_body(error, body, bitmap)
            if raw is None:
                raise
            return raw
    try:
        return _flat_body(message, body, how)
    except NnrpError as error:
        region = None if how.strict else _region_instead(message, body, bitmap, count, how)
        if region is None:
            raise error
        return region


def _region_body(message: FrameSubmit | ResultPush, body: Buffer, bitmap: int, count: int, how: Context) -> DataBody:
    regions = parse_regions(message.TYPE, body, count, bitmap, how)
    masked = isinstance(message, FrameSubmit) and message.object_ref_mask
    if not (bitmap & 1 or regions.inline_objects or regions.references or masked):
        return DataBody(BodyForm.REGION, regions)
    if isinstance(message, FrameSubmit):
        tensor = bind_submit_objects(message, regions, strict=how.strict, at=how.at)
    else:
        tensor = bind_result_objects(message, regions, strict=how.strict, at=how.at)
    return DataBody(BodyForm.REGION, regions, tensor)


def _flat_body(message: FrameSubmit | ResultPush, body: Buffer, how: Context) -> DataBody:
    if isinstance(message, FrameSubmit):
        camera, mode = message.camera_bytes, message.tile_index_mode
    else:
        camera, mode = 0, TileIndexMode.RAW_U16 if message.tile_index_bytes else TileIndexMode.DENSE_RANGE
    tensor = parse_flat_tensor(
        body,
        camera_bytes=camera,
        tile_index_bytes=message.tile_index_bytes,
        mode=mode,
        tile_count=message.tile_count,
        tile_base_id=message.tile_base_id,
        section_count=message.section_count,
        strict=how.strict,
        at=how.at,
    )
    return DataBody(BodyForm.FLAT_TENSOR, tensor=tensor)


def _raw_body(error: NnrpError, body: Buffer, bitmap: int) -> DataBody | None:
    """The bare payload some peers send, when the body cannot be a region body and one kind is declared."""
    unframed = error.subject == "BODY_REGION_PRELUDE" and error.outcome in (
        Outcome.TOO_SHORT,
        Outcome.LENGTH_MISMATCH,
        Outcome.LENGTH_OVERFLOW,
    )
    kinds = [kind for kind in PayloadKind if bitmap & kind]
    if not unframed or len(kinds) != 1 or kinds[0] is PayloadKind.TENSOR:
        return None
    return DataBody(BodyForm.RAW, raw=body, raw_kind=kinds[0])


def _region_instead(
    message: FrameSubmit | ResultPush, body: Buffer, bitmap: int, count: int, how: Context
) -> DataBody | None:
    try:
        return _region_body(message, body, bitmap, count, how)
    except NnrpError:
        return None
