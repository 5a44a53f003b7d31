"""Whole small models as sessions and the optimiser save them: they load in onnxruntime and here, and mean the same."""

from __future__ import annotations

import collections
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import sardonyx
from tests.passes.agreement import assert_agrees_with_double, outputs_in_double, outputs_of, outputs_of_onnxruntime
from tests.passes.attention_graphs import HEADS, LOWEST, SIZE, WIDTH, Graph, masks
from tests.passes.models import fused

WORDS, PLACES, LAYERS = 30, 16, 2
BATCH, LENGTH, PAST = 2, 5, 3


class Model(Graph):
    """Parts of whole models, as the older exporter of torch writes them."""

    def table(self, rows: int) -> str:
        return self.constant(self.normal(rows, WIDTH))

    def ids(self, name: str, limit: int) -> str:
        return self.input(name, ["b", "s"], self.rng.integers(0, limit, (BATCH, LENGTH)))

    def normalized(self, x: str, *, parts: bool) -> str:
        scale, offset = self.constant(1 + 0.1 * self.normal(WIDTH)), self.constant(self.normal(WIDTH))
        if not parts:
            return str(self("LayerNormalization", x, scale, offset, axis=-1, epsilon=1e-5))
        centred = self("Sub", x, self("ReduceMean", x, axes=[-1]))
        variance = self("ReduceMean", self("Pow", centred, self.constant(2.0)), axes=[-1])
        root = self("Sqrt", self("Add", variance, self.constant(1e-5)))
        return str(self("Add", self("Mul", self("Div", centred, root), scale), offset))

    def gelu(self, x: str) -> str:
        grown = self("Add", self("Erf", self("Div", x, self.constant(math.sqrt(2)))), self.constant(1.0))
        return str(self("Mul", self("Mul", x, grown), self.constant(0.5)))

    def tanh_gelu(self, x: str) -> str:
        cube = self("Mul", self("Pow", x, self.constant(3.0)), self.constant(0.044715))
        inner = self("Mul", self("Add", x, cube), self.constant(math.sqrt(2 / math.pi)))
        half = self("Mul", x, self.constant(0.5))
        return str(self("Mul", half, self("Add", self("Tanh", inner), self.constant(1.0))))

    def rows(self, x: str, columns: int, depth: int = WIDTH) -> str:
        """A linear layer of GPT-2: Gemm over rows."""
        flat = self("Reshape", x, self.constant([-1, depth], np.int64))
        weight, bias = self.constant(self.normal(depth, columns)), self.constant(self.normal(columns))
        return str(self("Reshape", self("Gemm", flat, weight, bias), self.sizes(x, "b", "s", columns)))


def encoder() -> Model:
    """MiniLM in small: embeddings, attention with padding, normalisation behind the residual."""
    g = Model()
    ids, kinds = g.ids("input_ids", WORDS), g.ids("token_type_ids", 2)
    mask = g.input("attention_mask", ["b", "s"], masks(BATCH, LENGTH)["integers"])
    axis = g.constant([0], np.int64)
    ends = g("Unsqueeze", g.size(ids, 1), axis)
    places = g("Slice", g.constant(np.arange(PLACES)[None], np.int64), axis, ends, g.constant([1], np.int64))
    words = g("Add", g("Gather", g.table(WORDS), ids), g("Gather", g.table(2), kinds))
    x = g.normalized(g("Add", words, g("Gather", g.table(PLACES), places)), parts=True)
    shown = g("Unsqueeze", mask, g.constant([1, 2], np.int64))
    rest = g("Sub", g.constant(1.0), g("Cast", shown, to=TensorProto.FLOAT))
    bias = g("Where", g("Cast", rest, to=TensorProto.BOOL), g.constant(LOWEST), rest)
    for _ in range(LAYERS):
        scores, values = g.scores(x)
        attended = g.projected(g.attended(g("Add", scores, bias), values, x))
        x = g.normalized(g("Add", attended, x), parts=True)
        grown = g.gelu(g("Add", g("MatMul", x, g.constant(g.normal(WIDTH, 16))), g.constant(g.normal(16))))
        x = g.normalized(
            g("Add", g("Add", g("MatMul", grown, g.constant(g.normal(16, WIDTH))), g.constant(g.normal(WIDTH))), x),
            parts=True,
        )
    g.output(x, ["b", "s", WIDTH])
    return g


def decoder() -> Model:
    """GPT-2 in small: a cache, a causal mask with padding, normalisation before each part."""
    g = Model()
    ids = g.ids("input_ids", WORDS)
    places = g.ids("position_ids", PLACES)
    mask = g.input("attention_mask", ["b", "p + s"], masks(BATCH, PAST + LENGTH)["integers"])
    caches = [
        [g.input(f"past.{layer}.{part}", ["b", HEADS, "p", SIZE], g.normal(BATCH, HEADS, PAST, SIZE)) for part in "kv"]
        for layer in range(LAYERS)
    ]
    x = g("Add", g("Gather", g.table(WORDS), ids), g("Gather", g.table(PLACES), places))
    queries, keys = g.size(ids, 1), g.size(mask, 1)
    visible = g.causal(queries, keys, g("Sub", keys, queries))
    padded = g("Cast", g("Unsqueeze", mask, g.constant([1, 2], np.int64)), to=TensorProto.BOOL)
    hidden = g("Not", g("And", visible, padded))
    bias = g("Where", hidden, g.constant(LOWEST), g.constant(0.0))
    for past in caches:
        normal = g.normalized(x, parts=False)
        parts = g("Split", g.rows(normal, 3 * WIDTH), g.constant([WIDTH] * 3, np.int64), count=3, axis=2)
        query, key, value = (g.split(part) for part in parts)
        key, value = g("Concat", past[0], key, axis=-2), g("Concat", past[1], value, axis=-2)
        g.output(key, ["b", HEADS, "p + s", SIZE])
        g.output(value, ["b", HEADS, "p + s", SIZE])
        scores = g("MatMul", g.scaled(query), g("Transpose", g.scaled(key), perm=[0, 1, 3, 2]))
        x = g("Add", x, g.rows(g.attended(g("Add", scores, bias), value, x), WIDTH))
        x = g("Add", x, g.rows(g.tanh_gelu(g.rows(g.normalized(x, parts=False), 16)), WIDTH, 16))
    g.output(g.normalized(x, parts=False), ["b", "s", WIDTH])
    return g


MODELS = {"encoder": encoder, "decoder": decoder}


@pytest.mark.parametrize("level", [1, 2, 99])
@pytest.mark.parametrize("name", MODELS)
def test_what_a_session_saves_loads_in_onnxruntime(tmp_path: Path, name: str, level: int) -> None:
    g = MODELS[name]()
    model = g.model()
    options = sardonyx.SessionOptions()
    options.graph_optimization_level = sardonyx.GraphOptimizationLevel(level)
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    session = sardonyx.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    saved = onnx.load(options.optimized_model_filepath)
    wanted = outputs_in_double(model, g.feeds)
    runs = (session.run(None, g.feeds), outputs_of(saved, g.feeds, 99), outputs_of_onnxruntime(saved, g.feeds))
    for found in runs:
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-5 * float(np.abs(theirs).max()))


def test_an_encoder_is_as_few_operators_as_its_kind_is_known_for() -> None:
    g = encoder()
    model = g.model()
    after, _ = fused(model)
    counts = collections.Counter(node.op_type for node in after.graph.node)
    assert counts == {
        "EmbedLayerNormalization": 1,
        "Attention": LAYERS,
        "SkipLayerNormalization": 2 * LAYERS,
        "BiasGelu": LAYERS,
        "MatMul": 3 * LAYERS,
        "Cast": 3,
    }
    assert_agrees_with_double(model, after, g.feeds, 5e-5)


def test_a_decoder_is_as_few_operators_as_its_kind_is_known_for() -> None:
    g = decoder()
    model = g.model()
    after, _ = fused(model)
    counts = collections.Counter(node.op_type for node in after.graph.node)
    known = {
        "EmbedLayerNormalization": 1,
        "MultiHeadAttention": LAYERS,
        "SkipLayerNormalization": 2 * LAYERS,
        "FastGelu": LAYERS,
        "MatMul": 4 * LAYERS,
    }
    assert {name: counts[name] for name in known} == known
    assert not {"LayerNormalization", "Softmax", "Gemm", "Tanh"} & set(counts)
    assert_agrees_with_double(model, after, g.feeds, 5e-5)
