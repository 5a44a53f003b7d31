"""Bindings that are done once and replayed: for other shapes elsewhere in the model, and for other layers.

What a kernel adds to a plan depends on its parameters and on how its inputs look: dtypes, shapes, strides, places in
their buffers, and the contents of those few whose contents it reads. Where all of that was seen before, in this
operation or in another one of the same structure, the recorded steps are put onto other buffers instead of being
worked out again: a model of equal layers binds one of them, and generation, in which only the past grows, binds
little more than one attention.

Which contents a kernel reads is observed, not declared: while it is recorded, its inputs tell when `array` is asked
for. A binding that decides where a buffer of another kernel lies is not recorded.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx_ir as ir

from sardonyx.compiler.binding import Array, Binder, Buffer, RecordedStep, Tensor
from sardonyx.compiler.bound_step import COMPARED_BYTES, BoundStep, Look, contents_of, tensor_over
from sardonyx.compiler.fusion import Group
from sardonyx.compiler.new_sizes.formulas import Formulas, TracedContents
from sardonyx.compiler.pieces import Piece, PieceMaker
from sardonyx.kernel.canonical import canonical

Tensors = Sequence["Tensor | None"]
Bind = Callable[[Binder, Tensors], Tensors]
Describe = Callable[[int], Exception]

# Recordings of a segment; beyond, all are dropped. Each takes a few kilobytes.
MOST_RECORDINGS = 4096
# Looks of tensors that are numbered; beyond, they get new numbers.
MOST_LOOKS = 65536
# A recording does not keep arrays alive that are larger than this, unless they are the model's constants.
_KEPT_BYTES = 64 << 10


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
        self.number = given.number
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
        if not isinstance(self.given, TracedContents):
            self.seen.add(self.place)
        return self.given.elements

    @property
    def is_known(self) -> bool:
        return self.given.is_known

    @property
    def unwatched(self) -> Tensor:
        return self.given


class Looks:
    """Numbers for all that a kernel can see of a tensor but its contents: equal ones for tensors that look the same.

    No number is given twice, so that those that were forgotten mean nothing else later.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._next = itertools.count(1).__next__

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor, which keeps it: its buffer's kind and size do not change while anybody asks."""
        buffer = tensor.buffer
        known = tensor.is_known
        look = buffer.kind, buffer.nbytes, tensor.dtype, tensor.shape, tensor.strides, tensor.offset, known
        number = self._numbers.get(look)
        if number is None:
            if len(self._numbers) >= MOST_LOOKS:
                self._numbers.clear()
            number = self._numbers[look] = self._next()
        tensor.number = number
        return number

    def of_one(self, tensor: Tensor) -> int:
        """The number of a tensor, which may have it already."""
        return tensor.number or self.number(tensor)

    def of(self, inputs: Tensors) -> Hashable:
        """All that a kernel can see of its inputs but their contents; which of them share a buffer, too."""
        numbers = tuple([0 if tensor is None else tensor.number or self.number(tensor) for tensor in inputs])
        buffers = [tensor.buffer for tensor in inputs if tensor is not None]
        if len(set(buffers)) == len(buffers) and not any(buffer.home for buffer in buffers):
            return numbers
        places: dict[Buffer, int] = {}
        shared: list[Hashable] = []
        for buffer in buffers:
            place = places.get(buffer)
            if place is None:
                place = places[buffer] = len(places)
                if buffer.home is not None:
                    root, start = buffer.settled()
                    shared.append((places.setdefault(root, len(places)), root.kind, root.nbytes, start))
            shared.append(place)
        return numbers, tuple(shared)


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
    number: int = 0  # that of its look


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
    steps: tuple[RecordedStep, ...] | None  # None where nobody needs more than the piece
    groups: int
    scratch_bytes: int
    constants: tuple[Array, ...]
    outputs: tuple[_Output | None, ...]
    _piece: Piece | None = None

    def replay(self, binder: Binder, inputs: Tensors, *, as_piece: bool = False) -> list[Tensor | None]:
        """Add the steps for these inputs, unless `as_piece`, and give the outputs."""
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
        if not as_piece:
            assert self.steps is not None
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
                outputs.append(tensor_over(buffer, output.look, output.array, output.number))
        return outputs

    @property
    def piece(self) -> Piece:
        """The same as numbers."""
        if self._piece is None:
            assert self.steps is not None
            return self.keep_piece(PieceMaker.of(self.steps))
        return self._piece

    def keep_piece(self, maker: PieceMaker) -> Piece:
        """Make the piece of its steps, which `maker` has."""
        self._piece = maker.piece(self.arena, *self.surroundings)
        return self._piece

    @property
    def surroundings(self) -> tuple[list[tuple[int, int]], Sequence[Hashable]]:
        """What its piece has beside steps and new buffers: constants with their addresses; and what else there is."""
        constants = [(ref, buffer.address) for ref, buffer in enumerate(self.buffers) if buffer is not None]
        others = (
            self.input_refs,
            tuple([(one.place, one.key, one.ref) for one in self.derived]),
            tuple([ref for ref, _ in self.faults]),
            tuple([one and (one.given, one.ref, one.array is None) for one in self.outputs]),
        )
        return constants, others

    def resized(
        self,
        piece: Piece,
        arena: tuple[tuple[int, int], ...],
        scratch_bytes: int,
        looks: Iterable[tuple[tuple[int, ...], tuple[int, ...], int]],
    ) -> Recording:
        """The same for other sizes; `looks` are shapes, strides and offsets of the outputs that are no inputs."""
        following = iter(looks)
        outputs = [
            one if one is None or one.look is None else _Output(-1, one.ref, (one.look[0], *next(following)))
            for one in self.outputs
        ]
        same = self.derived, self.faults, self.buffers, None, self.groups, scratch_bytes, self.constants
        return Recording(self.owners, self.read, self.input_refs, arena, *same, tuple(outputs), piece)

    def buffer(self, ref: int, binder: Binder, value: Callable[[int], Tensor | None]) -> Buffer:
        """One of the buffers but those of notes, where `value` gives the input at a place."""
        known = self.buffers[ref]
        if known is not None:
            return known
        for place, other in self.input_refs:
            if other == ref:
                return value(place).buffer  # type: ignore[union-attr]
        for one in self.derived:
            if one.ref == ref:
                return binder.derived(value(one.place), one.key, one.make).buffer  # type: ignore[arg-type]
        return next(Buffer(nbytes) for other, nbytes in self.arena if other == ref)


class Replays:
    """The recordings of one segment; `lasting` are constants that live as long as it does.

    Segments that share tensors share their `looks`.
    """

    def __init__(self, lasting: Sequence[Array | Buffer], looks: Looks) -> None:
        self.lasting = frozenset(map(id, lasting))
        self._looks = looks
        # For each look of the inputs: the places whose contents were read, and the recordings by those contents.
        self._known: dict[Hashable, tuple[tuple[int, ...], dict[Hashable, Recording]]] = {}
        self._count = 0
        self._lock = threading.Lock()
        self.formulas = Formulas(self.lasting, looks)

    def bind(
        self, structure: Hashable, bind: Bind, binder: Binder, inputs: Tensors, *, as_piece: bool = False
    ) -> tuple[Tensors, Recording | None]:
        """What `bind` does for these inputs, replayed where something of the same structure did the same before.

        Functions of equal `structure` do the same for inputs that look the same. The recording is None for what cannot
        be done again. With `as_piece`, the steps are in its piece, and the binder gets none.
        """
        look = structure, binder.rehearses, self._looks.of(inputs)
        known = self._known.get(look)
        if known is not None:
            places, recordings = known
            recording = recordings.get(tuple([contents_of(inputs[place]) for place in places]))
            if recording is not None and (as_piece or recording.steps is not None):
                return recording.replay(binder, inputs, as_piece=as_piece), recording
        if as_piece:
            recording = self.formulas.find((structure, binder.rehearses), inputs)
            if recording is not None:
                return recording.replay(binder, inputs, as_piece=True), recording
        seen: set[int] = set()
        maker = PieceMaker if as_piece else None
        outputs, found, steps = _record(bind, binder, inputs, seen, self.lasting, self._looks, maker)
        if found is not None:
            if steps is not None:
                found.keep_piece(steps)
            self._keep(look, seen, inputs, found)
            self._learn(structure, bind, binder, inputs, as_piece)
        return outputs, found

    def _learn(self, structure: Hashable, bind: Bind, binder: Binder, inputs: Tensors, as_piece: bool) -> None:
        """Make a formula of what was recorded, if pieces are wanted."""

        def record(traced: Tensors) -> tuple[Recording, PieceMaker] | None:
            maker = partial(PieceMaker, traced=True)
            _, found, steps = _record(bind, binder.beside(), traced, set(), self.lasting, None, maker)
            return None if found is None or steps is None else (found, steps)

        wanted = record if as_piece and binder.formulas > 0 else None
        binder.formulas -= self.formulas.learn((structure, binder.rehearses), inputs, wanted)

    def _keep(self, look: Hashable, seen: set[int], inputs: Tensors, recording: Recording) -> None:
        with self._lock:
            if self._count >= MOST_RECORDINGS:
                self._known.clear()
                self._count = 0
            self._count += 1
            known = self._known.get(look)
            if known is None or not seen.issubset(known[0]):
                places = tuple(sorted(seen if known is None else seen.union(known[0])))
                known = self._known[look] = places, {}
            known[1][tuple([contents_of(inputs[place]) for place in known[0]])] = recording


def _record(
    bind: Bind,
    binder: Binder,
    inputs: Tensors,
    seen: set[int],
    lasting: Container[int],
    looks: Looks | None,
    make: Callable[[Callable[[Buffer], int], int], PieceMaker] | None,
) -> tuple[Tensors, Recording | None, PieceMaker | None]:
    """Bind with watched inputs: the outputs, and what was done, where that can be replayed.

    If `make` gives what takes the steps, the recording has none. Without `looks`, looks get no numbers.
    """
    watched = [
        one if one is None or one.buffer.kind != "constant" else _Watched(one, place, seen)
        for place, one in enumerate(inputs)
    ]
    recorder = _Recorder(inputs, binder)
    steps, constants = len(binder.steps), len(binder.constants)
    scratch, groups, settled = binder.scratch_bytes, binder.groups, binder.settled
    binder.scratch_bytes = 0
    maker = binder.piece = make(recorder.__getitem__, groups) if make is not None else None
    made = bind(binder, watched)
    binder.piece = None
    own_scratch, binder.scratch_bytes = binder.scratch_bytes, max(scratch, binder.scratch_bytes)
    outputs = [one.given if isinstance(one, _Watched) else one for one in made]
    if binder.settled != settled:
        return outputs, None, None
    recorded = recorder.steps(binder.steps[steps:], binder.label, groups) if maker is None else None
    described = tuple([recorder.output(one, looks) for one in outputs])
    recorder.finish()
    kept = _owners(inputs, seen, lasting)
    own_constants = tuple([one for one in binder.constants[constants:] if not recorder.is_derived(one)])
    if recorder.is_foreign or kept is None or sum([one.nbytes for one in own_constants]) > _KEPT_BYTES:
        return outputs, None, None
    found = Recording(
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
    return outputs, found, maker


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

    def output(self, tensor: Tensor | None, looks: Looks | None) -> _Output | None:
        if tensor is None:
            return None
        for place, given in enumerate(self._inputs):
            if given is tensor:
                return _Output(place)
        return _Output(-1, self[tensor.buffer], tensor.look, tensor.array, looks.number(tensor) if looks else 0)


def structure_of(group: Group) -> Hashable | None:
    """What groups have in common that bind alike; None for a group that is like no other.

    A pointwise loop is its expressions. A template or a view is its operator with its attributes, the inputs and
    outputs that its node has, and its epilogue.
    """
    exprs = canonical(list(group.values.values()))
    dtypes = tuple(value.dtype for value in group.operands)
    if group.anchor is None:
        return "loop", exprs, dtypes
    item = group.anchor
    node = item.node
    attributes = _plain(node.attributes)
    if attributes is None:
        return None
    given = tuple(None if value is None or value.name == "" else value.dtype for value in node.inputs)
    made = tuple(None if value.name == "" else value.dtype for value in node.outputs)
    return (
        item.role,
        type(item.operator),
        node.domain,
        node.op_type,
        node.version,
        attributes,
        given,
        made,
        group.rounded,
        exprs,
        dtypes,
    )


_PLAIN = (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING)
_LONG = 1000  # elements: trees have their nodes in attributes, and to write them out takes long
_PLAIN_LISTS = (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS)


def _plain(attributes: Mapping[str, ir.Attr]) -> Hashable | None:
    """Attributes as something to compare; None where one is no number, text or list of them, or a long list, which
    no two nodes have alike."""
    found: list[tuple[str, str]] = []
    for name, attribute in sorted(attributes.items()):
        if attribute.type in _PLAIN_LISTS:
            if len(attribute.value) > _LONG:
                return None
            found.append((name, repr(tuple(attribute.value))))
        elif attribute.type in _PLAIN:
            found.append((name, repr(attribute.value)))
        else:
            return None
    return tuple(found)
