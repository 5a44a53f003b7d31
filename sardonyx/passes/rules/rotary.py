"""Rotary position embeddings that exporters write out: channels turned by angles that grow with the position.

x * cos + rotated(x) * sin, where rotated(x) puts the second half of the channels, negated, in front of the first one
(Su et al. 2021, as transformers has it).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Dims, same
from sardonyx.passes.anchored import AnchoredRule
from sardonyx.passes.base import Context, Level
from sardonyx.passes.rule import Match, Replacement, Rule, op
from sardonyx.passes.rules.attention_heads import Heads, constant_factor, past_or_split
from sardonyx.passes.rules.facts import in_main_graph, integers, producer, shape_of, unsqueezed_axes

_BACK = op.Slice("x", "back_start", "back_end", "back_axes", "back_steps?")
_FRONT = op.Slice("x", "front_start", "front_end", "front_axes", "front_steps?")
_JOIN = op.Concat(op.Neg(_BACK), _FRONT)
LAST = 3  # the axis of the channels of (batch, heads, length, size)


class FuseRotaryEmbedding(AnchoredRule):
    """The parts become RotaryEmbedding over (batch, length, heads * size), with the split into heads behind it.

    Its caches are the first halves of the cosines and sines, which must repeat themselves.
    """

    name = "RotaryEmbeddingFusion"
    level = Level.EXTENDED
    patterns = (op.Add(op.Mul("x", "cos"), op.Mul(_JOIN, "sin")),)
    anchor = "Neg"
    reach = 3

    def check(self, m: Match) -> str | None:
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        if m.fact("x").dtype != ir.DataType.FLOAT:
            return "only single precision has such a kernel in onnxruntime"
        heads = past_or_split(m.value("x"), m.context)
        if heads.rows is None or heads.past is not None or not isinstance(heads.shape[LAST], int):
            return "what it turns is not split into heads"
        if heads.columns is not None:
            return "what it turns is a part of a joint projection"
        size = heads.shape[LAST]
        assert isinstance(size, int)
        if size % 2 or m.attribute(m.covered(_JOIN), "axis") not in (-1, LAST):
            return "its halves are not those of the channels"
        for part, bounds in ((_BACK, (size // 2, size)), (_FRONT, (0, size // 2))):
            if slice_bounds(m, "back" if part is _BACK else "front", size) != (*bounds, 1):
                return "its halves are not those of the channels"
        return self._angles_reason(m, heads)

    @staticmethod
    def _angles_reason(m: Match, heads: Heads) -> str | None:
        batch, _, length, size = heads.shape
        for name in ("cos", "sin"):
            rows = angle_rows(m.value(name), m.context)
            shape = None if rows is None else shape_of(rows, m.context)
            if shape is None or len(shape) != 3 or not same(shape[1], length) or shape[2] != size:
                return f"its {name} is not (batch or 1, 1, length, size)"
            if shape[0] != 1 and not same(shape[0], batch):
                return f"its {name} is not (batch or 1, 1, length, size)"
            if not repeats_itself(m.value(name), m.context):
                return f"the halves of its {name} are not known to be equal"
        shapes = [_angles_shape(m, name) for name in ("cos", "sin")]
        return None if same(shapes[0][0], shapes[1][0]) else "its cosines and sines are of different batches"

    def rewrite(self, m: Match) -> Replacement:
        heads = past_or_split(m.value("x"), m.context)
        transpose, reshape = heads.split
        angles = [angle_rows(m.value(name), m.context) for name in ("cos", "sin")]
        assert angles[0] is not None
        caches = [first_half(m, one) for one in angles if one is not None]
        positions = positions_of(m, angles[0])
        turned = m.new_node("RotaryEmbedding", [heads.rows, positions, *caches], domain="com.microsoft", version=1)
        split = m.new_node("Reshape", [turned.outputs[0], reshape.inputs[1]], version=reshape.version)
        result = m.new_node("Transpose", [split.outputs[0]], version=transpose.version)
        for node, old in ((split, reshape), (result, transpose)):
            node.attributes.update(old.attributes)
        split.name, result.name = f"{m.root.name}_split", f"{m.root.name}_transpose"
        return Replacement([turned, split, result], {m.root.outputs[0]: result.outputs[0]})


def slice_bounds(m: Match, part: str, size: int) -> tuple[int, int, int] | None:
    """From where to where a slice of the last of four axes goes, which has this size, and by which steps.

    The slice is that whose bounds a pattern names after `part`.
    """
    start, end, axes = (integers(m.value(f"{part}_{name}"), m) for name in ("start", "end", "axes"))
    steps = [1] if m.optional(f"{part}_steps") is None else integers(m.value(f"{part}_steps"), m)
    if start is None or end is None or steps is None or axes not in ([LAST], [-1]) or steps[0] < 1:
        return None
    return slice(start[0], end[0], steps[0]).indices(size)


def first_half(m: Match, rows: ir.Value) -> ir.Value:
    """The first halves of cosines or sines as (batch * length or length, half), once for all that read them."""
    shape = shape_of(rows, m.context)
    assert shape is not None
    assert isinstance(shape[2], int)
    cut = beside(m, rows, "half", "Slice", [rows, [0], [shape[2] // 2], [2]])
    return beside(m, cut, "cache", "Reshape", [cut, [-1, shape[2] // 2]])


def positions_of(m: Match, rows: ir.Value) -> ir.Value:
    """The rows of the caches: from the first one on, for one entry of the batch or for all of them."""
    angles = shape_of(rows, m.context)
    assert angles is not None
    if angles[0] == 1:
        return m.initializer(np.zeros(1, np.int64), "start")
    shape = beside(m, rows, "shape", "Shape", [rows])
    sizes = beside(m, shape, "sizes", "Gather", [shape, [0, 1]])
    count = beside(m, sizes, "count", "ReduceProd", [sizes], keepdims=0)
    counted = beside(m, count, "range", "Range", [0, count, 1])
    return beside(m, counted, "positions", "Reshape", [counted, sizes])


def angle_rows(value: ir.Value, context: Context) -> ir.Value | None:
    """The (batch, length, size) of cosines or sines (batch, 1, length, size)."""
    view, shape = producer(value, "Unsqueeze"), shape_of(value, context)
    if view is None or shape is None or unsqueezed_axes(view, len(shape), context) != frozenset({1}):
        return None
    return view.inputs[0]


def _angles_shape(m: Match, name: str) -> Dims:
    rows = angle_rows(m.value(name), m.context)
    shape = shape_of(rows, m.context)
    assert shape is not None
    return shape


def repeats_itself(value: ir.Value | None, context: Context) -> bool:
    """Whether the second half of the last axis is known to equal the first one."""
    while value is not None and (shape := shape_of(value, context)) is not None:
        node = producer(value, "Concat", "Cos", "Sin", "Cast", "Unsqueeze", "Mul")
        if node is None:
            return False
        if node.op_type == "Concat":
            last = node.attributes["axis"].as_int() in (-1, len(shape) - 1)
            return last and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
        if node.op_type == "Unsqueeze":
            axes = unsqueezed_axes(node, len(shape), context)
            if axes is None or len(shape) - 1 in axes:
                return False
        scaled = constant_factor(node)
        if node.op_type == "Mul" and scaled is None:
            return False
        value = node.inputs[0] if scaled is None else scaled[0]
    return False


def beside(
    m: Match,
    value: ir.Value,
    suffix: str,
    op_type: str,
    inputs: Sequence[ir.Value | int | list[int]],
    **attributes: int,
) -> ir.Value:
    """The result of an operator on a value and constants, which is made once and stands behind the value."""
    name = f"{value.name}_{suffix}"
    for use in value.uses():
        if use.node.name == name and use.node.op_type == op_type:
            return use.node.outputs[0]
    graph, maker = m.root.graph, value.producer()
    assert isinstance(graph, ir.Graph)
    read = [one if isinstance(one, ir.Value) else m.initializer(np.array(one, np.int64), suffix) for one in inputs]
    node = m.new_node(op_type, read, attributes)
    node.name = name
    if maker is None:
        graph.insert_before(graph[0], node)
    else:
        graph.insert_after(maker, node)
    m.context.added(node)
    return node.outputs[0]


RULES: tuple[Rule, ...] = (FuseRotaryEmbedding(),)
