"""MatMulInteger against exact integers: every kind of byte and zero point, every variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.native.products.integer_matmul import IntegerProductKernel
from sardonyx.kernel.expr import Input
from tests.compiler.steps import PRODUCT_VARIANTS, Array, Memory, new_binder

I32 = np.dtype(np.int32)


def random_bytes(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape, dtype=dtype)


def product(
    a: Array, b: Array, a_zero: Array | None, b_zero: Array | None, variant: str = "", scale: Array | None = None
) -> Array:
    binder, memory = new_binder(variant), Memory()
    left = binder.external(0, a.dtype, a.shape)
    memory.put(left, a)
    point = None
    if a_zero is not None:
        point = binder.external(1, a_zero.dtype, a_zero.shape)
        memory.put(point, a_zero)
    epilogue = None
    if scale is not None:
        factor = binder.constant(scale)
        epilogue = Epilogue((Input(I32, 0).cast(np.float32) * Input(scale.dtype, 1),), (factor,))
    right = [binder.constant(b), point, None if b_zero is None else binder.constant(b_zero)]
    (y,) = IntegerProductKernel({}).bind(binder, left, *right, epilogue=epilogue)
    assert y is not None
    memory.run(binder)
    return memory.read(y).copy()


def exact(a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Array:
    left, right = a.astype(np.int64), b.astype(np.int64)
    if a_zero is not None:
        left = left - (a_zero.astype(np.int64)[:, None] if a_zero.ndim and a_zero.size > 1 else a_zero.astype(np.int64))
    if b_zero is not None:
        right = right - b_zero.astype(np.int64)
    return np.asarray(np.matmul(left, right))


@pytest.mark.parametrize("variant", PRODUCT_VARIANTS)
@pytest.mark.parametrize(("a_type", "b_type"), [(np.uint8, np.int8), (np.int8, np.uint8)])
def test_variants(variant: str, a_type: Any, b_type: Any) -> None:
    check_zero_points(variant, a_type, b_type)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_bytes_of_one_kind(dtype: Any) -> None:
    check_zero_points("", dtype, dtype)


def check_zero_points(variant: str, a_type: Any, b_type: Any) -> None:
    rng = np.random.default_rng(0)
    sizes = [(1, 70, 33), (17, 40, 130), (5, 7, 0), (3, 300, 64)]
    for m, n, k in [(1, 1, 1), *sizes] if variant in ("", PRODUCT_VARIANTS[0]) else sizes:
        a, b = random_bytes(rng, a_type, m, k), random_bytes(rng, b_type, k, n)
        lefts = [None, random_bytes(rng, a_type, 1), random_bytes(rng, a_type, m)]
        rights = [np.zeros((), b_type), None, random_bytes(rng, b_type, n)]
        for a_zero, b_zero in zip(lefts, rights, strict=True):
            left = None if a_zero is None else np.asarray(a_zero, a_type)
            right = None if b_zero is None else np.asarray(b_zero, b_type)
            assert np.array_equal(product(a, b, left, right, variant), exact(a, b, left, right))


def test_ranks() -> None:
    rng = np.random.default_rng(1)
    for left, right in [((7,), (7, 9)), ((4, 7), (7,)), ((2, 3, 4, 7), (7, 9)), ((3, 4, 7), (3, 7, 9)), ((7,), (7,))]:
        a, b = random_bytes(rng, np.uint8, *left), random_bytes(rng, np.uint8, *right)
        a_zero, b_zero = np.asarray(3, np.uint8), np.asarray(200, np.uint8)
        found = product(a, b, a_zero, b_zero)
        assert np.array_equal(found, exact(a, b, a_zero, b_zero))


@pytest.mark.parametrize("zeros", [(np.ones(3, np.uint8), None), (None, np.ones(2, np.uint8))])
def test_zero_points_that_fit_neither_rows_nor_columns(zeros: tuple[Array | None, Array | None]) -> None:
    with pytest.raises(ValueError, match="are neither one nor 4"):
        product(np.ones((4, 6), np.uint8), np.ones((6, 4), np.uint8), *zeros)


def test_epilogue() -> None:
    rng = np.random.default_rng(2)
    a, b = random_bytes(rng, np.uint8, 20, 50), random_bytes(rng, np.int8, 50, 33)
    scale = rng.standard_normal(33).astype(np.float32)
    zero = np.asarray(120, np.uint8)
    found = product(a, b, zero, None, scale=scale)
    assert found.dtype == np.float32
    assert np.allclose(found, exact(a, b, zero, None) * scale, rtol=1e-6)
