#!/usr/bin/env bash
# Resize by `scales` where size times scale is no integer: ONNX maps places by the given scale, and rounds the size down.
# Guessed before the run: all four engines do so.
#
# Seen, 7 x 9 by 1.6 and 0.7 to 11 x 6, mode linear, coordinates half_pixel, NumPy in float64 by the text of ONNX:
#
#   onnxruntime 1.31.1, iree-base 3.13.0         as the text says
#   opencv-python-headless 5.0.0.93 (cv2.dnn),
#   apache-tvm 0.27.0.post1 (relax)              by the ratio of the sizes, 11/7 and 6/9: off by 1.1 of values of 3,
#                                                without a word
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check onnx==1.23.2 numpy==2.4.6 onnxruntime==1.31.1 \
  opencv-python-headless==5.0.0.93 apache-tvm==0.27.0.post1 iree-base-compiler==3.13.0 iree-base-runtime==3.13.0
cat > resize.py <<'PY'
import subprocess
import sys

import cv2
import numpy as np
import onnx.parser
import onnxruntime
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

MODEL = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 19]>
resize (float[1, 3, 7, 9] x) => (float[1, 3, 11, 6] y) <float[4] scales = {1, 1, 1.6, 0.7}> {
  y = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(x, , scales)
}""")
X = np.random.default_rng(0).standard_normal((1, 3, 7, 9)).astype(np.float32)


def lines(size, new, scale):
    """The matrix [new, size] that makes a line longer or shorter."""
    result = np.zeros((new, size))
    for i in range(new):
        place = min(max((i + 0.5) / scale - 0.5, 0), size - 1)
        low = int(place)
        result[i, low] += 1 - (place - low)
        result[i, min(low + 1, size - 1)] += place - low
    return result


def resized(rows, columns):
    return np.einsum("ab,ncbd,ed->ncae", lines(7, 11, rows), X.astype(float), lines(9, 6, columns))


def by_tvm():
    made = relax.transform.LegalizeOps()(relax.transform.DecomposeOpsForInference()(from_onnx(MODEL)))
    machine = relax.VirtualMachine(tvm.compile(made, target="llvm"), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(X)).numpy()


def by_opencv():
    network = cv2.dnn.readNetFromONNX(np.frombuffer(MODEL.SerializeToString(), np.uint8))
    network.setInput(X, "x")
    return network.forward("y")


def by_iree():
    import iree.runtime

    onnx.save(MODEL, "m.onnx")
    tool = sys.executable.rsplit("/", 1)[0]
    subprocess.run([f"{tool}/iree-import-onnx", "m.onnx", "-o", "m.mlir"], check=True, capture_output=True)
    subprocess.run(
        [f"{tool}/iree-compile", "m.mlir", "-o", "m.vmfb", "--iree-hal-target-device=local",
         "--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=generic"],
        check=True, capture_output=True,
    )
    return np.asarray(iree.runtime.load_vm_flatbuffer_file("m.vmfb", driver="local-task").resize(X))


given, ratio = resized(1.6, 0.7), resized(11 / 7, 6 / 9)
session = onnxruntime.InferenceSession(MODEL.SerializeToString(), providers=["CPUExecutionProvider"])
for name, result, right, wrong in (
    ("onnxruntime", session.run(None, {"x": X})[0], given, ratio),
    ("iree", by_iree(), given, ratio),
    ("opencv", by_opencv(), ratio, given),
    ("tvm", by_tvm(), ratio, given),
):
    print(f"{name}: off by {abs(result - given).max():.1e} from the given scales, by {abs(result - ratio).max():.1e} from the ratios")
    assert np.allclose(result, right, atol=1e-5) and not np.allclose(result, wrong, atol=1e-2), name
PY
env/bin/python resize.py
