"""Results of products with rows a line longer: which have them, and that products read them as they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest
from onnx import numpy_helper

import sardonyx as sx
from sardonyx.compiler import segment_build
from sardonyx.compiler.joint_results import Slice
from sardonyx.compiler.spread_rows import find_spread

Array = np.ndarray[Any, Any]

# Bodies over x [n, rows, 40], and how many results have longer rows.
BODIES = {
    "two products": ("a = MatMul(x, w1) y = MatMul(a, w2)", 1),
    "an activation between": ("a = MatMul(x, w1) b = Add(a, b1) c = Relu(b) y = MatMul(c, w2)", 1),
    "two readers": ("a = MatMul(x, w1) b = MatMul(a, w2) c = MatMul(a, w3) y = Add(b, c)", 1),
    "three products": ("a = MatMul(x, w1) b = MatMul(a, square) y = MatMul(b, w2)", 2),
    "another length": ("a = MatMul(x, short1) y = MatMul(a, short2)", 0),
    "another reader": ("a = MatMul(x, w1) b = MatMul(a, w2) c = ReduceSum(a, last) y = Add(b, c)", 0),
    "the right side": ("a = MatMul(x, w1) t = Transpose<perm = [0, 2, 1]>(a) y = MatMul(a, t)", 0),
    "an output": ("y = MatMul(x, w1)", 0),
}
SHAPES = {
    "w1": (40, 1024),
    "b1": (1024,),
    "w2": (1024, 64),
    "w3": (1024, 64),
    "square": (1024, 1024),
    "short1": (40, 1000),
    "short2": (1000, 64),
}


def model_of(body: str) -> onnx.ModelProto:
    head = '<ir_version: 9, opset_import: ["" : 18]> g (float[n, rows, 40] x) => (float[n, rows, columns] y)'
    model = onnx.parser.parse_model(f"{head} {{ {body} }}")
    rng = np.random.default_rng(3)
    tensors: dict[str, Array] = {name: rng.standard_normal(shape) / 8 for name, shape in SHAPES.items()}
    tensors = {name: array.astype(np.float32) for name, array in tensors.items()} | {"last": np.array([-1])}
    for name in sorted({name for node in model.graph.node for name in node.input} & tensors.keys()):
        model.graph.initializer.append(numpy_helper.from_array(tensors[name], name))
    return model


@pytest.mark.parametrize("case", BODIES)
@pytest.mark.parametrize("rows", [1, 7, 90])
def test_bodies(case: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body, expected = BODIES[case]
    found: dict[int, Slice] = {}

    def observed(*given: Any) -> dict[int, Slice]:
        found.update(find_spread(*given))
        return dict(found)

    monkeypatch.setattr(segment_build, "find_spread", observed)
    model = model_of(body)
    x = np.random.default_rng(rows).standard_normal((2, rows, 40)).astype(np.float32)
    options = sx.SessionOptions()
    options.intra_op_num_threads = 2
    session = sx.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0]
    for _ in range(2):
        (y,) = session.run(None, {"x": x})
        assert np.allclose(y, wanted, rtol=1e-4, atol=1e-4 * float(np.abs(wanted).max()))
    assert len(found) == expected
