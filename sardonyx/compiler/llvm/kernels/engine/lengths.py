"""Masks from the lengths of the entries of a batch."""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import BOOL, I32, I64, type_of
from sardonyx.compiler.llvm.walk import kernel_frame

SPANS_ARGUMENTS = ("spans", "keep", "batch", "keys", "has_starts")


def emit_spans(target: Target, dtype: str) -> str:
    """keep[b, t] = starts[b] <= t < ends[b]: `spans` of this integer dtype holds the ends, then maybe the starts."""
    k, words = kernel_frame(target)
    given = {name: words.load(index) for index, name in enumerate(SPANS_ARGUMENTS)}
    scalar = type_of(np.dtype(dtype))
    assert scalar is not None
    spans, keep = k.pointer(given["spans"], scalar), k.pointer(given["keep"], BOOL)
    lanes = target.lanes(I32)
    batch, keys = given["batch"], given["keys"]
    with k.loop(0, batch) as entry:
        end = k.smaller(spans.load(entry).to(I64), keys).to(I32)
        start = k.variable(I32, 0)
        with k.when(given["has_starts"].differs(0)):
            start.set(k.larger(k.smaller(spans.load(entry + batch).to(I64), keys), 0).to(I32))
        row = keep.offset(entry * keys)
        with k.loop(0, keys, lanes) as at:
            place = k.iota(I32, lanes) + at.to(I32)
            row.store((place < end) & (place >= start.get()), at, k.lanes_below(keys - at, lanes))
    return k.finish()
