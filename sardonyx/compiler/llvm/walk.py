"""What movement kernels share: the frame of a kernel, and places counted over dimensions known at run time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.library import KERNEL
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, PTR, Type
from sardonyx.light_dataclass import dataclass


def kernel_frame(target: Target) -> tuple[Function, Pointer]:
    """An empty kernel with the signature of all kernels, and its argument words."""
    k = Function(KERNEL, target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    return k, k.pointer("arguments", I64)


def share(k: Function, items: Value, per_chunk: Value) -> tuple[Value, Value]:
    """The items that belong to the chunks of this call: from the first one up to the end."""
    return k["begin"] * per_chunk, k.smaller(k["end"] * per_chunk, items)


def places(k: Function, index: Value, table: Pointer, rank: Value, columns: int) -> list[Value]:
    """Byte offsets of the `index`-th place of `rank` dimensions, one for each column of strides.

    The table holds a row (size, stride, stride, …) for each dimension, the fastest one first.
    """
    rest = k.variable(I64, index)
    sums = [k.variable(I64, 0) for _ in range(columns)]
    with k.loop(0, rank) as dimension:
        row = table.offset(dimension * (columns + 1))
        size, counted = row.load(0), rest.get()
        quotient = counted // size
        coordinate = counted - quotient * size
        for column, total in enumerate(sums):
            total.set(total.get() + coordinate * row.load(1 + column))
        rest.set(quotient)
    return [total.get() for total in sums]


@contextmanager
def runs(k: Function, begin: Value, end: Value, size: Value) -> Iterator[tuple[Value, Value, Value]]:
    """The items from `begin` up to `end` in runs along a fastest dimension of `size`.

    Yields the place among the slower dimensions, and the first and the last coordinate (excluded) of the run.
    """
    item = k.variable(I64, begin)
    with k.loop_while(lambda: item.get() < end):
        slower = item.get() // size
        first = item.get() - slower * size
        last = k.smaller(size, first + (end - item.get()))
        item.set(item.get() + (last - first))
        yield slower, first, last


class Axis:
    """Four argument words that describe a dimension."""

    def __init__(self, words: Pointer, at: int) -> None:
        self.size, self.read_step, self.written_step, self.block = (words.load(at + i) for i in range(4))


@dataclass(frozen=True)
class Block:
    """A part of two dimensions a and b that are copied: their ends, and the byte offsets of where both begin."""

    a: Axis
    b: Axis
    a_first: Value
    a_last: Value
    b_first: Value
    b_last: Value
    read: Value
    written: Value


@contextmanager
def blocks(k: Function, words: Pointer) -> Iterator[Block]:
    """Blocks of two dimensions, one after another.

    Argument words from the third on: items (outer places times blocks), items per chunk; size, source stride,
    destination stride and block of a, the same of b; blocks along a, blocks along b; rank and table of the outer
    dimensions.
    """
    a, b = Axis(words, 4), Axis(words, 8)
    a_blocks, b_blocks = words.load(12), words.load(13)
    begin, end = share(k, words.load(2), words.load(3))
    with k.loop(begin, end) as item:
        above = item // b_blocks
        b_first = (item - above * b_blocks) * b.block
        place = above // a_blocks
        a_first = (above - place * a_blocks) * a.block
        read, written = places(k, place, words.offset(15), words.load(14), 2)
        a_last, b_last = k.smaller(a.size, a_first + a.block), k.smaller(b.size, b_first + b.block)
        yield Block(a, b, a_first, a_last, b_first, b_last, read, written)


class Row:
    """Contiguous bytes of a length known at run time, or of `blob` bytes; the tail's mask is made once."""

    def __init__(self, k: Function, blob: int, nbytes: Value) -> None:
        self._k = k
        self._blob = blob
        self._nbytes = nbytes
        self._width = k.target.vector_bits // 8
        self._mask = k.lanes_below(nbytes, self._width) if k.target.has_masks and not blob else None

    def copy(self, from_: Pointer, to: Pointer) -> None:
        """Copy from one place to another one that does not overlap it; both point to bytes."""
        k, width = self._k, self._width
        if self._blob:
            copy_blob(from_, to, self._blob)
            return
        long = self._nbytes >= width
        with k.when(long):
            rest = self._nbytes - width
            with k.loop(0, rest, width) as at:
                to.store(from_.load(at, width), at)
            to.store(from_.load(rest, width), rest)  # overlaps what was copied before
        with k.otherwise(long):
            if self._mask is None:
                k.copy(to, from_, self._nbytes)
            else:
                to.store(from_.load(0, width, self._mask), 0, self._mask)


def copy_blob(from_: Pointer, to: Pointer, nbytes: int) -> None:
    """Copy 1 to 8 bytes (a power of two) as one number, more of them as a vector."""
    if nbytes <= 8:
        scalar = Type("u", 8 * nbytes)
        to.cast(scalar).store(from_.cast(scalar).load(0, align=1), 0, align=1)
    else:
        to.store(from_.load(0, nbytes), 0)


def note(k: Function, fault: Pointer, number: Value) -> None:
    """Leave a number in the two words of a fault."""
    words = fault.cast(I64)
    words.store(number, 1)
    words.store(1, 0)
