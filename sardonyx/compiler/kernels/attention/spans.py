"""Masks from the lengths of the entries of a batch."""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.arguments import Read, Record, Write, kernel, sizes
from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.types import BOOL, I32, I64, dtype_type
from sardonyx.compiler.native.movement.copy import contiguous


class Arguments(Record):
    spans = Read(dtype_type)  # the ends, then maybe the starts
    keep = Write(BOOL)
    batch, keys, has_starts = sizes(3)


@kernel(Arguments)
def emit_spans(k: Function, a: Arguments, dtype: str) -> None:
    """keep[b, t] = starts[b] <= t < ends[b], which are of this integer dtype."""
    spans, keep, batch, keys, has_starts = a.spans, a.keep, a.batch, a.keys, a.has_starts
    lanes = k.target.lanes(I32)
    with k.loop(0, batch) as entry:
        end = k.smaller(spans.load(entry).to(I64), keys).to(I32)
        start = k.variable(I32, 0)
        with k.when(has_starts.differs(0)):
            start.set(k.larger(k.smaller(spans.load(entry + batch).to(I64), keys), 0).to(I32))
        row = keep.offset(entry * keys)
        with k.loop(0, keys, lanes) as at:
            place = k.iota(I32, lanes) + at.to(I32)
            row.store((place < end) & (place >= start.get()), at, k.lanes_below(keys - at, lanes))


def spans(binder: Binder, mask: Tensor, batch: int, keys: int, *, has_starts: bool) -> Tensor:
    """Lengths, or ends and then starts, of each entry as a mask (batch, 1, 1, keys) of the keys that it keeps."""
    keep = binder.new(np.dtype(np.bool_), (batch, 1, 1, keys))
    mask = contiguous(binder, mask)
    arguments = Arguments(spans=mask, keep=keep, batch=batch, keys=keys, has_starts=int(has_starts))
    binder.step(emit_spans, mask.dtype.name, arguments)
    return keep
