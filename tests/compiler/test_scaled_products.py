"""Scaled products of bytes against the operators' own NumPy: every variant, kind of byte, and side that is constant."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from sardonyx.compiler.native.products.integer_matmul import IntegerProductKernel
from sardonyx.compiler.native.quantization.scaled_products import (
    DynamicQuantizeMatMulKernel,
    MatMulIntegerToFloatKernel,
    QAttentionKernel,
    QGemmKernel,
    QLinearMatMulKernel,
)
from sardonyx.kernel.program import Template
from sardonyx.ops.framework.operator import find_class
from sardonyx.ops.framework.registry import load_families
from tests.compiler.steps import PRODUCT_VARIANTS, Array, outputs_of

load_families()


def random_bytes(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape, dtype=dtype)


def number(value: float, dtype: Any = np.float32) -> Array:
    return np.asarray(value, dtype)


def both(
    kernel: Any,
    op_type: str,
    arrays: Sequence[Array | None],
    known: Collection[int],
    variant: str = "",
    *,
    domain: str = "com.microsoft",
    attributes: dict[str, Any] | None = None,
) -> tuple[Array, Array]:
    """What the kernel gives, and what the operator's `run` gives."""
    cls = find_class(domain, op_type, 23)
    assert cls is not None
    names = [None if array is None else ir.Value(name=f"i{i}") for i, array in enumerate(arrays)]
    node = ir.node(op_type, names, attributes or {}, domain=domain, outputs=[ir.Value(name="y")])
    operator = cls(node, 23)
    lowered = operator.lower([None if array is None else array.dtype for array in arrays])
    assert isinstance(lowered, Template)
    (found,) = outputs_of(kernel(lowered.parameters), arrays, variant, known=known)
    (wanted,) = operator.run(*arrays)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    return found, wanted


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
def test_products_of_the_run(variant: str) -> None:
    """B comes with the run, as in attention: its columns are summed there."""
    rng = np.random.default_rng(0)
    for a_type, b_type, m, k, n in [(np.uint8, np.uint8, 5, 37, 33), (np.int8, np.int8, 3, 64, 20)]:
        a, b = random_bytes(rng, a_type, 2, m, k), random_bytes(rng, b_type, 2, k, n)
        zeros = [random_bytes(rng, a_type), random_bytes(rng, b_type)]
        (found,) = outputs_of(IntegerProductKernel({}), [a, b, *zeros], variant)
        wanted = (a.astype(np.int64) - zeros[0]) @ (b.astype(np.int64) - zeros[1])
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
def test_variants(variant: str) -> None:
    rng = np.random.default_rng(1)
    a, b = random_bytes(rng, np.uint8, 7, 50), random_bytes(rng, np.int8, 50, 35)
    scales = rng.uniform(0.001, 0.01, 35).astype(np.float32)
    bias = rng.standard_normal(35).astype(np.float32)
    inputs = [a, b, number(0.02), scales, number(11, np.uint8), random_bytes(rng, np.int8, 35), bias]
    found, wanted = both(MatMulIntegerToFloatKernel, "MatMulIntegerToFloat", inputs, {1, 3, 5, 6}, variant)
    assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max()
    point = number(100, np.uint8)
    linear = [a, number(0.02), number(11, np.uint8), b, scales, np.zeros(35, np.int8), number(0.05), point]
    for known in (set(range(1, 8)), {3, 4, 5}, set[int]()):
        found, wanted = both(QLinearMatMulKernel, "QLinearMatMul", linear, known, variant, domain="")
        assert len(np.unique(wanted)) > 20
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("is_constant", [True, False])
def test_dynamically_quantised_rows(is_constant: bool) -> None:
    rng = np.random.default_rng(2)
    a = rng.standard_normal((2, 5, 40)).astype(np.float32)
    b = random_bytes(rng, np.uint8, 40, 20)
    inputs = [a, b, number(0.01), number(120, np.uint8), rng.standard_normal(20).astype(np.float32)]
    known = {1, 3} if is_constant else set()
    found, wanted = both(DynamicQuantizeMatMulKernel, "DynamicQuantizeMatMul", inputs, known)
    assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("known", [{1, 3, 4, 5, 7}, {3, 5}, set()])
def test_gemm(trans_a: int, trans_b: int, real: bool, known: set[int]) -> None:
    rng = np.random.default_rng(3)
    a, b = random_bytes(rng, np.uint8, 6, 45), random_bytes(rng, np.int8, 45, 34)
    a, b = np.ascontiguousarray(a.T) if trans_a else a, np.ascontiguousarray(b.T) if trans_b else b
    scales = rng.uniform(0.001, 0.01, 34).astype(np.float32)
    c = rng.integers(-5000, 5000, 34).astype(np.int32)
    result = [] if real else [number(0.04), number(90, np.uint8)]
    inputs = [a, number(0.02), number(7, np.uint8), b, scales, np.zeros(34, np.int8), c, *result]
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": 0.5}
    found, wanted = both(QGemmKernel, "QGemm", inputs, known, attributes=attributes)
    if real:
        assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max()
    else:  # the scale of the result is divided by once, so that a number half way may fall elsewhere
        assert np.abs(found.astype(int) - wanted).max() <= 1
        assert (found != wanted).mean() < 0.02


def test_attention() -> None:
    rng = np.random.default_rng(4)
    x, weight = random_bytes(rng, np.uint8, 2, 6, 32), random_bytes(rng, np.int8, 32, 96)
    bias = rng.standard_normal(96).astype(np.float32)
    mask = np.array([6, 4], np.int32)
    inputs = [x, weight, bias, number(0.02), number(0.003), mask, number(128, np.uint8), number(0, np.int8)]
    found, wanted = both(QAttentionKernel, "QAttention", inputs, {1, 7}, attributes={"num_heads": 4})
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_inner_dimensions_that_differ() -> None:
    a, b = np.zeros((3, 4), np.uint8), np.zeros((5, 6), np.int8)
    with pytest.raises(ValueError, match="the inner dimensions of"):
        outputs_of(IntegerProductKernel({}), [a, b], known={1})
