"""Products with few columns as a step of a plan: dot products of lines in memory."""

from __future__ import annotations

from functools import partial

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.choice.gemm_choice import Problem, asks_ahead
from sardonyx.compiler.llvm.kernels.products.gemm_dots import DotsSpec, argument_names, emit_dots, scratch_bytes
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import BATCH_DIMS
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.native.products.plain_product import PlainProduct

_PRODUCTS = ("f32", "f64")
# Rows of a tile at most: enough sums to hide the latency of an addition, and few enough pointers for their registers.
_MOST_ROWS = 8
# Dot products take at most this share of the micro-kernel's multiplications; less where B, of more than so many nearest
# caches, comes from the second one for each tile of rows.
_GAIN, _GAIN_FROM_L2 = 0.97, 0.88
_NEAR_L1 = 1.5
# What a row takes beside its dot products, in multiplications.
_BESIDE_A_ROW = 1.5
# The share of the second cache that B takes at most, which every tile of rows reads anew.
_MOST_OF_L2 = 0.5
# An A of at least this share of the last cache comes from memory: its next rows are asked for ahead of time.
_FAR_OF_L3 = 0.25
# So many dot products of a row leave the machine's own prefetchers waiting, where the last cache is far as well.
_MANY_COLUMNS = 5
# A chunk reads so many bytes of A at least; and there are so many chunks at most, which two, four... threads share.
_CHUNK_BYTES = 96 << 10
_MOST_CHUNKS = 64


def suits_dots(target: Target, product: str, k: int, n: int) -> bool:
    """Whether dot products take fewer instructions for a row of C than the micro-kernel of `gemm`, whose vectors of
    columns are multiplied whole."""
    if product not in _PRODUCTS:
        return False
    word = PRODUCTS[product].word
    lanes = target.lanes(word)
    sum_of_lanes = 0.5 * lanes.bit_length()  # shuffles and additions, of several sums at once
    dots = n * (-(-k // lanes) + sum_of_lanes) + _BESIDE_A_ROW
    nbytes = n * k * word.nbytes
    gain = _GAIN if nbytes <= _NEAR_L1 * target.caches.l1 else _GAIN_FROM_L2
    if n > lanes or dots >= gain * k:
        return False
    return nbytes <= _MOST_OF_L2 * target.caches.l2


def _tile(target: Target, columns: int) -> tuple[int, int]:
    """Rows and columns whose sums fit the registers beside a vector of each column and one of A; those that load the
    fewest vectors for all columns."""

    def rows_of(across: int) -> int:
        return max(1, min(_MOST_ROWS, (target.registers - 2 - across) // across))

    def loads(across: int) -> float:
        return -(-columns // across) * (1 + across / rows_of(across))

    best = min(range(1, min(columns, target.registers // 4) + 1), key=lambda across: (loads(across), -across))
    across = -(-columns // -(-columns // best))
    return rows_of(across), across


def takes_dots(binder: Binder, product: PlainProduct) -> bool:
    """Whether a product by a matrix of contiguous columns is computed by dot products; if so its step is added."""
    problem = product.problem
    if len(product.batch) > BATCH_DIMS or not suits_dots(binder.target, problem.product, problem.k, problem.n):
        return False
    columns, word = problem.n, PRODUCTS[problem.product].word.nbytes
    rows, across = _tile(binder.target, columns)
    is_far = problem.batch * problem.m * problem.k * word > _FAR_OF_L3 * binder.target.caches.l3
    is_far |= columns >= _MANY_COLUMNS and asks_ahead(binder.target)
    spec = DotsSpec(problem.product, columns, rows, across, is_far, product.is_turned, product.epilogue)
    row_block = _row_block(problem, word, rows)
    row_blocks = -(-problem.m // row_block)
    values = product.arguments | {"b_stride": product.b.strides[1], "row_block": row_block, "row_blocks": row_blocks}
    binder.step(
        emit_dots,
        spec,
        [values[name] for name in argument_names(spec)],
        reads=product.reads,
        writes=product.writes,
        chunks=problem.batch * row_blocks,
        claim=max(1, _CHUNK_BYTES // (row_block * problem.k * word)),
        scratch=scratch_bytes(binder.target, spec),
        flops=product.flops,
        nbytes=product.nbytes,
        detail=partial(_detail, spec, problem),
    )
    return True


def _detail(spec: DotsSpec, problem: Problem) -> str:
    sizes = f"{problem.m}x{problem.k}x{problem.n}" + (f" ({problem.batch} of them)" if problem.batch > 1 else "")
    return f"{sizes} {spec.product} by dot products, {spec.rows} rows of {spec.across} at once"


def _row_block(problem: Problem, word: int, rows: int) -> int:
    """Rows of a chunk: whole tiles, the same for all chunks but the last, whose number is even if they are several."""
    wished = problem.m * problem.k * word // _CHUNK_BYTES
    count = max(1, min(_MOST_CHUNKS, wished // 2 * 2))
    block = -(-problem.m // count)
    return -(-block // rows) * rows
