"""The operations of a segment by kind, and how they are walked for new sizes: one of each kind is bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sardonyx.compiler.binding import Binder, Buffer, Tensor
from sardonyx.compiler.bound_step import contents_of, tensor_over
from sardonyx.compiler.new_sizes.formulas import has_elements
from sardonyx.compiler.new_sizes.looks import Looks
from sardonyx.compiler.new_sizes.recording import Describe, Recording
from sardonyx.compiler.new_sizes.replay import Replays
from sardonyx.compiler.pieces import Piece, Words

if TYPE_CHECKING:
    from sardonyx.compiler.segment import Operation

Values = dict[int, "Tensor | None"]
Faults = Sequence[tuple["Operation", Describe]]


class NotOutlinedError(Exception):
    """A plan without an outline: it holds more than whole buffers in the arena and what crosses its border."""


class Course:
    """What follows from the kinds of a segment's operations, whatever the sizes.

    `kinds` numbers the operations by kind in the order of their first ones, -1 for those that are computed while
    binding; `fixed` are the model's constants. NotOutlinedError where operations of a kind do not read alike, or where
    one of no kind is not computed.

    bound: what is to be bound: the operations that are the first of their kind, and those that are computed.
    makers: of each value that another operation makes: that one, and the place of the value among its outputs.
    alike: pairs of values that have to look alike, so that what the first of a kind does is right for the others.
    read: the values that operations of a kind read.
    taken: the same, and the `outputs` of the segment.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        kinds: Sequence[int],
        fixed: Mapping[int, Tensor],
        outputs: Iterable[int] = (),
    ) -> None:
        self.operations = operations
        self.kinds = kinds
        self.fixed = fixed
        self.bound: list[int] = []
        self.makers: dict[int, tuple[int, int]] = {}
        self.of_kind: list[list[int]] = []
        same: dict[int, int] = {}  # of a value that another operation makes: the value that the first of its kind makes
        alike: dict[tuple[int, int], None] = {}
        for index, (operation, kind) in enumerate(zip(operations, kinds, strict=True)):
            if kind < 0 and operation.computation is None:
                raise NotOutlinedError
            if kind < 0 or kind == len(self.of_kind):
                self.bound.append(index)
                if kind >= 0:
                    self.of_kind.append([index])
                continue
            first = operations[self.of_kind[kind][0]]
            self.of_kind[kind].append(index)
            for place, number in enumerate(operation.outputs):
                self.makers[number] = index, place
                same[number] = first.outputs[place]
            read, wanted = ([n for n in one.inputs if n >= 0 and n not in fixed] for one in (operation, first))
            if len(read) != len(wanted):
                raise NotOutlinedError
            pairs = zip(read, wanted, strict=True)
            alike.update(dict.fromkeys((same.get(one, one), same.get(other, other)) for one, other in pairs))
        self.alike = [(one, other) for one, other in alike if one != other]
        others = [one for one, kind in zip(operations, kinds, strict=True) if kind >= 0]
        self.read = {number for operation in others for number in operation.inputs if number >= 0}
        self.taken = self.read.union(outputs)


class Walk:
    """The operations of a segment, bound once for each of their kinds, for new sizes.

    `values` has the inputs. Afterwards there is one recording for each kind.
    """

    def __init__(self, course: Course, binder: Binder, values: Values) -> None:
        self.binder = binder
        self.recordings: list[Recording] = []
        self._course = course
        self._values = values
        self._buffers: dict[tuple[int, int], Buffer] = {}

    def run(self, replays: Replays, looks: Looks) -> bool:
        """Bind; False where operations of a kind differ, cannot be recorded, or refuse what they are given."""
        course, binder, values = self._course, self.binder, self._values
        for index in course.bound:
            operation = course.operations[index]
            given = [None if number < 0 else self.value(number) for number in operation.inputs]
            binder.label, binder.origin = operation.label, operation
            found: Recording | None = None
            try:
                if operation.structure is None:
                    made = operation.bind(binder, given)
                else:
                    made, found = replays.bind(operation.structure, operation.bind, binder, given, as_piece=True)
            except Exception:  # the ordinary way says so
                return False
            if course.kinds[index] >= 0:
                if found is None:
                    return False
                self.recordings.append(found)
            values.update(zip(operation.outputs, made, strict=False))
        numbers = {
            number: (looks.of_one(one), contents_of(one) if has_elements(one) else None)
            for number, one in values.items()
            if one is not None
        }
        return all(numbers.get(one) == numbers.get(other) for one, other in course.alike) and self._reads_alike()

    def _reads_alike(self) -> bool:
        """Whether the contents that decided over recordings are the same for all operations of a kind."""
        operations = self._course.operations
        return all(
            contents_of(self.value(operations[index].inputs[place]))
            == contents_of(self.value(operations[first].inputs[place]))
            for recording, (first, *others) in zip(self.recordings, self._course.of_kind, strict=True)
            if recording.read
            for index in others
            for place in recording.read
        )

    @property
    def pieces(self) -> list[Piece]:
        """The steps of each kind."""
        return [recording.piece for recording in self.recordings]

    @property
    def numbers(self) -> Words:
        return np.concatenate([piece.numbers for piece in self.pieces])

    @property
    def words(self) -> list[bytes]:
        return [piece.words for piece in self.pieces]

    @property
    def nanoseconds(self) -> list[float]:
        return [piece.nanoseconds for piece in self.pieces]

    @property
    def scratch_bytes(self) -> int:
        return max([recording.scratch_bytes for recording in self.recordings], default=0)

    @property
    def faults(self) -> Faults:
        """What kernels may note, in the order of the notes: whose it is, and what makes the error."""
        return noted(self._course, self.recordings)

    def value(self, number: int) -> Tensor | None:
        """A value that was known before, or that an operation has made: that one is put together when asked for."""
        known = self._values.get(number) or self._course.fixed.get(number)
        if known is not None or number not in self._course.makers:
            return known
        index, place = self._course.makers[number]
        output = self._recording(index).outputs[place]
        if output is None:
            return None
        if output.look is None:
            found = self.value(self._course.operations[index].inputs[output.given])
        else:
            found = tensor_over(self._buffer(index, output.ref), output.look, output.array, output.number)
        self._values[number] = found
        return found

    def _recording(self, index: int) -> Recording:
        return self.recordings[self._course.kinds[index]]

    def _buffer(self, index: int, ref: int) -> Buffer:
        """A buffer of an operation, by its number in the recording."""
        known = self._buffers.get((index, ref))
        if known is None:
            inputs = self._course.operations[index].inputs
            known = self._recording(index).buffer(ref, self.binder, lambda place: self.value(inputs[place]))
            self._buffers[index, ref] = known
        return known


def noted(course: Course, recordings: Sequence[Recording]) -> Faults:
    """What kernels may note, in the order of the notes: whose it is, and what makes the error."""
    pairs = zip(recordings, course.of_kind, strict=True)
    noting = [(index, one) for one, found in pairs if one.faults for index in found]
    noting.sort(key=lambda found: found[0])
    return [(course.operations[index], describe) for index, recording in noting for _, describe in recording.faults]
