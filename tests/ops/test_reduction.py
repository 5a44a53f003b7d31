"""Reductions: axes, empty sets and no axes, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import parser

import sardonyx
from tests.ops.single_node import ours

MEANING = {
    "ReduceSum": np.sum,
    "ReduceProd": np.prod,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceL1": lambda x, axis, keepdims: np.abs(x).sum(axis=axis, keepdims=keepdims),
    "ReduceL2": lambda x, axis, keepdims: np.sqrt((x * x).sum(axis=axis, keepdims=keepdims)),
    "ReduceSumSquare": lambda x, axis, keepdims: (x * x).sum(axis=axis, keepdims=keepdims),
    "ReduceLogSum": lambda x, axis, keepdims: np.log(x.sum(axis=axis, keepdims=keepdims)),
    "ReduceLogSumExp": lambda x, axis, keepdims: np.log(np.exp(x).sum(axis=axis, keepdims=keepdims)),
}


@pytest.mark.parametrize("op", sorted(MEANING))
@pytest.mark.parametrize("axes", [(0,), (-1,), (0, 2), (1, -1), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes(op: str, axes: tuple[int, ...], keepdims: int) -> None:
    x = np.random.default_rng(0).uniform(0.1, 2, (3, 4, 5)).astype(np.float32)
    (actual,) = ours(op, x, np.array(axes, np.int64), keepdims=keepdims)
    expected = MEANING[op](x.astype(np.float64), axis=axes, keepdims=bool(keepdims))
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("op", sorted(MEANING))
def test_no_axes_mean_all_or_none(op: str) -> None:
    x = np.array([[1, 2], [3, 4]], np.float32)
    (everything,) = ours(op, x, keepdims=0)
    assert everything.shape == ()
    (nothing,) = ours(op, x, np.array([], np.int64), noop_with_empty_axes=1)
    np.testing.assert_allclose(nothing, MEANING[op](x, axis=(), keepdims=True), rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "neutral"),
    [("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -math.inf), ("ReduceMin", math.inf), ("ReduceL1", 0),
     ("ReduceLogSum", -math.inf), ("ReduceLogSumExp", -math.inf)],
)  # fmt: skip
def test_reducing_nothing_gives_the_neutral_element(op: str, neutral: float) -> None:
    (y,) = ours(op, np.zeros((2, 0, 3), np.float32), np.array([1], np.int64))
    np.testing.assert_array_equal(y, np.full((2, 1, 3), neutral, np.float32))


def test_log_sum_exp_does_not_overflow() -> None:
    x = np.array([[1000, 1000], [-math.inf, -math.inf]], np.float32)
    (y,) = ours("ReduceLogSumExp", x, np.array([1], np.int64), keepdims=0)
    np.testing.assert_allclose(y, [1000 + math.log(2), -math.inf], rtol=1e-6)


def test_cumulative_sums_in_all_four_ways() -> None:
    x, axis = np.array([1, 2, 3], np.int32), np.array(0, np.int64)
    assert ours("CumSum", x, axis)[0].tolist() == [1, 3, 6]
    assert ours("CumSum", x, axis, exclusive=1)[0].tolist() == [0, 1, 3]
    assert ours("CumSum", x, axis, reverse=1)[0].tolist() == [6, 5, 3]
    assert ours("CumSum", x, axis, reverse=1, exclusive=1)[0].tolist() == [5, 3, 0]


def test_bad_axes_are_named() -> None:
    with pytest.raises(Exception, match="out of range for a tensor of rank 2"):
        ours("ReduceSum", np.zeros((2, 3), np.float32), np.array([2], np.int64))


def test_axes_of_which_only_the_number_is_known() -> None:
    """They come with the run; the rank of the result follows from how many there are."""
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18]>
        axes (float[a, b, c] x, int64[2] axes) => (float[d] y) { s = ReduceSum<keepdims = 0>(x, axes) y = Sqrt(s) }"""
    )
    session = sardonyx.InferenceSession(model.SerializeToString())
    assert {step.kind for step in session._session().plan.steps} == {"segment"}
    x = np.random.default_rng(7).uniform(0, 1, (3, 4, 5)).astype(np.float32)
    for axes in ([0, 2], [1, -1], [1, 0]):
        (found,) = session.run(None, {"x": x, "axes": np.array(axes)})
        expected = np.sqrt(x.astype(np.float64).sum(axis=tuple(axes)))
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(sardonyx.errors.OnnxRuntimeError, match="twice"):
        session.run(None, {"x": x, "axes": np.array([1, -2])})
