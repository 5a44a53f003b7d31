"""Constants that are computed when they are read: exact, held by nobody, and there where a kernel reads them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx.compiler.bound_step import ComputedConstant, contents_of
from sardonyx.compiler.computed_constants import computed_constant
from sardonyx.graph.computed_tensor import ComputedTensor, JoinedTensor, ScaledTensor
from tests.compiler.steps import VARIANTS, new_binder

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 5, 3, 3), (67, 16), (2, 1), (700, 400), (4, 0, 3)])
def test_scaled_filters_are_rounded_once(variant: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    filters = rng.standard_normal(shape).astype(np.float32)
    factor = rng.standard_normal(shape[0])
    if filters.size > 2:
        filters.reshape(-1)[:3] = np.inf, np.nan, -0.0
    tensor = ScaledTensor(ir.Tensor(filters), factor, "scaled")
    found = computed_constant(new_binder(variant).library, tensor).array
    expected = (filters.astype(np.float64) * factor.reshape(-1, *(1,) * (len(shape) - 1))).astype(np.float32)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.view(np.uint32), tensor.numpy().view(np.uint32))
    np.testing.assert_array_equal(found, expected)


def test_other_types_are_scaled_too() -> None:
    filters = np.random.default_rng(0).standard_normal((3, 4))
    tensor = ScaledTensor(ir.Tensor(filters), np.array([1.0, -2.0, 0.5]), "scaled")
    found = computed_constant(new_binder().library, tensor).array
    np.testing.assert_array_equal(found, filters * np.array([[1.0], [-2.0], [0.5]]))


def counted(calls: list[weakref.ref[Array]]) -> ComputedConstant:
    """A constant that notes what it computes."""

    def compute() -> Array:
        array = np.arange(12, dtype=np.float32).reshape(3, 4)
        calls.append(weakref.ref(array))
        return array

    return computed_constant(new_binder().library, ComputedTensor(compute, ir.DataType.FLOAT, (3, 4), "numbers"))


def test_nobody_holds_what_was_only_packed() -> None:
    binder, calls = new_binder(), []
    source = counted(calls)
    assert source.is_known
    assert (source.dtype, source.shape, source.strides, source.nbytes) == (np.float32, (3, 4), (4, 1), 48)
    assert contents_of(source) == contents_of(source)
    assert not calls
    made = binder.derived(source, "twice", lambda array: 2 * array)
    assert binder.derived(source, "twice", lambda array: 2 * array) is made
    gc.collect()
    assert [reference() for reference in calls] == [None]
    np.testing.assert_array_equal(made.array, 2 * np.arange(12, dtype=np.float32).reshape(3, 4))


def test_what_a_kernel_reads_stays() -> None:
    calls: list[weakref.ref[Array]] = []
    source = counted(calls)
    address = source.buffer.address
    assert source.buffer.address == address
    assert len(calls) == 1
    assert int(source.array.__array_interface__["data"][0]) == address
    np.testing.assert_array_equal(source.array, np.arange(12, dtype=np.float32).reshape(3, 4))
    assert len(calls) == 1


def test_scaled_weights_serve_sessions_of_any_shape() -> None:
    """For other shapes, other kernels may read the weights of a convolution again."""
    rng = np.random.default_rng(1)
    weights = {
        "w": rng.standard_normal((64, 32, 3, 3)).astype(np.float32) / 20,
        "scale": rng.uniform(0.5, 2, 64).astype(np.float32),
        "bias": rng.standard_normal(64).astype(np.float32),
        "mean": rng.standard_normal(64).astype(np.float32),
        "var": rng.uniform(0.5, 2, 64).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32, "h", "w_"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64, "h", "w_"])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    session = ort.InferenceSession(model)
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    reference = ort.InferenceSession(model, plain)
    for shape in [(1, 32, 1, 1), (2, 32, 7, 9), (1, 32, 40, 40), (3, 32, 2, 2)]:
        x = rng.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4
        )


def test_joined_tensors_are_joined_in_order() -> None:
    parts = [np.full((2, width), width, np.float32) for width in (1, 3)]
    tensor = JoinedTensor([ir.Tensor(part, name=str(part.shape)) for part in parts], "whole")
    found = computed_constant(new_binder().library, tensor)
    np.testing.assert_array_equal(found.array, np.concatenate(parts, axis=1))
