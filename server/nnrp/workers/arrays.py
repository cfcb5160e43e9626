"""numpy arrays in and out: handlers of the tensor profile in a few lines (nnrp-wire 9).

numpy is imported when the first of these is used, never before; moorline does not need it.

A section is an array whose first axis are its tiles and whose second are a tile's elements. What has no type in numpy, fp8,
comes as its bytes (uint8).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from protocol.nnrp.descriptors import TensorSectionDesc
from protocol.nnrp.enums import CacheErrorCode, DtypeId, ErrorCode, LayoutId, ProfileId, ResultClass
from protocol.nnrp.tensor import TensorBody, TensorSection, TileIds
from server.nnrp.submit import Answer, Emit, Handler, OperationFailed, Submit

if TYPE_CHECKING:
    import numpy.typing

__all__ = ["Arrays", "TensorWork", "answer_of", "arrays_of", "tensor_handler"]

if TYPE_CHECKING:
    Array: TypeAlias = numpy.typing.NDArray[Any]
    Arrays: TypeAlias = Mapping[int, Array]
    """By role id."""
    TensorWork: TypeAlias = Callable[[dict[int, Array], Emit], Awaitable[Arrays | Answer]]
else:
    Arrays = Mapping
    TensorWork = Callable

_TYPES: Final = {
    DtypeId.FP16: "<f2",
    DtypeId.FP32: "<f4",
    DtypeId.FP8_E4M3: "u1",
    DtypeId.FP8_E5M2: "u1",
    DtypeId.INT8: "i1",
    DtypeId.UINT8: "u1",
    DtypeId.INT16: "<i2",
    DtypeId.UINT16: "<u2",
}
_IDS: Final = {"f2": DtypeId.FP16, "f4": DtypeId.FP32, "i1": DtypeId.INT8, "u1": DtypeId.UINT8} | {
    "i2": DtypeId.INT16,
    "u2": DtypeId.UINT16,
}


def tensor_handler(work: TensorWork) -> Handler:
    """A handler for `FunctionWorker` that runs ``work``: arrays by role in, arrays by role out, or an `Answer` of its own.
    The result keeps the tile ids of the submit where it has as many tiles. With ``emit.keep(answer_of(…))`` it leaves
    something for a budget that ends early."""

    async def handle(submit: Submit, emit: Emit) -> Answer:
        made = await work(arrays_of(submit), emit)
        if isinstance(made, Answer):
            return made
        ids = submit.tensor.tile_ids
        count = next((len(each) for each in made.values()), 0)
        return answer_of(made, tile_ids=ids if len(ids) == count else None)

    return handle


def arrays_of(submit: Submit) -> dict[int, Array]:
    """The submitted sections, read-only and without a copy. Raises `OperationFailed` for what is not a plain array: a codec,
    or tiles of different lengths."""
    numpy = _numpy()
    return {each.descriptor.role_id: _array(numpy, each) for each in submit.tensor.sections}


def answer_of(
    arrays: Arrays,
    *,
    tile_ids: TileIds | None = None,
    layout: LayoutId = LayoutId.NHWC,
    result_class: ResultClass = ResultClass.COMPLETE,
    dropped_tiles: int = 0,
) -> Answer:
    """A result made of arrays; one that is contiguous is not copied, and must not change any more. All have the same number
    of tiles; ``tile_ids`` are 0, 1, 2, … unless given. Raises ``ValueError`` for a type that the profile does not have."""
    numpy = _numpy()
    sections = tuple(_section(numpy, role, arrays[role], layout) for role in sorted(arrays))
    counts = {len(each.lengths) for each in sections}
    if len(counts) > 1:
        raise ValueError("the sections of one result have the same number of tiles")
    ids = range(next(iter(counts), 0)) if tile_ids is None else tile_ids
    if counts and len(ids) not in counts:
        raise ValueError(f"{len(ids)} tile ids for {counts.pop()} tiles")
    return Answer(
        tensor=TensorBody(ids, sections),
        profile_id=ProfileId.TENSOR,
        result_class=result_class,
        dropped_tiles=dropped_tiles,
    )


def _numpy() -> ModuleType:
    try:
        import numpy
    except ImportError as missing:
        raise RuntimeError("arrays need numpy: install moorline[numpy]") from missing
    return numpy


def _array(numpy: ModuleType, section: TensorSection) -> Array:
    plan, tiles = section.descriptor, len(section.lengths)
    dtype = numpy.dtype(_TYPES[plan.dtype_id])
    length = section.lengths[0] if tiles else 0
    if plan.codec_id or section.codec_ids:
        raise OperationFailed("a coded section is no array", ErrorCode.UNSUPPORTED_CAPABILITY)
    if len(set(section.lengths)) > 1:
        raise OperationFailed("tiles of different lengths are no array", ErrorCode.UNSUPPORTED_CAPABILITY)
    if length % dtype.itemsize:
        raise OperationFailed("a tile ends inside an element", CacheErrorCode.SCHEMA_MISMATCH)
    rows = numpy.frombuffer(section.payload, dtype=numpy.uint8).reshape(tiles, plan.payload_stride_bytes or length)
    array = rows[:, :length].view(dtype) if length else numpy.empty((tiles, 0), dtype)
    array.flags.writeable = False
    return array  # type: ignore[no-any-return]  # the module was imported late


def _section(numpy: ModuleType, role: int, array: Array, layout: LayoutId) -> TensorSection:
    if array.ndim == 0:
        raise ValueError(f"section {role}: the first axis are the tiles")
    name = f"{array.dtype.kind}{array.dtype.itemsize}"
    if name not in _IDS:
        raise ValueError(f"section {role}: the tensor profile has no {array.dtype}")
    plain = numpy.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    tiles = len(plain)
    elements = plain.size // tiles if tiles else 0
    size = elements * plain.dtype.itemsize
    payload = memoryview(plain.reshape(-1)).cast("B") if plain.size else memoryview(b"")
    descriptor = TensorSectionDesc(
        role,
        0,
        _IDS[name],
        layout,
        element_count_per_tile=elements,
        length_table_bytes=4 * tiles,
        payload_bytes=size * tiles,
    )
    return TensorSection(descriptor, (size,) * tiles, payload)
