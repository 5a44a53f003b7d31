"""What becomes of the elements of a window, while they pass by a column of places after the other.

A fold has accumulators for some neighbouring windows. It is shown whole rows of taps, column by column, and gives the
values of the windows at last. Columns in the padding are not shown to it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from typing import Protocol

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.expression import emit_working
from sardonyx.compiler.llvm.kernels.rows.reducing import combined, neutral
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, memory_type
from sardonyx.compiler.llvm.kernels.windows.frame import Along
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, Type
from sardonyx.kernel.canonical import Canonical
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class Combine:
    """Elements, each as the expression `element` of it, combined as a `Reduce` of this kind does it."""

    kind: str
    element: Canonical


@dataclass(frozen=True)
class Locate:
    """The largest element (NaN before all others) and its number; the first of equal ones."""


@dataclass(frozen=True)
class Correlate:
    """Products with weights are added up.

    Filters come in groups: `filters` of them read the same `channels` neighbouring channels. `weights` is the type of
    the weights, which lie as [vectors of filters, taps, channels, lanes]; the last vector ends with the last filter.
    """

    weights: Type
    channels: int = 1
    filters: int = 1


def holds_weights(target: Target, fold: Correlate, taps: int) -> bool:
    """Whether the weights of a row wait in registers: where each filter reads one channel, and half of them do."""
    return fold.channels == 1 and taps <= target.registers // 2


Fold = Combine | Locate | Correlate


# Of each column its index, its offset from the first one, and a block that is entered where it is no padding.
Columns = Callable[[], Iterator[tuple[int, int, AbstractContextManager[Value]]]]


@dataclass(frozen=True)
class Row:
    """One row of taps as a fold sees it.

    `columns` gives the columns that the windows read; their blocks yield vectors in the working type. For `Locate`,
    `number` counts the first column's element in its map and `step` from one to the next. For `Correlate`, `weights`
    is where those of the first tap are.
    """

    columns: Columns
    number: Value | None = None
    step: Value | None = None
    weights: Pointer | None = None


class Folding(Protocol):
    """A fold while the code of a tile is written."""

    def begin(self) -> None: ...

    def row(self, row: Row) -> None: ...

    def settle(self) -> None:
        """The columns move on: combine what was kept by column."""

    def finish(self) -> list[list[Value]]:
        """The values of every window, by place."""
        ...


# Sums of elements that watch for NaN, so that no sum waits for the one before.
WATCHES = 4
# What a sum begins with, and what elements are multiplied with: no sum is denormal, and few are rounded to infinity.
_FIRST, _SCALE = 1.0, 2.0**-126


def may_watch(fold: Fold, working: Type) -> bool:
    """Whether NaN costs more than what it takes to notice that there is none: in extremes of floats."""
    return isinstance(fold, Combine) and fold.kind in ("maximum", "minimum") and working.is_float


class Watch:
    """Tells whether there may have been NaN among elements: by the sum of a share of each, as extremes and additions
    take turns on the same units of some machines, where multiply-adds have others. Infinities of both signs are taken
    for NaN, too."""

    def __init__(self, k: Function, working: Type, most: int = WATCHES, last: Type | None = None) -> None:
        """`working` is the type of the vectors that it sees, of which no more than `most` come one after the other.

        The `last` of these may be of a type of its own.
        """
        self.k = k
        self._sums = {working: [k.variable(working) for _ in range(min(most, WATCHES))]}
        if last is not None and last != working:
            self._sums[last] = [k.variable(last) for _ in range(2)]

    def begin(self) -> None:
        for kind, sums in self._sums.items():
            for variable in sums:
                variable.set(self.k.constant(kind, _FIRST))

    def see(self, index: int, value: Value) -> None:
        """One more vector, the element of this index among those that come one after the other."""
        sums = self._sums[value.type]
        total = sums[index % len(sums)]
        total.set(self.k.fma(value, self.k.constant(value.type, _SCALE), total.get()))

    def met_nan(self) -> Value:
        """Whether there may have been NaN."""
        totals = [reduce(operator.add, [one.get() for one in sums]) for sums in self._sums.values()]
        return reduce(operator.or_, [self.k.any_lane(total.differs(total)) for total in totals])

    def over(self, work: Callable[[bool], None]) -> None:
        """Do some work without care for NaN, and where there may have been some, again with care."""
        self.begin()
        work(False)
        with self.k.when(self.met_nan()):
            work(True)


class Combining:
    """Columns are combined over the rows first, then windows along the row, where neighbours share partial results.

    Where it only `watches` for NaN, the windows are right if there is none: a minimum or maximum that hands NaN on
    takes several instructions.
    """

    def __init__(
        self, k: Function, fold: Combine, along: Along, working: Type, lanes: int, *, in_turns: bool, watches: bool
    ) -> None:
        self.k, self.fold, self.along = k, fold, along
        self.watch = Watch(k, working.vector(lanes)) if watches else None
        self.neutral = neutral(k, fold.kind, working.vector(lanes))
        self.columns = [k.variable(working.vector(lanes)) for _ in along.columns]
        self.windows = [k.variable(working.vector(lanes)) for _ in range(along.places)] if in_turns else []

    def begin(self) -> None:
        for variable in (*self.columns, *self.windows):
            variable.set(self.neutral)
        if self.watch is not None:
            self.watch.begin()

    def row(self, row: Row) -> None:
        for index, _, block in row.columns():
            with block as element:
                self.column(index, element)

    def column(self, index: int, element: Value, asked: Value | None = None) -> None:
        """One column of a row, in those lanes of which a mask says that they are no padding."""
        (value,) = emit_working(self.k, self.fold.element.roots, [element])
        if asked is not None:
            value = self.k.select(asked, value, self.neutral)
        column = self.columns[index]
        column.set(self._combined(column.get(), value))
        if self.watch is not None:
            self.watch.see(index, value)

    def met_nan(self) -> Value:
        """Whether there may have been NaN among the elements that it watched."""
        assert self.watch is not None
        return self.watch.met_nan()

    def _combined(self, left: Value, right: Value) -> Value:
        if self.watch is None:
            return combined(self.k, self.fold.kind, left, right)
        faster = self.k.faster_larger if self.fold.kind == "maximum" else self.k.faster_smaller
        return faster(left, right)

    def settle(self) -> None:
        if self.windows:
            for variable, value in zip(self.windows, self._windows(), strict=True):
                variable.set(self._combined(variable.get(), value))
            for variable in self.columns:
                variable.set(self.neutral)

    def finish(self) -> list[list[Value]]:
        if self.windows:
            return [[variable.get()] for variable in self.windows]
        return [[value] for value in self._windows()]

    def _windows(self) -> list[Value]:
        return windows_along(self.along, [variable.get() for variable in self.columns], self._combined)


def windows_along(along: Along, columns: Sequence[Value], combine: Callable[[Value, Value], Value]) -> list[Value]:
    """The windows over columns: runs of 1, 2, 4… columns, each made once."""
    runs = {(1, offset): column for offset, column in zip(along.columns, columns, strict=True)}

    def run(length: int, offset: int) -> Value:
        if (length, offset) not in runs:
            half = 1 << ((length - 1).bit_length() - 1)
            rest = run(length - half, offset + half * along.dilation)
            runs[length, offset] = combine(run(half, offset), rest)
        return runs[length, offset]

    return [run(along.taps, along.column(place, 0)) for place in range(along.places)]


class Locating:
    """The largest element of each window so far, and its number."""

    def __init__(self, k: Function, along: Along, working: Type, lanes: int) -> None:
        self.k, self.along, self.lanes = k, along, lanes
        self.lowest = neutral(k, "maximum", working.vector(lanes))
        self.best = [k.variable(working.vector(lanes)) for _ in range(along.places)]
        self.places = [k.variable(I64.vector(lanes)) for _ in range(along.places)]

    def begin(self) -> None:
        for best, place in zip(self.best, self.places, strict=True):
            best.set(self.lowest)
            place.set(self.k.constant(place.type, -1))

    def row(self, row: Row) -> None:
        k = self.k
        assert row.number is not None
        assert row.step is not None
        for _, offset, block in row.columns():
            with block as element:
                number = k.splat(row.number + row.step * offset, self.lanes)
                for window, _ in self.along.readers(offset):
                    best, place = self.best[window].get(), self.places[window].get()
                    better = (element > best) | (place < 0)
                    if element.type.is_float:
                        better = better | (element.differs(element) & ~best.differs(best))
                    self.best[window].set(k.select(better, element, best))
                    self.places[window].set(k.select(better, number, place))

    def settle(self) -> None:
        pass

    def finish(self) -> list[list[Value]]:
        return [[best.get(), place.get()] for best, place in zip(self.best, self.places, strict=True)]


class Correlating:
    """Sums of products for each window."""

    def __init__(self, k: Function, fold: Correlate, along: Along, working: Type, lanes: int) -> None:
        self.k, self.fold, self.along, self.working, self.lanes = k, fold, along, working, lanes
        self.sums = [k.variable(working.vector(lanes)) for _ in range(along.places)]
        self.holds_weights = holds_weights(k.target, fold, along.taps)

    def begin(self) -> None:
        for variable in self.sums:
            variable.set(self.k.constant(variable.type, 0))

    def row(self, row: Row) -> None:
        """Few weights wait in registers, many come from memory each time."""
        k, taps, channels = self.k, self.along.taps, self.fold.channels
        assert row.weights is not None
        places = [row.weights.offset(at * self.lanes) for at in range(taps * channels)]
        held = [self._weight(place) for place in places] if self.holds_weights else None
        for _, offset, block in row.columns():
            with block as element:
                for channel in range(channels):
                    spread = self._spread(element, channel)
                    for window, tap in self.along.readers(offset):
                        at = tap * channels + channel
                        weight = held[at] if held is not None else self._weight(places[at])
                        self.sums[window].set(k.fma(spread, weight, self.sums[window].get()))

    def _weight(self, place: Pointer) -> Value:
        storage = self.fold.weights
        return as_loaded(place.cast(memory_type(storage)).load(0, self.lanes), storage).to(self.working)

    def _spread(self, element: Value, channel: int) -> Value:
        """For each filter the channel that it reads, where a group has `channels` of them."""
        channels, filters = self.fold.channels, self.fold.filters
        if channels == filters == 1:
            return element
        if element.type.lanes == 1:
            return self.k.splat(element, self.lanes)
        if self.lanes == 1:
            return element.lane(channel)
        return self.k.shuffle(element, None, [lane // filters * channels + channel for lane in range(self.lanes)])

    def settle(self) -> None:
        pass

    def finish(self) -> list[list[Value]]:
        return [[variable.get()] for variable in self.sums]


def folding(k: Function, fold: Fold, along: Along, working: Type, lanes: int, *, in_turns: bool) -> Folding:
    """The code of a fold; `in_turns` says that the taps of a row are gone through in several turns."""
    if isinstance(fold, Combine):
        return Combining(k, fold, along, working, lanes, in_turns=in_turns, watches=False)
    if isinstance(fold, Locate):
        return Locating(k, along, working, lanes)
    return Correlating(k, fold, along, working, lanes)
