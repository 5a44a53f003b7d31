"""Rows of an update written into a cache, from places that are known at run time."""

from __future__ import annotations

from sardonyx.compiler.llvm.kernels.movement.walk import Row, kernel_frame, note, share
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, U8, U64
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class CacheUpdateSpec:
    """Whether the cache is a ring, and rows of `blob` bytes (0: known at run time)."""

    circular: bool
    blob: int


def emit_cache_update(target: Target, spec: CacheUpdateSpec) -> str:
    """Rows of an update onto a cache along its sequence axis.

    Arguments: cache, update, first places (one for each batch entry), fault, rows of the update, rows per chunk, bytes
    of a row, length of the update, room of the cache, sequences of a batch entry. A first place that is negative, or
    leaves no room in a cache that is no ring, is noted, and the rows of its entry are left out.
    """
    k, words = kernel_frame(target)
    cache, update = k.pointer(words.load(0), U8), k.pointer(words.load(1), U8)
    firsts, fault = k.pointer(words.load(2), I64), k.pointer(words.load(3), U8)
    row_bytes, length, room, sequences = (words.load(at) for at in range(6, 10))
    row = Row(k, spec.blob, row_bytes)
    begin, end = share(k, words.load(4), words.load(5))
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
            note(k, fault, first)
    return k.finish()
