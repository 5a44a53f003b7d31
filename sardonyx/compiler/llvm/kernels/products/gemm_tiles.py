"""The micro-kernel of AMX: 16 x 32 results in two tile registers, sixteen words of K at a time.

A tile of rows of A meets two tiles of columns of B. Four tile registers hold all of it: processors rename tile
registers from a small store, which the threads of a core share, and with all eight of them in use the instructions
wait for each other. Rows of A are words as `emit_words` writes them, with all sixteen rows of a tile readable; panels
of B hold `[words][32]`, whose lines are the rows of B's tiles as the instructions want them (Intel, "Optimization
Reference Manual", chapter 20).
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Request, Rows, Tile
from sardonyx.compiler.llvm.kernels.products.gemm_parts import Walk, kept_products
from sardonyx.compiler.llvm.kernels.products.gemm_product import Product
from sardonyx.compiler.llvm.types import I8, I64, PTR, VOID
from sardonyx.light_dataclass import dataclass

SIDE = 16  # rows of a tile, and words of one of its rows
TILES_ACROSS = 2  # tiles of a panel

_REGISTERS = 8
_A, _B = 2, 3  # the registers of A and of B; results come before
LINE = 64
# Parts in which what a step of K asks for is shared among the tiles of the rows.
PARTS_AHEAD = 8


def configure(k: Function) -> None:
    """Give all tile registers sixteen rows of 64 bytes."""
    widths = [LINE, 0] * _REGISTERS + [0] * 16
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


def walk_along(k: Function, product: Product, words: Value, runs: Runs | None) -> Walk:
    """The way along so many words of K, in steps of a tile's of each part."""
    unit = SIDE * product.parts

    def walk(step: Callable[[Value, Value], None]) -> None:
        if runs is None:
            with k.loop(0, words, unit) as word:
                step(word, word)
            return
        entry = k.variable(PTR, runs.starts.address)
        with k.loop(0, words, runs.words) as first:
            start = k.pointer(entry.get(), I64)
            shift = start.load()
            with k.loop(0, runs.words, unit) as word:
                step(word + shift, word + first)
            entry.set(start.offset(1).address)

    return walk


@dataclass(frozen=True)
class Ahead:
    """What is asked for ahead of its use, whose lines are a multiple of `PARTS_AHEAD`, and which of these parts."""

    requests: tuple[Request, ...]
    first_part: Value
    last_part: Value


def multiply_in_tiles(
    k: Function,
    product: Product,
    a: Rows,
    b: Pointer,
    words: Value,
    tile: Tile,
    fresh: Value | bool,
    ahead: Ahead | None = None,
    runs: Runs | None = None,
) -> None:
    """tile = (0 if `fresh`, else tile) + sixteen rows of A times a panel, over `words` (a multiple of 16) of K.

    The tile lies in scratch. `runs` tell where rows lie that are not in one piece.
    """
    stride = tile.stride * product.accumulator.nbytes
    results = [(k.constant(I8, column), tile.start.offset(column * SIDE)) for column in range(TILES_ACROSS)]

    def begin(is_fresh: bool) -> None:
        for register, place in results:
            if is_fresh:
                k.call("llvm.x86.tilezero", VOID, register)
            else:
                k.call("llvm.x86.tileloadd64", VOID, register, place.address, stride)

    if isinstance(fresh, bool):
        begin(fresh)
    else:
        with k.when(fresh):
            begin(True)
        with k.otherwise(fresh):
            begin(False)
    a_stride = a.stride * product.word.nbytes
    panel, unit = SIDE * TILES_ACROSS, SIDE * product.parts
    b_stride = k.constant(I64, panel * product.word.nbytes)
    instruction = "llvm.x86.tdpbf16ps" if product.accumulator.is_float else "llvm.x86.tdpbusd"
    left, right = k.constant(I8, _A), k.constant(I8, _B)

    def step(along_a: Value, along_b: Value) -> None:
        here, loaded = b.offset(along_b * panel), -1
        for of_a, of_b in kept_products(product.parts):
            if of_a != loaded:
                place = a.start.offset(along_a * a.spread).offset(of_a * SIDE * a.spread)
                k.call("llvm.x86.tileloadd64", VOID, left, place.address, a_stride)
                loaded = of_a
            for column, (register, _) in enumerate(results):
                place = here.offset(of_b * SIDE * panel + column * SIDE)
                k.call("llvm.x86.tileloadd64", VOID, right, place.address, b_stride)
                k.call(instruction, VOID, register, left, right)
        if ahead is None:
            return
        for request in ahead.requests:
            each = request.lines // PARTS_AHEAD
            start = k.advance(request.start.address, along_b // unit * request.apart, request.lines)
            with k.loop(ahead.first_part, ahead.last_part) as part:
                asked = k.advance(start, part * request.apart, each)
                for line in range(each):
                    k.pointer(k.advance(asked, k.constant(I64, line) * request.apart, 1), I8).prefetch(level=2)

    walk_along(k, product, words, runs)(step)
    for register, place in results:
        k.call("llvm.x86.tilestored64", VOID, register, place.address, stride)
