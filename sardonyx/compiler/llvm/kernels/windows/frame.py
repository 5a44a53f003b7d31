"""What kernels over windows share: where windows lie, named arguments, and the taps of a window that are no padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import U64

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
    """The arguments that describe windows: sizes, how many there are, kernel, padding, strides, dilations."""
    every = [f"{what}_{of}" for what in ("size", "out", "kernel", "begin") for of in DIMENSIONS]
    return (*every, *(f"{what}_{of}" for what in ("stride", "dilation") for of in DIMENSIONS[:-1]))


def valid_taps(k: Function, a: Arguments, dimension: str, start: Value) -> tuple[Value, Value]:
    """The first tap and the one behind the last of those that lie inside, for a window from `start` on."""
    dilation, size = a[f"dilation_{dimension}"], a[f"size_{dimension}"]
    first = (k.larger(-start, 0) + (dilation - 1)) // dilation
    last = (k.larger(size - start, 0) + (dilation - 1)) // dilation
    return first, k.smaller(last, a[f"kernel_{dimension}"])


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
    """The taps of a row of windows along the two slower dimensions, without those in the padding."""

    def __init__(self, k: Function, a: Arguments, spot: Spot) -> None:
        self._k, self._a = k, a
        self._starts = [where * a[f"stride_{of}"] - a[f"begin_{of}"] for where, of in ((spot.d, "d"), (spot.h, "h"))]
        self._ranges = [valid_taps(k, a, of, start) for start, of in zip(self._starts, DIMENSIONS, strict=False)]

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
