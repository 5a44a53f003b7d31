"""Settings of `quantize` as objects, and those that quantise a whole model to integers."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import onnx
from onnx import ModelProto, NodeProto
from onnx.external_data_helper import uses_external_data

from sardonyx.graph.load import load_model
from sardonyx.quantization.calibration.method import CalibrationMethod
from sardonyx.quantization.opset import FOUR, WIDE, needed_opset, override_types
from sardonyx.quantization.options import Options
from sardonyx.quantization.quant_utils import MODEL_SIZE_THRESHOLD, QuantFormat, QuantType, get_opset_version, ir_type
from sardonyx.quantization.refusal import InvalidQuantization

if TYPE_CHECKING:
    from sardonyx.quantization.calibrate import CalibrationDataReader

# Operators that are never quantised as others are: they change types.
_CONVERSIONS = frozenset({"Cast", "DequantizeLinear", "QuantizeLinear"})
# The options of calibration by the names that calibrators have for them.
CALIBRATION_OPTIONS = {
    "symmetric": "CalibTensorRangeSymmetric",
    "moving_average": "CalibMovingAverage",
    "averaging_constant": "CalibMovingAverageConstant",
    "max_intermediate_outputs": "CalibMaxIntermediateOutputs",
    "percentile": "CalibPercentile",
    "num_bins": "CalibNumBins",
    "num_quantized_bins": "CalibNumQuantizedBins",
}


class QuantConfig:
    """What all ways of quantization need to know; see `quantize_static` and `quantize_dynamic`."""

    def __init__(
        self,
        activation_type: QuantType = QuantType.QUInt8,
        weight_type: QuantType = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
    ) -> None:
        self.op_types_to_quantize = op_types_to_quantize or []
        self.per_channel = per_channel
        self.reduce_range = reduce_range
        self.weight_type = weight_type
        self.activation_type = activation_type
        self.nodes_to_quantize = nodes_to_quantize or []
        self.nodes_to_exclude = nodes_to_exclude or []
        self.use_external_data_format = use_external_data_format


class StaticQuantConfig(QuantConfig):
    """The arguments of `quantize_static`."""

    def __init__(
        self,
        calibration_data_reader: CalibrationDataReader | None,
        calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
        quant_format: QuantFormat = QuantFormat.QDQ,
        activation_type: QuantType = QuantType.QInt8,
        weight_type: QuantType = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
        calibration_providers: Sequence[Any] | None = None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            activation_type,
            weight_type,
            op_types_to_quantize,
            nodes_to_quantize,
            nodes_to_exclude,
            per_channel,
            reduce_range,
            use_external_data_format,
        )
        self.calibration_data_reader = calibration_data_reader
        self.calibrate_method = calibrate_method
        self.quant_format = quant_format
        self.calibration_providers = calibration_providers
        self.extra_options = dict(extra_options or {})


class DynamicQuantConfig(QuantConfig):
    """The arguments of `quantize_dynamic`."""

    def __init__(
        self,
        weight_type: QuantType = QuantType.QInt8,
        op_types_to_quantize: Sequence[str] | None = None,
        nodes_to_quantize: Sequence[str] | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        per_channel: bool = False,
        reduce_range: bool = False,
        use_external_data_format: bool = False,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            QuantType.QUInt8,
            weight_type,
            op_types_to_quantize,
            nodes_to_quantize,
            nodes_to_exclude,
            per_channel,
            reduce_range,
            use_external_data_format,
        )
        self.extra_options = dict(extra_options or {})


def get_qdq_config(
    model_input: str | os.PathLike[str] | ModelProto,
    calibration_data_reader: CalibrationDataReader,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    calibrate_args: Mapping[str, Any] | None = None,
    activation_type: QuantType = QuantType.QUInt8,
    weight_type: QuantType = QuantType.QInt8,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    keep_removable_activations: bool = False,
    min_real_range: float | None = None,
    tensor_quant_overrides: Mapping[str, list[dict[str, Any]]] | None = None,
    calibration_providers: Sequence[Any] | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | Callable[[ModelProto, NodeProto], bool] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> StaticQuantConfig:
    """The settings that quantise all of a model in the QDQ format: every operator of it but conversions of types.

    `calibrate_args` are options of the calibrator by its own names (symmetric, moving_average, averaging_constant,
    max_intermediate_outputs, percentile, num_bins, num_quantized_bins). `nodes_to_exclude` are names, or a function of
    the model and a node that says whether the node stays float. `extra_options` count more than the other arguments.
    Errors: those of loading a model, `InvalidQuantization` for options.
    """
    model = model_input if isinstance(model_input, ModelProto) else _structure(model_input)
    excluded = set() if nodes_to_exclude is None or callable(nodes_to_exclude) else set(nodes_to_exclude)
    found: set[str] = set()
    for node in model.graph.node:
        if (op_types_to_quantize and node.op_type not in op_types_to_quantize) or node.name in excluded:
            continue
        if callable(nodes_to_exclude) and nodes_to_exclude(model, node):
            excluded.add(node.name)
        else:
            found.add(node.op_type)
    options: dict[str, Any] = {
        "MinimumRealRange": min_real_range,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric,
        "ForceQuantizeNoInputCheck": True,
        "TensorQuantOverrides": deepcopy(dict(tensor_quant_overrides or {})),
    }
    for name, value in (calibrate_args or {}).items():
        if name not in CALIBRATION_OPTIONS:
            raise InvalidQuantization(
                f"calibrate_args: there is no option '{name}'; the options are {', '.join(CALIBRATION_OPTIONS)}"
            )
        options[CALIBRATION_OPTIONS[name]] = value
    options.update(extra_options or {})
    if _needs_contrib(get_opset_version(model), options, activation_type, weight_type):
        options.setdefault("UseQDQContribOps", True)
    return StaticQuantConfig(
        calibration_data_reader,
        calibrate_method,
        QuantFormat.QDQ,
        activation_type,
        weight_type,
        list(op_types_to_quantize) if op_types_to_quantize else sorted(found - _CONVERSIONS),
        None,
        sorted(excluded),
        per_channel,
        reduce_range,
        _is_large(model),
        calibration_providers,
        options,
    )


def _needs_contrib(opset: int, options: Mapping[str, Any], *kinds: QuantType) -> bool:
    """Whether pairs have to be of com.microsoft: for 4 bits in a model that stays older than ONNX's own."""
    parsed = Options.parse(options)
    types = {*map(ir_type, kinds), *override_types(parsed)}
    return needed_opset(opset, parsed, types) < WIDE and bool(types & FOUR)


def _structure(path: str | os.PathLike[str]) -> ModelProto:
    """The message of a file, without weights that lie in others; the typed errors of loading."""
    try:
        return onnx.load_model(path, load_external_data=False)
    except Exception:
        load_model(path)  # which says what is wrong, typed
        raise


def _is_large(model: ModelProto) -> bool:
    if any(uses_external_data(tensor) for tensor in model.graph.initializer):
        return True
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer) >= MODEL_SIZE_THRESHOLD


def names(given: Collection[str] | None) -> list[str]:
    """A list of names that a caller gave, or an empty one; `InvalidQuantization` where one is no string."""
    found = [given] if isinstance(given, str) else list(given or ())
    for name in found:
        if not isinstance(name, str):
            raise InvalidQuantization(f"A list of names of nodes or operators is needed, and {name!r} is no name")
    return found
