"""Rotary position embeddings of the first channels of each head alone, whose other channels go on as they are.

The pairs that turn are halves of these channels (Phi, GPT-NeoX, StableLM) or neighbours (GPT-J, CodeGen).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Dims, same
from sardonyx.passes.anchored import AnchoredRule
from sardonyx.passes.base import Context, Level
from sardonyx.passes.rule import Match, OpPattern, Replacement, Rule, op
from sardonyx.passes.rules.attention_heads import SPLIT, past_or_split
from sardonyx.passes.rules.attention_parts import rows_of
from sardonyx.passes.rules.facts import in_main_graph, permutation, producer, shape_of, unsqueezed_axes
from sardonyx.passes.rules.rotary import (
    LAST,
    angle_rows,
    beside,
    first_half,
    positions_of,
    repeats_itself,
    slice_bounds,
)

_PART = op.Slice("x", "part_start", "part_end", "part_axes", "part_steps?", shared=True)
_REST = op.Slice("x", "rest_start", "rest_end", "rest_axes", "rest_steps?", shared=True)
_BACK = op.Slice(_PART, "back_start", "back_end", "back_axes", "back_steps?")
_FRONT = op.Slice(_PART, "front_start", "front_end", "front_axes", "front_steps?")
_HALVES = op.Concat(op.Neg(_BACK), _FRONT)
_ODD = op.Unsqueeze(op.Neg(_BACK), "odd_axes?")
_EVEN = op.Unsqueeze(_FRONT, "even_axes?")
_STACKED = op.Concat(_ODD, _EVEN)
_PAIRS = op.Reshape(_STACKED, "shape")


def _turned(other: OpPattern) -> OpPattern:
    return op.Concat(op.Add(op.Mul(_PART, "cos"), op.Mul(other, "sin")), _REST)


class FusePartialRotary(AnchoredRule):
    """The parts become RotaryEmbedding over (batch, length, heads * size), or over the heads as they are.

    Cosines and sines must be the same for both channels of a pair. Halves turn in (batch, heads, length, size),
    neighbours in (batch, length, heads, size).
    """

    name = "PartialRotaryEmbeddingFusion"
    level = Level.EXTENDED
    patterns = (_turned(_HALVES), _turned(_PAIRS))
    anchor = "Neg"
    reach = 6

    def check(self, m: Match) -> str | None:
        if not in_main_graph(m):
            return "it is inside a loop or a branch"
        shape, part = shape_of(m.value("x"), m.context), _part(m)
        if m.fact("x").dtype != ir.DataType.FLOAT:
            return "only single precision has such a kernel in onnxruntime"
        if shape is None or len(shape) != 4 or not isinstance(shape[LAST], int):
            return "what it turns is not split into heads"
        if not isinstance(shape[_heads_axis(m)], int):
            return "what it turns has heads of an unknown number"
        if part is None or part % 2 or not _leaves_rest(m, part):
            return "what it turns and what it leaves are not all channels"
        if m.attribute(m.root, "axis") not in (-1, LAST) or not _are_pairs(m, part):
            return "what it turns are not pairs of the channels"
        return _angles_reason(m, shape, part)

    def rewrite(self, m: Match) -> Replacement:
        shape, part = shape_of(m.value("x"), m.context), _part(m)
        assert shape is not None
        assert part is not None
        heads, size = shape[_heads_axis(m)], shape[LAST]
        assert isinstance(heads, int)
        assert isinstance(size, int)
        angles = [_angles(m, name) for name in ("cos", "sin")]
        assert angles[0] is not None
        caches = [_cache(m, rows, part // 2) for rows in angles]
        nodes: list[ir.Node] = []

        def made(op_type: str, inputs: list[ir.Value | None], suffix: str, **attributes: object) -> ir.Value:
            node = m.new_node(op_type, inputs, attributes)
            node.name = f"{m.root.name}_{suffix}"
            nodes.append(node)
            return node.outputs[0]

        def view(value: ir.Value, suffix: str, *sizes: int) -> ir.Value:
            return made("Reshape", [value, m.initializer(np.array(sizes, np.int64), "sizes")], suffix)

        source, split = _rows(m)
        if source is not None and split:
            source = view(source, "rows", 0, 0, heads * size)
        turned = m.new_node(
            "RotaryEmbedding",
            [source or m.value("x"), positions_of(m, angles[0]), *caches],
            {"num_heads": heads, "rotary_embedding_dim": part, "interleaved": int(_is_stacked(m))},
            domain="com.microsoft",
            version=1,
        )
        nodes.append(turned)
        result = turned.outputs[0]
        if source is not None:
            result = view(result, "split", 0, 0, heads, size)
            if not _is_stacked(m):
                result = made("Transpose", [result], "transpose", perm=SPLIT)
        return Replacement(nodes, {m.root.outputs[0]: result})


def _is_stacked(m: Match) -> bool:
    """Whether neighbours turn."""
    return any(pattern is _PAIRS for pattern, _ in m.parts)


def _heads_axis(m: Match) -> int:
    return 2 if _is_stacked(m) else 1


def _part(m: Match) -> int | None:
    """How many channels turn: the first ones."""
    shape = shape_of(m.value("x"), m.context)
    size = None if shape is None else shape[-1]
    bounds = slice_bounds(m, "part", size) if isinstance(size, int) else None
    return bounds[1] if bounds is not None and bounds[0] == 0 and bounds[2] == 1 and bounds[1] > 0 else None


def _leaves_rest(m: Match, part: int) -> bool:
    """Whether all channels behind the first ones go on."""
    shape = shape_of(m.value("x"), m.context)
    size = None if shape is None else shape[LAST]
    return isinstance(size, int) and slice_bounds(m, "rest", size) == (part, size, 1)


def _are_pairs(m: Match, part: int) -> bool:
    """Whether the second channel of each pair, negated, stands in the place of the first one, and this in its place."""
    back, front = (slice_bounds(m, name, part) for name in ("back", "front"))
    if not _is_stacked(m):
        joined = m.attribute(m.covered(_HALVES), "axis")
        return back == (part // 2, part, 1) and front == (0, part // 2, 1) and joined in (-1, LAST)
    axes = [unsqueezed_axes(m.covered(one), LAST + 2, m.context) for one in (_ODD, _EVEN)]
    before, after = (shape_of(m.covered(one).outputs[0], m.context) for one in (_PART, _PAIRS))
    return (
        back == (1, part, 2)
        and front == (0, part, 2)
        and axes == [frozenset({LAST + 1})] * 2
        and m.attribute(m.covered(_STACKED), "axis") in (-1, LAST + 1)
        and before is not None
        and after is not None
        and len(after) == 4
        and all(map(same, before, after))
    )


def _angles_reason(m: Match, shape: Dims, part: int) -> str | None:
    length = shape[1 if _is_stacked(m) else 2]
    found = [(rows, shape_of(rows, m.context)) for rows in (_angles(m, name) for name in ("cos", "sin"))]
    width = part // 2 if _is_stacked(m) else part
    for _, rows in found:
        if rows is None or len(rows) != 3 or not same(rows[1], length) or rows[2] != width:
            return "its cosines and sines are not (batch or 1, length, channels) with equal ones for a pair"
        if rows[0] != 1 and not same(rows[0], shape[0]):
            return "its cosines and sines are of another batch"
    (_, cos), (_, sin) = found
    return None if cos is not None and sin is not None and same(cos[0], sin[0]) else "they are of different batches"


def _angles(m: Match, name: str) -> ir.Value | None:
    """The cosines or sines (batch or 1, length, channels that turn, or half of them where neighbours do)."""
    value = m.value(name)
    if _is_stacked(m):
        return _doubled(value, m.context)
    return angle_rows(value, m.context) if repeats_itself(value, m.context) else None


def _doubled(value: ir.Value, context: Context) -> ir.Value | None:
    """The (batch, length, half) whose last elements (batch, length, 1, size) has twice each, one beside the other."""
    joined, tile = shape_of(value, context), producer(value, "Reshape")
    tile = None if tile is None else producer(tile.inputs[0], "Tile")
    view = None if tile is None else producer(tile.inputs[0], "Unsqueeze")
    if tile is None or view is None or joined is None or unsqueezed_axes(view, 5, context) != frozenset({2, 4}):
        return None
    fact, shape = context.inference.fact(tile.inputs[1]), shape_of(view.inputs[0], context)
    if fact is None or fact.integers() != [1, 1, 1, 1, 2] or shape is None or len(shape) != 3:
        return None
    batch, length, half = shape
    if not isinstance(half, int) or len(joined) != 4 or joined[2:] != (1, 2 * half):
        return None
    return view.inputs[0] if same(joined[0], batch) and same(joined[1], length) else None


def _cache(m: Match, rows: ir.Value | None, half: int) -> ir.Value:
    """Cosines or sines as (batch * length or length, half)."""
    assert rows is not None
    return beside(m, rows, "cache", "Reshape", [rows, [-1, half]]) if _is_stacked(m) else first_half(m, rows)


def _rows(m: Match) -> tuple[ir.Value | None, bool]:
    """What turns as (batch, length, heads * size), or as (batch, length, heads, size) and True; None for neither."""
    x = m.value("x")
    if _is_stacked(m):
        found = rows_of(x, m.context)
        return (x, True) if found is None or found.columns is not None else (found.value, False)
    heads = past_or_split(x, m.context)
    if heads.rows is not None and heads.columns is None and heads.past is None:
        return heads.rows, False
    transpose = producer(x, "Transpose")
    return (
        (transpose.inputs[0], True) if transpose is not None and permutation(transpose, 4) == SPLIT else (None, False)
    )


RULES: tuple[Rule, ...] = (FusePartialRotary(),)
