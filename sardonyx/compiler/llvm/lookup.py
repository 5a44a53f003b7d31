"""Lanes chosen by number at run time: the vocabulary has no such shuffle, but some machines do."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32


def has_lookup(target: Target) -> bool:
    """Whether `lookup` is faster than reading the elements one by one from memory."""
    return "avx2" in target.features


def lookup(k: Function, low: Value, high: Value, indices: Value) -> Value:
    """For each lane the element of `low` followed by `high`, two whole registers of F32, that `indices` (I32) names.

    Indices lie below twice the number of lanes. For targets that `has_lookup` names.
    """
    wide = F32.vector(k.target.lanes(F32))
    if wide.lanes == 16:
        return k.call("llvm.x86.avx512.vpermi2var.ps.512", wide, low, indices, high)
    # The instruction looks at the lowest bits alone, so that the same indices serve both halves.
    first, second = (k.call("llvm.x86.avx2.permps", wide, half, indices) for half in (low, high))
    return k.select(indices < wide.lanes, first, second)
