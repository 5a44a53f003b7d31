"""Scales, zero points and stored numbers, against float64 and integers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from sardonyx.quantization.quantized_numbers import (
    Parameters,
    dequantize,
    extremes,
    new_workers,
    packed,
    parameters_of,
    quantize,
    restricted,
    scale_and_zero_point,
    type_range,
)
from sardonyx.quantization.refusal import InvalidQuantization

Type = ir.DataType
TYPES = [Type.INT8, Type.UINT8, Type.INT16, Type.UINT16, Type.INT4, Type.UINT4]


def _floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("dtype", "plain", "symmetric", "reduced"),
    [
        (Type.UINT8, (0, 255), (0, 255), (0, 127)),
        (Type.INT8, (-128, 127), (-127, 127), (-64, 64)),
        (Type.UINT16, (0, 65535), (0, 65535), (0, 32767)),
        (Type.INT16, (-32768, 32767), (-32767, 32767), (-16384, 16384)),
        (Type.UINT4, (0, 15), (0, 15), (0, 7)),
        (Type.INT4, (-8, 7), (-8, 7), (-4, 3)),
    ],
)
def test_ranges_of_types(dtype: Type, plain: tuple, symmetric: tuple, reduced: tuple) -> None:
    assert type_range(dtype) == plain
    assert type_range(dtype, symmetric=True) == symmetric
    assert type_range(dtype, reduced=True) == reduced


def test_type_that_stores_no_integers() -> None:
    with pytest.raises(InvalidQuantization, match="cannot be quantised to FLOAT"):
        type_range(Type.FLOAT)
    with pytest.raises(ValueError, match="the types are"):
        type_range(Type.BOOL)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("low", "high"), [(-1.5, 3.0), (0.5, 4.0), (-7.0, -1.0), (-2.0, 2.0)])
def test_scale_and_zero_point(dtype: Type, symmetric: bool, low: float, high: float) -> None:
    least, largest = type_range(dtype, symmetric=symmetric)
    scale, zero_point = scale_and_zero_point(np.float32(low), np.float32(high), dtype, symmetric=symmetric)
    low, high = min(low, 0), max(high, 0)
    if symmetric:
        low, high = -max(-low, high), max(-low, high)
    assert scale == np.float32((high - low) / (largest - least))
    assert scale.dtype == np.float32
    expected = round((least + largest) / 2) if symmetric else round(least - low / ((high - low) / (largest - least)))
    assert int(zero_point) == expected
    assert zero_point.dtype == np.dtype(dtype.numpy())


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_zeros_have_a_scale_of_one(kind: type) -> None:
    scale, zero_point = scale_and_zero_point(kind(0), kind(0), Type.UINT8)
    assert (scale, int(zero_point)) == (1, 0)


def test_small_numbers_of_float16_are_kept() -> None:
    array = np.array([0.003, -0.001, 0.0005], np.float16)
    found = parameters_of(array, Type.INT8, symmetric=True)
    assert found.scale < np.finfo(np.float16).tiny
    assert np.abs(dequantize(quantize(array, found), found).astype(float) - array).max() <= found.scale / 2
    lost = parameters_of(array, Type.INT8, symmetric=True, ort_compatible=True)
    assert lost.scale == 1
    assert not quantize(array, lost).any()


def test_least_range() -> None:
    scale, _ = scale_and_zero_point(np.float32(0), np.float32(0.001), Type.UINT8, minimum_range=0.51)
    assert scale == pytest.approx(0.51 / 255, rel=1e-6)


@pytest.mark.parametrize(
    ("low", "high", "zero_point", "scale"), [(0, 2, 0, 2 / 255), (-1, 1, 128, 1 / 127), (-2, 1, 128, 2 / 128)]
)
def test_restricted_zero_point(low: float, high: float, zero_point: int, scale: float) -> None:
    found = restricted(low, high, 0, 255, np.dtype(np.float32))
    assert int(found[1]) == zero_point
    assert found[0] == np.float32(scale)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((7, 5), None), ((7, 5), 0), ((7, 5), 1), ((3, 7, 5), 1), ((1, 1), 0)])
def test_numbers_are_the_nearest(dtype: Type, symmetric: bool, shape: tuple[int, ...], axis: int | None) -> None:
    array = _floats(*shape) + np.float32(0.3)
    found = parameters_of(array, dtype, symmetric=symmetric, axis=axis)
    stored = quantize(array, found)
    least, largest = type_range(dtype)
    spread = [1] * len(shape)
    if axis is not None:
        spread[axis] = shape[axis]
    scale, zero_point = found.scale.reshape(spread), found.zero_point.astype(np.int64).reshape(spread)
    exact = np.clip(np.rint(array.astype(np.float32) / scale).astype(np.int64) + zero_point, least, largest)
    np.testing.assert_array_equal(stored.astype(np.int64), exact)
    back = (exact - zero_point) * scale.astype(np.float64)
    np.testing.assert_allclose(dequantize(stored, found), back, rtol=1e-6)
    assert (np.abs(back - array) <= scale * 1.01).all()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("symmetric", [False, True])
def test_blocks(axis: int, symmetric: bool) -> None:
    array = _floats(10, 6)
    found = parameters_of(array, Type.INT4, symmetric=symmetric, axis=axis, block_size=4)
    size = array.shape[axis]
    assert found.scale.shape == tuple(-(-size // 4) if index == axis else one for index, one in enumerate(array.shape))
    stored = quantize(array, found)
    for start in range(0, size, 4):
        part = [slice(None)] * 2
        part[axis] = slice(start, start + 4)
        block = array[tuple(part)]
        assert block.size
        low, high = np.minimum(block.min(axis), 0), np.maximum(block.max(axis), 0)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        np.testing.assert_array_equal(
            found.scale.take(start // 4, axis), ((high.astype(np.float64) - low) / 15).astype(np.float32)
        )
    assert np.abs(dequantize(stored, found) - array).max() <= found.scale.max() * 1.01


@pytest.mark.parametrize("shape", [(1200, 700), (1, 900000), (900000,), (3, 5, 60000)])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_large_arrays_are_shared_among_threads(shape: tuple[int, ...], axis: int | None) -> None:
    array = _floats(*shape)
    workers = new_workers()
    found = parameters_of(array, Type.UINT8, symmetric=False, axis=axis, workers=workers)
    low, high = extremes(array, axis if axis is None else axis % array.ndim)
    others = None if axis is None else tuple(index for index in range(array.ndim) if index != axis % array.ndim)
    np.testing.assert_array_equal(low, array.min(others))
    np.testing.assert_array_equal(high, array.max(others))
    spread = [1] * array.ndim
    if axis is not None:
        spread[axis] = array.shape[axis]
    scale, zero_point = found.scale.reshape(spread), found.zero_point.astype(np.float32).reshape(spread)
    expected = np.clip(np.rint(array / scale) + zero_point, 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(quantize(array, found, workers=workers), expected)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [None, 0])
def test_numbers_that_are_not_finite(number: float, axis: int | None) -> None:
    array = _floats(4, 3)
    array[2, 1] = number
    with pytest.raises(InvalidQuantization, match="not finite"):
        parameters_of(array, Type.INT8, symmetric=True, axis=axis)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_arrays_without_numbers(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.float32)
    found = parameters_of(array, Type.INT8, symmetric=True)
    assert quantize(array, found).shape == shape


def test_order_in_memory_does_not_matter() -> None:
    array = _floats(30, 40)
    found = parameters_of(array, Type.INT8, symmetric=True, axis=1)
    turned = np.asfortranarray(array)
    np.testing.assert_array_equal(quantize(array, found), quantize(turned, found))


def test_float8() -> None:
    array = _floats(64) * np.float32(3)
    found = parameters_of(array, Type.FLOAT8E4M3FN, symmetric=True)
    stored = quantize(array, found)
    assert stored.dtype == ml_dtypes.float8_e4m3fn
    assert np.abs(stored.astype(np.float32) * found.scale - array).max() <= np.abs(array).max() / 16
    huge = Parameters(Type.FLOAT8E4M3FN, np.float32(1e-6), np.zeros((), ml_dtypes.float8_e4m3fn))
    assert np.abs(quantize(array, huge).astype(np.float32)).max() == 448


def test_packed() -> None:
    numbers = np.array([1, -2, 7, -8, 3], ml_dtypes.int4)
    assert packed(numbers) == bytes([0xE1, 0x87, 0x03])
    assert packed(numbers[:0]) == b""
