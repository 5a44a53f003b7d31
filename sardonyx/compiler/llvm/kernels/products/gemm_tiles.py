"""The micro-kernel of AMX: 32 x 32 results in four tile registers, sixteen words of K at a time.

Two tiles of rows of A meet two tiles of columns of B, so that each tile loaded is used twice. Rows of A are words as
`emit_words` writes them, with all sixteen rows of a tile readable; panels of B hold `[words][32]`, whose lines are
the rows of B's tiles as the instructions want them (Intel, "Optimization Reference Manual", chapter 20).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
# Cache lines of the next panel that each step of K asks for, or a multiple of them: four tiles of rows ask for all.
_LINES_AHEAD = 8
PARTS_AHEAD = 4


def configure(k: Function) -> None:
    """Give all tile registers sixteen rows of 64 bytes."""
    widths = [_LINE, 0] * _REGISTERS + [0] * 16
    heights = [SIDE] * _REGISTERS + [0] * 8
    table = k.table(I8, [1, *[0] * 15, *widths, *heights])
    k.call("llvm.x86.ldtilecfg", VOID, Value(k, table.address.name, PTR))


def release(k: Function) -> None:
    """Leave the tile registers empty, so that no switch of threads has to save them."""
    k.call("llvm.x86.tilerelease", VOID)


@dataclass(frozen=True)
class Runs:
    """Rows of A that are several runs of so many words (a multiple of 16) each: where each run of a row starts, in
    words from where the row does."""

    starts: Pointer
    words: Value


@dataclass(frozen=True)
class Ahead:
    """What is asked for of packed panels: how many words ahead, and which of the `PARTS_AHEAD` parts of each step."""

    words: Value
    first_part: Value
    last_part: Value


def multiply_in_tiles(
    k: Function,
    product: Product,
    a: Sequence[Rows],
    b: Pointer,
    words: Value,
    tile: Tile,
    fresh: Value,
    ahead: Ahead,
    runs: Runs | None = None,
) -> None:
    """tile = (0 if `fresh`, else tile) + rows of A times a panel, over `words` (a multiple of 16) of K.

    Each of `a` are sixteen rows. The tile lies in scratch. `runs` tell where rows lie that are not in one piece.
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
    part_words = _LINES_AHEAD * _LINE // product.word.nbytes

    def step(along_a: Value, along_b: Value) -> None:
        for row, rows in enumerate(a):
            source = rows.start.offset(along_a)
            k.call("llvm.x86.tileloadd64", VOID, k.constant(I8, _A + row), source.address, a_strides[row])
        here = b.offset(along_b * panel)
        for column in range(TILES_ACROSS):
            source = here.offset(column * SIDE)
            k.call("llvm.x86.tileloadd64", VOID, k.constant(I8, _B + column), source.address, b_stride)
            for row in range(high):
                operands = k.constant(I8, _A + row), k.constant(I8, _B + column)
                k.call(instruction, VOID, register(row, column), *operands)
        asked = here.offset(ahead.words)
        with k.loop(ahead.first_part, ahead.last_part) as part:
            for line in range(_LINES_AHEAD):
                asked.offset(part * part_words).prefetch(line * _LINE // product.word.nbytes, level=2)

    if runs is None:
        with k.loop(0, words, SIDE) as word:
            step(word, word)
    else:
        entry = k.variable(PTR, runs.starts.address)
        with k.loop(0, words, runs.words) as first:
            start = k.pointer(entry.get(), I64)
            shift = start.load()
            with k.loop(0, runs.words, SIDE) as word:
                step(word + shift, word + first)
            entry.set(start.offset(1).address)
    for place in places:
        k.call("llvm.x86.tilestored64", VOID, register(*place), result(*place).address, stride)
