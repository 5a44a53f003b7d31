#!/usr/bin/env bash
# onnxruntime 1.31.1, quantize_static to QDQ with per_channel on a model of opset 11 or 12, which exporters still write
# (PaddlePaddle's, for one). Guessed before the run: an error, or a model that was raised to opset 13, where
# DequantizeLinear got its axis; 16-bit types raise the opset by themselves.
#
# Seen: no word is said, the opset stays, and the file has DequantizeLinear with an `axis` that its opset does not know:
# neither onnxruntime itself nor onnx's checker takes it. Without per_channel, or from opset 13 on, all is well.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check onnx==1.23.2 numpy==2.4.6 onnxruntime==1.31.1
env/bin/python - <<'PY'
import logging

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

logging.disable(logging.WARNING)
draw = np.random.default_rng(0)
weights = draw.standard_normal((4, 3, 3, 3)).astype(np.float32)
image = draw.standard_normal((1, 3, 8, 8)).astype(np.float32)


class Once(CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": image}]

    def get_next(self):
        return self.left.pop() if self.left else None


def quantized(opset, per_channel):
    """The opset of the quantised model, and whether onnxruntime and onnx's checker take it."""
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), "float.onnx")
    quantize_static(
        "float.onnx", "int8.onnx", Once(), per_channel=per_channel,
        quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
    )
    model = onnx.load("int8.onnx")
    written = next(entry.version for entry in model.opset_import if entry.domain == "")
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        onnxruntime.InferenceSession("int8.onnx", options, providers=["CPUExecutionProvider"])
        loads = True
    except Exception as error:
        assert "Unrecognized attribute: axis" in str(error), error
        loads = False
    try:
        onnx.checker.check_model(model)
        checks = True
    except onnx.checker.ValidationError as error:
        assert "Unrecognized attribute: axis" in str(error), error
        checks = False
    return written, loads, checks


print("onnxruntime", onnxruntime.__version__)
for opset in (11, 12, 13):
    for per_channel in (False, True):
        written, loads, checks = quantized(opset, per_channel)
        print(f"opset {opset}, per_channel {per_channel}: opset {written} written, loads {loads}, checks {checks}")
        right = opset >= 13 or not per_channel
        assert (written, loads, checks) == (opset, right, right)
PY
