"""What a chain is written as: values, where they lie, instructions that name places, and the chain that comes of them.

Code may be added apart, for a branch or a round, and be placed where it belongs afterwards.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.native.array_address import address_of
from sardonyx.runtime.native.chain import Chain, Do, Instruction
from sardonyx.runtime.native.native_segment import NativeSegment, ReadyPlan
from sardonyx.runtime.native_plan import NativePlan

Array = np.ndarray[Any, Any]

# Bytes between the plans of a chain, at most: where there are more, Python's part of a run does not matter.
MOST_BYTES = 4 << 20
_ALIGNMENT = 64


class NotChainedError(Exception):
    """A plan, or a part of it, that a chain cannot run."""


class Place:
    """Memory of a value: at a known address, or `nbytes` of the chain's own.

    Where it `leads` to another place, its value lies there.
    """

    __slots__ = ("address", "leads", "nbytes")

    def __init__(self, nbytes: int = 0, address: int = 0) -> None:
        self.nbytes, self.address = nbytes, address
        self.leads: Place | None = None

    def settled(self) -> Place:
        place = self
        while place.leads is not None:
            place = place.leads
        return place


class Label:
    """An instruction to go to."""

    def __init__(self) -> None:
        self.index = 0


@dataclass(frozen=True, slots=True)
class Held:
    """A value between steps; its contents where they are known, and the input that they come from (-1: none)."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    place: Place
    array: Array | None = None
    counted: tuple[int, Place] | None = None  # the axis whose size the run counts, and where it leaves the number
    source: int = -1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def is_one(self, dtype: Any) -> bool:
        return self.dtype == dtype and math.prod(self.shape) == 1


Operand = Place | Label | int
_Rows = list[tuple[Do | ReadyPlan, tuple[Operand, ...]] | Label]


@dataclass(slots=True)
class Part:
    """Code apart, the places that it makes, and its results; None where it declines."""

    rows: _Rows = field(default_factory=list)
    scope: set[Place] = field(default_factory=set)
    results: list[Held] | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """An output and its place; where its size along an axis is counted, the place of the number."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    place: int
    axis: int = -1
    counted: int = 0


class ChainCode:
    """The instructions of a chain while they are collected."""

    def __init__(self) -> None:
        self.rows: _Rows = []
        self.begin: _Rows = []  # comes in front
        self.scope: set[Place] = set()  # places that what is being added made
        self.notes = Place()
        self.kept: list[Array] = []  # memory that instructions name
        self.held_bytes = 0

    def emit(self, what: Do, *operands: Operand) -> None:
        self.rows.append((what, operands))

    def constant(self, value: Any) -> Held:
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            raise NotChainedError("a constant that is no tensor of numbers")
        array = np.ascontiguousarray(value).reshape(value.shape)
        self.kept.append(array)
        return Held(array.dtype, array.shape, Place(0, address_of(array)), array)

    def deliver(self, held: Held, place: Place) -> None:
        """Let a value end up at a place: written there at once where what is being added makes it."""
        settled = held.place.settled()
        if settled in self.scope:
            self.scope.discard(settled)
            settled.leads = place
        else:
            self.emit(Do.COPY, place, held.place, held.nbytes)

    def part(self, make: Callable[[], list[Held]]) -> Part:
        """The code that `make` adds, apart; what declines where it cannot be chained."""
        part = Part()
        with self.inside(part):
            try:
                part.results = make()
            except NotChainedError:
                self.rows[:] = [(Do.DECLINE, (self.notes,))]
        return part

    @contextlib.contextmanager
    def inside(self, part: Part) -> Iterator[None]:
        """Add to the code of a part for the block."""
        outside = self.rows, self.scope
        self.rows, self.scope = part.rows, part.scope
        try:
            yield
        finally:
            self.rows, self.scope = outside

    def finish(
        self, inputs: Sequence[Place], outputs: Sequence[Place], results: Sequence[Held], segment: NativeSegment
    ) -> tuple[Chain, tuple[Output, ...]]:
        """The chain, with memory for all places and numbers for them and for the instructions, and its outputs."""
        numbers = {place: index for index, place in enumerate((*inputs, *outputs))}
        rows = [*self.begin, *self.rows]
        at = 0
        for row in rows:
            if isinstance(row, Label):
                row.index = at
                continue
            at += 1
            for operand in row[1]:
                if isinstance(operand, Place) and operand is not self.notes:
                    numbers.setdefault(operand.settled(), len(numbers))
        numbers[self.notes] = len(numbers)
        addresses = self._addresses(list(numbers)[len(inputs) + len(outputs) :])
        plans: dict[NativePlan, None] = {}
        instructions: list[Instruction] = []
        for row in rows:
            if isinstance(row, Label):
                continue
            what, operands = row
            if isinstance(what, ReadyPlan):
                plans[what.plan] = None
                read = np.array([numbers[place.settled()] for place in operands if isinstance(place, Place)], np.int64)
                table = np.zeros(max(1, len(read)), np.int64)
                self.kept += [read, table]
                instructions.append((Do.RUN, what.plan.address, address_of(read), len(read), address_of(table)))
                continue
            instructions.append((what, *(_word(operand, numbers) for operand in operands)))
        thread_pool, _ = segment.resources
        chain = Chain(
            tuple(plans),
            instructions,
            ((0,) * (len(inputs) + len(outputs)) + addresses),
            thread_pool.run_address,
            segment.chain_address(),
            tuple(self.kept),
            self.held_bytes,
        )
        found = [
            Output(held.dtype, held.shape, numbers[place])
            if held.counted is None
            else Output(
                *(held.dtype, held.shape, numbers[held.place.settled()]),
                axis=held.counted[0],
                counted=numbers[held.counted[1].settled()],
            )
            for place, held in zip(outputs, results, strict=True)
        ]
        return chain, tuple(found)

    def _addresses(self, places: Sequence[Place]) -> tuple[int, ...]:
        """The addresses of places, with memory for those that have none."""
        room = sum(-(-place.nbytes // _ALIGNMENT) * _ALIGNMENT for place in places)
        if room > MOST_BYTES:
            raise NotChainedError(f"{room} bytes between the plans")
        memory = np.zeros(room + _ALIGNMENT, np.uint8)
        self.kept.append(memory)
        self.held_bytes = memory.nbytes
        at = address_of(memory)
        at += -at % _ALIGNMENT
        found = []
        for place in places:
            found.append(place.address or at)
            at += -(-place.nbytes // _ALIGNMENT) * _ALIGNMENT
        return tuple(found)


def _word(operand: Operand, numbers: Mapping[Place, int]) -> int:
    if isinstance(operand, Place):
        return numbers[operand.settled()]
    return operand.index if isinstance(operand, Label) else operand
