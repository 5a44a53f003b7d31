"""The attention rule: the forms that it fuses, those that it leaves alone and why, and that the meaning stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.passes.base import Level
from sardonyx.passes.rule import RULE_KEY, SOURCES_KEY
from tests.passes.attention_graphs import HEADS, LOWEST, SIZE, WIDTH, Array, Graph, masks
from tests.passes.models import operators, rewritten

# Inputs of MultiHeadAttention by place.
QUERY, KEY, VALUE, BIAS, PAST_KEY, PAST_VALUE = 0, 1, 2, 5, 6, 7

# The rules that take what this one leaves.
BY_HEADS = ("GroupedAttentionFusion", "HeadAttentionFusion")


def run(model: onnx.ModelProto, feeds: dict[str, Array], level: sardonyx.GraphOptimizationLevel) -> list[Array]:
    options = sardonyx.SessionOptions()
    options.graph_optimization_level = level
    session = sardonyx.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def run_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def fused(graph: Graph, count: int = 1, *, peer_runs_fused: bool = True) -> list[onnx.NodeProto]:
    """The attention nodes of a model, whose outputs are the same before and after, here and in onnxruntime."""
    model = graph.model()
    after, reports = rewritten(model, disabled=BY_HEADS)
    assert reports["AttentionFusion"].changes == count, reports["AttentionFusion"].declined
    assert "Softmax" not in operators(after)
    plain = run(model, graph.feeds, sardonyx.GraphOptimizationLevel.ORT_DISABLE_ALL)
    results = [
        run(model, graph.feeds, sardonyx.GraphOptimizationLevel.ORT_ENABLE_ALL),
        run_onnxruntime(model, graph.feeds),
        *([run_onnxruntime(after, graph.feeds)] if peer_runs_fused else []),
    ]
    for result in results:
        for found, wanted in zip(result, plain, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    return [node for node in after.graph.node if node.op_type == "MultiHeadAttention"]


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def declined(graph: Graph, reason: str) -> None:
    """Nothing is fused, for this reason, and the model still runs as before."""
    model = graph.model()
    after, reports = rewritten(model, disabled=BY_HEADS)
    assert reports["AttentionFusion"].changes == 0
    assert "Softmax" in operators(after)
    assert any(reason in text for text in reports["AttentionFusion"].declined), reports["AttentionFusion"].declined
    plain = run(model, graph.feeds, sardonyx.GraphOptimizationLevel.ORT_DISABLE_ALL)
    optimised = run(model, graph.feeds, sardonyx.GraphOptimizationLevel.ORT_ENABLE_ALL)
    for found, wanted in zip(optimised, plain, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def encoder(mask: Callable[[Graph, str], str] | None = None) -> Graph:
    """Self attention as TorchScript writes it for encoders; `mask` makes what is added to the scores."""
    g = Graph()
    x = g.hidden()
    scores, values = g.scores(x)
    if mask is not None:
        scores = g("Add", scores, mask(g, x))
    return g.finished(g.attended(scores, values, x), x)


def expanded_mask(g: Graph, x: str) -> str:
    """The mask of BERT: integers expanded to (batch, 1, queries, keys), inverted, filled with the lowest number."""
    mask = g.input("mask", ["b", "s"], masks(2, 5)["integers"])
    four = g("Unsqueeze", mask, g.constant([1, 2], np.int64))
    wide = g("Expand", four, g("Concat", g.sizes(x, "b", 1), g.sizes(x, "s", "s"), axis=0))
    inverted = g("Sub", g.constant(1), g("Cast", wide, to=TensorProto.FLOAT))
    return str(g("Where", g("Cast", inverted, to=TensorProto.BOOL), g.constant(LOWEST), inverted))


def test_the_encoder_of_bert_becomes_one_node() -> None:
    (node,) = fused(encoder(expanded_mask))
    assert attributes(node)["num_heads"] == HEADS
    assert attributes(node)["scale"] == pytest.approx(0.5)
    assert "unidirectional" not in attributes(node)
    assert node.input[BIAS]
    metadata = {entry.key: entry.value for entry in node.metadata_props}
    assert "AttentionFusion" in metadata[RULE_KEY].split(",")
    assert {"Softmax", "MatMul"} <= {name.split("_")[0] for name in metadata[SOURCES_KEY].split(",")}


def test_no_view_and_no_transpose_is_left() -> None:
    after, _ = rewritten(encoder(expanded_mask).model(), disabled=["QkvProjectionFusion"])
    assert not {"Reshape", "Transpose"} & set(operators(after))


def test_nothing_happens_below_the_extended_level() -> None:
    after, reports = rewritten(encoder(expanded_mask).model(), Level.BASIC)
    assert "AttentionFusion" not in reports
    assert "Softmax" in operators(after)


def test_the_form_of_the_dynamo_exporter() -> None:
    g = Graph()
    x = g.hidden()
    query, keys, values = (g.split(g.projected(x)) for _ in range(3))
    scores = g("MatMul", g.scaled(query), g.scaled(g.flipped(keys)))
    (node,) = fused(g.finished(g.attended(scores, values, x), x))
    assert attributes(node)["scale"] == pytest.approx(0.5)


def test_the_encoder_of_whisper_scales_before_the_split_at_a_fixed_length() -> None:
    g = Graph()
    x = g.input("x", ["b", 6, WIDTH], g.normal(1, 6, WIDTH))
    query = g.split(g("Mul", g.projected(x), g.constant(0.125)))
    scores = g("MatMul", query, g.split(g("MatMul", x, g.constant(g.normal(WIDTH, WIDTH))), (0, 2, 3, 1)))
    (node,) = fused(g.finished(g.attended(scores, g.split(g.projected(x)), x), x))
    assert attributes(node)["scale"] == pytest.approx(0.125)
    assert len(node.input) == 3


@pytest.mark.parametrize(("op_type", "number", "scale"), [("Div", 2.0, 0.5), ("Mul", 0.25, 0.25)])
def test_scaled_scores(op_type: str, number: float, scale: float) -> None:
    g = Graph()
    x = g.hidden()
    scores = g("MatMul", g.split(g.projected(x)), g.split(g.projected(x), (0, 2, 3, 1)))
    scores = g(op_type, scores, g.constant(number))
    (node,) = fused(g.finished(g.attended(scores, g.split(g.projected(x)), x), x))
    assert attributes(node)["scale"] == pytest.approx(scale)


def test_scores_without_a_scale_have_scale_one() -> None:
    g = Graph()
    x = g.hidden()
    scores = g("MatMul", g.split(g.projected(x)), g.split(g.projected(x), (0, 2, 3, 1)))
    (node,) = fused(g.finished(g.attended(scores, g.split(g.projected(x)), x), x))
    assert attributes(node)["scale"] == 1.0


@pytest.mark.parametrize("shape", [("b", 1, 1, "s"), ("s",), ("s", "s"), (1, HEADS, "s", "s")])
def test_masks_of_other_shapes_get_a_row_for_each_query(shape: tuple[int | str, ...]) -> None:
    def mask(g: Graph, _: str) -> str:
        feed = g.normal(*({"b": 2, "s": 5}[dim] if isinstance(dim, str) else dim for dim in shape))
        return g.input("mask", shape, feed)

    (node,) = fused(encoder(mask))
    assert node.input[BIAS]


@pytest.mark.parametrize("filled", [False, True])
def test_scores_that_are_scaled_after_the_mask(filled: bool) -> None:
    g = Graph()
    x = g.hidden()
    scores, values = g.scores(x)
    mask = g.input("m", ["b", 1, "s", "s"], g.normal(2, 1, 5, 5) > -0.5)
    layers = []
    for _ in range(2):
        if filled:
            masked = g("Where", mask, scores, g.constant(LOWEST))
        else:
            added = layers[0][0] if layers else g("Mul", g("Cast", mask, to=TensorProto.FLOAT), g.constant(-3))
            masked = g("Add", scores, added)
            layers.append((added, masked))
        result = g.attended(g("Div", masked, g.constant(4)), values, x)
        x = g.projected(result)
        scores, values = g.scores(x)
    g.output(x, ["b", "s", WIDTH])
    nodes = fused(g, 2)
    assert nodes[0].input[BIAS] == nodes[1].input[BIAS]


def test_two_masks_are_added_first() -> None:
    g = Graph()
    x = g.hidden()
    scores, values = g.scores(x)
    scores = g(
        "Add", g("Add", scores, g.input("bias", [1, HEADS, "s", "s"], g.normal(1, HEADS, 5, 5))), expanded_mask(g, x)
    )
    (node,) = fused(g.finished(g.attended(scores, values, x), x))
    assert node.input[BIAS]


@pytest.mark.parametrize("keeps", [True, False])
def test_layers_that_fill_hidden_scores_share_one_bias(keeps: bool) -> None:
    g = Graph()
    x = g.hidden()
    condition = g("Cast", g.input("mask", ["b", 1, 1, "s"], g.normal(2, 1, 1, 5)), to=TensorProto.BOOL)
    g.feeds["mask"] = (masks(2, 5)["integers"] == keeps).astype(np.float32).reshape(2, 1, 1, 5)
    rows = x
    for _ in range(2):
        scores, values = g.scores(rows)
        filler = g.constant(LOWEST)
        scores = g("Where", condition, *((scores, filler) if keeps else (filler, scores)))
        rows = g.projected(g.attended(scores, values, rows))
    nodes = fused(g.finished(rows, x), 2)
    assert nodes[0].input[BIAS] == nodes[1].input[BIAS]


def decoder(mask: Callable[[Graph, str, str, str], str] | None, *, length: int = 3, past: int = 4) -> Graph:
    """Self attention with a past that is appended to; `mask` gets the lengths and what is given as present keys."""
    g = Graph()
    x = g.hidden(2, length)
    caches = [
        g.input(f"past_{name}", ["b", HEADS, "p", SIZE], g.normal(2, HEADS, past, SIZE)) for name in ("key", "value")
    ]
    query = g.scaled(g.split(g.projected(x)))
    keys, values = (g("Concat", cache, g.split(g.projected(x)), axis=-2) for cache in caches)
    scores = g("MatMul", query, g.scaled(g("Transpose", keys, perm=[0, 1, 3, 2])))
    if mask is not None:
        scores = g("Add", scores, mask(g, x, caches[0], keys))
    for name in (keys, values):
        g.output(name, ["b", HEADS, "t", SIZE])
    return g.finished(g.attended(scores, values, x), x)


def causal_mask(g: Graph, x: str, past: str, _: str) -> str:
    queries, before = g.size(x, 1), g.size(past, 2)
    visible = g.causal(queries, g("Add", before, queries), before)
    zeros = g("ConstantOfShape", g("Shape", visible), value=helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]))
    return str(g("Where", visible, zeros, g.constant(LOWEST)))


def test_a_past_is_appended_to_by_attention_itself() -> None:
    graph = decoder(None)
    (node,) = fused(graph)
    assert list(node.input[PAST_KEY:]) == ["past_key", "past_value"]
    assert list(node.output[1:]) == list(graph.outputs)[:2]


def test_the_plain_causal_mask_counts_from_the_end_of_the_past() -> None:
    (node,) = fused(decoder(causal_mask))
    assert attributes(node)["unidirectional"] == 1
    assert not node.input[BIAS]


def test_a_causal_mask_joined_with_padding_stays_a_bias() -> None:
    def padded(g: Graph, x: str, past: str, present: str) -> str:
        queries, before = g.size(x, 1), g.size(past, 2)
        visible = g.causal(queries, g("Add", before, queries), before)
        padding = g.input("mask", ["b", 1, 1, "p + s"], masks(2, 7)["integers"].reshape(2, 1, 1, 7))
        both = g("And", visible, g("Cast", padding, to=TensorProto.BOOL))
        return str(g("Where", both, g.constant(0), g.constant(LOWEST)))

    (node,) = fused(decoder(padded))
    assert "unidirectional" not in attributes(node)
    assert node.input[BIAS]


def test_a_causal_mask_joined_with_one_that_hides_nothing_is_causal() -> None:
    def joined(g: Graph, x: str, past: str, present: str) -> str:
        queries, before = g.size(x, 1), g.size(past, 2)
        keys = g("Add", before, queries)
        everything = g(
            "ConstantOfShape",
            g("Concat", *(g("Unsqueeze", size, g.constant([0], np.int64)) for size in (g.size(x, 0), keys)), axis=0),
            value=helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        )
        four = g("Cast", g("Unsqueeze", everything, g.constant([1, 2], np.int64)), to=TensorProto.BOOL)
        both = g("And", g.causal(queries, keys, before), four)
        return str(g("Where", both, g.constant(0), g.constant(LOWEST)))

    (node,) = fused(decoder(joined))
    assert attributes(node)["unidirectional"] == 1


def test_a_causal_mask_that_forgets_the_past_stays_a_bias() -> None:
    def forgetful(g: Graph, x: str, past: str, _: str) -> str:
        queries = g.size(x, 1)
        visible = g.causal(queries, g("Add", g.size(past, 2), queries))
        return str(g("Where", visible, g.constant(0), g.constant(LOWEST)))

    (node,) = fused(decoder(forgetful))
    assert "unidirectional" not in attributes(node)


def test_the_mask_may_be_cut_to_the_length_of_the_present_keys() -> None:
    def cut(g: Graph, x: str, past: str, present: str) -> str:
        mask = g.input("mask", ["b", 1, "s", "p + s"], g.normal(2, 1, 3, 7))
        end = g("Unsqueeze", g.size(present, 2), g.constant([0], np.int64))
        return str(g("Slice", mask, g.constant([0], np.int64), end, g.constant([3], np.int64)))

    (node,) = fused(decoder(cut))
    assert node.input[BIAS] == "mask"


def test_a_mask_that_needs_the_present_keys_cannot_come_before_them() -> None:
    def circular(g: Graph, x: str, past: str, present: str) -> str:
        added = g("ReduceMean", present, axes=[1, 3], keepdims=1)
        return str(g("Unsqueeze", g("ReduceMean", added, axes=[1, 3], keepdims=0), g.constant([1, 2], np.int64)))

    declined(decoder(circular), "before its inputs are there")


def test_an_early_reader_of_the_present_finds_it_there() -> None:
    g = decoder(None)
    place = next(index for index, node in enumerate(g.nodes) if node.op_type == "Concat" and "past_key" in node.input)
    present = g.nodes[place].output[0]
    g.nodes.insert(place + 1, helper.make_node("Neg", [present], ["early"], name="early"))
    g.output("early", ["b", HEADS, "t", SIZE])
    values = next(node for node in g.nodes if node.op_type == "Concat" and "past_value" in node.input)
    assert g.nodes.index(values) > place
    declined(g, "Neg reads the present keys or values before its inputs are there")
    g.nodes.remove(next(node for node in g.nodes if node.name == "early"))
    g.nodes.insert(g.nodes.index(values) + 1, helper.make_node("Neg", [present], ["early"], name="early"))
    fused(g)


def test_cross_attention_reads_given_keys_and_values_in_four_dimensions() -> None:
    g = Graph()
    x = g.hidden()
    keys, values = (g.input(name, ["b", HEADS, "t", SIZE], g.normal(2, HEADS, 6, SIZE)) for name in ("k", "v"))
    scores = g("MatMul", g.scaled(g.split(g.projected(x)), 0.5), g("Transpose", keys, perm=[0, 1, 3, 2]))
    (node,) = fused(g.finished(g.attended(scores, values, x), x))
    assert list(node.input[KEY : VALUE + 1]) == ["k", "v"]


def test_keys_and_values_whose_lengths_have_separate_names() -> None:
    g = Graph()
    x = g.hidden()
    keys, values = (g.input(name, ["b", HEADS, name, SIZE], g.normal(2, HEADS, 6, SIZE)) for name in ("k", "v"))
    scores = g("MatMul", g.scaled(g.split(g.projected(x)), 0.5), g("Transpose", keys, perm=[0, 1, 3, 2]))
    graph = g.finished(g.attended(scores, values, x), x)
    fused(graph)
    for length in (1, 5, 7):  # fails as the product does
        feeds = graph.feeds | {"v": np.zeros((2, HEADS, length, SIZE), np.float32)}
        with pytest.raises(sardonyx.errors.Fail, match=f"6 positions, values of {HEADS} and {length}"):
            run(graph.model(), feeds, sardonyx.GraphOptimizationLevel.ORT_ENABLE_ALL)


def test_keys_and_values_of_another_sequence() -> None:
    g = Graph()
    x, y = g.hidden(), g.input("y", ["b", "t", WIDTH], g.normal(2, 7, WIDTH))
    scores = g("MatMul", g.scaled(g.split(g.projected(x)), 0.5), g.split(g.projected(y), (0, 2, 3, 1)))
    fused(g.finished(g.attended(scores, g.split(g.projected(y)), x), x))


def test_keys_and_values_that_are_given_out_keep_their_heads() -> None:
    g = Graph()
    x = g.hidden()
    keys, values = g.split(g.projected(x)), g.split(g.projected(x))
    for name in (keys, values):
        g.output(name, ["b", HEADS, "s", SIZE])
    scores = g("MatMul", g.scaled(g.split(g.projected(x)), 0.5), g("Transpose", keys, perm=[0, 1, 3, 2]))
    (node,) = fused(g.finished(g.attended(scores, values, x), x))
    assert len(node.output) == 1


def test_a_past_of_the_values_alone_leaves_four_dimensions() -> None:
    g = Graph()
    x = g.hidden(2, 3)
    keys = g.input("k", ["b", HEADS, "p + s", SIZE], g.normal(2, HEADS, 7, SIZE))
    past = g.input("past", ["b", HEADS, "p", SIZE], g.normal(2, HEADS, 4, SIZE))
    values = g("Concat", past, g.split(g.projected(x)), axis=2)
    scores = g("MatMul", g.scaled(g.split(g.projected(x)), 0.5), g("Transpose", keys, perm=[0, 1, 3, 2]))
    (node,) = fused(g.finished(g.attended(scores, values, x), x))
    assert list(node.input[KEY : VALUE + 1]) == ["k", values]


def test_values_may_have_heads_of_another_size() -> None:
    g = Graph()
    x = g.hidden()
    scores, _ = g.scores(x)
    values = g.split(g.projected(x, HEADS * 3), size=3)
    result = g.merged(g("MatMul", g("Softmax", scores, axis=-1), values), x, width=HEADS * 3)
    g.output(result, ["b", "s", HEADS * 3])
    fused(g)


def test_a_result_that_goes_on_in_two_dimensions() -> None:
    g = Graph()
    x = g.hidden()
    scores, values = g.scores(x)
    result = g("Transpose", g("MatMul", g("Softmax", scores, axis=-1), values), perm=[0, 2, 1, 3])
    flat = g("Reshape", result, g.constant([-1, WIDTH], np.int64))
    g.output(g("Gemm", flat, g.constant(g.normal(WIDTH, 3)), g.constant(g.normal(3))), ["n", 3])
    fused(g)


def test_the_scores_may_be_asked_for_their_shape() -> None:
    g = Graph()
    x = g.hidden()
    scores, values = g.scores(x)
    hidden = g(
        "Equal", g.input("mask", ["b", 1, 1, "s"], masks(2, 5)["integers"].reshape(2, 1, 1, 5)), g.constant(0, np.int64)
    )
    scores = g("Where", g("Expand", hidden, g("Shape", scores)), g.constant(LOWEST), scores)
    fused(g.finished(g.attended(scores, values, x), x))


def guarded(hide_all: bool, guard: bool) -> Graph:
    """A mask of minus infinity, which may hide all keys, with or without torch's guard against NaN."""
    g = Graph()
    x = g.hidden()
    scores, values = g.scores(x)
    visible = masks(2, 5)["integers"].reshape(2, 1, 1, 5) != 0
    if hide_all:
        visible[1] = False
    condition = g.input("mask", ["b", 1, 1, "s"], visible)
    scores = g("Add", scores, g("Where", condition, g.constant(0), g.constant(-np.inf)))
    weights = g("Softmax", scores, axis=-1)
    if guard:
        weights = g("Where", g("IsNaN", weights), g.constant(0), weights)
    return g.finished(g.merged(g("MatMul", weights, values), x), x)


@pytest.mark.parametrize("hide_all", [False, True])
def test_the_guard_against_nan_is_part_of_attention(hide_all: bool) -> None:
    graph = guarded(hide_all, guard=True)
    # onnxruntime's operator gives NaN where every key is hidden by minus infinity, ours zeros.
    fused(graph, peer_runs_fused=not hide_all)
    (found,) = run(graph.model(), graph.feeds, sardonyx.GraphOptimizationLevel.ORT_ENABLE_ALL)
    assert np.isfinite(found).all()


def test_rows_of_nan_stay_rows_of_nan() -> None:
    graph = guarded(hide_all=True, guard=False)
    declined(graph, "a query from which its mask hides every key gives NaN")
    (found,) = run(graph.model(), graph.feeds, sardonyx.GraphOptimizationLevel.ORT_ENABLE_ALL)
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[0]).all()


def _triangle_of_ones(g: Graph, x: str) -> str:
    """Where(tril(ones) == 0, -inf, 0): scaled_dot_product_attention(is_causal=True)."""
    ones = g("Expand", g.constant([1]), g.sizes(x, "s", "s"))
    hidden = g("Equal", g("Trilu", ones, upper=0), g.constant([0]))
    return str(g("Where", hidden, g.constant([-np.inf]), g.constant([0])))


def _triangle_of_infinities(g: Graph, x: str) -> str:
    """triu(full(-inf), 1): nn.Transformer.generate_square_subsequent_mask."""
    full = g("Expand", g.constant([-np.inf]), g.sizes(x, "s", "s"))
    return str(g("Trilu", full, g.constant(1, np.int64), upper=1))


def _comparison(g: Graph, x: str) -> str:
    length = g.size(x, 1)
    rows = g("Reshape", g.positions(length), g.constant([-1, 1], np.int64))
    hidden = g("Greater", g.positions(length), rows)
    return str(g("Where", hidden, g.constant(LOWEST), g.constant(0)))


def _beginning_of_a_table(g: Graph, x: str) -> str:
    table = g.constant(np.tri(64)[None, None], np.bool_)
    zero, end = g.constant([0], np.int64), g("Unsqueeze", g.size(x, 1), g.constant([0], np.int64))
    visible = g("Slice", g("Slice", table, zero, end, g.constant([2], np.int64)), zero, end, g.constant([3], np.int64))
    return str(g("Where", visible, g.constant(0), g.constant(LOWEST)))


@pytest.mark.parametrize("form", [_triangle_of_ones, _triangle_of_infinities, _comparison, _beginning_of_a_table])
def test_causal_masks_become_the_attribute(form: Callable[[Graph, str], str]) -> None:
    (node,) = fused(encoder(form))
    assert attributes(node)["unidirectional"] == 1


def test_scores_that_are_the_beginning_of_what_the_mask_is_for() -> None:
    """Rows of Min(64, s) items, as they come from a residual with a table, under a mask of s x s."""
    g = Graph()
    x = g.hidden()
    zero, end = g.constant([0], np.int64), g("Unsqueeze", g.size(x, 1), g.constant([0], np.int64))
    rows = g("Slice", g.constant(np.ones((1, 64, 1))), zero, end, g.constant([1], np.int64))
    least = g("Min", g.constant(64, np.int64), g.size(x, 1))
    flat = g("Reshape", g("Mul", x, rows), g.constant([-1, WIDTH], np.int64))
    sizes = g("Concat", g.sizes(x, "b"), g("Unsqueeze", least, zero), g.constant([WIDTH], np.int64), axis=0)
    cut = g("Reshape", flat, sizes)
    scores, values = g.scores(cut)
    scores = g("Add", scores, g.input("m", ["s", "s"], g.normal(5, 5)))
    fused(g.finished(g.attended(scores, values, cut), cut))


@pytest.mark.parametrize("diagonal", [0, 1])
def test_a_constant_mask_is_causal_or_a_bias(diagonal: int) -> None:
    g = Graph()
    x = g.input("x", ["b", 4, WIDTH], g.normal(2, 4, WIDTH))
    scores, values = g.scores(x)
    scores = g("Add", scores, g.constant(np.where(np.tri(4, k=diagonal), 0, -np.inf)[None, None]))
    (node,) = fused(g.finished(g.attended(scores, values, x), x))
    assert ("unidirectional" in attributes(node)) == (diagonal == 0)


@pytest.mark.parametrize("diagonal", [-1, 1])
def test_another_diagonal_is_not_causal(diagonal: int) -> None:
    def mask(g: Graph, x: str) -> str:
        ones = g("Expand", g.constant([1]), g.sizes(x, "s", "s"))
        visible = g("Cast", g("Trilu", ones, g.constant(diagonal, np.int64), upper=0), to=TensorProto.BOOL)
        return str(g("Where", visible, g.constant([0]), g.constant([LOWEST])))

    (node,) = fused(encoder(mask))
    assert "unidirectional" not in attributes(node)
    assert node.input[BIAS]


def constant_shapes(opset: int, **softmax: int) -> Graph:
    """Attention with a mask of two dimensions at any opset, its shapes constant."""
    g = Graph(opset)
    x = g.hidden()

    def heads(perm: tuple[int, ...]) -> str:
        split = g("Reshape", g.projected(x), g.constant([0, 0, HEADS, SIZE], np.int64))
        return str(g("Transpose", split, perm=perm))

    scores = g("Add", g("MatMul", heads((0, 2, 1, 3)), heads((0, 2, 3, 1))), g.input("m", ["s", "s"], g.normal(5, 5)))
    result = g("MatMul", g("Softmax", scores, **softmax), heads((0, 2, 1, 3)))
    merged = g("Reshape", g("Transpose", result, perm=[0, 2, 1, 3]), g.constant([0, 0, WIDTH], np.int64))
    return g.finished(merged, x)


@pytest.mark.parametrize("opset", [11, 12, 13, 18, 21])
def test_every_opset_is_fused(opset: int) -> None:
    (node,) = fused(constant_shapes(opset, axis=3))
    assert node.input[BIAS]


def test_the_axis_of_old_softmax_is_the_second_by_default() -> None:
    fused(constant_shapes(13))
    declined(constant_shapes(11), "the softmax is not over the last of four axes")


# Near misses


def changed(**changes: Any) -> Graph:
    """Self attention with one thing other than it should be."""
    g = Graph()
    x = g.hidden(2, HEADS if changes else 5)  # as many positions as heads: the wrong axes fit together as well
    query = g.split(g.projected(x), changes.get("query", (0, 2, 1, 3)))
    keys = g.split(g.projected(x), (0, 2, 1, 3))
    flipped = g("Transpose", keys, perm=changes.get("keys", (0, 1, 3, 2)))
    values = g.split(g.projected(x), changes.get("values", (0, 2, 1, 3)))
    weights = g("Softmax", g("MatMul", query, flipped), axis=changes.get("axis", -1))
    result = g("MatMul", weights, values)
    result = g.merged(result, x, changes.get("merge", (0, 2, 1, 3)))
    return g.finished(result, x)


def test_the_unchanged_graph_is_fused() -> None:
    fused(changed())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"query": (0, 1, 2, 3)}, "the query is not split into heads"),
        ({"query": (1, 2, 0, 3)}, "the query is split into heads by Transpose (1, 2, 0, 3)"),
        ({"merge": (2, 0, 1, 3)}, "merged by Transpose (2, 0, 1, 3), not (0, 2, 1, 3)"),
        ({"axis": 2}, "the softmax is not over the last of four axes"),
        ({"axis": 1}, "the softmax is not over the last of four axes"),
    ],
)
def test_other_axes_are_left_alone(changes: dict[str, Any], reason: str) -> None:
    declined(changed(**changes), reason)


def test_values_of_other_axes_are_read_as_they_are() -> None:
    graph = changed(values=(0, 1, 2, 3))
    declined(graph, "query, keys and values")


def with_scores(change: Callable[[Graph, str, str], str]) -> Graph:
    g = Graph()
    x = g.hidden()
    scores, values = g.scores(x)
    return g.finished(g.attended(change(g, scores, x), values, x), x)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda g, s, x: g("Mul", s, g.input("k", [1], g.normal(1))), "by what is not one constant number"),
        (lambda g, s, x: g("Mul", s, g.constant([[[[1.5]], [[2.5]]]])), "by what is not one constant number"),
        (
            lambda g, s, x: g("Add", s, g.input("m", ["b", 1, "s", "t"], g.normal(2, 1, 5, 5))),
            "is not known to broadcast to the scores",
        ),
        (
            lambda g, s, x: g("Mul", g("Add", s, g.input("m", ["s", "s"], g.normal(5, 5))), g.constant(2)),
            "the scores are scaled by 2.0 after they are masked",
        ),
        (
            lambda g, s, x: g(
                "Mul", g("Where", g.input("m", ["s", "s"], g.normal(5, 5) > 0), s, g.constant(-1e31)), g.constant(0.01)
            ),
            "is scaled to a number that leaves a trace",
        ),
        (
            lambda g, s, x: g("Where", g.input("m", ["s", "s"], g.normal(5, 5) > 0), s, g.constant(-1e4)),
            "cannot be added without a trace",
        ),
        (
            lambda g, s, x: g(
                "Where", g.input("m", ["s", "s"], g.normal(5, 5) > 0), s, g.input("f", ["s"], g.normal(5))
            ),
            "what replaces hidden scores is not one constant number",
        ),
        (lambda g, s, x: g("Add", s, g.input("m", [1], g.normal(1))), "its mask is the same for all keys"),
    ],
)
def test_other_ways_with_scores_are_left_alone(change: Callable[[Graph, str, str], str], reason: str) -> None:
    declined(with_scores(change), reason)


@pytest.mark.parametrize("op_type", ["MatMul", "Softmax"])
def test_scores_and_weights_that_are_read_elsewhere_stay(op_type: str) -> None:
    g = encoder()
    softmax = next(node for node in g.nodes if node.op_type == "Softmax")
    value = softmax.input[0] if op_type == "MatMul" else softmax.output[0]
    g.output(g("Neg", value), ["b", HEADS, "s", "s"])
    declined(g, f"the result of {op_type} is read elsewhere")


def test_another_type_is_left_alone() -> None:
    g = Graph()
    x = g.input("x", ["b", "s", WIDTH], g.normal(2, 5, WIDTH).astype(np.float64))
    query, keys, values = (g.split(x, perm) for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
    g.output(g.attended(g("MatMul", query, keys), values, x), ["b", "s", WIDTH], TensorProto.DOUBLE)
    declined(g, "MultiHeadAttention computes in float32")


def test_a_batch_that_only_broadcasts_is_left_alone() -> None:
    g = Graph()
    x = g.hidden()
    keys, values = (g.input(name, [1, HEADS, "t", SIZE], g.normal(1, HEADS, 6, SIZE)) for name in ("k", "v"))
    scores = g("MatMul", g.split(g.projected(x)), g("Transpose", keys, perm=[0, 1, 3, 2]))
    declined(g.finished(g.attended(scores, values, x), x), "not known to have one batch")


def test_a_query_that_is_turned_after_the_split_is_left_alone() -> None:
    g = Graph()
    x = g.hidden()
    query = g("Mul", g.split(g.projected(x)), g.input("turn", ["s", SIZE], g.normal(5, SIZE)))
    scores = g("MatMul", query, g.split(g.projected(x), (0, 2, 3, 1)))
    declined(
        g.finished(g.attended(scores, g.split(g.projected(x)), x), x),
        "the query is not split into heads: it comes from Mul",
    )


def test_keys_that_are_not_transposed_are_left_alone() -> None:
    g = Graph()
    x = g.input("x", ["b", SIZE, WIDTH], g.normal(2, SIZE, WIDTH))
    scores = g("MatMul", g.split(g.projected(x)), g("Relu", g.split(g.projected(x))))
    graph = g.finished(g.attended(scores, g.split(g.projected(x)), x), x)
    declined(graph, "the keys are not transposed: they come from Relu")


def test_attention_in_a_branch_is_left_alone() -> None:
    g = Graph()
    x = g.hidden()
    scores, values = g.scores(x)
    result = g.attended(scores, values, x)
    body = helper.make_graph(g.nodes, "then", [], [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)])
    same = helper.make_node("Relu", [x], ["same"])
    other = helper.make_graph([same], "else", [], [helper.make_tensor_value_info("same", TensorProto.FLOAT, None)])
    g.nodes = []
    choice = g.input("choice", [], np.array(True))
    g.output(g("If", choice, then_branch=body, else_branch=other), ["b", "s", WIDTH])
    _, reports = rewritten(g.model())
    assert reports["AttentionFusion"].changes == 0
    assert reports["AttentionFusion"].declined
    (wanted,) = run(g.model(), g.feeds, sardonyx.GraphOptimizationLevel.ORT_DISABLE_ALL)
    (found,) = run(g.model(), g.feeds, sardonyx.GraphOptimizationLevel.ORT_ENABLE_ALL)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_classifier_is_no_near_miss() -> None:
    g = Graph()
    x = g.hidden()
    g.output(g("Softmax", g.projected(x), axis=-1), ["b", "s", WIDTH])
    _, reports = rewritten(g.model())
    assert reports["AttentionFusion"].changes == 0
    assert reports["AttentionFusion"].declined == ()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("length", [1, 9])
def test_one_model_serves_every_batch_and_length(batch: int, length: int) -> None:
    g = encoder(expanded_mask)
    g.feeds = {"x": g.normal(batch, length, WIDTH), "mask": np.ones((batch, length), np.int64)}
    fused(g)
