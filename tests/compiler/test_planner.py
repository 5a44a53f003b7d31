"""Plans: slots, constants, releases, and the captures of nested subgraphs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sardonyx import log
from sardonyx.api.building.compiled_model import CompiledModel
from sardonyx.graph.load import load_model
from sardonyx.providers.cpu import CPUExecutionProvider
from sardonyx.runtime.context import RunContext
from sardonyx.runtime.executor import execute
from sardonyx.runtime.plan import ABSENT, Plan

FLOAT = TensorProto.FLOAT


def info(name: str, shape: list[int | str] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def compile_graph(graph: onnx.GraphProto) -> CompiledModel:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return CompiledModel.build(load_model(model), [CPUExecutionProvider({})], log.DEFAULT)


def run(compiled: CompiledModel, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    names = [value.name for value in compiled.model.graph.inputs]
    return execute(compiled.compiled.plan, RunContext(), [feeds[name or ""] for name in names])


def check_releases(plan: Plan) -> None:
    """Nothing is read after its release, and everything that may be released is."""
    kept = {*plan.outputs, *plan.constants}
    released: set[int] = set()
    for step in plan.steps:
        used = {slot for slot in (*step.inputs, *step.outputs) if slot != ABSENT}
        assert not used & released
        released.update(step.release)
    touched = {slot for step in plan.steps for slot in (*step.inputs, *step.outputs) if slot != ABSENT}
    assert released == touched - kept


def test_values_are_released_after_their_last_reader() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Neg", ["a"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["c"]),
            helper.make_node("Mul", ["c", "w"], ["y"]),
        ],
        "g",
        [info("x", ["n", 3])],
        [info("y", ["n", 3])],
        [numpy_helper.from_array(np.full(3, 2, np.float32), "w")],
    )
    compiled = compile_graph(graph)
    plan = compiled.compiled.plan
    check_releases(plan)
    x = np.array([[1, -2, 3]], np.float32)
    assert run(compiled, {"x": x})[0].tolist() == [[0, 0, 0]]
    slot = next(slot for slot in plan.slots if slot.name == "y")
    assert slot.nbytes({"n": 5}) == 5 * 3 * 4


def test_an_output_may_be_an_input_or_a_constant() -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [info("x", [2])],
        [info("x", [2]), info("w", [2]), info("y", [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "w")],
    )
    x, w, y = run(compile_graph(graph), {"x": np.array([3, 4], np.float32)})
    assert x.tolist() == y.tolist() == [3, 4]
    assert w.tolist() == [1, 1]


def branch(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [info(f"{name}_out", None)])


def test_captures_pass_through_nested_subgraphs() -> None:
    """The innermost branch reads a value of the outermost graph that the middle one never names."""
    inner_then = branch("inner_then", [helper.make_node("Add", ["a", "w"], ["inner_then_out"])])
    inner_else = branch("inner_else", [helper.make_node("Sub", ["a", "w"], ["inner_else_out"])])
    middle = branch(
        "middle", [helper.make_node("If", ["inner"], ["middle_out"], then_branch=inner_then, else_branch=inner_else)]
    )
    other = branch("other", [helper.make_node("Identity", ["x"], ["other_out"])])
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("If", ["outer"], ["y"], then_branch=middle, else_branch=other),
        ],
        "g",
        [info("x", [2]), info("outer", [], TensorProto.BOOL), info("inner", [], TensorProto.BOOL)],
        [info("y", [2])],
        [numpy_helper.from_array(np.array([10, 20], np.float32), "w")],
    )
    compiled = compile_graph(graph)
    check_releases(compiled.compiled.plan)
    x = np.array([-1, 2], np.float32)
    expected = {(True, True): [10, 22], (True, False): [-10, -18], (False, True): [-1, 2], (False, False): [-1, 2]}
    for (outer, inner), wanted in expected.items():
        feeds = {"x": x, "outer": np.array(outer), "inner": np.array(inner)}
        assert run(compiled, feeds)[0].tolist() == wanted


def test_absent_inputs_and_outputs_take_no_slot() -> None:
    graph = helper.make_graph(
        [helper.make_node("Clip", ["x", "", "high"], ["y"]), helper.make_node("Dropout", ["y"], ["z", ""])],
        "g",
        [info("x", [3]), info("high", [])],
        [info("z", [3])],
    )
    compiled = compile_graph(graph)
    assert ABSENT not in compiled.compiled.plan.steps[0].inputs
    assert len(compiled.compiled.plan.steps[0].inputs) == 2
    (z,) = run(compiled, {"x": np.array([-5, 0, 5], np.float32), "high": np.array(1, np.float32)})
    assert z.tolist() == [-5, 0, 1]
