"""Products by 49 products of sixteenths: errors within Higham's bound, odd rows, epilogues, what is not finite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sardonyx.compiler.choice import gemm_choice, sixteenths_choice
from sardonyx.compiler.choice.gemm_choice import Problem, panel_columns, tile_shape
from sardonyx.compiler.choice.sixteenths_choice import choose_sixteenths, second_gain, takes_sixteenths
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue
from sardonyx.compiler.llvm.kernels.products.quarter_kernel import least_making
from sardonyx.compiler.llvm.target import host_target
from sardonyx.compiler.native.products.matmul import MatMulKernel
from sardonyx.compiler.native.products.packed_constants import pack_b
from sardonyx.compiler.native.products.plain_product import PlainProduct
from sardonyx.compiler.native.products.strassen_step import multiply_sixteenths
from sardonyx.kernel.expr import Input
from tests.compiler.machines import described
from tests.compiler.steps import VARIANTS, Array, Memory
from tests.compiler.test_fast_products import F32, UNIT, matrices, new_binder
from tests.compiler.test_gemm import place


@pytest.fixture(autouse=True)
def _near_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines whose memory is far take no quarters, and panels of other widths."""
    monkeypatch.setattr(gemm_choice, "NEAR_L3", 1 << 40)


def by_sixteenths(a: Array, b: Array, variant: str = "", *, threads: int = 1, one_by_one: bool = False) -> Array:
    """A x B by the kernel, whether it is worth it or not, as for so many threads."""
    binder, memory = new_binder(variant), Memory()
    left, result = place(memory, a), binder.new(F32, (len(a), b.shape[1]))
    words = binder.constant(pack_b(binder.library, b, "f32"))
    problem = Problem(m=len(a), n=b.shape[1], k=len(b), threads=threads)
    multiply_sixteenths(binder, PlainProduct(problem, left, words, TileEpilogue(), [], [(result, b.shape[1])]))
    memory.run(binder, one_by_one=one_by_one)
    return memory.read(result).copy()


def check(found: Array, a: Array, b: Array) -> None:
    """Within the bound of Winograd's form used twice, which holds always, and within 1e-6 of the product of norms.

    Higham (2002), section 23.2.2: (n/n0)^log2(18) (n0^2 + 6 n0) - 6 n, with n = K and n0 = K/4.
    """
    part = len(b) / 4
    bound = UNIT * (18**2 * (part**2 + 6 * part) - 6 * len(b))
    expected = a.astype(np.float64) @ b
    error = np.abs(found - expected)
    assert error.max() <= bound * float(np.abs(a).max()) * float(np.abs(b).max())
    norms = np.linalg.norm(a, axis=1).max() * np.linalg.norm(b, axis=0).max()
    assert error.max() <= 1e-6 * norms


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("more", range(4))
def test_variants_and_rows_that_are_no_whole_quarters(variant: str, more: int) -> None:
    panel = panel_columns(new_binder(variant).target)
    a, b = matrices(132 + more, 4 * (9 + 8 * more), 4 * panel * (1 + more % 2))
    check(by_sixteenths(a, b, variant), a, b)


def test_blocks_of_rows_and_of_k_in_any_order() -> None:
    target = host_target()
    panel = panel_columns(target)
    for m, k, n in [(963, 52, 12 * panel), (203, 4100, 4 * panel), (1201, 3208, 4 * panel)]:
        cut = choose_sixteenths(target, Problem(m, n, k))
        assert cut.row_blocks > 1 or cut.k_block < cut.k or n > 4 * panel
        a, b = matrices(m, k, n)
        whole = by_sixteenths(a, b)
        check(whole, a, b)
        assert np.array_equal(whole, by_sixteenths(a, b, one_by_one=True))


@pytest.mark.parametrize("m", [200, 203])
def test_rows_of_zeros_give_zeros(m: int) -> None:
    a, b = matrices(m, 132, 8 * panel_columns(host_target()), seed=9)
    empty = [0, 7, m // 4, m // 2, m - 2]
    a[empty] = 0
    a[[1, m - 1]] = 0
    a[[1, m - 1], 131] = 1e-30  # nearly nothing is something
    found = by_sixteenths(a, b)
    assert not found[empty].any()
    assert np.delete(found, empty, axis=0).any(axis=1).all()
    check(found, a, b)


def test_groups_of_panels_for_many_threads_change_no_bit() -> None:
    m, k, n = 200, 64, 20 * panel_columns(host_target())
    assert choose_sixteenths(host_target(), Problem(m, n, k)).groups == 1
    assert choose_sixteenths(host_target(), Problem(m, n, k, threads=16)).groups == 5
    a, b = matrices(m, k, n)
    a[7, 3] = np.inf
    b[5, n // 2] = np.nan
    found = by_sixteenths(a, b)
    for threads in (2, 16):
        assert np.array_equal(found, by_sixteenths(a, b, threads=threads), equal_nan=True)


@pytest.mark.parametrize("where", ["left", "right", "huge"])
def test_what_is_not_finite_stays_where_it_belongs(where: str) -> None:
    """Sums of quarters would carry it to other rows and columns, and turn infinity into NaN."""
    m, k, n = 203, 100, 8 * panel_columns(host_target())
    a, b = matrices(m, k, n, seed=8)
    if where == "left":
        a[3, 4], a[m - 2, k - 1], a[m // 2, 0], a[m // 4, 1] = np.inf, -np.inf, np.nan, np.inf
    elif where == "right":
        b[2, n - 1], b[k - 1, 7] = -np.inf, np.nan
    else:
        a[5, 6], a[5 + m // 2, 6], b[6] = 3e38, 3e38, 0.5
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    found = by_sixteenths(a, b)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.array_equal(found[np.isinf(expected)], expected[np.isinf(expected)])
    finite = np.isfinite(expected)
    assert np.allclose(found[finite], expected[finite], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("m", [600, 601, 602, 603])
def test_operators_read_each_row_of_other_operands_once(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Middle rows of odd halves too; rows of A lie apart, and two results differ in type."""
    monkeypatch.setattr(sixteenths_choice, "_LEAST_GAIN", -1.0)
    k, n = 512, 512
    wide, b = matrices(m, k + 40, n, seed=2)[0], matrices(m, k, n, seed=3)[1]
    rng = np.random.default_rng(4)
    bias, residual = rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, n)).astype(np.float32)
    binder, memory = new_binder(), Memory()
    binder.settings = replace(binder.settings, fast_products=True)
    total = Input(F32, 0) * 0.01 + Input(F32, 1)
    operands = (place(memory, bias), place(memory, residual))
    epilogue = Epilogue((total + Input(F32, 2), total.cast(np.float16)), operands)
    a = wide[:, 8 : 8 + k]
    first, second = MatMulKernel({}).bind(binder, place(memory, a), binder.constant(b), epilogue=epilogue)
    assert [step.kernel for step in binder.steps] == ["b_sums", "sixteenths"]
    memory.run(binder, one_by_one=True)
    assert first is not None
    assert second is not None
    expected = 0.01 * (a.astype(np.float64) @ b) + bias
    assert np.allclose(memory.read(first), expected + residual, atol=2e-5)
    assert np.allclose(memory.read(second), expected, rtol=2e-3, atol=2e-3)


def test_taken_where_rows_columns_and_k_are_many() -> None:
    target = host_target()
    panel = panel_columns(target)
    large = Problem(4096, 128 * panel, 2048)
    assert takes_sixteenths(target, large)
    assert not takes_sixteenths(target, replace(large, m=128))
    assert not takes_sixteenths(target, replace(large, k=128))
    assert not takes_sixteenths(target, replace(large, k=2050))
    assert not takes_sixteenths(target, replace(large, n=4 * panel))
    assert not takes_sixteenths(target, replace(large, n=130 * panel))
    assert second_gain(target, large.m, large.k, large.n) < 7 / 64


def test_units_of_256_bits_take_them_where_those_of_512_do_not() -> None:
    """Products of 1500 rows: sums cost half as much beside multiplications that take twice as long."""
    targets = described()
    problems = [Problem(1500, n, k) for k, n in ((768, 3072), (3072, 768), (768, 768))]
    assert all(takes_sixteenths(targets["avx2"], problem) for problem in problems)
    assert not any(takes_sixteenths(targets["avx512"], problem) for problem in problems)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_cut_covers_all_rows_in_high_tiles(variant: str) -> None:
    target = new_binder(variant).target
    n, rows = 256 * panel_columns(target), tile_shape(target).rows
    problems = [Problem(m, n, 4096) for m in (*range(900, 1500), 20001)]
    taken = [problem for problem in problems if takes_sixteenths(target, problem)]
    assert len(taken) > 500
    for problem in taken:
        cut = choose_sixteenths(target, problem)
        last = cut.quarter - (cut.row_blocks - 1) * cut.row_block
        assert cut.row_blocks * cut.row_block >= cut.quarter
        assert cut.groups * cut.group >= cut.panels
        assert least_making(rows) <= cut.tile_rows <= min(rows, last)
