#!/usr/bin/env bash
# auto_pad SAME_LOWER of a window of even size puts the odd line of padding before the input, SAME_UPPER behind it.
# Guessed before the run: who reads the attribute tells them apart.
#
# Seen, kernel 2 x 2 and stride 2 over 7 x 9, NumPy in float64 by the text of ONNX:
#
#   onnxruntime 1.31.1, apache-tvm 0.27.0.post1                        AveragePool and Conv right
#   opencv-python-headless 5.0.0.93 (cv2.dnn), MNN 3.6.1 (converted)   both give what SAME_UPPER gives, without a word
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check onnx==1.23.2 numpy==2.4.6 onnxruntime==1.31.1 \
  opencv-python-headless==5.0.0.93 apache-tvm==0.27.0.post1 MNN==3.6.1
cat > padding.py <<'PY'
import subprocess
import sys

import cv2
import numpy as np
import onnx.parser
import onnxruntime
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

X = np.random.default_rng(0).standard_normal((1, 1, 7, 9)).astype(np.float32)
NODES = {
    "AveragePool": 'y = AveragePool<kernel_shape = [2, 2], strides = [2, 2], auto_pad = "SAME_LOWER">(x)',
    "Conv": 'y = Conv<strides = [2, 2], auto_pad = "SAME_LOWER">(x, w)',
}


def model(node):
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    windows (float[1, 1, 7, 9] x) => (float[1, 1, 4, 5] y) <float[1, 1, 2, 2] w = {{1, 2, 3, 4}}> {{ {node} }}""")


def windows(op, is_lower):
    """Both operators by their definition: windows over the input with one line and one column more."""
    more = (1, 0) if is_lower else (0, 1)
    grown, there = (np.pad(array, (more, more)) for array in (X[0, 0].astype(float), np.ones((7, 9))))
    result = np.zeros((4, 5))
    for i, j in np.ndindex(4, 5):
        cut = np.s_[2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
        result[i, j] = (grown[cut] * [[1, 2], [3, 4]]).sum() if op == "Conv" else grown[cut].sum() / there[cut].sum()
    return result


def by_onnxruntime(made):
    return onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]


def by_tvm(made):
    module = relax.transform.LegalizeOps()(relax.transform.DecomposeOpsForInference()(from_onnx(made)))
    return relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())["main"](tvm.runtime.tensor(X)).numpy()


def by_opencv(made):
    network = cv2.dnn.readNetFromONNX(np.frombuffer(made.SerializeToString(), np.uint8))
    network.setInput(X, "x")
    return network.forward("y")


def by_mnn(made):
    import MNN.expr as expr
    import MNN.nn as nn

    onnx.save(made, "m.onnx")
    tool = sys.executable.rsplit("/", 1)[0] + "/mnnconvert"
    subprocess.run([tool, "-f", "ONNX", "--modelFile", "m.onnx", "--MNNModel", "m.mnn", "--bizCode", "x"],
                   check=True, capture_output=True)
    network = nn.load_module_from_file("m.mnn", ["x"], ["y"])
    y = network.forward([expr.const(X, list(X.shape), expr.NCHW, expr.float)])
    return np.array(expr.convert(y[0] if isinstance(y, list) else y, expr.NCHW).read())


SEEN = {
    "onnxruntime": (by_onnxruntime, {"AveragePool": True, "Conv": True}),
    "tvm": (by_tvm, {"AveragePool": True, "Conv": True}),
    "opencv": (by_opencv, {"AveragePool": False, "Conv": False}),
    "mnn": (by_mnn, {"AveragePool": False, "Conv": False}),
}
for name, (run, seen) in SEEN.items():
    for op, is_right in seen.items():
        found = run(model(NODES[op])).reshape(4, 5)
        is_lower, is_upper = (np.allclose(found, windows(op, lower), atol=1e-5) for lower in (True, False))
        print(f"{name}, {op} with SAME_LOWER: {'SAME_LOWER' if is_lower else 'SAME_UPPER' if is_upper else 'neither'}")
        assert (is_lower, is_upper) == (is_right, not is_right), f"{name}, {op}"
PY
env/bin/python padding.py
