"""`quantize_static`, `quantize_dynamic` and `quantize`: from a float model to a file of the quantised one."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from onnx import ModelProto

from sardonyx.graph.load import LoadedModel
from sardonyx.quantization.base_quantizer import BaseQuantizer, opened
from sardonyx.quantization.calibration.method import CalibrationMethod
from sardonyx.quantization.configs import (
    DynamicQuantConfig,
    QuantConfig,
    StaticQuantConfig,
    get_qdq_config,
    names,
)
from sardonyx.quantization.job import PRE_PROCESSED
from sardonyx.quantization.onnx_quantizer import ONNXQuantizer
from sardonyx.quantization.opset import raise_opset
from sardonyx.quantization.options import Options
from sardonyx.quantization.qdq_quantizer import QDQQuantizer
from sardonyx.quantization.quant_utils import QuantFormat, QuantizationMode, QuantType, checked_format, ir_type
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry
from sardonyx.quantization.report import QuantizationReport
from sardonyx.quantization.smooth_quant import smoothed
from sardonyx.quantization.static import Calibration, check_types

if TYPE_CHECKING:
    from sardonyx.quantization.calibrate import CalibrationDataReader

logger = logging.getLogger(__name__)

Source: TypeAlias = str | os.PathLike[str] | ModelProto


def quantize_static(
    model_input: Source,
    model_output: str | os.PathLike[str],
    calibration_data_reader: CalibrationDataReader | None = None,
    quant_format: QuantFormat = QuantFormat.QDQ,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: QuantType = QuantType.QInt8,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    calibration_providers: Sequence[Any] | None = None,
    extra_options: Mapping[str, Any] | None = None,
    calibration_cache_path: str | os.PathLike[str] | None = None,
) -> None:
    """Write a model whose weights are stored quantised and whose activations are, by ranges of calibration samples.

    - `model_input` is a path, or a ModelProto; `model_output` the path of the result. With `use_external_data_format`,
      or beyond 2 GB, its weights go to ``<name>.data`` beside it.
    - `calibration_data_reader` gives samples; with `calibration_cache_path` the ranges are kept in that file, and read
      from it if it is there, for which no reader is needed. `calibrate_method` is MinMax by default.
    - `quant_format`: QDQ puts pairs of QuantizeLinear and DequantizeLinear around float operators, QOperator makes
      integer operators.
    - `op_types_to_quantize` are operators (all that have a rule by default), `nodes_to_quantize` and `nodes_to_exclude`
      names of nodes. A node that is excluded reads what it would in the float model, as far as that is still computed.
    - `per_channel` gives weights a scale for each channel, `reduce_range` stores weights in one bit less.
    - `extra_options`: see ``docs/quantization.md``.

    Errors: `InvalidQuantization`, which is a `ValueError` and an `errors.InvalidArgument`, for arguments and samples
    that do not fit; the errors of loading a model; `errors.Fail` where the file cannot be written.
    """
    quant_format = checked_format(quant_format)
    options = Options.parse(extra_options)
    check_types(quant_format, activation_type, weight_type, calibrate_method)
    operators = names(op_types_to_quantize) or sorted({*QLinearOpsRegistry, *QDQRegistry})
    loaded = _opened(model_input)
    if options.smooth_quant:
        loaded = smoothed(loaded, calibration_data_reader, options, calibration_providers)
    loaded = raise_opset(
        loaded,
        options,
        ir_type(weight_type),
        ir_type(activation_type),
        per_channel=per_channel and quant_format == QuantFormat.QDQ,
    )
    calibration = Calibration(
        calibration_data_reader,
        calibrate_method,
        operators,
        calibration_providers,
        options,
        None if calibration_cache_path is None else Path(calibration_cache_path),
        use_external_data_format,
    )
    arguments: dict[str, Any] = {
        "model": loaded,
        "per_channel": per_channel,
        "reduce_range": reduce_range,
        "weight_qType": weight_type,
        "activation_qType": activation_type,
        "tensors_range": {},
        "nodes_to_quantize": names(nodes_to_quantize),
        "nodes_to_exclude": names(nodes_to_exclude),
        "op_types_to_quantize": operators,
        "extra_options": extra_options,
    }
    quantizer: BaseQuantizer
    if quant_format is QuantFormat.QDQ:
        quantizer = QDQQuantizer(**arguments)
    else:
        quantizer = ONNXQuantizer(**arguments, mode=QuantizationMode.QLinearOps, static=True)
    quantizer.job.require_nodes()
    quantizer.calibrated(calibration.ranges(loaded))
    _write(quantizer, model_output, use_external_data_format)


def quantize_dynamic(
    model_input: Source,
    model_output: str | os.PathLike[str],
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a model whose weights are stored quantised and whose activations are quantised in each run, to uint8.

    The arguments and errors are those of `quantize_static`. The operators are MatMul, Conv, LSTM, Attention, Gather,
    EmbedLayerNormalization and Transpose by default.
    """
    options = {"MatMulConstBOnly": True, **(extra_options or {})}
    quantizer = ONNXQuantizer(
        raise_opset(_opened(model_input), Options.parse(options), ir_type(weight_type), ir_type(QuantType.QUInt8)),
        per_channel,
        reduce_range,
        QuantizationMode.IntegerOps,
        False,
        weight_type,
        QuantType.QUInt8,
        None,
        names(nodes_to_quantize),
        names(nodes_to_exclude),
        names(op_types_to_quantize) or list(IntegerOpsRegistry),
        options,
    )
    _write(quantizer, model_output, use_external_data_format)


def quantize(model_input: Source, model_output: str | os.PathLike[str], quant_config: Any) -> None:
    """Quantise a model as a `StaticQuantConfig`, a `DynamicQuantConfig` or settings for weights alone say.

    TypeError for other settings; the errors of `quantize_static`.
    """
    if isinstance(quant_config, StaticQuantConfig):
        quantize_static(model_input, model_output, **vars(quant_config))
    elif isinstance(quant_config, DynamicQuantConfig):
        settings = vars(quant_config)
        quantize_dynamic(
            model_input, model_output, **{key: value for key, value in settings.items() if key != "activation_type"}
        )
    else:
        _quantize_weights(model_input, model_output, quant_config)


def _quantize_weights(model_input: Source, model_output: str | os.PathLike[str], config: Any) -> None:
    from sardonyx.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer, WeightOnlyQuantConfig

    if not isinstance(config, WeightOnlyQuantConfig):
        raise TypeError(
            "Invalid quantization config type, it must be either StaticQuantConfig, DynamicQuantConfig, or "
            f"WeightOnlyQuantConfig, not {type(config).__name__}"
        )
    quantizer = MatMulNBitsQuantizer(model_input, algo_config=config)
    quantizer.process()
    quantizer.model.save_model_to_file(os.fspath(model_output), True)


def _opened(model: Source) -> LoadedModel:
    """The model; the log says what pre-processing would do for one that did not go through it."""
    loaded = opened(model)
    if loaded.model.metadata_props.get(PRE_PROCESSED[0]) != PRE_PROCESSED[1]:
        logger.warning(
            "The model is not pre-processed: quant_pre_process fuses operators, of which fewer are quantised"
        )
    return loaded


def _write(quantizer: BaseQuantizer, path: str | os.PathLike[str], external: bool) -> QuantizationReport:
    quantizer.quantize()
    quantizer.job.save(path, external)
    return quantizer.report


__all__ = [
    "DynamicQuantConfig",
    "InvalidQuantization",
    "QuantConfig",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "StaticQuantConfig",
    "get_qdq_config",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
]
