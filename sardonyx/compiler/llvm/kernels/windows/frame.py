"""What kernels over windows share: where windows lie, named arguments, and the taps of a window that are no padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, U64
from sardonyx.compiler.llvm.walk import kernel_frame, share
from sardonyx.light_dataclass import dataclass

# The spatial dimensions that a kernel counts, slowest first; fewer of them have sizes of 1 in front.
DIMENSIONS = ("d", "h", "w")


@dataclass(frozen=True)
class Along:
    """Windows along the last dimension: `places` neighbouring ones are computed at once, `taps` of each written out.

    A window with more taps than that is a multiple of them, which a loop goes through.
    """

    places: int
    taps: int
    stride: int
    dilation: int

    @property
    def columns(self) -> tuple[int, ...]:
        """What the taps read, counted from the first one's element."""
        return tuple(sorted({self.column(place, tap) for place in range(self.places) for tap in range(self.taps)}))

    def column(self, place: int, tap: int) -> int:
        """The column that a window's tap reads."""
        return place * self.stride + tap * self.dilation

    def readers(self, column: int) -> list[tuple[int, int]]:
        """The windows that read a column, each with its tap there."""
        return [
            (place, tap)
            for tap in range(self.taps)
            for place in range(self.places)
            if self.column(place, tap) == column
        ]


class Arguments:
    """The words of a kernel by name; names that begin with an address's are its strides."""

    def __init__(self, words: Pointer, names: Sequence[str]) -> None:
        self._values = {name: words.load(index) for index, name in enumerate(names)}

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def counted(self, place: str, coordinates: dict[str, Value]) -> Value:
        """The byte offset of coordinates in the tensor called `place`."""
        offset: Value | None = None
        for dimension, coordinate in coordinates.items():
            part = coordinate * self[f"{place}_{dimension}"]
            offset = part if offset is None else offset + part
        assert offset is not None
        return offset


def window_names() -> tuple[str, ...]:
    """The arguments that describe windows: sizes, how many there are, kernel, padding; along the slower dimensions
    strides, dilations, and the addresses of tables of the taps that are no padding (see `Taps`)."""
    every = [f"{what}_{of}" for what in ("size", "out", "kernel", "begin") for of in DIMENSIONS]
    return (*every, *(f"{what}_{of}" for what in ("stride", "dilation", "taps") for of in DIMENSIONS[:-1]))


@dataclass(frozen=True)
class Spot:
    """Where the windows of an item are: the batch, the block of channels, the coordinates of the slower dimensions."""

    batch: Value
    block: Value
    d: Value
    h: Value


def spot_of(item: Value, a: Arguments) -> Spot:
    """Items go through the rows of places of one block of channels, then through the blocks, then the batch."""
    above = item // a["out_h"]
    h = item - above * a["out_h"]
    outer = above // a["out_d"]
    d = above - outer * a["out_d"]
    batch = outer // a["blocks"]
    return Spot(batch, outer - batch * a["blocks"], d, h)


class Taps:
    """The taps of a row of windows along the two slower dimensions, without those in the padding.

    Tables have two words for each window along a dimension: its first tap inside, and the one behind the last.
    """

    def __init__(self, k: Function, a: Arguments, spot: Spot) -> None:
        self._k, self._a = k, a
        self._starts, self._ranges = [], []
        for where, of in ((spot.d, "d"), (spot.h, "h")):
            self._starts.append(where * a[f"stride_{of}"] - a[f"begin_{of}"])
            table = k.pointer(a[f"taps_{of}"], I64).offset(where * 2)
            self._ranges.append((table.load(0), table.load(1)))

    @contextmanager
    def each(self) -> Iterator[tuple[Value, Value, Value, Value]]:
        """A block for every one of them: both taps, and the coordinates that they read."""
        k, a = self._k, self._a
        (d, h), (of_d, of_h) = self._starts, self._ranges
        with k.loop(*of_d) as tap_d, k.loop(*of_h) as tap_h:
            yield tap_d, tap_h, d + tap_d * a["dilation_d"], h + tap_h * a["dilation_h"]


def within(k: Function, coordinate: Value, size: Value) -> Value:
    """Whether 0 <= coordinate < size."""
    return coordinate.bits_as(U64) < size.bits_as(U64)


def divided(number: Value, size: Value) -> tuple[Value, Value]:
    """Quotient and remainder of what is not negative.

    Small items would feel the wait for a division: there is none by one, as many sizes are, nor of what is smaller.
    """
    k = number.function
    found = k.variable(number.type, k.select(size > 1, 0, number))
    with k.when((size > 1) & (number >= size)):
        found.set(number // size)
    quotient = found.get()
    return quotient, number - quotient * size


class Spec(Protocol):
    """What a kernel that goes through items is made for."""

    def argument_names(self) -> tuple[str, ...]: ...


class Writer(Protocol):
    """Writes the code of one item."""

    def item(self, item: Value) -> None: ...


S = TypeVar("S", bound=Spec)


def written(target: Target, spec: S, writer: Callable[[Function, Arguments, S], Writer]) -> str:
    """The module of a kernel whose chunks are `per_chunk` items, which a writer for these arguments writes."""
    k, words = kernel_frame(target)
    a = Arguments(words, spec.argument_names())
    made = writer(k, a, spec)
    begin, end = share(k, a["items"], a["per_chunk"])
    with k.loop(begin, end) as item:
        made.item(item)
    return k.finish()
