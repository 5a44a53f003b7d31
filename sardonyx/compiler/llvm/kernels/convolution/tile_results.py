"""Results of a convolution that is computed on square tiles of its output: the epilogue, along lines of the image.

The outputs of a few tiles of a line are gathered in scratch, in the nearest cache, pixels of neighbouring tiles one
after the other, so that the epilogue runs along lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import EpilogueWriter, Place, TileEpilogue
from sardonyx.compiler.llvm.types import I64, Type
from sardonyx.light_dataclass import dataclass

# Elements of a cache line, which sums have four bytes of.
_LINE = 64 // 4


@dataclass(frozen=True)
class TilePlace:
    """A tile: its image, its number within the line of tiles, and its first line and column of the output."""

    image: Value
    across: Value
    y: Value
    x: Value


def place_of(outputs: int, given: Mapping[str, Value], number: Value) -> TilePlace:
    """The tile of this number, of `outputs` x `outputs` outputs; tiles count those of a line fastest, then lines, then
    images: `tiles` of an image, `tiles_across` of a line."""
    image, rest = number // given["tiles"], number % given["tiles"]
    line, across = rest // given["tiles_across"], rest % given["tiles_across"]
    return TilePlace(image, across, line * outputs, across * outputs)


def products_of_tile(points: int, panel: int) -> int:
    """Elements from the products of a tile with a panel of filters, at so many points, to those of the next tile.

    The micro-kernel writes those of several tiles at one point, so they lie an odd number of cache lines apart, which
    spreads them over all sets of a cache; the outputs are made from those of one tile at all points, which lie
    together.
    """
    lines = -(-points * panel // _LINE)
    return (lines + (lines % 2 == 0)) * _LINE


@dataclass(frozen=True)
class Sums:
    """Some tiles of one panel of filters, `panel` columns: the products [tiles][points][panel] at `products`, those of
    two tiles `tile_products` elements apart, and room for the outputs of a run of tiles, [lines of a tile][tiles]
    [columns of a tile][panel], at `outputs`."""

    products: Pointer
    tile_products: int
    outputs: Pointer
    outputs_apart: Value
    panel: int
    first_tile: Value
    tiles: Value
    first_filter: Value


class TileResults:
    """Writes the results of blocks of tiles of `outputs` x `outputs`, from sums of the type `accumulator`.

    `given` holds the words of the kernel's arguments: the epilogue's, `tiles` and `tiles_across`, `out_height` and
    `out_width`, `filters`, and `run`, the tiles whose outputs are made at once.
    """

    def __init__(
        self, k: Function, outputs: int, given: Mapping[str, Value], epilogue: TileEpilogue, accumulator: Type
    ) -> None:
        self.k, self.outputs, self.given, self.epilogue, self.accumulator = k, outputs, given, epilogue, accumulator
        self.lanes = k.target.lanes(accumulator)

    def write(self, sums: Sums, make: Callable[[Sums], None]) -> None:
        """The results of a block, run by run of tiles of one line; `make` emits code that makes the outputs of a run
        from its products."""
        k, given = self.k, self.given
        done = k.variable(I64, 0)
        with k.loop_while(lambda: done.get() < sums.tiles):
            first = done.get()
            tile = place_of(self.outputs, given, sums.first_tile + first)
            tiles = minimum(k, minimum(k, sums.tiles - first, given["tiles_across"] - tile.across), given["run"])
            products = sums.products.offset(first * sums.tile_products)
            run = replace(sums, products=products, first_tile=sums.first_tile + first, tiles=tiles)
            make(run)
            self._write_run(run, tile)
            done.set(first + tiles)

    def place(self, run: Sums, tile: Value, column: Value) -> Pointer:
        """Where the first output of a tile of a run lies."""
        return run.outputs.offset(tile * (self.outputs * run.panel) + column)

    def _write_run(self, run: Sums, tile: TilePlace) -> None:
        """The epilogue of a run, which begins with `tile`."""
        k = self.k
        left = self.given["filters"] - run.first_filter
        whole = left >= run.panel
        with k.when(whole):
            self._finish(run, tile, k.constant(I64, 0), [None] * (run.panel // self.lanes))
        with k.otherwise(whole), k.loop(0, left, self.lanes) as column:
            self._finish(run, tile, column, [k.lanes_below(left - column, self.lanes)])

    def _finish(self, run: Sums, tile: TilePlace, column: Value, masks: Sequence[Value | None]) -> None:
        """The epilogue of some vectors of the panel, line by line."""
        k, given, outputs = self.k, self.given, self.outputs
        lines = minimum(k, given["out_height"] - tile.y, outputs)
        columns = minimum(k, given["out_width"] - tile.x, run.tiles * outputs)
        source, writer = run.outputs.offset(column), self._writer(tile, run.first_filter + column, masks)
        with k.loop(0, lines) as line:
            place = (tile.y + line) * given["out_width"] + tile.x
            writer.over_rows(source.offset(line * run.outputs_apart), k.constant(I64, run.panel), place, columns)

    def _writer(self, tile: TilePlace, column: Value, masks: Sequence[Value | None]) -> EpilogueWriter:
        k, given, epilogue = self.k, self.given, self.epilogue

        def place(name: str, scalar: Type) -> Place:
            start = k.pointer(given[name], scalar).offset(tile.image * given[f"{name}_batch0"])
            return Place(start, given[f"{name}_stride"])

        operands = [place(f"operand{index}", operand.type) for index, operand in enumerate(epilogue.operands)]
        outputs = [
            place(f"output{index}", epilogue.output_type(index, self.accumulator))
            for index in range(max(1, len(epilogue.outputs)))
        ]
        return EpilogueWriter(k, epilogue, operands, outputs, column, masks)
