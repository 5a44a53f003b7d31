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


@dataclass(frozen=True)
class TileRegion:
    """Finished rows in scratch and where they belong: `rows` rows from (`row`, `column`) on."""

    tile: Pointer
    tile_stride: Value
    rows: Value
    row: Value
    column: Value


def apply_epilogue(
    k: Function,
    epilogue: TileEpilogue,
    operands: Sequence[Place],
    outputs: Sequence[Place],
    region: TileRegion,
    vectors: int,
    columns_left: Value,
) -> None:
    """Store the outputs of one panel's part of a tile; `columns_left` from its first column to the matrix's end."""
    lanes = k.target.lanes(region.tile.scalar)
    if k.target.has_masks:
        masks = [k.lanes_below(columns_left - vector * lanes, lanes) for vector in range(vectors)]
        _rows(k, epilogue, operands, outputs, region, masks)
        return
    whole = columns_left >= vectors * lanes
    with k.when(whole):
        _rows(k, epilogue, operands, outputs, region, [None] * vectors)
    with k.otherwise(whole):
        masks = [k.lanes_below(columns_left - vector * lanes, lanes) for vector in range(vectors)]
        _rows(k, epilogue, operands, outputs, region, masks)


def _rows(
    k: Function,
    epilogue: TileEpilogue,
    operands: Sequence[Place],
    outputs: Sequence[Place],
    region: TileRegion,
    masks: Sequence[Value | None],
) -> None:
    """The loop over the rows; what is the same in every row is loaded before it."""
    lanes = k.target.lanes(region.tile.scalar)

    def load(operand: Operand, place: Place, row: Value, vector: int) -> Value:
        mask = masks[vector]
        if operand.addressing == "scalar":
            value = k.splat(place.start.load(), lanes)
        elif operand.addressing == "column":
            value = k.splat(place.start.load(row * place.stride), lanes)
        else:
            line = place.start.offset(region.column)
            if operand.addressing == "full":
                line = line.offset(row * place.stride)
            value = line.load(vector * lanes, lanes, mask)
        return value

    fixed = {
        (index, vector): load(operand, place, region.row, vector)
        for index, (operand, place) in enumerate(zip(epilogue.operands, operands, strict=True))
        if operand.addressing in ("row", "scalar")
        for vector in range(len(masks))
    }
    with k.loop(0, region.rows) as turn:
        row = region.row + turn
        line = region.tile.offset(turn * region.tile_stride)
        for vector, mask in enumerate(masks):
            values = [line.load(vector * lanes, lanes)]
            for index, (operand, place) in enumerate(zip(epilogue.operands, operands, strict=True)):
                known = fixed.get((index, vector))
                values.append(load(operand, place, row, vector) if known is None else known)
            results = values[:1]
            if epilogue.outputs:
                results = emit_expression(k, epilogue.outputs, values)
            for result, place in zip(results, outputs, strict=True):
                target = place.start.offset(row * place.stride).offset(region.column)
                target.store(k.splat(result, lanes), vector * lanes, mask)
