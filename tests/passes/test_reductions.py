"""Reductions of one tensor over the same axes become one node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import sardonyx
from sardonyx import errors
from sardonyx.transformers.optimizer import optimize_by_fusion
from tests.passes.models import operators, rewritten

RNG = np.random.default_rng(5)


def _model(nodes: str, outputs: str, opset: int = 18) -> onnx.ModelProto:
    return parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": {opset}]>
        g (float[a, b, c] x) => ({outputs}) <int64[2] ends = {{0, 2}}, int64[1] last = {{-1}}> {{ {nodes} }}
    """)


STATISTICS = _model(
    "lo = ReduceMin<keepdims=0>(x) hi = ReduceMax<keepdims=0>(x) s = ReduceSum(x) q = ReduceSumSquare<keepdims=0>(x)",
    "float lo, float hi, float[1, 1, 1] s, float q",
)
CHANNELS = _model(
    "lo = ReduceMin<keepdims=0>(x, ends) hi = ReduceMax(x, ends) n = ReduceL1(x, ends) "
    "m = ReduceL2<keepdims=0>(x, ends)",
    "float[b] lo, float[1, b, 1] hi, float[1, b, 1] n, float[b] m",
)
SHAPES = [(2, 3, 4), (1, 5, 1), (3, 17, 129), (2, 3, 40_000)]


def _exact(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    wide = x.astype(np.float64)
    if model is STATISTICS:
        return [wide.min(), wide.max(), wide.sum(keepdims=True), (wide**2).sum()]
    ends = (0, 2)
    return [
        wide.min(ends),
        wide.max(ends, keepdims=True),
        np.abs(wide).sum(ends, keepdims=True),
        np.sqrt((wide**2).sum(ends)),
    ]


@pytest.mark.parametrize("model", [STATISTICS, CHANNELS], ids=["of all", "of channels"])
def test_one_pass_gives_all_results(model: onnx.ModelProto) -> None:
    after, reports = rewritten(model)
    assert reports["ReductionFusion"].changes == 1
    assert [(node.domain, node.op_type) for node in after.graph.node] == [("ai.sardonyx", "Reductions")]
    session = sardonyx.InferenceSession(model.SerializeToString())
    for shape in SHAPES:
        x = (RNG.standard_normal(shape) + 0.5).astype(np.float32)
        for found, wanted in zip(session.run(None, {"x": x}), _exact(model, x), strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=2e-6)


def test_nothing_and_what_is_no_number() -> None:
    session = sardonyx.InferenceSession(STATISTICS.SerializeToString())
    empty = session.run(None, {"x": np.zeros((2, 0, 3), np.float32)})
    assert [one.item() for one in empty] == [np.inf, -np.inf, 0, 0]
    x = np.ones((2, 3, 9), np.float32)
    x[1, 2, 3] = np.nan
    assert all(np.isnan(one).all() for one in session.run(None, {"x": x}))


@pytest.mark.parametrize("dtype", [np.int32, np.float16, np.float64])
def test_types(dtype: type) -> None:
    name = {np.int32: "int32", np.float16: "float16", np.float64: "double"}[dtype]
    model = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 18]>
        g ({name}[n, 7] x) => ({name}[n] lo, {name}[n] s) <int64[1] last = {{-1}}> {{
            lo = ReduceMin<keepdims=0>(x, last) s = ReduceSum<keepdims=0>(x, last) }}
    """)
    assert [node.op_type for node in rewritten(model)[0].graph.node] == ["Reductions"]
    x = RNG.integers(-20, 20, (5, 7)).astype(dtype)
    lowest, total = sardonyx.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert lowest.dtype == total.dtype == dtype
    np.testing.assert_array_equal(lowest, x.min(1))
    np.testing.assert_array_equal(total, x.sum(1).astype(dtype))


@pytest.mark.parametrize(
    ("nodes", "opset", "kinds"),
    [
        ("lo = ReduceMin(x, last) hi = ReduceMax(x, ends)", 18, ["ReduceMax", "ReduceMin"]),
        ("lo = ReduceMin<axes=[1]>(x) hi = ReduceMax<axes=[2]>(x)", 13, ["ReduceMax", "ReduceMin"]),
        ("lo = ReduceMin(x) hi = ReduceMax<noop_with_empty_axes=1>(x)", 18, ["ReduceMax", "ReduceMin"]),
        ("lo = ReduceMin(x) y = Neg(x) hi = ReduceMax(y)", 18, ["Neg", "ReduceMax", "ReduceMin"]),
        ("lo = ReduceLogSumExp(x) hi = ReduceMax(x)", 18, ["ReduceLogSumExp", "ReduceMax"]),
    ],
)
def test_others_stay_apart(nodes: str, opset: int, kinds: list[str]) -> None:
    after, reports = rewritten(_model(nodes, "float[d, e, f] lo, float[g, h, i] hi", opset))
    assert reports["ReductionFusion"].changes == 0
    assert sorted(operators(after)) == kinds


def test_results_that_are_read_on_the_way() -> None:
    """The new node stands where the first of the old ones was."""
    model = _model("hi = ReduceMax(x) d = Sub(x, hi) s = ReduceSum(x) y = Mul(d, s)", "float[a, b, c] y")
    assert "Reductions" in operators(rewritten(model)[0])
    x = RNG.standard_normal((2, 3, 50)).astype(np.float32)
    (y,) = sardonyx.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    wide = x.astype(np.float64)
    np.testing.assert_allclose(y, (wide - wide.max()) * wide.sum(), rtol=1e-4)


def test_models_that_are_written_have_operators_that_others_know(tmp_path: Path) -> None:
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    sardonyx.InferenceSession(STATISTICS.SerializeToString(), options)
    written = onnx.load(tmp_path / "optimised.onnx")
    saved = optimize_by_fusion(onnx.ModelProto.FromString(STATISTICS.SerializeToString())).model
    for model in (written, saved):
        assert sorted(operators(model)) == ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceSumSquare"]
        onnx.checker.check_model(model)


@pytest.mark.parametrize(
    "attributes",
    [
        'kinds = ["ReduceMin", "Softmax"], kept = [0, 0]',
        'kinds = ["ReduceMin"], kept = [0]',
        'kinds = ["ReduceMin", "ReduceMax"], kept = [1]',
    ],
)
def test_a_node_that_does_not_say_what_its_outputs_are(attributes: str) -> None:
    model = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 18, "ai.sardonyx": 1]>
        g (float[n] x) => (float[1] a, float[1] b) {{ a, b = ai.sardonyx.Reductions<{attributes}>(x) }}
    """)
    with pytest.raises(errors.InvalidGraph, match="each output needs one of ReduceL1"):
        sardonyx.InferenceSession(model.SerializeToString())
