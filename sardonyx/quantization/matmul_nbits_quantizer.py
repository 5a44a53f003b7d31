"""Weight-only quantization of products and tables: the names of `onnxruntime.quantization.matmul_nbits_quantizer`.

What differs from it is told in `docs/weight_only.md`.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx import ModelProto

from sardonyx.graph.saving import to_message
from sardonyx.quantization.onnx_model import ONNXModel
from sardonyx.quantization.quant_utils import QuantFormat
from sardonyx.quantization.weight_only.configs import (
    Axes,
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    NVAWQWeightOnlyQuantConfig,
    RTNWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
)
from sardonyx.quantization.weight_only.request import Request, requested
from sardonyx.quantization.weight_only.run import open_model, quantize_weights

__all__ = [
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "KQuantWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "NVAWQWeightOnlyQuantConfig",
    "QuantFormat",
    "RTNWeightOnlyQuantConfig",
    "WeightOnlyQuantConfig",
]


class MatMulNBitsQuantizer:
    """Quantises the weights of MatMul, and of Gather where asked for, to 2, 4 or 8 bits in blocks.

    `model` is a path or a ModelProto, which `process` changes. `block_size` weights along the summed axis share a scale
    and, unless `is_symmetric`, a zero point. `accuracy_level` says how MatMulNBits may compute: 4 rounds rows to bytes,
    0 or None keeps them real. QOperator makes MatMulNBits and GatherBlockQuantized, QDQ a DequantizeLinear before each
    node. `nodes_to_include` adds nodes to those of `op_types_to_quantize`: with an empty tuple there only they are
    quantised. `algo_config` chooses another method; what it leaves at its default, the arguments here say.
    ``extra_options={"OrtCompatible": True}`` gives the bytes of onnxruntime where its rounding is another.

    Raises `InvalidQuantization` for arguments that contradict each other or match nothing; `errors.NoSuchFile` and the
    other errors of loading for the model.
    """

    def __init__(
        self,
        model: ModelProto | str | os.PathLike[str],
        bits: int = 4,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        nodes_to_exclude: Collection[str] | None = None,
        nodes_to_include: Collection[str] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
        quant_axes: Axes | None = None,
        channel_wised_quantize: bool = False,
        algo_config: WeightOnlyQuantConfig | None = None,
        *,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._request: Request = requested(
            bits=bits,
            block_size=block_size,
            is_symmetric=is_symmetric,
            accuracy_level=accuracy_level,
            nodes_to_exclude=nodes_to_exclude,
            nodes_to_include=nodes_to_include,
            quant_format=quant_format,
            op_types_to_quantize=op_types_to_quantize,
            quant_axes=quant_axes,
            channel_wise=channel_wised_quantize,
            config=algo_config,
            extra_options=extra_options,
        )
        self.model_path = None if isinstance(model, ModelProto) else os.fspath(model)
        self.bits = self._request.bits
        self.block_size = self._request.block_size
        self.is_symmetric = self._request.is_symmetric
        self.accuracy_level = self._request.accuracy_level
        self.nodes_to_exclude = set(nodes_to_exclude or ())
        self.nodes_to_include = nodes_to_include
        self.algo_config = self._request.config
        self._source: ModelProto | Path = model if isinstance(model, ModelProto) else Path(model)
        self._loaded = open_model(self._source)
        self._model: ONNXModel | None = None

    @property
    def model(self) -> ONNXModel:
        """The model: quantised once `process` has run."""
        if self._model is None:
            is_message = isinstance(self._source, ModelProto)
            self._model = ONNXModel(self._source if is_message else to_message(self._loaded.model))
        return self._model

    def process(self) -> None:
        """Quantise the model; then `model` has it, and can be saved by ``model.save_model_to_file(path, True)``."""
        result = quantize_weights(self._loaded, self._source, self._request)
        if isinstance(self._source, ModelProto):
            self._source.CopyFrom(result)
            result = self._source
        self._model = ONNXModel(result)


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description="Quantise weights of MatMul and Gather to 2, 4 or 8 bits in blocks.")
    parser.add_argument("--input_model", required=True, help="the model's file")
    parser.add_argument("--output_model", required=True, help="the file of the quantised model")
    parser.add_argument("--block_size", default=128, type=int, help="weights that share a scale")
    parser.add_argument(
        "--quant_method", default="default", choices=["default", "hqq", "rtn", "k_quant", "gptq", "nvidia_awq"]
    )
    parser.add_argument("--bits", default=4, type=int, help="2, 4 or 8")
    parser.add_argument("--symmetric", nargs="?", const=True, default=True, type=_flag, choices=[True, False])
    parser.add_argument("--accuracy_level", type=int, help="of MatMulNBits: 4 rounds rows to bytes")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--nodes_to_exclude", nargs="+", default=[], help="names of nodes that stay in float")
    parser.add_argument("--nodes_to_include", nargs="+", help="names of nodes beside those of op_types_to_quantize")
    parser.add_argument("--quant_format", default="QOperator", choices=["QOperator", "QDQ"])
    parser.add_argument("--op_types_to_quantize", nargs="+", choices=["MatMul", "Gather"])
    parser.add_argument("--quant_axes", nargs="+", type=_axis, help="such as MatMul:0 Gather:1")
    for name in ("calib_dataset_name", "tokenizer_dir", "calibration_method", "cache_dir"):
        parser.add_argument(f"--{name}", help="of nvidia_awq, which is not built here")
    return parser.parse_args(arguments)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "1", "false", "0"):
        raise argparse.ArgumentTypeError(f"True or False, not {text}")
    return text.lower() in ("true", "1")


def _axis(text: str) -> tuple[str, int]:
    operator, _, axis = text.partition(":")
    return operator, int(axis)


def main(arguments: Sequence[str] | None = None) -> None:
    """Quantise the weights of a file."""
    given = parse_args(arguments)
    if given.verbose:
        logging.basicConfig(level=logging.INFO)
    configs: dict[str, Callable[[], WeightOnlyQuantConfig | None]] = {
        "default": lambda: None,
        "rtn": RTNWeightOnlyQuantConfig,
        "k_quant": KQuantWeightOnlyQuantConfig,
        "gptq": GPTQWeightOnlyQuantConfig,
        "hqq": lambda: HQQWeightOnlyQuantConfig(given.block_size, given.bits),
        "nvidia_awq": lambda: NVAWQWeightOnlyQuantConfig(given.tokenizer_dir),
    }
    quantizer = MatMulNBitsQuantizer(
        given.input_model,
        given.bits,
        given.block_size,
        given.symmetric if given.quant_method != "hqq" else False,
        given.accuracy_level,
        given.nodes_to_exclude,
        given.nodes_to_include,
        QuantFormat[given.quant_format],
        given.op_types_to_quantize,
        given.quant_axes,
        algo_config=configs[given.quant_method](),
    )
    quantizer.process()
    quantizer.model.save_model_to_file(given.output_model, True)


if __name__ == "__main__":
    main()
