"""Copies of strided values: the layout of a copy is worked out while binding, the kernels know no shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sardonyx.compiler.binding import Address, Argument, Binder, Tensor
from sardonyx.compiler.llvm.kernels.movement.copy import (
    BlockSpec,
    FillSpec,
    emit_blocks,
    emit_fill,
    emit_pieces,
    emit_rows,
)
from sardonyx.compiler.llvm.kernels.movement.interleave import (
    COUNTS,
    STEPS,
    StridedSpec,
    ZipSpec,
    emit_strided,
    emit_zip,
)
from sardonyx.compiler.llvm.kernels.movement.transpose import StagedSpec, emit_staged_transpose
from sardonyx.compiler.llvm.library import Emit
from sardonyx.compiler.traced import larger

# Bytes that one chunk of the grid moves: a few microseconds of work.
CHUNK_BYTES = 64 << 10
LARGEST_BLOB = 64
# Rows of fewer bytes than this are copied by a loop over rows, longer ones in pieces by the system's memcpy.
LONG_ROW = 16 << 10
# Rows whose distance is a multiple of this many bytes share few sets of a cache.
CONFLICT = 1024
# Elements by which blocks that are transposed aside are high and wide, by the size of an element.
_SIDES = {1: 128, 2: 128, 4: 64, 8: 32}


class Axis(NamedTuple):
    """A dimension of a copy; steps count bytes."""

    size: int
    read: int
    written: int


def copy(binder: Binder, tensor: Tensor, *, in_place: bool = False) -> Tensor:
    """A contiguous copy of a value in the arena; with `in_place`, it may be the value itself if nobody else reads it
    later."""
    result = binder.new(tensor.dtype, tensor.shape)
    copy_into(binder, tensor, result, in_place=in_place)
    return result


def contiguous(binder: Binder, tensor: Tensor) -> Tensor:
    """The value itself where its elements lie one after the other, else a copy."""
    return tensor if tensor.is_contiguous else copy(binder, tensor)


def copy_into(binder: Binder, source: Tensor, destination: Tensor, *, in_place: bool = False) -> None:
    """Add the step that copies a value onto another of the same shape and element size; they must not overlap, but
    with `in_place` the other may come to lie where the one does.

    Any strides: 0 (broadcast) and negative ones in the source, negative ones in the destination.
    """
    if source.shape != destination.shape or source.dtype.itemsize != destination.dtype.itemsize:
        raise ValueError(f"{source.dtype} {source.shape} cannot be copied onto {destination.dtype} {destination.shape}")
    if source.size == 0:
        return
    item = source.dtype.itemsize
    start, end, axes = _simplified(source, destination, item)
    blob, axes = _widened(item, axes)
    move = _Move(binder, Address(source.buffer, start), Address(destination.buffer, end), source, destination, in_place)
    if axes and axes[-1].read == axes[-1].written == blob:
        move.rows(axes[:-1], axes[-1].size * blob)
    elif axes and axes[-1].read == 0 and axes[-1].written == blob and blob * 8 <= binder.target.vector_bits:
        move.fill(axes[:-1], axes[-1].size * blob, blob)
    else:
        move.blocks(axes, blob)


def _simplified(source: Tensor, destination: Tensor, item: int) -> tuple[int, int, list[Axis]]:
    """Byte offsets to start from, and the axes in the destination's order.

    Axes of size 1 are dropped, the destination's steps made positive, and axes joined that lie together in both.
    """
    read_from, write_to = source.offset, destination.offset
    axes: list[Axis] = []
    for size, read, written in zip(source.shape, source.strides, destination.strides, strict=True):
        if size == 1:
            continue
        read, written = read * item, written * item
        if written < 0:
            read_from += (size - 1) * read
            write_to += (size - 1) * written
            read, written = -read, -written
        axes.append(Axis(size, read, written))
    if any(axes[i].written < axes[i + 1].written for i in range(len(axes) - 1)):
        axes.sort(key=lambda axis: -axis.written)
    joined: list[Axis] = []
    for axis in axes:
        if joined:
            last = joined[-1]
            if last.read == axis.read * axis.size and last.written == axis.written * axis.size:
                joined[-1] = Axis(last.size * axis.size, axis.read, axis.written)
                continue
        joined.append(axis)
    return read_from, write_to, joined


def _widened(item: int, axes: list[Axis]) -> tuple[int, list[Axis]]:
    """Elements that lie together in both places as one larger element, where its size is a power of two."""
    if axes and axes[-1].read == axes[-1].written == item:
        row = axes[-1].size * item
        if len(axes) > 1 and row <= LARGEST_BLOB and row & (row - 1) == 0:
            return row, axes[:-1]
    return item, axes


def table(axes: Sequence[Axis]) -> list[int]:
    """The rank and the rows of the kernels' table of dimensions, the fastest one first."""
    return [len(axes), *(number for axis in reversed(axes) for number in axis)]


class _Move:
    """One copy whose kernel is being chosen."""

    def __init__(
        self, binder: Binder, read: Address, write: Address, source: Tensor, destination: Tensor, in_place: bool
    ) -> None:
        self.binder = binder
        self.ends: tuple[Argument, Argument] = (read, write)
        self.source, self.destination = source, destination
        self.replaced = (source,) if in_place else ()
        self.nbytes = destination.nbytes

    def rows(self, outer: list[Axis], row: int) -> None:
        count = math.prod(axis.size for axis in outer)
        if row >= LONG_ROW or not outer:
            pieces = -(-row // CHUNK_BYTES)
            words = [pieces, CHUNK_BYTES, row, *table(outer)]
            self._step(emit_pieces, (), count * pieces, min(row, CHUNK_BYTES), words)
        else:
            fastest = outer[-1]
            self._step(emit_rows, (), count, row, [row, *fastest, *table(outer[:-1])])

    def fill(self, outer: list[Axis], row: int, blob: int) -> None:
        count, pieces = math.prod(axis.size for axis in outer), -(-row // CHUNK_BYTES)
        words = [pieces, CHUNK_BYTES, row, *table(outer)]
        self._step(emit_fill, FillSpec(blob), count * pieces, min(row, CHUNK_BYTES), words)

    def blocks(self, axes: list[Axis], blob: int) -> None:
        """Two axes in blocks that stay in the first cache: the fastest ones of the destination and of the source."""
        b = axes[-1] if axes else Axis(1, 0, 0)
        rest = axes[:-1]
        a = min(rest, key=lambda axis: abs(axis.read), default=Axis(1, 0, 0))
        if abs(a.read) >= abs(b.read) and rest:
            a = rest[-1]  # the source is read in the destination's order anyway
        outer = [axis for axis in rest if axis is not a]
        small = blob <= 8 and b.written == blob
        step = next((step for step in STEPS if b.read == step * blob), 0) if small else 0
        count = next((count for count in COUNTS if b.size == count), 0) if small else 0
        if step:
            self._by_blocks(emit_strided, StridedSpec(blob, step), (a, 16), (b, 1024), outer)
        elif count and a.read == blob and a.written == count * blob:
            self._by_blocks(emit_zip, ZipSpec(blob, count), (a, 2048), (b, count), outer)
        elif small and a.read == blob:
            self._transpose(a, b, outer, blob)
        elif abs(a.read) < abs(b.read):
            self._by_blocks(emit_blocks, BlockSpec(blob), (a, 32), (b, 32), outer)
        else:
            self._by_blocks(emit_blocks, BlockSpec(blob), (a, 16), (b, 1024), outer)

    def _transpose(self, a: Axis, b: Axis, outer: list[Axis], blob: int) -> None:
        """The source is contiguous along a, the destination along b."""
        target = self.binder.target
        tile = min(16, target.vector_bits // (8 * blob))
        while tile > min(a.size, b.size):
            tile //= 2
        conflicts = b.read % CONFLICT == 0 or a.written % CONFLICT == 0
        if conflicts and self.nbytes > target.caches.l2 // 2 and min(a.size, b.size) >= _SIDES[blob]:
            staged = StagedSpec(blob, tile, _SIDES[blob])
            self._by_blocks(
                emit_staged_transpose, staged, (a, staged.side), (b, staged.side), outer, scratch=staged.scratch
            )
        else:
            self._by_blocks(emit_blocks, BlockSpec(blob, tile), (a, 64), (b, 64), outer)

    def _by_blocks(
        self,
        emit: Emit,
        spec: object,
        a: tuple[Axis, int],
        b: tuple[Axis, int],
        outer: list[Axis],
        scratch: int = 0,
    ) -> None:
        """A step over blocks of two axes, each given with its block."""
        (a_axis, a_block), (b_axis, b_block) = a, b
        a_blocks, b_blocks = -(-a_axis.size // a_block), -(-b_axis.size // b_block)
        items = math.prod(axis.size for axis in outer) * a_blocks * b_blocks
        words = [*a_axis, a_block, *b_axis, b_block, a_blocks, b_blocks, *table(outer)]
        per_item = self.nbytes // larger(1, items)
        self._step(emit, spec, items, per_item, words, scratch)

    def _step(self, emit: Emit, spec: object, items: int, item_bytes: int, words: list[int], scratch: int = 0) -> None:
        per_chunk = larger(1, CHUNK_BYTES // larger(1, item_bytes))
        self.binder.step(
            emit,
            spec,
            [*self.ends, items, per_chunk, *words],
            reads=(self.source,),
            writes=(self.destination,),
            read_first=self.replaced,
            chunks=-(-items // per_chunk),
            scratch=scratch,
            nbytes=2.0 * self.nbytes,
            detail=lambda: f"{items} pieces of {item_bytes} bytes",
        )
