"""Embeddings as one node, for models that are saved; sessions run it, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import sardonyx
from sardonyx.api.explaining.explanation import explain
from tests.passes.agreement import assert_agrees, assert_agrees_with_double, outputs_of, outputs_of_onnxruntime
from tests.passes.attention_graphs import Graph
from tests.passes.models import attributes_of, fused, make_model, node_of, operators, rewritten

WORDS, PLACES, KINDS, WIDTH = 30, 12, 2, 8
BATCH, LENGTH = 3, 7


class Embeddings(Graph):
    """Lookups, their sum, and its normalisation."""

    def ids(self, name: str, limit: int, shape: Sequence[int | str] = ("b", "s"), batch: int = BATCH) -> str:
        return self.input(name, shape, self.rng.integers(0, limit, (batch, LENGTH)))

    def table(self, rows: int) -> str:
        return self.constant(self.normal(rows, WIDTH))

    def places(self, ids: str, form: str) -> str:
        """0, 1, 2, … as long as the ids."""
        length = self.size(ids, 1)
        if form == "range":
            return self.positions(length)
        ends = self("Unsqueeze", length, self.constant([0], np.int64))
        zero, one = self.constant([0], np.int64), self.constant([1], np.int64)
        if form == "slice of a row":
            return str(self("Slice", self.constant(np.arange(PLACES), np.int64), zero, ends, zero, one))
        table = self.constant(np.arange(PLACES)[None], np.int64)
        cut = self("Slice", table, zero, ends, one, one)
        if form == "expanded":
            return str(self("Expand", cut, self.sizes(ids, "b", "s")))
        return str(cut)

    def normalized(self, total: str, epsilon: float = 1e-6) -> str:
        scale, offset = self.constant(self.normal(WIDTH)), self.constant(self.normal(WIDTH))
        return str(self("LayerNormalization", total, scale, offset, axis=-1, epsilon=epsilon))

    def finished_with(self, *values: str) -> onnx.ModelProto:
        for value in values:
            self.output(self("Relu", value), ["b", "s", WIDTH])
        return self.model()


def _bert(form: str = "slice", order: str = "words, kinds, places") -> tuple[Embeddings, onnx.ModelProto]:
    g = Embeddings()
    ids, kinds = g.ids("input_ids", WORDS), g.ids("token_type_ids", KINDS)
    parts = {
        "words": g("Gather", g.table(WORDS), ids),
        "kinds": g("Gather", g.table(KINDS), kinds),
        "places": g("Gather", g.table(PLACES), g.places(ids, form)),
    }
    first, second, third = (parts[name] for name in order.split(", "))
    return g, g.finished_with(g.normalized(g("Add", g("Add", first, second), third)))


@pytest.mark.parametrize("form", ["slice", "slice of a row", "expanded", "range"])
def test_words_segments_and_positions_are_one_node(form: str) -> None:
    g, model = _bert(form)
    after, reports = fused(model)
    assert reports["EmbedLayerNormFusion"].changes == 1
    assert sorted(operators(after)) == ["Cast", "Cast", "EmbedLayerNormalization", "Relu"]
    node = node_of(after, "EmbedLayerNormalization")
    assert len(node.input) == 7  # no positions: they count up
    assert attributes_of(node)["epsilon"] == pytest.approx(1e-6)
    assert_agrees_with_double(model, after, g.feeds)


@pytest.mark.parametrize("order", ["places, words, kinds", "kinds, places, words", "words, places, kinds"])
def test_the_order_of_the_sum_does_not_matter(order: str) -> None:
    g, model = _bert(order=order)
    after, _ = fused(model)
    tables = {tensor.name: tensor.dims[0] for tensor in after.graph.initializer}
    node = node_of(after, "EmbedLayerNormalization")
    assert [tables[node.input[place]] for place in (2, 3, 4)] == [WORDS, PLACES, KINDS]
    assert_agrees_with_double(model, after, g.feeds)


@pytest.mark.parametrize("batch", [BATCH, 1])
def test_positions_that_are_given_are_the_last_input_and_the_sum_the_last_output(batch: int) -> None:
    g = Embeddings()
    ids = g.ids("input_ids", WORDS)
    places = g.ids("position_ids", PLACES, ("b" if batch == BATCH else 1, "s"), batch)
    total = g("Add", g("Gather", g.table(WORDS), ids), g("Gather", g.table(PLACES), places))
    model = g.finished_with(g.normalized(total), total)
    after, reports = fused(model)
    assert reports["EmbedLayerNormFusion"].changes == 1
    node = node_of(after, "EmbedLayerNormalization")
    assert len(node.input) == 9
    assert list(node.input)[4] == list(node.input)[7] == ""
    assert node.output[2] == total
    assert_agrees_with_double(model, after, g.feeds)


def test_positions_that_were_folded_into_rows() -> None:
    g = Embeddings()
    ids = g.input("input_ids", (BATCH, LENGTH), g.rng.integers(0, WORDS, (BATCH, LENGTH)))
    places = g("Gather", g.table(PLACES), g.constant(np.arange(LENGTH)[None], np.int64))
    model = g.finished_with(g.normalized(g("Add", g("Gather", g.table(WORDS), ids), places)))
    after, reports = fused(model)
    assert reports["EmbedLayerNormFusion"].changes == 1
    assert_agrees_with_double(model, after, g.feeds)


def test_ids_of_32_bits_are_read_as_they_are() -> None:
    g = Embeddings()
    ids = g.input("input_ids", ("b", "s"), g.rng.integers(0, WORDS, (BATCH, LENGTH)).astype(np.int32))
    places = g("Gather", g.table(PLACES), g.places(ids, "slice"))
    model = g.finished_with(g.normalized(g("Add", g("Gather", g.table(WORDS), ids), places)))
    after, _ = fused(model)
    assert operators(after) == ["EmbedLayerNormalization", "Relu"]
    assert_agrees_with_double(model, after, g.feeds)


def _near_miss(kind: str) -> tuple[Embeddings, onnx.ModelProto]:
    g = Embeddings()
    ids = g.ids("input_ids", WORDS)
    words = g("Gather", g.table(WORDS), ids)
    if kind == "positions that begin elsewhere":
        length = g.size(ids, 1)
        one, zero = g.constant([1], np.int64), g.constant([0], np.int64)
        ends = g("Add", g("Unsqueeze", length, zero), one)
        places = g("Slice", g.constant(np.arange(PLACES), np.int64), one, ends, zero)
        total = g("Add", words, g("Gather", g.table(PLACES), places))
    elif kind == "no embedding":
        total = g("Add", words, g("Relu", words))
    elif kind == "positions twice":
        first = g("Gather", g.table(PLACES), g.places(ids, "slice"))
        total = g("Add", g("Add", words, first), g("Gather", g.table(PLACES), g.places(ids, "range")))
    else:
        total = g("Add", words, g("Gather", g.table(PLACES), g.places(ids, "slice")))
    if kind == "no offset":
        return g, g.finished_with(str(g("LayerNormalization", total, g.constant(g.normal(WIDTH)), axis=-1)))
    return g, g.finished_with(g.normalized(total))


@pytest.mark.parametrize("kind", ["positions that begin elsewhere", "no embedding", "positions twice", "no offset"])
def test_what_is_no_embedding_stays(kind: str) -> None:
    g, model = _near_miss(kind)
    after, reports = fused(model)
    assert "EmbedLayerNormalization" not in operators(after)
    assert reports["EmbedLayerNormFusion"].changes == 0
    assert_agrees_with_double(model, after, g.feeds)


def _saved(inputs: Sequence[str], outputs: Sequence[str], dtype: Any = np.float32) -> onnx.ModelProto:
    """The operator by itself."""
    rng = np.random.default_rng(5)
    tables = {"words": (WORDS, WIDTH), "places": (PLACES, WIDTH), "kinds": (KINDS, WIDTH), "g": (WIDTH,), "o": (WIDTH,)}
    nodes = [onnx.helper.make_node("EmbedLayerNormalization", list(inputs), list(outputs), domain="com.microsoft")]
    given = {name: ["b", "s"] for name in inputs if name and name not in tables}
    constants = {name: rng.standard_normal(shape).astype(dtype) for name, shape in tables.items()}
    names = [name for name in outputs if name]
    model = make_model(nodes, given, names, constants, dtype=TensorProto.INT32)
    for value in model.graph.output:
        kind = np.dtype(np.int32 if value.name == "counts" else dtype)
        value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(kind)
    return model


@pytest.mark.parametrize("level", [0, 99])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (["ids", "types", "words", "places", "kinds", "g", "o"], ["y"]),
        (["ids", "", "words", "places", "kinds", "g", "o"], ["y", "counts"]),
        (["ids", "", "words", "places", "", "g", "o", "mask"], ["y", "counts"]),
        (["ids", "types", "words", "places", "kinds", "g", "o", "mask", "at"], ["y", "counts", "sum"]),
    ],
)
def test_sessions_run_it_natively(inputs: list[str], outputs: list[str], dtype: Any, level: int) -> None:
    model = _saved(inputs, outputs, dtype)
    rng = np.random.default_rng(6)
    limits = {"ids": WORDS, "types": KINDS, "at": PLACES, "mask": 2}
    feeds: dict[str, Any] = {
        name: rng.integers(0, limits[name], (BATCH, LENGTH)).astype(np.int32) for name in inputs if name in limits
    }
    options = sardonyx.SessionOptions()
    options.graph_optimization_level = sardonyx.GraphOptimizationLevel(level)
    session = sardonyx.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert [row.reason for row in explain(session, feeds).rows if row.kind == "host"] == []
    found = session.run(None, feeds)
    for ours, theirs in zip(found, _in_double(model, feeds), strict=False):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 if dtype == np.float32 else 1e-2)
    if dtype == np.float32:
        for ours, theirs in zip(found, outputs_of_onnxruntime(_with_counts(model), feeds), strict=False):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def _in_double(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """Result, counts and sum, of the definition."""
    held = {tensor.name: onnx.numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer}
    given = set(model.graph.node[0].input)
    total = held["words"][feeds["ids"]] + held["places"][feeds.get("at", np.arange(LENGTH)[None])]
    if "kinds" in given:
        total = total + held["kinds"][feeds.get("types", np.zeros((1, 1), int))]
    centred = total - total.mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
    counts = (feeds["mask"] == 1).sum(axis=1) if "mask" in feeds else np.zeros(BATCH)
    return [normal * held["g"] + held["o"], counts, total]


@pytest.mark.parametrize(("place", "name", "count"), [(0, "input_ids", WORDS), (1, "segment_ids", KINDS)])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_an_id_that_is_in_no_table_is_an_error(place: int, name: str, count: int, wrong: int) -> None:
    model = _saved(["ids", "types", "words", "places", "kinds", "g", "o"], ["y"])
    ids = [np.zeros((BATCH, LENGTH), np.int32) for _ in range(2)]
    ids[place][1, 2] = -1 if wrong < 0 else count
    with pytest.raises(Exception, match=f"'{name}' holds an id outside of its table of {count} rows"):
        outputs_of(model, {"ids": ids[0], "types": ids[1]}, 99)


def test_more_places_than_there_are_rows_are_an_error() -> None:
    model = _saved(["ids", "", "words", "places", "", "g", "o"], ["y"])
    with pytest.raises(Exception, match=f"outside of its table of {PLACES} rows"):
        outputs_of(model, {"ids": np.zeros((1, PLACES + 1), np.int32)}, 99)


def _with_counts(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the second output that onnxruntime insists on."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    if len(copy.graph.node[0].output) < 2:
        copy.graph.node[0].output.append("unread")
    return copy


def test_words_and_positions_of_one_shape_are_no_residual() -> None:
    g = Embeddings()
    ids, places = g.ids("input_ids", WORDS), g.ids("position_ids", PLACES)
    total = g("Add", g("Gather", g.table(WORDS), ids), g("Gather", g.table(PLACES), places))
    model = g.finished_with(g.normalized(total), total)
    after, _ = fused(model)
    assert "SkipLayerNormalization" not in operators(after)
    session, _ = rewritten(model)
    assert "SkipLayerNormalization" in operators(session)  # which has a kernel here
    assert_agrees(model, session, g.feeds)
