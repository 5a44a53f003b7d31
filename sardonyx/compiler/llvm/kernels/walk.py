"""What movement kernels share: the frame of a kernel, and places counted over dimensions known at run time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.library import KERNEL
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, PTR


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
