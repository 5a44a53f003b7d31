"""Products with a small K, written line by line: the bits of the other kernel, tails, epilogues, chunks, limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.native.products import shallow_step
from sardonyx.compiler.native.products.matmul import GemmKernel, MatMulKernel
from sardonyx.kernel.expr import Input, erf, maximum
from tests.compiler.steps import VARIANTS, Array, Memory, new_binder

F32 = np.dtype(np.float32)


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Small results are written line by line, too, in several chunks and groups of panels."""
    monkeypatch.setattr(shallow_step, "_LEAST_OF_L2", 0.0)
    monkeypatch.setattr(shallow_step, "_CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr(shallow_step, "_MOST_OF_L1", 0.03)
    return monkeypatch


def is_shallow(binder: Binder) -> bool:
    """Whether a single step was added, which writes line by line."""
    (step,) = binder.steps
    return callable(step.detail) and "line by line" in step.detail()


def put(memory: Memory, binder: Binder, array: Array) -> Tensor:
    tensor = binder.new(array.dtype, array.shape)
    memory.put(tensor, array)
    return tensor


def multiply(a: Array, b: Array, variant: str = "", *, one_by_one: bool = False) -> tuple[Array, bool]:
    """A x B of constants B, and whether it was done line by line."""
    binder, memory = new_binder(variant), Memory()
    (y,) = MatMulKernel({}).bind(binder, put(memory, binder, a), binder.constant(b))
    memory.run(binder, one_by_one=one_by_one)
    assert y is not None
    return memory.read(y).copy(), is_shallow(binder)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products(any_size: pytest.MonkeyPatch, variant: str, dtype: Any) -> None:
    """Against float64, with the bits of the kernel for all others, whatever the chunks."""
    rng = np.random.default_rng(1)
    for m, n, k in [(7, 129, 3), (1, 70, 1), (41, 200, 8)][: 3 if dtype == np.float32 else 1]:
        a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
        found, shallow = multiply(a, b, variant)
        assert shallow
        assert np.array_equal(found, multiply(a, b, variant, one_by_one=True)[0])
        assert np.allclose(found, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)
        with any_size.context() as without:
            without.setattr(shallow_step, "_MOST_K", 0)
            others, shallow = multiply(a, b, variant)
        assert not shallow
        assert np.array_equal(found, others)


@pytest.mark.parametrize("variant", VARIANTS)
def test_epilogue(any_size: pytest.MonkeyPatch, variant: str) -> None:
    """A bias, a residual, a column, two outputs of which one is narrow; and one too costly to be written out."""
    rng = np.random.default_rng(2)
    m, n, k = 11, 75, 3
    a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
    bias, residual = rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, n)).astype(np.float32)
    column = rng.standard_normal((m, 1)).astype(np.float32)
    binder, memory = new_binder(variant), Memory()
    x = Input(F32, 0) * Input(F32, 2) + Input(F32, 1)
    epilogue = Epilogue((x, maximum(x, 0.0)), (put(memory, binder, residual), put(memory, binder, column)))
    inputs = [put(memory, binder, a), binder.constant(b), binder.constant(bias)]
    found = GemmKernel({"alpha": 2.0}).bind(binder, *inputs, epilogue=epilogue)
    assert is_shallow(binder)
    memory.run(binder)
    wanted = (2.0 * a.astype(np.float64) @ b + bias) * column + residual
    for tensor, expected in zip(found, (wanted, np.maximum(wanted, 0)), strict=True):
        assert tensor is not None
        assert np.allclose(memory.read(tensor), expected, rtol=1e-5, atol=1e-5)
    binder = new_binder(variant)
    costly = Epilogue((erf(Input(F32, 0)),), ())
    MatMulKernel({}).bind(binder, put(memory, binder, a), binder.constant(b), epilogue=costly)
    assert not is_shallow(binder)


def test_rows_that_lie_apart(any_size: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    base, b = rng.standard_normal((9, 50)).astype(np.float32), rng.standard_normal((4, 40)).astype(np.float32)
    binder, memory = new_binder(), Memory()
    view = put(memory, binder, base).reshaped((5, 4), (100, 1), 4 * 3)
    (y,) = MatMulKernel({}).bind(binder, view, binder.constant(b))
    assert is_shallow(binder)
    memory.run(binder)
    assert y is not None
    assert np.allclose(memory.read(y), base[::2, 3:7].astype(np.float64) @ b, atol=1e-5)


def test_not_a_number_and_infinity(any_size: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((10, 3)).astype(np.float32), np.abs(rng.standard_normal((3, 50))).astype(np.float32)
    a[2, 1], a[5, 0] = np.nan, -np.inf
    found, shallow = multiply(a, b)
    assert shallow
    assert np.isnan(found[2]).all()
    assert (found[5] == -np.inf).all()
    finite = np.delete(np.arange(10), [2, 5])
    assert np.allclose(found[finite], a[finite].astype(np.float64) @ b, atol=1e-5)


def test_others_keep_their_kernel() -> None:
    """Small results, a larger K, and results that go to memory."""
    caches = new_binder().target.caches
    rows = int(caches.l3 * 0.6) // 4096
    for m, n, k, wanted in [(20, 50, 3, False), (1000, 1000, 9, False), (1000, 1000, 8, True), (rows, 1024, 2, False)]:
        binder = new_binder()
        MatMulKernel({}).bind(binder, binder.new(F32, (m, k)), binder.constant(np.ones((k, n), np.float32)))
        assert is_shallow(binder) == wanted, (m, n, k)
