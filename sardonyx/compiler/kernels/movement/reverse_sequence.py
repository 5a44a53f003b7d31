"""ReverseSequence: the first steps of each sequence in reverse order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.compiler.arguments import ErrorSlot, Read, Record, Size, Write, kernel
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.types import I64, U64
from sardonyx.compiler.llvm.walk import Row, note, runs, share
from sardonyx.compiler.native.movement.copy import contiguous
from sardonyx.compiler.native.movement.gather import BLOBS, rows_per_chunk
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.rearrange import length_out_of_range, sequence_axes


@dataclass(frozen=True)
class ReverseSpec:
    """Whether the time axis comes first, and rows of `blob` bytes (0: known at run time)."""

    time_first: bool
    blob: int


class Arguments(Record):
    data = Read()
    lengths = Read(I64)
    output = Write()
    error = ErrorSlot()
    items = Size()  # rows
    per_chunk = Size()
    row_bytes = Size()
    steps = Size()
    second = Size()  # size of the second axis


@kernel(Arguments)
def emit_reverse(k: Function, a: Arguments, spec: ReverseSpec) -> None:
    """The first steps of each sequence in reverse order, the others as they are.

    A length that is negative or above `steps` is noted, and its sequence left out.
    """
    data, output = a.data, a.output
    lengths, error = a.lengths, a.error
    row_bytes, steps, second = a.row_bytes, a.steps, a.second
    row = Row(k, spec.blob, row_bytes)
    begin, end = share(k, a.items, a.per_chunk)
    with runs(k, begin, end, second) as (outer, first, last), k.loop(first, last) as inner:
        time, batch = (outer, inner) if spec.time_first else (inner, outer)
        length = lengths.load(batch)
        good = length.to(U64) <= steps.to(U64)
        with k.when(good):
            source = k.select(time < length, length - 1 - time, time)
            place = source * second + batch if spec.time_first else batch * second + source
            row.copy(data.offset(place * row_bytes), output.offset((outer * second + inner) * row_bytes))
        with k.otherwise(good):
            note(k, error, length)


@template("reverse_sequence")
class ReverseSequence(NativeKernel):
    """The first elements of each sequence, as many as the second input (int64) says, in reverse order."""

    def bind(self, binder: Binder, data: Tensor, lengths: Tensor) -> Sequence[Tensor]:
        _, time = sequence_axes(data.shape, lengths.shape, self.parameters["batch_axis"], self.parameters["time_axis"])
        data, lengths = contiguous(binder, data), contiguous(binder, lengths)
        result = binder.new(data.dtype, data.shape)
        row = math.prod(data.shape[2:]) * data.dtype.itemsize
        items = data.shape[0] * data.shape[1]
        per_chunk, steps = rows_per_chunk(row), data.shape[time]
        error = binder.fault(lambda number: ValueError(length_out_of_range(number, steps)))
        binder.step(
            emit_reverse,
            ReverseSpec(time == 0, row if row in BLOBS else 0),
            Arguments(
                data=data,
                lengths=lengths,
                output=result,
                error=error,
                items=items,
                per_chunk=per_chunk,
                row_bytes=row,
                steps=steps,
                second=data.shape[1],
            ),
            chunks=-(-items // per_chunk),
            detail=lambda: f"{items} rows of {row} bytes",
        )
        return [result]
