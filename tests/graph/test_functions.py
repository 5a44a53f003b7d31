"""Model-local functions are expanded: nested, with defaults, other opsets, subgraphs, overloads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import sardonyx
from sardonyx import errors
from sardonyx.graph.load import load_model
from tests.graph.models import info, model, node, run

X = np.array([1.0, -2.0], np.float32)


def function(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    nodes: Sequence[Any],
    attributes: Sequence[str] = (),
    opset: int = 17,
    **more: Any,
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, list(inputs), list(outputs), list(nodes), imports, list(attributes), **more)


def calling(functions: Sequence[onnx.FunctionProto], *nodes: onnx.NodeProto, **more: Any) -> onnx.ModelProto:
    return model(list(nodes), imports=[("f", 1)], functions=functions, **more)


def call(
    name: str, inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ("y",), **attributes: Any
) -> onnx.NodeProto:
    return node(name, list(inputs), list(outputs), domain="f", **attributes)


def leaky(default: float | None = None) -> onnx.FunctionProto:
    body = onnx.NodeProto(op_type="LeakyRelu", input=["a"], output=["b"])
    body.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    given = {} if default is None else {"attribute_protos": [helper.make_attribute("slope", default)]}
    return function("Leak", ["a"], ["b"], [body], ["slope"] if default is None else [], **given)


def test_nested_calls() -> None:
    twice = function("Twice", ["p"], ["r"], [call("Leak", ["p"], ["q"], slope=0.5), node("Add", ["q", "p"], ["r"])])
    proto = calling([leaky(), twice], call("Twice", ["x"], ["h"]), call("Twice", ["h"], ["y"]))
    assert run(proto, x=X)[0].tolist() == [4, -4.5]
    loaded = load_model(proto)
    assert len(loaded.model.functions) == 0
    names = [value.name for each in loaded.model.graph for value in each.outputs]
    assert names[-1] == "y"
    assert len(set(names)) == len(names) == 4


@pytest.mark.parametrize(("attributes", "expected"), [({}, -0.5), ({"slope": 2.0}, -4.0)])
def test_default_attributes(attributes: dict[str, float], expected: float) -> None:
    assert run(calling([leaky(0.25)], call("Leak", **attributes)), x=X)[0].tolist() == [1, expected]


def test_attribute_that_nobody_gives_takes_the_operators_default() -> None:
    np.testing.assert_allclose(run(calling([leaky()], call("Leak")), x=X)[0], [1, -0.02], rtol=1e-6)


def test_function_of_another_opset() -> None:
    squeeze = function("S", ["a"], ["b"], [node("Squeeze", ["a"], ["b"], axes=[0])], opset=11)
    proto = calling([squeeze], call("S"), inputs=[info("x", (1, 2))])
    (inlined,) = load_model(proto).model.graph
    assert inlined.version == 11
    assert run(proto, x=X[None])[0].tolist() == X.tolist()


def test_body_with_subgraphs_and_missing_inputs() -> None:
    then = helper.make_graph([node("Neg", ["a"], ["t"])], "t", [], [info("t")])
    other = helper.make_graph([call("Leak", ["a"], ["e"], slope=0.5)], "e", [], [info("e")])
    chosen = function(
        "Choose",
        ["a", "low"],
        ["b"],
        [
            node("ReduceSum", ["a"], ["s"], keepdims=0),
            node("Cast", ["s"], ["c"], to=9),
            node("If", ["c"], ["i"], then_branch=then, else_branch=other),
            node("Clip", ["i", "low"], ["b"]),
        ],
    )
    proto = calling([leaky(), chosen], call("Choose"))
    assert run(proto, x=X)[0].tolist() == [-1, 2]
    assert run(proto, x=np.array([2.0, -2.0], np.float32))[0].tolist() == [2, -1]


def test_calls_inside_a_body_of_the_main_graph() -> None:
    then = helper.make_graph([call("Leak", ["x"], ["t"], slope=3.0)], "t", [], [info("t")])
    other = helper.make_graph([node("Identity", ["x"], ["e"])], "e", [], [info("e")])
    proto = calling(
        [leaky()],
        node("If", ["c"], ["y"], then_branch=then, else_branch=other),
        initializers=[helper.make_tensor("c", 9, [], [True])],
    )
    assert run(proto, x=X)[0].tolist() == [1, -6]


def test_overloads_and_results_handed_through() -> None:
    first = function("A", ["a"], ["b"], [node("Neg", ["a"], ["b"])])
    second = function("A", ["a"], ["b"], [node("Abs", ["a"], ["b"])])
    second.overload = "abs"
    same = function("Same", ["a"], ["a"], [])
    abs_call = call("A", ["h"], ["z"])
    abs_call.overload = "abs"
    proto = calling([first, second, same], call("A", ["x"], ["h"]), abs_call, call("Same", ["z"], ["y"]), ir_version=10)
    assert run(proto, x=X)[0].tolist() == [1, 2]
    assert [value.name for value in load_model(proto).model.graph.outputs] == ["y"]


def test_an_operator_of_onnx_is_not_replaced() -> None:
    fake = helper.make_function("", "Relu", ["a"], ["b"], [node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)])
    assert run(model([node("Relu", ["x"], ["y"])], functions=[fake]), x=X)[0].tolist() == [1, 0]


@pytest.mark.parametrize("names", [("A",), ("A", "B")])
def test_recursion(names: tuple[str, ...]) -> None:
    functions = [
        function(name, ["a"], ["b"], [call(names[(index + 1) % len(names)], ["a"], ["b"])])
        for index, name in enumerate(names)
    ]
    with pytest.raises(errors.InvalidGraph, match=r"must not be recursive\. Cycle detected: f:"):
        load_model(calling(functions, call("A")))


def test_expansion_is_bounded() -> None:
    doubling = [
        function(f"D{level}", ["a"], ["b"], [call(f"D{level + 1}", ["a"], ["h"]), call(f"D{level + 1}", ["h"], ["b"])])
        for level in range(60)
    ]
    last = function("D60", ["a"], ["b"], [node("Neg", ["a"], ["b"])])
    with pytest.raises(errors.Fail, match="nodes once its functions are expanded"):
        load_model(calling([*doubling, last], call("D0")))


@pytest.mark.parametrize(("inputs", "outputs"), [(["x", "x"], ["y"]), (["x"], ["y", "z"])], ids=["inputs", "outputs"])
def test_calls_that_do_not_fit(inputs: list[str], outputs: list[str]) -> None:
    negative = function("N", ["a"], ["b"], [node("Neg", ["a"], ["b"])])
    with pytest.raises(errors.Fail, match="its function has 1 and 1"):
        load_model(calling([negative], call("N", inputs, outputs)))


def test_duplicate_function_and_missing_output() -> None:
    negative = function("N", ["a"], ["b"], [node("Neg", ["a"], ["b"])])
    with pytest.raises(errors.Fail, match="Duplicate model-local function identifier: f:N"):
        load_model(calling([negative, negative], call("N")))
    with pytest.raises(errors.InvalidArgument, match="'zz' of the function f:M is not computed"):
        load_model(calling([function("M", ["a"], ["zz"], [node("Neg", ["a"], ["b"])])], call("M")))


@pytest.mark.parametrize("keeps", [False, True])
def test_the_optimised_model_keeps_definitions_where_that_is_asked_for(tmp_path: Path, keeps: bool) -> None:
    twice = function("Twice", ["p"], ["r"], [call("Leak", ["p"], ["q"], slope=0.5), node("Add", ["q", "p"], ["r"])])
    proto = calling([leaky(), twice], call("Twice", ["x"], ["h"]), call("Twice", ["h"], ["y"]))
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.add_session_config_entry("session.disable_aot_function_inlining", str(int(keeps)))
    sardonyx.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    saved = onnx.load(options.optimized_model_filepath)
    onnx.checker.check_model(saved)
    assert sorted(each.name for each in saved.functions) == (["Leak", "Twice"] if keeps else [])
    assert {each.domain for each in saved.graph.node} == {""}
    for engine in (sardonyx, pytest.importorskip("onnxruntime")):
        again = engine.InferenceSession(options.optimized_model_filepath, providers=["CPUExecutionProvider"])
        assert again.run(None, {"x": X})[0].tolist() == [4, -4.5]
