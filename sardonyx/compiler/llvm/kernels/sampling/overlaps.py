"""Sums of overlapping windows ("col2im"): what each element of a result gathers from the columns that reach it.

Every element is summed by one thread in one order, so that the result is the same for any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import emit_expression
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, memory_type
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, blocked_loop, working_type
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, U8, Type, type_of
from sardonyx.compiler.llvm.walk import kernel_frame, share
from sardonyx.kernel.canonical import Canonical
from sardonyx.light_dataclass import dataclass

# Spatial dimensions that the kernel has loops for; fewer are filled up with ones of size 1.
SPATIAL = 3
# Registers of sums that are added up at once.
_UNROLL = 4


@dataclass(frozen=True)
class OverlapSpec:
    """Columns of a type, each multiplied by a weight of its filter and tap where those have a type, too.

    `body` has the sum as input 0 and operand i as input 1 + i, whose type and whether it differs from filter to filter
    `operands` tell.
    """

    columns: Type
    weights: Type | None
    operands: tuple[tuple[Type, bool], ...]
    body: Canonical


def emit_overlaps(target: Target, spec: OverlapSpec) -> str:
    """Rows of a result [batch, z, y, x, groups, filters], each filter the sum of some columns.

    Arguments: columns, weights, tables (I64), rows, rows per chunk, sizes along z, y and x, groups, filters of a
    group; bytes between items of the batch and between groups of the columns; the address and the steps in bytes
    along batch, z, y and x and between groups of each operand; the address of each output, which is contiguous.

    The tables hold, for each dimension, where the entries of each place begin and, of the last one, end; then come
    the entries: the bytes of what they read from the columns and from the weights, all counted from their start.
    """
    k, words = kernel_frame(target)
    sums = _Sums(k, spec, words)
    sizes = [words.load(5 + axis) for axis in range(SPATIAL)]
    begin, end = share(k, words.load(3), words.load(4))
    with k.loop(begin, end) as row:
        above = row // sizes[1]
        y = row - above * sizes[1]
        batch = above // sizes[0]
        z = above - batch * sizes[0]
        with k.loop(0, sizes[2]) as x:
            sums.place(batch, (z, y, x), row * sizes[2] + x)
    return k.finish()


class _Sums:
    """The sums of one place after the other."""

    def __init__(self, k: Function, spec: OverlapSpec, words: Pointer) -> None:
        self.k, self.spec = k, spec
        self.working = working_type(spec.columns)
        self.columns, self.weights = (k.pointer(words.load(at), U8) for at in (0, 1))
        self.groups, self.filters, self.batch_step, self.group_step = (words.load(at) for at in range(8, 12))
        table = k.pointer(words.load(2), I64)
        self.starts: list[Pointer] = []
        for axis in range(SPATIAL):
            self.starts.append(table)
            table = table.offset(words.load(5 + axis) + 1)
        self.entries = table
        first = 12
        self.operands = [
            (words.load(first + 6 * index), [words.load(first + 6 * index + step) for step in range(1, 6)])
            for index in range(len(spec.operands))
        ]
        first += 6 * len(spec.operands)
        self.outputs = [words.load(first + index) for index in range(len(spec.body.roots))]

    def place(self, batch: Value, at: Sequence[Value], number: Value) -> None:
        """The filters of all groups at a place, the `number`-th of the result."""
        k = self.k
        lanes = k.target.lanes(self.working)
        ranges = [(start.load(one), start.load(one + 1)) for start, one in zip(self.starts, at, strict=True)]
        with k.loop(0, self.groups) as group:
            columns = self.columns.offset(batch * self.batch_step + group * self.group_step)
            lines = [
                k.pointer(address, U8).offset(
                    sum(
                        (one * step for one, step in zip((*at, group), steps[1:], strict=True)),
                        start=batch * steps[0],
                    )
                )
                for address, steps in self.operands
            ]
            first = (number * self.groups + group) * self.filters

            def sums(
                filter_: Value,
                count: int,
                width: int,
                mask: Value | None,
                columns: Pointer = columns,
                lines: Sequence[Pointer] = lines,
                first: Value = first,
            ) -> None:
                totals = self._totals(columns, ranges, filter_, count, width, mask)
                for index, total in enumerate(totals):
                    self._finish(total, lines, filter_ + index * width, first, width, mask)

            blocked_loop(k, self.filters, lanes, _UNROLL, sums)

    def _totals(
        self,
        columns: Pointer,
        ranges: Sequence[tuple[Value, Value]],
        filter_: Value,
        count: int,
        width: int,
        mask: Value | None,
    ) -> list[Value]:
        """`count` vectors of filters, each the sum over the entries of all dimensions."""
        k, entries = self.k, self.entries
        totals = [k.variable(self.working.vector(width), 0) for _ in range(count)]
        (z, z_end), (y, y_end), (x, x_end) = ranges
        with k.loop(z, z_end) as slow, k.loop(y, y_end) as middle:
            outer = [entries.load(slow * 2 + part) + entries.load(middle * 2 + part) for part in (0, 1)]
            with k.loop(x, x_end) as fast:
                place = columns.offset(outer[0] + entries.load(fast * 2))
                read = Elements(place, self.spec.columns, self.working).offset(filter_)
                scales: Elements | None = None
                if self.spec.weights is not None:
                    weight = self.weights.offset(outer[1] + entries.load(fast * 2 + 1))
                    scales = Elements(weight, self.spec.weights, self.working).offset(filter_)
                for index, total in enumerate(totals):
                    value = read.load(index * width, width, mask)
                    if scales is None:
                        total.set(total.get() + value)
                    else:
                        total.set(k.fma(value, scales.load(index * width, width, mask), total.get()))
        return [total.get() for total in totals]

    def _finish(
        self, total: Value, lines: Sequence[Pointer], filter_: Value, first: Value, width: int, mask: Value | None
    ) -> None:
        """The expressions of a vector of sums, stored."""
        k = self.k
        values = [total]
        for line, (type_, by_filter) in zip(lines, self.spec.operands, strict=True):
            memory = line.cast(memory_type(type_))
            loaded = memory.load(filter_, width, mask) if by_filter else k.splat(memory.load(0), width)
            values.append(as_loaded(loaded, type_))
        results = emit_expression(k, self.spec.body.roots, values)
        for root, address, result in zip(self.spec.body.roots, self.outputs, results, strict=True):
            stored = type_of(root.dtype)
            assert stored is not None
            k.pointer(address, stored).store(k.splat(result, width), first + filter_, mask)
