"""Reductions over whole tensors that lie in memory in another order, in sessions of any sizes, against float64."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

import sardonyx

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
