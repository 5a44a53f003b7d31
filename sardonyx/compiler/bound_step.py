"""What a plan is made of while it is bound: buffers, tensors over them, and steps whose arguments are symbolic."""

from __future__ import annotations

import itertools
import math
import operator
import struct
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

import numpy as np

from sardonyx.compiler.llvm.library import Kernel
from sardonyx.compiler.traced import Traced
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.forks import free_in_child
from sardonyx.runtime.memory.constant_memory import constant_empty

Array = np.ndarray[Any, Any]

# How a tensor looks: its dtype, shape, strides and offset.
Look = tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...], int]

_NUMBERS = (int, Traced)

# Contents of up to so many bytes are compared, larger ones must be the same array.
COMPARED_BYTES = 256


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


@dataclass(eq=False, slots=True)
class Tensor:
    """A value for given shapes: `strides` count elements, `offset` bytes from the start of the buffer.

    Nobody changes one: it is not frozen because that makes its construction three times as dear. `array` holds the
    contents where they are known while binding: constants, and what follows from shapes alone.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    buffer: Buffer
    offset: int = 0
    array: Array | None = None

    @property
    def look(self) -> Look:
        """What there is to know of it but its buffer and its contents."""
        return self.dtype, self.shape, self.strides, self.offset

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
    def source(self) -> Array | Buffer | None:
        """What stands for its contents where the question is whether they are the same; None where there are none."""
        return self.array

    @property
    def contents(self) -> Array | None:
        """What it contains, whether or not kernels are to see that."""
        return self.array

    @property
    def elements(self) -> Sequence[int]:
        """What it contains, for kernels to which the contents are nothing but numbers, such as sizes."""
        assert self.array is not None
        found: Sequence[int] = self.array.ravel().tolist()
        return found

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

    @property
    def fills_buffer(self) -> bool:
        """Whether it is all of a buffer in the arena, in row-major order."""
        buffer = self.buffer
        whole = buffer.kind == "arena" and self.offset == 0 and self.nbytes == buffer.nbytes
        return whole and buffer.home is None and self.is_contiguous

    def reshaped(self, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0) -> Tensor:
        """The same memory under another shape, row-major unless strides are given; `offset` bytes further on.

        The contents of a known tensor stay behind: whoever needs them asks that tensor, and so depends on them, while
        what only moves a constant is bound in the same way whatever is in it.
        """
        shape = tuple(shape)
        chosen = row_major(shape) if strides is None else tuple(strides)
        return Tensor(self.dtype, shape, chosen, self.buffer, self.offset + offset)


class ComputedBuffer(Buffer):
    """The memory of a constant that `compute` gives whenever somebody asks, and that stays where a kernel reads it.

    `identity` tells its contents from others, None where they cannot be told; `hold` takes both and gives the array
    that stays, and whatever has to be kept with it.
    """

    __slots__ = ("_lock", "compute", "hold", "identity", "kept")

    def __init__(self, compute: Callable[[], Array], nbytes: int, identity: Identity, hold: Hold) -> None:
        super().__init__(nbytes, "constant")
        self.compute = compute
        self.identity = identity
        self.hold = hold
        self.kept: object = None
        self._lock = free_in_child(threading.Lock())

    @property
    def address(self) -> int:
        with self._lock:
            if not self._address:
                self.array, self.kept = self.hold(self.compute, self.identity)
                self._address = int(self.array.__array_interface__["data"][0])
        return self._address


Identity = Callable[[], "Hashable | None"]
Hold = Callable[[Callable[[], Array], Identity], tuple[Array, object]]


def unknown() -> None:
    """The identity of contents that nothing tells from others."""


def constant_copy(compute: Callable[[], Array], identity: Identity = unknown) -> tuple[Array, object]:
    """A copy that stays, of what `compute` gives."""
    contents = compute()
    array = constant_empty(contents.size, contents.dtype).reshape(contents.shape)
    array[...] = contents
    return array, None


class ComputedConstant(Tensor):
    """A constant that is computed from others whenever its contents are read, and not held in between.

    What is made of it for a kernel (see `Binder.derived`) is all that stays in memory, unless a kernel reads the
    constant itself.
    """

    __slots__ = ()

    buffer: ComputedBuffer

    def __init__(
        self,
        compute: Callable[[], Array],
        dtype: np.dtype[Any],
        shape: Sequence[int],
        identity: Identity = unknown,
        hold: Hold = constant_copy,
    ) -> None:
        shape = tuple(shape)
        self.dtype, self.shape, self.strides = dtype, shape, row_major(shape)
        self.buffer = ComputedBuffer(compute, math.prod(shape) * dtype.itemsize, identity, hold)
        self.offset = 0

    @property
    def array(self) -> Array:  # type: ignore[override]
        held = self.buffer.array
        return np.ascontiguousarray(self.buffer.compute()) if held is None else held

    @property
    def is_known(self) -> bool:
        return True

    @property
    def source(self) -> Buffer:
        return self.buffer


class LyingConstant(Tensor):
    """A constant that kernels take for a value that comes in the run: they read it where it lies, and pack nothing."""

    __slots__ = ("constant",)

    def __init__(self, constant: Tensor) -> None:
        super().__init__(*constant.look[:3], constant.buffer, constant.offset)
        self.constant = constant

    @property
    def source(self) -> Array | Buffer | None:
        return self.constant.source

    @property
    def contents(self) -> Array | None:
        return self.constant.contents


def contents_of(tensor: Tensor | None) -> Hashable:
    """The contents of an input for comparison: themselves where they are few, else which array it is."""
    source = None if tensor is None else tensor.source
    if source is None:
        return None
    return source.tobytes() if isinstance(source, np.ndarray) and source.nbytes <= COMPARED_BYTES else (id(source),)


@dataclass(frozen=True, slots=True)
class Address:
    """As an argument: the address `offset` bytes into a buffer."""

    buffer: Buffer
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Shifted:
    """As an argument of a record: the address `nbytes` behind the first element of a tensor, which is touched whole."""

    tensor: Tensor
    nbytes: int


Argument = int | Tensor | Address

# What a kernel tells of itself where somebody asks: its sizes, its tile, how the work is cut.
Detail = str | Callable[[], str]


@dataclass(eq=False, slots=True)
class StepForm:
    """A step without its buffers, which it knows by number: the same for every layer that does the same.

    `words` are the arguments, int64, with 0 where an address goes; a step that was bound for symbolic sizes has them as
    `symbols`. `places` says where addresses go: the word, the number of the buffer and the offset in bytes. `reads` and
    `writes` say how the tensors look that it touches, `read_refs` and `written_refs` in which buffers they lie. What it
    writes may lie where one of `replaced_refs` does.
    """

    function: Kernel
    words: bytes
    places: tuple[tuple[int, int, int], ...]
    chunks: int
    claim: int
    reads: tuple[Look, ...]
    writes: tuple[Look, ...]
    read_refs: tuple[int, ...]
    written_refs: tuple[int, ...]
    replaced_refs: tuple[int, ...] = ()
    flops: float = 0.0
    nbytes: float = 0.0
    alone: int = 0  # 1: the thread that called does it, in order with others like it
    kernel: str = ""  # which kernel it is
    detail: Detail = ""  # how that works here, in words
    arithmetic: str = ""  # the machine's inner product that bounds it; empty: multiply-adds of its results' type
    symbols: tuple[int, ...] = ()

    @property
    def nanoseconds(self) -> float:
        """A rough estimate on one thread."""
        return nanoseconds_of(self.flops, self.nbytes)


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
        function: Kernel,
        arguments: Sequence[Argument],
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        replaced: Sequence[Tensor],
        origin: Any,
        group: int,
        is_symbolic: bool = False,
        **others: Any,
    ) -> BoundStep:
        """A step with these arguments, of which `writes` may lie where one of `replaced` does; `others` are fields of
        `StepForm`. OverflowError if an argument exceeds 64 bits, unless the step `is_symbolic`."""
        refs: dict[Buffer, int] = {}
        words: list[int] = []
        places: list[tuple[int, int, int]] = []
        for argument in arguments:
            if isinstance(argument, _NUMBERS):
                words.append(argument)
            else:
                places.append((len(words), refs.setdefault(argument.buffer, len(refs)), argument.offset))
                words.append(0)
        try:
            packed = b"" if is_symbolic else struct.pack(f"{len(words)}q", *words)
        except struct.error as error:
            raise OverflowError(str(error)) from error
        form = StepForm(
            function,
            packed,
            tuple(places),
            reads=tuple([one.look for one in reads]),
            writes=tuple([one.look for one in writes]),
            read_refs=tuple([refs.setdefault(one.buffer, len(refs)) for one in reads]),
            written_refs=tuple([refs.setdefault(one.buffer, len(refs)) for one in writes]),
            replaced_refs=tuple([refs[one.buffer] for one in replaced]),
            symbols=tuple(words) if is_symbolic else (),
            **others,
        )
        return BoundStep(label, form, list(refs), origin, group)

    @property
    def function(self) -> int:
        return self.form.function.address

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
        return list(map(tensor_over, self.read_buffers, self.form.reads))

    @property
    def writes(self) -> list[Tensor]:
        return list(map(tensor_over, self.written_buffers, self.form.writes))

    @property
    def read_buffers(self) -> list[Buffer]:
        return [self.buffers[ref] for ref in self.form.read_refs]

    @property
    def written_buffers(self) -> list[Buffer]:
        return [self.buffers[ref] for ref in self.form.written_refs]

    @property
    def flops(self) -> float:
        return self.form.flops

    @property
    def bytes(self) -> float:
        return self.form.nbytes

    @property
    def alone(self) -> bool:
        return bool(self.form.alone)

    @property
    def kernel(self) -> str:
        return self.form.kernel

    @property
    def detail(self) -> Detail:
        return self.form.detail

    @property
    def arithmetic(self) -> str:
        return self.form.arithmetic


def nanoseconds_of(flops: float, nbytes: float) -> float:
    """A rough estimate of a step on one thread: 50 operations or 20 bytes in a nanosecond, and 100 ns for itself."""
    return 100 + flops / 50 + nbytes / 20


def tensor_over(buffer: Buffer, look: Look, array: Array | None = None) -> Tensor:
    """A tensor of this look over `buffer`."""
    dtype, shape, strides, offset = look
    return Tensor(dtype, shape, strides, buffer, offset, array)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Element strides of a contiguous tensor."""
    if not shape:
        return ()
    return tuple(itertools.accumulate(shape[:0:-1], operator.mul, initial=1))[::-1]


def float_word(number: float) -> int:
    """A float64 as the 64-bit word of an argument."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])
