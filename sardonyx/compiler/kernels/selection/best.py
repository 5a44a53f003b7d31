"""TopK: the best k elements along an axis, in order, with their places.

Elements that are worse than the k-th best one so far are passed over, a vector at a time; the others are collected,
and whenever there is no room for more, all but the best k of them are dropped. For k far below the length nearly all
elements are passed over, whatever their order; the work is linear in the length in any case.

For a k that a vector has lanes for, the best element of each lane over the first part of a row tells beforehand how
good an element must be: the k-th best of those is no better than the k-th best of the row. A single best element needs
no collecting: each lane keeps its best one, and the first of the best lanes wins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.arguments import Read, Record, Size, Write, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.selection.ranks import Ranking, Sorter, lanes_that, lowest_bit
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable
from sardonyx.compiler.llvm.types import I64, U8, U64, type_of
from sardonyx.compiler.llvm.walk import share
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES, contiguous
from sardonyx.compiler.native.rows.rows import permuted
from sardonyx.graph.types import numpy_dtype
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.selection import checked_k
from sardonyx.ops.shape import axis_of


@dataclass(frozen=True)
class BestSpec:
    """What is better."""

    ranking: Ranking


# Vectors at the beginning of a row that tell how good an element must be: enough to pass most of the others over, few
# enough to stay in the nearest cache until they are read again.
_FIRST_VECTORS = 64


class RowArguments(Record):
    data = Read()
    values = Write()
    places = Write(I64)
    rows = Size()
    per_chunk = Size()
    size = Size()  # of a row


class BestArguments(RowArguments):
    best = Size()  # k
    most = Size()  # entries that are collected before all but k are dropped


@kernel(RowArguments)
def emit_single_best(k: Function, a: RowArguments, spec: BestSpec) -> None:
    """The best element of each row."""
    ranking = spec.ranking
    data = a.data.cast(ranking.stored)
    values, places = a.values.cast(ranking.stored), a.places
    size, lanes = a.size, k.target.lanes(ranking.rank)
    begin, end = share(k, a.rows, a.per_chunk)
    vectors = size >= lanes
    with k.when(vectors), k.loop(begin, end) as row:
        from_ = data.offset(row * size)
        place = _best_in_lanes(k, ranking, from_, size, lanes)
        places.store(place, row)
        values.store(from_.load(place), row)
    with k.otherwise(vectors):
        whole = begin + ((end - begin) & -lanes)
        for first, last, side_by_side in ((begin, whole, lanes), (whole, end, 1)):
            with k.loop(first, last, side_by_side) as row:
                value, place = _best_of_each(k, ranking, data.offset(row * size), size, side_by_side)
                places.store(place, row)
                values.store(value, row)


def _best_of_each(k: Function, ranking: Ranking, rows: Pointer, size: Value, lanes: int) -> tuple[Value, Value]:
    """The best element of each of as many rows as there are lanes, and its place; for rows shorter than a vector."""

    def column(number: Value | int) -> Value:
        if lanes == 1:
            return rows.load(number)
        found = k.undefined(ranking.stored.vector(lanes))
        for lane in range(lanes):
            found = k.insert(found, rows.load(size * lane + number), lane)
        return found

    start = column(0)
    value, rank = k.variable(start.type, start), ranking.of(k, start)
    best, place = k.variable(rank.type, rank), k.variable(rank.type, 0)
    with k.loop(1, size) as number:
        bits = column(number)
        offered = ranking.of(k, bits)
        better = offered > best.get()
        value.set(k.select(better, bits, value.get()))
        place.set(k.select(better, k.splat(number.bits_as(U64).to(ranking.rank), lanes), place.get()))
        best.set(k.larger(offered, best.get()))
    return value.get(), place.get().to(U64).bits_as(I64)


def _best_in_lanes(k: Function, ranking: Ranking, row: Pointer, size: Value, lanes: int) -> Value:
    """The first place of the best of at least a vector of elements."""
    numbers = k.iota(ranking.rank, lanes)
    ranks = k.variable(numbers.type, ranking.of(k, row.load(0, lanes)))
    places = k.variable(numbers.type, numbers)

    def offer(place: Value) -> None:
        offered = ranking.of(k, row.load(place, lanes))
        here = numbers + k.splat(place.bits_as(U64).to(ranking.rank), lanes)
        places.set(k.select(offered > ranks.get(), here, places.get()))
        ranks.set(k.larger(offered, ranks.get()))

    whole = size & -lanes
    with k.loop(lanes, whole, lanes) as place:
        offer(place)
    with k.when(whole < size):
        offer(size - lanes)  # some elements come twice, at the same place
    top = k.splat(k.horizontal("max", ranks.get()), lanes)
    first = k.select(ranks.get().equals(top), places.get(), k.splat(k.constant(ranking.rank, ranking.best), lanes))
    return k.horizontal("min", first).to(U64).bits_as(I64)


def room_for(k: int, size: int, lanes: int) -> int:
    """Entries that a thread collects at most: those of a vector are added before more room is made."""
    return min(size, k + max(k, 16)) + lanes


@kernel(BestArguments)
def emit_best(k: Function, a: BestArguments, spec: BestSpec) -> None:
    """The best k elements of each row. Scratch: `room_for` entries, and behind them what sorting them takes."""
    ranking = spec.ranking
    data = a.data.cast(ranking.stored)
    values, places = a.values.cast(ranking.stored), a.places
    size, best, most = a.size, a.best, a.most
    begin, end = share(k, a.rows, a.per_chunk)
    lanes = k.target.lanes(ranking.rank)
    entries = k.pointer("scratch", ranking.entry)
    sorter = Sorter(k, ranking, entries.offset(most + lanes).cast(U8))
    with k.loop(begin, end) as row:
        from_ = data.offset(row * size)
        collected = _Collected(k, ranking, entries, sorter, best, most)
        whole = size & -lanes
        with k.when(best <= lanes):
            collected.expect(from_, k.smaller(whole, _FIRST_VECTORS * lanes), lanes)
        with k.loop(0, whole, lanes) as place:
            collected.offer(from_.load(place, lanes), place)
        with k.loop(whole, size) as place:
            collected.offer(from_.load(place), place)
        sorter.sort(entries, collected.count.get())
        to, numbers = values.offset(row * best), places.offset(row * best)
        with k.loop(0, best) as number:
            place = ranking.place_in(entries.load(number))
            numbers.store(place, number)
            to.store(from_.load(place), number)


class _Collected:
    """The entries of a row that may be among the best, and the rank that an element needs to join them."""

    def __init__(
        self, k: Function, ranking: Ranking, entries: Pointer, sorter: Sorter, best: Value, most: Value
    ) -> None:
        self._k, self._ranking, self._entries, self._sorter = k, ranking, entries, sorter
        self._best, self._most = best, most
        self.count: Variable = k.variable(I64, 0)
        self._least = k.variable(ranking.rank, 0)

    def expect(self, row: Pointer, sample: Value, lanes: int) -> None:
        """Learn from the first `sample` elements, whole vectors, how good one must be; k is at most `lanes`."""
        k, ranking = self._k, self._ranking
        tops = k.variable(ranking.rank.vector(lanes), 0)
        with k.loop(0, sample, lanes) as place:
            tops.set(k.larger(tops.get(), ranking.of(k, row.load(place, lanes))))
        self._least.set(k.horizontal("max", tops.get()))
        with k.loop(1, self._best):
            tops.set(k.select(tops.get() >= self._least.get(), 0, tops.get()))
            self._least.set(k.horizontal("max", tops.get()))

    def offer(self, bits: Value, place: Value) -> None:
        """Collect what is good enough of a vector of elements from a place on, or of one element."""
        k, ranking = self._k, self._ranking
        ranks = ranking.of(k, bits)
        good = ranks >= self._least.get()
        if bits.type.lanes == 1:
            with k.when(good):
                self._add(ranks, place)  # fewer than a vector of them follow the last vector
            return
        chosen = lanes_that(k, good)
        with k.when(chosen.differs(0)):
            left = k.variable(I64, chosen)
            with k.loop_while(lambda: left.get().differs(0)):
                lane = lowest_bit(k, left.get())
                self._add(ranks.lane(lane), place + lane)
                left.set(left.get() & (left.get() - 1))
            self._make_room()

    def _add(self, rank: Value, place: Value) -> None:
        self._entries.store(self._ranking.entry_of(self._k, rank, place), self.count.get())
        self.count.set(self.count.get() + 1)

    def _make_room(self) -> None:
        k, ranking, best = self._k, self._ranking, self._best
        with k.when(self.count.get() > self._most):
            self._sorter.sort(self._entries, self.count.get())
            self.count.set(best)
            worst = ranking.rank_in(self._entries.load(best - 1))
            # What follows must be better: of equals the first ones stay.
            highest = worst.equals(k.constant(ranking.rank, ranking.best))
            self._least.set(k.select(highest, worst, worst + 1))


@template("top_k")
class TopK(NativeKernel):
    """The k best elements of the first input along ``axis``, best first, and their places (int64); of equals the first
    ones. k is the parameter ``k``, or the one element of the second input; ``largest`` says what is best.
    """

    known_inputs = (1,)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        data = inputs[0]
        known = data is not None and data.dtype is not None and type_of(numpy_dtype(data.dtype)) is not None
        return None if known else "no kernel compares elements of this type"

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        data, axis = inputs[0], self.parameters["axis"]
        assert data is not None
        best = self.parameters["k"]
        if best is None:
            numbers = inputs[1]
            assert numbers is not None
            assert numbers.array is not None
            best = checked_k(numbers.array)
        axis = axis_of(axis, len(data.shape))
        size = data.shape[axis]
        if not 0 <= best <= size:
            raise ValueError(f"k argument [{best}] should lie in [0, {size}], the size of axis {axis}")
        others = [place for place in range(len(data.shape)) if place != axis]
        rows = contiguous(binder, permuted(data, [*others, axis]))
        shape = (*(data.shape[place] for place in others), best)
        values, places = binder.new(data.dtype, shape), binder.new(np.dtype(np.int64), shape)
        if values.size:
            _select(binder, rows, values, places, bool(self.parameters["largest"]))
        back = [*range(axis), len(others), *range(axis, len(others))]
        return [permuted(values, back), permuted(places, back)]


def _select(binder: Binder, rows: Tensor, values: Tensor, places: Tensor, largest: bool) -> None:
    """Add the step for rows along the last axis, contiguous."""
    type_ = type_of(rows.dtype)
    assert type_ is not None
    ranking = Ranking(type_, largest)
    size, best = rows.shape[-1], values.shape[-1]
    count = math.prod(rows.shape[:-1])
    per_chunk = max(1, CHUNK_BYTES // (size * rows.dtype.itemsize))
    if best == 1:
        binder.step(
            emit_single_best,
            BestSpec(ranking),
            RowArguments(data=rows, values=values, places=places, rows=count, per_chunk=per_chunk, size=size),
            chunks=-(-count // per_chunk),
            flops=float(rows.size),
            detail=f"{count} x {size}, the best one",
        )
        return
    lanes = binder.target.lanes(ranking.rank)
    room = room_for(best, size, lanes)
    binder.step(
        emit_best,
        BestSpec(ranking),
        BestArguments(
            data=rows,
            values=values,
            places=places,
            rows=count,
            per_chunk=per_chunk,
            size=size,
            best=best,
            most=room - lanes,
        ),
        chunks=-(-count // per_chunk),
        scratch=room * ranking.entry.nbytes + ranking.sorting_bytes(room),
        flops=float(rows.size),
        detail=f"{count} x {size}, best {best}",
    )
