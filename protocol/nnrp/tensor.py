"""Tensor payloads: sections, section tables, flat bodies and tile indexes (nnrp-wire 9)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec

from protocol.errors import Reach
from protocol.layout import Buffer
from protocol.nnrp.descriptors import TensorSectionDesc
from protocol.nnrp.enums import DtypeId, LayoutId, ScalePolicy, SectionFlags, TileIndexMode
from protocol.nnrp.errors import NnrpError, Outcome

__all__ = [
    "TensorBody",
    "TensorSection",
    "TileIds",
    "pack_flat_tensor",
    "pack_sections",
    "pack_tile_index",
    "parse_flat_tensor",
    "parse_sections",
    "parse_tile_index",
]

TileIds: TypeAlias = Sequence[int]
"""Tile ids in wire order; a `range` for dense_range, so that a large count costs nothing."""

_INDEX = "TILE_INDEX_BLOCK"
_BODY = "TENSOR_BODY"
_DESC = TensorSectionDesc.SIZE


def _fault(outcome: Outcome, rule: str, subject: str, field: str | None, offset: int) -> NnrpError:
    return NnrpError(outcome, rule, subject=subject, field=field, offset=offset, reach=Reach.OPERATION)


class TensorSection(msgspec.Struct, frozen=True, gc=False):
    """One section: the descriptor and its three parts. Payloads are views of the body where that is a memoryview."""

    descriptor: TensorSectionDesc
    lengths: tuple[int, ...]
    payload: Buffer
    codec_ids: bytes = b""

    def tiles(self) -> list[Buffer]:
        """The payload of each tile, in tile-index order."""
        stride = self.descriptor.payload_stride_bytes
        tiles, start = [], 0
        for length in self.lengths:
            tiles.append(self.payload[start : start + length])
            start += stride or length
        return tiles

    def pack(self) -> bytes:
        """The wire bytes of this section, lengths written as counted."""
        count = len(self.lengths)
        fixed = self.descriptor.replace(
            codec_table_bytes=len(self.codec_ids), length_table_bytes=4 * count, payload_bytes=len(self.payload)
        )
        return b"".join((fixed.pack(), self.codec_ids, struct.pack(f"<{count}I", *self.lengths), self.payload))

    @classmethod
    def of(
        cls,
        role_id: int,
        tiles: Sequence[Buffer],
        *,
        dtype_id: DtypeId,
        codec_id: int = 0,
        codec_ids: bytes = b"",
        layout_id: LayoutId = LayoutId.NHWC,
        scale_policy: ScalePolicy = ScalePolicy.NONE,
        element_count_per_tile: int = 0,
        stride: int = 0,
    ) -> TensorSection:
        """A section made of tile payloads; with ``stride`` each is padded with zeros to that many bytes."""
        flags = SectionFlags.MIXED_CODEC if codec_ids else SectionFlags(0)
        if stride:
            flags |= SectionFlags.FIXED_STRIDE
        payload = b"".join(bytes(tile).ljust(stride, b"\0") for tile in tiles)
        lengths = tuple(len(tile) for tile in tiles)
        descriptor = TensorSectionDesc(
            role_id,
            codec_id,
            dtype_id,
            layout_id,
            scale_policy,
            flags,
            element_count_per_tile,
            len(codec_ids),
            4 * len(lengths),
            len(payload),
            stride,
        )
        return cls(descriptor, lengths, payload, codec_ids)


class TensorBody(msgspec.Struct, frozen=True, gc=False):
    """The tensor parts of a body, from a flat body or from the inline objects of a region body."""

    tile_ids: TileIds = ()
    sections: tuple[TensorSection, ...] = ()
    camera: Buffer = b""


def parse_tile_index(
    data: Buffer, *, mode: TileIndexMode, tile_count: int, tile_base_id: int = 0, at: int = 0
) -> TileIds:
    """The tile ids of a block that fills ``data`` (nnrp-wire 9.4)."""
    if mode == TileIndexMode.DENSE_RANGE:
        if len(data):
            raise _fault(Outcome.BAD_COMBINATION, "dense_range has an empty tile index", _INDEX, None, at)
        return range(tile_base_id, tile_base_id + tile_count)
    if mode == TileIndexMode.BITSET:
        return _parse_bitset(data, tile_count, at)
    if len(data) != 2 * tile_count:
        rule = f"{tile_count} tiles need {2 * tile_count} bytes, got {len(data)}"
        raise _fault(Outcome.BAD_COMBINATION, rule, _INDEX, None, at)
    ids = struct.unpack(f"<{tile_count}H", data)
    return ids if mode == TileIndexMode.RAW_U16 else _sum_deltas(ids, at)


def _sum_deltas(deltas: tuple[int, ...], at: int) -> TileIds:
    total, ids = 0, []
    for index, delta in enumerate(deltas):
        if index and delta == 0:
            rule = "delta_u16 ids must be strictly increasing"
            raise _fault(Outcome.BAD_COMBINATION, rule, _INDEX, None, at + 2 * index)
        total += delta
        ids.append(total)
    if total > 0xFFFF:
        raise _fault(Outcome.BAD_COMBINATION, "tile ids fit u16", _INDEX, None, at)
    return tuple(ids)


def _parse_bitset(data: Buffer, tile_count: int, at: int) -> TileIds:
    if len(data) > 0x2000:
        raise _fault(Outcome.BAD_COMBINATION, "tile ids fit u16", _INDEX, None, at)
    bits = int.from_bytes(data, "little")
    if bits.bit_count() != tile_count:
        rule = f"the bitset has {bits.bit_count()} ids, tile_count is {tile_count}"
        raise _fault(Outcome.BAD_COMBINATION, rule, _INDEX, None, at)
    if len(data) != (bits.bit_length() + 7) // 8:
        rule = "a bitset ends with the byte of its last id"
        raise _fault(Outcome.BAD_COMBINATION, rule, _INDEX, None, at)
    return tuple(8 * place + bit for place, byte in enumerate(data) if byte for bit in range(8) if byte >> bit & 1)


def pack_tile_index(ids: TileIds, *, mode: TileIndexMode) -> bytes:
    """The block for ``ids``. Ids that the mode cannot carry raise ValueError."""
    if mode == TileIndexMode.DENSE_RANGE:
        return b""
    if any(not 0 <= each <= 0xFFFF for each in ids):
        raise ValueError("tile ids fit u16")
    if mode == TileIndexMode.RAW_U16:
        return struct.pack(f"<{len(ids)}H", *ids)
    if any(later <= earlier for earlier, later in pairwise(ids)):
        raise ValueError("tile ids must be strictly increasing in this mode")
    if mode == TileIndexMode.DELTA_U16:
        deltas = [each - before for before, each in zip((0, *ids), ids, strict=False)]
        return struct.pack(f"<{len(ids)}H", *deltas)
    bits = 0
    for each in ids:
        bits |= 1 << each
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _skip_padding(data: Buffer, offset: int, at: int) -> int:
    """The next multiple of 8; the bytes up to it exist and are zero."""
    aligned = offset + -offset % 8
    if aligned > len(data):
        raise _fault(Outcome.TOO_SHORT, "body ends inside padding", _BODY, "padding", at + offset)
    if any(data[offset:aligned]):
        raise _fault(Outcome.RESERVED_NON_ZERO, "padding must be zero", _BODY, "padding", at + offset)
    return aligned


def parse_sections(
    data: Buffer, *, section_count: int, tile_count: int, offset: int = 0, strict: bool = True, at: int = 0
) -> tuple[TensorSection, ...]:
    """The sections from ``data[offset:]`` to its end, each start padded to 8 from the start of ``data``."""
    sections: list[TensorSection] = []
    for _ in range(section_count):
        offset = _skip_padding(data, offset, at)
        section, following = _parse_section(data, offset, tile_count, strict, at)
        role = section.descriptor.role_id
        if sections and role <= sections[-1].descriptor.role_id:
            rule = "role_id must be strictly increasing"
            raise _fault(Outcome.BAD_COMBINATION, rule, "TENSOR_SECTION_DESC", "role_id", at + offset)
        sections.append(section)
        offset = following
    if offset != len(data):
        rule = f"{len(data) - offset} bytes after the last section"
        raise _fault(Outcome.LENGTH_MISMATCH, rule, _BODY, None, at + offset)
    return tuple(sections)


def _parse_section(data: Buffer, offset: int, tile_count: int, strict: bool, at: int) -> tuple[TensorSection, int]:
    name = "TENSOR_SECTION_DESC"
    if len(data) - offset < _DESC:
        raise _fault(Outcome.TOO_SHORT, f"a section needs {_DESC} bytes", name, None, at + offset)
    desc = TensorSectionDesc.decode(data, offset, strict, at + offset)
    codecs = offset + _DESC
    lengths = codecs + desc.codec_table_bytes
    payload = lengths + desc.length_table_bytes
    end = payload + desc.payload_bytes
    if end > len(data):
        raise _fault(Outcome.TOO_SHORT, "section past the end of the body", name, None, at + offset)
    if desc.length_table_bytes != 4 * tile_count:
        rule = f"one u32 for each of {tile_count} tiles"
        raise _fault(Outcome.BAD_COMBINATION, rule, name, "length_table_bytes", at + offset + 16)
    if desc.codec_table_bytes not in (0, tile_count):
        rule = f"one u8 for each of {tile_count} tiles"
        raise _fault(Outcome.BAD_COMBINATION, rule, name, "codec_table_bytes", at + offset + 12)
    table = struct.unpack_from(f"<{tile_count}I", data, lengths)
    blob = data[payload:end]
    _check_lengths(desc, table, blob, at + offset, at + payload)
    return TensorSection(desc, table, blob, bytes(data[codecs:lengths])), end


def _check_lengths(desc: TensorSectionDesc, table: tuple[int, ...], blob: Buffer, at: int, blob_at: int) -> None:
    name = "TENSOR_SECTION_DESC"
    stride = desc.payload_stride_bytes
    if not stride:
        if sum(table) != desc.payload_bytes:
            rule = f"the tile lengths sum to {sum(table)}"
            raise _fault(Outcome.BAD_COMBINATION, rule, name, "payload_bytes", at + 20)
        return
    if desc.payload_bytes != stride * len(table):
        rule = f"stride {stride} × {len(table)} tiles"
        raise _fault(Outcome.BAD_COMBINATION, rule, name, "payload_bytes", at + 20)
    for index, length in enumerate(table):
        if length > stride:
            rule = f"tile {index} has {length} bytes, the stride is {stride}"
            raise _fault(Outcome.BAD_COMBINATION, rule, name, "payload_stride_bytes", at + 24)
        slack = blob[index * stride + length : (index + 1) * stride]
        if any(slack):
            rule = "the slack of a fixed stride must be zero"
            raise _fault(Outcome.BAD_COMBINATION, rule, name, "payload", blob_at + index * stride + length)


def pack_sections(sections: Sequence[TensorSection]) -> bytes:
    """A section table object: sections back to back, each start padded to 8 (nnrp-wire 9.2)."""
    out = bytearray()
    for section in sections:
        out += bytes(-len(out) % 8)
        out += section.pack()
    return bytes(out)


def parse_flat_tensor(
    data: Buffer,
    *,
    camera_bytes: int,
    tile_index_bytes: int,
    mode: TileIndexMode,
    tile_count: int,
    tile_base_id: int,
    section_count: int,
    strict: bool = True,
    at: int = 0,
) -> TensorBody:
    """A flat tensor body (nnrp-wire 9.1). RESULT_PUSH has no camera: ``camera_bytes`` 0 there."""
    if camera_bytes > len(data):
        raise _fault(Outcome.TOO_SHORT, "camera block past the end of the body", _BODY, "camera", at)
    index = _skip_padding(data, camera_bytes, at)
    end = index + tile_index_bytes
    if end > len(data):
        raise _fault(Outcome.TOO_SHORT, "tile index past the end of the body", _BODY, "tile_index", at + index)
    ids = parse_tile_index(data[index:end], mode=mode, tile_count=tile_count, tile_base_id=tile_base_id, at=at + index)
    sections = parse_sections(
        data, section_count=section_count, tile_count=tile_count, offset=end, strict=strict, at=at
    )
    return TensorBody(ids, sections, data[:camera_bytes])


def pack_flat_tensor(body: TensorBody, *, mode: TileIndexMode) -> bytes:
    """The flat body for ``body`` (nnrp-wire 9.1)."""
    out = bytearray(body.camera)
    out += bytes(-len(out) % 8)
    out += pack_tile_index(body.tile_ids, mode=mode)
    for section in body.sections:
        out += bytes(-len(out) % 8)
        out += section.pack()
    return bytes(out)
