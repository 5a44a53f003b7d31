"""Loop, Scan, If and SequenceMap against onnxruntime and plain Python."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx import errors
from sardonyx.runtime.memory import memory
from tests.ops.one_node import model_of, run

F32 = TensorProto.FLOAT


def value(name: str, shape: list[int | str] | None, kind: int = F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def accumulate() -> onnx.GraphProto:
    """Adds the item to the state; the sum is also the scan output."""
    return helper.make_graph(
        [helper.make_node("Add", ["state", "item"], ["next"]), helper.make_node("Identity", ["next"], ["out"])],
        "body",
        [value("state", [2]), value("item", [2])],
        [value("next", [2]), value("out", [2])],
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("direction", [0, 1])
def test_scan(axis: int, direction: int) -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    x = np.ascontiguousarray(x.T) if axis else x
    node = helper.make_node(
        "Scan",
        ["s", "x"],
        ["final", "sums"],
        body=accumulate(),
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[direction],
        scan_output_axes=[1],
        scan_output_directions=[direction],
    )
    feeds = {"s": np.ones(2, np.float32), "x": x}
    model = model_of([node], feeds, ["final", "sums"])
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, theirs in zip(run(model, feeds), session.run(None, feeds), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_scan_of_opset_8_has_lengths() -> None:
    node = helper.make_node("Scan", ["n", "s", "x"], ["final", "sums"], body=accumulate(), num_scan_inputs=1)
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    feeds = {"n": np.array([3, 1], np.int64), "s": np.zeros((2, 2), np.float32), "x": x}
    final, sums = run(model_of([node], feeds, ["final", "sums"], opset=8), feeds)
    np.testing.assert_array_equal(final, [x[0].sum(0), x[1, 0]])
    np.testing.assert_array_equal(sums[0], x[0].cumsum(0))
    np.testing.assert_array_equal(sums[1], [x[1, 0], [0, 0], [0, 0]])


def fibonacci() -> onnx.GraphProto:
    """Carries two numbers and an outer limit; goes on while the sum is below the limit."""
    return helper.make_graph(
        [
            helper.make_node("Add", ["a", "b"], ["sum"]),
            helper.make_node("Identity", ["b"], ["first"]),
            helper.make_node("Less", ["sum", "limit"], ["still"]),
        ],
        "body",
        [value("i", [], TensorProto.INT64), value("going", [], TensorProto.BOOL), value("a", []), value("b", [])],
        [value("still", [], TensorProto.BOOL), value("first", []), value("sum", []), value("b", [])],
    )


@pytest.mark.parametrize("trips", [0, 3, 100])
def test_loop(trips: int) -> None:
    node = helper.make_node("Loop", ["m", "go", "x", "y"], ["a", "b", "list"], body=fibonacci())
    feeds = {
        "m": np.array(trips, np.int64),
        "go": np.array(True),
        "x": np.float32(0).reshape(()),
        "y": np.float32(1).reshape(()),
        "limit": np.float32(50).reshape(()),
    }
    first, second, listed = run(model_of([node], feeds, ["a", "b", "list"]), feeds)
    a, b, steps = 0.0, 1.0, []
    for _ in range(trips):
        steps.append(b)
        a, b = b, a + b
        if not b < 50:
            break
    assert (float(first), float(second), listed.tolist()) == (a, b, steps)


@pytest.mark.parametrize("flag", [True, False])
def test_if_reads_outer_values(flag: bool) -> None:
    def branch(op_type: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op_type, ["x"], [op_type])], "g", [], [value(op_type, [2])])

    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch("Neg"), else_branch=branch("Exp"))
    feeds = {"flag": np.array(flag), "x": np.array([1, 2], np.float32)}
    (y,) = run(model_of([node], feeds, ["y"]), feeds)
    np.testing.assert_allclose(y, -feeds["x"] if flag else np.exp(feeds["x"]), rtol=1e-6)


def test_branches_of_different_types_are_refused() -> None:
    def branch(kind: int) -> onnx.GraphProto:
        node = helper.make_node("Cast", ["x"], ["y"], to=kind)
        return helper.make_graph([node], "g", [], [value("y", [2], kind)])

    floats, doubles = branch(TensorProto.FLOAT), branch(TensorProto.DOUBLE)
    node = helper.make_node("If", ["flag"], ["z"], then_branch=floats, else_branch=doubles)
    feeds = {"flag": np.array(True), "x": np.array([1, 2], np.float32)}
    with pytest.raises(errors.Fail, match="FLOAT in then_branch and DOUBLE in else_branch"):
        run(model_of([node], feeds, ["z"]), feeds)


def test_condition_must_be_one_element() -> None:
    result = value("z", [2], TensorProto.BOOL)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "g", [], [result])
    node = helper.make_node("If", ["x"], ["y"], name="choose", then_branch=graph, else_branch=graph)
    feeds = {"x": np.array([True, False])}
    with pytest.raises(errors.OnnxRuntimeError, match="must have one element"):
        run(model_of([node], feeds, ["y"]), feeds)


def test_scan_inputs_of_different_lengths() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["p", "q"], ["r"])], "body", [value("p", []), value("q", [])], [value("r", [])]
    )
    node = helper.make_node("Scan", ["a", "b"], ["y"], body=body, num_scan_inputs=2)
    feeds = {"a": np.zeros(3, np.float32), "b": np.zeros(4, np.float32)}
    with pytest.raises(errors.OnnxRuntimeError, match="different lengths"):
        run(model_of([node], feeds, ["y"], shapes={"a": ["n"], "b": ["m"]}), feeds)


@pytest.mark.parametrize(
    ("op_type", "message"),
    [("Identity", "scan outputs of native steps"), ("RandomNormalLike", "scan output 'out' after .* iterations")],
)
def test_scan_output_of_an_endless_loop_is_refused(op_type: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trip count is the model's to choose: what it collects must not end the process."""
    monkeypatch.setattr(memory, "CHECKED_BYTES", 100_000)
    monkeypatch.setattr(memory, "available_bytes", lambda: (64 << 20) + 1_000_000)
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node(op_type, ["x"], ["out"])],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL)],
        [value("on", [], TensorProto.BOOL), value("out", [1000])],
    )
    feeds = {"n": np.array(1 << 62), "x": np.ones(1000, np.float32)}
    model = model_of([helper.make_node("Loop", ["n", ""], ["all"], body=body)], feeds, ["all"])
    with pytest.raises(errors.Fail, match=message):
        run(model, feeds)
