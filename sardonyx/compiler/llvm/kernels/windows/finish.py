"""The last step of a kernel over windows: expressions of its results and of other operands, and their stores.

Vectors lie along one dimension, the lanes; a kernel stores several of them at once, which follow each other along the
lanes or along another dimension, the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import STRANDS, emit_abreast
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, as_stored, memory_type
from sardonyx.compiler.llvm.kernels.windows.frame import Arguments, Spot
from sardonyx.compiler.llvm.types import I64, dtype_type
from sardonyx.compiler.llvm.values import Variable
from sardonyx.kernel.canonical import Canonical
from sardonyx.kernel.expr import Apply, walk
from sardonyx.light_dataclass import dataclass

# The byte strides of an operand or output.
STRIDES = ("_n", "_d", "_h", "_step")

# Expressions of at most this many of these operations are written out for every place of a tile in registers. Others
# are a function of their own, so that their constants take no registers from the windows.
_CHEAP = frozenset({"add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "sqrt", "cast"})
_FEW = 8


@dataclass(frozen=True)
class OperandForm:
    """An operand beside the windows' results: its type, whether it changes along the lanes (then it lies together
    there), and whether it changes along the steps."""

    dtype: str
    is_vector: bool
    moves: bool


@dataclass(frozen=True)
class Finish:
    """`body` over what the windows give, the first inputs, and the operands, which follow them.

    `flushes`: results in bfloat16 lose denormal numbers.
    """

    body: Canonical
    operands: tuple[OperandForm, ...] = ()
    flushes: bool = False

    @property
    def results(self) -> int:
        """How many outputs there are."""
        return len(self.body.roots)

    @property
    def is_cheap(self) -> bool:
        """Whether it is written out in registers."""
        operations = [expr for expr in walk(self.body.roots) if isinstance(expr, Apply)]
        return len(operations) <= _FEW and all(expr.primitive in _CHEAP for expr in operations)

    def names(self) -> tuple[str, ...]:
        """The arguments: address and byte strides of each operand and output, `_step` along the steps."""
        places = [f"operand{index}" for index in range(len(self.operands))]
        places += [f"output{index}" for index in range(self.results)]
        return tuple(f"{place}{part}" for place in places for part in ("", *STRIDES))


class Finishing:
    """Writes a `Finish` for vectors of `lanes` elements."""

    def __init__(self, k: Function, a: Arguments, finish: Finish, lanes: int) -> None:
        self.k, self.a, self.finish, self.lanes = k, a, finish, lanes
        k.flushes = finish.flushes
        self._types = [dtype_type(one.dtype) for one in finish.operands]
        self._types += [dtype_type(root.dtype.name) for root in finish.body.roots]
        self._names = [f"operand{index}" for index in range(len(finish.operands))]
        self._names += [f"output{index}" for index in range(finish.results)]
        self._rows: list[Value] = []

    def start_row(self, spot: Spot) -> None:
        """Begin a row of the slower dimensions."""
        a, k = self.a, self.k
        self._rows = [
            k.advance(
                k.pointer(a[name], storage).address,
                a.counted(name, {"n": spot.batch, "d": spot.d, "h": spot.h}),
                1,
            )
            for name, storage in zip(self._names, self._types, strict=True)
        ]

    def start_rows(self, spot: Spot) -> list[Variable]:
        """Where a row lies, and after each `take_row` the one below."""
        self.start_row(spot)
        return [self.k.variable(row.type, row) for row in self._rows]

    def take_row(self, rows: Sequence[Variable]) -> None:
        """Begin the row that these are at, and move them to the next."""
        self._rows = [row.get() for row in rows]
        for row, at, name in zip(rows, self._rows, self._names, strict=True):
            row.set(self.k.advance(at, self.a[f"{name}_h"], 1))

    def result_row(self) -> Pointer:
        """Where the row of the first output lies."""
        first = len(self.finish.operands)
        return Pointer(self._rows[first], memory_type(self._types[first]))

    def store(
        self,
        values: Sequence[Sequence[Value]],
        step: Value,
        lane: Value,
        *,
        along_lanes: bool = False,
        mask: Value | None = None,
    ) -> None:
        """What the windows give from these coordinates on: vectors that follow each other along the steps or the lanes.

        Each of `values` is one vector of everything that the fold gives. A `mask` says which lanes there are.
        """
        k = self.k
        starts = self._starts(step, lane)
        steps = [self._distance(index, along_lanes=along_lanes) for index in range(len(starts))]
        stays = [not form.is_vector if along_lanes else not form.moves for form in self.finish.operands]
        if self.finish.is_cheap:
            fixed = self._fixed(starts, stays, mask)
            for turn, found in enumerate(values):
                if turn:
                    starts = self._moved(starts, steps)
                self._place([found], [starts], fixed, mask)
            return
        rooms = [k.stack(value.type.scalar, len(values) * self.lanes) for value in values[0]]
        for turn, found in enumerate(values):
            for room, value in zip(rooms, found, strict=True):
                room.store(value, turn * self.lanes)
        with k.apart():
            fixed = self._fixed(starts, stays, mask)
            for begin, count in _shares(len(values)):
                group = [starts]
                for _ in range(1, count):
                    group.append(self._moved(group[-1], steps))
                starts = self._moved(group[-1], steps)
                places = range(begin, begin + count)
                vectors = [[room.load(at * self.lanes, self.lanes) for room in rooms] for at in places]
                self._place(vectors, group, fixed, mask)

    def _starts(self, step: Value, lane: Value) -> list[Pointer]:
        """Where the operands and the outputs are at these coordinates."""
        found = []
        for index, (name, storage) in enumerate(zip(self._names, self._types, strict=True)):
            address = self.k.advance(self._rows[index], step * self.a[f"{name}_step"], 1)
            pointer = Pointer(address, memory_type(storage))
            found.append(pointer.offset(lane) if self._is_vector(index) else pointer)
        return found

    def _is_vector(self, index: int) -> bool:
        return index >= len(self.finish.operands) or self.finish.operands[index].is_vector

    def _distance(self, index: int, *, along_lanes: bool) -> Value:
        """Bytes from a vector to the next one."""
        if not along_lanes:
            return self.a[f"{self._names[index]}_step"]
        return self.k.constant(I64, self.lanes * self._types[index].nbytes if self._is_vector(index) else 0)

    def _moved(self, starts: Sequence[Pointer], steps: Sequence[Value]) -> list[Pointer]:
        return [
            Pointer(self.k.advance(start.address, step, 1), start.scalar)
            for start, step in zip(starts, steps, strict=True)
        ]

    def _read(self, index: int, pointer: Pointer, mask: Value | None) -> Value:
        loaded = pointer.load(0, self.lanes, mask) if self._is_vector(index) else pointer.load()
        return as_loaded(loaded, self._types[index])

    def _fixed(self, starts: Sequence[Pointer], stays: Sequence[bool], mask: Value | None) -> dict[int, Value]:
        """The operands that are the same for all vectors of a call."""
        return {index: self._read(index, starts[index], mask) for index, stay in enumerate(stays) if stay}

    def _place(
        self,
        found: Sequence[Sequence[Value]],
        places: Sequence[Sequence[Pointer]],
        fixed: dict[int, Value],
        mask: Value | None,
    ) -> None:
        """Store the results for some vectors, abreast."""
        k, count = self.k, len(self.finish.operands)
        inputs = [
            [*one, *(fixed[at] if at in fixed else self._read(at, starts[at], mask) for at in range(count))]
            for one, starts in zip(found, places, strict=True)
        ]
        given = emit_abreast(k, self.finish.body.roots, inputs)
        given = [[k.splat(result, self.lanes) for result in results] for results in given]
        for results, starts in zip(given, places, strict=True):
            for result, storage, pointer in zip(results, self._types[count:], starts[count:], strict=True):
                pointer.store(as_stored(k, result, storage), 0, mask)


def _shares(count: int) -> Iterator[tuple[int, int]]:
    """Where the parts begin that go through an expression abreast, and how many vectors each has: nearly as many."""
    parts = -(-count // STRANDS)
    for part in range(parts):
        begin, end = count * part // parts, count * (part + 1) // parts
        yield begin, end - begin
