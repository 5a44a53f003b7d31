"""The kinds of `Reduce` on vectors: where they begin, how two values are combined, and the lanes of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.types import BOOL, Type


def neutral(k: Function, kind: str, type_: Type) -> Value:
    """The value that changes nothing when it is combined."""
    if kind == "sum":
        return k.constant(type_, 0)
    if kind == "product":
        return k.constant(type_, 1)
    lowest = kind in ("maximum", "bound")
    if type_.is_float:
        return k.constant(type_, -math.inf if lowest else math.inf)
    if type_.scalar == BOOL:
        return k.constant(type_, not lowest)
    if type_.is_signed:
        return k.constant(type_, -(1 << (type_.bits - 1)) if lowest else (1 << (type_.bits - 1)) - 1)
    return k.constant(type_, 0 if lowest else (1 << type_.bits) - 1)


def combined(k: Function, kind: str, left: Value, right: Value) -> Value:
    """Two values as one."""
    if kind == "sum":
        return left + right
    if kind == "product":
        return left * right
    if left.type.scalar == BOOL:
        return left & right if kind == "minimum" else left | right
    if kind == "bound":
        return k.faster_larger(left, right) if left.type.is_float else k.larger(left, right)
    return k.larger(left, right) if kind == "maximum" else k.smaller(left, right)


def folded(k: Function, kind: str, vector: Value) -> Value:
    """All lanes as one scalar: halves are combined until one lane is left."""
    if vector.type.is_float and kind in ("maximum", "minimum") and vector.type.lanes > 2:
        # One look for NaN at the vector, in place of one for each combination.
        best = _halved(k, k.faster_larger if kind == "maximum" else k.faster_smaller, vector)
        return k.select(k.any_lane(vector.differs(vector)), k.constant(best.type, math.nan), best)
    return _halved(k, partial(combined, k, kind), vector)


def folded_together(k: Function, kind: str, vectors: Sequence[Value]) -> Value:
    """A power of two of vectors, at most as many as each has lanes: of each in turn the same number of lanes is left.

    Neighbouring lanes are combined, those of two vectors at a time.
    """
    if len(vectors) == 1:
        return vectors[0]
    half, lanes = len(vectors) // 2, vectors[0].type.lanes
    first, second = (folded_together(k, kind, part) for part in (vectors[:half], vectors[half:]))
    even, odd = (k.shuffle(first, second, range(lane, 2 * lanes, 2)) for lane in (0, 1))
    return combined(k, kind, even, odd)


def _halved(k: Function, combine: Callable[[Value, Value], Value], vector: Value) -> Value:
    while vector.type.lanes > 2:
        half = vector.type.lanes // 2
        vector = combine(k.shuffle(vector, None, range(half)), k.shuffle(vector, None, range(half, 2 * half)))
    if vector.type.lanes == 1:
        return vector
    return combine(k.extract(vector, 0), k.extract(vector, 1))
