"""Where elements are not zero: their places in row-major order, in two steps that many threads share.

The first counts them block by block; the second adds up the counts before a block, and so knows where to write.
"""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Value
from sardonyx.compiler.llvm.kernels.selection.ranks import lanes_that, lowest_bit
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I64, U8, Type
from sardonyx.compiler.llvm.walk import Row, kernel_frame, share
from sardonyx.light_dataclass import dataclass


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


def emit_count_positions(target: Target, spec: PositionsSpec) -> str:
    """Arguments: data, counts (int64, one for each block), elements, elements of a block. A chunk is a block."""
    k, words = kernel_frame(target)
    data, counts = k.pointer(words.load(0), spec.stored), k.pointer(words.load(1), I64)
    size, block, lanes = words.load(2), words.load(3), target.lanes(spec.stored)
    with k.loop(k["begin"], k["end"]) as chunk:
        first, last = chunk * block, k.smaller((chunk + 1) * block, size)
        whole = first + ((last - first) & -lanes)
        total = k.variable(I64, 0)
        with k.loop(first, whole, lanes) as place:
            total.set(total.get() + k.unary("ctpop", lanes_that(k, spec.truth(data.load(place, lanes)))))
        with k.loop(whole, last) as place:
            total.set(total.get() + spec.truth(data.load(place)).to(I64))
        counts.store(total.get(), chunk)
    return k.finish()


def emit_positions(target: Target, spec: PositionsSpec) -> str:
    """Arguments: data, counts of the blocks, positions (int64), their number (int64), elements, elements of a block,
    blocks. A chunk is a block.
    """
    k, words = kernel_frame(target)
    data, counts = k.pointer(words.load(0), spec.stored), k.pointer(words.load(1), I64)
    positions, total = k.pointer(words.load(2), I64), k.pointer(words.load(3), I64)
    size, block, blocks, lanes = words.load(4), words.load(5), words.load(6), target.lanes(spec.stored)
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
    return k.finish()


@dataclass(frozen=True)
class CoordinatesSpec:
    """Positions in a tensor of `rank` dimensions."""

    rank: int


def emit_coordinates(target: Target, spec: CoordinatesSpec) -> str:
    """The coordinates of positions, a row of them for each dimension.

    Arguments: positions, their number (an address), coordinates, positions per chunk, and the sizes of the dimensions.
    """
    k, words = kernel_frame(target)
    positions, to = k.pointer(words.load(0), I64), k.pointer(words.load(2), I64)
    count = k.pointer(words.load(1), I64).load(0)
    begin, end = share(k, count, words.load(3))
    sizes = [words.load(4 + axis) for axis in range(spec.rank)]
    with k.loop(begin, end) as number:
        rest = positions.load(number)
        for axis in reversed(range(1, spec.rank)):
            quotient = rest // sizes[axis]
            to.store(rest - quotient * sizes[axis], number + count * axis)
            rest = quotient
        to.store(rest, number)
    return k.finish()


@dataclass(frozen=True)
class CompressSpec:
    """Rows of bytes."""


def emit_compress(target: Target, spec: CompressSpec) -> str:
    """The rows at positions, for each outer place.

    Arguments: data, positions, their number (an address), output, bytes of a row, outer places, bytes between these,
    positions per chunk.
    """
    k, words = kernel_frame(target)
    data, positions = k.pointer(words.load(0), U8), k.pointer(words.load(1), I64)
    count, output = k.pointer(words.load(2), I64).load(0), k.pointer(words.load(3), U8)
    row_bytes, outer_places, between = words.load(4), words.load(5), words.load(6)
    begin, end = share(k, count, words.load(7))
    row = Row(k, 0, row_bytes)
    with k.loop(0, outer_places) as outer:
        from_, to = data.offset(outer * between), output.offset(outer * count * row_bytes)
        with k.loop(begin, end) as number:
            row.copy(from_.offset(positions.load(number) * row_bytes), to.offset(number * row_bytes))
    return k.finish()
