"""Attention over heads as they are: shared keys and values, pasts, masks of open lengths, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from tests.passes.agreement import outputs_of, outputs_of_onnxruntime
from tests.passes.attention_graphs import HEADS, LOWEST, SIZE, WIDTH, Array, Graph
from tests.passes.models import attributes_of, node_of, operators, rewritten

GROUPED, BY_HEADS = "GroupedAttentionFusion", "HeadAttentionFusion"
GROUP = 2  # heads of the query for each head of keys and values


def repeated(g: Graph, cache: str) -> str:
    """Each head of (batch, heads, length, size) GROUP times, as transformers repeats them."""
    shape = g("Shape", cache)
    sizes = [g("Gather", shape, g.constant([axis], np.int64), axis=0) for axis in range(4)]
    wide = g("Unsqueeze", cache, g.constant([2], np.int64))
    group = g.constant([GROUP], np.int64)
    spread = g("Expand", wide, g("Concat", sizes[0], sizes[1], group, sizes[2], sizes[3], axis=0))
    heads = g.constant([HEADS], np.int64)
    return str(g("Reshape", spread, g("Concat", sizes[0], heads, sizes[2], sizes[3], axis=0)))


def cached(g: Graph, x: str, kind: str, heads: int, past: str | None) -> str:
    """New keys or values of `x`, behind a past whose length has the name `past`."""
    rows = g("MatMul", x, g.constant(g.normal(WIDTH, heads * SIZE)))
    new = g("Transpose", g("Reshape", rows, g.constant([0, 0, heads, SIZE], np.int64)), perm=[0, 2, 1, 3])
    if past is None:
        return str(new)
    before = g.input(f"past_{kind}", ["b", heads, past, SIZE], g.normal(2, heads, 3, SIZE))
    both = g("Concat", before, new, axis=-2)
    g.output(both, ["b", heads, f"{past}_after", SIZE])
    return str(both)


def turned(g: Graph, x: str) -> str:
    """A query (batch, heads, length, size) that is put together from parts, so that no rows hold its heads."""
    heads = g.split(g.projected(x))
    halves = g("Split", heads, g.constant([SIZE // 2, SIZE // 2], np.int64), axis=-1, count=2)
    return str(g("Concat", *halves[::-1], axis=-1))


def decoder(
    *,
    shared: bool = True,
    repeats: bool = True,
    pasts: Sequence[str | None] = ("p", "p"),
    mask: Callable[[Graph], str] | None = None,
    cap: float = 0.0,
) -> Graph:
    """A layer of a decoder whose query is turned in part."""
    g = Graph()
    x = g.hidden()
    heads = HEADS // GROUP if shared else HEADS
    key, value = (cached(g, x, kind, heads, past) for kind, past in zip(("key", "value"), pasts, strict=True))
    if shared and repeats:
        key, value = repeated(g, key), repeated(g, value)
    scores = g.scaled(g("MatMul", turned(g, x), g("Transpose", key, perm=[0, 1, 3, 2])), 0.4)
    if cap:
        scores = g("Mul", g("Tanh", g("Div", scores, g.constant(cap))), g.constant(cap))
    if mask is not None:
        scores = g("Add", scores, mask(g))
    return g.finished(g.attended(scores, value, x), x)


def additive(g: Graph, length: int | str = "p + s", feed: Array | None = None) -> str:
    """What a caller's mask (batch, 1, 1, keys) adds; `length` is what its last dimension is called."""
    if feed is None:
        feed = np.ones((2, 1, 1, 8), bool)
        feed[1, ..., :2] = False
    mask = g.input("mask", ["b", 1, 1, length], feed)
    return str(g("Where", mask, g.constant(0), g.constant(LOWEST)))


def fused(graph: Graph, rule: str) -> onnx.NodeProto:
    """The one attention of a model, made by a rule; outputs are those without rewrites, and onnxruntime's."""
    model = graph.model()
    after, reports = rewritten(model)
    assert reports[rule].changes == 1, reports[rule].declined
    assert "Softmax" not in operators(after)
    assert_same_results(model, graph.feeds)
    return node_of(after, "Attention")


def assert_same_results(model: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    plain = outputs_of_onnxruntime(model, feeds)
    for found, wanted in zip(outputs_of(model, feeds, 99), plain, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_shared_heads_are_not_repeated() -> None:
    node = fused(decoder(), GROUPED)
    assert len(node.output) == 1  # sizes that are read of the present come before it
    assert "Expand" not in operators(rewritten(decoder().model())[0])


def test_a_head_that_products_repeat_by_themselves() -> None:
    assert len(fused(decoder(repeats=False), BY_HEADS).output) == 3


@pytest.mark.parametrize("pasts", [(None, None), ("p", "p"), ("p", "q")])
def test_queries_that_are_no_rows(pasts: Sequence[str | None]) -> None:
    node = fused(decoder(shared=False, pasts=pasts), BY_HEADS)
    assert len(node.output) == (1 if pasts[0] is None else 3)


@pytest.mark.parametrize("factor", [0.25, 1.5])
def test_scores_that_are_scaled_after_the_mask(factor: float) -> None:
    g = Graph()
    x = g.hidden()
    key, value = (cached(g, x, kind, HEADS, "p") for kind in ("key", "value"))
    scores = g("MatMul", turned(g, x), g("Transpose", key, perm=[0, 1, 3, 2]))
    scores = g("Mul", g("Add", scores, additive(g, "m")), g.constant(factor))
    graph = g.finished(g.attended(scores, value, x), x)
    if factor < 1:
        assert attributes_of(fused(graph, BY_HEADS))["scale"] == factor
        assert_same_results(graph.model(), graph.feeds | {"mask": np.zeros((2, 1, 1, 8), bool)})
    else:  # which makes infinities of the lowest number
        after, _ = rewritten(graph.model())
        assert "Softmax" in operators(after)


def test_a_soft_cap_is_an_attribute() -> None:
    attributes: dict[str, Any] = attributes_of(fused(decoder(cap=3.0), GROUPED))
    assert attributes["softcap"] == pytest.approx(3)
    assert attributes["scale"] == pytest.approx(0.4)


@pytest.mark.parametrize("length", ["p + s", "m"])
def test_a_mask_of_an_open_length_is_expanded_to_the_keys(length: str) -> None:
    graph = decoder(mask=lambda g: additive(g, length))
    fused(graph, GROUPED)
    model = graph.model()
    assert ("Expand" in operators(rewritten(model)[0])) == (length == "m")
    if length == "m":  # one element for all keys
        assert_same_results(model, graph.feeds | {"mask": np.ones((2, 1, 1, 1), bool)})


def test_a_mask_for_all_keys_is_left_alone() -> None:
    graph = decoder(mask=lambda g: additive(g, 1, np.ones((2, 1, 1, 1), bool)))
    after, reports = rewritten(graph.model())
    assert "Softmax" in operators(after)
    assert any("the same for all keys" in text for text in reports[BY_HEADS].declined)


def test_the_causal_mask_is_an_attribute() -> None:
    g = Graph()
    x = g.hidden()
    key, value = (cached(g, x, kind, HEADS, "p") for kind in ("key", "value"))
    past = g.size("past_key", 2)
    keys = g("Add", g.size(x, 1), past)
    scores = g("MatMul", g.scaled(turned(g, x), 0.5), g("Transpose", key, perm=[0, 1, 3, 2]))
    scores = g("Where", g.causal(g.size(x, 1), keys, past), scores, g.constant(LOWEST))
    graph = g.finished(g.attended(scores, value, x), x)
    node = fused(graph, BY_HEADS)
    assert attributes_of(node)["is_causal"] == 1
    assert len(node.input) == 6
    assert node.input[3] == ""


def test_new_lengths_in_one_session() -> None:
    graph = decoder(mask=lambda g: additive(g, "m"))
    content = graph.model().SerializeToString()
    session = sardonyx.InferenceSession(content, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(3)
    for batch, length, past in [(1, 1, 4), (1, 1, 5), (3, 6, 0), (1, 1, 6), (2, 5, 3)]:
        feeds = {
            "x": rng.standard_normal((batch, length, WIDTH), np.float32),
            "mask": np.ones((batch, 1, 1, past + length), bool),
        }
        for kind in ("past_key", "past_value"):
            feeds[kind] = rng.standard_normal((batch, HEADS // GROUP, past, SIZE), np.float32)
        wanted = outputs_of_onnxruntime(graph.model(), feeds)
        for found, expected in zip(session.run(None, feeds), wanted, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_model_that_is_written_keeps_to_its_opset(tmp_path: Path) -> None:
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    model = decoder(shared=False).model()
    sardonyx.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    written = onnx.load(options.optimized_model_filepath)
    assert not [node for node in written.graph.node if (node.domain, node.op_type) == ("", "Attention")]


def test_another_type_is_left_alone() -> None:
    model = decoder().model()
    assert helper.np_dtype_to_tensor_dtype(np.dtype(np.float32)) == TensorProto.FLOAT
    double = onnx.ModelProto.FromString(model.SerializeToString())
    for value in (*double.graph.input, *double.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in double.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    after, reports = rewritten(double)
    assert "Softmax" in operators(after)
    assert any("round differently" in text for text in reports[GROUPED].declined)
