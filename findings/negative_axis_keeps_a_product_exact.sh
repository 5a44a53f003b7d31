#!/usr/bin/env bash
# onnxruntime 1.31.1: the same int4 weights, DequantizeLinear and MatMul, with the axis of the scales written as 1 or as
# -1 (and with blocks as 0 or -2), which ONNX defines as the same. Guessed before the run: the same numbers.
#
# Seen: only the non-negative spelling becomes MatMulNBits, with `accuracy_level` 4, which rounds the rows of the other
# operand to 8 bits. Its results are off by some 1e-2 of the largest one. The negative spelling keeps both nodes, and
# is right to float32's last bits. `session.qdq_matmulnbits_accuracy_level` = 1 takes the rounding away.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check onnx==1.23.2 numpy==2.4.6 onnxruntime==1.31.1
env/bin/python - <<'PY'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

K, N, BLOCK = 64, 32, 16
draw = np.random.default_rng(0)
weights = draw.integers(-8, 8, (K, N)).astype(np.int64)
x = draw.standard_normal((5, K)).astype(np.float32)


def run(axis, block, level=None):
    """Operators after optimisation, and the distance from the exact result over the largest of it."""
    scales = draw.uniform(0.05, 0.1, (K // block, N) if block else N).astype(np.float32)
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=axis, **({"block_size": block} if block else {}))
    graph = helper.make_graph(
        [node, helper.make_node("MatMul", ["x", "d"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", K])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", N])],
        [helper.make_tensor("w", TensorProto.INT4, [K, N], weights.ravel().tolist()),
         helper.make_tensor("s", TensorProto.FLOAT, scales.shape, scales)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = "optimized.onnx"
    if level is not None:
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", str(level))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"x": x})
    each = np.repeat(scales.astype(np.float64), block, axis=0) if block else scales.astype(np.float64)
    want = x.astype(np.float64) @ (weights * each)
    kinds = sorted({node.op_type for node in onnx.load("optimized.onnx").graph.node})
    return kinds, float(np.abs(got - want).max() / np.abs(want).max())


print("onnxruntime", onnxruntime.__version__)
for axis, block in ((1, 0), (-1, 0), (0, BLOCK), (-2, BLOCK)):
    kinds, distance = run(axis, block)
    print(f"axis {axis:2d} block {block:2d}: {', '.join(kinds):30s} off by {distance:.1e}")
    fused = axis >= 0
    assert ("MatMulNBits" in kinds) == fused, kinds
    assert (distance > 1e-3) == fused, distance
    assert (distance < 1e-6) != fused, distance
kinds, distance = run(0, BLOCK, level=1)
print(f"axis  0 block {BLOCK}, level 1: {', '.join(kinds)} off by {distance:.1e}")
assert kinds == ["MatMulNBits"] and distance < 1e-6, (kinds, distance)
PY
