"""The worked example of docs/kernels.md runs as it stands, natively."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx.compiler.kernels import template
from sardonyx.compiler.llvm.target import host_targets
from sardonyx.ops.framework.operator import registered
from sardonyx.ops.framework.registry import load_families

GUIDE = Path(__file__).parents[2] / "docs" / "kernels.md"


@pytest.fixture(scope="module", autouse=True)
def _example() -> Iterator[None]:
    load_families()
    template.templates()
    before = {key: list(classes) for key, classes in registered().items()}
    namespace: dict[str, Any] = {"__name__": "kernel_guide"}
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(GUIDE), "exec"), namespace)  # the page's own code
    yield
    registered().clear()
    registered().update(before)
    template._TABLE.pop("add_clipped")


def session(kernels: str, kind: int = onnx.TensorProto.FLOAT) -> ort.InferenceSession:
    helper = onnx.helper
    node = helper.make_node("AddClipped", ["a", "b"], ["y"], domain="example", limit=1.5)
    inputs = [helper.make_tensor_value_info(name, kind, ["n", "m"]) for name in "ab"]
    graph = helper.make_graph([node], "guide", inputs, [helper.make_tensor_value_info("y", kind, None)])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("example", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.cpu.kernels", kernels)
    return ort.InferenceSession(model.SerializeToString(), options)


@pytest.mark.parametrize("variant", list(host_targets()))
def test_it_is_native_on_every_instruction_set(variant: str) -> None:
    made = session(variant)
    assert [step.kind for step in made._sess._plan.steps] == ["segment"]
    random = np.random.default_rng(0)
    for shape in [(0, 3), (1, 1), (5, 7), (3, 5000)]:
        a, b = (random.standard_normal(shape).astype(np.float32) for _ in range(2))
        np.testing.assert_array_equal(made.run(None, {"a": a, "b": b})[0], np.minimum(a + b, np.float32(1.5)))


def test_other_types_run_on_the_host_and_say_why() -> None:
    made = session("", onnx.TensorProto.DOUBLE)
    (step,) = made._sess._plan.steps
    assert (step.kind, step.reason) == ("host", "only float32 has a kernel")
    np.testing.assert_array_equal(made.run(None, {"a": np.ones((2, 2)), "b": np.ones((2, 2))})[0], np.full((2, 2), 1.5))
