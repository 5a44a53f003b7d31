"""The micro-kernel of AMX: 32 x 32 results in four tile registers, sixteen words of K at a time.

Two tiles of rows of A meet two tiles of columns of B, so that each tile loaded is used twice. Rows of A are words as
`emit_words` writes them, with all sixteen rows of a tile readable; panels of B hold `[words][32]`, whose lines are
the rows of B's tiles as the instructions want them (Intel, "Optimization Reference Manual", chapter 20).
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Rows, Tile
from sardonyx.compiler.llvm.kernels.products.gemm_product import Product
from sardonyx.compiler.llvm.types import I8, I64, PTR, VOID

SIDE = 16  # rows of a tile, and words of one of its rows
TILES_ACROSS = 2  # tiles of a panel
MOST_HIGH = 2  # tiles of rows of A

_REGISTERS = 8
_A, _B = 4, 6  # the first registers of A and of B; results come before
_LINE = 64
# Cache lines of the next panel that each step of K asks for; four tiles of rows ask for all of them.
_LINES_AHEAD = 8


def configure(k: Function) -> None:
    """Give all tile registers sixteen rows of 64 bytes."""
    widths = [_LINE, 0] * _REGISTERS + [0] * 16
    heights = [SIDE] * _REGISTERS + [0] * 8
    table = k.table(I8, [1, *[0] * 15, *widths, *heights])
    k.call("llvm.x86.ldtilecfg", VOID, Value(k, table.address.name, PTR))


def release(k: Function) -> None:
    """Leave the tile registers empty, so that no switch of threads has to save them."""
    k.call("llvm.x86.tilerelease", VOID)


def multiply_in_tiles(
    k: Function,
    product: Product,
    a: Sequence[Rows],
    b: Pointer,
    words: Value,
    tile: Tile,
    fresh: Value,
    prefetch: Value,
    turn: Value,
) -> None:
    """tile = (0 if `fresh`, else tile) + rows of A times a panel, over `words` (a multiple of 16) of K.

    Each of `a` are sixteen rows. The tile lies in scratch. `prefetch` is how many words ahead the next panel lies; `turn` numbers the tiles of rows
    that share the panel.
    """
    high = len(a)
    places = [(row, column) for row in range(high) for column in range(TILES_ACROSS)]
    stride = tile.stride * product.accumulator.nbytes

    def result(row: int, column: int) -> Pointer:
        return tile.start.offset(tile.stride * (row * SIDE)).offset(column * SIDE)

    def register(row: int, column: int) -> Value:
        return k.constant(I8, row * TILES_ACROSS + column)

    with k.when(fresh):
        for place in places:
            k.call("llvm.x86.tilezero", VOID, register(*place))
    with k.otherwise(fresh):
        for place in places:
            k.call("llvm.x86.tileloadd64", VOID, register(*place), result(*place).address, stride)
    a_strides = [rows.stride * product.word.nbytes for rows in a]
    panel = SIDE * TILES_ACROSS
    b_stride = k.constant(I64, panel * product.word.nbytes)
    instruction = "llvm.x86.tdpbf16ps" if product.accumulator.is_float else "llvm.x86.tdpbusd"
    lines = (turn & 3) * (_LINES_AHEAD * _LINE // product.word.nbytes)
    with k.loop(0, words, SIDE) as word:
        for row, rows in enumerate(a):
            source = rows.start.offset(word)
            k.call("llvm.x86.tileloadd64", VOID, k.constant(I8, _A + row), source.address, a_strides[row])
        here = b.offset(word * panel)
        for column in range(TILES_ACROSS):
            source = here.offset(column * SIDE)
            k.call("llvm.x86.tileloadd64", VOID, k.constant(I8, _B + column), source.address, b_stride)
            for row in range(high):
                operands = k.constant(I8, _A + row), k.constant(I8, _B + column)
                k.call(instruction, VOID, register(row, column), *operands)
        ahead = here.offset(prefetch).offset(lines)
        for line in range(_LINES_AHEAD):
            ahead.prefetch(line * _LINE // product.word.nbytes, level=2)
    for place in places:
        k.call("llvm.x86.tilestored64", VOID, register(*place), result(*place).address, stride)
