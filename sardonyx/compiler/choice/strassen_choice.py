"""When a product of matrices is worth seven products of quarters, and how that is cut into chunks."""

from __future__ import annotations

from dataclasses import replace

from sardonyx.compiler.choice.gemm_choice import Problem, asks_ahead, panel_columns, tile_shape
from sardonyx.compiler.choice.quarter_cuts import (
    WORD,
    QuarterCut,
    block_of_k,
    block_of_rows,
    laid_in_scratch,
    row_of_sums,
)
from sardonyx.compiler.llvm.kernels.products.quarter_kernel import A_SUMS, TILES, least_making
from sardonyx.compiler.llvm.target import Target
from sardonyx.light_dataclass import dataclass

# Of the time of the eight products one eighth is saved, less what it takes that tiles are begun and ended more often.
_SAVED = 1 / 8
_TILES = 0.013


@dataclass(frozen=True)
class _SumCosts:
    """What the sums cost of that time: those of A are as many for any N, those of C for any K, those of B for any M."""

    a: float
    c: float
    b: float


# Measured on Zen 5, and on Zen 4, whose units of 256 bits take twice as long to multiply.
_COSTS, _COSTS_OF_256 = _SumCosts(8.0, 14.0, 1.2), _SumCosts(5.5, 10.0, 0.6)
# A smaller gain is not worth the coarser rounding.
_LEAST_GAIN = 0.035
# The part of the columns that may be left to the ordinary product.
_MOST_OTHERS = 1 / 256
# Two words that tell whose sums of A are in scratch.
_MARK_BYTES = 16


@dataclass(kw_only=True)
class Cut(QuarterCut):
    """The cut of a product by quarters: see `gemm_strassen.argument_names`."""

    upper: int
    sums_stride: int
    sums_apart: int
    a_sums_scratch: int
    mark_scratch: int


def gain(target: Target, m: int, k: int, n: int) -> float:
    """The part of the time of the ordinary product of M x K x N that is saved, by the cost model."""
    if min(m, k, n) == 0:
        return 0.0
    costs = _COSTS_OF_256 if target.has_units_of_256 else _COSTS
    return _SAVED - _TILES - costs.a / n - costs.c / k - costs.b / m


def declined(target: Target, problem: Problem) -> str | None:
    """Why a matrix product takes the eight products of quarters; None where it takes seven.

    No text has sizes: they would become fixed where a formula of them is made.
    """
    panel = panel_columns(target)
    m, k, n = problem.m, problem.k, problem.n
    if problem.product != "f32":
        return "only products of float32 matrices are made of quarters"
    if problem.b != "packed":
        return "the right-hand side is no constant"
    if problem.batch != 1 or problem.a != "rows":
        return "the rows of the left-hand side do not lie the same step apart, each in one piece"
    if k % 2:
        return "the right-hand side has an odd number of rows"
    if n % (2 * panel):
        return "half of the columns is no whole number of panels"
    if asks_ahead(target):  # sums of quarters wait for the caches longer than the eighth product takes
        return "the last cache is far from its cores"
    saved = gain(target, m, k, n)
    if saved < _LEAST_GAIN:
        return "the sums cost too much of what is saved"
    found = _block_of_rows(target, m, k, n)
    if found is None:
        return "half of the rows cannot be cut into high tiles"
    # The number of threads must not change results: one thread goes without what two would lose.
    if (1 - saved) * _unevenness(-(-((m + 1) // 2) // found[0]) * (n // 2 // panel)) > 1:
        return "too few chunks to be shared evenly"
    return None


def columns_of_quarters(target: Target, problem: Problem) -> int:
    """How many of the first columns of a product take quarters: those whose halves are whole panels, or none.

    Columns are rounded in two ways where others are left, so that equal ones differ: these are to be very few.
    """
    unit = 2 * panel_columns(target)
    whole = replace(problem, n=problem.n // unit * unit)
    if problem.n - whole.n > _MOST_OTHERS * problem.n or declined(target, whole) is not None:
        return 0
    return whole.n


def choose_cut(target: Target, m: int, k: int, n: int) -> Cut:
    """The cut of a product that is not `declined`.

    A block of K of a panel takes the nearest cache, as the sums of B's quarters are made and used in it; all that is
    read of A with it, the second cache. Where there are several blocks of K, groups of panels read A's less often.
    """
    panel, rows = panel_columns(target), tile_shape(target).rows
    upper, half, panels = (m + 1) // 2, k // 2, n // 2 // panel
    k_block = block_of_k(target, half, panel)
    found = _block_of_rows(target, m, k, n)
    if found is None:
        raise ValueError(f"{upper} rows cannot be cut into tiles of {least_making(rows)} to {rows}")
    row_block, tile_rows = found
    row_blocks = -(-upper // row_block)
    group = 2 if k_block < half and panels * row_blocks >= _MANY_CHUNKS else 1
    tile = row_block * panel * WORD
    sums_stride = row_of_sums(half)
    sizes = {
        "b_sum": k_block * panel * WORD,
        "tile": group * TILES * tile,
        "a_sums": A_SUMS * row_block * sums_stride * WORD,
        "mark": _MARK_BYTES,
    }
    return Cut(
        upper=upper,
        k=half,
        panels=panels,
        row_block=row_block,
        k_block=k_block,
        group=group,
        row_blocks=row_blocks,
        groups=-(-panels // group),
        tile_rows=tile_rows,
        sums_stride=sums_stride,
        sums_apart=row_block * sums_stride,
        **laid_in_scratch(sizes),
    )


# Chunks that stay enough for several threads when their number is halved.
_MANY_CHUNKS = 32


# Threads among which chunks are to be shared without a rest.
_THREADS = 2


def _block_of_rows(target: Target, m: int, k: int, n: int) -> tuple[int, int] | None:
    """Rows of a block and of its tiles with which a thread pool is done first; None where no block will do."""
    panel, rows = panel_columns(target), tile_shape(target).rows
    upper, panels = (m + 1) // 2, n // 2 // panel
    wished = _wished_rows(target, block_of_k(target, k // 2, panel), rows)
    found = [block_of_rows(upper, wished, rows), block_of_rows(upper, wished, rows, more=2)]
    able = [one for one in found if one is not None]
    return min(able, key=lambda one: _end(one[0], -(-upper // one[0]) * panels)) if able else None


def _unevenness(chunks: int) -> float:
    """How much longer a thread pool takes than if it shared evenly."""
    return -(-chunks // _THREADS) * _THREADS / chunks


def _end(row_block: int, chunks: int) -> float:
    """When such a thread pool is done, relative to one that shares evenly and makes no sums of B."""
    return (1 + _COSTS.b / (2 * row_block)) * _unevenness(chunks)


def _wished_rows(target: Target, k_block: int, rows: int) -> int:
    """Rows of seven parts of A, a block of K wide, that take the second cache: a multiple of the tile's.

    Short ones take a part of it, with the tiles of the seven products: what is not there any more comes from afar.
    """
    wished = target.caches.l2 // (7 * k_block * WORD)
    if k_block <= _SHORT:
        held = TILES * (k_block + panel_columns(target)) * WORD
        wished = min(wished, int(_SHARE_OF_SHORT * target.caches.l2) // held)
    return max(4 * rows, wished // rows * rows)


# Elements of a row along K that end before the machine's own prefetchers follow them, and the share of the second cache
# that is taken then.
_SHORT = 256
_SHARE_OF_SHORT = 0.45
