"""Products with a small K as a step of a plan: C is written line by line."""

from __future__ import annotations

from functools import partial

from sardonyx.compiler.binding import Binder
from sardonyx.compiler.choice.gemm_choice import Problem, panels_of, tile_shape
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import fits_registers
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_shallow import ShallowSpec, argument_names, emit_shallow
from sardonyx.compiler.native.products.plain_product import PlainProduct

_PRODUCTS = ("f32", "f64")
# With more than so many multiplications for an element of C, these take longer than its way to memory.
_MOST_K = 8
# Rows at once, which share what is loaded of B, at most.
_MOST_ROWS = 2
# Registers for words of A at most, as a share of all.
_WORDS_SHARE = 0.5
# A C of fewer bytes than this share of the second cache is written fast in any order; one of more than this share of
# the last cache goes to memory, for which `gemm` asks ahead.
_LEAST_OF_L2, _MOST_OF_L3 = 0.5, 0.5
# Panels of a chunk take this share of the nearest cache at most, from which all its rows read them.
_MOST_OF_L1 = 0.5
# A chunk writes so many bytes of C at least; and there are so many chunks at most, which two, four... threads share.
_CHUNK_BYTES = 128 << 10
_MOST_CHUNKS = 64


def takes_shallow(binder: Binder, plain: PlainProduct) -> bool:
    """Whether a product by packed panels is computed line by line; if so its step is added."""
    target, problem = binder.target, plain.problem
    written = sum(tensor.nbytes for tensor in plain.writes)
    if problem.batch != 1 or problem.product not in _PRODUCTS or not fits_registers(plain.epilogue):
        return False
    if not 0 < problem.k <= _MOST_K:
        return False
    if not _LEAST_OF_L2 * target.caches.l2 <= written <= _MOST_OF_L3 * target.caches.l3:
        return False
    product, vectors = PRODUCTS[problem.product], tile_shape(target, problem.product, problem.n).vectors
    rows = max(1, min(_MOST_ROWS, int(_WORDS_SHARE * target.registers) // problem.k))
    spec = ShallowSpec(problem.product, problem.k, rows, vectors, plain.epilogue)
    panel = vectors * target.lanes(product.accumulator)
    panels = panels_of(problem.n, panel)
    most = max(1, int(_MOST_OF_L1 * target.caches.l1) // (panel * problem.k * product.word.nbytes))
    groups = -(-panels // most)
    count = max(1, min(_MOST_CHUNKS, int(written / groups) // _CHUNK_BYTES // 2 * 2))
    row_block = -(-problem.m // (count * rows)) * rows
    row_blocks = -(-problem.m // row_block)
    group = -(-panels // groups)
    values = plain.arguments | {"row_block": row_block, "row_blocks": row_blocks, "group": group}
    binder.step(
        emit_shallow,
        spec,
        [values[name] for name in argument_names(spec)],
        reads=plain.reads,
        writes=plain.writes,
        chunks=row_blocks * -(-panels // group),
        flops=plain.flops,
        nbytes=plain.nbytes,
        detail=partial(_detail, problem),
    )
    return True


def _detail(problem: Problem) -> str:
    return f"{problem.m}x{problem.k}x{problem.n} {problem.product}, written line by line"
