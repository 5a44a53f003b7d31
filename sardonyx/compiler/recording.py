"""What one binding did, to be done again over other buffers.

Which contents a kernel reads is observed, not declared: while it is recorded, its inputs tell when `array` is asked
for. A binding that decides where a buffer of another kernel lies is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import Any

from sardonyx.compiler.binding import Array, Binder, Buffer, RecordedStep, Tensor
from sardonyx.compiler.bound_step import COMPARED_BYTES, BoundStep, Look, tensor_over
from sardonyx.light_dataclass import dataclass

Tensors = Sequence["Tensor | None"]
Bind = Callable[[Binder, Tensors], Tensors]
Describe = Callable[[int], Exception]

# A recording does not keep arrays alive that are larger than this, unless they are the model's constants.
_KEPT_BYTES = 64 << 10


# Nobody changes one of these: they are not frozen because that makes their construction three times as dear.
@dataclass(eq=False, slots=True)
class _Derived:
    """A constant made from the contents of the input at `place`; see `Binder.derived`."""

    place: int
    key: Hashable
    make: Callable[[Array], Array]
    ref: int  # its buffer


@dataclass(eq=False, slots=True)
class _Output:
    """An output: the input at place `given`, or a tensor over the buffer `ref`, perhaps with known contents."""

    given: int = -1
    ref: int = -1
    look: Look | None = None
    array: Array | None = None


@dataclass(eq=False, slots=True)
class Recording:
    """What one binding did. Buffers are numbered: those of the inputs, then the others as the steps touch them.

    `buffers` has the constants in place, and None for what differs from replay to replay.
    """

    owners: tuple[Any, ...]  # what keeps the identities alive that led to this recording
    read: tuple[int, ...]  # places of inputs whose contents were read
    input_refs: tuple[tuple[int, int], ...]  # places of inputs, and the numbers of their buffers
    arena: tuple[tuple[int, int], ...]  # numbers of new buffers, and their bytes
    derived: tuple[_Derived, ...]
    faults: tuple[tuple[int, Describe], ...]  # the numbers of their notes, and what makes their errors
    buffers: tuple[Buffer | None, ...]
    steps: tuple[RecordedStep, ...]
    groups: int
    scratch_bytes: int
    constants: tuple[Array, ...]
    outputs: tuple[_Output | None, ...]

    def replay(self, binder: Binder, inputs: Tensors) -> list[Tensor | None]:
        """Add the steps for these inputs, and give the outputs."""
        buffers = list(self.buffers)
        for place, ref in self.input_refs:
            buffers[ref] = inputs[place].buffer  # type: ignore[union-attr]
        for ref, nbytes in self.arena:
            buffers[ref] = Buffer(nbytes)
        for one in self.derived:
            buffers[one.ref] = binder.derived(inputs[one.place], one.key, one.make).buffer  # type: ignore[arg-type]
        for ref, describe in self.faults:
            buffers[ref] = binder.fault(describe).buffer
        binder.constants.extend(self.constants)
        binder.replay_steps(self.steps, buffers, self.groups, self.scratch_bytes)  # type: ignore[arg-type]
        outputs: list[Tensor | None] = []
        for output in self.outputs:
            if output is None:
                outputs.append(None)
            elif output.look is None:
                outputs.append(inputs[output.given])
            else:
                buffer = buffers[output.ref]
                assert buffer is not None
                outputs.append(tensor_over(buffer, output.look, output.array))
        return outputs


class SymbolicContents(Tensor):
    """A tensor whose elements are symbolic numbers."""

    __slots__ = ("_elements",)

    def __init__(self, tensor: Tensor, elements: Sequence[int]) -> None:
        super().__init__(*tensor.look[:3], tensor.buffer, tensor.offset, tensor.array)
        self._elements = elements

    @property
    def elements(self) -> Sequence[int]:
        return self._elements


class _Watched(Tensor):
    """An input whose `array` tells that it was read."""

    __slots__ = ("given", "place", "seen")

    given: Tensor
    place: int
    seen: set[int]

    def __init__(self, given: Tensor, place: int, seen: set[int]) -> None:
        self.dtype = given.dtype
        self.shape = given.shape
        self.strides = given.strides
        self.buffer = given.buffer
        self.offset = given.offset
        self.given = given
        self.place = place
        self.seen = seen

    @property
    def array(self) -> Array | None:  # type: ignore[override]
        self.seen.add(self.place)
        return self.given.array

    @property
    def source(self) -> Array | Buffer | None:
        self.seen.add(self.place)
        return self.given.source

    @property
    def elements(self) -> Sequence[int]:
        if not isinstance(self.given, SymbolicContents):
            self.seen.add(self.place)
        return self.given.elements

    @property
    def is_known(self) -> bool:
        return self.given.is_known

    @property
    def unwatched(self) -> Tensor:
        return self.given


def record(
    bind: Bind, binder: Binder, inputs: Tensors, seen: set[int], lasting: Container[int]
) -> tuple[Tensors, Recording | None]:
    """Bind with watched inputs: the outputs, and what was done, if that can be replayed.

    `seen` gets the places of the inputs whose contents were read. `lasting` has the `id` of contents that live as long
    as the recording.
    """
    watched = [
        one if one is None or one.buffer.kind != "constant" else _Watched(one, place, seen)
        for place, one in enumerate(inputs)
    ]
    recorder = _Recorder(inputs, binder)
    steps, constants = len(binder.steps), len(binder.constants)
    scratch, groups, settled = binder.scratch_bytes, binder.groups, binder.settled
    binder.scratch_bytes = 0
    made = bind(binder, watched)
    own_scratch, binder.scratch_bytes = binder.scratch_bytes, max(scratch, binder.scratch_bytes)
    outputs = [one.given if isinstance(one, _Watched) else one for one in made]
    if binder.settled != settled:
        return outputs, None
    recorded = recorder.steps(binder.steps[steps:], binder.label, groups)
    described = tuple(map(recorder.output, outputs))
    recorder.finish()
    kept = _owners(inputs, seen, lasting)
    own_constants = tuple([one for one in binder.constants[constants:] if not recorder.is_derived(one)])
    if recorder.is_foreign or kept is None or sum([one.nbytes for one in own_constants]) > _KEPT_BYTES:
        return outputs, None
    return outputs, Recording(
        kept,
        tuple(sorted(seen)),
        recorder.input_refs,
        tuple([(ref, buffer.nbytes) for ref, buffer in recorder.arena]),
        tuple(recorder.derived),
        tuple(recorder.faults),
        tuple(recorder.buffers),
        recorded,
        binder.groups - groups,
        own_scratch,
        own_constants,
        described,
    )


def _owners(inputs: Tensors, seen: set[int], lasting: Container[int]) -> tuple[Array | Buffer, ...] | None:
    """What has the identities that lead to a recording; None where it is too large to be kept."""
    owners: list[Array | Buffer] = []
    for place in seen:
        tensor = inputs[place]
        source = None if tensor is None else tensor.source
        if source is not None and source.nbytes > COMPARED_BYTES:
            if source.nbytes > _KEPT_BYTES and id(source) not in lasting:
                return None
            owners.append(source)
    return tuple(owners)


class _Recorder(dict[Buffer, int]):
    """Numbers the buffers that a binding touches: those of its inputs, others when they are asked for.

    To be made before the binding, as `binder` has more of everything later.
    """

    def __init__(self, inputs: Tensors, binder: Binder) -> None:
        super().__init__()
        self.buffers: list[Buffer | None] = []
        self.arena: list[tuple[int, Buffer]] = []
        self.derived: list[_Derived] = []
        self.faults: list[tuple[int, Describe]] = []
        self.is_foreign = False  # whether a buffer cannot be made again
        self._binder = binder
        self._first_derived, self._first_fault = len(binder.derivations), len(binder.faults)
        self._derived_arrays: set[int] = set()
        self._inputs = inputs
        found: list[tuple[int, int]] = []
        for place, tensor in enumerate(inputs):
            if tensor is not None and tensor.buffer not in self:
                self[tensor.buffer] = len(found)
                found.append((place, len(found)))
        self.buffers = [None] * len(found)
        self.input_refs = tuple(found)

    def __missing__(self, buffer: Buffer) -> int:
        """The number of a new buffer."""
        number = self[buffer] = len(self.buffers)
        kept = None
        if buffer.kind == "constant":
            made = [result.buffer for *_, result in self._binder.derivations[self._first_derived :]]
            kept = None if buffer in made else buffer
        elif buffer.kind == "arena" and buffer.home is None:
            self.arena.append((number, buffer))
        elif buffer not in self._binder.notes[self._first_fault :]:
            self.is_foreign = True
        self.buffers.append(kept)
        return number

    def steps(self, steps: Iterable[BoundStep], own_label: str, groups: int) -> tuple[RecordedStep, ...]:
        """Steps by the numbers of their buffers, where there were so many groups before."""
        found: list[RecordedStep] = []
        for step in steps:
            label = "" if step.label == own_label else step.label
            found.append(
                (label, step.form, tuple(map(self.__getitem__, step.buffers)), step.group and step.group - groups)
            )
        return tuple(found)

    def finish(self) -> None:
        """Find the constants that were made from inputs, and the faults."""
        if len(self._binder.derivations) == self._first_derived and len(self._binder.notes) == self._first_fault:
            return
        known = {ref for _, ref in self.input_refs}
        for source, key, make, result in self._binder.derivations[self._first_derived :]:
            ref = self[result.buffer]
            if not isinstance(source, _Watched):
                self.is_foreign = True
            elif ref not in known:
                known.add(ref)
                self.derived.append(_Derived(source.place, key, make, ref))
                self._derived_arrays.add(id(result.buffer.array))
        notes, faults = self._binder.notes[self._first_fault :], self._binder.faults[self._first_fault :]
        self.faults = [(self[note], fault.describe) for note, fault in zip(notes, faults, strict=True)]

    def is_derived(self, array: Array) -> bool:
        return id(array) in self._derived_arrays

    def output(self, tensor: Tensor | None) -> _Output | None:
        if tensor is None:
            return None
        for place, given in enumerate(self._inputs):
            if given is tensor:
                return _Output(place)
        return _Output(-1, self[tensor.buffer], tensor.look, tensor.array)
