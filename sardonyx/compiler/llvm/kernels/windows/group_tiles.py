"""Convolutions in groups of few channels, in tiles of several lines and places: a vector holds filters of one place.

Sums of a tile wait in registers, as in `tiles.py`, whose items these are. A line of the input is gone through once for
each channel of a group: in each column that channel is spread to the filters that read it, which all taps and lines of
windows that read the column share, while the weights of the channel wait in registers. What is spread comes from a
permutation of neighbouring groups where a vector holds several, else from single elements. Columns that may be padding
are read from zeros where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.rows.row_access import as_loaded, memory_type
from sardonyx.compiler.llvm.kernels.windows.folds import Correlate
from sardonyx.compiler.llvm.kernels.windows.frame import Arguments, within, written
from sardonyx.compiler.llvm.kernels.windows.tiles import Tile, TileSpec, TileWriter
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.values import Variable
from sardonyx.light_dataclass import dataclass

# Bytes of memory that come to a cache together.
_CACHE_LINE = 64


def emit_group_tiles(target: Target, spec: TileSpec) -> str:
    """The module of a kernel; its arguments are those that the specification names.

    Weights lie as [vectors, taps, channels, lanes]. Filters of a group fill whole vectors or parts of one.
    """
    return written(target, spec, _Writer)


@dataclass(frozen=True)
class _Halves:
    """A vector whose filters belong to two groups: the lanes of the first, and how many elements the other one's
    channels lie behind its own."""

    first: Value
    distance: Value


@dataclass(frozen=True)
class _Line:
    """A line of the input: where its first column lies, where those that may be padding are read, and the sums of the
    lines of windows that read it, each with its tap there."""

    start: Pointer
    padded: dict[int, Pointer]
    readers: list[tuple[list[Variable], int]]


class _Writer(TileWriter):
    """Writes the code of an item."""

    def __init__(self, k: Function, a: Arguments, spec: TileSpec) -> None:
        super().__init__(k, a, spec)
        assert isinstance(spec.fold, Correlate)
        self.fold = spec.fold
        self.permutes = spec.fold.filters < spec.lanes
        self.halves = not self.permutes and spec.fold.filters % spec.lanes != 0
        groups = spec.lanes // spec.fold.filters if self.permutes else 1 + self.halves
        self.reads = groups * spec.fold.channels  # elements of a place that a vector of filters reads
        self.zeros = self._zeros() if self._unsure() else None

    def _zeros(self) -> Pointer:
        scalar = memory_type(self.storage)
        zeros = self.k.stack(scalar, self.reads)
        for at in range(self.reads):
            zeros.store(self.k.constant(scalar, 0), at)
        return zeros

    def _asked(self, column: Value) -> Value:
        return within(self.k, column, self.a["size_w"])

    def _first_read(self, channel: Value) -> Value:
        return channel // self.fold.filters * self.fold.channels

    def _values(self, tile: Tile, channel: Value) -> list[list[Value]]:
        k, spec, fold = self.k, self.spec, self.fold
        zero = k.constant(self.working, 0)
        sums = [[k.variable(self.working, zero) for _ in range(spec.along.places)] for _ in range(tile.down.places)]
        vector = (channel + (spec.lanes - 1)) // spec.lanes
        weights = k.pointer(self.a["weights"], memory_type(fold.weights))
        weights = weights.offset(vector * (spec.down.taps * spec.along.taps * fold.channels * spec.lanes))
        halves = self._halves_of(channel) if self.halves else None
        line, above = tile.start, 0
        for number in tile.down.columns:
            line, above = Pointer(k.advance(line.address, self.a["x_h"] * (number - above), 1), line.scalar), number
            with k.when(within(k, tile.top + number, self.a["size_h"])):
                read = _Line(line, self._padded(tile, line), [(sums[at], tap) for at, tap in tile.down.readers(number)])
                self._ask_ahead(tile, read, number)
                if self.permutes:
                    for at in range(fold.channels):
                        self._channel(read, weights.offset(at * spec.lanes), partial(self._permuted, at))
                else:
                    with k.loop(0, fold.channels) as at_:
                        self._channel(read, weights.offset(at_ * spec.lanes), partial(self._repeated, at_, halves))
        return [[total.get() for total in windows] for windows in sums]

    def _halves_of(self, channel: Value) -> _Halves:
        k, filters, lanes = self.k, self.fold.filters, self.spec.lanes
        last = (channel + (lanes - 1)) // filters
        return _Halves(k.lanes_below(last * filters - channel, lanes), (last - channel // filters) * self.fold.channels)

    def _padded(self, tile: Tile, line: Pointer) -> dict[int, Pointer]:
        """Where the columns of a line that may be padding are read."""
        found = {}
        for offset, inside in tile.asked.items():
            assert self.zeros is not None
            place = self.k.advance(line.address, self.a["x_w"] * offset, 1)
            found[offset] = Pointer(self.k.select(inside, place, self.zeros.address), line.scalar)
        return found

    def _ask_ahead(self, tile: Tile, read: _Line, number: int) -> None:
        """Ask for what the tile below reads and this one does not."""
        k, nbytes = self.k, self.storage.nbytes
        fresh = tile.down.places * tile.down.stride
        if not self.spec.asks_ahead or number <= tile.down.columns[-1] - fresh:
            return
        below = k.advance(read.start.address, self.a["x_h"] * fresh, 1)
        for offset in self.spec.along.columns:
            place = Pointer(k.advance(below, self.a["x_w"] * offset, 1), read.start.scalar)
            for at in range(0, self.reads, max(1, _CACHE_LINE // nbytes)):
                place.prefetch(at)

    def _channel(self, read: _Line, weights: Pointer, spread: Callable[[Pointer], Value]) -> None:
        """Add the products of one channel of each group in a line."""
        k, spec, along = self.k, self.spec, self.spec.along
        step = self.fold.channels * spec.lanes  # from a tap to the next
        held = [
            [self._weight(weights, (tap * along.taps + at) * step) for at in range(along.taps)]
            for _, tap in read.readers
        ]
        at, before = Pointer(k.opaque(read.start.address), read.start.scalar), 0
        added: list[Value] = []
        for offset in along.columns:
            if offset != before:
                at, before = Pointer(k.advance(at.address, self.a["x_w"] * (offset - before), 1), at.scalar), offset
            k.keep_order(added)  # columns that are loaded early, or are added late, would wait in registers
            element = spread(read.padded.get(offset, at))
            added = []
            for (sums, _), of_line in zip(read.readers, held, strict=True):
                for place, tap in along.readers(offset):
                    added.append(k.fma(element, of_line[tap], sums[place].get()))
                    sums[place].set(added[-1])

    def _weight(self, weights: Pointer, at: int) -> Value:
        return as_loaded(weights.load(at, self.spec.lanes), self.fold.weights).to(self.working.scalar)

    def _permuted(self, channel: int, place: Pointer) -> Value:
        """A channel of each group of a place, in the lanes of the filters that read it."""
        filters, channels = self.fold.filters, self.fold.channels
        lanes = [lane // filters * channels + channel for lane in range(self.spec.lanes)]
        return self.k.shuffle(as_loaded(place.load(0, self.reads), self.storage), None, lanes)

    def _repeated(self, channel: Value, halves: _Halves | None, place: Pointer) -> Value:
        """A channel of the group of a place, or of both, in the lanes of the filters that read it."""
        k, lanes = self.k, self.spec.lanes
        first = k.splat(as_loaded(place.load(channel), self.storage), lanes)
        if halves is None:
            return first
        second = k.splat(as_loaded(place.load(channel + halves.distance), self.storage), lanes)
        return k.select(halves.first, first, second)
