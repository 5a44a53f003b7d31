"""What happens to a finished tile: an expression of it and other operands, stored to one or several outputs.

The tile has just been written to scratch and is in the nearest cache; one loop over its rows serves every height of
tile, so that the code of an expensive expression exists once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import emit_expression
from sardonyx.compiler.llvm.types import Type, type_of
from sardonyx.kernel.expr import Apply, Constant, Expr, Input, walk

# Batch axes that a kernel addresses with a stride each; binding joins axes until they fit.
BATCH_DIMS = 3

Addressing = Literal["full", "row", "column", "scalar"]


@dataclass(frozen=True)
class Operand:
    """A further operand of the epilogue: a whole matrix, a row or column repeated, or one number (per batch)."""

    addressing: Addressing
    dtype: np.dtype[Any]

    @property
    def type(self) -> Type:
        """The type of its elements in memory."""
        return _stored(self.dtype)


@dataclass(frozen=True)
class TileEpilogue:
    """`outputs` over `Input(0)`, the accumulator, and `Input(1 + i)`, operand i; no outputs: the accumulator itself."""

    operands: tuple[Operand, ...] = ()
    outputs: tuple[Expr, ...] = ()

    def __repr__(self) -> str:
        operands = ", ".join(f"{operand.addressing} {operand.dtype}" for operand in self.operands)
        return f"TileEpilogue([{operands}], {spell(self.outputs)})"

    def argument_names(self) -> tuple[str, ...]:
        """Words of the kernel's arguments: address, row stride and batch strides of each operand and output."""
        places = [f"operand{index}" for index in range(len(self.operands))]
        places += [f"output{index}" for index in range(max(1, len(self.outputs)))]
        parts = ("", "_stride", *(f"_batch{axis}" for axis in range(BATCH_DIMS)))
        return tuple(f"{place}{part}" for place in places for part in parts)

    def output_type(self, index: int, accumulator: Type) -> Type:
        """The type in which an output is stored."""
        if not self.outputs:
            return accumulator
        return _stored(self.outputs[index].dtype)


def spell(roots: Sequence[Expr]) -> str:
    """An expression DAG as text that names every node once, equal for equal DAGs."""
    numbers: dict[int, int] = {}
    lines = []
    for expr in walk(roots):
        numbers[id(expr)] = len(numbers)
        if isinstance(expr, Input):
            lines.append(f"in{expr.index}:{expr.dtype}")
        elif isinstance(expr, Constant):
            lines.append(f"{expr.value!r}:{expr.dtype}")
        else:
            assert isinstance(expr, Apply)
            arguments = ",".join(str(numbers[id(argument)]) for argument in expr.args)
            lines.append(f"{expr.primitive}({arguments}):{expr.dtype}")
    return f"{';'.join(lines)} -> {','.join(str(numbers[id(root)]) for root in roots)}"


def _stored(dtype: np.dtype[Any]) -> Type:
    found = type_of(dtype)
    if found is None:
        raise ValueError(f"an epilogue cannot load or store {dtype}")
    return found


@dataclass(frozen=True)
class Place:
    """A matrix of the current batch: its first element and its row stride in elements."""

    start: Pointer
    stride: Value


# Expressions of at most this many of these operations are evaluated while the tile is in registers: the code is
# written out for every vector of it. Others take the loop over the rows, whose trip through the cache they outweigh.
_CHEAP = frozenset({"add", "subtract", "multiply", "maximum", "minimum", "negative"})
_FEW = 6


def fits_registers(epilogue: TileEpilogue) -> bool:
    """Whether the epilogue is worth writing out for a whole tile in registers."""
    operations = [expr for expr in walk(epilogue.outputs) if isinstance(expr, Apply)]
    return len(operations) <= _FEW and all(expr.primitive in _CHEAP for expr in operations)


class EpilogueWriter:
    """Writes the epilogue of one panel: its operands and outputs at their batch, the column it starts at, and a mask
    for each of its vectors (None where all of it exists)."""

    def __init__(
        self,
        k: Function,
        epilogue: TileEpilogue,
        operands: Sequence[Place],
        outputs: Sequence[Place],
        column: Value,
        masks: Sequence[Value | None],
    ) -> None:
        self.k = k
        self.epilogue = epilogue
        self.operands = tuple(zip(epilogue.operands, operands, strict=True))
        self.outputs = outputs
        self.column = column
        self.masks = masks

    def over_rows(self, tile: Pointer, stride: Value, row: Value, rows: Value) -> None:
        """A loop over `rows` rows of a tile in memory, which are the rows from `row` on of the matrices."""
        k = self.k
        lanes = k.target.lanes(tile.scalar)
        fixed = self._fixed(lanes)
        with k.loop(0, rows) as turn:
            line = tile.offset(turn * stride)
            self._row(row + turn, [line.load(vector * lanes, lanes) for vector in range(len(self.masks))], fixed)

    def over_registers(self, tile: Sequence[Sequence[Value]], row: Value) -> None:
        """The same for a tile in registers, a sequence of vectors for each row."""
        fixed = self._fixed(tile[0][0].type.lanes)
        for turn, vectors in enumerate(tile):
            self._row(row + turn, vectors, fixed)

    def _fixed(self, lanes: int) -> dict[tuple[int, int], Value]:
        """What is the same in every row, by operand and vector."""
        return {
            (index, vector): self._load(index, self.column, vector, lanes)
            for index, (operand, _) in enumerate(self.operands)
            if operand.addressing in ("row", "scalar")
            for vector in range(len(self.masks))
        }

    def _load(self, index: int, row: Value, vector: int, lanes: int) -> Value:
        operand, place = self.operands[index]
        if operand.addressing == "scalar":
            return self.k.splat(place.start.load(), lanes)
        if operand.addressing == "column":
            return self.k.splat(place.start.load(row * place.stride), lanes)
        line = place.start.offset(self.column)
        if operand.addressing == "full":
            line = line.offset(row * place.stride)
        return line.load(vector * lanes, lanes, self.masks[vector])

    def _row(self, row: Value, vectors: Sequence[Value], fixed: dict[tuple[int, int], Value]) -> None:
        k = self.k
        lanes = vectors[0].type.lanes
        for vector, (accumulator, mask) in enumerate(zip(vectors, self.masks, strict=True)):
            values = [accumulator]
            for index in range(len(self.operands)):
                known = fixed.get((index, vector))
                values.append(self._load(index, row, vector, lanes) if known is None else known)
            results = emit_expression(k, self.epilogue.outputs, values) if self.epilogue.outputs else values[:1]
            for result, place in zip(results, self.outputs, strict=True):
                target = place.start.offset(row * place.stride).offset(self.column)
                target.store(k.splat(result, lanes), vector * lanes, mask)
