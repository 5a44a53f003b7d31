"""Elements kept, switched on or moved by their place: triangles, one-hot rows, reversed sequences."""

from __future__ import annotations

from sardonyx.compiler.llvm.kernels.movement.copy import fill_row
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, U8, U64, Type
from sardonyx.compiler.llvm.walk import Row, copy_blob, kernel_frame, note, runs, share
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class TriangleSpec:
    """Elements of `blob` bytes; the upper triangle is kept, or the lower one."""

    blob: int
    upper: bool


def emit_triangle(target: Target, spec: TriangleSpec) -> str:
    """A triangle of each matrix, zeros elsewhere.

    Arguments: data, output, rows of all matrices, rows per chunk, rows of a matrix, columns, and the column where the
    triangle's edge meets row 0: the first one that is kept of the upper triangle, the first one that is not of the
    lower.
    """
    k, words = kernel_frame(target)
    data, output = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    rows, columns, edge = words.load(4), words.load(5), words.load(6)
    zeros = k.constant(U8.vector(target.vector_bits // 8), 0)
    begin, end = share(k, words.load(2), words.load(3))
    with k.loop(begin, end) as item:
        row = item % rows
        cut = k.smaller(k.larger(row + edge, 0), columns) * spec.blob
        at, rest = item * columns * spec.blob, columns * spec.blob - cut
        from_, to = data.offset(at), output.offset(at)
        if spec.upper:
            fill_row(k, to, zeros, cut, spec.blob)
            k.copy(to.offset(cut), from_.offset(cut), rest)
        else:
            k.copy(to, from_, cut)
            fill_row(k, to.offset(cut), zeros, rest, spec.blob)
    return k.finish()


@dataclass(frozen=True)
class OneHotSpec:
    """Values of `blob` bytes, indices of `index` bits."""

    blob: int
    index: int


def emit_one_hot(target: Target, spec: OneHotSpec) -> str:
    """The value that stands for "on" at each index; indices out of bounds switch nothing on.

    Arguments: indices, the value, output, indices in all, indices per chunk, places of the hot axis, indices between
    two elements of it.
    """
    k, words = kernel_frame(target)
    indices, value = k.pointer(words.load(0), Type("i", spec.index)), k.pointer(words.load(1), U8)
    output = k.pointer(words.load(2), U8)
    depth, inner = words.load(5), words.load(6)
    begin, end = share(k, words.load(3), words.load(4))
    with runs(k, begin, end, inner) as (outer, first, last), k.loop(first, last) as place:
        index = indices.load(outer * inner + place).to(I64)
        counted = index + k.select(index < 0, depth, 0)
        with k.when(counted.to(U64) < depth.to(U64)):
            copy_blob(value, output.offset(((outer * depth + counted) * inner + place) * spec.blob), spec.blob)
    return k.finish()


@dataclass(frozen=True)
class ReverseSpec:
    """Whether the time axis comes first, and rows of `blob` bytes (0: known at run time)."""

    time_first: bool
    blob: int


def emit_reverse(target: Target, spec: ReverseSpec) -> str:
    """The first steps of each sequence in reverse order, the others as they are.

    Arguments: data, lengths, output, fault, rows, rows per chunk, bytes of a row, steps, size of the second axis. A
    length that is negative or above `steps` is noted, and its sequence left out.
    """
    k, words = kernel_frame(target)
    data, output = k.pointer(words.load(0), U8), k.pointer(words.load(2), U8)
    lengths, fault = k.pointer(words.load(1), I64), k.pointer(words.load(3), U8)
    row_bytes, steps, second = words.load(6), words.load(7), words.load(8)
    row = Row(k, spec.blob, row_bytes)
    begin, end = share(k, words.load(4), words.load(5))
    with runs(k, begin, end, second) as (outer, first, last), k.loop(first, last) as inner:
        time, batch = (outer, inner) if spec.time_first else (inner, outer)
        length = lengths.load(batch)
        good = length.to(U64) <= steps.to(U64)
        with k.when(good):
            source = k.select(time < length, length - 1 - time, time)
            place = source * second + batch if spec.time_first else batch * second + source
            row.copy(data.offset(place * row_bytes), output.offset((outer * second + inner) * row_bytes))
        with k.otherwise(good):
            note(k, fault, length)
    return k.finish()
