"""Products of few columns by dot products: against float64, tails of K and of rows, epilogues, bits of single rows."""

from __future__ import annotations

from math import erf as exact
from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.llvm.kernels.products.gemm_dots import DotsSpec
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.target import host_target
from sardonyx.compiler.native.products.dots_step import suits_dots
from sardonyx.compiler.native.products.matmul import GemmKernel, MatMulKernel
from sardonyx.kernel.expr import Input, erf, maximum
from tests.compiler.steps import VARIANTS, Array, Memory, new_binder

F32 = np.dtype(np.float32)


def put(memory: Memory, binder: Binder, array: Array) -> Tensor:
    tensor = binder.new(array.dtype, array.shape)
    memory.put(tensor, array)
    return tensor


def is_dots(binder: Binder) -> bool:
    """Whether a single step was added, which computes dot products."""
    (step,) = binder.steps
    return callable(step.detail) and "dot products" in step.detail()


def multiply(a: Array, b: Array, variant: str = "", *, constant: bool = True, one_by_one: bool = False) -> Array:
    """A x B by dot products; B is a constant, or lies transposed in memory."""
    binder, memory = new_binder(variant), Memory()
    assert suits_dots(binder.target, "f64" if a.dtype == np.float64 else "f32", *b.shape)
    kernel = MatMulKernel({"transB": 0 if constant else 1})
    right = binder.constant(b) if constant else put(memory, binder, np.ascontiguousarray(b.T))
    (y,) = kernel.bind(binder, put(memory, binder, a), right)
    assert is_dots(binder)
    memory.run(binder, one_by_one=one_by_one)
    assert y is not None
    return memory.read(y).copy()


def columns_of(variant: str, dtype: Any, k: int) -> list[int]:
    """Every number of columns that dot products take on a machine, for rows of so many elements."""
    product = "f64" if dtype == np.float64 else "f32"
    return [n for n in range(1, 17) if suits_dots(new_binder(variant).target, product, k, n)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("constant", [True, False])
def test_dot_products(variant: str, dtype: Any, constant: bool) -> None:
    rng = np.random.default_rng(1)
    assert columns_of(variant, dtype, 299)
    for m, k in [(1, 299), (7, 304), (29, 999)]:
        for n in columns_of(variant, dtype, k):
            a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
            found = multiply(a, b, variant, constant=constant)
            expected = a.astype(np.float64) @ b.astype(np.float64)
            scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
            assert found.shape == (m, n)
            assert (np.abs(found - expected) / scale).max() < np.finfo(dtype).eps * 8
            assert np.array_equal(found[m // 2 : m // 2 + 1], multiply(a[m // 2 : m // 2 + 1], b, variant))


@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_do_not_depend_on_chunks(variant: str) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((411, 700)).astype(np.float32), rng.standard_normal((700, 1)).astype(np.float32)
    whole = multiply(a, b, variant)
    assert np.array_equal(whole, multiply(a, b, variant, one_by_one=True))
    assert np.array_equal(whole[:5], multiply(a[:5], b, variant))


def test_vectors_batches_and_strides() -> None:
    """A vector as right-hand side, batches that are rows of one product, rows that lie apart, a transposed A."""
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((3, 5, 200)).astype(np.float32), rng.standard_normal(200).astype(np.float32)
    for left in (a, a[1], a[1, 2], np.repeat(a, 2, axis=-1)[..., ::2], a[:, ::2], a[::2, 1:3]):
        for constant in (True, False):
            binder, memory = new_binder(), Memory()
            wide = put(memory, binder, np.ascontiguousarray(left))
            (y,) = MatMulKernel({}).bind(binder, wide, binder.constant(b) if constant else put(memory, binder, b))
            memory.run(binder)
            assert y is not None
            assert np.allclose(memory.read(y), left.astype(np.float64) @ b, atol=1e-4)
    base = rng.standard_normal((9, 777)).astype(np.float32)
    for left in (base[:, 3:503], base[::2, :500], base[::-1, 100:600]):
        binder, memory = new_binder(), Memory()
        whole = put(memory, binder, base)
        strides = tuple(stride // 4 for stride in left.strides)
        start = left.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        view = whole.reshaped(left.shape, strides, start)
        weights = rng.standard_normal((500, 3)).astype(np.float32)
        (y,) = MatMulKernel({}).bind(binder, view, binder.constant(weights))
        memory.run(binder)
        assert y is not None
        assert np.allclose(memory.read(y), left.astype(np.float64) @ weights, atol=1e-3)
    binder, memory = new_binder(), Memory()
    weights = rng.standard_normal((200, 2)).astype(np.float32)
    tall = np.ascontiguousarray(a[0].T)
    (y,) = MatMulKernel({"transA": 1}).bind(binder, put(memory, binder, tall), binder.constant(weights))
    memory.run(binder)
    assert y is not None
    assert np.allclose(memory.read(y), a[0].astype(np.float64) @ weights, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_epilogue(variant: str) -> None:
    """Gemm's addend, then operands of every kind, two outputs, of which one is expensive and one narrow."""
    rng = np.random.default_rng(4)
    m, k, n = 21, 500, columns_of(variant, np.float32, 500)[-1]
    a, b = rng.standard_normal((m, k)).astype(np.float32) / 20, rng.standard_normal((n, k)).astype(np.float32)
    bias, residual = rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, n)).astype(np.float32)
    column = rng.standard_normal((m, 1)).astype(np.float32)
    binder, memory = new_binder(variant), Memory()
    x = Input(F32, 0) * Input(F32, 2) + Input(F32, 1)
    outputs = (x * 0.5 * (1.0 + erf(x * 0.5**0.5)), maximum(x, 0.0).cast(np.float16))
    epilogue = Epilogue(outputs, (put(memory, binder, residual), put(memory, binder, column)))
    inputs = [put(memory, binder, a), binder.constant(b), binder.constant(bias)]
    found = GemmKernel({"transB": 1, "alpha": 2.0}).bind(binder, *inputs, epilogue=epilogue)
    assert is_dots(binder)
    memory.run(binder)
    wanted = (2.0 * a.astype(np.float64) @ b.T + bias) * column + residual
    assert found[0] is not None
    assert found[1] is not None
    gelu = wanted * 0.5 * (1 + np.vectorize(exact)(wanted * 0.5**0.5))
    assert np.allclose(memory.read(found[0]), gelu, rtol=1e-5, atol=1e-5)
    assert np.allclose(memory.read(found[1]).astype(np.float64), np.maximum(wanted, 0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_row_by_many_columns(variant: str) -> None:
    """A row by a matrix that lies transposed, of columns further apart than they are long; operands of every kind."""
    rng = np.random.default_rng(7)
    for n, k in [(40, 300), (333, 1001)]:
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, k), (n, k + 3)))
        bias, residual = rng.standard_normal(n).astype(np.float32), rng.standard_normal((1, n)).astype(np.float32)
        column, number = np.float32([[0.5]]), np.float32(2.0)
        binder, memory = new_binder(variant), Memory()
        right = put(memory, binder, b).reshaped((n, k), (k + 3, 1))
        output = Input(F32, 0) * Input(F32, 2) * Input(F32, 3) + Input(F32, 1)
        operands = tuple(put(memory, binder, np.asarray(one)) for one in (residual, column, number))
        inputs = [put(memory, binder, a), right, put(memory, binder, bias)]
        (y,) = GemmKernel({"transB": 1}).bind(binder, *inputs, epilogue=Epilogue((output,), operands))
        assert is_dots(binder)
        memory.run(binder)
        assert y is not None
        wanted = (a.astype(np.float64) @ b[:, :k].T + bias) * column * number + residual
        assert memory.read(y).shape == (1, n)
        assert np.allclose(memory.read(y), wanted, atol=1e-3)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 3])
def test_batches(variant: str, dtype: Any, m: int) -> None:
    """Batches of one row by many columns, and of more rows by few; a matrix for several of them, axes that lie apart,
    an operand of their own."""
    rng = np.random.default_rng(8)
    n, k = (37, 130) if m == 1 else (1 if dtype == np.float64 else 2, 299)
    for shape, others in [((6,), (6,)), ((3, 4), (3, 1)), ((2, 3, 2), (2, 1, 2))]:
        a, b = rng.standard_normal((*shape, m, k)).astype(dtype), rng.standard_normal((*others, n, k)).astype(dtype)
        residual, bias = rng.standard_normal((*shape, m, n)).astype(dtype), rng.standard_normal(n).astype(dtype)
        binder, memory = new_binder(variant), Memory()
        right = put(memory, binder, b)
        axes, last = right.shape[:-2], right.strides[:-2]
        right = right.reshaped((*axes, k, n), (*last, 1, k))
        output = maximum(Input(a.dtype, 0) + Input(a.dtype, 1) * Input(a.dtype, 2), -3.0)
        operands = tuple(put(memory, binder, one) for one in (residual, bias))
        (y,) = MatMulKernel({}).bind(binder, put(memory, binder, a), right, epilogue=Epilogue((output,), operands))
        if shape == others:
            assert is_dots(binder)
        memory.run(binder)
        assert y is not None
        wanted = np.maximum(a.astype(np.float64) @ np.swapaxes(b, -1, -2) + residual * bias, -3)
        assert np.allclose(memory.read(y), wanted, atol=1e-3 if dtype == np.float32 else 1e-12)


def test_columns_in_parts_and_rows_asked_for() -> None:
    """More columns than registers hold the sums of, and an A that is larger than caches."""
    rng = np.random.default_rng(6)
    target = host_target()
    far = DotsSpec("f32", 5, 4, 2, asks_ahead=True)
    assert far.parts() == ((0, 4, 2), (4, 5, 1))
    assert DotsSpec("f32", 9, 5, 5).parts() == ((0, 5, 5), (5, 9, 4))
    assert DotsSpec("f32", 8, 6, 4).parts() == ((0, 8, 4),)
    n = max(n for n in range(1, 17) if suits_dots(target, "f32", 3000, n))
    rows = int(target.caches.l3 * 0.3) // 12000
    a, b = rng.standard_normal((rows, 3000), dtype=np.float32), rng.standard_normal((3000, n), dtype=np.float32)
    found = multiply(a, b)
    assert np.allclose(found[:: rows - 1], a[:: rows - 1].astype(np.float64) @ b, atol=1e-3)
    assert np.array_equal(found[7:8], multiply(a[7:8], b))


def test_not_a_number_and_infinity() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((20, 333)).astype(np.float32), np.abs(rng.standard_normal((333, 2))).astype(np.float32)
    a[3, 332], a[7, 5], a[19, 100] = np.nan, np.inf, -np.inf
    found = multiply(a, b)
    expected = a.astype(np.float64) @ b
    assert np.isnan(found[3]).all()
    assert np.array_equal(found[[7, 19]], expected[[7, 19]].astype(np.float32))
    finite = np.delete(np.arange(20), [3, 7, 19])
    assert np.allclose(found[finite], expected[finite], atol=1e-4)


def test_others_keep_their_kernel() -> None:
    """Many columns, short rows and other types are no dot products."""
    target = host_target()
    lanes = target.lanes(PRODUCTS["f32"].word)
    for product, k, n in [("f32", 300, 64), ("f32", 4, 1), ("f16", 300, 1), ("u8s8", 300, 1), ("f32", 1 << 20, lanes)]:
        assert not suits_dots(target, product, k, n)
    assert suits_dots(target, "f32", 300, 1)
