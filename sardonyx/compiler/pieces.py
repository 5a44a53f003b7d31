"""Recorded steps as numbers, from which plans are put together without a look at every word."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import compress
from operator import not_

import numpy as np
from numpy.typing import NDArray

from sardonyx.compiler.binding import Argument, Buffer, RecordedStep, Tensor
from sardonyx.compiler.traced import Traced
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.native_plan import StepColumn, StepFlag

Words = NDArray[np.int64]

# Of each step, the first columns of the plan's table.
STEP_NUMBERS = StepColumn.FLAGS + 1
_CALLER = int(StepFlag.CALLER)
_NUMBERS = frozenset({int, bool, Traced})
_NONE = np.zeros(0, np.int64)


@dataclass(eq=False, slots=True)
class Piece:
    """The steps of one operation in a plan. Nobody changes one.

    words: all their arguments, 0 where an address goes.
    numbers: int64: how many words there are; `STEP_NUMBERS` for each step, its first argument counted from the first
        word of the piece; for each place the word where an address goes; for each place the bytes that are added to
        it; the size of each new buffer; the address of each constant that every replay has.
    steps: how many there are. places: of each, the number of its buffer in the recording.
    arena, constants: the numbers of those buffers.
    nanoseconds: a rough estimate of what a thread takes.
    topology: which steps touch which buffers how, equal for pieces that differ in sizes only.
    """

    words: bytes
    numbers: Words
    steps: int
    places: Sequence[int]
    arena: Sequence[int]
    constants: Sequence[int]
    nanoseconds: float
    topology: Hashable

    def resized(self, words: bytes, numbers: Words, nanoseconds: float) -> Piece:
        """The same steps for other sizes."""
        others = self.steps, self.places, self.arena, self.constants
        return Piece(words, numbers, *others, nanoseconds, self.topology)


class PieceMaker:
    """Makes a piece of the steps of one operation, which are added in order. `ref` numbers their buffers.

    `groups` is how many groups of steps there were before. The numbers are `traced`, or plain ones.
    """

    def __init__(self, ref: Callable[[Buffer], int], groups: int, *, traced: bool = False) -> None:
        self._ref = ref
        self._groups = groups
        self.words: array[int] | list[int] = [] if traced else array("q")
        self._table: list[int] = []
        self._places: list[int] = []  # the words where addresses go
        self._refs: list[int] = []  # of each, the number of its buffer
        self._offsets: list[int] = []  # and the bytes that are added to it
        self._topology: list[Hashable] = []
        self.nanoseconds = 0.0

    def add(
        self,
        function: int,
        arguments: Sequence[Argument],
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        group: int,
        chunks: int,
        claim: int,
        alone: int,
        nanoseconds: float,
    ) -> None:
        """A step as `Binder.step` is given it; `alone` is 1 where the caller does it, else 0."""
        first, places = len(self.words), len(self._places)
        self._table += (function, first, chunks, claim, alone * _CALLER)
        words, buffers = list(arguments), []
        # Most arguments are numbers, which are passed over without running Python code for each.
        for place in compress(range(len(arguments)), map(not_, map(_NUMBERS.__contains__, map(type, arguments)))):
            argument = arguments[place]
            if not isinstance(argument, int):
                words[place] = 0
                buffers.append(argument.buffer)
                self._places.append(first + place)
                self._offsets.append(argument.offset)
        self.words.extend(words)  # type: ignore[arg-type]
        buffers += [one.buffer for one in (*reads, *writes)]
        refs = [*map(self._ref, buffers)]
        new = len(self._places) - places
        self._refs += refs[:new]
        self._topology += (group and group - self._groups, len(self._places), len(reads), *refs[new:])
        self.nanoseconds += nanoseconds

    @staticmethod
    def of(steps: Iterable[RecordedStep]) -> PieceMaker:
        """One that has these steps."""
        none: dict[Buffer, int] = {}
        made = PieceMaker(none.__getitem__, 0)
        words = made.words
        for _, form, refs, group in steps:
            first = len(words)
            made._table += (form.function.address, first, form.chunks, form.claim, _CALLER if form.alone else 0)
            words.extend(array("q", form.words))
            for word, place, offset in form.places:
                made._places.append(first + word)
                made._refs.append(refs[place])
                made._offsets.append(offset)
            touched = [refs[one] for one in (*form.read_refs, *form.written_refs)]
            made._topology += (group, len(made._places), len(form.read_refs), *touched)
            made.nanoseconds += form.nanoseconds
        return made

    def piece(
        self, arena: Sequence[tuple[int, int]], constants: Sequence[tuple[int, int]], others: Iterable[Hashable]
    ) -> Piece:
        """`arena` are new buffers with their sizes, `constants` others with their addresses, and `others` is what else
        the topology depends on."""
        assert isinstance(self.words, array)
        numbers = np.array(self.numbers(arena, constants), np.int64)
        return self.template(arena, constants, others).resized(self.words.tobytes(), numbers, self.nanoseconds)

    def template(
        self, arena: Iterable[tuple[int, int]], constants: Iterable[tuple[int, int]], others: Iterable[Hashable]
    ) -> Piece:
        """The piece without what depends on sizes."""
        refs, new, kept = self._refs, [ref for ref, _ in arena], [ref for ref, _ in constants]
        topology = (*self._topology, *refs, -1, *new, -1, *kept, *others)
        return Piece(b"", _NONE, len(self._table) // STEP_NUMBERS, refs, new, kept, 0.0, topology)

    def numbers(self, arena: Iterable[tuple[int, int]], constants: Iterable[tuple[int, int]]) -> Sequence[int]:
        """Those of the piece."""
        sizes, addresses = [size for _, size in arena], [address for _, address in constants]
        return len(self.words), *self._table, *self._places, *self._offsets, *sizes, *addresses


class Rows:
    """Where the numbers of pieces lie when those of all kinds are joined: one array of places for each sort.

    Operations are numbered in the order of `add`.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        """`pieces` has that of each kind."""
        self._pieces = pieces
        self._starts = np.cumsum([0, *(len(piece.numbers) for piece in pieces)])
        self._found: list[list[Words]] = [[] for _ in range(6)]

    def add(self, kind: int) -> None:
        """One more operation of that kind."""
        piece, start = self._pieces[kind], int(self._starts[kind])
        parts = (1, STEP_NUMBERS * piece.steps, *[len(piece.places)] * 2, len(piece.arena), len(piece.constants))
        for found, count in zip(self._found, parts, strict=True):
            found.append(np.arange(start, start + count))
            start += count

    def all(self) -> list[Words]:
        """Of all operations: how many words, steps, words of places, their offsets, sizes of buffers, addresses."""
        return [np.concatenate([np.zeros(0, np.int64), *found]) for found in self._found]
