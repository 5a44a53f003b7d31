"""Unique: the distinct elements of a vector, and the distinct slices along an axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.arguments import Read, Record, Size, Write, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.selection.positions import nothing, slices_at
from sardonyx.compiler.kernels.selection.ranks import Ranking, Sorter
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import BOOL, I64, Type, type_of
from sardonyx.compiler.llvm.values import Variable
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.graph.types import numpy_dtype
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.shape import axis_of

_INT64 = np.dtype(np.int64)


@dataclass(frozen=True)
class DistinctSpec:
    """Elements of `type`, in ascending order if `sorted`, else in that of their first places."""

    type: Type
    sorted: bool

    @property
    def ranking(self) -> Ranking:
        return Ranking(self.type, largest=False)


class ElementArguments(Record):
    data = Read()
    entries = Write()
    room = Write()  # to sort them
    size = Size()
    values = Write()  # the distinct elements
    first = Write(I64)  # the first place of each
    numbers = Write(I64)  # for each place the number of its element
    counts = Write(I64)  # how often each occurs
    total = Write(I64)  # how many there are


@kernel(ElementArguments)
def emit_distinct(k: Function, a: ElementArguments, spec: DistinctSpec) -> None:
    """One chunk. All NaN count as one element, as do the zeros of both signs."""
    ranking = spec.ranking
    data, entries = a.data.cast(ranking.stored), a.entries.cast(ranking.entry)
    room, size = a.room, a.size
    values = a.values.cast(ranking.stored)
    first, numbers, counts, total = a.first, a.numbers, a.counts, a.total
    with k.loop(0, size) as place:
        entries.store(ranking.entry_of(k, ranking.of(k, data.load(place)), place), place)
    Sorter(k, ranking, room).sort(entries, size)
    found = k.variable(I64, -1)
    before = k.variable(ranking.rank, 0)
    with k.loop(0, size) as at:
        entry = entries.load(at)
        rank, place = ranking.rank_in(entry), ranking.place_in(entry)
        _number(k, place, at.equals(0) | rank.differs(before.get()), found, first, numbers, counts)
        before.set(rank)
    many = found.get() + 1
    total.store(many)
    if not spec.sorted:
        _by_first_place(k, entries.cast(I64), room.cast(I64), size, first, numbers, counts)
    with k.loop(0, many) as number:
        values.store(data.load(first.load(number)), number)


class SliceArguments(Record):
    data = Read()
    entries = Write()
    room = Write()  # to sort them
    size = Size()  # slices
    sections = Size()  # how often their elements lie together in front of the axis
    inner = Size()  # elements behind the axis
    order = Write(I64)
    sorted_order = Write(I64)
    first = Write(I64)  # the results, as those of single elements
    numbers = Write(I64)
    counts = Write(I64)
    total = Write(I64)


@kernel(SliceArguments)
def emit_distinct_slices(k: Function, a: SliceArguments, spec: DistinctSpec) -> None:
    """One chunk.

    Slices compare element by element: they are sorted by their last elements, then by those before, and so on, each
    time without changing the order of equal ones.
    """
    ranking = spec.ranking
    data, entries = a.data.cast(ranking.stored), a.entries.cast(ranking.entry)
    room, size, sections, inner = a.room, a.size, a.sections, a.inner
    order, sorted_order = a.order, a.sorted_order
    first, numbers, counts, total = a.first, a.numbers, a.counts, a.total
    columns = sections * inner

    def rank_of(slice_: Value, column: Value) -> Value:
        section = column // inner
        return ranking.of(k, data.load((section * size + slice_) * inner + (column - section * inner)))

    sorter = Sorter(k, ranking, room)
    with k.loop(0, size) as place:
        order.store(place, place)
    with k.loop(0, columns) as turn:
        column = columns - 1 - turn
        with k.loop(0, size) as at:
            entries.store(ranking.entry_of(k, rank_of(order.load(at), column), at), at)
        sorter.sort(entries, size)
        with k.loop(0, size) as at:
            sorted_order.store(order.load(ranking.place_in(entries.load(at))), at)
        k.copy(order, sorted_order, size * I64.nbytes)
    found = k.variable(I64, -1)
    with k.loop(0, size) as at:
        place = order.load(at)
        is_new = k.variable(BOOL, at.equals(0))
        before = order.load(k.larger(at - 1, 0))
        compared = k.variable(I64, 0)
        with k.loop_while(lambda: ~is_new.get() & (compared.get() < columns)):
            is_new.set(rank_of(place, compared.get()).differs(rank_of(before, compared.get())))
            compared.set(compared.get() + 1)
        _number(k, place, is_new.get(), found, first, numbers, counts)
    total.store(found.get() + 1)
    if not spec.sorted:
        _by_first_place(k, order, sorted_order, size, first, numbers, counts)


def _number(
    k: Function, place: Value, is_new: Value, found: Variable, first: Pointer, numbers: Pointer, counts: Pointer
) -> None:
    """Give what lies at a place the number of what was before it in order, or the next one."""
    with k.when(is_new):
        found.set(found.get() + 1)
        first.store(place, found.get())
        counts.store(0, found.get())
    counts.store(counts.load(found.get()) + 1, found.get())
    numbers.store(found.get(), place)


def _by_first_place(
    k: Function, renumbered: Pointer, kept: Pointer, size: object, first: Pointer, numbers: Pointer, counts: Pointer
) -> None:
    """Number the elements by their first places; `renumbered` and `kept` have room for a number of each."""
    found = k.variable(I64, 0)
    with k.loop(0, size) as place:
        number = numbers.load(place)
        with k.when(first.load(number).equals(place)):
            renumbered.store(found.get(), number)
            kept.store(counts.load(number), found.get())
            found.set(found.get() + 1)
    many = found.get()
    found.set(0)
    with k.loop(0, size) as place:
        number = renumbered.load(numbers.load(place))
        numbers.store(number, place)
        # A number that was not seen before is the next one.
        with k.when(number.equals(found.get())):
            first.store(place, number)
            found.set(number + 1)
    with k.loop(0, many) as number:
        counts.store(kept.load(number), number)


@template("unique")
class Unique(NativeKernel):
    """The distinct elements, or slices along ``axis``: ascending if ``sorted``, else by their first places; further the
    first place of each, the number of each place's one, and how often each occurs.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.counted_axes = (parameters["axis"] or 0, 0, None, 0)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        data = inputs[0]
        if data is None or data.dtype is None or type_of(numpy_dtype(data.dtype)) is None:
            return "no kernel compares elements of this type"
        return None

    def bind(self, binder: Binder, data: Tensor) -> Sequence[Tensor]:
        data = contiguous(binder, data)
        if self.parameters["axis"] is not None:
            return self._slices(binder, data, axis_of(self.parameters["axis"], len(data.shape)))
        size = data.size
        values, numbers = binder.new(data.dtype, (size,)), binder.new(_INT64, (size,))
        first, counts = binder.new(_INT64, (size,)), binder.new(_INT64, (size,))
        if size == 0:
            return [values, first, numbers, counts, nothing(binder)]
        type_ = type_of(data.dtype)
        assert type_ is not None
        spec = DistinctSpec(type_, bool(self.parameters["sorted"]))
        whole = binder.new(_INT64, (1,))
        entries = binder.new(np.dtype(np.uint8), (size * spec.ranking.entry.nbytes,))
        room = binder.new(np.dtype(np.uint8), (spec.ranking.sorting_bytes(size),))
        binder.step(
            emit_distinct,
            spec,
            ElementArguments(
                data=data,
                entries=entries,
                room=room,
                size=size,
                values=values,
                first=first,
                numbers=numbers,
                counts=counts,
                total=whole,
            ),
            flops=float(size),
            detail=f"{size} elements",
        )
        return [values, first, numbers, counts, whole]

    def _slices(self, binder: Binder, data: Tensor, axis: int) -> list[Tensor]:
        """The distinct slices of contiguous data."""
        size = data.shape[axis]
        numbers, first, counts, order, other = (binder.new(_INT64, (size,)) for _ in range(5))
        if size == 0:
            return [binder.new(data.dtype, data.shape), first, numbers, counts, nothing(binder)]
        type_ = type_of(data.dtype)
        assert type_ is not None
        spec = DistinctSpec(type_, bool(self.parameters["sorted"]))
        whole = binder.new(_INT64, (1,))
        entries = binder.new(np.dtype(np.uint8), (size * spec.ranking.entry.nbytes,))
        room = binder.new(np.dtype(np.uint8), (spec.ranking.sorting_bytes(size),))
        sections, inner = math.prod(data.shape[:axis]), math.prod(data.shape[axis + 1 :])
        binder.step(
            emit_distinct_slices,
            spec,
            SliceArguments(
                data=data,
                entries=entries,
                room=room,
                size=size,
                sections=sections,
                inner=inner,
                order=order,
                sorted_order=other,
                first=first,
                numbers=numbers,
                counts=counts,
                total=whole,
            ),
            flops=float(data.size),
            detail=f"{size} slices of {sections * inner} elements",
        )
        return [slices_at(binder, data, axis, first, whole), first, numbers, counts, whole]
