"""GatherBlockQuantized against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.ops.microsoft import peer


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero_points", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_packed_bytes(bits: int, zero_points: bool, dtype: type, index: type) -> None:
    generator = np.random.default_rng(1)
    data = generator.integers(0, 256, (9, 64 * bits // 8)).astype(np.uint8)
    scales = (generator.random((9, 4)) + 0.1).astype(dtype)
    zero = generator.integers(0, 256, (9, 4 * bits // 8)).astype(np.uint8) if zero_points else None
    indices = np.array([[0, -1, 8], [3, 3, 1]], index)
    peer.compare(
        "GatherBlockQuantized",
        [data, indices, scales, zero],
        [peer.element_type(scales)],
        {"bits": bits, "block_size": 16, "quantize_axis": -1},
        constants=[0, 2, 3],
        rtol=2e-3,
    )


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("zero_points", [True, False])
@pytest.mark.parametrize(("gather", "quantize"), [(0, 1), (1, 0), (0, 2), (2, 1), (1, 1), (-1, -1)])
def test_four_bit_types(dtype: type, zero_points: bool, gather: int, quantize: int) -> None:
    generator = np.random.default_rng(2)
    low = -8 if dtype == ml_dtypes.int4 else 0
    data = generator.integers(low, low + 16, (20, 18, 34)).astype(dtype)
    shape = list(data.shape)
    shape[quantize] = -(-shape[quantize] // 16)
    scales = (generator.random(shape) + 0.1).astype(np.float32)
    zero = generator.integers(low, low + 16, shape).astype(dtype) if zero_points else None
    indices = np.array([0, 5, -2], np.int64)
    peer.compare(
        "GatherBlockQuantized",
        [data, indices, scales, zero],
        [1],
        {"block_size": 16, "gather_axis": gather, "quantize_axis": quantize},
        constants=[0, 2, 3],
    )


@pytest.mark.parametrize("block", [16, 0])
@pytest.mark.parametrize("rows", [6, 1])
@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_float8(block: int, rows: int, dtype: type) -> None:
    generator = np.random.default_rng(3)
    data = generator.standard_normal((6, 40)).astype(dtype)
    scales = (generator.random((rows, 1 if block == 0 else 3)) + 0.1).astype(np.float32)
    peer.compare(
        "GatherBlockQuantized", [data, np.array([5, 0], np.int32), scales], [1], {"block_size": block}, constants=[0, 2]
    )


def test_an_index_out_of_range_gives_zeros() -> None:
    generator = np.random.default_rng(4)
    data = generator.integers(0, 256, (3, 16)).astype(np.uint8)
    scales = np.ones((3, 2), np.float32)
    (found,) = peer.compare(
        "GatherBlockQuantized",
        [data, np.array([1, 3, -4], np.int64), scales],
        [1],
        {"block_size": 16},
        constants=[0, 2],
    )
    assert not found[1:].any()
    assert found[0].any()


def test_bytes_are_gathered_along_the_first_axis_only() -> None:
    data, scales = np.zeros((3, 16), np.uint8), np.ones((3, 2), np.float32)
    with pytest.raises(Exception, match="'gather_axis' must be 0"):
        peer.run("GatherBlockQuantized", [data, np.array([0]), scales], [1], {"block_size": 16, "gather_axis": 1})
