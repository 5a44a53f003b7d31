"""Shapes that a model declares and that are not so in a run: the right result or one typed error, never a wrong one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx as ort
from sardonyx import errors
from tests.graph.models import node

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)
Dims = Sequence[Any] | None


def value(name: str, dims: Dims) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def places(mask: str, result: str) -> list[Any]:
    """Nodes that give the places of the nonzero elements of `mask`: a vector whose length depends on data."""
    return [
        node("NonZero", [mask], [f"{mask}_found"]),
        node("Cast", [f"{mask}_found"], [f"{mask}_float"], to=TensorProto.FLOAT),
        node("Squeeze", [f"{mask}_float", "zero"], [result]),
    ]


def session(nodes: list[Any], inputs: list[Any], outputs: list[str], declared: list[Any]) -> ort.InferenceSession:
    zero = helper.make_tensor("zero", TensorProto.INT64, [1], [0])
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], WEIGHTS.ravel())
    graph = helper.make_graph(
        nodes, "g", inputs, [value(name, None) for name in outputs], [zero, weights], value_info=declared
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options)


def right_or_refused(made: ort.InferenceSession, feeds: dict[str, Any], expected: list[np.ndarray] | None) -> bool:
    """Whether the run gave results, which are then the expected ones."""
    try:
        found = made.run(None, feeds)
    except errors.OnnxRuntimeError:
        return False
    assert expected is not None
    for ours, wanted in zip(found, expected, strict=True):
        assert ours.shape == wanted.shape
        np.testing.assert_allclose(ours, wanted, rtol=1e-5)
    return True


@pytest.mark.parametrize("dims", [["N"], [1], [3], [5], None])
@pytest.mark.parametrize("first", [1, 3, 5])
@pytest.mark.parametrize("second", [1, 3])
def test_two_lengths_that_are_said_to_be_equal(dims: Dims, first: int, second: int) -> None:
    nodes = [*places("a", "p"), *places("b", "q"), node("Exp", ["q"], ["t"]), node("Mul", ["t", "p"], ["u"])]
    declared = [value(name, dims) for name in "pqtu"] if dims is not None else []
    made = session(nodes, [value("a", ["A"]), value("b", ["B"])], ["t", "u"], declared)
    t = np.exp(np.arange(second, dtype=np.float32))
    p = np.arange(first, dtype=np.float32)
    fits = 1 in (first, second) or first == second
    feeds = {"a": np.ones(first, np.float32), "b": np.ones(second, np.float32)}
    gave = right_or_refused(made, feeds, [t, t * p] if fits else None)
    if first == second or (fits and dims is None):
        assert gave


@pytest.mark.parametrize("dims", [["N"], [1], [3], [5], None])
@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("operator", ["MatMul", "Softmax"])
def test_what_joins_a_larger_kernel(dims: Dims, count: int, rows: int, operator: str) -> None:
    a = np.random.default_rng(count).standard_normal((rows, 4 if operator == "MatMul" else 3)).astype(np.float32)
    leading = node("MatMul", ["a", "w"], ["t"]) if operator == "MatMul" else node("Softmax", ["a"], ["t"])
    nodes = [*places("m", "p"), leading, node("Mul", ["t", "p"], ["u"]), node("Add", ["u", "t"], ["v"])]
    declared = [value("p", dims)] if dims is not None else []
    try:
        made = session(nodes, [value("m", ["M"]), value("a", ["R", a.shape[1]])], ["t", "u", "v"], declared)
    except errors.Fail:
        assert dims == [5]  # no vector of that length fits, whatever the data
        return
    exponents = np.exp(a)
    t = a @ WEIGHTS if operator == "MatMul" else exponents / exponents.sum(1)[:, None]
    p = np.arange(count, dtype=np.float32)
    expected = [t, t * p, t * p + t] if count in (1, 3) else None
    gave = right_or_refused(made, {"m": np.ones(count, np.float32), "a": a}, expected)
    assert gave == (expected is not None)


@pytest.mark.parametrize("operator", ["Expand", "Reshape"])
def test_more_dimensions_than_arrays_have(operator: str) -> None:
    sizes = helper.make_tensor_value_info("sizes", TensorProto.INT64, [1 << 40])
    with pytest.raises(errors.Fail, match="1099511627776 dimensions"):
        session([node(operator, ["x", "sizes"], ["y"])], [value("x", ["n"]), sizes], ["y"], [])
