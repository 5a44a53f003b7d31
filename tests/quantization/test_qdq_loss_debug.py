"""Errors of quantised weights and activations, of models of both tools, against NumPy in float64."""

from __future__ import annotations

import importlib
import math

import numpy as np
import onnx
import onnxruntime.quantization as known_tool
import onnxruntime.quantization.qdq_loss_debug as known
import pytest

import sardonyx.quantization as ours
from sardonyx import errors
from sardonyx.quantization import qdq_loss_debug as debug
from tests.quantization.calibration.models import TENSORS, WEIGHT, Feeds, exact_tensors, samples, save_convolution

TOOLS = {"ours": ours, "known": known_tool}


def quantised(tool, folder, feeds, **options):
    module = TOOLS[tool]
    path = str(folder / "q.onnx")
    for name in ("activation_type", "weight_type"):
        options[name] = module.QuantType[options.get(name, "QInt8")]
    if "quant_format" in options:
        options["quant_format"] = module.QuantFormat[options["quant_format"]]
    module.quantize_static(str(folder / "m.onnx"), path, Feeds(feeds), **options)
    return path


def ratio(x, y):
    """Decibels of the norms, in float64."""
    x, y = (np.concatenate([np.ravel(one) for one in arrays]).astype(np.float64) for arrays in (x, y))
    return 20 * math.log10(np.linalg.norm(x) / max(np.linalg.norm(x - y), np.finfo(np.float64).eps))


def test_activations_of_a_float_model(tmp_path):
    path = save_convolution(tmp_path / "m.onnx")
    feeds = samples(3)
    debug.modify_model_output_intermediate_tensors(path, tmp_path / "a.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "a.onnx"), full_check=True)
    found = debug.collect_activations(tmp_path / "a.onnx", Feeds(feeds))
    assert list(found) == TENSORS
    for name in TENSORS:
        for one, exact in zip(found[name], exact_tensors(feeds), strict=True):
            np.testing.assert_allclose(one, exact[name].ravel(), rtol=2e-5, atol=1e-5)
    debug.modify_model_output_intermediate_tensors(path, tmp_path / "a.onnx", op_types_for_saving=["Relu"])
    assert list(debug.collect_activations(str(tmp_path / "a.onnx"), feeds)) == ["c", "r"]
    theirs = known.collect_activations(str(tmp_path / "a.onnx"), Feeds(feeds))
    assert set(theirs) == {"c", "r"}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("dedicated", [False, True])
def test_errors_of_activations(tmp_path, tool, dedicated):
    save_convolution(tmp_path / "m.onnx")
    feeds = samples(3)
    options = {"DedicatedQDQPair": dedicated, "QDQKeepRemovableActivations": True}
    quantised(tool, tmp_path, feeds, extra_options=options)
    for name in ("m", "q"):
        debug.modify_model_output_intermediate_tensors(tmp_path / f"{name}.onnx", tmp_path / f"{name}_all.onnx")
    of_float = debug.collect_activations(tmp_path / "m_all.onnx", Feeds(feeds))
    of_qdq = debug.collect_activations(tmp_path / "q_all.onnx", Feeds(feeds))
    matching = debug.create_activation_matching(of_qdq, of_float)
    assert {"x", "c", "s", "p", "y"} <= set(matching)
    for error, name in ((debug.compute_activation_error(matching)[name], name) for name in matching):
        one = matching[name]
        np.testing.assert_allclose(error["qdq_err"], ratio(one["pre_qdq"], one["post_qdq"]), rtol=1e-9)
        np.testing.assert_allclose(error["xmodel_err"], ratio(of_float[name], one["post_qdq"]), rtol=1e-9)
        assert error["xmodel_err"] > 20
    np.testing.assert_array_equal(matching["x"]["pre_qdq"], [feed["x"].ravel() for feed in feeds])
    without = debug.compute_activation_error(debug.create_activation_matching(of_qdq))
    assert all(set(error) == {"qdq_err"} for error in without.values())
    theirs = known.compute_activation_error(known.create_activation_matching(of_qdq, of_float))
    assert set(theirs) <= set(matching)
    ours_found = debug.compute_activation_error(matching)
    for name, error in theirs.items():
        np.testing.assert_allclose(list(ours_found[name].values()), list(error.values()), rtol=1e-3)


WEIGHTS = [
    {},
    {"per_channel": True},
    {"weight_type": "QUInt8", "activation_type": "QUInt8"},
    {"weight_type": "QInt16", "activation_type": "QUInt16"},
    {"extra_options": {"AddQDQPairToWeight": True}, "per_channel": True},
    {"quant_format": "QOperator", "activation_type": "QUInt8", "per_channel": True},
    {"quant_format": "QOperator", "activation_type": "QUInt8"},
]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("options", WEIGHTS, ids=map(str, range(len(WEIGHTS))))
def test_weights(tmp_path, tool, options):
    path = save_convolution(tmp_path / "m.onnx")
    feeds = samples(2)
    found = debug.create_weight_matching(path, quantised(tool, tmp_path, feeds, **dict(options)))
    assert list(found) == ["w"]
    one = found["w"]
    np.testing.assert_array_equal(one["float"], WEIGHT)
    assert one["dequantized"].shape == WEIGHT.shape
    assert one["dequantized"].dtype == np.float32
    bits = 16 if options.get("weight_type") == "QInt16" else 8
    axes = (1, 2, 3) if options.get("per_channel") else None
    step = np.ptp(WEIGHT, axis=axes, keepdims=True) / (2**bits - 1)
    if options.get("weight_type") != "QUInt8":
        step = 2 * np.abs(WEIGHT).max(axis=axes, keepdims=True) / (2**bits - 2)
    assert (np.abs(one["dequantized"] - WEIGHT) <= step * 0.5001).all()
    error = debug.compute_weight_error(found)["w"]
    np.testing.assert_allclose(error, ratio([WEIGHT], [one["dequantized"]]), rtol=1e-9)


def test_a_function_of_the_caller():
    match = {"w": {"float": np.ones(3), "dequantized": np.zeros(3)}}
    assert debug.compute_weight_error(match, lambda x, y: float(np.abs(x - y).max())) == {"w": 1.0}
    activations = {"a": {"pre_qdq": [np.ones(2)], "post_qdq": [np.zeros(2)], "float": [np.full(2, 3.0)]}}
    found = debug.compute_activation_error(activations, lambda x, y: float(np.abs(x[0] - y[0]).max()))
    assert found == {"a": {"qdq_err": 1.0, "xmodel_err": 3.0}}


def test_the_ratio_of_signal_to_noise():
    compute = debug.compute_signal_to_quantization_noice_ratio
    theirs = known.compute_signal_to_quantization_noice_ratio
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(50).astype(np.float32), rng.standard_normal(50).astype(np.float32)
    zeros, ones = np.zeros(3, np.float32), np.ones(3, np.float32)
    for left, right in ((x, y), ([x, y], [y, x]), (ones, ones), (zeros, zeros), (zeros, ones), (ones, zeros)):
        assert math.isclose(compute(left, right), theirs(left, right), rel_tol=1e-5, abs_tol=1e-6)
    for left, right in (([x], [x, y]), ([], []), (ones, x)):
        with pytest.raises(errors.InvalidArgument, match="cannot be compared"):
            compute(left, right)


def test_no_samples_and_weights_far_away(tmp_path):
    path = save_convolution(tmp_path / "m.onnx")
    debug.modify_model_output_intermediate_tensors(path, tmp_path / "a.onnx")
    with pytest.raises(errors.InvalidArgument, match="No activations are collected"):
        debug.collect_activations(tmp_path / "a.onnx", [])
    (tmp_path / "far").mkdir()
    onnx.save(onnx.load(path), tmp_path / "far" / "m.onnx", save_as_external_data=True, size_threshold=0, location="w")
    with pytest.raises(errors.InvalidArgument, match="lie in files of their own"):
        debug.modify_model_output_intermediate_tensors(tmp_path / "far" / "m.onnx", tmp_path / "b.onnx")
    debug.modify_model_output_intermediate_tensors(tmp_path / "far" / "m.onnx", tmp_path / "far" / "b.onnx")
    assert list(debug.collect_activations(tmp_path / "far" / "b.onnx", samples(1))) == TENSORS


def test_the_names_are_where_callers_look():
    module = importlib.import_module("sardonyx.quantization.qdq_loss_debug")
    public = {name for name in vars(known) if not name.startswith("_") and callable(vars(known)[name])}
    defined = {name for name in public if vars(known)[name].__module__ == known.__name__}
    assert defined <= set(vars(module))
