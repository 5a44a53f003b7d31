"""Products by seven products of quarters: errors within Higham's bound, odd rows, epilogues, what is declined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import erf as exact_erf
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.choice import gemm_choice
from sardonyx.compiler.choice.gemm_choice import Problem, panel_columns, tile_shape
from sardonyx.compiler.choice.strassen_choice import choose_cut, declined
from sardonyx.compiler.kernels.template import Epilogue
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue
from sardonyx.compiler.llvm.kernels.products.quarter_kernel import least_making
from sardonyx.compiler.llvm.target import Caches, host_target
from sardonyx.compiler.native.products.matmul import GemmKernel, MatMulKernel
from sardonyx.compiler.native.products.packed_constants import pack_b
from sardonyx.compiler.native.products.plain_product import PlainProduct
from sardonyx.compiler.native.products.strassen_step import multiply_quarters
from sardonyx.kernel.expr import Input, erf
from tests.compiler import steps
from tests.compiler.machines import described
from tests.compiler.steps import VARIANTS, Array, Memory
from tests.compiler.test_gemm import place

F32 = np.dtype(np.float32)
UNIT = 2.0**-24
# Rows, K and columns that are worth it wherever memory is near.
SHAPE = (150, 512, 512)


def new_binder(variant: str = "") -> Binder:
    """A binder of products by vectors, which quarters save some of."""
    binder = steps.new_binder(variant)
    binder.settings = replace(binder.settings, float32_tiles=False)
    return binder


@pytest.fixture(autouse=True)
def _near_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines whose memory is far take no quarters, and panels of other widths."""
    monkeypatch.setattr(gemm_choice, "NEAR_L3", 1 << 40)


def matrices(m: int, k: int, n: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)


def higham_bound(k: int) -> float:
    """The error of Winograd's form, used once, in units of the largest elements of A and B.

    Higham (2002), section 23.2.2: (n/n0)^log2(18) (n0^2 + 6 n0) - 6 n, with n = K and n0 = K/2.
    """
    half = k / 2
    return UNIT * (18 * (half**2 + 6 * half) - 6 * k)


def check(found: Array, a: Array, b: Array, expected: Array) -> None:
    """Within the bound, which holds always, and within what rounding that is not all of one sign leaves."""
    error = np.abs(found.astype(np.float64) - expected).max()
    largest = float(np.abs(a).max()) * float(np.abs(b).max())
    assert found.shape == expected.shape
    assert error <= higham_bound(a.shape[-1]) * largest
    assert error <= (8 * a.shape[-1] ** 0.5 + a.shape[-1] / 2) * UNIT * largest


def by_quarters(a: Array, b: Array, variant: str = "", *, one_by_one: bool = False) -> Array:
    """A x B by the kernel, whether it is worth it or not."""
    binder, memory = new_binder(variant), Memory()
    left, result = place(memory, a), binder.new(F32, (len(a), b.shape[1]))
    words = binder.constant(pack_b(binder.library, b, "f32"))
    problem = Problem(m=len(a), n=b.shape[1], k=len(b))
    multiply_quarters(binder, PlainProduct(problem, left, words, TileEpilogue(), [], [(result, b.shape[1])]))
    memory.run(binder, one_by_one=one_by_one)
    return memory.read(result).copy()


def kernels_of_product(a: Array, b: Array, *, fast: bool = True, **changes: Any) -> tuple[Array, list[str]]:
    """A x B by the operator's kernel, and the names of the kernels that made it."""
    binder, memory = new_binder(), Memory()
    binder.settings = replace(binder.settings, fast_products=fast)
    (y,) = MatMulKernel(changes).bind(binder, place(memory, a), binder.constant(b))
    memory.run(binder)
    assert y is not None
    return memory.read(y).copy(), [step.kernel for step in binder.steps]


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_and_sizes(variant: str) -> None:
    panel = panel_columns(new_binder(variant).target)
    for m, k, n in [
        (96, 34, 2 * panel),
        (101, 200, 6 * panel),
        (75, 2, 2 * panel),
        (49, 70, 4 * panel),
        (24, 66, 2 * panel),
    ]:
        a, b = matrices(m, k, n)
        check(by_quarters(a, b, variant), a, b, a.astype(np.float64) @ b)


@pytest.mark.parametrize("variant", VARIANTS)
def test_last_tiles_of_any_height(variant: str) -> None:
    """Every number of rows that is left behind whole tiles; a row of zeros in each half stays one."""
    target = new_binder(variant).target
    panel, rows = panel_columns(target), tile_shape(target).rows
    for m in range(2 * 3 * rows, 2 * 4 * rows + 1):
        a, b = matrices(m, 66, 2 * panel)
        a[[1, m - 2]] = 0
        found = by_quarters(a, b, variant)
        check(found, a, b, a.astype(np.float64) @ b)
        assert not found[[1, m - 2]].any()


def test_many_rows_and_blocks_of_k() -> None:
    """In whatever order: sums belong to their rows, and the middle row of an odd number to one block."""
    target = host_target()
    panel = panel_columns(target)
    assert choose_cut(target, 921, 1802, 4 * panel).row_blocks > 1
    for m, k, n in [(721, 130, 4 * panel), (130, 2500, 6 * panel), (921, 1802, 4 * panel)]:
        a, b = matrices(m, k, n)
        whole = by_quarters(a, b)
        check(whole, a, b, a.astype(np.float64) @ b)
        assert np.array_equal(whole, by_quarters(a, b, one_by_one=True))


def test_outliers_in_some_channels() -> None:
    """As in transformers, whose activations have channels a hundred times larger than the others."""
    a, b = matrices(*SHAPE, seed=1)
    a[:, 5::97] *= 100
    found, kernels = kernels_of_product(a, b)
    assert "strassen" in kernels
    check(found, a, b, a.astype(np.float64) @ b)


@pytest.mark.parametrize("m", [200, 203])
def test_rows_of_zeros_give_zeros(m: int) -> None:
    """As those of padded windows, and the keys made of them, which cosine attention divides by their length."""
    a, b = matrices(m, 330, 4 * panel_columns(host_target()), seed=9)
    empty = [0, 7, m // 2, m - 2]
    a[empty] = 0
    a[7] = -0.0
    a[[1, m - 1]] = 0
    a[[1, m - 1], 329] = 1e-30  # nearly nothing is something
    found = by_quarters(a, b)
    assert not found[empty].any()
    assert np.delete(found, empty, axis=0).any(axis=1).all()
    check(found, a, b, a.astype(np.float64) @ b)


def test_rows_that_lie_apart_and_batches_that_join() -> None:
    m, k, n = SHAPE
    wide, b = matrices(m, k + 40, n, seed=2)[0], matrices(m, k, n, seed=3)[1]
    a = wide[:, 8 : 8 + k]
    found, kernels = kernels_of_product(a, b)
    assert "strassen" in kernels
    check(found, a, b, a.astype(np.float64) @ b)
    stacked = np.ascontiguousarray(a).reshape(3, m // 3, k)
    found, kernels = kernels_of_product(stacked, np.asfortranarray(b))
    assert "strassen" in kernels
    check(found, stacked, b, np.matmul(stacked.astype(np.float64), b))


@pytest.mark.parametrize("m", [150, 151])
def test_epilogue_with_two_outputs_and_every_kind_of_operand(m: int) -> None:
    _, k, n = SHAPE
    a, b = matrices(m, k, n, seed=4)
    rng = np.random.default_rng(5)
    arrays = [
        rng.standard_normal(n).astype(np.float32),
        rng.standard_normal((m, n + 9)).astype(np.float32)[:, 4 : 4 + n],
        rng.standard_normal((m, 1)).astype(np.float32),
        np.asarray(rng.standard_normal(), np.float32),
    ]
    binder, memory = new_binder(), Memory()
    binder.settings = replace(binder.settings, fast_products=True)
    biased = Input(F32, 0) * 0.01 + Input(F32, 1)
    activated = 0.5 * biased * (1.0 + erf(biased * 0.5**0.5))
    outputs = (activated * Input(F32, 3) + Input(F32, 2) * Input(F32, 4), (biased + 1.0).cast(np.float16))
    epilogue = Epilogue(outputs, tuple(place(memory, array) for array in arrays))
    first, second = MatMulKernel({}).bind(binder, place(memory, a), binder.constant(b), epilogue=epilogue)
    assert [step.kernel for step in binder.steps] == ["stamp", "strassen"]
    memory.run(binder)
    assert first is not None
    assert second is not None
    x = 0.01 * (a.astype(np.float64) @ b) + arrays[0]
    expected = 0.5 * x * (1 + np.vectorize(exact_erf)(x * 0.5**0.5)) * arrays[2] + arrays[1] * arrays[3]
    assert np.allclose(memory.read(first), expected, rtol=1e-5, atol=1e-4)
    assert memory.read(second).dtype == np.float16
    assert np.allclose(memory.read(second).astype(np.float64), x + 1, rtol=2e-3, atol=2e-3)


def test_gemm_with_a_transposed_constant() -> None:
    m, k, n = SHAPE
    a, b = matrices(m, k, n, seed=6)
    c = np.random.default_rng(7).standard_normal((m, 1)).astype(np.float32)
    binder, memory = new_binder(), Memory()
    binder.settings = replace(binder.settings, fast_products=True)
    kernel = GemmKernel({"alpha": 0.5, "beta": -2.0, "transB": 1})
    (y,) = kernel.bind(binder, place(memory, a), binder.constant(b.T.copy()), place(memory, c))
    assert "strassen" in [step.kernel for step in binder.steps]
    memory.run(binder)
    assert y is not None
    assert np.allclose(memory.read(y), 0.5 * (a.astype(np.float64) @ b) - 2.0 * c, atol=2e-4)


@pytest.mark.parametrize("where", ["left", "right", "huge"])
def test_what_is_not_finite_stays_where_it_belongs(where: str) -> None:
    """Sums of quarters would carry it to other rows and columns, and turn infinity into NaN."""
    m, k, n = SHAPE
    a, b = matrices(m, k, n, seed=8)
    if where == "left":
        a[3, 4], a[m - 2, k - 1], a[m // 2, 0] = np.inf, -np.inf, np.nan
    elif where == "right":
        b[2, n - 1], b[k - 1, 7] = -np.inf, np.nan
    else:
        a[5, 6], a[5 + m // 2, 6], b[6] = 3e38, 3e38, 0.5
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    found, kernels = kernels_of_product(a, b)
    assert "strassen" in kernels
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.array_equal(found[np.isinf(expected)], expected[np.isinf(expected)])
    finite = np.isfinite(expected)
    assert np.allclose(found[finite], expected[finite], rtol=1e-5, atol=1e-3)


def test_columns_behind_the_last_whole_panels_take_the_ordinary_product() -> None:
    """With what belongs to columns, to rows, and to both in the epilogue."""
    m, k, n = 151, 512, 513 * panel_columns(host_target()) + 1
    a, b = matrices(m, k, n, seed=12)
    rng = np.random.default_rng(13)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((n,), (m, n + 3), (m, 1))]
    arrays[1] = arrays[1][:, 2 : 2 + n]
    binder, memory = new_binder(), Memory()
    binder.settings = replace(binder.settings, fast_products=True)
    output = Input(F32, 0) + Input(F32, 1) + Input(F32, 2) * Input(F32, 3)
    epilogue = Epilogue((output,), tuple(place(memory, array) for array in arrays))
    (y,) = MatMulKernel({}).bind(binder, place(memory, a), binder.constant(b), epilogue=epilogue)
    assert [step.kernel for step in binder.steps] == ["stamp", "strassen", "gemm"]
    memory.run(binder, one_by_one=True)
    assert y is not None
    expected = a.astype(np.float64) @ b + arrays[0] + arrays[1] * arrays[2]
    norms = np.linalg.norm(a.astype(np.float64), axis=1)[:, None] * np.linalg.norm(b.astype(np.float64), axis=0)
    assert (np.abs(memory.read(y) - expected) <= 1e-6 * norms + 1e-6 * np.abs(expected)).all()


def test_off_gives_the_bits_of_the_ordinary_kernel() -> None:
    a, b = matrices(*SHAPE, seed=9)
    plain, kernels = kernels_of_product(a, b, fast=False)
    assert kernels == ["gemm"]
    one_row, kernels = kernels_of_product(a[:1], b)
    assert kernels == ["gemm"]
    assert np.array_equal(one_row, plain[:1])


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (Problem(1, 4096, 4096), "cost too much"),
        (Problem(4, 768, 768), "cost too much"),
        (Problem(512, 768, 128), "cost too much"),
        (Problem(26, 4096, 4096), "high tiles"),
        (Problem(49, 192, 1152), "shared evenly"),
        (Problem(512, 768, 767), "odd number"),
        (Problem(512, 50257, 768), "no whole number of panels"),
        (Problem(512, 768, 768, product="f64"), "only products of float32"),
        (Problem(512, 768, 768, b="rows"), "no constant"),
        (Problem(512, 768, 768, batch=2), "same step apart"),
        (Problem(512, 768, 768, a="columns"), "same step apart"),
    ],
)
def test_declined(problem: Problem, says: str) -> None:
    reason = declined(described(takes_turns=True)["avx512vnni"], problem)
    assert reason is not None
    assert says in reason


@pytest.mark.parametrize(
    ("problem", "in_turns"),
    [
        (Problem(20, 768, 768), True),
        (Problem(49, 512, 2048), False),
        (Problem(576, 960, 160), True),
        (Problem(784, 128, 512), True),
        (Problem(784, 256, 512), False),
        (Problem(1600, 256, 256), True),
    ],
)
def test_sums_cost_less_where_multiplications_take_longer(problem: Problem, in_turns: bool) -> None:
    """Products that take quarters only on machines that do a register's work in two turns, and those on any."""
    targets = [described(takes_turns=turns)["avx512vnni"] for turns in (False, True)]
    assert [declined(target, problem) is None for target in targets] == [not in_turns, True]


@pytest.mark.parametrize("problem", [Problem(20, 768, 768), Problem(576, 960, 160), Problem(784, 512, 192)])
def test_units_of_256_bits_take_what_those_in_turns_take(problem: Problem) -> None:
    assert declined(described()["avx2"], problem) is None


@pytest.mark.parametrize("l2", [512 << 10, 1 << 20])
def test_short_rows_lie_in_a_part_of_the_second_cache(l2: int) -> None:
    """A's parts of a block with the tiles of its products, where no row is long enough for prefetchers."""
    target = described(Caches(32 << 10, l2, 32 << 20))["avx2"]
    for k in (192, 256, 512):
        cut = choose_cut(target, 1600, k, 256)
        assert 7 * cut.row_block * (cut.k_block + panel_columns(target)) * 4 <= 0.55 * l2


def test_declined_where_memory_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = described().values()
    assert [declined(target, Problem(512, 768, 768)) for target in targets] == [None] * len(targets)
    monkeypatch.setattr(gemm_choice, "NEAR_L3", 0)
    assert all("far" in (declined(target, Problem(512, 768, 768)) or "") for target in targets)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_cut_covers_all_rows_in_high_tiles(variant: str) -> None:
    target = new_binder(variant).target
    n, rows = 64 * panel_columns(target), tile_shape(target).rows
    counts = [m for m in range(40, 700) if declined(target, Problem(m, n, 4096)) is None]
    assert len(counts) > 500
    for m in (*counts, 20001):
        cut = choose_cut(target, m, 4096, n)
        last = cut.upper - (cut.row_blocks - 1) * cut.row_block
        assert cut.row_blocks * cut.row_block >= cut.upper
        assert cut.groups * cut.group >= cut.panels
        assert least_making(rows) <= cut.tile_rows <= min(rows, last)


def model(m: int, k: int, n: int) -> tuple[bytes, Array, Array]:
    a, b = matrices(m, k, n, seed=10)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    constants = [numpy_helper.from_array(b, "w"), numpy_helper.from_array(b[0], "b")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", k])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", n])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    whole: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return whole.SerializeToString(), a, b


def run(text: bytes, x: Array, threads: int, entries: Sequence[tuple[str, str]] = ()) -> Array:
    options = sx.SessionOptions()
    options.intra_op_num_threads = threads
    for name, value in (*entries, ("sardonyx.cpu.float32_tiles", "0")):
        options.add_session_config_entry(name, value)
    session = sx.InferenceSession(text, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def test_sessions_have_the_same_bits_for_any_number_of_threads() -> None:
    text, a, b = model(201, 512, 1024)
    on = [("sardonyx.cpu.fast_products", "1")]
    alone = run(text, a, 1, on)
    assert np.array_equal(alone, run(text, a, 2, on))
    off = run(text, a, 2, [("sardonyx.cpu.fast_products", "0")])
    assert not np.array_equal(alone, off)
    expected = a.astype(np.float64) @ b + b[0]
    check(alone, a, b, expected)
    assert np.abs(off - expected).max() <= np.abs(alone - expected).max()


def test_rehearsals_make_the_kernels_ready_for_more_rows() -> None:
    _, b = matrices(1, 1024, 512)  # wide enough for whatever panels
    epilogue = Epilogue((Input(F32, 0) * 0.3 + 1.7,), ())

    def kernels(m: int, *, rehearses: bool) -> list[int]:
        binder, memory = new_binder(), Memory()
        binder.rehearses = rehearses
        a = np.ones((m, 1024), np.float32)
        MatMulKernel({}).bind(binder, place(memory, a), binder.constant(b), epilogue=epilogue)
        return [binder.library.counts.compiled + binder.library.counts.from_cache, len(binder.steps)]

    rehearsed, steps = kernels(8, rehearses=True)
    assert steps == 1
    assert kernels(512, rehearses=False) == [rehearsed, 2]


def test_sums_of_one_run_are_not_taken_for_those_of_another() -> None:
    text, a, _ = model(201, 512, 512)
    options = sx.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("sardonyx.cpu.float32_tiles", "0")
    session = sx.InferenceSession(text, options, providers=["CPUExecutionProvider"])
    for x in (a, a[::-1].copy(), a + 1, a):
        (found,) = session.run(None, {"x": x})
        assert np.array_equal(found, run(text, x, 1))


def test_bfloat16_takes_ordinary_products() -> None:
    text, a, _ = model(201, 512, 512)
    entries = [("sardonyx.cpu.precision", "bfloat16")]
    on, off = (run(text, a, 1, [*entries, ("sardonyx.cpu.fast_products", value)]) for value in "10")
    if host_target().has_bf16_dot:
        assert np.array_equal(on, off)
    else:
        assert np.allclose(on, off, atol=1e-3)


def test_operand_tensor_is_read_at_its_own_rows() -> None:
    """A residual of the product's shape meets every row once, the middle one of an odd number too."""
    m, k, n = 151, 512, 512
    a, b = matrices(m, k, n, seed=11)
    residual = np.arange(m * n, dtype=np.float32).reshape(m, n)
    binder, memory = new_binder(), Memory()
    binder.settings = replace(binder.settings, fast_products=True)
    operand: Tensor = place(memory, residual)
    epilogue = Epilogue((Input(F32, 0) * 0.0 + Input(F32, 1),), (operand,))
    (y,) = MatMulKernel({}).bind(binder, place(memory, a), binder.constant(b), epilogue=epilogue)
    memory.run(binder, one_by_one=True)
    assert y is not None
    assert np.array_equal(memory.read(y), residual)
