"""The twins of QuantizeLinear and DequantizeLinear against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.ops.microsoft import peer

TYPES = [np.uint8, np.int8, np.uint16, np.int16, ml_dtypes.uint4, ml_dtypes.int4]


def parameters(dtype: type, size: int | None) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(9)
    shape = () if size is None else (size,)
    scales = np.asarray(generator.random(shape) * 0.1 + 0.01).astype(np.float32)
    return scales, np.asarray(generator.integers(0, 7, shape)).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_quantize(dtype: type, axis: int | None) -> None:
    x = (np.random.default_rng(1).standard_normal((3, 4, 5)) * 3).astype(np.float32)
    scales, zero = parameters(dtype, None if axis is None else x.shape[axis])
    attributes = {} if axis is None else {"axis": axis}
    model = peer.one_node("QuantizeLinear", [x, scales, zero], [peer.element_type(zero)], attributes, constants=[2])
    given = peer.feeds(model, [x, scales, zero])
    (ours,) = peer.sardonyx(model, given)
    if np.dtype(dtype).itemsize == 1 and dtype not in (np.uint8, np.int8):
        # Values of 4 bits leave onnxruntime through a real output only.
        model = through_float(model)
    (theirs,) = peer.onnxruntime(model, given)
    np.testing.assert_array_equal(ours.astype(np.int64), theirs.astype(np.int64))


def through_float(model: peer.onnx.ModelProto) -> peer.onnx.ModelProto:
    """The same model with its output cast to float32."""
    graph = model.graph
    graph.node[0].output[0] = "quantised"
    graph.node.append(peer.helper.make_node("Cast", ["quantised"], ["out0"], to=1))
    graph.output[0].type.tensor_type.elem_type = 1
    return model


def test_quantize_without_zero_point_gives_uint8() -> None:
    x = np.array([-1, 0, 0.5, 1.5, 2.5, 300], np.float32)
    (found,) = peer.compare("QuantizeLinear", [x, np.array(1, np.float32)], [2])
    np.testing.assert_array_equal(found, [0, 0, 0, 2, 2, 255])


def test_quantize_float16() -> None:
    x = np.array([-1, 0.5, 1.5, 100], np.float16)
    (found,) = peer.run("QuantizeLinear", [x, np.array(0.5, np.float16), np.array(-3, np.int8)], [3])
    np.testing.assert_array_equal(found, [-5, -2, 0, 127])


@pytest.mark.parametrize("dtype", [*TYPES, np.int32])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_dequantize(dtype: type, axis: int | None) -> None:
    kind = ml_dtypes.iinfo(dtype)
    low, high = max(int(kind.min), -60000), min(int(kind.max), 60000)
    x = np.random.default_rng(2).integers(low, high + 1, (3, 4, 5)).astype(dtype)
    scales, zero = parameters(dtype, None if axis is None else x.shape[axis])
    zero = np.zeros_like(zero) if dtype == np.int32 else zero
    attributes = {} if axis is None else {"axis": axis}
    model = peer.one_node("DequantizeLinear", [x, scales, zero], [1], attributes, constants=[0, 2])
    given = peer.feeds(model, [x, scales, zero])
    theirs, ours = peer.onnxruntime(model, given), peer.sardonyx(model, given)
    peer.check(ours, theirs, 1e-6, 0)


def test_dequantize_to_float16() -> None:
    (found,) = peer.run("DequantizeLinear", [np.array([1, 255], np.uint8), np.array(0.5, np.float16)], [10])
    np.testing.assert_array_equal(found, np.array([0.5, 127.5], np.float16))


def test_a_scale_of_the_wrong_size_is_named() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(Exception, match=r"'y_scale' is expected to have shape \(3,\)"):
        peer.run("QuantizeLinear", [x, np.ones(2, np.float32), None], [2], {"axis": 1})
