"""Recorded steps as numbers, from which plans are put together without a look at every word."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sardonyx.compiler.binding import RecordedStep
from sardonyx.runtime.native_plan import StepColumn, StepFlag

Words = NDArray[np.int64]

# Of each step, the first columns of the plan's table.
STEP_NUMBERS = StepColumn.FLAGS + 1
_CALLER = int(StepFlag.CALLER)


@dataclass(frozen=True, eq=False)
class Piece:
    """The steps of one operation in a plan.

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

    @staticmethod
    def of(
        steps: Sequence[RecordedStep],
        arena: Sequence[tuple[int, int]],
        constants: Sequence[tuple[int, int]],
        others: Iterable[Hashable],
    ) -> Piece:
        """The piece of steps that follow each other.

        `arena` are new buffers with their sizes, `constants` others with their addresses, and `others` is what else
        the topology depends on.
        """
        table: list[int] = []
        words: list[int] = []
        offsets: list[int] = []
        places: list[int] = []
        topology: list[Hashable] = []
        first, nanoseconds = 0, 0.0
        for _, form, buffers, group in steps:
            table += (form.function, first, form.chunks, form.claim, _CALLER if form.alone else 0)
            for word, ref, offset in form.places:
                words.append(first + word)
                offsets.append(offset)
                places.append(buffers[ref])
            topology += (group, form.alone, len(words), buffers, form.read_refs, form.written_refs)
            first += len(form.words) // 8
            nanoseconds += form.nanoseconds
        sizes = [nbytes for _, nbytes in arena]
        addresses = [address for _, address in constants]
        new, kept = [ref for ref, _ in arena], [ref for ref, _ in constants]
        return Piece(
            b"".join([form.words for _, form, _, _ in steps]),
            np.array([first, *table, *words, *offsets, *sizes, *addresses], np.int64),
            len(steps),
            places,
            new,
            kept,
            nanoseconds,
            (*topology, *places, -1, *new, -1, *kept, *others),
        )


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
