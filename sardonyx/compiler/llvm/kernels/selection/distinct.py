"""The distinct elements of a vector, and the distinct slices along an axis."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.selection.ranks import Ranking, Sorter
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I64, U8, Type
from sardonyx.compiler.llvm.values import Variable
from sardonyx.compiler.llvm.walk import kernel_frame
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class DistinctSpec:
    """Elements of `type`, in ascending order if `sorted`, else in that of their first places."""

    type: Type
    sorted: bool

    @property
    def ranking(self) -> Ranking:
        return Ranking(self.type, largest=False)


def emit_distinct(target: Target, spec: DistinctSpec) -> str:
    """One chunk. Arguments: data, entries, memory to sort them, elements; and the results: the distinct elements, the
    first place of each, for each place the number of its element, how often each occurs, and their number.

    Places and numbers are int64. All NaN count as one element, as do the zeros of both signs.
    """
    k, words = kernel_frame(target)
    ranking = spec.ranking
    data, entries = k.pointer(words.load(0), ranking.stored), k.pointer(words.load(1), ranking.entry)
    room, size = k.pointer(words.load(2), U8), words.load(3)
    values = k.pointer(words.load(4), ranking.stored)
    first, numbers, counts, total = (k.pointer(words.load(place), I64) for place in range(5, 9))
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
    return k.finish()


def emit_distinct_slices(target: Target, spec: DistinctSpec) -> str:
    """One chunk. Arguments: data, entries, memory to sort them, the number of slices, how often their elements lie
    together in front of the axis and how many behind it, two times room for a place of each slice; and the results, as
    those of `emit_distinct` without the elements.

    Slices compare element by element: they are sorted by their last elements, then by those before, and so on, each
    time without changing the order of equal ones.
    """
    k, words = kernel_frame(target)
    ranking = spec.ranking
    data, entries = k.pointer(words.load(0), ranking.stored), k.pointer(words.load(1), ranking.entry)
    room, size, sections, inner = k.pointer(words.load(2), U8), words.load(3), words.load(4), words.load(5)
    order, sorted_order = k.pointer(words.load(6), I64), k.pointer(words.load(7), I64)
    first, numbers, counts, total = (k.pointer(words.load(place), I64) for place in range(8, 12))
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
    return k.finish()


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
