"""Binary search."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import I64


def last_not_above(k: Function, keys: Pointer, count: Value, wanted: Value) -> Value:
    """The place of the last of `count` ascending keys, at least one, that is not above `wanted`; 0 where all are."""
    first, rest = k.variable(I64, 0), k.variable(I64, count)  # it lies at `first` or behind it, among `rest` keys
    with k.loop_while(lambda: rest.get() > 1):
        half = rest.get() // 2
        middle = first.get() + half
        first.set(k.select(keys.load(middle) <= wanted, middle, first.get()))
        rest.set(rest.get() - half)
    return first.get()
