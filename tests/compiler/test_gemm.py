"""Matrix products against float64: every layout and variant, tails, strides, batches, epilogues, poisoned memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.binding import Binder, Buffer, Tensor
from sardonyx.compiler.choice import gemm_choice
from sardonyx.compiler.choice.gemm_choice import panel_columns, tile_shape
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.llvm.kernels.products.gemm import emit_gemm
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import Operand, TileEpilogue, fits_registers
from sardonyx.compiler.llvm.kernels.products.gemm_spec import GemmSpec
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.llvm.target import host_target, host_targets
from sardonyx.compiler.llvm.types import F32 as F32_TYPE
from sardonyx.compiler.native.products.gemm_step import multiply as multiply_matrices
from sardonyx.compiler.native.products.matmul import GemmKernel, MatMulKernel
from sardonyx.compiler.native.products.packed_constants import Packed, pack_b
from sardonyx.kernel.expr import Input, erf, maximum
from sardonyx.runtime.files.kernel_cache import KernelCache
from sardonyx.runtime.settings import RunSettings
from tests.compiler.machines import described
from tests.compiler.steps import VARIANTS, Array, Memory, new_binder

F32 = np.dtype(np.float32)
INT32 = np.dtype(np.int32)


def place(memory: Memory, array: Array) -> Tensor:
    """A value in the arena that lies as the array does: strides kept, gaps poisoned."""
    item = array.dtype.itemsize
    strides = tuple(stride // item for stride in array.strides)
    low = sum(min(0, (size - 1) * stride) for size, stride in zip(array.shape, strides, strict=True))
    high = sum(max(0, (size - 1) * stride) for size, stride in zip(array.shape, strides, strict=True))
    buffer = Buffer((high - low + 1) * item if array.size else 0)
    tensor = Tensor(array.dtype, array.shape, strides, buffer, -low * item)
    if array.size:
        memory.put(tensor, array)
    return tensor


def tolerance(dtype: np.dtype[Any], k: int) -> float:
    step = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype.name]
    return step * (4 + (k**0.5 if dtype.itemsize >= 4 else 0))


def check_close(found: Array, a: Array, b: Array, expected: Array) -> None:
    """Errors measured against the sum of magnitudes, as rounding errors grow."""
    scale = np.matmul(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))) + np.abs(expected) + 1e-30
    assert found.shape == expected.shape
    error = np.abs(found.astype(np.float64) - expected) / scale
    assert error.max(initial=0.0) <= tolerance(found.dtype, a.shape[-1])


def multiply(
    a: Array,
    b: Array,
    variant: str = "",
    *,
    constant: bool = True,
    parameters: dict[str, Any] | None = None,
    one_by_one: bool = False,
    tiles: bool = True,
) -> Array:
    """A x B by the kernel; B is a constant (packed) or a value of the run."""
    binder, memory = new_binder(variant), Memory()
    binder.settings = replace(binder.settings, float32_tiles=tiles, fast_products=False)
    right = binder.constant(b) if constant else place(memory, b)
    (y,) = MatMulKernel(parameters or {}).bind(binder, place(memory, a), right)
    assert y is not None
    memory.run(binder, one_by_one=one_by_one)
    return memory.read(y).copy()


SIZES = [
    (1, 1, 1),
    (1, 70, 33),
    (2, 300, 129),
    (3, 257, 40),
    (5, 7, 0),
    (30, 200, 0),
    (0, 7, 5),
    (7, 0, 5),
    (12, 32, 4),
    (13, 33, 17),
    (3, 100, 64),
    (37, 100, 40),
    (25, 200, 2000),
    (25, 12, 30),
    (26, 23, 9),
    (24, 40, 31),
    (31, 15, 700),
    (50, 130, 512),
    (150, 65, 300),
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", ["constant", "rows", "columns"])
def test_sizes_and_layouts(variant: str, dtype: Any, form: str) -> None:
    rng = np.random.default_rng(1)
    for m, n, k in SIZES:
        a = rng.standard_normal((m, k)).astype(dtype)
        b = rng.standard_normal((k, n)).astype(dtype)
        expected = a.astype(np.float64) @ b.astype(np.float64)
        right = np.asfortranarray(b) if form == "columns" else b
        for left in (a, np.asfortranarray(a)):
            check_close(multiply(left, right, variant, constant=form == "constant"), a, b, expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_narrow_floats(variant: str, dtype: Any) -> None:
    rng = np.random.default_rng(2)
    for m, n, k in [(2, 300, 65), (20, 17, 300)]:
        a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
        expected = a.astype(np.float64) @ b.astype(np.float64)
        for right, constant in ((b, True), (b, False), (np.asfortranarray(b), True), (np.asfortranarray(b), False)):
            found = multiply(a, right, variant, constant=constant)
            assert found.dtype == dtype
            check_close(found, a, b, expected)


@pytest.mark.parametrize("constant", [True, False])
def test_strides(constant: bool) -> None:
    """Rows far apart, rows of another order, strides that are multiples of 4096 bytes, no stride of 1, repeats."""
    rng = np.random.default_rng(3)
    base = rng.standard_normal((60, 3000)).astype(np.float32)
    lefts = [base[:30, 7:57], base[:30, :2100:42], base[29::-1, :50], np.broadcast_to(base[:1, :50], (30, 50))]
    pages = np.zeros((30, 1024), np.float32)
    pages[:, :50] = base[:30, :50]
    lefts.append(pages[:, :50])
    rights = [base[:50, 100:171], base[:50, :142:2], base.T[:71, :50].T, base[49::-1, :71]]
    for left in lefts:
        for right in rights:
            check_close(multiply(left, right, constant=constant), left, right, left.astype(np.float64) @ right)


@pytest.mark.parametrize("constant", [True, False])
def test_batches(constant: bool) -> None:
    rng = np.random.default_rng(4)
    shapes = [
        ((3, 5, 7), (7, 9)),
        ((3, 1, 7), (7, 40)),
        ((3, 5, 7), (3, 7, 9)),
        ((5, 7), (3, 7, 9)),
        ((2, 1, 5, 7), (3, 7, 9)),
        ((2, 3, 2, 2, 2, 5, 7), (3, 1, 2, 1, 7, 9)),
        ((7,), (7, 9)),
        ((5, 7), (7,)),
        ((7,), (7,)),
        ((7,), (3, 7, 9)),
        ((3, 5, 7), (7,)),
        ((0, 5, 7), (7, 9)),
    ]
    for left, right in shapes:
        a, b = rng.standard_normal(left).astype(np.float32), rng.standard_normal(right).astype(np.float32)
        expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
        check_close(multiply(a, b, constant=constant), a, b, expected)


def test_heads_are_read_where_they_lie() -> None:
    """Q x K^T of heads that are slices of one projection: batch axes with strides, a transposed right side."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 20, 3, 4, 16)).astype(np.float32)
    q, keys = x[:, :, 0].transpose(0, 2, 1, 3), x[:, :, 1].transpose(0, 2, 3, 1)
    expected = np.matmul(q.astype(np.float64), keys)
    binder, memory = new_binder(), Memory()
    (y,) = MatMulKernel({}).bind(binder, place(memory, q), place(memory, keys))
    assert len(binder.steps) == 1
    memory.run(binder)
    assert y is not None
    check_close(memory.read(y), q, keys, expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_do_not_depend_on_chunks_or_rows(variant: str) -> None:
    rng = np.random.default_rng(6)
    a = rng.standard_normal((70, 900)).astype(np.float32)
    b = rng.standard_normal((900, 300)).astype(np.float32)
    whole = multiply(a, b, variant, tiles=False)
    assert np.array_equal(whole, multiply(a, b, variant, one_by_one=True, tiles=False))
    assert np.array_equal(whole, multiply(a, b, variant, constant=False))
    for rows in (1, 2, 3, 7):
        assert np.array_equal(whole[20 : 20 + rows], multiply(a[20 : 20 + rows], b, variant))
    whole = multiply(a, b, variant)
    assert np.array_equal(whole, multiply(a, b, variant, one_by_one=True))
    assert np.array_equal(whole[3:68], multiply(a[3:68], b, variant))


def test_not_a_number_and_infinity_stay_where_they_belong() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((30, 50)).astype(np.float32), rng.standard_normal((50, 45)).astype(np.float32)
    a[3, 4], a[17, 49], b[2, 44] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    for constant in (True, False):
        found = multiply(a, b, constant=constant)
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        finite = np.isfinite(expected)
        assert np.array_equal(np.isfinite(found), finite)
        assert np.allclose(found[finite], expected[finite], atol=1e-4)
        assert np.array_equal(found[np.isinf(expected)], expected[np.isinf(expected)])


def gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + erf(x * 0.5**0.5))


def bind_with(binder: Binder, memory: Memory, a: Array, b: Array, epilogue: Epilogue) -> Sequence[Array]:
    found = MatMulKernel({}).bind(binder, place(memory, a), binder.constant(b), epilogue=epilogue)
    memory.run(binder)
    return [memory.read(tensor) for tensor in found if tensor is not None]


@pytest.mark.parametrize("variant", VARIANTS)
def test_epilogue_with_every_kind_of_operand(variant: str) -> None:
    from math import erf as exact

    rng = np.random.default_rng(8)
    for m, n, k in [(1, 5, 3), (1, 130, 0), (29, 47, 800), (3, 200, 64)]:
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        bias, residual = rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, n + 9)).astype(np.float32)
        column, number = rng.standard_normal((m, 1)).astype(np.float32), np.float32(rng.standard_normal())
        wide = rng.standard_normal((m, 2 * n)).astype(np.float32)[:, ::2]
        binder, memory = new_binder(variant), Memory()
        arrays = [bias, residual[:, 4 : 4 + n], column, np.asarray(number), wide]
        biased = Input(F32, 0) + Input(F32, 1)
        full = gelu(biased) * Input(F32, 3) + Input(F32, 2) * Input(F32, 4) - Input(F32, 5)
        epilogue = Epilogue((full, biased), tuple(place(memory, array) for array in arrays))
        found = bind_with(binder, memory, a, b, epilogue)
        x = a.astype(np.float64) @ b.astype(np.float64) + bias
        activated = 0.5 * x * (1 + np.vectorize(exact)(x * 0.5**0.5))
        expected = activated * column + arrays[1] * number - wide
        assert np.allclose(found[1], x, rtol=1e-5, atol=1e-4)
        assert np.allclose(found[0], expected, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("is_far", [False, True])
def test_panels_of_machines_whose_memory_is_near_or_far(
    variant: str, is_far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that are a multiple of three vectors, or many, have panels of their own where memory is far."""
    monkeypatch.setattr(gemm_choice, "NEAR_L3", 0 if is_far else 1 << 40)
    rng = np.random.default_rng(18)
    target = new_binder(variant).target
    lanes = target.lanes(F32_TYPE)
    wide = is_far and target.registers >= 32
    assert panel_columns(target, "f32", 9 * lanes) == (3 if wide else 2) * lanes
    few = [(1, 9, 3), (3, 40, 6), (8, 33, 9), (12, 300, 9), (29, 700, 12), (64, 3000, 9), (203, 17, 3)]
    sizes = [(m, k, vectors * lanes) for m, k, vectors in few]
    for m, k, n in [*sizes, (1, 40, 34 * lanes - 3), (18, 40, 33 * lanes), (28, 70, 34 * lanes + 1)]:
        a = rng.standard_normal((m, k)).astype(np.float32)
        b = rng.standard_normal((k, n)).astype(np.float32)
        bias, residual = rng.standard_normal(n).astype(np.float32), a @ b
        binder, memory = new_binder(variant), Memory()
        panels = Packed(binder.constant(pack_b(binder.library, b, "f32")), b.shape)
        result = binder.new(F32, (m, n))
        operands = [place(memory, array) for array in (bias, residual)]
        outputs = (Input(F32, 0) + Input(F32, 1) - Input(F32, 2),)
        multiply_matrices(binder, place(memory, a), panels, outputs, operands, [result], "f32")
        memory.run(binder)
        expected = a.astype(np.float64) @ b + bias - residual
        scale = np.abs(a).astype(np.float64) @ np.abs(b) + np.abs(residual)
        assert (np.abs(memory.read(result) - expected) <= 2.0**-24 * (8 * k**0.5 + 8) * scale).all(), (m, k, n)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("k", [0, 3, 7000])
def test_rows_end_anywhere_within_a_panel(variant: str, k: int) -> None:
    """Rows have the bits that they have alone, behind them nothing is written, and operands are read in place."""
    rng = np.random.default_rng(16)
    tile = tile_shape(new_binder(variant).target)
    panel = panel_columns(new_binder(variant).target)
    m = 2 * tile.rows + 3
    gap = 5
    half = panel // 2
    for n in (1, half, half + 1, panel - 1, panel, panel + 1, panel + half, 2 * panel + half + 1):
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        residual = rng.standard_normal((m, n)).astype(np.float32)
        bias, column = rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, 1)).astype(np.float32)
        found = []
        for rows in (slice(0, m), slice(7, 8)):
            binder, memory = new_binder(variant), Memory()
            panels = Packed(binder.constant(pack_b(binder.library, b, "f32")), b.shape)
            outputs = ((Input(F32, 0) + Input(F32, 1)) * Input(F32, 2) + Input(F32, 3),)
            wide = binder.new(F32, (len(a[rows]), n + gap))
            result = wide.reshaped((len(a[rows]), n), wide.strides)
            memory.put(wide, np.full(wide.shape, 7, np.float32))
            operands = [place(memory, array) for array in (bias, column[rows], residual[rows])]
            multiply_matrices(binder, place(memory, a[rows]), panels, outputs, operands, [result], "f32")
            memory.run(binder)
            assert (memory.read(wide)[:, n:] == 7).all(), n
            found.append(memory.read(result).copy())
        expected = (a.astype(np.float64) @ b + bias) * column + residual
        scale = (np.abs(a).astype(np.float64) @ np.abs(b) + np.abs(bias)) * np.abs(column) + np.abs(residual)
        assert (np.abs(found[0] - expected) / scale).max() < 2.0**-24 * (4 + k**0.5)
        assert np.array_equal(found[0][7:8], found[1]), n


@pytest.mark.skipif("avx512" not in host_targets(), reason="vectors of 512 bits")
@pytest.mark.parametrize("n", [8, 24, 37, 56])
def test_last_columns_have_the_bits_of_machines_with_wide_units(n: int) -> None:
    """Where units are narrow, few columns behind whole vectors take half a vector, elsewhere two rows share one."""
    rng = np.random.default_rng(19)
    a, b = rng.standard_normal((50, 33)).astype(np.float32), rng.standard_normal((33, n)).astype(np.float32)
    found = []
    for takes_turns in (False, True):
        target = replace(host_target("avx512"), takes_turns=takes_turns)
        binder, memory = Binder(KernelLibrary(target, KernelCache(None)), settings=RunSettings()), Memory()
        (y,) = MatMulKernel({}).bind(binder, place(memory, a), binder.constant(b))
        assert y is not None
        memory.run(binder)
        found.append(memory.read(y).copy())
    check_close(found[1], a, b, a.astype(np.float64) @ b)
    assert np.array_equal(*found)


def test_epilogue_over_batches_and_other_dtypes() -> None:
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((2, 3, 5, 8)).astype(np.float32), rng.standard_normal((8, 20)).astype(np.float32)
    operand = rng.standard_normal((3, 1, 20)).astype(np.float32)
    binder, memory = new_binder(), Memory()
    y = maximum(Input(F32, 0) + Input(F32, 1), 0.0)
    epilogue = Epilogue((y, y.cast(np.float16), Input(F32, 0) < Input(F32, 1)), (place(memory, operand),))
    found = bind_with(binder, memory, a, b, epilogue)
    product = np.matmul(a.astype(np.float64), b)
    assert np.allclose(found[0], np.maximum(product + operand, 0), atol=1e-5)
    assert found[1].dtype == np.float16
    assert np.allclose(found[1].astype(np.float64), np.maximum(product + operand, 0), rtol=1e-3, atol=1e-3)
    assert np.array_equal(found[2], product < operand)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_gemm(trans_a: int, trans_b: int) -> None:
    rng = np.random.default_rng(10)
    a, b = rng.standard_normal((14, 33)).astype(np.float32), rng.standard_normal((33, 18)).astype(np.float32)
    left, right = (a.T.copy() if trans_a else a), (b.T.copy() if trans_b else b)
    for shape in [(), (18,), (1, 18), (14, 1), (14, 18), None]:
        c = None if shape is None else rng.standard_normal(shape).astype(np.float32)
        binder, memory = new_binder(), Memory()
        kernel = GemmKernel({"alpha": 0.5, "beta": -2.0, "transA": trans_a, "transB": trans_b})
        third = [] if c is None else [place(memory, np.asarray(c))]
        (y,) = kernel.bind(binder, place(memory, left), binder.constant(right), *third)
        memory.run(binder)
        assert y is not None
        expected = 0.5 * (a.astype(np.float64) @ b) - (0.0 if c is None else 2.0 * c)
        assert np.allclose(memory.read(y), expected, atol=1e-4)


def test_activation_before_the_epilogue() -> None:
    rng = np.random.default_rng(15)
    a, b = rng.standard_normal((14, 33)).astype(np.float32), rng.standard_normal((33, 18)).astype(np.float32)
    c, residual = rng.standard_normal(18).astype(np.float32), rng.standard_normal((14, 18)).astype(np.float32)
    binder, memory = new_binder(), Memory()
    kernel = GemmKernel({"activation": lambda x: maximum(x, 0.0)})
    epilogue = Epilogue((Input(F32, 0) + Input(F32, 1),), (place(memory, residual),))
    (y,) = kernel.bind(binder, place(memory, a), binder.constant(b), place(memory, c), epilogue=epilogue)
    memory.run(binder)
    assert y is not None
    assert np.allclose(memory.read(y), np.maximum(a.astype(np.float64) @ b + c, 0) + residual, atol=1e-4)


def test_fused_matmul_moves_batch_axes() -> None:
    rng = np.random.default_rng(11)
    a, b = rng.standard_normal((5, 3, 7)).astype(np.float32), rng.standard_normal((3, 9, 7)).astype(np.float32)
    found = multiply(a, b, parameters={"transBatchA": 1, "transB": 1, "alpha": 2.0})
    assert np.allclose(found, 2 * np.matmul(np.moveaxis(a, 0, -2), np.swapaxes(b, 1, 2)), atol=1e-4)


@pytest.mark.parametrize(
    ("left", "right", "says"),
    [((3, 4), (5, 6), "inner dimensions"), ((2, 3, 4), (3, 4, 5), "broadcast"), ((), (3, 4), "rank 1")],
)
def test_shapes_that_do_not_fit(left: tuple[int, ...], right: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        multiply(np.zeros(left, np.float32), np.zeros(right, np.float32))


def test_random_shapes() -> None:
    rng = np.random.default_rng(12)
    for _ in range(60):
        m, n, k = (int(2 ** rng.uniform(0, 8.5)) for _ in range(3))
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        constant = bool(rng.integers(2))
        if rng.integers(2):
            b = np.asfortranarray(b)
        check_close(multiply(a, b, constant=constant), a, b, a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.skipif(not host_target().has_bf16_dot, reason="this machine has no dot products of bfloat16")
@pytest.mark.parametrize("form", ["constant", "rows", "columns"])
def test_float32_in_bfloat16(form: str) -> None:
    """The result is that of matrices rounded to bfloat16, accumulated in float32."""
    rng = np.random.default_rng(13)
    for m, n, k in [(1, 1, 1), (1, 130, 65), (3, 40, 2), (5, 7, 0), (30, 47, 901), (140, 33, 3100), (2, 3, 31)]:
        a, b = rng.standard_normal((5, m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        binder, memory = new_binder(), Memory()
        binder.settings = replace(binder.settings, precision="bfloat16")
        right = np.asfortranarray(b) if form == "columns" else b
        second = binder.constant(right) if form == "constant" else place(memory, right)
        (y,) = MatMulKernel({}).bind(binder, place(memory, a), second)
        memory.run(binder, one_by_one=True)
        assert y is not None
        rounded = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
        expected = np.matmul(*(one.astype(np.float64) for one in rounded))
        scale = np.matmul(*(np.abs(one.astype(np.float64)) for one in rounded)) + 1e-30
        assert (np.abs(memory.read(y) - expected) / scale).max(initial=0.0) < 1e-5


@pytest.mark.skipif(not host_target().has_amx, reason="vectors round on their way")
@pytest.mark.parametrize("form", ["rows", "columns"])
def test_few_rows_by_an_input_are_not_rounded(form: str) -> None:
    """To round a matrix for one row takes longer than to multiply by it as it is."""
    rng = np.random.default_rng(14)
    for shape in [(1, 300), (6, 1, 300), (6, 3, 300)][: 2 if form == "columns" else 3]:
        a, b = (rng.standard_normal(one).astype(np.float32) for one in (shape, (*shape[:-2], 300, 70)))
        binder, memory = new_binder(), Memory()
        binder.settings = replace(binder.settings, precision="bfloat16")
        right = place(memory, np.ascontiguousarray(np.swapaxes(b, -1, -2)) if form == "columns" else b)
        (y,) = MatMulKernel({"transB": int(form == "columns")}).bind(binder, place(memory, a), right)
        memory.run(binder)
        assert y is not None
        assert np.allclose(memory.read(y), np.matmul(a.astype(np.float64), b), atol=1e-4)


@pytest.mark.skipif(not host_target().has_vnni, reason="this machine has no dot products of bytes")
@pytest.mark.parametrize("form", ["constant", "rows", "columns"])
def test_bytes_into_int32(form: str) -> None:
    """Products of unsigned and signed bytes are exact; an epilogue scales them."""
    rng = np.random.default_rng(14)
    for m, n, k in [(1, 1, 1), (1, 130, 65), (3, 40, 2), (5, 7, 0), (30, 47, 901), (140, 33, 3100)]:
        a = rng.integers(0, 256, (m, k), dtype=np.uint8)
        b = rng.integers(-128, 128, (k, n), dtype=np.int8)
        scale = rng.standard_normal(n).astype(np.float32)
        binder, memory = new_binder(), Memory()
        right = np.asfortranarray(b) if form == "columns" else b
        if form == "constant":
            second: Tensor | Packed = Packed(binder.constant(pack_b(binder.library, right, "u8s8")), b.shape)
        else:
            second = place(memory, right)
        total = Input(np.dtype(np.int32), 0)
        outputs = (total, total.cast(np.float32) * Input(F32, 1))
        results = [binder.new(output.dtype, (m, n)) for output in outputs]
        multiply_matrices(binder, place(memory, a), second, outputs, [place(memory, scale)], results, "u8s8")
        memory.run(binder)
        expected = a.astype(np.int64) @ b.astype(np.int64)
        assert np.array_equal(memory.read(results[0]), expected)
        assert np.allclose(memory.read(results[1]), expected * scale, rtol=1e-6)


def test_the_order_of_what_is_added_makes_no_other_kernel() -> None:
    product, bias, skipped = (Input(F32, index) for index in range(3))
    texts = {
        repr(TileEpilogue((), (maximum(total, 0.0),)))
        for total in (product + bias + skipped, skipped + (bias + product), skipped + (product + bias))
    }
    assert len(texts) == 1
    assert repr(TileEpilogue((), (product - bias,))) != repr(TileEpilogue((), (bias - product,)))


@pytest.mark.parametrize("variant", ["avx2", "avx512"])
def test_what_rows_share_is_written_once(variant: str) -> None:
    """A product of a row and a number is made for each vector of a panel, not for each row of a tile."""
    kinds = (Operand("row", INT32), Operand("scalar", INT32))
    epilogue = TileEpilogue(kinds, ((Input(INT32, 0) - Input(INT32, 1) * Input(INT32, 2)).cast(F32),))
    target = described()[variant]
    texts = [emit_gemm(target, GemmSpec("u8s8", "words", "packed", rows, 2, 1, False, epilogue)) for rows in (8, 12)]
    counts = [len(re.findall(r" = mul <\d+ x i32>", text)) for text in texts]
    assert counts[0] == counts[1] > 0
    assert fits_registers(epilogue)
