"""`quantize_static`, `quantize_dynamic` and `quantize`: files, calibration, settings, and what they refuse."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import sardonyx
from sardonyx import errors
from sardonyx.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    DynamicQuantConfig,
    QuantFormat,
    QuantType,
    StaticQuantConfig,
    get_qdq_config,
    quantize,
    quantize_dynamic,
    quantize_static,
)
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.static_quantize_runner import main as runner
from tests.quantization.quantizing import constants, model, node, operators

_RANDOM = np.random.default_rng(23)


def _floats(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


class Reader(CalibrationDataReader):
    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self._samples: Iterator[dict[str, Any]] = iter(samples)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._samples, None)


SAMPLES = [{"x": _floats(2, 3, 8, 8)} for _ in range(3)]


def _reader() -> Reader:
    return Reader(SAMPLES)


def _small(opset: int = 17) -> onnx.ModelProto:
    return model(
        [
            node("Conv", ["x", "w", "b"], ["c"], name="conv"),
            node("Relu", ["c"], ["r"], name="relu"),
            node("Conv", ["r", "v"], ["y"], name="last"),
        ],
        {"x": ["n", 3, 8, 8]},
        ["y"],
        {"w": _floats(16, 3, 3, 3), "b": _floats(16), "v": _floats(5, 16, 3, 3)},
        opset=opset,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "float.onnx"
    onnx.save(_small(), target)
    return target


def _difference(before: Any, after: Path) -> float:
    """How far the quantised model is off, as a part of the largest number of the float one."""
    source = before.SerializeToString() if isinstance(before, onnx.ModelProto) else str(before)
    exact = sardonyx.InferenceSession(source).run(None, SAMPLES[0])[0]
    found = sardonyx.InferenceSession(str(after)).run(None, SAMPLES[0])[0]
    return float(np.abs(exact - found).max() / np.abs(exact).max())


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@pytest.mark.parametrize("per_channel", [False, True])
def test_static(path: Path, form: QuantFormat, per_channel: bool) -> None:
    target = path.with_name("quantised.onnx")
    quantize_static(path, target, _reader(), form, per_channel=per_channel, activation_type=QuantType.QUInt8)
    found = onnx.load(target)
    assert ("QLinearConv" in operators(found)) == (form is QuantFormat.QOperator)
    assert _difference(path, target) < 0.03
    assert target.stat().st_size < path.stat().st_size


@pytest.mark.parametrize("method", list(CalibrationMethod))
def test_methods_of_calibration(path: Path, method: CalibrationMethod) -> None:
    target = path.with_name("quantised.onnx")
    kinds: dict[str, Any] = {}
    if method is CalibrationMethod.Distribution:
        kinds = {"activation_type": QuantType.QFLOAT8E4M3FN, "weight_type": QuantType.QFLOAT8E4M3FN}
    quantize_static(path, target, _reader(), calibrate_method=method, **kinds)
    assert _difference(path, target) < 0.25


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 21])
def test_16_bits_raise_the_operator_set(tmp_path: Path, opset: int) -> None:
    before, target = _small(opset), tmp_path / "quantised.onnx"
    quantize_static(before, target, _reader(), activation_type=QuantType.QUInt16)
    found = onnx.load(target)
    assert {entry.domain: entry.version for entry in found.opset_import}[""] == 21
    assert _difference(before, target) < 0.03


@pytest.mark.parametrize("opset", [7, 9])
def test_old_operator_sets_are_raised(tmp_path: Path, opset: int) -> None:
    before, target = _small(opset), tmp_path / "quantised.onnx"
    quantize_static(before, target, _reader(), activation_type=QuantType.QUInt8)
    assert {entry.domain: entry.version for entry in onnx.load(target).opset_import}[""] == 11
    assert _difference(before, target) < 0.03


@pytest.mark.parametrize("opset", [7, 8])
@pytest.mark.parametrize("per_channel", [False, True])
def test_models_of_an_old_format_whose_weights_are_inputs(tmp_path: Path, opset: int, per_channel: bool) -> None:
    before, target = _small(opset), tmp_path / "quantised.onnx"
    before.ir_version = 3  # in which each initializer is an input as well
    before.graph.input.extend(
        onnx.helper.make_tensor_value_info(one.name, one.data_type, one.dims) for one in before.graph.initializer
    )
    quantize_static(before, target, _reader(), per_channel=per_channel, activation_type=QuantType.QUInt8)
    assert [value.name for value in onnx.load(target).graph.input] == ["x"]
    assert _difference(before, target) < 0.03
    quantize_dynamic(before, target, per_channel=per_channel)
    assert _difference(before, target) < 0.03


@pytest.mark.parametrize("form", list(QuantFormat))
def test_a_format_by_its_name(path: Path, form: QuantFormat) -> None:
    target, named = path.with_name("quantised.onnx"), path.with_name("named.onnx")
    for file, given in ((target, form), (named, form.name)):
        quantize_static(path, file, _reader(), given, activation_type=QuantType.QUInt8)
    assert named.read_bytes() == target.read_bytes()


def test_a_message_whose_weights_were_not_read(path: Path) -> None:
    apart, target = path.with_name("apart.onnx"), path.with_name("quantised.onnx")
    onnx.save(onnx.load(path), apart, save_as_external_data=True, location="weights", size_threshold=0)
    message = onnx.load(apart, load_external_data=False)
    for make in (lambda: quantize_static(message, target, _reader()), lambda: quantize_dynamic(message, target)):
        with pytest.raises(errors.InvalidArgument, match="external data not loaded into memory") as raised:
            make()
        assert isinstance(raised.value, ValueError)
    assert not target.exists()


def test_weights_in_a_file_beside_the_model(path: Path) -> None:
    before = path.with_name("apart.onnx")
    onnx.save(_small(), before, save_as_external_data=True, location="apart.bin", size_threshold=0)
    target = path.with_name("quantised.onnx")
    quantize_static(
        before, target, _reader(), use_external_data_format=True, extra_options={"AddQDQPairToWeight": True}
    )
    assert (path.parent / "quantised.onnx.data").is_file()
    found = onnx.load(target, load_external_data=False)
    assert any(tensor.data_location == TensorProto.EXTERNAL for tensor in found.graph.initializer)
    assert _difference(before, target) < 0.05
    assert sorted(os.listdir(path.parent)) == [
        "apart.bin",
        "apart.onnx",
        "float.onnx",
        "quantised.onnx",
        "quantised.onnx.data",
    ]


def test_a_model_replaces_itself(path: Path) -> None:
    exact = sardonyx.InferenceSession(str(path)).run(None, SAMPLES[0])[0]
    quantize_static(path, path, _reader(), activation_type=QuantType.QUInt8)
    found = sardonyx.InferenceSession(str(path)).run(None, SAMPLES[0])[0]
    assert np.abs(exact - found).max() < 0.03 * np.abs(exact).max()


def test_ranges_are_kept_and_read(path: Path) -> None:
    cache, first, second = (path.with_name(name) for name in ("ranges.json", "first.onnx", "second.onnx"))
    quantize_static(path, first, _reader(), calibration_cache_path=cache)
    quantize_static(path, second, None, calibration_cache_path=cache)
    assert first.read_bytes() == second.read_bytes()
    with pytest.raises(
        ValueError, match=r"were found by CalibrationMethod\.MinMax, not by \S+Percentile: delete the file"
    ):
        quantize_static(path, second, None, calibration_cache_path=cache, calibrate_method=CalibrationMethod.Percentile)
    with pytest.raises(ValueError, match="calibration_cache_path is not a file"):
        quantize_static(path, second, None, calibration_cache_path=path.parent)


def test_dynamic(path: Path) -> None:
    target = path.with_name("quantised.onnx")
    quantize_dynamic(path, target)
    assert "ConvInteger" in operators(onnx.load(target))
    assert _difference(path, target) < 0.03


def test_settings_as_objects(path: Path) -> None:
    first, second = path.with_name("first.onnx"), path.with_name("second.onnx")
    quantize_static(path, first, _reader(), per_channel=True, nodes_to_exclude=["last"])
    quantize(path, second, StaticQuantConfig(_reader(), per_channel=True, nodes_to_exclude=["last"]))
    assert first.read_bytes() == second.read_bytes()
    quantize_dynamic(path, first, weight_type=QuantType.QUInt8)
    quantize(path, second, DynamicQuantConfig(weight_type=QuantType.QUInt8))
    assert first.read_bytes() == second.read_bytes()
    with pytest.raises(TypeError, match="Invalid quantization config type, it must be either"):
        quantize(path, second, {"per_channel": True})


def test_all_of_a_model() -> None:
    float_model = model(
        [node("Conv", ["x", "w"], ["c"]), node("Elu", ["c"], ["e"], name="elu"), node("Sin", ["e"], ["y"], name="sin")],
        {"x": ["n", 3, 8, 8]},
        ["y"],
        {"w": _floats(4, 3, 3, 3)},
    )
    config = get_qdq_config(
        float_model,
        _reader(),
        calibrate_args={"percentile": 99.0},
        nodes_to_exclude=lambda whole, one: whole is float_model and one.name == "sin",
        keep_removable_activations=True,
        extra_options={"QuantizeBias": False},
    )
    assert config.op_types_to_quantize == ["Conv", "Elu"]
    assert config.nodes_to_exclude == ["sin"]
    assert config.activation_type is QuantType.QUInt8
    assert config.extra_options == {
        "MinimumRealRange": None,
        "QDQKeepRemovableActivations": True,
        "ActivationSymmetric": False,
        "WeightSymmetric": None,
        "ForceQuantizeNoInputCheck": True,
        "TensorQuantOverrides": {},
        "CalibPercentile": 99.0,
        "QuantizeBias": False,
    }
    four = get_qdq_config(float_model, _reader(), weight_type=QuantType.QInt4)
    assert four.extra_options["UseQDQContribOps"] is True
    wide = get_qdq_config(float_model, _reader(), weight_type=QuantType.QInt4, activation_type=QuantType.QInt16)
    assert "UseQDQContribOps" not in wide.extra_options


def test_all_of_a_model_is_quantised(path: Path) -> None:
    target = path.with_name("quantised.onnx")
    quantize(path, target, get_qdq_config(path, _reader()))
    assert operators(onnx.load(target)).count("QuantizeLinear") == 3
    assert _difference(path, target) < 0.03


@pytest.mark.parametrize("function", [quantize_static, quantize_dynamic, quantize, get_qdq_config])
def test_signatures_are_those_of_onnxruntime(function: Callable[..., Any]) -> None:
    module = pytest.importorskip("onnxruntime.quantization.quantize")
    peer = inspect.signature(getattr(module, function.__name__))
    ours = inspect.signature(function)
    assert list(ours.parameters) == list(peer.parameters)
    for name, parameter in peer.parameters.items():
        default = ours.parameters[name].default
        assert str(default) == str(parameter.default), name


def test_the_command_line_of_onnxruntime(path: Path) -> None:
    for index, sample in enumerate(SAMPLES):
        folder = path.parent / f"test_data_set_{index}"
        folder.mkdir()
        (folder / "input_0.pb").write_bytes(numpy_helper.from_array(sample["x"]).SerializeToString())
    target, overrides = path.with_name("quantised.onnx"), path.with_name("overrides.json")
    overrides.write_text('{"r": [{"scale": 0.125, "zero_point": 0}], "w": [{"quant_type": "QUInt8"}]}')
    arguments = ["-i", str(path), "-o", str(target), "--per_channel", "--tensor_quant_overrides", str(overrides)]
    runner([*arguments, "--op_per_channel_axis", "MatMul", "1", "--qdq_keep_removable_activations"])
    found = constants(onnx.load(target))
    assert found["w_quantized"].dtype == np.uint8
    assert found["r_scale"] == np.float32(0.125)
    assert "Relu" in operators(onnx.load(target))


def test_the_command_line_without_samples(path: Path) -> None:
    with pytest.raises(InvalidQuantization, match="There is no folder test_data_set_0 beside"):
        runner(["-i", str(path), "-o", str(path.with_name("quantised.onnx"))])


# What is refused


def test_a_model_without_operators_to_quantise_is_told_of_them(tmp_path: Path) -> None:
    """Nobody gave a list, so the message does not speak of one that matches nothing."""
    only = model([node("Neg", ["x"], ["y"])], {"x": [2]}, ["y"], {})
    for call in (
        lambda: quantize_dynamic(only, tmp_path / "q.onnx"),
        lambda: quantize_static(only, tmp_path / "q.onnx", _reader()),
    ):
        with pytest.raises(
            InvalidQuantization, match=r"No node can be quantised: the model has Neg, and the operators"
        ):
            call()
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"calibration_data_reader": None}, "There is nothing to calibrate by"),
        ({"calibration_data_reader": Reader([])}, "No data"),
        ({"calibration_data_reader": Reader([{"z": SAMPLES[0]["x"]}])}, "z"),
        ({"calibration_data_reader": Reader([{"x": _floats(2, 4, 8, 8)}])}, "x"),
        ({"calibration_data_reader": Reader([{"x": SAMPLES[0]["x"] * np.nan}])}, "NaN"),
        ({"nodes_to_exclude": ["cnov"]}, "nodes_to_exclude = cnov matches no node of the model. Did you mean conv?"),
        ({"nodes_to_quantize": ["nothing"]}, "nodes_to_quantize = nothing matches no node of the model"),
        ({"op_types_to_quantize": ["LSTM"]}, "op_types_to_quantize = LSTM matches no node: the model has Conv, Relu"),
        ({"nodes_to_exclude": [None]}, "A list of names of nodes or operators is needed, and None is no name"),
        ({"quant_format": "qdq"}, "quant_format must be QuantFormat.QOperator or QuantFormat.QDQ, not 'qdq'"),
        (
            {"extra_options": {"TensorQuantOverrides": {"r": [{"quant_type": QuantType.QFLOAT8E4M3FN}]}}},
            "'r' is quantised to FLOAT8E4M3FN, whose scale follows from a standard deviation",
        ),
        ({"extra_options": {"QuantiseBias": False}}, "did you mean 'QuantizeBias'"),
        ({"extra_options": {"BlockSize": "four"}}, "extra_options['BlockSize'] must be"),
        ({"activation_type": QuantType.QInt8, "weight_type": QuantType.QUInt8}, "No operator multiplies activations"),
        (
            {"quant_format": QuantFormat.QOperator, "activation_type": QuantType.QInt16},
            "Only QuantFormat.QDQ supports types other than 8-bit integers",
        ),
        ({"weight_type": QuantType.QFLOAT8E4M3FN}, "Only Distribution calibration method is supported"),
        (
            {"weight_type": QuantType.QFLOAT8E4M3FN, "calibrate_method": CalibrationMethod.Distribution},
            "8-bit floats are the type of both",
        ),
    ],
)
def test_arguments_that_do_not_fit(path: Path, arguments: dict[str, Any], text: str) -> None:
    target = path.with_name("quantised.onnx")
    given = {"calibration_data_reader": _reader(), **arguments}
    with pytest.raises(errors.InvalidArgument) as raised:
        quantize_static(path, target, **given)
    assert text in str(raised.value)
    assert not target.exists()


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"rr": [{"rmin": 0.0}]}, "'rr': the model has no such tensor. Did you mean r?"),
        ({"r": {"rmin": 0.0}}, "a list of dictionaries is needed"),
        ({"r": [{"range": 1.0}]}, "there is no key 'range'"),
        ({"r": [{"scale": 0.1}]}, "'scale' and 'zero_point' are only given together"),
        ({"r": [{"scale": 0.1, "zero_point": 0, "rmax": 1.0}]}, "rmax contradicts 'scale' and 'zero_point'"),
        ({"r": [{"scale": -0.1, "zero_point": 0}]}, "'scale' must be one number above 0"),
        (
            {"r": [{"scale": 0.1, "zero_point": 300, "quant_type": QuantType.QUInt8}]},
            "'zero_point' 300 is not in 0..255 of UINT8",
        ),
        ({"r": [{"scale": 0.1, "zero_point": 300}]}, "'zero_point' 300 is not in -128..127 of INT8"),
        ({"w": [{"scale": 0.1, "zero_point": 300}]}, "'zero_point' 300 is not in -128..127 of INT8"),
        ({"r": [{}, {"rmin": 0.0}]}, "one dictionary is needed for an activation, not 2"),
        ({"w": [{}, {"symmetric": True}]}, "the first dictionary has no 'axis'"),
        ({"r": [{"rmin": 2.0, "rmax": 1.0}]}, "'rmin' 2.0 and 'rmax' 1.0 are no range"),
        ({"r": [{"axis": 0}]}, "per channel, which only constants can be"),
        ({"r": [{"reduce_range": True}]}, "'reduce_range' is for constants"),
        ({"r": [{"convert": {}}]}, "'convert' must be a dictionary with a 'quant_type'"),
        ({"r": [{"convert": {"quant_type": QuantType.QInt8}}]}, "leave out 'convert'"),
        (
            {"r": [{"convert": {"quant_type": QuantType.QInt16, "recv_nodes": {"lsat"}}}]},
            "'recv_nodes' names lsat, which does not read it. Did you mean last?",
        ),
        ({"w": [{"convert": {"quant_type": QuantType.QInt16}}]}, "'convert' is for activations"),
        ({"w": [{"axis": 4}]}, "'axis' 4 is none of a constant of shape (16, 3, 3, 3)"),
        ({"w": [{"axis": 1}] * 2}, "one dictionary or one for each of the 3 channels"),
        ({"w": [{"axis": 1, "symmetric": True}, {"symmetric": False}, {}]}, "'symmetric' of channel 1"),
        ({"v": [{"quant_type": "int8"}]}, "is no type to quantise to"),
    ],
)
def test_overrides_that_contradict(path: Path, overrides: dict[str, Any], text: str) -> None:
    target = path.with_name("quantised.onnx")
    with pytest.raises(InvalidQuantization) as raised:
        quantize_static(path, target, _reader(), extra_options={"TensorQuantOverrides": overrides})
    assert text in str(raised.value)
    assert not target.exists()


def test_a_quantised_model(path: Path) -> None:
    target = path.with_name("quantised.onnx")
    for make in (
        lambda: quantize_static(path, target, _reader()),
        lambda: quantize_static(path, target, _reader(), QuantFormat.QOperator, activation_type=QuantType.QUInt8),
        lambda: quantize_dynamic(path, target),
    ):
        make()
        for again in (
            lambda: quantize_static(target, path.with_name("again.onnx"), _reader()),
            lambda: quantize_dynamic(target, path.with_name("again.onnx")),
        ):
            with pytest.raises(InvalidQuantization, match=r"The model is quantised already: node .+ is a "):
                again()


@pytest.mark.parametrize("dynamic", [False, True])
def test_nothing_that_can_be_quantised(tmp_path: Path, dynamic: bool) -> None:
    """A model of operators in double precision."""
    float_model = model(
        [node("MatMul", ["x", "w"], ["y"])],
        {"x": [4, 6]},
        ["y"],
        {"w": _floats(6, 6).astype(np.float64)},
        kind=TensorProto.DOUBLE,
    )
    target = tmp_path / "quantised.onnx"
    reader = Reader([{"x": _floats(4, 6).astype(np.float64)}])
    quantizing = (
        (lambda: quantize_dynamic(float_model, target))
        if dynamic
        else (lambda: quantize_static(float_model, target, reader))
    )
    with pytest.raises(InvalidQuantization, match=r"No node of the model can be quantised.*DOUBLE"):
        quantizing()
    assert not target.exists()


def test_a_missing_file_and_no_model(tmp_path: Path) -> None:
    with pytest.raises(errors.NoSuchFile, match=r"nothing\.onnx"):
        quantize_static(tmp_path / "nothing.onnx", tmp_path / "q.onnx", _reader())
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(errors.InvalidProtobuf):
        quantize_static(tmp_path / "text.onnx", tmp_path / "q.onnx", _reader())


def test_a_folder_that_is_not_there(path: Path) -> None:
    with pytest.raises(errors.Fail, match="null byte"):
        quantize_dynamic(_small(), "a\0b")
    with pytest.raises(errors.Fail, match="there is no folder"):
        quantize_static(path, path.parent / "nowhere" / "q.onnx", _reader())


@pytest.mark.parametrize("external", [False, True])
def test_a_full_disk_leaves_no_half_a_file(path: Path, external: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a new file nor a change to the one that was there."""
    from tests.robustness import failing_files

    target = path.with_name("quantised.onnx")
    target.write_bytes(b"before")
    before = sorted(os.listdir(path.parent))
    monkeypatch.setattr("sardonyx.graph.saving.replacing", _full(failing_files))
    with pytest.raises(errors.Fail, match=r"Saving the model to .*quantised\.onnx failed: No space left on device"):
        quantize_static(path, target, _reader(), use_external_data_format=external)
    assert target.read_bytes() == b"before"
    assert sorted(os.listdir(path.parent)) == before


def _full(_: Any) -> Callable[..., Any]:
    """`replacing`, whose file is full after 100 bytes."""
    import contextlib
    import errno

    from sardonyx.runtime.files.opening import replacing

    @contextlib.contextmanager
    def full(target: Any) -> Iterator[Any]:
        with replacing(target) as file:

            class Limited:
                def write(self, data: Any) -> int:
                    if file.tell() + len(data) > 100:
                        file.write(bytes(data)[:100])
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    return int(file.write(data))

                def __getattr__(self, name: str) -> Any:
                    return getattr(file, name)

            yield Limited()

    return full
