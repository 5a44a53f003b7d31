"""GridSample: vectors over the channels of a place where they lie together, or are many; else over the places."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.compiler.arguments import Group, Read, Record, Several, Size, Write, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.kernels.sampling.elements import Elements, vector_loop
from sardonyx.compiler.llvm.kernels.sampling.taps import (
    Neighbours,
    Padding,
    Tap,
    TapsSpec,
    axis_taps,
    interpolated,
)
from sardonyx.compiler.llvm.types import BOOL, F32, F64, I32, I64, Type, type_of
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.slices import transposed
from sardonyx.compiler.native.rows.rows import elements_per_chunk
from sardonyx.graph.types import numpy_dtype
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact

# Spatial dimensions for which the combinations of neighbours are written out.
_MOST_DIMENSIONS = 3
# Maps may have this many elements: places in them are numbers of 32 bits.
_MOST_ELEMENTS = 1 << 31


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


class Axis(Record):
    size = Size()
    stride = Size()  # in elements


class Arguments(Record):
    maps = Read()
    grid = Read()  # contiguous [items, places, rank], each place with the fastest dimension first
    output = Write()
    count = Size()  # places of an item
    chunk = Size()  # places
    chunks = Size()  # of an item
    channels = Size()
    item_step = Size()  # elements between items of the maps
    channel_step = Size()
    axes = Several(Group(Axis), lambda spec: spec.rank)  # the slowest one first
    to_item = Size()  # elements between items of the output
    to_channel = Size()
    to_place = Size()


@kernel(Arguments)
def emit_grid_sample(k: Function, a: Arguments, spec: GridSpec) -> None:
    """Some places of an item of the batch, all channels of each."""
    sampler = _Sampler(k, spec, a)
    count, chunk, chunks = a.count, a.chunk, a.chunks
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
                k.target.lanes(spec.working),
                lambda at, lanes, mask: sampler.places_from(first + at, last, lanes, mask),
            )


class _Sampler:
    """The interpolation in one item of the batch."""

    def __init__(self, k: Function, spec: GridSpec, a: Arguments) -> None:
        self.k, self.spec = k, spec
        self.maps = Elements(a.maps, spec.type, spec.working)
        self.grid = Elements(a.grid, spec.grid, spec.working)
        self.output = Elements(a.output, spec.type, spec.working)
        self.channels, self.item_step, self.channel_step = a.channels, a.item_step, a.channel_step
        self.sizes = [axis.size for axis in a.axes]
        self.strides = [axis.stride for axis in a.axes]
        self.to_item, self.to_channel, self.to_place = a.to_item, a.to_channel, a.to_place

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


def _working(*types: Type) -> Type:
    """What is computed with: F64 where an element is that, or an integer (as the operator's meaning has it)."""
    return F64 if any(one == F64 or not one.is_float for one in types) else F32


@template("grid_sample")
class GridSample(NativeKernel):
    """Parameters: ``neighbours`` (nearest, linear or cubic), ``padding`` (zeros, border or reflection), ``aligned``."""

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        for fact in inputs:
            type_ = None if fact is None or fact.dtype is None else type_of(numpy_dtype(fact.dtype))
            if fact is None or type_ is None or type_ == BOOL:
                return "no kernel interpolates elements of this type"
            if fact.rank is not None and fact.rank > _MOST_DIMENSIONS + 2:
                return f"more than {_MOST_DIMENSIONS} spatial dimensions"
        return None

    def bind(self, binder: Binder, x: Tensor, grid: Tensor) -> Sequence[Tensor]:
        rank = len(x.shape) - 2
        if rank < 1 or len(grid.shape) != rank + 2 or grid.shape[0] != x.shape[0] or grid.shape[-1] != rank:
            raise ValueError(f"a grid of shape {grid.shape} does not fit X {x.shape}: expected (N, ..., {rank})")
        if math.prod(x.shape[1:]) >= _MOST_ELEMENTS or math.prod(grid.shape[1:]) >= _MOST_ELEMENTS:
            raise ValueError(f"X {x.shape} or the grid {grid.shape} has too many elements for an item of the batch")
        batch, channels, *size = x.shape
        places, count = grid.shape[1:-1], math.prod(grid.shape[1:-1])
        type_, grid_type = type_of(x.dtype), type_of(grid.dtype)
        assert type_ is not None
        assert grid_type is not None
        working = _working(type_, grid_type)
        lanes = binder.target.lanes(working)
        order = (0, *range(2, rank + 2), 1)
        last = transposed(x, order)
        is_last = x.strides[1] == 1 and channels > 1
        by_channels = channels >= lanes // 2 if is_last else channels >= lanes and 8 * count >= math.prod(size)
        shape = (batch, *places, channels) if by_channels else (batch, channels, *places)
        made = binder.new(x.dtype, shape)
        result = transposed(made, (0, rank + 1, *range(1, rank + 1))) if by_channels else made
        if made.size == 0:
            return [result]
        if x.size == 0:
            raise ValueError(f"X {x.shape} has no elements to sample")
        if by_channels and last.strides[-1] != 1:
            last = contiguous(binder, last)
        grid = contiguous(binder, grid)
        taps = TapsSpec(*self._modes(), bool(self.parameters["aligned"]))
        terms = taps.count**rank
        chunk = min(count, elements_per_chunk(batch * count, channels * x.dtype.itemsize * 2, 4 * terms * channels))
        chunks = -(-count // chunk)
        to_channel, to_place = (1, channels) if by_channels else (count, 1)
        binder.step(
            emit_grid_sample,
            GridSpec(type_, grid_type, working, rank, taps, by_channels),
            Arguments(
                maps=last,
                grid=grid,
                output=made,
                count=count,
                chunk=chunk,
                chunks=chunks,
                channels=channels,
                item_step=last.strides[0],
                channel_step=last.strides[-1],
                axes=[
                    Axis(size=length, stride=stride) for length, stride in zip(size, last.strides[1:-1], strict=True)
                ],
                to_item=count * channels,
                to_channel=to_channel,
                to_place=to_place,
            ),
            chunks=batch * chunks,
            flops=2.0 * made.size * terms,
            detail=f"{batch * count} places, {channels} channels, {terms} neighbours of each",
        )
        return [result]

    def _modes(self) -> tuple[Neighbours, Padding]:
        return self.parameters["neighbours"], self.parameters["padding"]
