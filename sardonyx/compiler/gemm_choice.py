"""Choices of matrix multiplication: the shape of the micro-kernel and the blocking, from the target and the sizes.

Nothing here changes results: every element is accumulated in the order of K whatever is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sardonyx.compiler.llvm.kernels.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.target import Target

# Rows of a tile are a multiple of nothing, but more than this gains nothing: the loads of B are hidden by then.
_MOST_ROWS = 12


@dataclass(frozen=True)
class Shape:
    """The micro-kernel's tile, `rows` by `vectors` registers, and steps of K per turn of its loop."""

    rows: int
    vectors: int
    unroll: int


def tile_shape(target: Target, product: str = "f32") -> Shape:
    """As many accumulators as the registers hold beside two vectors of B, a word of A and one to spare.

    Two vectors and many rows load the fewest bytes per multiplication among the shapes that fit 16 or 32 registers;
    machines without fused multiply-add need one more register for the product.
    """
    del product
    spare = 4 if target.has_fma else 5
    return Shape(min(_MOST_ROWS, (target.registers - spare) // 2), 2, 1)


def panel_columns(target: Target, product: str = "f32") -> int:
    """Columns of a panel of packed B."""
    return tile_shape(target, product).vectors * target.lanes(PRODUCTS[product].accumulator)


def panels_of(columns: int, panel: int) -> int:
    return -(-columns // panel)


def packed_words(target: Target, product: str, k: int, n: int) -> int:
    """Words of a packed B of `k` x `n`."""
    panel = panel_columns(target, product)
    return panels_of(n, panel) * panel * -(-k // PRODUCTS[product].depth)


@dataclass(frozen=True)
class Problem:
    """Sizes and layout of one multiplication; `a_stride_bytes` is A's stride other than 1."""

    m: int
    n: int
    k: int
    batch: int = 1
    product: str = "f32"
    a: Literal["packed", "rows", "columns"] = "rows"
    b: Literal["packed", "rows", "columns"] = "packed"
    a_stride_bytes: int = 0
    b_stride_bytes: int = 0
    threads: int = 1


@dataclass(frozen=True)
class Blocking:
    """Rows, elements of K and panels of a chunk, how many chunks there are, and what is copied to scratch.

    Byte offsets in scratch: A's copy lies at 0.
    """

    row_block: int
    strip: int
    k_block: int
    group: int
    row_blocks: int
    groups: int
    chunks: int
    a_copy: int
    b_copy: int
    b_scratch: int
    tile_scratch: int
    tile_stride: int
    tile_keep: int
    prefetch: int
    scratch: int


# Bytes of scratch are laid out in cache lines.
_LINE = 64


def _lines(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


def _cut(total: int, most: int, unit: int) -> tuple[int, int]:
    """`total` in equal blocks of at most `most`, multiples of `unit`: (block, how many); one block of nothing."""
    count = max(1, -(-total // max(most, unit)))
    block = -(-max(1, -(-total // count)) // unit) * unit
    return block, max(1, -(-total // block))


def choose_blocking(target: Target, problem: Problem) -> Blocking:
    """The blocking of a multiplication.

    A block of K times a panel of B fills about the nearest cache, from which each tile of rows streams it; a block
    of rows times a block of K takes a third of the second cache, beside the panels that pass through.
    """
    product = PRODUCTS[problem.product]
    shape = tile_shape(target, problem.product)
    panel = panel_columns(target, problem.product)
    word = product.word.nbytes
    caches = target.caches
    few = problem.m <= shape.rows  # B is read once: blocks of K would only store tiles in between
    per_k = panel * word // product.depth
    panels = max(1, panels_of(problem.n, panel))
    b_copy = int(problem.b == "rows" and _copies_b(problem, shape))
    # A B that stays in the second cache is swept for each tile of rows, so that results are written line after line.
    swept = problem.b != "columns" and not b_copy and panels * per_k * problem.k <= caches.l2 // 2
    most_k = problem.k if (few and problem.b != "columns") or swept else max(64, caches.l1 // per_k)
    k_block, k_blocks = _cut(problem.k, most_k, max(product.depth, 4))
    if swept:
        most_rows = int(_CHUNK_FLOPS // max(1, 2 * problem.k * panels * panel)) // shape.rows * shape.rows
        row_block, row_blocks = _cut(problem.m, max(shape.rows, most_rows), shape.rows)
    else:
        most_rows = max(shape.rows, caches.l2 // 3 // (k_block * word // product.depth) // shape.rows * shape.rows)
        row_block, row_blocks = _cut(problem.m, min(most_rows, 20 * shape.rows), shape.rows)
    group = _group(problem, panels, row_blocks, min(row_block, problem.m), panel)
    if swept and not few:
        group = panels
    groups = -(-panels // group)
    a_copy = _a_copy(target, problem, row_block, k_block, few)
    rows_of_copy = row_block if problem.a == "rows" else -(-k_block // product.depth)
    a_bytes = _lines(a_copy * rows_of_copy * word)
    b_bytes = 0 if problem.b == "packed" else _lines((-(-k_block // product.depth) + 16) * panel * word)
    tile_keep = int(k_blocks > 1)
    tile_stride = panel * group if tile_keep else 4 * panel
    tile_rows = -(-min(row_block, problem.m) // shape.rows) * shape.rows if tile_keep else shape.rows
    tile_bytes = max(tile_rows, 1) * (tile_stride + 4 * panel) * product.accumulator.nbytes
    return Blocking(
        row_block=row_block,
        strip=shape.rows if swept else row_block,
        k_block=k_block,
        group=group,
        row_blocks=row_blocks,
        groups=groups,
        chunks=problem.batch * row_blocks * groups if problem.m and problem.n else 0,
        a_copy=a_copy,
        b_copy=b_copy,
        b_scratch=a_bytes,
        tile_scratch=a_bytes + b_bytes,
        tile_stride=tile_stride,
        tile_keep=tile_keep,
        prefetch=0,
        scratch=a_bytes + b_bytes + _lines(tile_bytes),
    )


# Columns of a chunk: enough to repay the copy of A's block, few enough that partial sums stay in the second cache.
_GROUP_COLUMNS = 512
# Work of a chunk beyond which smaller ones, which share out better among threads, cost nothing (some 60 us of a core).
_CHUNK_FLOPS = 16e6
# Bytes of B of a chunk that is bound by memory.
_CHUNK_BYTES = 512 << 10


def _group(problem: Problem, panels: int, row_blocks: int, rows: int, panel: int) -> int:
    """Panels of a chunk, such that all chunks have about the same number."""
    most = max(1, _GROUP_COLUMNS // panel)
    per_panel = 2.0 * max(1, rows) * panel * max(1, problem.k)
    enough = max(1, int(_CHUNK_FLOPS // per_panel))
    if rows <= 3:
        enough = max(4, _CHUNK_BYTES // (panel * max(1, problem.k) * 4) // 4 * 4)
    count = -(-panels // min(most, enough))
    return -(-panels // count)


# Rows of A whose distance is a multiple of this many bytes fall into few sets of the nearest cache.
_BAD_STRIDE = 2048


def _a_copy(target: Target, problem: Problem, row_block: int, k_block: int, few: bool) -> int:
    """The row stride in words of the copy of A's block; 0 where A is read as it lies."""
    product = PRODUCTS[problem.product]
    lanes = target.lanes(product.word)
    needed = product.copies_a
    bad = problem.a_stride_bytes % _BAD_STRIDE == 0 and not few and problem.m > 4
    if problem.a == "columns":
        bad = problem.a_stride_bytes % _BAD_STRIDE == 0 and problem.k > 16
    if not (needed or bad) or not problem.k:
        return lanes if needed else 0
    across = -(-k_block // product.depth) if problem.a == "rows" else row_block
    stride = -(-across // lanes) * lanes
    # An odd number of cache lines spreads the rows over all sets.
    per_line = _LINE // product.word.nbytes
    return stride + per_line if stride // per_line % 2 == 0 else stride


def _copies_b(problem: Problem, shape: Shape) -> bool:
    """Whether panels of a row-major B are worth copying: many rows read them, or their rows collide in the cache."""
    return problem.m >= 4 * shape.rows or (problem.m > shape.rows and problem.b_stride_bytes % _BAD_STRIDE == 0)
