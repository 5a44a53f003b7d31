"""Binding: from kernels without sizes to the steps of a native plan, for given shapes.

Kernels are compiled once per structure; a plan is made once per signature of shapes. While it is made, every value
is a `Tensor`: its dtype, its shape and where it will lie. A kernel's `bind` looks at the tensors of its inputs, adds
steps and gives the tensors of its outputs; nothing is computed and no buffer exists yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np

from sardonyx.compiler.arguments import Record
from sardonyx.compiler.assembly import assemble
from sardonyx.compiler.bound_step import (
    Address,
    Argument,
    Array,
    BoundStep,
    Buffer,
    Detail,
    StepForm,
    Tensor,
    float_word,
    row_major,
)
from sardonyx.compiler.branches import side_by_side
from sardonyx.compiler.joint_results import Slice
from sardonyx.compiler.llvm.library import Emit, KernelLibrary
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.shared_constants import ConstantShares, Use
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.memory.arena_layout import ALIGNMENT
from sardonyx.runtime.memory.mapped_pages import release_pages
from sardonyx.runtime.native_plan import NativePlan
from sardonyx.runtime.settings import DEFAULT, RunSettings

__all__ = [
    "FAULT_BYTES",
    "SMALL_STEP_NS",
    "Address",
    "Argument",
    "Array",
    "Binder",
    "Bound",
    "BoundStep",
    "Buffer",
    "Fault",
    "Prepared",
    "StepForm",
    "Stretch",
    "Tensor",
    "float_word",
    "row_major",
]

# Steps whose kernels take less than this many nanoseconds are not worth a second thread.
SMALL_STEP_NS = 2000

# Two words of a fault: whether there is one, and the number that is wrong.
FAULT_BYTES = 16

# Parts of fewer bytes are copied to where a Concat wants them, which takes less than a tenth of a microsecond.
SETTLED_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Fault:
    """Data that a kernel of `origin` may refuse while it runs; `describe` makes the error for the number it notes."""

    origin: Any
    describe: Callable[[int], Exception]


# A step that can be done again over other buffers: its label ("": that of the operation it is replayed for), the step,
# the numbers of its buffers, and its group, 0 or counted from 1 on.
RecordedStep = tuple[str, StepForm, Sequence[int], int]


# What was made of constants, by the identity of their `source` and a key, with what keeps that identity alive and what
# says who uses it.
Prepared = dict[tuple[int, Hashable], tuple[Array | Buffer, Tensor, Use]]


@dataclass
class Binder:
    """Collects the steps of one plan. `label` names the kernel that is being bound, `origin` is what it comes from."""

    library: KernelLibrary
    settings: RunSettings = DEFAULT
    rehearses: bool = False  # whether sizes are guessed, so that kernels for others are made ready as well
    label: str = ""
    origin: Any = None
    steps: list[BoundStep] = field(default_factory=list)
    constants: list[Array] = field(default_factory=list)  # kept alive as long as the plan
    scratch_bytes: int = 0
    faults: list[Fault] = field(default_factory=list)
    notes: list[Buffer] = field(default_factory=list)  # where each of the faults is noted
    # Constants made from others, with what they were made from, and those that this plan uses, in order. They are kept
    # for other plans where what they were made from lives as long: where its `id` is in `lasting` (None: all do).
    lasting: Container[int] | None = None
    prepared: Prepared = field(default_factory=dict)
    shares: ConstantShares | None = None  # None: made for this binder
    derivations: list[tuple[Tensor, Hashable, Callable[[Array], Array], Tensor]] = field(default_factory=list)
    _notes: Buffer = field(default_factory=lambda: Buffer(0))
    _group: int = 0
    groups: int = 0  # how many groups of steps were put together so far
    settled: int = 0  # how many values were given a place in others
    slices: Sequence[Slice | None] = ()  # where outputs of what is being bound lie in results of Concats
    whole: Buffer | None = None  # the result of a Concat that is being bound, where it has memory already
    is_symbolic: bool = False  # whether sizes are traced numbers

    def beside(self, *, is_symbolic: bool) -> Binder:
        """One that collects steps of its own, with the same constants that were made from others."""
        kept = {"lasting": self.lasting, "prepared": self.prepared, "shares": self.shares, "slices": self.slices}
        own = self.library, self.settings, False, self.label, self.origin
        return Binder(*own, is_symbolic=is_symbolic, **kept)  # type: ignore[arg-type]

    @property
    def target(self) -> Target:
        return self.library.target

    def new(self, dtype: np.dtype[Any], shape: Sequence[int]) -> Tensor:
        """An uninitialised contiguous value in the arena."""
        shape = tuple(shape)
        return Tensor(dtype, shape, row_major(shape), Buffer(math.prod(shape) * dtype.itemsize))

    def result(self, place: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Tensor:
        """An uninitialised value [batch, *places, channels] for the output at `place`, [batch, channels, *places].

        It is contiguous, unless it lies in the result of a Concat or has longer rows: then its rows lie apart.
        """
        one = self.slices[place] if place < len(self.slices) else None
        if one is None:
            return self.new(dtype, shape)
        return one.within(Buffer(one.nbytes(dtype, shape)), dtype, shape)

    def constant(self, array: Array) -> Tensor:
        """A value whose contents are known, and live as long as the plan."""
        self.constants.append(array)
        return self.computed(array)

    def computed(self, array: Array) -> Tensor:
        """One whose contents live no longer than what reads them: as long as the plan where one of its steps does."""
        itemsize = array.dtype.itemsize
        strides = tuple(stride // itemsize for stride in array.strides)
        return Tensor(array.dtype, array.shape, strides, Buffer(array.nbytes, "constant", array=array), 0, array)

    def external(self, index: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Tensor:
        """An input of the plan, contiguous, whose address the caller gives."""
        shape = tuple(shape)
        buffer = Buffer(math.prod(shape) * dtype.itemsize, "input", index)
        return Tensor(dtype, shape, row_major(shape), buffer)

    def step(
        self,
        emit: Emit,
        spec: Any,
        arguments: Record | Sequence[Argument],
        *,
        reads: Sequence[Tensor] = (),
        writes: Sequence[Tensor] = (),
        read_first: Sequence[Tensor] = (),
        chunks: int = 1,
        claim: int = 1,
        scratch: int = 0,
        flops: float = 0.0,
        nbytes: float | None = None,
        detail: Detail = "",
        arithmetic: str = "",
    ) -> None:
        """Add a step: the kernel that `emit` writes for `spec`, over a grid of `chunks`.

        A record of arguments says which of its tensors the step reads and writes; `reads` and `writes` are others. In a
        list of arguments, a tensor stands for its address. Of the tensors that the step has `read_first`, a thread
        reads each element for the last time before it writes what takes its place. A thread has `scratch` bytes of its
        own memory and takes `claim` chunks at once. `detail` says in words how the kernel works here, `arithmetic`
        names its inner product if its results' type does not say it.
        """
        if chunks <= 0:
            return
        self.scratch_bytes = max(self.scratch_bytes, scratch)
        if isinstance(arguments, Record):
            words = arguments.of_step(emit, spec)
            arguments, reads, writes = words.flat, (*words.reads, *reads), (*words.writes, *writes)
        if nbytes is None:
            nbytes = sum([tensor.nbytes for tensor in (*reads, *writes)])
        function = self.library.kernel(emit, spec)
        alone = 1 // chunks if self.settings.branches == 1 else 0  # for a traced number, whether it is 1 or more
        self.steps.append(
            BoundStep.of(
                self.label,
                function,
                arguments,
                reads,
                writes,
                () if self.is_symbolic else _replaced(writes, read_first),
                self.origin,
                self._group,
                self.is_symbolic,
                chunks=chunks,
                claim=claim,
                flops=flops,
                nbytes=nbytes,
                alone=alone,
                kernel=emit.__name__.removeprefix("emit_"),
                detail=detail,
                arithmetic=arithmetic,
            )
        )

    def replay_steps(self, steps: Sequence[RecordedStep], buffers: Sequence[Buffer], groups: int, scratch: int) -> None:
        """Add steps that were recorded, over these buffers.

        Their groups count from 1 to `groups`; `scratch` is what the largest needs.
        """
        before, origin = self.groups, self.origin
        self.groups += groups
        self.scratch_bytes = max(self.scratch_bytes, scratch)
        self.steps += [
            BoundStep(label or self.label, form, [buffers[ref] for ref in refs], origin, group and group + before)
            for label, form, refs, group in steps
        ]

    def derived(self, source: Tensor, key: Hashable, make: Callable[[Array], Array]) -> Tensor:
        """A constant that is made from the contents of another one: once for all plans, and for all equal `key`s.

        `make` depends on nothing but the contents and what `key` says, so that it serves any kernel.
        """
        given = source.unwatched
        origin = given.source
        assert origin is not None
        known = self.prepared.get((id(origin), key))
        if known is None:
            lasts = self._lasts(origin)
            use = self._shares.make(origin if lasts else None, key, lambda: _made(given, make))
            known = origin, self.constant(use.array), use
            if lasts:
                self.prepared[id(origin), key] = known
        else:
            self.constants.append(known[1].buffer.array)  # type: ignore[arg-type]
        self.derivations.append((source, key, make, known[1]))
        return known[1]

    def _lasts(self, origin: Array | Buffer) -> bool:
        """Whether contents live as long as what is prepared: the model's own, and what was prepared of them."""
        if self.lasting is None or id(origin) in self.lasting:
            return True
        return any(made.buffer.array is origin for _, made, _ in self.prepared.values())

    @property
    def _shares(self) -> ConstantShares:
        if self.shares is None:
            self.shares = ConstantShares(self.target.key)
        return self.shares

    @contextmanager
    def together(self) -> Iterator[None]:
        """The steps that are added inside write to different places, so that none of them waits for another, except
        one that reads what another makes for it alone, as a copy with other strides."""
        outer = self._group
        if not outer:
            self.groups += 1
            self._group = self.groups
        try:
            yield
        finally:
            self._group = outer

    def fault(self, describe: Callable[[int], Exception]) -> Address:
        """Two int64 words, 0 before a run, where a kernel notes data that it must refuse: a 1, and a number.

        After a run that left a note, the caller raises the error that `describe` makes for the number (errors.* or
        ValueError), as one of the node that is being bound.
        """
        note = Buffer(FAULT_BYTES, home=self._notes, start=self._notes.nbytes)
        self.faults.append(Fault(self.origin, describe))
        self.notes.append(note)
        self._notes.nbytes += FAULT_BYTES
        return Address(note)

    def settle(self, part: Tensor, room: Tensor) -> bool:
        """Whether `part`, computed by the steps so far, will lie where `room` does, both contiguous: no copy needed.

        Possible where it is the whole of a buffer in the arena that has no place yet and `room` is aligned. No step
        may write to `part` from then on. A small part is copied: symbolic plans know no buffers inside others.
        """
        if part.nbytes < SETTLED_BYTES:
            return False
        buffer = part.buffer
        root, start = room.buffer.settled()
        whole = buffer.kind == "arena" and buffer.home is None and part.offset == 0 and part.nbytes == buffer.nbytes
        if not (whole and part.is_contiguous and room.is_contiguous) or root is buffer or buffer.nbytes == 0:
            return False
        if (start + room.offset) % ALIGNMENT:
            return False
        buffer.home, buffer.start = root, start + room.offset
        self.settled += 1
        return True

    def finish(self, outputs: Sequence[Tensor], input_count: int, copy: Callable[[Binder, Tensor], Tensor]) -> Bound:
        """The plan that computes `outputs`; each gets memory of the caller's.

        A value that is no whole buffer of its own (a view, an input, a constant, or the same value twice) is
        copied by `copy`, as soon as it is there.
        """
        finished: list[Tensor] = []
        computed = len(self.steps)
        copied: list[tuple[Buffer, int]] = []  # what is copied, and how many steps there are then
        for index, tensor in enumerate(outputs):
            if not tensor.fills_buffer:
                self.label, self.origin = "copy", None
                source = tensor.buffer
                tensor = copy(self, tensor)
                copied.append((source, len(self.steps)))
            tensor.buffer.kind, tensor.buffer.index = "output", index
            finished.append(tensor)
        if copied:
            self._bring_forward(computed, copied)
        self._notes.kind, self._notes.index = "output", len(outputs)
        if self.settings.branches != 1:
            self.steps = side_by_side(self.steps)
        if self.rehearses:
            self.library.finish()
        plan = assemble(
            self.steps,
            input_count,
            len(outputs) + bool(self.faults),
            scratch_bytes=self.scratch_bytes,
            owners=self.constants,
            flush_denormals=self.settings.flush_denormals,
            reuses_memory=self.settings.reuses_memory,
        )
        described = tuple((tensor.dtype, tensor.shape) for tensor in finished)
        return Bound(plan, described, tuple(self.steps), tuple(self.faults))

    def _bring_forward(self, computed: int, copied: Sequence[tuple[Buffer, int]]) -> None:
        """Put steps that copy, which follow those `computed`, behind the last one that writes what they copy."""
        last: dict[Buffer, int] = {}
        for index, step in enumerate(self.steps[:computed]):
            last.update((buffer.settled()[0], index) for buffer in step.written_buffers)
        behind: dict[int, list[BoundStep]] = {}
        first = computed
        for source, end in copied:
            behind.setdefault(last.get(source.settled()[0], -1), []).extend(self.steps[first:end])
            first = end
        steps = behind.get(-1, [])
        for index, step in enumerate(self.steps[:computed]):
            steps += [step, *behind.get(index, ())]
        self.steps = steps


def _replaced(writes: Sequence[Tensor], read_first: Sequence[Tensor]) -> list[Tensor]:
    """Those of `read_first` whose memory the one result of a step could take: they look the same."""
    if not read_first or len(writes) != 1 or not _fills_its_buffer(writes[0]):
        return []
    return [one for one in read_first if one.look == writes[0].look and _fills_its_buffer(one)]


def _fills_its_buffer(tensor: Tensor) -> bool:
    """Whether the tensor, in whatever order, has as many bytes as its buffer in the arena."""
    buffer = tensor.buffer
    return buffer.kind == "arena" and buffer.home is None and tensor.offset == 0 and tensor.nbytes == buffer.nbytes


def _made(given: Tensor, make: Callable[[Array], Array]) -> Array:
    """What `make` gives of the contents of a tensor, of whose mapped pages none stays."""
    array = given.contents
    assert array is not None
    made = make(array)
    release_pages(array)
    return made


@dataclass(frozen=True, slots=True)
class Stretch:
    """So many of a plan's steps that are done `rounds` times in a row, each time for some items of a batch; `reason`
    tells in words why there are so many."""

    steps: int
    rounds: int = 1
    reason: str = ""


@dataclass(frozen=True)
class Bound:
    """A native plan and what its outputs look like; the steps are kept for those who ask.

    Where there are `faults`, the plan has one output more, behind the others: `FAULT_BYTES` for each of them, 0 before
    a run. Where there are `stretches`, the plan does the steps of each of them several times, else all of them once.
    `alike` are steps that write the same outputs, where the plan's own are not there yet; `constant_words` then says
    which words hold addresses of constants.
    """

    plan: NativePlan
    outputs: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    steps: Sequence[BoundStep]
    faults: tuple[Fault, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    alike: Sequence[BoundStep] | None = None
    constant_words: np.ndarray[Any, np.dtype[np.int64]] | None = None

    @property
    def writers(self) -> list[int] | None:
        """The last step that writes each of the outputs (-1: none does); None where steps are done several times."""
        if len(self.stretches) > 1 or any(stretch.rounds != 1 for stretch in self.stretches):
            return None
        found = [-1] * len(self.outputs)
        for index, step in enumerate(self.steps if self.alike is None else self.alike):
            for buffer in step.written_buffers:
                root, _ = buffer.settled()
                if root.kind == "output" and root.index < len(found):
                    found[root.index] = index
        return found

    @property
    def stretch_of_steps(self) -> list[Stretch]:
        """The stretch that each of the steps is in."""
        return [stretch for stretch in self._all_stretches for _ in range(stretch.steps)]

    @property
    def order(self) -> list[int]:
        """Which of the steps the plan does, one after the other."""
        found: list[int] = []
        start = 0
        for stretch in self._all_stretches:
            found += [*range(start, start + stretch.steps)] * stretch.rounds
            start += stretch.steps
        return found

    @property
    def _all_stretches(self) -> tuple[Stretch, ...]:
        return self.stretches or (Stretch(len(self.steps)),)
