"""Attention whose causal mask is cut out of a table of the longest length, as the dynamo exporter writes GPT-2."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import sardonyx
from tests.passes.attention_graphs import HEADS, LOWEST, SIZE, WIDTH, Array, Graph
from tests.passes.models import operators, rewritten

LONGEST = 12


def decoder(layers: int = 2) -> Graph:
    """Layers with pasts of their own lengths. How many queries there are is computed from what was cut before."""
    g = Graph()
    x = g.hidden()
    table = g.constant(np.tri(LONGEST)[None, None], np.bool_)
    padding, length, result = "", g.size(x, 1), x
    for layer in range(layers):
        cache = g.input(f"past{layer}", ["b", HEADS, f"p{layer}", SIZE], g.normal(2, HEADS, 3, SIZE))
        before = g.size(cache, 2)
        after = g("Add", before, length)
        start, end = (g("Reshape", one, g.constant([1], np.int64)) for one in (before, after))
        if not padding:
            padding = g.input("padding", ["b", 1, "s", "p0 + s"], g.normal(2, 1, 5, 8))
        keys = g("Concat", cache, g.split(g.projected(result)), axis=-2)
        scores = g("MatMul", g.split(g.projected(result)), g.scaled(g("Transpose", keys, perm=[0, 1, 3, 2])))
        rows = g("Slice", table, start, end, g.constant([2], np.int64))
        visible = g("Slice", rows, g.constant([0], np.int64), end, g.constant([3], np.int64))
        hidden = g("Where", visible, scores, g.constant(LOWEST))
        added = g("Slice", padding, g.constant([0], np.int64), end, g.constant([3], np.int64))
        present = f"present{layer}"
        g.nodes.append(onnx.helper.make_node("Identity", [keys], [present]))
        g.output(present, ["b", HEADS, f"t{layer}", SIZE])
        values = g("Concat", cache, g.split(g.projected(result)), axis=-2)
        weighted = g("MatMul", g("Softmax", g("Add", hidden, added), axis=-1), values)
        limit = g.constant(LONGEST, np.int64)
        cut = g("Sub", g("Min", limit, after), g("Min", limit, before))
        length = g("Max", g.constant(0, np.int64), cut)
        rows_of = g("Reshape", length, g.constant([1], np.int64))
        sizes = g("Concat", g.sizes(x, "b"), rows_of, g.constant([WIDTH], np.int64), axis=0)
        result = g("Reshape", g("Transpose", weighted, perm=[0, 2, 1, 3]), sizes)
    return g.finished(result, x)


def feeds_of(graph: Graph, queries: int, pasts: tuple[int, ...]) -> dict[str, Array]:
    feeds = {"x": graph.normal(2, queries, WIDTH), "padding": graph.normal(2, 1, queries, queries + pasts[0])}
    return feeds | {f"past{layer}": graph.normal(2, HEADS, past, SIZE) for layer, past in enumerate(pasts)}


def outcome(session: sardonyx.InferenceSession, feeds: dict[str, Array]) -> list[Array] | None:
    try:
        return session.run(None, feeds)
    except Exception:  # the runs that fail are compared as such
        return None


def test_every_layer_becomes_one_node() -> None:
    after, reports = rewritten(decoder(3).model())
    assert reports["AttentionFusion"].changes == 3, reports["AttentionFusion"].declined
    assert "Softmax" not in operators(after)


@pytest.mark.parametrize(
    ("queries", "pasts"),
    [
        (5, (3, 3)),
        (1, (7, 7)),
        (1, (11, 11)),  # as long as the table
        (1, (12, 12)),  # longer
        (2, (11, 11)),
        (13, (0, 0)),
        (2, (5, 3)),  # the mask is cut
        (2, (3, 5)),  # it is too short
        (1, (0, 4)),  # it has one column, for all keys
        (2, (0, 4)),
    ],
)
def test_it_runs_and_fails_as_before(queries: int, pasts: tuple[int, ...]) -> None:
    graph = decoder()
    model, feeds = graph.model().SerializeToString(), feeds_of(graph, queries, pasts)
    ort = pytest.importorskip("onnxruntime")
    plain = ort.SessionOptions()
    plain.log_severity_level = 4
    wanted = outcome(ort.InferenceSession(model, plain, providers=["CPUExecutionProvider"]), feeds)
    found = outcome(sardonyx.InferenceSession(model, providers=["CPUExecutionProvider"]), feeds)
    assert (found is None) == (wanted is None)
    for one, other in zip(found or [], wanted or [], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
