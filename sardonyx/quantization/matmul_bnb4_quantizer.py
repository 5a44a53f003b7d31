"""Weights of products in the 4-bit types of bitsandbytes, under the names of onnxruntime's `matmul_bnb4_quantizer`.

Source: T. Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs" (2023), for NF4; FP4 is bitsandbytes' own.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto

from sardonyx.api.building.weight_quantization import quantize_matmul_bnb4
from sardonyx.quantization.job import MICROSOFT, Job
from sardonyx.quantization.onnx_model import ONNXModel
from sardonyx.quantization.options import Options
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.weight_only.products import product_objection, shape_of
from sardonyx.quantization.weight_only.replacement import Replacement
from sardonyx.quantization.weight_only.request import PACKED_BLOCKS
from sardonyx.quantization.weight_only.run import open_model

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

_AT_ONCE = 1 << 18  # weights that are worked on together: a multiple of all blocks


class MatMulBnb4Quantizer:
    """Quantises the weights of MatMul to FP4 (`quant_type` 0) or NF4 (1), `block_size` of a column with one scale.

    `model` is a ModelProto, which `process` changes, or a path. Raises `InvalidQuantization` for another type or block,
    for names that match nothing, and where no weight can be quantised.
    """

    FP4 = 0
    NF4 = 1

    def __init__(
        self,
        model: ModelProto | str | os.PathLike[str],
        quant_type: int,
        block_size: int,
        nodes_to_exclude: Collection[str] | None = None,
    ) -> None:
        if quant_type not in (self.FP4, self.NF4):
            raise InvalidQuantization(f"quant_type must be 0 (FP4) or 1 (NF4), not {quant_type!r}")
        if block_size not in PACKED_BLOCKS:
            raise InvalidQuantization(
                f"block_size must be one of {', '.join(map(str, PACKED_BLOCKS))}, not {block_size!r}"
            )
        self.quant_type = quant_type
        self.block_size = block_size
        self.nodes_to_exclude = set(nodes_to_exclude or ())
        self._source: ModelProto | Path = model if isinstance(model, ModelProto) else Path(model)
        self._loaded = open_model(self._source)
        self.model: ONNXModel | None = ONNXModel(model) if isinstance(model, ModelProto) else None

    def process(self) -> None:
        """Quantise the model; then `model` has it."""
        job = Job(
            self._loaded,
            Options.parse({"EnableSubgraph": True}),
            weight_type=ir.DataType.UINT4,
            activation_type=ir.DataType.FLOAT,
            operators=["MatMul"],
            nodes_to_exclude=self.nodes_to_exclude,
        )
        replacement = Replacement(job)
        kept: dict[ir.Value, list[ir.Value]] = {}
        for node in job.nodes():
            reason = product_objection(job, node)
            if reason is None:
                self._quantize(node, replacement, kept)
                job.report.quantized(node, f"{('FP4', 'NF4')[self.quant_type]}, blocks of {self.block_size}")
            else:
                job.report.left(node, reason)
                logger.info("MatMul %s stays as it is: %s", node.name, reason)
        job.finish()
        result = job.message()
        if isinstance(self._source, ModelProto):
            self._source.CopyFrom(result)
            result = self._source
        self.model = ONNXModel(result)

    def _quantize(self, node: ir.Node, replacement: Replacement, kept: dict[ir.Value, list[ir.Value]]) -> None:
        job, weight = replacement.job, node.inputs[1]
        assert weight is not None
        job.settle(weight)
        shape = shape_of(job, weight)
        replacement.give_rank(node, len(shape))
        array = job.constant(weight)
        assert array is not None
        array = array.reshape(shape[-2:])
        if weight not in kept:
            codes, scales = self._codes(array, weight.name or "")
            kept[weight] = [
                job.initializer(f"{weight.name}_Bnb4", codes),
                job.initializer(f"{weight.name}_absmax", scales),
            ]
        attributes = {
            "K": array.shape[0],
            "N": array.shape[1],
            "block_size": self.block_size,
            "quant_type": self.quant_type,
        }
        inputs = [node.inputs[0], *kept[weight]]
        replacement.turn(node, "MatMulBnb4", inputs, "_Bnb4", attributes, MICROSOFT)

    def _codes(self, weight: Array, name: str) -> tuple[Array, Array]:
        """The codes and the largest magnitudes of the blocks of a weight [K, N], column after column."""
        columns = np.ascontiguousarray(weight.T).reshape(-1)
        if not np.isfinite(columns).all():
            raise InvalidQuantization(
                f"Weight '{name}' holds NaN or infinite numbers, which no code stands for: mend the model, or leave "
                "the node out with nodes_to_exclude"
            )
        codes = np.empty((columns.size + 1) // 2, np.uint8)
        scales = np.empty(-(-columns.size // self.block_size), weight.dtype)
        for start in range(0, columns.size, _AT_ONCE):
            part = columns[start : start + _AT_ONCE]
            first, blocks = start // self.block_size, -(-part.size // self.block_size)
            quantize_matmul_bnb4(
                codes[start // 2 : start // 2 + (part.size + 1) // 2],
                part,
                scales[first : first + blocks],
                self.block_size,
                self.quant_type,
                1,
                part.size,
            )
        return codes, scales


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description="Quantise the weights of MatMul to FP4 or NF4 in blocks.")
    parser.add_argument("--input_model", required=True, help="the model's file")
    parser.add_argument("--output_model", required=True, help="the file of the quantised model")
    parser.add_argument("--quant_type", default=1, type=int, choices=[0, 1], help="0 for FP4, 1 for NF4")
    parser.add_argument("--block_size", default=64, type=int, help="weights that share a scale")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--nodes_to_exclude", nargs="+", default=[], help="names of nodes that stay in float")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Quantise the weights of a file."""
    given = parse_args(arguments)
    if given.verbose:
        logging.basicConfig(level=logging.INFO)
    quantizer = MatMulBnb4Quantizer(given.input_model, given.quant_type, given.block_size, given.nodes_to_exclude)
    quantizer.process()
    assert quantizer.model is not None
    quantizer.model.save_model_to_file(given.output_model, True)


if __name__ == "__main__":
    main()
