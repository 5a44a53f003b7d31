"""The settings that quantise a model for QNN."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto

from sardonyx.graph.load import load_model
from sardonyx.quantization.calibration.method import CalibrationMethod
from sardonyx.quantization.configs import StaticQuantConfig, get_qdq_config, names
from sardonyx.quantization.execution_providers.qnn.mixed_precision_overrides_utils import (
    MixedPrecisionTensorQuantOverridesFixer,
)
from sardonyx.quantization.job import Job
from sardonyx.quantization.opset import WIDE
from sardonyx.quantization.options import Options
from sardonyx.quantization.quant_utils import QuantType, ir_type
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.tensor_quant_overrides import Override
from sardonyx.transformers.large_weights import load_proto

if TYPE_CHECKING:
    from sardonyx.quantization.calibrate import CalibrationDataReader

logger = logging.getLogger(__name__)

_SIXTEEN = frozenset({QuantType.QInt16, QuantType.QUInt16})
_EIGHT = frozenset({QuantType.QInt8, QuantType.QUInt8})
_FOUR = frozenset({QuantType.QInt4, QuantType.QUInt4})
_LEAST_RANGE = 1e-4  # of real numbers, below which QNN takes no scale
# The scales and zero points that QNN asks of what an operator makes in 16 bits: all of the range that it has.
_FIXED: Mapping[tuple[str, QuantType], tuple[float, int]] = {
    ("Sigmoid", QuantType.QUInt16): (1 / 65536, 0),
    ("Sigmoid", QuantType.QInt16): (1 / 32768, 0),
    ("Tanh", QuantType.QUInt16): (1 / 32768, 32768),
    ("Tanh", QuantType.QInt16): (1 / 32768, 0),
}
_RANGES = ("rmin", "rmax", "symmetric")  # which a scale leaves no room for


def get_qnn_qdq_config(
    model_input: str | os.PathLike[str] | ModelProto,
    calibration_data_reader: CalibrationDataReader,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    activation_type: QuantType = QuantType.QUInt8,
    weight_type: QuantType = QuantType.QUInt8,
    per_channel: bool = False,
    init_overrides: Mapping[str, list[dict[str, Any]]] | None = None,
    add_qtype_converts: bool = True,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    keep_removable_activations: bool = False,
    stride: int | None = None,
    calibration_providers: Sequence[Any] | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
) -> StaticQuantConfig:
    """The settings that quantise all of a model in the QDQ format as QNN takes it.

    They are those of `get_qdq_config`, with overrides of single tensors (``TensorQuantOverrides``) beside those of
    `init_overrides`, which stay as they are:

    - With `add_qtype_converts`, every node reads and makes one type: where `init_overrides` give an activation another
      one, so it is for the nodes around, and tensors between two types are converted.
    - The constant that a MatMul or a LayerNormalization reads beside an activation of 16 bits is of `weight_type` where
      that has 8; without this it would be of the activation's type. With `per_channel` that of a MatMul has one scale.
    - What Sigmoid and Tanh make in 16 bits has the scale and the zero point that QNN asks for.

    Weights of signed types of 8 and 16 bits are symmetric unless `weight_symmetric` says otherwise. Only each
    `stride`-th of the calibrated numbers is joined with the others by MinMax. Models older than opset 21 get pairs of
    com.microsoft for 16 and 4 bits.

    Errors: those of loading a model, `InvalidQuantization` (also a ValueError) for overrides that contradict
    themselves, each other or the model.
    """
    for told, kind in (("activation_type", activation_type), ("weight_type", weight_type)):
        if not isinstance(kind, QuantType):
            raise InvalidQuantization(f"{told} must be a QuantType, not {kind!r}")
    excluded = names(nodes_to_exclude)
    config = get_qdq_config(
        model_input,
        calibration_data_reader,
        calibrate_method,
        activation_type=activation_type,
        weight_type=weight_type,
        per_channel=per_channel,
        calibration_providers=calibration_providers,
        op_types_to_quantize=op_types_to_quantize,
        nodes_to_exclude=excluded,
    )
    loaded = load_proto(model_input) if isinstance(model_input, ModelProto) else load_model(os.fspath(model_input))
    options = Options.parse(
        {"TensorQuantOverrides": deepcopy(dict(init_overrides or {})), "CalibStridedMinMax": stride}
    )
    job = Job(
        loaded,
        options,
        weight_type=ir_type(weight_type),
        activation_type=ir_type(activation_type),
        operators=config.op_types_to_quantize,
        nodes_to_exclude=excluded,
    )
    overrides = job.overrides
    if add_qtype_converts:
        MixedPrecisionTensorQuantOverridesFixer(overrides, job).apply(activation_type, activation_symmetric)
    if weight_symmetric is None:
        weight_symmetric = weight_type in (QuantType.QInt8, QuantType.QInt16)
    weight = {"quant_type": weight_type, "symmetric": weight_symmetric}
    rules = _Rules(job, activation_type, weight, per_channel)
    for node in job.nodes():
        rules.apply(node)
    config.extra_options = {
        "MinimumRealRange": _LEAST_RANGE,
        "DedicatedQDQPair": False,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "TensorQuantOverrides": overrides.get_dict(),
        "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric,
        "CalibStridedMinMax": stride,
    }
    kinds = {activation_type, weight_type, *overrides.get_quant_types()}
    if loaded.model.opset_imports.get("", 1) < WIDE and kinds & (_SIXTEEN | _FOUR):
        config.extra_options["UseQDQContribOps"] = True
    return config


class _Rules:
    """Adds to the overrides what QNN asks of single operators."""

    def __init__(
        self,
        job: Job,
        activation_type: QuantType,
        weight: Override,
        per_channel: bool,
    ) -> None:
        self.job = job
        self.overrides = job.overrides
        self.activation_type = activation_type
        self.weight = weight
        self.per_channel = per_channel

    def apply(self, node: ir.Node) -> None:
        if node.domain not in ("", "ai.onnx"):
            return
        if node.op_type == "MatMul":
            constants = [value for value in node.inputs if value is not None and self._is_free(value)]
            if self.per_channel:
                self._override(constants)
            else:
                self._override_beside_wide(node)
        elif node.op_type == "LayerNormalization" and not self.per_channel:
            self._override_beside_wide(node)
        elif node.op_type in ("Sigmoid", "Tanh"):
            self._fix_result(node)

    def _override_beside_wide(self, node: ir.Node) -> None:
        """Give the constant of two operands the type of weights where the other is an activation of 16 bits."""
        operands = [value for value in node.inputs[:2] if value is not None]
        activations = [value for value in operands if not self.job.is_constant(value) and self.job.is_float(value)]
        if len(operands) != 2 or len(activations) != 1 or self.weight["quant_type"] not in _EIGHT:
            return
        read = self.overrides.get_node_input_qtype_info(
            activations[0].name or "", node.name or "", self.activation_type
        )
        if read.quant_type in _SIXTEEN:
            self._override([value for value in operands if self._is_free(value)])

    def _is_free(self, value: ir.Value) -> bool:
        """Whether a value is a constant of real numbers of which the caller has said nothing."""
        return self.job.is_constant(value) and self.job.is_float(value) and not self.overrides.get(value.name or "")

    def _override(self, constants: Sequence[ir.Value]) -> None:
        for value in constants:
            self.overrides[value.name or ""] = [dict(self.weight)]

    def _fix_result(self, node: ir.Node) -> None:
        name = node.outputs[0].name or ""
        kind = self.overrides.get_node_output_qtype_info(name, self.activation_type).quant_type
        if kind not in _SIXTEEN:
            return
        assert kind is not None
        scale, zero = _FIXED[node.op_type, kind]
        number = np.uint16 if kind == QuantType.QUInt16 else np.int16
        own = (self.overrides.get(name) or [{}])[0]
        replaced = [key for key in ("scale", "zero_point", "rmin", "rmax") if key in own]
        if replaced:
            logger.warning(
                "TensorQuantOverrides of '%s': QNN asks for scale %g and zero point %d of a %s in 16 bits, which take "
                "the place of %s",
                *(name, scale, zero, node.op_type, ", ".join(replaced)),
            )
        for key in _RANGES:
            own.pop(key, None)
        own |= {
            "quant_type": kind,
            "scale": np.array(scale, np.float32),
            "zero_point": np.array(zero, number),
        }
        self.overrides[name] = [own]
