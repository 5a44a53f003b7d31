"""Attention that graphs of the model modify (ai.onnx.preview)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import onnx_ir as ir

from sardonyx.graph.types import numpy_dtype
from sardonyx.ops.framework.facts import Dim, Fact, same, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import ControlFlow, operator
from sardonyx.runtime.control_flow import Flow
from sardonyx.runtime.flex_attention import FlexAttentionFlow

_PRECISIONS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


@operator("FlexAttention", domain="ai.onnx.preview")
class FlexAttention(ControlFlow):
    """prob_mod(softmax(score_mod(scale * Q K'))) V, with grouped heads; both graphs may read outer values."""

    score_mod: ir.Graph | None = None
    prob_mod: ir.Graph | None = None
    scale: float | None = None
    softmax_precision: int = 0

    host_reason: ClassVar[str] = "its graphs run as plans of their own"

    def prefers_body(self) -> bool:
        return True

    def flow(self) -> Flow:
        kind = self.softmax_precision
        return FlexAttentionFlow(self.scale, numpy_dtype(ir.DataType(kind)).name if kind else None)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        if self.softmax_precision not in (0, *_PRECISIONS):
            raise ValueError(f"softmax_precision must be a type of floats, not {self.softmax_precision}")
        query, key, value = inputs
        assert query is not None
        assert key is not None
        assert value is not None
        scores: tuple[Dim, ...] = tuple(unknown_dim() for _ in range(4))
        result = Fact(query.type, tuple(unknown_dim() for _ in range(4)))
        if query.shape is not None and key.shape is not None and value.shape is not None:
            _check(query.shape, key.shape, value.shape)
            scores = (*query.shape[:3], key.shape[2])
            result = Fact(query.type, (*query.shape[:3], value.shape[3]))
        stage = Fact(self._stage(query), scores)
        for name, graph in (("score_mod", self.score_mod), ("prob_mod", self.prob_mod)):
            if graph is not None:
                _check_modifier(name, graph, stage, inference.graph(graph, [stage]))
        return [result]

    def _stage(self, query: Fact) -> ir.TensorType:
        """The type in which the graphs get scores and probabilities."""
        wide = ir.DataType.DOUBLE if query.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
        return ir.TensorType(ir.DataType(self.softmax_precision or wide))


def _check(query: Sequence[Dim], key: Sequence[Dim], value: Sequence[Dim]) -> None:
    """ValueError for shapes that do not fit together."""
    if not len(query) == len(key) == len(value) == 4:
        raise ValueError(f"Q, K and V must all have rank 4, not shapes {query}, {key}, {value}")
    pairs = (
        (query[0], key[0]),
        (key[0], value[0]),
        (key[1], value[1]),
        (key[2], value[2]),
        (query[3], key[3]),
    )
    if any(isinstance(one, int) and isinstance(other, int) and one != other for one, other in pairs):
        raise ValueError(f"Q, K and V of shapes {query}, {key}, {value} do not fit together")
    heads, shared = query[1], key[1]
    if isinstance(heads, int) and isinstance(shared, int) and (shared == 0 or heads % shared):
        raise ValueError(f"{heads} query heads are not a multiple of {shared} key heads")


def _check_modifier(name: str, graph: ir.Graph, given: Fact, found: Sequence[Fact]) -> None:
    """ValueError where a graph does not make one tensor of the type and shape that it is given."""
    if len(graph.inputs) != 1 or len(found) != 1:
        raise ValueError(f"{name} must have one input and one output, not {len(graph.inputs)} and {len(found)}")
    (made,) = found
    if made.type is not None and made.type != given.type:
        raise ValueError(f"{name} makes elements of type {made.dtype} of {given.dtype}")
    if made.shape is None or given.shape is None:
        return
    fits = len(made.shape) == len(given.shape) and all(
        same(one, other) or not (isinstance(one, int) and isinstance(other, int))
        for one, other in zip(made.shape, given.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} makes shape {made.shape} of {given.shape}")
