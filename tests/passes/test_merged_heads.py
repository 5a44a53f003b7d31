"""Attention over merged heads: the forms that are taken apart and fused, and those that are left alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto

from tests.passes.agreement import outputs_of, outputs_of_onnxruntime
from tests.passes.attention_graphs import HEADS, LOWEST, SIZE, Graph
from tests.passes.models import operators, rewritten

RULE = "MergedHeadsSplitting"
MERGED = [-1, 0, SIZE]
Change = Callable[[Graph, str, str], str]


def merged(g: Graph, x: str) -> str:
    """(batch * heads, length, size) of a projection."""
    heads = g.split(g.projected(x))
    length = g("Unsqueeze", g.size(x, 1), g.constant([0], np.int64))
    batch = g.constant([-1], np.int64)
    return str(g("Reshape", heads, g("Concat", batch, length, g.constant([SIZE], np.int64), axis=0)))


def apart(g: Graph, value: str, x: str, last: int | str) -> str:
    """Batch and heads of (batch * heads, length, last) apart."""
    sizes = g.sizes(x, "b", HEADS, "s", last)
    return str(g("Reshape", value, sizes))


def together(g: Graph, value: str, x: str) -> str:
    """(batch, heads, queries, keys) with merged heads."""
    both = g("Mul", g.size(x, 0), g.constant(HEADS, np.int64))
    length = g("Unsqueeze", g.size(x, 1), g.constant([0], np.int64))
    return str(
        g("Reshape", value, g("Concat", g("Unsqueeze", both, g.constant([0], np.int64)), length, length, axis=0))
    )


def attention(
    *, before: Change | None = None, split: Change | None = None, after: Change | None = None, axis: int = -1
) -> Graph:
    """Self attention whose products go over merged heads.

    `before` changes the merged scores, `split` those whose heads are apart, `after` the weights.
    """
    g = Graph()
    x = g.hidden()
    query, keys, values = merged(g, g.scaled(x, 0.5)), merged(g, x), merged(g, x)
    scores = g("MatMul", query, g("Transpose", keys, perm=[0, 2, 1]))
    if before is not None:
        scores = before(g, scores, x)
    if split is not None:
        scores = together(g, split(g, apart(g, scores, x, "s"), x), x)
    weights = g("Softmax", scores, axis=axis)
    if after is not None:
        weights = after(g, weights, x)
    result = apart(g, g("MatMul", weights, values), x, SIZE)
    return g.finished(g.merged(result, x), x)


def padding(g: Graph, scores: str, _: str) -> str:
    mask = g.input("mask", ["b", 1, 1, "s"], np.arange(10).reshape(2, 1, 1, 5) != 9)
    return str(g("Add", scores, g("Where", mask, g.constant(0), g.constant(LOWEST))))


def slopes(g: Graph, scores: str, x: str) -> str:
    """What BLOOM adds: a number for each head times the position of the key."""
    positions = g("Cast", g.positions(g.size(x, 1)), to=TensorProto.FLOAT)
    each = g(
        "Mul", g.constant(np.full((HEADS, 1), 0.5)), g("Add", positions, g.input("f", ["b", 1, 1], g.normal(2, 1, 1)))
    )
    length = g("Unsqueeze", g.size(x, 1), g.constant([0], np.int64))
    one = g.constant([1], np.int64)
    both = g("Unsqueeze", g("Mul", g.size(x, 0), g.constant(HEADS, np.int64)), g.constant([0], np.int64))
    return str(g("Add", g.scaled(scores, 0.25), g("Reshape", each, g("Concat", both, one, length, axis=0))))


def by_head(g: Graph, scores: str, _: str) -> str:
    return str(g("Add", g.input("t", [HEADS, "s", "s"], g.normal(HEADS, 5, 5)), scores))


def assert_agrees(graph: Graph) -> None:
    wanted = outputs_of_onnxruntime(graph.model(), graph.feeds)
    for found, expected in zip(outputs_of(graph.model(), graph.feeds, 99), wanted, strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


FORMS: dict[str, dict[str, Change]] = {
    "plain": {},
    "masked": {"split": padding},
    "a bias by head": {"split": by_head},
    "one bias for all": {"before": lambda g, s, _: g("Add", s, g.input("t", ["s", "s"], g.normal(5, 5)))},
    "a batch of one": {"before": lambda g, s, _: g("Add", s, g.input("t", [1, "s", "s"], g.normal(1, 5, 5)))},
    "slopes": {"before": slopes, "split": padding},
    "weights taken apart": {
        "after": lambda g, w, x: together(g, apart(g, w, x, "s"), x),
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_merged_heads_become_attention(form: str) -> None:
    graph = attention(**FORMS[form])
    after, reports = rewritten(graph.model())
    assert reports[RULE].changes == 1, reports[RULE].declined
    assert {"MultiHeadAttention", "Attention"} & set(operators(after))
    assert "Softmax" not in operators(after)
    assert_agrees(graph)


def test_values_behind_a_softmax_of_four_dimensions() -> None:
    """As BLOOM has it: the weights are merged, not the scores."""
    g = Graph()
    x = g.hidden()
    query, keys, values = merged(g, x), merged(g, x), merged(g, x)
    scores = slopes(g, g("MatMul", query, g("Transpose", keys, perm=[0, 2, 1])), x)
    weights = together(g, g("Softmax", padding(g, apart(g, scores, x, -1), x), axis=-1), x)
    graph = g.finished(g.merged(apart(g, g("MatMul", weights, values), x, SIZE), x), x)
    after, reports = rewritten(graph.model())
    assert reports[RULE].changes == 1, reports[RULE].declined
    assert "Softmax" not in operators(after)
    assert_agrees(graph)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (lambda: attention(axis=1), "not over the last axis"),
        (
            lambda: attention(before=lambda g, s, _: g("Add", s, g.input("t", ["n", "s", "s"], g.normal(4, 5, 5)))),
            "its scores go through (None, s, s)",
        ),
        (lambda: attention(before=lambda g, s, _: g("Sigmoid", s)), "its scores are no product"),
    ],
)
def test_other_forms_are_left_alone(graph: Callable[[], Graph], reason: str) -> None:
    made = graph()
    after, reports = rewritten(made.model())
    assert "Softmax" in operators(after)
    assert reports[RULE].changes == 0
    assert any(reason in text for text in reports[RULE].declined), reports[RULE].declined
    assert_agrees(made)


@pytest.mark.parametrize("op_type", ["MatMul", "Softmax"])
def test_scores_and_weights_that_are_read_elsewhere_stay(op_type: str) -> None:
    g = attention()
    softmax = next(node for node in g.nodes if node.op_type == "Softmax")
    g.output(g("Neg", softmax.input[0] if op_type == "MatMul" else softmax.output[0]), ["n", "s", "s"])
    after, reports = rewritten(g.model())
    assert "Softmax" in operators(after)
    assert reports[RULE].changes == 0
    assert_agrees(g)


def test_heads_that_differ_are_left_alone() -> None:
    """Keys of one head, twice the batch: the same merged size."""
    g = Graph()
    x = g.hidden(2, 5)
    wide = g.input("k", [2 * HEADS, 1, "s", SIZE], g.normal(2 * HEADS, 1, 5, SIZE))
    keys = g("Reshape", wide, g.constant([2 * HEADS, -1, SIZE], np.int64))
    scores = g("MatMul", merged(g, x), g("Transpose", keys, perm=[0, 2, 1]))
    result = apart(g, g("MatMul", g("Softmax", scores, axis=-1), merged(g, x)), x, SIZE)
    graph = g.finished(g.merged(result, x), x)
    after, _ = rewritten(graph.model())
    assert "Softmax" in operators(after)
    assert_agrees(graph)
