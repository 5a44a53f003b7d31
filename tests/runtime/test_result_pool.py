"""Memory of results: blocks are used again, never by two arrays at once, and not kept without bound."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx.compiler.native_resources import NativeResources
from sardonyx.runtime.memory.result_pool import LARGEST_KEPT, POOL_BYTES, SMALLEST, ResultPool
from sardonyx.runtime.settings import DEFAULT

Array = np.ndarray[Any, Any]
FLOAT = np.dtype(np.float32)


@pytest.fixture
def pool() -> ResultPool:
    code = NativeResources(DEFAULT).results
    if code is None:
        pytest.skip("no pool on this system")
    return ResultPool(code.code)


def place(array: Array) -> int:
    return int(array.ctypes.data)


def test_a_block_is_used_again_when_its_array_is_gone(pool: ResultPool) -> None:
    first = pool.empty((SMALLEST,), FLOAT)
    was = place(first)
    second = pool.empty((SMALLEST,), FLOAT)
    assert place(second) != was
    del first
    assert pool.free_bytes >= 4 * SMALLEST
    third = pool.empty((SMALLEST,), FLOAT)
    assert place(third) == was
    assert was % 64 == 0
    assert pool.free_bytes == 0


def test_a_view_keeps_the_block(pool: ResultPool) -> None:
    array = pool.empty((4, SMALLEST), FLOAT)
    array[:] = 7
    view = array[1:3].T
    del array
    gc.collect()
    other = pool.empty((4, SMALLEST), FLOAT)
    other[:] = 9
    assert (view == 7).all()


def test_arrays_are_as_numpy_makes_them(pool: ResultPool) -> None:
    for dtype in ("float32", "int64", "bool", "float16"):
        array = pool.empty((3, SMALLEST), np.dtype(dtype))
        assert array.dtype == np.dtype(dtype)
        assert array.shape == (3, SMALLEST)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.flags.aligned
    assert pool.empty((3,), FLOAT).flags.owndata


def test_other_sizes_get_other_blocks(pool: ResultPool) -> None:
    small = pool.empty((SMALLEST,), FLOAT)
    was = place(small)
    del small
    assert place(pool.empty((3 * SMALLEST,), FLOAT)) != was
    assert place(pool.empty((SMALLEST - SMALLEST // 16,), FLOAT)) == was


def test_what_is_kept_is_bounded(pool: ResultPool) -> None:
    arrays = [pool.empty((16 << 20,), np.dtype(np.uint8)) for _ in range(POOL_BYTES // (16 << 20) + 8)]
    del arrays
    assert 0 < pool.free_bytes <= POOL_BYTES
    large = pool.empty((LARGEST_KEPT + 1,), np.dtype(np.uint8))
    before = pool.free_bytes
    del large
    assert pool.free_bytes == before


def test_more_arrays_than_the_table_has_rows(pool: ResultPool) -> None:
    arrays = [pool.empty((SMALLEST,), np.dtype(np.uint8)) for _ in range(300)]
    for number, array in enumerate(arrays):
        array[:] = number % 251
    assert all((array == number % 251).all() for number, array in enumerate(arrays))


def test_results_of_a_session_never_share_memory() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]>\nagraph (float[n] x) => (float[n] y, float[n] z) '
        "{ y = Exp(x) z = Neg(x) }"
    )
    session = ort.InferenceSession(model.SerializeToString())
    kept: list[tuple[int, list[Array]]] = []
    for number in range(40):
        x = np.full(SMALLEST + number % 3, number / 10, np.float32)
        kept.append((number, session.run(None, {"x": x})))
        if number % 4 == 3:
            kept.pop(number % len(kept))
    for number, (y, z) in kept:
        np.testing.assert_array_equal(z, np.float32(-number / 10))
        np.testing.assert_allclose(y, np.exp(np.float32(number / 10)), rtol=1e-6)
    assert not np.shares_memory(kept[0][1][0], kept[1][1][0])
