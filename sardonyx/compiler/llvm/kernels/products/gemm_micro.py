"""The micro-kernel: a tile of C in registers, one step of K at a time.

For each step a vector or two of B are loaded and one word of A per row is spread over the lanes; every row takes one
multiply-accumulate per vector. A tile has up to `rows` rows of one panel, or few rows of several panels, so that
enough independent accumulators hide the latency of the instruction.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sardonyx.compiler.llvm.builder import Carried, Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.products.gemm_product import Product
from sardonyx.compiler.llvm.types import I64, U32
from sardonyx.light_dataclass import dataclass

# Bytes of a cache line.
_LINE = 64

# Accumulators that keep the multiply-add units of today's machines busy: two units, four cycles to a sum. A tile of
# fewer takes as long as one of so many.
BUSY = 8

_FEWER_REQUESTS = 6

# Rows that are addressed from one pointer: at 0, 1 and 2 strides from it.
_ROWS_OF_A_POINTER = 3


@dataclass(frozen=True)
class Rows:
    """Rows of A: where word 0 of row 0 is, and the stride in words that is not 1: between rows if `along_k`.

    `spread` is how many rows have a part of their words between two parts of one row's: those of a tile of AMX, where
    A lies in such tiles. `near` are 0, 1 and 2 strides where several tiles share them, see `sharing`.
    """

    start: Pointer
    stride: Value
    along_k: bool
    spread: int = 1
    near: tuple[Value | int, ...] = ()

    def sharing(self, k: Function) -> Rows:
        """The same for tiles that follow in any of several blocks: what they have in common is worked out here."""
        return replace(self, near=_near(k, self.stride)) if self.along_k else self


@dataclass(frozen=True)
class Request:
    """Places that are asked for from `start` on, so many bytes `apart`, `lines` of them in each step of K."""

    start: Pointer
    lines: int
    apart: Value | int = _LINE


@dataclass(frozen=True)
class Panels:
    """Panels of B: where word 0 of each is, vectors of each, masks of the vectors (None: whole), and the stride between
    steps of K in words (an int where the panels are packed)."""

    starts: tuple[Pointer, ...]
    vectors: int
    masks: tuple[Value | None, ...]
    stride: Value | int
    prefetch: Value | None = None  # words ahead of what is read, to be asked for
    requests: tuple[Request, ...] = ()  # what else is asked for
    minus: Pointer | None = None  # what is taken from the words of the only panel, and
    kept: Pointer | None = None  # where the differences are written, both laid out as the panel
    halved: bool = False  # whether only the lower half of the last vector's lanes is wanted
    begins: tuple[Pointer, ...] = ()  # of bounded words: for each panel the bytes of A's rows where its words begin
    words: Value | None = None  # its own steps of K, if there are fewer


@dataclass(frozen=True)
class Tile:
    """Where the tile lies in scratch: its first element, elements between rows and between panels."""

    start: Pointer
    stride: Value
    panel: int

    def places(self, vectors: Iterable[tuple[int, int, int]], lanes: int) -> dict[tuple[int, int, int], Pointer]:
        """Where vectors of it lie, by row, panel and number within the panel; rows come in order."""
        found, apart, row, line = {}, self.stride.number, 0, self.start
        for place in vectors:
            along = place[1] * self.panel + place[2] * lanes
            while apart is None and row < place[0]:
                row, line = row + 1, line.offset(self.stride)
            found[place] = line.offset(along if apart is None else place[0] * apart + along)
        return found

    def unless(self, k: Function, fresh: Value, panels: int = 1) -> Tile:
        """What sums of so many panels at most are added to: this tile, or zeros where they are `fresh`."""
        zeros = k.zeros(self.start.scalar, panels * self.panel)
        start = k.select(fresh, zeros.address, self.start.address)
        return Tile(k.pointer(start, zeros.scalar), k.select(fresh, k.constant(I64, 0), self.stride), self.panel)


Registers = dict[tuple[int, int, int], Value]


def multiply_tile(
    k: Function,
    product: Product,
    a: Rows,
    b: Panels,
    rows: int,
    words: Value,
    unroll: int,
    before: Tile | None = None,
) -> Registers:
    """The first `rows` rows of A times the panels, over `words` words of K, added to the tile `before`, if any.

    The result's vectors by row, panel and number within the panel. Halved panels take an even number of rows and no
    tile.
    """
    lanes = k.target.lanes(product.accumulator)
    steps = _Steps(k, product, a, b, rows)
    places = steps.places()
    if before is None:
        start = {place: k.constant(product.accumulator.vector(steps.lanes_of(place)), 0) for place in places}
    else:
        start = {place: line.load(0, lanes) for place, line in before.places(places, lanes).items()}
    accumulators = {place: Carried(value) for place, value in start.items()}
    carried = [*accumulators.values(), *steps.pointers]
    words = words if b.words is None else b.words
    whole = words - words % unroll if unroll > 1 else words
    with k.loop(0, whole, unroll, carried):
        for step in range(unroll):
            if step:
                k.keep_order()
            steps.multiply(step, accumulators)
        steps.advance(unroll)
    if unroll > 1:
        with k.loop(whole, words, 1, carried):
            steps.multiply(0, accumulators)
            steps.advance(1)
    return steps.results(accumulators)


def store_tile(tile: Tile, values: Registers) -> None:
    """Write a tile to its place in scratch."""
    lanes = next(iter(values.values())).type.lanes
    for place, line in tile.places(values, lanes).items():
        line.store(values[place])


def _near(k: Function, stride: Value) -> tuple[Value | int, ...]:
    """Rows from one pointer; LLVM would chain the sums of strides, and keep words of several steps for the chains."""
    return 0, *(k.opaque(stride * row) for row in range(1, _ROWS_OF_A_POINTER))


class _Steps:
    """The pointers that move along K, and one step of it."""

    def __init__(self, k: Function, product: Product, a: Rows, b: Panels, rows: int) -> None:
        self.k, self.product, self.a, self.b, self.rows = k, product, a, b, rows
        self.lanes = k.target.lanes(product.accumulator)
        self.halved = (len(b.starts) - 1, b.vectors - 1) if b.halved else None
        # Two rows share a register, or each takes half of one, where that is half of the work.
        self.shares = b.halved and not k.target.takes_turns
        if a.along_k:
            self.row_offsets: Sequence[Value | int] = a.near or (_near(k, a.stride) if rows > 1 else (0,))
            starts = [
                a.start.offset(a.stride * first) if first else a.start for first in range(0, rows, _ROWS_OF_A_POINTER)
            ]
        else:
            self.row_offsets = list(range(rows))
            starts = [a.start]
        self.a_pointers = [Carried(start.address) for start in starts]
        self.b_pointers = [Carried(start.address) for start in b.starts]
        self.requests = [Carried(request.start.address) for request in b.requests]
        self.ones = product.ones(k)
        self.begins = [Carried(start.address) for start in b.begins]
        beside = [place for place in (b.minus, b.kept) if place is not None]
        self.beside = [Carried(place.address) for place in beside]
        self.pointers = [*self.a_pointers, *self.b_pointers, *self.requests, *self.beside, *self.begins]

    def places(self) -> list[tuple[int, int, int]]:
        """The accumulators by row, panel and number within the panel; for two rows that share one the second row's."""
        columns = list(itertools.product(range(len(self.b.starts)), range(self.b.vectors)))
        shared = self.halved if self.shares else None
        return [(row, *column) for row in range(self.rows) for column in columns if column != shared or row % 2]

    def lanes_of(self, place: tuple[int, int, int]) -> int:
        """The lanes of an accumulator."""
        return self.lanes // 2 if place[1:] == self.halved and not self.shares else self.lanes

    def results(self, accumulators: dict[tuple[int, int, int], Carried]) -> Registers:
        """The values of the accumulators for every row; where two share one, the first has the lower lanes."""
        values = {place: variable.get() for place, variable in accumulators.items()}
        if self.halved is None:
            return values
        half = self.lanes // 2
        if not self.shares:
            widened = [*range(half), *[-1] * half]
            for row in range(self.rows):
                place = (row, *self.halved)
                values[place] = self.k.shuffle(values[place], None, widened)
            return values
        turned = [*range(half, self.lanes), *range(half)]
        for row in range(0, self.rows, 2):
            both = values[row + 1, *self.halved]
            values[row, *self.halved] = both
            values[row + 1, *self.halved] = self.k.shuffle(both, None, turned)
        return values

    def _halves(self, low: Value, high: Value) -> Value:
        """A vector with one word in the lower half of its lanes, another one in the upper half."""
        k, lanes = self.k, self.lanes
        upper = range(lanes + lanes // 2, 2 * lanes)
        return k.shuffle(k.splat(low, lanes), k.splat(high, lanes), [*range(lanes // 2), *upper])

    def _a_word(self, pointers: Sequence[Value], row: int, step: int) -> Value:
        """Word number `step` of A's row; steps count A's words here."""
        k = self.k
        if not self.a.along_k:
            return k.pointer(pointers[0], self.product.word).offset(self.a.stride * step).load(row)
        line = k.pointer(pointers[row // _ROWS_OF_A_POINTER], self.product.word)
        return line.offset(self.row_offsets[row % _ROWS_OF_A_POINTER]).load(step)

    def multiply(self, step: int, accumulators: dict[tuple[int, int, int], Carried]) -> None:
        """Step number `step` from where the pointers are."""
        for part in range(self.product.left_words):
            if part:
                self.k.keep_order()
            vectors = self._b_vectors(step, part)
            if part == 0:
                self._ask(step)
            self._multiply_rows(step * self.product.left_words + part, vectors, accumulators)

    def _b_vectors(self, step: int, part: int) -> dict[tuple[int, int], Value]:
        """What the rows are multiplied with, by panel and number within the panel; what lies ahead is asked for with
        the first part."""
        k, b, product = self.k, self.b, self.product
        vectors: dict[tuple[int, int], Value] = {}
        for panel, variable in enumerate(self.b_pointers):
            line = k.pointer(variable.get(), product.word).offset(self._b_offset(step))
            for vector in range(b.vectors):
                if (panel, vector) == self.halved:
                    half = product.load_b(line, vector * self.lanes, self.lanes // 2, part)
                    both = k.shuffle(half, None, [*range(self.lanes // 2)] * 2) if self.shares else half
                    vectors[panel, vector] = both
                else:
                    vectors[panel, vector] = product.load_b(
                        line, vector * self.lanes, self.lanes, part, b.masks[vector]
                    )
            if b.prefetch is not None and part == 0:
                ahead = line.offset(b.prefetch)
                # Loads are what few rows are bound by: one request for two lines, which machines fetch in pairs.
                apart = _LINE if self.rows > _FEWER_REQUESTS else 2 * _LINE
                for first in range(0, b.vectors * self.lanes * line.scalar.nbytes, apart):
                    ahead.offset(first // line.scalar.nbytes).prefetch(level=2)
        if self.beside:
            places = [k.pointer(place.get(), product.word) for place in self.beside]
            minus, kept = (place.offset(self._b_offset(step)) for place in places)
            for (_, vector), value in vectors.items():
                difference = vectors[0, vector] = value - minus.load(vector * self.lanes, self.lanes)
                kept.store(difference, vector * self.lanes)
        return vectors

    def _ask(self, step: int) -> None:
        """What is asked for in a step."""
        for request, pointer in zip(self.b.requests, self.requests, strict=True):
            for number in range(step * request.lines, (step + 1) * request.lines):
                wanted = self.k.advance(pointer.get(), request.apart * number, 1)
                self.k.pointer(wanted, self.product.word).prefetch(level=2)

    def _multiply_rows(
        self, word: int, vectors: dict[tuple[int, int], Value], accumulators: dict[tuple[int, int, int], Carried]
    ) -> None:
        """Word number `word` of every row from where the pointers are, times the vectors; of bounded words those of A
        that the words of each panel meet."""
        pointers = [pointer.get() for pointer in self.a_pointers]
        if not self.begins:
            self._multiply_by_panels(pointers, word, vectors, accumulators)
        for panel, begins in enumerate(self.begins):
            first = self.k.pointer(begins.get(), U32).load(word).to(I64)
            moved = [self.k.advance(pointer, first, 1) for pointer in pointers]
            own = {place: value for place, value in vectors.items() if place[0] == panel}
            self._multiply_by_panels(moved, 0, own, accumulators)

    def _multiply_by_panels(
        self,
        pointers: Sequence[Value],
        word: int,
        vectors: dict[tuple[int, int], Value],
        accumulators: dict[tuple[int, int, int], Carried],
    ) -> None:
        """Word number `word` of every row from the pointers on, times the vectors."""
        words: list[Value] = []
        # Words for half a vector are read again: LLVM moves sums from register to register where it is a part of what
        # a whole vector is multiplied with.
        again = [self.k.opaque(pointer) for pointer in pointers] if self.halved and not self.shares else []
        for row in range(self.rows):
            words.append(self._a_word(pointers, row, word))
            for column, value in vectors.items():
                factor = words[-1]
                if column == self.halved:
                    if self.shares and row % 2 == 0:
                        continue
                    factor = self._halves(*words[-2:]) if self.shares else self._a_word(again, row, word)
                variable = accumulators[row, *column]
                variable.set(self.product.multiply(self.k, factor, value, variable.get(), self.ones))
                if self.product.is_bounded:  # LLVM would load the words of all rows first, and spill them
                    self.k.keep_order([variable.get()])

    def _b_offset(self, step: int) -> Value | int:
        return self.b.stride * step

    def advance(self, steps: int) -> None:
        k, word = self.k, self.product.word
        words = steps * self.product.left_words
        for variable in self.begins:
            variable.set(k.advance(variable.get(), k.constant(I64, steps), U32.nbytes))
        for variable in () if self.begins else self.a_pointers:
            along = k.constant(I64, words) if self.a.along_k else self.a.stride * words
            variable.set(k.advance(variable.get(), along, word.nbytes))
        for variable in (*self.b_pointers, *self.beside):
            variable.set(k.advance(variable.get(), self._b_offset(steps), word.nbytes))
        for request, pointer in zip(self.b.requests, self.requests, strict=True):
            pointer.set(k.advance(pointer.get(), request.apart * (steps * request.lines), 1))
