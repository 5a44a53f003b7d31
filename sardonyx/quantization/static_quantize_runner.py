"""``python -m sardonyx.quantization.static_quantize_runner``: static quantization by samples beside a model."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from sardonyx import errors
from sardonyx.quantization.calibrate import CalibrationDataReader, CalibrationMethod
from sardonyx.quantization.configs import StaticQuantConfig
from sardonyx.quantization.quant_utils import QuantFormat, QuantType
from sardonyx.quantization.quantize import quantize
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.runtime.files.opening import open_file

Array = np.ndarray[Any, Any]

_TYPES = {f"q{name}": QuantType[f"Q{kind}"] for name, kind in (
    ("int8", "Int8"), ("uint8", "UInt8"), ("int16", "Int16"), ("uint16", "UInt16"), ("int4", "Int4"),
    ("uint4", "UInt4"), ("float8e4m3fn", "FLOAT8E4M3FN"),
)}  # fmt: skip
_METHODS = {method.name.lower(): method for method in CalibrationMethod}
_FORMATS = {"qdq": QuantFormat.QDQ, "qoperator": QuantFormat.QOperator}
# Options without a value, by the keys of `extra_options`.
_FLAGS = {
    "enable_subgraph": ("EnableSubgraph", "quantise bodies of control flow as well"),
    "force_quantize_no_input_check": (
        "ForceQuantizeNoInputCheck",
        "quantise operators such as MaxPool and Transpose although their input is not quantised",
    ),
    "matmul_const_b_only": ("MatMulConstBOnly", "quantise only a MatMul whose second operand is a constant"),
    "add_qdq_pair_to_weight": ("AddQDQPairToWeight", "keep weights in float, between QuantizeLinear and its reverse"),
    "dedicated_qdq_pair": ("DedicatedQDQPair", "give each node that reads a value a pair of its own"),
    "calib_tensor_range_symmetric": ("CalibTensorRangeSymmetric", "make ranges symmetric"),
    "calib_moving_average": ("CalibMovingAverage", "take the moving average of extremes (minmax)"),
    "use_qdq_contrib_ops": ("UseQDQContribOps", "let pairs be of com.microsoft"),
    "qdq_keep_removable_activations": ("QDQKeepRemovableActivations", "keep each Relu and Clip"),
    "qdq_disable_weight_adjust_for_int32_bias": (
        "QDQDisableWeightAdjustForInt32Bias",
        "do not raise the scale of a weight whose bias exceeds int32",
    ),
}


class OnnxModelCalibrationDataReader(CalibrationDataReader):
    """The samples in the folders ``test_data_set_*`` beside a model: ``input_0.pb`` and so on, a tensor each."""

    def __init__(self, model_path: str | os.PathLike[str]) -> None:
        self.model_dir = os.path.dirname(os.fspath(model_path)) or "."
        graph = onnx.load(model_path, load_external_data=False).graph
        constants = {tensor.name for tensor in graph.initializer}
        self._inputs = [value.name for value in graph.input if value.name not in constants]
        folders = sorted(Path(self.model_dir).glob("test_data_set_*"))
        if not folders:
            raise InvalidQuantization(
                f"There is no folder test_data_set_0 beside {model_path}: put the inputs of samples there, as "
                "input_0.pb and so on"
            )
        self._folders = iter(folders)

    def get_next(self) -> dict[str, Array] | None:
        """The next sample; None after the last one."""
        folder = next(self._folders, None)
        if folder is None:
            return None
        return {name: self.read_onnx_pb_data(folder / f"input_{index}.pb") for index, name in enumerate(self._inputs)}

    def read_onnx_pb_data(self, file_pb: str | os.PathLike[str]) -> Array:
        """The array in a file of a TensorProto."""
        tensor = onnx.TensorProto()
        try:
            with open_file(file_pb) as file:
                tensor.ParseFromString(file.read())
            return np.asarray(numpy_helper.to_array(tensor))
        except OSError as error:
            raise errors.NoSuchFile(f"Sample {file_pb} cannot be read: {error.strerror}") from error
        except Exception as error:
            raise InvalidQuantization(f"Sample {file_pb} is no tensor: {error}") from error


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description="Quantise a model by the samples in test_data_set_* beside it")
    parser.add_argument("-i", "--input_model_path", required=True, help="the float model")
    parser.add_argument("-o", "--output_quantized_model_path", required=True, help="the file to write")
    parser.add_argument("--activation_type", choices=_TYPES, default="quint8")
    parser.add_argument("--weight_type", choices=_TYPES, default="qint8")
    parser.add_argument("--calibration_method", choices=_METHODS, default="minmax")
    parser.add_argument("--quant_format", choices=_FORMATS, default="qdq")
    parser.add_argument("--per_channel", action="store_true", help="give weights a scale for each channel")
    parser.add_argument("--disable_quantize_bias", action="store_true", help="keep biases in float")
    for name, (_, told) in _FLAGS.items():
        parser.add_argument(f"--{name}", action="store_true", help=told)
    for name in ("op_types_to_exclude_output_quantization", "nodes_to_quantize", "nodes_to_exclude"):
        parser.add_argument(f"--{name}", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--minimum_real_range", type=float, default=0.0001, help="least range of a tensor")
    parser.add_argument(
        "--op_per_channel_axis",
        nargs=2,
        action="append",
        default=[],
        metavar=("OPERATOR", "AXIS"),
        help="the axis of the channels of an operator's weights, such as MatMul 1",
    )
    parser.add_argument("--tensor_quant_overrides", metavar="FILE", help="TensorQuantOverrides as JSON")
    return parser.parse_args(arguments)


def get_tensor_quant_overrides(file: str | None) -> dict[str, list[dict[str, Any]]]:
    """The overrides of single tensors in a JSON file; types are names of `QuantType`."""
    if not file:
        return {}
    try:
        with open_file(file) as opened:
            found = json.load(opened)
    except (OSError, ValueError) as error:
        raise InvalidQuantization(f"The overrides in {file} cannot be read: {error}") from error
    for many in found.values():
        for one in many:
            for part in (one, one.get("convert", {})):
                if isinstance(part.get("quant_type"), str):
                    part["quant_type"] = QuantType.from_string(part["quant_type"])
    return dict(found)


def config_of(given: argparse.Namespace, reader: CalibrationDataReader) -> StaticQuantConfig:
    """The settings that the arguments stand for."""
    options: dict[str, Any] = {key: getattr(given, name) for name, (key, _) in _FLAGS.items()}
    options |= {
        "OpTypesToExcludeOutputQuantization": given.op_types_to_exclude_output_quantization,
        "QDQOpTypePerChannelSupportToAxis": _axes(given.op_per_channel_axis),
        "QuantizeBias": not given.disable_quantize_bias,
        "MinimumRealRange": given.minimum_real_range,
        "TensorQuantOverrides": get_tensor_quant_overrides(given.tensor_quant_overrides),
    }
    return StaticQuantConfig(
        reader,
        _METHODS[given.calibration_method],
        _FORMATS[given.quant_format],
        _TYPES[given.activation_type],
        _TYPES[given.weight_type],
        nodes_to_quantize=given.nodes_to_quantize,
        nodes_to_exclude=given.nodes_to_exclude,
        per_channel=given.per_channel,
        extra_options=options,
    )


def _axes(pairs: Sequence[Sequence[str]]) -> Mapping[str, int]:
    try:
        return {operator: int(axis) for operator, axis in pairs}
    except ValueError:
        raise InvalidQuantization(f"--op_per_channel_axis takes an operator and a number, not {pairs}") from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says."""
    given = parse_arguments(arguments)
    reader = OnnxModelCalibrationDataReader(given.input_model_path)
    quantize(given.input_model_path, given.output_quantized_model_path, config_of(given, reader))


if __name__ == "__main__":
    main()
