"""NonZero and Compress: what is there where elements, or a condition, are not zero.

Places in row-major order are found in two steps that many threads share: the first counts them block by block; the
second adds up the counts before a block, and so knows where to write.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.arguments import Read, Record, Several, Size, Write, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.selection.ranks import lanes_that, lowest_bit
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.types import BOOL, I64, U8, Type, type_of
from sardonyx.compiler.llvm.walk import Row, share
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES, contiguous
from sardonyx.graph.types import numpy_dtype
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.shape import axis_of

# Elements of a block, whose positions one thread finds.
_BLOCK = 16384
_INT64 = np.dtype(np.int64)


@dataclass(frozen=True)
class PositionsSpec:
    """Elements of `type`; of floats, zeros of both signs are zero."""

    type: Type

    @property
    def stored(self) -> Type:
        """The bits of an element."""
        return U8 if self.type == BOOL else Type("u", self.type.bits)

    def truth(self, bits: Value) -> Value:
        """Whether elements given by their bits are other than zero."""
        return (bits << 1 if self.type.is_float else bits).differs(0)


class CountArguments(Record):
    data = Read()
    counts = Write(I64)  # of each block
    size = Size()
    block = Size()  # elements


@kernel(CountArguments)
def emit_count_positions(k: Function, a: CountArguments, spec: PositionsSpec) -> None:
    """How many elements of each block are not zero. A chunk is a block."""
    data, counts = a.data.cast(spec.stored), a.counts
    size, block, lanes = a.size, a.block, k.target.lanes(spec.stored)
    with k.loop(k["begin"], k["end"]) as chunk:
        first, last = chunk * block, k.smaller((chunk + 1) * block, size)
        whole = first + ((last - first) & -lanes)
        total = k.variable(I64, 0)
        with k.loop(first, whole, lanes) as place:
            total.set(total.get() + k.unary("ctpop", lanes_that(k, spec.truth(data.load(place, lanes)))))
        with k.loop(whole, last) as place:
            total.set(total.get() + spec.truth(data.load(place)).to(I64))
        counts.store(total.get(), chunk)


class PositionArguments(Record):
    data = Read()
    counts = Read(I64)  # of each block
    positions = Write(I64)
    total = Write(I64)  # how many there are
    size = Size()
    block = Size()  # elements
    blocks = Size()


@kernel(PositionArguments)
def emit_positions(k: Function, a: PositionArguments, spec: PositionsSpec) -> None:
    """The positions of elements that are not zero. A chunk is a block."""
    data, counts = a.data.cast(spec.stored), a.counts
    positions, total = a.positions, a.total
    size, block, blocks, lanes = a.size, a.block, a.blocks, k.target.lanes(spec.stored)
    found = k.variable(I64, 0)
    with k.loop(0, k["begin"]) as before:
        found.set(found.get() + counts.load(before))

    def add(place: Value) -> None:
        positions.store(place, found.get())
        found.set(found.get() + 1)

    with k.loop(k["begin"], k["end"]) as chunk:
        first, last = chunk * block, k.smaller((chunk + 1) * block, size)
        whole = first + ((last - first) & -lanes)
        with k.loop(first, whole, lanes) as place:
            left = k.variable(I64)
            left.set(lanes_that(k, spec.truth(data.load(place, lanes))))
            with k.loop_while(lambda left=left: left.get().differs(0)):
                add(place + lowest_bit(k, left.get()))
                left.set(left.get() & (left.get() - 1))
        with k.loop(whole, last) as place, k.when(spec.truth(data.load(place))):
            add(place)
    with k.when(k["end"].equals(blocks)):
        total.store(found.get())


@dataclass(frozen=True)
class CoordinatesSpec:
    """Positions in a tensor of `rank` dimensions."""

    rank: int


class CoordinateArguments(Record):
    positions = Read(I64)
    count = Read(I64)
    coordinates = Write(I64)
    per_chunk = Size()  # positions
    sizes = Several(Size(), lambda spec: spec.rank)  # of the dimensions


@kernel(CoordinateArguments)
def emit_coordinates(k: Function, a: CoordinateArguments, spec: CoordinatesSpec) -> None:
    """The coordinates of positions, a row of them for each dimension."""
    positions, to = a.positions, a.coordinates
    count = a.count.load(0)
    begin, end = share(k, count, a.per_chunk)
    sizes = a.sizes
    with k.loop(begin, end) as number:
        rest = positions.load(number)
        for axis in reversed(range(1, spec.rank)):
            quotient = rest // sizes[axis]
            to.store(rest - quotient * sizes[axis], number + count * axis)
            rest = quotient
        to.store(rest, number)


@dataclass(frozen=True)
class CompressSpec:
    """Rows of bytes."""


class CompressArguments(Record):
    data = Read()
    positions = Read(I64)
    count = Read(I64)
    output = Write()
    row_bytes = Size()
    outer_places = Size()
    between = Size()  # bytes from one of these to the next
    per_chunk = Size()  # positions


@kernel(CompressArguments)
def emit_compress(k: Function, a: CompressArguments, spec: CompressSpec) -> None:
    """The rows at positions, for each outer place."""
    data, positions = a.data, a.positions
    count, output = a.count.load(0), a.output
    row_bytes, outer_places, between = a.row_bytes, a.outer_places, a.between
    begin, end = share(k, count, a.per_chunk)
    row = Row(k, 0, row_bytes)
    with k.loop(0, outer_places) as outer:
        from_, to = data.offset(outer * between), output.offset(outer * count * row_bytes)
        with k.loop(begin, end) as number:
            row.copy(from_.offset(positions.load(number) * row_bytes), to.offset(number * row_bytes))


def positions_of(binder: Binder, data: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The places of those of the first `size` elements, at least one, that are not zero, and the number of them.

    The data are contiguous. Where fewer are found, the rest of the places mean nothing.
    """
    type_ = type_of(data.dtype)
    assert type_ is not None
    blocks = -(-size // _BLOCK)
    counts, places, total = binder.new(_INT64, (blocks,)), binder.new(_INT64, (size,)), binder.new(_INT64, (1,))
    spec = PositionsSpec(type_)
    binder.step(
        emit_count_positions,
        spec,
        CountArguments(data=data, counts=counts, size=size, block=_BLOCK),
        chunks=blocks,
        detail=f"{size} elements",
    )
    binder.step(
        emit_positions,
        spec,
        PositionArguments(
            data=data, counts=counts, positions=places, total=total, size=size, block=_BLOCK, blocks=blocks
        ),
        chunks=blocks,
        detail=f"{size} elements",
    )
    return places, total


def slices_at(binder: Binder, data: Tensor, axis: int, places: Tensor, count: Tensor) -> Tensor:
    """The slices of contiguous data at the first `count` of the places along an axis, which are in range; densely."""
    shape, size = data.shape, places.size
    output = binder.new(data.dtype, (*shape[:axis], size, *shape[axis + 1 :]))
    row = math.prod(shape[axis + 1 :]) * data.dtype.itemsize
    per_chunk = max(1, CHUNK_BYTES // max(8, row))
    outer = math.prod(shape[:axis])
    if row and outer:
        binder.step(
            emit_compress,
            CompressSpec(),
            CompressArguments(
                data=data,
                positions=places,
                count=count,
                output=output,
                row_bytes=row,
                outer_places=outer,
                between=shape[axis] * row,
                per_chunk=per_chunk,
            ),
            chunks=-(-size // per_chunk),
            detail=f"rows of {row} bytes",
        )
    return output


def nothing(binder: Binder) -> Tensor:
    """A count of none, known before the run."""
    return binder.constant(np.zeros(1, np.int64))


def _compares(fact: Fact | None) -> bool:
    return fact is not None and fact.dtype is not None and type_of(numpy_dtype(fact.dtype)) is not None


@template("non_zero")
class NonZero(NativeKernel):
    """The coordinates of elements that are not zero, a row for each dimension; a scalar counts as a vector."""

    counted_axes = (1,)

    def declines(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact | None]) -> str | None:
        return None if _compares(inputs[0]) else "no kernel compares elements of this type"

    def bind(self, binder: Binder, data: Tensor) -> Sequence[Tensor]:
        shape = data.shape or (1,)
        if data.size == 0:
            return [binder.new(_INT64, (len(shape), 0)), nothing(binder)]
        places, count = positions_of(binder, contiguous(binder, data), data.size)
        if len(shape) == 1:
            return [places.reshaped((1, data.size)), count]
        coordinates = binder.new(_INT64, (len(shape), data.size))
        binder.step(
            emit_coordinates,
            CoordinatesSpec(len(shape)),
            CoordinateArguments(positions=places, count=count, coordinates=coordinates, per_chunk=_BLOCK, sizes=shape),
            chunks=-(-data.size // _BLOCK),
        )
        return [coordinates, count]


@template("compress")
class Compress(NativeKernel):
    """The slices of the data along ``axis``, or its elements in row-major order, where the condition (bool) holds."""

    def __init__(self, parameters: dict[str, int | None]) -> None:
        super().__init__(parameters)
        axis = parameters["axis"]
        self.counted_axes = (0 if axis is None else axis,)

    def bind(self, binder: Binder, data: Tensor, condition: Tensor) -> Sequence[Tensor]:
        data = contiguous(binder, data)
        shape, axis = data.shape, self.parameters["axis"]
        if axis is None:
            shape, axis = (data.size,), 0
        axis = axis_of(axis, len(shape))
        size = min(condition.size, shape[axis])
        if size == 0:
            return [binder.new(data.dtype, (*shape[:axis], 0, *shape[axis + 1 :])), nothing(binder)]
        places, count = positions_of(binder, contiguous(binder, condition), size)
        return [slices_at(binder, data.reshaped(shape), axis, places, count), count]
