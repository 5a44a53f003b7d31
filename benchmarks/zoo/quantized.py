"""Quantised models, made from float ones with onnxruntime's tools as its users run them."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    matmul_nbits_quantizer,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from benchmarks.zoo import registry
from benchmarks.zoo.inputs import make_inputs

CALIBRATION_BATCHES = 8
INT4_BLOCK = 32


def build(model: registry.Model, source: Path, path: Path) -> None:
    """Write the quantised `model` from the float ONNX file `source`."""
    logging.getLogger().setLevel(logging.WARNING)  # onnxruntime's tools set it to INFO: a line for each node
    if model.maker == "quantize_dynamic":
        quantize_dynamic(source, path, per_channel=True, weight_type=QuantType.QInt8)
    elif model.maker == "quantize_static":
        _static(model, source, path)
    elif model.maker == "matmul_nbits":
        _int4(source, path)
    else:
        raise ValueError(f"{model.name}: {model.maker} is no quantiser")


class RandomBatches(CalibrationDataReader):
    """Calibration data: a few seeded random inputs."""

    def __init__(self, model: registry.Model, batches: int) -> None:
        self._batches: Iterator[dict[str, np.ndarray]] = (
            make_inputs(model, seed=1000 + index) for index in range(batches)
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def _static(model: registry.Model, source: Path, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        folded = Path(folder) / "folded.onnx"
        quant_pre_process(str(source), str(folded))  # shape inference, and BatchNorm folded into convolutions
        quantize_static(
            folded,
            path,
            RandomBatches(model, CALIBRATION_BATCHES),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            weight_type=QuantType.QInt8,
            activation_type=QuantType.QUInt8,
        )


def _int4(source: Path, path: Path) -> None:
    model = onnx.load(source)
    split_gemm(model.graph)
    quantizer = matmul_nbits_quantizer.MatMulNBitsQuantizer(
        model, bits=4, block_size=INT4_BLOCK, is_symmetric=True, accuracy_level=4
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(path), use_external_data_format=False)


def split_gemm(graph: onnx.GraphProto) -> None:
    """Replace every plain Gemm (A·B + C) by MatMul and Add: the 4-bit quantiser only takes MatMul."""
    nodes = []
    for node in graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        plain = all(
            attributes.get(name, default) == default
            for name, default in (("alpha", 1.0), ("beta", 1.0), ("transA", 0), ("transB", 0))
        )
        if node.op_type != "Gemm" or len(node.input) != 3 or not plain:
            nodes.append(node)
            continue
        a, b, c = node.input
        product = f"{node.output[0]}_product"
        nodes.append(helper.make_node("MatMul", [a, b], [product], name=f"{node.name}_MatMul"))
        nodes.append(helper.make_node("Add", [product, c], node.output, name=f"{node.name}_Add"))
    del graph.node[:]
    graph.node.extend(nodes)
