#!/usr/bin/env bash
# onnxruntime 1.31.1, quantization.create_calibrator with MinMax and `max_intermediate_outputs` = n, an option against
# memory: the calibrator is to reduce what it holds after every n samples. Guessed before the run: the same ranges.
#
# Seen: the samples of every whole group of n are lost, and only what is left over counts. Of three samples with n = 2 the
# range is that of the third alone; where n divides the number of samples, collect_data fails with "No data is collected".
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check onnx==1.23.2 numpy==2.4.6 onnxruntime==1.31.1
env/bin/python - <<'PY'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader
from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

graph = helper.make_graph(
    [helper.make_node("Relu", ["x"], ["y"], name="relu")], "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "m.onnx")


class Samples(CalibrationDataReader):
    def __init__(self, numbers):
        self.left = iter(numbers)

    def get_next(self):
        number = next(self.left, None)
        return None if number is None else {"x": np.array([number], np.float32)}


def ranged(numbers, bound):
    options = {} if bound is None else {"max_intermediate_outputs": bound}
    calibrator = create_calibrator("m.onnx", ["Relu"], "a.onnx", CalibrationMethod.MinMax, extra_options=options)
    try:
        calibrator.collect_data(Samples(numbers))
    except ValueError as error:
        return str(error)
    low, high = calibrator.compute_data()["x"].range_value
    return float(np.ravel(low)[0]), float(np.ravel(high)[0])


print("onnxruntime", onnxruntime.__version__)
numbers = [9.0, 1.0, 5.0]
whole, parts, none = ranged(numbers, None), ranged(numbers, 2), ranged(numbers[:2], 2)
print("without the option:", whole, "| groups of 2:", parts, "| two samples, groups of 2:", none)
assert whole == (1.0, 9.0), whole
assert parts == (5.0, 5.0), parts
assert none == "No data is collected.", none
PY
