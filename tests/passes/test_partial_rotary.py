"""Rotary position embeddings of the first channels of each head."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from sardonyx.passes.rules.attention_match import BY_HEADS
from tests.passes.agreement import assert_agrees, assert_agrees_with_double
from tests.passes.attention_graphs import WIDTH, Graph
from tests.passes.models import fused, operators, rewritten

BATCH, LENGTH = 2, 5
HEADS, SIZE, PART = 1, 8, 4
MOST = np.iinfo(np.int64).max
NAME = "PartialRotaryEmbeddingFusion"


class Rotary(Graph):
    """Queries and keys turned as transformers' GPT-NeoX and Phi do it, or GPT-J."""

    def angles(self, repeated: bool) -> list[str]:
        """Cosines and sines (batch, length, channels): each half, or the first one alone."""
        places = self.input("places", ["b", "s"], self.rng.integers(0, 40, (BATCH, LENGTH)))
        row = self("Cast", self("Unsqueeze", places, self.constant([2], np.int64)), to=TensorProto.FLOAT)
        angles = self("Mul", row, self.constant(10.0 ** -np.arange(PART // 2)))
        if repeated:
            angles = self("Concat", angles, angles, axis=-1)
        return [self(kind, angles) for kind in ("Cos", "Sin")]

    def cut(self, x: str, start: int, end: int, step: int = 1) -> str:
        bounds = [self.constant([number], np.int64) for number in (start, end, 3, step)]
        return str(self("Slice", x, *bounds))

    def halves(self, x: str, *, back: int = PART // 2, rest: int = PART) -> str:
        """(batch, heads, length, size)."""
        one = self.constant([1], np.int64)
        cos, sin = (self("Unsqueeze", angle, one) for angle in self.angles_made(True))
        part, left = self.cut(x, 0, PART), self.cut(x, rest, MOST)
        joined = self("Concat", self("Neg", self.cut(part, back, MOST)), self.cut(part, 0, PART // 2), axis=-1)
        return str(self("Concat", self("Add", self("Mul", part, cos), self("Mul", joined, sin)), left, axis=-1))

    def neighbours(self, x: str, *, odd: int = 1) -> str:
        """(batch, length, heads, size)."""
        axes, repeats = self.constant([2, 4], np.int64), self.constant([1, 1, 1, 1, 2], np.int64)
        sizes, last = self.constant([0, 0, 1, PART], np.int64), self.constant([-1], np.int64)
        cos, sin = (
            self("Reshape", self("Tile", self("Unsqueeze", angle, axes), repeats), sizes)
            for angle in self.angles_made(False)
        )
        part, left = self.cut(x, 0, PART), self.cut(x, PART, MOST)
        second, first = self("Neg", self.cut(part, odd, MOST, 2)), self.cut(part, 1 - odd, MOST, 2)
        pairs = self("Concat", self("Unsqueeze", second, last), self("Unsqueeze", first, last), axis=-1)
        flat = self("Reshape", pairs, self.constant([0, 0, HEADS, PART], np.int64))
        return str(self("Concat", self("Add", self("Mul", part, cos), self("Mul", flat, sin)), left, axis=-1))

    def angles_made(self, repeated: bool) -> list[str]:
        """The angles, once for queries and keys."""
        if not hasattr(self, "made"):
            self.made = self.angles(repeated)
        return self.made

    def heads(self, x: str) -> str:
        """Rows as (batch, length, heads, size)."""
        return str(self("Reshape", x, self.constant([0, 0, HEADS, SIZE], np.int64)))

    def by_heads(self, x: str) -> str:
        return str(self("Transpose", x, perm=[0, 2, 1, 3]))


def _phi(g: Rotary, rows: str, **changed: int) -> str:
    return g.halves(g.by_heads(g.heads(rows)), **changed)


def _normalised(g: Rotary, rows: str) -> str:
    scaled = g("LayerNormalization", g.heads(rows), g.constant(np.ones(SIZE)), axis=-1)
    return g.halves(g.by_heads(scaled))


def _neox(g: Rotary, rows: str) -> str:
    both = g("Reshape", g("Concat", rows, rows, axis=-1), g.constant([0, 0, HEADS, 2 * SIZE], np.int64))
    return g.halves(g.cut(g.by_heads(both), SIZE, 2 * SIZE))


def _gptj(g: Rotary, rows: str, **changed: int) -> str:
    return g.by_heads(g.neighbours(g.heads(rows), **changed))


def _attention(turn: Callable[[Rotary, str], str]) -> tuple[Rotary, onnx.ModelProto]:
    g = Rotary()
    x = g.hidden(BATCH, LENGTH)
    query, keys, values = (g("MatMul", x, g.constant(g.normal(WIDTH, WIDTH))) for _ in range(3))
    query, keys, values = turn(g, query), turn(g, keys), g.by_heads(g.heads(values))
    scores = g("MatMul", g.scaled(query), g("Transpose", keys, perm=[0, 1, 3, 2]))
    return g, g.finished(g.attended(scores, values, x), x).model()


@pytest.mark.parametrize("turn", [_phi, _normalised, _neox, _gptj])
def test_queries_and_keys_that_turn_in_part_are_two_nodes(turn: Callable[[Rotary, str], str]) -> None:
    g, model = _attention(turn)
    after, reports = fused(model)
    assert reports[NAME].changes == 2, reports[NAME].declined
    turned = [node for node in after.graph.node if node.op_type == "RotaryEmbedding"]
    assert turned[0].input[1:] == turned[1].input[1:]  # one cache for both
    assert_agrees_with_double(model, after, g.feeds)
    session, reports = rewritten(model, disabled=BY_HEADS)
    assert reports[NAME].changes == 2
    assert "Neg" not in operators(session)
    assert_agrees(model, session, g.feeds)


@pytest.mark.parametrize("turn", [_phi, _normalised, _gptj])
def test_attention_finds_rows_behind_them(turn: Callable[[Rotary, str], str]) -> None:
    after, _ = rewritten(_attention(turn)[1])
    assert "MultiHeadAttention" in operators(after)


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (lambda g, rows: _phi(g, rows, rest=SIZE - PART + 2), "not all channels"),
        (lambda g, rows: _gptj(g, rows, odd=0), "not pairs of the channels"),
    ],
)
def test_other_parts_stay(turn: Callable[[Rotary, str], str], reason: str) -> None:
    g = Rotary()
    x = g.hidden(BATCH, LENGTH)
    result = g("Relu", turn(g, g("MatMul", x, g.constant(g.normal(WIDTH, WIDTH)))))
    g.output(result, ["b", HEADS, "s", "n"])
    model = g.model()
    after, reports = rewritten(model)
    assert reports[NAME].changes == 0
    assert any(reason in text for text in reports[NAME].declined)
    assert_agrees(model, after, g.feeds)
