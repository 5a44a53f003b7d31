"""Batches in rounds: parts of a segment bound for a few items, and repeated until all items of a batch are done.

Each part is bound for as many items as suit it (`batch_choice`), where items are independent (`batch_items`). Its steps
are repeated with other addresses of what it reads and writes, and a rest of fewer items is bound by itself. Between two
parts one value of the whole batch lies in the arena, the layout of which is up to the part that makes it. To whatever
runs plans the result is a plan like any other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sardonyx.compiler.batches.batch_choice import MOST_STEPS, Load, Part, choose
from sardonyx.compiler.batches.batch_items import (
    Values,
    check_shapes,
    is_never_separable,
    of_items,
)
from sardonyx.compiler.batches.batch_size import NotSeparableError, batch_in_rounds
from sardonyx.compiler.batches.batch_tables import Place, Turn, aligned, joined
from sardonyx.compiler.binding import Binder, Bound, BoundStep, Stretch, Tensor
from sardonyx.compiler.native.movement.copy import copy
from sardonyx.compiler.segment_operations import SegmentOperations
from sardonyx.light_dataclass import dataclass

Shapes = Sequence[Sequence[int]]


def bind_in_rounds(segment: SegmentOperations, shapes: Shapes) -> Bound | None:
    """The plan of a segment for a batch that is done in rounds; None where it is better done as a whole.

    NotSeparableError where rounds are out of the question, and with whatever error a kernel refuses its inputs.
    """
    wanted = segment.settings.batch_items
    batch = batch_in_rounds(shapes, wanted)
    if not batch:
        return None
    mixing = next(filter(is_never_separable, segment.operations), None)
    if mixing is not None:
        raise NotSeparableError(f"{mixing.label} may mix them")
    rounds = _Rounds(segment, shapes, batch)
    if wanted is not None:
        return rounds.bind([Part(0, len(segment.operations), wanted)])
    parts = choose(rounds.loads, rounds.cuts, batch, segment.library.target)
    return None if len(parts) == 1 and parts[0].few == batch else rounds.bind(parts)


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a value between two parts lies: strides count elements, and items follow each other."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of an item, whose rows the first axis counts
    strides: tuple[int, ...]
    nbytes: int  # of an item

    def of_items(self, count: int, flat: Tensor) -> Tensor:
        """The value of so many items in the memory of `flat`."""
        return Tensor(self.dtype, (count * self.shape[0], *self.shape[1:]), self.strides, flat.buffer)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part bound for `items` at a time, which makes the segment's outputs at `places`, then what it hands on."""

    bound: Bound
    items: int
    places: tuple[int, ...]
    handed_on: _Layout | None


class _Rounds:
    """A segment, a batch of its inputs, and what a single item of it looks like."""

    def __init__(self, segment: SegmentOperations, shapes: Shapes, batch: int) -> None:
        self._segment = segment
        self._batch = batch
        self._shapes = [tuple(shape[1:]) for shape in shapes]
        self._dtypes = segment.input_dtypes
        self._inputs = segment.numbers_of(segment.inputs)
        self._outputs = segment.numbers_of(segment.outputs)
        binder, values = self._beginning(1)
        self._one = segment.bind_operations(binder, segment.operations, values)
        if binder.faults:
            raise NotSeparableError("its data may be refused")
        if any((one := values[number]) is None or one.array is not None for number in self._outputs):
            raise NotSeparableError("an output is known without them")
        self._values: dict[int, Values] = {}
        self.loads = self._loads(binder.steps)
        self._crossings = self._find_crossings(values)
        self.cuts = {index: nbytes for index, (_, nbytes) in self._crossings.items()}

    def _beginning(self, count: int) -> tuple[Binder, Values]:
        """A binder, and the values that are there before the first operation, for so many items."""
        binder, values = self._segment.binder(), self._segment.constants
        for index, (number, shape) in enumerate(zip(self._inputs, self._shapes, strict=True)):
            values[number] = binder.external(index, self._dtypes[index], (count, *shape))
        return binder, values

    def _values_of(self, count: int) -> Values:
        """What values there are for so many items, where those are proved to be independent."""
        if count not in self._values:
            binder, given = self._beginning(count)
            self._values[count] = of_items(self._one, count, given, self._inputs, binder)
        return self._values[count]

    def _loads(self, steps: Sequence[BoundStep]) -> list[Load]:
        found: dict[int, Load] = {id(bound): Load([]) for bound in self._one}
        for step in steps:
            found[id(step.origin)].add(step)
        return list(found.values())

    def _find_crossings(self, values: Values) -> dict[int, tuple[int, int]]:
        """Before which operations the segment can be cut: the number of the one value that is needed behind it, which
        is all of a buffer, and its bytes."""
        carried = self._carried()
        last: dict[int, int] = {}
        for index, bound in enumerate(self._one):
            anchor = bound.operation.group.anchor
            if anchor is None or anchor.role != "known":  # of shapes there are stand-ins
                last.update((number, index) for number in bound.operation.inputs if number in carried)
        live: set[int] = set()
        found: dict[int, tuple[int, int]] = {}
        for index, bound in enumerate(self._one):
            live = {number for number in live if last.get(number, -1) >= index}
            if len(live) == 1:
                (number,) = live
                tensor = values[number]
                if tensor is not None and number not in self._outputs and _is_whole(tensor):
                    found[index] = number, tensor.nbytes
            live.update(number for number in bound.operation.outputs if number in carried)
        return found

    def _carried(self) -> set[int]:
        """The values that operations make for each item."""
        made = {number for bound in self._one for number in bound.operation.outputs if number >= 0}
        known = self._values_of(self._batch)
        return {number for number in made if (tensor := known[number]) is not None and tensor.array is None}

    def bind(self, parts: Sequence[Part]) -> Bound | None:
        """The plan that does these parts one after the other; None where its tables would be too large."""
        layouts: list[_Layout] = []
        bound: list[list[_Piece]] = []
        for part, after in itertools.zip_longest(parts, parts[1:]):
            entry = layouts[-1] if layouts else None
            handed_on = None if after is None else self._crossings[after.start][0]
            sizes = [part.few, self._batch % part.few]
            pieces = [self._bind_part(part, size, entry, handed_on) for size in sizes if size]
            bound.append(pieces)
            layouts += {piece.handed_on for piece in pieces if piece.handed_on is not None}
            if len(layouts) != len(bound) - (after is None):
                raise NotSeparableError("a rest of them lies in another way")
        if sum(count * len(piece.bound.steps) for _, piece, _, count in self._turns(bound)) > MOST_STEPS:
            return None
        return self._join(parts, bound, layouts)

    def _bind_part(self, part: Part, count: int, entry: _Layout | None, handed_on: int | None) -> _Piece:
        """A part for so many items; it reads what lies like `entry`, and hands the value of a number on."""
        segment, inputs = self._segment, len(self._inputs)
        binder, given = self._beginning(count)
        expected = self._values_of(count)
        values = {**expected, **given}
        if entry is not None:
            flat = binder.external(inputs, entry.dtype, (count * entry.nbytes // entry.dtype.itemsize,))
            values[self._crossings[part.start][0]] = entry.of_items(count, flat)
        operations = segment.operations[part.start : part.end]
        for one in segment.bind_operations(binder, segment.chosen(operations, binder, values), values):
            check_shapes(one.operation, expected, one.outputs)
        made = {number for one in self._one[part.start : part.end] for number in one.operation.outputs}
        places = tuple(place for place, number in enumerate(self._outputs) if number in made)
        results = [tensor for place in places if (tensor := values[self._outputs[place]]) is not None]
        layout = None
        if handed_on is not None:
            tensor = values[handed_on]
            assert tensor is not None
            layout = _layout(tensor, count)
            results.append(tensor.reshaped((tensor.size,)))
        return _Piece(binder.finish(results, inputs + 1, copy), count, places, layout)

    def _turns(self, bound: Sequence[Sequence[_Piece]]) -> Iterator[tuple[int, _Piece, int, int]]:
        """The pieces in order: the index of the part, the piece, the item that it begins with, and its rounds."""
        for index, pieces in enumerate(bound):
            first = 0
            for piece in pieces:
                rounds = (self._batch - first) // piece.items
                yield index, piece, first, rounds
                first += rounds * piece.items

    def _join(self, parts: Sequence[Part], bound: Sequence[Sequence[_Piece]], layouts: Sequence[_Layout]) -> Bound:
        """The plan of bound parts, between which values lie like `layouts`.

        These lie by turns at the beginning and at the end of the arena, what a part needs besides between its two.
        """
        room = [0, *(aligned(self._batch * layout.nbytes) for layout in layouts), 0]
        own = [max(aligned(piece.bound.plan.arena_bytes) for piece in pieces) for pieces in bound]
        arena = max(before + needed + after for before, needed, after in zip(room, own, room[1:], strict=False))
        begins = [0 if index % 2 else arena - size for index, size in enumerate(room)]
        turns: list[Turn] = []
        stretches: list[Stretch] = []
        for index, piece, first, rounds in self._turns(bound):
            between = room[index] if index % 2 else room[index + 1]
            places = self._places(piece, first, between, begins[index : index + 2], layouts[:index][-1:])
            turns.append(Turn(piece.bound.plan, rounds, places))
            stretches.append(Stretch(len(piece.bound.steps), rounds, self._reason(parts[index], piece.items)))
        outputs = [self._values_of(self._batch)[number] for number in self._outputs]
        return Bound(
            joined(turns, arena, 1 + len(self._inputs) + len(outputs)),
            tuple((one.dtype, one.shape) for one in outputs if one is not None),
            tuple(step for pieces in bound for piece in pieces for step in piece.bound.steps),
            stretches=tuple(stretches),
        )

    def _places(
        self, piece: _Piece, first: int, own: int, crossings: Sequence[int], entry: Sequence[_Layout]
    ) -> list[Place]:
        """Where the bases of a piece lie that begins with item `first`: its own arena from `own` on, what it reads and
        hands on from `crossings` on."""

        def items(base: int, start: int, nbytes: int) -> Place:
            return Place(base, start + first * nbytes, piece.items * nbytes)

        inputs = len(self._inputs)
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(self._shapes, self._dtypes, strict=True)]
        places = [Place(0, own), *(items(1 + index, 0, size) for index, size in enumerate(sizes))]
        places.append(items(0, crossings[0], entry[0].nbytes) if entry else Place(0))
        described = zip(piece.places, piece.bound.outputs, strict=False)
        for place, (dtype, shape) in described:
            places.append(items(1 + inputs + place, 0, math.prod(shape) // piece.items * dtype.itemsize))
        if piece.handed_on is not None:
            places.append(items(0, crossings[1], piece.handed_on.nbytes))
        return places

    def _reason(self, part: Part, items: int) -> str:
        """Why a part does so many items at a time, in words."""
        loads = self.loads[part.start : part.end]
        values = self._batch * max((nbytes for load in loads for nbytes in load.values), default=0) / 1e6
        constants = sum(load.constants for load in loads) / 1e6
        if items == self._batch:
            return f"all {items} items at a time: constants have {constants:.1f} MB"
        return f"{items} of {self._batch} items at a time: values of all of them have up to {values:.1f} MB"


def _is_whole(tensor: Tensor) -> bool:
    """Whether a value is all of a buffer of its own in the arena."""
    buffer = tensor.buffer
    return buffer.kind == "arena" and buffer.home is None and tensor.offset == 0 and tensor.nbytes == buffer.nbytes


def _layout(tensor: Tensor, count: int) -> _Layout:
    """How a value of so many items lies; NotSeparableError where one item does not follow the other."""
    rows, nbytes = tensor.shape[0], tensor.nbytes // count
    row = tensor.nbytes // max(1, rows) // tensor.dtype.itemsize
    if not _is_whole(tensor) or (rows > 1 and tensor.strides[0] != row):
        raise NotSeparableError("a value between two parts is no memory of its own")
    return _Layout(tensor.dtype, (rows // count, *tensor.shape[1:]), (row, *tensor.strides[1:]), nbytes)
