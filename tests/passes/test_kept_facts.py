"""What inference knows of a model stays true while it is rewritten, and the index of its nodes complete."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import infer_model
from sardonyx.passes import pipeline
from sardonyx.passes.base import Context, Level
from sardonyx.passes.node_index import NodeIndex
from tests.passes.agreement import assert_agrees
from tests.passes.models import make_model, operators, rewritten

RNG = np.random.default_rng(18)
N = helper.make_node


def shown(fact: Fact | None) -> tuple[Any, ...]:
    assert fact is not None
    return (
        str(fact.type),
        None if fact.shape is None else tuple(map(str, fact.shape)),
        None if fact.elements is None else tuple(map(str, fact.elements)),
    )


def _sizes_by_floats() -> onnx.ModelProto:
    """A shape whose sizes come from arithmetic of floats, which only folding works out."""
    nodes = [
        N("Cast", ["root"], ["real"], to=TensorProto.FLOAT),
        N("Sqrt", ["real"], ["half"]),
        N("Cast", ["half"], ["whole"], to=TensorProto.INT64),
        N("Concat", ["minus", "whole"], ["target"], axis=0),
        N("Reshape", ["x", "target"], ["r"]),
        N("Shape", ["r"], ["t"]),
        N("Gather", ["t", "one"], ["last"], axis=0),
        N("ConstantOfShape", ["last"], ["zeros"]),
        N("Add", ["r", "zeros"], ["y"]),
    ]
    constants = {"root": np.array([16]), "minus": np.array([-1]), "one": np.array([1])}
    return make_model(nodes, {"x": ["n", 8]}, ["y"], constants)


def test_what_folding_learns_is_known_behind_it_at_once() -> None:
    model = _sizes_by_floats()
    after, _ = rewritten(model)
    assert operators(after) == ["Reshape", "Add"]
    assert_agrees(model, after, {"x": RNG.standard_normal((2, 8)).astype(np.float32)})


def _block() -> onnx.ModelProto:
    """Half a transformer layer: projections, attention, residual, normalisation, and a linear layer over rows."""
    random = np.random.default_rng(17).standard_normal
    constants = {name: random((8, 8)).astype(np.float32) for name in ("wq", "wk", "wv", "w")}
    constants |= {name: random(8).astype(np.float32) for name in ("bq", "scale", "offset", "b")}
    constants |= {"rows": np.array([-1, 8]), "half": np.array(0.5, np.float32), "one": np.array(1, np.float32)}
    constants["root"] = np.array(np.sqrt(2), np.float32)
    nodes = [
        *(N("MatMul", ["x", f"w{letter}"], [f"{letter}p"]) for letter in "qkv"),
        N("Add", ["qp", "bq"], ["qs"]),
        N("MultiHeadAttention", ["qs", "kp", "vp"], ["a"], domain="com.microsoft", num_heads=2),
        N("Add", ["a", "x"], ["total"]),
        N("LayerNormalization", ["total", "scale", "offset"], ["n"]),
        N("Shape", ["n"], ["shape"]),
        N("Reshape", ["n", "rows"], ["flat"]),
        N("Gemm", ["flat", "w", "b"], ["g"]),
        N("Reshape", ["g", "shape"], ["h"]),
        N("Div", ["h", "root"], ["d"]),
        N("Erf", ["d"], ["e"]),
        N("Add", ["e", "one"], ["f"]),
        N("Mul", ["h", "f"], ["m"]),
        N("Mul", ["m", "half"], ["u"]),
        N("Add", ["u", "total"], ["y"]),
    ]
    model = make_model(nodes, {"x": ["n", "m", 8]}, [], constants)
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "m", 8]))
    return model


def test_half_a_transformer_layer_is_what_it_means() -> None:
    model = _block()
    after, _ = rewritten(model)
    assert operators(after) == [
        *("MatMul", "Add", "Split", "MultiHeadAttention", "SkipLayerNormalization", "MatMul", "Add", "Gelu", "Add")
    ]
    for shape in ((2, 5, 8), (1, 1, 8)):
        assert_agrees(model, after, {"x": RNG.standard_normal(shape).astype(np.float32)}, atol=1e-4)


@pytest.mark.parametrize("make", [_sizes_by_floats, _block])
@pytest.mark.parametrize("level", [Level.BASIC, Level.ALL])
def test_facts_after_the_rewrites_are_those_of_a_new_inference(make: Any, level: Level) -> None:
    model = ir.from_proto(make())
    inference = infer_model(model)
    pipeline.apply(model, level, (), inference)
    fresh = infer_model(model)
    values = [value for node in model.graph for value in node.outputs]
    assert values
    for value in values:
        assert shown(inference.facts.get(value)) == shown(fresh.facts.get(value))


def test_the_index_knows_added_nodes_and_forgets_removed_ones() -> None:
    model = ir.from_proto(make_model([N("Relu", ["x"], ["a"]), N("Neg", ["a"], ["y"])], {"x": ["n", "m"]}, ["y"]))
    context = Context(model, infer_model(model))
    relu, neg = model.graph
    assert context.index.find([("", "Neg"), ("", "Relu")]) == [neg, relu]
    again = ir.node("Relu", [relu.outputs[0]], version=17)
    model.graph.insert_before(neg, again)
    context.added(again)
    assert context.index.find([("", "Relu")]) == [relu, again]
    assert shown(context.inference.facts[again.outputs[0]]) == (str(ir.TensorType(ir.DataType.FLOAT)), ("n", "m"), None)
    model.graph.remove(again, safe=True)
    assert context.index.find([("", "Relu")]) == [relu]
    assert NodeIndex(model.graph).find([("", "Exp")]) == []
