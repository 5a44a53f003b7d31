"""Windows of a convolution's input as rows of A: a block of them is put together where the micro-kernel reads it.

The input lies so that what a window holds of one line (or, with dilation or groups, of one tap) is a *run* of words in
memory. A row of A is one run after the other; what lies outside the input is zero. Rows count places of the output,
those of an item of the batch before the next item's, so that a tile may go from one line of the output, or one item,
to the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from sardonyx.compiler.llvm.builder import Function, Pointer, Value, Variable, minimum
from sardonyx.compiler.llvm.kernels.products.gemm_packing import converted
from sardonyx.compiler.llvm.kernels.products.gemm_product import Product
from sardonyx.compiler.llvm.types import BOOL, I64
from sardonyx.light_dataclass import dataclass

# Spatial dimensions that the kernel counts; those that are missing have one place and one tap.
SPATIAL = 3

_PER_DIM = ("places", "step", "first", "stride", "size", "reach")
NAMES = ("item_step", "run_words", "tap_words", *(f"{name}{dim}" for name in _PER_DIM for dim in range(SPATIAL)))
# Words of the table for each run: where it starts from the window's start, and its place in each dimension.
_RUN = 1 + SPATIAL


@dataclass(frozen=True)
class WindowGeometry:
    """The windows of an input in memory, by dimension; steps count words.

    `places` are the output's sizes, `size` the input's; `step` is from one window to the next, `within` from one tap to
    the next, `item_step` from one item of the batch to the next. The first window begins at `-begin`. Along the last
    dimension the taps are one run if `joined`: they are `within[-1]` words apart and as long.
    """

    places: tuple[int, ...]
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    begin: tuple[int, ...]
    step: tuple[int, ...]
    within: tuple[int, ...]
    item_step: int
    tap_words: int
    joined: bool

    @property
    def run_words(self) -> int:
        return self.tap_words * (self.kernel[-1] if self.joined else 1)

    def arguments(self) -> dict[str, int]:
        """The values of `NAMES`."""
        none, one = [0] * (SPATIAL - len(self.size)), [1] * (SPATIAL - len(self.size))
        reach = [(taps - 1) * apart for taps, apart in zip(self.kernel, self.dilation, strict=True)]
        values = {
            "places": (*one, *self.places),
            "step": (*none, *self.step),
            "first": (*none, *(-begin for begin in self.begin)),
            "stride": (*none, *self.stride),
            "size": (*one, *self.size),
            "reach": (*none, *reach),
        }
        named = {f"{name}{dim}": values[name][dim] for name in _PER_DIM for dim in range(SPATIAL)}
        return named | {"item_step": self.item_step, "run_words": self.run_words, "tap_words": self.tap_words}

    def table(self) -> list[int]:
        """The runs, in order of K: see `_RUN`. Their starts count from the window's place in the input."""
        counts = (*self.kernel[:-1], 1) if self.joined else self.kernel
        none = [0] * (SPATIAL - len(self.size))
        words: list[int] = []
        for taps in itertools.product(*map(range, counts)):
            words.append(sum(tap * within for tap, within in zip(taps, self.within, strict=True)))
            words += [*none, *(tap * apart for tap, apart in zip(taps, self.dilation, strict=True))]
        return words

    def start(self) -> int:
        """Words from the input's start to where the first window begins, which may lie before it."""
        return -sum(
            begin * (step // stride) for begin, step, stride in zip(self.begin, self.step, self.stride, strict=True)
        )


class WindowCopy:
    """Writes the copying of rows of A from windows; `given` are the arguments by name, `table` the runs."""

    def __init__(self, k: Function, product: Product, given: Mapping[str, Value], table: Pointer) -> None:
        self.k, self.product, self.given, self.table = k, product, given, table
        # Products of several elements a word take an input of words, made before.
        self.scalar = product.stored_a if product.depth == 1 else product.word
        self.lanes = k.target.lanes(product.word)

    def copy(
        self, source: Pointer, row: Value, rows: Value, first: Value, words: Value, target: Pointer, stride: Value
    ) -> None:
        """Words [first, first + words) of rows [row, row + rows) to lines `stride` words apart.

        `source` is where the first window begins. Up to a vector behind a line's words is overwritten.
        """
        k, given = self.k, self.given
        length = given["run_words"]
        first_run, last_run = first // length, (first + (words + (length - 1))) // length
        places = _Places(k, given, row)
        with k.loop(0, rows) as turn:
            line = target.offset(turn * stride)
            window = source.offset(places.start())
            inside = places.are_inside()
            with k.loop(first_run, last_run) as run:
                begin = k.larger(first - run * length, 0)
                end = minimum(k, first + words - run * length, length)
                place = line.offset(run * length - first)
                entry = self.table.offset(run * _RUN)
                origin = window.offset(entry.load())
                with k.when(inside):
                    self._whole(origin, place, begin, end)
                with k.otherwise(inside):
                    self._cut(origin, place, begin, end, places, entry)
            places.advance()

    def _whole(self, source: Pointer, place: Pointer, begin: Value, end: Value) -> None:
        """Words [begin, end) of a run that lies in the input."""
        k, lanes = self.k, self.lanes
        whole = begin + (end - begin) // lanes * lanes
        with k.loop(begin, whole, lanes) as column:
            place.store(self._words(source.offset(column), None), column)
        with k.when(whole < end):
            place.store(self._words(source.offset(whole), k.lanes_below(end - whole, lanes)), whole)

    def _cut(self, source: Pointer, place: Pointer, begin: Value, end: Value, places: _Places, entry: Pointer) -> None:
        """The same of a run of which a part lies outside."""
        k, lanes, tap = self.k, self.lanes, self.given["tap_words"]
        low, high = places.there(entry, self.given["run_words"], tap)
        with k.loop(begin, end, lanes) as column:
            last = minimum(k, high, end)
            mask = k.lanes_below(last - column, lanes) & (k.lanes_below(low - column, lanes) ^ True)
            place.store(self._words(source.offset(column), mask), column)

    def _words(self, source: Pointer, mask: Value | None) -> Value:
        if self.product.depth > 1:
            return source.load(0, self.lanes, mask)
        return converted(self.k, source.load(0, self.lanes, mask), self.product.packed_a)


class _Places:
    """The place of the output that a row stands for, from one row to the next."""

    def __init__(self, k: Function, given: Mapping[str, Value], row: Value) -> None:
        self.k, self.given = k, given
        rest = row
        self.at: list[Variable] = []
        for dim in reversed(range(SPATIAL)):
            count = given[f"places{dim}"]
            self.at.insert(0, k.variable(I64, rest % count))
            rest = rest // count
        self.item = k.variable(I64, rest)

    def start(self) -> Value:
        """Words from the first window to this one."""
        total = self.item.get() * self.given["item_step"]
        for dim, at in enumerate(self.at):
            total = total + at.get() * self.given[f"step{dim}"]
        return total

    def _position(self, dim: int) -> Value:
        return self.at[dim].get() * self.given[f"stride{dim}"] + self.given[f"first{dim}"]

    def are_inside(self) -> Value:
        """Whether the whole window lies in the input."""
        k, given = self.k, self.given
        inside = k.constant(BOOL, True)
        for dim in range(SPATIAL):
            position = self._position(dim)
            inside = inside & (position >= 0) & (position + given[f"reach{dim}"] < given[f"size{dim}"])
        return inside

    def there(self, entry: Pointer, run_words: Value, tap_words: Value) -> tuple[Value, Value]:
        """The words [low, high) of a run that lie in the input."""
        k, given = self.k, self.given
        exists = k.constant(BOOL, True)
        for dim in range(SPATIAL - 1):
            position = self._position(dim) + entry.load(1 + dim)
            exists = exists & (position >= 0) & (position < given[f"size{dim}"])
        last = SPATIAL - 1
        position = self._position(last) + entry.load(1 + last)
        low = k.larger(-position, 0) * tap_words
        high = minimum(k, (given[f"size{last}"] - position) * tap_words, run_words)
        return low, k.select(exists, high, 0)

    def advance(self) -> None:
        """Go on to the next row."""
        k = self.k
        carry: Value = k.constant(I64, 1)
        for dim in reversed(range(SPATIAL)):
            moved = self.at[dim].get() + carry
            over = moved.equals(self.given[f"places{dim}"])
            self.at[dim].set(k.select(over, 0, moved))
            carry = k.select(over, k.constant(I64, 1), k.constant(I64, 0))
        self.item.set(self.item.get() + carry)
