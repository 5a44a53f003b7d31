"""When a product by seven products of quarters is worth 49 of sixteenths, and how that is cut into chunks."""

from __future__ import annotations

from sardonyx.compiler.choice.gemm_choice import Problem, panel_columns, tile_shape
from sardonyx.compiler.choice.quarter_cuts import (
    WORD,
    QuarterCut,
    block_of_k,
    block_of_rows,
    laid_in_scratch,
    row_of_sums,
)
from sardonyx.compiler.llvm.kernels.products.quarter_kernel import PARTS, TILES
from sardonyx.compiler.llvm.target import Target
from sardonyx.light_dataclass import dataclass

# Of the time of the ordinary product, what the second level saves, and what its sums cost of it: those of A are as many
# for any N, those of C for any K, those of B for any M. Measured on Zen 4.
_SAVED = 1 / 8 * 7 / 8
_A_SUMS, _C_SUMS, _B_SUMS = 20.0, 20.0, 18.0
# A smaller gain is not worth the rounding.
_LEAST_GAIN = 0.03
# Chunks that each thread is to have at least, where groups of panels give more of them.
_CHUNKS_OF_A_THREAD = 2


@dataclass(kw_only=True)
class SixteenthsCut(QuarterCut):
    """The cut of a product by sixteenths: see `gemm_sixteenths.argument_names`."""

    half: int
    quarter: int
    part_stride: int
    parts_apart: int
    part_scratch: int
    u_scratch: int
    w_scratch: int
    seen_scratch: int


def second_gain(target: Target, m: int, k: int, n: int) -> float:
    """The part of the time of the ordinary product of M x K x N that sixteenths save of quarters, by the cost model."""
    # Vectors that are multiplied twice as fast leave half as much time for sums.
    speed = 1 if target.has_units_of_256 else 2
    return _SAVED - speed * (_A_SUMS / n + _C_SUMS / k + _B_SUMS / m)


def takes_sixteenths(target: Target, problem: Problem) -> bool:
    """Whether a product that takes quarters is worth sixteenths."""
    m, k, n = problem.m, problem.k, problem.n
    panel, rows = panel_columns(target), tile_shape(target).rows
    if k % 4 or n % (4 * panel) or second_gain(target, m, k, n) < _LEAST_GAIN:
        return False
    return _row_block(target, ((m + 1) // 2 + 1) // 2, k // 4, n, rows) is not None


def choose_sixteenths(target: Target, problem: Problem) -> SixteenthsCut:
    """The cut of a product that `takes_sixteenths`; what is computed is the same for any number of threads."""
    m, k, n = problem.m, problem.k, problem.n
    panel, rows = panel_columns(target), tile_shape(target).rows
    half = (m + 1) // 2
    quarter, part, panels = (half + 1) // 2, k // 4, n // 4 // panel
    k_block = block_of_k(target, part, panel)
    found = _row_block(target, quarter, part, n, rows)
    if found is None:
        raise ValueError(f"{quarter} rows cannot be cut into high tiles")
    row_block, tile_rows = found
    row_blocks = -(-quarter // row_block)
    wished = _CHUNKS_OF_A_THREAD * problem.threads if problem.threads > 1 else 1
    group = -(-panels // min(panels, -(-wished // row_blocks)))
    part_stride = row_of_sums(part)
    tile = row_block * panel * WORD
    sizes = {
        "b_sum": k_block * panel * WORD,
        "tile": TILES * tile,
        "part": PARTS * row_block * part_stride * WORD,
        "u": group * 4 * tile,
        "w": group * 4 * tile,
        "seen": group * panel * WORD,
    }
    return SixteenthsCut(
        half=half,
        quarter=quarter,
        k=part,
        panels=panels,
        row_block=row_block,
        k_block=k_block,
        group=group,
        row_blocks=row_blocks,
        groups=-(-panels // group),
        tile_rows=tile_rows,
        part_stride=part_stride,
        parts_apart=row_block * part_stride,
        **laid_in_scratch(sizes),
    )


def _row_block(target: Target, quarter: int, part: int, n: int, rows: int) -> tuple[int, int] | None:
    """Rows of a block of a quarter of them and of its tiles, as `block_of_rows` gives them.

    The parts of A of an outer product take the second cache, with what is kept of two outer products. The blocks are
    even in number if they can be.
    """
    wished = max(4 * rows, target.caches.l2 // ((PARTS * part + 2 * n) * WORD) // rows * rows)
    return block_of_rows(quarter, 2 * wished, rows, more=2) or block_of_rows(quarter, wished, rows)
