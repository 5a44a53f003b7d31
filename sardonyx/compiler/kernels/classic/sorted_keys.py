"""Binary search."""

from __future__ import annotations

from sardonyx.compiler.llvm.builder import Function, Pointer, Value
from sardonyx.compiler.llvm.types import I64


def last_not_above(k: Function, keys: Pointer, count: Value, wanted: Value) -> Value:
    """The place of the last of `count` ascending keys, at least one, that is not above `wanted`; 0 where all are."""
    first, rest = k.variable(I64, 0), k.variable(I64, count)  # it lies at `first` or behind it, among `rest` keys
    with k.loop_while(lambda: rest.get() > 1):
        half = rest.get() // 2
        # A select might become a branch, which is foreseen wrongly every other time.
        ahead = (keys.load(first.get() + half) <= wanted).to(I64)
        first.set(first.get() + (half & (0 - ahead)))
        rest.set(rest.get() - half)
    return first.get()
