"""What happens to a finished tile: an expression of it and other operands, stored to one or several outputs.

The tile has just been written to scratch and is in the nearest cache; one loop over its rows serves every height of
tile, so that the code of an expensive expression exists once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import STRANDS, emit_expression, emit_parts, emit_working, fits, working_type
from sardonyx.compiler.llvm.lookup import BYTES_AT_ONCE, TABLE, bytes_lookup, has_word_lookup
from sardonyx.compiler.llvm.types import U8, Type, type_of
from sardonyx.kernel.expr import Apply, Constant, Expr, Input, walk
from sardonyx.light_dataclass import dataclass

# Batch axes that a kernel addresses with a stride each; binding joins axes until they fit.
BATCH_DIMS = 3

# Bytes of a cache line.
_LINE = 64

Addressing = Literal["full", "row", "column", "scalar", "table"]


@dataclass(frozen=True)
class Operand:
    """A further operand of the epilogue: a whole matrix, a row or column repeated, one number (per batch), or a table
    of 256 bytes, which `tabulated` reads."""

    addressing: Addressing
    dtype: np.dtype[Any]

    @property
    def type(self) -> Type:
        """The type of its elements in memory."""
        return TABLE.scalar if self.addressing == "table" else _stored(self.dtype)

    @property
    def is_fixed(self) -> bool:
        """Whether it is the same for all rows."""
        return self.addressing in ("row", "scalar")


@functools.cache
def _argument_names(operands: int, outputs: int) -> tuple[str, ...]:
    places = [f"operand{index}" for index in range(operands)] + [f"output{index}" for index in range(outputs)]
    parts = ("", "_stride", *(f"_batch{axis}" for axis in range(BATCH_DIMS)))
    return tuple(f"{place}{part}" for place in places for part in parts)


@dataclass(frozen=True)
class TileEpilogue:
    """`outputs` over `Input(0)`, the accumulator, and `Input(1 + i)`, operand i; no outputs: the accumulator itself."""

    operands: tuple[Operand, ...] = ()
    outputs: tuple[Expr, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", _in_order(self.outputs))

    def __repr__(self) -> str:
        operands = ", ".join(f"{operand.addressing} {operand.dtype}" for operand in self.operands)
        return f"TileEpilogue([{operands}], {spell(self.outputs)})"

    def argument_names(self) -> tuple[str, ...]:
        """Words of the kernel's arguments: address, row stride and batch strides of each operand and output."""
        return _argument_names(len(self.operands), max(1, len(self.outputs)))

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


@functools.lru_cache(maxsize=1024)
def _in_order(outputs: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The same with the operands of sums and products in one order: what models write either way is one kernel."""
    made: dict[int, Expr] = {}
    for expr in walk(outputs):
        made[id(expr)] = expr
        if isinstance(expr, Apply):
            args = tuple(made[id(arg)] for arg in expr.args)
            if expr.primitive in _COMMUTATIVE:
                args = tuple(sorted(args, key=_rank))
            if args != expr.args:
                made[id(expr)] = Apply(expr.dtype, expr.primitive, args)
    return tuple(made[id(output)] for output in outputs)


_COMMUTATIVE = frozenset({"add", "multiply"})


def _rank(expr: Expr) -> tuple[int, str]:
    """Expressions come before inputs, these before constants; those of a kind by their text."""
    return (isinstance(expr, Input) + 2 * isinstance(expr, Constant), spell([expr]))


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

    def below(self, row: Value) -> Place:
        """The matrix from this row on."""
        return Place(self.start.offset(row * self.stride), self.stride)


# Expressions of at most this many of these operations are evaluated while the tile is in registers: the code is
# written out for every vector of it. Others take the loop over the rows, whose trip through the cache they outweigh.
# What is the same in all rows is made before them, and does not count; casts do not count as cheap but where sums of
# integers become real, and real numbers narrow integers that hold them.
_CHEAP = frozenset({"add", "subtract", "multiply", "maximum", "minimum", "negative", "rint"})
_FEW = 8


def fits_registers(epilogue: TileEpilogue) -> bool:
    """Whether the epilogue is worth writing out for a whole tile in registers."""
    return _is_cheap(epilogue)


@functools.lru_cache(maxsize=1024)
def _is_cheap(epilogue: TileEpilogue) -> bool:
    fixed = {id(expr) for expr in _fixed_parts(epilogue)}
    operations = [expr for expr in walk(epilogue.outputs, fixed) if isinstance(expr, Apply) and id(expr) not in fixed]
    return len(operations) <= _FEW and all(expr.primitive in _CHEAP or _is_cheap_cast(expr) for expr in operations)


def _is_cheap_cast(expr: Apply) -> bool:
    if expr.primitive != "cast":
        return False
    (source,) = expr.args
    return (source.dtype == np.int32 and expr.dtype == np.float32) or fits(source, expr.dtype)


@functools.lru_cache(maxsize=1024)
def _fixed_parts(epilogue: TileEpilogue) -> tuple[Apply, ...]:
    """The largest parts of the outputs that are the same in every row: made of rows, numbers and constants alone."""
    moves: dict[int, bool] = {}
    found: dict[int, Apply] = {}
    for expr in walk(epilogue.outputs):
        if isinstance(expr, Apply):
            moves[id(expr)] = any(moves[id(arg)] for arg in expr.args)
            if moves[id(expr)]:
                found.update((id(arg), arg) for arg in expr.args if isinstance(arg, Apply) and not moves[id(arg)])
        else:
            is_fixed = isinstance(expr, Input) and expr.index and epilogue.operands[expr.index - 1].is_fixed
            moves[id(expr)] = isinstance(expr, Input) and not is_fixed
    return tuple(found.values())


@functools.lru_cache(maxsize=1024)
def _tabulated(outputs: tuple[Expr, ...]) -> list[Apply]:
    """What is found in tables, those that others need first."""
    return [expr for expr in walk(outputs) if isinstance(expr, Apply) and expr.primitive == "tabulated"]


def _joined(k: Function, parts: Sequence[Value], lanes: int) -> Value:
    """Vectors of one size behind each other, up to so many lanes; what lacks is anything."""
    found = list(parts)
    while len(found) > 1 or found[0].type.lanes < lanes:
        size = found[0].type.lanes
        both = [*range(2 * size)]
        pairs = [found[first : first + 2] for first in range(0, len(found), 2)]
        found = [
            k.shuffle(one[0], one[1], both) if len(one) > 1 else k.shuffle(one[0], None, [*range(size)] + [-1] * size)
            for one in pairs
        ]
    return found[0]


@dataclass(frozen=True)
class _Spot:
    """A vector of a tile: its row of each matrix that has rows, its number in the row, and its sums."""

    lines: dict[int, Pointer]
    vector: int
    value: Value


@dataclass(frozen=True)
class Fixed:
    """What is the same in every row: operands by number and vector, and for each vector the values of parts of the
    outputs, by the id of the expression."""

    operands: dict[tuple[int, int], Value]
    parts: Sequence[Mapping[int, Value]]


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

    def ask_ahead(self, row: Value, rows: Value) -> None:
        """Ask for what `rows` rows from `row` on will read and write, while their tile is still to be multiplied.

        Every row is a line of its own somewhere in memory, where no prefetcher of the machine expects it.
        """
        k = self.k
        with k.loop(0, rows) as turn:
            for index, line in self._lines(row + turn).items():
                count = len(self.operands)
                if index >= count or self.operands[index][0].addressing == "full":
                    width = len(self.masks) * k.target.vector_bits // 8
                    for first in range(0, width, _LINE):
                        line.offset(first // line.scalar.nbytes).prefetch(level=3)

    def over_rows(self, tile: Pointer, stride: Value, row: Value, rows: Value) -> None:
        """A loop over `rows` rows of a tile in memory, which are the rows from `row` on of the matrices."""
        k = self.k
        lanes = k.target.lanes(tile.scalar)
        # Few vectors of a row leave the processor waiting for one another's results: take as many rows as fill it.
        abreast = max(1, STRANDS // len(self.masks))

        def visit(turn: Value, count: int) -> None:
            spots = []
            for index in range(count):
                line, lines = tile.offset((turn + index) * stride), self._lines(row + turn + index)
                spots += [_Spot(lines, vector, line.load(vector * lanes, lanes)) for vector in range(len(self.masks))]
            self._finish(spots, fixed)

        with k.apart():
            fixed = self.fixed(lanes)
            whole = rows - rows % abreast
            with k.loop(0, whole, abreast) as turn:
                visit(turn, abreast)
            if abreast > 1:
                with k.loop(whole, rows) as turn:
                    visit(turn, 1)

    def over_registers(self, tile: Sequence[Sequence[Value]], row: Value, fixed: Fixed | None = None) -> None:
        """The same for a tile in registers, a sequence of vectors for each row; `fixed`, if that is known already."""
        fixed = self.fixed(tile[0][0].type.lanes) if fixed is None else fixed
        lines = self._lines(row)
        spots = []
        for turn, vectors in enumerate(tile):
            if turn:
                lines = {index: line.offset(self._place(index).stride) for index, line in lines.items()}
            for vector, value in enumerate(vectors):
                spots.append(_Spot(lines, vector, value))
        together = BYTES_AT_ONCE // tile[0][0].type.lanes if self._looked_up else 1
        for first in range(0, len(spots), together):
            self._finish(spots[first : first + together], fixed)

    def _place(self, index: int) -> Place:
        """The operands' matrices, then the outputs'."""
        count = len(self.operands)
        return self.operands[index][1] if index < count else self.outputs[index - count]

    def _lines(self, row: Value) -> dict[int, Pointer]:
        """Where a row begins, by number of the matrix that has rows."""
        lines = {}
        for index in range(len(self.operands) + len(self.outputs)):
            kind = self.operands[index][0].addressing if index < len(self.operands) else "full"
            if kind in ("full", "column"):
                place = self._place(index)
                line = place.start.offset(row * place.stride)
                lines[index] = line if kind == "column" else line.offset(self.column)
        return lines

    def fixed(self, lanes: int) -> Fixed:
        """What is the same in every row."""
        k = self.k
        found: dict[tuple[int, int], Value] = {}
        for index, (operand, place) in enumerate(self.operands):
            for vector, mask in enumerate(self.masks):
                if operand.addressing == "scalar":
                    found[index, vector] = k.splat(place.start.load(), lanes)
                elif operand.addressing == "table" and not self._looked_up:
                    found[index, vector] = place.start.load(0, TABLE.lanes)
                elif operand.addressing == "row":
                    found[index, vector] = place.start.offset(self.column).load(vector * lanes, lanes, mask)
        parts = []
        for vector in range(len(self.masks)):
            inputs = {index + 1: value for (index, of), value in found.items() if of == vector}
            parts.append(emit_parts(k, _fixed_parts(self.epilogue), inputs))
        return Fixed(found, parts)

    def _finish(self, spots: Sequence[_Spot], fixed: Fixed) -> None:
        """Evaluate and store what belongs to some vectors, abreast."""
        k, outputs, count = self.k, self.epilogue.outputs, len(self.operands)
        inputs = [[spot.value, *self._operands(spot, fixed)] for spot in spots]
        known = self._look_up(inputs, [fixed.parts[spot.vector] for spot in spots])
        found = inputs
        if outputs:
            both = zip(inputs, known, strict=True)
            found = k.abreast([partial(emit_expression, k, outputs, one, parts) for one, parts in both])
        for spot, results in zip(spots, found, strict=True):
            lanes = spot.value.type.lanes
            for number, result in enumerate(results[: max(1, len(outputs))], count):
                spot.lines[number].store(k.splat(result, lanes), spot.vector * lanes, self.masks[spot.vector])

    @property
    def _looked_up(self) -> list[Apply]:
        """What is found in tables for several vectors at once."""
        return [] if has_word_lookup(self.k.target) else _tabulated(self.epilogue.outputs)

    def _look_up(
        self, inputs: Sequence[Sequence[Value]], parts: Sequence[Mapping[int, Value]]
    ) -> Sequence[Mapping[int, Value]]:
        """The `parts` that are known of some vectors, by the ids of their expressions, and the bytes that are found in
        tables."""
        k, known = self.k, [dict(one) for one in parts]
        for expr in self._looked_up:
            index, table = expr.args
            assert isinstance(table, Input)
            numbers = [emit_working(k, [index], one, found)[0] for one, found in zip(inputs, known, strict=True)]
            lanes = numbers[0].type.lanes
            wide = _joined(k, [one.bits_as(U8) for one in numbers], BYTES_AT_ONCE)
            place = self.operands[table.index - 1][1].start.cast(U8)
            bytes_ = bytes_lookup(k, place, wide).bits_as(working_type(expr.dtype))
            for number, found in enumerate(known):
                found[id(expr)] = k.shuffle(bytes_, None, range(number * lanes, (number + 1) * lanes))
        return known

    def _operands(self, spot: _Spot, fixed: Fixed) -> list[Value]:
        """The elements of the operands for one vector of a row."""
        lanes, found = spot.value.type.lanes, []
        for index, (operand, _) in enumerate(self.operands):
            if operand.addressing == "column":
                found.append(self.k.splat(spot.lines[index].load(), lanes))
            elif operand.addressing == "table" and self._looked_up:
                found.append(self.k.undefined(TABLE))
            elif operand.addressing == "full":
                found.append(spot.lines[index].load(spot.vector * lanes, lanes, self.masks[spot.vector]))
            else:
                found.append(fixed.operands[index, spot.vector])
        return found


def writer_of(
    k: Function,
    epilogue: TileEpilogue,
    given: Mapping[str, Value],
    accumulator: Type,
    column: Value,
    masks: Sequence[Value | None],
) -> EpilogueWriter:
    """The writer of a single product: its operands and outputs lie where the arguments of their names say."""

    def place(name: str, scalar: Type) -> Place:
        return Place(k.pointer(given[name], scalar), given[f"{name}_stride"])

    operands = [place(f"operand{index}", operand.type) for index, operand in enumerate(epilogue.operands)]
    outputs = [
        place(f"output{index}", epilogue.output_type(index, accumulator))
        for index in range(max(1, len(epilogue.outputs)))
    ]
    return EpilogueWriter(k, epilogue, operands, outputs, column, masks)
