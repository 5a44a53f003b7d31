"""The end of a tile whose sums are in registers: its epilogue at once, or by way of scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.products.gemm_epilogue import EpilogueWriter, Place, TileEpilogue
from sardonyx.compiler.llvm.kernels.products.gemm_micro import Tile, store_tile
from sardonyx.compiler.llvm.types import I64, Type

# The vectors of a tile by row and number.
Sums = Mapping[tuple[int, int], Value]


class TileWriter:
    """Writes tiles of up to `rows` rows by `vectors` vectors of `accumulator`s.

    `given` holds the words of the kernel's arguments, those of the epilogue among them. A tile takes `nbytes` of
    scratch memory, from `scratch` on. With `at_once`, the epilogue of a whole tile is written out for registers.
    """

    def __init__(
        self,
        k: Function,
        epilogue: TileEpilogue,
        given: Mapping[str, Value],
        accumulator: Type,
        vectors: int,
        rows: int,
        scratch: Pointer,
        *,
        at_once: bool,
    ) -> None:
        self._k, self._epilogue, self._given, self._at_once = k, epilogue, given, at_once
        self._vectors, self._rows = vectors, rows
        self._lanes = k.target.lanes(accumulator)
        self._panel = vectors * self._lanes
        self._tile = Tile(scratch.cast(accumulator), k.constant(I64, self._panel), self._panel)
        self._operands = [self._place(f"operand{i}", operand.type) for i, operand in enumerate(epilogue.operands)]
        self._outputs = [
            self._place(f"output{i}", epilogue.output_type(i, accumulator))
            for i in range(max(1, len(epilogue.outputs)))
        ]

    def _place(self, name: str, scalar: Type) -> Place:
        return Place(self._k.pointer(self._given[name], scalar), self._given[f"{name}_stride"])

    def write(self, column: Value, left: Value, row: Value, rows: Value, sums: Callable[[int], Sums]) -> None:
        """A tile at a row and a column of the result, of which `rows` rows and `left` columns (or more) exist.

        `sums` emits the sums of a tile of a height; it is asked for each height that occurs.
        """
        k, tile = self._k, self._tile
        whole = left >= self._panel
        for height in k.choose(rows, range(1, self._rows + 1)):
            found = sums(height)
            lines = [[found[at, vector] for vector in range(self._vectors)] for at in range(height)]
            places = {(at, 0, vector): value for (at, vector), value in found.items()}
            if self._at_once:
                with k.when(whole):
                    self._writer(column, [None] * self._vectors).over_registers(lines, row)
                with k.otherwise(whole):
                    store_tile(tile, places)
            else:
                store_tile(tile, places)
        if not self._at_once:
            with k.when(whole):
                self._writer(column, [None] * self._vectors).over_rows(tile.start, tile.stride, row, rows)
        with k.otherwise(whole), k.loop(0, left, self._lanes) as part:
            mask = k.lanes_below(left - part, self._lanes)
            self._writer(column + part, [mask]).over_rows(tile.start.offset(part), tile.stride, row, rows)

    def _writer(self, column: Value, masks: list[Value | None]) -> EpilogueWriter:
        return EpilogueWriter(self._k, self._epilogue, self._operands, self._outputs, column, masks)
