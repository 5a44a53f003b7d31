"""Sizes that shape arithmetic only moves about are read without the nodes in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import sardonyx as ort
from sardonyx import errors
from sardonyx.runtime.native.native_segment import NativeSegment

Array = np.ndarray[Any, Any]

# Elements of `sizes`: a size, another one, and numbers that look like the marks of sizes.
TAKEN = """(float[a, b] x, int64[a, c] z) => (int64[n] sizes, float[m] y) {
    first = Shape(x)
    second = Shape<start = -1>(z)
    axes = Constant<value_ints = [0]>()
    at = Constant<value_int = 1>()
    b = Gather(first, at)
    wrapped = Unsqueeze(b, axes)
    low = Constant<value_ints = [1099511627776, 2199023255552, 0]>()
    sizes = Concat<axis = 0>(wrapped, second, low, first)
    one = Constant<value_ints = [-1]>()
    t = Relu(x)
    flat = Reshape(t, one)
    zero = Constant<value_ints = [0]>()
    end = Concat<axis = 0>(wrapped)
    y = Slice(flat, zero, end)
}"""


def _session(text: str) -> tuple[ort.InferenceSession, onnx.ModelProto]:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]>\nagraph {text}')
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return ort.InferenceSession(model.SerializeToString(), options), model


def _bound(session: ort.InferenceSession) -> list[str]:
    """The operators that are bound one by one."""
    (step,) = session._session().plan.steps
    assert isinstance(step.call, NativeSegment)
    (ready, *_) = step.call._plans.values()
    return [operation.group.nodes[-1].node.op_type for operation in ready.source.segment.operations]


@pytest.mark.parametrize("shape", [(3, 5), (4, 1), (2, 0)])
def test_sizes_and_numbers_come_out_as_the_nodes_make_them(shape: tuple[int, int]) -> None:
    session, model = _session(TAKEN)
    feeds = {"x": np.ones(shape, np.float32), "z": np.zeros((shape[0], 7), np.int64)}
    for found, expected in zip(session.run(None, feeds), ReferenceEvaluator(model).run(None, feeds), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not {"Shape", "Gather"} & set(_bound(session))


def test_all_movers_are_followed() -> None:
    session, model = _session(
        """(float[a, b, c] x) => (float[k, l] y) {
        s = Shape(x)
        p, q = Split<axis = 0, num_outputs = 2>(s)
        minus = Constant<value_ints = [-1]>()
        zero = Constant<value_ints = [0]>()
        one = Constant<value_ints = [1]>()
        scalar = Squeeze(q)
        row = Reshape(scalar, minus)
        same = Identity(row)
        first = Slice(p, zero, one)
        target = Concat<axis = 0>(first, minus)
        r = Relu(x)
        z = Reshape(r, target)
        zeros = Concat<axis = 0>(zero, zero)
        ends = Concat<axis = 0>(first, same)
        y = Slice(z, zeros, ends)
        }"""
    )
    for shape in ((2, 3, 4), (5, 1, 2)):
        feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
        np.testing.assert_array_equal(session.run(None, feeds)[0], ReferenceEvaluator(model).run(None, feeds)[0])
    assert not {"Shape", "Split", "Squeeze", "Identity"} & set(_bound(session))


def test_sizes_that_are_computed_with_are_worked_out() -> None:
    session, model = _session(
        """(float[a, b] x) => (float[k] y) {
        s = Shape(x)
        sum = ReduceSum<keepdims = 1>(s)
        minus = Constant<value_ints = [-1]>()
        zero = Constant<value_ints = [0]>()
        r = Relu(x)
        flat = Reshape(r, minus)
        y = Slice(flat, zero, sum)
        }"""
    )
    feeds = {"x": np.arange(-6, 6, dtype=np.float32).reshape(3, 4)}
    np.testing.assert_array_equal(session.run(None, feeds)[0], ReferenceEvaluator(model).run(None, feeds)[0])
    assert {"Shape", "ReduceSum"} <= set(_bound(session))


def test_the_shape_of_sizes_is_known() -> None:
    session, _ = _session("(float[a, b] x) => (int64[n] y) { sizes = Shape(x) y = Shape(sizes) }")
    np.testing.assert_array_equal(session.run(None, {"x": np.ones((3, 5), np.float32)})[0], [2])


def test_an_index_beyond_the_rank_names_its_node() -> None:
    text = """(float[a, b] x) => (float[k] y) {
        s = Shape(x)
        at = Constant<value_ints = [2]>()
        [taken] size = Gather(s, at)
        r = Relu(x)
        y = Reshape(r, size)
        }"""
    with pytest.raises(errors.OnnxRuntimeError, match="taken"):
        _session(text)[0].run(None, {"x": np.ones((2, 3), np.float32)})
