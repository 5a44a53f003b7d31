"""How much work a pointwise kernel does for each element."""

from __future__ import annotations

from collections.abc import Container, Sequence

from sardonyx.kernel.expr import Apply, Expr, walk
from sardonyx.kernel.program import Pointwise

# Floating-point operations of a primitive in a vectorised rendering: the length of its polynomial and of the range
# reduction around it. Everything else counts as one operation, a cast as none.
_WEIGHTS = {
    "acos": 20,
    "acosh": 30,
    "asin": 20,
    "asinh": 30,
    "atan": 20,
    "atanh": 30,
    "cast": 0,
    "cos": 20,
    "cosh": 25,
    "divide": 4,
    "erf": 25,
    "exp": 14,
    "expm1": 18,
    "fmod": 10,
    "gated": 17,
    "log": 18,
    "log1p": 20,
    "modulo": 10,
    "power": 40,
    "sigmoid": 16,
    "sin": 20,
    "sinh": 25,
    "sqrt": 4,
    "tabulated": 8,
    "tan": 25,
    "tanh": 20,
}


def operations(kernel: Pointwise) -> int:
    """Operations for one element of the output; at least one, for a kernel that only copies."""
    return max(1, weight(kernel.outputs))


def weight(roots: Sequence[Expr], leaves: Container[int] = ()) -> int:
    """Operations that computing the roots takes; what is among `leaves` (by id) is there already."""
    applied = (expr for expr in walk(roots, leaves) if isinstance(expr, Apply) and id(expr) not in leaves)
    return sum(_WEIGHTS.get(expr.primitive, 1) for expr in applied)
