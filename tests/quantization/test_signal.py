"""Tensors whose signal 8 bits would drown in noise stay float."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from sardonyx import errors
from sardonyx.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from sardonyx.quantization.calibrate import TensorData, create_calibrator
from sardonyx.quantization.calibration.readers import IterableReader
from sardonyx.quantization.quantized_numbers import Parameters
from sardonyx.quantization.signal import signal_to_noise

ROWS = 64


def _weak() -> np.ndarray[Any, Any]:
    """One value of 1000 beside values of 1: a step is about 4, so 8 bits keep nothing of the others."""
    rng = np.random.default_rng(3)
    x = rng.choice([-1.0, 1.0], (ROWS, 512)).astype(np.float32)
    x[0, 0] = 1000
    return x


def _model(folder: Path, kind: int = onnx.TensorProto.FLOAT) -> Path:
    """x is doubled, and multiplied by a weight."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weight = np.random.default_rng(4).normal(size=(512, 8)).astype(dtype)
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "two"], ["t"], name="mul"),
            helper.make_node("MatMul", ["t", "w"], ["y"], name="mm"),
        ],
        "g",
        [helper.make_tensor_value_info("x", kind, [ROWS, 512])],
        [helper.make_tensor_value_info("y", kind, [ROWS, 8])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.asarray(2, dtype), "two")],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
    return path


def _stored(
    folder: Path,
    data: np.ndarray[Any, Any],
    extra: dict[str, Any],
    method: CalibrationMethod = CalibrationMethod.MinMax,
    **more: Any,
) -> set[str]:
    """What QuantizeLinear stores of the model's values."""
    target = folder / "quantized.onnx"
    quantize_static(
        _model(folder),
        target,
        IterableReader([{"x": data}]),
        calibrate_method=method,
        activation_type=more.pop("activation_type", QuantType.QUInt8),
        extra_options=extra,
        **more,
    )
    found = onnx.load(target).graph.node
    return {node.input[0] for node in found if node.op_type == "QuantizeLinear"}


@pytest.mark.parametrize("method", [CalibrationMethod.MinMax, CalibrationMethod.Entropy, CalibrationMethod.Percentile])
def test_a_weak_signal_stays_float(tmp_path: Path, method: CalibrationMethod) -> None:
    # mean square of x: 1 + 1e6 / 32768 = 31.5; of the noise: (1001 / 255)² / 12 = 1.28: 13.9 decibels
    stored = _stored(tmp_path, _weak(), {}, method)
    assert "x" not in stored
    assert "t" not in stored


def test_the_limit_is_that_of_the_option(tmp_path: Path) -> None:
    assert {"x", "t"} <= _stored(tmp_path, _weak(), {"MinimumSignalToNoise": 13.8})
    assert not {"x", "t"} & _stored(tmp_path, _weak(), {"MinimumSignalToNoise": 14.0})
    assert {"x", "t"} <= _stored(tmp_path, _weak(), {"MinimumSignalToNoise": 0})


def test_onnxruntimes_result_has_no_such_rule(tmp_path: Path) -> None:
    assert {"x", "t"} <= _stored(tmp_path, _weak(), {"OrtCompatible": True})


def test_sixteen_bits_have_steps_of_their_own(tmp_path: Path) -> None:
    assert {"x", "t"} <= _stored(tmp_path, _weak(), {}, activation_type=QuantType.QUInt16)


def test_a_symmetric_range_has_larger_steps(tmp_path: Path) -> None:
    # steps of 2000 / 255 in place of 1001 / 255: 6 decibels less
    assert {"x", "t"} <= _stored(tmp_path, _weak(), {"MinimumSignalToNoise": 10.0})
    extra = {"MinimumSignalToNoise": 10.0, "ActivationSymmetric": True}
    assert not {"x", "t"} & _stored(tmp_path, _weak(), extra, activation_type=QuantType.QInt8)


def test_parameters_that_the_caller_gave_count_more(tmp_path: Path) -> None:
    stored = _stored(tmp_path, _weak(), {"TensorQuantOverrides": {"t": [{"rmin": -1000.0, "rmax": 2000.0}]}})
    assert "t" in stored
    assert "x" not in stored


def test_integer_operators_follow_the_same_rule(tmp_path: Path) -> None:
    fine = np.random.default_rng(5).normal(size=(ROWS, 512)).astype(np.float32)
    assert _stored(tmp_path, fine, {}, quant_format=QuantFormat.QOperator)
    with pytest.raises(errors.InvalidArgument, match="no calibrated range"):
        _stored(tmp_path, _weak(), {}, quant_format=QuantFormat.QOperator)


def test_ranges_without_moments_are_taken_as_they_are() -> None:
    step = Parameters(onnx_type(), np.float32(4), np.uint8(0))
    assert signal_to_noise(TensorData(lowest=np.float32(0), highest=np.float32(1020)), step) is None


def onnx_type() -> ir.DataType:

    return ir.DataType.UINT8


def test_signal_over_the_noise_of_rounding() -> None:
    step = Parameters(onnx_type(), np.float32(2), np.uint8(0))
    known = TensorData(lowest=np.float32(0), highest=np.float32(510), avg=np.float32(3), std=np.float32(4))
    assert signal_to_noise(known, step) == pytest.approx(10 * np.log10(25 / (4 / 12)), abs=1e-6)


def test_counts_of_values_say_what_is_clipped() -> None:
    step = Parameters(onnx_type(), np.float32(1), np.uint8(0))
    known = TensorData(
        lowest=np.float32(0),
        highest=np.float32(255),
        avg=np.float32(30),
        std=np.float32(90),
        hist=np.array([90, 0, 10]),
        bins=np.array([0.5, 1.5, 254.5, 355.5], np.float32),
    )
    # nine of ten are 1 and stored exactly, one of ten is 305 and becomes 255
    expected = 10 * np.log10((90 * 1**2 + 10 * 305**2) / (10 * 50**2))
    assert signal_to_noise(known, step) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16])
def test_means_and_deviations_of_all_samples(tmp_path: Path, kind: int) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    rng = np.random.default_rng(6)
    samples = [(rng.normal(1, scale, (ROWS, 512))).astype(dtype) for scale in (1, 30)]
    calibrator = create_calibrator(_model(tmp_path, kind), augmented_model_path=str(tmp_path / "augmented.onnx"))
    calibrator.collect_data([{"x": one} for one in samples])
    mean, deviation = calibrator.compute_data()["x"].avg_std
    exact = np.concatenate(samples).astype(np.float64)
    assert mean.dtype == dtype
    assert float(mean) == pytest.approx(exact.mean(), rel=2e-3)
    assert float(deviation) == pytest.approx(exact.std(), rel=1e-3)


def test_results_of_relu_have_none(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])],
    )
    path = tmp_path / "relu.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
    calibrator = create_calibrator(path, augmented_model_path=str(tmp_path / "augmented.onnx"))
    calibrator.collect_data([{"x": np.array([-1, 0, 1, 2], np.float32)}])
    found = calibrator.compute_data()
    assert float(found["x"].avg_std[0]) == 0.5
    with pytest.raises(AttributeError):
        found["y"].avg_std  # noqa: B018
