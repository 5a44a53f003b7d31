"""TensorScatter: an update written into a copy of a cache, from places that are known while it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.arguments import ErrorSlot, Read, Record, Size, Write, kernel, sizes
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.kernels.template import NativeKernel, template
from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.types import I64, U64
from sardonyx.compiler.llvm.walk import Row, note, share
from sardonyx.compiler.native.movement.copy import contiguous, copy
from sardonyx.compiler.native.movement.gather import BLOBS, rows_per_chunk
from sardonyx.light_dataclass import dataclass
from sardonyx.ops.rearrange import no_room, sequence_axis


@dataclass(frozen=True)
class CacheUpdateSpec:
    """Whether the cache is a ring, and rows of `blob` bytes (0: known at run time)."""

    circular: bool
    blob: int


class Arguments(Record):
    cache = Write()
    update = Read()
    firsts = Read(I64)  # the first place of each batch entry
    error = ErrorSlot()
    items = Size()  # rows of the update
    per_chunk, row_bytes = sizes(2)
    length = Size()  # of the update
    room = Size()  # of the cache
    sequences = Size()  # of a batch entry


@kernel(Arguments)
def emit_cache_update(k: Function, a: Arguments, spec: CacheUpdateSpec) -> None:
    """Rows of an update onto a cache along its sequence axis.

    A first place that is negative, or leaves no room in a cache that is no ring, is an error, and the rows of its entry
    are left out.
    """
    cache, update, firsts, error = a.cache, a.update, a.firsts, a.error
    row_bytes, length, room, sequences = a.row_bytes, a.length, a.room, a.sequences
    row = Row(k, spec.blob, row_bytes)
    begin, end = share(k, a.items, a.per_chunk)
    with k.loop(begin, end) as item:
        sequence = item // length
        step = item - sequence * length
        first = firsts.load(sequence // sequences)
        good = first >= 0 if spec.circular else first.to(U64) <= (room - length).to(U64)
        with k.when(good):
            place = first + step
            if spec.circular:
                place = place % room
            row.copy(update.offset(item * row_bytes), cache.offset((sequence * room + place) * row_bytes))
        with k.otherwise(good):
            note(k, error, first)


@template("tensor_scatter")
class TensorScatter(NativeKernel):
    """The update replaces the cache's rows along ``axis`` from the write index of each batch entry on.

    Write indices are int64, one for each batch entry; without them each is 0. ``mode`` is linear or circular.
    """

    def bind(
        self, binder: Binder, past_cache: Tensor, update: Tensor, write_indices: Tensor | None = None
    ) -> Sequence[Tensor]:
        mode = self.parameters["mode"]
        places = None if write_indices is None else write_indices.shape
        axis = sequence_axis(past_cache.shape, update.shape, places, self.parameters["axis"], mode)
        if write_indices is None:
            write_indices = binder.constant(np.zeros(past_cache.shape[0], np.int64))
        update, firsts = contiguous(binder, update), contiguous(binder, write_indices)
        result = copy(binder, past_cache)
        room, length = past_cache.shape[axis], update.shape[axis]
        row = math.prod(past_cache.shape[axis + 1 :]) * past_cache.dtype.itemsize
        sequences = math.prod(past_cache.shape[1:axis])
        items = past_cache.shape[0] * sequences * length
        per_chunk = rows_per_chunk(row)
        binder.step(
            emit_cache_update,
            CacheUpdateSpec(mode == "circular", row if row in BLOBS else 0),
            Arguments(
                cache=result,
                update=update,
                firsts=firsts,
                error=binder.fault(lambda number: ValueError(no_room(number, length, room, mode))),
                items=items,
                per_chunk=per_chunk,
                row_bytes=row,
                length=length,
                room=room,
                sequences=sequences,
            ),
            chunks=-(-items // per_chunk),
            nbytes=2.0 * update.nbytes,
            detail=lambda: f"{items} rows of {row} bytes",
        )
        return [result]
