"""Attention of models that are saved: the padding mask, the projections and the biases inside it."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from sardonyx.passes.base import MaskFormat, Settings
from tests.passes.agreement import assert_agrees_with_double
from tests.passes.attention_graphs import HEADS, LOWEST, SIZE, WIDTH, Graph, masks
from tests.passes.models import attributes_of, fused, node_of, operators

BATCH, LENGTH = 2, 5
SCALE = 1 / math.sqrt(SIZE)


def _padding(g: Graph, x: str, form: str) -> str:
    """What hides the padding, (batch, 1, queries or 1, keys), made of an input (batch, keys)."""
    mask = masks(BATCH, LENGTH)["integers"]
    given = g.input("mask", ["b", "s"], mask.astype(bool) if form == "flags" else mask)
    axes = g.constant([1, 2], np.int64)
    if form == "filled with what is left":  # transformers' _expand_mask
        wide = g("Expand", g("Unsqueeze", given, axes), g("Concat", *_sizes(g, x), axis=0))
        rest = g("Sub", g.constant(1.0), g("Cast", wide, to=TensorProto.FLOAT))
        return str(g("Where", g("Cast", rest, to=TensorProto.BOOL), g.constant(LOWEST), rest))
    if form == "product":
        rest = g("Sub", g.constant(1.0), g("Cast", g("Unsqueeze", given, axes), to=TensorProto.FLOAT))
        return str(g("Mul", rest, g.constant(-10000.0)))
    if form == "kept":
        shown = g("Cast", g("Unsqueeze", given, axes), to=TensorProto.BOOL)
        return str(g("Where", shown, g.constant(0.0), g.constant(LOWEST)))
    if form == "flags":
        return str(g("Where", g("Not", g("Unsqueeze", given, axes)), g.constant(LOWEST), g.constant(0.0)))
    twice = g("Unsqueeze", g("Unsqueeze", given, g.constant([1], np.int64)), g.constant([2], np.int64))
    hidden = g("Not", g("Cast", twice, to=TensorProto.BOOL))
    return str(g("Where", hidden, g.constant(LOWEST), g.constant(0.0)))


def _sizes(g: Graph, x: str) -> list[str]:
    axis = g.constant([0], np.int64)
    batch, length = (g("Unsqueeze", g.size(x, place), axis) for place in (0, 1))
    return [batch, g.constant([1], np.int64), length, length]


FORMS = ["filled with what is left", "product", "kept", "flags", "axes one by one"]


def _encoder(form: str | None) -> tuple[Graph, onnx.ModelProto]:
    g = Graph()
    x = g.hidden(BATCH, LENGTH)
    scores, values = g.scores(x)
    if form is not None:
        scores = g("Add", scores, _padding(g, x, form))
    return g, g.finished(g.attended(scores, values, x), x).model()


@pytest.mark.parametrize("form", FORMS)
def test_projections_mask_and_attention_are_one_node(form: str) -> None:
    g, model = _encoder(form)
    after, reports = fused(model)
    assert reports["AttentionMaskFusion"].changes == reports["AttentionProjectionFusion"].changes == 1
    assert sorted(operators(after)) == sorted(["Attention", "MatMul", "Add", "Cast"])
    node = node_of(after, "Attention")
    attributes = attributes_of(node)
    assert attributes["num_heads"] == HEADS
    assert attributes["scale"] == pytest.approx(SCALE)
    assert attributes["mask_filter_value"] == pytest.approx(-10000.0 if form == "product" else LOWEST)
    assert len(node.input) == 4
    assert_agrees_with_double(model, after, g.feeds)


@pytest.mark.parametrize("hidden", [slice(0, 2), slice(3, 5), slice(1, 3)])
def test_padding_may_be_anywhere(hidden: slice) -> None:
    g, model = _encoder("filled with what is left")
    after, _ = fused(model)
    mask = np.ones((BATCH, LENGTH), np.int64)
    mask[1, hidden] = 0
    assert_agrees_with_double(model, after, {**g.feeds, "mask": mask})


def test_the_weight_holds_the_three_side_by_side() -> None:
    _, model = _encoder(None)
    after, _ = fused(model)
    node = node_of(after, "Attention")
    weight, bias = (
        next(numpy_helper.to_array(tensor) for tensor in after.graph.initializer if tensor.name == node.input[place])
        for place in (1, 2)
    )
    assert weight.shape == (WIDTH, 3 * WIDTH)
    assert bias.shape == (3 * WIDTH,)
    parts = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    for place in range(3):
        columns = slice(place * WIDTH, (place + 1) * WIDTH)
        assert any(np.array_equal(weight[:, columns], part) for part in parts)
        assert any(np.array_equal(bias[columns], part) for part in parts)


def test_a_mask_that_is_said_to_hide_nothing_goes() -> None:
    g, model = _encoder("kept")
    after, _ = fused(model, settings=Settings(mask_format=MaskFormat.NONE))
    assert len(node_of(after, "Attention").input) == 3
    assert_agrees_with_double(model, after, {**g.feeds, "mask": np.ones((BATCH, LENGTH), np.int64)})


def test_without_the_projections_the_biases_go_into_multi_head_attention() -> None:
    g, model = _encoder("kept")
    after, reports = fused(model, {"AttentionProjectionFusion"})
    assert reports["MultiHeadAttentionBiasFusion"].changes == 1
    assert sorted(operators(after)) == sorted(["MatMul"] * 4 + ["Add", "Cast", "MultiHeadAttention"])
    assert len(node_of(after, "MultiHeadAttention").input) == 5
    assert_agrees_with_double(model, after, g.feeds)
    plain, _ = fused(model, {"AttentionProjectionFusion", "MultiHeadAttentionBiasFusion"})
    assert operators(plain).count("Add") == 4
    assert list(node_of(plain, "MultiHeadAttention").input)[3] == ""
    assert_agrees_with_double(model, plain, g.feeds)


def test_no_attention_at_all_where_it_is_switched_off() -> None:
    g, model = _encoder("kept")
    after, _ = fused(model, {"AttentionFusion"})
    assert "Softmax" in operators(after)
    assert_agrees_with_double(model, after, g.feeds)


def _other_bias(kind: str) -> tuple[Graph, onnx.ModelProto]:
    """Biases that are no padding of keys."""
    g = Graph()
    x = g.hidden(BATCH, LENGTH)
    scores, values = g.scores(x)
    if kind == "given":
        bias = g.input("bias", ["b", 1, "s", "s"], g.normal(BATCH, 1, LENGTH, LENGTH))
    elif kind == "of queries":
        mask = g.input("mask", ["b", "s"], masks(BATCH, LENGTH)["integers"])
        shown = g("Cast", g("Unsqueeze", mask, g.constant([1, 3], np.int64)), to=TensorProto.BOOL)
        wide = g("Expand", shown, g("Concat", *_sizes(g, x), axis=0))
        bias = g("Where", wide, g.constant(0.0), g.constant(-20.0))
    elif kind == "raised":
        mask = g.input("mask", ["b", "s"], masks(BATCH, LENGTH)["integers"])
        rest = g(
            "Sub", g.constant(1.0), g("Cast", g("Unsqueeze", mask, g.constant([1, 2], np.int64)), to=TensorProto.FLOAT)
        )
        bias = g("Mul", rest, g.constant(3.0))
    else:
        mask = g.input("mask", [1, "s"], masks(1, LENGTH)["integers"])
        shown = g("Cast", g("Unsqueeze", mask, g.constant([1, 2], np.int64)), to=TensorProto.BOOL)
        bias = g("Where", shown, g.constant(0.0), g.constant(LOWEST))
    return g, g.finished(g.attended(g("Add", scores, bias), values, x), x).model()


@pytest.mark.parametrize("kind", ["given", "of queries", "raised", "of one entry"])
def test_other_biases_stay_biases(kind: str) -> None:
    g, model = _other_bias(kind)
    after, reports = fused(model)
    assert reports["AttentionMaskFusion"].changes == 0
    assert reports["AttentionMaskFusion"].declined
    node = node_of(after, "Attention")
    assert len(node.input) == 6
    assert list(node.input)[3:5] == ["", ""]
    assert_agrees_with_double(model, after, g.feeds)


def _joint(opset: int = 17, bias: bool = True) -> tuple[Graph, onnx.ModelProto]:
    """One projection for queries, keys and values, as GPT-2 has it, with a causal mask."""
    g = Graph(opset)
    x = g.hidden(BATCH, LENGTH)
    product = g("MatMul", x, g.constant(g.normal(WIDTH, 3 * WIDTH)))
    whole = g("Add", product, g.constant(g.normal(3 * WIDTH))) if bias else product
    parts = g("Split", whole, g.constant([WIDTH] * 3, np.int64), count=3, axis=2)
    query, values, keys = g.split(parts[0]), g.split(parts[2]), g.split(parts[1], (0, 2, 3, 1))
    scores = g("MatMul", g.scaled(query), g.scaled(keys))
    length = g.size(x, 1)
    scores = g("Where", g.causal(length, length), scores, g.constant(LOWEST))
    return g, g.finished(g.attended(scores, values, x), x).model()


@pytest.mark.parametrize("bias", [True, False])
def test_one_projection_for_all_three_is_the_weight(bias: bool) -> None:
    g, model = _joint(bias=bias)
    after, reports = fused(model)
    assert reports["AttentionProjectionFusion"].changes == 1
    assert sorted(operators(after)) == sorted(["Attention", "MatMul", "Add"])
    node = node_of(after, "Attention")
    assert attributes_of(node)["unidirectional"] == 1
    assert len(node.input) == 3  # onnxruntime crashes without a bias
    assert_agrees_with_double(model, after, g.feeds)


def test_values_of_another_width_are_told_by_an_attribute() -> None:
    g = Graph()
    x = g.hidden(BATCH, LENGTH)
    query, keys = g.split(g.projected(x)), g.split(g.projected(x), (0, 2, 3, 1))
    values = g.split(g.projected(x, HEADS * 6), size=6)
    scores = g("MatMul", g.scaled(query), g.scaled(keys))
    result = g.merged(g("MatMul", g("Softmax", scores, axis=-1), values), x, width=HEADS * 6)
    g.output(result, ["b", "s", HEADS * 6])
    model = g.model()
    after, _ = fused(model)
    assert attributes_of(node_of(after, "Attention"))["qkv_hidden_sizes"] == [WIDTH, WIDTH, HEADS * 6]
    assert_agrees_with_double(model, after, g.feeds)


def test_a_projection_without_bias_has_zeros() -> None:
    g = Graph()
    x = g.hidden(BATCH, LENGTH)
    query, values = g.split(g.projected(x)), g.split(g.projected(x))
    keys = g.split(g("MatMul", x, g.constant(g.normal(WIDTH, WIDTH))), (0, 2, 3, 1))
    scores = g("MatMul", g.scaled(query), g.scaled(keys))
    model = g.finished(g.attended(scores, values, x), x).model()
    after, _ = fused(model)
    node = node_of(after, "Attention")
    bias = next(numpy_helper.to_array(one) for one in after.graph.initializer if one.name == node.input[2])
    assert not bias[WIDTH : 2 * WIDTH].any()
    assert bias[:WIDTH].all()
    assert_agrees_with_double(model, after, g.feeds)


def test_layers_that_share_their_weights_share_the_joint_one() -> None:
    g = Graph()
    x = g.hidden(BATCH, LENGTH)
    weights = [(g.constant(g.normal(WIDTH, WIDTH)), g.constant(g.normal(WIDTH))) for _ in range(3)]
    result = x
    for _ in range(2):
        rows = [g("Add", g("MatMul", result, weight), bias) for weight, bias in weights]
        query, values, keys = g.split(rows[0]), g.split(rows[2]), g.split(rows[1], (0, 2, 3, 1))
        result = g.attended(g("MatMul", g.scaled(query), g.scaled(keys)), values, x)
    model = g.finished(result, x).model()
    after, _ = fused(model)
    nodes = [node for node in after.graph.node if node.op_type == "Attention"]
    assert len(nodes) == 2
    assert nodes[0].input[1] == nodes[1].input[1]
    assert_agrees_with_double(model, after, g.feeds)


def _cross() -> tuple[Graph, onnx.ModelProto]:
    """Queries of one sequence, keys and values of another."""
    g = Graph()
    x = g.hidden(BATCH, LENGTH)
    other = g.input("memory", ["b", "m", WIDTH], g.normal(BATCH, 7, WIDTH))
    query = g.split(g.projected(x))
    keys, values = g.split(g.projected(other), (0, 2, 3, 1)), g.split(g.projected(other))
    scores = g("MatMul", g.scaled(query), g.scaled(keys))
    return g, g.finished(g.attended(scores, values, x), x).model()


def test_attention_to_another_sequence_keeps_its_projections() -> None:
    g, model = _cross()
    after, reports = fused(model)
    assert any("projected from different inputs" in text for text in reports["AttentionProjectionFusion"].declined)
    assert "MultiHeadAttention" in operators(after)
    assert len(node_of(after, "MultiHeadAttention").input) == 4  # with the biases
    assert_agrees_with_double(model, after, g.feeds)


@pytest.mark.parametrize("cached", [True, False])
def test_a_past_stays_with_multi_head_attention(cached: bool) -> None:
    """With keys and values that are appended to a past, and with those of a cache alone."""
    g = Graph()
    x = g.hidden(BATCH, LENGTH)
    past = [
        g.input(name, ["b", HEADS, "p", SIZE], g.normal(BATCH, HEADS, 3, SIZE)) for name in ("past_key", "past_value")
    ]
    query = g.split(g.projected(x))
    if cached:
        keys, values = past
    else:
        keys, values = (g("Concat", old, g.split(g.projected(x)), axis=2) for old in past)
        g.output(keys, ["b", HEADS, "t", SIZE])
        g.output(values, ["b", HEADS, "t", SIZE])
    scores = g("MatMul", g.scaled(query), g("Transpose", g.scaled(keys), perm=[0, 1, 3, 2]))
    model = g.finished(g.attended(scores, values, x), x).model()
    after, reports = fused(model)
    assert reports["AttentionProjectionFusion"].changes == 0
    assert reports["MultiHeadAttentionBiasFusion"].changes == 1
    node = node_of(after, "MultiHeadAttention")
    assert len(node.input) == (4 if cached else 8)
    assert_agrees_with_double(model, after, g.feeds)


def test_padding_of_past_and_new_keys() -> None:
    g = Graph()
    x = g.hidden(BATCH, LENGTH)
    past = [
        g.input(one, ["b", HEADS, "p", SIZE], g.normal(BATCH, HEADS, 3, SIZE)) for one in ("past_key", "past_value")
    ]
    mask = g.input("mask", ["b", "p + s"], masks(BATCH, LENGTH + 3)["integers"])
    query = g.split(g.projected(x))
    keys, values = (g("Concat", old, g.split(g.projected(x)), axis=2) for old in past)
    shown = g("Cast", g("Unsqueeze", mask, g.constant([1, 2], np.int64)), to=TensorProto.BOOL)
    bias = g("Where", shown, g.constant(0.0), g.constant(LOWEST))
    scores = g("MatMul", g.scaled(query), g("Transpose", g.scaled(keys), perm=[0, 1, 3, 2]))
    model = g.finished(g.attended(g("Add", scores, bias), values, x), x).model()
    after, reports = fused(model)
    assert reports["AttentionMaskFusion"].changes == 1
    assert_agrees_with_double(model, after, g.feeds)


def _sliced(name: str) -> tuple[Graph, onnx.ModelProto]:
    """A mask whose length is called `name`, cut to as many keys as past and new ones are."""
    g = Graph()
    x = g.hidden(BATCH, LENGTH)
    past = [
        g.input(one, ["b", HEADS, "p", SIZE], g.normal(BATCH, HEADS, 3, SIZE)) for one in ("past_key", "past_value")
    ]
    query = g.split(g.projected(x))
    keys, values = (g("Concat", old, g.split(g.projected(x)), axis=2) for old in past)
    mask = g.input("mask", ["b", name], masks(BATCH, LENGTH + 3)["integers"])
    shown = g("Cast", g("Unsqueeze", mask, g.constant([1, 2], np.int64)), to=TensorProto.BOOL)
    bias = g("Where", shown, g.constant(0.0), g.constant(LOWEST))
    total = g("Add", g.size(past[0], 2), g.size(x, 1))
    zero, axis = g.constant([0], np.int64), g.constant([3], np.int64)
    bias = g("Slice", bias, zero, g("Unsqueeze", total, zero), axis)
    scores = g("MatMul", g.scaled(query), g("Transpose", g.scaled(keys), perm=[0, 1, 3, 2]))
    return g, g.finished(g.attended(g("Add", scores, bias), values, x), x).model()


def test_a_mask_with_a_length_of_its_own_covers_the_keys() -> None:
    g, model = _sliced("mask_length")
    after, reports = fused(model)
    assert reports["AttentionFusion"].changes == 1
    assert_agrees_with_double(model, after, g.feeds)
    longer = np.pad(g.feeds["mask"], ((0, 0), (0, 4)))
    assert_agrees_with_double(model, after, {**g.feeds, "mask": longer})


def test_a_mask_as_long_as_the_queries_may_go_for_all_keys() -> None:
    """It has one element where there is one query, as in each step of decoding."""
    g, model = _sliced("s")
    after, reports = fused(model)
    assert reports["AttentionFusion"].changes == 0
    assert any("not known to broadcast" in text for text in reports["AttentionFusion"].declined)
    feeds = {**g.feeds, "x": g.feeds["x"][:, :1], "mask": g.feeds["mask"][:, :1]}
    assert_agrees_with_double(model, after, feeds)
