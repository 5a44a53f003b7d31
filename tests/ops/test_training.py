"""Gradient against central differences in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from sardonyx import errors
from tests.ops.one_node import model_of, run

RNG = np.random.default_rng(9)
DOMAIN = {"ai.onnx.preview.training": 1}


def positive(*shape: int) -> Any:
    return RNG.uniform(0.5, 1.5, shape)


CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "add": ("Add", [positive(2, 3), positive(3)], {}),
    "sub": ("Sub", [positive(2, 3), positive(2, 1)], {}),
    "mul": ("Mul", [positive(2, 3), positive(1)], {}),
    "div": ("Div", [positive(3), positive(2, 3)], {}),
    "pow": ("Pow", [positive(2, 3), positive(3)], {}),
    "neg": ("Neg", [positive(3)], {}),
    "matmul": ("MatMul", [positive(2, 3, 4), positive(4, 5)], {}),
    "matvec": ("MatMul", [positive(3, 4), positive(4)], {}),
    "vecmat": ("MatMul", [positive(3), positive(2, 3, 4)], {}),
    "gemm": (
        "Gemm",
        [positive(4, 2), positive(3, 4), positive(3)],
        {"transA": 1, "transB": 1, "alpha": 2.0, "beta": 0.5},
    ),
    "softmax": ("Softmax", [positive(2, 3)], {"axis": -1}),
    "mean": ("ReduceMean", [positive(2, 3)], {"axes": [1], "keepdims": 0}),
    "sum": ("ReduceSum", [positive(2, 3)], {}),
    "transpose": ("Transpose", [positive(2, 3, 4)], {"perm": [2, 0, 1]}),
    "concat": ("Concat", [positive(2, 3), positive(2, 1)], {"axis": 1}),
    "leaky": ("LeakyRelu", [positive(3) - 1], {"alpha": 0.2}),
    **{
        name: (name, [positive(2, 3)], {})
        for name in ("Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Erf", "Softplus", "Reciprocal", "Sin", "Cos")
    },
}


@pytest.mark.parametrize("case", CASES)
def test_against_differences(case: str) -> None:
    op_type, inputs, attributes = CASES[case]
    names = [f"x{index}" for index in range(len(inputs))]
    feeds = dict(zip(names, inputs, strict=True))
    gradients = [f"d{name}" for name in names]
    nodes = [
        helper.make_node(op_type, names, ["raw"], **attributes),
        helper.make_node("Mul", ["raw", "raw"], ["squared"]),
        helper.make_node("ReduceSum", ["squared"], ["loss"], keepdims=0),
        helper.make_node("Gradient", names, gradients, domain="ai.onnx.preview.training", xs=names, y="loss", name="g"),
    ]
    model = model_of(nodes, feeds, ["loss", *gradients], opset=13, domains=DOMAIN)
    _, *found = run(model, feeds)
    for name, gradient in zip(names, found, strict=True):
        expected = np.zeros_like(feeds[name])
        for place in np.ndindex(expected.shape):
            values = []
            for step in (1e-5, -1e-5):
                moved = {key: value.copy() for key, value in feeds.items()}
                moved[name][place] += step
                values.append(float(run(model, moved)[0]))
            expected[place] = (values[0] - values[1]) / 2e-5
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


def test_unrelated_and_constant() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "weight"], ["y"]),
        helper.make_node(
            "Gradient", ["x", "z"], ["dx", "dz"], domain="ai.onnx.preview.training", xs=["x", "z"], y="y", name="g"
        ),
    ]
    feeds = {"x": np.ones(3, np.float32), "z": np.ones(2, np.float32)}
    weight = np.array([1, 2, 3], np.float32)
    model = model_of(nodes, feeds, ["dx", "dz"], opset=13, domains=DOMAIN, constants={"weight": weight})
    dx, dz = run(model, feeds)
    np.testing.assert_array_equal(dx, weight)
    np.testing.assert_array_equal(dz, [0, 0])


def test_operator_without_derivative() -> None:
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["y"], name="sums"),
        helper.make_node("Gradient", ["x"], ["dx"], domain="ai.onnx.preview.training", xs=["x"], y="y", name="g"),
    ]
    feeds = {"x": np.ones(3, np.float32)}
    model = model_of(nodes, feeds, ["dx"], opset=13, domains=DOMAIN, constants={"axis": np.array(0, np.int64)})
    with pytest.raises(errors.NotImplemented, match=r"CumSum \('sums'\)"):
        run(model, feeds)
