"""Reductions over whole tensors that lie in memory in another order, in sessions of any sizes, against float64."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx
from sardonyx.compiler.native.rows.rows import permuted
from tests.compiler.layouts import kernel_of, operator_of
from tests.compiler.steps import Memory, new_binder

TEXT = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[n, 8, h, h] x) => (float low, float high, float mean, float[1, 1, 1, 1] norm, float total) {
  k = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w)
  low = ReduceMin<keepdims = 0>(k)
  high = ReduceMax<keepdims = 0>(k)
  mean = ReduceMean<keepdims = 0>(k)
  norm = ReduceL2(k)
  r = Relu(k)
  total = ReduceSum<keepdims = 0>(r)
}
"""


def test_of_results_of_convolutions():
    weight = np.random.default_rng(1).standard_normal((32, 8, 3, 3)).astype(np.float32)
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    session = sardonyx.InferenceSession(model)
    for batch, size in ((1, 56), (2, 56), (3, 40), (1, 5), (1, 112), (2, 57)):
        x = np.random.default_rng(batch * size).standard_normal((batch, 8, size, size)).astype(np.float32)
        padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        exact = np.einsum("nchwij,ocij->nohw", windows, weight.astype(np.float64), optimize=True)
        wanted = [exact.min(), exact.max(), exact.mean(), np.linalg.norm(exact), np.maximum(exact, 0).sum()]
        found = [float(np.squeeze(one)) for one in session.run(None, {"x": x})]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 0, 1)])
def test_elements_stay_in_the_order_of_their_input(order: tuple[int, ...]) -> None:
    """DynamicQuantizeLinear of a value in any order: no step but those that find the range and that which divides."""
    numbers = np.random.default_rng(3).standard_normal((2, 24, 40, 36)).astype(np.float32)
    binder, memory = new_binder(), Memory()
    lying = binder.external(0, numbers.dtype, numbers.shape)
    memory.put(lying, numbers)
    kernel = kernel_of(operator_of("DynamicQuantizeLinear", 11, {}), [numbers])
    y, scale, zero = kernel.bind(binder, permuted(lying, order))
    assert y is not None
    assert scale is not None
    assert zero is not None
    memory.run(binder)
    assert {step.kernel for step in binder.steps} == {"reduction", "pointwise"}
    x = numbers.transpose(order)
    low, high = np.float32(min(0, x.min())), np.float32(max(0, x.max()))
    step = (high - low) / np.float32(255)
    point = np.rint(-low / step)
    wanted = np.clip(np.rint(x / step) + point, 0, 255)
    assert [memory.read(one).item() for one in (scale, zero)] == [step, point]
    assert np.array_equal(memory.read(y), wanted)
