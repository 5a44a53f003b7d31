"""A chain of products, one of which bytes serve badly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

LAYERS = 6
BAD = 3  # whose input has a few numbers a hundred times as large as the others
WIDTH = 32


def write(path: Path, *, named: bool = True) -> Path:
    """x (n, 32) through six products with a Tanh behind each; the input of the bad one is scaled column by column,
    and its weights are by the inverse, so that the float model is none the wiser."""
    rng = np.random.default_rng(0)
    nodes, constants, current = [], [], "x"
    for layer in range(LAYERS):
        weight = (rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)
        if layer == BAD:
            scale = np.where(np.arange(WIDTH) == 5, 100.0, 1.0).astype(np.float32)
            constants.append(numpy_helper.from_array(scale, "scale"))
            nodes.append(helper.make_node("Mul", [current, "scale"], ["scaled"], name="scale_up"))
            current, weight = "scaled", weight / scale[:, None]
        constants.append(numpy_helper.from_array(weight, f"w{layer}"))
        name = f"product_{layer}" if named else ""
        nodes.append(helper.make_node("MatMul", [current, f"w{layer}"], [f"p{layer}"], name=name))
        current = f"t{layer}" if layer < LAYERS - 1 else "y"
        nodes.append(helper.make_node("Tanh", [f"p{layer}"], [current], name=f"tanh_{layer}" if named else ""))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        constants,
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def feeds(count: int = 3) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((16, WIDTH)).astype(np.float32)} for _ in range(count)]
