"""Contents of small integer values: how shape arithmetic stays symbolic through computing operators.

The operators that move data state their contents themselves; those that compute (Add, Where, ReduceProd…) have one
rule each here, over dimensions instead of numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import onnx_ir as ir

from sardonyx.ops.framework import dims
from sardonyx.ops.framework.facts import MAXIMUM_ELEMENTS, Dim, Fact, unknown_dim

_WHOLE = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})


def contents(node: ir.Node, inputs: Sequence[Fact | None], output: Fact) -> tuple[Dim, ...] | None:
    """The elements of a node's first output where its inputs' elements tell them, else None."""
    if output.elements is not None or output.dtype not in _WHOLE or output.shape is None or len(output.shape) > 1:
        return output.elements
    rule = _ELEMENTWISE.get(node.op_type) if node.domain == "" else None
    if rule is not None:
        return _elementwise(rule, inputs, output)
    reduction = _REDUCTIONS.get(node.op_type) if node.domain == "" else None
    if reduction is not None:
        return _reduced(reduction, inputs, output)
    return None


def _elementwise(rule: Callable[..., Dim], inputs: Sequence[Fact | None], output: Fact) -> tuple[Dim, ...] | None:
    count = output.shape[0] if output.shape else 1
    if not isinstance(count, int) or count > MAXIMUM_ELEMENTS:
        return None
    columns: list[Sequence[Dim]] = []
    for fact in inputs:
        if fact is None or fact.elements is None or len(fact.elements) not in (1, count):
            return None
        columns.append(fact.elements if len(fact.elements) == count else fact.elements * count)
    return tuple(rule(*row) for row in zip(*columns, strict=True))


def _reduced(
    rule: Callable[[Sequence[Dim]], Dim], inputs: Sequence[Fact | None], output: Fact
) -> tuple[Dim, ...] | None:
    """A reduction over the one axis of a vector; the output then has one element."""
    source = inputs[0]
    if source is None or source.elements is None or not source.elements:
        return None
    if output.shape not in ((), (1,)):
        return source.elements if len(source.elements) == 1 else None
    return (rule(source.elements),)


def _truncated(a: Dim, b: Dim) -> Dim:
    """Division of integers as C does it; sizes are not negative, so that for symbols it rounds down."""
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            return unknown_dim()
        return a // b if (a < 0) == (b < 0) else -(-a // b)
    return dims.floor_divide(a, b)


def _truth(signs: tuple[int, ...]) -> Callable[[Dim, Dim], Dim]:
    def rule(a: Dim, b: Dim) -> Dim:
        sign = dims.compare(a, b)
        return unknown_dim() if sign is None else int(sign in signs)

    return rule


def _logical(rule: Callable[..., bool]) -> Callable[..., Dim]:
    def applied(*items: Dim) -> Dim:
        numbers = [item for item in items if isinstance(item, int)]
        return int(rule(*numbers)) if len(numbers) == len(items) else unknown_dim()

    return applied


def _where(condition: Dim, yes: Dim, no: Dim) -> Dim:
    if isinstance(condition, int):
        return yes if condition else no
    return yes if dims.compare(yes, no) == 0 else unknown_dim()


def _same(item: Dim) -> Dim:
    return item


def _absolute(item: Dim) -> Dim:
    if isinstance(item, int):
        return abs(item)
    return item if dims.at_least(item, 0) else unknown_dim()


def _fold(rule: Callable[[Dim, Dim], Dim]) -> Callable[..., Dim]:
    return lambda *items: functools.reduce(rule, items)


_ELEMENTWISE: dict[str, Callable[..., Dim]] = {
    "Abs": _absolute,
    "Add": dims.add,
    "And": _logical(lambda a, b: bool(a and b)),
    "Cast": _same,
    "Div": _truncated,
    "Equal": _truth((0,)),
    "Greater": _truth((1,)),
    "GreaterOrEqual": _truth((0, 1)),
    "Less": _truth((-1,)),
    "LessOrEqual": _truth((-1, 0)),
    "Max": _fold(dims.maximum),
    "Min": _fold(dims.minimum),
    "Mod": dims.modulo,
    "Mul": dims.multiply,
    "Neg": dims.negative,
    "Not": _logical(lambda a: not a),
    "Or": _logical(lambda a, b: bool(a or b)),
    "Sub": dims.subtract,
    "Sum": _fold(dims.add),
    "Where": _where,
    "Xor": _logical(lambda a, b: bool(a) != bool(b)),
}

_REDUCTIONS: dict[str, Callable[[Sequence[Dim]], Dim]] = {
    "ReduceMax": lambda items: functools.reduce(dims.maximum, items),
    "ReduceMin": lambda items: functools.reduce(dims.minimum, items),
    "ReduceProd": dims.product,
    "ReduceSum": dims.total,
}
