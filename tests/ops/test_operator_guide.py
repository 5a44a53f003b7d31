"""The worked examples of docs/operators.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.ops.framework.operator import registered
from sardonyx.ops.framework.registry import load_families
from tests.ops.single_node import compiled, run_ours

GUIDE = Path(__file__).parents[2] / "docs" / "operators.md"


@pytest.fixture(scope="module", autouse=True)
def _examples() -> Any:
    load_families()
    before = {key: list(classes) for key, classes in registered().items()}
    namespace: dict[str, Any] = {"__name__": "operator_guide"}
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(GUIDE), "exec"), namespace)  # the page's own code
    yield
    registered().clear()
    registered().update(before)


def model(op: str, *shapes: tuple[int | str, ...], **attributes: Any) -> onnx.ModelProto:
    names = [f"x{index}" for index in range(len(shapes))]
    node = onnx.helper.make_node(op, names, ["y"], "node", domain="example", **attributes)
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in zip(names, shapes, strict=True)
    ]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("example", 1)]
    graph = onnx.helper.make_graph([node], "guide", inputs, [output])
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_the_elementwise_example_runs_as_a_kernel() -> None:
    x = np.array([[-1, 0, 2]], np.float32)
    proto = model("SquaredRelu", (1, 3), alpha=0.5)
    (y,) = run_ours(proto, {"x0": x})
    np.testing.assert_array_equal(y, np.array([[0, 0, 2]], np.float32))
    (step,) = compiled(proto).compiled.plan.steps
    assert step.kind == "segment"  # native


def test_the_example_with_a_shape_rule_keeps_symbols() -> None:
    proto = model("PairwiseDistance", ("n", 3), ("m", 3))
    a, b = np.zeros((2, 3), np.float32), np.ones((4, 3), np.float32)
    (y,) = run_ours(proto, {"x0": a, "x1": b})
    np.testing.assert_allclose(y, np.full((2, 4), np.sqrt(3)), rtol=1e-6)
    (output,) = compiled(proto).model.graph.outputs
    assert output.shape is not None
    assert [str(dim) for dim in output.shape] == ["n", "m"]


def test_a_contradiction_is_an_error() -> None:
    with pytest.raises(Exception, match="PairwiseDistance needs two matrices"):
        compiled(model("PairwiseDistance", (2, 3), (3,)))
