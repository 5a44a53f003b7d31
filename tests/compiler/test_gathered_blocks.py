"""Rows of a table of few bits, made real, against float64: all ways in which blocks, rows and bytes lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.native.quantization.gathered_blocks import GatheredBlocks
from tests.compiler.steps import VARIANTS, Array, outputs_of


def _kernel(gather: int, quantize: int, block: int, bits: int = 4) -> GatheredBlocks:
    names = {"gather_axis": gather, "quantize_axis": quantize, "block_size": block, "bits": bits}
    return GatheredBlocks(names)


def _packed(codes: Array, bits: int) -> Array:
    per_byte = 8 // bits
    missing = -codes.shape[-1] % per_byte
    whole = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, missing)])
    parts = whole.reshape(*codes.shape[:-1], -1, per_byte).astype(np.uint32)
    return (parts << (np.arange(per_byte) * bits)).sum(axis=-1).astype(np.uint8)


def _wanted(codes: Array, indices: Array, scales: Array, zeros: Array, axes: Mapping[str, int]) -> Array:
    """(q - zero point) * scale in float64, zeros for an index that there is no row of; `codes` are not packed."""
    gather, quantize, block = axes["gather"], axes["quantize"], axes["block"]

    def each(parameters: Array) -> Array:
        numbers = parameters.astype(np.float64)
        if parameters.shape[quantize] > 1:
            numbers = np.repeat(numbers, block, axis=quantize)
        cut = [slice(0, size) for size in codes.shape]
        return np.broadcast_to(numbers[tuple(cut)], codes.shape)

    real = (codes.astype(np.float64) - each(zeros)) * each(scales)
    size = codes.shape[gather]
    places = np.where(indices < 0, indices + size, indices)
    there = (places >= 0) & (places < size)
    found = np.take(real, np.where(there, places, 0), axis=gather)
    shape = [1] * gather + [*indices.shape] + [1] * (codes.ndim - gather - 1)
    return found * there.reshape(shape)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("length", "block"), [(64, 16), (40, 16), (4, 16), (200, 32), (96, 12), (12, 4)])
@pytest.mark.parametrize("has_zeros", [True, False])
def test_packed_numbers(variant: str, bits: int, length: int, block: int, has_zeros: bool) -> None:
    rng = np.random.default_rng(bits + length)
    codes = rng.integers(0, 1 << bits, (7, 3, length))
    blocks = -(-length // block)
    scales = (rng.random((7, 3, blocks)) + 0.1).astype(np.float32)
    zeros = rng.integers(0, 1 << bits, (7, 3, blocks))
    indices = np.array([[0, -1, 6], [3, 7, -8]], np.int64)
    given = [_packed(codes, bits), indices, scales, *([_packed(zeros, bits)] if has_zeros else [])]
    (found,) = outputs_of(_kernel(0, 2, block, bits), given, variant, known=[0, 2, 3], one_by_one=True)
    middle = zeros if has_zeros else np.full_like(zeros, 1 << (bits - 1))
    wanted = _wanted(codes, indices, scales, middle, {"gather": 0, "quantize": 2, "block": block})
    assert found.shape == wanted.shape
    assert np.array_equal(found, wanted.astype(np.float32))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("gather", [0, 1, 2])
@pytest.mark.parametrize("quantize", [0, 1, 2])
@pytest.mark.parametrize("has_zeros", [True, False])
def test_any_axes(variant: str, dtype: type, gather: int, quantize: int, has_zeros: bool) -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(-8 if dtype == ml_dtypes.int4 else 0, 8, (21, 18, 37)).astype(dtype)
    shape = [*codes.shape]
    shape[quantize] = -(-shape[quantize] // 16)
    scales = (rng.random(shape) + 0.1).astype(np.float32)
    zeros = rng.integers(0, 8, shape).astype(dtype)
    indices = np.array([0, 5, -2, 17, 100], np.int32)
    given = [codes, indices, scales, *([zeros] if has_zeros else [])]
    (found,) = outputs_of(_kernel(gather, quantize, 16), given, variant, known=[0, 2], one_by_one=True)
    used = zeros if has_zeros else np.zeros_like(zeros)
    wanted = _wanted(codes, indices, scales, used, {"gather": gather, "quantize": quantize, "block": 16})
    assert np.array_equal(found, wanted.astype(np.float32))


@pytest.mark.parametrize("shape", [(1, 3), (6, 1), (1, 1)])
@pytest.mark.parametrize("real", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_parameters_that_rows_or_blocks_share(shape: tuple[int, int], real: Any) -> None:
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 16, (6, 48))
    scales, zeros = (rng.random(shape) + 0.1).astype(real), rng.integers(0, 16, shape)
    indices = np.array([5, 0, 5], np.int64)
    given = [_packed(codes, 4), indices, scales, _packed(zeros, 4)]
    (found,) = outputs_of(_kernel(0, 1, 16), given, known=[0, 2, 3])
    wanted = _wanted(codes, indices, scales, zeros, {"gather": 0, "quantize": 1, "block": 16})
    assert np.array_equal(found, wanted.astype(np.float32).astype(real))


@pytest.mark.parametrize(
    ("scales", "zeros", "message"),
    [
        ((6, 2), None, "do not fit blocks"),
        ((6,), None, "2 dimensions"),
        ((5, 3), None, "does not fit"),
        ((6, 3), (6, 3), "'zero_points'"),
    ],
)
def test_parameters_that_do_not_fit(scales: tuple[int, ...], zeros: tuple[int, ...] | None, message: str) -> None:
    given = [np.zeros((6, 24), np.uint8), np.zeros(1, np.int64), np.ones(scales, np.float32)]
    with pytest.raises(ValueError, match=message):
        outputs_of(_kernel(0, 1, 16), [*given, *([] if zeros is None else [np.zeros(zeros, np.uint8)])])
