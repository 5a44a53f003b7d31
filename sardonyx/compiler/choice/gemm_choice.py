"""Choices of matrix multiplication: the shape of the micro-kernel, the panels of B, and what a blocking is."""

from __future__ import annotations

import functools

from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.kernels.products.gemm_spec import Layout
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE, TILES_ACROSS
from sardonyx.compiler.llvm.target import Target
from sardonyx.light_dataclass import dataclass

# Rows of a tile are a multiple of nothing, but more than this gains nothing: the loads of B are hidden by then.
_MOST_ROWS = 12


@dataclass(frozen=True)
class Shape:
    """The micro-kernel's tile, `rows` by `vectors` registers, and steps of K per turn of its loop."""

    rows: int
    vectors: int
    unroll: int


def tile_shape(target: Target, product: str = "f32", columns: int = 0) -> Shape:
    """As many accumulators as the registers hold beside two vectors of B, a word of A and one to spare.

    Two vectors and many rows load the fewest bytes per multiplication among the shapes that fit 16 or 32 registers;
    machines without fused multiply-add need one more register for the product. A B whose `columns` are a multiple of
    three vectors, or so many that the rest of a panel is little, has those where memory is far: fewer loads leave room
    for the requests that such a machine needs.
    """
    kind = PRODUCTS[product]
    if kind.in_tiles:
        return Shape(SIDE, TILES_ACROSS, 1)
    lanes = target.lanes(kind.accumulator)
    if kind.is_bounded:  # the fewer columns a word is for, the fewer words there are; A's words are no bottleneck
        return Shape(_MOST_ROWS, 1, 1)
    if product == "bf16" and target.has_amx:  # the panels are those of tiles
        return Shape(_MOST_ROWS, TILES_ACROSS, 1)
    fits = columns >= _VECTORS_OF_MANY * lanes or (columns > 0 and columns % (_THREE.vectors * lanes) == 0)
    if fits and target.registers >= _REGISTERS_OF_THREE and asks_ahead(target):
        return _THREE
    return _shape_in_registers(target.registers, target.has_fma)


_THREE = Shape(8, 3, 1)
_REGISTERS_OF_THREE = 32
# Of so many vectors of columns, one that is computed for nothing is little.
_VECTORS_OF_MANY = 33


@functools.cache
def _shape_in_registers(registers: int, has_fma: bool) -> Shape:
    spare = 4 if has_fma else 5
    return Shape(min(_MOST_ROWS, (registers - spare) // 2), 2, 1)


def asks_ahead(target: Target) -> bool:
    """Whether the weights of a few rows, which are read by several panels at once, are worth prefetching.

    A core's own prefetchers keep up with memory where the last cache is small and near; behind a large one, spread
    over many cores, requests by software double what one core reads.
    """
    return target.caches.l3 > NEAR_L3


# Elements of float32 that are 4096 bytes, and a line of them.
_COLLIDING = 1024
_LINE = 16


def row_step(columns: int) -> int:
    """The elements from one row of float32 to the next that a product reads soonest, where a row has so many: a line
    more where the rows of a tile would share one set of the nearest cache, which holds fewer lines than that."""
    return columns + _LINE if columns > 0 and columns % _COLLIDING == 0 else columns


def asks_for_results(target: Target, nbytes: int, *, in_strips: bool = False) -> bool:
    """Whether results of so many bytes are worth prefetching before they are written: where memory is far, and the
    second cache has lost what lay there; of maps that are written `in_strips`, which no prefetcher of the machine
    follows, also where units are half as wide as registers."""
    if asks_ahead(target):
        return nbytes > target.caches.l2 // 2
    return in_strips and target.takes_turns and nbytes > 2 * target.caches.l2


def bf16_product(target: Target) -> str | None:
    """The inner product that multiplies bfloat16 faster than float32; None where there is none.

    Machines with AMX have dot products of vectors, too, but at half the rate of float32.
    """
    if target.has_amx:
        return "bf16 tiles"
    return "bf16" if target.has_bf16_dot else None


def suits_parts(target: Target, m: int, n: int, k: int) -> bool:
    """Whether a product of float32 by a constant takes less time in tiles of AMX, of three parts for each number, than
    by vectors: where it has many rows, and so many multiplications that its factors' way into tiles is little.

    That holds for several threads: the number of them must not change bits, so nothing here depends on it.
    """
    return target.has_amx and m >= ROWS_OF_PARTS and repays_tiles(n, k, _MADDS_OF_WORD, _MADDS_OF_RESULT)


def repays_tiles(n: int, k: int, of_word: int, of_result: int) -> bool:
    """Whether what tiles save of n x k multiply-adds for each row repays A's way into them and the results' own, which
    cost so many multiply-adds for an element."""
    return n * k > of_word * k + of_result * n


# Of fewer rows taking B apart is too much of the work. What writing an element of A as words and a result from
# tiles costs, in multiply-adds of vectors, over what tiles save of each; half of it is that what one thread has written
# comes to the other from afar.
ROWS_OF_PARTS = 64
_MADDS_OF_WORD, _MADDS_OF_RESULT = 160, 125

NEAR_L3 = 64 << 20


def panel_columns(target: Target, product: str = "f32", columns: int = 0) -> int:
    """Columns of a panel of packed B, which has so many `columns` in all; 0 for what holds whatever they are."""
    return tile_shape(target, product, columns).vectors * target.lanes(PRODUCTS[product].accumulator)


def panels_of(columns: int, panel: int) -> int:
    return -(-columns // panel)


def packed_words(target: Target, product: str, k: int, n: int) -> int:
    """Words of a packed B of `k` x `n`."""
    panel = panel_columns(target, product, n)
    return panels_of(n, panel) * panel * PRODUCTS[product].words(k)


# Nobody changes a problem or a blocking: they are not frozen because that makes their construction three times as dear.
@dataclass
class Problem:
    """Sizes and layout of one multiplication; `a_stride_bytes` is A's stride other than 1.

    Blocks of K are multiples of `k_unit`. Of `threads` it counts only whether there are several, but where
    these share rows of parts.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    product: str = "f32"
    a: Layout = "rows"
    b: Layout = "packed"
    a_stride_bytes: int = 0
    b_stride_bytes: int = 0
    threads: int = 1
    k_unit: int = 1


@dataclass
class Blocking:
    """Rows, elements of K and panels of a chunk, rows of its tiles, how many chunks there are, and what is copied.

    Byte offsets in scratch: A's copy lies at 0.
    """

    row_block: int
    strip: int
    tile_rows: int
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
