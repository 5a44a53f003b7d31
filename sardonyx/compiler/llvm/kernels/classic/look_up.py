"""Values by key: a binary search in sorted keys for every element."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.llvm.builder import minimum
from sardonyx.compiler.llvm.kernels.classic.sorted_keys import last_not_above
from sardonyx.compiler.llvm.kernels.movement.walk import kernel_frame
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, F64, I64, Type, type_of


@dataclass(frozen=True)
class LookUpSpec:
    """`data`: the dtype of the elements; `blob`: bytes of a value. Keys are float64, or int64 for integers."""

    data: str
    blob: int


def emit_look_up(target: Target, spec: LookUpSpec) -> str:
    """For each element the value of its key.

    Arguments: elements, values of them, how many, how many of a chunk, keys in ascending order, their count, the values
    of the keys, behind them that of an element with no key and that of NaN.
    """
    k, words = kernel_frame(target)
    data = type_of(np.dtype(spec.data))
    assert data is not None
    blob = Type("u", 8 * spec.blob)
    elements, results = k.pointer(words.load(0), data), k.pointer(words.load(1), blob)
    count, per_chunk, keys_count = words.load(2), words.load(3), words.load(5)
    keys = k.pointer(words.load(4), F64 if data.is_float else I64)
    values = k.pointer(words.load(6), blob)
    with k.loop(k["begin"] * per_chunk, minimum(k, k["end"] * per_chunk, count)) as place:
        element = elements.load(place)
        single = element.to(F32) if data.is_float and data.bits < 32 else element
        wanted = single.to(F64 if data.is_float else I64)
        nearest = last_not_above(k, keys, keys_count, wanted)
        found = k.select(keys.load(nearest).equals(wanted), nearest, keys_count)
        if data.is_float:
            found = k.select(wanted.differs(wanted), keys_count + 1, found)
        results.store(values.load(found), place)
    return k.finish()
