"""Fourier transforms of rows: a block of rows, one in each lane, is transformed in a thread's own memory.

Of a real row of an even number of elements, pairs of neighbours are taken for complex numbers: a transform of half the
length, and a step that takes the spectra of even and odd elements apart, do the work of a whole one (Cooley, Lewis and
Welch, "The fast Fourier transform algorithm", 1970).
"""

from __future__ import annotations

from typing import Literal

from sardonyx.compiler.arguments import Float, Read, Record, Rest, Size, Write, kernel
from sardonyx.compiler.kernels.fourier.butterflies import Complex, Elements, Pass, emit_pass, number_at
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.movement.transpose import transposed
from sardonyx.compiler.llvm.types import F32, F64, PTR, Type
from sardonyx.compiler.llvm.walk import share
from sardonyx.light_dataclass import dataclass

# What is done to a row before the passes: nothing; one half of a real row's spectrum is made that of its pairs; or
# is made whole. And behind them: nothing; the spectrum of pairs is made that of the real row, one half or all of it.
Before = Literal["", "pack", "mirror"]
After = Literal["", "unpack", "unpack all"]

# Argument words of each pass.
_PASS_WORDS = 5


@dataclass(frozen=True)
class TransformSpec:
    """Rows of `type`, multiplied by a window on the way in if `windowed`."""

    type: Type
    windowed: bool = False
    before: Before = ""
    after: After = ""

    @property
    def working(self) -> Type:
        """The type of all arithmetic."""
        return F64 if self.type == F64 else F32


class Arguments(Record):
    source = Read(lambda spec: spec.type)
    result = Write(lambda spec: spec.type)
    window = Read(lambda spec: spec.type)  # if `windowed`
    numbers = Read(lambda spec: spec.working)  # factors and roots of unity, complex
    rows = Size()
    blocks = Size()  # of rows
    per_chunk = Size()  # blocks
    inner = Size()  # rows under one outer place
    outer_step = Size()  # source words between outer places
    inner_step = Size()  # and between rows
    read_words = Size()  # of a row
    read_apart = Size()  # the distance at which they are kept: 2 leaves imaginary parts out
    clear_from = Size()
    clear_to = Size()
    written_words = Size()  # of a result's row
    written_apart = Size()  # the distance at which they are kept
    scale = Float()  # what results are multiplied by
    is_inverse = Size()  # 1 for an inverse transform, else 0
    half = Size()  # elements of half a real row
    room = Size()  # words that a thread keeps of each lane
    own = Size()  # the place of the numbers that belong to `before` and `after`
    pass_count = Size()
    passes = Rest()  # of each pass the radix, groups, stride, and the places of its factors and roots


@kernel(Arguments)
def emit_transform(k: Function, a: Arguments, spec: TransformSpec) -> None:
    """Rows of words to rows of words, where two words are a complex element, or one is a real one."""
    block = _Block(k, a, spec)
    begin, end = share(k, a.blocks, a.per_chunk)
    with k.loop(begin, end) as item:
        block.transform(item * block.lanes)


class _Block:
    """What is done for a block of rows."""

    def __init__(self, k: Function, a: Arguments, spec: TransformSpec) -> None:
        self._k, self._spec = k, spec
        working = spec.working
        self.lanes = k.target.lanes(working)
        self._source, self._goal = a.source, a.result
        self._window, self._numbers = a.window, a.numbers
        self._rows = a.rows
        self._inner, self._outer_step, self._inner_step = a.inner, a.outer_step, a.inner_step
        self._read_words, self._read_apart = a.read_words, a.read_apart
        self._clear_from, self._clear_to = a.clear_from, a.clear_to
        self._written_words, self._written_apart = a.written_words, a.written_apart
        self._scale = a.scale.to(working)
        self._is_inverse, self._half = a.is_inverse, a.half
        self._own_numbers = self._numbers.offset(a.own)
        self._pass_count, self._passes = a.pass_count, a.passes
        self._rooms = k.pointer("scratch", working), k.pointer("scratch", working).offset(a.room * self.lanes)

    def transform(self, first: Value) -> None:
        """The rows from `first` on, as many as a vector has lanes; of the last one where there are fewer."""
        k = self._k
        here, there = k.variable(PTR), k.variable(PTR)
        here.set(self._rooms[0].address)
        there.set(self._rooms[1].address)
        self._load(first)
        if self._spec.before == "pack":
            self._pack()
        elif self._spec.before == "mirror":
            self._complete(self._elements(here.get()), self._half * 2 + 1, self._half + 1)
        with k.loop(0, self._pass_count) as number:
            row = self._passes.offset(number * _PASS_WORDS)
            factors, roots = self._numbers.offset(row.load(3)), self._numbers.offset(row.load(4))
            one = Pass(row.load(0), row.load(1), row.load(2), factors, roots)
            from_, to = here.get(), there.get()
            emit_pass(k, one, self._elements(from_, directed=True), self._elements(to, directed=True))
            here.set(to)
            there.set(from_)
        if self._spec.after:
            from_, to = here.get(), there.get()
            self._unpack(self._elements(from_), self._elements(to))
            here.set(to)
        self._store(first, Pointer(here.get(), self._spec.working))

    def _elements(self, address: Value, *, directed: bool = False) -> Elements:
        """The elements at a place; as those of an inverse transform where this is one and `directed` says so."""
        start = Pointer(address, self._spec.working)
        if not directed:
            return Elements(start, start.offset(self.lanes), self.lanes)
        shift = self._is_inverse * self.lanes
        return Elements(start.offset(shift), start.offset(-shift + self.lanes), self.lanes)

    def _load(self, first: Value) -> None:
        """Read the rows and turn them, so that each lies in a lane of its own; what they lack is 0."""
        k, lanes, room = self._k, self.lanes, self._rooms[0]
        zero = k.constant(self._spec.working.vector(lanes), 0)
        with k.loop(self._clear_from, self._clear_to) as word:
            room.store(zero, word * lanes)
        starts = []
        for lane in range(lanes):
            row = k.smaller(first + lane, self._rows - 1)
            outer = row // self._inner
            starts.append(
                self._source.offset(outer * self._outer_step + (row - outer * self._inner) * self._inner_step)
            )

        def turn(word: Value, mask: Value | None) -> None:
            rows = [start.load(word, lanes, mask).to(self._spec.working) for start in starts]
            if self._spec.windowed:
                window = self._window.load(word, lanes, mask).to(self._spec.working)
                rows = [row * window for row in rows]
            for index, column in enumerate(transposed(k, rows)):
                room.store(column, (word + index) * self._read_apart * lanes)

        whole = self._read_words & -lanes
        with k.loop(0, whole, lanes) as word:
            turn(word, None)
        with k.when(whole < self._read_words):
            turn(whole, k.lanes_below(self._read_words - whole, lanes))

    def _store(self, first: Value, room: Pointer) -> None:
        """Turn the results into rows and write those that there are."""
        k, lanes = self._k, self.lanes
        goals = [self._goal.offset((first + lane) * self._written_words) for lane in range(lanes)]
        wanted = [(first + lane) < self._rows for lane in range(lanes)]

        def turn(word: Value, mask: Value | None) -> None:
            columns = [
                room.load((word + index) * self._written_apart * lanes, lanes) * self._scale for index in range(lanes)
            ]
            for goal, there, row in zip(goals, wanted, transposed(k, columns), strict=True):
                with k.when(there):
                    goal.store(row.to(self._spec.type), word, mask)

        whole = self._written_words & -lanes
        with k.loop(0, whole, lanes) as word:
            turn(word, None)
        with k.when(whole < self._written_words):
            turn(whole, k.lanes_below(self._written_words - whole, lanes))

    def _pack(self) -> None:
        """Of the spectrum of a real row, elements 0 to h, make that of its pairs: E + iO, in place."""
        k, half = self._k, self._half
        elements = self._elements(self._rooms[0].address)
        self._make_real(elements, 0)
        self._make_real(elements, half)
        with k.loop(0, half // 2 + 1) as index:
            one, other = elements.load(index), elements.load(half - index).conjugate
            factor = number_at(self._own_numbers, index, self.lanes)
            even = (one + other).scaled(0.5)
            odd = (one - other).scaled(0.5) * factor.conjugate
            elements.store(even - odd.turned, index)
            elements.store((even + odd.turned).conjugate, half - index)

    def _unpack(self, read: Elements, write: Elements) -> None:
        """Of the spectrum of a real row's pairs, h elements, make that of the row."""
        k, half = self._k, self._half
        with k.loop(0, half // 2 + 1) as index:
            opposite = k.select(index.equals(0), index, half - index)
            one, other = read.load(index), read.load(opposite).conjugate
            even = (one + other).scaled(0.5)
            odd = (one - other).scaled(0.5).turned * number_at(self._own_numbers, index, self.lanes)
            write.store(even + odd, index)
            write.store((even - odd).conjugate, half - index)
        if self._spec.after == "unpack all":
            self._complete(write, half * 2, half)

    def _complete(self, elements: Elements, length: Value, known: Value) -> None:
        """The other half of a real row's spectrum: the conjugates of the elements from 1 up to `known` (excluded)."""
        self._make_real(elements, 0)
        with self._k.loop(1, known) as index:
            elements.store(elements.load(index).conjugate, length - index)

    def _make_real(self, elements: Elements, index: Value | int) -> None:
        zero = self._k.constant(self._spec.working.vector(self.lanes), 0)
        elements.store(Complex(elements.load(index).real, zero), index)
