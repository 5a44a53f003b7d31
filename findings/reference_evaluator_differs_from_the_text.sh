#!/usr/bin/env bash
# onnx 1.23.2, onnx.reference.ReferenceEvaluator: five operators whose results differ from what their text defines,
# without an error. Guessed before the run: all five agree, as this evaluator is what other engines are compared with.
#
#   LRN                   normalises as many channels as the batch has items, and leaves the others as they are
#                         (divided by bias^beta)
#   LpNormalization, p=1  divides by the sum of the values, not of their absolute values
#   LogSoftmax            gives -inf where the value lies 104 or more below the largest one
#   LSTM, activations     are not looked at: Relu in place of Tanh changes nothing
#   LSTM, sequence_lens   is not looked at either
#
# What follows for a comparison: compute these in float64 by their definition.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check onnx==1.23.2 numpy==2.4.6
env/bin/python - <<'PY'
import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

draw = np.random.default_rng(0)


def evaluate(op, inputs, opset=17, outputs=1, **attributes):
    node = helper.make_node(op, list(inputs), [f"y{i}" for i in range(outputs)], **attributes)
    kinds = {np.dtype("float32"): TensorProto.FLOAT, np.dtype("int32"): TensorProto.INT32}
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(name, kinds[value.dtype], value.shape) for name, value in inputs.items() if name],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in range(outputs)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return ReferenceEvaluator(model).run(None, {name: value for name, value in inputs.items() if name})


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def relu(x):
    return np.maximum(x, 0)


def lstm(x, w, r, lengths, bend=np.tanh):
    """Y [steps, batch, hidden] in float64; gates in the order i, o, f, c."""
    steps, batch, hidden = x.shape[0], x.shape[1], r.shape[1]
    y = np.zeros((steps, batch, hidden))
    for b in range(batch):
        h = c = np.zeros(hidden)
        for t in range(lengths[b]):
            i, o, f, g = np.split(w @ x[t, b] + r @ h, 4)
            c = sigmoid(f) * c + sigmoid(i) * bend(g)
            h = sigmoid(o) * bend(c)
            y[t, b] = h
    return y


def show(name, text, found, is_surprise):
    print(f"{name}: by the text {text}, found {found}")
    assert is_surprise, f"{name} is not as it was seen with onnx 1.23.2"


x = np.arange(1, 5, dtype=np.float32).reshape(1, 4, 1, 1)
right = x.astype(float) / (1 + np.array([1 + 4, 1 + 4 + 9, 4 + 9 + 16, 9 + 16]).reshape(1, 4, 1, 1) / 3)
found = evaluate("LRN", {"x": x}, size=3, alpha=1.0, beta=1.0, bias=1.0)[0]
show("LRN", right.ravel().round(4), found.ravel(), np.isclose(found, right).sum() == 1 and (found == x).sum() == 3)

x = np.array([[1, -2, 5]], np.float32)
found = evaluate("LpNormalization", {"x": x}, p=1, axis=1)[0]
show("LpNormalization", x / 8, found, np.allclose(found, x / 4))

found = evaluate("LogSoftmax", {"x": np.array([[0, -200]], np.float32)}, axis=1)[0]
show("LogSoftmax", [0, -200], found, np.isneginf(found[0, 1]))

x, w, r = (draw.standard_normal(shape).astype(np.float32) for shape in ((3, 2, 4), (1, 8, 4), (1, 8, 2)))
wide = [array.astype(float) for array in (x, w[0], r[0])]
plain, bent, short = lstm(*wide, [3, 3]), lstm(*wide, [3, 3], relu), lstm(*wide, [1, 3])
found = evaluate("LSTM", {"x": x, "w": w, "r": r}, hidden_size=2, activations=["Sigmoid", "Relu", "Relu"])[0][:, 0]
show("LSTM, activations", bent[2, 0], found[2, 0], np.allclose(found, plain, atol=1e-5) and not np.allclose(bent, plain))

lengths = np.array([1, 3], np.int32)
found = evaluate("LSTM", {"x": x, "w": w, "r": r, "": w, "l": lengths}, hidden_size=2)[0][:, 0]
show("LSTM, sequence_lens", short[2, 0], found[2, 0], np.allclose(found, plain, atol=1e-5) and not np.allclose(short, plain))
PY
