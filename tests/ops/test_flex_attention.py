"""Attention with graphs of its own at every level, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.ops.levels import assert_refused, assert_results
from tests.ops.one_node import model_of

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def body(
    nodes: Sequence[onnx.NodeProto], given: str, made: str, constants: Sequence[onnx.TensorProto] = ()
) -> onnx.GraphProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", "h", "l", "s"]) for name in (given, made)]
    return helper.make_graph(nodes, "body", values[:1], values[1:], list(constants))


def flex(feeds: dict[str, np.ndarray], before: Sequence[onnx.NodeProto] = (), **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview", **attributes)
    shapes = {name: [f"{name}{axis}" for axis in range(array.ndim)] for name, array in feeds.items()}
    return model_of([*before, node], feeds, ["y"], opset=24, shapes=shapes, domains={"ai.onnx.preview": 1})


def attention(feeds: dict[str, np.ndarray], bias: Any = 0, factor: Any = 1) -> np.ndarray:
    q, k, v = (feeds[name].astype(np.float64) for name in "qkv")
    k, v = (np.repeat(array, q.shape[1] // array.shape[1], axis=1) for array in (k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    result: np.ndarray = (factor * weights / weights.sum(-1, keepdims=True) @ v).astype(feeds["q"].dtype)
    return result


def operands(length: int = 3, keys: int = 5, dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {
        name: normal(2, heads, n, 4).astype(dtype)
        for name, heads, n in (("q", 4, length), ("k", 2, keys), ("v", 2, keys))
    }


@pytest.mark.parametrize("outer", ["bias", "Score", "QScaled", "outer/bias"])
@pytest.mark.parametrize("source", ["input", "result", "initializer"])
def test_graphs_read_outer_values_of_any_name(outer: str, source: str) -> None:
    feeds, bias, factor = operands(), normal(3, 5), normal(3, 5)
    score = body([helper.make_node("Add", ["Prob", outer], ["KAligned"])], "Prob", "KAligned")
    prob = body([helper.make_node("Mul", ["Prob", "factor"], ["KAligned"])], "Prob", "KAligned")
    given = feeds | {"factor": factor}
    before = []
    if source == "input":
        given[outer] = bias
    elif source == "result":
        given["negative"] = -bias
        before = [helper.make_node("Neg", ["negative"], [outer])]
    model = flex(given, before, score_mod=score, prob_mod=prob)
    if source == "initializer":
        model.graph.initializer.append(numpy_helper.from_array(bias, outer))
    assert_results(model, [given], [[attention(feeds, bias, factor)]])


def test_a_graph_inside_a_graph_reads_values_of_both() -> None:
    feeds = operands() | {"flag": np.array(True), "bias": normal(3, 5)}
    branches = {}
    for name, operator in (("then_branch", "Add"), ("else_branch", "Sub")):
        node = helper.make_node(operator, ["doubled", "bias"], ["changed"])
        result = helper.make_tensor_value_info("changed", TensorProto.FLOAT, None)
        branches[name] = helper.make_graph([node], name, [], [result])
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["doubled"]),
        helper.make_node("If", ["flag"], ["z"], **branches),
    ]
    score = body(nodes, "x", "z", [numpy_helper.from_array(np.array(2, np.float32), "two")])
    wanted = []
    for flag in (True, False):
        twice = {name: feeds[name] * (2 if name == "q" else 1) for name in "qkv"}
        wanted.append([attention(twice, feeds["bias"] if flag else -feeds["bias"])])
    assert_results(flex(feeds, score_mod=score), [feeds, feeds | {"flag": np.array(False)}], wanted)


def test_a_graph_may_give_what_it_takes() -> None:
    feeds = operands()
    assert_results(flex(feeds, score_mod=body([], "x", "x")), [feeds], [[attention(feeds)]])


def test_no_queries_and_no_batch_give_no_rows() -> None:
    feeds = operands()
    empty = operands(length=0)
    none = {name: array[:0] for name, array in feeds.items()}
    score = body([helper.make_node("Neg", ["x"], ["z"])], "x", "z")
    wanted = [[attention(feeds | {"q": -feeds["q"]})], [attention(empty)], [attention(none)]]
    assert_results(flex(feeds, score_mod=score), [feeds, empty, none], wanted)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float16, 2e-3), (np.float64, 1e-6)])
def test_other_types(dtype: type, tolerance: float) -> None:
    feeds = operands(dtype=dtype)
    assert_results(flex(feeds, scale=0.5), [feeds], [[attention(feeds)]], tolerance)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"k": (2, 3, 5, 4)}, "do not fit together"), ({"v": (2, 2, 6, 4)}, "do not fit together")],
)
def test_shapes_that_do_not_fit_are_refused(changes: dict[str, tuple[int, ...]], words: str) -> None:
    feeds = operands() | {name: normal(*shape) for name, shape in changes.items()}
    model = flex(feeds)
    for value in model.graph.input:
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, feeds[value.name].shape))
    assert_refused(model, feeds, words)


def test_a_graph_that_makes_another_shape_is_refused() -> None:
    feeds = operands()
    score = body([helper.make_node("ReduceSum", ["x"], ["z"])], "x", "z")
    model = flex(feeds, score_mod=score)
    for value in model.graph.input:
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, feeds[value.name].shape))
    assert_refused(model, feeds, "score_mod makes shape")
