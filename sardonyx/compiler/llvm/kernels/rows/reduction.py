"""The reduction kernel: expressions over rows of elements, with any number of values of a row in them.

Softmax, the normalisations and the reductions of ONNX are this kernel. It makes one pass over a row for each level of
reductions that need each other, and one that writes what is an element; a row is small, so it stays in the cache.

Three forms: in ``rows`` the vector runs along the row, in ``columns`` along a dimension that is kept, so that each
lane has a row of its own; in ``short rows`` it runs along one row after the other, and the lanes of as many rows as
there are lanes are combined together. Sums are added in one fixed order, whatever the threads do: several lanes side
by side, in blocks, whose sums are added; the lanes at last in pairs.

Arguments: the address of each operand (inputs, then outputs); items, items per chunk, elements along the vector's
dimension, elements of a whole row, runs (slower reduced dimensions), items along the fastest dimension of items, place
of the second table; steps in bytes of each operand along the items and along the vector's dimension; but for rows the
size and the steps of the fastest reduced dimension; rank and table of the slower dimensions of items; at the place
named above, rank and table of the slower reduced dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable
from sardonyx.compiler.llvm.expression import emit_node, emit_working, unrounded, working_type
from sardonyx.compiler.llvm.kernels.rows.reducing import combined, folded, folded_together, neutral
from sardonyx.compiler.llvm.kernels.rows.row_access import (
    Access,
    Operand,
    as_loaded,
    as_stored,
    lanes_for,
    memory_type,
    types_within,
)
from sardonyx.compiler.llvm.kernels.rows.row_passes import RowPasses, available
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I64, Type, type_of
from sardonyx.compiler.llvm.walk import kernel_frame, places, runs, share
from sardonyx.kernel.canonical import Canonical
from sardonyx.kernel.expr import Constant, Expr, Input, Reduce, RowIndex, RowLength
from sardonyx.light_dataclass import dataclass

# Words before the steps, besides the addresses.
HEADER = 7

Form = Literal["rows", "columns", "short rows"]

# Short rows that are gone through side by side.
_ABREAST = 8

# Elements of a row that are added up before their sum is added to that of the row.
BLOCK = 4096


@dataclass(frozen=True)
class ReductionSpec:
    """`access` tells how each operand lies along the vector's dimension, `fixed` whether it is the same for a row.

    `width` is the number of registers that one vector takes; `runs` says that there are slower reduced dimensions;
    `keeps`, that intermediates are stored in the thread's scratch memory between the passes.
    """

    body: Canonical
    inputs: tuple[str, ...]
    access: tuple[Access, ...]
    fixed: tuple[bool, ...]
    form: Form
    width: int = 1
    runs: bool = False
    keeps: bool = False

    def passes(self) -> RowPasses:
        return RowPasses(self.body.roots, self.fixed[: len(self.inputs)], self.keeps)

    def lanes(self, target: Target) -> int:
        """Lanes of the kernel's vectors."""
        return self.width * lanes_for(target, [*self.types(), *types_within(self.body.roots)])

    def types(self) -> list[Type]:
        """The storage types of the operands."""
        dtypes = [np.dtype(name) for name in self.inputs] + [root.dtype for root in self.body.roots]
        found = [type_of(dtype) for dtype in dtypes]
        return [one for one in found if one is not None]


def emit_reduction(target: Target, spec: ReductionSpec) -> str:
    """The module of a reduction kernel."""
    k, words = kernel_frame(target)
    form = {"rows": _Rows, "columns": _Columns, "short rows": _ShortRows}[spec.form](k, words, spec)
    count = len(spec.access)
    items, per_chunk, fastest = words.load(count), words.load(count + 1), words.load(count + 5)
    begin, end = share(k, items, per_chunk)
    rank, table = words.load(form.table_at), words.offset(form.table_at + 1)
    with runs(k, begin, end, fastest) as (slower, first, last):
        offsets = places(k, slower, table, rank, count)
        starts = [k.advance(base, offset, 1) for base, offset in zip(form.bases, offsets, strict=True)]
        with k.loop(first, last) as item:
            form.item([k.advance(start, item * step, 1) for start, step in zip(starts, form.steps, strict=True)], item)
    return k.finish()


# What one pass does with the elements under the vector: their loaded values, where they are kept in scratch memory,
# where they lie along the vector's dimension, and how many there are where that is not a whole vector.
Body = Callable[[Sequence[Value], Value, Value, "Value | None"], None]


class _Form:
    """What the two forms share. A row item is computed from the start addresses of all operands."""

    def __init__(self, k: Function, words: Pointer, spec: ReductionSpec) -> None:
        self.k, self.spec = k, spec
        self.passes = spec.passes()
        self.lanes = spec.lanes(k.target)
        types = spec.types()
        count = len(types)
        self.bases = [k.pointer(words.load(index), scalar).address for index, scalar in enumerate(types)]
        self.size, self.length, self.runs = (words.load(count + index) for index in (2, 3, 4))
        self.run_table = words.offset(words.load(count + 6))
        self.steps = [words.load(count + HEADER + index) for index in range(count)]
        strides = [words.load(2 * count + HEADER + index) for index in range(count)]
        self.operands = [
            Operand(k, scalar, access, stride)
            for scalar, access, stride in zip(types, spec.access, strides, strict=True)
        ]
        self.inputs, self.outputs = self.operands[: len(spec.inputs)], self.operands[len(spec.inputs) :]
        self.table_at = 3 * count + HEADER
        self.starts: list[Value] = []
        self.row_values: dict[int, Value] = {}  # by expression, as computed
        self.known: dict[int, Value] = {}  # the same as they meet elements
        self.scratch: dict[int, tuple[Pointer, Type]] = {}

    def item(self, starts: Sequence[Value], item: Value) -> None:
        raise NotImplementedError

    def combine(self, reductions: Sequence[Reduce], keep: Sequence[Expr]) -> None:
        """One pass that combines, and stores what is kept."""
        raise NotImplementedError

    def finish(self) -> None:
        """Store what is a value of the row, and make the pass that stores elements."""
        raise NotImplementedError

    def compute(self, count: Value | None) -> None:
        """Everything of one item."""
        self.row_values, self.known = {}, {}
        self._place_scratch()
        self._row_inputs(count)
        self._settle()
        for reductions, keep in zip(self.passes.reductions, self.passes.kept, strict=True):
            self.combine(reductions, keep)
            self._settle()
        self.finish()

    def _place_scratch(self) -> None:
        """A room for each intermediate that is kept, one behind the other; each element takes eight bytes at most."""
        self.scratch = {}
        room = self.scratch_elements()
        for number, expr in enumerate(one for group in self.passes.kept for one in group):
            working = working_type(expr.dtype)
            stored = memory_type(working)
            start = self.k.advance(self.k["scratch"], room * number, 8)
            self.scratch[id(expr)] = Pointer(start, stored), working

    def scratch_elements(self) -> Value:
        raise NotImplementedError

    def _row_inputs(self, count: Value | None) -> None:
        for expr in self.passes.order:
            if isinstance(expr, RowLength):
                self.row_values[id(expr)] = self.length.to(working_type(expr.dtype))
            elif isinstance(expr, Input) and self.spec.fixed[expr.index]:
                loaded = self.row_input(self.inputs[expr.index], self.starts[expr.index], count)
                self.row_values[id(expr)] = emit_node(self.k, expr, {expr.index: loaded}, {})

    def row_input(self, operand: Operand, start: Value, count: Value | None) -> Value:
        raise NotImplementedError

    def _settle(self) -> None:
        """Compute the row values that can be computed now."""
        for expr in available(self.passes, set(self.row_values)):
            self.row_values[id(expr)] = emit_node(self.k, expr, [], self.row_values)
        met = self.passes.met_by_elements()
        constants = {id(expr) for expr in self.passes.order if isinstance(expr, Constant)}
        for key, value in self.row_values.items():
            if key in met and key not in constants and key not in self.known:
                self.known[key] = self.for_elements(value)

    def for_elements(self, value: Value) -> Value:
        return value

    def elements(
        self, roots: Sequence[Expr], loaded: Sequence[Value], place: Value, number: int, position: Value
    ) -> list[Value]:
        """Expressions for the elements under the vector, in pass `number`; what earlier passes kept is read.

        `place` is where the elements are in scratch memory, `position` the number of the first one in its row.
        """
        known = dict(self.known)
        for expr in self.passes.order:
            if isinstance(expr, RowIndex):
                known[id(expr)] = self.indices(position, working_type(expr.dtype))
        for group in self.passes.kept[:number]:
            for expr in group:
                pointer, working = self.scratch[id(expr)]
                value = pointer.load(place, self.lanes)
                known[id(expr)] = as_loaded(value, BOOL) if working == BOOL else value
        return emit_working(self.k, roots, loaded, known)

    def indices(self, position: Value, scalar: Type) -> Value:
        """The numbers of the elements under the vector in their rows."""
        return self.k.splat(position.to(scalar), self.lanes)

    def keep(self, values: Sequence[Value], exprs: Sequence[Expr], place: Value) -> None:
        for value, expr in zip(values, exprs, strict=True):
            pointer, working = self.scratch[id(expr)]
            stored = as_stored(self.k, value, BOOL) if working == BOOL else value
            pointer.store(self.k.splat(stored, self.lanes), place)

    def accumulators(self, reductions: Sequence[Reduce]) -> list[Variable]:
        found = []
        for one in reductions:
            type_ = working_type(one.dtype).vector(self.lanes)
            found.append(self.k.variable(type_, neutral(self.k, one.kind, type_)))
        return found

    def add(self, reductions: Sequence[Reduce], into: Sequence[Variable], values: Sequence[Value]) -> None:
        for one, variable, value in zip(reductions, into, values, strict=True):
            wide = self.k.splat(value, self.lanes)
            variable.set(combined(self.k, one.kind, variable.get(), wide))


class _Rows(_Form):
    """The vector runs along the row."""

    def scratch_elements(self) -> Value:
        return self.runs * self._padded()

    def _padded(self) -> Value:
        return (self.size + (self.lanes - 1)) // self.lanes * self.lanes

    def item(self, starts: Sequence[Value], item: Value) -> None:
        self.starts = list(starts)
        if not self.spec.runs:
            self._start_run(starts)
        self.compute(None)

    def _start_run(self, starts: Sequence[Value]) -> None:
        for operand, start, fixed in zip(self.operands, starts, self.spec.fixed, strict=True):
            if not fixed:
                operand.start_row(start)

    def row_input(self, operand: Operand, start: Value, count: Value | None) -> Value:
        return as_loaded(Pointer(start, memory_type(operand.scalar)).load(0), operand.scalar)

    def for_elements(self, value: Value) -> Value:
        return self.k.splat(value, self.lanes)

    def indices(self, position: Value, scalar: Type) -> Value:
        return super().indices(position, scalar) + self.k.iota(scalar, self.lanes)

    @contextmanager
    def _each_run(self) -> Iterator[Value]:
        """Every run of the row, with the place of its first element in scratch memory."""
        if not self.spec.runs:
            yield self.k.constant(self.size.type, 0)
            return
        rank, table = self.run_table.load(0), self.run_table.offset(1)
        with self.k.loop(0, self.runs) as run:
            offsets = places(self.k, run, table, rank, len(self.operands))
            self._start_run(
                [self.k.advance(start, offset, 1) for start, offset in zip(self.starts, offsets, strict=True)]
            )
            yield run * self._padded()

    def _loaded(self, index: Value, count: Value | None) -> list[Value]:
        found = []
        for operand, fixed in zip(self.inputs, self.spec.fixed, strict=False):
            if fixed:
                found.append(self.k.undefined(operand.scalar))
            elif count is None:
                found.append(operand.load(index, self.lanes))
            else:
                found.append(operand.load_part(index, self.lanes, count))
        return found

    def combine(self, reductions: Sequence[Reduce], keep: Sequence[Expr]) -> None:
        k, roots = self.k, [*(one.arg for one in reductions), *keep]
        number = self.passes.reductions.index(list(reductions))
        totals, sums = self.accumulators(reductions), self.accumulators(reductions)
        with self._each_run() as room:
            whole = self.size - self.size % self.lanes
            with k.loop(0, whole, BLOCK) as start:
                for one, variable in zip(reductions, sums, strict=True):
                    variable.set(neutral(k, one.kind, variable.type))
                with k.loop(start, k.smaller(start + BLOCK, whole), self.lanes) as index:
                    values = self.elements(roots, self._loaded(index, None), room + index, number, index)
                    self.add(reductions, sums, values[: len(reductions)])
                    self.keep(values[len(reductions) :], keep, room + index)
                self.add(reductions, totals, [variable.get() for variable in sums])
            rest = self.size - whole
            with k.when(rest > 0):
                values = self.elements(roots, self._loaded(whole, rest), room + whole, number, whole)
                inside = k.lanes_below(rest, self.lanes)
                masked = [
                    k.select(inside, k.splat(value, self.lanes), neutral(k, one.kind, total.type))
                    for one, value, total in zip(reductions, values, totals, strict=False)
                ]
                self.add(reductions, totals, masked)
                self.keep(values[len(reductions) :], keep, room + whole)
        for one, total in zip(reductions, totals, strict=True):
            self.row_values[id(one)] = folded(k, one.kind, total.get())

    def finish(self) -> None:
        k, passes = self.k, self.passes
        starts = self.starts[len(self.inputs) :]
        for root, operand, start in zip(passes.roots, self.outputs, starts, strict=True):
            if passes.is_row_value(root) and self.spec.fixed[self.operands.index(operand)]:
                value = as_stored(k, self.row_values[id(root)], operand.scalar)
                Pointer(start, memory_type(operand.scalar)).store(value)
        is_row = self.spec.fixed[len(self.inputs) :]
        written = [
            (root, operand)
            for root, operand, fixed in zip(passes.roots, self.outputs, is_row, strict=True)
            if not fixed
        ]
        if not written:
            return
        number = len(passes.reductions)
        roots = [root if passes.is_row_value(root) else unrounded(root) for root, _ in written]
        with self._each_run() as room:
            whole = self.size - self.size % self.lanes
            with k.loop(0, whole, self.lanes) as index:
                values = self.elements(roots, self._loaded(index, None), room + index, number, index)
                for value, (_, operand) in zip(values, written, strict=True):
                    operand.store(value, index, self.lanes)
            rest = self.size - whole
            with k.when(rest > 0):
                values = self.elements(roots, self._loaded(whole, rest), room + whole, number, whole)
                for value, (_, operand) in zip(values, written, strict=True):
                    operand.store(value, whole, self.lanes, rest)


class _Columns(_Form):
    """The vector runs along a kept dimension: an item is a block of as many rows as it has lanes."""

    def __init__(self, k: Function, words: Pointer, spec: ReductionSpec) -> None:
        super().__init__(k, words, spec)
        count = len(self.operands)
        self.depth = words.load(self.table_at)
        self.depth_steps = [words.load(self.table_at + 1 + index) for index in range(count)]
        self.table_at += count + 1
        self.count: Value | None = None
        self.zero = self.first = self.position = k.constant(self.size.type, 0)

    def scratch_elements(self) -> Value:
        return self.length * self.lanes

    def item(self, starts: Sequence[Value], item: Value) -> None:
        k = self.k
        self.starts = list(starts)
        left = self.size - item * self.lanes
        full = left >= self.lanes
        for block, count in ((k.when(full), None), (k.otherwise(full), left)):
            with block:
                self.count = count
                self.compute(count)

    def _load(self, operand: Operand) -> Value:
        if self.count is None:
            return operand.load(self.first, self.lanes)
        return operand.load_part(self.first, self.lanes, self.count)

    def row_input(self, operand: Operand, start: Value, count: Value | None) -> Value:
        operand.start_row(start)
        return self._load(operand)

    @contextmanager
    def _each_position(self) -> Iterator[Value]:
        """Every position of the rows, with its place in scratch memory; the operands are there."""
        k = self.k
        starts = self.starts
        if not self.spec.runs:
            with self._along(starts, self.zero) as place:
                yield place
            return
        rank, table = self.run_table.load(0), self.run_table.offset(1)
        with k.loop(0, self.runs) as run:
            offsets = places(k, run, table, rank, len(self.operands))
            starts = [k.advance(start, offset, 1) for start, offset in zip(starts, offsets, strict=True)]
            with self._along(starts, run * self.depth) as place:
                yield place

    @contextmanager
    def _along(self, starts: Sequence[Value], before: Value) -> Iterator[Value]:
        k = self.k
        with k.loop(0, self.depth) as index:
            for operand, start, step, fixed in zip(
                self.operands, starts, self.depth_steps, self.spec.fixed, strict=True
            ):
                if not fixed:
                    operand.start_row(k.advance(start, index * step, 1))
            self.position = index
            yield (before + index) * self.lanes

    def _loaded(self) -> list[Value]:
        return [
            self.k.undefined(operand.scalar) if fixed else self._load(operand)
            for operand, fixed in zip(self.inputs, self.spec.fixed, strict=False)
        ]

    def combine(self, reductions: Sequence[Reduce], keep: Sequence[Expr]) -> None:
        number = self.passes.reductions.index(list(reductions))
        totals = self.accumulators(reductions)
        with self._each_position() as place:
            values = self.elements(
                [*(one.arg for one in reductions), *keep], self._loaded(), place, number, self.position
            )
            self.add(reductions, totals, values[: len(reductions)])
            self.keep(values[len(reductions) :], keep, place)
        for one, total in zip(reductions, totals, strict=True):
            self.row_values[id(one)] = total.get()

    def finish(self) -> None:
        fixed = self.spec.fixed[len(self.inputs) :]
        starts = self.starts[len(self.inputs) :]
        elements: list[tuple[Expr, Operand]] = []
        for root, operand, start, is_row in zip(self.passes.roots, self.outputs, starts, fixed, strict=True):
            if is_row:
                operand.start_row(start)
                operand.store(self.row_values[id(root)], self.zero, self.lanes, self.count)
            else:
                elements.append((root, operand))
        if not elements:
            return
        roots, number = [root for root, _ in elements], len(self.passes.reductions)
        with self._each_position() as place:
            for first in self._each_register():
                values = self.elements(roots, self._loaded(), place + first, number, self.position)
                for value, (_, operand) in zip(values, elements, strict=True):
                    operand.store(value, self.first, self.lanes, self.count)

    def _each_register(self) -> Iterator[int]:
        """The registers of a whole vector one after the other, as long expressions of all would not stay in registers;
        gives the first lane."""
        k, lanes, known = self.k, self.lanes, self.known
        self.lanes = lanes if self.count is not None else lanes // self.spec.width
        for first in range(0, lanes, self.lanes):
            inside = range(first, first + self.lanes)
            self.first = k.constant(self.size.type, first)
            self.known = {
                key: value if value.type.lanes == 1 else k.shuffle(value, None, inside) for key, value in known.items()
            }
            yield first
        self.lanes, self.known, self.first = lanes, known, self.zero


class _ShortRows(_Columns):
    """An item is a block of as many rows as a vector has lanes, whose elements lie together; nothing is kept."""

    def combine(self, reductions: Sequence[Reduce], keep: Sequence[Expr]) -> None:
        k, lanes = self.k, self.lanes
        whole = self.depth - self.depth % lanes
        rest = self.depth - whole
        inside = k.lanes_below(rest, lanes)
        folded_rows: list[list[Value]] = [[] for _ in reductions]
        for first in range(0, lanes, _ABREAST):
            rows = [self._row(first + number) for number in range(min(_ABREAST, lanes))]
            totals = [self.accumulators(reductions) for _ in rows]
            with k.loop(0, whole, lanes) as index:
                for row, total in zip(rows, totals, strict=True):
                    self.add(reductions, total, self._values(reductions, row, index, None))
            with k.when(rest > 0):
                for row, total in zip(rows, totals, strict=True):
                    values = self._values(reductions, row, whole, inside)
                    self.add(reductions, total, values)
            for one, vectors, of_rows in zip(reductions, folded_rows, zip(*totals, strict=True), strict=True):
                vectors.append(folded_together(k, one.kind, [variable.get() for variable in of_rows]))
        for one, vectors in zip(reductions, folded_rows, strict=True):
            self.row_values[id(one)] = folded_together(k, one.kind, vectors)

    def _row(self, number: int) -> list[Pointer]:
        """Where a row of the block lies in each input; the last one for those behind it."""
        k = self.k
        row = k.constant(I64, number) if self.count is None else k.smaller(self.count - 1, number)
        return [
            Pointer(k.advance(start, row * operand.stride, 1), memory_type(operand.scalar))
            for operand, start in zip(self.inputs, self.starts, strict=False)
        ]

    def _values(
        self, reductions: Sequence[Reduce], row: Sequence[Pointer], index: Value, inside: Value | None
    ) -> list[Value]:
        """What is combined of a vector of a row; what changes nothing where a mask says that there is no element."""
        k = self.k
        loaded = [
            as_loaded(one.load(index, self.lanes, inside), operand.scalar)
            for one, operand in zip(row, self.inputs, strict=True)
        ]
        values = self.elements([one.arg for one in reductions], loaded, self.zero, 0, index)
        if inside is None:
            return values
        wide = [k.splat(value, self.lanes) for value in values]
        return [
            k.select(inside, value, neutral(k, one.kind, value.type))
            for one, value in zip(reductions, wide, strict=True)
        ]
