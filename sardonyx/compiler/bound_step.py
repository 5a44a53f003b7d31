"""What a plan is made of while it is bound: buffers, tensors over them, and steps whose arguments are symbolic."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

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
    _address: int = 0

    @property
    def address(self) -> int:
        """Where a constant lies."""
        if not self._address:
            assert self.array is not None
            self._address = int(self.array.__array_interface__["data"][0])
        return self._address

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
    def is_known(self) -> bool:
        """Whether it has an `array`."""
        return self.array is not None

    @property
    def unwatched(self) -> Tensor:
        """The tensor, whose `array` may be read without anybody noting it."""
        return self

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


@dataclass(frozen=True, slots=True)
class TensorForm:
    """A tensor over a numbered buffer."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    ref: int
    offset: int

    def over_number(self, ref: int) -> TensorForm:
        """The same over another buffer."""
        return TensorForm(self.dtype, self.shape, self.strides, ref, self.offset)

    def over(self, buffers: Sequence[Buffer]) -> Tensor:
        return Tensor(self.dtype, self.shape, self.strides, buffers[self.ref], self.offset)


@dataclass(frozen=True, eq=False)
class StepForm:
    """A step without its buffers, which it knows by number: the same for every layer that does the same.

    `words` are the arguments, int64, with 0 where an address goes; `places` says where those go: the word, the number
    of the buffer and the offset in bytes.
    """

    function: int
    words: bytes
    places: tuple[tuple[int, int, int], ...]
    chunks: int
    claim: int
    reads: tuple[TensorForm, ...]
    writes: tuple[TensorForm, ...]
    flops: float = 0.0
    nbytes: float = 0.0
    alone: bool = False  # the thread that called does it, in order with others like it
    kernel: str = ""  # which kernel it is
    detail: Detail = ""  # how that works here, in words
    arithmetic: str = ""  # the machine's inner product that bounds it; empty: multiply-adds of its results' type

    @functools.cached_property
    def touched(self) -> tuple[int, ...]:
        """The numbers of the buffers that are read or written."""
        return tuple(dict.fromkeys([one.ref for one in (*self.reads, *self.writes)]))

    def renumbered(self, refs: Sequence[int]) -> StepForm:
        """The same with buffer `i` called ``refs[i]``."""
        places = tuple([(word, refs[ref], offset) for word, ref, offset in self.places])
        reads, writes = (tuple([one.over_number(refs[one.ref]) for one in some]) for some in (self.reads, self.writes))
        return replace(self, places=places, reads=reads, writes=writes)


class _Numbers:
    """Numbers buffers in the order in which they are met."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._known: dict[Buffer, int] = {}

    def of(self, buffer: Buffer) -> int:
        known = self._known.get(buffer)
        if known is None:
            known = self._known[buffer] = len(self.buffers)
            self.buffers.append(buffer)
        return known

    def form(self, tensor: Tensor) -> TensorForm:
        return TensorForm(tensor.dtype, tensor.shape, tensor.strides, self.of(tensor.buffer), tensor.offset)


@dataclass(slots=True)
class BoundStep:
    """One step over buffers that have no addresses yet; its arguments are read as they were given."""

    label: str
    form: StepForm
    buffers: Sequence[Buffer]
    origin: Any = None  # what was being bound
    group: int = 0  # steps of one group other than 0 write to different places

    @staticmethod
    def of(
        label: str,
        function: int,
        arguments: Sequence[Argument],
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        origin: Any,
        group: int,
        **others: Any,
    ) -> BoundStep:
        """A step with these arguments; `others` are fields of `StepForm`."""
        numbers = _Numbers()
        words: list[int] = []
        places: list[tuple[int, int, int]] = []
        for argument in arguments:
            if isinstance(argument, Tensor | Address):
                places.append((len(words), numbers.of(argument.buffer), argument.offset))
                words.append(0)
            else:
                words.append(argument)
        form = StepForm(
            function,
            struct.pack(f"{len(words)}q", *words),
            tuple(places),
            reads=tuple(map(numbers.form, reads)),
            writes=tuple(map(numbers.form, writes)),
            **others,
        )
        return BoundStep(label, form, numbers.buffers, origin, group)

    @property
    def function(self) -> int:
        return self.form.function

    @property
    def arguments(self) -> list[int | Address]:
        words: list[int | Address] = list(struct.unpack(f"{len(self.form.words) // 8}q", self.form.words))
        for word, ref, offset in self.form.places:
            words[word] = Address(self.buffers[ref], offset)
        return words

    @property
    def chunks(self) -> int:
        return self.form.chunks

    @property
    def claim(self) -> int:
        return self.form.claim

    @property
    def reads(self) -> list[Tensor]:
        return [one.over(self.buffers) for one in self.form.reads]

    @property
    def writes(self) -> list[Tensor]:
        return [one.over(self.buffers) for one in self.form.writes]

    @property
    def read_buffers(self) -> list[Buffer]:
        return [self.buffers[one.ref] for one in self.form.reads]

    @property
    def written_buffers(self) -> list[Buffer]:
        return [self.buffers[one.ref] for one in self.form.writes]

    @property
    def flops(self) -> float:
        return self.form.flops

    @property
    def bytes(self) -> float:
        return self.form.nbytes

    @property
    def alone(self) -> bool:
        return self.form.alone

    @property
    def kernel(self) -> str:
        return self.form.kernel

    @property
    def detail(self) -> Detail:
        return self.form.detail

    @property
    def arithmetic(self) -> str:
        return self.form.arithmetic


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Element strides of a contiguous tensor."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def float_word(number: float) -> int:
    """A float64 as the 64-bit word of an argument."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])
