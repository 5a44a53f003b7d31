"""Integer matrix products against exact integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import InvalidGraph
from sardonyx.ops.microsoft.linear_quantization import integer_product
from tests.ops import exact_integers
from tests.ops.microsoft import peer
from tests.ops.microsoft.quantized import random, scale

TYPES = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]


def parameters(generator: np.random.Generator, columns: int | None, dtype: type) -> tuple[Any, Any]:
    """A scale and a zero point, one for each column where `columns` is given."""
    shape = () if columns is None else (columns,)
    steps_ = (generator.random(shape) * 0.05 + 0.01).astype(np.float32)
    return np.asarray(steps_), np.asarray(generator.integers(0, 100, shape)).astype(dtype)


@pytest.mark.parametrize(("a_type", "b_type"), TYPES)
@pytest.mark.parametrize(
    ("left", "right"),
    [((5, 7), (7, 9)), ((2, 3, 5, 16), (16, 8)), ((2, 4, 6), (2, 6, 3)), ((1, 300), (300, 1)), ((0, 3), (3, 2))],
)
@pytest.mark.parametrize("per_column", [True, False])
@pytest.mark.parametrize("optional", [True, False])
def test_matmul_integer_to_float(
    a_type: type, b_type: type, left: Any, right: Any, per_column: bool, optional: bool
) -> None:
    generator = np.random.default_rng(1)
    a_scale, a_zero = parameters(generator, None, a_type)
    b_scale, b_zero = parameters(generator, right[-1] if per_column and len(right) == 2 else None, b_type)
    bias = generator.standard_normal(right[-1]).astype(np.float32) if optional else None
    a, b = random(generator, a_type, *left), random(generator, b_type, *right)
    zeros = [a_zero, b_zero] if optional else [None, None]
    exact = exact_integers.product(a, b, *zeros) * (np.float64(a_scale) * b_scale) + (0 if bias is None else bias)
    (found,) = peer.run("MatMulIntegerToFloat", [a, b, a_scale, b_scale, *zeros, bias], [1])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("b_type", [np.uint8, np.int8])
@pytest.mark.parametrize(("left", "right"), [((5, 7), (7, 9)), ((2, 3, 5, 16), (16, 8)), ((1, 300), (300, 1))])
@pytest.mark.parametrize("per_column", [True, False])
@pytest.mark.parametrize("optional", [True, False])
def test_dynamic_quantize_matmul(b_type: type, left: Any, right: Any, per_column: bool, optional: bool) -> None:
    generator = np.random.default_rng(2)
    b_scale, b_zero = parameters(generator, right[-1] if per_column else None, b_type)
    bias = generator.standard_normal(right[-1]).astype(np.float32) if optional else None
    a = (generator.standard_normal(left) * 3 + 1).astype(np.float32)
    b = random(generator, b_type, *right)
    codes, a_scale, a_zero = quantised(a)
    sums = exact_integers.product(codes, b, a_zero, b_zero if optional else None)
    exact = sums * (np.float64(a_scale) * b_scale) + (0 if bias is None else bias)
    (found,) = peer.run("DynamicQuantizeMatMul", [a, b, b_scale, b_zero if optional else None, bias], [1])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-4)


def quantised(x: np.ndarray) -> tuple[np.ndarray, np.float32, np.ndarray]:
    """Bytes, scale and zero point as ONNX's DynamicQuantizeLinear gives them."""
    low, high = np.float32(min(0, x.min())), np.float32(max(0, x.max()))
    step = (high - low) / np.float32(255)
    zero = np.rint(-low / step).astype(np.uint8)
    return np.clip(np.rint(x / step) + zero, 0, 255).astype(np.uint8), step, zero


@pytest.mark.parametrize("value", [0.0, 2.5, -2.5])
def test_dynamic_quantization_of_one_value(value: float) -> None:
    b = np.arange(12, dtype=np.uint8).reshape(4, 3)
    peer.compare("DynamicQuantizeMatMul", [np.full((2, 4), value, np.float32), b, scale(0.5)], [1])


@pytest.mark.parametrize(("left", "right"), [((5, 7), (7, 9)), ((2, 4, 6), (6, 3)), ((3, 2, 4, 6), (2, 6, 3))])
def test_matmul_integer_16(left: Any, right: Any) -> None:
    generator = np.random.default_rng(3)
    a, b = (generator.integers(-9000, 9000, shape).astype(np.int16) for shape in (left, right))
    peer.compare("MatMulInteger16", [a, b], [6])


def test_unsigned_matmul_integer_16() -> None:
    a, b = np.full((2, 3), 40000, np.uint16), np.full((3, 2), 30000, np.uint16)
    (found,) = peer.run("MatMulInteger16", [a, b], [12])
    np.testing.assert_array_equal(found, np.full((2, 2), 3 * 40000 * 30000, np.uint64).astype(np.uint32))


BIASES = [None, (9,), (5, 9), (1, 9)]
# Kernels by type, scales, result and bias, each with one of the transpositions; every pair of values is among them.
QGEMMS = [
    (types, (place + row + 2 * per_column + quantised) % 4, bool(per_column), bool(quantised), bias)
    for place, types in enumerate(TYPES)
    for row, bias in enumerate(BIASES)
    for per_column in (0, 1)
    for quantised in (0, 1)
]


@pytest.mark.parametrize(("types", "transposed", "per_column", "quantised", "bias"), QGEMMS)
def test_qgemm(
    types: tuple[type, type], transposed: int, per_column: bool, quantised: bool, bias: tuple[int, ...] | None
) -> None:
    a_type, b_type = types
    generator = np.random.default_rng(4)
    a = random(generator, a_type, *((7, 5) if transposed & 1 else (5, 7)))
    b = random(generator, b_type, *((9, 7) if transposed & 2 else (7, 9)))
    a_scale, a_zero = parameters(generator, None, a_type)
    b_scale, b_zero = parameters(generator, 9 if per_column else None, b_type)
    c = None if bias is None else generator.integers(-20000, 20000, bias).astype(np.int32)
    inputs = [a, a_scale, a_zero, b, b_scale, b_zero, c]
    attributes = {"transA": transposed & 1, "transB": transposed >> 1, "alpha": 0.5}
    left, right = (a.T if transposed & 1 else a), (b.T if transposed & 2 else b)
    sums = exact_integers.product(left, right, a_zero, b_zero) + (0 if c is None else c)
    exact = sums * (0.5 * np.float64(a_scale) * b_scale)
    if quantised:
        target = [scale(0.5), np.array(60, a_type)]
        (found,) = peer.run("QGemm", [*inputs, *target], [peer.element_type(a)], attributes)
        exact_integers.assert_quantised(found, exact / 0.5, target[1])
    else:
        (found,) = peer.run("QGemm", inputs, [1], attributes)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("place", "dtype"), [(0, np.int16), (2, np.int16), (3, np.uint16), (6, np.uint8), (8, np.int16)]
)
def test_qgemm_refuses_other_types(place: int, dtype: type) -> None:
    zero = np.array(0, np.uint8)
    inputs = [np.ones((2, 3), np.uint8), scale(1), zero, np.ones((3, 4), np.uint8), scale(1), zero]
    inputs += [np.ones(4, np.int32), scale(1), zero]
    inputs[place] = inputs[place].astype(dtype)
    with pytest.raises(InvalidGraph, match=f"Type 'tensor.{np.dtype(dtype).name}.' of input parameter .* \\(QGemm\\)"):
        peer.run("QGemm", inputs, [2])


def test_inner_sizes_that_differ_are_an_error() -> None:
    a, b = np.zeros((2, 3), np.uint8), np.zeros((4, 5), np.uint8)
    with pytest.raises(Exception, match="inner dimensions 3 and 4"):
        peer.run("MatMulIntegerToFloat", [a, b, scale(1), scale(1)], [1], symbolic=False)


@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 1000), (1000, 3)), ((1000,), (1000, 3)), ((2, 1000), (1000,)), ((4, 2, 700), (700, 1)), ((2, 0), (0, 3))],
)
def test_long_sums_stay_exact(left: Any, right: Any) -> None:
    generator = np.random.default_rng(5)
    a, b = (generator.integers(-255, 256, shape) for shape in (left, right))
    np.testing.assert_array_equal(integer_product(a.astype(np.int32), b.astype(np.int32)), a @ b)


def test_the_largest_sums_stay_exact() -> None:
    a = np.full((1, 3000), 255, np.int32)
    np.testing.assert_array_equal(integer_product(a, -a.T), [[-255 * 255 * 3000]])
    np.testing.assert_array_equal(
        integer_product(a * 128, a.T * 128, 65535), np.int64([[32640**2 * 3000]]).astype(np.int32)
    )
