"""Values that steer a segment: small ones, such as axes or a shape, whose contents are read when it is entered.

A kernel that takes its axes, pads or sizes as data needs them while it is bound. Where they are no constants, the
segment reads them at its border and keeps a plan for each of their contents, as it does for each shape. They must
therefore be there before it begins: inputs of the graph, results of the host, or of an earlier segment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from sardonyx.compiler.lowering import ALONE, Lowered
from sardonyx.ops.framework.inference import Inference
from sardonyx.runtime.native.native_segment import MOST_STEERING_ELEMENTS

# Nodes of shape arithmetic that are followed from a value to what it is made of.
_MOST_NODES = 64


def classify_steered(
    classify_all: Callable[[Callable[[ir.Value], bool]], list[Lowered]], inference: Inference
) -> tuple[list[Lowered], frozenset[ir.Value]]:
    """The nodes of a partition by role, and the values that steer them.

    `classify_all` gives the roles where some values besides the constants count as known.
    """
    steering: set[ir.Value] = set()
    while True:
        items = classify_all(steering.__contains__)
        makers = {value: item for item in items for value in item.node.outputs}
        more = {
            root
            for item in items
            if all(_is_small(value, inference) for value in item.lacks)
            for value in item.lacks
            for root in _roots(value, makers, inference)
        }
        if more <= steering:
            return items, frozenset(steering)
        steering |= more


def _roots(value: ir.Value, makers: dict[ir.Value, Lowered], inference: Inference) -> Sequence[ir.Value]:
    """What to read so that a value can be computed while binding: inputs that it is made of, or itself."""
    roots: dict[ir.Value, None] = {}
    left, seen = [value], {value}
    while left:
        one = left.pop()
        item = makers.get(one)
        if item is None or item.role in ALONE:
            roots[one] = None
            continue
        if item.role == "known":
            continue
        read = [each for each in item.node.inputs if each is not None and each.name != ""]
        unknown = [each for each in read if not each.is_initializer() and each not in seen]
        if len(seen) > _MOST_NODES or not all(_is_small(each, inference) for each in unknown):
            return [value]
        seen.update(unknown)
        left.extend(unknown)
    return list(roots)


def _is_small(value: ir.Value, inference: Inference) -> bool:
    """Whether a value is a tensor of numbers that is small whatever the run."""
    fact = inference.fact(value)
    if fact is None or fact.dtype is None or fact.dtype == ir.DataType.STRING or fact.shape is None:
        return False
    sizes = [dim for dim in fact.shape if isinstance(dim, int)]
    return len(sizes) == len(fact.shape) <= 1 and math.prod(sizes) <= MOST_STEERING_ELEMENTS
