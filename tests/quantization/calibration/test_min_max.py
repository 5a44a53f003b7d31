"""Extremes of activations against NumPy in float64."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime.quantization.calibrate as known_tool
import pytest

import sardonyx
from sardonyx.quantization.calibrate import CalibrationMethod, MinMaxCalibrater, TensorsData, create_calibrator
from tests.quantization.calibration.models import (
    HIGH,
    LOW,
    TENSORS,
    Feeds,
    exact_tensors,
    samples,
    save_convolution,
    save_text,
)

CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def calibrated(path, folder, feeds, **options):
    calibrator = create_calibrator(path, None, str(folder / "augmented.onnx"), extra_options=options)
    for part in feeds if isinstance(feeds[0], list) else [feeds]:
        calibrator.collect_data(Feeds(part))
    return calibrator.compute_data()


@pytest.mark.parametrize("opset", [13, 18])
def test_extremes_of_all_samples(tmp_path, opset):
    feeds = samples(5)
    found = calibrated(save_convolution(tmp_path / "m.onnx", opset), tmp_path, feeds)
    assert isinstance(found, TensorsData)
    assert found.calibration_method is CalibrationMethod.MinMax
    assert list(found) == TENSORS
    for name in TENSORS:
        every = np.concatenate([one[name].ravel() for one in exact_tensors(feeds)])
        low, high = found[name].range_value
        assert low.shape == high.shape == (1,)
        assert low.dtype == high.dtype == np.float32
        np.testing.assert_allclose([low[0], high[0]], [every.min(), every.max()], **CLOSE)
    assert found["r"].lowest[0] == 0
    assert found["k"].range_value == (np.float32(LOW), np.float32(HIGH))


@pytest.mark.parametrize("opset", [13, 18])
def test_extremes_of_each_channel(tmp_path, opset):
    feeds = samples(4)
    path = save_convolution(tmp_path / "m.onnx", opset)
    found = calibrated(path, tmp_path, [feeds[:2], feeds[2:]], per_channel=True)
    for name in TENSORS:
        every = [np.moveaxis(one[name], 1, 0).reshape(one[name].shape[1], -1) for one in exact_tensors(feeds)]
        every = np.concatenate(every, axis=1)
        np.testing.assert_allclose(found[name].lowest, every.min(axis=1), **CLOSE)
        np.testing.assert_allclose(found[name].highest, every.max(axis=1), **CLOSE)


def test_symmetric_ranges(tmp_path):
    feeds = samples(3)
    found = calibrated(save_convolution(tmp_path / "m.onnx"), tmp_path, feeds, symmetric=True)
    for name in TENSORS:
        bound = max(np.abs(one[name]).max() for one in exact_tensors(feeds))
        np.testing.assert_allclose([found[name].lowest[0], found[name].highest[0]], [-bound, bound], **CLOSE)


def test_averages_within_a_collection_and_between_them(tmp_path):
    feeds = samples(5)
    options = {"moving_average": True, "averaging_constant": 0.25}
    found = calibrated(save_convolution(tmp_path / "m.onnx"), tmp_path, [feeds[:3], feeds[3:]], **options)
    exact = exact_tensors(feeds)
    for name in TENSORS:
        for end, extreme in (("lowest", np.min), ("highest", np.max)):
            values = [extreme(one[name]) for one in exact]
            first, second = np.mean(values[:3]), np.mean(values[3:])
            np.testing.assert_allclose(getattr(found[name], end)[0], first + 0.25 * (second - first), **CLOSE)


@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"moving_average": True}, {"per_channel": True}])
def test_numbers_of_the_known_tool(tmp_path, options):
    path, feeds = save_convolution(tmp_path / "m.onnx"), samples(3)
    theirs = known_tool.create_calibrator(path, None, str(tmp_path / "theirs.onnx"), extra_options=options)
    theirs.collect_data(Feeds(feeds))
    wanted, found = theirs.compute_data(), calibrated(path, tmp_path, feeds, **options)
    assert set(found) == set(wanted)
    for name in TENSORS:
        for one, other in zip(found[name].range_value, wanted[name].range_value, strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_a_bound_on_what_is_held_loses_no_sample(tmp_path):
    path, feeds = save_convolution(tmp_path / "m.onnx"), samples(3)
    all_held = calibrated(path, tmp_path, feeds)
    bounded = calibrated(path, tmp_path, feeds, max_intermediate_outputs=2)
    assert all(bounded[name].range_value == all_held[name].range_value for name in TENSORS)


def test_operators_choose_tensors(tmp_path):
    path = save_convolution(tmp_path / "m.onnx")
    for operators, wanted in ((["Conv"], ["x", "c"]), (["Add", "Flatten"], ["r", "k", "s", "p", "y"]), ([], TENSORS)):
        calibrator = create_calibrator(path, operators, str(tmp_path / "a.onnx"))
        calibrator.collect_data(samples(1))
        assert list(calibrator.compute_data()) == wanted


@pytest.mark.parametrize("method", CalibrationMethod)
def test_operators_that_the_model_lacks_choose_no_tensor(tmp_path, method):
    path = save_convolution(tmp_path / "m.onnx")
    calibrator = create_calibrator(path, ["LSTM"], str(tmp_path / "a.onnx"), method)
    calibrator.collect_data(samples(1))
    assert len(calibrator.compute_data()) == 0


@pytest.mark.parametrize("method", CalibrationMethod)
def test_zeros(tmp_path, method):
    calibrator = create_calibrator(save_convolution(tmp_path / "m.onnx"), None, str(tmp_path / "a.onnx"), method)
    calibrator.collect_data([{"x": np.zeros((1, 3, 8, 8), np.float32)}])
    found = calibrator.compute_data()
    assert all(tuple(map(float, np.ravel(one.range_value))) == (0, 0) for one in found.values())


def test_float16_and_tensors_without_elements(tmp_path):
    text = """
    <ir_version: 10, opset_import: ["" : 18]>
    g (float16[n, 4] x, float[m] e) => (float16[n, 4] y, float[m] f, int64[2] s) {
      y = Mul(x, x)
      f = Neg(e)
      s = Shape(x)
    }
    """
    x = np.array([[1, -2, 3, 0.1]], np.float16)
    found = calibrated(save_text(tmp_path / "m.onnx", text), tmp_path, [{"x": x, "e": np.zeros(0, np.float32)}])
    assert set(found) == {"x", "y", "e", "f"}
    assert found["y"].range_value == (np.float16(0.1) * np.float16(0.1), np.float16(9))
    assert found["y"].lowest.dtype == np.float16
    assert found["f"].range_value == (np.float32(0), np.float32(0))
    later = [{"x": x, "e": np.zeros(0, np.float32)}, {"x": x, "e": np.array([2, -5], np.float32)}]
    assert calibrated(str(tmp_path / "m.onnx"), tmp_path, later)["f"].range_value == (np.float32(-2), np.float32(5))


def test_tensors_without_elements_take_no_part_in_averages(tmp_path):
    path = save_text(
        tmp_path / "m.onnx",
        '<ir_version: 10, opset_import: ["" : 18]> g (float[m] x) => (float[m] y) { y = Neg(x) }',
    )
    feeds = [{"x": np.array(one, np.float32)} for one in ([], [4.0], [], [8.0])]
    found = calibrated(path, tmp_path, feeds, moving_average=True)
    assert found["x"].range_value == (np.float32(6), np.float32(6))


def test_the_augmented_model_runs_elsewhere(tmp_path):
    path = save_convolution(tmp_path / "m.onnx")
    calibrator = MinMaxCalibrater(path, augmented_model_path=str(tmp_path / "a.onnx"))
    calibrator.augment_graph()
    model = onnx.load(tmp_path / "a.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert model.graph.output[0].name == "y"
    assert {"c_ReduceMin", "c_ReduceMax"} < {output.name for output in model.graph.output}
    held = [node.op_type for node in calibrator.get_augment_model().graph.node]
    assert held == [node.op_type for node in model.graph.node]
    statistics = ["ReduceMin", "ReduceMax", "ReduceSum", "ReduceSumSquare", "Size"]
    assert held[:7] == [*statistics, "Conv", "ReduceMin"]
    (feed,) = samples(1)
    low = sardonyx.InferenceSession(model).run(["c_ReduceMin"], feed)[0]
    np.testing.assert_allclose(low, exact_tensors([feed])[0]["c"].min(), **CLOSE)


def test_clients_may_take_outputs_out_of_the_augmented_model(tmp_path):
    path = save_convolution(tmp_path / "m.onnx")
    calibrator = MinMaxCalibrater(path, augmented_model_path=str(tmp_path / "a.onnx"))
    calibrator.augment_graph()
    model = onnx.load(tmp_path / "a.onnx")
    assert calibrator.model_original_outputs == {"y"}
    assert calibrator.num_model_outputs == 1
    del model.graph.output[0]
    onnx.save(model, tmp_path / "a.onnx")
    calibrator.create_inference_session()
    calibrator.collect_data(samples(1))
    assert list(calibrator.compute_data()) == TENSORS
    assert set(calibrator.compute_range()) == set(TENSORS)


def test_weights_in_other_files_are_read_where_they_lie(tmp_path):
    path = save_convolution(tmp_path / "m.onnx")
    for folder in ("far", "near"):
        (tmp_path / folder).mkdir()
    far = str(tmp_path / "far" / "m.onnx")
    onnx.save(onnx.load(path), far, save_as_external_data=True, size_threshold=0, location="weights.bin")
    feeds = samples(2)
    wanted = calibrated(path, tmp_path, feeds)
    for folder in ("far", "near"):
        found = calibrated(far, tmp_path / folder, feeds)
        assert all(found[name].range_value == wanted[name].range_value for name in TENSORS)
    assert not list((tmp_path / "near").glob("weights*"))


def test_merged_ranges(tmp_path):
    path, feeds = save_convolution(tmp_path / "m.onnx"), samples(4)
    first, second = calibrated(path, tmp_path, feeds[:2]), calibrated(path, tmp_path, feeds[2:])
    both = calibrated(path, tmp_path, feeds)
    merged = MinMaxCalibrater(path).merge_range(first, second)
    assert all(merged[name].range_value == both[name].range_value for name in TENSORS)


def test_functions_and_bodies(tmp_path):
    text = """
    <ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[4] x) => (float[4] y) {
      h = local.twice(x)
      yes = Constant<value = bool {1}>()
      y = If(yes) <then_branch = t () => (float[4] a) { a = Neg(h) }, else_branch = o () => (float[4] b) { b = Abs(h) }>
    }
    <domain: "local", opset_import: ["" : 18]>
    twice (v) => (w) { w = Add(v, v) }
    """
    found = calibrated(save_text(tmp_path / "m.onnx", text), tmp_path, [{"x": np.array([1, 2, -3, 4], np.float32)}])
    assert {name: tuple(float(end[0]) for end in one.range_value) for name, one in found.items()} == {
        "x": (-3, 4),
        "h": (-6, 8),
        "y": (-8, 6),
    }
