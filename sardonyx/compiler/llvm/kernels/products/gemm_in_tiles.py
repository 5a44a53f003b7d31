"""Products in tiles of AMX within the loops of `gemm`: rows that fill no tile, windows where they lie, requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import EpilogueWriter
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Panels, Request, Rows, Tile
from sardonyx.compiler.llvm.kernels.products.gemm_parts import Right, elements_of_a, mend_rows, words_of_a
from sardonyx.compiler.llvm.kernels.products.gemm_product import Product
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import (
    LINE,
    PARTS_AHEAD,
    SIDE,
    TILES_ACROSS,
    Ahead,
    Runs,
    multiply_in_tiles,
    walk_along,
)
from sardonyx.compiler.llvm.types import I64
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class RowsInTiles:
    """A's rows in a block of K: from the chunk's first one on, the chunk's number of them, the words of K in the block,
    where they lie if they are runs, and whether those that fill no tile lie in scratch. Rows that lie in tiles are
    `a.stride` words apart as if each were in one piece."""

    a: Rows
    count: Value
    words: Value
    runs: Runs | None
    has_rest: bool


class GemmInTiles:
    """Writes what is particular to products in tiles; `given` are the kernel's arguments by name, `table` the runs."""

    def __init__(
        self, k: Function, product: Product, given: Mapping[str, Value], table: Pointer, scratch: Pointer
    ) -> None:
        self.k, self.product, self.given, self.table, self.scratch = k, product, given, table, scratch
        self.lanes = k.target.lanes(product.word)

    def runs(self, first: Value) -> Runs:
        """The runs of a row from this word of K on, with which one begins."""
        length = self.given["run_words"]
        return Runs(self.table.offset(first // length), length)

    def copy_rest(self, rows: RowsInTiles) -> None:
        """Those rows that fill no tile, which is read with all of its rows, to scratch."""
        k = self.k
        whole = rows.count // SIDE * SIDE
        with k.loop(whole, rows.count) as row:
            source = rows.a.start.offset(row * rows.a.stride)
            target = self.scratch.offset((row - whole) * self.given["a_copy"])
            with k.loop(0, rows.words, self.lanes) as word:
                target.store(source.load(word, self.lanes), word)

    def multiply(self, rows: RowsInTiles, first: Value, b: Panels, tile: Tile, fresh: Value) -> None:
        """The sums of the rows of a tile from `first` on and a panel to `tile`."""
        a, ahead = self._rows_of_tile(rows, first), self._parts_ahead(rows.count, b, first)
        multiply_in_tiles(self.k, self.product, a, b.starts[0], rows.words, tile, fresh, ahead, rows.runs)

    def mend(self, rows: RowsInTiles, first: Value, right: Right, tile: Tile) -> None:
        """What infinities need of a finished tile of the rows from `first` on and of a panel, both of all K."""
        k = self.k
        count = minimum(k, rows.count - first, k.constant(I64, SIDE))
        walk = walk_along(k, self.product, rows.words, rows.runs)
        if rows.a.start.scalar == self.product.word:
            left = words_of_a(self.product, self._rows_of_tile(rows, first))
        else:
            line = Rows(rows.a.start.offset(first * rows.a.stride), rows.a.stride, True)
            left = elements_of_a(k, self.product, line, self.given["k"])
        mend_rows(k, self.product, left, right, tile, count, SIDE * TILES_ACROSS, walk)

    def panel_ahead(self, b: Panels) -> Request:
        """The packed panel that lies `b.prefetch` words behind this one."""
        assert b.prefetch is not None
        lines = SIDE * SIDE * TILES_ACROSS * self.product.parts * self.product.word.nbytes // LINE
        return Request(b.starts[0].offset(b.prefetch), lines, LINE)

    def panels_ahead(self, starts: Sequence[Pointer], width: Value) -> tuple[Request, ...]:
        """The vectors of lines of a panel of numbers, each of which begins at its start."""
        return tuple(Request(start, SIDE * self.product.depth, width * start.scalar.nbytes) for start in starts)

    def _parts_ahead(self, rows: Value, b: Panels, row: Value) -> Ahead | None:
        """What a tile from this row on asks for: all tiles of the rows together ask for everything once."""
        k = self.k
        if not b.requests:
            return None
        turns = (rows + (SIDE - 1)) // SIDE
        each = (turns + (PARTS_AHEAD - 1)) // turns
        first = minimum(k, row // SIDE * each, k.constant(I64, PARTS_AHEAD))
        return Ahead(b.requests, first, minimum(k, first + each, k.constant(I64, PARTS_AHEAD)))

    def _rows_of_tile(self, rows: RowsInTiles, row: Value) -> Rows:
        """Sixteen rows from this one on, all of which can be read."""
        k, a = self.k, rows.a
        start = a.start.offset(row * a.stride)
        if a.spread > 1:
            return Rows(start, k.constant(I64, SIDE), True, a.spread)
        if not rows.has_rest:
            return Rows(start, a.stride, True)
        there = row + SIDE <= rows.count
        address = k.select(there, start.address, self.scratch.address)
        return Rows(k.pointer(address, self.product.word), k.select(there, a.stride, self.given["a_copy"]), True)

    def write_windows(self, writer: EpilogueWriter, tile: Pointer, stride: Value, first: Value, rows: Value) -> None:
        """The epilogue of those rows, counted from line to line of the input, that begin a window."""
        k, pitch, places = self.k, self.given["pitch"], self.given["places"]
        line = k.variable(I64, first // pitch)
        start = k.variable(I64, line.get() * pitch - first)  # of the line, counted from the tile's first row
        with k.loop_while(lambda: start.get() < rows):
            begin = k.larger(start.get(), 0)
            end = minimum(k, start.get() + places, rows)
            with k.when(begin < end):
                to = line.get() * places + begin - start.get()
                writer.over_rows(tile.offset(begin * stride), stride, to, end - begin)
            line.set(line.get() + 1)
            start.set(start.get() + pitch)
