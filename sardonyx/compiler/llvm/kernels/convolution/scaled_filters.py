"""Filters times a factor for each: multiplied in float64, rounded once."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.library import KERNEL
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, F64, I64, PTR
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class ScaleSpec:
    """Nothing varies: filters of float32 and factors of float64."""


def emit_scaled_filters(target: Target, spec: ScaleSpec) -> str:
    """Arguments: addresses of filters, factors and result, elements of a filter; a chunk is one filter."""
    k = Function(KERNEL, target, [("arguments", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)])
    words = k.pointer("arguments", I64)
    filters, factors, result = (k.pointer(words.load(index), scalar) for index, scalar in enumerate((F32, F64, F32)))
    size, lanes = words.load(3), target.lanes(F32)
    with k.loop(k["begin"], k["end"]) as number:
        factor = k.splat(factors.load(number), lanes)
        source, place = filters.offset(number * size), result.offset(number * size)
        with k.loop(0, size, lanes) as first:
            mask = k.lanes_below(size - first, lanes)
            product = source.load(first, lanes, mask).to(F64) * factor
            place.store(product.to(F32), first, mask)
    return k.finish()
