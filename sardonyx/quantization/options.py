"""The `extra_options` of the quantizers, checked."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.schema import known_names
from sardonyx.quantization.calibration.collector import MOST_BINS, MOST_LEVELS
from sardonyx.quantization.refusal import InvalidQuantization


@dataclass(frozen=True)
class Options:
    """What `extra_options` say; each field is named after its key (see `docs/quantization.md`).

    What depends on the way of quantization has None for its default: `matmul_const_b_only`, for a MatMul whose B is no
    constant, is True in dynamic quantization and False in static one; `weight_symmetric` is True for signed types.
    """

    activation_symmetric: bool = False
    activation_restricted_asymmetric: bool = False
    weight_symmetric: bool | None = None
    enable_subgraph: bool = False
    force_quantize_no_input_check: bool = False
    matmul_const_b_only: bool | None = None
    add_qdq_pair_to_weight: bool = False
    op_types_to_exclude_output_quantization: tuple[str, ...] = ()
    dedicated_qdq_pair: bool = False
    qdq_op_type_per_channel_support_to_axis: Mapping[str, int] = field(default_factory=dict)
    qdq_keep_removable_activations: bool = False
    qdq_disable_weight_adjust_for_int32_bias: bool = False
    quantize_bias: bool = True
    use_qdq_contrib_ops: bool = False
    minimum_real_range: float | None = None
    minimum_signal_to_noise: float = 20.0  # in decibels, of activations; 0 turns the rule off
    tensor_quant_overrides: Mapping[str, Any] = field(default_factory=dict)
    default_tensor_type: int | None = None
    block_size: int = 0
    sigmoid_nnapi: bool = False
    calib_tensor_range_symmetric: bool = False
    calib_moving_average: bool = False
    calib_moving_average_constant: float = 0.01
    calib_max_intermediate_outputs: int | None = None
    calib_strided_min_max: int | None = None
    calib_percentile: float = 99.999
    calib_num_bins: int | None = None
    calib_num_quantized_bins: int | None = None
    smooth_quant: bool = False
    smooth_quant_alpha: float = 0.5
    smooth_quant_folding: bool = True
    ort_compatible: bool = False
    given: frozenset[str] = frozenset()  # the keys that the caller gave

    @classmethod
    def parse(cls, extra_options: Mapping[str, Any] | None) -> Options:
        """The options that a caller gave; `InvalidQuantization` for an unknown key or a value of a wrong type."""
        if isinstance(extra_options, Options):
            return extra_options
        if extra_options is None:
            return cls()
        if not isinstance(extra_options, Mapping):
            raise InvalidQuantization(f"extra_options must be a dict, not {type(extra_options).__name__}")
        found: dict[str, Any] = {}
        for key, value in extra_options.items():
            if key in _WITHOUT_EFFECT:
                continue
            if key not in _KEYS:
                near = difflib.get_close_matches(str(key), _KEYS, 1, 0.5) or difflib.get_close_matches(
                    str(key).lower(), [one.lower() for one in _KEYS], 1, 0.4
                )
                nearest = next((one for one in _KEYS if near and one.lower() == near[0].lower()), None)
                meant = f"did you mean '{nearest}'?" if nearest else f"the options are {', '.join(sorted(_KEYS))}"
                raise InvalidQuantization(f"extra_options: there is no option '{key}'; {meant}")
            name, check, expected = _KEYS[key]
            if value is None and name in _OPTIONAL:
                continue
            try:
                found[name] = check(value)
            except (TypeError, ValueError):
                raise InvalidQuantization(f"extra_options['{key}'] must be {expected}, not {_shown(value)}") from None
        return cls(**found, given=frozenset(extra_options))

    def is_weight_symmetric(self, signed: bool) -> bool:
        """Whether weights of a type, signed or not, are quantised with zero in the middle."""
        return signed if self.weight_symmetric is None else self.weight_symmetric


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _flag(value: Any) -> bool:
    if isinstance(value, bool | np.bool_) or (isinstance(value, numbers.Integral) and value in (0, 1)):
        return bool(value)
    raise TypeError


def _number(value: Any) -> float:
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and np.isfinite(float(value)):
        return float(value)
    raise TypeError


def _positive(value: Any) -> float:
    if _number(value) > 0:
        return float(value)
    raise ValueError


def _not_negative(value: Any) -> float:
    if _number(value) >= 0:
        return float(value)
    raise ValueError


def _fraction(value: Any) -> float:
    if 0 <= _number(value) <= 1:
        return float(value)
    raise ValueError


def _percentile(value: Any) -> float:
    if 0 <= _number(value) <= 100:
        return float(value)
    raise ValueError


def _integer(least: int, most: float = math.inf) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, numbers.Integral) and not isinstance(value, bool) and least <= int(value) <= most:
            return int(value)
        raise TypeError

    return check


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, Sequence | frozenset | set) and not isinstance(value, str):
        names = tuple(value)
        if all(isinstance(name, str) for name in names):
            return names
    raise TypeError


def _axes(value: Any) -> dict[str, int]:
    if isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(axis, numbers.Integral) for key, axis in value.items()
    ):
        if not value.keys() <= known_names().keys():
            raise ValueError
        return {key: int(axis) for key, axis in value.items()}
    raise TypeError


def _tensor_type(value: Any) -> int:
    kind = ir.DataType(_integer(1)(value))  # ValueError for a number that stands for no type
    return int(kind)


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return value
    raise TypeError


_BOOL = "True or False"
_KEYS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "ActivationSymmetric": ("activation_symmetric", _flag, _BOOL),
    "ActivationRestrictedAsymmetric": ("activation_restricted_asymmetric", _flag, _BOOL),
    "WeightSymmetric": ("weight_symmetric", _flag, f"{_BOOL} or None"),
    "EnableSubgraph": ("enable_subgraph", _flag, _BOOL),
    "ForceQuantizeNoInputCheck": ("force_quantize_no_input_check", _flag, _BOOL),
    "MatMulConstBOnly": ("matmul_const_b_only", _flag, _BOOL),
    "AddQDQPairToWeight": ("add_qdq_pair_to_weight", _flag, _BOOL),
    "OpTypesToExcludeOutputQuantization": (
        "op_types_to_exclude_output_quantization",
        _names,
        "a list of names of operators",
    ),
    "DedicatedQDQPair": ("dedicated_qdq_pair", _flag, _BOOL),
    "QDQOpTypePerChannelSupportToAxis": (
        "qdq_op_type_per_channel_support_to_axis",
        _axes,
        "a dict from names of operators of ONNX or com.microsoft to axes",
    ),
    "QDQKeepRemovableActivations": ("qdq_keep_removable_activations", _flag, _BOOL),
    "QDQDisableWeightAdjustForInt32Bias": ("qdq_disable_weight_adjust_for_int32_bias", _flag, _BOOL),
    "QuantizeBias": ("quantize_bias", _flag, _BOOL),
    "UseQDQContribOps": ("use_qdq_contrib_ops", _flag, _BOOL),
    "MinimumRealRange": ("minimum_real_range", _positive, "a positive number or None"),
    "MinimumSignalToNoise": ("minimum_signal_to_noise", _not_negative, "a number of decibels, 0 or more"),
    "TensorQuantOverrides": ("tensor_quant_overrides", _mapping, "a dict from names of tensors to lists of dicts"),
    "DefaultTensorType": ("default_tensor_type", _tensor_type, "a type of onnx.TensorProto, such as 1 for FLOAT"),
    "BlockSize": ("block_size", _integer(0), "a whole number that is not negative"),
    "extra.Sigmoid.nnapi": ("sigmoid_nnapi", _flag, _BOOL),
    "CalibTensorRangeSymmetric": ("calib_tensor_range_symmetric", _flag, _BOOL),
    "CalibMovingAverage": ("calib_moving_average", _flag, _BOOL),
    "CalibMovingAverageConstant": ("calib_moving_average_constant", _fraction, "a number from 0 to 1"),
    "CalibMaxIntermediateOutputs": ("calib_max_intermediate_outputs", _integer(1), "a positive whole number or None"),
    "CalibStridedMinMax": ("calib_strided_min_max", _integer(1), "a positive whole number or None"),
    "CalibPercentile": ("calib_percentile", _percentile, "a number from 0 to 100"),
    "CalibNumBins": ("calib_num_bins", _integer(2, MOST_BINS), f"a whole number from 2 to {MOST_BINS} or None"),
    "CalibNumQuantizedBins": (
        "calib_num_quantized_bins",
        _integer(2, MOST_LEVELS),
        f"a whole number from 2 to {MOST_LEVELS} or None",
    ),
    "SmoothQuant": ("smooth_quant", _flag, _BOOL),
    "SmoothQuantAlpha": ("smooth_quant_alpha", _fraction, "a number from 0 to 1"),
    "SmoothQuantFolding": ("smooth_quant_folding", _flag, _BOOL),
    "OrtCompatible": ("ort_compatible", _flag, _BOOL),
}
# What former versions of onnxruntime knew, and clients still give.
_WITHOUT_EFFECT = frozenset({"ForceSymmetric"})
_OPTIONAL = {
    "weight_symmetric",
    "matmul_const_b_only",
    "minimum_real_range",
    "default_tensor_type",
    "calib_max_intermediate_outputs",
    "calib_strided_min_max",
    "calib_num_bins",
    "calib_num_quantized_bins",
    "tensor_quant_overrides",
    "op_types_to_exclude_output_quantization",
    "qdq_op_type_per_channel_support_to_axis",
}
