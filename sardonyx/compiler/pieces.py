"""Recorded steps as tables, from which plans are put together without a look at every word."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sardonyx.compiler.binding import RecordedStep
from sardonyx.runtime.native_plan import STEP_WORDS, StepFlag

Words = NDArray[np.int64]

_CALLER = int(StepFlag.CALLER)


@dataclass(frozen=True, eq=False)
class Piece:
    """The steps of one operation in a plan.

    steps: int64[s, 8], columns as in `StepColumn`, their first arguments counted from the first word of the piece.
    words: all their arguments, 0 where an address goes.
    places: int64[p], the words where addresses go. offsets: int64[p], the bytes that are added to them.
    refs: of each place, the number of the buffer in the recording.
    arena: the numbers of new buffers, arena_bytes: int64, their sizes.
    constants: the numbers of constants that every replay has, constant_addresses: int64, where they lie.
    nanoseconds: a rough estimate of what a thread takes.
    topology: which steps touch which buffers how, equal for pieces that differ in sizes only.
    """

    steps: Words
    words: bytes
    places: Words
    offsets: Words
    refs: tuple[int, ...]
    arena: tuple[int, ...]
    arena_bytes: Words
    constants: tuple[int, ...]
    constant_addresses: Words
    nanoseconds: float
    topology: Hashable

    @staticmethod
    def of(
        steps: Sequence[RecordedStep],
        arena: Sequence[tuple[int, int]],
        constants: Sequence[tuple[int, int]],
        touched: Iterable[Sequence[Hashable]],
    ) -> Piece:
        """The piece of steps that follow each other.

        `arena` are new buffers with their sizes, `constants` others with their addresses, and `touched` what else the
        topology depends on.
        """
        table: list[int] = []
        places: list[int] = []
        offsets: list[int] = []
        refs: list[int] = []
        topology: list[Any] = []
        first, nanoseconds = 0, 0.0
        for _, form, buffers, group in steps:
            table += (form.function, first, form.chunks, form.claim, _CALLER if form.alone else 0, 0, 0, 0)
            addressed = [buffers[ref] for _, ref, _ in form.places]
            places += [first + word for word, _, _ in form.places]
            offsets += [offset for _, _, offset in form.places]
            refs += addressed
            topology.append((group, form.alone, *addressed, -1, *[buffers[ref] for ref in form.read_refs], -1,
                             *[buffers[ref] for ref in form.written_refs]))  # fmt: skip
            first += len(form.words) // 8
            nanoseconds += form.nanoseconds
        return Piece(
            np.array(table, np.int64).reshape(-1, STEP_WORDS),
            b"".join([form.words for _, form, _, _ in steps]),
            np.array(places, np.int64),
            np.array(offsets, np.int64),
            tuple(refs),
            tuple([ref for ref, _ in arena]),
            np.array([nbytes for _, nbytes in arena], np.int64),
            tuple([ref for ref, _ in constants]),
            np.array([address for _, address in constants], np.int64),
            nanoseconds,
            (
                tuple(topology),
                tuple([ref for ref, _ in arena]),
                tuple([ref for ref, _ in constants]),
                *map(tuple, touched),
            ),
        )
