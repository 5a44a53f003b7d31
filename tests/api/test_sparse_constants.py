"""Constants that a model declares as sparse tensors: their values, places and shape as the model has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx as ort
from tests.api.engine_models import is_stored, keeps_every_engine, wait

LEVELS = list(ort.GraphOptimizationLevel)
N = helper.make_node
X = np.arange(9, dtype=np.float32).reshape(3, 3)


def sparse(
    values: Sequence[Any] = (1.0, 2.0, 3.0),
    places: Sequence[int] = (1, 4, 8),
    shape: Sequence[int] = (3, 3),
    kind: int = TensorProto.FLOAT,
    *,
    coordinates: bool = False,
    name: str = "v",
) -> onnx.SparseTensorProto:
    indices = np.array(places, np.int64)
    if coordinates:
        indices = np.stack(np.unravel_index(indices, tuple(shape)), -1)
    return helper.make_sparse_tensor(
        helper.make_tensor(name, kind, [len(values)], list(values)),
        helper.make_tensor("indices", TensorProto.INT64, indices.shape, indices.ravel().tolist()),
        list(shape),
    )


def output(name: str, shape: Sequence[int] = (3, 3), kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_sparse_tensor_value_info(name, kind, list(shape))


def dense(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape or (3, 3))


def made(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    initializers: Sequence[onnx.SparseTensorProto] = (),
    declared: Sequence[onnx.ValueInfoProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, value_info=declared)
    graph.sparse_initializer.extend(initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def session(
    model: onnx.ModelProto | str, level: ort.GraphOptimizationLevel = LEVELS[-1], saved: str = ""
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = saved
    source = model if isinstance(model, str) else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def contents(value: Any) -> tuple[list[Any], list[int], list[int]]:
    return value.values().tolist(), value.get_coo_data().indices().tolist(), value.dense_shape()


def constant(**parts: Any) -> onnx.NodeProto:
    return N("Constant", [], ["c"], sparse_value=sparse(**parts))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("opset", [11, 13, 21])
@pytest.mark.parametrize("coordinates", [False, True])
def test_a_constant_is_an_output(coordinates: bool, opset: int, level: ort.GraphOptimizationLevel) -> None:
    running = session(made([constant(coordinates=coordinates)], [output("c")], opset=opset), level)
    (found,) = running.get_outputs()
    assert (found.name, found.type, found.shape) == ("c", "sparse_tensor(float)", [3, 3])
    for _ in range(2):
        assert contents(running.run(None, {})[0]) == ([1, 2, 3], [1, 4, 8], [3, 3])
    (held,) = running.run_with_ort_values(None, {})
    assert (held.is_sparse_tensor(), held.data_type()) == (True, "sparse_tensor(float)")
    assert held.as_sparse_tensor().values().tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("parts", "places"),
    [
        ({"values": (0.0, -0.0), "places": (2, 3), "shape": (4,)}, [2, 3]),  # zeros that are named stay
        ({"values": (5.0, 6.0), "places": (2, 5), "shape": (2, 2, 2), "coordinates": True}, [2, 5]),
        ({"values": (), "places": (), "shape": (2, 3)}, []),
        ({"values": (7, 8), "places": (0, 5), "shape": (2, 3), "kind": TensorProto.INT64}, [0, 5]),
        ({"values": (1.0, 2.0), "places": (0, 5), "shape": (2, 3), "kind": TensorProto.DOUBLE}, [0, 5]),
        ({"values": (1.5,), "places": (10**17,), "shape": (10**9, 10**9)}, [10**17]),  # never made dense
    ],
)
def test_all_kinds_of_shapes_and_values(parts: dict[str, Any], places: list[int]) -> None:
    model = made([constant(**parts)], [output("c", parts["shape"], parts.get("kind", TensorProto.FLOAT))])
    (found,) = session(model).run(None, {})
    assert contents(found) == (list(parts["values"]), places, list(parts["shape"]))


def test_values_come_in_row_order() -> None:
    (found,) = session(made([constant(places=(8, 4, 1))], [output("c")])).run(None, {})
    assert contents(found) == ([3, 2, 1], [1, 4, 8], [3, 3])


def test_results_are_the_callers_own() -> None:
    running = session(made([constant()], [output("c")]))
    (first,) = running.run(None, {})
    assert not first.values().flags.writeable
    (later,) = running.run(None, {})
    assert not np.shares_memory(first.values(), later.values())


@pytest.mark.parametrize("level", LEVELS)
def test_an_initializer_is_an_output(level: ort.GraphOptimizationLevel) -> None:
    model = made([N("Neg", ["x"], ["y"])], [dense("y"), output("v")], [dense("x")], [sparse()])
    y, found = session(model, level).run(None, {"x": X})
    np.testing.assert_array_equal(y, -X)
    assert contents(found) == ([1, 2, 3], [1, 4, 8], [3, 3])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("given", [True, False])
def test_a_product_takes_it(given: bool, level: ort.GraphOptimizationLevel) -> None:
    nodes = [constant(), N("SparseToDenseMatMul", ["c", "x"], ["y"], domain="com.microsoft")]
    model = made(nodes, [dense("y"), *([output("c")] if given else [])], [dense("x")], declared=[output("c")])
    if given:
        del model.graph.value_info[:]
    wanted = np.zeros((3, 3), np.float32)
    wanted.flat[[1, 4, 8]] = 1, 2, 3
    np.testing.assert_array_equal(session(model, level).run(["y"], {"x": X})[0], wanted @ X)


def test_one_that_is_not_declared_is_dense() -> None:
    nodes = [constant(), N("Add", ["c", "x"], ["y"])]
    wanted = np.zeros((3, 3), np.float32)
    wanted.flat[[1, 4, 8]] = 1, 2, 3
    for outputs in ([dense("y")], [dense("y"), dense("c")]):
        results = session(made(nodes, outputs, [dense("x")])).run(None, {"x": X})
        for found, right in zip(results, (wanted + X, wanted), strict=False):
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("level", LEVELS)
def test_branches_give_one(level: ort.GraphOptimizationLevel) -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [N("Constant", [], [name], sparse_value=sparse((first, 2.0, 3.0)))], name, [], [output(name)]
        )
        for name, first in (("then", 1.0), ("else", 9.0))
    }
    chosen = helper.make_tensor_value_info("k", TensorProto.BOOL, [])
    running = session(made([N("If", ["k"], ["y"], **branches)], [output("y")], [chosen]), level)
    for which, first in ((True, 1), (False, 9)):
        assert contents(running.run(None, {"k": np.array(which)})[0])[0] == [first, 2, 3]


def test_the_saved_model_has_it(tmp_path: Path) -> None:
    model = made([constant(coordinates=True), N("Neg", ["x"], ["y"])], [dense("y"), output("c")], [dense("x")])
    session(model, saved=str(tmp_path / "saved.onnx"))
    saved = onnx.load(tmp_path / "saved.onnx")
    onnx.checker.check_model(saved)
    assert {entry.domain for entry in saved.opset_import} <= {"", "com.microsoft"}
    assert contents(session(saved).run(["c"], {"x": X})[0]) == ([1, 2, 3], [1, 4, 8], [3, 3])


def test_a_kept_engine_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_every_engine(tmp_path / "cache", monkeypatch)
    path = tmp_path / "model.onnx"
    onnx.save(made([constant(), N("Neg", ["x"], ["y"])], [dense("y"), output("c")], [dense("x")]), path)
    for stored in (False, True):
        running = session(str(path))
        assert is_stored(running) == stored
        assert contents(running.run(None, {"x": X})[1]) == ([1, 2, 3], [1, 4, 8], [3, 3])
        wait()


@pytest.mark.parametrize(
    ("model", "error", "text"),
    [
        (made([constant(places=(1, 4, 9))], [output("c")]), "Fail", r"an index is outside of the shape \(3, 3\)"),
        (made([constant(places=(1, 4))], [output("c")]), "Fail", "do not fit together"),
        (made([constant()], [output("c", kind=TensorProto.INT64)]), "Fail", r"sparse_tensor\(int64\)"),
        (
            made([constant(), N("Add", ["c", "x"], ["y"])], [dense("y"), output("c")], [dense("x")]),
            "InvalidGraph",
            r"Type 'sparse_tensor\(float\)' of input parameter \(c\) of operator \(Add\)",
        ),
        (
            made(
                [constant(), N("SparseToDenseMatMul", ["c", "x"], ["y"], domain="com.microsoft")],
                [dense("y")],
                [dense("x")],
            ),
            "InvalidGraph",
            r"Type 'tensor\(float\)' of input parameter \(c\) of operator \(SparseToDenseMatMul\)",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(model: onnx.ModelProto, error: str, text: str) -> None:
    for level in LEVELS:
        with pytest.raises(getattr(ort.capi.onnxruntime_pybind11_state, error), match=text):
            session(model, level)


def test_rounds_stack_tensors_alone() -> None:
    going = helper.make_tensor_value_info("going", TensorProto.BOOL, [])
    again = helper.make_tensor_value_info("again", TensorProto.BOOL, [])
    counter = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    nodes = [N("Identity", ["going"], ["again"]), constant()]
    body = helper.make_graph(nodes, "body", [counter, going], [again, output("c")])
    rounds = helper.make_tensor_value_info("k", TensorProto.INT64, [])
    model = made([N("Loop", ["k", ""], ["y"], body=body)], [dense("y", 2, 3, 3)], [rounds])
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match=r"must be tensors, not sparse_tensor\(float\)"):
        session(model)
