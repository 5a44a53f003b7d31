"""Lanes chosen by number at run time: the vocabulary has no such shuffle, but some machines do."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32


def has_lookup(target: Target) -> bool:
    """Whether `lookup` is faster than reading the elements one by one from memory."""
    return "avx2" in target.features


def lookup(k: Function, halves: Sequence[Value], indices: Value) -> Value:
    """For each lane the element of one or two whole registers of F32, one behind the other, that `indices` (I32) names.

    Indices lie below the number of lanes of them all. For targets that `has_lookup` names.
    """
    wide = F32.vector(k.target.lanes(F32))
    if wide.lanes == 16:
        if len(halves) == 1:
            return k.call("llvm.x86.avx512.permvar.sf.512", wide, halves[0], indices)
        return k.call("llvm.x86.avx512.vpermi2var.ps.512", wide, halves[0], indices, halves[1])
    # The instruction looks at the lowest bits alone, so that the same indices serve both halves.
    found = [k.call("llvm.x86.avx2.permps", wide, half, indices) for half in halves]
    return found[0] if len(found) == 1 else k.select(indices < wide.lanes, *found)
