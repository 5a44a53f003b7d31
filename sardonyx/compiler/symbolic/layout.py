"""Layouts of symbolic plans: what the plans of one segment for different sizes have in common.

For other sizes a segment takes nearly always the same steps over buffers of other sizes. A layout is what follows from
which steps touch which buffers, whatever their sizes: where buffers lie in the arena, before which steps the thread
pool meets, which words hold addresses. With it, the numbers of a plan are put in place by a few operations on whole
tables.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import overload

import numpy as np

from sardonyx.compiler.assembly import find_barriers, lay_out
from sardonyx.compiler.binding import Array, Buffer, Tensor
from sardonyx.compiler.bound_step import BoundStep
from sardonyx.compiler.operation import BoundOperation
from sardonyx.compiler.recording import Recording
from sardonyx.compiler.symbolic.template import STEP_NUMBERS, Columns, StepTemplate, Words
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.forks import free_in_child
from sardonyx.runtime.memory.arena_layout import ALIGNMENT
from sardonyx.runtime.native_plan import FIXUP_WORDS, STEP_WORDS, NativePlan, StepColumn, StepFlag

# Where something has grown, all gets one of so many parts more than it needs, so that it may grow on.
_SPARE_PART = 8
# A layout that is stretched may take so many times the memory of one for the same sizes.
_WASTE = 1.125
# Patterns of steps that the caller does alone, whose barriers a layout knows; beyond, all are dropped.
_MOST_BARRIERS = 64
# In how many parts of one it is said how far layouts are stretched.
_PARTS = 1 << 10
# Buffers of so many bytes, and what follows from them, are beyond numbers of 64 bits in such parts.
_MOST_STRETCHED = 1 << 48

_BARRIER = int(StepFlag.BARRIER)


@dataclass(frozen=True, eq=False)
class Sample:
    """A plan that was bound operation by operation: all that a layout is made of."""

    operations: Sequence[BoundOperation]
    steps: Sequence[BoundStep]
    inputs: int
    outputs: int  # how many the plan makes
    constants: Sequence[Array]  # what its kernels read


class LaterSteps(Sequence[BoundStep]):
    """The steps of a plan that was made without them: bound when somebody looks at one."""

    def __init__(self, count: int, bind: Callable[[], Sequence[BoundStep]]) -> None:
        self._count = count
        self._bind = bind
        self._found: Sequence[BoundStep] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> BoundStep: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[BoundStep]: ...
    def __getitem__(self, place: int | slice) -> BoundStep | Sequence[BoundStep]:
        if self._found is None:
            self._found = self._bind()
        return self._found[place]


@dataclass(frozen=True, eq=False)
class _Layout:
    """Where the buffers of the arena lie, each with its room in bytes, and the barriers before the steps: flags, by
    those that say which steps the caller does alone."""

    room: Words
    total: int
    base: Words  # of all buffers: what is added to the offsets of places in them
    barriers: dict[bytes, Words]
    arena_bytes: int
    dense: float  # bytes of an arena for one of the room, where nothing is stretched


class NoLayoutError(Exception):
    """A plan that shares no layout: it holds more than whole buffers in the arena and what crosses its border."""


@dataclass(frozen=True, eq=False)
class PlanNumbers:
    """The numbers of a plan for some sizes: one of each for every kind of operation, in order.

    words: those of its steps. numbers: their other ones, joined. nanoseconds: what a thread takes.
    scratch_bytes: what the largest step needs. constants: what the plan keeps alive.
    value: gives a value of the segment by its number.
    """

    words: Sequence[bytes]
    numbers: Words
    nanoseconds: Sequence[float]
    scratch_bytes: int
    constants: Sequence[Array]
    value: Callable[[int], Tensor | None]


class PlanLayout:
    """What those plans have in common whose operations are of these kinds and touch buffers as in the sample.

    `templates` has the steps of each kind. `fixed` are the numbers of the model's constants, `steps` the sample's over
    buffers of the layout's own. NoLayoutError if there is none.
    """

    def __init__(
        self, sample: Sample, kinds: Sequence[int], templates: Sequence[StepTemplate], fixed: Collection[int]
    ) -> None:
        self._lock = free_in_child(threading.Lock())
        self._kinds = [kind for kind in kinds if kind >= 0]
        self._constants = tuple(sample.constants)
        self._labels = tuple([step.label for step in sample.steps])
        self._base_count = 1 + sample.inputs + sample.outputs
        self._numbers: dict[Buffer, int] = {}
        self._buffers: list[Buffer] = []  # those of the arena are copies, whose sizes change with the room they get
        self._varying: list[tuple[int, int]] = []  # buffers that hold what was computed while binding: the value
        owners: list[list[int]] = [[], []]  # of each step, and of each place: the operation
        places: list[int] = []
        arena: list[int] = []
        constant: list[int] = []
        if sample.operations and sample.operations[-1].end != len(sample.steps):  # others stand between them
            raise NoLayoutError
        steps = [self._over_copies(step, sample) for step in sample.steps]
        columns = Columns(templates)
        spare, first, count = len(self._buffers), 0, 0
        for bound, kind in zip(sample.operations, kinds, strict=True):
            own, first = sample.steps[first : bound.end], bound.end
            recording = bound.recording
            if recording is None:
                if own or bound.operation.structure is not None:
                    raise NoLayoutError
                continue
            local = self._local(recording, own)
            self._check(bound, recording, local, fixed)
            template = templates[kind]
            columns.add(kind)
            owners[0] += [count] * template.steps
            owners[1] += [count] * len(template.places)
            places += [local[ref] for ref in template.places]
            arena += [local.get(ref, spare) for ref in template.arena]
            constant += [local.get(ref, spare) for ref in template.constants]
            count += 1
        if first != len(sample.steps):
            raise NoLayoutError
        self._columns = columns.all()
        self._step_owner, self._place_owner = (np.array(each, np.int64) for each in owners)
        self._places, self._arena, self._constant = (np.array(each, np.int64) for each in (places, arena, constant))
        self.steps = steps
        self._layouts: list[_Layout] = []
        self._describe_buffers(set(arena), sample)

    def _over_copies(self, step: BoundStep, sample: Sample) -> BoundStep:
        """The step over buffers of its own, which are numbered."""
        own: list[Buffer] = []
        for buffer in step.buffers:
            number = self._numbers.get(buffer)
            if number is None:
                root, _ = buffer.settled()
                is_note = root.kind == "output" and root.index == sample.outputs
                if root is not buffer and not is_note:
                    raise NoLayoutError
                number = self._numbers[buffer] = len(self._buffers)
                self._buffers.append(Buffer(buffer.nbytes) if buffer.kind == "arena" and not is_note else buffer)
            own.append(self._buffers[number])
        return BoundStep(step.label, step.form, own, None, step.group)

    def _local(self, recording: Recording, steps: Sequence[BoundStep]) -> dict[int, int]:
        """The numbers of the buffers by those that they have in the recording."""
        found: dict[int, int] = {}
        for (_, _, refs, _), step in zip(recording.steps, steps, strict=True):
            found.update(zip(refs, map(self._numbers.__getitem__, step.buffers), strict=True))
        return found

    def _check(
        self, bound: BoundOperation, recording: Recording, local: dict[int, int], fixed: Collection[int]
    ) -> None:
        """Note constants that are not the model's own; NoLayoutError if others were made from them."""
        read = bound.operation.inputs
        if any(read[one.place] not in fixed for one in recording.derived):
            raise NoLayoutError
        for place, ref in recording.input_refs:
            number = local.get(ref)
            if number is not None and self._buffers[number].kind == "constant" and read[place] not in fixed:
                self._varying.append((number, read[place]))

    def _describe_buffers(self, made: Collection[int], sample: Sample) -> None:
        """Say what each buffer lies on; NoLayoutError if one in the arena is not among those that are `made`."""
        count = len(self._buffers)
        self._lies_on = np.zeros(count, np.int64)  # which of a plan's bases; 0 the arena, -1 nowhere: a constant
        self._base = np.zeros(count + 1, np.int64)  # what is added to the offsets of its places; the last is nobody's
        for number, buffer in enumerate(self._buffers):
            root, start = buffer.settled()
            if root.kind == "constant":
                self._lies_on[number], self._base[number] = -1, root.address + start
            elif root.kind == "arena":
                if number not in made:
                    raise NoLayoutError
            else:
                self._lies_on[number] = root.index + (1 if root.kind == "input" else 1 + sample.inputs)
                self._base[number] = start
        self._in_arena = np.flatnonzero(self._lies_on == 0)
        on = self._lies_on[self._places]
        self._constant_places = np.flatnonzero(on < 0)
        self._moving_places = np.concatenate([np.flatnonzero(on == 0), np.flatnonzero(on > 0)])
        self._moving_bases = on[self._moving_places]
        recordings = [one.recording for one in sample.operations]
        self._base_count += any(one is not None and bool(one.faults) for one in recordings)

    def _layout(self, needed: Words) -> _Layout:
        """A layout for these sizes, which take about half of its room at least: a known one, or one that grows."""
        total = int(needed.sum())
        with self._lock:
            near = [one for one in self._layouts if total <= 2 * one.total and one.total <= 2 * total]
            for one in near:
                if (needed <= one.room).all():
                    return one
            if not near:
                found = self._lay_steps_out(needed)
                self._layouts = [*self._layouts, found]
                return found
            grown = max(near, key=lambda one: one.total)
            room = np.maximum(needed + needed // _SPARE_PART, grown.room)
            found = self._stretched(grown, room) or self._lay_steps_out(room)
            self._layouts = [*(one for one in self._layouts if one is not grown), found]
            return found

    def _stretched(self, layout: _Layout, room: Words) -> _Layout | None:
        """The layout with all distances longer in the same proportion, so that the buffers get this room; None where
        one of them needs so much more than the others that this would waste memory.

        What did not overlap does not overlap then either, so that the same barriers do.
        """
        if int(room.max(initial=0)) >= _MOST_STRETCHED:
            return None
        before, now = (np.maximum(-(-one // ALIGNMENT), 1) for one in (layout.room, room))
        factor = int((-(-now * _PARTS // before)).max(initial=_PARTS))  # in so many parts of one
        arena_bytes = layout.arena_bytes // ALIGNMENT * factor // _PARTS * ALIGNMENT
        total = int(room.sum())
        if arena_bytes > _WASTE * layout.dense * total:
            return None
        base = layout.base.copy()
        base[self._in_arena] = base[self._in_arena] // ALIGNMENT * factor // _PARTS * ALIGNMENT
        return _Layout(room, total, base, layout.barriers, arena_bytes, layout.dense)

    def _lay_steps_out(self, room: Words) -> _Layout:
        """Find where buffers that get this room lie in the arena."""
        self._give_room(room)
        offsets, nbytes = lay_out(self.steps, in_place=False)  # what looks the same in the sample may differ
        base = self._base.copy()
        base[self._in_arena] = [offsets.get(self._buffers[number], 0) for number in self._in_arena.tolist()]
        total = int(room.sum())
        return _Layout(room, total, base, {}, nbytes, nbytes / max(1, total))

    def _give_room(self, room: Words) -> None:
        for number, nbytes in zip(self._in_arena.tolist(), room.tolist(), strict=True):
            self._buffers[number].nbytes = nbytes

    def _barriers(self, layout: _Layout, flags: Words) -> Words:
        """The flags of the steps' barriers, where `flags` say which steps the caller does alone."""
        key = flags.tobytes()
        found = layout.barriers.get(key)
        if found is None:
            with self._lock:
                self._give_room(layout.room)
                offsets = {self._buffers[number]: int(layout.base[number]) for number in self._in_arena.tolist()}
                found = np.array(find_barriers(self.steps, offsets, flags.astype(bool).tolist()), np.int64) * _BARRIER
                if len(layout.barriers) >= _MOST_BARRIERS:
                    layout.barriers.clear()
                layout.barriers[key] = found
        return found

    def plan(self, found: PlanNumbers, flush_denormals: bool) -> tuple[NativePlan, Words]:
        """The plan of steps that have these numbers and the topologies of the sample's, and which of its words are
        addresses of constants."""
        numbers = found.numbers
        count, step, word, offset, size, address = self._columns
        needed = np.zeros(len(self._base), np.int64)
        needed[self._arena] = numbers[size]
        layout = self._layout(needed[self._in_arena])
        base = layout.base.copy()
        base[self._constant] = numbers[address]
        owners: list[Array] = []
        for number, value in self._varying:
            tensor = found.value(value)
            assert tensor is not None
            base[number] = tensor.buffer.address
            owners.append(tensor.buffer.array)  # type: ignore[arg-type]
        counts = numbers[count]
        starts = counts.cumsum() - counts
        steps = np.zeros((len(self.steps), STEP_WORDS), np.int64)
        steps[:, :STEP_NUMBERS] = numbers[step].reshape(-1, STEP_NUMBERS)
        steps[:, StepColumn.ARGUMENTS] += starts[self._step_owner]
        steps[:, StepColumn.FLAGS] |= self._barriers(layout, steps[:, StepColumn.FLAGS])
        places = numbers[word] + starts[self._place_owner]
        addresses = numbers[offset] + base[self._places]
        words = np.frombuffer(bytearray(b"".join(map(found.words.__getitem__, self._kinds))), np.int64)
        constant_words = places[self._constant_places]
        words[constant_words] = addresses[self._constant_places]
        fixups = np.empty((len(self._moving_places), FIXUP_WORDS), np.int64)
        fixups[:, 0], fixups[:, 1] = places[self._moving_places], self._moving_bases
        fixups[:, 2] = addresses[self._moving_places]
        plan = NativePlan(
            words=words,
            fixups=fixups,
            steps=steps,
            arena_bytes=layout.arena_bytes,
            scratch_bytes=found.scratch_bytes,
            base_count=self._base_count,
            labels=self._labels,
            owners=(*self._constants, *found.constants, *owners),
            nanoseconds=round(sum(map(found.nanoseconds.__getitem__, self._kinds))),
            flush_denormals=flush_denormals,
        )
        return plan, constant_words
