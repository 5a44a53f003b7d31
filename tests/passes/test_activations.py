"""GELU in all its written-out forms, QuickGelu and SiLU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx.passes.base import Level
from sardonyx.passes.rule import RULE_KEY, SOURCES_KEY
from tests.passes.agreement import assert_agrees
from tests.passes.models import make_model, operators, rewritten

RNG = np.random.default_rng(13)
X = {"x": (RNG.standard_normal((2, 5, 8)) * 3).astype(np.float32)}
SHAPE: dict[str, list[int | str]] = {"x": ["n", "m", 8]}
N = helper.make_node
CONSTANTS = {
    name: np.array(number, np.float32)
    for name, number in {
        "root2": math.sqrt(2),
        "short_root2": 1.41421,
        "half_root": math.sqrt(0.5),
        "one": 1,
        "two": 2,
        "three": 3,
        "half": 0.5,
        "factor": math.sqrt(2 / math.pi),
        "cubic": 0.044715,
        "quick": 1.702,
    }.items()
}

# 0.5 * x * g, as exporters order it; each ends in "y".
TAILS: dict[str, list[Sequence[str]]] = {
    "(x*g)*half": [("Mul", "x", "g", "p"), ("Mul", "p", "half", "y")],
    "x*(g*half)": [("Mul", "g", "half", "p"), ("Mul", "x", "p", "y")],
    "(x*half)*g": [("Mul", "x", "half", "p"), ("Mul", "p", "g", "y")],
    "(half*x)*g": [("Mul", "half", "x", "p"), ("Mul", "g", "p", "y")],
    "(x*g)/2": [("Mul", "x", "g", "p"), ("Div", "p", "two", "y")],
    "x*(g/2)": [("Div", "g", "two", "p"), ("Mul", "p", "x", "y")],
    "(x/2)*g": [("Div", "x", "two", "p"), ("Mul", "p", "g", "y")],
}
ERF_HEADS: dict[str, list[Sequence[str]]] = {
    "div": [("Div", "x", "root2", "s")],
    "div by few digits": [("Div", "x", "short_root2", "s")],
    "mul": [("Mul", "half_root", "x", "s")],
}
CUBES: dict[str, list[Sequence[str]]] = {
    "pow": [("Pow", "x", "three", "c")],
    "products": [("Mul", "x", "x", "q"), ("Mul", "q", "x", "c")],
    "products reversed": [("Mul", "x", "x", "q"), ("Mul", "x", "q", "c")],
}
PLAIN_TANH: list[Sequence[str]] = [("Mul", "cubic", "c", "k"), ("Add", "x", "k", "a"), ("Mul", "a", "factor", "s")]
FACTORED_TANH: dict[str, list[Sequence[str]]] = {
    "(x*k)*x": [("Mul", "x", "cubic", "k"), ("Mul", "k", "x", "c")],
    "k*(x*x)": [("Mul", "x", "x", "q"), ("Mul", "cubic", "q", "c")],
    "k*x^2": [("Pow", "x", "two", "q"), ("Mul", "q", "cubic", "c")],
}


def _model(steps: Sequence[Sequence[str]], opset: int = 17, constants: dict[str, Any] | None = None) -> onnx.ModelProto:
    nodes = [N(kind, list(names[:-1]), [names[-1]], name=f"{kind}_{names[-1]}") for kind, *names in steps]
    return make_model(nodes, SHAPE, ["y"], constants or CONSTANTS, opset=opset)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("head", ERF_HEADS)
def test_erf_gelu(head: str, tail: str, opset: int) -> None:
    model = _model([*ERF_HEADS[head], ("Erf", "s", "e"), ("Add", "e", "one", "g"), *TAILS[tail]], opset)
    after, reports = rewritten(model)
    (node,) = after.graph.node
    assert (node.op_type, node.domain) == ("Gelu", "" if opset >= 20 else "com.microsoft")
    assert reports["GeluFusionL2"].changes == 1
    metadata = {entry.key: entry.value for entry in node.metadata_props}
    assert metadata[RULE_KEY] == "GeluFusionL2"
    assert "Erf_e" in metadata[SOURCES_KEY].split(",")
    assert len(metadata[SOURCES_KEY].split(",")) == 5
    assert_agrees(model, after, X)
    assert "Erf" in operators(rewritten(model, Level.BASIC)[0])


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("cube", CUBES)
def test_tanh_gelu(cube: str, tail: str, opset: int) -> None:
    steps = [*CUBES[cube], *PLAIN_TANH, ("Tanh", "s", "t"), ("Add", "one", "t", "g"), *TAILS[tail]]
    model = _model(steps, opset)
    after, reports = rewritten(model)
    (node,) = after.graph.node
    assert node.op_type == ("Gelu" if opset >= 20 else "FastGelu")
    assert reports["FastGeluFusion"].changes == 1
    assert_agrees(model, after, X)


@pytest.mark.parametrize("inner", FACTORED_TANH)
@pytest.mark.parametrize("first", [True, False])
def test_tanh_gelu_with_its_cubic_factored(inner: str, first: bool) -> None:
    outer = (
        [("Mul", "x", "factor", "f"), ("Mul", "f", "w", "s")]
        if first
        else [("Mul", "x", "w", "f"), ("Mul", "factor", "f", "s")]
    )
    steps = [*FACTORED_TANH[inner], ("Add", "c", "one", "w"), *outer, ("Tanh", "s", "t"), ("Add", "t", "one", "g")]
    model = _model([*steps, *TAILS["(x*half)*g"]])
    after, _ = rewritten(model)
    assert operators(after) == ["FastGelu"]
    assert_agrees(model, after, X)


@pytest.mark.parametrize(
    ("steps", "alpha"),
    [
        ([("Mul", "x", "quick", "s"), ("Sigmoid", "s", "g"), ("Mul", "x", "g", "y")], 1.702),
        ([("Mul", "quick", "x", "s"), ("Sigmoid", "s", "g"), ("Mul", "g", "x", "y")], 1.702),
        ([("Sigmoid", "x", "g"), ("Mul", "x", "g", "y")], 1.0),
        ([("Sigmoid", "x", "g"), ("Mul", "g", "x", "y")], 1.0),
    ],
)
def test_quick_gelu_and_silu(steps: list[Sequence[str]], alpha: float) -> None:
    model = _model(steps)
    after, reports = rewritten(model)
    (node,) = after.graph.node
    assert (node.op_type, node.domain) == ("QuickGelu", "com.microsoft")
    assert node.attribute[0].f == pytest.approx(alpha)
    assert reports["QuickGeluFusion"].changes == 1
    assert_agrees(model, after, X)


@pytest.mark.parametrize(
    ("name", "changed", "operator"),
    [("half", 0.6, "Erf"), ("one", 1.1, "Erf"), ("root2", 1.5, "Erf")],
)
def test_other_numbers_are_no_gelu(name: str, changed: float, operator: str) -> None:
    constants = {**CONSTANTS, name: np.array(changed, np.float32)}
    steps = [*ERF_HEADS["div"], ("Erf", "s", "e"), ("Add", "e", "one", "g"), *TAILS["(x*g)*half"]]
    model = _model(steps, constants=constants)
    after, _ = rewritten(model)
    assert operator in operators(after)
    assert_agrees(model, after, X)


@pytest.mark.parametrize(("name", "changed"), [("cubic", 0.05), ("factor", 0.8), ("three", 2)])
def test_other_numbers_are_no_tanh_gelu(name: str, changed: float) -> None:
    constants = {**CONSTANTS, name: np.array(changed, np.float32)}
    steps = [*CUBES["pow"], *PLAIN_TANH, ("Tanh", "s", "t"), ("Add", "t", "one", "g"), *TAILS["(x*half)*g"]]
    model = _model(steps, constants=constants)
    after, _ = rewritten(model)
    assert "Tanh" in operators(after)
    assert_agrees(model, after, X)


def test_a_part_that_is_read_elsewhere_keeps_the_parts() -> None:
    steps = [*ERF_HEADS["div"], ("Erf", "s", "e"), ("Add", "e", "one", "g"), *TAILS["(x*g)*half"], ("Neg", "g", "z")]
    nodes = [N(kind, list(names[:-1]), [names[-1]]) for kind, *names in steps]
    model = make_model(nodes, SHAPE, ["y", "z"], CONSTANTS)
    after, reports = rewritten(model)
    assert "Erf" in operators(after)
    assert any("the result of Add is read elsewhere" in reason for reason in reports["GeluFusionL2"].declined)
    assert_agrees(model, after, X)


def test_half_precision_keeps_its_roundings() -> None:
    nodes = [N("Sigmoid", ["x"], ["g"]), N("Mul", ["x", "g"], ["y"])]
    model = make_model(nodes, SHAPE, ["y"], dtype=TensorProto.FLOAT16)
    after, reports = rewritten(model)
    assert operators(after) == ["Sigmoid", "Mul"]
    assert any("round one by one" in reason for reason in reports["QuickGeluFusion"].declined)


def test_a_factor_of_many_numbers_or_more_dimensions_is_no_quick_gelu() -> None:
    steps = [("Mul", "x", "quick", "s"), ("Sigmoid", "s", "g"), ("Mul", "x", "g", "y")]
    for factor, reason in (
        (np.ones(8, np.float32), "not one number"),
        (np.ones((1, 1, 1, 1), np.float32), "more dimensions"),
    ):
        model = _model(steps, constants={"quick": factor})
        after, reports = rewritten(model)
        assert "Sigmoid" in operators(after)
        assert any(reason in text for text in reports["QuickGeluFusion"].declined)
        assert_agrees(model, after, X)
