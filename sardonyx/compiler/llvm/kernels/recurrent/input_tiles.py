"""The input's part of the gates, multiplied beside the recurrent products of one row.

Recurrent weights come from the second cache at its own rate, which leaves half of the multiply-adds of a core idle, and
the product of X and W needs little else. So a block that goes through its panel of R multiplies a tile of X W' in the
same loop: one vector of gates for `TILE_ROWS` time steps. Each time step multiplies one of the `TILE_ROWS` vectors that
a block of an LSTM has, for the span of as many steps that follows its own; those of the first span are multiplied when
the loop begins. A block reads only what it multiplied itself, so that the order of turns is all that threads keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import F32, I64

# Time steps of a span, and the vectors of gates that a block has.
TILE_ROWS = 8


class Beside(Protocol):
    """Other sums of a loop over units: taken from memory, what a unit adds, and back to memory."""

    def begin(self) -> None: ...
    def add(self, unit: Value) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class InputTiles:
    """The tiles of a block of units in one direction.

    `rows` is X, [steps, width], with `row_step` elements between rows; `panel` is W's for the block, [width, gates,
    units]; `biases` are the input's, [gates, units] with `gate_step` elements between gates; `result` is the input's
    part of the gates for the block, [steps, gates, units], with as many between gates. `backwards` says whether time
    steps are counted from the last row on. `room` is for the sums of a tile. There are `TILE_ROWS` steps at least.
    """

    k: Function
    rows: Pointer
    row_step: Value
    panel: Pointer
    biases: Pointer
    result: Pointer
    gate_step: Value
    vectors_of_gate: int
    steps: Value
    width: Value
    backwards: Value
    room: Pointer

    def begin(self) -> None:
        """Multiply the tiles of the first span."""
        with self.k.loop(0, TILE_ROWS) as vector:
            self._tile(self.k.constant(I64, 0), vector, None)

    def beside(self, time: Value, sums: Beside) -> Value:
        """Multiply the tile of a time step beside the first units of other sums; how many, 0 where there is no tile."""
        k = self.k
        vector = time & (TILE_ROWS - 1)
        following = time - vector + TILE_ROWS
        done = k.variable(I64, 0)
        with k.when(following < self.steps):
            self._tile(following, vector, sums)
            done.set(self.width)
        return done.get()

    def _tile(self, start: Value, vector: Value, beside: Beside | None) -> None:
        """Multiply a vector of gates for the span from a time step on."""
        k, steps = self.k, self.steps
        lanes = k.target.lanes(F32)
        gate = vector // self.vectors_of_gate
        place = gate * self.gate_step + (vector - gate * self.vectors_of_gate) * lanes
        # The rows of the span, and those that the tile reads: no fewer than it has.
        end = k.select(self.backwards, steps - start, k.smaller(start + TILE_ROWS, steps))
        first = k.select(self.backwards, k.larger(end - TILE_ROWS, 0), start)
        read = k.smaller(first, steps - TILE_ROWS)
        # By itself, so that nothing else takes registers from the sums.
        with k.apart():
            self._multiply(self.rows.offset(read * self.row_step), vector * lanes, self.biases.offset(place), beside)
        result = self.result.offset(place)
        with k.loop(first, end) as row:
            total = self.room.load((row - read) * lanes, lanes)
            result.offset(row * (self.gate_step * (TILE_ROWS // self.vectors_of_gate))).store(total)

    def _multiply(self, rows: Pointer, column: Value, bias: Pointer, beside: Beside | None) -> None:
        """The sums of a tile into `room`, and as many units of other sums beside them."""
        k = self.k
        lanes = k.target.lanes(F32)
        sources = [rows.offset(self.row_step * index) for index in range(TILE_ROWS)]
        sums = [k.variable(F32.vector(lanes), bias.load(0, lanes)) for _ in sources]
        panel, step = self.panel.offset(column), TILE_ROWS * lanes
        if beside is not None:
            beside.begin()
        with k.loop(0, self.width) as unit:
            if beside is not None:
                beside.add(unit)
            weights = panel.offset(unit * step).load(0, lanes)
            for source, total in zip(sources, sums, strict=True):
                total.set(k.fma(weights, k.splat(source.load(unit), lanes), total.get()))
        for index, total in enumerate(sums):
            self.room.store(total.get(), index * lanes)
        if beside is not None:
            beside.end()
