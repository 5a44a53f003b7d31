"""A row for each element, with 1 at the place of its category."""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.llvm.builder import minimum
from sardonyx.compiler.llvm.kernels.classic.key_table import KeyTable
from sardonyx.compiler.llvm.kernels.movement.copy import fill_row
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, F64, I64, U8, type_of
from sardonyx.compiler.llvm.walk import kernel_frame, note
from sardonyx.light_dataclass import dataclass

# The first float beyond the integers.
_BEYOND = 2.0**63


@dataclass(frozen=True)
class OneHotSpec:
    """`data`: the dtype of the elements; `strict`: one of no category is a fault; `dense`: see `KeyTable`."""

    data: str
    strict: bool
    dense: bool


def emit_one_hot(target: Target, spec: OneHotSpec) -> str:
    """Rows of float32; floats are cut to integers.

    Arguments: elements, rows, how many, how many of a chunk, how far apart the elements lie, elements of a row, a
    fault, the categories at the places of the table (-1: none), and the words of the table.
    """
    k, words = kernel_frame(target)
    data = type_of(np.dtype(spec.data))
    assert data is not None
    elements, rows = k.pointer(words.load(0), data), k.pointer(words.load(1), F32)
    step, width, fault = words.load(4), words.load(5), k.pointer(words.load(6), U8)
    categories, table = k.pointer(words.load(7), I64), KeyTable(k, words.offset(8), dense=spec.dense)
    begin, end = k["begin"] * words.load(3), minimum(k, k["end"] * words.load(3), words.load(2))
    nothing = k.splat(k.constant(U8, 0), target.vector_bits // 8)
    with k.loop(begin, end) as place:
        element, row = elements.load(place * step), rows.offset(place * width)
        fill_row(k, row.cast(U8), nothing, width * F32.nbytes, F32.nbytes)
        (found,) = table.places([element.to(I64)])
        category = categories.load(found)
        known = category >= 0
        if data.is_float:
            wide = element.to(F64)
            known = known & (wide < _BEYOND) & (wide > -_BEYOND)
        with k.when(known):
            row.store(1.0, category)
        if spec.strict:
            with k.otherwise(known):
                note(k, fault, place)
    return k.finish()
