"""Recorded steps as a struct of arrays, from which plans are put together without a look at every word."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sardonyx.compiler.recording import Recording
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.native_plan import StepColumn, StepFlag

Words = NDArray[np.int64]

# Of each step, the first columns of the plan's table.
STEP_NUMBERS = StepColumn.FLAGS + 1
_CALLER = int(StepFlag.CALLER)


@dataclass(frozen=True, eq=False, slots=True)
class StepTemplate:
    """The steps of one operation without their numbers. Buffers are numbered as in the recording.

    steps: how many there are. places: of each word that is an address, its buffer. arena: the new buffers.
    constants: the buffers of constants that every such operation has.
    topology: which steps touch which buffers how, equal for templates that differ in sizes only.
    """

    steps: int
    places: Sequence[int]
    arena: Sequence[int]
    constants: Sequence[int]
    topology: Hashable


class StepNumbers(NamedTuple):
    """The numbers of the steps of one operation, symbolic or not.

    words: all arguments, 0 for an address.
    numbers: how many words there are; `STEP_NUMBERS` for each step, its first argument counted from the first word;
        the place of each word that is an address; the bytes that are added to each of these addresses; the size of each
        new buffer; the address of each constant.
    nanoseconds: a rough estimate of what a thread takes.
    """

    words: Sequence[int]
    numbers: Sequence[int]
    nanoseconds: float
    scratch_bytes: int


def taken_apart(recording: Recording) -> tuple[StepTemplate, StepNumbers]:
    """What a binding did: the steps, and their numbers."""
    words: list[int] = []
    table: list[int] = []
    places: list[int] = []
    buffers: list[int] = []
    offsets: list[int] = []
    topology: list[Hashable] = []
    nanoseconds: Any = 0.0
    for _, form, refs, group in recording.steps:
        first = len(words)
        table += (form.function.address, first, form.chunks, form.claim, form.alone * _CALLER)
        words += form.symbols or struct.unpack(f"{len(form.words) // 8}q", form.words)
        for word, ref, offset in form.places:
            places.append(first + word)
            buffers.append(refs[ref])
            offsets.append(offset)
        touched = [refs[one] for one in (*form.read_refs, *form.written_refs)]
        topology += (group, len(places), len(form.read_refs), *touched)
        nanoseconds = nanoseconds + form.nanoseconds
    arena = [ref for ref, _ in recording.arena]
    constants = {ref: buffer.address for ref, buffer in enumerate(recording.buffers) if buffer is not None}
    topology += (*buffers, -1, *arena, -1, *constants, recording.input_refs)
    topology.append(tuple([(one.place, one.key, one.ref) for one in recording.derived]))
    topology.append(tuple([ref for ref, _ in recording.faults]))
    topology += [one and (one.given, one.ref, one.array is None) for one in recording.outputs]
    sizes = [size for _, size in recording.arena]
    numbers = len(words), *table, *places, *offsets, *sizes, *constants.values()
    template = StepTemplate(len(recording.steps), buffers, arena, list(constants), tuple(topology))
    return template, StepNumbers(words, numbers, nanoseconds, recording.scratch_bytes)


class Columns:
    """Where the numbers of templates lie when those of all kinds are joined: one array of places for each sort.

    Operations are numbered in the order of `add`.
    """

    def __init__(self, templates: Sequence[StepTemplate]) -> None:
        """`templates` has that of each kind."""
        self._parts = [_parts(one) for one in templates]
        self._starts = np.cumsum([0, *map(sum, self._parts)])
        self._found: list[list[Words]] = [[] for _ in range(6)]

    def add(self, kind: int) -> None:
        """One more operation of that kind."""
        start = int(self._starts[kind])
        for found, count in zip(self._found, self._parts[kind], strict=True):
            found.append(np.arange(start, start + count))
            start += count

    def all(self) -> list[Words]:
        """Of all operations: how many words, steps, words of places, their offsets, sizes of buffers, addresses."""
        return [np.concatenate([np.zeros(0, np.int64), *found]) for found in self._found]


def _parts(one: StepTemplate) -> tuple[int, ...]:
    """How many numbers there are of each sort."""
    return 1, STEP_NUMBERS * one.steps, len(one.places), len(one.places), len(one.arena), len(one.constants)
