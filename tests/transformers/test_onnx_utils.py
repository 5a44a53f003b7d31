"""Weights apart from their model, and a session that gets them together again."""

from __future__ import annotations

import importlib

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, numpy_helper

import sardonyx as ort
from sardonyx.transformers import onnx_utils

W, V = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([5, 6, 7], np.float32)


def model() -> onnx.ModelProto:
    """x times w plus v, of which w is raw and v is not."""
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        two (float[n, 2] x) => (float[n, 3] y) { p = MatMul(x, w) y = Add(p, v) }"""
    )
    made.graph.initializer.append(numpy_helper.from_array(W, "w"))
    made.graph.initializer.append(onnx.helper.make_tensor("v", TensorProto.FLOAT, [3], V))
    return made


@pytest.mark.parametrize("package", ["onnxruntime", "sardonyx"])
def test_raw_weights_are_taken_out(package: str) -> None:
    pytest.importorskip(package)
    module = importlib.import_module(f"{package}.transformers.onnx_utils")
    made = model()
    assert not module.has_external_data(made)
    names, values = module.extract_raw_data_from_model(made)
    assert list(names) == ["w"]
    np.testing.assert_array_equal(next(iter(values)).numpy(), W)
    assert module.has_external_data(made)
    assert not made.graph.initializer[0].HasField("raw_data")
    assert made.graph.initializer[0].external_data[0].value == "foo.bin"


def test_a_session_gets_them_again() -> None:
    made = model()
    names, values = onnx_utils.extract_raw_data_from_model(made)
    options = ort.SessionOptions()
    options.add_external_initializers(names, values)
    session = ort.InferenceSession(made.SerializeToString(), options)
    np.testing.assert_array_equal(session.run(None, {"x": np.ones((1, 2), np.float32)})[0], W.sum(0, keepdims=True) + V)
    assert onnx_utils.extract_raw_data_from_model(onnx.ModelProto()) == ((), ())
