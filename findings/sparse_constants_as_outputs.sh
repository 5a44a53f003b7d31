#!/usr/bin/env bash
# A Constant with `sparse_value` whose result is an output of the graph, declared tensor(float) as ONNX's text has it.
# Guessed before the run: it comes as a dense array, whatever its rank.
#
# Seen with onnxruntime 1.31.1 (onnx 1.23.2, opset 17; the checker takes each model):
#   rank 2       get_outputs() says tensor(float), and run gives a SparseTensor
#   rank 1, 3    the session is made, and every run raises
#   read by Add  dense values, of each rank
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check onnx==1.23.2 numpy==2.4.6 onnxruntime==1.31.1
env/bin/python - <<'PY'
import numpy as np
import onnxruntime
from onnx import TensorProto, checker, helper, numpy_helper

onnxruntime.set_default_logger_severity(4)


def session(shape, is_read):
    values = numpy_helper.from_array(np.array([1.5, -2], np.float32), "values")
    places = numpy_helper.from_array(np.array([1, 3], np.int64), "places")
    nodes = [helper.make_node("Constant", [], ["c"], sparse_value=helper.make_sparse_tensor(values, places, shape))]
    if is_read:
        nodes.append(helper.make_node("Add", ["c", "c"], ["y"]))
    output = helper.make_tensor_value_info("y" if is_read else "c", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "constant", [], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


for shape in ((3, 3), (4,), (2, 2, 2)):
    dense = np.zeros(shape, np.float32)
    dense.ravel()[[1, 3]] = 1.5, -2
    assert np.array_equal(session(shape, is_read=True).run(None, {})[0], dense + dense)
    made = session(shape, is_read=False)
    try:
        found = type(made.run(None, {})[0]).__name__
    except Exception as error:
        found = f"raises {type(error).__name__}"
    said = made.get_outputs()[0].type
    print(f"shape {shape}: get_outputs {said}, run {found}")
    assert said == "tensor(float)"
    assert found == "SparseTensor" if len(shape) == 2 else found.startswith("raises")
PY
