"""Rotary position embeddings from their parts, and the attention behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from sardonyx.transformers.fusion_options import FusionOptions
from sardonyx.transformers.optimizer import optimize_model
from tests.passes.agreement import assert_agrees, assert_agrees_with_double
from tests.passes.attention_graphs import HEADS, SIZE, WIDTH, Graph
from tests.passes.models import fused, node_of, operators, rewritten

BATCH, LENGTH = 2, 5
HALF = SIZE // 2
MOST = np.iinfo(np.int64).max


class Rotary(Graph):
    """Queries and keys turned as transformers' Llama does it."""

    def angles(self, x: str, *, batched: bool, joined: bool = True) -> tuple[str, str]:
        """Cosines and sines, (batch or 1, 1, length, size), of positions that count up or are given."""
        if batched:
            places = self.input("places", ["b", "s"], self.rng.integers(0, 40, (BATCH, LENGTH)))
        else:
            places = self("Unsqueeze", self.positions(self.size(x, 1)), self.constant([0], np.int64))
        row = self("Cast", self("Unsqueeze", places, self.constant([2], np.int64)), to=TensorProto.FLOAT)
        steps = 10.0 ** -np.arange(HALF if joined else SIZE)
        angles = self("Mul", row, self.constant(steps))
        if joined:
            angles = self("Concat", angles, angles, axis=-1)
        one = self.constant([1], np.int64)
        scaled = [self("Mul", self(kind, angles), self.constant(1.5)) for kind in ("Cos", "Sin")]
        cos, sin = (self("Unsqueeze", part, one) for part in scaled)
        return cos, sin

    def slice(self, x: str, start: int, end: int, axis: int = 3) -> str:
        bounds = [self.constant([number], np.int64) for number in (start, end, axis, 1)]
        return str(self("Slice", x, *bounds))

    def turned(self, x: str, cos: str, sin: str, front: tuple[int, int] = (0, HALF), back: int = HALF) -> str:
        joined = self("Concat", self("Neg", self.slice(x, back, MOST)), self.slice(x, *front), axis=-1)
        return str(self("Add", self("Mul", x, cos), self("Mul", joined, sin)))


def _attention(turn: Callable[[Rotary, str, str, str], str], **angles: Any) -> tuple[Rotary, onnx.ModelProto]:
    g = Rotary()
    x = g.hidden(BATCH, LENGTH)
    cos, sin = g.angles(x, **angles)
    query, keys, values = (g.split(g("MatMul", x, g.constant(g.normal(WIDTH, WIDTH)))) for _ in range(3))
    query, keys = turn(g, query, cos, sin), turn(g, keys, cos, sin)
    scores = g("MatMul", g.scaled(query), g("Transpose", g.scaled(keys), perm=[0, 1, 3, 2]))
    return g, g.finished(g.attended(scores, values, x), x).model()


@pytest.mark.parametrize("batched", [True, False])
def test_turned_queries_and_keys_are_two_nodes_and_attention_one(batched: bool) -> None:
    g, model = _attention(lambda g, *parts: g.turned(*parts), batched=batched)
    after, reports = fused(model)
    assert reports["RotaryEmbeddingFusion"].changes == 2
    assert reports["AttentionFusion"].changes == 1
    turned = [node for node in after.graph.node if node.op_type == "RotaryEmbedding"]
    assert len(turned) == 2
    assert turned[0].input[2:] == turned[1].input[2:]  # one cache for both
    if batched:
        assert turned[0].input[1] == turned[1].input[1]  # and one tensor of positions
    assert_agrees_with_double(model, after, g.feeds)
    session, reports = rewritten(model)
    assert reports["RotaryEmbeddingFusion"].changes == 2
    assert "MultiHeadAttention" in operators(session)
    assert_agrees(model, session, g.feeds)


def test_the_option_of_the_optimiser_switches_it() -> None:
    _, model = _attention(lambda g, *parts: g.turned(*parts), batched=False)
    options = FusionOptions("gpt2")
    counts = optimize_model(model, "gpt2", optimization_options=options).get_fused_operator_statistics()
    assert counts["RotaryEmbedding"] == 2
    options.enable_rotary_embeddings = False
    counts = optimize_model(model, "gpt2", optimization_options=options).get_fused_operator_statistics()
    assert counts["RotaryEmbedding"] == 0


def test_only_what_is_turned_as_a_whole_is_one_node() -> None:
    g, model = _attention(lambda g, *parts: g.turned(*parts, back=-HALF), batched=False)
    after, reports = fused(model)
    assert reports["RotaryEmbeddingFusion"].changes == 2  # the same half, counted from the end
    assert_agrees_with_double(model, after, g.feeds)
    g, model = _attention(lambda g, *parts: g.turned(*parts, front=(1, HALF + 1)), batched=False)
    after, reports = fused(model)
    assert reports["RotaryEmbeddingFusion"].changes == 0
    assert any("not those of the channels" in text for text in reports["RotaryEmbeddingFusion"].declined)
    assert_agrees_with_double(model, after, g.feeds)


def test_angles_that_do_not_repeat_themselves_stay() -> None:
    g, model = _attention(lambda g, *parts: g.turned(*parts), batched=False, joined=False)
    after, reports = fused(model)
    assert reports["RotaryEmbeddingFusion"].changes == 0
    assert any("not known to be equal" in text for text in reports["RotaryEmbeddingFusion"].declined)
    assert_agrees_with_double(model, after, g.feeds)


def test_parts_of_a_joint_projection_stay() -> None:
    g = Rotary()
    x = g.hidden(BATCH, LENGTH)
    cos, sin = g.angles(x, batched=False)
    joint = g("MatMul", x, g.constant(g.normal(WIDTH, 3 * WIDTH)))
    parts = g("Reshape", joint, g.constant([0, 0, 3, WIDTH // SIZE, SIZE], np.int64))
    picked = [g("Gather", parts, g.constant(place, np.int64), axis=2) for place in range(3)]
    query, keys, values = (g("Transpose", one, perm=[0, 2, 1, 3]) for one in picked)
    query, keys = g.turned(query, cos, sin), g.turned(keys, cos, sin)
    scores = g("MatMul", g.scaled(query), g("Transpose", keys, perm=[0, 1, 3, 2]))
    model = g.finished(g.attended(scores, values, x), x).model()
    _, reports = rewritten(model)
    assert reports["RotaryEmbeddingFusion"].changes == 0
    assert any("joint projection" in text for text in reports["RotaryEmbeddingFusion"].declined)
    assert reports["HeadAttentionFusion"].changes == 1
    after, _ = fused(model)
    assert_agrees_with_double(model, after, g.feeds)


def test_what_is_not_split_into_heads_stays() -> None:
    g = Rotary()
    x = g.hidden(BATCH, LENGTH)
    cos, sin = g.angles(x, batched=False)
    heads = g.input("heads", ["b", HEADS, "s", SIZE], g.normal(BATCH, HEADS, LENGTH, SIZE))
    g.output(g("Relu", g.turned(heads, cos, sin)), ["b", HEADS, "s", SIZE])
    model = g.model()
    after, reports = fused(model)
    assert any("not split into heads" in text for text in reports["RotaryEmbeddingFusion"].declined)
    assert "Neg" in operators(after)
    assert node_of(after, "Neg").op_type == "Neg"
    assert_agrees_with_double(model, after, g.feeds)
