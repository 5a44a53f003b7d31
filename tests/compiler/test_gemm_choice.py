"""The blocking of matrix products: everything is covered, scratch suffices, limits are kept."""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import pytest

from sardonyx.compiler.choice.gemm_blocking import choose_blocking, copies_large_rows
from sardonyx.compiler.choice.gemm_choice import (
    Problem,
    asks_ahead,
    asks_for_results,
    bf16_product,
    packed_words,
    panel_columns,
    tile_shape,
)
from sardonyx.compiler.choice.gemm_cuts import Tuning
from sardonyx.compiler.llvm.kernels.products.gemm import emit_gemm
from sardonyx.compiler.llvm.kernels.products.gemm_micro import BUSY
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_spec import GemmSpec, Layout, argument_names
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.llvm.target import Caches, Target, host_targets
from sardonyx.compiler.native.products.packed_constants import pack_b
from sardonyx.runtime.memory.constant_memory import constant_empty
from tests.compiler.machines import described

TARGETS = tuple(described().values())
FASTEST = described()["avx512vnni"]
_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def problems() -> list[Problem]:
    rng = np.random.default_rng(0)
    drawn = np.exp(rng.uniform(0, np.log(4096), (60, 3))).astype(int).tolist()
    sizes = [*drawn, [1, 1, 0], [128, 768, 3072], [12, 50257, 768], [4096, 4096, 4096]]
    layouts: list[tuple[Layout, Layout]] = [
        ("rows", "packed"), ("columns", "rows"), ("rows", "columns"), ("words", "packed")
    ]  # fmt: skip
    return [
        Problem(m, n, k, 1 + index % 3, "f32" if a != "words" else "bf16", a, b, 4 * k, 4 * n)
        for index, (m, n, k) in enumerate(sizes)
        for a, b in layouts
    ]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_chunks_cover_the_product(target: Target) -> None:
    for problem in problems():
        found = choose_blocking(target, problem)
        tile = tile_shape(target, problem.product, problem.n)
        panel = panel_columns(target, problem.product, problem.n)
        depth = PRODUCTS[problem.product].depth
        panels = -(-problem.n // panel)
        assert found.row_block * found.row_blocks >= problem.m > found.row_block * (found.row_blocks - 1)
        assert found.group * found.groups >= panels > found.group * (found.groups - 1)
        assert found.chunks == problem.batch * found.row_blocks * found.groups
        assert found.row_block % tile.rows == 0
        assert found.strip % tile.rows == 0
        assert 1 <= found.tile_rows <= tile.rows
        assert found.k_block % depth == 0
        assert found.tile_keep == (found.k_block < problem.k)
        assert 0 < found.scratch < max(8 << 20, 8 * target.caches.l2)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_tiles_fit_the_registers(target: Target) -> None:
    tile = tile_shape(target)
    assert tile.rows >= 1
    assert tile.vectors * (tile.rows + 1) + 1 + (not target.has_fma) <= target.registers


def test_large_work_is_shared_among_many_threads() -> None:
    for target in TARGETS:
        for m, n, k in [(128, 768, 768), (1, 4096, 4096), (2048, 64, 64), (64, 2048, 64), (512, 512, 512)]:
            assert choose_blocking(target, Problem(m, n, k)).chunks >= 4, (target.name, m, n, k)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_thread_pool_shares_the_columns_of_a_single_row_where_they_are_worth_a_meeting(target: Target) -> None:
    columns = 2 * panel_columns(target)
    for k, threads, chunks in ((4096, 1, 1), (4096, 2, 2), (64, 2, 1)):
        assert choose_blocking(target, Problem(1, columns, k, threads=threads)).chunks == chunks


def test_two_threads_end_together() -> None:
    """Whatever the sizes, where there are enough tiles to share; products too small to share stay in one piece."""
    target = dataclasses.replace(FASTEST, caches=Caches(48 << 10, 1 << 20, 32 << 20))
    tile, panel = tile_shape(target).rows, panel_columns(target)
    for m, n, k in [
        (2284, 249, 2), (399, 2554, 4), (24, 1129, 151), (15, 8 * panel, 721), (4 * tile, 40, 400), (128, 384, 1152),
        (197, 768, 768), (1500, 768, 3072), (37, 3145, 23), (1, 2048, 2048), (64, 320, 768), (1620, 18, 38),
    ]:  # fmt: skip
        found = choose_blocking(target, Problem(m, n, k))
        rows = [min(found.row_block, m - start) for start in range(0, m, found.row_block)]
        columns = [min(found.group * panel, n - start) for start in range(0, n, found.group * panel)]
        ends = [0, 0]
        for part in columns:
            for row in rows:
                ends[ends.index(min(ends))] += row * part
        assert max(ends) <= 1.11 * sum(ends) / 2, (m, n, k, found)
    assert choose_blocking(target, Problem(20, 20, 20)).chunks == 1


def test_no_tile_is_too_low() -> None:
    """Tiles of a B that is not swept are as high as they can be, or lower where the last would wait for its sums."""
    target = dataclasses.replace(FASTEST, caches=Caches(48 << 10, 1 << 20, 32 << 20))
    most = tile_shape(target).rows
    for m in range(1, 4 * most):
        rows = choose_blocking(target, Problem(m, 1024, 1024)).tile_rows
        assert -(-m // rows) == -(-m // most)
        last = m % rows or rows
        assert m <= most or last * tile_shape(target).vectors >= BUSY, (m, rows)


def test_copies_follow_the_tuning() -> None:
    target = FASTEST
    problem = Problem(100, 3000, 1024, a_stride_bytes=4096)
    assert choose_blocking(target, problem).a_copy == 0
    copied = choose_blocking(target, problem, Tuning(bad_stride=4096))
    assert copied.a_copy > copied.k_block
    assert copied.a_copy * 4 % 4096


def test_what_depends_on_the_machine() -> None:
    target = FASTEST
    near = dataclasses.replace(target, caches=Caches(48 << 10, 1 << 20, 32 << 20), takes_turns=False)
    far = dataclasses.replace(target, caches=Caches(48 << 10, 2 << 20, 400 << 20))
    assert not asks_ahead(near)
    assert asks_ahead(far)
    assert asks_for_results(far, 2 << 20)
    assert not asks_for_results(far, 1 << 20)
    assert not asks_for_results(near, 2 << 20)
    assert not asks_for_results(near, 8 << 20, in_strips=True)
    assert asks_for_results(dataclasses.replace(near, takes_turns=True), 8 << 20, in_strips=True)
    assert not asks_for_results(dataclasses.replace(near, takes_turns=True), 8 << 20)
    assert (
        choose_blocking(far, Problem(1, 4096, 4096)).prefetch
        == 2 * choose_blocking(near, Problem(1, 4096, 4096)).prefetch
    )
    many = 33 * far.lanes(PRODUCTS["f32"].accumulator)
    for columns in (many, many + 1):
        wide = far.registers >= 32
        assert tile_shape(far, "f32", columns).vectors == (3 if wide else 2)
        assert tile_shape(near, "f32", columns).vectors == 2
    rows = tile_shape(far).rows
    waiting = -(-BUSY // tile_shape(near).vectors)
    for last in range(waiting, rows // 2 + 1):
        assert choose_blocking(near, Problem(rows + last, 64, 1 << 16)).tile_rows == rows
    for last in range(1, rows // 2 + 1):
        assert choose_blocking(far, Problem(rows + last, 64, 1 << 16)).tile_rows == -(-(rows + last) // 2)
    dots = dataclasses.replace(target, has_bf16_dot=True, has_amx=False)
    assert bf16_product(dots) == "bf16"
    assert bf16_product(dataclasses.replace(dots, has_amx=True)) == "bf16 tiles"
    assert bf16_product(dataclasses.replace(dots, has_bf16_dot=False)) is None


@pytest.mark.parametrize("variant", host_targets())
@pytest.mark.parametrize(
    ("a_layout", "b_layout", "product"),
    [("rows", "packed", "f32"), ("columns", "rows", "f32"), ("rows", "columns", "f32"), ("rows", "rows", "f16")],
)
def test_kernels_stay_inside_their_scratch(variant: str, a_layout: Layout, b_layout: Layout, product: str) -> None:
    kernels = library(variant)
    target = kernels.target
    tile = tile_shape(target, product)
    spec = GemmSpec(product, a_layout, b_layout, tile.rows, tile.vectors, tile.unroll)
    call = _SIGNATURE(kernels.address(emit_gemm, spec))
    dtype = np.float16 if product == "f16" else np.float32
    tuning = Tuning(panel_l1=0.2, rows_l2=0.05, swept_l2=0.001, bad_stride=4)
    for m, n, k in [(50, 70, 300), (1, 300, 129), (13, 33, 1000), (7, 31, 5)]:
        problem = Problem(m, n, k, 1, product, a_layout, b_layout, 4 * k, 4 * n)
        blocking = choose_blocking(target, problem, tuning)
        a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
        right = pack_b(kernels, b, product) if b_layout == "packed" else b
        c = np.zeros((m, n), np.float32)
        scratch = constant_empty(blocking.scratch + 256, np.dtype(np.uint8))
        scratch[...] = 0xA5
        values = {
            "a": a.ctypes.data, "b": right.ctypes.data, "m": m, "n": n, "k": k, "batch1": 1, "batch2": 1,
            "a_stride": k if a_layout == "rows" else m, "b_stride": n if b_layout == "rows" else k,
            "output0": c.ctypes.data, "output0_stride": n, **dataclasses.asdict(blocking),
        }  # fmt: skip
        words = np.array([values.get(name, 0) for name in argument_names(spec)], np.int64)
        call(words.ctypes.data, 0, blocking.chunks, scratch.ctypes.data)
        assert (c == k).all()
        assert (scratch[blocking.scratch :] == 0xA5).all(), "a kernel wrote behind its scratch"
    assert packed_words(target, product, 5, 1) == 5 * panel_columns(target, product)


@pytest.mark.parametrize("rows", [1, 16])
def test_threads_share_what_few_rows_read(rows: int) -> None:
    target = described()["avx512"]
    for threads, least in ((1, 1), (2, 4)):
        problem = Problem(rows, 2304, 768, product="bf16 tiles", a="words", threads=threads)
        found = choose_blocking(target, problem)
        assert found.chunks >= least
        assert (found.chunks == 1) == (threads == 1)


def test_threads_share_rows_of_parts_where_each_has_many() -> None:
    caches = Caches(l1=48 << 10, l2=2 << 20, l3=105 << 20)
    target = dataclasses.replace(described()["avx512"], caches=caches)
    for m, threads, blocks in ((784, 2, 4), (400, 2, 2), (1600, 2, 8), (784, 4, 4), (784, 3, 3)):
        problem = Problem(m, 128, 512, product="f32 tiles", b="panels", threads=threads)
        found = choose_blocking(target, problem)
        assert (found.row_blocks, found.groups) == (blocks, 1)
        assert copies_large_rows(target, problem) == (m * 512 * 10 > caches.l2)
    for m, threads in ((196, 2), (784, 8)):  # too few rows for each: columns are shared as well
        problem = Problem(m, 512, 512, product="f32 tiles", b="panels", threads=threads)
        assert choose_blocking(target, problem).groups > 1
        assert not copies_large_rows(target, problem)
