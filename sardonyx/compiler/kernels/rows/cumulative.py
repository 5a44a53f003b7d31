"""CumSum and CumProd, element by element in order: the same results for any number of threads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.compiler.arguments import Read, Record, Size, Write, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.bound_step import Shifted
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.narrow_floats import from_bits, to_bits
from sardonyx.compiler.llvm.types import BF16, BOOL, F16, F32, U16, Type, type_of
from sardonyx.compiler.llvm.walk import share
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES, contiguous
from sardonyx.graph.types import numpy_dtype
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.shape import axis_of

# Columns whose totals a thread keeps at once: they stay in the first cache.
_BLOCK = 512


@dataclass(frozen=True)
class CumulativeSpec:
    """Numbers of `type` are added, or multiplied; an `exclusive` total leaves the element itself out."""

    type: Type
    product: bool = False
    exclusive: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether numbers are stored as 16 bits and added as float32."""
        return self.type in (F16, BF16)

    @property
    def working(self) -> Type:
        """What totals are kept as."""
        return F32 if self.is_narrow else self.type

    @property
    def stored(self) -> Type:
        """What is loaded and stored."""
        return U16 if self.is_narrow else self.type


class Arguments(Record):
    """Data and output have the same layout."""

    data = Read()
    output = Write()
    items = Size()  # outer places times blocks
    per_chunk = Size()
    step = Size()  # bytes from one element along the axis to the next: negative for totals from the end
    length = Size()  # elements along the axis
    columns = Size()
    block = Size()  # columns
    blocks = Size()
    between = Size()  # bytes from one outer place to the next


@kernel(Arguments)
def emit_cumulative(k: Function, a: Arguments, spec: CumulativeSpec) -> None:
    """Totals of columns.

    A thread's own memory holds the totals of a block, so that main memory is read and written row by row.
    """
    data, output = a.data, a.output
    step, length, columns, block, blocks, between = a.step, a.length, a.columns, a.block, a.blocks, a.between
    begin, end = share(k, a.items, a.per_chunk)
    with k.loop(begin, end) as item:
        outer = item // blocks
        first = (item - outer * blocks) * block
        at = outer * between + first * spec.type.nbytes
        from_, to, count = data.offset(at), output.offset(at), k.smaller(block, columns - first)
        single = count.equals(1)
        with k.when(single):
            _column(k, spec, from_, to, length, step)
        with k.otherwise(single):
            _rows(k, spec, from_, to, length, step, count)


def _column(k: Function, spec: CumulativeSpec, from_: Pointer, to: Pointer, length: Value, step: Value) -> None:
    total = k.variable(spec.working, 1 if spec.product else 0)
    with k.loop(0, length) as place:
        total.set(_element(k, spec, from_.offset(place * step), to.offset(place * step), total.get()))


def _rows(
    k: Function, spec: CumulativeSpec, from_: Pointer, to: Pointer, length: Value, step: Value, count: Value
) -> None:
    """The totals of several columns, a row at a time."""
    totals, lanes = k.pointer("scratch", spec.working), k.target.lanes(spec.working)
    start = k.constant(spec.working, 1 if spec.product else 0)
    whole = count & -lanes
    with k.loop(0, count) as column:
        totals.store(start, column)
    with k.loop(0, length) as place:
        row_from, row_to = from_.offset(place * step), to.offset(place * step)
        for first, last, width in ((0, whole, lanes), (whole, count, 1)):
            with k.loop(first, last, width) as column:
                at = column * spec.type.nbytes
                before = totals.load(column, width)
                totals.store(_element(k, spec, row_from.offset(at), row_to.offset(at), before), column)


def _element(k: Function, spec: CumulativeSpec, from_: Pointer, to: Pointer, before: Value) -> Value:
    """The total with the element, or the vector of elements, of a place; what belongs there is stored."""
    element = from_.cast(spec.stored).load(0, before.type.lanes)
    if spec.is_narrow:
        element = from_bits(element, spec.type)
    after = before * element if spec.product else before + element
    total = before if spec.exclusive else after
    if spec.is_narrow:
        total = to_bits(k, total, spec.type)
    to.cast(spec.stored).store(total)
    return after


@template("cumulative")
class Cumulative(NativeKernel):
    """Totals of the first input along the axis that the second one holds: sums, or products where ``product`` is set;
    without the element itself if ``exclusive``, from the end if ``reverse``.
    """

    known_inputs = (1,)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        data = inputs[0]
        type_ = None if data is None or data.dtype is None else type_of(numpy_dtype(data.dtype))
        if type_ is None or type_ == BOOL:
            return "no kernel adds elements of this type"
        return None

    def bind(self, binder: Binder, data: Tensor, axes: Tensor) -> Sequence[Tensor]:
        assert axes.array is not None
        axis = axis_of(int(axes.array.reshape(())), len(data.shape))
        data = contiguous(binder, data)
        result = binder.new(data.dtype, data.shape)
        if result.size == 0:
            return [result]
        type_ = type_of(data.dtype)
        assert type_ is not None
        spec = CumulativeSpec(type_, bool(self.parameters["product"]), bool(self.parameters["exclusive"]))
        length, columns = data.shape[axis], math.prod(data.shape[axis + 1 :])
        item = data.dtype.itemsize
        step, start = columns * item, 0
        if self.parameters["reverse"]:
            step, start = -step, (length - 1) * columns * item
        block = min(columns, _BLOCK)
        blocks = -(-columns // block)
        items = math.prod(data.shape[:axis]) * blocks
        per_chunk = max(1, CHUNK_BYTES // (length * block * item))
        binder.step(
            emit_cumulative,
            spec,
            Arguments(
                data=Shifted(data, start),
                output=Shifted(result, start),
                items=items,
                per_chunk=per_chunk,
                step=step,
                length=length,
                columns=columns,
                block=block,
                blocks=blocks,
                between=length * columns * item,
            ),
            scratch=block * spec.working.nbytes,
            chunks=-(-items // per_chunk),
            flops=1.0 * data.size,  # a float of a size would fix it in formulas
            detail=lambda: f"{data.size // length} x {length}",
        )
        return [result]
