"""Moves of data against onnx.reference and NumPy, in every opset's form; indices out of bounds are clear errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

import sardonyx as ort
from sardonyx import errors
from sardonyx.ops.gather_scatter import Gather
from tests.ops.one_node import build, model_of, run_node

I64 = np.int64
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def ints(*values: int) -> Any:
    return np.array(values, I64)


@pytest.mark.parametrize(
    ("op_type", "opset", "inputs", "attributes", "expected"),
    [
        ("Reshape", 14, [X, ints(0, -1)], {}, X.reshape(2, 12)),
        ("Reshape", 14, [X[:0], ints(0, 5)], {"allowzero": 1}, np.zeros((0, 5), np.float32)),
        # Where there are no elements, -1 is what is left of the dimensions that are not copied.
        ("Reshape", 14, [np.zeros((0, 3, 2, 4), np.float32), ints(0, 0, -1)], {}, np.zeros((0, 3, 8), np.float32)),
        ("Reshape", 14, [np.zeros((2, 0, 6), np.float32), ints(0, 0, 2, -1)], {}, np.zeros((2, 0, 2, 3), np.float32)),
        ("Reshape", 14, [np.zeros((0, 4), np.float32), ints(2, -1)], {}, np.zeros((2, 0), np.float32)),
        ("Squeeze", 11, [X[:1]], {"axes": [0]}, X[0]),
        ("Squeeze", 13, [X[:1]], {}, X[0]),
        ("Squeeze", 13, [X[:1], ints(-3)], {}, X[0]),
        ("Unsqueeze", 11, [X], {"axes": [0, 4]}, X[None, ..., None]),
        ("Unsqueeze", 13, [X, ints(-1, 0)], {}, X[None, ..., None]),
        ("Flatten", 13, [X], {"axis": -1}, X.reshape(6, 4)),
        ("Transpose", 13, [X], {}, X.T),
        ("Transpose", 13, [X], {"perm": [1, 0, 2]}, X.transpose(1, 0, 2)),
        ("Expand", 13, [X[:, :1], ints(1, 3, 1)], {}, np.repeat(X[:, :1], 3, 1)),
        ("Slice", 9, [X], {"starts": [1], "ends": [9], "axes": [2]}, X[:, :, 1:9]),
        ("Slice", 13, [X, ints(-1, 3), ints(-9, 0), ints(1, 2), ints(-1, -2)], {}, X[:, ::-1, 3:0:-2]),
        ("Slice", 13, [X, ints(5), ints(9)], {}, X[5:9]),
        ("Concat", 13, [X, X], {"axis": -1}, np.concatenate([X, X], -1)),
        ("Tile", 13, [X, ints(1, 2, 3)], {}, np.tile(X, (1, 2, 3))),
        ("Pad", 2, [X[0]], {"pads": [1, 0, 0, 2], "value": 5.0}, np.pad(X[0], [(1, 0), (0, 2)], constant_values=5)),
        ("Pad", 13, [X[0], ints(1, -1, 0, 2)], {}, np.pad(X[0][:, 1:], [(1, 0), (0, 2)])),
        ("Pad", 13, [X[0], ints(2, 0, 0, 3)], {"mode": "reflect"}, np.pad(X[0], [(2, 0), (0, 3)], "reflect")),
        ("Pad", 13, [X[0], ints(4, 0, 0, 9)], {"mode": "edge"}, np.pad(X[0], [(4, 0), (0, 9)], "edge")),
        ("Pad", 19, [X[0], ints(4, 1), None, ints(-1)], {"mode": "wrap"}, np.pad(X[0], [(0, 0), (4, 1)], "wrap")),
        ("Gather", 13, [X, np.array([[0, -1]])], {"axis": 1}, X[:, [[0, -1]]]),
        ("GatherElements", 13, [X[0], np.array([[0, -1, 1]])], {"axis": 1}, X[0][:1][:, [0, 3, 1]]),
        ("GatherND", 13, [X, np.array([[0, 1], [1, -1]])], {}, X[[0, 1], [1, 2]]),
        ("GatherND", 13, [X, np.array([[1], [0]])], {"batch_dims": 1}, X[[0, 1], [1, 0]]),
        ("EyeLike", 13, [X[0]], {"k": 1, "dtype": 7}, np.eye(3, 4, 1, dtype=I64)),
        ("Range", 13, [np.array(1.0), np.array(2.0), np.array(0.3)], {}, 1.0 + 0.3 * np.arange(4)),
        ("Range", 13, [np.array(5), np.array(-1), np.array(-2)], {}, np.array([5, 3, 1])),
        ("Shape", 15, [X], {"start": -2, "end": 9}, ints(3, 4)),
        ("Size", 13, [X], {}, np.array(24)),
    ],
)
def test_values(op_type: str, opset: int, inputs: list[Any], attributes: dict[str, Any], expected: Any) -> None:
    (found,) = run_node(op_type, inputs, opset=opset, **attributes)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes", "sizes"),
    [
        (11, [X], {"axis": 2}, [2, 2]),
        (11, [X], {"axis": 2, "split": [1, 3]}, [1, 3]),
        (13, [X, ints(3, 1)], {"axis": -1}, [3, 1]),
        (18, [X], {"axis": 1, "num_outputs": 2}, [2, 1]),
    ],
)
def test_split(opset: int, inputs: list[Any], attributes: dict[str, Any], sizes: list[int]) -> None:
    parts = run_node("Split", inputs, len(sizes), opset=opset, **attributes)
    axis = attributes["axis"]
    for part, expected in zip(parts, np.split(X, np.cumsum(sizes)[:-1], axis), strict=True):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(reduction: str) -> None:
    data, indices = np.ones((3, 4), np.float32), np.array([[0, 2], [1, -1]])
    updates = np.array([[5, 6], [7, 8]], np.float32)
    combine = {"none": lambda a, b: b, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    expected = data.copy()
    for row in range(2):
        for column in range(2):
            place = (row, indices[row, column])
            expected[place] = combine[reduction](expected[place], updates[row, column])
    (found,) = run_node("ScatterElements", [data, indices, updates], opset=18, axis=1, reduction=reduction)
    np.testing.assert_array_equal(found, expected)
    points = np.array([[0, 0], [0, 2], [1, 1], [1, 3]])
    (found,) = run_node("ScatterND", [data, points, updates.ravel()], opset=18, reduction=reduction)
    np.testing.assert_array_equal(found, expected)
    assert (data == 1).all()


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Gather", [X, np.array([3])], {"axis": 1}),
        ("GatherElements", [X[0], np.array([[4]])], {"axis": 1}),
        ("GatherND", [X, np.array([[0, -4]])], {}),
        ("ScatterElements", [X[0], np.array([[7]]), np.ones((1, 1), np.float32)], {}),
        ("ScatterND", [X[0], np.array([[0, 9]]), np.ones(1, np.float32)], {}),
    ],
)
def test_index_out_of_bounds(op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(errors.OnnxRuntimeError, match=rf"running {op_type} node. Name:'node'.*out of data bounds"):
        run_node(op_type, inputs, opset=18, **attributes)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Transpose", [X], {"perm": [0, 0, 1]}),
        ("Flatten", [X], {"axis": 4}),
        ("Concat", [X, X[0]], {"axis": 0}),
        ("Split", [X, ints(3, 3)], {"axis": 2}),
    ],
)
def test_contradictions(op_type: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(errors.OnnxRuntimeError):
        run_node(op_type, inputs, 2 if op_type == "Split" else 1, opset=13, **attributes)


EMPTY_PARTS: list[tuple[list[tuple[int, ...]], int, tuple[int, ...] | None]] = [
    ([(0, 5), (2, 3)], 0, (2, 3)),
    ([(2, 3), (0, 5)], 0, (2, 3)),
    ([(3, 0), (2, 3), (2, 0), (2, 1)], -1, (2, 4)),
    ([(0, 7, 9), (2, 3, 9), (1, 3, 9)], 0, (3, 3, 9)),
    ([(0, 5), (0, 3)], 0, (0, 5)),
    ([(0, 4), (5, 0)], 1, (0, 4)),
    ([(0, 5), (2, 3)], 1, None),  # of 5 columns nobody knows the contents
    ([(0, 4), (5, 0)], 0, None),
    ([(3, 2), (2, 3)], 0, None),
]


@pytest.mark.parametrize(("shapes", "axis", "expected"), EMPTY_PARTS)
@pytest.mark.parametrize("source", ["Concat", "ConcatFromSequence"])
def test_parts_without_elements(
    source: str, shapes: list[tuple[int, ...]], axis: int, expected: tuple[int, ...] | None
) -> None:
    """Parts that have nothing to give may have other dimensions; also where the sizes came before in other forms."""
    names = [f"x{place}" for place in range(len(shapes))]
    inputs = [helper.make_tensor_value_info(name, 1, [None] * len(shapes[0])) for name in names]
    nodes = [helper.make_node("Concat", names, ["y"], axis=axis)]
    if source == "ConcatFromSequence":
        nodes = [
            helper.make_node("SequenceConstruct", names, ["s"]),
            helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=axis),
        ]
    outputs = [helper.make_tensor_value_info("y", 1, None)]
    graph = helper.make_graph(nodes, "parts", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)

    def run(shapes: list[tuple[int, ...]]) -> tuple[list[Any], Any]:
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        return arrays, session.run(None, dict(zip(names, arrays, strict=True)))[0]

    for size in (1, 2, 3, 4):
        arrays, y = run([(size,) * len(shapes[0])] * len(shapes))
        np.testing.assert_array_equal(y, np.concatenate(arrays, axis))
    if expected is None:
        with pytest.raises(errors.Fail, match="Concat needs equal dimensions except on axis"):
            run(shapes)
        return
    for _ in range(3):
        arrays, y = run(shapes)
        assert y.shape == expected
        whole = [array for array in arrays if array.size]
        np.testing.assert_array_equal(y, np.concatenate(whole, axis) if whole else np.empty(expected))


def test_moves_are_views() -> None:

    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], perm=[1, 0, 2]),
        helper.make_node("Slice", ["a", "one", "three"], ["b"]),
        helper.make_node("Split", ["b"], ["c", "d"], axis=2),
        helper.make_node("Unsqueeze", ["c", "one"], ["e"]),
        helper.make_node("Dropout", ["e"], ["y"]),
    ]
    model = model_of(nodes, {"x": X}, ["y"], opset=17, constants={"one": ints(1), "three": ints(3)})
    (step,) = build(model).compiled.plan.steps
    native = step.call.plan_for((X.shape,)).plan  # type: ignore[attr-defined]
    assert len(native.labels) == 1  # the copy to the output


def test_non_max_suppression_against_reference() -> None:
    from onnx.reference import ReferenceEvaluator

    rng = np.random.default_rng(11)
    corners = rng.uniform(0, 10, (2, 40, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + rng.uniform(1, 5, corners.shape).astype(np.float32)], axis=2)
    feeds = {
        "x0": boxes,
        "x1": rng.uniform(size=(2, 3, 40)).astype(np.float32),
        "x2": ints(6),
        "x3": np.array([0.3], np.float32),
        "x4": np.array([0.2], np.float32),
    }
    model = model_of([helper.make_node("NonMaxSuppression", list(feeds), ["y"])], feeds, ["y"])
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    (found,) = run_node("NonMaxSuppression", list(feeds.values()))
    np.testing.assert_array_equal(found, expected)
    assert len(found) > 20


def test_rows_that_follow_each_other_are_a_part_of_the_data() -> None:
    data = np.arange(60, dtype=np.float32).reshape(10, 3, 2)
    gather = Gather(ir.Node("", "Gather", []), 13)
    for indices in (np.arange(4), np.arange(3, 9).reshape(2, 3), np.array([[9]], np.int32)):
        part = gather.part(data, indices)
        assert part is not None
        assert np.shares_memory(part, data)
        np.testing.assert_array_equal(part, gather.run(data, indices)[0])
    for indices in (
        np.array([0, 2]),
        np.array([1, 0]),
        np.array([-2, -1]),
        np.array([8, 9, 10]),
        np.zeros(0, np.int64),
    ):
        assert gather.part(data, indices) is None
    last = Gather(ir.Node("", "Gather", [], attributes=[ir.AttrInt64("axis", 1)]), 13)
    assert last.part(data, np.arange(2)) is None
