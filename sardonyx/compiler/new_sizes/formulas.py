"""Bindings as functions of the sizes of their inputs: what a kernel does for other sizes, without asking it.

A binding whose inputs differ from those of an earlier one only in their sizes makes, as a rule, the same choices; its
steps are the same then but for numbers that follow from the sizes. So it is done once more with numbers that note what
is computed from them (`traced`). The formula that comes of it gives the numbers of the piece at once, for all sizes for
which every comparison in the binding has the same outcome, and says so where one has another.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sardonyx.compiler.binding import Buffer, Tensor
from sardonyx.compiler.bound_step import contents_of
from sardonyx.compiler.pieces import PieceMaker
from sardonyx.compiler.traced import Trace, text_of
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.forks import free_in_child

if TYPE_CHECKING:
    from sardonyx.compiler.new_sizes.looks import Looks
    from sardonyx.compiler.new_sizes.recording import Recording

Tensors = Sequence["Tensor | None"]
Numbers = tuple[int, ...]

# Binds for these inputs, whose numbers are traced: the recording, and its steps; None for what cannot be done again.
Record = Callable[[Tensors], "tuple[Recording, PieceMaker] | None"]

# Formulas of operations that are alike; of how many in a row that were of no use others are tried.
MOST_FORMULAS = 32
TRIES = 4
# Kinds of bindings whose formulas are kept; beyond, all are dropped.
MOST_FAMILIES = 1024
# Elements of a tensor, at most, that are numbers of a formula.
_MOST_ELEMENTS = 16


class Sized(NamedTuple):
    """What a formula gives for some sizes: the words and the numbers of the piece, and of the buffers that are new, the
    bytes. `outputs` has the numbers of each output that is no input, in the order of `taken_apart`."""

    words: bytes
    numbers: bytes
    nanoseconds: float
    scratch_bytes: int
    arena: Numbers
    outputs: tuple[Numbers, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an output lies: it is the input `given`, or lies in the buffer of the input `over`, or in the new buffer
    that `new` counts; if none of it, in a constant. Its type and how many axes it has."""

    given: int = -1
    over: int = -1
    new: int = -1
    dtype: np.dtype[Any] | None = None
    rank: int = 0

    @property
    def is_constant(self) -> bool:
        return self.given < 0 and self.over < 0 and self.new < 0


class Formula:
    """The binding of operations that are alike, by that of a traced one.

    `reads` has the contents that it depends on, by the place of the input; `places` says where outputs lie.
    """

    def __init__(self, trace: Trace, inputs: Tensors, recording: Recording, steps: PieceMaker) -> None:
        self.recording = recording
        self.reads = [(place, contents_of(inputs[place])) for place in recording.read]
        constants, others = recording.surroundings
        self._new = [ref for ref, _ in recording.arena]
        self.template = steps.template(recording.arena, constants, others)
        self.places = places_of(recording)
        numbers = steps.numbers(recording.arena, constants)
        made = "".join(f"({_listed(each)})," for each in _outputs(recording, inputs))
        result = (
            f"sized((words({_listed(steps.words)}),numbers({_listed(numbers)}),{text_of(steps.nanoseconds)},"
            f"{text_of(recording.scratch_bytes)},({_listed(size for _, size in recording.arena)}),({made})))"
        )
        packs = {"words": struct.Struct(f"{len(steps.words)}q").pack, "numbers": struct.Struct(f"{len(numbers)}q").pack}
        self._compute = trace.function(result, {**packs, "sized": Sized._make})

    def has_read(self, inputs: Tensors) -> bool:
        """Whether these have the contents that it depends on."""
        return all(contents_of(inputs[place]) == wanted for place, wanted in self.reads)

    def sized(self, numbers: Iterable[int]) -> Sized | None:
        """What it gives for inputs of these numbers; None where a choice would be another one."""
        try:
            found: Sized | None = self._compute(*numbers)
        except Exception:  # such as sizes that do not fit each other, which binding tells with the node's name
            return None
        return found

    def sized_recording(self, numbers: Numbers) -> Recording | None:
        """The recording for inputs of these numbers; None where a choice would be another one."""
        found = self.sized(numbers)
        if found is None:
            return None
        piece = self.template.resized(found.words, np.frombuffer(found.numbers, np.int64), found.nanoseconds)
        arena = tuple(zip(self._new, found.arena, strict=True))
        lie = [one.rank for one in self.places if one is not None and one.given < 0]
        looks = [
            (own[1 : 1 + rank], own[1 + rank : 1 + 2 * rank], own[-1])
            for rank, own in zip(lie, found.outputs, strict=True)
        ]
        return self.recording.resized(piece, arena, found.scratch_bytes, looks)


def places_of(recording: Recording) -> tuple[Place | None, ...]:
    """Where the outputs of a recording lie."""
    inputs = {ref: place for place, ref in recording.input_refs}
    arena = {ref for ref, _ in recording.arena}
    new: dict[int, int] = {}
    found: list[Place | None] = []
    for one in recording.outputs:
        if one is None or one.look is None:
            found.append(None if one is None else Place(given=one.given))
            continue
        counted = new.setdefault(one.ref, len(new)) if one.ref in arena and one.array is None else -1
        over = inputs.get(one.ref, -1) if one.array is None else -1
        found.append(Place(-1, over, counted, one.look[0], len(one.look[1])))
    return tuple(found)


def sized_of(recording: Recording, inputs: Tensors) -> Sized:
    """What a formula would give that gave this recording."""
    piece, arena = recording.piece, tuple([size for _, size in recording.arena])
    outputs = tuple(_outputs(recording, inputs))
    return Sized(piece.words, piece.numbers.tobytes(), piece.nanoseconds, recording.scratch_bytes, arena, outputs)


def _outputs(recording: Recording, inputs: Tensors) -> Iterator[Numbers]:
    """The numbers of outputs that are no inputs, in the order of `taken_apart`."""
    sizes: dict[int, int] = dict(recording.arena)
    sizes |= {ref: inputs[place].buffer.nbytes for place, ref in recording.input_refs}  # type: ignore[union-attr]
    sizes |= {ref: buffer.nbytes for ref, buffer in enumerate(recording.buffers) if buffer is not None}
    for one in recording.outputs:
        if one is not None and one.look is not None:
            _, shape, strides, offset = one.look
            yield sizes.get(one.ref, 0), *shape, *strides, offset


def _listed(numbers: Iterable[object]) -> str:
    return "".join([f"{text_of(number)}," for number in numbers])


def _formula(inputs: Tensors, varies: Iterable[bool], lasting: Container[int], record: Record) -> Formula | None:
    """The formula of a binding, of the numbers of its inputs that vary; None where there is none."""
    trace = Trace()
    try:
        traced = _traced(inputs, trace, iter(varies), lasting)
        found = record(traced)
        if found is None or not _can_be_computed(inputs, found[0], lasting):
            return None
        return Formula(trace, traced, *found)
    except Exception:  # the same has just been bound with plain numbers: what does not bear traced ones has no formula
        return None


def _traced(inputs: Tensors, trace: Trace, varies: Iterator[bool], lasting: Container[int]) -> Tensors:
    """The inputs with traced numbers, in the order of `taken_apart`."""

    def of(number: int) -> int:
        return trace.number(number) if next(varies) else trace.fixed(number)  # type: ignore[return-value]

    made: list[Tensor | None] = []
    buffers: dict[Buffer, Buffer] = {}
    for one in inputs:
        if one is None or _stays(one, lasting):
            made.append(one)
            continue
        given = one.buffer
        nbytes, shape, strides = of(given.nbytes), tuple(map(of, one.shape)), tuple(map(of, one.strides))
        buffer = buffers.setdefault(given, Buffer(nbytes, given.kind, given.index, given.array))
        tensor = Tensor(one.dtype, shape, strides, buffer, of(one.offset), one.array)
        made.append(TracedContents(tensor, tuple(map(of, one.elements))) if has_elements(one) else tensor)
    return made


class TracedContents(Tensor):
    """A tensor whose elements are traced numbers."""

    __slots__ = ("_elements",)

    def __init__(self, tensor: Tensor, elements: Sequence[int]) -> None:
        super().__init__(*tensor.look[:3], tensor.buffer, tensor.offset, tensor.array)
        self._elements = elements

    @property
    def elements(self) -> Sequence[int]:
        return self._elements


def has_elements(tensor: Tensor) -> bool:
    """Whether its contents are a few numbers, which may be sizes."""
    array = tensor.array
    return array is not None and array.size <= _MOST_ELEMENTS and array.dtype == np.int64


def _can_be_computed(inputs: Tensors, recording: Recording, lasting: Container[int]) -> bool:
    """Whether all that a recording has of sizes is among its numbers."""
    derived = (inputs[one.place] for one in recording.derived)
    return (
        all(one is not None and _stays(one, lasting) for one in derived)
        and all(one is None or one.array is None for one in recording.outputs)
        and all(one.dtype != np.object_ for one in recording.constants)
    )


class Family:
    """The formulas of operations of one structure whose inputs are of the same kinds."""

    def __init__(self) -> None:
        self.formulas: list[Formula] = []
        self.tries = TRIES  # how many more may be made
        self._last: Numbers | None = None  # those of the binding before
        self._varying: set[int] = set()  # which of the numbers have differed

    def note(self, numbers: Numbers) -> set[int]:
        """The places of the numbers that have differed so far."""
        if self._last is not None:
            pairs = enumerate(zip(self._last, numbers, strict=True))
            self._varying = self._varying.union([place for place, (one, other) in pairs if one != other])
        self._last = numbers
        return self._varying


class Formulas:
    """The formulas of one segment's operations. `lasting` are the contents that live as long as it does."""

    def __init__(self, lasting: Container[int], looks: Looks) -> None:
        self._lasting = lasting
        self._looks = looks
        self._families: dict[Hashable, Family] = {}
        self._lock = free_in_child(threading.Lock())

    def find(self, structure: Hashable, inputs: Tensors) -> Recording | None:
        """What the binding for these inputs comes to, where a formula says so."""
        kinds, numbers = self.taken_apart(inputs)
        family = self._families.get((structure, kinds))
        if family is None:
            return None
        for formula in family.formulas:
            if formula.has_read(inputs):
                found = formula.sized_recording(numbers)
                if found is not None:
                    family.tries = TRIES
                    return found
        return None

    def family(self, structure: Hashable, inputs: Tensors) -> Family | None:
        """The formulas for operations of this structure with inputs of these kinds; None where there are none."""
        return self._families.get((structure, self.taken_apart(inputs)[0]))

    def stays(self, tensor: Tensor) -> bool:
        """Whether it is the model's own, which has no numbers."""
        return _stays(tensor, self._lasting)

    def learn(self, structure: Hashable, inputs: Tensors, record: Record | None) -> bool:
        """Note what a binding was given that no formula has made. With `record`, one is made of it, where there is one.

        `record` binds for inputs whose numbers are traced. True where that was tried.
        """
        kinds, numbers = self.taken_apart(inputs)
        if kinds is None:
            return False
        with self._lock:
            if len(self._families) >= MOST_FAMILIES:
                self._families.clear()
            family = self._families.setdefault((structure, kinds), Family())
            varying = family.note(numbers)
            if record is None or not varying or family.tries <= 0 or len(family.formulas) >= MOST_FORMULAS:
                return False
            family.tries -= 1
            varies = [place in varying for place in range(len(numbers))]
            formula = _formula(inputs, varies, self._lasting, record)
            if formula is not None:
                family.formulas = [*family.formulas, formula]
            return True

    def taken_apart(self, inputs: Tensors) -> tuple[Hashable, Numbers]:
        """Inputs without their numbers, and these; None where there is no formula for such inputs."""
        kinds: list[Hashable] = []
        numbers: list[int] = []
        buffers: list[Buffer] = []
        for one in inputs:
            if one is None:
                kinds.append(None)
                continue
            buffer, shape = one.buffer, one.shape
            if _stays(one, self._lasting):
                kinds.append(self._looks.of_one(one))
            elif buffer.home is not None:
                return None, ()
            else:
                elements = one.elements if has_elements(one) else ()
                kinds += (buffer.kind, one.dtype, len(shape), one.array is None, len(elements))
                numbers += (buffer.nbytes, *shape, *one.strides, one.offset, *elements)
            buffers.append(buffer)
        if len(set(buffers)) < len(buffers):
            kinds += map(buffers.index, buffers)
        return tuple(kinds), tuple(numbers)


def _stays(tensor: Tensor, lasting: Container[int]) -> bool:
    """Whether it is the model's own: what is made of it depends on its sizes."""
    return tensor.buffer.kind == "constant" and (type(tensor) is not Tensor or id(tensor.array) in lasting)
