"""Running sums and products along an axis, element by element in order: the same results for any number of threads."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.narrow_floats import from_bits, to_bits
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BF16, F16, F32, U8, U16, Type
from sardonyx.compiler.llvm.walk import kernel_frame, share
from sardonyx.light_dataclass import dataclass


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


def emit_cumulative(target: Target, spec: CumulativeSpec) -> str:
    """Totals of columns.

    Arguments: data, output, items, items per chunk, bytes from one element along the axis to the next (negative for
    totals from the end), elements along the axis, columns, columns of a block, blocks of columns, bytes between outer
    places; data and output have the same layout. Items are outer places times blocks. A thread's own memory holds the
    totals of a block, so that main memory is read and written row by row.
    """
    k, words = kernel_frame(target)
    data, output = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    step, length, columns, block, blocks, between = (words.load(at) for at in range(4, 10))
    begin, end = share(k, words.load(2), words.load(3))
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
    return k.finish()


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
