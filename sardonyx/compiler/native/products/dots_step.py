"""Products with few columns as a step of a plan: dot products of lines in memory."""

from __future__ import annotations

from functools import partial

from sardonyx.compiler.binding import Argument, Binder, Tensor
from sardonyx.compiler.gemm_choice import Problem
from sardonyx.compiler.llvm.kernels.products.gemm_dots import DotsSpec, argument_names, emit_dots, scratch_bytes
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.products.sides import Sides, side_arguments

_PRODUCTS = ("f32", "f64")
# Rows of a tile at most: enough sums to hide the latency of an addition, and few enough pointers for their registers.
_MOST_ROWS = 8
# So many rows use a B that is read from the second cache often enough.
_ENOUGH_ROWS = 4
# A chunk reads so many bytes of A at least; and there are so many chunks at most, which two, four... threads share.
_CHUNK_BYTES = 96 << 10
_MOST_CHUNKS = 64


def suits_dots(target: Target, product: str, k: int, n: int) -> bool:
    """Whether dot products take fewer instructions for a row of C than the micro-kernel of `gemm`, which takes K."""
    if product not in _PRODUCTS:
        return False
    word = PRODUCTS[product].word
    lanes = target.lanes(word)
    sum_of_lanes = 2 * lanes.bit_length()  # shuffles and additions
    if n > lanes // 2 or n * (-(-k // lanes) + sum_of_lanes) >= k:
        return False
    # B is read once for a tile of rows: few rows want it in the nearest cache.
    return _tile_rows(target, n) >= _ENOUGH_ROWS or n * k * word.nbytes <= target.caches.l1 * 2 // 3


def _tile_rows(target: Target, columns: int) -> int:
    """As many rows as registers hold the sums of, beside a vector of each column and one of A."""
    return max(1, min(_MOST_ROWS, (target.registers - 2 - columns) // columns))


def takes_dots(
    binder: Binder,
    problem: Problem,
    a: Tensor,
    b: Tensor,
    epilogue: TileEpilogue,
    operands: Sides,
    results: Sides,
) -> bool:
    """Whether a product is computed by dot products; if so its step is added.

    `a` is a matrix of contiguous rows, `b` one of contiguous columns; operands and results come with the elements
    between their rows.
    """
    if problem.batch != 1 or not suits_dots(binder.target, problem.product, problem.k, problem.n):
        return False
    columns = problem.n
    rows = _tile_rows(binder.target, columns)
    spec = DotsSpec(problem.product, columns, rows, epilogue)
    row_block = _row_block(problem, PRODUCTS[problem.product].word.nbytes, rows)
    values: dict[str, Argument] = {"m": problem.m, "k": problem.k, "row_block": row_block, "a": a, "b": b}
    values |= {"a_stride": a.strides[0], "b_stride": b.strides[1]}
    values |= side_arguments(operands, results)
    binder.step(
        emit_dots,
        spec,
        [values[name] for name in argument_names(spec)],
        reads=(a, b, *(tensor for tensor, _ in operands)),
        writes=tuple(tensor for tensor, _ in results),
        chunks=-(-problem.m // row_block),
        scratch=scratch_bytes(binder.target, spec),
        flops=2.0 * problem.m * problem.k * columns,
        nbytes=float(a.nbytes + b.nbytes + sum(tensor.nbytes for tensor, _ in (*operands, *results))),
        detail=partial(_detail, spec, problem),
    )
    return True


def _detail(spec: DotsSpec, problem: Problem) -> str:
    sizes = f"{problem.m}x{problem.k}x{problem.n}"
    return f"{sizes} {spec.product} by dot products, tile of {spec.rows} rows of {spec.columns}"


def _row_block(problem: Problem, word: int, rows: int) -> int:
    """Rows of a chunk: whole tiles, the same for all chunks but the last, whose number is even if they are several."""
    wished = problem.m * problem.k * word // _CHUNK_BYTES
    count = max(1, min(_MOST_CHUNKS, wished // 2 * 2))
    block = -(-problem.m // count)
    return -(-block // rows) * rows
