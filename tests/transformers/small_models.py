"""Small transformers, written out as exporters write them, for the tests of the optimiser."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from tests.passes.attention_graphs import WIDTH, Graph, masks

WORDS, PLACES, KINDS = 30, 12, 2
BATCH, LENGTH = 2, 5
INNER = 4 * WIDTH


class Bert(Graph):
    """Embeddings, then layers of attention and of two products with GELU between, each with its residual."""

    def normalized(self, x: str) -> str:
        """LayerNormalization by its parts."""
        centred = self("Sub", x, self("ReduceMean", x, axes=[-1]))
        variance = self("ReduceMean", self("Pow", centred, self.constant(2.0)), axes=[-1])
        deviation = self("Sqrt", self("Add", variance, self.constant(1e-12)))
        scaled = self("Mul", self("Div", centred, deviation), self.constant(self.normal(WIDTH)))
        return str(self("Add", scaled, self.constant(self.normal(WIDTH))))

    def gelu(self, x: str) -> str:
        grown = self("Add", self("Erf", self("Div", x, self.constant(math.sqrt(2)))), self.constant(1.0))
        return str(self("Mul", self("Mul", x, grown), self.constant(0.5)))

    def dense(self, x: str, before: int, after: int) -> str:
        product = self("MatMul", x, self.constant(self.normal(before, after) / math.sqrt(before)))
        return str(self("Add", self.constant(self.normal(after)), product))

    def embedded(self) -> str:
        ids = self.input("input_ids", ["b", "s"], self.rng.integers(0, WORDS, (BATCH, LENGTH)))
        kinds = self.input("token_type_ids", ["b", "s"], self.rng.integers(0, KINDS, (BATCH, LENGTH)))
        zero, one = self.constant([0], np.int64), self.constant([1], np.int64)
        ends = self("Unsqueeze", self.size(ids, 1), zero)
        places = self("Slice", self.constant(np.arange(PLACES)[None], np.int64), zero, ends, one, one)
        words, kinds, places = (
            self("Gather", self.constant(self.normal(rows, WIDTH)), index)
            for rows, index in ((WORDS, ids), (KINDS, kinds), (PLACES, places))
        )
        return self.normalized(self("Add", self("Add", words, kinds), places))

    def padding(self) -> str:
        mask = self.input("attention_mask", ["b", "s"], masks(BATCH, LENGTH)["integers"])
        wide = self("Unsqueeze", mask, self.constant([1, 2], np.int64))
        left = self("Sub", self.constant(1.0), self("Cast", wide, to=TensorProto.FLOAT))
        return str(self("Mul", left, self.constant(-10000.0)))

    def layer(self, x: str, hidden: str) -> str:
        scores, values = self.scores(x)
        result = self.dense(self.attended(self("Add", scores, hidden), values, x), WIDTH, WIDTH)
        middle = self.normalized(self("Add", result, x))
        grown = self.gelu(self.dense(middle, WIDTH, INNER))
        return self.normalized(self("Add", self.dense(grown, INNER, WIDTH), middle))


def bert(layers: int = 2) -> tuple[Bert, onnx.ModelProto]:
    """The graph with its feeds, and the model."""
    graph = Bert(opset=13)
    x = graph.embedded()
    hidden = graph.padding()
    for _ in range(layers):
        x = graph.layer(x, hidden)
    graph.output(x, ["b", "s", WIDTH])
    model = graph.model()
    model.producer_name = "pytorch"
    return graph, model
