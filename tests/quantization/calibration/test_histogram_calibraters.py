"""Calibrators of histograms: their ranges against NumPy, and against onnxruntime's where these are asked for."""

from __future__ import annotations

import numpy as np
import onnxruntime.quantization.calibrate as known_tool
import pytest

from sardonyx.quantization.calibrate import (
    CalibrationMethod,
    DistributionCalibrater,
    EntropyCalibrater,
    HistogramCalibrater,
    PercentileCalibrater,
    create_calibrator,
)
from tests.quantization.calibration.models import TENSORS, Feeds, exact_tensors, samples, save_convolution, save_text

METHODS = list(CalibrationMethod)[1:]


def calibrated(method, path, folder, feeds, **options):
    calibrator = create_calibrator(path, None, str(folder / "a.onnx"), method, extra_options=options)
    calibrator.collect_data(Feeds(feeds))
    return calibrator.compute_data()


def exact_values(feeds, name):
    return np.concatenate([one[name].ravel() for one in exact_tensors(feeds)])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_counts_every_tensor(tmp_path, method):
    feeds = samples(4)
    found = calibrated(method, save_convolution(tmp_path / "m.onnx"), tmp_path, feeds)
    assert found.calibration_method is method
    assert list(found) == TENSORS
    for name in TENSORS:
        values, one = exact_values(feeds, name), found[name]
        edges = one.hist_edges if method is CalibrationMethod.Distribution else one.bins
        assert one.hist.sum() == values.size
        assert (edges.dtype, edges.size) == (np.float32, one.hist.size + 1)
        wanted, _ = np.histogram(values, edges.astype(np.float64))
        assert np.abs(one.hist - wanted).sum() <= 4  # values that float32 puts on the other side of an edge
        low, high = one.range_value
        assert values.min() - 1e-4 <= low <= high <= values.max() + 1e-4
        assert low.dtype == np.float32


def test_percentiles(tmp_path):
    feeds = samples(6)
    path = save_convolution(tmp_path / "m.onnx")
    for symmetric in (True, False):
        found = calibrated(
            CalibrationMethod.Percentile, path, tmp_path, feeds, percentile=97.0, symmetric=symmetric, num_bins=4096
        )
        for name in TENSORS:
            values = exact_values(feeds, name)
            low, high = map(float, found[name].range_value)
            width = float(np.diff(found[name].bins)[0])
            if symmetric:
                bound = np.quantile(np.abs(values), 0.97, method="inverted_cdf")
                wanted = max(values.min(), -bound), min(values.max(), bound)
            else:
                wanted = np.quantile(values, [0.015, 0.985], method="inverted_cdf")
            np.testing.assert_allclose([low, high], wanted, atol=width + 1e-4)
        every = calibrated(CalibrationMethod.Percentile, path, tmp_path, feeds, percentile=100, symmetric=symmetric)
        for name in TENSORS:
            values = exact_values(feeds, name)
            np.testing.assert_allclose(every[name].range_value, [values.min(), values.max()], rtol=2e-5, atol=2e-6)


def test_distribution(tmp_path):
    feeds = samples(6)
    for scenario in ("same", "p3"):
        found = calibrated(
            CalibrationMethod.Distribution, save_convolution(tmp_path / "m.onnx"), tmp_path, feeds, scenario=scenario
        )
        for name in ("x", "c", "s"):
            values = exact_values(feeds, name)
            values = np.cbrt(values) if scenario == "p3" else values
            np.testing.assert_allclose(found[name].avg_std, [values.mean(), values.std()], rtol=0.02, atol=0.02)


def test_the_number_of_bins_is_a_least_one(tmp_path):
    path, feeds = save_convolution(tmp_path / "m.onnx"), samples(2)
    for bins in (128, 1000, 6000):
        found = calibrated(CalibrationMethod.Percentile, path, tmp_path, feeds, num_bins=bins)
        assert all(bins <= found[name].hist.size <= 2 * bins for name in ("x", "c", "s"))
    found = calibrated(CalibrationMethod.Entropy, path, tmp_path, feeds, num_bins=128, num_quantized_bins=64)
    assert all(1024 <= found[name].hist.size <= 2048 for name in ("x", "c", "s"))


def test_float16_keeps_its_type(tmp_path):
    text = '<ir_version: 10, opset_import: ["" : 18]> g (float16[n] x) => (float16[n] y) { y = Neg(x) }'
    x = np.linspace(-1, 3, 1000, dtype=np.float16)
    found = calibrated(CalibrationMethod.Percentile, save_text(tmp_path / "m.onnx", text), tmp_path, [{"x": x}])
    assert found["y"].range_value == (np.float16(-3), np.float16(1))
    assert found["y"].highest.dtype == np.float16


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"symmetric": True},
        {"symmetric": False},
        {"num_bins": 1000, "num_quantized_bins": 100, "percentile": 99.0},
        {"num_bins": 601, "num_quantized_bins": 32, "percentile": 90.0, "symmetric": False, "scenario": "p3"},
    ],
)
def test_numbers_of_the_known_tool_where_they_are_asked_for(tmp_path, method, options, capsys):
    path, feeds = save_convolution(tmp_path / "m.onnx"), samples(3)
    theirs = known_tool.create_calibrator(
        path, None, str(tmp_path / "t.onnx"), known_tool.CalibrationMethod[method.name], extra_options=options
    )
    theirs.collect_data(Feeds(feeds))
    wanted = theirs.compute_data()
    found = calibrated(method, path, tmp_path, feeds, OrtCompatible=True, **options)
    assert set(found) == set(wanted)
    for name in TENSORS:
        for key in ("lowest", "highest", "avg", "std"):
            assert hasattr(found[name], key) == hasattr(wanted[name], key)
            if hasattr(wanted[name], key):
                np.testing.assert_allclose(getattr(found[name], key), getattr(wanted[name], key), rtol=1e-5, atol=1e-5)


def test_the_classes_themselves(tmp_path):
    path, feeds = save_convolution(tmp_path / "m.onnx"), samples(2)
    for made in (
        EntropyCalibrater(path, ["Conv"], str(tmp_path / "a.onnx"), num_bins=256),
        PercentileCalibrater(path, ["Conv"], str(tmp_path / "a.onnx"), percentile=99.0),
        DistributionCalibrater(path, ["Conv"], str(tmp_path / "a.onnx"), num_bins=512, scenario="p3"),
        HistogramCalibrater(path, ["Conv"], str(tmp_path / "a.onnx"), method="entropy", num_quantized_bins=64),
    ):
        made.augment_graph()
        made.create_inference_session()
        made.collect_data(feeds)
        assert list(made.compute_data()) == ["x", "c"]
        assert set(made.collector.get_histogram_dict()) == {"x", "c"}
        made.clear_collected_data()
        made.collect_data(feeds[:1])
        assert made.compute_data()["x"].hist.sum() == feeds[0]["x"].size
