"""What does not fit is told by name: samples, options, models, files."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx import errors
from sardonyx.quantization.calibrate import (
    CalibraterBase,
    CalibrationMethod,
    HistogramCollector,
    MinMaxCalibrater,
    create_calibrator,
)
from tests.quantization.calibration.models import Feeds, samples, save_convolution, save_text

BOTH = [CalibrationMethod.MinMax, CalibrationMethod.Percentile]


def made(tmp_path, method=CalibrationMethod.MinMax, **options):
    path = save_convolution(tmp_path / "m.onnx")
    return create_calibrator(path, None, str(tmp_path / "a.onnx"), method, extra_options=options)


@pytest.mark.parametrize("method", BOTH)
@pytest.mark.parametrize("reader", [Feeds([]), Feeds([{}]), []], ids=["nothing", "an empty sample", "an empty list"])
def test_no_samples(tmp_path, method, reader):
    with pytest.raises(errors.InvalidArgument, match=r"No data is collected: .* made anew") as caught:
        made(tmp_path, method).collect_data(reader)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("method", BOTH)
@pytest.mark.parametrize(
    ("feed", "said"),
    [
        ({"z": np.zeros((1, 3, 8, 8), np.float32)}, "z"),
        ({"x": np.zeros((1, 3, 8, 8), np.float32), "label": np.zeros(1)}, "label"),
        ({"x": np.zeros((1, 3, 9), np.float32)}, "x"),
        ({"x": np.zeros((1, 2, 8, 8), np.float32)}, "x"),
        ({"x": np.zeros((1, 3, 8, 8), np.float64)}, "double"),
        ({"x": "text"}, "x"),
    ],
)
def test_samples_that_do_not_fit_the_inputs(tmp_path, method, feed, said):
    calibrator = made(tmp_path, method)
    with pytest.raises(errors.OnnxRuntimeError, match=rf"Calibration sample 1: .*{said}"):
        calibrator.collect_data([*samples(1), feed])
    calibrator.collect_data(samples(1))
    assert calibrator.compute_data() is not None


@pytest.mark.parametrize("sample", [[1, 2], "x", 5])
def test_samples_that_are_no_dictionaries(tmp_path, sample):
    with pytest.raises(errors.InvalidArgument, match=r"sample 0 is a \w+: get_next\(\) must give a dictionary"):
        made(tmp_path).collect_data([sample])


@pytest.mark.parametrize("reader", [5, {"x": 1}, "folder", None])
def test_readers_that_give_no_samples(tmp_path, reader):
    with pytest.raises(errors.InvalidArgument, match="Samples come from a CalibrationDataReader"):
        made(tmp_path).collect_data(reader)


@pytest.mark.parametrize("method", BOTH)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_in_a_sample(tmp_path, method, value):
    feeds = samples(3)
    feeds[2]["x"][0, 1, 2, 3] = value
    with pytest.raises(
        errors.InvalidArgument, match=r"sample 2: tensor 'x' \(an input of the model\) holds NaN or inf"
    ):
        made(tmp_path, method).collect_data(feeds)


@pytest.mark.parametrize("method", BOTH)
@pytest.mark.parametrize("per_channel", [False, True])
def test_nan_and_infinity_that_a_node_makes(tmp_path, method, per_channel):
    text = """
    <ir_version: 10, opset_import: ["" : 18]>
    g (float[n, 2] x) => (float[n, 2] y) { h = Neg(x) [logarithm] l = Log(h) y = Relu(l) }
    """
    path = save_text(tmp_path / "m.onnx", text)
    options = {"per_channel": per_channel}
    calibrator = create_calibrator(path, None, str(tmp_path / "a.onnx"), method, extra_options=options)
    calibrator.collect_data([{"x": np.full((2, 2), -2, np.float32)}])
    for value in (3, 0):
        with pytest.raises(errors.InvalidArgument, match=r"tensor 'l' \(the result of Log node 'logarithm'\)"):
            calibrator.collect_data([{"x": np.array([[-1, -1], [-1, value]], np.float32)}])


def test_channels_whose_number_changes(tmp_path):
    text = '<ir_version: 10, opset_import: ["" : 18]> g (float[n, m] x) => (float[n, m] y) { y = Exp(x) }'
    path = save_text(tmp_path / "m.onnx", text)
    calibrator = create_calibrator(path, None, str(tmp_path / "a.onnx"), extra_options={"per_channel": True})
    calibrator.collect_data([{"x": np.zeros((2, 3), np.float32)}])
    with pytest.raises(errors.InvalidArgument, match=r"tensor 'x' has 4 channels \(axis 1\), and had 3 before"):
        calibrator.collect_data([{"x": np.zeros((2, 4), np.float32)}])


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        (CalibrationMethod.MinMax, {"averaging_constant": 2, "moving_average": True}, "averaging_constant is 2"),
        (CalibrationMethod.Percentile, {"percentile": 101}, "percentile is 101"),
        (CalibrationMethod.Percentile, {"num_bins": 0}, "num_bins is 0"),
        (CalibrationMethod.Entropy, {"num_quantized_bins": 0}, "num_quantized_bins is 0"),
        (CalibrationMethod.Percentile, {"num_bins": 1 << 30}, "num_bins is 1073741824: give 1 to 1048576"),
        (CalibrationMethod.Entropy, {"num_quantized_bins": 1 << 20}, "num_quantized_bins is 1048576"),
        (CalibrationMethod.Distribution, {"scenario": "p4"}, "no scenario 'p4'"),
        (CalibrationMethod.MinMax, {"num_bin": 5}, "no option 'num_bin'; did you mean 'num_bins'"),
        ("MinMax", {}, "no method 'MinMax'"),
    ],
)
def test_options(tmp_path, method, options, said):
    with pytest.raises(errors.InvalidArgument, match=said) as caught:
        made(tmp_path, method, **options)
    assert isinstance(caught.value, ValueError)


def test_options_that_are_none_are_the_defaults(tmp_path):
    options = dict.fromkeys(["symmetric", "num_bins", "num_quantized_bins", "percentile", "averaging_constant"])
    for method in CalibrationMethod:
        assert made(tmp_path, method, **options).symmetric == (method is CalibrationMethod.Percentile)


def test_models(tmp_path):
    path = save_convolution(tmp_path / "m.onnx")
    with pytest.raises(errors.InvalidArgument, match="must be the path of a file, not ModelProto"):
        create_calibrator(onnx.load(path))
    with pytest.raises(errors.NoSuchFile):
        create_calibrator(str(tmp_path / "none.onnx"))
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(errors.InvalidProtobuf):
        create_calibrator(str(tmp_path / "text.onnx"))
    with pytest.raises(errors.Fail, match="Writing the model for calibration"):
        create_calibrator(path, None, str(tmp_path / "no" / "folder" / "a.onnx"))


def test_steps_in_the_wrong_order(tmp_path):
    path = save_convolution(tmp_path / "m.onnx")
    with pytest.raises(errors.InvalidArgument, match="call augment_graph"):
        MinMaxCalibrater(path).collect_data(samples(1))
    assert made(tmp_path).compute_data() is None
    with pytest.raises(errors.InvalidArgument, match="Nothing has been collected"):
        made(tmp_path, CalibrationMethod.Entropy).compute_data()
    with pytest.raises(NotImplementedError):
        CalibraterBase(path).augment_graph()


def test_collectors():
    with pytest.raises(errors.InvalidArgument, match="no method 'mean'"):
        HistogramCollector("mean", False, 128, 128, 99.0, "same")
    collector = HistogramCollector("entropy", False, 128, 128, 99.0, "same")
    with pytest.raises(errors.InvalidArgument, match="Nothing has been collected"):
        collector.compute_collection_result()
    with pytest.raises(errors.InvalidArgument, match="'t' holds NaN"):
        collector.collect({"t": np.array([1, np.nan], np.float32)})


MASKED = """<ir_version: 10, opset_import: ["" : 18]>
g (float[2, 4] x, bool[2, 4] m) => (float[2, 4] y) <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1}> {
    low = Constant <value_float: float = -inf> ()
    p = MatMul(x, w)
    s = Where(m, p, low)
    t = Transpose(s)
    a = Softmax <axis = 0> (t)
    u = Transpose(a)
    y = MatMul(u, w)
}"""


@pytest.mark.parametrize("method", list(CalibrationMethod))
def test_infinite_numbers_that_the_model_means_have_infinite_ranges(tmp_path, method):
    model = onnx.parser.parse_model(MASKED.replace("-inf", "-1.0"))
    model.graph.node[0].attribute[0].f = -np.inf
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    calibrator = create_calibrator(path, None, str(tmp_path / "a.onnx"), method)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    masks = [np.array([[True, False, True, True]] * 2), np.ones((2, 4), bool)]  # only the first makes them infinite
    calibrator.collect_data([{"x": x, "m": mask} for mask in masks])
    found = calibrator.compute_data()
    assert found["s"].range_value[0] == -np.inf
    assert found["t"].range_value[0] == -np.inf
    for name in ("x", "p", "a", "y"):
        assert np.isfinite(found[name].range_value).all()
    with pytest.raises(errors.InvalidArgument, match=r"tensor 'x' \(an input of the model\) holds NaN or inf"):
        calibrator.collect_data([{"x": np.full_like(x, -np.inf), "m": masks[0]}])
