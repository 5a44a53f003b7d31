"""Asks for pixels ahead of time: those of the next block's tiles, and those of results that are about to be written.

They come from the last cache or from memory, in lines too short for a machine's own prefetchers, and all at once: a
block of tiles is transformed, multiplied, written. The products in between, long enough, share in asking for them.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import I64, PTR, Type
from sardonyx.light_dataclass import dataclass

# Bytes of a cache line.
_LINE = 64


@dataclass(frozen=True)
class Squares:
    """The same square of pixels of every tile: `rows` x `columns` of them, of each the first `nbytes`.

    `corner` gives the first pixel of the tile of a number; `row_step` and `column_step` count elements, of `scalar`.
    """

    corner: Callable[[Value], Pointer]
    scalar: Type
    rows: int
    columns: int
    row_step: Value
    column_step: Value
    nbytes: Value


class Requests:
    """Asks for the squares of the tiles from `first` to `end`, some rows at a time."""

    def __init__(self, k: Function, squares: Squares, first: Value, end: Value) -> None:
        self.k, self.squares, self.end = k, squares, end
        self.tile, self.row = k.variable(I64, first), k.variable(I64, 0)
        self.place = k.variable(PTR)

    def ask(self, rows: Value) -> None:
        """Ask for the next rows: `rows` of them, or as many as are left."""
        k, squares = self.k, self.squares
        left = k.variable(I64, rows)
        with k.loop_while(lambda: (left.get() > 0) & (self.tile.get() < self.end)):
            tile, row = self.tile.get(), self.row.get()
            with k.when(row.equals(0)):
                self.place.set(squares.corner(tile).address)
            line = k.pointer(self.place.get(), squares.scalar)
            for column in range(squares.columns):
                pixel = line.offset(squares.column_step * column)
                with k.loop(0, squares.nbytes, _LINE) as byte:
                    k.pointer(k.advance(pixel.address, byte, 1), squares.scalar).prefetch(level=2)
            self.place.set(line.offset(squares.row_step).address)
            last = (row + 1).equals(squares.rows)
            self.row.set(k.select(last, 0, row + 1))
            self.tile.set(k.select(last, tile + 1, tile))
            left.set(left.get() - 1)
