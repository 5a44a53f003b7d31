"""GELU with its bias, its approximation, and the product before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx.passes.base import Settings
from tests.passes.agreement import assert_agrees, outputs_of, outputs_of_onnxruntime
from tests.passes.models import fused, make_model, node_of, operators, rewritten

RNG = np.random.default_rng(21)
X = {"x": RNG.standard_normal((2, 5, 8)).astype(np.float32) * 3}
SHAPE: dict[str, list[int | str]] = {"x": ["n", "m", 8]}
BIAS = RNG.standard_normal(8).astype(np.float32)
N = helper.make_node


def _biased(kind: str, bias: Any = BIAS, opset: int = 20, first: bool = False, **attributes: Any) -> onnx.ModelProto:
    domain = "" if opset >= 20 and kind == "Gelu" else "com.microsoft"
    nodes = [
        N("Add", ["bias", "x"] if first else ["x", "bias"], ["sum"]),
        N(kind, ["sum"], ["g"], domain=domain, **attributes),
        N("Neg", ["g"], ["y"]),
    ]
    return make_model(nodes, SHAPE, ["y"], {"bias": bias}, opset=opset)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("kind", "opset", "attributes", "expected"),
    [
        ("Gelu", 20, {}, "BiasGelu"),
        ("Gelu", 20, {"approximate": "tanh"}, "FastGelu"),
        ("Gelu", 17, {}, "BiasGelu"),
        ("FastGelu", 17, {}, "FastGelu"),
    ],
)
def test_a_row_before_it_is_its_second_input(
    kind: str, opset: int, attributes: dict[str, str], expected: str, first: bool
) -> None:
    model = _biased(kind, opset=opset, first=first, **attributes)
    after, reports = fused(model)
    assert reports["BiasGeluFusion"].changes == 1
    assert operators(after) == [expected, "Neg"]
    assert list(after.graph.node[0].input) == ["x", "bias"]
    assert_agrees(model, after, X, atol=1e-5)


@pytest.mark.parametrize("bias", [np.ones((5, 8), np.float32), np.ones(1, np.float32)])
def test_what_is_no_row_stays(bias: Any) -> None:
    model = _biased("Gelu", bias)
    after, reports = fused(model)
    assert operators(after) == ["Add", "Gelu", "Neg"]
    assert any("not a row" in text for text in reports["BiasGeluFusion"].declined)
    assert_agrees(model, after, X)


def test_a_sum_that_is_read_elsewhere_stays() -> None:
    model = _biased("Gelu")
    model.graph.node[2].CopyFrom(N("Mul", ["g", "sum"], ["y"]))
    after, reports = fused(model)
    assert operators(after) == ["Add", "Gelu", "Mul"]
    assert any("read elsewhere" in text for text in reports["BiasGeluFusion"].declined)


@pytest.mark.parametrize("opset", [17, 20])
def test_the_approximation_is_made_where_it_is_asked_for(opset: int) -> None:
    domain = "" if opset >= 20 else "com.microsoft"
    model = make_model([N("Gelu", ["x"], ["y"], domain=domain)], SHAPE, ["y"], opset=opset)
    plain, reports = rewritten(model)
    assert operators(plain) == ["Gelu"]
    assert "GeluApproximation" not in reports
    settings = Settings(enabled=frozenset({"GeluApproximation"}))
    after, reports = rewritten(model, settings=settings)
    assert reports["GeluApproximation"].changes == 1
    assert operators(after) == ["FastGelu"]
    exact, near = outputs_of(model, X)[0], outputs_of(after, X)[0]
    assert 1e-5 < np.abs(exact - near).max() < 1e-3
    np.testing.assert_allclose(near, outputs_of_onnxruntime(after, X)[0], atol=1e-6)
    assert operators(rewritten(model, disabled={"GeluApproximation"}, settings=settings)[0]) == ["Gelu"]


def test_the_approximation_takes_the_bias_along_and_leaves_the_tanh_form() -> None:
    settings = Settings(enabled=frozenset({"GeluApproximation"}))
    after, _ = fused(_biased("Gelu"), settings=settings)
    assert operators(after) == ["FastGelu", "Neg"]
    assert list(after.graph.node[0].input) == ["x", "bias"]
    tanh = make_model([N("Gelu", ["x"], ["y"], approximate="tanh")], SHAPE, ["y"], opset=20)
    assert operators(rewritten(tanh, settings=settings)[0]) == ["Gelu"]


def test_a_product_before_the_tanh_form_is_one_node_where_it_is_asked_for() -> None:
    nodes = [
        N("MatMul", ["x", "w"], ["p"]),
        N("Add", ["p", "bias"], ["sum"]),
        N("FastGelu", ["sum"], ["y"], domain="com.microsoft"),
    ]
    constants = {"w": RNG.standard_normal((8, 8)).astype(np.float32), "bias": BIAS}
    model = make_model(nodes, SHAPE, ["y"], constants)
    assert "GemmFastGelu" not in operators(fused(model)[0])
    after, _ = fused(model, settings=Settings(enabled=frozenset({"GemmFastGeluFusion"})))
    assert list(node_of(after, "GemmFastGelu").input) == ["x", "w", "bias"]
    for level in (0, 99):
        np.testing.assert_allclose(outputs_of(after, X, level)[0], outputs_of(model, X)[0], rtol=1e-5, atol=1e-5)


def test_double_precision_has_no_such_kernel() -> None:
    nodes = [N("Add", ["x", "bias"], ["sum"]), N("Gelu", ["sum"], ["y"])]
    model = make_model(nodes, SHAPE, ["y"], {"bias": BIAS.astype(np.float64)}, opset=20, dtype=TensorProto.DOUBLE)
    after, _ = fused(model, settings=Settings(enabled=frozenset({"GeluApproximation"})))
    assert operators(after) == ["Add", "Gelu"]
