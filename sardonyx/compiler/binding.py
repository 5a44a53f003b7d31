"""Binding: from kernels without sizes to the steps of a native plan, for given shapes.

Kernels are compiled once per structure; a plan is made once per signature of shapes. While it is made, every value
is a `Tensor`: its dtype, its shape and where it will lie. A kernel's `bind` looks at the tensors of its inputs, adds
steps and gives the tensors of its outputs; nothing is computed and no buffer exists yet.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from sardonyx.compiler.llvm.library import Emit, KernelLibrary
from sardonyx.compiler.llvm.target import Target
from sardonyx.runtime.arena_layout import ALIGNMENT
from sardonyx.runtime.native_plan import NativePlan
from sardonyx.runtime.settings import DEFAULT, RunSettings

Array = np.ndarray[Any, Any]


@dataclass(eq=False, slots=True)
class Buffer:
    """A piece of memory of the plan: in the arena, or brought by the caller, or constant.

    `index` counts the external inputs or outputs; `array` is the memory of a constant. A buffer with a `home` is a
    part of that buffer, from byte `start` on.
    """

    nbytes: int
    kind: Literal["arena", "input", "output", "constant"] = "arena"
    index: int = 0
    array: Array | None = None
    home: Buffer | None = None
    start: int = 0

    def settled(self) -> tuple[Buffer, int]:
        """The buffer that this one is finally a part of, or itself, and where it starts in there."""
        buffer, start = self, 0
        while buffer.home is not None:
            start += buffer.start
            buffer = buffer.home
        return buffer, start


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A value for given shapes: `strides` count elements, `offset` bytes from the start of the buffer.

    `array` holds the contents where they are known while binding: constants, and what follows from shapes alone.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    buffer: Buffer
    offset: int = 0
    array: Array | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after the other in row-major order."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return self.size == 0
            expected *= size
        return True

    def reshaped(self, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0) -> Tensor:
        """The same memory under another shape, row-major unless strides are given; `offset` bytes further on."""
        shape = tuple(shape)
        chosen = row_major(shape) if strides is None else tuple(strides)
        return Tensor(self.dtype, shape, chosen, self.buffer, self.offset + offset)


@dataclass(frozen=True, slots=True)
class Address:
    """As an argument: the address `offset` bytes into a buffer."""

    buffer: Buffer
    offset: int = 0


Argument = int | Tensor | Address

# What a kernel tells of itself where somebody asks: its sizes, its tile, how the work is cut.
Detail = str | Callable[[], str]

# Steps whose kernels take less than this many nanoseconds are not worth a second thread.
SMALL_STEP_NS = 2000


@dataclass(slots=True)
class BoundStep:
    """One step with its arguments still symbolic."""

    label: str
    function: int
    arguments: tuple[Argument, ...]
    chunks: int
    claim: int
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    flops: float = 0.0
    bytes: float = 0.0
    origin: Any = None  # what was being bound
    group: int = 0  # steps of one group other than 0 write to different places
    alone: bool = False  # the thread that called does it, in order with others like it
    kernel: str = ""  # which kernel it is
    detail: Detail = ""  # how that works here, in words
    arithmetic: str = ""  # the machine's inner product that bounds it; empty: multiply-adds of its results' type


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Element strides of a contiguous tensor."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def float_word(number: float) -> int:
    """A float64 as the 64-bit word of an argument."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


# Two words of a fault: whether there is one, and the number that is wrong.
FAULT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Fault:
    """Data that a kernel of `origin` may refuse while it runs; `describe` makes the error for the number it notes."""

    origin: Any
    describe: Callable[[int], Exception]


@dataclass
class Binder:
    """Collects the steps of one plan. `label` names the kernel that is being bound, `origin` is what it comes from."""

    library: KernelLibrary
    settings: RunSettings = DEFAULT
    label: str = ""
    origin: Any = None
    steps: list[BoundStep] = field(default_factory=list)
    constants: list[Array] = field(default_factory=list)  # kept alive as long as the plan
    scratch_bytes: int = 0
    faults: list[Fault] = field(default_factory=list)
    _notes: Buffer = field(default_factory=lambda: Buffer(0))
    _group: int = 0
    _groups: int = 0

    @property
    def target(self) -> Target:
        return self.library.target

    def new(self, dtype: np.dtype[Any], shape: Sequence[int]) -> Tensor:
        """An uninitialised contiguous value in the arena."""
        shape = tuple(shape)
        return Tensor(dtype, shape, row_major(shape), Buffer(math.prod(shape) * dtype.itemsize))

    def constant(self, array: Array) -> Tensor:
        """A value whose contents are known."""
        itemsize = array.dtype.itemsize
        strides = tuple(stride // itemsize for stride in array.strides)
        self.constants.append(array)
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
        arguments: Sequence[Argument],
        *,
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        chunks: int = 1,
        claim: int = 1,
        scratch: int = 0,
        flops: float = 0.0,
        nbytes: float | None = None,
        detail: Detail = "",
        arithmetic: str = "",
    ) -> None:
        """Add a step: the kernel that `emit` writes for `spec`, over a grid of `chunks`.

        A tensor among the arguments stands for its address. `reads` and `writes` are what the step touches;
        `scratch` bytes of each thread's own memory; `claim` chunks go to a thread at once. `detail` says in words
        how the kernel works here, `arithmetic` names its inner product where its results' type does not say it.
        """
        if chunks <= 0:
            return
        self.scratch_bytes = max(self.scratch_bytes, scratch)
        if nbytes is None:
            nbytes = float(sum(tensor.nbytes for tensor in (*reads, *writes)))
        self.steps.append(
            BoundStep(
                self.label,
                self.library.address(emit, spec),
                tuple(arguments),
                chunks,
                claim,
                tuple(reads),
                tuple(writes),
                flops,
                nbytes,
                self.origin,
                self._group,
                chunks == 1 and self.settings.branches == 1,
                emit.__name__.removeprefix("emit_"),
                detail,
                arithmetic,
            )
        )

    @contextmanager
    def together(self) -> Iterator[None]:
        """The steps that are added inside write to different places, so that none of them waits for another."""
        outer = self._group
        if not outer:
            self._groups += 1
            self._group = self._groups
        try:
            yield
        finally:
            self._group = outer

    def fault(self, describe: Callable[[int], Exception]) -> Address:
        """Two int64 words, 0 before a run, where a kernel notes data that it must refuse: a 1, and a number.

        After a run that left a note, the caller raises the error that `describe` makes for the number (errors.* or
        ValueError), as one of the node that is being bound.
        """
        address = Address(self._notes, FAULT_BYTES * len(self.faults))
        self.faults.append(Fault(self.origin, describe))
        self._notes.nbytes += FAULT_BYTES
        return address

    def settle(self, part: Tensor, room: Tensor) -> bool:
        """Whether `part`, computed by the steps so far, will lie where `room` does, both contiguous: no copy needed.

        Possible where it is the whole of a buffer in the arena that has no place yet and `room` is aligned. No step
        may write to `part` from then on.
        """
        buffer = part.buffer
        root, start = room.buffer.settled()
        whole = buffer.kind == "arena" and buffer.home is None and part.offset == 0 and part.nbytes == buffer.nbytes
        if not (whole and part.is_contiguous and room.is_contiguous) or root is buffer or buffer.nbytes == 0:
            return False
        if (start + room.offset) % ALIGNMENT:
            return False
        buffer.home, buffer.start = root, start + room.offset
        return True

    def finish(self, outputs: Sequence[Tensor], input_count: int, copy: Callable[[Binder, Tensor], Tensor]) -> Bound:
        """The plan that computes `outputs`; each gets memory of the caller's.

        A value that is no whole buffer of its own (a view, an input, a constant, or the same value twice) is
        copied by `copy`.
        """
        finished: list[Tensor] = []
        for index, tensor in enumerate(outputs):
            buffer = tensor.buffer
            whole = buffer.kind == "arena" and tensor.offset == 0 and tensor.nbytes == buffer.nbytes
            if not (whole and buffer.home is None and tensor.is_contiguous):
                self.label, self.origin = "copy", None
                tensor = copy(self, tensor)
                buffer = tensor.buffer
            buffer.kind, buffer.index = "output", index
            finished.append(tensor)
        self._notes.kind, self._notes.index = "output", len(outputs)
        if self.settings.branches != 1:
            from sardonyx.compiler.branches import side_by_side  # which reads the classes of this module

            self.steps = side_by_side(self.steps)
        plan = _assemble(self, input_count, len(outputs) + bool(self.faults))
        described = tuple((tensor.dtype, tensor.shape) for tensor in finished)
        return Bound(plan, described, tuple(self.steps), tuple(self.faults))


@dataclass(frozen=True)
class Bound:
    """A native plan and what its outputs look like; the steps are kept for those who ask.

    Where there are `faults`, the plan has one output more, behind the others: `FAULT_BYTES` for each of them, 0 before
    a run.
    """

    plan: NativePlan
    outputs: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    steps: tuple[BoundStep, ...]
    faults: tuple[Fault, ...] = ()


def _assemble(binder: Binder, inputs: int, outputs: int) -> NativePlan:
    """Lay out the arena, find the barriers and write the tables of the plan."""
    offsets, arena_bytes = _lay_out(binder.steps)
    words: list[int] = []
    fixups: list[tuple[int, int, int]] = []
    table: list[tuple[int, ...]] = []
    barriers = _barriers(binder.steps, offsets)
    for step, barrier in zip(binder.steps, barriers, strict=True):
        single = step.alone
        flags = (1 if barrier else 0) | (2 if single else 0)
        table.append((step.function, len(words), step.chunks, step.claim, flags, 0, 0, 0))
        for argument in step.arguments:
            if isinstance(argument, int):
                words.append(argument)
                continue
            buffer, start = argument.buffer.settled()
            start += argument.offset
            if buffer.kind == "constant":
                assert buffer.array is not None
                words.append(buffer.array.__array_interface__["data"][0] + start)
                continue
            base = {"arena": 0, "input": 1 + buffer.index, "output": 1 + inputs + buffer.index}[buffer.kind]
            start += offsets.get(id(buffer), 0) if buffer.kind == "arena" else 0
            fixups.append((len(words), base, start))
            words.append(0)
    return NativePlan(
        words=np.array(words, np.int64),
        fixups=np.array(fixups, np.int64).reshape(-1, 3),
        steps=np.array(table, np.int64).reshape(-1, 8),
        arena_bytes=arena_bytes,
        scratch_bytes=binder.scratch_bytes,
        base_count=1 + inputs + outputs,
        labels=tuple(step.label for step in binder.steps),
        owners=tuple(binder.constants),
        nanoseconds=_nanoseconds(binder.steps),
        flush_denormals=binder.settings.flush_denormals,
    )


def _nanoseconds(steps: Sequence[BoundStep]) -> int:
    """A rough estimate of a run on one thread: 50 operations or 20 bytes in a nanosecond, and 100 ns for a step."""
    return round(sum(100 + step.flops / 50 + step.bytes / 20 for step in steps))


def _lay_out(steps: Sequence[BoundStep]) -> tuple[dict[int, int], int]:
    """Byte offsets of the buffers in the arena, by first and last use: best fit, freed space joined."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for index, step in enumerate(steps):
        for tensor in (*step.reads, *step.writes):
            buffer, _ = tensor.buffer.settled()
            if buffer.kind == "arena":
                key = id(buffer)
                first.setdefault(key, index)
                last[key] = index
                sizes[key] = -(-max(1, buffer.nbytes) // ALIGNMENT) * ALIGNMENT
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for key, index in first.items():
        begins.setdefault(index, []).append(key)
        ends.setdefault(last[key], []).append(key)
    offsets: dict[int, int] = {}
    free: list[tuple[int, int]] = []  # (offset, size), by offset
    total = 0
    for index in range(len(steps)):
        for key in sorted(begins.get(index, ()), key=lambda one: -sizes[one]):
            size = sizes[key]
            fits = [gap for gap in free if gap[1] >= size]
            if fits:
                gap = min(fits, key=lambda one: one[1])
                free.remove(gap)
                offsets[key] = gap[0]
                if gap[1] > size:
                    free.append((gap[0] + size, gap[1] - size))
            elif free and max(free)[0] + max(free)[1] == total:
                gap = max(free)  # the last gap touches the end of the arena: grow it
                free.remove(gap)
                offsets[key] = gap[0]
                total = gap[0] + size
            else:
                offsets[key] = total
                total += size
        free.extend((offsets[key], sizes[key]) for key in ends.get(index, ()))
        if index in ends:
            free = _joined(free)
    return offsets, total


def _joined(free: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for offset, size in sorted(free):
        if joined and sum(joined[-1]) == offset:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((offset, size))
    return joined


# A range of memory (space, start, end) that a step touched, whether it has one chunk, and its group.
Touch = tuple[tuple[int, int, int], bool, int]


def _barriers(steps: Sequence[BoundStep], offsets: dict[int, int]) -> list[bool]:
    """Before which steps the team must meet: where a step touches what another thread may still be writing or reading.

    Steps of one chunk run on the first thread, in order, so they need no meeting among themselves.
    """

    def interval(tensor: Tensor) -> tuple[int, int, int]:
        buffer, start = tensor.buffer.settled()
        length = max(1, tensor.buffer.nbytes)
        if buffer.kind == "arena":
            start += offsets[id(buffer)]
            return 0, start, start + length
        if buffer.kind == "output":
            return 2 + buffer.index, start, start + length
        return 1, 0, 0  # inputs and constants are only read

    def meets(one: list[Touch], interval_: tuple[int, int, int], step: BoundStep, single: bool) -> bool:
        space, start, end = interval_
        return any(
            other[0] == space
            and other[1] < end
            and start < other[2]
            and not (single and was_single)
            and not (group and group == step.group)
            for other, was_single, group in one
        )

    result: list[bool] = []
    read: list[Touch] = []
    written: list[Touch] = []
    for step in steps:
        single = step.alone
        reads = [interval(tensor) for tensor in step.reads]
        writes = [interval(tensor) for tensor in step.writes]
        clash = any(meets(written, one, step, single) for one in reads) or any(
            meets(written, one, step, single) or meets(read, one, step, single) for one in writes
        )
        if clash:
            read, written = [], []
        result.append(clash)
        read.extend((one, single, step.group) for one in reads)
        written.extend((one, single, step.group) for one in writes)
    return result
