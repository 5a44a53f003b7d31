"""The names by which earlier versions of onnxruntime have `matmul_nbits_quantizer`, when four bits were all."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from onnx import ModelProto

from sardonyx.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    NVAWQWeightOnlyQuantConfig,
    QuantFormat,
    RTNWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
)
from sardonyx.quantization.weight_only.configs import Axes

__all__ = [
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "MatMul4BitsQuantizer",
    "NVAWQWeightOnlyQuantConfig",
    "QuantFormat",
    "RTNWeightOnlyQuantConfig",
    "WeightOnlyQuantConfig",
]


class MatMul4BitsQuantizer(MatMulNBitsQuantizer):
    """`MatMulNBitsQuantizer` with four bits; its second argument is the size of a block."""

    def __init__(
        self,
        model: ModelProto | str | os.PathLike[str],
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        nodes_to_exclude: Collection[str] | None = None,
        nodes_to_include: Collection[str] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
        quant_axes: Axes | None = None,
        algo_config: WeightOnlyQuantConfig | None = None,
    ) -> None:
        super().__init__(
            model,
            4,
            block_size,
            is_symmetric,
            accuracy_level,
            nodes_to_exclude,
            nodes_to_include,
            quant_format,
            op_types_to_quantize,
            quant_axes,
            algo_config=algo_config,
        )
