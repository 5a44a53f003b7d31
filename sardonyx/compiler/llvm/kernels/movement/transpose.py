"""Transposes: squares of elements in registers, and large matrices block by block."""

from __future__ import annotations

from typing import Any

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, U8, Type
from sardonyx.compiler.llvm.walk import Axis, kernel_frame, places, share
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class StagedSpec:
    """Elements of `blob` bytes in blocks of `side` by `side`, of which squares of `tile` by `tile` fit registers."""

    blob: int
    tile: int
    side: int

    @property
    def row(self) -> int:
        """Bytes of a row of a block."""
        return self.side * self.blob

    @property
    def scratch(self) -> int:
        """Bytes of a thread's own memory: a block before and one after it is transposed."""
        return 2 * self.side * self.row


def emit_staged_transpose(target: Target, spec: StagedSpec) -> str:
    """Blocks that are transposed in a thread's own memory, so that main memory is read and written in whole lines.

    That pays where rows lie a power of two apart, in the source or in the destination: their lines then fall into few
    sets of the caches, and would be evicted before the next part of them is used.

    Arguments as those of `emit_blocks`; the blocks of both axes are `side`, and neither is shorter.
    """
    k, words = kernel_frame(target)
    source, destination = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    a, b = Axis(words, 4), Axis(words, 8)
    a_blocks, b_blocks = words.load(12), words.load(13)
    turned = k.pointer("scratch", U8)
    begin, end = share(k, words.load(2), words.load(3))
    with k.loop(begin, end) as item:
        above = item // a_blocks
        place = above // b_blocks
        i = k.smaller((item - above * a_blocks) * spec.side, a.size - spec.side)
        j = k.smaller((above - place * b_blocks) * spec.side, b.size - spec.side)
        read, written = places(k, place, words.offset(15), words.load(14), 2)
        from_ = source.offset(read + i * spec.blob + j * b.read_step)
        to = destination.offset(written + i * a.written_step + j * spec.blob)
        step = b.read_step
        if spec.tile * spec.blob < 64:  # a line holds parts of several squares: read it once
            staged = turned.offset(spec.side * spec.row)
            _copy_rows(k, from_, step, staged, spec.row, spec)
            from_, step = staged, k.constant(I64, spec.row)
        with k.loop(0, spec.side, spec.tile) as row, k.loop(0, spec.side, spec.tile) as column:
            corner_from = from_.offset(row * step + column * spec.blob)
            corner_to = turned.offset(column * spec.row + row * spec.blob)
            transpose_tile(k, corner_from, step, corner_to, k.constant(I64, spec.row), spec.blob, spec.tile)
        _copy_rows(k, turned, spec.row, to, a.written_step, spec)
    return k.finish()


def _copy_rows(k: Function, from_: Pointer, read_step: Any, to: Pointer, written_step: Any, spec: StagedSpec) -> None:
    """The rows of a block from one place to another, `read_step` and `written_step` bytes apart."""
    width = min(spec.row, k.target.vector_bits // 8)
    with k.loop(0, spec.side) as row:
        row_from, row_to = from_.offset(row * read_step), to.offset(row * written_step)
        for at in range(0, spec.row, width):
            row_to.store(row_from.load(at, width), at)


def transpose_tile(
    k: Function, from_: Pointer, read_step: Any, to: Pointer, written_step: Any, blob: int, tile: int
) -> None:
    """A square of `tile` by `tile` elements of `blob` bytes, through registers.

    Its rows lie `read_step` bytes apart in the source, its columns `written_step` bytes in the destination.
    """
    scalar = Type("u", 8 * blob)
    rows = [
        from_.offset(k.constant(I64, index) * read_step).cast(scalar).load(0, tile, align=1) for index in range(tile)
    ]
    for index, column in enumerate(transposed(k, rows)):
        to.offset(k.constant(I64, index) * written_step).cast(scalar).store(column, 0, align=1)


def transposed(k: Function, rows: list[Value]) -> list[Value]:
    """The columns of a square matrix that is given by its rows, one vector each.

    First the squares of 128 bits by 128 bits are transposed by interleaving within each lane of 128 bits, then the
    lanes are, by taking even and odd ones of two vectors: both are single instructions on x86.
    """
    count = len(rows)
    in_lane = min(count, max(1, 128 // rows[0].type.bits))
    groups = [_interleaved(k, rows[at : at + in_lane]) for at in range(0, count, in_lane)]
    columns: list[Value] = [rows[0]] * count
    for place in range(in_lane):
        lanes = _lanes_transposed(k, [group[place] for group in groups], in_lane)
        columns[place::in_lane] = lanes
    return columns


def _interleaved(k: Function, rows: list[Value]) -> list[Value]:
    """Squares within each lane transposed: log2 steps, each of which interleaves the first half with the second."""
    size, half, width = len(rows), len(rows) // 2, rows[0].type.lanes
    low = [at + i + side for at in range(0, width, size) for i in range(half) for side in (0, width)]
    high = [lane + half for lane in low]
    for _ in range(size.bit_length() - 1):
        pairs = list(zip(rows[:half], rows[half:], strict=True))
        rows = [k.shuffle(one, other, lanes) for one, other in pairs for lanes in (low, high)]
    return rows


def _lanes_transposed(k: Function, rows: list[Value], lane: int) -> list[Value]:
    """The square matrix whose elements are the lanes, of `lane` elements each, of some vectors, transposed."""
    if len(rows) == 1:
        return rows
    width = rows[0].type.lanes
    even = [at + i for at in range(0, 2 * width, 2 * lane) for i in range(lane)]
    odd = [index + lane for index in even]
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    halves = [
        _lanes_transposed(k, [k.shuffle(one, other, lanes) for one, other in pairs], lane) for lanes in (even, odd)
    ]
    return [row for pair in zip(*halves, strict=True) for row in pair]
