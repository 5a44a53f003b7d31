"""TensorScatter: an update written into a copy of a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.kernels.attention.cache_update import CacheUpdateSpec, emit_cache_update
from sardonyx.compiler.native.movement.copy import contiguous, copy
from sardonyx.compiler.native.movement.gather import BLOBS, rows_per_chunk
from sardonyx.compiler.native.template import NativeKernel, template
from sardonyx.ops.rearrange import no_room, sequence_axis


@template("tensor_scatter")
class TensorScatter(NativeKernel):
    """The update replaces the cache's rows along ``axis`` from the write index of each batch entry on.

    Inputs: past_cache, update, write_indices? (int64, one for each batch entry). ``mode`` is linear or circular.
    """

    def bind(self, binder: Binder, *inputs: Tensor | None) -> Sequence[Tensor]:
        cache, update, firsts = (*inputs, None)[:3]
        assert cache is not None
        assert update is not None
        mode = self.parameters["mode"]
        axis = sequence_axis(
            cache.shape, update.shape, None if firsts is None else firsts.shape, self.parameters["axis"], mode
        )
        if firsts is None:
            firsts = binder.constant(np.zeros(cache.shape[0], np.int64))
        update, firsts = contiguous(binder, update), contiguous(binder, firsts)
        result = copy(binder, cache)
        room, length = cache.shape[axis], update.shape[axis]
        row = math.prod(cache.shape[axis + 1 :]) * cache.dtype.itemsize
        sequences = math.prod(cache.shape[1:axis])
        items = cache.shape[0] * sequences * length
        per_chunk = rows_per_chunk(row)
        fault = binder.fault(lambda number: ValueError(no_room(number, length, room, mode)))
        binder.step(
            emit_cache_update,
            CacheUpdateSpec(mode == "circular", row if row in BLOBS else 0),
            [result, update, firsts, fault, items, per_chunk, row, length, room, sequences],
            reads=(update, firsts),
            writes=(result,),
            chunks=-(-items // per_chunk),
            nbytes=2.0 * update.nbytes,
            detail=lambda: f"{items} rows of {row} bytes",
        )
        return [result]
