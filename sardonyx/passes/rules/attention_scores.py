"""What lies around the softmax of attention: how scores are made before it, what guards and reads its result."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ops.framework.facts import same
from sardonyx.passes.base import Context
from sardonyx.passes.rule import NearMissError
from sardonyx.passes.rules.attention_heads import constant_factor, text
from sardonyx.passes.rules.attention_mask import ABSORBING, Mask, repeated
from sardonyx.passes.rules.attention_match import Scores, flag, readers
from sardonyx.passes.rules.facts import producer, shape_of


def is_over_last_axis(softmax: ir.Node) -> bool:
    axis = softmax.attributes.get("axis")
    default = -1 if (softmax.version or 1) >= 13 else 1
    return (default if axis is None else axis.as_int()) in (-1, 3)


# What comes before the softmax


def scores_of(value: ir.Value | None, context: Context, depth: int = 6) -> Scores | None:
    """How a value is made from a product of two tensors by scaling and masking; None where it is not."""
    node = None if value is None else value.producer()
    if node is None or depth == 0:
        return None
    if (node.domain, node.op_type) in (("", "MatMul"), ("com.microsoft", "FusedMatMul")):
        return _product(node)
    if node.domain != "":
        return None
    if node.op_type in ("Mul", "Div"):
        return _scaled_scores(node, context, depth)
    if node.op_type == "Add":
        return _added_scores(node, context, depth)
    if node.op_type == "Reshape":
        return _windowed_scores(node, context, depth)
    return _filled_scores(node, context, depth) if node.op_type == "Where" else None


def _product(node: ir.Node) -> Scores | None:
    if node.op_type == "MatMul":
        return Scores(node)
    if any(flag(node, name) for name in ("transA", "transBatchA", "transBatchB")):
        return None
    alpha = node.attributes.get("alpha")
    return Scores(node, 1.0 if alpha is None else alpha.as_float())


def _scaled_scores(node: ir.Node, context: Context, depth: int) -> Scores | None:
    found = constant_factor(node)
    if found is not None:
        capped = _capped_scores(node, *found, context, depth)
        if capped is not None:
            return capped
        scores = scores_of(found[0], context, depth - 1)
        return None if scores is None else scores.scaled(found[1], node)
    if any(scores_of(value, context, depth - 1) is not None for value in node.inputs):
        raise NearMissError(f"the scores go through a {node.op_type} by what is not one constant number")
    return None


def _capped_scores(node: ir.Node, value: ir.Value, cap: float, context: Context, depth: int) -> Scores | None:
    """cap * tanh(scores / cap), of which `value` is the tanh; None for another value."""
    curve = producer(value, "Tanh")
    if curve is None or cap <= 0:
        return None
    scores = scores_of(curve.inputs[0], context, depth - 1)
    return None if scores is None else scores.scaled(cap, curve).capped(cap, node)


def _added_scores(node: ir.Node, context: Context, depth: int) -> Scores | None:
    for value, mask in (node.inputs, node.inputs[::-1]):
        scores = scores_of(value, context, depth - 1)
        if scores is not None and mask is not None:
            return scores.masked(Mask(mask), node)
    return None


def _windowed_scores(node: ir.Node, context: Context, depth: int) -> Scores | None:
    """Scores to which a mask is added while their batch is (images, windows); `node` puts that together again."""
    total = producer(node.inputs[0], "Add")
    for value, mask in () if total is None else (total.inputs, total.inputs[::-1]):
        split = producer(value, "Reshape")
        scores = None if split is None else scores_of(split.inputs[0], context, depth - 1)
        if total is None or split is None or scores is None or mask is None:
            continue
        before, windows = shape_of(split.inputs[0], context), shape_of(split.outputs[0], context)
        after = shape_of(node.outputs[0], context)
        if before is None or after is None or windows is None or len(before) != 4 or len(windows) != 5:
            raise NearMissError(f"its scores are taken apart as {text(windows)}, not (images, windows, heads, …)")
        # A Reshape keeps the number of elements: the batch is the same where the other sizes are.
        if len(after) != 4 or not all(map(same, before[1:], after[1:])) or not all(map(same, before[1:], windows[2:])):
            raise NearMissError(f"its scores are taken apart and put together again as {text(after)} of {text(before)}")
        return scores.viewed(split).masked(Mask(mask, windows=windows), total).viewed(node)
    return None


def _filled_scores(node: ir.Node, context: Context, depth: int) -> Scores | None:
    condition = node.inputs[0]
    assert condition is not None
    for value, other, keeps in ((node.inputs[1], node.inputs[2], True), (node.inputs[2], node.inputs[1], False)):
        scores = scores_of(value, context, depth - 1)
        if scores is None:
            continue
        filler = repeated(other)
        if filler is None:
            raise NearMissError("what replaces hidden scores is not one constant number")
        if filler > ABSORBING:
            raise NearMissError(
                f"hidden scores are replaced by {filler}, which cannot be added without a trace of the score"
            )
        return scores.masked(Mask(condition, filler, keeps), node)
    return None


# What comes after the softmax


def guard_of(softmax: ir.Node) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """Where(IsNaN(p), 0, p) around the result of a softmax, if it is there, and the weights."""
    weights = softmax.outputs[0]
    for test in readers(weights, "IsNaN"):
        for where in readers(test.outputs[0], "Where"):
            if where.inputs[2] is weights and repeated(where.inputs[1]) == 0:
                return (where, test), where.outputs[0]
    return (), weights


def weighted_product(softmax: ir.Node) -> ir.Node | None:
    """The product of the weights with the values."""
    _, weights = guard_of(softmax)
    return next((node for node in readers(weights, "MatMul") if node.inputs[0] is weights), None)
