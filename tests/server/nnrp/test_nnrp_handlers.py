"""In-process handlers: text and numpy arrays in and out, over loopback sockets. numpy is of the extra ``dev``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import trio

from client.nnrp import NnrpConnection, NnrpOperationEnded, open_nnrp
from client.nnrp.results import Result
from protocol.nnrp.enums import (
    BudgetPolicy,
    DtypeId,
    ErrorCode,
    PayloadKind,
    ProfileId,
    ResultClass,
    StopReason,
    TileIndexMode,
    TokenChannel,
)
from protocol.nnrp.extensions import NO_FEATURES
from protocol.nnrp.messages import FrameSubmit
from protocol.nnrp.tensor import TensorBody, TensorSection, TileIds, pack_flat_tensor
from server.nnrp.submit import Answer, Emit, text_payload
from server.nnrp.workers import Say, answer_of, tensor_handler, token_handler
from tests.support.nnrp import functions, serving_nnrp

Array = np.ndarray[Any, Any]


async def submit(connection: NnrpConnection, sections: list[TensorSection], ids: TileIds, **fields: Any) -> Result:
    """A tensor as a flat body, and its result."""
    session = await connection.open_session(profile_id=ProfileId.TENSOR, schema=(0, 0))
    dense = isinstance(ids, range)
    mode = TileIndexMode.DENSE_RANGE if dense else TileIndexMode.RAW_U16
    metadata = FrameSubmit(
        tile_count=len(ids),
        section_count=len(sections),
        tile_index_mode=mode,
        tile_index_bytes=0 if dense else 2 * len(ids),
        payload_kind_bitmap=PayloadKind.TENSOR,
        **fields,
    )
    body = pack_flat_tensor(TensorBody(ids, tuple(sections)), mode=mode)
    return await (await session.submit_frame(metadata, body)).result()


def section(role: int, array: Array, dtype: DtypeId, *, stride: int = 0) -> TensorSection:
    tiles = [each.tobytes() for each in array]
    return TensorSection.of(role, tiles, dtype_id=dtype, element_count_per_tile=array[0].size, stride=stride)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (DtypeId.FP16, "f2"),
        (DtypeId.FP32, "f4"),
        (DtypeId.INT8, "i1"),
        (DtypeId.UINT8, "u1"),
        (DtypeId.INT16, "i2"),
        (DtypeId.UINT16, "u2"),
    ],
)
async def test_arrays_of_every_type_go_in_and_out(dtype: DtypeId, name: str) -> None:
    """nnrp-wire 9.3; issue 5, Runners: role → (tiles, elements), little-endian, both ways; the tile ids are kept."""
    seen: dict[int, Array] = {}

    async def double(arrays: dict[int, Array], emit: Emit) -> Mapping[int, Array]:
        seen.update(arrays)
        return {role: array + array for role, array in arrays.items()}

    given = np.arange(6, dtype=name).reshape(2, 3)
    async with (
        serving_nnrp(make_worker=functions(tensor_handler(double))) as served,
        open_nnrp(served.url) as connection,
    ):
        result = await submit(connection, [section(3, given, dtype)], (9, 4))
    assert list(result.tensor.tile_ids) == [9, 4]
    (made,) = result.tensor.sections
    assert (made.descriptor.role_id, made.descriptor.dtype_id) == (3, dtype)
    assert made.descriptor.element_count_per_tile == 3
    assert np.array_equal(np.frombuffer(made.payload, dtype=name).reshape(2, 3), given * 2)
    assert seen[3].dtype == np.dtype(name)
    assert not seen[3].flags.writeable


async def test_strides_sections_and_another_number_of_tiles() -> None:
    """9.3 fixed_stride: the slack is no element; several roles; a result of other tiles numbers them from 0."""

    async def join(arrays: dict[int, Array], emit: Emit) -> Mapping[int, Array]:
        return {1: np.concatenate([arrays[1], arrays[2]])}

    one, two = np.array([[1, 2]], dtype="u2"), np.array([[3, 4]], dtype="u2")
    sections = [section(1, one, DtypeId.UINT16, stride=8), section(2, two, DtypeId.UINT16)]
    async with serving_nnrp(make_worker=functions(tensor_handler(join))) as served, open_nnrp(served.url) as connection:
        result = await submit(connection, sections, range(7, 8))
    assert list(result.tensor.tile_ids) == [0, 1]
    assert np.frombuffer(result.tensor.sections[0].payload, dtype="u2").tolist() == [1, 2, 3, 4]


async def test_what_is_no_array_is_refused() -> None:
    """9.3: tiles of different lengths, a codec, a tile that ends inside an element."""

    async def never(arrays: dict[int, Array], emit: Emit) -> Mapping[int, Array]:
        raise AssertionError

    uneven = TensorSection.of(1, [b"1", b"22"], dtype_id=DtypeId.UINT8)
    coded = TensorSection.of(1, [b"1", b"2"], dtype_id=DtypeId.UINT8, codec_id=3)
    broken = TensorSection.of(1, [b"1", b"2"], dtype_id=DtypeId.FP32)
    async with (
        serving_nnrp(make_worker=functions(tensor_handler(never))) as served,
        open_nnrp(served.url) as connection,
    ):
        for bad in (uneven, coded, broken):
            with pytest.raises(NnrpOperationEnded) as refused:
                await submit(connection, [bad], range(2))
            assert refused.value.code in (ErrorCode.UNSUPPORTED_CAPABILITY, 0x0003_0005)


async def test_a_kept_array_is_the_result_when_time_is_over() -> None:
    """12.5 allow_degraded with arrays: what the work has kept so far."""

    async def slow(arrays: dict[int, Array], emit: Emit) -> Answer:
        emit.keep(answer_of({1: np.ones((2, 2), "f4")}, result_class=ResultClass.DEGRADED))
        await trio.sleep_forever()
        raise AssertionError

    given = section(1, np.zeros((2, 2), "f4"), DtypeId.FP32)
    policy = {"latency_budget_ms": 50, "budget_policy": BudgetPolicy.ALLOW_DEGRADED}
    async with serving_nnrp(make_worker=functions(tensor_handler(slow))) as served, open_nnrp(served.url) as connection:
        result = await submit(connection, [given], range(2), **policy)
    assert result.result_class is ResultClass.DEGRADED
    assert np.frombuffer(result.tensor.sections[0].payload, "f4").tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("arrays", "fields", "problem"),
    [
        ({1: np.zeros(3, "f8")}, {}, "float64"),
        ({1: np.zeros((), "f4")}, {}, "first axis"),
        ({1: np.zeros((2, 1), "u1"), 2: np.zeros((3, 1), "u1")}, {}, "same number"),
        ({1: np.zeros((2, 1), "u1")}, {"tile_ids": (1, 2, 3)}, "tile ids"),
    ],
    ids=["type", "scalar", "counts", "ids"],
)
def test_what_no_result_can_be_made_of(arrays: dict[int, Array], fields: dict[str, Any], problem: str) -> None:
    """9.3: said to whoever wrote the handler, before anything is sent."""
    with pytest.raises(ValueError, match=problem):
        answer_of(arrays, **fields)


def test_a_contiguous_array_is_not_copied() -> None:
    """Issue 5, Speed: payloads are not copied on their way out."""
    array = np.arange(8, dtype="f4").reshape(2, 4)
    answer = answer_of({1: array})
    assert answer.tensor is not None
    payload = answer.tensor.sections[0].payload
    array[0, 0] = 7.0
    assert np.frombuffer(payload, "f4")[0] == 7.0


def test_numpy_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 5, Runners: without numpy being required: nothing imports it before it is used, and then what lacks is said."""
    code = "import sys, server.nnrp.workers, server.nnrp.serving; print('numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.split() == ["False"]
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(RuntimeError, match=r"moorline\[numpy\]"):
        answer_of({})


async def test_text_in_and_tokens_out() -> None:
    """nnrp-extensions, Token chunks: pieces with channel and position, contiguous per channel, the stop reason at the end."""

    async def work(prompt: str, say: Say) -> StopReason | None:
        await say("hmm", TokenChannel.THOUGHT)
        for word in prompt.split():
            await say(f"{word} ")
        return StopReason.MAX_TOKENS

    async with serving_nnrp(make_worker=functions(token_handler(work))) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        results = [each async for each in await session.submit("grüne Wörter".encode())]
        hints = [each.hint for each in results]
        assert [each.channel for each in hints if each is not None][:1] == [TokenChannel.THOUGHT]
        said = [each for each in results if each.hint is not None and each.hint.channel is TokenChannel.MESSAGE]
        assert "".join(each.text for each in said) == "grüne Wörter "
        spans = [(each.sequence_start, each.sequence_end) for each in hints[1:] if each is not None]
        assert spans == [(0, 7), (7, 15), (15, 15)]
        assert hints[-1] is not None
        assert hints[-1].stop_reason is StopReason.MAX_TOKENS
        plain = await connection.open_session(features=NO_FEATURES)
        texts = [each.text async for each in await plain.submit(b"a b")]
        assert texts == ["a ", "b ", ""], "a thought could not be told from the answer"


async def test_text_that_is_none_is_refused() -> None:
    """11.5: tokens are text; bytes that are no UTF-8 are malformed_body, a tensor is unsupported_capability."""

    async def never(prompt: str, say: Say) -> None:
        raise AssertionError

    async with serving_nnrp(make_worker=functions(token_handler(never))) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        with pytest.raises(NnrpOperationEnded) as refused:
            await session.request([text_payload(b"\xff", terminal=True, schema=(0x1001, 3))])
        assert refused.value.code == ErrorCode.MALFORMED_BODY
        with pytest.raises(NnrpOperationEnded) as refused:
            await submit(connection, [section(1, np.zeros((1, 1), "u1"), DtypeId.UINT8)], range(1))
        assert refused.value.code == ErrorCode.UNSUPPORTED_CAPABILITY
