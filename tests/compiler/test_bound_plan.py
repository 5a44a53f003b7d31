"""Native plans of a session for sizes that are asked for, without a run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx import errors, log
from sardonyx.api.building.compiled_model import CompiledModel
from sardonyx.compiler.bound_plan import buffer_bytes, native_plan, symbols_of
from sardonyx.graph.load import load_model
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.runtime.native.native_segment import NativeSegment
from sardonyx.runtime.plan import Plan, Step


def plan_of(*nodes: onnx.NodeProto, inputs: dict[str, list[int | str]], constants: dict[str, np.ndarray]) -> Plan:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("result", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return CompiledModel.build(load_model(model), [CPUExecutionProvider({})], log.DEFAULT).compiled.plan


def segments_of(plan: Plan) -> list[Step]:
    return [step for step in plan.steps if isinstance(step.call, NativeSegment)]


def two_products() -> Plan:
    """(x @ a) @ b, 8 wide in the middle; the last one 64 wide, which is nowhere too narrow for a product by tiles."""
    return plan_of(
        helper.make_node("MatMul", ["x", "a"], ["middle"]),
        helper.make_node("MatMul", ["middle", "b"], ["result"]),
        inputs={"x": ["rows", 4]},
        constants={"a": np.ones((4, 8), np.float32), "b": np.ones((8, 64), np.float32)},
    )


def test_the_plan_for_given_sizes() -> None:
    plan = two_products()
    (step,) = segments_of(plan)
    ready = native_plan(plan, step, {"rows": 5})
    assert ready is not None
    assert [shape for _, shape in ready.outputs] == [(5, 64)]
    assert [bound.kernel for bound in ready.source.bound.steps] == ["gemm", "gemm"]
    assert buffer_bytes(ready.source.bound) == 5 * 8 * 4
    assert native_plan(plan, step, {"rows": 5}) is ready


def test_symbols_come_from_the_shapes_of_inputs() -> None:
    plan = two_products()
    assert symbols_of(plan, {"x": (7, 4)}) == {"rows": 7}
    assert symbols_of(plan, {}) == {}
    assert symbols_of(plan, {"another": (1,)}) == {}


def test_a_plan_that_needs_more_than_sizes_is_unknown() -> None:
    plan = plan_of(
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Cast", ["places"], ["result"], to=TensorProto.FLOAT),
        inputs={"x": ["rows", 4]},
        constants={},
    )
    (step,) = segments_of(plan)
    assert native_plan(plan, step, {"rows": 5}) is None
    (known,) = segments_of(two_products())
    assert native_plan(two_products(), known, {}) is None


def test_sizes_that_break_a_node_are_its_error() -> None:
    plan = plan_of(
        helper.make_node("Add", ["x", "y"], ["result"], name="sum"),
        inputs={"x": ["rows", 4], "y": ["more", 4]},
        constants={},
    )
    (step,) = segments_of(plan)
    with pytest.raises(errors.OnnxRuntimeError, match="sum"):
        native_plan(plan, step, {"rows": 2, "more": 3})
