"""Filters times a factor for each: multiplied in float64, rounded once."""

from __future__ import annotations

from sardonyx.compiler.arguments import Read, Record, Size, Write, kernel
from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.types import F32, F64
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class ScaleSpec:
    """Nothing varies: filters of float32 and factors of float64."""


class Arguments(Record):
    filters = Read(F32)
    factors = Read(F64)
    result = Write(F32)
    size = Size()  # elements of a filter


@kernel(Arguments)
def emit_scaled_filters(k: Function, a: Arguments, spec: ScaleSpec) -> None:
    """A chunk is one filter."""
    filters, factors, result, size, lanes = a.filters, a.factors, a.result, a.size, k.target.lanes(F32)
    with k.loop(k["begin"], k["end"]) as number:
        factor = k.splat(factors.load(number), lanes)
        source, place = filters.offset(number * size), result.offset(number * size)
        with k.loop(0, size, lanes) as first:
            mask = k.lanes_below(size - first, lanes)
            product = source.load(first, lanes, mask).to(F64) * factor
            place.store(product.to(F32), first, mask)
