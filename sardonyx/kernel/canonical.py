"""A spelling of expressions that is the same for equal ones, by which kernels are found again.

One node a word, arguments before users and referred to by number: ``i0:float32 c0.5:float32 multiply(0,1):float32``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.kernel.expr import Apply, Constant, Expr, Input, Reduce, RowIndex, RowLength, walk
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class Canonical:
    """Expressions in which equal subexpressions are one object, and their spelling; equal where the spellings are."""

    text: str
    roots: tuple[Expr, ...]

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Canonical) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def canonical(roots: Sequence[Expr]) -> Canonical:
    """The canonical form of expressions."""
    numbers: dict[str, int] = {}
    shared: list[Expr] = []
    found: dict[int, int] = {}
    for expr in walk(roots):
        spelling = _spelled(expr, found)
        if spelling not in numbers:
            numbers[spelling] = len(shared)
            shared.append(_rebuilt(expr, shared, found))
        found[id(expr)] = numbers[spelling]
    last = " ".join(str(found[id(root)]) for root in roots)
    return Canonical(f"{' '.join(numbers)} -> {last}", tuple(shared[found[id(root)]] for root in roots))


def _rebuilt(expr: Expr, shared: Sequence[Expr], numbers: dict[int, int]) -> Expr:
    """The node over the shared objects of its arguments."""
    if isinstance(expr, Reduce):
        return Reduce(expr.dtype, expr.kind, shared[numbers[id(expr.arg)]])
    if not isinstance(expr, Apply):
        return expr
    return Apply(expr.dtype, expr.primitive, tuple(shared[numbers[id(arg)]] for arg in expr.args))


def _spelled(expr: Expr, numbers: dict[int, int]) -> str:
    if isinstance(expr, Input):
        return f"i{expr.index}:{expr.dtype}"
    if isinstance(expr, Constant):
        return f"c{_number(expr)}:{expr.dtype}"
    if isinstance(expr, RowLength):
        return f"n:{expr.dtype}"
    if isinstance(expr, RowIndex):
        return f"k:{expr.dtype}"
    if isinstance(expr, Reduce):
        return f"reduce_{expr.kind}({numbers[id(expr.arg)]}):{expr.dtype}"
    assert isinstance(expr, Apply)
    return f"{expr.primitive}({','.join(str(numbers[id(arg)]) for arg in expr.args)}):{expr.dtype}"


def _number(expr: Constant) -> str:
    """A constant's value, exactly."""
    if expr.dtype.kind in "iub":
        return str(int(np.asarray(expr.value).astype(expr.dtype)))
    return float(expr.value).hex()
