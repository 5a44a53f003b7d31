"""The distinct elements of a vector."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.compiler.llvm.builder import Function, Pointer
from sardonyx.compiler.llvm.kernels.movement.walk import kernel_frame
from sardonyx.compiler.llvm.kernels.selection.ranks import Ranking, Sorter
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, U8, Type


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
        with k.when(at.equals(0) | rank.differs(before.get())):
            found.set(found.get() + 1)
            before.set(rank)
            first.store(place, found.get())
            counts.store(0, found.get())
        counts.store(counts.load(found.get()) + 1, found.get())
        numbers.store(found.get(), place)
    many = found.get() + 1
    total.store(many)
    if not spec.sorted:
        _by_first_place(k, entries.cast(I64), room.cast(I64), size, first, numbers, counts)
    with k.loop(0, many) as number:
        values.store(data.load(first.load(number)), number)
    return k.finish()


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
