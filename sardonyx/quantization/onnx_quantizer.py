"""`ONNXQuantizer`: models of integer operators, for scales that are found in each run and for calibrated ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import onnx_ir as ir

from sardonyx.quantization.base_quantizer import BaseQuantizer, Model, opened
from sardonyx.quantization.integer import HANDLERS as INTEGER
from sardonyx.quantization.opset import converted
from sardonyx.quantization.qlinear import HANDLERS as QLINEAR
from sardonyx.quantization.qlinear.clamp import narrow_ranges
from sardonyx.quantization.quant_utils import QuantizationMode
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.rewriting import Rewriting

_DYNAMIC_OPSET = 11  # which has DynamicQuantizeLinear
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


class ONNXQuantizer(BaseQuantizer):
    """Quantises to integer operators.

    `mode` IntegerOps: MatMulInteger, ConvInteger and others read activations that DynamicQuantizeLinear stores as uint8
    in each run. QLinearOps: QLinearMatMul, QLinearConv and others read and give activations with the scales that
    `tensors_range` stands for. `static` says the same: True for QLinearOps.
    """

    def __init__(
        self,
        model: Model,
        per_channel: bool,
        reduce_range: bool,
        mode: QuantizationMode,
        static: bool,
        weight_qType: Any,  # noqa: N803
        activation_qType: Any,  # noqa: N803
        tensors_range: Mapping[str, Any] | None,
        nodes_to_quantize: Collection[str] | None,
        nodes_to_exclude: Collection[str] | None,
        op_types_to_quantize: Collection[str],
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(mode, QuantizationMode):
            raise InvalidQuantization(f"mode must be a member of QuantizationMode, not {mode!r}")
        if bool(static) != (mode is QuantizationMode.QLinearOps):
            raise InvalidQuantization(
                f"mode {mode} goes with static={mode is QuantizationMode.QLinearOps}: scales of activations are either "
                "found in each run or calibrated"
            )
        operators = set(op_types_to_quantize)
        if not static and "MatMul" in operators:
            operators.add("Gemm")
        loaded = opened(model)
        if not static and loaded.model.opset_imports.get("", 1) < _DYNAMIC_OPSET:
            loaded = converted(loaded, _DYNAMIC_OPSET)
        super().__init__(
            loaded,
            per_channel,
            reduce_range,
            weight_qType,
            activation_qType,
            tensors_range,
            nodes_to_quantize,
            nodes_to_exclude,
            operators,
            extra_options,
        )
        self.mode = mode
        self.static = static
        self._check_types()

    def _check_types(self) -> None:
        for what, dtype in (("weights", self.weight_type), ("activations", self.activation_type)):
            if dtype not in _BYTES:
                raise InvalidQuantization(
                    f"Integer operators take {what} of int8 or uint8, not {dtype.name}: use QuantFormat.QDQ in "
                    "quantize_static for other types, or MatMulNBitsQuantizer for weights of 4 bits"
                )
        if not self.static and self.activation_type != ir.DataType.UINT8:
            raise InvalidQuantization(
                f"Scales that are found in each run are for activations of uint8, not {self.activation_type.name}"
            )
        if self.static and (self.activation_type, self.weight_type) == (ir.DataType.INT8, ir.DataType.UINT8):
            raise InvalidQuantization(
                "No operator multiplies activations of int8 by weights of uint8: quantise the weights to int8, or the "
                "activations to uint8"
            )

    def quantize(self) -> None:
        """Quantise the model in `job`."""
        rewriting = Rewriting(self.job, self.static)
        if self.static:
            narrow_ranges(rewriting)
        rewriting.run(QLINEAR if self.static else INTEGER)
        self.job.finish()
