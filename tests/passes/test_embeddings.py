"""Embeddings as one node for models that are saved, and as their parts for sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

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


def _saved(inputs: Sequence[str], outputs: Sequence[str], opset: int) -> onnx.ModelProto:
    rng = np.random.default_rng(5)
    tables = {"words": (WORDS, WIDTH), "places": (PLACES, WIDTH), "kinds": (KINDS, WIDTH), "g": (WIDTH,), "o": (WIDTH,)}
    nodes = [onnx.helper.make_node("EmbedLayerNormalization", list(inputs), list(outputs), domain="com.microsoft")]
    given = {name: ["b", "s"] for name in inputs if name and name not in tables}
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in tables.items()}
    model = make_model(
        nodes, given, [name for name in outputs if name], constants, opset=opset, dtype=TensorProto.INT32
    )
    for value in model.graph.output:
        value.type.tensor_type.elem_type = TensorProto.INT32 if value.name == "counts" else TensorProto.FLOAT
    return model


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (["ids", "types", "words", "places", "kinds", "g", "o"], ["y"]),
        (["ids", "", "words", "places", "kinds", "g", "o"], ["y", "counts"]),
        (["ids", "", "words", "places", "", "g", "o", "mask"], ["y", "counts"]),
        (["ids", "types", "words", "places", "kinds", "g", "o", "mask", "at"], ["y", "counts", "sum"]),
    ],
)
def test_a_session_computes_it_in_parts(inputs: list[str], outputs: list[str], opset: int) -> None:
    model = _saved(inputs, outputs, opset)
    rng = np.random.default_rng(6)
    limits = {"ids": WORDS, "types": KINDS, "at": PLACES, "mask": 2}
    feeds: dict[str, Any] = {
        name: rng.integers(0, limits[name], (BATCH, LENGTH)).astype(np.int32) for name in inputs if name in limits
    }
    after, reports = rewritten(model)
    assert reports["EmbedLayerNormExpansion"].changes == 1
    assert "EmbedLayerNormalization" not in operators(after)
    wanted = outputs_of(model, feeds)
    for found in (outputs_of(model, feeds, 99), outputs_of(after, feeds), outputs_of_onnxruntime(after, feeds)):
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    if "counts" not in outputs or "mask" in inputs:
        wanted_there = outputs_of_onnxruntime(_with_counts(model), feeds)
        for ours, theirs in zip(wanted, wanted_there, strict=False):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def _with_counts(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the second output that onnxruntime insists on."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    if len(copy.graph.node[0].output) < 2:
        copy.graph.node[0].output.append("unread")
    return copy


@pytest.mark.parametrize("outputs", [["y"], ["y", "counts", "sum"]])
def test_half_precision_is_rounded_once_in_parts(outputs: list[str]) -> None:
    model = _saved(["ids", "types", "words", "places", "kinds", "g", "o"], outputs, 17)
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float16), tensor.name))
    for value in model.graph.output:
        if value.name != "counts":
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    after, _ = rewritten(model)
    assert "EmbedLayerNormalization" not in operators(after)
    rng = np.random.default_rng(8)
    feeds = {
        name: rng.integers(0, limit, (BATCH, LENGTH)).astype(np.int32)
        for name, limit in (("ids", WORDS), ("types", KINDS))
    }
    for ours, theirs in zip(outputs_of(after, feeds), outputs_of(model, feeds), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(np.float32(ours), np.float32(theirs), rtol=1e-3, atol=1e-3)


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
