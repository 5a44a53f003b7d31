"""GridSample: interpolation at places that a tensor holds."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, vector_loop
from sardonyx.compiler.llvm.kernels.sampling.taps import Tap, TapsSpec, axis_taps, interpolated
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I32, I64, U8, Type
from sardonyx.compiler.llvm.walk import kernel_frame
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class GridSpec:
    """Elements of `type` and places of `grid` in `rank` dimensions, computed as `working`.

    With `by_channels`, vectors go over the channels of a place, which lie together; else over the places.
    """

    type: Type
    grid: Type
    working: Type
    rank: int
    taps: TapsSpec
    by_channels: bool


def emit_grid_sample(target: Target, spec: GridSpec) -> str:
    """Some places of an item of the batch, all channels of each.

    Arguments: maps, grid, output, places of an item, places of a chunk, chunks of an item, channels; elements between
    items and between channels of the maps; size and stride in elements of each dimension, the slowest one first;
    elements between items, between channels and between places of the output. The grid is contiguous,
    [items, places, rank], each place with the fastest dimension first.
    """
    k, words = kernel_frame(target)
    sampler = _Sampler(k, spec, words)
    count, chunk, chunks = words.load(3), words.load(4), words.load(5)
    with k.loop(k["begin"], k["end"]) as number:
        item = number // chunks
        first = (number - item * chunks) * chunk
        last = k.smaller(count, first + chunk)
        sampler.start(item, item * count)
        if spec.by_channels:
            with k.loop(first, last) as place:
                sampler.channels_at(place)
        else:
            vector_loop(
                k,
                last - first,
                target.lanes(spec.working),
                lambda at, lanes, mask: sampler.places_from(first + at, last, lanes, mask),
            )
    return k.finish()


class _Sampler:
    """The interpolation in one item of the batch."""

    def __init__(self, k: Function, spec: GridSpec, words: Pointer) -> None:
        self.k, self.spec = k, spec
        self.maps = Elements(k.pointer(words.load(0), U8), spec.type, spec.working)
        self.grid = Elements(k.pointer(words.load(1), U8), spec.grid, spec.working)
        self.output = Elements(k.pointer(words.load(2), U8), spec.type, spec.working)
        self.channels, self.item_step, self.channel_step = (words.load(at) for at in (6, 7, 8))
        self.sizes = [words.load(9 + 2 * axis) for axis in range(spec.rank)]
        self.strides = [words.load(10 + 2 * axis) for axis in range(spec.rank)]
        behind = 9 + 2 * spec.rank
        self.to_item, self.to_channel, self.to_place = (words.load(behind + index) for index in range(3))

    def start(self, item: Value, places: Value) -> None:
        """Begin with an item, the places of which are those from `places` on of the grid."""
        self.map, self.result = self.maps.offset(item * self.item_step), self.output.offset(item * self.to_item)
        self.places = self.grid.offset(places * self.spec.rank)

    def _taps(self, places: list[Value]) -> list[list[Tap]]:
        """The neighbours along each dimension of places between -1 and 1, the fastest dimension first."""
        found = []
        for size, place in zip(self.sizes, reversed(places), strict=True):
            length = size.to(place.type.scalar)
            if self.spec.taps.aligned:
                real = (place + 1.0) * 0.5 * (length - 1.0)
            else:
                real = ((place + 1.0) * length - 1.0) * 0.5
            found.append(axis_taps(self.k, self.spec.taps, real, size))
        return found

    def channels_at(self, place: Value) -> None:
        """All channels of one place."""
        k, spec = self.k, self.spec
        taps = self._taps([self.places.load(place * spec.rank + axis) for axis in range(spec.rank)])
        to = self.result.offset(place * self.to_place)

        def body(at: Value, lanes: int, mask: Value | None) -> None:
            value = interpolated(
                k, taps, self.strides, lambda offset: self.map.offset(offset.to(I64) + at).load(0, lanes, mask)
            )
            to.store(value, at, mask)

        vector_loop(k, self.channels, k.target.lanes(spec.working), body)

    def places_from(self, first: Value, end: Value, lanes: int, mask: Value | None) -> None:
        """A vector of places, channel by channel; places from `end` on are not touched."""
        k, spec = self.k, self.spec
        if lanes == 1:
            numbers: Value = first.to(I32)
        else:
            # Behind the end, the last place is read again.
            numbers = k.smaller(k.splat(first.to(I32), lanes) + k.iota(I32, lanes), (end - 1).to(I32))
        taps = self._taps([self.places.gather(numbers * spec.rank + axis) for axis in range(spec.rank)])
        with k.loop(0, self.channels) as channel:
            plane = self.map.offset(channel * self.channel_step)
            value = interpolated(k, taps, self.strides, plane.gather)
            self.result.offset(channel * self.to_channel).store(value, first, mask)
