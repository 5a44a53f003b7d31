"""Values by key, several elements side by side."""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.llvm.builder import minimum
from sardonyx.compiler.llvm.kernels.classic.key_table import KeyTable, float_key
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import I64, Type, type_of
from sardonyx.compiler.llvm.values import Value
from sardonyx.compiler.llvm.walk import kernel_frame
from sardonyx.light_dataclass import dataclass

_ABREAST = 8


@dataclass(frozen=True)
class LookUpSpec:
    """`data`: the dtype of the elements; `blob`: bytes of a value; `dense`: see `KeyTable`."""

    data: str
    blob: int
    dense: bool


def emit_look_up(target: Target, spec: LookUpSpec) -> str:
    """For each element the value of its key.

    Arguments: elements, values of them, how many, how many of a chunk, how far apart the elements lie, the values at
    the places of the table, behind them that of an element with no key, and the words of the table.
    """
    k, words = kernel_frame(target)
    data = type_of(np.dtype(spec.data))
    assert data is not None
    blob = Type("u", 8 * spec.blob)
    elements, results = k.pointer(words.load(0), data), k.pointer(words.load(1), blob)
    step, values = words.load(4), k.pointer(words.load(5), blob)
    table = KeyTable(k, words.offset(6), dense=spec.dense)

    def look_up(first: Value, count: int) -> None:
        given = [elements.load((first + lane) * step) for lane in range(count)]
        keys = [float_key(k, one) if data.is_float else one.to(I64) for one in given]
        for lane, place in enumerate(table.places(keys)):
            results.store(values.load(place), first + lane)

    begin, end = k["begin"] * words.load(3), minimum(k, k["end"] * words.load(3), words.load(2))
    alone = end - (end - begin) % _ABREAST
    with k.loop(begin, alone, _ABREAST) as first:
        look_up(first, _ABREAST)
    with k.loop(alone, end) as first:
        look_up(first, 1)
    return k.finish()
