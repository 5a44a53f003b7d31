"""Small models that the tests of sessions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT


def value(name: str, kind: int, shape: Sequence[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    ir_version: int = 10,
    opset: int = 20,
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def add() -> bytes:
    """z = x + y, both of shape [b, 3]."""
    return model(
        [helper.make_node("Add", ["x", "y"], ["z"], name="add0")],
        [value("x", FLOAT, ["b", 3]), value("y", FLOAT, ["b", 3])],
        [value("z", FLOAT, ["b", 3])],
    ).SerializeToString()


def identity(kind: int, shape: Sequence[Any] | None = ("n",)) -> bytes:
    return model(
        [helper.make_node("Identity", ["x"], ["y"], name="id")], [value("x", kind, shape)], [value("y", kind, None)]
    ).SerializeToString()


def weights(name: str = "w") -> onnx.TensorProto:
    return helper.make_tensor(name, FLOAT, [3], [1.0, 2.0, 3.0])


def add_weights(*, overridable: bool = False, ir_version: int = 10) -> bytes:
    """z = x + w with w = [1, 2, 3]."""
    inputs = [value("x", FLOAT, ["b", 3])]
    if overridable:
        inputs.append(value("w", FLOAT, [3]))
    return model(
        [helper.make_node("Add", ["x", "w"], ["z"], name="add0")],
        inputs,
        [value("z", FLOAT, ["b", 3])],
        [weights()],
        ir_version=ir_version,
        opset=13,
    ).SerializeToString()


def branches() -> bytes:
    """o = relu(x @ w) where c, else -(x @ w)."""
    then = helper.make_graph([helper.make_node("Relu", ["z"], ["t"])], "then", [], [value("t", FLOAT, None)])
    other = helper.make_graph(
        [helper.make_node("Neg", ["z"], ["e"], name="neg")], "else", [], [value("e", FLOAT, None)]
    )
    return model(
        [
            helper.make_node("MatMul", ["x", "w"], ["z"], name="mm"),
            helper.make_node("If", ["c"], ["o"], name="if0", then_branch=then, else_branch=other),
        ],
        [value("x", FLOAT, ["b", 4]), value("c", TensorProto.BOOL, [])],
        [value("o", FLOAT, None)],
        [helper.make_tensor("w", FLOAT, [4, 3], np.ones(12).tolist())],
    ).SerializeToString()


def two_outputs() -> bytes:
    """a = relu(x), b = x + bad, where bad has another size and so always fails."""
    return model(
        [
            helper.make_node("Relu", ["x"], ["a"], name="good"),
            helper.make_node("Add", ["x", "y"], ["b"], name="bad"),
        ],
        [value("x", FLOAT, ["n"]), value("y", FLOAT, ["m"])],
        [value("a", FLOAT, ["n"]), value("b", FLOAT, None)],
    ).SerializeToString()
