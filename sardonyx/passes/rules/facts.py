"""What rules ask of shapes and orders of axes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.ops.framework.facts import Dim, Dims, Fact, known, same
from sardonyx.passes.base import Context
from sardonyx.passes.rule import Match


def same_shape(a: Dims | None, b: Dims | None) -> bool:
    """Whether two shapes are certainly equal."""
    return a is not None and b is not None and len(a) == len(b) and all(map(same, a, b))


def may_be_same(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are equal in some runs, as far as is known."""
    return not (isinstance(a, int) and isinstance(b, int)) or a == b


def all_known(shape: Dims | None) -> bool:
    """Whether each dimension of a shape is a number or has a name."""
    return shape is not None and all(map(known, shape))


def shape_of(value: ir.Value | None, context: Context) -> Dims | None:
    """What inference knows of a value's shape."""
    fact = context.inference.fact(value)
    return None if fact is None else fact.shape


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node of one of these operators of ONNX whose first result a value is, else None."""
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or node.op_type not in op_types or node.outputs[0] is not value:
        return None
    return node


def result_fact(m: Match) -> Fact:
    """What inference knows of the root's result."""
    return m.context.inference.facts.get(m.root.outputs[0], Fact())


def in_main_graph(m: Match) -> bool:
    """Whether a match is in the model's own graph: inside a loop, declared shapes may hold for its first turn only."""
    return m.root.graph is m.context.model.graph


def may_change_shape(m: Match) -> str | None:
    """Why the root, which changes nothing but shapes, may change that of `x`; None where it does not."""
    if not same_shape(m.fact("x").shape, result_fact(m).shape):
        return ""
    return None if in_main_graph(m) else "it is inside a loop or a branch"


def permutation(node: ir.Node, rank: int | None) -> tuple[int, ...] | None:
    """The order of axes of a Transpose; None where it reverses a number of axes that is not known."""
    perm = node.attributes.get("perm")
    if perm is not None:
        return tuple(perm.as_ints())
    return None if rank is None else tuple(range(rank))[::-1]


def integers(value: ir.Value | None, m: Match) -> list[int] | None:
    """The contents of a value where inference knows all of them as numbers."""
    fact = m.context.inference.fact(value)
    return None if fact is None else fact.integers()


def unsqueezed_axes(node: ir.Node, rank: int, context: Context) -> frozenset[int] | None:
    """The axes that an Unsqueeze adds to a result of `rank` dimensions; None where they are not known."""
    given = node.attributes.get("axes")
    if given is not None:
        axes: Sequence[int] | None = given.as_ints()
    else:
        fact = context.inference.fact(node.inputs[1]) if len(node.inputs) > 1 else None
        axes = None if fact is None else fact.integers()
    return None if axes is None else frozenset(axis % rank for axis in axes)


def swaps_last_two(perm: Sequence[int]) -> bool:
    """Whether an order of axes exchanges the last two and leaves the others."""
    rank = len(perm)
    return rank >= 2 and tuple(perm) == (*range(rank - 2), rank - 1, rank - 2)
