"""Resizing by whole factors: elements, or runs of bytes, and lines of them are repeated."""

from __future__ import annotations

import math

from sardonyx.compiler.arguments import Read, Record, Rest, Size, Write, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import I64, Type
from sardonyx.compiler.llvm.walk import places, runs, share
from sardonyx.compiler.native.movement.copy import CHUNK_BYTES
from sardonyx.compiler.native.movement.gather import BLOBS
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class RepeatSpec:
    """Elements of `blob` bytes (0: of a length known at run time), as often across and as many lines down as said."""

    blob: int
    across: int
    down: int


class Arguments(Record):
    source = Read()
    output = Write()
    lines = Size()  # of the source
    per_chunk = Size()  # lines
    size = Size()  # elements of a line
    nbytes = Size()  # of an element
    step = Size()  # bytes between elements of a line
    rows = Size()  # lines of a plane
    line_step = Size()  # bytes between them
    written = Size()  # bytes between elements of the output, where these are longer than 8
    rank = Size()  # of the dimensions over planes
    outer = Rest()  # size and source stride of each of these


@kernel(Arguments)
def emit_repeat(k: Function, a: Arguments, spec: RepeatSpec) -> None:
    """Lines of the source with each element repeated, and each of the resulting lines repeated."""
    source, output = a.source, a.output
    size, nbytes, step = a.size, k.constant(I64, spec.blob) if spec.blob else a.nbytes, a.step
    rows, line_step, written = a.rows, a.line_step, a.written
    row_bytes = size * written * spec.across
    begin, end = share(k, a.lines, a.per_chunk)
    with runs(k, begin, end, rows) as (plane, first, last):
        (start,) = places(k, plane, a.outer, a.rank, 1)
        with k.loop(first, last) as index:
            from_ = source.offset(start + index * line_step)
            to = output.offset((plane * rows + index) * (row_bytes * spec.down))
            lines = [to.offset(row_bytes * copy) for copy in range(spec.down)]
            if 0 < spec.blob <= 8:
                _repeated_elements(k, spec, from_, lines, size)
            else:
                with k.loop(0, size) as element:
                    at = element * (written * spec.across)
                    ends = [line.offset(at + written * copy) for line in lines for copy in range(spec.across)]
                    _repeated_run(k, from_.offset(element * step), ends, nbytes)


def _repeated_elements(k: Function, spec: RepeatSpec, from_: Pointer, lines: list[Pointer], size: Value) -> None:
    """Contiguous elements that registers hold several of."""
    scalar, times = Type("u", 8 * spec.blob), spec.across
    lanes = k.target.lanes(scalar)
    read, written = from_.cast(scalar), [line.cast(scalar) for line in lines]
    whole = size & -lanes
    with k.loop(0, whole, lanes) as at:
        vector = read.load(at, lanes, align=1)
        for part in range(times):
            spread = k.shuffle(vector, None, [(part * lanes + lane) // times for lane in range(lanes)])
            for line in written:
                line.store(spread, at * times + part * lanes, align=1)
    with k.loop(whole, size) as at:
        element = read.load(at, align=1)
        for line in written:
            for part in range(times):
                line.store(element, at * times + part, align=1)


def _repeated_run(k: Function, from_: Pointer, ends: list[Pointer], nbytes: Value) -> None:
    """Bytes copied to several places."""
    width = k.target.vector_bits // 8
    long = nbytes >= width
    with k.when(long):
        rest = nbytes - width
        with k.loop(0, rest, width) as at:
            vector = from_.load(at, width)
            for to in ends:
                to.store(vector, at)
        vector = from_.load(rest, width)  # overlaps what was copied before
        for to in ends:
            to.store(vector, rest)
    with k.otherwise(long):
        if k.target.has_masks:
            mask = k.lanes_below(nbytes, width)
            vector = from_.load(0, width, mask)
            for to in ends:
                to.store(vector, 0, mask)
        else:
            for to in ends:
                k.copy(to, from_, nbytes)


def by_factors(binder: Binder, x: Tensor, result: Tensor, axes: int, down: int, across: int) -> None:
    """The last two of `axes` axes repeated by whole factors, those before them as they are."""
    item = x.dtype.itemsize
    nbytes = math.prod(x.shape[axes:]) * item
    size, rows = x.shape[axes - 1], x.shape[axes - 2]
    lines = math.prod(x.shape[: axes - 1])
    per_chunk = max(1, CHUNK_BYTES // (size * nbytes * across * down))
    outer = range(axes - 3, -1, -1)
    binder.step(
        emit_repeat,
        RepeatSpec(nbytes if nbytes in BLOBS else 0, across, down),
        Arguments(
            source=x,
            output=result,
            lines=lines,
            per_chunk=per_chunk,
            size=size,
            nbytes=nbytes,
            step=x.strides[axes - 1] * item,
            rows=rows,
            line_step=x.strides[axes - 2] * item,
            written=nbytes if result.is_contiguous else result.strides[-2] * item,
            rank=axes - 2,
            outer=[number for axis in outer for number in (x.shape[axis], x.strides[axis] * item)],
        ),
        chunks=-(-lines // per_chunk),
        detail=f"{lines} lines of {size} x {nbytes} bytes, {across} times, {down} of each",
    )
